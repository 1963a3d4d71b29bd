"""A node's socket and its connections (`trimtab.server.listener`), on a virtual network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from trimtab import config
from trimtab.config import BROKER
from trimtab.server.listener import Listener
from trimtab.server.peer import Peer, PeerLost
from trimtab.sim.world import World
from trimtab.wire.messages.api_versions import ApiVersionsRequest
from trimtab.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

FIND_COORDINATOR, API_VERSIONS = 10, 18
VERSIONS = ApiVersionsRequest(client_software_name="t", client_software_version="1")
FIND = FindCoordinatorRequest(key_type=0, coordinator_keys=[])


class Hall:
    """A listener at `node`:9092 that answers FindCoordinator after `delay_s`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.delay_s = 0.0
        self.listener = Listener(1, {FIND_COORDINATOR: self._find}, config.read(BROKER, {}))

    async def _find(self, header: Any, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        await asyncio.sleep(self.delay_s)
        return FindCoordinatorResponse()

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            assert await self.listener.bind("node", 9092) == 9092
            await scenario()
            await self.listener.close()

        self.world.run(run())

    async def connect(self, host: str = "client") -> Peer:
        with self.world.network.at(host):
            return await Peer.connect("node", 9092, "t", 5)


@pytest.fixture
def hall() -> Iterator[Hall]:
    with World(seed=1) as world:
        yield Hall(world)


def test_nobody_is_served_before_the_start(hall: Hall) -> None:
    async def scenario() -> None:
        with pytest.raises(PeerLost):
            await hall.connect()
        await hall.listener.start()
        peer = await hall.connect()
        await peer.ask(VERSIONS)
        peer.close()

    hall.run(scenario)


def test_api_versions_is_served_with_the_others(hall: Hall) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        peer = await hall.connect()
        served = (await peer.ask(VERSIONS)).api_keys
        assert [each.api_key for each in served] == [FIND_COORDINATOR, API_VERSIONS]
        peer.close()

    hall.run(scenario)


def test_an_address_that_is_taken_is_an_error(hall: Hall) -> None:
    async def scenario() -> None:
        other = Listener(2, {}, config.read(BROKER, {}))
        with pytest.raises(OSError, match="9092"):
            await other.bind("node", 9092)
        assert await other.bind("node", 0) > 0
        await other.close()

    hall.run(scenario)


def test_connections_and_requests_are_counted(hall: Hall) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        peers = [await hall.connect() for _ in range(3)]
        for peer in peers:
            await peer.ask(FIND)
        await peers[0].ask(VERSIONS)
        peers[1].close()
        await asyncio.sleep(0.1)
        counts = hall.listener.counts
        assert (counts.accepted, counts.open, counts.requests) == (3, 2, 4)
        assert (counts.refused, counts.failed) == (0, 0)
        assert len(hall.listener.connections) == 2

    hall.run(scenario)


def test_connections_are_counted_by_address(hall: Hall) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        peers = [await hall.connect(host) for host in ("a", "b", "a")]
        await asyncio.sleep(0.1)
        assert [hall.listener.open_from(host) for host in "abc"] == [2, 1, 0]
        peers[0].close()
        peers[1].close()
        await asyncio.sleep(0.1)
        assert [hall.listener.open_from(host) for host in "abc"] == [1, 0, 0]

    hall.run(scenario)


def test_options_may_change_while_it_listens(hall: Hall) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        first = await hall.connect()
        hall.listener.config = config.read(BROKER, {"max.connections": 1})
        second = await hall.connect()
        await asyncio.sleep(0.1)
        assert (first.is_lost, second.is_lost) == (False, True)
        assert hall.listener.counts.refused == 1

    hall.run(scenario)


def test_a_connection_beyond_the_limit_is_refused_if_all_others_have_sent_a_request(
    hall: Hall,
) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        hall.listener.config = config.read(BROKER, {"max.connections": 2})
        busy = [await hall.connect() for _ in range(2)]
        for peer in busy:
            await peer.ask(VERSIONS)
        await asyncio.sleep(100)
        with pytest.raises(PeerLost):
            await (await hall.connect()).ask(VERSIONS)
        for peer in busy:
            await peer.ask(VERSIONS)

    hall.run(scenario)


@pytest.mark.parametrize("is_capacity", [True, False])
def test_a_silent_connection_is_closed_at_the_limit(
    hall: Hall, is_capacity: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        if is_capacity:
            hall.listener.capacity = 3
        else:
            hall.listener.config = config.read(BROKER, {"max.connections": 3})
        busy = await hall.connect()
        await busy.ask(VERSIONS)
        silent = [await hall.connect() for _ in range(2)]
        early = await hall.connect()
        await asyncio.sleep(1)
        assert [peer.is_lost for peer in (*silent, early)] == [False, False, True]
        for peer in [await hall.connect() for _ in range(2)]:
            await peer.ask(VERSIONS)
        assert [peer.is_lost for peer in silent] == [True, True]
        await busy.ask(VERSIONS)
        assert hall.listener.counts.open == 3

    hall.run(scenario)
    assert "3 are open already" in caplog.text or "3 connections are open already" in caplog.text
    assert "has sent no request yet" in caplog.text


def test_the_log_of_refused_connections_is_limited(
    hall: Hall, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        for peer in [await hall.connect() for _ in range(100)]:
            assert peer.transport is not None
            peer.transport.write(b"\xff\xff\xff\xff")
        await asyncio.sleep(0.5)
        assert len(caplog.records) == 10
        await asyncio.sleep(1)
        assert caplog.messages[10:] == ["closed more connections node=1 connections=90"]
        assert hall.listener.counts.refused == 100

    hall.run(scenario)


def test_closing_cancels_pending_responses(hall: Hall) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        peer = await hall.connect()
        hall.delay_s = 60
        asked = peer.ask(FIND)
        await asyncio.sleep(0.1)
        began = hall.world.loop.time()
        await hall.listener.close()
        assert hall.world.loop.time() - began < 0.1
        assert hall.listener.counts.open == 0
        with pytest.raises(PeerLost):
            await asked
        with pytest.raises(PeerLost):
            await hall.connect()

    hall.run(scenario)


def test_closing_waits_a_second_for_clients_that_do_not_read(hall: Hall) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        peer = await hall.connect()
        await peer.ask(FIND)
        assert peer.transport is not None
        peer.transport.pause_reading()
        (connection,) = hall.listener.connections
        assert connection.transport is not None
        connection.transport.write(bytes(10_000_000))
        began = hall.world.loop.time()
        await hall.listener.close()
        assert hall.world.loop.time() - began <= 1.1
        assert hall.listener.counts.open == 0
        peer.close()

    hall.run(scenario)


def test_an_abort_closes_all_connections_at_once(hall: Hall) -> None:
    async def scenario() -> None:
        await hall.listener.start()
        peers = [await hall.connect() for _ in range(2)]
        hall.delay_s = 60
        asked = [peer.ask(FIND) for peer in peers]
        await asyncio.sleep(0.1)
        hall.listener.abort()
        for each in asked:
            with pytest.raises(PeerLost):
                await each
        assert hall.listener.counts.open == 0
        with pytest.raises(PeerLost):
            await hall.connect()

    hall.run(scenario)
