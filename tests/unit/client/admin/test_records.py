"""Deletion of records, asked of leaders that answer by script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.scripted_broker import HANG_UP, ScriptedCluster
from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from trimtab.sim.world import World

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    cluster = ScriptedCluster(world, leaders={"t": [0, 1, 1], "led": [0]}, controller=1)
    for node_id in range(2):
        cluster.broker(node_id)
    return cluster


async def admin_of(cluster: ScriptedCluster, **options: Any) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"), **options)


def deleting(
    *codes: tuple[TopicPartition, ErrorCode],
) -> Callable[[DeleteRecordsRequest], DeleteRecordsResponse]:
    """Deletes what it is asked to; each of these codes is the answer about its partition once."""
    left = list(codes)

    def answer(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        topics = []
        for topic in request.topics:
            results = []
            for each in topic.partitions:
                code = next((c for c in left if c[0] == (topic.name, each.partition_index)), None)
                if code is not None:
                    left.remove(code)
                results.append(
                    DeleteRecordsPartitionResult(
                        partition_index=each.partition_index,
                        low_watermark=9 if each.offset < 0 else each.offset,
                        error_code=ErrorCode.NONE if code is None else code[1],
                    )
                )
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        return DeleteRecordsResponse(topics=topics)

    return answer


async def test_each_leader_deletes_the_records_of_its_partitions(
    world: World, cluster: ScriptedCluster
) -> None:
    for broker in cluster.brokers.values():
        broker.answers[DeleteRecordsRequest] = deleting()
    async with await admin_of(cluster) as admin:
        assert await admin.delete_records({T0: 4, T1: -1, T2: 6}) == {T0: 4, T1: 9, T2: 6}
        assert await admin.delete_records({}) == {}
    (request,) = cluster.brokers[1].requests(DeleteRecordsRequest)
    ((topic),) = request.topics
    assert [(each.partition_index, each.offset) for each in topic.partitions] == [(1, -1), (2, 6)]


async def test_the_new_leader_is_asked_after_leadership_has_moved(
    world: World, cluster: ScriptedCluster
) -> None:
    def moved(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        cluster.leaders["t"] = [0, 0, 1]
        return deleting((T1, ErrorCode.NOT_LEADER_OR_FOLLOWER))(request)

    cluster.brokers[0].answers[DeleteRecordsRequest] = deleting()
    cluster.brokers[1].answers[DeleteRecordsRequest] = moved
    async with await admin_of(cluster) as admin:
        assert await admin.delete_records({T1: 3, T2: 6}) == {T1: 3, T2: 6}
    assert len(cluster.brokers[1].requests(DeleteRecordsRequest)) == 1


async def test_a_leader_that_hangs_up_is_asked_again_and_the_other_is_not(
    world: World, cluster: ScriptedCluster
) -> None:
    answers = [HANG_UP]
    serve = deleting()
    cluster.brokers[0].answers[DeleteRecordsRequest] = serve
    cluster.brokers[1].answers[DeleteRecordsRequest] = lambda request: (
        answers.pop() if answers else serve(request)
    )
    async with await admin_of(cluster) as admin:
        assert await admin.delete_records({T0: 1, T1: 3}) == {T0: 1, T1: 3}
    assert len(cluster.brokers[0].requests(DeleteRecordsRequest)) == 1


async def test_refused_partitions_are_named_and_the_others_done(
    world: World, cluster: ScriptedCluster
) -> None:
    for broker in cluster.brokers.values():
        broker.answers[DeleteRecordsRequest] = deleting((T1, ErrorCode.OFFSET_OUT_OF_RANGE))
    async with await admin_of(cluster) as admin:
        with pytest.raises(PartlyRefused) as refused:
            await admin.delete_records({T0: 4, T1: 99, ("t", 7): 1, ("nowhere", 0): 1})
    assert refused.value.done == {T0: 4}
    assert {str(each): error.code for each, error in refused.value.refusals.items()} == {
        "t-7": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "nowhere-0": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "t-1": ErrorCode.OFFSET_OUT_OF_RANGE,
    }
    assert world.loop.time() < 1


async def test_a_partition_without_a_leader_gets_one_in_time_or_is_an_error(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.leaders["t"] = [0, -1, 1]
    for broker in cluster.brokers.values():
        broker.answers[DeleteRecordsRequest] = deleting()
    world.loop.call_later(2, cluster.leaders.update, {"t": [0, 1, 1]})
    async with await admin_of(cluster, default_api_timeout_ms=5000) as admin:
        assert await admin.delete_records({T1: 3}) == {T1: 3}
        cluster.leaders["t"] = [0, -1, 1]
        with pytest.raises(BrokerError, match=r"t-1: LEADER_NOT_AVAILABLE .*within 5 s"):
            await admin.delete_records({T1: 3})
        with pytest.raises(UsageError, match=r"the offset of .* must be from -1"):
            await admin.delete_records({T1: -2})


async def test_a_partition_that_the_answer_leaves_out_is_refused_and_another_is_ignored(
    world: World, cluster: ScriptedCluster
) -> None:
    def confuse(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        request.topics[0].partitions[0].partition_index = 9
        return deleting()(request)

    cluster.brokers[1].answers[DeleteRecordsRequest] = confuse
    async with await admin_of(cluster) as admin:
        with pytest.raises(PartlyRefused, match="t-1: UNKNOWN_SERVER_ERROR") as refused:
            await admin.delete_records({T1: 3, T2: 6})
    assert refused.value.done == {T2: 6}
