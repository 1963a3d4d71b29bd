"""Fetches that wait until there is enough to answer them with.

An append tells the fetches that watch its partition how much it added; nobody polls. When enough
has come together, the time is up, or a watched partition goes away, the fetch reads anew from the
beginning: it is answered with what is there at that moment (Kafka's `DelayedFetch`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Watchable(Protocol):
    """A partition, as far as it is waited for."""

    @property
    def watchers(self) -> dict[DelayedFetch, None]:
        """In the order in which they came: a simulation must repeat itself."""


class DelayedFetch:
    """One fetch that waits.

    Args:
        max_wait_s: how long at most.
        missing_bytes: how much has to arrive, at least 1.
        watched: the partitions, each with how many of its bytes would fit the response.
        read: makes the response; called once.
    """

    __slots__ = ("_missing", "_read", "_room", "_timer", "response")

    def __init__(
        self,
        max_wait_s: float,
        missing_bytes: int,
        watched: Iterable[tuple[Watchable, int]],
        read: Callable[[], Any],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._missing = missing_bytes
        self._read = read
        self._room: dict[Watchable, int] = {}
        for partition, room in watched:
            self._room[partition] = self._room.get(partition, 0) + room
            partition.watchers[self] = None
        self._timer: asyncio.Handle = loop.call_later(max_wait_s, self._answer)
        self.response: asyncio.Future[Any] = loop.create_future()
        # Cancelled from outside when its connection is lost.
        self.response.add_done_callback(self._leave)

    def add(self, partition: Watchable, size: int) -> None:
        """So many bytes were appended to a watched partition."""
        taken = min(size, self._room[partition])
        self._room[partition] -= taken
        self._missing -= taken
        if self._missing <= 0:
            self.complete()

    def complete(self) -> None:
        """Answer soon, whatever is there: after the request that led to it has been answered."""
        self._leave(self.response)
        if not self.response.done():
            self._timer = asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        self._leave(self.response)
        if self.response.done():
            return
        try:
            answer = self._read()
        except Exception as error:
            self.response.set_exception(error)
        else:
            self.response.set_result(answer)

    def _leave(self, _response: asyncio.Future[Any]) -> None:
        self._timer.cancel()
        for partition in self._room:
            partition.watchers.pop(self, None)
