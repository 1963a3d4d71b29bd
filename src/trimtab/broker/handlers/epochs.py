"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ends in the log (KIP-101, KIP-320).

A consumer that has records of an epoch that ends before them here has read what is no longer there.
Only the leader answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.broker.partition import Refused
from trimtab.errors import ErrorCode
from trimtab.server.turns import Pace, Steps
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker


def offset_for_leader_epoch(
    broker: Broker, header: RequestHeader, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    """One end per partition that is asked for."""
    pace = Pace()
    topics = []
    for topic in request.topics:
        partitions = []
        if pace.spend():
            yield
        for wanted in topic.partitions:
            partitions.append(_find(broker, topic.topic, wanted))
            if pace.spend():
                yield
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def _find(broker: Broker, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.find_partition(topic, wanted.partition)
        partition.check_epoch(wanted.current_leader_epoch)
    except Refused as refused:
        return EpochEndOffset(partition=wanted.partition, error_code=refused.code)
    epoch, end_offset = partition.log.end_of_epoch(wanted.leader_epoch)
    return EpochEndOffset(
        partition=wanted.partition,
        error_code=ErrorCode.NONE,
        leader_epoch=epoch,
        end_offset=end_offset,
    )
