"""Brokers that start, stop and replay the controller's decisions (`trimtab.cluster.broker.broker`,
`trimtab.cluster.broker.metadata_replay`)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Client, Lab
from tests.unit.cluster.broker.replicas import (
    address,
    decided,
    followers_of,
    in_sync,
    kill,
    leader_of,
    leadership,
    leading,
    reassign,
    replica,
    send,
    start,
    until,
    values,
)
from tests.unit.secret import SECRET
from trimtab.client.consumer import AsyncConsumer
from trimtab.cluster.broker import replicas
from trimtab.cluster.broker.broker import Broker
from trimtab.cluster.controller.node import ControllerNode
from trimtab.cluster.metadata.image import PartitionRegistration, partition_record
from trimtab.kafka.errors import CorruptData, ErrorCode, Unavailable, UsageError
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.metadata_records import RemoveTopicRecord, TopicRecord
from trimtab.kafka.wire.messages.unregister_broker import UnregisterBrokerRequest
from trimtab.sim.network import NetworkLink

TWO = {"min.insync.replicas": 2}


async def delete_topic(lab: Lab, name: str) -> None:
    request = DeleteTopicsRequest(topics=[], topic_names=[name], timeout_ms=1000)
    (result,) = (await lab.controller.controller.delete_topics(request)).responses
    assert result.error_code == 0


async def end_controller(lab: Lab) -> None:
    lab.controller.abort()
    lab.world.disk("controller").end_mount()
    await asyncio.sleep(0.1)


async def start_controller(lab: Lab) -> None:
    lab.controller = ControllerNode(
        3000, "lab", lab.world.disk("controller"), SECRET, {}, lab.world.now_ms, Random(2)
    )
    await lab.controller.listen("controller", 9093)
    await lab.controller.start()


async def brokers_of(client: Client) -> list[int]:
    response = await client.ask(MetadataRequest(topics=None), 12)
    return sorted(each.node_id for each in response.brokers)


# -- stopping and restarting


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.run(brokers=3)
async def test_a_restarted_broker_has_its_partitions(lab: Lab, clean: bool) -> None:
    for name in ("alone", "t"):
        await lab.create_topic(name, 3, replicas=3 if name == "t" else 1)
    await in_sync(lab)
    one = leader_of(lab)
    mine = next(index for index in range(3) if leader_of(lab, "alone", index) == one)
    await send(lab, b"a", topic="alone", index=mine)
    await send(lab, b"b")
    epoch = lab.brokers[one].epoch
    if clean:
        await lab.brokers[one].close()
    else:
        kill(lab, one)
    broker = await start(lab, one)
    assert broker.epoch > epoch
    await in_sync(lab)
    assert set(broker.partitions) == {("alone", mine), *(("t", index) for index in range(3))}
    await until(lambda: leader_of(lab, "alone", mine) == one)
    await until(lambda: leading(lab, "alone", mine).is_leader)
    assert values(leading(lab, "alone", mine)) == [b"a"]
    assert leading(lab, "alone", mine).high_watermark == 1
    assert values(replica(lab, one)) == [b"b"]


@pytest.mark.run(brokers=1)
async def test_a_large_topic_is_visible_only_when_complete_and_delays_no_other_task(
    lab: Lab,
) -> None:
    await lab.create_topic("t")
    broker = lab.brokers[0]
    image = broker.image
    topic_id = b"many-partitions."
    new = PartitionRegistration(0, 0, 0, 0, (0,), (0,))
    records: list[Any] = [TopicRecord(name="many", topic_id=topic_id)]
    records += [partition_record(topic_id, new._replace(id=index)) for index in range(5000)]
    replaying = asyncio.ensure_future(broker.replay.replay(records))
    turns = 0
    while "many" not in image.topics:
        assert "t" in image.topics
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 5
    assert len(image.topics["many"].partitions) == 5000
    await replaying
    assert len(broker.partitions) == 5001


@pytest.mark.run(brokers=1)
async def test_a_topic_that_is_created_and_deleted_in_one_batch_leaves_nothing(lab: Lab) -> None:
    broker = lab.brokers[0]
    topic_id = b"here-and-gone..."
    new = PartitionRegistration(0, 0, 0, 0, (0,), (0,))
    await broker.replay.replay(
        [
            TopicRecord(name="brief", topic_id=topic_id),
            partition_record(topic_id, new),
            RemoveTopicRecord(topic_id=topic_id),
            TopicRecord(name="brief", topic_id=topic_id),
            partition_record(topic_id, new),
        ]
    )
    assert set(broker.partitions) == {("brief", 0)}


async def test_a_topic_created_again_does_not_have_the_options_of_the_deleted_one(lab: Lab) -> None:
    await lab.create_topic("t", config={"segment.bytes": "2000000"})
    await until(lambda: lab.brokers[0].partitions)
    assert replica(lab, 0).log.config.segment_bytes == 2_000_000
    await delete_topic(lab, "t")
    await until(lambda: not lab.brokers[0].partitions)
    await lab.create_topic("t")
    await until(lambda: lab.brokers[0].partitions)
    assert replica(lab, 0).log.config.segment_bytes == 2**30


async def test_large_requests_and_fetches_that_have_waited_take_turns(lab: Lab) -> None:
    (broker,) = lab.brokers
    assert broker.services.turns is broker.listener.turns


@pytest.mark.run(brokers=3)
async def test_logs_replaced_or_reassigned_while_a_broker_was_down_are_set_aside(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("gone", "moved", "t"):
        await lab.create_topic(name, replicas=3)
        await in_sync(lab, topic=name)
        await send(lab, b"a", topic=name)
    one = 1
    kill(lab, one)
    await until(lambda: one not in decided(lab).isr)
    await delete_topic(lab, "gone")
    await reassign(lab, [0, 2], "moved")
    broker = await start(lab, one)
    assert set(broker.replicas.logs.stored_partitions()) == {("t", 0)}
    assert "directory=gone-0." in caplog.text
    assert "directory=moved-0." in caplog.text
    await in_sync(lab)
    epoch = broker.epoch
    await broker.close()
    assert (await start(lab, one)).replicas.logs.previous_epoch == epoch


@pytest.mark.kip(966)
@pytest.mark.run(brokers=1)
async def test_a_broker_killed_while_it_registers_stays_eligible(lab: Lab) -> None:
    await lab.create_topic("t")

    def registered() -> Any:
        return lab.controller.controller.image.brokers[0]

    before = registered()
    kill(lab, 0)
    lab.world.network.set_link("controller", "*", NetworkLink(20, 20))
    starting = asyncio.ensure_future(start(lab, 0))
    await until(lambda: registered().incarnation_id != before.incarnation_id)
    killed = registered()
    assert lab.brokers[0].epoch < before.epoch, "it knows the response already"
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    kill(lab, 0)
    assert (decided(lab).leader, decided(lab).elr) == (-1, (0,))
    assert (await start(lab, 0)).epoch == killed.epoch
    assert (decided(lab).leader, decided(lab).isr) == (0, (0,))


@pytest.mark.run(brokers=3)
async def test_a_restarted_follower_that_missed_nothing_is_in_sync_at_once(lab: Lab) -> None:
    """Its first fetch comes before the controller has unfenced it, and no other does (KIP-227)."""
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    one = followers_of(lab)[0]
    kill(lab, one)
    await until(lambda: one not in decided(lab).isr)
    lab.world.network.set_link("controller", "*", NetworkLink(20, 20))
    began = lab.world.loop.time()
    await start(lab, one)
    await in_sync(lab)
    assert lab.world.loop.time() - began < 1


async def test_a_broker_serves_clients_only_when_its_metadata_show_it(lab: Lab) -> None:
    kill(lab, 0)
    lab.world.network.set_link("controller", "*", NetworkLink(20, 20))
    starting = asyncio.create_task(start(lab, 0))
    consumer = AsyncConsumer("127.0.0.1:9092", random=Random(1))
    async with consumer:
        response = None
        while response is None:
            with suppress(Unavailable):
                response = await consumer._session.metadata.fetch([])
    assert [broker.node_id for broker in response.brokers] == [0]
    await starting


@pytest.mark.run(brokers=2)
async def test_followers_find_a_leader_restarted_at_another_address(lab: Lab) -> None:
    await lab.create_topic("t")
    await lab.create_topic("u", replicas=2)
    await in_sync(lab, 2, "u")
    one = leader_of(lab, "u")
    follower = followers_of(lab, "u")[0]
    # The network is cut before it ends, as when a machine loses power.
    lab.world.network.cut(address(one))
    await send(lab, b"v", topic="u", acks=1)
    kill(lab, one)
    kill(lab, follower)
    await start(lab, follower)
    await start(lab, one, port=9999)
    began = lab.world.loop.time()
    await in_sync(lab, 2, "u")
    assert lab.world.loop.time() - began < 2
    lab.world.network.heal()


@pytest.mark.run(brokers=3, config=TWO)
async def test_controlled_shutdown_moves_the_leaders_away(lab: Lab) -> None:
    await lab.create_topic("t", 9, replicas=3)
    for index in range(9):
        await in_sync(lab, index=index)
    ending = lab.brokers[0]
    epochs = {index: decided(lab, index=index).leader_epoch for index in range(9)}
    led = [index for index in range(9) if leader_of(lab, index=index) == 0]
    assert led
    client = lab.connect(0)
    closing = asyncio.ensure_future(ending.close())
    await until(lambda: all(leader_of(lab, index=index) > 0 for index in range(9)))
    # It still answers, with the new leader.
    assert not client.transport.closed
    assert await brokers_of(client) == [0, 1, 2]
    await closing
    assert client.transport.closed
    for index in range(9):
        registration = decided(lab, index=index)
        assert sorted(registration.isr) == [1, 2]
        assert registration.leader_epoch == epochs[index] + (index in led)
        assert (await send(lab, b"v", index=index)).error_code == 0
    assert lab.controller.controller.image.brokers[0].fenced
    assert lab.world.loop.time() < 1
    await start(lab, 0)
    await in_sync(lab)


@pytest.mark.run(brokers=3)
async def test_requests_that_wait_at_a_stopping_leader_get_not_leader(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    old = leader_of(lab)
    client = lab.connect(old)
    lab.world.network.cut(f"127.0.0.1:{9092 + old}")
    client.send(lab.produce("t", lab.batch(b"v"), acks=-1), 9)
    closing = asyncio.ensure_future(lab.brokers[old].close())
    await until(lambda: client.responses)
    lab.world.network.heal()
    await closing
    response = client.read(lab.produce("t", b"", acks=-1), 9)
    (part,) = response.responses[0].partition_responses
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await start(lab, old)


@pytest.mark.run(brokers=2)
async def test_a_broker_that_has_not_come_up_can_be_closed(lab: Lab) -> None:
    await lab.create_topic("t", replicas=2)
    await in_sync(lab, 2)
    one = followers_of(lab)[0]
    await lab.brokers[one].close()
    await end_controller(lab)
    starting = asyncio.ensure_future(start(lab, one))
    await asyncio.sleep(3)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await lab.brokers[one].close()
    await start_controller(lab)
    await start(lab, one)
    await in_sync(lab, 2)


@pytest.mark.run(brokers=3)
async def test_a_killed_broker_sends_nothing(lab: Lab) -> None:
    await lab.create_topic("t", 3, replicas=3)
    await in_sync(lab)
    kill(lab, 1)
    await asyncio.sleep(0.1)
    counts = [each.listener.counts for each in (lab.controller, lab.brokers[0])]
    before = [each.accepted for each in counts]
    log_end = lab.controller.controller.journal.end_offset
    await asyncio.sleep(30)
    assert [each.accepted for each in counts] == before
    assert lab.controller.controller.journal.end_offset == log_end
    assert lab.world.disk("broker-1").used_after_end == []


async def test_a_second_broker_with_the_same_id_waits_for_the_first_to_end(lab: Lab) -> None:
    first = lab.brokers[0]
    second = Broker(
        0,
        "lab",
        lab.world.disk("other"),
        ("controller", 9093),
        SECRET,
        {"node.id": 0},
        lab.world.now_ms,
        Random(5),
    )
    await second.bind("127.0.0.1", 9192)
    starting = asyncio.ensure_future(second.start("127.0.0.1", 9192))
    await asyncio.sleep(20)
    assert not starting.done()
    await first.close()
    await starting
    lab.brokers[0] = second
    assert lab.controller.controller.image.brokers[0].port == 9192


async def test_a_broker_of_another_cluster_is_refused(lab: Lab) -> None:
    stranger = Broker(
        7,
        "other",
        lab.world.disk("other"),
        ("controller", 9093),
        SECRET,
        {"node.id": 7},
        lab.world.now_ms,
        Random(5),
    )
    await stranger.bind("127.0.0.1", 9192)
    with pytest.raises(UsageError, match="belongs to cluster other"):
        await stranger.start("127.0.0.1", 9192)
    await stranger.close()


@pytest.mark.run(brokers=3)
async def test_an_unregistered_broker_registers_again(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    one = followers_of(lab)[0]
    epoch = lab.brokers[one].epoch
    client = lab.connect(leader_of(lab))
    response = await client.ask(UnregisterBrokerRequest(broker_id=one), 0)
    assert response.error_code == 0
    assert one not in await brokers_of(client)
    await until(lambda: lab.brokers[one].epoch > epoch)
    await in_sync(lab)
    assert await brokers_of(client) == [0, 1, 2]


# -- without a controller


@pytest.mark.run(brokers=3)
async def test_brokers_keep_serving_without_a_controller(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    await end_controller(lab)
    for number in range(5):
        assert (await send(lab, b"%d" % number)).error_code == 0
        await asyncio.sleep(10)
    assert await brokers_of(lab.connect()) == [0, 1, 2]
    await start_controller(lab)
    await asyncio.sleep(3)
    epochs = [each.epoch for each in lab.brokers]
    assert (await send(lab, b"5")).error_code == 0
    await in_sync(lab)
    assert [each.epoch for each in lab.brokers] == epochs  # no broker had to register again
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name="u", num_partitions=3, replication_factor=3, assignments=[], configs=[]
            )
        ]
    )
    response = await lab.connect(1).ask(request, 7)
    assert response.topics[0].error_code == 0
    assert (await send(lab, b"a", topic="u")).error_code == 0


@pytest.mark.run(brokers=3, config={"replica.lag.time.max.ms": 10_000})
async def test_an_isr_change_without_a_controller_is_decided_when_it_is_back(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    await end_controller(lab)
    gone = followers_of(lab)[0]
    kill(lab, gone)
    client = lab.connect(leader_of(lab))
    request = lab.produce("t", lab.batch(b"v"), acks=-1)
    request.timeout_ms = 60_000
    client.send(request, 9)
    await asyncio.sleep(20)
    proposal = leadership(lab).proposal
    assert proposal is not None
    assert gone not in proposal.isr
    assert not client.responses
    await start_controller(lab)
    await until(lambda: client.responses)
    assert gone not in decided(lab).isr
    await start(lab, gone)
    await in_sync(lab)


@pytest.mark.run(brokers=3)
async def test_a_broker_started_without_a_controller_joins_when_it_is_back(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    one = followers_of(lab)[0]
    await lab.brokers[one].close()
    await end_controller(lab)
    starting = asyncio.ensure_future(start(lab, one))
    await asyncio.sleep(30)
    assert not starting.done()
    await start_controller(lab)
    await starting
    await in_sync(lab)


def test_a_broker_that_cannot_replay_the_metadata_stops_and_logs_it(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        broker = lab.brokers[0]
        client = lab.connect(0)

        async def fail(records: list[Any]) -> None:
            raise CorruptData("not a record that this release knows")

        broker.replay.replay = fail  # type: ignore[method-assign]
        await lab.create_topic("t")
        await broker.failed.wait()
        await asyncio.sleep(0.1)
        assert client.transport.closed
        kill(lab, 0)
        await start(lab, 0)

    lab.run(scenario, brokers=2)
    assert "cannot replay the controller's log any more broker=0" in caplog.text


# -- partitions that are created, deleted and fail


class SlowAsyncio:
    """Makes a yield to other tasks take time, as on a busy loop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds or 0.05)


async def test_a_topic_deleted_while_its_partitions_are_opened_is_skipped(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.create_topic("first", 150)
    await lab.create_topic("t", 150)
    kill(lab, 0)
    monkeypatch.setattr(replicas, "asyncio", SlowAsyncio())
    starting = asyncio.ensure_future(start(lab, 0))
    await until(lambda: len(lab.brokers[0].partitions) == 100)
    await delete_topic(lab, "t")
    await starting
    await until(lambda: "t" not in lab.brokers[0].image.topics)
    assert set(lab.brokers[0].partitions) == {("first", index) for index in range(150)}
