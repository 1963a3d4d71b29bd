from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from typing import Any, cast

import pytest

from trimtab.kafka.errors import UsageError
from trimtab.sim.connection import WINDOW_BYTES
from trimtab.sim.network import ANY, NetworkLink
from trimtab.sim.world import World

SWIFT = NetworkLink(latency_ms_min=1, latency_ms_mean=1)


class Recorder(asyncio.Protocol):
    """Notes what its transport tells it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.events: list[object] = []
        self.received = bytearray()
        self.lost = self.loop.create_future()
        self.keep_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append(("lost", type(error)))
        self.lost.set_result(None)


class BufferedRecorder(Recorder, asyncio.BufferedProtocol):
    """Reads through a buffer of seven bytes."""

    def get_buffer(self, sizehint: int) -> bytearray:
        self.buffer = bytearray(7)
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        self.received += self.buffer[:count]


async def pair(
    world: World,
    protocol: type[Recorder] = Recorder,
    host: str = "broker",
    link: NetworkLink = SWIFT,
) -> tuple[Recorder, Recorder, Any]:
    """A connected client and the server's end of it."""
    world.network.set_link(ANY, ANY, link)
    accepted: list[Recorder] = []

    def accept() -> Recorder:
        accepted.append(protocol())
        return accepted[-1]

    server = await world.loop.create_server(accept, host, 9092)
    _, client = await world.loop.create_connection(protocol, host, 9092)
    return cast(Recorder, client), accepted[0], server


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as world:
        yield world


@pytest.mark.parametrize("protocol", [Recorder, BufferedRecorder])
def test_bytes_arrive_whole_and_in_order_both_ways(world: World, protocol: type[Recorder]) -> None:
    async def run() -> None:
        client, served, _ = await pair(world, protocol, link=NetworkLink(0, 5))
        out = b"".join(number.to_bytes(4, "big") for number in range(2000))
        for position in range(0, len(out), 40):
            client.transport.write(out[position : position + 40])
            served.transport.writelines([out[position : position + 30], b"", bytearray(10)])
        await asyncio.sleep(1)
        assert served.received == out
        assert len(client.received) == len(out)
        assert client.received[:30] == out[:30]

    world.run(run())


def test_what_was_written_stays_as_it_was_when_the_callers_buffer_changes(world: World) -> None:
    async def run() -> None:
        client, served, _ = await pair(world)
        data = bytearray(b"first")
        client.transport.write(data)
        client.transport.write(memoryview(data)[1:])
        data[:] = b"?????"
        await asyncio.sleep(1)
        assert served.received == b"firstirst"

    world.run(run())


def test_addresses_are_names(world: World) -> None:
    async def run() -> None:
        with world.network.at("broker-0"):
            server: Any = await world.loop.create_server(Recorder, None, 0)
        host, port = server.sockets[0].getsockname()
        assert host == "broker-0"
        with pytest.raises(OSError, match="has no peer"):
            server.sockets[0].getpeername()
        with world.network.at("client-7"):
            transport, _ = await world.loop.create_connection(Recorder, host, port)
        assert transport.get_extra_info("peername") == ("broker-0", port)
        assert transport.get_extra_info("sockname")[0] == "client-7"
        assert transport.get_extra_info("socket").getpeername() == ("broker-0", port)
        with pytest.raises(OSError, match=f"another server listens on broker-0:{port}"):
            await world.loop.create_server(Recorder, "broker-0", port)
        other: Any = await world.loop.create_server(Recorder, ["broker-0", "broker-1"], 0)
        assert [own.getsockname() for own in other.sockets] == [
            ("broker-0", port + 1),
            ("broker-1", port + 1),
        ]

    world.run(run())


def test_tasks_of_a_server_run_on_its_host_and_not_on_its_callers(world: World) -> None:
    async def run() -> None:
        hosts: list[str] = []

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                hosts.append(world.network.host)

            def data_received(self, data: bytes) -> None:
                hosts.append(world.network.host)

        with world.network.at("broker-0"):
            await world.loop.create_server(Server, None, 9092)
        with world.network.at("client"):
            transport, _ = await world.loop.create_connection(Recorder, "broker-0", 9092)
            transport.write(b"!")
            await asyncio.sleep(1)
        assert hosts == ["broker-0", "broker-0"]

    world.run(run())


def test_a_connection_to_nobody_is_refused_after_a_round_trip(world: World) -> None:
    async def run() -> None:
        world.network.set_link(ANY, ANY, SWIFT)
        with pytest.raises(ConnectionRefusedError, match="no server listens there"):
            await world.loop.create_connection(Recorder, "broker", 9092)
        assert world.loop.time() == pytest.approx(0.002)
        server = await world.loop.create_server(Recorder, "broker", 9092, start_serving=False)
        with pytest.raises(ConnectionRefusedError):
            await world.loop.create_connection(Recorder, "broker", 9092)
        await server.start_serving()
        await world.loop.create_connection(Recorder, "broker", 9092)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await world.loop.create_connection(Recorder, "broker", 9092)

    world.run(run())


