"""Connections to other brokers, and what waits for them (`trimtab.cluster.broker.peers`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import address, kill, start
from trimtab.cluster.broker.peers import Outbox, Peers
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.sim.world import World

ASK = DescribeClusterRequest(include_cluster_authorized_operations=False)


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as world:
        yield world


async def test_what_comes_meanwhile_goes_together_the_next_time(world: World) -> None:
    sent: list[tuple[int, list[str]]] = []
    free = asyncio.Event()

    async def deliver(broker: int, items: Sequence[str]) -> None:
        sent.append((broker, list(items)))
        await free.wait()

    outbox = Outbox(deliver)
    for item in "abc":
        outbox.queue_item(1, item)
        outbox.queue_item(2, item)
        await asyncio.sleep(0)
    assert sent == [(1, ["a"]), (2, ["a"])]
    free.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert sent[2:] == [(1, ["b", "c"]), (2, ["b", "c"])]
    outbox.queue_item(1, "d")
    await asyncio.sleep(0)
    assert sent[4:] == [(1, ["d"])]


async def test_nothing_is_sent_after_the_end(world: World) -> None:
    sent: list[Any] = []

    async def deliver(broker: int, items: Sequence[str]) -> None:
        sent.append(items)
        await asyncio.Event().wait()

    outbox = Outbox(deliver)
    outbox.queue_item(1, "a")
    await asyncio.sleep(0)
    outbox.queue_item(1, "b")
    outbox.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert sent == [["a"]]


@pytest.mark.run(brokers=2)
async def test_requests_at_the_same_time_share_a_connection(lab: Lab) -> None:
    peers = Peers(lab.brokers[0].view, "test")
    counts = lab.brokers[1].listener.counts
    before = counts.accepted
    await asyncio.gather(*(peers.ask(1, ASK, 1.0) for _ in range(3)))
    assert counts.accepted == before + 1
    peers.close()


@pytest.mark.run(brokers=2)
async def test_a_broker_that_is_back_is_asked_over_another_connection(lab: Lab) -> None:
    peers = Peers(lab.brokers[0].view, "test")
    assert len((await peers.ask(1, ASK, 1.0)).brokers) == 2
    kill(lab, 1)
    with pytest.raises(PeerLost):
        await peers.ask(1, ASK, 1.0)
    with pytest.raises(PeerLost, match="not registered"):
        await peers.ask(7, ASK, 1.0)
    await start(lab, 1)
    assert (await peers.ask(1, ASK, 1.0)).cluster_id == "lab"
    peers.close()


@pytest.mark.run(brokers=2)
async def test_a_silent_broker_is_given_up(lab: Lab) -> None:
    peers = Peers(lab.brokers[0].view, "test")
    await peers.ask(1, ASK, 1.0)
    lab.world.network.cut(address(1))
    with pytest.raises(PeerLost, match=r"broker 1 does not answer within 2\.0 s"):
        await peers.ask(1, ASK, 2.0)
    lab.world.network.heal()
    assert (await peers.ask(1, ASK, 1.0)).cluster_id == "lab"
    peers.close()


@pytest.mark.run(brokers=2)
async def test_a_broker_that_is_cut_off_on_purpose_asks_nobody(lab: Lab) -> None:
    view = lab.brokers[0].view
    peers = Peers(view, "test")
    await peers.ask(1, ASK, 1.0)
    view.faults.cut()
    for _ in range(2):  # over the open connection, and over a new one
        with pytest.raises(PeerLost, match="broker 1 does not answer"):
            await peers.ask(1, ASK, 0.1)
    view.faults.heal()
    assert (await peers.ask(1, ASK, 1.0)).cluster_id == "lab"
    peers.close()
