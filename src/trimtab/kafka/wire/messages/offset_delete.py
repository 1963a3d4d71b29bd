"""OffsetDelete (API 47): delete a group's offsets for some partitions (KIP-496)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, string


@struct()
class OffsetDeleteRequestPartition:
    """One partition."""

    partition_index: int32


@struct()
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: string
    partitions: list[OffsetDeleteRequestPartition]


@message(api_key=47, versions="0")
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    """Ask the coordinator to delete offsets."""

    group_id: string
    topics: list[OffsetDeleteRequestTopic]


@struct()
class OffsetDeleteResponsePartition:
    """Whether one partition's offset was deleted."""

    partition_index: int32
    error_code: int16


@struct()
class OffsetDeleteResponseTopic:
    """Results of one topic."""

    name: string
    partitions: list[OffsetDeleteResponsePartition]


@message(api_key=47, versions="0")
class OffsetDeleteResponse:
    """An error of the whole group, or one result per partition."""

    error_code: int16
    throttle_time_ms: int32 = field(default=0, ignorable=True)
    topics: list[OffsetDeleteResponseTopic]
