"""Transactions: AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26),
DescribeTransactions (65), ListTransactions (66).

A broker answers for the transactional ids whose partition of `__transaction_state` it leads, others
with NOT_COORDINATOR. `trimtab.coordinator.transaction_shard` decides.

AddPartitionsToTxn up to version 3 comes from producers, later versions from the leaders of
partitions, with several transactions at once (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, TypeAlias

from trimtab.broker.coordinator import answering
from trimtab.broker.coordinator_topic import CoordinatorTopic
from trimtab.broker.producer_ids import ProducerIds
from trimtab.broker.transactions import Transactions
from trimtab.coordinator.effects import Now
from trimtab.coordinator.topic_pattern import PatternRefused, TopicPattern
from trimtab.coordinator.transaction import BUMPS_EPOCHS_SINCE, Identity, Transaction
from trimtab.coordinator.transaction_shard import TransactionShard
from trimtab.errors import ErrorCode
from trimtab.records import TopicPartition
from trimtab.server.peer import PeerLost
from trimtab.server.turns import Pace, Steps
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from trimtab.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from trimtab.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from trimtab.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from trimtab.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from trimtab.wire.messages.list_transactions import TransactionState as ListedTransaction
from trimtab.wire.messages.transaction_records import TransactionStatus

_BATCHED_SINCE: Final = 4
_FENCED_SINCE: Final = 2
_PER_TURN: Final = 200
_NAMES: Final = {
    TransactionStatus.EMPTY: "Empty",
    TransactionStatus.ONGOING: "Ongoing",
    TransactionStatus.PREPARE_COMMIT: "PrepareCommit",
    TransactionStatus.PREPARE_ABORT: "PrepareAbort",
    TransactionStatus.COMPLETE_COMMIT: "CompleteCommit",
    TransactionStatus.COMPLETE_ABORT: "CompleteAbort",
    TransactionStatus.DEAD: "Dead",
    TransactionStatus.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
_Codes: TypeAlias = dict[TopicPartition, ErrorCode]


# AddPartitionsToTxn


def add_partitions(
    transactions: Transactions, header: RequestHeader, request: AddPartitionsToTxnRequest
) -> Steps[Awaitable[AddPartitionsToTxnResponse]]:
    """Make partitions part of transactions, or say whether they are."""
    asked = (
        request.transactions
        if header.api_version >= _BATCHED_SINCE
        else [
            AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
        ]
    )
    pace = Pace(_PER_TURN)
    answers: list[tuple[AddPartitionsToTxnTransaction, asyncio.Future[_Codes]]] = []
    for each in asked:
        partitions = []
        for topic in each.topics:
            partitions += [TopicPartition(topic.name, index) for index in topic.partitions]
            if pace.spend(1 + len(topic.partitions)):
                yield
        answers.append((each, _ask(transactions, header, each, partitions)))

    async def respond() -> AddPartitionsToTxnResponse:
        results = [
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=_tell_codes(header.api_version, each.topics, await codes),
            )
            for each, codes in answers
        ]
        if header.api_version >= _BATCHED_SINCE:
            return AddPartitionsToTxnResponse(results_by_transaction=results)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)

    return respond()


def _ask(
    transactions: Transactions,
    header: RequestHeader,
    asked: AddPartitionsToTxnTransaction,
    partitions: Sequence[TopicPartition],
) -> asyncio.Future[_Codes]:
    producer = Identity(asked.producer_id, asked.producer_epoch)
    missing = _find_missing(transactions, partitions)
    if missing:
        answer: asyncio.Future[_Codes] = asyncio.get_running_loop().create_future()
        codes = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
        answer.set_result(codes | dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return answer

    def decide(shard: TransactionShard, now: Now) -> _Codes:
        if asked.verify_only:
            return shard.verify(asked.transactional_id, producer, partitions)
        version = BUMPS_EPOCHS_SINCE if header.api_version >= _BATCHED_SINCE else 0
        code = shard.add_partitions(now, asked.transactional_id, producer, partitions, version)
        return dict.fromkeys(partitions, code)

    return transactions.ask(
        header,
        asked.transactional_id,
        answering(decide),
        lambda code: dict.fromkeys(partitions, code),
    )


def _find_missing(
    transactions: Transactions, partitions: Iterable[TopicPartition]
) -> list[TopicPartition]:
    topics = transactions.view.image.topics
    return [
        each
        for each in partitions
        if (topic := topics.get(each.topic)) is None
        or not 0 <= each.partition < len(topic.partitions)
    ]


def _tell_codes(
    version: int, topics: Iterable[AddPartitionsToTxnTopic], codes: _Codes
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=_as_known(
                        version, codes[TopicPartition(topic.name, index)]
                    ),
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _as_known(version: int, code: ErrorCode) -> ErrorCode:
    """The code that the version of AddPartitionsToTxn, AddOffsetsToTxn or EndTxn has for it."""
    is_new = code is ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_new else code


# AddOffsetsToTxn


async def add_offsets(
    transactions: Transactions,
    groups_topic: CoordinatorTopic,
    header: RequestHeader,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse:
    """Make the partition with a group's offsets part of a transaction."""
    if not request.group_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if not groups_topic.exists:
        await groups_topic.create(lambda: groups_topic.exists)
    index = groups_topic.partition_of(request.group_id)
    if index is None:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partitions = [TopicPartition(groups_topic.name, index)]
    producer = Identity(request.producer_id, request.producer_epoch)
    code = await transactions.ask(
        header,
        request.transactional_id,
        answering(
            lambda shard, now: shard.add_partitions(
                now, request.transactional_id, producer, partitions, 0
            )
        ),
        lambda code: code,
    )
    return AddOffsetsToTxnResponse(error_code=_as_known(header.api_version, code))


