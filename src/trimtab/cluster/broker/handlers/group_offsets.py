"""The offsets of groups: OffsetCommit (8), OffsetFetch (9), TxnOffsetCommit (28), and
OffsetDelete (47)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from trimtab.cluster.broker.coordinator import answering
from trimtab.cluster.broker.groups import GroupCoordinator
from trimtab.cluster.broker.transaction_checks import TransactionChecks, tell_producer
from trimtab.cluster.coordinator.effects import Now
from trimtab.cluster.coordinator.group_shard import Commit, GroupShard
from trimtab.cluster.coordinator.offsets import Committed
from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch
from trimtab.cluster.server.turns import (
    Pace,
    Steps,
    answer_each,
    divide,
    in_turns,
)
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import NO_OFFSET, TopicPartition
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from trimtab.kafka.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from trimtab.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from trimtab.kafka.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_TIMESTAMP
from trimtab.kafka.wire.types import ZERO_UUID

T = TypeVar("T")
_Wanted: TypeAlias = tuple[
    TopicPartition, OffsetCommitRequestPartition, OffsetCommitResponsePartition
]
_Asked: TypeAlias = tuple[str | None, bytes, Sequence[int]]
"""A topic's name (None: its id is not known), its id, and partitions."""

_Found: TypeAlias = Mapping[TopicPartition, Committed | None]
"""The offsets of a group; None: a transaction will decide it."""

_PARTITIONS_PER_TURN: Final = 200
_TOPIC_IDS_SINCE = 10
_SEVERAL_GROUPS_SINCE = 8
_ABORTABLE_SINCE = 4
_ADDS_GROUP_SINCE = 5

_MISSING = Committed(NO_OFFSET, NO_EPOCH, "", NO_TIMESTAMP)


def commit_offsets(
    groups: GroupCoordinator, header: RequestHeader, request: OffsetCommitRequest
) -> Steps[OffsetCommitResponse | Awaitable[OffsetCommitResponse]]:
    """Store the offsets of partitions that exist."""
    topics: list[OffsetCommitResponseTopic] = []
    wanted: list[_Wanted] = []
    pace = Pace(_PARTITIONS_PER_TURN)
    for topic in request.topics:
        name = _name_of(groups, header.api_version, topic.name, topic.topic_id)
        count = _count_partitions(groups, name)
        told = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[])
        topics.append(told)
        for request_partition in topic.partitions:
            code = ErrorCode.NONE
            if name is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif not 0 <= request_partition.partition_index < count:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            part = OffsetCommitResponsePartition(
                partition_index=request_partition.partition_index, error_code=code
            )
            told.partitions.append(part)
            if name is not None and code is ErrorCode.NONE:
                wanted.append(
                    (
                        TopicPartition(name, request_partition.partition_index),
                        request_partition,
                        part,
                    )
                )
            if pace.spend():
                yield
        if pace.spend():
            yield

    def commit(some: Sequence[_Wanted]) -> asyncio.Future[Any]:
        commit = Commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            {
                partition: (
                    offset.committed_offset,
                    offset.committed_leader_epoch,
                    offset.committed_metadata or "",
                )
                for partition, offset, _ in some
            },
            request.retention_time_ms,
        )
        return groups.ask_shard(
            header,
            request.group_id,
            answering(lambda shard, now: shard.commit(now, header.api_version, commit)),
            lambda code: dict.fromkeys(commit.offsets, code),
        )

    parts = divide(wanted)
    asked = yield from answer_each(parts, commit, list, cost=lambda some, _: len(some))

    def respond() -> OffsetCommitResponse:
        for some, answer in zip(parts, asked, strict=True):
            codes = answer.result()
            for partition, _, part in some:
                part.error_code = codes[partition]
        return OffsetCommitResponse(topics=topics)

    async def respond_later() -> OffsetCommitResponse:
        for answer in asked:
            await answer
        return respond()

    return respond() if all(answer.done() for answer in asked) else respond_later()