def test_delays_follow_the_link_and_the_seed() -> None:
    def delays(seed: int) -> list[float]:
        async def run() -> list[float]:
            client, served, _ = await pair(own, link=NetworkLink(2, 5))
            sent, taken = 0.0, []

            def note(data: bytes) -> None:
                taken.append(own.loop.time() - sent)

            served.data_received = note  # type: ignore[method-assign]
            for _ in range(2000):
                sent = own.loop.time()
                client.transport.write(b"x")
                await asyncio.sleep(1)
            return taken

        with World(seed) as own:
            return own.run(run())

    first = delays(1)
    assert min(first) >= 0.002 - 1e-9
    assert statistics.mean(first) == pytest.approx(0.005, rel=0.1)
    assert delays(1) == first
    assert delays(2) != first


def test_a_part_of_what_is_sent_is_late() -> None:
    def late(seed: int) -> list[bool]:
        async def run() -> list[bool]:
            client, served, _ = await pair(own, link=NetworkLink(1, 1, late_share=0.1, late_ms=60))
            sent, found = 0.0, []

            def note(data: bytes) -> None:
                seconds = own.loop.time() - sent
                assert min(abs(seconds - usual) for usual in (0.001, 0.061)) < 1e-9
                found.append(seconds > 0.06)

            served.data_received = note  # type: ignore[method-assign]
            for _ in range(2000):
                sent = own.loop.time()
                client.transport.write(b"x")
                await asyncio.sleep(1)
            return found

        with World(seed) as own:
            return own.run(run())

    first = late(1)
    assert statistics.mean(first) == pytest.approx(0.1, abs=0.03)
    assert late(1) == first
    assert late(2) != first


def test_bandwidth_delays_by_size_and_is_shared_by_connections(world: World) -> None:
    async def run() -> None:
        client, served, _ = await pair(world, link=NetworkLink(1, 1, bytes_per_second=100_000))
        second: Any
        _, second = await world.loop.create_connection(Recorder, "broker", 9092)
        start = world.loop.time()
        client.transport.write(bytes(50_000))
        second.transport.write(bytes(50_000))
        await asyncio.sleep(0.4)
        assert len(served.received) == 0
        await asyncio.sleep(0.11)
        assert len(served.received) == 50_000
        second.transport.write_eof()
        await second.lost  # The server has read all and closed its end.
        assert world.loop.time() - start == pytest.approx(1.002, abs=0.001)

    world.run(run())


def test_a_link_refuses_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="latency_ms_min=2"):
        NetworkLink(latency_ms_min=2, latency_ms_mean=1)
    with pytest.raises(UsageError, match="bytes_per_second=0"):
        NetworkLink(bytes_per_second=0)
    for share, late_ms in ((1.1, 0.0), (0.1, -1.0)):
        with pytest.raises(UsageError, match=f"late_share={share}, late_ms={late_ms}"):
            NetworkLink(late_share=share, late_ms=late_ms)


def test_a_reader_that_pauses_fills_the_window_and_then_pauses_the_writer(world: World) -> None:
    async def run() -> None:
        client, served, _ = await pair(world)
        served.transport.pause_reading()
        assert not served.transport.is_reading()
        client.transport.write(bytes(WINDOW_BYTES))
        await asyncio.sleep(1)
        assert client.transport.get_write_buffer_size() == 0
        client.transport.write(bytes(64 * 1024))
        assert client.events == ["made"]
        client.transport.write(b"1")
        assert client.events == ["made", "pause"]
        await asyncio.sleep(1)
        assert served.received == b""
        assert client.transport.get_write_buffer_size() == 64 * 1024 + 1
        served.transport.resume_reading()
        await asyncio.sleep(1)
        assert client.events == ["made", "pause", "resume"]
        assert len(served.received) == WINDOW_BYTES + 64 * 1024 + 1
        assert client.transport.get_write_buffer_size() == 0

    world.run(run())


def test_write_buffer_limits_are_asyncios(world: World) -> None:
    async def run() -> None:
        client, _, _ = await pair(world)
        transport = client.transport
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        transport.set_write_buffer_limits(low=10)
        assert transport.get_write_buffer_limits() == (10, 40)
        transport.set_write_buffer_limits(high=0)
        assert transport.get_write_buffer_limits() == (0, 0)
        with pytest.raises(ValueError, match="must be >="):
            transport.set_write_buffer_limits(high=1, low=2)

    world.run(run())


