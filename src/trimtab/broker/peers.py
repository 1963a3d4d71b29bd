"""A broker's connections to other brokers, and the order in which it asks them.

item ─▶ Outbox ─▶ one request at a time to each broker, with all items that have come meanwhile
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from trimtab.broker.cluster_view import ClusterView
from trimtab.server.peer import Peer, PeerLost
from trimtab.wire.schema import Request

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
        self._client_id = f"broker-{view.id}-{use}"
        self._peers: dict[int, Peer] = {}

    async def ask(self, broker_id: int, request: Request[Response], timeout_s: float) -> Response:
        """Send a request to a broker, perhaps to this one; returns the response.

        Raises:
            PeerLost: the broker cannot be reached, or does not answer in time; it may have carried
                out the request.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await (await self._connect(broker_id, timeout_s)).ask(request)
        except (PeerLost, TimeoutError) as error:
            lost = self._peers.pop(broker_id, None)
            if lost is not None:
                lost.close()  # a late response would be taken for that to the next request
            if isinstance(error, PeerLost):
                raise
            raise PeerLost(f"broker {broker_id} does not answer within {timeout_s} s") from error

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers.values():
            peer.close()

    async def _connect(self, broker_id: int, timeout_s: float) -> Peer:
        registration = self._view.image.brokers.get(broker_id)
        if registration is None:
            raise PeerLost(f"broker {broker_id} is not registered")
        address = f"{registration.host}:{registration.port}"
        peer = self._peers.get(broker_id)
        if peer is None or peer.is_lost or peer.name != address:
            if peer is not None:
                peer.close()
            peer = self._peers[broker_id] = await Peer.connect(
                registration.host,
                registration.port,
                self._client_id,
                timeout_s,
                self._view.faults,
            )
        return peer


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

    def add(self, broker_id: int, item: T) -> None:
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
