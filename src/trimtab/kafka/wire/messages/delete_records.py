"""DeleteRecords (API 21): delete the start of a log (KIP-107)."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, message, struct
from trimtab.kafka.wire.types import int16, int32, int64, string


@struct()
class DeleteRecordsPartition:
    """The records of one partition to delete."""

    partition_index: int32
    # The first offset to keep; -1 for the high watermark.
    offset: int64


@struct()
class DeleteRecordsTopic:
    name: string
    partitions: list[DeleteRecordsPartition]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """Delete all records before an offset. v2 is flexible."""

    topics: list[DeleteRecordsTopic]
    timeout_ms: int32


@struct()
class DeleteRecordsPartitionResult:
    partition_index: int32
    # The first offset that every replica still has; -1 with an error.
    low_watermark: int64
    error_code: int16 = 0


@struct()
class DeleteRecordsTopicResult:
    name: string
    partitions: list[DeleteRecordsPartitionResult]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: int32 = 0
    topics: list[DeleteRecordsTopicResult]
