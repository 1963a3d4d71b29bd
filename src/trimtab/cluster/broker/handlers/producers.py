"""DescribeProducers (61): what a partition remembers of its idempotent producers, and which of
their transactions are open there (KIP-664).

Any replica answers for what it has, also one that follows.
"""

from __future__ import annotations

from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.server.turns import Steps, answer_partitions
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def describe_producers(
    replicas: Replicas, header: RequestHeader, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    """The producers of each partition that is asked for."""
    return answer_partitions(
        request.topics,
        lambda topic: topic.partition_indexes,
        lambda topic, index: _describe(replicas, topic.name, index),
        lambda topic, described: TopicResponse(name=topic.name, partitions=described),
        lambda topics: DescribeProducersResponse(throttle_time_ms=0, topics=topics),
        cost=lambda described: 1 + len(described.active_producers),
    )


def _describe(replicas: Replicas, topic: str, index: int) -> PartitionResponse:
    try:
        partition = replicas.find_replica(topic, index)
    except Refused as refused:
        return PartitionResponse(
            partition_index=index, error_code=refused.code, error_message=refused.message
        )
    return PartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE,
        active_producers=[
            ProducerState(
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.open_since_offset,
            )
            for producer in partition.log.producers.describe()
        ],
    )
