"""Produce (0), versions 3-13: append one record batch per partition.

- With acks=1 the response is sent when the batch is in the leader's log; with acks=-1 (all), when
  every in-sync replica has it, and there must be `min.insync.replicas` of them. acks=0 gets no
  response; after an error the connection is closed, so that the client notices (Kafka's rule).
  Other acks: INVALID_REQUIRED_ACKS.
- `trimtab.cluster.broker.batch_rules` says what is checked in a batch, and in which order.
- If single records break a rule, the error names them (KIP-467).
- A duplicate from an idempotent producer is answered with NONE and the offset of the stored batch.
- If another broker leads, the response names it from version 10 on (KIP-951).
- The first transactional batch of a transaction in a partition waits until the transaction's
  coordinator has confirmed that the partition is part of it, or from version 12 on, made it part
  of it (KIP-890).
- Not served: versions 0-2, which carry the message formats before 0.11; Kafka 4 closes the
  connection too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TypeAlias, cast

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.delayed_response import DelayedResponse
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.broker.transaction_checks import TransactionChecks, tell_producer
from trimtab.cluster.broker.verification import Verification
from trimtab.cluster.coordinator.transaction import NOBODY, ProducerIdAndEpoch
from trimtab.cluster.server.request import CloseConnection
from trimtab.cluster.server.turns import Pace, Steps, in_turns
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.records import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from trimtab.kafka.wire.batch_cy import BatchHeader, read_header
from trimtab.kafka.wire.batch_header import is_transactional
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from trimtab.kafka.wire.sentinels import ALL_IN_SYNC_REPLICAS
from trimtab.kafka.wire.types import BytesLike, StoredBytes

_ZSTD_SINCE = 7
_RECORD_ERRORS_SINCE = 8
_LEADERS_SINCE = 10
_ABORTABLE_SINCE = 11
_ADDS_PARTITIONS_SINCE = 12
_TOPIC_IDS_SINCE = 13
_BYTES_AT_ONCE = 4 * 1024 * 1024
"""Record bytes that are appended before other requests are served."""
_PARTITION_COST = 32 * 1024
"""Bytes that each partition counts as, in addition to its records."""
_EMPTY = memoryview(b"")
_ORDINARY = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Refusals that do not count as failed, as in Kafka's `ReplicaManager.appendToLocalLog`."""
_NONE_VERIFIED: Mapping[TopicPartition, Verification | ErrorCode] = {}
_REFUSED_BY_COORDINATOR = (
    "the transaction's coordinator does not confirm it as part of the transaction."
)
_Response: TypeAlias = "ProduceResponse | None"

_log = logging.getLogger(__name__)


def produce(
    replicas: Replicas, checks: TransactionChecks, header: RequestHeader, request: ProduceRequest
) -> Steps[_Response | Awaitable[_Response]]:
    """Append the batches, and answer with their offsets."""
    if request.transactional_id is None:
        return _append_batches(replicas, header, request, _NONE_VERIFIED)
    return _verify(replicas, checks, header, request)


