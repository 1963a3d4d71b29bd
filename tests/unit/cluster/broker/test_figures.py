"""A broker's figures at a moment, and its metrics (`trimtab.cluster.broker.figures`,
`trimtab.cluster.broker.prometheus`). Time is virtual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.cluster.broker.replicas import (
    decided,
    followers_of,
    in_sync,
    kill,
    leader_of,
    reassign,
)
from tests.unit.cluster.broker.test_groups import QUICK, find
from trimtab.cluster.broker import figures as figures_module
from trimtab.cluster.broker.figures import BrokerFigures, BrokerGauge, CommittedFigures, LogFigures
from trimtab.cluster.storage.storage import Space, StorageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

NO_SESSION = {**QUICK, "offsets.topic.replication.factor": 1}


async def measure(lab: Any, broker: int = 0) -> BrokerFigures:
    gauge = BrokerGauge(lab.brokers[broker])
    try:
        return await gauge.measure()
    finally:
        gauge.close()


def of_replicas(figures: BrokerFigures) -> tuple[int, ...]:
    return (
        figures.leaders,
        figures.under_replicated,
        figures.under_min_isr,
        figures.at_min_isr,
        figures.reassigning,
        figures.offline,
    )


@pytest.mark.run(brokers=3)
async def test_replicas_that_are_not_in_sync(lab: Any) -> None:
    await lab.create_topic("t", replicas=3, config={"min.insync.replicas": "2"})
    await in_sync(lab)
    leader = leader_of(lab)
    assert of_replicas(await measure(lab, leader)) == (1, 0, 0, 0, 0, 0)
    first, second = followers_of(lab)
    assert of_replicas(await measure(lab, second)) == (0, 0, 0, 0, 0, 0)
    kill(lab, first)
    await in_sync(lab, 2)
    assert of_replicas(await measure(lab, leader)) == (1, 1, 0, 1, 0, 0)
    kill(lab, second)
    while (
        len(decided(lab).isr) > 1 or len(lab.brokers[leader].partitions["t", 0].leadership.isr) > 1
    ):
        await lab.brokers[leader].metadata.advance()
    assert of_replicas(await measure(lab, leader)) == (1, 1, 1, 0, 0, 0)


@pytest.mark.run(brokers=3)
async def test_replicas_that_a_reassignment_adds_do_not_count_as_missing(lab: Any) -> None:
    await lab.create_topic("t", replicas=1)
    leader = leader_of(lab)
    other = next(each for each in range(3) if each != leader)
    kill(lab, other)
    await reassign(lab, [leader, other], broker=leader)
    partition = lab.brokers[leader].partitions["t", 0]
    while not partition.registration.is_reassigning:
        await lab.brokers[leader].metadata.advance()
    assert of_replicas(await measure(lab, leader)) == (1, 0, 0, 1, 1, 0)


async def test_logs_and_their_disk(lab: Any) -> None:
    await lab.create_topic("t", partitions=2)
    size = await lab.append("t", b"a", b"b", partition=1)
    figures = await measure(lab)
    assert sorted(figures.logs) == [
        LogFigures("t", 0, 0, 0, 0),
        LogFigures("t", 1, size, 0, 2),
    ]
    assert figures.total.bytes_in == figures.traffic["t"].bytes_in == size


def fail() -> Space:
    raise StorageError("broker-0", "look up the size of the volume", 5)


@pytest.mark.parametrize(
    ("look_up", "found"),
    [
        (lambda: Space(100, 40), Space(100, 40)),
        (lambda: Space(-1, -1), None),
        (fail, None),
    ],
)
async def test_the_volume_is_left_out_if_its_size_is_unknown(
    lab: Any,
    monkeypatch: pytest.MonkeyPatch,
    look_up: Callable[[], Space],
    found: Space | None,
) -> None:
    monkeypatch.setattr(lab.brokers[0].replicas.logs, "space", look_up)
    assert (await measure(lab)).space == found


def commit(offset: int, *partitions: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=""
                    )
                    for index in partitions
                ],
            )
        ],
    )


@pytest.mark.run(brokers=2, config=NO_SESSION)
async def test_the_lag_is_up_to_the_leaders_high_watermark_whichever_broker_leads(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "_PER_REQUEST", 2)
    await lab.create_topic("t", partitions=10)
    leaders = {each.id: each.leader for each in lab.brokers[0].image.topics["t"].partitions}
    assert {*leaders.values()} == {0, 1}
    for index in leaders:
        await lab.append("t", *[b"a"] * (index + 5), partition=index)
    coordinator = (await find(lab)).node_id
    client = lab.connect(coordinator)
    while (await client.ask(commit(3, *leaders), 8)).topics[0].partitions[0].error_code:
        pass
    figures = await measure(lab, coordinator)
    assert figures.committed == [
        CommittedFigures("g", TopicPartition("t", index), 3) for index in leaders
    ]
    assert figures.ends == {TopicPartition("t", index): index + 5 for index in leaders}
    assert (await measure(lab, 1 - coordinator)).committed == []
    kill(lab, 1 - coordinator)
    figures = await measure(lab, coordinator)
    assert len(figures.committed) == 10
    assert {leaders[each.partition] for each in figures.ends} == {coordinator}
