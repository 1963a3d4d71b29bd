"""Offsets and leader epochs in responses when leaders change.

OffsetForLeaderEpoch (`trimtab.cluster.broker.handlers.epochs`), and ListOffsets of a new leader
(`trimtab.cluster.broker.handlers.offsets`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import (
    address,
    followers_of,
    in_sync,
    kill,
    leader_of,
    leading,
    move_leader,
    send,
    until,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from trimtab.kafka.wire.sentinels import (
    CONSUMER,
    DEBUGGING_REPLICA,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
)


def end_of(*epochs: int, current: int = -1, partition: int = 0) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        replica_id=CONSUMER,
        topics=[
            OffsetForLeaderTopic(
                topic="t",
                partitions=[
                    OffsetForLeaderPartition(
                        partition=partition, current_leader_epoch=current, leader_epoch=epoch
                    )
                    for epoch in epochs
                ],
            )
        ],
    )


def answers(response: Any) -> list[tuple[int, int, int]]:
    return [
        (each.error_code, each.leader_epoch, each.end_offset)
        for topic in response.topics
        for each in topic.partitions
    ]


async def three_epochs(lab: Lab) -> None:
    """Epoch 0 has offsets 0 and 1, epoch 1 none, epoch 2 has 2 to 4."""
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    first, second, third = leader_of(lab), *followers_of(lab)
    await send(lab, b"0", b"1")
    await in_sync(lab)
    await move_leader(lab, second)
    await in_sync(lab)
    await move_leader(lab, third)
    assert leading(lab).leader_epoch == 2
    await send(lab, b"2", b"3", b"4")
    assert first != leader_of(lab)


@pytest.mark.parametrize("version", range(2, 5))
@pytest.mark.kip(320)
@pytest.mark.run(brokers=3)
async def test_an_epoch_ends_where_the_next_one_begins(lab: Lab, version: int) -> None:
    await three_epochs(lab)
    response = await lab.connect(leader_of(lab)).ask(end_of(0, 1, 2, 3), version)
    assert answers(response) == [(0, 0, 2), (0, 0, 2), (0, 2, 5), (0, -1, -1)]


@pytest.mark.parametrize(
    ("current", "code"),
    [
        (-1, ErrorCode.NONE),
        (2, ErrorCode.NONE),
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
@pytest.mark.kip(320)
@pytest.mark.run(brokers=3)
async def test_a_request_with_another_leader_epoch_is_refused(
    lab: Lab, current: int, code: ErrorCode
) -> None:
    await three_epochs(lab)
    response = await lab.connect(leader_of(lab)).ask(end_of(0, current=current), 4)
    assert answers(response) == [(code, 0, 2) if code is ErrorCode.NONE else (code, -1, -1)]


@pytest.mark.run(brokers=3)
async def test_only_the_leader_answers_with_the_end_of_an_epoch(lab: Lab) -> None:
    await three_epochs(lab)
    response = await lab.connect(followers_of(lab)[0]).ask(end_of(0), 4)
    assert answers(response) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)]
    response = await lab.connect(leader_of(lab)).ask(end_of(0, partition=1), 4)
    assert answers(response) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)]


# -- a new leader whose high watermark is behind


async def found(
    lab: Lab,
    timestamp: int,
    version: int = 11,
    replica: int = CONSUMER,
    at: int | None = None,
    topic: str = "t",
    epoch: int = -1,
    isolation: int = 0,
) -> Any:
    """The offset, or the error, that a broker answers; by default the leader."""
    wanted = ListOffsetsPartition(
        partition_index=0, current_leader_epoch=epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=replica,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )
    broker = leader_of(lab) if at is None else at
    response = await lab.connect(broker).ask(request, version)
    (answer,) = response.topics[0].partitions
    return ErrorCode(answer.error_code) if answer.error_code else answer.offset


async def new_leader(lab: Lab) -> int:
    """Its log ends with offset 1, but all that it knows to be committed is offset 0.

    Its follower does not come through to it. Returns the time between the two records.
    """
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    await send(lab, b"0")
    await asyncio.sleep(1)
    between: int = lab.world.now_ms()
    await asyncio.sleep(1)
    await send(lab, b"1")
    old = leader_of(lab)
    for broker in followers_of(lab):
        lab.world.network.cut(address(broker))
    kill(lab, old)
    await until(lambda: leader_of(lab) not in (old, -1))
    await until(lambda: leading(lab).is_leader)
    assert (leading(lab).high_watermark, leading(lab).log.log_end_offset) == (1, 2)
    return between


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (4, ErrorCode.LEADER_NOT_AVAILABLE),
        (5, ErrorCode.OFFSET_NOT_AVAILABLE),
        (11, ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
@pytest.mark.kip(207)
@pytest.mark.run(brokers=3)
async def test_a_new_leader_gives_no_end_offset_that_may_move_back(
    lab: Lab, version: int, code: ErrorCode
) -> None:
    await new_leader(lab)
    assert await found(lab, LATEST, version) == code
    lab.world.network.heal()
    await until(lambda: leading(lab).high_watermark == 2)
    assert await found(lab, LATEST, version) == 2


@pytest.mark.kip(207)
@pytest.mark.run(brokers=3)
async def test_a_new_leader_answers_what_does_not_depend_on_its_end_offset(lab: Lab) -> None:
    between = await new_leader(lab)
    assert await found(lab, EARLIEST) == 0
    assert await found(lab, 0) == 0
    for beyond in (between, MAX_TIMESTAMP):
        assert await found(lab, beyond) == ErrorCode.OFFSET_NOT_AVAILABLE
    lab.world.network.heal()
    await until(lambda: leading(lab).high_watermark == 2)
    for beyond in (between, MAX_TIMESTAMP):
        assert await found(lab, beyond) == 1


@pytest.mark.run(brokers=3)
async def test_a_follower_is_told_the_end_of_the_log(lab: Lab) -> None:
    await new_leader(lab)
    assert await found(lab, LATEST, replica=followers_of(lab)[0]) == 2
    lab.world.network.heal()


# -- the debugging replica, which any replica answers for its own log


@pytest.mark.run(brokers=3)
async def test_the_debugging_replica_is_told_the_end_of_the_log(lab: Lab) -> None:
    """Beyond the high watermark, at each isolation level."""
    between = await new_leader(lab)
    for isolation in (0, 1):
        for timestamp, expected in ((LATEST, 2), (EARLIEST, 0), (between, 1), (MAX_TIMESTAMP, 1)):
            asked = {"replica": DEBUGGING_REPLICA, "isolation": isolation}
            assert await found(lab, timestamp, **asked) == expected  # type: ignore[arg-type]
    lab.world.network.heal()


@pytest.mark.run(brokers=4)
async def test_any_replica_answers_the_debugging_replica_for_its_own_log(lab: Lab) -> None:
    await lab.create_topic("t", replicas=3)
    await in_sync(lab)
    await send(lab, b"0")
    await in_sync(lab)
    leader, (behind, level) = leader_of(lab), followers_of(lab)
    lab.world.network.cut(address(leader))
    await send(lab, b"1", b"2", acks=1)
    assert await found(lab, LATEST) == 1

    async def debug(broker: int, timestamp: int = LATEST, version: int = 11, **asked: Any) -> Any:
        return await found(lab, timestamp, version, DEBUGGING_REPLICA, broker, **asked)

    assert [await debug(broker) for broker in (leader, level, behind)] == [3, 1, 1]
    for version in range(1, 12):
        assert await debug(behind, version=version) == 1
    assert await debug(behind, EARLIEST) == 0
    assert await debug(behind, 0) == 0
    later = lab.world.now_ms() + 1
    assert (await debug(leader, later), await debug(behind, later)) == (-1, -1)

    (other,) = {0, 1, 2, 3} - {leader, behind, level}
    assert await debug(other) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await debug(behind, topic="u") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await debug(behind, epoch=1) is ErrorCode.UNKNOWN_LEADER_EPOCH
    for replica_id in (CONSUMER, level, -3):
        assert await found(lab, LATEST, replica=replica_id, at=behind) is (
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
    lab.world.network.heal()
    await in_sync(lab)
    assert [await debug(broker) for broker in (leader, level, behind)] == [3, 3, 3]
