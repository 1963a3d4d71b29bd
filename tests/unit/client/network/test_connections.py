"""Connections against brokers that answer by script, in virtual time.

Long because the cases share one script of brokers, with its requests and refusals.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import pkgutil
import ssl
from dataclasses import replace
from typing import Any

import pytest

import trimtab.client
from tests.unit.client.scripted_broker import (
    NO_ANSWER,
    RequestClass,
    ScriptedBroker,
    ScriptedCluster,
    batch,
)
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.bootstrap import parse_bootstrap_servers
from trimtab.client.network.connection import ConnectionOptions, Node
from trimtab.client.network.connections import Connections
from trimtab.kafka.errors import (
    AuthenticationFailed,
    BrokerError,
    CorruptData,
    ErrorCode,
    Unavailable,
)
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from trimtab.kafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from trimtab.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from trimtab.kafka.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from trimtab.kafka.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from trimtab.kafka.wire.messages.create_partitions import CreatePartitionsRequest
from trimtab.kafka.wire.messages.create_topics import CreateTopicsRequest
from trimtab.kafka.wire.messages.delete_groups import DeleteGroupsRequest
from trimtab.kafka.wire.messages.delete_records import DeleteRecordsRequest
from trimtab.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from trimtab.kafka.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.kafka.wire.messages.describe_configs import DescribeConfigsRequest
from trimtab.kafka.wire.messages.describe_groups import DescribeGroupsRequest
from trimtab.kafka.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from trimtab.kafka.wire.messages.describe_producers import DescribeProducersRequest
from trimtab.kafka.wire.messages.describe_quorum import DescribeQuorumRequest
from trimtab.kafka.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from trimtab.kafka.wire.messages.describe_transactions import DescribeTransactionsRequest
from trimtab.kafka.wire.messages.elect_leaders import ElectLeadersRequest
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest
from trimtab.kafka.wire.messages.fetch import FetchRequest
from trimtab.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest
from trimtab.kafka.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest
from trimtab.kafka.wire.messages.leave_group import LeaveGroupRequest
from trimtab.kafka.wire.messages.list_groups import ListGroupsRequest
from trimtab.kafka.wire.messages.list_offsets import ListOffsetsRequest
from trimtab.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from trimtab.kafka.wire.messages.list_transactions import ListTransactionsRequest
from trimtab.kafka.wire.messages.metadata import MetadataRequest
from trimtab.kafka.wire.messages.offset_commit import OffsetCommitRequest
from trimtab.kafka.wire.messages.offset_delete import OffsetDeleteRequest
from trimtab.kafka.wire.messages.offset_fetch import OffsetFetchRequest
from trimtab.kafka.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from trimtab.kafka.wire.messages.produce import ProduceRequest
from trimtab.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from trimtab.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest
from trimtab.kafka.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from trimtab.kafka.wire.messages.unregister_broker import UnregisterBrokerRequest
from trimtab.kafka.wire.messages.update_features import UpdateFeaturesRequest
from trimtab.kafka.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from trimtab.kafka.wire.schema import Request
from trimtab.sim.world import World

OPTIONS = ConnectionOptions(
    client_id="test", request_timeout=30.0, connect_timeout=10.0, backoff=Backoff(0.05, 1.0)
)


@pytest.fixture
def cluster(world: World) -> ScriptedCluster:
    return ScriptedCluster(world)


def connections_to(
    cluster: ScriptedCluster, bootstrap: str | None = None, **options: Any
) -> Connections:
    nodes = parse_bootstrap_servers(bootstrap or cluster.bootstrap)
    return Connections(nodes, replace(OPTIONS, **options), cluster.world.random("client"))


def anything() -> MetadataRequest:
    return MetadataRequest(topics=[])


async def test_the_newest_version_that_both_sides_speak(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0, {MetadataRequest: (0, 9), FetchRequest: (4, 99)})
    await broker.start()
    connection = await connections_to(cluster).connect(-1)
    assert connection.version_of(MetadataRequest) == 9
    assert connection.version_of(MetadataRequest, at_most=4) == 4
    assert connection.version_of(FetchRequest) == 18
    await connection.request(anything())
    assert broker.asked[-1].version == 9


@pytest.mark.kip(511)
@pytest.mark.parametrize("newest", [0, 2, 3])
async def test_a_broker_with_older_api_versions_is_asked_again(
    world: World, cluster: ScriptedCluster, newest: int
) -> None:
    broker = cluster.broker(0, {ApiVersionsRequest: (0, newest)})
    await broker.start()
    connection = await connections_to(cluster).connect(-1)
    assert [asked.version for asked in broker.asked] == [4, newest]
    assert connection.version_of(MetadataRequest) == 13


@pytest.mark.parametrize(
    ("versions", "served"),
    [({FetchRequest: (0, 3)}, "0 to 3"), ({FetchRequest: (20, 22)}, "20 to 22")],
)
async def test_without_a_common_version_both_ranges_are_named(
    world: World,
    cluster: ScriptedCluster,
    versions: dict[RequestClass, tuple[int, int]],
    served: str,
) -> None:
    broker = cluster.broker(0, versions)
    await broker.start()
    connection = await connections_to(cluster).connect(-1)
    expected = rf"UNSUPPORTED_VERSION.*serves Fetch {served}; this client needs 4 to 18"
    with pytest.raises(BrokerError, match=expected):
        connection.version_of(FetchRequest)


async def test_an_api_that_is_not_served(world: World, cluster: ScriptedCluster) -> None:
    broker = cluster.broker(0)
    del broker.versions[FetchRequest]
    await broker.start()
    connection = await connections_to(cluster).connect(-1)
    assert not connection.serves(FetchRequest)
    with pytest.raises(BrokerError, match="serves Fetch not at all"):
        connection.version_of(FetchRequest)


async def test_failed_attempts_to_connect_come_ever_later(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.broker(0)  # never started
    connections = connections_to(cluster)
    failed_at = []
    for _ in range(8):
        with pytest.raises(Unavailable, match=r"broker -1 \(broker-0:9092\) cannot be reached"):
            await connections.connect(-1)
        failed_at.append(world.loop.time())
    waits = [later - earlier for earlier, later in itertools.pairwise(failed_at)]
    for wait, nominal in zip(waits, (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert 0.8 * nominal <= wait <= 1.2 * nominal + 0.01  # and the way there


async def test_the_back_off_is_over_once_connected(world: World, cluster: ScriptedCluster) -> None:
    broker = cluster.broker(0)
    connections = connections_to(cluster)
    for _ in range(6):
        with pytest.raises(Unavailable):
            await connections.connect(-1)
    assert connections.last_error(-1) is not None
    await broker.start()
    connection = await connections.connect(-1)
    assert connections.last_error(-1) is None
    connection.close()
    before = world.loop.time()
    await asyncio.sleep(0.001)
    assert await connections.connect(-1) is not connection
    assert world.loop.time() - before < 0.07


async def test_who_asks_while_a_connection_opens_shares_it(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    await broker.start()
    connections = connections_to(cluster)
    first, second = await asyncio.gather(connections.connect(-1), connections.connect(-1))
    assert first is second
    assert len(broker.links) == 1


async def test_a_request_without_an_answer_ends_its_connection(
    world: World, cluster: ScriptedCluster
) -> None:
    """What comes after a lost response may be out of order, so nothing else is read either."""
    broker = cluster.broker(0)
    broker.answers[MetadataRequest] = lambda request: NO_ANSWER
    await broker.start()
    connections = connections_to(cluster)
    connection = await connections.connect(-1)
    sent_at = world.loop.time()
    requests = [
        asyncio.create_task(connection.request(anything(), timeout=timeout))
        for timeout in (100.0, 2.0)
    ]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert world.loop.time() - sent_at == pytest.approx(2.0)
    for outcome in outcomes:
        assert isinstance(outcome, Unavailable)
        assert "broker -1 (broker-0:9092) did not answer Metadata in time" in str(outcome)
    assert connections.ready(-1) is None
    broker.answers[MetadataRequest] = cluster.metadata
    await connections.request(-1, anything())
    assert len(broker.links) == 2


async def test_an_answered_request_does_not_time_out_later(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    await broker.start()
    connection = await connections_to(cluster).connect(-1)
    await connection.request(anything(), timeout=1.0)
    await asyncio.sleep(60)
    assert connection.is_open


async def test_a_connection_that_is_lost_fails_what_is_in_flight(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    broker.answers[MetadataRequest] = lambda request: NO_ANSWER
    changes: list[float] = []
    await broker.start()
    connections = connections_to(cluster)
    connections.on_change(lambda: changes.append(world.loop.time()))
    connection = await connections.connect(-1)
    request = asyncio.create_task(connection.request(anything()))
    await asyncio.sleep(1)
    broker.stop()
    with pytest.raises(Unavailable, match="closed the connection"):
        await request
    assert changes[-1] == pytest.approx(1.0, abs=0.01)
    with pytest.raises(Unavailable, match=r"not connected|closed the connection"):
        await connection.request(anything())


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"\0\0\0\4\0\0\3\xe7",  # another correlation id
        b"\0\0\0\5\0\0\0\2\xff",  # no such response
        b"\xff\xff\xff\xff",  # a negative length
    ],
)
async def test_nonsense_ends_the_connection(
    world: World, cluster: ScriptedCluster, bytes_sent: bytes
) -> None:
    broker = cluster.broker(0)

    def send_nonsense(request: object) -> object:
        transport = broker.links[0].transport
        assert transport is not None
        transport.write(bytes_sent)
        return NO_ANSWER

    broker.answers[MetadataRequest] = send_nonsense
    await broker.start()
    connection = await connections_to(cluster).connect(-1)
    with pytest.raises(CorruptData):
        await connection.request(anything())
    assert not connection.is_open


async def test_an_answer_that_nobody_asked_for_ends_the_connection(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    await broker.start()
    connections = connections_to(cluster)
    await connections.connect(-1)
    transport = broker.links[0].transport
    assert transport is not None
    transport.write(b"\0\0\0\4\0\0\0\1")
    await asyncio.sleep(1)
    assert connections.ready(-1) is None


def refuse(broker: ScriptedBroker) -> None:
    broker.answer_api_versions = lambda version: (  # type: ignore[method-assign]
        ApiVersionsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api_keys=[]),
        version,
    )


async def test_no_connection_is_left_to_a_broker_that_refuses_its_versions(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    refuse(broker)
    await broker.start()
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        await connections_to(cluster).connect(-1)
    await asyncio.sleep(1)
    assert [link.transport for link in broker.links] == [None]


async def test_no_connection_is_left_to_a_broker_that_does_not_tell_its_versions(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    await broker.start()
    world.network.cut("broker-0", "localhost")
    connecting = asyncio.create_task(connections_to(cluster).connect(-1))
    with pytest.raises(Unavailable, match="in time"):
        await connecting
    assert world.loop.time() == pytest.approx(OPTIONS.connect_timeout, abs=0.01)
    world.network.heal("broker-0", "localhost")
    await asyncio.sleep(10)
    assert [link.transport for link in broker.links if link.transport] == []


async def test_any_broker_will_do_and_if_none_does_all_are_named(
    world: World, cluster: ScriptedCluster
) -> None:
    brokers = [cluster.broker(node_id) for node_id in range(3)]
    connections = connections_to(cluster)
    with pytest.raises(Unavailable) as caught:
        await connections.connect_any()
    for broker in brokers:
        assert f"({broker.host}:9092) cannot be reached" in str(caught.value)
    await brokers[1].start()
    connection = await connections.connect_any()
    assert connection.node.host == "broker-1"
    assert await connections.connect_any() is connection


async def test_any_broker_is_the_one_that_may_be_tried_first(
    world: World, cluster: ScriptedCluster
) -> None:
    """Who has just failed is waited for last, and a connection that opens meanwhile will do."""
    brokers = [cluster.broker(node_id) for node_id in range(3)]
    connections = connections_to(cluster, backoff=Backoff(10.0, 10.0))
    for node_id in (-1, -3):
        with pytest.raises(Unavailable):
            await connections.connect(node_id)
    for broker in brokers:
        await broker.start()
    assert (await connections.connect_any()).node.host == "broker-1"
    brokers[1].stop()
    await asyncio.sleep(0.1)
    world.network.cut("localhost", "broker-1")
    world.network.cut("localhost", "broker-2")
    connections.open_soon(-2)
    connections.open_soon(-3)
    await asyncio.sleep(12)  # both wait for an answer by now
    world.network.cut("localhost", "broker-0")
    asked_at = world.loop.time()
    asking = asyncio.create_task(connections.connect_any())
    await asyncio.sleep(0.5)
    world.network.heal("localhost", "broker-2")
    assert (await asking).node.host == "broker-2"
    assert world.loop.time() - asked_at < 5


async def test_a_broker_that_takes_long_is_waited_for_only_at_first(
    world: World, cluster: ScriptedCluster
) -> None:
    slow, fast = cluster.broker(0), cluster.broker(1)
    await slow.start()
    await fast.start()
    connections = connections_to(cluster)
    world.network.cut("localhost", "broker-0")
    connections.open_soon(-1)
    at_first = asyncio.create_task(connections.connect_any())
    await asyncio.sleep(0.5)
    assert not at_first.done()
    assert fast.links == []
    at_first.cancel()
    await asyncio.sleep(1)
    asked_at = world.loop.time()
    assert (await connections.connect_any()).node.host == "broker-1"
    assert world.loop.time() - asked_at < 1


async def test_an_advertised_address_that_does_not_work_is_explained(
    world: World, cluster: ScriptedCluster
) -> None:
    cluster.broker(0)
    connections = connections_to(cluster)
    connections.update([Node(7, "inside.example", 9092)])
    with pytest.raises(
        Unavailable, match=r"advertises inside\.example:9092, bootstrap was broker-0:9092"
    ):
        await connections.connect(7)
    with pytest.raises(Unavailable, match="broker 8 is not in the cluster's metadata"):
        await connections.connect(8)


async def test_a_broker_that_moved_is_connected_anew(
    world: World, cluster: ScriptedCluster
) -> None:
    first, second = cluster.broker(0), cluster.broker(1)
    await first.start()
    await second.start()
    connections = connections_to(cluster)
    connections.update([Node(5, first.host, 9092)])
    old = await connections.connect(5)
    connections.update([Node(5, first.host, 9092, rack="a")])
    assert await connections.connect(5) is old
    connections.update([Node(5, second.host, 9092)])
    assert (await connections.connect(5)).node.host == second.host
    assert not old.is_open


async def test_close_ends_what_is_open_and_what_is_opening(
    world: World, cluster: ScriptedCluster
) -> None:
    brokers = [cluster.broker(0), cluster.broker(1)]
    cluster.logs[TopicPartition("t", 0)] = [batch(0, b"v")]
    await brokers[0].start()
    connections = connections_to(cluster)
    await connections.connect(-1)
    connections.open_soon(-2)
    await connections.close()
    assert connections.connections == []
    with pytest.raises(Unavailable, match="closed"):
        await connections.connect(-1)
    connections.open_soon(-1)
    await asyncio.sleep(5)
    assert [link.transport for link in brokers[0].links] == [None]
    assert brokers[1].links == []


@pytest.mark.parametrize("end", [None, 1.0])
async def test_close_does_not_wait_for_a_broker_that_reads_nothing(
    world: World, cluster: ScriptedCluster, end: float | None
) -> None:
    broker = cluster.broker(0)
    await broker.start()
    connections = connections_to(cluster)
    connection = await connections.connect(-1)
    transport = broker.links[0].transport
    assert transport is not None
    transport.pause_reading()
    names = MetadataRequest(topics=None)
    for _ in range(40_000):
        connection.send(names, 13, None)
    await connections.close(end)
    assert world.loop.time() == pytest.approx(end or OPTIONS.connect_timeout, abs=0.1)


@pytest.mark.kip(584)
async def test_the_features_that_the_cluster_has_settled_on(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    answer = broker.answer_api_versions

    def with_features(version: int) -> tuple[ApiVersionsResponse, int]:
        response, answered = answer(version)
        response.finalized_features = [
            FinalizedFeatureKey(
                name="transaction.version", max_version_level=2, min_version_level=1
            )
        ]
        return response, answered

    broker.answer_api_versions = with_features  # type: ignore[method-assign]
    await broker.start()
    connection = await connections_to(cluster).connect(-1)
    assert connection.feature("transaction.version") == 2
    assert connection.feature("group.version") == 0


KAFKA_2_1 = {
    ProduceRequest: (0, 7),
    FetchRequest: (0, 10),
    ListOffsetsRequest: (0, 4),
    MetadataRequest: (0, 7),
    OffsetCommitRequest: (0, 6),
    OffsetFetchRequest: (0, 5),
    FindCoordinatorRequest: (0, 2),
    JoinGroupRequest: (0, 3),
    HeartbeatRequest: (0, 2),
    LeaveGroupRequest: (0, 2),
    SyncGroupRequest: (0, 2),
    SaslHandshakeRequest: (0, 1),
    ApiVersionsRequest: (0, 2),
    CreateTopicsRequest: (0, 3),
    DeleteTopicsRequest: (0, 3),
    InitProducerIdRequest: (0, 1),
    AddPartitionsToTxnRequest: (0, 1),
    AddOffsetsToTxnRequest: (0, 1),
    EndTxnRequest: (0, 1),
    TxnOffsetCommitRequest: (0, 2),
    DescribeConfigsRequest: (0, 2),
    DescribeLogDirsRequest: (0, 1),
    SaslAuthenticateRequest: (0, 0),
    CreatePartitionsRequest: (0, 1),
    DescribeGroupsRequest: (0, 2),
    ListGroupsRequest: (0, 2),
    DeleteGroupsRequest: (0, 1),
    DeleteRecordsRequest: (0, 1),
}
"""What Apache Kafka 2.1.1 says it serves."""


def requests_of_clients() -> set[type]:
    """The requests that the modules of `trimtab.client` use."""
    found = pkgutil.walk_packages(trimtab.client.__path__, "trimtab.client.")
    used = (vars(importlib.import_module(module.name)).values() for module in found)
    return {
        each
        for values in used
        for each in values
        if isinstance(each, type) and issubclass(each, Request) and each is not Request
    }


async def test_every_api_has_a_version_that_kafka_2_1_serves(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    broker.versions = dict(KAFKA_2_1)
    await broker.start()
    connection = await connections_to(cluster).connect(-1)
    agreed = {api: connection.version_of(api) for api in KAFKA_2_1}
    assert agreed == {api: newest for api, (_, newest) in KAFKA_2_1.items()}
    missing = requests_of_clients() - set(KAFKA_2_1)
    assert missing == {
        # Calls that a cluster answers since 2.2, 2.3, 2.4, 2.7, 2.8, 3.0, 3.3, 3.7 and 4.0.
        ConsumerGroupDescribeRequest,
        ConsumerGroupHeartbeatRequest,
        ElectLeadersRequest,
        OffsetDeleteRequest,
        OffsetForLeaderEpochRequest,  # not asked of older brokers, which would refuse a consumer
        IncrementalAlterConfigsRequest,
        AlterPartitionReassignmentsRequest,
        ListPartitionReassignmentsRequest,
        DescribeClusterRequest,
        UnregisterBrokerRequest,
        UpdateFeaturesRequest,
        DescribeTopicPartitionsRequest,
        ListTransactionsRequest,
        DescribeProducersRequest,
        DescribeQuorumRequest,
        DescribeTransactionsRequest,
        WriteTxnMarkersRequest,
    }


# --- idle connections, and beginning anew --------------------------------------------------------


async def test_an_idle_connection_is_closed_and_opened_again_without_back_off(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    await broker.start()
    connections = connections_to(cluster, max_idle=10.0)
    await connections.connect(-1)
    for _ in range(5):
        await asyncio.sleep(9)
        await connections.request(-1, anything())
    assert len(broker.links) == 1
    await asyncio.sleep(9.5)
    assert connections.ready(-1) is not None
    await asyncio.sleep(1)
    assert connections.ready(-1) is None
    assert connections.last_error(-1) is None
    began = world.loop.time()
    await connections.request(-1, anything())
    assert world.loop.time() - began < 0.01


async def test_a_connection_that_waits_for_a_response_is_not_idle(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)
    broker.answers[MetadataRequest] = lambda request: NO_ANSWER
    await broker.start()
    connections = connections_to(cluster, max_idle=5.0)
    connection = await connections.connect(-1)
    with pytest.raises(Unavailable, match="did not answer Metadata in time"):
        await connection.request(anything(), timeout=20.0)
    assert world.loop.time() == pytest.approx(20.0, abs=0.1)


@pytest.mark.kip(899)
@pytest.mark.parametrize("rebootstrap_after", [60.0, None])
async def test_bootstrap_servers_are_asked_again_unless_that_is_off(
    world: World, cluster: ScriptedCluster, rebootstrap_after: float | None
) -> None:
    seed = cluster.broker(0)
    await seed.start()
    connections = connections_to(cluster, rebootstrap_after=rebootstrap_after)
    connections.update([Node(5, "gone", 9092)])
    if rebootstrap_after is None:
        with pytest.raises(Unavailable, match=r"metadata\.recovery\.strategy=none"):
            await connections.connect_any()
        assert seed.links == []
    else:
        assert (await connections.connect_any()).node.id == -1


@pytest.mark.kip(899)
async def test_beginning_anew_forgets_the_brokers_that_were_known(
    world: World, cluster: ScriptedCluster
) -> None:
    seed, other = cluster.broker(0), cluster.broker(1)
    await seed.start()
    await other.start()
    connections = connections_to(cluster, "broker-0:9092")
    connections.update([Node(5, other.host, 9092)])
    old = await connections.connect(5)
    connections.rebootstrap()
    assert not old.is_open
    with pytest.raises(Unavailable, match="broker 5 is not in the cluster's metadata"):
        await connections.connect(5)
    assert (await connections.connect_any()).node.host == seed.host


# --- security ------------------------------------------------------------------------------------


async def test_a_connection_that_ends_at_once_hints_at_the_protocol(
    world: World, cluster: ScriptedCluster
) -> None:
    broker = cluster.broker(0)

    def hang_up(version: int) -> tuple[ApiVersionsResponse, int]:
        transport = broker.links[-1].transport
        assert transport is not None
        transport.abort()
        return ApiVersionsResponse(api_keys=[]), version

    broker.answer_api_versions = hang_up  # type: ignore[method-assign]
    await broker.start()
    with pytest.raises(Unavailable, match=r"listener speak security\.protocol=PLAINTEXT\?"):
        await connections_to(cluster).connect(-1)


@pytest.mark.parametrize(
    ("code", "message", "fix"),
    [
        (62, "Hostname mismatch", r"ssl\.endpoint\.identification\.algorithm"),
        (64, "IP address mismatch", r"ssl\.endpoint\.identification\.algorithm"),
        (20, "unable to get local issuer certificate", r"ssl\.truststore\.location"),
        (10, "certificate has expired", "$"),
    ],
)
async def test_a_certificate_that_is_not_accepted(
    world: World,
    cluster: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    message: str,
    fix: str,
) -> None:
    """Once one broker is not who it claims to be, that is the error, whatever others say."""
    cluster.broker(0)
    cluster.broker(1)
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message

    async def refuse_certificate(make: object, host: str, port: int, **_options: object) -> None:
        raise error if host == "broker-0" else ConnectionRefusedError("refused")

    monkeypatch.setattr(world.loop, "create_connection", refuse_certificate)
    connections = connections_to(cluster)
    with pytest.raises(AuthenticationFailed, match=rf"broker-0:9092\).*{message}.*{fix}"):
        await connections.connect(-1)
    with pytest.raises(AuthenticationFailed, match="refused"):
        await connections.connect_any()


async def test_each_new_transport_is_prepared(world: World, cluster: ScriptedCluster) -> None:
    broker = cluster.broker(0)
    prepared: list[asyncio.BaseTransport] = []
    await broker.start()
    connection = await connections_to(cluster, prepare=prepared.append).connect(-1)
    assert prepared == [connection.transport]
