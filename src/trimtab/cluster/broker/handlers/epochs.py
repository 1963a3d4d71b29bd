"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ends in the log (KIP-101, KIP-320).

A consumer that has records of an epoch that ends before them here has read what is no longer there.
Only the leader answers.
"""

from __future__ import annotations

from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.server.turns import Steps, answer_partitions
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def offset_for_leader_epoch(
    replicas: Replicas, header: RequestHeader, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    """One end per partition that is asked for."""
    return answer_partitions(
        request.topics,
        lambda topic: topic.partitions,
        lambda topic, wanted: _find(replicas, topic.topic, wanted),
        lambda topic, ends: OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends),
        lambda topics: OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics),
    )


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
