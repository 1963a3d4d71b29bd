"""A broker's connections to other brokers, and the order in which it asks them.

item ─▶ Outbox ─▶ one request at a time to each broker, with all items that have come meanwhile
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.link import Link, link_to_broker
from trimtab.kafka.wire.schema import Request

Response = TypeVar("Response")
T = TypeVar("T")


class Peers:
    """Connections for one kind of request, each opened when it is used, and again when it is lost.

    Args:
        view: the brokers' addresses.
        use: names the connections in the other brokers' logs.
    """

    def __init__(self, view: ClusterView, use: str) -> None:
        self._view = view
        self._use = use
        self._links: dict[int, Link] = {}

    async def ask(self, broker_id: int, request: Request[Response], timeout_s: float) -> Response:
        """Send a request to a broker, perhaps to this one; returns the response. See `Link.ask`."""
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = link_to_broker(self._view, broker_id, self._use)
        return await link.ask(request, timeout_s)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.close()


class Outbox(Generic[T]):
    """Items for other brokers.

    Args:
        deliver: sends items to a broker. Those that are added until it has ended go together the
            next time.
    """

    def __init__(self, deliver: Callable[[int, Sequence[T]], Awaitable[None]]) -> None:
        self._deliver = deliver
        self._items: dict[int, list[T]] = {}
        self._at_work: dict[int, asyncio.Task[None]] = {}

    def queue_item(self, broker_id: int, item: T) -> None:
        """Send an item to a broker."""
        self._items.setdefault(broker_id, []).append(item)
        if broker_id not in self._at_work:
            task = asyncio.get_running_loop().create_task(self._work(broker_id))
            self._at_work[broker_id] = task

    def close(self) -> None:
        """Send nothing more."""
        self._items.clear()
        for task in self._at_work.values():
            task.cancel()

    async def _work(self, broker_id: int) -> None:
        try:
            while (items := self._items.pop(broker_id, None)) is not None:
                await self._deliver(broker_id, items)
        finally:
            del self._at_work[broker_id]
