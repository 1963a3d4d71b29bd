"""ListOffsets (2), versions 1-11: the offset that belongs to a time, or to an end of the log.

| timestamp | offset | from version |
|---|---|---|
| 0 and above | of the first record that is as young | 1 |
| -1 latest | the high watermark; of committed records, the last stable offset | 1 |
| -2 earliest | the log's start | 1 |
| -3 max timestamp | of the record with the largest timestamp (KIP-734) | 7 |
| -4 earliest local | the log's start: nothing is tiered (KIP-405) | 8 |
| -5 latest tiered | -1: nothing is tiered (KIP-1005) | 9 |
| -6 earliest pending upload | -1: nothing is tiered (KIP-1023) | 11 |

Readers of committed records see up to the last stable offset (KIP-98). A leader that does not know
yet what its predecessors had committed answers consumers with OFFSET_NOT_AVAILABLE, or
LEADER_NOT_AVAILABLE before version 5 (KIP-207). A partition that is listed twice is refused with
INVALID_REQUEST.

A request with any other replica id than a consumer's sees offsets up to the log end offset, also
beyond the high watermark, at every isolation level. Only the leader answers, except for the
debugging replica (-2): any replica answers it for its own log, so leader and followers can be
compared from outside. As in Kafka, clients may do so, too: they learn offsets and times of records
that are not committed yet, never the records.

Source: Kafka's `ReplicaManager.fetchOffset` and `Partition.fetchOffsetForTimestamp`.
"""

from __future__ import annotations

import logging
from collections import Counter

from trimtab.cluster.broker.each_partition import answer_each_partition
from trimtab.cluster.broker.fetch_reader import READ_COMMITTED
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.records import NO_OFFSET, NO_TIMESTAMP
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from trimtab.kafka.wire.sentinels import (
    CONSUMER,
    DEBUGGING_REPLICA,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    NO_EPOCH,
)

_SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_ISOLATIONS = (0, READ_COMMITTED)
_LOOKUP_COST = 20
"""Finding a time reads the log, and takes so much longer than the ends of it."""
_EPOCHS_SINCE = 4
_NOT_AVAILABLE_SINCE = 5

_log = logging.getLogger(__name__)


def list_offsets(
    replicas: Replicas, header: RequestHeader, request: ListOffsetsRequest
) -> Steps[ListOffsetsResponse]:
    """One offset per partition that is asked for."""
    pace = Pace()
    asks_any = request.replica_id == DEBUGGING_REPLICA
    find = replicas.find_replica if asks_any else replicas.find_partition
    times: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        if pace.spend():
            yield
        for wanted in topic.partitions:
            times[topic.name, wanted.partition_index] += 1
            if pace.spend():
                yield

    def answer(
        topic: ListOffsetsTopic, wanted: ListOffsetsPartition
    ) -> Steps[ListOffsetsPartitionResponse]:
        if wanted.timestamp >= 0 and pace.spend(_LOOKUP_COST):
            yield
        try:
            if request.isolation_level not in _ISOLATIONS:
                raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka, without a check
            if times[topic.name, wanted.partition_index] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST)
            if wanted.timestamp < 0 and not (
                _SINCE_VERSION.get(wanted.timestamp, 1 << 15) <= header.api_version
            ):
                raise Refused(ErrorCode.UNSUPPORTED_VERSION)
            partition = find(topic.name, wanted.partition_index)
            partition.check_epoch(wanted.current_leader_epoch)
            found = yield from _find(partition, wanted, request, header.api_version)
            if header.api_version < _EPOCHS_SINCE:
                found.leader_epoch = NO_EPOCH
            return found
        except Refused as refused:
            return _answer(wanted, code=refused.code)
        except (StorageError, CorruptData) as error:
            where = f"{topic.name}-{wanted.partition_index}"
            _log.error("cannot look up an offset partition=%s error=%s", where, error)
            if isinstance(error, StorageError):
                replicas.disk_failed(error)
            return _answer(wanted, code=ErrorCode.KAFKA_STORAGE_ERROR)

    topics = yield from answer_each_partition(
        request.topics,
        lambda topic: topic.partitions,
        answer,
        lambda topic, found: ListOffsetsTopicResponse(name=topic.name, partitions=found),
        pace,
    )
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _find(
    partition: Partition, wanted: ListOffsetsPartition, request: ListOffsetsRequest, version: int
) -> Steps[ListOffsetsPartitionResponse]:
    timestamp, epoch = wanted.timestamp, partition.leader_epoch
    leadership, log = partition.leadership, partition.log
    is_consumer = request.replica_id == CONSUMER
    end = partition.high_watermark if is_consumer else log.log_end_offset
    is_end_known = not is_consumer or leadership is None or end >= leadership.start_offset
    if request.isolation_level == READ_COMMITTED and is_consumer:
        end = log.last_stable_offset
    if timestamp == LATEST and is_end_known:
        return _answer(wanted, NO_TIMESTAMP, end, epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _answer(wanted, NO_TIMESTAMP, log.log_start_offset, epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _answer(wanted)
    found = None
    if timestamp == MAX_TIMESTAMP:
        found = yield from log.offset_of_max_timestamp(end)
    elif timestamp >= 0:
        found = yield from log.offset_for_timestamp(timestamp, end)
    if found is not None:
        return _answer(wanted, found.timestamp, found.offset, found.leader_epoch)
    if is_end_known:
        return _answer(wanted)
    raise Refused(
        ErrorCode.OFFSET_NOT_AVAILABLE
        if version >= _NOT_AVAILABLE_SINCE
        else ErrorCode.LEADER_NOT_AVAILABLE
    )


def _answer(
    wanted: ListOffsetsPartition,
    timestamp: int = NO_TIMESTAMP,
    offset: int = NO_OFFSET,
    leader_epoch: int = NO_EPOCH,
    code: ErrorCode = ErrorCode.NONE,
) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )
