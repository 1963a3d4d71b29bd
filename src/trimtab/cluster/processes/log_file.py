"""A process's log in a file of bounded size."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from io import TextIOWrapper

MAX_BYTES = 10 * 1024 * 1024
"""The size at which a new file is begun."""

KEPT = 5
"""The number of older files; `<path>.1` is the newest of them."""


class RotatingLog(logging.FileHandler):
    """Writes a log that only its owner can read, and redirects standard error to it, so that other
    output is there too.

    Args:
        max_bytes: once the file has this size, the next record begins a new file.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        super().__init__(path, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        stream = open(descriptor, "a", encoding="utf-8")  # noqa: SIM115
        os.dup2(stream.fileno(), 2)
        return stream

    def emit(self, record: logging.LogRecord) -> None:
        stream = self.stream
        # Not by `tell`: standard error writes to the file, too.
        if stream and os.fstat(stream.fileno()).st_size >= self._max_bytes:
            try:
                self._rotate()
            except OSError as error:  # the file grows on, so that no record is lost
                print(f"cannot rotate {self.baseFilename}: {error}", file=sys.stderr)
        super().emit(record)

    def _rotate(self) -> None:
        path = self.baseFilename
        for number in range(KEPT - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{path}.{number}", f"{path}.{number + 1}")
        os.replace(path, f"{path}.1")
        self.close()
        self.stream = self._open()
