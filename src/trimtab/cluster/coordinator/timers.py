"""Deadlines of many things, of which most are put off before they come."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """When to look at each key next. A look may be too early, never too late.

    A deadline that is put off, as by a heartbeat, costs nothing here: the key is looked at by its
    old deadline, and set again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._set: dict[K, float] = {}
        self._count = 0

    def set(self, key: K, due: float) -> None:
        """Look at `key` at `due` at the latest, in seconds of the monotonic clock."""
        if due < self._set.get(key, float("inf")):
            self._set[key] = due
            self._count += 1
            heapq.heappush(self._heap, (due, self._count, key))

    @property
    def next_due(self) -> float | None:
        """When `pop_due` will have a key; None if there is none."""
        while self._heap and self._set.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Iterator[K]:
        """The keys to look at, each once. Those that are not over yet are to be set again."""
        while (due := self.next_due) is not None and due <= now:
            key = heapq.heappop(self._heap)[2]
            del self._set[key]
            yield key