def _verify(
    replicas: Replicas, checks: TransactionChecks, header: RequestHeader, request: ProduceRequest
) -> Steps[_Response | Awaitable[_Response]]:
    """Append the batches once the coordinator has confirmed those that begin a transaction."""
    adds = header.api_version >= _ADDS_PARTITIONS_SINCE
    producers, verified = yield from _find_unverified(replicas, header, request)
    if len(producers) > 1:  # each request is of one producer
        verified.update(dict.fromkeys(verified, ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        return (yield from _append_batches(replicas, header, request, verified))
    producer = next(iter(producers), NOBODY)
    if not verified and checks.is_free(producer.producer_id):
        return (yield from _append_batches(replicas, header, request, verified))
    turn = checks.begin_turn(producer.producer_id)

    async def append_in_turn() -> _Response | Awaitable[_Response]:
        async with turn:
            # The requests before this one may have begun the transaction.
            _, asked = await in_turns(_find_unverified(replicas, header, request))
            if asked:
                await _ask(replicas, checks, header, request, producer, asked, adds)
            return await in_turns(_append_batches(replicas, header, request, asked))

    async def respond() -> _Response:
        response = await append_in_turn()
        if response is None or isinstance(response, ProduceResponse):
            return response
        return await response

    task = asyncio.ensure_future(respond())
    task.add_done_callback(lambda _: turn.pass_on())  # also if it is cancelled before it begins
    return task


def _find_unverified(
    replicas: Replicas, header: RequestHeader, request: ProduceRequest
) -> Steps[tuple[dict[ProducerIdAndEpoch, None], dict[TopicPartition, Verification | ErrorCode]]]:
    """The producers of a request's transactional batches, and for the batches whose transactions
    are not open here, what `Partition.append` needs."""
    adds = header.api_version >= _ADDS_PARTITIONS_SINCE
    verified: dict[TopicPartition, Verification | ErrorCode] = {}
    producers: dict[ProducerIdAndEpoch, None] = {}
    pace = Pace()
    for topic in request.topic_data:
        name = _name_of(replicas.view, header.api_version, topic)
        for data in topic.partition_data:
            if pace.spend():
                yield
            batch = _peek(data.records)
            if name is None or batch is None:
                continue
            partition = replicas.partitions.get((name, data.index))
            if partition is None or not partition.is_leader:
                continue
            producer = ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch)
            producers[producer] = None
            verification = partition.begin_verification(*producer, batch.base_sequence, adds)
            if verification is not None:
                verified[TopicPartition(name, data.index)] = verification
    return producers, verified


async def _ask(
    replicas: Replicas,
    checks: TransactionChecks,
    header: RequestHeader,
    request: ProduceRequest,
    producer: ProducerIdAndEpoch,
    verified: dict[TopicPartition, Verification | ErrorCode],
    adds: bool,
) -> None:
    """Ask the coordinator, and replace what it refuses by the code for the producer."""
    transactional_id = request.transactional_id
    assert transactional_id is not None
    codes = await checks.check(transactional_id, producer, verified.keys(), adds)
    knows_abortable = header.api_version >= _ABORTABLE_SINCE
    for key, code in codes.items():
        if code is ErrorCode.NONE:
            continue
        told = tell_producer(code, ErrorCode.NOT_ENOUGH_REPLICAS, knows_abortable)
        partition, refused = replicas.partitions.get(key), verified[key]
        if told is not ErrorCode.NOT_ENOUGH_REPLICAS and partition is not None:
            assert isinstance(refused, Verification)
            partition.verifications.refuse(producer.producer_id, refused)
        verified[key] = told


def _peek(records: BytesLike | StoredBytes | None) -> BatchHeader | None:
    """The header of a transactional batch, which is checked later; None if it is not one."""
    try:
        header = read_header(cast("memoryview", records or b""))
    except CorruptData:
        return None
    return header if header.is_transactional and header.producer_id >= 0 else None


def _append_batches(
    replicas: Replicas,
    header: RequestHeader,
    request: ProduceRequest,
    verified: Mapping[TopicPartition, Verification | ErrorCode],
) -> Steps[_Response | Awaitable[_Response]]:
    """Append the batches.

    Args:
        verified: for batches that begin a transaction, what the leader needs, or why the
            coordinator has refused them.
    """
    version = header.api_version
    fault = ErrorCode.NONE
    answer = ProduceResponse(responses=[], throttle_time_ms=0, node_endpoints=[])
    delayed: DelayedResponse | None = None
    topics: dict[int, str] = {}  # topic names by id() of the waiting parts

    def refuse(part: PartitionProduceResponse, code: ErrorCode) -> None:
        part.error_code = code
        part.error_message = code.name
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= _LEADERS_SINCE:
            _name_leader(replicas.view, topics[id(part)], part, answer)

    left = _BYTES_AT_ONCE
    for topic in request.topic_data:
        name = _name_of(replicas.view, version, topic)
        partitions = []
        left -= _PARTITION_COST
        if left < 0:
            yield
            left = _BYTES_AT_ONCE
        for data in topic.partition_data:
            left -= _PARTITION_COST + len(data.records or b"")
            if left < 0:
                yield
                left = _BYTES_AT_ONCE
            response, partition, next_offset = yield from _append(
                replicas, version, request, name, data, verified
            )
            if partition is not None:
                # Before the next yield, as this broker may not lead any more after it.
                if delayed is None:
                    delayed = DelayedResponse(answer, refuse)
                topics[id(response)] = partition.topic
                await_commit(delayed, partition, next_offset, response)
            if response.error_code:
                fault = ErrorCode(response.error_code)
                if fault is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= _LEADERS_SINCE:
                    _name_leader(replicas.view, name, response, answer)
            partitions.append(response)
        if request.acks != 0:
            answer.responses.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
                )
            )
    if request.acks == 0:
        if fault:
            raise CloseConnection(f"Produce with acks=0 from {header.client_id!r}: {fault.name}")
        return None
    if delayed is None:
        return answer
    delayed.start(max(0, request.timeout_ms) / 1000)
    return delayed.answer


