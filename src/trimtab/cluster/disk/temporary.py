"""Directories that are removed when the process ends, also by SIGTERM."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import rmtree
from tempfile import mkdtemp
from threading import current_thread, main_thread

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TemporaryDirectory:
    """A directory that will be removed.

    Attributes:
        path: its path; only its owner can read it.
        kept: names in it that are not removed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.kept: tuple[str, ...] = ()

    def remove(self) -> None:
        """Remove it, or only its entries that are not in `kept`."""
        if not self.kept:
            rmtree(self.path, ignore_errors=True)
            return
        for name in os.listdir(self.path):
            if name not in self.kept:
                rmtree(os.path.join(self.path, name), ignore_errors=True)


@contextmanager
def temporary_directory() -> Iterator[TemporaryDirectory]:
    """A new directory, removed at the end.

    In the block, on the main thread, SIGTERM raises SystemExit, unless another handler is set; and
    signals do not interrupt the removal.
    """
    is_main = current_thread() is main_thread()
    signals = _SIGNALS if is_main else ()
    before = {each: signal.getsignal(each) for each in signals}
    # A signal that arrives while the directory is created is handled when it can be removed.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        directory = TemporaryDirectory(mkdtemp(prefix="trimtab-"))
        try:
            if is_main:
                signal.signal(signal.SIGTERM, _end)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            yield directory
        finally:
            for each in signals:
                signal.signal(each, signal.SIG_IGN)
            directory.remove()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in before.items():
            signal.signal(each, handler)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
