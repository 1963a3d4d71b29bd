"""DeleteRecords (21), versions 0-2: delete records before an offset of each partition (KIP-107).

The leader raises its log start offset at once; followers learn it from their next fetch. The
response is sent when every live replica has raised its own (Kafka's `DelayedDeleteRecords`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from trimtab.cluster.broker.delayed_response import DelayedResponse
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from trimtab.kafka.wire.sentinels import NO_OFFSET

_DELETED_AT_ONCE = 50

_log = logging.getLogger(__name__)


def delete_records(
    replicas: Replicas, header: RequestHeader, request: DeleteRecordsRequest
) -> Steps[DeleteRecordsResponse | Awaitable[DeleteRecordsResponse]]:
    """Delete, and answer with each partition's low watermark, once all live replicas have it."""
    pace = Pace(_DELETED_AT_ONCE)
    answer = DeleteRecordsResponse(throttle_time_ms=0, topics=[])
    deleted = []
    for topic in request.topics:
        partitions: list[DeleteRecordsPartitionResult] = []
        answer.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
        if pace.spend():
            yield
        for wanted in topic.partitions:
            if pace.spend():
                yield
            part = _delete(replicas, topic.name, wanted)
            partitions.append(part)
            if not part.error_code:
                deleted.append((replicas.partitions[topic.name, part.partition_index], part))
    if not replicas.checkpoint_starts():
        for _, part in deleted:
            _refuse(part, ErrorCode.KAFKA_STORAGE_ERROR)
        return answer
    delayed: DelayedResponse | None = None
    for partition, part in deleted:
        if pace.spend():
            yield
        if partition.leadership is None:  # lost while other requests were served
            _refuse(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif partition.leadership.low_watermark < part.low_watermark:
            if delayed is None:
                delayed = DelayedResponse(answer, _refuse)
            _await_deletion(delayed, partition, part)
    if delayed is None:
        return answer
    delayed.start(max(0, request.timeout_ms) / 1000)
    return delayed.answer


def _await_deletion(
    delayed: DelayedResponse, partition: Partition, part: DeleteRecordsPartitionResult
) -> None:
    """Settle this part once no live replica has records before its low watermark."""

    def done(is_deleted: bool) -> None:
        delayed.settle(part, ErrorCode.NONE if is_deleted else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    assert partition.leadership is not None
    delayed.hold(part)
    partition.leadership.wait_for_deletion(part.low_watermark, done)


def _refuse(part: DeleteRecordsPartitionResult, code: ErrorCode) -> None:
    part.error_code = code
    part.low_watermark = NO_OFFSET


def _delete(
    replicas: Replicas, topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    low_watermark, code = NO_OFFSET, ErrorCode.NONE
    try:
        partition = replicas.find_partition(topic, wanted.partition_index)
        low_watermark = partition.delete_records_before(wanted.offset)
    except Refused as refused:
        code = refused.code
    except StorageError as error:
        _log.error(
            "cannot delete records partition=%s-%d error=%s", topic, wanted.partition_index, error
        )
        replicas.disk_failed(error)
        code = ErrorCode.KAFKA_STORAGE_ERROR
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=low_watermark, error_code=code
    )
