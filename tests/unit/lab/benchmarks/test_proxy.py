"""The proxy between a client and a broker that are both made up here."""

from __future__ import annotations

import argparse
import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from lab.benchmarks.proxy import (
    Cut,
    Delay,
    Exchange,
    Proxy,
    Treatment,
    is_answered,
    read_address,
    write,
)
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.framing import encode_request
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.threads.event_loop import new_event_loop

METADATA = MetadataRequest.api_key
PRODUCE = ProduceRequest.api_key


def make_frame(api_key: int, correlation_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">hhih", api_key, 1, correlation_id, -1) + body


def make_produce(version: int, acks: int, transactional_id: str | None = None) -> bytes:
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1, topic_data=[]
    )
    parts = encode_request(request, version, 7, "a client")
    return b"".join(bytes(part) for part in parts)[4:]


class Broker:
    """Answers each request with its correlation id and `answer N`; none where acks are 0."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(length)
                self.requests.append(frame)
                if is_answered(Exchange(0, 0, frame)):
                    answer = frame[4:8] + b"answer %d" % len(self.requests)
                    writer.write(len(answer).to_bytes(4, "big") + answer)
        except asyncio.IncompleteReadError:
            pass  # the client is done
        finally:
            writer.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, frame: bytes) -> None:
        self._writer.write(len(frame).to_bytes(4, "big") + frame)

    async def receive(self) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.readexactly(
                int.from_bytes(await self._reader.readexactly(4), "big")
            )

    async def receive_rest(self) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.read()


@asynccontextmanager
async def connected(treatment: Treatment) -> AsyncIterator[tuple[Client, Proxy, Broker]]:
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    async with Proxy(server.sockets[0].getsockname()[:2], treatment) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        try:
            yield Client(reader, writer), proxy, broker
        finally:
            writer.close()
            await writer.wait_closed()
            server.close()


def through(treatment: Treatment, talk: Callable[[Client, Proxy, Broker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connected(treatment) as (client, proxy, broker):
            await talk(client, proxy, broker)

    asyncio.run(run())


def test_frames_pass_in_order_and_are_counted() -> None:
    async def talk(client: Client, proxy: Proxy, broker: Broker) -> None:
        for number in range(3):
            client.send(make_frame(METADATA, number))
        for number in range(3):
            assert await client.receive() == struct.pack(">i", number) + b"answer %d" % (number + 1)
        assert broker.requests == [make_frame(METADATA, number) for number in range(3)]
        assert (proxy.connections, proxy.requests[METADATA]) == (1, 3)
        assert proxy.request_bytes[METADATA] == 3 * (4 + len(make_frame(METADATA, 0)))

    through(Treatment(), talk)


def test_one_request_at_a_time_reaches_the_broker() -> None:
    """As a broker serves a connection: that makes 20 ms mean 50 a second."""
    arrived, release = asyncio.Event(), asyncio.Event()
    held = Broker()

    class Hold(Treatment):
        async def response(self, exchange: Exchange, frame: bytes | None) -> bytes:
            seen.append(len(held.requests))
            arrived.set()
            await release.wait()
            return await super().response(exchange, frame)

    seen: list[int] = []

    async def talk(client: Client, proxy: Proxy, broker: Broker) -> None:
        nonlocal held
        held = broker
        client.send(make_frame(METADATA, 1))
        client.send(make_frame(METADATA, 2))
        await asyncio.wait_for(arrived.wait(), 10)
        release.set()
        await client.receive()
        await client.receive()
        assert seen == [1, 2]

    through(Hold(), talk)


def test_a_delay_is_of_one_api_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("lab.benchmarks.proxy.asyncio.sleep", sleep)
    produce = Exchange(0, 0, make_produce(9, -1))
    metadata = Exchange(0, 1, make_frame(METADATA, 8))

    async def treat() -> None:
        assert await Delay(0.02).response(metadata, b"m") == b"m"
        assert slept == []
        assert await Delay(0.02).response(produce, b"p") == b"p"
        assert slept == [0.02]
        assert await Delay(0.5, METADATA).response(metadata, b"m") == b"m"
        assert slept == [0.02, 0.5]

    asyncio.run(treat())


def test_a_connection_is_cut_in_the_middle_of_a_frame() -> None:
    class CutSecond(Treatment):
        async def response(self, exchange: Exchange, frame: bytes | None) -> bytes:
            if exchange.number == 1:
                assert frame is not None
                raise Cut(len(frame).to_bytes(4, "big") + frame[:5])
            return await super().response(exchange, frame)

    async def talk(client: Client, proxy: Proxy, broker: Broker) -> None:
        client.send(make_frame(METADATA, 1))
        client.send(make_frame(METADATA, 2))
        await client.receive()
        assert await client.receive_rest() == b"\0\0\0\x0c" + b"\0\0\0\x02a"

    through(CutSecond(), talk)


def test_an_answer_is_made_up_and_the_broker_learns_of_nothing() -> None:
    class Refuse(Treatment):
        async def request(self, exchange: Exchange) -> bytes | None:
            return None

        async def response(self, exchange: Exchange, frame: bytes | None) -> bytes:
            assert frame is None
            return struct.pack(">ih", exchange.correlation_id, exchange.api_key)

    async def talk(client: Client, proxy: Proxy, broker: Broker) -> None:
        client.send(make_frame(METADATA, 41))
        assert await client.receive() == struct.pack(">ih", 41, METADATA)
        assert broker.requests == []

    through(Refuse(), talk)


def test_without_an_answer_of_its_own_a_swallowed_request_cuts_the_connection() -> None:
    class Swallow(Treatment):
        async def request(self, exchange: Exchange) -> bytes | None:
            return None

    async def talk(client: Client, proxy: Proxy, broker: Broker) -> None:
        client.send(make_frame(METADATA, 1))
        assert await client.receive_rest() == b""

    through(Swallow(), talk)


def test_a_treatment_is_replaced_while_connections_are_open() -> None:
    class Shout(Treatment):
        async def response(self, exchange: Exchange, frame: bytes | None) -> bytes:
            return (await super().response(exchange, frame)).upper()

    async def talk(client: Client, proxy: Proxy, broker: Broker) -> None:
        client.send(make_frame(METADATA, 1))
        assert (await client.receive()).endswith(b"answer 1")
        proxy.treatment = Shout()
        client.send(make_frame(METADATA, 2))
        assert (await client.receive()).endswith(b"ANSWER 2")

    through(Treatment(), talk)


def test_produce_with_acks_0_is_not_waited_for() -> None:
    async def talk(client: Client, proxy: Proxy, broker: Broker) -> None:
        client.send(make_produce(9, 0))
        client.send(make_frame(METADATA, 2))
        assert await client.receive() == struct.pack(">i", 2) + b"answer 2"

    through(Delay(60), talk)


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("transactional_id", [None, "t", "t" * 200])
def test_acks_are_found_in_every_version(version: int, transactional_id: str | None) -> None:
    for acks in (0, 1, -1):
        frame = make_produce(version, acks, transactional_id)
        assert is_answered(Exchange(0, 0, frame)) is (acks != 0)


def test_a_cut_produce_request_is_refused() -> None:
    frame = make_produce(9, -1)
    header = len(frame) - 8
    with pytest.raises(CorruptData, match="Produce request"):
        is_answered(Exchange(0, 0, frame[:header]))


def test_where_no_broker_listens_the_connection_ends() -> None:
    async def run() -> None:
        server = await asyncio.start_server(Broker().serve, "127.0.0.1", 0)
        to = server.sockets[0].getsockname()[:2]
        server.close()
        await server.wait_closed()
        async with Proxy(to) as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, new_event_loop])
def test_writing_to_a_connection_that_has_ended_is_its_end_and_nothing_else(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def write_to_the_dead() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.transport.abort()
            for _ in range(3):
                with pytest.raises(ConnectionResetError, match="has ended"):
                    write(writer, b"too late")
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(write_to_the_dead())


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_client_that_leaves_before_its_answer_fails_nothing(
    capfd: pytest.CaptureFixture[str], is_cut: bool
) -> None:
    """As under faults: the answer comes when the client's transport is closed already."""
    served: list[asyncio.StreamWriter] = []

    class Watched(Proxy):
        async def serve(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
        ) -> None:
            served.append(writer)
            await super().serve(reader, writer, connection)

    class Leave(Treatment):
        async def response(self, exchange: Exchange, frame: bytes | None) -> bytes:
            served[0].transport.abort()
            await asyncio.sleep(0)
            if is_cut:
                raise Cut(b"the last words")
            return b"an answer"

    async def leave() -> None:
        server = await asyncio.start_server(Broker().serve, "127.0.0.1", 0)
        async with server, Watched(server.sockets[0].getsockname()[:2], Leave()) as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address)
            Client(reader, writer).send(make_frame(METADATA, 1))
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            await proxy.drain()
            writer.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(leave())
    assert capfd.readouterr().err == ""


def test_nobody_else_gets_the_port_of_a_proxy_that_is_down() -> None:
    async def run() -> None:
        server = await asyncio.start_server(Broker().serve, "127.0.0.1", 0)
        async with server, Proxy(server.sockets[0].getsockname()[:2]) as proxy:
            for _ in range(3):
                proxy.fall_down()
                await proxy.drain()
                with pytest.raises(OSError, match="in use"), socket.socket() as other:
                    other.bind(proxy.address)
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(*proxy.address)
                await proxy.stand_up()
                _, writer = await asyncio.open_connection(*proxy.address)
                writer.close()
                await writer.wait_closed()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


def test_addresses_are_read() -> None:
    assert read_address("127.0.0.1:9092") == ("127.0.0.1", 9092)
    with pytest.raises(argparse.ArgumentTypeError, match="write HOST:PORT"):
        read_address("9092")