def await_commit(
    delayed: DelayedResponse,
    partition: Partition,
    next_offset: int,
    part: PartitionProduceResponse,
) -> None:
    """Settle this part once all records before `next_offset` are committed."""

    def done(is_committed: bool) -> None:
        leadership = partition.leadership  # perhaps of a later epoch
        if not is_committed or leadership is None:
            delayed.settle(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif len(leadership.maximal_isr) < leadership.effective_min_isr:
            delayed.settle(part, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        else:
            delayed.settle(part, ErrorCode.NONE)

    assert partition.leadership is not None
    delayed.hold(part)
    partition.leadership.wait(next_offset, done)


def _append(
    replicas: Replicas,
    version: int,
    request: ProduceRequest,
    topic: str | None,
    data: PartitionProduceData,
    verified: Mapping[TopicPartition, Verification | ErrorCode],
) -> Steps[tuple[PartitionProduceResponse, Partition | None, int]]:
    """Append one batch; returns the partition's response. If that must wait for a commit, also the
    partition and the offset that its high watermark must reach."""
    log_start_offset, acks = NO_OFFSET, request.acks
    traffic = replicas.traffic.others
    try:
        if not -1 <= acks <= 1:
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = replicas.find_partition(topic, data.index)
        traffic = partition.traffic
        log_start_offset = partition.log.log_start_offset
        records = cast("memoryview", _EMPTY if data.records is None else data.records)
        allows_zstd = version >= _ZSTD_SINCE
        verification = verified.get(TopicPartition(topic, data.index)) if verified else None
        if isinstance(verification, ErrorCode):
            raise Refused(verification, f"{partition}: {_REFUSED_BY_COORDINATOR}")
        if request.transactional_id is None and is_transactional(records):
            raise Refused(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                f"{partition}: the batch is part of a transaction, and the request names no "
                "transactional.id.",
            )
        appended = yield from partition.append(records, allows_zstd, acks, verification)
        traffic.bytes_in += len(records)
        traffic.records_in += appended.next_offset - appended.base_offset
    except Refused as refused:
        if refused.code is ErrorCode.MESSAGE_TOO_LARGE:
            traffic.bytes_rejected += len(records)
        if refused.code not in _ORDINARY:
            traffic.failed_produces += 1
        at_fault = refused.at_fault
        if refused.is_wrong_time is not None and version >= _RECORD_ERRORS_SINCE:
            at_fault = yield from partition.rules.find_times(records, refused.is_wrong_time)
        refusal = PartitionProduceResponse(
            index=data.index,
            error_code=refused.code,
            base_offset=NO_OFFSET,
            log_append_time_ms=NO_TIMESTAMP,
            log_start_offset=log_start_offset,
            record_errors=[
                # The message of each is that of the batch.
                BatchIndexAndErrorMessage(batch_index=place)
                for place in at_fault
            ],
            error_message=refused.message,
        )
        return refusal, None, 0
    except StorageError as error:
        _log.error("cannot append partition=%s-%d error=%s", topic, data.index, error)
        replicas.disk_failed(error)
        refusal = PartitionProduceResponse(
            index=data.index,
            error_code=ErrorCode.KAFKA_STORAGE_ERROR,
            base_offset=NO_OFFSET,
            error_message=str(error),
        )
        return refusal, None, 0
    finally:
        traffic.produces += 1
    part = PartitionProduceResponse(
        index=data.index,
        error_code=ErrorCode.NONE,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=log_start_offset,
    )
    if acks == ALL_IN_SYNC_REPLICAS and partition.high_watermark < appended.next_offset:
        return part, partition, appended.next_offset
    return part, None, 0


def _name_of(view: ClusterView, version: int, topic: TopicProduceData) -> str | None:
    """The name of a topic in a request; None if its id is not known."""
    if version < _TOPIC_IDS_SINCE:
        return topic.name
    known = view.image.topics_by_id.get(topic.topic_id)
    return None if known is None else known.name


def _name_leader(
    view: ClusterView,
    topic: str | None,
    response: PartitionProduceResponse,
    answer: ProduceResponse,
) -> None:
    """Add the current leader to the response, unless the partition has been deleted."""
    found = None if topic is None else view.find_leader(topic, response.index)
    if found is None:
        return
    leader, epoch, registration = found
    response.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    endpoints = answer.node_endpoints
    if registration is not None and all(each.node_id != leader for each in endpoints):
        endpoints.append(
            NodeEndpoint(
                node_id=leader,
                host=registration.host,
                port=registration.port,
                rack=registration.rack,
            )
        )
