"""Elections of leaders, asked of controllers that answer by script."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.client.scripted_broker import ScriptedCluster
from trimtab.client.admin.answers import PartlyRefused
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from trimtab.sim.world import World

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    """Broker 1 takes the controller's requests."""
    cluster = ScriptedCluster(world, leaders={"t": [0, 1, 1]}, controller=1)
    for node_id in range(2):
        cluster.broker(node_id)
    return cluster


async def admin_of(cluster: ScriptedCluster) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"))


def electing(
    whole: ErrorCode, **codes: ErrorCode
) -> Callable[[ElectLeadersRequest], ElectLeadersResponse]:
    """An answer with a code for each partition, such as `t0`."""
    return lambda request: ElectLeadersResponse(
        error_code=whole,
        replica_election_results=[
            ReplicaElectionResult(
                topic=name[:-1],
                partition_result=[PartitionResult(partition_id=int(name[-1]), error_code=code)],
            )
            for name, code in codes.items()
        ],
    )


async def test_the_controller_elects_and_valid_leaders_are_no_errors(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.brokers[1].answers[ElectLeadersRequest] = electing(
        ErrorCode.NONE, t1=ErrorCode.NONE, t0=ErrorCode.NONE, t2=ErrorCode.ELECTION_NOT_NEEDED
    )
    async with await admin_of(cluster) as admin:
        assert await admin.elect_leaders([T2, T1, T0]) == [T0, T1]
        assert await admin.elect_leaders(unclean=True) == [T0, T1]
        assert await admin.elect_leaders([]) == []
    some, of_all = cluster.brokers[1].requests(ElectLeadersRequest)
    assert (some.election_type, of_all.election_type) == (0, 1)
    assert [(each.topic, each.partitions) for each in some.topic_partitions or ()] == [
        ("t", [2, 1, 0])
    ]
    assert of_all.topic_partitions is None


async def test_refused_elections_are_named_and_the_others_done(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.brokers[1].answers[ElectLeadersRequest] = electing(
        ErrorCode.NONE, t1=ErrorCode.NONE, t0=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    )
    async with await admin_of(cluster) as admin:
        with pytest.raises(PartlyRefused, match="t-0: PREFERRED_LEADER_NOT_AVAILABLE") as refused:
            await admin.elect_leaders([T0, T1])
    assert refused.value.done == [T1]
    assert list(refused.value.refusals) == [T0]


async def test_the_new_controller_elects_what_the_old_one_has_not(
    world: World, cluster: ScriptedCluster
) -> None:
    def moved(request: ElectLeadersRequest) -> ElectLeadersResponse:
        cluster.controller = 0
        return electing(ErrorCode.NONE, t0=ErrorCode.NONE, t1=ErrorCode.NOT_CONTROLLER)(request)

    cluster.brokers[1].answers[ElectLeadersRequest] = moved
    cluster.brokers[0].answers[ElectLeadersRequest] = electing(ErrorCode.NONE, t1=ErrorCode.NONE)
    async with await admin_of(cluster) as admin:
        assert await admin.elect_leaders([T0, T1]) == [T0, T1]
    (again,) = cluster.brokers[0].requests(ElectLeadersRequest)
    assert [each.partitions for each in again.topic_partitions or ()] == [[1]]


async def test_a_whole_refusal_is_an_error(world: World, cluster: ScriptedCluster) -> None:
    cluster.brokers[1].answers[ElectLeadersRequest] = electing(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    )
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match="elections: CLUSTER_AUTHORIZATION_FAILED"):
            await admin.elect_leaders()
