"""Ends of replicas, asked of brokers that answer by script, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.scripted_broker import HANG_UP, NO_ANSWER, ScriptedCluster
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.admin.replica_ends import ReplicaEnds
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.sim.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Replicas:
    """A broker's answer: its replicas end where the test says; it has no others."""

    def __init__(self, **ends: int) -> None:
        self.ends = ends

    def __call__(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        assert request.replica_id == -2
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        self._answer(topic.name, asked.partition_index, asked.timestamp)
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _answer(self, topic: str, index: int, timestamp: int) -> ListOffsetsPartitionResponse:
        assert timestamp == -1
        end = self.ends.get(f"{topic}{index}")
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if end is None else ErrorCode.NONE
        return ListOffsetsPartitionResponse(
            partition_index=index, error_code=code, offset=-1 if end is None else end
        )


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    cluster = ScriptedCluster(world, leaders={"t": [0, 0]})
    for node_id, answer in enumerate((Replicas(t0=10, t1=7), Replicas(t0=8, t1=7), Replicas())):
        cluster.broker(node_id).answers[ListOffsetsRequest] = answer
    return cluster


async def admin_of(cluster: ScriptedCluster, **options: Any) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"), **options)


def told(ends: ReplicaEnds) -> list[int | str]:
    """The ends, or the names of the errors."""
    return [end.code.name if isinstance(end, BrokerError) else end for end in ends.values()]


async def test_each_broker_tells_where_its_own_replicas_end(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        found = await admin.list_replica_ends({0: [("t", 1), ("t", 0)], 1: iter([T0]), 2: []})
        assert found == {0: {T1: 7, T0: 10}, 1: {T0: 8}, 2: {}}
        assert list(found[0]) == [T1, T0]
        assert cluster.brokers[2].requests(ListOffsetsRequest) == []
        assert await admin.list_replica_ends({}) == {}


async def test_a_broker_without_a_replica_says_so_for_that_one(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.brokers[0].answers[ListOffsetsRequest] = Replicas(t1=7)
    async with await admin_of(cluster) as admin:
        (ends,) = (await admin.list_replica_ends({0: [T0, T1]})).values()
        assert ends[T1] == 7
        assert str(ends[T0]) == (
            "t-0: NOT_LEADER_OR_FOLLOWER (6): broker 0 (broker-0:9092) does not tell where its"
            " replica ends"
        )
        assert world.loop.time() < 0.1, "it is not asked again"


async def test_a_broker_that_leaves_a_partition_out_has_not_told(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.brokers[0].answers[ListOffsetsRequest] = lambda request: ListOffsetsResponse(
        topics=[Replicas(t0=1)(request).topics[0]][: len(request.topics) - 1]
    )
    async with await admin_of(cluster) as admin:
        (ends,) = (await admin.list_replica_ends({0: [T0]})).values()
        assert told(ends) == ["UNKNOWN_SERVER_ERROR"]


@pytest.mark.parametrize("partitions", [1, 2000, 2001, 30_000])
async def test_a_broker_is_asked_for_many_in_several_requests(
    world: World, cluster: ScriptedCluster, partitions: int
) -> None:
    wanted = [TopicPartition(f"t{number % 7}", number) for number in range(partitions)]
    ends = {f"{topic}{index}": index + 5 for topic, index in wanted}
    cluster.brokers[1].answers[ListOffsetsRequest] = Replicas(**ends)
    async with await admin_of(cluster) as admin:
        found = await admin.list_replica_ends({1: wanted})
    assert found == {1: {each: each.partition + 5 for each in wanted}}
    asked = [
        sum(len(topic.partitions) for topic in request.topics)
        for request in cluster.brokers[1].requests(ListOffsetsRequest)
    ]
    assert sum(asked) == partitions
    assert max(asked) <= 2000
    assert len(asked) == -(-partitions // 2000)


async def test_brokers_are_asked_at_once_and_one_that_hangs_spoils_nothing(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        await admin.cluster()
        for broker in cluster.brokers.values():  # whichever was asked for metadata
            answers = dict(broker.answers)
            broker.answers = dict.fromkeys(answers, lambda request: NO_ANSWER)
            healthy = [each for each in cluster.brokers if each != broker.id]
            for _ in range(3):
                began = world.loop.time()
                wanted = {node_id: [T0, T1] for node_id in cluster.brokers}
                found = await admin.list_replica_ends(wanted, timeout_ms=2000)
                assert world.loop.time() - began == pytest.approx(2, abs=0.1)
                assert told(found[broker.id]) == ["REQUEST_TIMED_OUT"] * 2
                assert f"{broker.host}:9092) did not answer" in str(found[broker.id][T0])
                for node_id in healthy:
                    assert "REQUEST_TIMED_OUT" not in told(found[node_id])
            broker.stop()
            broker.answers = answers
            await broker.start()
            found = await admin.list_replica_ends({broker.id: [T0]}, timeout_ms=2000)
            assert "REQUEST_TIMED_OUT" not in told(found[broker.id]), "it is asked again"


async def test_a_broker_that_hangs_is_not_alive_once_the_others_say_so(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        await admin.list_replica_ends({0: [T0], 1: [T0], 2: [T0]})
        hung = cluster.brokers.pop(2)
        hung.answers = dict.fromkeys(hung.answers, lambda request: NO_ANSWER)
        found = await admin.list_replica_ends({0: [T0], 2: [T0]})
        assert world.loop.time() == pytest.approx(30, abs=1), "request.timeout.ms"
        assert (told(found[0]), told(found[2])) == ([10], ["BROKER_NOT_AVAILABLE"])


async def test_what_was_told_before_a_broker_hangs_is_kept(
    world: World, cluster: ScriptedCluster
) -> None:
    wanted = [TopicPartition("t", number) for number in range(2500)]
    tell = Replicas(**{f"t{number}": number for number in range(2500)})
    asked: list[Any] = []

    def answer_once(request: Any) -> object:
        asked.append(request)
        return tell(request) if len(asked) == 1 else NO_ANSWER

    cluster.brokers[0].answers[ListOffsetsRequest] = answer_once
    async with await admin_of(cluster) as admin:
        (ends,) = (await admin.list_replica_ends({0: wanted}, timeout_ms=1000)).values()
    assert told(ends) == [*range(2000), *["REQUEST_TIMED_OUT"] * 500]


async def test_a_broker_that_hangs_up_is_asked_again(
    world: World, cluster: ScriptedCluster
) -> None:
    tell, answers = Replicas(t0=3), [HANG_UP, HANG_UP]
    cluster.brokers[0].answers[ListOffsetsRequest] = lambda request: (
        answers.pop() if answers else tell(request)
    )
    async with await admin_of(cluster) as admin:
        assert await admin.list_replica_ends({0: [T0]}) == {0: {T0: 3}}


async def test_a_broker_that_is_not_alive_is_named_at_once(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        assert await admin.list_replica_ends({2: [T0], 1: [T0]}) != {}
        gone = cluster.brokers.pop(2)
        gone.stop()
        found = await admin.list_replica_ends({2: [T0, T1], 1: [T0], 9: [T0]})
        assert world.loop.time() < 1
        assert found[1] == {T0: 8}
        assert told(found[2]) == ["BROKER_NOT_AVAILABLE"] * 2
        assert str(found[9][T0]) == (
            "broker 9: BROKER_NOT_AVAILABLE (8): it is not alive; alive are 0, 1"
        )
        # It comes back: no answer of before is remembered.
        cluster.brokers[2] = gone
        await gone.start()
        assert told((await admin.list_replica_ends({2: [T0]}))[2]) == ["NOT_LEADER_OR_FOLLOWER"]


async def test_a_broker_that_is_too_old_is_the_only_error(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.brokers[0].versions[ListOffsetsRequest] = (0, 0)
    async with await admin_of(cluster) as admin:
        found = await admin.list_replica_ends({0: [T0], 1: [T0]})
        assert told(found[0]) == ["UNSUPPORTED_VERSION"]
        assert found[1] == {T0: 8}


async def test_without_any_broker_there_is_no_answer(
    world: World, cluster: ScriptedCluster
) -> None:
    for broker in cluster.brokers.values():
        broker.answers[MetadataRequest] = lambda request: NO_ANSWER
    async with await admin_of(cluster) as admin:
        with pytest.raises(Unavailable, match="cannot find the brokers within 3 s"):
            await admin.list_replica_ends({0: [T0]}, timeout_ms=3000)
        assert world.loop.time() == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize(
    ("replicas", "timeout_ms", "text"),
    [
        ([T0], None, r"give a dictionary, as in \{0: \[\('t', 0\)\]\}"),
        ({-1: [T0]}, None, "broker=-1: must be from 0"),
        ({"0": [T0]}, None, "broker='0': is of type str"),
        ({0: T0}, None, "give a list of"),
        ({0: [("t", -1)]}, None, "partition=-1"),
        ({0: [T0]}, "1", "timeout_ms='1': must be a number of milliseconds"),
    ],
)
async def test_wrong_arguments_are_named(
    world: World, cluster: ScriptedCluster, replicas: Any, timeout_ms: Any, text: str
) -> None:
    async with await admin_of(cluster) as admin:
        with pytest.raises(UsageError, match=text):
            await admin.list_replica_ends(replicas, timeout_ms)
    with pytest.raises(UsageError, match="closed"):
        await admin.list_replica_ends({})
