"""The controller over a network, including `trimtab.cluster.controller.quorum`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from errno import ENOSPC
from random import Random
from typing import Any, TypeVar

import pytest

from tests.unit.secret import SECRET
from trimtab.cluster.controller.node import ControllerNode, is_refused
from trimtab.cluster.metadata.batches import TOPIC, TOPIC_ID, read_batches
from trimtab.cluster.server.cluster_secret import CONTROLLER
from trimtab.cluster.server.peer import Peer, PeerLost
from trimtab.kafka.errors import ErrorCode, UsageError
from trimtab.kafka.wire.messages.api_versions import ApiVersionsRequest
from trimtab.kafka.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from trimtab.kafka.wire.messages.broker_registration import BrokerRegistrationRequest, Listener
from trimtab.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.kafka.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.kafka.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from trimtab.kafka.wire.sentinels import NO_TIMESTAMP
from trimtab.sim.world import World

T = TypeVar("T")
NODE = 3000
SERVED = {1, 17, 18, 19, 20, 33, 36, 37, 43, 44, 45, 46, 55, 56, 57, 59, 60, 62, 63, 64, 67}


class Lab:
    """A controller node on the host `controller`, and its clients."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.node: ControllerNode

    def run(self, scenario: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            self.node = self.make_node()
            await self.node.listen("controller", 9093)
            await self.node.start()
            result = await scenario()
            await self.node.close()
            return result

        return self.world.run(run())

    def make_node(self, **options: object) -> ControllerNode:
        return ControllerNode(
            NODE, "lab", self.world.disk("c"), SECRET, options, self.world.now_ms, Random(1)
        )

    async def connect(self) -> Peer:
        return await Peer.connect("controller", 9093, "lab", 5, secret=SECRET, whom=CONTROLLER)

    async def register(self, peer: Peer, port: int = 9092) -> int:
        """Broker 1, unfenced; its epoch."""
        response = await peer.ask(
            BrokerRegistrationRequest(
                broker_id=1,
                cluster_id="lab",
                incarnation_id=b"i" * 16,
                listeners=[
                    Listener(name="PLAINTEXT", host="broker", port=port, security_protocol=0)
                ],
                rack=None,
            )
        )
        assert response.error_code == 0
        beat = BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=response.broker_epoch,
            current_metadata_offset=response.broker_epoch,
            want_fence=False,
            want_shut_down=False,
        )
        assert not (await peer.ask(beat)).is_fenced
        return int(response.broker_epoch)

    async def fetch(self, peer: Peer, offset: int, max_wait_ms: int = 0) -> Any:
        response = await peer.ask(
            FetchRequest(
                replica_state=ReplicaState(replica_id=1),
                max_wait_ms=max_wait_ms,
                min_bytes=1,
                topics=[
                    FetchTopic(
                        topic_id=TOPIC_ID,
                        partitions=[
                            FetchPartition(
                                partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
                            )
                        ],
                    )
                ],
            )
        )
        return response.responses[0].partitions[0]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with World(seed=1) as world:
        yield Lab(world)


def create(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=30_000)


async def test_brokers_register_follow_and_ask(lab: Lab) -> None:
    asking, following = await lab.connect(), await lab.connect()
    epoch = await lab.register(asking)
    data = await lab.fetch(following, 0)
    records = [record for _, record in read_batches(data.records)]
    assert records[epoch].broker_id == 1
    waiting = lab.fetch(following, data.high_watermark, max_wait_ms=5000)
    following_task = asyncio.ensure_future(waiting)

    async def follow() -> None:
        await following_task
        await lab.fetch(following, lab.node.controller.journal.end_offset)

    response, _ = await asyncio.gather(asking.ask(create("a")), follow())
    assert response.topics[0].error_code == 0
    assert lab.world.loop.time() < 0.5  # the broker had replayed it, so the response did not wait


async def test_a_broker_whose_process_ends_is_fenced_at_once(lab: Lab) -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "broker", 9092)
    peer, other = await lab.connect(), await lab.connect()
    await lab.register(peer)
    brokers = lab.node.controller.image.brokers
    other.close()
    await asyncio.sleep(1)
    assert not brokers[1].fenced
    peer.close()
    await asyncio.sleep(1)
    assert not brokers[1].fenced  # its address still accepts connections
    server.close()
    await asyncio.sleep(1)
    assert brokers[1].fenced


async def test_a_disconnected_broker_keeps_its_session_timeout(lab: Lab) -> None:
    peer = await lab.connect()
    await lab.register(peer)
    lab.world.network.cut("broker")
    peer.close()
    await asyncio.sleep(8)
    assert not lab.node.controller.image.brokers[1].fenced
    await asyncio.sleep(2)
    assert lab.node.controller.image.brokers[1].fenced


