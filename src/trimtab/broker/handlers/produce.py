"""Produce (0), versions 3-13: append one record batch per partition.

- With acks 1 the answer comes when the batch is in the leader's log; with -1 (all) when it is in
  that of every replica in sync, of which there must be `min.insync.replicas`. acks 0 is not
  answered; an error then closes the connection, which is how the client learns of it (Kafka's
  rule). Other acks: INVALID_REQUIRED_ACKS.
- What is checked of a batch, and in which order: `trimtab.broker.partition`.
- A batch that an idempotent producer sent before is answered with NONE and the offset it has.
- Where another broker leads, versions 10 and up are told who it is (KIP-951).
- Not served: transactional batches (INVALID_TXN_STATE) and versions 0-2, which carry the message
  formats before 0.11; Kafka 4 closes the connection too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from trimtab.broker.delayed_produce import DelayedProduce
from trimtab.broker.partition import Partition, Refused
from trimtab.errors import ErrorCode
from trimtab.records import NO_OFFSET, NO_TIMESTAMP
from trimtab.server.request import CloseConnection
from trimtab.storage.storage import StorageError
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trimtab.broker.broker import Broker

_ZSTD_SINCE = 7
_LEADERS_SINCE = 10
_TOPIC_IDS_SINCE = 13
_ALL = -1
_EMPTY = memoryview(b"")

_log = logging.getLogger(__name__)


def produce(
    broker: Broker, header: RequestHeader, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    """Append, and say where."""
    version = header.api_version
    leaders: dict[int, NodeEndpoint] = {}
    fault = ErrorCode.NONE
    responses = []
    uncommitted: list[tuple[Partition, int, PartitionProduceResponse]] = []
    for topic in request.topic_data:
        name: str | None = topic.name
        if version >= _TOPIC_IDS_SINCE:
            known = broker.image.topics_by_id.get(topic.topic_id)
            name = None if known is None else known.name
        partitions = []
        for data in topic.partition_data:
            response = _append(broker, version, request.acks, name, data, uncommitted)
            if response.error_code:
                fault = ErrorCode(response.error_code)
                if fault is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= _LEADERS_SINCE:
                    _name_leader(broker, name, response, leaders)
            partitions.append(response)
        responses.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
            )
        )
    if request.acks == 0:
        if fault:
            raise CloseConnection(f"Produce with acks=0 from {header.client_id!r}: {fault.name}")
        return None
    answer = ProduceResponse(
        responses=responses, throttle_time_ms=0, node_endpoints=list(leaders.values())
    )
    if not uncommitted:
        return answer
    delayed = DelayedProduce(answer, max(0, request.timeout_ms) / 1000)
    for partition, next_offset, part in uncommitted:
        delayed.wait_for(partition, next_offset, part)
    return delayed.answer


def _append(
    broker: Broker,
    version: int,
    acks: int,
    topic: str | None,
    data: PartitionProduceData,
    uncommitted: list[tuple[Partition, int, PartitionProduceResponse]],
) -> PartitionProduceResponse:
    log_start_offset = NO_OFFSET
    try:
        if not -1 <= acks <= 1:
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = broker.find_partition(topic, data.index)
        log_start_offset = partition.log.log_start_offset
        records = cast("memoryview", _EMPTY if data.records is None else data.records)
        appended = partition.append(records, version >= _ZSTD_SINCE, acks)
    except Refused as refused:
        return PartitionProduceResponse(
            index=data.index,
            error_code=refused.code,
            base_offset=NO_OFFSET,
            log_append_time_ms=NO_TIMESTAMP,
            log_start_offset=log_start_offset,
            error_message=refused.message,
        )
    except StorageError as error:
        _log.error("cannot append partition=%s-%d error=%s", topic, data.index, error)
        return PartitionProduceResponse(
            index=data.index,
            error_code=ErrorCode.KAFKA_STORAGE_ERROR,
            base_offset=NO_OFFSET,
            error_message=str(error),
        )
    part = PartitionProduceResponse(
        index=data.index,
        error_code=ErrorCode.NONE,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=log_start_offset,
    )
    if acks == _ALL and partition.high_watermark < appended.next_offset:
        uncommitted.append((partition, appended.next_offset, part))
    return part


def _name_leader(
    broker: Broker,
    topic: str | None,
    response: PartitionProduceResponse,
    leaders: dict[int, NodeEndpoint],
) -> None:
    if topic is None:
        return
    leader, epoch, registration = broker.find_leader(topic, response.index)
    response.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    if registration is not None:
        leaders[leader] = NodeEndpoint(
            node_id=leader, host=registration.host, port=registration.port, rack=registration.rack
        )
