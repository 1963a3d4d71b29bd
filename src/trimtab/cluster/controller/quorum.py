"""Describes the controller as a quorum of one voter, with the brokers as observers (KIP-836,
KIP-919)."""

from __future__ import annotations

from trimtab.cluster.controller.controller import Controller
from trimtab.cluster.metadata.batches import TOPIC
from trimtab.cluster.server.turns import Steps, answer_partitions
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trimtab.kafka.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionDataResponse,
    ReplicaState,
    TopicDataResponse,
)

LISTENER = "CONTROLLER"

_OBSERVER_SESSION_MS = 300_000
"""A broker that has not fetched for so long is no observer, as in Kafka's `LeaderState`."""
_CONTROLLERS = 2
_NODES_SINCE = 2


def describe_quorum(
    controller: Controller,
    address: tuple[str, int],
    now_ms: int,
    header: RequestHeader,
    request: DescribeQuorumRequest,
) -> Steps[DescribeQuorumResponse]:
    """DescribeQuorum: the controller is the voter, brokers are observers. As in Kafka, a request is
    valid only if it names `__cluster_metadata-0` and nothing else."""
    is_valid = [
        (topic.topic_name, [each.partition_index for each in topic.partitions[:2]])
        for topic in request.topics[:2]
    ] == [(TOPIC, [0])]
    listener = Listener(name=LISTENER, host=address[0], port=address[1])
    node = Node(node_id=controller.node_id, listeners=[listener])
    return answer_partitions(
        request.topics,
        lambda topic: topic.partitions,
        lambda _, asked: (
            _describe_partition(controller, now_ms)
            if is_valid
            else PartitionDataResponse(
                partition_index=asked.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        ),
        lambda topic, described: TopicDataResponse(
            topic_name=topic.topic_name, partitions=described
        ),
        lambda topics: DescribeQuorumResponse(
            topics=topics, nodes=[node] if header.api_version >= _NODES_SINCE else []
        ),
    )


def describe_cluster(
    controller: Controller, address: tuple[str, int], request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """DescribeCluster of endpoint type 2, the controllers. For brokers, ask a broker."""
    if request.endpoint_type != _CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type CONTROLLER, but we wanted "
            "an endpoint of type BROKER",
            cluster_id=controller.cluster_id,
            brokers=[],
        )
    host, port = address
    return DescribeClusterResponse(
        endpoint_type=_CONTROLLERS,
        cluster_id=controller.cluster_id,
        controller_id=controller.node_id,
        brokers=[DescribeClusterBroker(broker_id=controller.node_id, host=host, port=port)],
    )


def _describe_partition(controller: Controller, now_ms: int) -> PartitionDataResponse:
    journal = controller.journal
    return PartitionDataResponse(
        partition_index=0,
        leader_id=controller.node_id,
        leader_epoch=journal.epoch,
        high_watermark=journal.end_offset,
        current_voters=[
            ReplicaState(
                replica_id=controller.node_id,
                log_end_offset=journal.end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
        observers=[
            ReplicaState(
                replica_id=broker_id,
                log_end_offset=position.offset,
                last_fetch_timestamp=position.fetched_ms,
                last_caught_up_timestamp=position.caught_up_ms,
            )
            for broker_id, position in sorted(controller.feed.positions.items())
            if now_ms - position.fetched_ms < _OBSERVER_SESSION_MS
        ],
    )
