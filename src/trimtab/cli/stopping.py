"""Ends a command between two polls of a consumer, so that what it has printed is committed."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_BASE: Final = 128


class Stop:
    """A context manager that notes the first Ctrl-C or SIGTERM. The second one raises
    KeyboardInterrupt, for a command that cannot go on to the end of its turn.

    Attributes:
        code: the exit code of a process that the signal has ended; 0 without a signal.
    """

    def __init__(self) -> None:
        self.code = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.code:
            raise KeyboardInterrupt
        self.code = _BASE + number
