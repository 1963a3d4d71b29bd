"""A file that `trimtab dump-log` reads."""

from __future__ import annotations

import os
from typing import Self

from trimtab.kafka.errors import CorruptData


class LogFile:
    """A file of a log, opened for reading. A context manager.

    Attributes:
        path: as it was given.
        size: bytes, when it was opened.

    Raises:
        CorruptData: it cannot be opened; `read`: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise _unreadable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def base_offset(self) -> int:
        """The offset with which its name begins."""
        return int(os.path.basename(self.path).partition(".")[0].partition("-")[0])

    def read(self, position: int = 0, size: int = -1) -> bytes:
        """Up to `size` bytes from a position on; -1 for all."""
        try:
            self._file.seek(position)
            return self._file.read(size)
        except OSError as error:
            raise _unreadable(error) from error


def _unreadable(error: OSError) -> CorruptData:
    return CorruptData(f"cannot be read: {error.strerror}")