def test_is_refused_is_true_if_no_process_listens(lab: Lab) -> None:
    async def scenario() -> list[bool]:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "x", 1)
        found = [await is_refused("x", 1), await is_refused("x", 2)]
        lab.world.network.cut("x")
        found += [await is_refused("x", 1), await is_refused("x", 2)]
        server.close()
        return found

    assert lab.run(scenario) == [False, True, False, False]


def test_refused_on_the_loopback_too() -> None:
    async def scenario() -> list[bool]:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "localhost", 0)
        port = server.sockets[0].getsockname()[1]
        found = [await is_refused("localhost", port)]
        server.close()
        await server.wait_closed()
        found += [await is_refused("localhost", port), await is_refused("no.such.host.invalid", 1)]
        return found

    assert asyncio.run(scenario()) == [False, True, False]


async def test_the_controller_describes_itself(lab: Lab) -> None:
    peer = await lab.connect()
    await lab.register(peer)
    await lab.fetch(await lab.connect(), 3)
    end_offset = lab.node.controller.journal.end_offset
    response = await peer.ask(DescribeClusterRequest(endpoint_type=2))
    assert (response.error_code, response.cluster_id, response.controller_id) == (
        0,
        "lab",
        NODE,
    )
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port) == (NODE, "controller", 9093)
    for version in (0, 1):  # version 0 has no endpoint types
        response = await peer.ask(DescribeClusterRequest(endpoint_type=1), version)
        assert response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    there = TopicData(topic_name=TOPIC, partitions=[PartitionData(partition_index=0)])
    described = await peer.ask(DescribeQuorumRequest(topics=[there]))
    ((quorum,),) = (topic.partitions for topic in described.topics)
    assert (quorum.leader_id, quorum.leader_epoch) == (NODE, 1)
    assert quorum.high_watermark == end_offset
    assert [(each.replica_id, each.log_end_offset) for each in quorum.current_voters] == [
        (NODE, end_offset)
    ]
    assert [(each.replica_id, each.log_end_offset) for each in quorum.observers] == [(1, 3)]
    now_ms = lab.world.now_ms()
    (voter,), (observer,) = quorum.current_voters, quorum.observers
    for each in (voter.last_fetch_timestamp, voter.last_caught_up_timestamp):
        assert 0 <= now_ms - each < 100
    assert 0 <= now_ms - observer.last_fetch_timestamp < 100
    # Its heartbeat had the whole log, to which its activation was added.
    assert observer.last_caught_up_timestamp < observer.last_fetch_timestamp
    assert observer.last_caught_up_timestamp != NO_TIMESTAMP
    assert described.nodes[0].listeners[0].port == 9093
    # A request that names another partition is refused, as with Kafka's quorum.
    other = TopicData(topic_name="other", partitions=[PartitionData(partition_index=0)])
    for topics in ([there, other], [there, there], [other]):
        described = await peer.ask(DescribeQuorumRequest(topics=topics))
        assert [topic.topic_name for topic in described.topics] == [
            topic.topic_name for topic in topics
        ]
        for topic in described.topics:
            assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert topic.partitions[0].observers == []
    for wait_s, observers in ((250, 1), (50, 0)):
        await asyncio.sleep(wait_s)
        described = await peer.ask(DescribeQuorumRequest(topics=[there]))
        assert len(described.topics[0].partitions[0].observers) == observers


def test_every_api_that_is_served_is_advertised(lab: Lab) -> None:
    async def scenario() -> set[int]:
        peer = await lab.connect()
        request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        return {api.api_key for api in (await peer.ask(request)).api_keys}

    assert lab.run(scenario) == SERVED


async def test_a_node_whose_disk_fails_closes_connections_and_sets_failed(lab: Lab) -> None:
    peer, waiting = await lab.connect(), await lab.connect()
    await lab.register(peer)
    end = lab.node.controller.journal.end_offset
    fetching = asyncio.ensure_future(lab.fetch(waiting, end, max_wait_ms=60_000))
    lab.world.disk("c").fault = lambda action, path: ENOSPC if action == "append" else 0
    with pytest.raises(PeerLost):
        await peer.ask(create("a"))
    with pytest.raises(PeerLost):
        await fetching
    await asyncio.wait_for(lab.node.failed.wait(), 1)
    with pytest.raises(PeerLost):
        await lab.connect()
    lab.world.disk("c").fault = None


def test_a_directory_has_one_controller(lab: Lab) -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError, match="in use"):
            lab.make_node()

    lab.run(scenario)
    lab.run(scenario)


def test_options_are_checked(lab: Lab) -> None:
    with pytest.raises(UsageError):
        lab.make_node(no_such_option=1)
