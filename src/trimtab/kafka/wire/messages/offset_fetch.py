"""OffsetFetch (API 9): the offsets that a consumer group has committed."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import ZERO_UUID, int16, int32, int64, string, uuid


@struct(versions="0-7")
class OffsetFetchRequestTopic:
    name: string
    partition_indexes: list[int32]


@struct(versions="8+")
class OffsetFetchRequestTopics:
    """One topic of one group."""

    name: string = field(versions="8-9", default="", ignorable=True)
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    partition_indexes: list[int32]


@struct(versions="8+")
class OffsetFetchRequestGroup:
    """One group."""

    group_id: string
    member_id: string | None = field(
        versions="9+", nullable_versions="9+", default=None, ignorable=True
    )
    member_epoch: int32 = field(versions="9+", default=NO_EPOCH, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = field(nullable_versions="8+")


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    """Ask the group's coordinator for offsets.

    v2 allows null for all topics. v6 is flexible. v7 adds require_stable. v8 asks for several
    groups. v9 adds the member (KIP-848), v10 topic ids.
    """

    group_id: string = field(versions="0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = field(
        versions="0-7", nullable_versions="2-7", default_factory=list
    )
    groups: list[OffsetFetchRequestGroup] = field(versions="8+", default_factory=list)
    require_stable: bool = field(versions="7+", default=False)


@struct(versions="0-7")
class OffsetFetchResponsePartition:
    """The offset of one partition; -1 if there is none."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 = field(versions="5-7", default=NO_EPOCH, ignorable=True)
    metadata: string | None = field(nullable_versions="0-7")
    error_code: int16 = 0


@struct(versions="0-7")
class OffsetFetchResponseTopic:
    """The offsets of one topic."""

    name: string
    partitions: list[OffsetFetchResponsePartition]


@struct(versions="8+")
class OffsetFetchResponsePartitions:
    """The offset of one partition of one group; -1 if there is none."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 = field(default=NO_EPOCH, ignorable=True)
    metadata: string | None = field(nullable_versions="8+")
    error_code: int16 = 0


@struct(versions="8+")
class OffsetFetchResponseTopics:
    """The offsets of one topic of one group."""

    name: string = field(versions="8-9", default="", ignorable=True)
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions]


@struct(versions="8+")
class OffsetFetchResponseGroup:
    """The offsets of one group."""

    group_id: string
    topics: list[OffsetFetchResponseTopics]
    error_code: int16 = 0


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """The offsets. v2 adds an error of the whole, v3 the throttle time, v5 the leader epoch."""

    throttle_time_ms: int32 = field(versions="3+", default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field(versions="0-7", default_factory=list)
    error_code: int16 = field(versions="2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field(versions="8+", default_factory=list)
