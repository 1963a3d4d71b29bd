"""DescribeProducers (61): what a partition remembers of its idempotent producers, and which of
their transactions are open there (KIP-664).

Any replica answers for what it has, also one that follows.
"""

from __future__ import annotations

from trimtab.broker.each_partition import answer_each
from trimtab.broker.refused import Refused
from trimtab.broker.replicas import Replicas
from trimtab.errors import ErrorCode
from trimtab.server.turns import Pace, Steps
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)


def describe_producers(
    replicas: Replicas, header: RequestHeader, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    """The producers of each partition that is asked for."""
    pace = Pace()

    def answer(topic: TopicRequest, index: int) -> Steps[PartitionResponse]:
        described = _describe(replicas, topic.name, index)
        if pace.spend(len(described.active_producers)):
            yield
        return described

    topics = yield from answer_each(
        request.topics,
        lambda topic: topic.partition_indexes,
        answer,
        lambda topic, described: TopicResponse(name=topic.name, partitions=described),
        pace,
    )
    return DescribeProducersResponse(throttle_time_ms=0, topics=topics)


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
