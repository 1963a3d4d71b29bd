"""One TCP connection in memory: two transports, and a stream of bytes each way.

    transport.write ─▶ queue ─▶ in flight (delay, bandwidth) ─▶ inbox ─▶ protocol
                         ▲            │ held while cut            │ held while paused
                         └── window ──┴───────────────────────────┘

A stream keeps the order of its bytes and loses none. The window limits the bytes in flight or
unread; the rest waits in the queue, whose size pauses the writing protocol as in asyncio.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trimtab.sim.network import Network, NetworkLink, Server

Address = tuple[str, int]

WINDOW_BYTES: Final = 256 * 1024
"""Limit on the bytes of one direction that are in flight or unread, like a socket's buffers."""


class _Signal(Enum):
    """The signals that a stream transports besides bytes."""

    FIN = "end"
    RST = "reset"


def name(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


class VirtualSocket:
    """The result of `get_extra_info("socket")` and `Server.sockets`: addresses, no descriptor."""

    def __init__(self, own: Address, peer: Address | None = None) -> None:
        self._own = own
        self._peer = peer

    def getsockname(self) -> Address:
        return self._own

    def getpeername(self) -> Address:
        if self._peer is None:
            raise OSError(errno.ENOTCONN, f"{name(self._own)} listens and has no peer")
        return self._peer

    def setsockopt(self, *_options: object) -> None:
        """Options such as TCP_NODELAY change nothing here."""


class VirtualConnection:
    """Both ends of one connection; connections are numbered in the order of their creation."""

    def __init__(self, network: Network, number: int, client: Address, server: Address) -> None:
        self.number = number
        self._network = network
        self.client = Transport(self, network, client, server)
        self.server = Transport(self, network, server, client)
        self._streams = (
            Stream(network, f"c{number}>", self.client, self.server),
            Stream(network, f"c{number}<", self.server, self.client),
        )

    def reset(self) -> None:
        """Reset the connection at both ends."""
        for transport in (self.client, self.server):
            transport.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def note_end_lost(self) -> None:
        if self.client.is_lost and self.server.is_lost:
            self._network.forget(self)


class Transport(asyncio.transports._FlowControlMixin):
    """One end of a connection; behaves like asyncio's socket transports, and pauses the writing
    protocol by the same code."""

    # asyncio's own state, which the type stubs leave out.
    _protocol_paused: bool
    _low_water: int
    _maybe_pause_protocol: Callable[[], None]
    _maybe_resume_protocol: Callable[[], None]

    def __init__(
        self, connection: VirtualConnection, network: Network, own: Address, peer: Address
    ) -> None:
        extra = {"sockname": own, "peername": peer, "socket": VirtualSocket(own, peer)}
        super().__init__(extra, network.loop)
        self.own: Final = own
        self.peer: Final = peer
        self.context = contextvars.copy_context()
        self.is_lost = False
        self.outward: Stream
        self.inward: Stream
        self._connection = connection
        self._loop = network.loop
        self._trace = network.trace
        self._server: Server | None = None
        self._protocol: Any = None
        self._reads_into_buffers = False
        self._inbox: deque[bytes | memoryview | _Signal] = deque()
        self._is_closing = False
        self._is_reading_paused = False
        self._is_write_ended = False

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "closing" if self._is_closing else "open"
        return f"<Transport {name(self.own)} to {name(self.peer)}, {state}>"

    def start(self, protocol: asyncio.BaseProtocol, server: Server | None = None) -> None:
        """Connect this end to its protocol; bytes that arrived before are read soon."""
        self._server = server
        self.set_protocol(protocol)
        protocol.connection_made(self)
        if self._inbox:
            self._loop.call_soon(self._read, context=self.context)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._reads_into_buffers = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # Reading -------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return not self._is_closing and not self._is_reading_paused

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        if self._is_closing or not self._is_reading_paused:
            return
        self._is_reading_paused = False
        if self._inbox:
            self._loop.call_soon(self._read, context=self.context)

    def receive(self, item: bytes | _Signal) -> None:
        """Receive bytes or a signal from the stream."""
        if item is _Signal.RST:
            self.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif self._is_closing:
            if self.is_lost and item is not _Signal.FIN:
                self.outward.send_reset()  # TCP's answer to bytes for a closed socket.
        else:
            self._inbox.append(item)
            if self._protocol is not None:
                self._read()

    def _read(self) -> None:
        inbox = self._inbox
        while inbox and not self._is_reading_paused and not self._is_closing:
            item = inbox.popleft()
            try:
                if isinstance(item, _Signal):
                    self._trace.append(f"{self.inward.label} end")
                    if not self._protocol.eof_received():
                        self.close()
                elif self._reads_into_buffers:
                    self._read_into_buffer(item)
                else:
                    self._note_read(item)
                    self._protocol.data_received(item)
            except Exception as error:
                self._fail(error)

    def _read_into_buffer(self, chunk: bytes | memoryview) -> None:
        buffer = self._protocol.get_buffer(-1)
        size = min(len(buffer), len(chunk))
        if size == 0:
            raise RuntimeError("get_buffer() returned an empty buffer")
        if size < len(chunk):
            view = memoryview(chunk)
            self._inbox.appendleft(view[size:])
            chunk = view[:size]
        with memoryview(buffer) as target:  # Released before the protocol may resize its buffer.
            target[:size] = chunk
        self._note_read(chunk)
        self._protocol.buffer_updated(size)

    def _note_read(self, chunk: bytes | memoryview) -> None:
        self._trace.append(f"{self.inward.label} {len(chunk)} {zlib.crc32(chunk):08x}")
        self.inward.note_read(len(chunk))

    # Writing -------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}"
            )
        if self._is_write_ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self.is_lost:
            return
        self.outward.write(bytes(data))  # A copy if the caller may still change the data.
        self._maybe_pause_protocol()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._is_closing and not self._is_write_ended:
            self._is_write_ended = True
            self.outward.finish()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.outward.queued_bytes

    def note_written(self) -> None:
        """Called when bytes have left the write buffer, because the other end has read some."""
        # Soon: until then, writes may have filled the buffer again.
        if self._protocol_paused and self.outward.queued_bytes <= self._low_water:
            self._loop.call_soon(self._maybe_resume_protocol, context=self.context)
        if self._is_closing and self.outward.queued_bytes == 0:
            self.lose(None)

    # Ending --------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._inbox.clear()
        self.outward.finish()
        if self.outward.queued_bytes == 0:
            self.lose(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        self.outward.drop()  # First, so that FIN is sent now and not after the queued bytes.
        self.outward.finish()
        self.lose(error)

    def lose(self, error: Exception | None) -> None:
        """Close this side at once: `connection_lost` is called soon, nothing is read or written."""
        if self.is_lost:
            return
        self.is_lost = self._is_closing = True
        self._inbox.clear()
        if error is not None:
            self.outward.drop()
            self._trace.append(f"{self.outward.label} lost {type(error).__name__}")
        self._loop.call_soon(self._report_lost, error, context=self.context)
        self._connection.note_end_lost()

    def _report_lost(self, error: Exception | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            if self._server is not None:
                self._server.detach(self)

    def _fail(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {
                "message": "Fatal error: receiving failed in the protocol",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )
        self._end(error)


class Stream:
    """The bytes from one end to the other."""

    def __init__(self, network: Network, label: str, source: Transport, target: Transport) -> None:
        self.label = label
        self.queued_bytes = 0
        self._network = network
        self._source = source
        self._target = target
        self._queue: deque[bytes | memoryview] = deque()
        self._unread_bytes = 0
        self._last_arrival = 0.0
        self._held: deque[bytes | _Signal] = deque()
        self._is_finishing = False
        self._is_finished = False
        self._is_releasing = False
        self._version = -1
        self._link: NetworkLink
        self._is_cut = False
        source.outward = target.inward = self

    def _refresh_route(self) -> None:
        network = self._network
        if self._version != network.version:
            self._version = network.version
            self._link, self._is_cut = network.route(self._source.own, self._target.own)

    def release_if_open(self) -> None:
        """After a change of the network, deliver held bytes, unless the route is still cut."""
        self._refresh_route()
        if not self._is_cut and not self._is_releasing:
            self._is_releasing = True
            self._schedule(self._release)

    def write(self, chunk: bytes) -> None:
        self._queue.append(chunk)
        self.queued_bytes += len(chunk)
        self._send_queued()

    def finish(self) -> None:
        """Send FIN after all queued bytes."""
        self._is_finishing = True
        self._send_queued()

    def drop(self) -> None:
        """Discard the queued bytes that are not in flight yet."""
        self._queue.clear()
        self.queued_bytes = 0

    def send_reset(self) -> None:
        self._schedule(self._arrive, _Signal.RST)

    def note_read(self, size: int) -> None:
        """The receiving protocol has read `size` bytes: as many more may be sent."""
        self._unread_bytes -= size
        if self._queue:
            self._send_queued()
            self._source.note_written()

    def _send_queued(self) -> None:
        queue = self._queue
        while queue and (room := WINDOW_BYTES - self._unread_bytes) > 0:
            chunk = queue.popleft()
            if len(chunk) > room:
                view = memoryview(chunk)
                queue.appendleft(view[room:])
                chunk = view[:room]
            self.queued_bytes -= len(chunk)
            self._unread_bytes += len(chunk)
            self._schedule(self._arrive, bytes(chunk), size=len(chunk))
        if self._is_finishing and not self._is_finished and not queue:
            self._is_finished = True
            self._schedule(self._arrive, _Signal.FIN)

    def _schedule(self, function: Callable[..., None], *args: object, size: int = 0) -> None:
        """Call a function on the receiving host when bytes sent now arrive, after earlier ones."""
        self._refresh_route()
        arrival = self._network.draw_arrival(self._link, self._source.own, self._target.own, size)
        self._last_arrival = max(self._last_arrival, arrival)
        self._network.loop.call_at(
            self._last_arrival, function, *args, context=self._target.context
        )

    def _arrive(self, item: bytes | _Signal) -> None:
        self._refresh_route()
        if self._is_cut or self._held:
            self._held.append(item)
            self._network.holding[self] = None
        else:
            self._target.receive(item)

    def _release(self) -> None:
        self._is_releasing = False
        self._refresh_route()
        while self._held and not self._is_cut:
            self._target.receive(self._held.popleft())
            self._refresh_route()
        if not self._held:
            self._network.holding.pop(self, None)


def is_delivery(handle: asyncio.Handle) -> bool:
    """Whether a callback of the loop belongs to the network."""
    callback: object = getattr(handle, "_callback", None)
    return isinstance(getattr(callback, "__self__", None), Stream | Transport)
