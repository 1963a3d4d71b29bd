"""Requests that only nodes send: what strangers get, and nodes, from each kind of node.

| request | Kafka requires | a stranger gets | else he could |
|---|---|---|---|
| WriteTxnMarkers | ALTER or CLUSTER_ACTION on the cluster | 31 per partition | commit for others |
| Fetch, replica id ≥ 0 | CLUSTER_ACTION | 29 per partition | have records acknowledged |
| AddPartitionsToTxn, version 4 on | CLUSTER_ACTION | 31 | join others' transactions |
| ListOffsets, replica id ≥ 0 | DESCRIBE of the topic | the answer | (it only reads) |
| OffsetForLeaderEpoch, replica id ≥ 0 | DESCRIBE of the topic | the answer | (it only reads) |
| controller: Fetch, FetchSnapshot | CLUSTER_ACTION | 31 | say how far a broker is |
| controller: AlterPartition | CLUSTER_ACTION | 31 | change ISRs |
| controller: BrokerRegistration, BrokerHeartbeat | CLUSTER_ACTION | 31 | be a broker, fence one |
| controller: AllocateProducerIds | CLUSTER_ACTION | 31 | use all ids up |

What brokers of Kafka 3 got from their controller (UpdateMetadata, LeaderAndIsr, StopReplica,
ControlledShutdown) and Envelope are unknown here, as the former are to Kafka 4: the connection is
closed. Kafka's sources: `KafkaApis`, `ControllerApis`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.unit.cluster.broker.conftest import Lab
from tests.unit.cluster.broker.replicas import in_sync, leading, move_leader, until
from tests.unit.secret import SECRET
from trimtab.cluster.broker.handlers.forwarding import FORWARDED
from trimtab.cluster.controller.node import ControllerNode
from trimtab.cluster.server.api_versions import API_VERSIONS
from trimtab.cluster.server.cluster_secret import CONTROLLER, name_broker
from trimtab.cluster.server.peer import Peer
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages import APIS_BY_REQUEST
from trimtab.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from trimtab.kafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from trimtab.kafka.wire.messages.alter_partition import AlterPartitionRequest
from trimtab.kafka.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from trimtab.kafka.wire.messages.broker_registration import BrokerRegistrationRequest
from trimtab.kafka.wire.messages.describe_cluster import DescribeClusterRequest
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from trimtab.kafka.wire.messages.fetch_snapshot import FetchSnapshotRequest
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
from trimtab.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from trimtab.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest
from trimtab.kafka.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from trimtab.kafka.wire.sentinels import LATEST

FOLLOWER = 1
"""Has a replica of the topic."""
DEBUGGER = -2
"""Kafka's replica id of tools that look at any replica."""
CLUSTER, TOPIC = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
NONE = ErrorCode.NONE


def markers(topic_id: bytes, version: int) -> WriteTxnMarkersRequest:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=7,
                producer_epoch=0,
                transaction_result=True,
                topics=[topic],
                coordinator_epoch=0,
            )
        ]
    )


def fetch(topic_id: bytes, version: int, replica: int = FOLLOWER) -> FetchRequest:
    return FetchRequest(
        replica_id=replica if version < 15 else -1,
        replica_state=ReplicaState(replica_id=replica if version >= 15 else -1),
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic="t",
                topic_id=topic_id,
                partitions=[
                    FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
                ],
            )
        ],
    )


def debugging_fetch(topic_id: bytes, version: int) -> FetchRequest:
    return fetch(topic_id, version, DEBUGGER)


def transactions(topic_id: bytes, version: int) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id="x",
                producer_id=1,
                producer_epoch=0,
                verify_only=True,
                topics=topics,
            )
        ]
    )


def offsets(topic_id: bytes, version: int) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    return ListOffsetsRequest(
        replica_id=FOLLOWER, topics=[ListOffsetsTopic(name="t", partitions=[wanted])]
    )


def epochs(topic_id: bytes, version: int) -> OffsetForLeaderEpochRequest:
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        replica_id=FOLLOWER, topics=[OffsetForLeaderTopic(topic="t", partitions=[wanted])]
    )


def code_of(answer: Any) -> int:
    """The first error in a response, from the outside in."""
    for name in ("error_code", "partition_error_code"):
        if code := getattr(answer, name, 0):
            return int(code)
    for name in getattr(type(answer), "__slots__", ()):
        value = getattr(answer, name)
        for each in value if isinstance(value, list) else ():
            if code := code_of(each):
                return code
    return 0


async def topic_led_by_0(lab: Lab) -> bytes:
    """The id of t, of which brokers 0 and 1 have replicas."""
    topic_id = await lab.create_topic("t", replicas=2)
    await in_sync(lab, 2)
    await move_leader(lab, 0)
    return topic_id


@pytest.mark.run(brokers=2)
@pytest.mark.parametrize(
    ("make", "version", "stranger", "node"),
    [
        *((markers, version, CLUSTER, NONE) for version in (1, 2)),
        *((fetch, version, TOPIC, NONE) for version in (4, 7, 12, 13, 15, 18)),
        *((debugging_fetch, version, NONE, NONE) for version in (11, 18)),
        *((transactions, version, CLUSTER, ErrorCode.NOT_COORDINATOR) for version in (4, 5)),
        *((offsets, version, NONE, NONE) for version in (1, 11)),
        *((epochs, version, NONE, NONE) for version in (3, 4)),
    ],
)
async def test_what_a_broker_answers_to_strangers_and_to_nodes(
    lab: Lab,
    make: Callable[[bytes, int], Any],
    version: int,
    stranger: ErrorCode,
    node: ErrorCode,
) -> None:
    topic_id = await topic_led_by_0(lab)
    broker, request = lab.brokers[0], make(topic_id, version)
    before = broker.partitions["t", 0].log.log_end_offset
    assert code_of(await lab.connect().ask(request, version)) == stranger
    assert broker.partitions["t", 0].log.log_end_offset == before
    assert code_of(await lab.connect(is_node=True).ask(request, version)) == node
    assert broker.listener.counts.failed == 0