def test_streams_with_drain_work_through_back_pressure(world: World) -> None:
    async def run() -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            count = 0
            while chunk := await reader.read(10_000):
                count += len(chunk)
                await asyncio.sleep(0.001)
            writer.write(str(count).encode())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "broker", 9092)
        reader, writer = await asyncio.open_connection("broker", 9092)
        for _ in range(200):
            writer.write(bytes(10_000))
            await writer.drain()
        assert world.loop.time() > 0.1  # The writer was held back by the reader.
        writer.write_eof()
        count = int(await reader.read())
        writer.close()
        server.close()
        await server.wait_closed()
        return count

    assert world.run(run()) == 2_000_000


def test_close_sends_everything_and_then_ends_both_ends(world: World) -> None:
    async def run() -> None:
        client, served, server = await pair(world)
        served.transport.pause_reading()
        client.transport.write(bytes(2 * WINDOW_BYTES))
        client.transport.close()
        assert client.transport.is_closing()
        await asyncio.sleep(1)
        assert client.events == ["made", "pause"]
        served.transport.resume_reading()
        await served.lost
        await client.lost
        assert len(served.received) == 2 * WINDOW_BYTES
        assert client.events[-1] == ("lost", type(None))
        assert served.events == ["made", "eof", ("lost", type(None))]
        client.transport.write(b"ignored")
        client.transport.close()
        client.transport.abort()
        server.close()
        await server.wait_closed()

    world.run(run())


def test_an_end_kept_open_after_eof_still_answers(world: World) -> None:
    async def run() -> None:
        client, served, _ = await pair(world)
        served.keep_open = True
        client.transport.write(b"question")
        client.transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            client.transport.write(b"more")
        await asyncio.sleep(1)
        assert served.events == ["made", "eof"]
        served.transport.write(b"answer")
        served.transport.close()
        await client.lost
        assert client.received == b"answer"

    world.run(run())


def test_abort_drops_the_write_buffer(world: World) -> None:
    async def run() -> None:
        client, served, _ = await pair(world)
        served.transport.pause_reading()
        client.transport.write(bytes(2 * WINDOW_BYTES))
        client.transport.abort()
        await client.lost
        assert client.transport.get_write_buffer_size() == 0
        served.transport.resume_reading()
        await served.lost
        assert len(served.received) == WINDOW_BYTES

    world.run(run())


def test_writing_to_an_end_that_is_gone_is_answered_by_a_reset(world: World) -> None:
    async def run() -> None:
        client, served, _ = await pair(world)
        client.keep_open = True
        served.transport.abort()
        await asyncio.sleep(1)
        assert client.events == ["made", "eof"]
        client.transport.write(b"anyone?")
        await client.lost
        assert client.events[-1] == ("lost", ConnectionResetError)

    world.run(run())


def test_reset_breaks_the_connections_between_two_ends_at_once(world: World) -> None:
    async def run() -> None:
        client, served, _ = await pair(world)
        others, _, _ = await pair(world, host="other")
        client.transport.write(b"in flight")
        assert world.network.reset("localhost", "nobody") == 0
        assert world.network.reset("localhost", "broker:9092") == 1
        await asyncio.gather(client.lost, served.lost)
        assert client.events == ["made", ("lost", ConnectionResetError)]
        assert served.events == ["made", ("lost", ConnectionResetError)]
        await asyncio.sleep(1)
        assert served.received == b""
        assert not others.transport.is_closing()
        assert world.network.reset() == 1

    world.run(run())


def test_a_cut_holds_bytes_until_it_is_healed_and_keeps_their_order(world: World) -> None:
    async def run() -> None:
        client, served, _ = await pair(world)
        client.transport.write(b"before ")
        world.network.cut("localhost", "broker", one_way=True)
        client.transport.write(b"during ")
        served.transport.write(b"the other way")
        await asyncio.sleep(600)
        assert served.received == b""
        assert client.received == b"the other way"
        world.network.heal("localhost", "broker")
        client.transport.write(b"after")
        await asyncio.sleep(0.01)
        assert served.received == b"before during after"
        world.network.cut("broker")
        served.transport.write(b"!")
        await asyncio.sleep(1)
        world.network.heal()
        await asyncio.sleep(1)
        assert client.received == b"the other way!"

    world.run(run())


