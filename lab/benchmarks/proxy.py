"""A TCP proxy for one Kafka broker of any kind: forwards frames, and delays or changes them.

    python -m lab.benchmarks.proxy --listen 127.0.0.1:9192 --to 127.0.0.1:9092 --delay-ms 20

prints `listening HOST:PORT` and delays every Produce response, like the slow broker of KIP-794's
measurements. When SIGTERM or Ctrl-C ends it, it prints its counts as one JSON line. The broker must
advertise the proxy's address, or clients bypass the proxy.

Like a broker, it serves one request of a connection at a time: with 20 ms, at most 50 Produce
responses per second on each connection. The proxy itself adds about 1.4 ms to the delay (the
timer's granularity, and two more hops over the loopback interface), so 20 ms become about 21.4 ms.

A `Treatment` decides what happens to each exchange: `Delay` is one; faults are others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import struct
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.framing import decode_request_header
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.threads.event_loop import new_event_loop

PRODUCE = ProduceRequest.api_key
ACKS_SINCE_TRANSACTIONS = 3
FLEXIBLE_PRODUCE = 9
BUFFER_BYTES = 1 << 20
LONGEST_FRAME = 1 << 30


@dataclass(frozen=True)
class Exchange:
    """A request to the broker and its response.

    Attributes:
        connection: number of the connection since the proxy's start, from 0.
        number: number of the request on that connection, from 0.
        request: the request's frame, without its length.
    """

    connection: int
    number: int
    request: bytes

    @property
    def api_key(self) -> int:
        return int.from_bytes(self.request[0:2], "big", signed=True)

    @property
    def api_version(self) -> int:
        return int.from_bytes(self.request[2:4], "big", signed=True)

    @property
    def correlation_id(self) -> int:
        return int.from_bytes(self.request[4:8], "big", signed=True)


class Cut(Exception):
    """Raised by a treatment: the connection ends on both sides, after `last` is sent to the client.

    Args:
        last: raw bytes; a length with fewer bytes than it announces is a frame cut in the middle.
    """

    def __init__(self, last: bytes = b"") -> None:
        super().__init__(f"cut after {len(last)} bytes")
        self.last = last


class Treatment:
    """Decides what happens to exchanges; this base class forwards them. Subclasses override one or
    both methods.

    A method may wait, which blocks its connection meanwhile. It may raise `Cut`.
    """

    async def request(self, exchange: Exchange) -> bytes | None:
        """The frame to forward to the broker; None to forward nothing."""
        return exchange.request

    async def response(self, exchange: Exchange, frame: bytes | None) -> bytes:
        """The frame to send to the client.

        Args:
            frame: the broker's response; None if the broker got no request: then this method must
                create a response.
        """
        if frame is None:
            raise Cut
        return frame


class Delay(Treatment):
    """Delays every response of one API.

    Args:
        seconds: the delay.
        api_key: the API's key, such as 0 for Produce or 1 for Fetch.
    """

    def __init__(self, seconds: float, api_key: int = PRODUCE) -> None:
        self.seconds = seconds
        self.api_key = api_key

    async def response(self, exchange: Exchange, frame: bytes | None) -> bytes:
        if exchange.api_key == self.api_key and self.seconds > 0:
            await asyncio.sleep(self.seconds)
        return await super().response(exchange, frame)


class Proxy:
    """A proxy on the running loop, during the `async with` block.

    Args:
        to: host and port of the broker.
        treatment: decides what happens to exchanges; may be replaced at any time.
        listen: host and port to listen on; port 0 is any free one.
        is_virtual: whether the loop's network is virtual, so that the port needs no reservation.
    """

    def __init__(
        self,
        to: tuple[str, int],
        treatment: Treatment | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        is_virtual: bool = False,
    ) -> None:
        self.treatment = treatment or Treatment()
        self.connections = 0
        self.requests: Counter[int] = Counter()
        self.request_bytes: Counter[int] = Counter()
        self._to = to
        self._listen = listen
        self._is_virtual = is_virtual
        self._server: asyncio.Server | None = None
        self._place: socket.socket | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port on which the proxy listens."""
        assert self._server is not None, "the proxy listens inside its `async with` block"
        return self._listen

    async def __aenter__(self) -> Self:
        await self.stand_up()
        return self

    async def stand_up(self) -> None:
        """Listen, on the same port also after `fall_down`."""
        if self._server is not None and self._server.is_serving():
            return
        if self._is_virtual:
            self._server = await asyncio.start_server(
                self._accept, *self._listen, limit=BUFFER_BYTES
            )
            self._listen = self._server.sockets[0].getsockname()[:2]
            return
        if self._place is None:
            # A bound socket that never listens reserves the port while the proxy is down: no server
            # or outgoing connection can take it, and clients' connections are refused.
            self._place = _bind(self._listen)
            self._listen = self._place.getsockname()[:2]
        self._server = await asyncio.start_server(
            self._accept, sock=_bind(self._listen), limit=BUFFER_BYTES
        )

    def fall_down(self) -> None:
        """Refuse new connections from now on, and break the existing ones."""
        if self._server is not None:
            self._server.close()
        self.break_connections()

    def break_connections(self) -> None:
        """End all connections on both sides; messages in flight are lost."""
        for task in self._serving:
            task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.fall_down()
        await asyncio.gather(*self._serving, return_exceptions=True)
        if self._place is not None:
            self._place.close()
        await asyncio.sleep(0)  # transports close one turn of the loop later

    async def drain(self) -> None:
        """Wait until all present connections have ended."""
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer, self.connections))
        self.connections += 1
        self._serving.add(task)
        task.add_done_callback(partial(self._forget, writer))

    def _forget(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        writer.close()  # a task that is cancelled before its first step does nothing itself
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"proxy: a connection failed: {error!r}", file=sys.stderr)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> None:
        """Serve one client's connection until it ends; connections are numbered from 0."""
        try:
            broker_reader, broker = await asyncio.open_connection(*self._to, limit=BUFFER_BYTES)
        except OSError:
            writer.transport.abort()  # as if the broker did not listen
            return
        try:
            number = 0
            while True:
                exchange = Exchange(connection, number, await read_frame(reader))
                await self._carry(exchange, writer, broker_reader, broker)
                number += 1
        except Cut as cut:
            with suppress(ConnectionResetError):  # the client left first
                write(writer, cut.last)
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side has disconnected, so the other is closed as well
        finally:
            writer.close()
            broker.close()

    async def _carry(
        self,
        exchange: Exchange,
        client: asyncio.StreamWriter,
        broker_reader: asyncio.StreamReader,
        broker: asyncio.StreamWriter,
    ) -> None:
        self.requests[exchange.api_key] += 1
        self.request_bytes[exchange.api_key] += 4 + len(exchange.request)
        treatment = self.treatment
        request = await treatment.request(exchange)
        response = None
        if request is not None:
            write(broker, write_frame(request))
            await broker.drain()
            if not is_answered(exchange):
                return
            response = await read_frame(broker_reader)
        write(client, write_frame(await treatment.response(exchange, response)))
        await client.drain()


