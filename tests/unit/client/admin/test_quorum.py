"""DescribeQuorum, asked of brokers that answer by script."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.scripted_broker import ScriptedCluster
from trimtab.client.admin.answers import Quorum, QuorumReplica
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionDataResponse,
    ReplicaState,
    TopicDataResponse,
)
from trimtab.sim.world import World


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    cluster = ScriptedCluster(world)
    cluster.broker(0).answers[DescribeQuorumRequest] = answering(QUORUM)
    return cluster


def state(*values: int) -> ReplicaState:
    return ReplicaState(
        replica_id=values[0],
        log_end_offset=values[1],
        last_fetch_timestamp=values[2],
        last_caught_up_timestamp=values[3],
    )


QUORUM = PartitionDataResponse(
    partition_index=0,
    leader_id=3001,
    leader_epoch=4,
    high_watermark=90,
    current_voters=[state(3000, 89, 1_000, 900), state(3001, 91, 1_700, 1_700)],
    observers=[state(0, 90, 1_600, 1_500), state(1, -1, -1, -1), state(2, 0, 0, 0)],
)


def answering(*quorums: PartitionDataResponse, **whole: Any) -> Any:
    def answer(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        (topic,) = request.topics
        assert topic.topic_name == "__cluster_metadata"
        assert [each.partition_index for each in topic.partitions] == [0]
        described = TopicDataResponse(topic_name=topic.topic_name, partitions=list(quorums))
        return DescribeQuorumResponse(topics=[described], **whole)

    return answer


async def admin_of(cluster: ScriptedCluster) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"))


async def test_voters_and_observers_with_how_far_they_are(
    world: World, cluster: ScriptedCluster
) -> None:
    async with await admin_of(cluster) as admin:
        assert await admin.describe_quorum() == Quorum(
            leader_id=3001,
            leader_epoch=4,
            high_watermark=90,
            voters=(
                QuorumReplica(3000, 89, 1_000, 900),
                QuorumReplica(3001, 91, 1_700, 1_700),
            ),
            observers=(
                QuorumReplica(0, 90, 1_600, 1_500),
                QuorumReplica(1, None, None, None),
                QuorumReplica(2, 0, 0, 0),
            ),
        )


async def test_brokers_before_kafka_3_3_do_not_tell_times(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.brokers[0].versions[DescribeQuorumRequest] = (0, 0)
    async with await admin_of(cluster) as admin:
        quorum = await admin.describe_quorum()
        assert quorum.observers[0] == QuorumReplica(0, 90, None, None)


async def test_the_leader_is_waited_for(world: World, cluster: ScriptedCluster) -> None:
    broker = cluster.brokers[0]
    broker.answers[DescribeQuorumRequest] = answering(
        PartitionDataResponse(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    )

    async with await admin_of(cluster) as admin:
        world.loop.call_later(
            2, broker.answers.__setitem__, DescribeQuorumRequest, answering(QUORUM)
        )
        assert (await admin.describe_quorum()).leader_id == 3001
        assert 2 <= world.loop.time() < 4


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            answering(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="no"),
            r"quorum: CLUSTER_AUTHORIZATION_FAILED \(31\): no",
        ),
        (
            answering(
                PartitionDataResponse(
                    partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
            ),
            r"quorum: UNKNOWN_TOPIC_OR_PARTITION \(3\)",
        ),
        (answering(), "describes 0 quorums"),
        (answering(QUORUM, QUORUM), "describes 2 quorums"),
    ],
)
async def test_refusals_are_errors(
    world: World, cluster: ScriptedCluster, answer: Any, text: str
) -> None:
    cluster.brokers[0].answers[DescribeQuorumRequest] = answer
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match=text):
            await admin.describe_quorum()


async def test_a_cluster_without_a_quorum_says_so(world: World, cluster: ScriptedCluster) -> None:
    del cluster.brokers[0].versions[DescribeQuorumRequest]
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match=r"UNSUPPORTED_VERSION .* serves DescribeQuorum not"):
            await admin.describe_quorum()
        assert world.loop.time() < 1
