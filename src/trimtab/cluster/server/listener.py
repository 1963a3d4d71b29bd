"""A node's listening socket, its connections, and the handlers that answer their requests."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from errno import EADDRINUSE
from os import strerror
from typing import cast

from trimtab.cluster.server.api_versions import (
    API_VERSIONS,
    NO_FEATURES,
    FeatureLevels,
    describe_api_versions,
)
from trimtab.cluster.server.cluster_secret import (
    HANDSHAKE,
    HANDSHAKE_SINCE,
    ClusterSecret,
    login_handlers,
)
from trimtab.cluster.server.connection import ServerConnection
from trimtab.cluster.server.faults import BrokerFaults
from trimtab.cluster.server.request import Handler
from trimtab.cluster.server.request_metrics_cy import RequestMetrics
from trimtab.cluster.server.turns import Turns
from trimtab.kafka.options import INT_MAX, Config
from trimtab.kafka.wire.messages import APIS

_CLOSE_GRACE_S = 1.0
"""Time that clients have to read their last responses when the node closes."""
_EVICTABLE_AFTER_S = 1.0
"""A connection that has sent no request for this time may be closed for another, at the limit."""
_LONG_BYTES_PER_ITERATION = 16 * 1024
"""Bytes of long requests that are served per loop iteration: about ten milliseconds of work."""
_MAX_LOGGED_PER_S = 10
"""Closed connections that are logged per second; the others are only counted in the log."""

_log = logging.getLogger(__name__)


class ServerCounts:
    """Counts of a node's connections and requests since it started."""

    __slots__ = ("accepted", "failed", "open", "refused", "requests")

    def __init__(self) -> None:
        self.accepted = 0
        self.open = 0
        self.requests = 0
        self.refused = 0
        """Connections closed for invalid requests, or because there were too many."""
        self.failed = 0
        """Connections closed because a handler failed: bugs of this node."""


