"""What a client knows of the cluster, and when it asks anew, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.client.scripted_broker import HANG_UP, NO_ANSWER, ScriptedBroker, ScriptedCluster
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.bootstrap import parse_bootstrap_servers
from trimtab.client.network.connection import ConnectionOptions
from trimtab.client.network.connections import Connections
from trimtab.client.network.metadata import Metadata
from trimtab.kafka.errors import AuthenticationFailed, BrokerError, ErrorCode, Unavailable
from trimtab.kafka.wire.messages.metadata import MetadataRequest, MetadataResponse
from trimtab.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from trimtab.sim.world import World

MAX_AGE = 300.0


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    cluster = ScriptedCluster(world, leaders={"t": [0, 1], "u": [1]})
    cluster.broker(0)
    cluster.broker(1)
    return cluster


async def open_metadata(cluster: ScriptedCluster, **more: Any) -> Metadata:
    for broker in cluster.brokers.values():
        await broker.start()
    random = cluster.world.random("client")
    options = replace(ConnectionOptions("test", 30.0, 10.0, Backoff(0.05, 1.0)), **more)
    connections = Connections(parse_bootstrap_servers(cluster.bootstrap), options, random)
    return Metadata(
        connections,
        max_age=MAX_AGE,
        backoff=Backoff(0.1, 1.0),
        create_topics=False,
        random=random,
    )


def asked_at(cluster: ScriptedCluster) -> list[float]:
    return [
        asked.at
        for broker in cluster.brokers.values()
        for asked in broker.asked
        if asked.api is MetadataRequest
    ]


async def test_a_topic_is_looked_up_once_it_is_wanted(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    assert metadata.topic("t") is None
    assert metadata.leader("t", 0) == -1
    view = await metadata.wait_for_topic("t", 10.0)
    assert (view.leaders, view.available, view.topic_id) == (
        (0, 1),
        (0, 1),
        cluster.topic_id("t"),
    )
    assert [metadata.leader("t", number) for number in range(3)] == [0, 1, -1]
    assert (metadata.cluster_id, metadata.controller_id) == ("scripted", 0)
    assert await metadata.wait_for_topic("t", 10.0) is view
    assert len(asked_at(cluster)) == 1


async def test_it_asks_again_until_every_partition_has_a_leader(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.leaders["t"] = [0, -1]
    updates: list[tuple[int, ...]] = []
    metadata = await open_metadata(cluster)

    def note() -> None:
        view = metadata.topic("t")
        assert view is not None
        updates.append(view.leaders)
        if len(updates) == 4:
            cluster.leaders["t"] = [0, 1]

    metadata.on_update(note)
    assert (await metadata.wait_for_topic("t", 10.0)).available == (0,)
    await asyncio.sleep(60)
    assert updates == [(0, -1)] * 4 + [(0, 1)]
    times = asked_at(cluster)
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    for wait, nominal in zip(waits, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert 0.8 * nominal <= wait <= 1.2 * nominal + 0.01


async def test_a_lost_broker_is_asked_about_although_nothing_was_sent_to_it(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    await metadata.wait_for_topic("t", 10.0)
    for node in (0, 1):
        await metadata._connections.connect(node)
    cluster.leaders["t"] = [0, -1]
    cluster.brokers[1].stop()
    await asyncio.sleep(1)
    assert metadata.leader("t", 1) == -1
    cluster.leaders["t"] = [0, 1]
    await cluster.brokers[1].start()
    await asyncio.sleep(2)
    assert metadata.leader("t", 1) == 1


async def test_a_leader_that_is_no_broker_counts_as_none(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.leaders["t"] = [0, 9]
    metadata = await open_metadata(cluster)
    assert (await metadata.wait_for_topic("t", 10.0)).leaders == (0, -1)


async def test_everything_is_asked_for_again_when_it_is_old(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    await metadata.wait_for_topic("t", 10.0)
    await asyncio.sleep(3 * MAX_AGE + 1)
    first, *later = asked_at(cluster)
    assert [round(at - first) for at in later] == [300, 600, 900]


async def test_requests_for_an_update_are_one_while_it_is_under_way(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    metadata.watch(["t", "u"])
    for _ in range(5):
        metadata.request_update()
    await metadata.wait_for_update()
    requests = [r for broker in cluster.brokers.values() for r in broker.requests(MetadataRequest)]
    (request,) = requests
    assert [topic.name for topic in request.topics or ()] == ["t", "u"]
    assert not request.allow_auto_topic_creation


@pytest.mark.kip(320)
async def test_an_older_leader_epoch_does_not_replace_a_newer_one(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    cluster.leader_epoch = 5
    await metadata.wait_for_topic("t", 10.0)
    cluster.leader_epoch = 4
    cluster.leaders["t"] = [1, 0, 1]
    await metadata.wait_for_update()
    view = metadata.topic("t")
    assert view is not None
    assert view.leaders == (0, 1, 1)
    assert [partition.leader_epoch for partition in view.partitions] == [5, 5, 4]
    cluster.leader_epoch = 6
    await metadata.wait_for_update()
    view = metadata.topic("t")
    assert view is not None
    assert view.leaders == (1, 0, 1)


async def test_an_unknown_topic_is_waited_for_and_then_explained(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    with pytest.raises(BrokerError, match="topic nope: UNKNOWN_TOPIC_OR_PARTITION") as caught:
        await metadata.wait_for_topic("nope", 3.0)
    assert world.loop.time() == pytest.approx(3.0, abs=0.01)
    assert "create it first" in str(caught.value)
    waiting = asyncio.create_task(metadata.wait_for_topic("late", 3.0))
    await asyncio.sleep(1)
    cluster.leaders["late"] = [0]
    assert (await waiting).partition_count == 1
    error = metadata.error("nope")
    assert error is not None
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata.error("late") is None


async def test_a_partition_that_the_topic_lacks_is_waited_for_a_little(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    await metadata.wait_for_topic("t", 10.0)
    began = world.loop.time()
    with pytest.raises(
        Unavailable, match=r"partition 2 of topic t is not there after 2 s: .*0 to 1"
    ):
        await metadata.wait_for_topic("t", 60.0, 2, patience=2.0)
    assert 2 <= world.loop.time() - began < 5
    waiting = asyncio.create_task(metadata.wait_for_topic("t", 60.0, 2, patience=2.0))
    await asyncio.sleep(1)
    cluster.leaders["t"] = [0, 1, 0]
    assert (await waiting).partition_count == 3
    # Only an answer tells that it is not there.
    waiting = asyncio.create_task(metadata.wait_for_topic("t", 60.0, 3, patience=2.0))
    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = lambda request: NO_ANSWER
    await asyncio.sleep(25)
    assert not waiting.done()
    cluster.leaders["t"].append(1)
    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = cluster.metadata
    assert (await waiting).partition_count == 4


async def test_partitions_behind_one_that_is_left_out_are_not_taken_for_it(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    cluster.leaders["t"] = [0, 1, 0, 1]

    def answer(request: MetadataRequest) -> MetadataResponse:
        response = cluster.metadata(request)
        for topic in response.topics:
            topic.partitions = [each for each in topic.partitions if each.partition_index != 1]
        return response

    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = answer
    view = await metadata.wait_for_topic("t", 10.0)
    assert view.leaders == (0,)


async def test_brokers_that_do_not_answer_are_named(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = lambda request: NO_ANSWER
    metadata = await open_metadata(cluster)
    with pytest.raises(Unavailable, match=r"broker-\d:9092\) did not answer$"):
        await metadata.wait_for_topic("t", 5.0)


def refuse_topics(broker: ScriptedBroker, code: ErrorCode) -> None:
    def answer(request: MetadataRequest) -> MetadataResponse:
        response = broker.cluster.metadata(request)
        for topic in response.topics:
            topic.error_code = code
        return response

    broker.answers[MetadataRequest] = answer


async def test_a_refusal_for_good_is_raised_at_once(world: World, cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        refuse_topics(broker, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    metadata = await open_metadata(cluster)
    with pytest.raises(BrokerError, match="topic t: TOPIC_AUTHORIZATION_FAILED"):
        await metadata.wait_for_topic("t", 60.0)
    assert world.loop.time() < 1


async def test_a_topic_that_was_deleted_is_forgotten(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    await metadata.wait_for_topic("t", 10.0)
    del cluster.leaders["t"]
    await metadata.wait_for_update()
    assert metadata.topic("t") is None
    assert metadata.leader("t", 0) == -1


async def test_another_broker_is_asked_when_one_is_lost(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    await metadata.wait_for_topic("t", 10.0)
    (asked,) = [broker for broker in cluster.brokers.values() if broker.asked]
    asked.answers[MetadataRequest] = lambda request: HANG_UP
    asked.stop()
    await asyncio.sleep(1)
    cluster.leaders["t"] = [1, 1]
    await metadata.wait_for_update()
    view = metadata.topic("t")
    assert view is not None
    assert view.leaders == (1, 1)


async def test_without_any_broker_all_addresses_are_named(
    world: World, cluster: ScriptedCluster
) -> None:
    metadata = await open_metadata(cluster)
    for broker in cluster.brokers.values():
        broker.stop()
    with pytest.raises(Unavailable) as caught:
        await metadata.wait_for_topic("t", 5.0)
    assert "broker-0:9092" in str(caught.value)
    assert "broker-1:9092" in str(caught.value)


@pytest.mark.kip(526)
async def test_idle_topics_are_forgotten_at_the_next_refresh(
    world: World, cluster: ScriptedCluster
) -> None:
    last_used = {"t": 0.0, "u": 0.0}
    forgotten: list[str] = []
    metadata = await open_metadata(cluster)
    metadata.forget_idle(MAX_AGE, last_used.__getitem__, forgotten.append)
    await metadata.wait_for_topic("t", 10.0)
    await metadata.wait_for_topic("u", 10.0)
    await asyncio.sleep(MAX_AGE - 1)
    last_used["u"] = world.loop.time()
    await asyncio.sleep(5)
    assert forgotten == ["t"]
    assert metadata.topic("t") is None
    assert metadata.topic("u") is not None
    asked = [asked for broker in cluster.brokers.values() for asked in broker.asked]
    assert [topic.name for topic in asked[-1].request.topics] == ["u"]
    await metadata.wait_for_topic("t", 10.0)
    assert metadata.topic("t") is not None


class Refused:
    """Credentials that no broker takes."""

    mechanism = "NONE"

    async def start(self) -> Any:
        raise AuthenticationFailed("nobody knows you")


async def test_who_is_refused_everywhere_is_told_at_once_and_nobody_is_asked_on(
    world: World, cluster: ScriptedCluster
) -> None:
    for broker in cluster.brokers.values():
        broker.answers[SaslHandshakeRequest] = lambda request: SaslHandshakeResponse()
    metadata = await open_metadata(cluster, credentials=Refused())
    with pytest.raises(AuthenticationFailed, match="nobody knows you"):
        await metadata.wait_for_topic("t", 60.0)
    assert world.loop.time() < 1.0
    links = sum(len(broker.links) for broker in cluster.brokers.values())
    await asyncio.sleep(30)
    assert sum(len(broker.links) for broker in cluster.brokers.values()) == links


@pytest.mark.kip(1102)
async def test_brokers_that_tell_nothing_for_long_are_forgotten(
    world: World, cluster: ScriptedCluster
) -> None:
    """The known brokers live, but have nothing to say; a new one stands at the seed's address."""
    seed = cluster.broker(2)

    def say_nothing(request: MetadataRequest) -> object:
        return HANG_UP

    metadata = await open_metadata(cluster, rebootstrap_after=60.0)
    metadata._connections.bootstrap[:] = parse_bootstrap_servers("broker-2:9092")
    metadata._connections._nodes = {-1: metadata._connections.bootstrap[0]}
    await metadata.wait_for_topic("t", 10.0)
    seed.stop()
    for broker in (cluster.brokers[0], cluster.brokers[1]):
        broker.answers[MetadataRequest] = say_nothing
    await asyncio.sleep(30)
    known = metadata._connections._nodes
    assert set(known) == {-1, 0, 1, 2}
    await asyncio.sleep(60)
    assert set(known) == {-1}
    await seed.start()
    await metadata.wait_for_update()
    assert set(known) == {-1, 0, 1, 2}


