"""Clients that stay open between tasks, in Spark's Python worker, which runs task after task.

Connecting and requesting metadata takes longer than a small task's reads or writes. Spark forks its
workers from a daemon that runs no tasks, reuses them (`spark.python.worker.reuse`), and may kill
them at any time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from trimtab.spark.worker import settle

IDLE_SECONDS = 60.0
"""Minimum time for which an unused client stays open; the maximum is twice as long."""

T = TypeVar("T")


class Residents(Generic[T]):
    """The open clients of one kind in this process.

    Args:
        close: closes a client.
        start_timer: calls a function once after a number of seconds, on another thread.
    """

    def __init__(
        self,
        close: Callable[[T], object],
        start_timer: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._close = close
        self._start_timer = start_timer or _start_daemon_timer
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: dict[Hashable, list[T]] = {}
        self._used_since: set[Hashable] = set()
        self._is_timed = False

    @contextmanager
    def borrow(
        self, options: Mapping[str, str], make: Callable[[Mapping[str, str]], T]
    ) -> Iterator[T]:
        """A client with these options that no other task uses: an idle one, else a new one.

        It stays open after the block. If the block raises, it is closed, as its state is unknown.
        """
        settle()
        key = frozenset(options.items())
        client = self._take(key)
        if client is None:
            client = make(options)
        try:
            yield client
        except BaseException:
            self._close(client)
            raise
        self._put_back(key, client)

    def _take(self, key: Hashable) -> T | None:
        with self._lock:
            if self._pid != os.getpid():  # forked: open clients belong to the parent
                self._pid = os.getpid()
                self._idle.clear()
                self._is_timed = False
            found = self._idle.get(key)
            return found.pop() if found else None

    def _put_back(self, key: Hashable, client: T) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(client)
            self._used_since.add(key)
            if self._is_timed:
                return
            self._is_timed = True
        self._start_timer(IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        """Close the clients that were not used since the last call."""
        with self._lock:
            idle = {key: found for key, found in self._idle.items() if key not in self._used_since}
            for key in idle:
                del self._idle[key]
            self._used_since.clear()
            self._is_timed = bool(self._idle)
            goes_on = self._is_timed
        try:
            for found in idle.values():
                for client in found:
                    self._close(client)
        finally:
            if goes_on:
                self._start_timer(IDLE_SECONDS, self._close_idle)


def _start_daemon_timer(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
