"""Connections to brokers: one per broker, requests in order, versions agreed with each broker.

request ─▶ Connections ─▶ Connection ═▶ broker
               │               │
    who, and when again?   correlation ids, timeouts, API versions, authentication
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from ipaddress import ip_address
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

from trimtab.client.network.authentication import Credentials, authenticate
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.certificates import explain_certificate, tls_reason
from trimtab.client.network.outages import OutageLog
from trimtab.errors import (
    AuthenticationFailed,
    BrokerError,
    CorruptData,
    ErrorCode,
    KafkaError,
    Unavailable,
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
from trimtab.wire.schema import schema

logger = logging.getLogger("trimtab.client")

Response = TypeVar("Response")
OnResponse = Callable[[Any, KafkaError | None], None]
"""Called once with (response, None) or (None, error)."""

MAX_RESPONSE_BYTES = 2**31 - 1
_SLOW = 1.0
"""Seconds after which a broker that is being connected to is not waited for before others."""
_FIRST_REQUESTS = 2
"""A connection that ends with these was probably not understood."""
_REAUTHENTICATE_AT = 0.85
"""The part of a session after which it is renewed; 0.85 to 0.95 in Java."""


class ApiKey(IntEnum):
    """The APIs that clients ask brokers for, by their numbers on the wire (Kafka's `ApiKeys`)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_TOPIC_PARTITIONS = 75
    LIST_BATCH_SIZES = 32_001  # our brokers' only


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
    """What every connection of one client shares. Times are in seconds.

    Attributes:
        connect_timeout: for one address; doubled with each failure up to `connect_timeout_max`.
        max_idle: a connection not used for this long is closed; None never closes one.
        rebootstrap_after: the time without metadata after which the known brokers are forgotten;
            None: bootstrap servers are never asked again.
        canonical_bootstrap: whether bootstrap names are replaced by the canonical ones first.
        security_protocol: for error texts; what is done is up to `tls` and `credentials`.
        prepare: called with each new transport, to size its socket's buffers.
    """

    client_id: str
    request_timeout: float
    connect_timeout: float
    backoff: Backoff
    connect_timeout_max: float = 30.0
    max_idle: float | None = None
    rebootstrap_after: float | None = math.inf
    canonical_bootstrap: bool = False
    security_protocol: str = "PLAINTEXT"
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None
    prepare: Callable[[asyncio.BaseTransport], None] | None = None


class _Held(NamedTuple):
    """A request held back until the connection has re-authenticated."""

    request: object
    api_key: int
    version: int
    on_response: OnResponse | None
    timeout: float | None


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
        self._features: dict[str, int] = {}
        self._watchdog: asyncio.TimerHandle | None = None
        self._watch_at = math.inf
        self._error: KafkaError | None = None
        self._held: list[_Held] | None = None
        self._reauthentication: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._session_timer: asyncio.TimerHandle | None = None
        self._used_at = self._loop.time()
        self.was_idle = False
        self.bytes_sent = 0
        self.response_bytes = 0  # of the response that is being handed over

    @property
    def in_flight(self) -> int:
        """How many requests await their response."""
        return len(self._pending) + len(self._held or ())

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)
        if self._options.prepare is not None:
            self._options.prepare(transport)
        if self._options.max_idle is not None:
            self._close_if_idle()

    def connection_lost(self, exception: Exception | None) -> None:
        super().connection_lost(exception)
        self._transport = None
        for timer in (self._watchdog, self._idle_timer, self._session_timer):
            if timer is not None:
                timer.cancel()
        if self._reauthentication is not None:
            self._reauthentication.cancel()
        if self._error is None:
            self._error = self._explain_loss(exception)
        error = self._error
        self._on_lost(self)
        pending, self._pending = self._pending, deque()
        held, self._held = self._held, None
        for waiting in (*pending, *(held or ())):
            if waiting.on_response is not None:
                waiting.on_response(None, error)

    def _explain_loss(self, exception: Exception | None) -> KafkaError:
        if isinstance(exception, ssl.SSLError):
            # With TLS 1.3 a broker judges our certificate after the handshake.
            return AuthenticationFailed(f"{self.node} ended TLS: {tls_reason(exception)}")
        text = f"{self.node} closed the connection" + (f": {exception}" if exception else "")
        if self._correlation_id <= _FIRST_REQUESTS:
            protocol = self._options.security_protocol
            text += f" (does its listener speak security.protocol={protocol}?)"
        return Unavailable(text)

    def frame_received(self, frame: memoryview) -> None:
        if not self._pending:
            self._fail(CorruptData(f"{self.node} sent a response that nobody asked for"))
            return
        self.response_bytes = 4 + len(frame)
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

        Args:
            at_most: no later one; an unstable one may be named so.

        Raises:
            BrokerError: UNSUPPORTED_VERSION, with both ranges.
        """
        api = APIS[api_key]
        theirs = self._versions.get(api_key)
        newest = api.max_version if at_most is None else at_most
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

    def feature(self, name: str) -> int:
        """The level the cluster has settled on for a feature, such as `transaction.version`.

        0 if it has none, as of clusters from before features (KIP-584).
        """
        return self._features.get(name, 0)

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
        if self._held is not None:
            self._held.append(_Held(request, api_key, version, on_response, timeout))
            return
        self._write(request, api_key, version, on_response, timeout)

    def _write(
        self,
        request: object,
        api_key: int,
        version: int,
        on_response: OnResponse | None,
        timeout: float | None,
    ) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            error = self._error or Unavailable(f"{self.node} is not connected")
            if on_response is not None:
                on_response(None, error)
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = encode_request(request, version, self._correlation_id, self._options.client_id)
        now = self._used_at = self._loop.time()
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
        agreed = self.version_of(api_key) if version is None else version
        return await self._await(self.send, message, api_key, agreed, timeout)

    async def _await(
        self,
        send: Callable[[object, int, int, OnResponse | None, float | None], None],
        message: object,
        api_key: int,
        version: int,
        timeout: float | None,
    ) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def deliver(response: Any, error: KafkaError | None) -> None:
            if future.done():
                return  # the caller was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(response)

        send(message, api_key, version, deliver, timeout)
        return await future

    async def open(self) -> None:
        """Agree on versions and prove who we are: what comes before anything else.

        Raises:
            AuthenticationFailed: the broker does not accept our credentials.
            Unavailable: the connection was lost.
        """
        await self.agree_on_versions()
        await self._authenticate()

    async def _authenticate(self) -> None:
        credentials = self._options.credentials
        if credentials is None:
            return

        async def ask(message: object) -> Any:
            api_key = schema(type(message)).api_key
            assert api_key is not None
            version = self.version_of(api_key)
            timeout = self._options.request_timeout
            return await self._await(self._write, message, api_key, version, timeout)

        lifetime = await authenticate(ask, credentials, str(self.node))
        if lifetime > 0:
            self._session_timer = self._loop.call_later(
                lifetime * _REAUTHENTICATE_AT, self._renew_session
            )

    def _renew_session(self) -> None:
        """Re-authenticate over this connection (KIP-368); requests wait meanwhile."""
        self._held = []
        self._reauthentication = self._loop.create_task(self._reauthenticate())

    async def _reauthenticate(self) -> None:
        try:
            async with asyncio.timeout(self._options.request_timeout):
                await self._authenticate()
        except TimeoutError:
            self._fail(Unavailable(f"{self.node} could not be authenticated to anew in time"))
            return
        except KafkaError as error:
            self._fail(error)
            return
        held, self._held = self._held, None
        for waiting in held or ():
            self._write(*waiting)

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
        self._features = {
            feature.name: feature.max_version_level for feature in response.finalized_features
        }

    def close(self) -> None:
        """Close once what was sent is written; what is in flight ends with Unavailable."""
        if self._transport is not None:
            self._error = self._error or Unavailable(f"the connection to {self.node} was closed")
            if self._options.tls is not None and self.in_flight:
                # The broker answers before it reads on: an orderly end of TLS would wait for it.
                self._transport.abort()
            else:
                self._transport.close()

    def abort(self) -> None:
        """Close without writing what still waits to be written."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def error(self) -> KafkaError | None:
        """What ended it; None while it is open, or if it was closed by us."""
        return self._error

    def _close_if_idle(self) -> None:
        longest = self._options.max_idle
        assert longest is not None
        now = self._loop.time()
        if self.in_flight:
            self._used_at = now
        due = self._used_at + longest
        if now >= due:
            self.was_idle = True
            self.close()
        else:
            self._idle_timer = self._loop.call_at(due, self._close_if_idle)

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


