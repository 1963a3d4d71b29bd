"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ends in the log (KIP-101, KIP-320).

A consumer that has records of an epoch that ends before them here has read what is no longer there.
Only the leader answers.
"""

from __future__ import annotations

from trimtab.broker.each_partition import answer_each
from trimtab.broker.refused import Refused
from trimtab.broker.replicas import Replicas
from trimtab.errors import ErrorCode
from trimtab.server.turns import Pace, Steps
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)


def offset_for_leader_epoch(
    replicas: Replicas, header: RequestHeader, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    """One end per partition that is asked for."""

    def answer(
        topic: OffsetForLeaderTopic, wanted: OffsetForLeaderPartition
    ) -> Steps[EpochEndOffset]:
        return _find(replicas, topic.topic, wanted)
        yield

    topics = yield from answer_each(
        request.topics,
        lambda topic: topic.partitions,
        answer,
        lambda topic, ends: OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends),
        Pace(),
    )
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def _find(replicas: Replicas, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = replicas.find_partition(topic, wanted.partition)
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
