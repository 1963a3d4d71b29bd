"""A node's socket and its connections (`trimtab.cluster.server.listener`), on a virtual network."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvloop

from trimtab.cluster.config import BROKER
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.server.peer import Peer, PeerLost
from trimtab.kafka.options import read
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from trimtab.sim.world import World
from trimtab.threads.event_loop import new_event_loop

FIND_COORDINATOR, API_VERSIONS = FindCoordinatorRequest.api_key, ApiVersionsRequest.api_key
VERSIONS = ApiVersionsRequest(client_software_name="t", client_software_version="1")
FIND = FindCoordinatorRequest(key_type=0, coordinator_keys=[])


class FakeNode:
    """A listener at `node`:9092 that answers FindCoordinator after `delay_s`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.delay_s = 0.0
        self.listener = Listener(1, {FIND_COORDINATOR: self._find}, read(BROKER, {}))

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
def node() -> Iterator[FakeNode]:
    with World(seed=1) as world:
        yield FakeNode(world)


async def test_nobody_is_served_before_the_start(node: FakeNode) -> None:
    with pytest.raises(PeerLost):
        await node.connect()
    await node.listener.start()
    peer = await node.connect()
    await peer.ask(VERSIONS)
    peer.close()


async def test_api_versions_is_served_with_the_others(node: FakeNode) -> None:
    await node.listener.start()
    peer = await node.connect()
    served = (await peer.ask(VERSIONS)).api_keys
    assert [each.api_key for each in served] == [FIND_COORDINATOR, API_VERSIONS]
    peer.close()


async def test_an_address_that_is_taken_is_an_error(node: FakeNode) -> None:
    other = Listener(2, {}, read(BROKER, {}))
    with pytest.raises(OSError, match="9092"):
        await other.bind("node", 9092)
    assert await other.bind("node", 0) > 0
    await other.close()


