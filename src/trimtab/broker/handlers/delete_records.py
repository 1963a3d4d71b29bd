"""DeleteRecords (21), versions 0-2: drop what lies before an offset of each partition (KIP-107).

The leader's log begins there at once; its followers learn of it with their next fetch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trimtab.broker.partition import Refused
from trimtab.errors import ErrorCode
from trimtab.storage.storage import StorageError
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_UNKNOWN = -1

_log = logging.getLogger(__name__)


def delete_records(
    broker: Broker, header: RequestHeader, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Where each partition's log begins now."""
    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_delete(broker, topic.name, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _delete(
    broker: Broker, topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    low_watermark, code = _UNKNOWN, ErrorCode.NONE
    try:
        partition = broker.find_partition(topic, wanted.partition_index)
        low_watermark = partition.delete_records_before(wanted.offset)
    except Refused as refused:
        code = refused.code
    except StorageError as error:
        _log.error(
            "cannot delete records partition=%s-%d error=%s", topic, wanted.partition_index, error
        )
        code = ErrorCode.KAFKA_STORAGE_ERROR
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=low_watermark, error_code=code
    )
