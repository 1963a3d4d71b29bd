"""ListBatchSizes (32001), version 0: the sizes of record batches, read from their headers alone.

Ours, not Kafka's: see the message. Batches up to the high watermark are listed, like those that a
consumer may fetch. Partitions share the room of an answer: each lists as many batches as the even
share of what is left. One read of a file is done at a time, and others have their turn between.
"""

from __future__ import annotations

import logging

from trimtab.broker.each_partition import answer_each
from trimtab.broker.partition import Partition
from trimtab.broker.refused import Refused
from trimtab.broker.replicas import Replicas
from trimtab.errors import CorruptData, ErrorCode
from trimtab.server.turns import Pace, Steps
from trimtab.storage.log_answers import OffsetOutOfRange
from trimtab.storage.storage import StorageError
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.list_batch_sizes import (
    ListBatchSizesPartition,
    ListBatchSizesPartitionResult,
    ListBatchSizesRequest,
    ListBatchSizesResponse,
    ListBatchSizesTopic,
    ListBatchSizesTopicResult,
)

MAX_BATCHES = 20_000
"""In one answer."""

_READ_COST = 40
"""A read of a file takes so much longer than looking at a batch that has been read."""

_READS_TO_BEGIN = 4
"""Finding the first batch, and the bytes of all."""

_log = logging.getLogger(__name__)


def list_batch_sizes(
    replicas: Replicas, header: RequestHeader, request: ListBatchSizesRequest
) -> Steps[ListBatchSizesResponse]:
    """Some of the batches of each partition."""
    pace = Pace()
    room = max(1, min(request.max_batches, MAX_BATCHES))
    partitions_left = 0
    for topic in request.topics:
        partitions_left += len(topic.partitions)
        if pace.spend():
            yield

    def answer(
        topic: ListBatchSizesTopic, wanted: ListBatchSizesPartition
    ) -> Steps[ListBatchSizesPartitionResult]:
        nonlocal room, partitions_left
        result = ListBatchSizesPartitionResult(
            partition_index=wanted.partition_index,
            error_code=ErrorCode.NONE,
            next_offsets=[],
            sizes=[],
            max_timestamps=[],
        )
        try:
            partition = replicas.find_partition(topic.name, wanted.partition_index)
            share = max(room // partitions_left, 1) if room else 0
            yield from _list(partition, wanted, share, result, pace)
        except Refused as refused:
            result.error_code = refused.code
        except OffsetOutOfRange:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        except (StorageError, CorruptData) as error:
            where = f"{topic.name}-{wanted.partition_index}"
            _log.error("cannot list batches partition=%s error=%s", where, error)
            result.error_code = ErrorCode.CORRUPT_MESSAGE
            if isinstance(error, StorageError):
                replicas.disk_failed(error)
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        room -= len(result.sizes)
        partitions_left -= 1
        return result

    topics = yield from answer_each(
        request.topics,
        lambda topic: topic.partitions,
        answer,
        lambda topic, results: ListBatchSizesTopicResult(name=topic.name, partitions=results),
        pace,
    )
    return ListBatchSizesResponse(topics=topics)


def _list(
    partition: Partition,
    wanted: ListBatchSizesPartition,
    share: int,
    result: ListBatchSizesPartitionResult,
    pace: Pace,
) -> Steps[None]:
    log = partition.log
    end = partition.high_watermark
    result.log_start_offset, result.high_watermark = log.log_start_offset, end
    if 0 <= wanted.end_offset < end:
        end = wanted.end_offset
    offset, left = wanted.start_offset, wanted.max_bytes
    if pace.spend(_READS_TO_BEGIN * _READ_COST):
        yield
    found = log.sizes(offset, end)
    result.total_bytes = log.bytes_between(offset, end)
    while found:
        for next_offset, size, max_timestamp in found:
            if left <= 0 or len(result.sizes) >= share:
                return
            result.next_offsets.append(next_offset)
            result.sizes.append(size)
            result.max_timestamps.append(max_timestamp)
            left -= size
        if pace.spend(_READ_COST + len(found)):
            yield
        offset = found[-1].next_offset
        # It may have been deleted, or cut off, meanwhile: then what is listed is all there is.
        if not log.log_start_offset <= offset <= log.log_end_offset or not partition.is_leader:
            return
        found = log.sizes(offset, end)