@pytest.mark.kip(1102)
async def test_brokers_that_never_answer_in_time_are_forgotten_too(
    world: World, cluster: ScriptedCluster
) -> None:
    """As an admin client asks: without topics to keep fresh, and for a short time each."""
    metadata = await open_metadata(cluster, rebootstrap_after=60.0)
    await metadata.fetch([])
    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = lambda request: NO_ANSWER
    began = world.loop.time()
    while any(node >= 0 for node in metadata._connections._nodes):
        assert world.loop.time() < began + 70
        with pytest.raises((TimeoutError, Unavailable)):
            async with asyncio.timeout(0.3):
                await metadata.fetch([])
    assert world.loop.time() >= began + 60


@pytest.mark.kip(1102)
async def test_a_broker_may_send_its_clients_back_to_the_bootstrap_servers(
    world: World, cluster: ScriptedCluster
) -> None:
    codes = [ErrorCode.REBOOTSTRAP_REQUIRED]

    def answer(request: MetadataRequest) -> MetadataResponse:
        response = cluster.metadata(request)
        if codes:
            response.error_code = codes.pop()
        return response

    metadata = await open_metadata(cluster)
    await metadata.wait_for_topic("t", 10.0)
    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = answer
    with pytest.raises(Unavailable, match="requires clients to bootstrap again"):
        await metadata.fetch([])
    assert all(node < 0 for node in metadata._connections._nodes)
    await metadata.wait_for_update()
    assert {0, 1} <= set(metadata._connections._nodes)