# EndTxn


async def end_transaction(
    transactions: Transactions, ids: ProducerIds, header: RequestHeader, request: EndTxnRequest
) -> EndTxnResponse:
    """Commit or abort a transaction: answered once the outcome is certain."""
    try:
        await ids.fill()  # the producer may need another one
    except PeerLost:
        return EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    response: EndTxnResponse = await transactions.ask(
        header,
        request.transactional_id,
        lambda shard, now, caller: shard.end(now, caller, request),
        lambda code: EndTxnResponse(error_code=code),
    )
    response.error_code = _as_known(header.api_version, ErrorCode(response.error_code))
    return response


# DescribeTransactions, ListTransactions


def describe_transactions(
    transactions: Transactions, header: RequestHeader, request: DescribeTransactionsRequest
) -> Steps[DescribeTransactionsResponse]:
    """The state of transactional ids."""
    pace = Pace(_PER_TURN)
    states = []
    for transactional_id in request.transactional_ids:
        described = _describe(transactions, transactional_id)
        states.append(described)
        if pace.spend(1 + sum(len(each.partitions) for each in described.topics)):
            yield
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)


def _describe(transactions: Transactions, transactional_id: str) -> TransactionState:
    led = transactions.find(transactional_id)
    code = ErrorCode.NONE
    known: Transaction | None = None
    if not transactional_id:
        code = ErrorCode.INVALID_REQUEST
    elif led is None or not (led.shard or led.is_loading):
        code = ErrorCode.NOT_COORDINATOR
    elif led.shard is None:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    elif (known := led.shard.transactions.get(transactional_id)) is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if known is None:
        return TransactionState(error_code=code, transactional_id=transactional_id)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(known.partitions):
        topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=_NAMES[known.status],
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer.producer_id,
        producer_epoch=known.producer.epoch,
        topics=[TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()],
    )


def list_transactions(
    transactions: Transactions, header: RequestHeader, request: ListTransactionsRequest
) -> Steps[ListTransactionsResponse]:
    """The transactional ids that this broker coordinates, as far as the filters select them;
    without those whose log is damaged."""
    if any(each.is_loading for each in transactions):
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    statuses = {name: status for status, name in _NAMES.items()}
    unknown = [each for each in request.state_filters if each not in statuses]
    states = {statuses.get(each) for each in request.state_filters}
    producers = set(request.producer_id_filters)
    pace = Pace(_PER_TURN)
    found: list[ListedTransaction] = []
    try:
        text = request.transactional_id_pattern
        pattern = TopicPattern(text) if text else None
        for shard in [each.shard for each in transactions if each.shard is not None]:
            for known in list(shard.transactions.values()):
                if pace.spend():
                    yield
                age_ms = transactions.now_ms() - known.started_ms
                if (
                    (not states or known.status in states)
                    and (not producers or known.producer.producer_id in producers)
                    and not 0 <= age_ms <= request.duration_filter
                    and (pattern is None or pattern.matches(known.id))
                ):
                    found.append(
                        ListedTransaction(
                            transactional_id=known.id,
                            producer_id=known.producer.producer_id,
                            transaction_state=_NAMES[known.status],
                        )
                    )
    except PatternRefused:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return ListTransactionsResponse(
        throttle_time_ms=0, unknown_state_filters=unknown, transaction_states=found
    )
