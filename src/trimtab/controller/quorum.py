"""Describes the controller as a quorum of one voter, with the brokers as observers (KIP-836,
KIP-919)."""

from __future__ import annotations

from trimtab.controller.controller import Controller
from trimtab.errors import ErrorCode
from trimtab.metadata.batches import TOPIC
from trimtab.server.turns import Pace, Steps
from trimtab.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trimtab.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionDataResponse,
    ReplicaState,
    TopicDataResponse,
)
from trimtab.wire.sentinels import NO_TIMESTAMP

LISTENER = "CONTROLLER"

_CONTROLLERS = 2


def describe_quorum(
    controller: Controller, address: tuple[str, int], now_ms: int, request: DescribeQuorumRequest
) -> Steps[DescribeQuorumResponse]:
    """DescribeQuorum: the controller is the voter, brokers are observers. As in Kafka, a request is
    valid only if it names `__cluster_metadata-0` and nothing else."""
    pace = Pace()
    is_valid = [
        (topic.topic_name, [each.partition_index for each in topic.partitions[:2]])
        for topic in request.topics[:2]
    ] == [(TOPIC, [0])]
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            partitions.append(
                _describe_partition(controller, now_ms)
                if is_valid
                else PartitionDataResponse(
                    partition_index=asked.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )
            )
            if pace.spend():
                yield
        topics.append(TopicDataResponse(topic_name=topic.topic_name, partitions=partitions))
        if pace.spend():
            yield
    return DescribeQuorumResponse(
        topics=topics,
        nodes=[
            Node(
                node_id=controller.node_id,
                listeners=[Listener(name=LISTENER, host=address[0], port=address[1])],
            )
        ],
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
                last_fetch_timestamp=NO_TIMESTAMP,
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
        ],
    )
