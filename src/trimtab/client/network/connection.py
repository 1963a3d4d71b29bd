"""One connection to one broker.

request ─▶ send ─▶ frame ═▶ broker
response ◀─ on_response ◀─ decode ◀═

A connection is opened in this order: ApiVersions, to learn which versions the broker serves; then
authentication, if there are credentials; then all other requests. A broker whose sessions end is
authenticated to again in time (KIP-368); requests wait meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from trimtab.client.network.authentication import Credentials, authenticate
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.certificates import tls_reason
from trimtab.kafka.errors import (
    AuthenticationFailed,
    BrokerError,
    CorruptData,
    ErrorCode,
    KafkaError,
    Unavailable,
    error_code,
)
from trimtab.kafka.wire.codec import encode_parts
from trimtab.kafka.wire.framing import FrameProtocol, decode_response
from trimtab.kafka.wire.in_flight import InFlightRequests
from trimtab.kafka.wire.messages import APIS_BY_REQUEST
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trimtab.kafka.wire.schema import Request
from trimtab.kafka.wire.types import MAX_INT32

Response = TypeVar("Response")
OnResponse: TypeAlias = Callable[[Response | None, KafkaError | None], None]
"""Called once with (response, None) or (None, error)."""

_FIRST_REQUESTS = 2
"""If a connection is lost after so few requests, the broker probably did not understand them."""
_REAUTHENTICATE_AT = 0.85
"""The fraction of a session after which the client authenticates again; 0.85 to 0.95 in Java."""
_TRUSTED_BYTES = 64 * 1024 * 1024
"""Fetch responses, 50 MiB by default, get their buffer at once: growing one would cost as much as
receiving. Such a buffer takes memory only as bytes arrive."""


class Node(NamedTuple):
    """A broker's id and address, as clients reach it. Bootstrap servers have negative ids."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.id} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options that all connections of one client share. Times are in seconds.

    Attributes:
        connect_timeout: for one address; doubled with each failure up to `connect_timeout_max`.
        max_idle: a connection not used for this long is closed; None never closes one.
        rebootstrap_after: the time without metadata after which the client forgets the brokers it
            knows and asks the bootstrap servers again; None: it never asks them again.
        canonical_bootstrap: whether bootstrap names are replaced by the canonical ones first.
        security_protocol: named in error texts; `tls` and `credentials` decide what is done.
        prepare: called with each new transport, to set its socket's buffer sizes.
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


class _HeldRequest(NamedTuple):
    """A request held back until the connection has re-authenticated."""

    request: Request[Any]
    version: int
    on_response: OnResponse[Any] | None
    timeout: float | None


