"""ListBatchSizes (API 32001): how large record batches are, without what is in them.

Not one of Kafka's: our brokers serve it, and advertise it under a key that is far above all of
Kafka's. Clients that do not know it leave it alone. A reader who bounds what it reads in bytes asks
it, so that it need not read everything twice.
"""

from __future__ import annotations

from trimtab.wire.schema import message, struct
from trimtab.wire.types import int16, int32, int64, string


@struct()
class ListBatchSizesPartition:
    """What to list of one partition."""

    partition_index: int32
    # The first batch is the one that holds it.
    start_offset: int64
    # No batch begins here or later; -1 for the high watermark.
    end_offset: int64
    # The list ends with the batch that makes it so many bytes.
    max_bytes: int64


@struct()
class ListBatchSizesTopic:
    """Partitions of one topic."""

    name: string
    partitions: list[ListBatchSizesPartition]


@message(api_key=32001, versions="0", flexible="0+")
class ListBatchSizesRequest:
    """The sizes of the batches that lie ahead."""

    # In the whole answer; a broker may list fewer.
    max_batches: int32
    topics: list[ListBatchSizesTopic]


@struct()
class ListBatchSizesPartitionResult:
    """The batches of one partition, a number for each in all three arrays.

    There may be more: who asked goes on after the last one, or at `start_offset` if the answer had
    no room for any.
    """

    partition_index: int32
    error_code: int16
    # Also with OFFSET_OUT_OF_RANGE; else -1 with an error.
    log_start_offset: int64 = -1
    high_watermark: int64 = -1
    # Of all batches, listed or not, from the first one to the one before `end_offset`.
    total_bytes: int64 = 0
    next_offsets: list[int64]
    sizes: list[int32]
    # The largest of each batch, ms since the epoch; -1 for none.
    max_timestamps: list[int64]


@struct()
class ListBatchSizesTopicResult:
    """Partitions of one topic."""

    name: string
    partitions: list[ListBatchSizesPartitionResult]


@message(api_key=32001, versions="0", flexible="0+")
class ListBatchSizesResponse:
    """The batches of each partition that was asked about."""

    throttle_time_ms: int32 = 0
    topics: list[ListBatchSizesTopicResult]