def _bind(address: tuple[str, int]) -> socket.socket:
    """A socket bound to this address, which other sockets of this function may also be bound to."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def is_answered(exchange: Exchange) -> bool:
    """False for a Produce request with acks=0, the only request without a response.

    Raises:
        CorruptData: the request cannot be decoded.
    """
    if exchange.api_key != PRODUCE:
        return True
    request, version = exchange.request, exchange.api_version
    position = decode_request_header(request).body
    try:
        if version >= FLEXIBLE_PRODUCE:
            length = shift = 0
            while True:
                byte = request[position]
                position += 1
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            position += max(0, length - 1)
        elif version >= ACKS_SINCE_TRANSACTIONS:
            position += 2 + max(0, struct.unpack_from(">h", request, position)[0])
        return bool(struct.unpack_from(">h", request, position)[0] != 0)
    except (IndexError, struct.error) as error:
        raise CorruptData(f"Produce request of {len(request)} bytes: {error}") from error


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame, without its length.

    Raises:
        CorruptData: the length is not valid in Kafka's protocol.
        IncompleteReadError: the connection ends before the frame does.
    """
    length = int.from_bytes(await reader.readexactly(4), "big", signed=True)
    if not 0 <= length <= LONGEST_FRAME:
        raise CorruptData(f"a frame of {length} bytes: this is not Kafka's protocol")
    return await reader.readexactly(length)


def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write, unless the connection has ended.

    For a transport that is already closed, because the peer has disconnected, uvloop raises a
    RuntimeError; asyncio discards the bytes.

    Raises:
        ConnectionResetError: the connection has ended.
    """
    if writer.is_closing():
        raise ConnectionResetError("the connection has ended")
    writer.write(data)


def write_frame(frame: bytes) -> bytes:
    """A frame with its length."""
    return len(frame).to_bytes(4, "big") + frame


def read_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`.

    Raises:
        ArgumentTypeError: the text has another form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: write HOST:PORT, such as 127.0.0.1:9092")
    return host, int(port)


async def run(listen: tuple[str, int], to: tuple[str, int], treatment: Treatment) -> None:
    """Run the proxy until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Proxy(to, treatment, listen) as proxy:
        host, port = proxy.address
        print(f"listening {host}:{port}", flush=True)
        await stop.wait()
    seen = {
        "connections": proxy.connections,
        "requests": dict(proxy.requests),
        "request_bytes": dict(proxy.request_bytes),
    }
    print(json.dumps(seen), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--listen", type=read_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--to", type=read_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--delay-ms", type=float, default=20, metavar="MS")
    parser.add_argument("--api-key", type=int, default=PRODUCE, help="default: 0, Produce")
    arguments = parser.parse_args()
    treatment = Delay(arguments.delay_ms / 1000, arguments.api_key)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run(arguments.listen, arguments.to, treatment))
    return 0


if __name__ == "__main__":
    sys.exit(main())
