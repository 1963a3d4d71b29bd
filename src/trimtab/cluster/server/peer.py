"""A connection from one node of the cluster to another, for requests and their responses in order.

All nodes run the same release, so a request has the newest version unless one is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from trimtab.cluster.server.cluster_secret import ClusterSecret
from trimtab.cluster.server.faults import BrokerFaults
from trimtab.cluster.server.turns import Steps, in_turns
from trimtab.kafka.errors import AuthenticationFailed, CorruptData, KafkaError, UsageError
from trimtab.kafka.wire.codec import (
    AT_ONCE_BYTES,
    AT_ONCE_ELEMENTS,
    Exceeded,
    encode_parts,
    encode_parts_in_turns,
)
from trimtab.kafka.wire.framing import (
    FrameProtocol,
    decode_response,
    decode_response_in_turns,
)
from trimtab.kafka.wire.in_flight import InFlightRequest, InFlightRequests
from trimtab.kafka.wire.messages import APIS_BY_REQUEST, Api
from trimtab.kafka.wire.schema import Request
from trimtab.kafka.wire.types import BytesLike

Response = TypeVar("Response")

_TRUSTED_BYTES = 16 * 1024 * 1024
_MAX_FRAME_BYTES = 2**31 - 1
_UNPROVEN_BYTES = 64 * 1024
"""The longest frame that is taken from the other side before it has proven that it is a node."""


class PeerLost(KafkaError):
    """The other node cannot be reached, or the connection to it is lost."""


class PeerRefused(PeerLost):
    """The other side does not know the cluster's secret, or does not accept this node's."""


class Peer(FrameProtocol):
    """A connection to another node. Use `Peer.connect`."""

    def __init__(self, name: str, client_id: str, faults: BrokerFaults) -> None:
        super().__init__(max_frame_bytes=_MAX_FRAME_BYTES, trusted_bytes=_TRUSTED_BYTES)
        self.name = name
        self._faults = faults
        self._in_flight: InFlightRequests[asyncio.Future[Any]] = InFlightRequests(name, client_id)
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        client_id: str,
        timeout_s: float,
        faults: BrokerFaults | None = None,
        secret: ClusterSecret | None = None,
        whom: str = "",
    ) -> Peer:
        """Connect to the node at this address.

        Args:
            faults: those of the node that connects.
            secret: of the cluster; None to connect as a client.
            whom: the name of the node that is meant.

        Raises:
            PeerLost: the connection was refused, or not made within `timeout_s`.
            PeerRefused: no node of this name that knows the secret is there, or it does not accept
                this one.
        """
        loop = asyncio.get_running_loop()
        name = f"{host}:{port}"
        faults = BrokerFaults() if faults is None else faults
        try:
            async with asyncio.timeout(timeout_s):
                _, peer = await loop.create_connection(
                    lambda: cls(name, client_id, faults), host, port
                )
                # Not in `connection_made`: if connecting is cancelled, uvloop does not say that it
                # is lost.
                faults.opened(peer, (host, port))
                if secret is not None:
                    await peer._log_in(secret, whom)
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            raise PeerLost(f"{name} cannot be reached: {reason}") from error
        return peer

    async def _log_in(self, secret: ClusterSecret, whom: str) -> None:
        self.max_frame_bytes = self.trusted_bytes = _UNPROVEN_BYTES
        try:
            await secret.log_in(self.ask, whom)
        except AuthenticationFailed as error:
            self.close()
            raise PeerRefused(f"{self.name} is not {whom} of this cluster: {error}") from error
        except BaseException:
            self.close()
            raise
        self.max_frame_bytes, self.trusted_bytes = _MAX_FRAME_BYTES, _TRUSTED_BYTES

    @property
    def is_lost(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def ask(
        self, request: Request[Response], version: int | None = None
    ) -> asyncio.Future[Response]:
        """Send a request; the future has the response, or PeerLost if the connection is lost."""
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        if self.transport is None or self.transport.is_closing():
            answer.set_exception(PeerLost(f"the connection to {self.name} is lost"))
            return answer
        api = APIS_BY_REQUEST[type(request)]
        if version is None:
            version = api.max_version
        try:
            parts = encode_parts(request, version, AT_ONCE_ELEMENTS)
        except Exceeded:
            self._work(self._ask_in_turns(request, api, version, answer))
        else:
            self._send(api, version, answer, parts)
        return answer

    async def _ask_in_turns(
        self, request: object, api: Api, version: int, answer: asyncio.Future[Any]
    ) -> None:
        try:
            parts = await in_turns(encode_parts_in_turns(request, version))
        except UsageError as error:
            answer.set_exception(error)
        else:
            self._send(api, version, answer, parts)

    def _send(
        self, api: Api, version: int, answer: asyncio.Future[Any], body: list[BytesLike]
    ) -> None:
        if answer.done():
            return
        if self.transport is None or self.transport.is_closing():
            answer.set_exception(PeerLost(f"the connection to {self.name} is lost"))
            return
        self.transport.writelines(self._in_flight.add_request(api, version, body, answer))

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: memoryview) -> None:
        try:
            asked = self._in_flight.match(frame)
            answer = asked.receiver
            if not answer.done():
                try:
                    response = decode_response(
                        asked.api.response, asked.version, frame, AT_ONCE_BYTES
                    )
                except CorruptData as error:
                    answer.set_exception(PeerLost(f"{self.name} sent garbage: {error}"))
                    raise
                except Exceeded:
                    self._work(self._read_in_turns(asked, frame))
                    return
                answer.set_result(response)
        except CorruptData:
            self.close()

    async def _read_in_turns(
        self, asked: InFlightRequest[asyncio.Future[Any]], frame: memoryview
    ) -> None:
        answer = asked.receiver
        steps: Steps[Any] = decode_response_in_turns(asked.api.response, asked.version, frame)
        try:
            response = await in_turns(steps)
        except CorruptData as error:
            if not answer.done():
                answer.set_exception(PeerLost(f"{self.name} sent garbage: {error}"))
            self.close()
        else:
            if not answer.done():
                answer.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._faults.lost(self)
        for asked in self._in_flight.remove_all():
            if not asked.receiver.done():
                asked.receiver.set_exception(
                    PeerLost(f"the connection to {self.name} is lost: {error}")
                )
