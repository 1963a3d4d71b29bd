"""DescribeProducers (61): what a partition remembers of its idempotent producers (KIP-664).

Any replica answers for what it has, also one that follows. There are no transactions yet, so none
is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.broker.partition import Refused
from trimtab.errors import ErrorCode
from trimtab.server.turns import Pace, Steps
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_NO_COORDINATOR = -1


def describe_producers(
    broker: Broker, header: RequestHeader, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    """The producers of each partition that is asked for."""
    pace = Pace()
    topics = []
    for topic in request.topics:
        partitions = []
        if pace.spend():
            yield
        for index in topic.partition_indexes:
            described = _describe(broker, topic.name, index)
            partitions.append(described)
            if pace.spend(1 + len(described.active_producers)):
                yield
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(throttle_time_ms=0, topics=topics)


def _describe(broker: Broker, topic: str, index: int) -> PartitionResponse:
    try:
        partition = broker.find_replica(topic, index)
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
                coordinator_epoch=_NO_COORDINATOR,
            )
            for producer in partition.log.producers.describe()
        ],
    )