def commit_offsets_in_transaction(
    groups: GroupCoordinator,
    checks: TransactionChecks,
    header: RequestHeader,
    request: TxnOffsetCommitRequest,
) -> Steps[Awaitable[TxnOffsetCommitResponse]]:
    """Store the offsets of partitions that exist, undecided until the transaction ends."""
    topics: list[TxnOffsetCommitResponseTopic] = []
    wanted: dict[TopicPartition, tuple[int, int, str]] = {}
    parts: list[tuple[TopicPartition, TxnOffsetCommitResponsePartition]] = []
    pace = Pace(_PARTITIONS_PER_TURN)
    for topic in request.topics:
        count = _count_partitions(groups, topic.name)
        told = TxnOffsetCommitResponseTopic(name=topic.name, partitions=[])
        topics.append(told)
        for request_partition in topic.partitions:
            part = TxnOffsetCommitResponsePartition(
                partition_index=request_partition.partition_index
            )
            told.partitions.append(part)
            if 0 <= request_partition.partition_index < count:
                partition = TopicPartition(topic.name, request_partition.partition_index)
                parts.append((partition, part))
                wanted[partition] = (
                    request_partition.committed_offset,
                    request_partition.committed_leader_epoch,
                    request_partition.committed_metadata or "",
                )
            else:
                part.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if pace.spend():
                yield
        if pace.spend():
            yield
    commit = Commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        wanted,
    )

    async def respond() -> TxnOffsetCommitResponse:
        codes = await _commit_in_transaction(groups, checks, header, request, commit)
        for partition, part in parts:
            part.error_code = codes[partition]
        return TxnOffsetCommitResponse(topics=topics)

    return respond()


async def _commit_in_transaction(
    groups: GroupCoordinator,
    checks: TransactionChecks,
    header: RequestHeader,
    request: TxnOffsetCommitRequest,
    commit: Commit,
) -> Mapping[TopicPartition, ErrorCode]:
    def refuse(code: ErrorCode) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(commit.offsets, code)

    if not commit.group:
        return refuse(ErrorCode.INVALID_GROUP_ID)
    led = groups.find(commit.group)
    if led is None:
        return refuse(ErrorCode.NOT_COORDINATOR)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    adds = header.api_version >= _ADDS_GROUP_SINCE
    verification = led.partition.begin_verification(*producer, 0, adds)
    if verification is not None:
        found = await checks.check(request.transactional_id, producer, [led.partition_key], adds)
        code = found[led.partition_key]
        if code is not ErrorCode.NONE:
            retried = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            told = tell_producer(code, retried, header.api_version >= _ABORTABLE_SINCE)
            if told is not retried:
                led.partition.verifications.refuse(producer.producer_id, verification)
            return refuse(told)

    def decide(shard: GroupShard, now: Now) -> dict[TopicPartition, ErrorCode]:
        code = led.check_producer(*producer, verification)
        return shard.commit(now, 0, commit, producer) if code is ErrorCode.NONE else refuse(code)

    codes: dict[TopicPartition, ErrorCode] = await led.ask_shard(header, answering(decide), refuse)
    return codes


async def fetch_offsets(
    groups: GroupCoordinator, header: RequestHeader, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """The offsets that groups have committed: of the partitions asked for, or all."""
    stable = request.require_stable
    if header.api_version >= _SEVERAL_GROUPS_SINCE:
        response = OffsetFetchResponse(groups=[])
        pace = Pace()
        for group in request.groups:
            answer = await _fetch_group(groups, header, stable, group)
            response.groups.append(answer)
            # An answer that is there already does not pause.
            if pace.spend(1 + sum(len(topic.partitions) for topic in answer.topics)):
                await asyncio.sleep(0)
        return response
    found = await _ask_offsets(groups, header, stable, request.group_id)
    code = found if isinstance(found, ErrorCode) else ErrorCode.NONE
    committed: _Found = {} if isinstance(found, ErrorCode) else found
    wanted: list[_Asked] = (
        _by_topic(groups, committed)
        if request.topics is None
        else [(each.name, ZERO_UUID, each.partition_indexes) for each in request.topics]
    )

    def tell(index: int, each: Committed, of_one: ErrorCode) -> OffsetFetchResponsePartition:
        return OffsetFetchResponsePartition(
            partition_index=index,
            committed_offset=each.offset,
            committed_leader_epoch=each.leader_epoch,
            metadata=each.metadata,
            error_code=code or of_one,
        )

    told = await in_turns(_tell_offsets(wanted, committed, tell))
    return OffsetFetchResponse(  # aiokafka takes a missing partition for one without an offset
        topics=[
            OffsetFetchResponseTopic(name=name or "", partitions=partitions)
            for name, _, partitions in told
        ],
        error_code=code,
    )


async def _fetch_group(
    groups: GroupCoordinator, header: RequestHeader, stable: bool, group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    committed = await _ask_offsets(
        groups, header, stable, group.group_id, group.member_id, group.member_epoch
    )
    if isinstance(committed, ErrorCode):
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=[], error_code=committed)
    uses_ids = header.api_version >= _TOPIC_IDS_SINCE
    wanted: list[_Asked] = (
        [each for each in _by_topic(groups, committed) if not uses_ids or each[1] != ZERO_UUID]
        if group.topics is None
        else [
            (
                _name_of(groups, header.api_version, topic.name, topic.topic_id),
                topic.topic_id,
                topic.partition_indexes,
            )
            for topic in group.topics
        ]
    )

    def tell(index: int, each: Committed, code: ErrorCode) -> OffsetFetchResponsePartitions:
        return OffsetFetchResponsePartitions(
            partition_index=index,
            committed_offset=each.offset,
            committed_leader_epoch=each.leader_epoch,
            metadata=each.metadata,
            error_code=code,
        )

    told = await in_turns(_tell_offsets(wanted, committed, tell))
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            OffsetFetchResponseTopics(name=name or "", topic_id=topic_id, partitions=partitions)
            for name, topic_id, partitions in told
        ],
    )


