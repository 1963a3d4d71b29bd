"""One client connection: requests are served one at a time and answered in order.

frame ─▶ header ─▶ request ─▶ handler ─▶ response ─▶ frame
            │                    │
            │                    └─ awaitable: the connection's later frames wait for it
            └─ large: read, handled and answered in steps of a millisecond, one request at a time

Produce is an exception: while produce requests wait for replicas, the next ones of the connection
are appended already. A producer sends several at a time, and appending keeps their order.

No client can occupy the loop or the memory:

- After `MAX_AT_ONCE` requests, or a long one, other connections are served. Per loop iteration,
  only a limited number of bytes of long requests is served, over all connections.
- A request or response of many elements is processed in steps (`turns.py`), and the memory for a
  decoded request is bounded.
- While a request waits, or the client does not read its response, the connection is not read.
- Stored records are read from disk as fast as the client takes them.
- A frame's length alone allocates 64 KiB at most, or as much as the connection's largest frame.

A connection is closed where Kafka closes it (`SocketServer`, `RequestContext`): for a frame that is
too long, an unsupported API or version, or bytes that cannot be decoded. This is logged and
counted, and does not affect other connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from trimtab.cluster.server.api_versions import API_VERSIONS, answer_unsupported_version
from trimtab.cluster.server.request import CloseConnection
from trimtab.cluster.server.turns import Pace, free_in_steps
from trimtab.kafka.errors import CorruptData, KafkaError, UsageError
from trimtab.kafka.wire.codec import (
    AT_ONCE_BYTES,
    AT_ONCE_ELEMENTS,
    Exceeded,
    decode,
    decode_in_turns,
)
from trimtab.kafka.wire.framing import (
    TRUSTED_BYTES,
    FrameProtocol,
    RequestHeader,
    decode_request_header,
    encode_response,
    encode_response_in_turns,
)
from trimtab.kafka.wire.messages import Api, ProduceRequest
from trimtab.kafka.wire.schema import schema
from trimtab.kafka.wire.types import BytesLike, StoredBytes

if TYPE_CHECKING:
    from trimtab.cluster.server.cluster_secret import NodeLogin
    from trimtab.cluster.server.listener import Listener
    from trimtab.cluster.server.turns import Steps

PRODUCE = ProduceRequest.api_key
_PRODUCE_KEY = PRODUCE.to_bytes(2, "big")

_IN_MEMORY = (bytes, bytearray, memoryview)
_PIECE_BYTES = 256 * 1024
_SMALL_BYTES = 64 * 1024
_UNTRUSTED_BYTES = 64 * 1024
"""Bytes allocated for an announced frame, if the client has sent no larger one before."""

MAX_PIPELINED = 32
"""Produce requests of one connection that may wait for replicas at a time."""
MAX_AT_ONCE = 8
"""Requests of one connection that are served before other connections are."""
_LONG_BYTES = 2048
"""A longer request, other than Produce, is long: other connections are served after it, and long
requests of all connections share a limit per loop iteration (`Listener.admits`)."""

_log = logging.getLogger(__name__)


class _AwaitedResponse:
    """Returned by a request's steps if its response must still be awaited."""

    __slots__ = ("response",)

    def __init__(self, response: Awaitable[Any]) -> None:
        self.response = response


class _PendingResponse:
    """A response that has not been sent.

    Attributes:
        pending: the future of the response, while it is not known.
        response: the message or its encoded frame, once `is_known`; None to send none.
    """

    __slots__ = ("header", "is_known", "pending", "response")

    def __init__(self, header: RequestHeader, pending: asyncio.Future[Any] | None = None) -> None:
        self.header = header
        self.pending = pending
        self.is_known = False
        self.response: Any = None