@pytest.mark.run(brokers=2)
@pytest.mark.parametrize("version", [12, 18])
async def test_a_stranger_in_a_consumers_session_does_not_become_a_follower(
    lab: Lab, version: int
) -> None:
    topic_id = await topic_led_by_0(lab)
    client = lab.connect()
    opening = fetch(topic_id, version, replica=-1)
    opening.session_epoch = 0
    session = (await client.ask(opening, version)).session_id
    assert session
    turn = fetch(topic_id, version)
    turn.session_id, turn.session_epoch = session, 1
    assert code_of(await client.ask(turn, version)) == TOPIC


@pytest.mark.run(brokers=2, config={"min.insync.replicas": 1, "replica.lag.time.max.ms": 60_000})
async def test_a_stranger_has_nothing_acknowledged_that_no_replica_has(lab: Lab) -> None:
    topic_id = await topic_led_by_0(lab)
    lab.world.network.cut("127.0.0.1:9092")  # the follower waits for the leader
    client = lab.connect()
    client.send(lab.produce("t", lab.batch(b"v"), acks=-1), 9)
    await until(lambda: leading(lab).log.log_end_offset == 1)
    for offset in (0, 1):
        request = fetch(topic_id, 18)
        request.topics[0].partitions[0].fetch_offset = offset
        assert code_of(await lab.connect().ask(request, 18)) == TOPIC
    assert (leading(lab).high_watermark, client.responses) == (0, [])


# The controller


def of_broker(broker_epoch: int) -> dict[str, Any]:
    return {"broker_id": 0, "broker_epoch": broker_epoch}


CONTROLLERS: Mapping[str, Callable[[int], Any]] = {
    "register": lambda epoch: BrokerRegistrationRequest(
        broker_id=5, cluster_id="lab", incarnation_id=bytes(16), listeners=[], rack=None
    ),
    "fence": lambda epoch: BrokerHeartbeatRequest(
        **of_broker(epoch), current_metadata_offset=0, want_fence=True, want_shut_down=False
    ),
    "isr": lambda epoch: AlterPartitionRequest(**of_broker(epoch), topics=[]),
    "ids": lambda epoch: AllocateProducerIdsRequest(**of_broker(epoch)),
    "metadata": lambda epoch: FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]),
    "snapshot": lambda epoch: FetchSnapshotRequest(topics=[]),
}


async def dial(node: str, port: int, is_node: bool) -> Peer:
    host = CONTROLLER if node == CONTROLLER else "127.0.0.1"
    return await Peer.connect(host, port, "t", 5, secret=SECRET if is_node else None, whom=node)


@pytest.mark.parametrize("what", CONTROLLERS)
async def test_what_the_controller_answers_to_strangers_and_to_nodes(lab: Lab, what: str) -> None:
    controller = lab.controller.controller
    before = controller.journal.end_offset, dict(controller.feed.positions)
    request = CONTROLLERS[what](lab.brokers[0].epoch)
    api = APIS_BY_REQUEST[type(request)]
    stranger, node = await dial(CONTROLLER, 9093, False), await dial(CONTROLLER, 9093, True)
    for version in range(7 if what == "metadata" else api.min_version, api.max_version + 1):
        assert (await stranger.ask(request, version)).error_code == CLUSTER
    assert list(controller.image.brokers) == [0]
    assert not controller.image.brokers[0].fenced
    assert controller.journal.end_offset == before[0]
    assert lab.controller.listener.counts.failed == 0
    assert (await node.ask(request)).error_code != CLUSTER
    for peer in (stranger, node):
        peer.close()


async def test_every_request_of_the_controller_is_of_nodes_or_forwarded_for_clients(
    lab: Lab,
) -> None:
    assert isinstance(lab.controller, ControllerNode)
    of_nodes = {type(make(0)).api_key for make in CONTROLLERS.values()}
    anybodys = {
        *(each.api_key for each in FORWARDED),
        *(API_VERSIONS, DescribeClusterRequest.api_key),
        *(SaslHandshakeRequest.api_key, SaslAuthenticateRequest.api_key),
    }
    assert lab.controller.listener.apis.keys() == of_nodes | anybodys


@pytest.mark.parametrize("node", [CONTROLLER, name_broker(0)])
@pytest.mark.parametrize("key", [4, 5, 6, 7, 58])
async def test_requests_of_older_nodes_are_unknown(lab: Lab, node: str, key: int) -> None:
    listener = (lab.controller if node == CONTROLLER else lab.brokers[0]).listener
    peer = await dial(node, 9093 if node == CONTROLLER else 9092, True)
    assert peer.transport is not None
    peer.transport.write(b"\0\0\0\x0a" + key.to_bytes(2, "big") + bytes(6) + b"\xff\xff")
    await until(lambda: peer.is_lost)
    assert listener.counts.refused == 1