def _tell_offsets(
    wanted: Iterable[_Asked],
    committed: _Found,
    tell: Callable[[int, Committed, ErrorCode], T],
) -> Steps[list[tuple[str | None, bytes, list[T]]]]:
    told = []
    pace = Pace(_PARTITIONS_PER_TURN)
    for name, topic_id, indexes in wanted:
        code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
        partitions: list[T] = []
        told.append((name, topic_id, partitions))
        for index in indexes:
            each = committed.get(TopicPartition(name or "", index), _MISSING)
            partitions.append(
                tell(index, _MISSING, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if each is None
                else tell(index, each, code)
            )
            if pace.spend():
                yield
        if pace.spend():
            yield
    return told


async def _ask_offsets(
    groups: GroupCoordinator,
    header: RequestHeader,
    stable: bool,
    group_id: str,
    member_id: str | None = None,
    member_epoch: int = NO_EPOCH,
) -> _Found | ErrorCode:
    """The offsets of a group, or the error code.

    Args:
        stable: whether an offset that a transaction will decide is not told (KIP-447).
    """

    def read(shard: GroupShard, _: Now) -> _Found | ErrorCode:
        code = shard.check_fetch(group_id, member_id, member_epoch)
        if code is not ErrorCode.NONE:
            return code
        found: dict[TopicPartition, Committed | None] = dict(shard.offsets(group_id))
        if stable:
            found.update(dict.fromkeys(shard.undecided(group_id)))
        return found

    found: _Found | ErrorCode = await groups.ask_shard(
        header, group_id, answering(read), lambda code: code
    )
    return found


def delete_offsets(
    groups: GroupCoordinator, header: RequestHeader, request: OffsetDeleteRequest
) -> Steps[Awaitable[OffsetDeleteResponse]]:
    """Delete offsets of topics to which no member subscribes."""
    topics: list[OffsetDeleteResponseTopic] = []
    wanted: list[tuple[TopicPartition, OffsetDeleteResponsePartition]] = []
    pace = Pace(_PARTITIONS_PER_TURN)
    for topic in request.topics:
        told = OffsetDeleteResponseTopic(name=topic.name, partitions=[])
        topics.append(told)
        count = _count_partitions(groups, topic.name)
        for request_partition in topic.partitions:
            part = OffsetDeleteResponsePartition(
                partition_index=request_partition.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
            told.partitions.append(part)
            if 0 <= request_partition.partition_index < count:
                wanted.append((TopicPartition(topic.name, request_partition.partition_index), part))
            if pace.spend():
                yield
        if pace.spend():
            yield

    def delete(
        some: Sequence[tuple[TopicPartition, OffsetDeleteResponsePartition]],
    ) -> asyncio.Future[Any]:
        partitions = [partition for partition, _ in some]
        return groups.ask_shard(
            header,
            request.group_id,
            answering(lambda shard, _: shard.delete_offsets(request.group_id, partitions)),
            lambda code: (code, {}),
        )

    async def respond(asked: list[asyncio.Future[Any]]) -> OffsetDeleteResponse:
        for some, answer in zip(parts, asked, strict=True):
            code, codes = await answer
            if code is not ErrorCode.NONE:
                return OffsetDeleteResponse(error_code=code, topics=[])
            for partition, part in some:
                part.error_code = codes[partition]
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)

    parts = divide(wanted)
    return (yield from answer_each(parts, delete, respond, cost=lambda some, _: len(some)))


def _name_of(groups: GroupCoordinator, version: int, name: str, topic_id: bytes) -> str | None:
    """The name of a topic in a request; None if its id is not known."""
    if version < _TOPIC_IDS_SINCE:
        return name
    topic = groups.view.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


def _id_of(groups: GroupCoordinator, name: str) -> bytes:
    topic = groups.view.image.topics.get(name)
    return ZERO_UUID if topic is None else topic.id


def _count_partitions(groups: GroupCoordinator, name: str | None) -> int:
    topic = None if name is None else groups.view.image.topics.get(name)
    return 0 if topic is None else len(topic.partitions)


def _by_topic(groups: GroupCoordinator, committed: Mapping[TopicPartition, Any]) -> list[_Asked]:
    topics: dict[str, list[int]] = {}
    for partition in committed:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return [(name, _id_of(groups, name), indexes) for name, indexes in topics.items()]