class ServerConnection(FrameProtocol):
    """One client's connection.

    Attributes:
        on_lost: called when the connection is lost.
        peer_host: the client's address, without its port.
        is_node: whether the other side has proven that it is a node of this cluster.
        login: the login of a node, while it lasts.
    """

    def __init__(self, listener: Listener) -> None:
        super().__init__(
            max_frame_bytes=listener.config.integer("socket.request.max.bytes"),
            trusted_bytes=_UNTRUSTED_BYTES,
        )
        self.on_lost: Callable[[], None] | None = None
        self.peer_host = ""
        self.is_node = False
        self.login: NodeLogin | None = None
        self._listener = listener
        self._requests = listener.requests
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._pending: deque[_PendingResponse] = deque()
        self._is_collecting = False
        self._unsent: list[BytesLike] = []
        self._outgoing: deque[BytesLike | StoredBytes] = deque()
        self._sent = 0  # bytes sent of the first outgoing part
        self._writable = True
        self._reading = True
        self._delay: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._used_at = 0.0
        self._is_silent = True
        self._served = 0  # requests served since other connections had a turn
        self._is_in_turns = False  # while a request is handled in steps
        self._turn: asyncio.Handle | None = None
        self._is_queued = False

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        listener = self._listener
        address = transport.get_extra_info("peername")
        self.peer_host = address[0] if address else ""
        self._used_at = self._loop.time()
        refusal = listener.opened(self)
        if refusal:
            self._reject(refusal)
            return
        idle_ms = listener.config.integer("connections.max.idle.ms")
        if idle_ms >= 0:
            self._watch_idle(idle_ms / 1000)

    def connection_lost(self, exception: Exception | None) -> None:
        super().connection_lost(exception)
        self._waiting.clear()
        self._outgoing.clear()
        self._listener.lost(self)
        for handle in (self._idle, self._delay, self._turn):
            if handle is not None:
                handle.cancel()
        self._cancel_pending()
        if self.on_lost is not None:
            self.on_lost()

    def _cancel_pending(self) -> None:
        """Cancel all pending responses, as the client is gone."""
        pending, self._pending = self._pending, deque()
        for answer in pending:
            if answer.pending is not None:
                answer.pending.cancel()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._used_at = self._loop.time()  # the client reads, so it is alive
        if self._outgoing:
            self._send_stored()
        self._serve_waiting()

    def buffer_updated(self, count: int) -> None:
        # Small responses to requests that arrived together are sent with one system call.
        self._is_collecting = True
        super().buffer_updated(count)
        self._is_collecting = False
        self._release()

    def frame_received(self, frame: memoryview) -> None:
        now = self._loop.time()
        if now != self._used_at:
            self._used_at = now
            self._served = 0
        if self._is_silent:
            self._is_silent = False
            self._listener.first_request_received(self)
        if len(frame) > self.trusted_bytes:
            self.trusted_bytes = min(len(frame), TRUSTED_BYTES)
        if self._waiting or self._served >= MAX_AT_ONCE or not self._may_serve(frame):
            self._waiting.append(frame)
            if self._reading and self.transport is not None:
                self._reading = False
                self.transport.pause_reading()
            if self._served >= MAX_AT_ONCE:
                self._yield_to_others()
            return
        self._served += 1
        self._serve(frame)

    def frame_refused(self, length: int) -> None:
        self._reject(
            f"a frame of {length} bytes; socket.request.max.bytes is {self.max_frame_bytes}"
        )

    def close(self) -> None:
        """Send the responses written so far, then close; pending responses are dropped."""
        self._release()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._cancel_pending()
        if self.transport is not None:
            self.transport.abort()

    # One request

    def _is_free_for(self, frame: memoryview) -> bool:
        """Whether the request in a frame may be served now."""
        pending = self._pending
        if not self._writable or self._delay is not None or self._outgoing or self._is_in_turns:
            return False
        return not pending or (
            len(pending) < MAX_PIPELINED
            and not self._listener.faults.produce_delay_s
            and pending[0].header.api_key == PRODUCE
            and frame[:2] == _PRODUCE_KEY
        )

    def _may_serve(self, frame: memoryview) -> bool:
        """Whether the frame may be served now. A long request that must wait for other connections
        is queued at the listener, which calls `serve_queued`."""
        if not self._is_free_for(frame):
            return False
        if len(frame) <= _LONG_BYTES or frame[:2] == _PRODUCE_KEY or self._listener.admits(self):
            return True
        if not self._is_queued:
            self._is_queued = True
            self._listener.queue_long_request(self)
        return False

    def serve_queued(self) -> None:
        """Serve the queued long request, if that is still possible."""
        self._is_queued = False
        self._served = 0
        self._serve_waiting()

    def _serve(self, frame: memoryview) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        listener, requests = self._listener, self._requests
        now = 0.0 if requests is None else requests.clock()
        try:
            header = decode_request_header(frame, self.peer_host, now, self.is_node)
            api = listener.apis.get(header.api_key)
            if api is None:
                self._reject(f"API {header.api_key} is not served")
                return
            if not api.serves(header.api_version):
                if header.api_key == API_VERSIONS:
                    refusal = answer_unsupported_version()
                    self._send(encode_response(refusal, 0, header.correlation_id))
                    return
                self._reject(
                    f"{api.name} version {header.api_version} is not served, only "
                    f"{api.min_version} to {api.max_version}"
                )
                return
            if len(frame) > _LONG_BYTES and header.api_key != PRODUCE:
                self._served = MAX_AT_ONCE
                listener.spend(len(frame))
            request: Any = decode(
                api.request, header.api_version, frame, header.body, True, AT_ONCE_BYTES
            )
        except CorruptData as error:
            self._reject(str(error))
            return
        except Exceeded:
            assert api is not None
            listener.counts.requests += 1
            self._serve_in_turns(header, self._read_and_handle(header, api, frame))
            return
        listener.counts.requests += 1
        try:
            response = self._handle(header, request)
            if type(response) is GeneratorType:
                try:
                    next(response)
                except StopIteration as end:
                    response = end.value
        except CloseConnection as error:
            if error.response is not None:
                self._write(header, error.response)
            self._reject(str(error))
            return
        except Exception:
            self._fail(header)
            return
        if type(response) is GeneratorType:
            self._serve_in_turns(header, self._finish(header, api, response))
            return
        delay_s = listener.faults.produce_delay_s if header.api_key == PRODUCE else 0
        if response is None or isinstance(response, api.response):
            if delay_s or self._pending:
                self._queue_response(_PendingResponse(header), response, delay_s)
            elif response is not None and not self._write(header, response):
                self._queue_response(_PendingResponse(header), response, 0)
            elif requests is not None:
                requests.answered(header)
            return
        answer = _PendingResponse(header)
        self._pending.append(answer)
        self._await(answer, asyncio.ensure_future(response), delay_s)

    def _handle(self, header: RequestHeader, request: Any) -> Any:
        listener = self._listener
        listener.serving = self
        try:
            return listener.handlers[header.api_key](header, request)
        finally:
            listener.serving = None

    def _serve_in_turns(self, header: RequestHeader, steps: Steps[Any]) -> None:
        """Handle a request in steps (`Turns`). The connection's next request waits for its end."""
        answer = _PendingResponse(header)
        self._pending.append(answer)
        self._is_in_turns = True
        faults = self._listener.faults
        delay_s = faults.produce_delay_s if header.api_key == PRODUCE else 0
        self._await(answer, self._listener.turns.run(steps), delay_s)

    def _read_and_handle(self, header: RequestHeader, api: Api, frame: memoryview) -> Steps[Any]:
        try:
            request: Any = yield from decode_in_turns(
                api.request, header.api_version, frame, header.body
            )
        except CorruptData as error:
            raise CloseConnection(str(error)) from error
        response = yield from self._finish(header, api, self._handle(header, request))
        if type(response) is not _AwaitedResponse:
            yield from free_in_steps(schema(api.request), request, Pace(1000))
        return response

    def _finish(self, header: RequestHeader, api: Api, response: Any) -> Steps[Any]:
        """The response's encoded frame; None for no response; else the response to await."""
        if type(response) is GeneratorType:
            response = yield from response
        if response is None:
            return None
        if not isinstance(response, api.response):
            return _AwaitedResponse(response)
        return (yield from self._encode(header, response))

    def _encode(self, header: RequestHeader, response: Any) -> Steps[list[BytesLike]]:
        frame = yield from encode_response_in_turns(
            response, header.api_version, header.correlation_id
        )
        if sum(map(len, frame)) > _SMALL_BYTES:
            yield from free_in_steps(schema(type(response)), response, Pace(1000))
        return frame

    def _await(
        self, answer: _PendingResponse, pending: asyncio.Future[Any], delay_s: float
    ) -> None:
        answer.pending = pending
        pending.add_done_callback(lambda done: self._settle(answer, done, delay_s))

    def _queue_response(self, answer: _PendingResponse, response: Any, delay_s: float) -> None:
        """Queue a known response behind the pending ones, or for the injected delay."""
        answer.response = response
        answer.is_known = True
        self._pending.append(answer)
        self._deliver(delay_s)

    def _settle(self, answer: _PendingResponse, done: asyncio.Future[Any], delay_s: float) -> None:
        answer.pending = None
        self._is_in_turns = False
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, CloseConnection):
            self._reject(str(error))
        elif error is not None:
            self._fail(answer.header, error)
        elif type(result := done.result()) is _AwaitedResponse:
            self._await(answer, asyncio.ensure_future(result.response), delay_s)
            self._serve_waiting()
        else:
            answer.response = result
            answer.is_known = True
            self._deliver(delay_s)

    def _deliver(self, delay_s: float) -> None:
        if delay_s:
            self._delay = self._loop.call_later(delay_s, self._end_delay)
        elif self._delay is None:
            self._is_collecting = True
            while self._pending and self._pending[0].is_known:
                answer = self._pending[0]
                if answer.response is not None and not self._write(answer.header, answer.response):
                    self._write_in_turns(answer)
                    break
                self._pending.popleft()
                if self._requests is not None:
                    self._requests.answered(answer.header)
            self._is_collecting = False
            self._release()
            self._serve_waiting()

    def _end_delay(self) -> None:
        self._delay = None
        self._deliver(0)

    def _write(self, header: RequestHeader, response: object) -> bool:
        """Write a response or an encoded frame; False if it is so large that it must be encoded in
        steps."""
        if self.transport is None:
            return True
        try:
            self._send(
                response
                if type(response) is list
                else encode_response(
                    response, header.api_version, header.correlation_id, AT_ONCE_ELEMENTS
                )
            )
        except UsageError:  # the handler's response cannot be encoded in this version
            self._fail(header)
        except Exceeded:
            return False
        return True

    def _write_in_turns(self, answer: _PendingResponse) -> None:
        header, response = answer.header, answer.response
        answer.is_known, answer.response = False, None
        steps = self._encode(header, response)
        self._await(answer, self._listener.turns.run(steps, goes_first=True), 0)

    def _send(self, frame: list[BytesLike]) -> None:
        self._unsent += frame
        # Send large responses at once, so that back-pressure stops the next request.
        if not self._is_collecting or len(frame) > 1 or len(frame[0]) > _SMALL_BYTES:
            self._release()

    def _release(self) -> None:
        held, self._unsent = self._unsent, []
        transport = self.transport
        # A closing transport ignores writes, and uvloop's raises.
        if not held or transport is None or transport.is_closing():
            return
        if len(held) == 1 or all(isinstance(part, _IN_MEMORY) for part in held):
            transport.writelines(held)
        else:
            # No other request is served until all of it has been written.
            self._outgoing.extend(held)
            self._send_stored()

    def _send_stored(self) -> None:
        """Read stored records from disk piece by piece, as fast as the client takes them."""
        outgoing, transport = self._outgoing, self.transport
        try:
            while outgoing and self._writable and transport and not transport.is_closing():
                part = outgoing[0]
                if isinstance(part, _IN_MEMORY):
                    transport.write(part)
                    outgoing.popleft()
                    continue
                piece = part.read(self._sent, _PIECE_BYTES)
                transport.write(piece)
                self._sent += len(piece)
                if self._sent == len(part):
                    self._sent = 0
                    outgoing.popleft()
        except KafkaError as error:  # the disk failed, or the log was truncated
            _log.error(
                "aborted a connection: records cannot be read node=%d peer=%s error=%s",
                self._listener.node_id,
                self._peer,
                error,
            )
            outgoing.clear()
            self.abort()

    def _serve_waiting(self) -> None:
        waiting = self._waiting
        while waiting and self._is_free_for(waiting[0]):
            if self._served >= MAX_AT_ONCE:
                self._yield_to_others()
                return
            if not self._may_serve(waiting[0]):
                return
            self._served += 1
            self._serve(waiting.popleft())
        transport = self.transport
        if waiting or self._reading or transport is None or transport.is_closing():
            return
        self._reading = True
        transport.resume_reading()

    def _yield_to_others(self) -> None:
        """Continue in the next loop iteration, after the other connections."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._turn = None
        self._served = 0
        self._serve_waiting()

    # Closing

    def _reject(self, reason: str) -> None:
        self._listener.log_refusal(self._peer, reason)
        self.close()

    def _fail(self, header: RequestHeader, error: BaseException | None = None) -> None:
        self._listener.counts.failed += 1
        _log.error(
            "closed a connection: its request failed node=%d peer=%s api=%d version=%d client=%r",
            self._listener.node_id,
            self._peer,
            header.api_key,
            header.api_version,
            header.client_id,
            exc_info=error or True,
        )
        self.close()

    def evict(self, reason: str) -> None:
        """Close in favour of another connection."""
        self._reject(reason)

    @property
    def _peer(self) -> str:
        address = None if self.transport is None else self.transport.get_extra_info("peername")
        return "unknown" if not address else f"{address[0]}:{address[1]}"

    def _watch_idle(self, limit_s: float) -> None:
        end = self._used_at + limit_s
        # Also while a response is pending: the client may be gone.
        if self._loop.time() >= end:
            self.close()
        else:
            self._idle = self._loop.call_at(end, self._watch_idle, limit_s)