def test_one_connection_is_cut_and_another_between_the_same_hosts_goes_on(world: World) -> None:
    async def run() -> None:
        accepted: list[Recorder] = []

        def accept() -> Recorder:
            accepted.append(Recorder())
            return accepted[-1]

        await world.loop.create_server(accept, "broker", 9092)
        clients = [
            cast(Recorder, (await world.loop.create_connection(Recorder, "broker", 9092))[1])
            for _ in range(2)
        ]
        own, server = world.network.connections_from("localhost")[0]
        world.network.cut(own, server, one_way=True)
        for each in (*clients, *accepted):
            each.transport.write(b"x")
        await asyncio.sleep(1)
        assert [each.received for each in accepted] == [b"", b"x"]
        assert [each.received for each in clients] == [b"x", b"x"]
        world.network.heal(own, server)
        await asyncio.sleep(1)
        assert [each.received for each in accepted] == [b"x", b"x"]

    world.run(run())


def test_a_connection_over_a_cut_waits_for_the_healing_or_times_out(world: World) -> None:
    async def run() -> None:
        await pair(world)
        world.network.cut("localhost", "broker:9092")
        world.loop.call_later(60, world.network.heal)
        await world.loop.create_connection(Recorder, "broker", 9092)
        assert 60 < world.loop.time() < 61
        world.network.cut("broker", "localhost", one_way=True)
        start = world.loop.time()
        with pytest.raises(TimeoutError, match="the route from broker:9092 to localhost"):
            await world.loop.create_connection(Recorder, "broker", 9092)
        assert world.loop.time() - start == pytest.approx(127, abs=1)

    world.run(run())


def test_a_cancelled_connection_attempt_leaves_nothing_behind(world: World) -> None:
    async def run() -> None:
        client, _, server = await pair(world, link=NetworkLink(100, 100))
        with pytest.raises(TimeoutError):  # The server has accepted it, the client not heard so.
            await asyncio.wait_for(world.loop.create_connection(Recorder, "broker", 9092), 0.15)
        client.transport.close()
        await asyncio.sleep(1)
        server.close()
        await asyncio.wait_for(server.wait_closed(), 1)
        assert not world.network._connections

    world.run(run())


def test_a_server_closes_its_clients_when_asked(world: World) -> None:
    async def run() -> None:
        client, _, server = await pair(world)
        server.close()
        server.close()
        assert server.sockets == ()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 10)
        server.close_clients()
        await server.wait_closed()
        await client.lost
        again: Any = await world.loop.create_server(Recorder, "broker", 9092)
        serving = asyncio.create_task(again.serve_forever())
        await world.loop.create_connection(Recorder, "broker", 9092)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert not again.is_serving()
        again.abort_clients()
        await again.wait_closed()

    world.run(run())


@pytest.mark.parametrize(
    "broken", ["data_received", "eof_received", "pause_writing", "connection_made"]
)
def test_a_protocols_own_error_fails_the_run(broken: str) -> None:
    class Broken(Recorder):
        pass

    def fail(*_args: object) -> None:
        raise ZeroDivisionError(broken)

    setattr(Broken, broken, fail)

    async def run() -> None:
        await own.loop.create_server(Broken, "broker", 9092)
        transport, _ = await own.loop.create_connection(Recorder, "broker", 9092)
        accepted = transport._connection.server  # type: ignore[attr-defined]
        accepted.set_write_buffer_limits(high=0)
        transport.write(b"!")
        if broken == "pause_writing":
            transport.pause_reading()
            accepted.write(bytes(2 * WINDOW_BYTES))
        await asyncio.sleep(1)
        transport.close()
        await asyncio.sleep(1)
        # asyncio continues after a failed pause_writing, and ends the connection after the others.
        if broken != "pause_writing":
            assert accepted.is_lost

    with World(seed=1) as own, pytest.raises(ZeroDivisionError, match=broken) as caught:
        own.run(run())
    assert any("seed 1, at" in note for note in caught.value.__notes__)


def test_the_other_end_hears_of_a_protocols_error_though_much_was_unsent() -> None:
    class Broken(Recorder):
        def data_received(self, data: bytes) -> None:
            self.transport.write(bytes(2 * WINDOW_BYTES))
            raise ZeroDivisionError

    async def run() -> None:
        client, served, _ = await pair(own, Broken)
        client.data_received = lambda data: None  # type: ignore[method-assign]
        client.transport.write(b"!")
        await client.lost
        assert client.events == ["made", "eof", ("lost", type(None))]
        assert served.events == ["made", "pause", ("lost", ZeroDivisionError)]

    with World(seed=1) as own, pytest.raises(ZeroDivisionError):
        own.run(run())


def test_a_protocol_that_gives_an_empty_buffer_is_told_off() -> None:
    class Full(BufferedRecorder):
        def get_buffer(self, sizehint: int) -> bytearray:
            return bytearray()

    async def run() -> None:
        client, _, _ = await pair(own, Full)
        client.transport.write(b"!")
        await client.lost

    with World(seed=1) as own, pytest.raises(RuntimeError, match="an empty buffer"):
        own.run(run())