class Listener:
    """Serves ApiVersions and the APIs of the given handlers.

    Args:
        node_id: for the log.
        handlers: by API key.
        config: the node's options; they may change while it listens.
        turns: runs the handlers of the largest requests in steps.
        features: the features of the cluster now.
        unstable: by API key, versions above the stable ones that are served up to this one.
        faults: those of the node.
        secret: of the cluster, by which it knows other nodes; None to take all for clients.
        name: its own among the nodes.

    Attributes:
        capacity: connections that the process has file descriptors for; a lower limit than
            `max.connections` wins.
        serving: the connection whose request is being handled, while a handler runs.
        faults: faults injected on purpose.
        requests: the requests of connections from now on, if they are to be measured.
    """

    def __init__(
        self,
        node_id: int,
        handlers: Mapping[int, Handler],
        config: Config,
        turns: Turns | None = None,
        features: Callable[[], FeatureLevels] = lambda: NO_FEATURES,
        unstable: Mapping[int, int] | None = None,
        faults: BrokerFaults | None = None,
        secret: ClusterSecret | None = None,
        name: str = "",
    ) -> None:
        self.node_id = node_id
        self.config = config
        if secret is not None:
            handlers = {**handlers, **login_handlers(secret, name, lambda: self.serving)}
        self.apis = {key: APIS[key] for key in (*handlers, API_VERSIONS)}
        if secret is not None:
            self.apis[HANDSHAKE] = APIS[HANDSHAKE]._replace(min_version=HANDSHAKE_SINCE)
        for key, version in (unstable or {}).items():
            self.apis[key] = self.apis[key]._replace(max_version=version)
        self.handlers = {**handlers, API_VERSIONS: describe_api_versions(self.apis, features)}
        self.counts = ServerCounts()
        self.requests: RequestMetrics | None = None
        self.faults = BrokerFaults() if faults is None else faults
        self.turns = Turns() if turns is None else turns
        self._long_queue: deque[ServerConnection] = deque()
        self._serving_queued: ServerConnection | None = None
        self._long_left = _LONG_BYTES_PER_ITERATION
        self._next_turn: asyncio.Handle | None = None
        self.connections: dict[ServerConnection, None] = {}
        self.capacity = INT_MAX
        self._open_by_host: Counter[str] = Counter()
        self._silent: dict[ServerConnection, float] = {}
        self._logged = 0
        self._suppressed = 0
        self._suppressed_timer: asyncio.TimerHandle | None = None
        self.serving: ServerConnection | None = None
        self._server: asyncio.Server | None = None
        self._port = 0
        self._closed: asyncio.Future[None] | None = None

    def measure(self, clock: Callable[[], float]) -> None:
        """Count the requests of new connections and their times.

        Args:
            clock: seconds that never go back.
        """
        self.requests = RequestMetrics(self.apis, clock)

    async def bind(self, host: str, port: int) -> int:
        """Bind the address, without serving yet; returns the port, as `port` may be 0.

        Raises:
            OSError: the address is taken.
        """
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ServerConnection(self),
            host,
            port,
            backlog=self.config.integer("socket.listen.backlog.size"),
            start_serving=False,
        )
        self._port = port or cast(int, self._server.sockets[0].getsockname()[1])
        return self._port

    async def start(self) -> None:
        """Begin to accept connections.

        Raises:
            OSError: another process has bound the address as well, and listens there already.
        """
        assert self._server is not None
        await self._server.start_serving()
        # Where asyncio raises, uvloop only closes the socket, and shows it unless `bind` has looked
        # at it; nobody else listens on a port that the system has chosen.
        if self._server.sockets[0] is None:
            raise OSError(EADDRINUSE, f"{strerror(EADDRINUSE)}: port {self._port}")

    def stop(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()
        if self._suppressed_timer is not None:
            self._suppressed_timer.cancel()
            self._log_suppressed()

    def abort(self) -> None:
        """Accept no more connections, and close all at once."""
        self.stop()
        for connection in tuple(self.connections):
            connection.abort()
        self.turns.close()

    async def close(self) -> None:
        """Accept no more connections, send the responses written so far, and close all."""
        self.stop()
        if self.connections:
            self._closed = asyncio.get_running_loop().create_future()
            for connection in tuple(self.connections):
                connection.close()
            await asyncio.wait([self._closed], timeout=_CLOSE_GRACE_S)
            for connection in tuple(self.connections):
                connection.abort()
            await self._closed
        self.turns.close()

    def open_from(self, host: str) -> int:
        """The number of open connections from this address."""
        return self._open_by_host[host]

    def opened(self, connection: ServerConnection) -> str:
        """Register a new connection; returns why it must be closed, or "".

        If the node has too many connections, the oldest one that has sent no request for
        `_EVICTABLE_AFTER_S` is closed instead, so that idle connections cannot keep clients out.
        """
        now = asyncio.get_running_loop().time()
        self.counts.accepted += 1
        self.counts.open += 1
        self.connections[connection] = None
        self.faults.opened(connection)
        self._silent[connection] = now
        self._open_by_host[connection.peer_host] += 1
        limit = self.config.integer("max.connections.per.ip")
        if self._open_by_host[connection.peer_host] > limit:
            return f"max.connections.per.ip={limit} are open already"
        limit = self.config.integer("max.connections")
        if self.counts.open <= min(limit, self.capacity):
            return ""
        reason = f"max.connections={limit} are open already"
        if self.capacity < limit:
            reason = (
                f"{self.capacity} connections are open already: the limit on open files is reached"
            )
        oldest, since = next(iter(self._silent.items()))
        if now - since < _EVICTABLE_AFTER_S:
            return reason
        del self._silent[oldest]
        oldest.evict(f"{reason}, and this one has sent no request yet")
        return ""

    # Long requests are limited over all connections: one of each connection in one loop iteration
    # would delay short requests too much.

    def admits(self, connection: ServerConnection) -> bool:
        """Whether a long request of this connection may be served in this loop iteration."""
        return self._long_left > 0 and (not self._long_queue or connection is self._serving_queued)

    def spend(self, size: int) -> None:
        """Count the bytes of a served long request against this loop iteration's limit."""
        self._long_left -= size
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def queue_long_request(self, connection: ServerConnection) -> None:
        """Queue a connection with a long request; its `serve_queued` is called, first come first
        served."""
        self._long_queue.append(connection)
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._long_left = _LONG_BYTES_PER_ITERATION
        for _ in range(len(self._long_queue)):
            if self._long_left <= 0:
                break
            self._serving_queued = self._long_queue.popleft()
            self._serving_queued.serve_queued()
        self._serving_queued = None
        if self._long_queue and self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def first_request_received(self, connection: ServerConnection) -> None:
        """Note that a connection has sent its first request."""
        self._silent.pop(connection, None)

    def log_refusal(self, peer: str, reason: str) -> None:
        """Log and count a connection that is closed for an invalid request, or because there are
        too many. Logs `_MAX_LOGGED_PER_S` per second at most; a flood must not fill the disk."""
        self.counts.refused += 1
        if self._suppressed_timer is None:
            self._suppressed_timer = asyncio.get_running_loop().call_later(
                1.0, self._log_suppressed
            )
        self._logged += 1
        if self._logged > _MAX_LOGGED_PER_S:
            self._suppressed += 1
            return
        _log.warning("closed a connection node=%d peer=%s reason=%r", self.node_id, peer, reason)

    def _log_suppressed(self) -> None:
        count, self._suppressed = self._suppressed, 0
        self._logged = 0
        self._suppressed_timer = None
        if count:
            _log.warning("closed more connections node=%d connections=%d", self.node_id, count)

    def lost(self, connection: ServerConnection) -> None:
        """Remove a lost connection."""
        self.counts.open -= 1
        self.connections.pop(connection, None)
        self.faults.lost(connection)
        self._silent.pop(connection, None)
        self._open_by_host[connection.peer_host] -= 1
        if not self._open_by_host[connection.peer_host]:
            del self._open_by_host[connection.peer_host]
        if self._closed is not None and not self.connections and not self._closed.done():
            self._closed.set_result(None)
