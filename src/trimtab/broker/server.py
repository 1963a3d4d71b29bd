"""A broker's connections: frames in, one request at a time, responses out in the same order.

frame ─▶ header ─▶ request ─▶ handler ─▶ response ─▶ frame
                                 │
                                 └─ awaitable: the connection's later frames wait for it

What Kafka closes the connection for (`SocketServer`, `RequestContext`) closes it here: a frame
that is too long, an API or version that is not served, bytes that are no request. It is logged
once, counted, and concerns that connection alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from trimtab.broker.handlers import HANDLERS
from trimtab.broker.handlers.api_versions import answer_unsupported_version
from trimtab.broker.request import CloseConnection
from trimtab.errors import CorruptData, UsageError
from trimtab.wire.codec import decode
from trimtab.wire.framing import (
    FrameProtocol,
    RequestHeader,
    decode_request_header,
    encode_response,
)
from trimtab.wire.messages import SERVED
from trimtab.wire.types import BytesLike

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

PRODUCE = 0
API_VERSIONS = 18

_log = logging.getLogger(__name__)


class ServerCounts:
    """What a broker's connections did since it started."""

    __slots__ = ("accepted", "failed", "open", "refused", "requests")

    def __init__(self) -> None:
        self.accepted = 0
        self.open = 0
        self.requests = 0
        self.refused = 0
        """Connections closed for what they sent, or because there were too many."""
        self.failed = 0
        """Connections closed because handling a request failed: faults of this broker."""


class Connection(FrameProtocol):
    """One client's connection."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(max_frame_bytes=cast(int, broker.config["socket.request.max.bytes"]))
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._holding = False
        self._held: list[BytesLike] = []
        self._answering = False
        self._writable = True
        self._reading = True
        self._pending: asyncio.Future[Any] | None = None
        self._delay: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._last_frame = 0.0

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        counts = self._broker.counts
        counts.accepted += 1
        counts.open += 1
        self._broker.connections[self] = None
        self._last_frame = self._loop.time()
        limit = cast(int, self._broker.config["max.connections"])
        if counts.open > limit:
            self._reject(f"max.connections={limit} are open already")
            return
        idle_ms = cast(int, self._broker.config["connections.max.idle.ms"])
        if idle_ms >= 0:
            self._watch_idle(idle_ms / 1000)

    def connection_lost(self, exception: Exception | None) -> None:
        super().connection_lost(exception)
        self._waiting.clear()
        self._broker.counts.open -= 1
        self._broker.forget(self)
        for handle in (self._idle, self._delay, self._pending):
            if handle is not None:
                handle.cancel()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._serve_waiting()

    def buffer_updated(self, count: int) -> None:
        # Small responses to requests that came together go out together: one call to the kernel.
        self._holding = True
        super().buffer_updated(count)
        self._holding = False
        self._release()

    def frame_received(self, frame: memoryview) -> None:
        self._last_frame = self._loop.time()
        if self._answering or not self._writable or self._waiting:
            self._waiting.append(frame)
            if self._reading and self.transport is not None:
                self._reading = False
                self.transport.pause_reading()
            return
        self._serve(frame)

    def frame_refused(self, length: int) -> None:
        self._reject(
            f"a frame of {length} bytes; socket.request.max.bytes is {self.max_frame_bytes}"
        )

    def close(self) -> None:
        """Close after what is written; a pending response is given up."""
        self._release()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    # One request

    def _serve(self, frame: memoryview) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        try:
            header = decode_request_header(frame)
            api = SERVED.get(header.api_key)
            if api is None:
                self._reject(f"API {header.api_key} is not served")
                return
            if not api.serves(header.api_version):
                if header.api_key == API_VERSIONS:
                    response = answer_unsupported_version()
                    self._send(encode_response(response, 0, header.correlation_id))
                    return
                self._reject(
                    f"{api.name} version {header.api_version} is not served, only "
                    f"{api.min_version} to {api.max_version}"
                )
                return
            request: Any = decode(api.request, header.api_version, frame, header.body, True)
        except CorruptData as error:
            self._reject(str(error))
            return
        self._broker.counts.requests += 1
        try:
            answer = HANDLERS[header.api_key](self._broker, header, request)
        except CloseConnection as error:
            self._reject(str(error))
            return
        except Exception:
            self._fail(header)
            return
        if header.api_key == PRODUCE and self._broker.faults.produce_delay_s:
            self._answering = True
            self._delay = self._loop.call_later(
                self._broker.faults.produce_delay_s, self._finish_late, header, answer
            )
        elif isinstance(answer, api.response):
            self._write(header, answer)
        elif answer is not None:
            self._answering = True
            self._pending = asyncio.ensure_future(answer)
            self._pending.add_done_callback(lambda done: self._finish(header, done))

    def _finish(self, header: RequestHeader, done: asyncio.Future[Any]) -> None:
        self._pending = None
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, CloseConnection):
            self._reject(str(error))
        elif error is not None:
            self._fail(header, error)
        else:
            self._finish_late(header, done.result())

    def _finish_late(self, header: RequestHeader, answer: Any) -> None:
        self._delay = None
        self._answering = False
        if answer is not None:
            self._write(header, answer)
        self._serve_waiting()

    def _write(self, header: RequestHeader, response: object) -> None:
        if self.transport is None:
            return
        try:
            frame = encode_response(response, header.api_version, header.correlation_id)
        except UsageError:  # the handler has made something that the version cannot carry
            self._fail(header)
            return
        self._send(frame)

    def _send(self, frame: list[BytesLike]) -> None:
        self._held += frame
        # What has large parts goes at once, so that back-pressure is felt before the next request.
        if not self._holding or len(frame) > 1:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, []
        if held and self.transport is not None:
            self.transport.writelines(held)

    def _serve_waiting(self) -> None:
        while self._waiting and self._writable and not self._answering:
            self._serve(self._waiting.popleft())
        transport = self.transport
        if self._waiting or self._reading or transport is None or transport.is_closing():
            return
        self._reading = True
        transport.resume_reading()

    # The end

    def _reject(self, reason: str) -> None:
        self._broker.counts.refused += 1
        _log.warning(
            "closed a connection broker=%d peer=%s reason=%r",
            self._broker.id,
            self._peer,
            reason,
        )
        self.close()

    def _fail(self, header: RequestHeader, error: BaseException | None = None) -> None:
        self._broker.counts.failed += 1
        _log.error(
            "closed a connection: its request failed broker=%d peer=%s api=%d version=%d client=%r",
            self._broker.id,
            self._peer,
            header.api_key,
            header.api_version,
            header.client_id,
            exc_info=error or True,
        )
        self.close()

    @property
    def _peer(self) -> str:
        address = None if self.transport is None else self.transport.get_extra_info("peername")
        return "unknown" if not address else f"{address[0]}:{address[1]}"

    def _watch_idle(self, limit_s: float) -> None:
        idle_s = self._loop.time() - self._last_frame
        # Also while it waits for an answer: nobody may be there any more.
        if idle_s >= limit_s:
            self.close()
        else:
            self._idle = self._loop.call_later(limit_s - idle_s, self._watch_idle, limit_s)
