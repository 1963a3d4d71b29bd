"""OffsetCommit (API 8): store a consumer group's offsets."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import ZERO_UUID, int16, int32, int64, string, uuid


@struct()
class OffsetCommitRequestPartition:
    """The offset of one partition: that of the next record to read."""

    partition_index: int32
    committed_offset: int64
    # Of the last record that was read, -1 if unknown (KIP-320).
    committed_leader_epoch: int32 = field(versions="6+", default=NO_EPOCH, ignorable=True)
    committed_metadata: string | None = field(nullable_versions="0+")


@struct()
class OffsetCommitRequestTopic:
    name: string = field(versions="0-9", default="", ignorable=True)
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitRequestPartition]


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Ask the group's coordinator to store offsets.

    A client that is no member of the group commits for generation -1, which is accepted while the
    group has no members. v5 removes the retention time; v6 adds the leader epoch; v7 the static
    member (KIP-345); v8 is flexible; v9 may answer GROUP_ID_NOT_FOUND (KIP-848); v10 has topic ids
    in place of names.
    """

    group_id: string
    generation_id_or_member_epoch: int32 = field(versions="1+", default=NO_EPOCH, ignorable=True)
    member_id: string = field(versions="1+", default="", ignorable=True)
    group_instance_id: string | None = field(versions="7+", nullable_versions="7+", default=None)
    retention_time_ms: int64 = field(versions="2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic]


@struct()
class OffsetCommitResponsePartition:
    """Whether one partition's offset is stored."""

    partition_index: int32
    error_code: int16


@struct()
class OffsetCommitResponseTopic:
    """Whether the offsets of one topic are stored."""

    name: string = field(versions="0-9", default="", ignorable=True)
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitResponsePartition]


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    throttle_time_ms: int32 = field(versions="3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic]