@pytest.mark.parametrize("new_event_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_an_address_on_which_another_begins_to_listen_is_an_error(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def start_both() -> None:
        first, second = (Listener(each, {}, read(BROKER, {})) for each in range(2))
        port = await first.bind("127.0.0.1", 0)
        await second.bind("127.0.0.1", port)  # the system allows it until one of them listens
        await first.start()
        try:
            with pytest.raises(OSError, match="in use"):
                await second.start()
        finally:
            await first.close()
            await second.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(start_both())


async def test_connections_and_requests_are_counted(node: FakeNode) -> None:
    await node.listener.start()
    peers = [await node.connect() for _ in range(3)]
    for peer in peers:
        await peer.ask(FIND)
    await peers[0].ask(VERSIONS)
    peers[1].close()
    await asyncio.sleep(0.1)
    counts = node.listener.counts
    assert (counts.accepted, counts.open, counts.requests) == (3, 2, 4)
    assert (counts.refused, counts.failed) == (0, 0)
    assert len(node.listener.connections) == 2


async def test_connections_are_counted_by_address(node: FakeNode) -> None:
    await node.listener.start()
    peers = [await node.connect(host) for host in ("a", "b", "a")]
    await asyncio.sleep(0.1)
    assert [node.listener.open_from(host) for host in "abc"] == [2, 1, 0]
    peers[0].close()
    peers[1].close()
    await asyncio.sleep(0.1)
    assert [node.listener.open_from(host) for host in "abc"] == [1, 0, 0]


async def test_options_may_change_while_it_listens(node: FakeNode) -> None:
    await node.listener.start()
    first = await node.connect()
    node.listener.config = read(BROKER, {"max.connections": 1})
    second = await node.connect()
    await asyncio.sleep(0.1)
    assert (first.is_lost, second.is_lost) == (False, True)
    assert node.listener.counts.refused == 1


async def test_a_connection_beyond_the_limit_is_refused_if_all_others_have_sent_a_request(
    node: FakeNode,
) -> None:
    await node.listener.start()
    node.listener.config = read(BROKER, {"max.connections": 2})
    busy = [await node.connect() for _ in range(2)]
    for peer in busy:
        await peer.ask(VERSIONS)
    await asyncio.sleep(100)
    with pytest.raises(PeerLost):
        await (await node.connect()).ask(VERSIONS)
    for peer in busy:
        await peer.ask(VERSIONS)


async def test_connections_of_one_host_are_limited_and_those_of_others_are_not(
    node: FakeNode,
) -> None:
    await node.listener.start()
    node.listener.config = read(BROKER, {"max.connections.per.ip": 2})
    allowed = [await node.connect() for _ in range(2)]
    refused, other = await node.connect(), await node.connect("other")
    with pytest.raises(PeerLost):
        await refused.ask(VERSIONS)
    for peer in (*allowed, other):
        await peer.ask(VERSIONS)


@pytest.mark.parametrize("is_capacity", [True, False])
def test_a_silent_connection_is_closed_at_the_limit(
    node: FakeNode, is_capacity: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await node.listener.start()
        if is_capacity:
            node.listener.capacity = 3
        else:
            node.listener.config = read(BROKER, {"max.connections": 3})
        busy = await node.connect()
        await busy.ask(VERSIONS)
        silent = [await node.connect() for _ in range(2)]
        early = await node.connect()
        await asyncio.sleep(1)
        assert [peer.is_lost for peer in (*silent, early)] == [False, False, True]
        for peer in [await node.connect() for _ in range(2)]:
            await peer.ask(VERSIONS)
        assert [peer.is_lost for peer in silent] == [True, True]
        await busy.ask(VERSIONS)
        assert node.listener.counts.open == 3

    node.run(scenario)
    assert "3 are open already" in caplog.text or "3 connections are open already" in caplog.text
    assert "has sent no request yet" in caplog.text


async def test_the_log_of_refused_connections_is_limited(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    await node.listener.start()
    for peer in [await node.connect() for _ in range(100)]:
        assert peer.transport is not None
        peer.transport.write(b"\xff\xff\xff\xff")
    await asyncio.sleep(0.5)
    assert len(caplog.records) == 10
    await asyncio.sleep(1)
    assert caplog.messages[10:] == ["closed more connections node=1 connections=90"]
    assert node.listener.counts.refused == 100


async def test_closing_cancels_pending_responses(node: FakeNode) -> None:
    await node.listener.start()
    peer = await node.connect()
    node.delay_s = 60
    asked = peer.ask(FIND)
    await asyncio.sleep(0.1)
    began = node.world.loop.time()
    await node.listener.close()
    assert node.world.loop.time() - began < 0.1
    assert node.listener.counts.open == 0
    with pytest.raises(PeerLost):
        await asked
    with pytest.raises(PeerLost):
        await node.connect()


async def test_closing_waits_a_second_for_clients_that_do_not_read(node: FakeNode) -> None:
    await node.listener.start()
    peer = await node.connect()
    await peer.ask(FIND)
    assert peer.transport is not None
    peer.transport.pause_reading()
    (connection,) = node.listener.connections
    assert connection.transport is not None
    connection.transport.write(bytes(10_000_000))
    began = node.world.loop.time()
    await node.listener.close()
    assert node.world.loop.time() - began <= 1.1
    assert node.listener.counts.open == 0
    peer.close()


async def test_an_abort_closes_all_connections_at_once(node: FakeNode) -> None:
    await node.listener.start()
    peers = [await node.connect() for _ in range(2)]
    node.delay_s = 60
    asked = [peer.ask(FIND) for peer in peers]
    await asyncio.sleep(0.1)
    node.listener.abort()
    for each in asked:
        with pytest.raises(PeerLost):
            await each
    assert node.listener.counts.open == 0
    with pytest.raises(PeerLost):
        await node.connect()


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, new_event_loop])
def test_500_clients_that_connect_at_once_are_queued(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """While the loop is busy the operating system completes their connections. It would drop what
    finds the queue full, and the client would try again after a second."""

    async def connect() -> int:
        listener = Listener(1, {}, read(BROKER, {}))
        port = await listener.bind("127.0.0.1", 0)
        await listener.start()
        with ExitStack() as opened:
            poll = select.poll()
            for _ in range(500):
                client = opened.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
                poll.register(client, select.POLLOUT)
            connected = 0
            while ready := poll.poll(500):
                connected += len(ready)
                for descriptor, _ in ready:
                    poll.unregister(descriptor)
        listener.abort()
        return connected

    loop = new_loop()
    try:
        assert loop.run_until_complete(connect()) == 500
    finally:
        loop.close()
