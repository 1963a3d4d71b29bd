"""Connections to brokers: one per broker, requests in order, versions agreed with each broker.

request ─▶ Connections ─▶ Connection ═▶ broker
               │               │
    who, and when again?   correlation ids, timeouts, API versions
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

from trimtab.errors import (
    BrokerError,
    CorruptData,
    ErrorCode,
    KafkaError,
    Unavailable,
    UsageError,
    error_code,
)
from trimtab.wire.framing import (
    FrameProtocol,
    decode_correlation_id,
    decode_response,
    encode_request,
)
from trimtab.wire.messages import APIS
from trimtab.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

logger = logging.getLogger("trimtab.client")

Response = TypeVar("Response")
OnResponse = Callable[[Any, KafkaError | None], None]
"""Called once with (response, None) or (None, error)."""

MAX_RESPONSE_BYTES = 2**31 - 1


class ApiKey(IntEnum):
    """The APIs that clients ask brokers for, by their numbers on the wire (Kafka's `ApiKeys`)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    DESCRIBE_CONFIGS = 32
    DESCRIBE_CLUSTER = 60


class Node(NamedTuple):
    """A broker as clients reach it."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.id} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What every connection of one client shares. Times are in seconds."""

    client_id: str
    request_timeout: float
    connect_timeout: float
    backoff: float
    backoff_max: float


def parse_bootstrap_servers(text: str | Iterable[str]) -> list[Node]:
    """`host:port` pairs, comma-separated or as a list, with the node ids -1, -2, …

    Raises:
        UsageError: an entry is not `host:port`, or there is none.
    """
    entries = text.split(",") if isinstance(text, str) else list(text)
    nodes: list[Node] = []
    for entry in (entry.strip() for entry in entries):
        if not entry:
            continue
        host, _, port = entry.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(
                f"bootstrap.servers: {entry!r} is not host:port, such as 127.0.0.1:9092"
            )
        nodes.append(Node(-1 - len(nodes), host, int(port)))
    if not nodes:
        raise UsageError(
            "bootstrap.servers is empty; name at least one broker, such as 127.0.0.1:9092"
        )
    return nodes


class _Pending(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    deadline: float
    on_response: OnResponse


class Connection(FrameProtocol):
    """One connection to one broker. Responses come in the order of the requests (Kafka's rule)."""

    def __init__(
        self, node: Node, options: ConnectionOptions, on_lost: Callable[[Connection], None]
    ):
        super().__init__(max_frame_bytes=MAX_RESPONSE_BYTES)
        self.node = node
        self._options = options
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._watchdog: asyncio.TimerHandle | None = None
        self._watch_at = math.inf
        self._error: KafkaError | None = None
        self.bytes_sent = 0

    @property
    def in_flight(self) -> int:
        """How many requests await their response."""
        return len(self._pending)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exception: Exception | None) -> None:
        super().connection_lost(exception)
        self._transport = None
        if self._watchdog is not None:
            self._watchdog.cancel()
        error = self._error or Unavailable(
            f"{self.node} closed the connection" + (f": {exception}" if exception else "")
        )
        self._on_lost(self)
        pending, self._pending = self._pending, deque()
        for waiting in pending:
            waiting.on_response(None, error)

    def frame_received(self, frame: memoryview) -> None:
        if not self._pending:
            self._fail(CorruptData(f"{self.node} sent a response that nobody asked for"))
            return
        waiting = self._pending.popleft()
        api = APIS[waiting.api_key]
        try:
            correlation_id = decode_correlation_id(frame)
            if correlation_id != waiting.correlation_id:
                raise CorruptData(
                    f"{self.node} answered request {correlation_id},"
                    f" awaited was {waiting.correlation_id}"
                )
            response: Any = decode_response(api.response, waiting.version, frame)
        except CorruptData as error:
            self._pending.appendleft(waiting)
            self._fail(error)
            return
        waiting.on_response(response, None)

    def frame_refused(self, length: int) -> None:
        self._fail(CorruptData(f"{self.node} announced a response of {length} bytes"))

    # requests

    def version_of(self, api_key: int, at_most: int | None = None) -> int:
        """The newest version of an API that both sides speak.

        Raises:
            BrokerError: UNSUPPORTED_VERSION, with both ranges.
        """
        api = APIS[api_key]
        theirs = self._versions.get(api_key)
        newest = api.max_version if at_most is None else min(api.max_version, at_most)
        if theirs is not None:
            version = min(newest, theirs[1])
            if version >= max(api.min_version, theirs[0]):
                return version
        served = f"{theirs[0]} to {theirs[1]}" if theirs else "not at all"
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{self.node} serves {api.name} {served};"
            f" this client needs {api.min_version} to {newest}",
        )

    def serves(self, api_key: int) -> bool:
        return api_key in self._versions

    def send(
        self,
        request: object,
        api_key: int,
        version: int,
        on_response: OnResponse | None,
        timeout: float | None = None,
    ) -> None:
        """Write one request.

        Args:
            on_response: called once with the response or the error; None if the broker sends none
                (Produce with acks=0).
            timeout: seconds to wait for the response; the client's `request.timeout.ms` if None.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            error = self._error or Unavailable(f"{self.node} is not connected")
            if on_response is not None:
                on_response(None, error)
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = encode_request(request, version, self._correlation_id, self._options.client_id)
        now = self._loop.time()
        self.bytes_sent += sum(map(len, parts))
        if on_response is not None:
            deadline = now + (self._options.request_timeout if timeout is None else timeout)
            self._pending.append(
                _Pending(self._correlation_id, api_key, version, deadline, on_response)
            )
            if deadline < self._watch_at:
                self._watch(deadline)
        transport.writelines(parts)

    async def request(
        self,
        message: object,
        api_key: int,
        version: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send one request and await its response."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def deliver(response: Any, error: KafkaError | None) -> None:
            if future.done():
                return  # the caller was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(response)

        agreed = self.version_of(api_key) if version is None else version
        self.send(message, api_key, agreed, deliver, timeout)
        return await future

    async def agree_on_versions(self) -> None:
        """Ask which APIs the broker serves, falling back to version 0 as KIP-35 has it."""
        request = ApiVersionsRequest(
            client_software_name="trimtab", client_software_version=_software_version()
        )
        newest = APIS[ApiKey.API_VERSIONS].max_version
        response: ApiVersionsResponse = await self.request(
            request, ApiKey.API_VERSIONS, newest, self._options.connect_timeout
        )
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = {api.api_key: api.max_version for api in response.api_keys}
            version = min(newest, offered.get(ApiKey.API_VERSIONS, 0))
            response = await self.request(
                request, ApiKey.API_VERSIONS, version, self._options.connect_timeout
            )
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(
                error_code(response.error_code), "asked for its API versions", str(self.node)
            )
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    def close(self) -> None:
        """Close once what was sent is written; what is in flight ends with Unavailable."""
        if self._transport is not None:
            self._error = self._error or Unavailable(f"the connection to {self.node} was closed")
            self._transport.close()

    def abort(self) -> None:
        """Close without writing what still waits to be written."""
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: KafkaError) -> None:
        self._error = error
        if self._transport is not None:
            self._transport.abort()

    def _watch(self, deadline: float) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watch_at = deadline
        self._watchdog = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._watchdog = None
        self._watch_at = math.inf
        if not self._pending:
            return
        next_due = min(self._pending, key=lambda waiting: waiting.deadline)
        if next_due.deadline > self._loop.time():
            self._watch(next_due.deadline)
            return
        name = APIS[next_due.api_key].name
        # Kafka's rule: what comes after a lost response cannot be trusted to be in order.
        self._fail(Unavailable(f"{self.node} did not answer {name} in time"))


def _software_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "0"


class Connections:
    """One connection for each broker a client talks to, opened when needed, again with back-off.

    Node ids are the cluster's; bootstrap servers have negative ids.
    """

    def __init__(self, bootstrap: list[Node], options: ConnectionOptions, random: Random):
        self.bootstrap = bootstrap
        self.options = options
        self._random = random
        self._nodes: dict[int, Node] = {node.id: node for node in bootstrap}
        self._open: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Task[Connection]] = {}
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._errors: dict[int, KafkaError] = {}
        self._on_change: list[Callable[[], None]] = []
        self._closed = False
        self._all_lost: asyncio.Future[None] | None = None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever a connection opens, fails or is lost."""
        self._on_change.append(callback)

    def update(self, nodes: Iterable[Node]) -> None:
        """Take over the cluster's brokers from metadata; a broker that moved is connected anew."""
        for node in nodes:
            known = self._nodes.get(node.id)
            self._nodes[node.id] = node
            if known is not None and known[:3] != node[:3] and (old := self._open.get(node.id)):
                old.close()

    def ready(self, node_id: int) -> Connection | None:
        """The open connection to a broker, or None."""
        connection = self._open.get(node_id)
        return connection if connection is not None and connection.is_open else None

    def open_soon(self, node_id: int) -> None:
        """Begin to connect unless that is under way, done, or waits for its back-off."""
        if self._closed or node_id in self._opening or self.ready(node_id) is not None:
            return
        if node_id not in self._nodes:
            return
        self._begin(node_id)

    def last_error(self, node_id: int) -> KafkaError | None:
        """Why the last attempt to connect failed; None once it has succeeded."""
        return self._errors.get(node_id)

    async def connect(self, node_id: int) -> Connection:
        """The connection to a broker, opened first if need be.

        Raises:
            Unavailable: it cannot be reached; names the address and what to check.
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
        self, node_id: int, message: object, api_key: int, timeout: float | None = None
    ) -> Any:
        """Send to one broker, in the newest version both sides speak, and await the response."""
        connection = await self.connect(node_id)
        return await connection.request(message, api_key, timeout=timeout)

    async def connect_any(self) -> Connection:
        """A connection to whichever broker answers: an open one, else any, in random order.

        Raises:
            Unavailable: none can be reached; names every address that was tried.
        """
        live = [c for node_id in self._open if (c := self.ready(node_id)) is not None]
        if live:
            return min(live, key=lambda connection: connection.in_flight)
        known = [node_id for node_id in self._nodes if node_id >= 0]
        self._random.shuffle(known)
        seeds = [node.id for node in self.bootstrap]
        self._random.shuffle(seeds)
        errors: list[str] = []
        for node_id in known + seeds:
            try:
                return await self.connect(node_id)
            except KafkaError as error:
                errors.append(str(error))
        raise Unavailable("no broker can be reached: " + "; ".join(dict.fromkeys(errors)))

    @property
    def connections(self) -> list[Connection]:
        return list(self._open.values())

    async def close(self) -> None:
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        if not self._open:
            return
        self._all_lost = asyncio.get_running_loop().create_future()
        for connection in list(self._open.values()):
            connection.close()
        try:
            async with asyncio.timeout(self.options.connect_timeout):
                await self._all_lost
        except TimeoutError:  # a broker that does not read what was sent to it
            for connection in list(self._open.values()):
                connection.abort()

    def _begin(self, node_id: int) -> asyncio.Task[Connection]:
        task = asyncio.get_running_loop().create_task(self._connect(node_id))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._opening[node_id] = task
        return task

    async def _connect(self, node_id: int) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            wait = self._not_before.get(node_id, 0.0) - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            node = self._nodes[node_id]
            try:
                async with asyncio.timeout(self.options.connect_timeout):
                    _, connection = await loop.create_connection(
                        lambda: Connection(node, self.options, self._lost), node.host, node.port
                    )
                    try:
                        await connection.agree_on_versions()
                    except BaseException:
                        connection.close()
                        raise
            except TimeoutError:
                raise Unavailable(f"{node} did not accept a connection in time") from None
            except OSError as error:
                raise Unavailable(self._explain(node, error)) from error
            self._failures.pop(node_id, None)
            self._not_before.pop(node_id, None)
            self._errors.pop(node_id, None)
            self._open[node_id] = connection
            return connection
        except KafkaError as error:
            self._back_off(node_id)
            self._errors[node_id] = error
            raise
        finally:
            self._opening.pop(node_id, None)
            if not self._closed:
                loop.call_soon(self._changed)

    def _explain(self, node: Node, error: OSError) -> str:
        text = f"{node} cannot be reached: {error}"
        if node.id >= 0:
            seeds = ", ".join(f"{seed.host}:{seed.port}" for seed in self.bootstrap)
            text += (
                f" (the cluster advertises {node.host}:{node.port}, bootstrap was {seeds};"
                " if that name or port is not for this network, correct advertised.listeners)"
            )
        return text

    def _back_off(self, node_id: int) -> None:
        failures = self._failures.get(node_id, 0)
        self._failures[node_id] = failures + 1
        wait = min(self.options.backoff * 2.0 ** min(failures, 20), self.options.backoff_max)
        jitter = 0.8 + 0.4 * self._random.random()
        self._not_before[node_id] = asyncio.get_running_loop().time() + wait * jitter

    def _lost(self, connection: Connection) -> None:
        if self._open.get(connection.node.id) is connection:
            del self._open[connection.node.id]
            if self._all_lost is not None and not self._open and not self._all_lost.done():
                self._all_lost.set_result(None)
            if not self._closed:
                logger.info("connection lost: %s", connection.node)
                self._back_off(connection.node.id)
                self._changed()

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()
