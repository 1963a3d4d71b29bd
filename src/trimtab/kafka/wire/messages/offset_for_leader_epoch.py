"""OffsetForLeaderEpoch (API 23): where a leader's epoch ends in the log (KIP-101)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_OFFSET
from trimtab.kafka.wire.types import int16, int32, int64, string


@struct()
class OffsetForLeaderPartition:
    """The epoch to look up in one partition."""

    partition: int32
    # -1: the leader does not check its epoch.
    current_leader_epoch: int32 = field(versions="2+", default=NO_EPOCH, ignorable=True)
    leader_epoch: int32


@struct()
class OffsetForLeaderTopic:
    topic: string
    partitions: list[OffsetForLeaderPartition]


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    """Ask for the end offsets of epochs.

    v2 adds the current leader epoch (KIP-320); v3 the replica id. v4 is flexible.
    """

    # The broker id of a follower; -1 for a consumer; -2 to see beyond the high watermark.
    replica_id: int32 = field(versions="3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic]


@struct()
class EpochEndOffset:
    """The highest epoch up to the requested one, and its end offset; -1 if there is none."""

    error_code: int16 = 0
    partition: int32
    leader_epoch: int32 = field(versions="1+", default=NO_EPOCH, ignorable=True)
    end_offset: int64 = NO_OFFSET


@struct()
class OffsetForLeaderTopicResult:
    topic: string
    partitions: list[EpochEndOffset]


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int32 = field(versions="2+", default=0, ignorable=True)
    topics: list[OffsetForLeaderTopicResult]
