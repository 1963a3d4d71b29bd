"""Asking leaders for the sizes of record batches, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.unit.client.scripted_broker import ScriptedCluster
from trimtab.client.fetcher.batch_sizes import Ahead, list_batch_sizes
from trimtab.client.network.session import Session
from trimtab.client.options import CONSUMER, client_options
from trimtab.errors import ErrorCode, Unavailable
from trimtab.records import TopicPartition
from trimtab.sim.world import World
from trimtab.wire.messages.list_batch_sizes import (
    ListBatchSizesPartitionResult,
    ListBatchSizesRequest,
    ListBatchSizesResponse,
    ListBatchSizesTopicResult,
)

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
WANTED = {ZERO: Ahead(0, 10, 100), ONE: Ahead(0, 10, 100)}


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    """Two brokers that list one batch of 7 bytes in each partition that they lead."""
    cluster = ScriptedCluster(world, leaders={"t": [0, 1]})
    for node_id in range(2):
        broker = cluster.broker(node_id, {ListBatchSizesRequest: (0, 0)})
        broker.answers[ListBatchSizesRequest] = lister(cluster, node_id)
    return cluster


def lister(
    cluster: ScriptedCluster, node_id: int
) -> Callable[[ListBatchSizesRequest], ListBatchSizesResponse]:
    def answer(request: ListBatchSizesRequest) -> ListBatchSizesResponse:
        return ListBatchSizesResponse(
            topics=[
                ListBatchSizesTopicResult(
                    name=topic.name,
                    partitions=[
                        ListBatchSizesPartitionResult(
                            partition_index=each.partition_index,
                            error_code=ErrorCode.NONE
                            if cluster.leaders[topic.name][each.partition_index] == node_id
                            else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                            next_offsets=[1],
                            sizes=[7],
                            max_timestamps=[0],
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return answer


def open_session(cluster: ScriptedCluster) -> Session:
    return Session(client_options(CONSUMER, cluster.bootstrap, {}), Random(1))


async def test_a_leader_that_has_moved_is_asked_for_again(
    world: World, cluster: ScriptedCluster
) -> None:
    for broker in cluster.brokers.values():
        await broker.start()
    session = open_session(cluster)
    found = await list_batch_sizes(session.connections, session.metadata, WANTED)
    assert [found[each].sizes for each in (ZERO, ONE)] == [[7], [7]]
    cluster.leaders["t"] = [1, 0]
    cluster.leader_epoch = 1
    found = await list_batch_sizes(session.connections, session.metadata, WANTED)
    assert {str(each.error) for each in found.values()} != {"None"}
    found = await list_batch_sizes(session.connections, session.metadata, WANTED)
    assert [found[each].sizes for each in (ZERO, ONE)] == [[7], [7]]
    await session.close()


async def test_one_leaders_answer_counts_although_another_is_silent(
    world: World, cluster: ScriptedCluster
) -> None:
    for broker in cluster.brokers.values():
        await broker.start()
    session = open_session(cluster)
    await list_batch_sizes(session.connections, session.metadata, WANTED)
    cluster.brokers[1].stop()
    found = await list_batch_sizes(session.connections, session.metadata, WANTED)
    assert set(found) == {ZERO}
    with pytest.raises(Unavailable):
        await list_batch_sizes(session.connections, session.metadata, {ONE: WANTED[ONE]})
    cluster.leaders["t"] = [0, 0]
    cluster.leader_epoch = 1
    found = await list_batch_sizes(session.connections, session.metadata, WANTED)
    assert found[ONE].sizes == [7]
    await session.close()
