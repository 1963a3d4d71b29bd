"""A client's connections: one per broker, opened when needed, and again with back-off.

request ─▶ Connections ─▶ Connector ─▶ Connection ═▶ broker
           which broker,  addresses,   requests in order,
           when again     TLS          versions, time-outs
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import TypeVar

from trimtab.client.network.connection import Connection, ConnectionOptions, Node
from trimtab.client.network.connector import Connector
from trimtab.client.network.outages import OutageLog
from trimtab.kafka.errors import AuthenticationFailed, KafkaError, Unavailable
from trimtab.kafka.wire.schema import Request

logger = logging.getLogger("trimtab.client")

Response = TypeVar("Response")

_SLOW = 1.0
"""Seconds for which an attempt to connect has priority; later, other brokers are tried first."""


class Connections:
    """One connection to each broker that a client sends to.

    Node ids are the cluster's; bootstrap servers have negative ids.

    Args:
        bootstrap: the brokers of `bootstrap.servers`.

    Attributes:
        outages: logs brokers that cannot be reached.
        on_event: called with the name of Kafka's metric for each event of a connection, such as
            `connection-close`.
    """

    def __init__(self, bootstrap: list[Node], options: ConnectionOptions, random: Random):
        self.options = options
        self._connector = Connector(
            *(bootstrap, options, random, self._lost),
            on_connect=lambda: self.on_event("connection-creation"),
        )
        self._random = random
        self._nodes: dict[int, Node] = {node.id: node for node in bootstrap}
        self._open: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Task[Connection]] = {}
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._errors: dict[int, KafkaError] = {}
        self.outages = OutageLog(options.client_id)
        self._on_change: list[Callable[[], None]] = []
        self._on_loss: list[Callable[[], None]] = []
        self.on_event: Callable[[str], object] = lambda event: None
        self._closed = False
        self._all_lost: asyncio.Future[None] | None = None

    @property
    def bootstrap(self) -> list[Node]:
        """The bootstrap servers, with canonical names once those are known and wanted."""
        return self._connector.bootstrap

    @property
    def connections(self) -> list[Connection]:
        return list(self._open.values())

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a connection opens, fails or is lost."""
        self._on_change.append(callback)

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a connection is lost, or a broker cannot be reached."""
        self._on_loss.append(callback)

    def update(self, nodes: Iterable[Node]) -> None:
        """Store the brokers from metadata. If the address of one has changed, its connection is
        closed."""
        for node in nodes:
            known = self._nodes.get(node.id)
            self._nodes[node.id] = node
            if known is not None and known[:3] != node[:3]:
                self._disconnect(node.id)

    def rebootstrap(self) -> None:
        """Forget the cluster's brokers, and ask the bootstrap servers for them again (KIP-899)."""
        known = [node_id for node_id in self._nodes if node_id >= 0]
        if known:
            logger.warning("no metadata from brokers %s: back to bootstrap.servers", known)
        for node_id in known:
            del self._nodes[node_id]
            self._disconnect(node_id)

    def _disconnect(self, node_id: int) -> None:
        self._connector.forget(node_id)
        if connection := self._open.get(node_id):
            connection.close()

    def ready(self, node_id: int) -> Connection | None:
        """The open connection to a broker, or None."""
        connection = self._open.get(node_id)
        return connection if connection is not None and connection.is_open else None

    def open_soon(self, node_id: int) -> None:
        """Begin to connect, unless the broker is connected, or an attempt is under way."""
        if self._closed or node_id in self._opening or self.ready(node_id) is not None:
            return
        if node_id not in self._nodes:
            return
        self._begin(node_id)

    def last_error(self, node_id: int) -> KafkaError | None:
        """Why a broker was lost, or could not be connected to; None once it is connected, and while
        its connection was only closed because it was idle."""
        return self._errors.get(node_id)

    def describe_silence(self) -> str:
        """For error messages: the brokers that are asked and have not answered."""
        opening = [self._nodes[each] for each in self._opening if each in self._nodes]
        asked = [each.node for each in self._open.values() if each.in_flight]
        if not opening and not asked:
            return "no broker answered"
        text = f"{', '.join(sorted(set(map(str, opening + asked))))} did not answer"
        if opening:
            protocol = self.options.security_protocol
            text += f" (does its listener speak security.protocol={protocol}?)"
        return text

    async def connect(self, node_id: int) -> Connection:
        """The connection to a broker, opened first if necessary.

        Raises:
            Unavailable: the broker cannot be reached; names its address and what to check.
            AuthenticationFailed: the broker refuses our credentials, or its certificate is not
                accepted.
        """
        connection = self.ready(node_id)
        if connection is not None:
            return connection
        if self._closed:
            raise Unavailable("the client is closed")
        if node_id not in self._nodes:
            raise Unavailable(f"broker {node_id} is not in the cluster's metadata")
        return await asyncio.shield(self._opening.get(node_id) or self._begin(node_id))

    async def request(
        self, node_id: int, request: Request[Response], timeout: float | None = None
    ) -> Response:
        """Send to one broker, in the newest version both sides speak, and await the response."""
        connection = await self.connect(node_id)
        return await connection.request(request, timeout=timeout)

    async def connect_any(self) -> Connection:
        """A connection to any broker: an open one with the fewest requests, else the first to open.

        Brokers that failed a moment ago are tried last. So repeated calls that are cancelled early
        try different brokers.

        Raises:
            Unavailable: no broker can be reached; names every address that was tried.
            AuthenticationFailed: likewise, and authentication failed with at least one of them.

        Source: `NetworkClient.leastLoadedNode`.
        """
        if live := self._least_loaded():
            return live
        known = [node_id for node_id in self._nodes if node_id >= 0]
        self._random.shuffle(known)
        seeds: list[int] = []
        if not known or self.options.rebootstrap_after is not None:
            if not self._connector.is_canonical:
                await self._connector.make_bootstrap_canonical()
                self.update(self.bootstrap)
            seeds = [node.id for node in self.bootstrap]
        self._random.shuffle(seeds)
        kind: type[KafkaError] = Unavailable
        errors: list[str] = []
        for node_id in sorted(known + seeds, key=self._order_of_attempt):
            try:
                return await self._open_one(node_id)
            except KafkaError as error:
                errors.append(str(error))
                if isinstance(error, AuthenticationFailed):
                    kind = AuthenticationFailed
        text = "no broker can be reached: " + "; ".join(dict.fromkeys(errors))
        if not seeds:
            text += " (bootstrap.servers are not tried again: metadata.recovery.strategy=none)"
        raise kind(text)

    def _least_loaded(self) -> Connection | None:
        live = [c for node_id in self._open if (c := self.ready(node_id)) is not None]
        return min(live, key=lambda connection: connection.in_flight, default=None)

    def _order_of_attempt(self, node_id: int) -> float:
        """The sort key of the brokers to try. First those that are being connected to, then those
        without a back-off, then the others as their back-offs end; last those that have been
        connected to for more than `_SLOW`."""
        now = asyncio.get_running_loop().time()
        wait = self._not_before.get(node_id, now) - now
        if node_id in self._opening and wait <= 0:
            return math.inf if wait < -_SLOW else -1.0
        return max(wait, 0.0)

    async def _open_one(self, node_id: int) -> Connection:
        """The connection to a broker, or to another broker if that one opens first."""
        if self._closed or node_id not in self._nodes:
            return await self.connect(node_id)  # raises an error with the reason
        task = self._opening.get(node_id) or self._begin(node_id)
        while not task.done():
            await asyncio.wait(self._opening.values(), return_when=asyncio.FIRST_COMPLETED)
            if live := self._least_loaded():
                return live
        return await task

    async def close(self, end: float | None = None) -> None:
        """Close the connections once their bytes are written: for up to
        `socket.connection.setup.timeout.ms`, and not longer than until `end`, in the loop's time.
        """
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        if not self._open:
            return
        loop = asyncio.get_running_loop()
        self._all_lost = loop.create_future()
        for connection in list(self._open.values()):
            connection.close()
        last = loop.time() + self.options.connect_timeout
        try:
            async with asyncio.timeout_at(last if end is None else min(end, last)):
                await self._all_lost
        except TimeoutError:  # a broker does not read its requests
            for connection in list(self._open.values()):
                connection.abort()

    def _begin(self, node_id: int) -> asyncio.Task[Connection]:
        task = asyncio.get_running_loop().create_task(self._connect(node_id))
        self._opening[node_id] = task
        task.add_done_callback(partial(self._opened, node_id))
        return task

    def _opened(self, node_id: int, task: asyncio.Task[Connection]) -> None:
        if self._opening.get(node_id) is task:  # the task was cancelled before it began
            del self._opening[node_id]
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it

    async def _connect(self, node_id: int) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            wait = self._not_before.get(node_id, 0.0) - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            self._not_before[node_id] = began = loop.time()
            node = self._nodes.get(node_id)
            if node is None:
                raise Unavailable(f"broker {node_id} is no longer in the cluster's metadata")
            connection = await self._connector.connect(node, self._failures.get(node_id, 0))
            self._failures.pop(node_id, None)
            self._not_before.pop(node_id, None)
            self._errors.pop(node_id, None)
            self.outages.reached(str(node), loop.time())
            if self.options.tls is not None or self.options.credentials is not None:
                self.on_event("successful-authentication")
            self._open[node_id] = connection
            return connection
        except KafkaError as error:
            wait = self._back_off(node_id)
            self._errors[node_id] = error
            if isinstance(error, AuthenticationFailed):
                self.on_event("failed-authentication")
            if node_id in self._nodes:
                self.outages.failed(
                    str(self._nodes[node_id]), error, wait, loop.time(), since=began
                )
            if isinstance(error, Unavailable):
                self._announce_loss()
            raise
        finally:
            self._opening.pop(node_id, None)
            if not self._closed:
                loop.call_soon(self._changed)

    def _back_off(self, node_id: int) -> float:
        """Do not try this broker again for a while; returns the seconds."""
        failures = self._failures.get(node_id, 0)
        self._failures[node_id] = failures + 1
        wait = self.options.backoff.wait(failures, self._random)
        self._not_before[node_id] = asyncio.get_running_loop().time() + wait
        return wait

    def _lost(self, connection: Connection) -> None:
        self.on_event("connection-close")
        if self._open.get(connection.node.id) is connection:
            del self._open[connection.node.id]
            if self._all_lost is not None and not self._open and not self._all_lost.done():
                self._all_lost.set_result(None)
            if not self._closed and not connection.was_idle:
                if connection.error is not None:
                    self._errors[connection.node.id] = connection.error
                logger.info("connection lost: %s", connection.node)
                self._back_off(connection.node.id)
                self._announce_loss()
                self._changed()

    def _announce_loss(self) -> None:
        if not self._closed:
            for callback in self._on_loss:
                callback()

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()
