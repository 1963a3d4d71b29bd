"""A broker's connection to another node, opened again whenever it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.server.cluster_secret import CONTROLLER, ClusterSecret, name_broker
from trimtab.cluster.server.faults import BrokerFaults
from trimtab.cluster.server.peer import Peer, PeerLost
from trimtab.kafka.wire.schema import Request

Response = TypeVar("Response")
T = TypeVar("T")

_CONNECT_TIMEOUT_S = 5.0
_FIRST_BACKOFF_S = 0.02
_MAX_BACKOFF_S = 1.0


class Link:
    """A connection to another node for one kind of request, so that a slow request delays no
    others. Made by `link_to_controller` and `link_to_broker`.

    Args:
        node: names the other node in errors.
        whom: its name among the nodes.
        find: returns its host and port at present; raises PeerLost if they are not known.
        client_id: names the sender in the other node's log.
        faults: those of the broker.
        secret: of the cluster.
    """

    def __init__(
        self,
        node: str,
        whom: str,
        find: Callable[[], tuple[str, int]],
        client_id: str,
        faults: BrokerFaults | None,
        secret: ClusterSecret | None,
    ) -> None:
        self._node = node
        self._whom = whom
        self._find = find
        self._client_id = client_id
        self._faults = faults
        self._secret = secret
        self._peer: Peer | None = None
        self._connecting: asyncio.Task[Peer] | None = None

    async def ask(
        self, request: Request[Response], timeout_s: float, version: int | None = None
    ) -> Response:
        """Send a request, in the newest version unless one is given; returns the response.

        Raises:
            PeerLost: the node cannot be reached, or does not answer in time; it may have carried
                out the request.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await (await self.connect()).ask(request, version)
        except TimeoutError as error:
            self.close()  # a late response would be taken for that to the next request
            raise PeerLost(f"{self._node} does not answer within {timeout_s} s") from error

    async def ask_until_answered(self, request: Request[Response], timeout_s: float) -> Response:
        """Like `ask`, but send the request again while the node is lost, until the time is over.
        Only for requests that may be carried out twice."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        return await _insist(lambda: self.ask(request, _time_until(deadline_s)), deadline_s)

    async def ask_once_connected(
        self, request: Request[Response], timeout_s: float, version: int
    ) -> Response:
        """Like `ask`, but wait until the node can be reached. A request is sent once only."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await _insist(self.connect, deadline_s)
        except TimeoutError as error:
            raise PeerLost(f"{self._node} cannot be reached") from error
        return await self.ask(request, _time_until(deadline_s), version)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            if connecting.done() and not connecting.cancelled() and not connecting.exception():
                connecting.result().close()  # connected, but not yet stored in `_peer`
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    async def connect(self) -> Peer:
        """The connection: another one if it was lost, or the node has another address.

        Raises:
            PeerLost: the node cannot be reached.
        """
        try:
            host, port = self._find()
        except PeerLost:
            self.close()  # a connection to a node that is gone
            raise
        if self._peer is not None:
            if not self._peer.is_lost and self._peer.name == f"{host}:{port}":
                return self._peer
            self._peer.close()
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(
                Peer.connect(
                    host,
                    port,
                    self._client_id,
                    _CONNECT_TIMEOUT_S,
                    self._faults,
                    self._secret,
                    self._whom,
                )
            )
        connecting = self._connecting
        try:
            peer = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and (task is None or not task.cancelling()):
                raise PeerLost(f"the link to {self._node} is closed") from None
            raise
        finally:
            if connecting.done() and self._connecting is connecting:
                self._connecting = None
        self._peer = peer
        return peer


def link_to_controller(
    host: str,
    port: int,
    client_id: str,
    faults: BrokerFaults | None = None,
    secret: ClusterSecret | None = None,
) -> Link:
    """A link to the controller at this address."""
    node = f"the controller at {host}:{port}"
    return Link(node, CONTROLLER, lambda: (host, port), client_id, faults, secret)


def link_to_broker(view: ClusterView, broker_id: int, use: str) -> Link:
    """A link to a broker, perhaps to this one, at the address that it has registered.

    Args:
        use: names the connection in the other broker's log.
    """

    def find() -> tuple[str, int]:
        registration = view.image.brokers.get(broker_id)
        if registration is None:
            raise PeerLost(f"broker {broker_id} is not registered")
        return registration.host, registration.port

    client_id = f"broker-{view.id}-{use}"
    whom = name_broker(broker_id)
    return Link(f"broker {broker_id}", whom, find, client_id, view.faults, view.secret)


async def _insist(attempt: Callable[[], Awaitable[T]], deadline_s: float) -> T:
    """Try again, ever more slowly, while the other node is lost and there is time."""
    loop = asyncio.get_running_loop()
    backoff_s = _FIRST_BACKOFF_S
    while True:
        try:
            return await attempt()
        except PeerLost:
            if loop.time() + backoff_s >= deadline_s:
                raise
        await asyncio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)


def _time_until(deadline_s: float) -> float:
    """Seconds left, more than 0."""
    return max(0.001, deadline_s - asyncio.get_running_loop().time())