class Connection(FrameProtocol):
    """An open connection to a broker, which answers requests in their order (Kafka's rule).

    Args:
        on_lost: called once when the connection is lost, before the callbacks of its requests.

    Attributes:
        was_idle: whether it was closed because it was not used for `max_idle`.
        bytes_sent: of all requests.
        response_bytes: of the response that is being passed to its callback.
    """

    def __init__(
        self, node: Node, options: ConnectionOptions, on_lost: Callable[[Connection], None]
    ):
        super().__init__(MAX_INT32, _TRUSTED_BYTES, keeps_buffers=True)
        self.node = node
        self._options = options
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._requests: InFlightRequests[OnResponse[Any]] = InFlightRequests(
            str(node), options.client_id
        )
        self._versions: dict[int, tuple[int, int]] = {}
        self._features: dict[str, int] = {}
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._next_deadline = math.inf
        self._error: KafkaError | None = None
        self._held: list[_HeldRequest] | None = None
        self._reauthentication: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._session_timer: asyncio.TimerHandle | None = None
        self._used_at = self._loop.time()
        self.was_idle = False
        self.bytes_sent = 0
        self.response_bytes = 0

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their response."""
        return len(self._requests) + len(self._held or ())

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def error(self) -> KafkaError | None:
        """Why the connection ended; None while it is open."""
        return self._error

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._options.prepare is not None:
            self._options.prepare(transport)
        if self._options.max_idle is not None:
            self._close_if_idle()

    def connection_lost(self, exception: Exception | None) -> None:
        super().connection_lost(exception)
        for timer in (self._deadline_timer, self._idle_timer, self._session_timer):
            if timer is not None:
                timer.cancel()
        if self._reauthentication is not None:
            self._reauthentication.cancel()
        if self._error is None:
            self._error = self._explain_loss(exception)
        error = self._error
        self._on_lost(self)
        callbacks = [request.receiver for request in self._requests.remove_all()]
        held, self._held = self._held, None
        callbacks += [each.on_response for each in held or () if each.on_response is not None]
        for on_response in callbacks:
            on_response(None, error)

    def _explain_loss(self, exception: Exception | None) -> KafkaError:
        if isinstance(exception, ssl.SSLError):
            # With TLS 1.3 a broker checks the client's certificate only after the handshake.
            return AuthenticationFailed(f"{self.node} ended TLS: {tls_reason(exception)}")
        text = f"{self.node} closed the connection" + (f": {exception}" if exception else "")
        if self._requests.last_correlation_id <= _FIRST_REQUESTS:
            protocol = self._options.security_protocol
            text += f" (does its listener speak security.protocol={protocol}?)"
        return Unavailable(text)

    def frame_received(self, frame: memoryview) -> None:
        self.response_bytes = 4 + len(frame)
        try:
            request = self._requests.match(frame)
        except CorruptData as error:
            self._fail(error)
            return
        try:
            response = decode_response(request.api.response, request.version, frame)
        except CorruptData as error:
            self._requests.put_back(request)
            self._fail(error)
            return
        request.receiver(response, None)

    def frame_refused(self, length: int) -> None:
        self._fail(CorruptData(f"{self.node} announced a response of {length} bytes"))

    # requests

    def version_of(self, request: type[Request[object]], at_most: int | None = None) -> int:
        """The newest version of a request that both sides speak.

        Args:
            at_most: the newest version to use. Name an unstable version here to use it.

        Raises:
            BrokerError: UNSUPPORTED_VERSION, with both ranges.
        """
        api = APIS_BY_REQUEST[request]
        served = self._versions.get(api.key)
        newest = api.max_version if at_most is None else at_most
        if served is not None:
            version = min(newest, served[1])
            if version >= max(api.min_version, served[0]):
                return version
        versions = f"{served[0]} to {served[1]}" if served else "not at all"
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{self.node} serves {api.name} {versions};"
            f" this client needs {api.min_version} to {newest}",
        )

    def serves(self, request: type[Request[object]]) -> bool:
        return request.api_key in self._versions

    def feature(self, name: str) -> int:
        """The cluster's level of a feature, such as `transaction.version` (KIP-584).

        0 if the cluster does not have the feature, or is older than features.
        """
        return self._features.get(name, 0)

    def send(
        self,
        request: Request[Response],
        version: int,
        on_response: OnResponse[Response] | None,
        timeout: float | None = None,
    ) -> None:
        """Write one request.

        Args:
            on_response: called once with the response or the error; None if the broker sends none
                (Produce with acks=0).
            timeout: seconds to wait for the response; the client's `request.timeout.ms` if None.
        """
        if self._held is not None:
            self._held.append(_HeldRequest(request, version, on_response, timeout))
            return
        self._write(request, version, on_response, timeout)

    def _write(
        self,
        request: Request[Response],
        version: int,
        on_response: OnResponse[Response] | None,
        timeout: float | None,
    ) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            error = self._error or Unavailable(f"{self.node} is not connected")
            if on_response is not None:
                on_response(None, error)
            return
        body = encode_parts(request, version)
        now = self._used_at = self._loop.time()
        deadline = now + (self._options.request_timeout if timeout is None else timeout)
        api = APIS_BY_REQUEST[type(request)]
        parts = self._requests.add_request(api, version, body, on_response, deadline)
        self.bytes_sent += sum(map(len, parts))
        if on_response is not None and deadline < self._next_deadline:
            self._watch(deadline)
        transport.writelines(parts)

    async def request(
        self,
        request: Request[Response],
        version: int | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Send one request and await its response.

        Args:
            version: the newest that both sides speak if None.
            timeout: as for `send`.
        """
        if version is None:
            version = self.version_of(type(request))
        response: asyncio.Future[Response] = self._loop.create_future()
        self.send(request, version, partial(_settle, response), timeout)
        return await response

    async def _request_now(self, request: Request[Response]) -> Response:
        """As `request`, but not held back until the connection has re-authenticated."""
        response: asyncio.Future[Response] = self._loop.create_future()
        self._write(request, self.version_of(type(request)), partial(_settle, response), None)
        return await response

    async def open(self) -> None:
        """Learn the broker's versions and authenticate, before any other request.

        Raises:
            AuthenticationFailed: the broker does not accept our credentials.
            Unavailable: the connection was lost.
        """
        await self.agree_on_versions()
        await self._authenticate()

    async def agree_on_versions(self) -> None:
        """Learn which APIs the broker serves."""
        response = await self.ask_versions()
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }
        self._features = {
            feature.name: feature.max_version_level for feature in response.finalized_features
        }

    async def ask_versions(self) -> ApiVersionsResponse:
        """Ask which APIs and features the broker serves; again in an older version if it says so
        (KIP-511)."""
        request = ApiVersionsRequest(
            client_software_name="trimtab", client_software_version=_software_version()
        )
        newest = APIS_BY_REQUEST[ApiVersionsRequest].max_version
        timeout = self._options.connect_timeout
        response = await self.request(request, newest, timeout)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = {api.api_key: api.max_version for api in response.api_keys}
            version = min(newest, offered.get(request.api_key, 0))
            response = await self.request(request, version, timeout)
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(
                error_code(response.error_code), "asked for its API versions", str(self.node)
            )
        return response

    # authentication

    async def _authenticate(self) -> None:
        credentials = self._options.credentials
        if credentials is None:
            return
        lifetime = await authenticate(self._request_now, credentials, str(self.node))
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
            self._fail(Unavailable(f"{self.node} did not complete re-authentication in time"))
            return
        except KafkaError as error:
            self._fail(error)
            return
        held, self._held = self._held, None
        for request in held or ():
            self._write(*request)

    # the end of the connection

    def close(self) -> None:
        """Close once all bytes are written; requests in flight end with Unavailable."""
        if self.transport is not None:
            self._error = self._error or Unavailable(f"the connection to {self.node} was closed")
            if self._options.tls is not None and self.in_flight:
                # An orderly end of TLS would wait for the broker, which answers before it reads on.
                self.transport.abort()
            else:
                self.transport.close()

    def abort(self) -> None:
        """Close without writing the bytes that are still buffered."""
        if self.transport is not None:
            self.transport.abort()

    def _fail(self, error: KafkaError) -> None:
        self._error = error
        self.abort()

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

    def _watch(self, deadline: float) -> None:
        """Check deadlines at this time, the earliest of the requests in flight."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._next_deadline = deadline
        self._deadline_timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadline_timer = None
        self._next_deadline = math.inf
        due = self._requests.next_due()
        if due is None:
            return
        if due.deadline > self._loop.time():
            self._watch(due.deadline)
            return
        # Kafka's rule: after a response that did not come, the order of the others is not certain.
        self._fail(Unavailable(f"{self.node} did not answer {due.api.name} in time"))


def _settle(
    answer: asyncio.Future[Response], response: Response | None, error: KafkaError | None
) -> None:
    if answer.done():
        return  # the caller was cancelled
    if response is None:
        assert error is not None
        answer.set_exception(error)
    else:
        answer.set_result(response)


@cache
def _software_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "0"
