"""Rates of partitions, as the broker that assigns them measures them. Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.test_consumer_groups import beat
from tests.unit.cluster.broker.test_groups import QUICK, find
from trimtab.cluster.broker.groups import ImageTopics
from trimtab.cluster.broker.partition_rates import PartitionRates
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from trimtab.kafka.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def write(lab: Any, *bytes_per_s: int, seconds: int) -> None:
    """Write so much to each partition of `t`, once a second."""
    for _ in range(seconds):
        for index, size in enumerate(bytes_per_s):
            if size:
                await lab.append("t", bytes(size), partition=index)
        await asyncio.sleep(1)


def test_each_leader_is_asked_for_the_sizes_of_its_logs(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", partitions=3)
        await lab.create_topic("other")
        leaders = {each.leader for each in lab.brokers[0].image.topics["t"].partitions}
        assert len(leaders) > 1
        rates = PartitionRates(lab.brokers[0].view)
        assert rates.of(["t", "missing"]) == {}
        assert rates.version == 0
        await write(lab, 3000, 0, 1000, seconds=60)
        found = rates.of(["t"])
        assert found == {
            TopicPartition("t", 0): pytest.approx(3000, rel=0.15),
            TopicPartition("t", 1): 0,
            TopicPartition("t", 2): pytest.approx(1000, rel=0.2),
        }
        version = rates.version
        assert version >= 6
        await write(lab, 0, 3000, 1000, seconds=60)
        assert 1000 < rates.of(["t"])[TopicPartition("t", 0)] < 2000, "halved once a minute"
        await write(lab, 0, 3000, 1000, seconds=120)
        assert rates.version > version
        later = rates.of(["t"])
        assert later[TopicPartition("t", 0)] < 600
        assert later[TopicPartition("t", 1)] > 2500
        assert rates.of(["other"]) == {}
        await asyncio.sleep(30)
        assert rates.of(["other"]) == {TopicPartition("other", 0): 0}
        rates.close()

    lab.run(scenario, brokers=3)


def test_a_broker_that_is_away_leaves_its_rates_as_they_were(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", partitions=2)
        first, second = lab.brokers[0].image.topics["t"].partitions
        assert first.leader != second.leader
        rates = PartitionRates(lab.brokers[first.leader].view)
        rates.of(["t"])
        await write(lab, 1000, 1000, seconds=30)
        before = rates.of(["t"])
        assert len(before) == 2
        lost = lab.brokers[second.leader]
        await lost.close(hand_over=False)
        await write(lab, 5000, seconds=60)
        after = rates.of(["t"])
        assert after[TopicPartition("t", 0)] > 2000
        assert after[TopicPartition("t", 1)] == before[TopicPartition("t", 1)]
        rates.close()

    lab.run(scenario, brokers=2)


def test_a_log_that_shrinks_keeps_its_rate(lab: Any) -> None:
    """Retention deletes whole segments."""

    async def scenario() -> None:
        await lab.create_topic("t", config={"segment.bytes": "10240", "retention.bytes": "20480"})
        rates = PartitionRates(lab.brokers[0].view)
        rates.of(["t"])
        log = lab.brokers[0].partitions["t", 0].log
        largest = 0
        for _ in range(90):
            await write(lab, 2000, seconds=1)
            largest = max(largest, log.size)
            if log.size > 60_000:
                assert log.enforce_retention()
        assert log.size < largest
        assert rates.of(["t"])[TopicPartition("t", 0)] > 1000
        rates.close()

    lab.run(scenario)


def test_deleted_topics_are_forgotten(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        rates = PartitionRates(lab.brokers[0].view)
        rates.of(["t"])
        await write(lab, 1000, seconds=15)
        assert rates.of(["t"])
        deletion = DeleteTopicsRequest(
            topics=[DeleteTopicState(name="t")], topic_names=[], timeout_ms=9000
        )
        await lab.connect().ask(deletion, 6)
        await asyncio.sleep(15)
        assert rates.of(["t"]) == {}
        await lab.create_topic("t")
        assert rates.of(["t"]) == {}
        await write(lab, 1000, seconds=25)
        assert rates.of(["t"]) == {TopicPartition("t", 0): pytest.approx(1000, rel=0.2)}
        rates.close()

    lab.run(scenario)


def test_sizes_on_different_brokers_are_not_compared(lab: Any) -> None:
    """The replicas of a compacted topic may have logs of very different sizes."""

    def size(of: int) -> DescribeLogDirsResponse:
        partition = DescribeLogDirsPartition(
            partition_index=0, partition_size=of, offset_lag=0, is_future_key=False
        )
        topic = DescribeLogDirsTopic(name="t", partitions=[partition])
        return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir="d", topics=[topic])])

    async def scenario() -> None:
        await lab.create_topic("t")
        rates = PartitionRates(lab.brokers[0].view)
        rates._note(0, 0.0, size(100))
        rates._note(1, 10.0, size(50_000))
        assert rates.of(["t"]) == {}
        rates._note(1, 20.0, size(51_000))
        assert rates.of(["t"]) == {TopicPartition("t", 0): 100}
        rates.close()

    lab.run(scenario)


def test_racks_are_those_of_the_replicas(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", replicas=2)
        topics = ImageTopics(lab.brokers[0].view, PartitionRates(lab.brokers[0].view))
        replicas = lab.brokers[0].image.topics["t"].partitions[0].replicas
        assert set(topics.racks_of(TopicPartition("t", 0))) == {"abc"[each] for each in replicas}
        assert not topics.racks_of(TopicPartition("t", 1))
        assert not topics.racks_of(TopicPartition("missing", 0))

    lab.run(scenario, brokers=3)


def test_a_group_of_load_is_level_in_bytes_soon_after_it_has_begun(lab: Any) -> None:
    async def scenario() -> None:
        await lab.create_topic("t", partitions=3)
        await find(lab)
        client = lab.connect()
        writing = asyncio.ensure_future(write(lab, 8000, 4000, 4000, seconds=20))
        topic_id = lab.brokers[0].image.topics["t"].id
        members = {name: Member(name) for name in "mn"}
        for _ in range(20):
            for each in members.values():
                await each.beat(client, topic_id)
            await asyncio.sleep(0.5)
        assert sorted(each.owned for each in members.values()) == [[0], [1, 2]]
        await writing

    lab.run(scenario, config=QUICK)


class Member:
    """A member of the group, which lets go of what it is not given any more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.owned: list[int] = []

    async def beat(self, client: Any, topic_id: bytes) -> None:
        response = await beat(
            client,
            self.epoch,
            self.name,
            self.owned,
            topic_id,
            subscribed_topic_names=["t"],
            rebalance_timeout_ms=30_000,
            server_assignor="load",
        )
        assert response.error_code == 0
        self.epoch = response.member_epoch
        self.owned = [
            index for each in response.assignment.topic_partitions for index in each.partitions
        ]


def test_rates_are_measured_again_after_an_error(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        await lab.create_topic("t")
        rates = PartitionRates(lab.brokers[0].view)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionRates, "_note", lambda *_: [][0])
            rates.of(["t"])
            await asyncio.sleep(5)
        await write(lab, 1000, seconds=30)
        assert rates.of(["t"])[TopicPartition("t", 0)] > 500
        rates.close()

    lab.run(scenario)
