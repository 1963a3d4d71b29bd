"""A node's listening socket, its connections, and the handlers that answer their requests."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Mapping
from typing import cast

from trimtab.config import INT_MAX, Value
from trimtab.server.api_versions import API_VERSIONS, describe_api_versions
from trimtab.server.connection import Connection
from trimtab.server.faults import Faults
from trimtab.server.request import Handler
from trimtab.server.turns import Turns
from trimtab.wire.messages import APIS

_CLOSE_GRACE_S = 1.0
"""How long a client may take to read its last responses when the node closes."""
_SILENCE_S = 1.0
"""After so long without a request a connection gives way to another, if there are too many."""
_LONG_AT_ONCE = 16 * 1024
"""Bytes of long requests that are served between two turns of the loop: some ten milliseconds."""
_COMPLAINTS = 10
"""Refusals that are logged in a second; of the others, how many they were."""

_log = logging.getLogger(__name__)


class ServerCounts:
    """What a node's connections did since it started."""

    __slots__ = ("accepted", "failed", "open", "refused", "requests")

    def __init__(self) -> None:
        self.accepted = 0
        self.open = 0
        self.requests = 0
        self.refused = 0
        """Connections closed for what they sent, or because there were too many."""
        self.failed = 0
        """Connections closed because handling a request failed: faults of this node."""


class Listener:
    """Serves the APIs that there are handlers for, and ApiVersions.

    Args:
        node_id: for the log.
        handlers: by API key.
        config: the node's options; they may be changed while it listens.

    Attributes:
        capacity: connections that the process can hold, whatever `max.connections` says.
        serving: the connection whose request is being handled, while a handler runs.
        faults: what goes wrong on purpose.
        turns: where the largest of requests are handled.
    """

    def __init__(
        self, node_id: int, handlers: Mapping[int, Handler], config: Mapping[str, Value]
    ) -> None:
        self.node_id = node_id
        self.config = config
        self.apis = {key: APIS[key] for key in (*handlers, API_VERSIONS)}
        self.handlers = {**handlers, API_VERSIONS: describe_api_versions(self.apis)}
        self.counts = ServerCounts()
        self.faults = Faults()
        self.turns = Turns()
        self._line: deque[Connection] = deque()
        self._whose_turn: Connection | None = None
        self._long_left = _LONG_AT_ONCE
        self._next_turn: asyncio.Handle | None = None
        self.connections: dict[Connection, None] = {}
        self.capacity = INT_MAX
        self._open_by_host: Counter[str] = Counter()
        self._silent: dict[Connection, float] = {}
        self._complaints = 0
        self._untold = 0
        self._telling: asyncio.TimerHandle | None = None
        self.serving: Connection | None = None
        self._server: asyncio.AbstractServer | None = None
        self._closed: asyncio.Future[None] | None = None

    async def bind(self, host: str, port: int) -> int:
        """Bind the address, without serving yet; the port that was bound (for `port` 0).

        Raises:
            OSError: the address is taken.
        """
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self),
            host,
            port,
            backlog=cast(int, self.config["socket.listen.backlog.size"]),
            start_serving=False,
        )
        return cast(int, self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Accept connections from now on."""
        assert self._server is not None
        await self._server.start_serving()

    def stop(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()
        if self._telling is not None:
            self._telling.cancel()
            self._tell()

    def abort(self) -> None:
        """Break all connections, and accept no more."""
        self.stop()
        for connection in tuple(self.connections):
            connection.abort()
        self.turns.close()

    async def close(self) -> None:
        """Close the connections, after what is written to them."""
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
        """Connections that are open from this address."""
        return self._open_by_host[host]

    def opened(self, connection: Connection) -> str:
        """A connection has been accepted; why it is one too many, or nothing.

        Where there are too many in all, one that has not said a word gives way to it, if there is
        one: whoever opens connections and leaves them keeps nobody else out.
        """
        now = asyncio.get_running_loop().time()
        self.counts.accepted += 1
        self.counts.open += 1
        self.connections[connection] = None
        self._silent[connection] = now
        self._open_by_host[connection.peer_host] += 1
        limit = cast(int, self.config["max.connections.per.ip"])
        if self._open_by_host[connection.peer_host] > limit:
            return f"max.connections.per.ip={limit} are open already"
        limit = cast(int, self.config["max.connections"])
        if self.counts.open <= min(limit, self.capacity):
            return ""
        reason = f"max.connections={limit} are open already"
        if self.capacity < limit:
            reason = f"{self.capacity} connections are open already; more need more open files"
        oldest, since = next(iter(self._silent.items()))
        if now - since < _SILENCE_S:
            return reason
        del self._silent[oldest]
        oldest.give_way(f"{reason}, and this one has asked for nothing yet")
        return ""

    # Long requests. So many connections may send them that one of each is too much between two
    # turns of the loop, for those that send short ones.

    def admits(self, connection: Connection) -> bool:
        """Whether a long request of this connection may be served in this turn of the loop."""
        return self._long_left > 0 and (not self._line or connection is self._whose_turn)

    def spend(self, size: int) -> None:
        """Note that a long request is served: its bytes count against this turn's allowance."""
        self._long_left -= size
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def stand_in_line(self, connection: Connection) -> None:
        """Have `has_turn` called when those before it have had their turn."""
        self._line.append(connection)
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._long_left = _LONG_AT_ONCE
        for _ in range(len(self._line)):
            if self._long_left <= 0:
                break
            self._whose_turn = self._line.popleft()
            self._whose_turn.has_turn()
        self._whose_turn = None
        if self._line and self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def heard(self, connection: Connection) -> None:
        """A connection's first request has come."""
        self._silent.pop(connection, None)

    def complain(self, peer: str, reason: str) -> None:
        """A connection is closed for what it sent, or because there are too many. Logged, but for
        those beyond the first few of a second: a flood of them must not fill the disk."""
        self.counts.refused += 1
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(1.0, self._tell)
        self._complaints += 1
        if self._complaints > _COMPLAINTS:
            self._untold += 1
            return
        _log.warning("closed a connection node=%d peer=%s reason=%r", self.node_id, peer, reason)

    def _tell(self) -> None:
        untold, self._untold = self._untold, 0
        self._complaints = 0
        self._telling = None
        if untold:
            _log.warning("closed more connections node=%d connections=%d", self.node_id, untold)

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self.counts.open -= 1
        self.connections.pop(connection, None)
        self._silent.pop(connection, None)
        self._open_by_host[connection.peer_host] -= 1
        if not self._open_by_host[connection.peer_host]:
            del self._open_by_host[connection.peer_host]
        if self._closed is not None and not self.connections and not self._closed.done():
            self._closed.set_result(None)
