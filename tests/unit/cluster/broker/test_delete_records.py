"""DeleteRecords (`trimtab.cluster.broker.handlers.delete_records`): on the leader, and on its
followers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import (
    address,
    alter,
    decided,
    followers_of,
    in_sync,
    kill,
    leader_of,
    leading,
    move_leader,
    replica,
    send,
    start,
    until,
    values,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

END = -1


async def delete(
    lab: Lab,
    *offsets: int,
    topic: str = "t",
    to: int | None = None,
    version: int = 2,
    timeout_ms: int = 1000,
) -> list[tuple[int, int]]:
    """Delete records before these offsets of partitions 0, 1, …; returns codes and log starts."""
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=index, offset=offset)
                    for index, offset in enumerate(offsets)
                ],
            )
        ],
        timeout_ms=timeout_ms,
    )
    response = await lab.connect(leader_of(lab) if to is None else to).ask(request, version)
    return [(each.error_code, each.low_watermark) for each in response.topics[0].partitions]


async def five_records(lab: Lab, **config: str) -> None:
    options = {name.replace("_", "."): value for name, value in config.items()}
    await lab.create_topic("t", config=options, replicas=3)
    await in_sync(lab)
    for number in range(5):
        await send(lab, b"%d" % number)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.kip(107)
@pytest.mark.run(brokers=3)
async def test_records_before_an_offset_are_deleted(lab: Lab, version: int) -> None:
    await five_records(lab)
    assert await delete(lab, 2, version=version) == [(0, 2)]
    assert values(leading(lab)) == [b"2", b"3", b"4"]
    assert await delete(lab, 1, version=version) == [(0, 2)]
    assert await delete(lab, END, version=version) == [(0, 5)]
    assert values(leading(lab)) == []


@pytest.mark.run(brokers=3)
async def test_the_log_start_offset_reaches_followers_and_survives_a_restart(lab: Lab) -> None:
    await five_records(lab)
    await delete(lab, 3)
    assert {replica(lab, each).log.log_start_offset for each in range(3)} == {3}
    one = followers_of(lab)[0]
    await lab.brokers[one].close()
    await start(lab, one)
    assert replica(lab, one).log.log_start_offset == 3
    await in_sync(lab)
    assert values(replica(lab, one)) == [b"3", b"4"]


@pytest.mark.run(brokers=3)
async def test_the_log_start_offset_survives_a_kill_of_all_brokers(lab: Lab) -> None:
    await five_records(lab)
    assert await delete(lab, 3) == [(0, 3)]
    for each in range(3):
        kill(lab, each)
    for each in range(3):
        await start(lab, each)
    await in_sync(lab)
    assert [values(replica(lab, each)) for each in range(3)] == [[b"3", b"4"]] * 3


@pytest.mark.run(brokers=3)
async def test_the_log_start_offset_survives_the_leader(lab: Lab) -> None:
    await five_records(lab)
    await delete(lab, 3)
    assert {replica(lab, each).log.log_start_offset for each in range(3)} == {3}
    old = leader_of(lab)
    kill(lab, old)
    await until(lambda: leader_of(lab) not in (old, -1))
    await until(lambda: leading(lab).is_leader)
    assert values(leading(lab)) == [b"3", b"4"]


@pytest.mark.run(brokers=3)
async def test_uncommitted_records_are_not_deleted(lab: Lab) -> None:
    await five_records(lab)
    lab.world.network.cut(address(leader_of(lab)))
    await send(lab, b"5", acks=1)
    assert await delete(lab, 6) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
    assert await delete(lab, -2) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
    assert await delete(lab, END) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    assert values(leading(lab)) == [b"5"]
    lab.world.network.heal()


@pytest.mark.run(brokers=3)
async def test_the_response_does_not_wait_for_a_dead_broker(lab: Lab) -> None:
    await five_records(lab)
    away = followers_of(lab)[0]
    kill(lab, away)
    assert await delete(lab, 2, timeout_ms=60_000) == [(0, 2)]
    assert away not in decided(lab).isr


@pytest.mark.run(brokers=3)
async def test_a_deposed_leader_answers_not_leader(lab: Lab) -> None:
    await five_records(lab)
    leader = leader_of(lab)
    lab.world.network.cut(address(leader))
    answer = asyncio.ensure_future(delete(lab, 2, timeout_ms=60_000))
    await until(lambda: leading(lab).log.log_start_offset == 2)
    assert not answer.done()
    await move_leader(lab, followers_of(lab)[0])
    assert await answer == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    lab.world.network.heal()


@pytest.mark.run(brokers=3)
async def test_each_partition_is_refused_on_its_own(lab: Lab) -> None:
    await five_records(lab)
    assert await delete(lab, 1, 1) == [(0, 1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    refused = [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert await delete(lab, 1, to=followers_of(lab)[0]) == refused
    assert await delete(lab, 1, topic="u") == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        ("compact", (ErrorCode.POLICY_VIOLATION, -1)),
        ("compact,delete", (ErrorCode.NONE, 2)),
        ("delete", (ErrorCode.NONE, 2)),
    ],
)
@pytest.mark.run(brokers=3)
async def test_a_topic_that_is_only_compacted_refuses_deletion(
    lab: Lab, policy: str, answer: tuple[int, int]
) -> None:
    await five_records(lab)
    await alter(lab, {"cleanup.policy": policy})
    assert await delete(lab, 2) == [answer]


@pytest.mark.run(brokers=3)
async def test_a_deletion_wakes_waiting_consumers(lab: Lab) -> None:
    await five_records(lab)
    told: list[Any] = []

    class Watching:
        def changed(self, partition: Any) -> None:
            told.append(partition.log.log_start_offset)

        appended = committed = changed

    leading(lab).watchers[Watching()] = None
    await delete(lab, 4)
    assert told == [4]
