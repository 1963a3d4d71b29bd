"""ListBatchSizes (API 32001): the sizes of record batches, without their contents.

Not an API of Kafka: trimtab's brokers serve it, and advertise it under a key far above all of
Kafka's. Clients that do not know it ignore it. A reader that limits its batches in bytes uses it,
so that it need not read all records twice.
"""

from __future__ import annotations

from trimtab.wire.schema import Request, message, struct
from trimtab.wire.sentinels import NO_OFFSET
from trimtab.wire.types import int16, int32, int64, string


@struct()
class ListBatchSizesPartition:
    """The batches to list of one partition."""

    partition_index: int32
    # The first batch is the one that contains it.
    start_offset: int64
    # No batch begins here or later; -1 for the high watermark.
    end_offset: int64
    # The list ends with the batch that brings the sum of sizes to this.
    max_bytes: int64


@struct()
class ListBatchSizesTopic:
    name: string
    partitions: list[ListBatchSizesPartition]


@message(api_key=32001, versions="0", flexible="0+")
class ListBatchSizesRequest(Request["ListBatchSizesResponse"]):
    """Ask for the sizes of the batches in ranges of offsets."""

    # In the whole response; a broker may list fewer.
    max_batches: int32
    topics: list[ListBatchSizesTopic]


@struct()
class ListBatchSizesPartitionResult:
    """The batches of one partition, a number for each in all three arrays.

    There may be more: the client asks again from the last one's end, or from `start_offset` if the
    response had no room for any.
    """

    partition_index: int32
    error_code: int16
    # Also with OFFSET_OUT_OF_RANGE; else -1 with an error.
    log_start_offset: int64 = NO_OFFSET
    high_watermark: int64 = NO_OFFSET
    # Of all batches, listed or not, from the first one to the one before `end_offset`.
    total_bytes: int64 = 0
    next_offsets: list[int64]
    sizes: list[int32]
    # The largest of each batch, ms since the epoch; -1 for none.
    max_timestamps: list[int64]


@struct()
class ListBatchSizesTopicResult:
    name: string
    partitions: list[ListBatchSizesPartitionResult]


@message(api_key=32001, versions="0", flexible="0+")
class ListBatchSizesResponse:
    throttle_time_ms: int32 = 0
    topics: list[ListBatchSizesTopicResult]
