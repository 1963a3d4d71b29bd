"""The events of a virtual world in order, and a hash of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque

_LAST_LINES = 20
"""Lines kept for error messages unless all are kept."""


class Trace:
    """The events of a run, one line each: the virtual time in seconds, then the caller's text.

    Two runs with equal hashes had the same events. To find the first difference of two others,
    keep the lines of both and compare them.

    Args:
        loop: the clock.
        keep_lines: keep every line, not only the last 20.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, keep_lines: bool = False) -> None:
        self.lines: deque[str] = deque(maxlen=None if keep_lines else _LAST_LINES)
        self.count = 0
        self._time = loop.time
        self._hash = hashlib.blake2b(digest_size=16)

    def append(self, event: str) -> None:
        """Add one event."""
        line = f"{self._time():.6f} {event}"
        self.count += 1
        self.lines.append(line)
        self._hash.update(line.encode() + b"\n")

    @property
    def hash(self) -> str:
        """32 hex digits over all lines so far."""
        return self._hash.hexdigest()
