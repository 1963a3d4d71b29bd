"""A connection from one node of the cluster to another, for requests and their responses in order.

All nodes run the same release, so a request has the newest version unless one is given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

from trimtab.errors import CorruptData, KafkaError, UsageError
from trimtab.server.turns import Steps, in_turns
from trimtab.wire.codec import (
    AT_ONCE_BYTES,
    AT_ONCE_ELEMENTS,
    Exceeded,
    encode_parts,
    encode_parts_in_turns,
)
from trimtab.wire.framing import (
    FrameProtocol,
    decode_correlation_id,
    decode_response,
    decode_response_in_turns,
    frame_request,
)
from trimtab.wire.messages import APIS, Api
from trimtab.wire.schema import schema
from trimtab.wire.types import BytesLike

_TRUSTED_BYTES = 16 * 1024 * 1024
_MAX_FRAME_BYTES = 2**31 - 1


class PeerLost(KafkaError):
    """The other node cannot be reached, or the connection to it is lost."""


class Peer(FrameProtocol):
    """A connection to another node. Use `Peer.connect`."""

    def __init__(self, name: str, client_id: str) -> None:
        super().__init__(max_frame_bytes=_MAX_FRAME_BYTES, trusted_bytes=_TRUSTED_BYTES)
        self.name = name
        self._client_id = client_id
        self._correlation_id = 0
        self._waiting: deque[tuple[int, Api, int, asyncio.Future[Any]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, host: str, port: int, client_id: str, timeout_s: float) -> Peer:
        """Connect to the node at this address.

        Raises:
            PeerLost: the connection was refused, or not made within `timeout_s`.
        """
        name = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, peer = await loop.create_connection(lambda: cls(name, client_id), host, port)
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            raise PeerLost(f"{name} cannot be reached: {reason}") from error
        return peer

    @property
    def is_lost(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def ask(self, request: object, version: int | None = None) -> asyncio.Future[Any]:
        """Send a request; the future has the response, or PeerLost if the connection is lost."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.transport is None or self.transport.is_closing():
            answer.set_exception(PeerLost(f"the connection to {self.name} is lost"))
            return answer
        key = schema(type(request)).api_key
        assert key is not None
        api = APIS[key]
        if version is None:
            version = api.max_version
        try:
            parts = encode_parts(request, version, AT_ONCE_ELEMENTS)
        except Exceeded:
            self._work(self._ask_in_turns(request, api, version, answer))
        else:
            self._send(request, api, version, answer, parts)
        return answer

    async def _ask_in_turns(
        self, request: object, api: Api, version: int, answer: asyncio.Future[Any]
    ) -> None:
        try:
            parts = await in_turns(encode_parts_in_turns(request, version))
        except UsageError as error:
            answer.set_exception(error)
        else:
            self._send(request, api, version, answer, parts)

    def _send(
        self,
        request: object,
        api: Api,
        version: int,
        answer: asyncio.Future[Any],
        parts: list[BytesLike],
    ) -> None:
        if answer.done():
            return
        if self.transport is None or self.transport.is_closing():
            answer.set_exception(PeerLost(f"the connection to {self.name} is lost"))
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self._waiting.append((self._correlation_id, api, version, answer))
        kind = schema(type(request))
        self.transport.writelines(
            frame_request(kind, version, self._correlation_id, self._client_id, parts)
        )

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
            correlation_id = decode_correlation_id(frame)
            if not self._waiting or self._waiting[0][0] != correlation_id:
                raise CorruptData(f"a response to request {correlation_id}, which is not the next")
            _, api, version, answer = self._waiting.popleft()
            if not answer.done():
                try:
                    response: Any = decode_response(api.response, version, frame, AT_ONCE_BYTES)
                except CorruptData as error:
                    answer.set_exception(PeerLost(f"{self.name} sent garbage: {error}"))
                    raise
                except Exceeded:
                    self._work(self._read_in_turns(api, version, frame, answer))
                    return
                answer.set_result(response)
        except CorruptData:
            self.close()

    async def _read_in_turns(
        self, api: Api, version: int, frame: memoryview, answer: asyncio.Future[Any]
    ) -> None:
        steps: Steps[Any] = decode_response_in_turns(api.response, version, frame)
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
        waiting, self._waiting = self._waiting, deque()
        for *_, answer in waiting:
            if not answer.done():
                answer.set_exception(PeerLost(f"the connection to {self.name} is lost: {error}"))
