"""The brokers of a cluster, asked of brokers that answer by script."""

from __future__ import annotations

import pytest

from tests.unit.client.scripted_broker import ScriptedCluster
from trimtab.client.admin.answers import ClusterDescription
from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.network.connection import Node
from trimtab.kafka.errors import BrokerError, ErrorCode
from trimtab.kafka.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trimtab.kafka.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from trimtab.sim.world import World


async def admin_of(cluster: ScriptedCluster) -> AsyncAdmin:
    for broker in cluster.brokers.values():
        await broker.start()
    return AsyncAdmin(cluster.bootstrap, random=cluster.world.random("admin"))


def describe(request: DescribeClusterRequest) -> DescribeClusterResponse:
    assert request.include_fenced_brokers
    return DescribeClusterResponse(
        cluster_id="c",
        controller_id=1,
        brokers=[
            DescribeClusterBroker(broker_id=2, host="h2", port=2, rack="r", is_fenced=True),
            DescribeClusterBroker(broker_id=1, host="h1", port=1),
        ],
    )


async def test_fenced_brokers_are_told_apart(world: World) -> None:
    cluster = ScriptedCluster(world)
    cluster.broker(0).answers[DescribeClusterRequest] = describe
    async with await admin_of(cluster) as admin:
        assert await admin.cluster(include_fenced=True) == ClusterDescription(
            "c", 1, [Node(1, "h1", 1), Node(2, "h2", 2, "r")], frozenset({2})
        )
        assert (await admin.cluster()).fenced == frozenset()


async def test_older_brokers_do_not_list_fenced_ones(world: World) -> None:
    cluster = ScriptedCluster(world)
    cluster.broker(0, {DescribeClusterRequest: (0, 1)})
    async with await admin_of(cluster) as admin:
        with pytest.raises(BrokerError, match="does not list fenced brokers"):
            await admin.cluster(include_fenced=True)


async def test_the_controller_unregisters_a_broker(world: World) -> None:
    cluster = ScriptedCluster(world, controller=1)
    cluster.broker(0)
    controller = cluster.broker(1)
    controller.answers[UnregisterBrokerRequest] = lambda request: UnregisterBrokerResponse(
        error_code=ErrorCode.NONE if request.broker_id == 0 else ErrorCode.BROKER_ID_NOT_REGISTERED,
        error_message=None,
    )
    async with await admin_of(cluster) as admin:
        await admin.unregister_broker(0)
        with pytest.raises(BrokerError, match="broker 7: BROKER_ID_NOT_REGISTERED"):
            await admin.unregister_broker(7)
    assert [each.broker_id for each in controller.requests(UnregisterBrokerRequest)] == [0, 7]