@cache
def _software_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "0"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


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
        self.outages = OutageLog(options.client_id)
        self._untried: dict[int, list[str]] = {}
        self._is_canonical = not options.canonical_bootstrap
        self._on_change: list[Callable[[], None]] = []
        self._on_loss: list[Callable[[], None]] = []
        self.on_event: Callable[[str], object] = lambda what: None
        """Told what happens to connections, under the names of Kafka's metrics about that."""
        self._closed = False
        self._all_lost: asyncio.Future[None] | None = None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever a connection opens, fails or is lost."""
        self._on_change.append(callback)

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever a broker cannot be reached any more, or yet."""
        self._on_loss.append(callback)

    def update(self, nodes: Iterable[Node]) -> None:
        """Take over the cluster's brokers from metadata; a broker that moved is reconnected."""
        for node in nodes:
            known = self._nodes.get(node.id)
            self._nodes[node.id] = node
            if known is not None and known[:3] != node[:3]:
                self._leave(node.id)

    def rebootstrap(self) -> None:
        """Forget the cluster's brokers and begin again at the bootstrap servers (KIP-899)."""
        known = [node_id for node_id in self._nodes if node_id >= 0]
        if known:
            logger.warning("no metadata from brokers %s: back to bootstrap.servers", known)
        for node_id in known:
            del self._nodes[node_id]
            self._leave(node_id)

    def _leave(self, node_id: int) -> None:
        self._untried.pop(node_id, None)
        if connection := self._open.get(node_id):
            connection.close()

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
            AuthenticationFailed: it refuses our credentials, or its certificate is not accepted.
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
        """A connection to whichever broker answers first: an open one, else any.

        Those that may be tried now come before those that have failed a moment ago. So calls that
        are cancelled early try one broker after the other, and not the same one each time.

        Raises:
            Unavailable: none can be reached; names every address that was tried.
            AuthenticationFailed: likewise, and at least one refused us or was refused by us.

        Source: `NetworkClient.leastLoadedNode`.
        """
        if live := self._least_loaded():
            return live
        known = [node_id for node_id in self._nodes if node_id >= 0]
        self._random.shuffle(known)
        seeds: list[int] = []
        if not known or self.options.rebootstrap_after is not None:
            if not self._is_canonical:
                await self._make_bootstrap_canonical()
            seeds = [node.id for node in self.bootstrap]
        self._random.shuffle(seeds)
        kind: type[KafkaError] = Unavailable
        errors: list[str] = []
        for node_id in sorted(known + seeds, key=self._turn):
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

    def _turn(self, node_id: int) -> float:
        """The order in which to try brokers: one that is being tried, one that may be, the others
        as their waits end, and last one that has taken long to answer."""
        now = asyncio.get_running_loop().time()
        wait = self._not_before.get(node_id, now) - now
        if node_id in self._opening and wait <= 0:
            return math.inf if wait < -_SLOW else -1.0
        return max(wait, 0.0)

    async def _open_one(self, node_id: int) -> Connection:
        """The connection to a broker, or to another one if that opens before."""
        if self._closed or node_id not in self._nodes:
            return await self.connect(node_id)  # says what is the matter
        task = self._opening.get(node_id) or self._begin(node_id)
        while not task.done():
            await asyncio.wait(self._opening.values(), return_when=asyncio.FIRST_COMPLETED)
            if live := self._least_loaded():
                return live
        return await task

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
        self._opening[node_id] = task
        task.add_done_callback(partial(self._opened, node_id))
        return task

    def _opened(self, node_id: int, task: asyncio.Task[Connection]) -> None:
        if self._opening.get(node_id) is task:  # cancelled before it began
            del self._opening[node_id]
        if not task.cancelled():
            task.exception()  # seen

    async def _connect(self, node_id: int) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            wait = self._not_before.get(node_id, 0.0) - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            self._not_before[node_id] = loop.time()
            node = self._nodes.get(node_id)
            if node is None:
                raise Unavailable(f"broker {node_id} is no longer in the cluster's metadata")
            connection = await self._try_addresses(node)
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
                self.outages.failed(str(self._nodes[node_id]), error, wait, loop.time())
            if isinstance(error, Unavailable):
                self._announce_loss()
            raise
        finally:
            self._opening.pop(node_id, None)
            if not self._closed:
                loop.call_soon(self._changed)

    async def _try_addresses(self, node: Node) -> Connection:
        """Connect to the first of a name's addresses that answers (KIP-302).

        The others wait until that connection is lost; then they come first.
        """
        failures = self._failures.get(node.id, 0)
        timeout = self.options.connect_timeout
        if failures:
            most = max(timeout, self.options.connect_timeout_max)
            jitter = 0.8 + 0.4 * self._random.random()
            timeout = min(timeout * 2.0 ** min(failures, 20), most) * jitter
        untried = self._untried.pop(node.id, None) or await self._resolve(node, timeout)
        while True:
            address = untried.pop(0)
            try:
                connection = await self._open_at(node, address, timeout)
            except Unavailable as error:
                if not untried:
                    raise
                logger.debug("%s, next address: %s", error, untried[0])
            else:
                self._untried[node.id] = untried
                return connection

    async def _resolve(self, node: Node, timeout: float) -> list[str]:
        if _is_address(node.host):
            return [node.host]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                found = await loop.getaddrinfo(node.host, node.port)
        except TimeoutError:
            raise Unavailable(
                self._explain(node, f"its name did not resolve within {timeout:g} s")
            ) from None
        except (OSError, UnicodeError, RuntimeError) as error:
            # asyncio resolves in threads, and begins none while the process ends: RuntimeError.
            why = getattr(error, "strerror", None) or str(error)
            raise Unavailable(self._explain(node, f"its name does not resolve ({why})")) from error
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def _open_at(self, node: Node, address: str, timeout: float) -> Connection:
        try:
            async with asyncio.timeout(timeout):
                connection = await self._connect_to(node, address)
                self.on_event("connection-creation")
                try:
                    await connection.open()
                except BaseException:
                    connection.abort()
                    raise
                return connection
        except TimeoutError:
            at = "" if address == node.host else f" at {address}"
            raise Unavailable(f"{node} did not accept a connection{at} in time") from None
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(explain_certificate(str(node), error)) from error
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                raise Unavailable(self._explain(node, tls_reason(error))) from error
            raise AuthenticationFailed(
                f"{node} and this client cannot agree on TLS: {tls_reason(error)}; see"
                " security.protocol, ssl.keystore.location and ssl.enabled.protocols"
            ) from error
        except OSError as error:
            raise Unavailable(self._explain(node, str(error))) from error

    async def _connect_to(self, node: Node, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(node, self.options, self._lost)
        tls = self.options.tls
        if tls is None:
            await loop.create_connection(lambda: connection, address, node.port)
            return connection
        # In two steps: when a handshake fails or is cancelled, `create_connection(ssl=...)` keeps
        # its socket open for as long as an orderly end of TLS might take, past the loop's own.
        plain, _ = await loop.create_connection(asyncio.Protocol, address, node.port)
        try:
            encrypted = await loop.start_tls(plain, connection, tls, server_hostname=node.host)
        except BaseException:
            plain.abort()
            raise
        assert encrypted is not None
        connection.connection_made(encrypted)
        return connection

    async def _make_bootstrap_canonical(self) -> None:
        """Replace each bootstrap name by the canonical names of its addresses.

        A name that does not resolve stays; the attempt to connect then says so.
        """
        loop = asyncio.get_running_loop()
        places: dict[tuple[str, int], None] = {}
        for seed in self.bootstrap:
            try:
                found = await loop.getaddrinfo(seed.host, seed.port)
                addresses = dict.fromkeys(address for *_, address in found)
                names = [
                    (await loop.getnameinfo((str(address[0]), seed.port)))[0]
                    for address in addresses
                ]
            except (OSError, UnicodeError) as error:
                logger.warning("bootstrap server %s has no canonical name: %s", seed, error)
                names = [seed.host]
            places.update(dict.fromkeys((name, seed.port) for name in names))
        self._is_canonical = True
        self.bootstrap = [Node(-1 - index, host, port) for index, (host, port) in enumerate(places)]
        self.update(self.bootstrap)

    def _explain(self, node: Node, why: str) -> str:
        text = f"{node} cannot be reached: {why}"
        if node.id >= 0:
            seeds = ", ".join(f"{seed.host}:{seed.port}" for seed in self.bootstrap)
            text += (
                f" (the cluster advertises {node.host}:{node.port}, bootstrap was {seeds};"
                " if that name or port is not for this network, correct advertised.listeners)"
            )
        elif self.options.tls is not None:
            text += f" (security.protocol={self.options.security_protocol}: is its listener TLS?)"
        return text

    def _back_off(self, node_id: int) -> float:
        """Seconds during which it is not tried again."""
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
            if isinstance(connection.error, AuthenticationFailed):
                self._errors[connection.node.id] = connection.error
            if not self._closed and not connection.was_idle:
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
