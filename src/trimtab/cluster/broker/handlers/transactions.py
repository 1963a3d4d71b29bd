"""Transactions: AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26),
DescribeTransactions (65), ListTransactions (66).

A broker answers for the transactional ids whose partition of `__transaction_state` it leads, others
with NOT_COORDINATOR. `trimtab.cluster.coordinator.transaction_shard` decides.

AddPartitionsToTxn up to version 3 comes from producers, later versions from the leaders of
partitions, with several transactions at once (KIP-890). To others these are refused, as by Kafka
without CLUSTER_ACTION on the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeAlias

from trimtab.cluster.broker.coordinator import answering
from trimtab.cluster.broker.coordinator_topic import CoordinatorTopic
from trimtab.cluster.broker.transactions import TransactionCoordinator
from trimtab.cluster.coordinator.effects import Now
from trimtab.cluster.coordinator.topic_pattern import (
    LibraryMissing,
    PatternRefused,
    TopicPattern,
    report_missing,
)
from trimtab.cluster.coordinator.transaction import (
    BUMPS_EPOCHS_SINCE,
    ProducerIdAndEpoch,
    Transaction,
)
from trimtab.cluster.coordinator.transaction_shard import TransactionShard
from trimtab.cluster.server.turns import Pace, Steps, answer_each, in_turns
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from trimtab.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from trimtab.kafka.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from trimtab.kafka.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from trimtab.kafka.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from trimtab.kafka.wire.messages.list_transactions import TransactionState as ListedTransaction
from trimtab.kafka.wire.messages.transaction_records import TransactionStatus

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
_Wanted: TypeAlias = dict[str, dict[int, bool]]
"""By topic the indexes of the partitions that a request names, and whether each exists."""


# AddPartitionsToTxn


def add_partitions(
    transactions: TransactionCoordinator, header: RequestHeader, request: AddPartitionsToTxnRequest
) -> Steps[AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]]:
    """Make partitions part of transactions, or say whether they are."""
    if header.api_version >= _BATCHED_SINCE and not header.is_node:
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
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
    image = transactions.view.image
    pace = Pace(_PER_TURN)
    answers: list[tuple[str, _Wanted, asyncio.Future[_Codes]]] = []
    for transaction in asked:
        wanted: _Wanted = {}
        is_whole = True
        for topic in transaction.topics:
            known = image.topics.get(topic.name)
            count = 0 if known is None else len(known.partitions)
            indexes = wanted.setdefault(topic.name, {})
            for begin in range(0, len(topic.partitions), _PER_TURN):
                some = topic.partitions[begin : begin + _PER_TURN]
                indexes.update((index, 0 <= index < count) for index in some)
                is_whole &= all(indexes[index] for index in some)
                if pace.spend(len(some)):
                    yield
            if pace.spend():
                yield
        answers.append(
            (
                transaction.transactional_id,
                wanted,
                _ask(transactions, header, transaction, wanted, is_whole),
            )
        )
        if pace.spend():
            yield

    async def respond() -> AddPartitionsToTxnResponse:
        version = header.api_version
        results = [
            AddPartitionsToTxnResult(
                transactional_id=transactional_id,
                topic_results=await in_turns(_tell_codes(version, wanted, await codes, pace)),
            )
            for transactional_id, wanted, codes in answers
        ]
        if version >= _BATCHED_SINCE:
            return AddPartitionsToTxnResponse(results_by_transaction=results)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)

    return respond()


def _ask(
    transactions: TransactionCoordinator,
    header: RequestHeader,
    asked: AddPartitionsToTxnTransaction,
    wanted: _Wanted,
    is_whole: bool,
) -> asyncio.Future[_Codes]:
    """The codes of the partitions; without any if some are missing, as then none is added."""
    if not is_whole:
        answer: asyncio.Future[_Codes] = asyncio.get_running_loop().create_future()
        answer.set_result({})
        return answer
    transactional_id, is_only_asked = asked.transactional_id, asked.verify_only
    producer = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
    # As many as the cluster has, at most.
    partitions = [TopicPartition(name, index) for name, found in wanted.items() for index in found]

    def decide(shard: TransactionShard, now: Now) -> _Codes:
        if is_only_asked:
            return shard.verify(transactional_id, producer, partitions)
        version = BUMPS_EPOCHS_SINCE if header.api_version >= _BATCHED_SINCE else 0
        code = shard.add_partitions(now, transactional_id, producer, partitions, version)
        return dict.fromkeys(partitions, code)

    return transactions.ask_shard(
        header,
        transactional_id,
        answering(decide),
        lambda code: dict.fromkeys(partitions, code),
    )


def _tell_codes(
    version: int, wanted: _Wanted, codes: _Codes, pace: Pace
) -> Steps[list[AddPartitionsToTxnTopicResult]]:
    """The answer about each partition, once, as Kafka. Empties what was wanted, so that a large
    request is freed in steps."""
    results = []
    for name, indexes in wanted.items():
        told: list[AddPartitionsToTxnPartitionResult] = []
        while indexes:
            index, exists = indexes.popitem()
            otherwise = (
                ErrorCode.OPERATION_NOT_ATTEMPTED
                if exists
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            code = codes.get(TopicPartition(name, index), otherwise)
            told.append(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=_as_known(version, code)
                )
            )
            if pace.spend():
                yield
        told.reverse()
        results.append(AddPartitionsToTxnTopicResult(name=name, results_by_partition=told))
        if pace.spend():
            yield
    return results


def _as_known(version: int, code: ErrorCode) -> ErrorCode:
    """The code that the version of AddPartitionsToTxn, AddOffsetsToTxn or EndTxn has for it."""
    is_new = code is ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_new else code


# AddOffsetsToTxn


async def add_offsets(
    transactions: TransactionCoordinator,
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
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    code = await transactions.ask_shard(
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
    transactions: TransactionCoordinator, header: RequestHeader, request: EndTxnRequest
) -> EndTxnResponse:
    """Commit or abort a transaction: answered once the outcome is certain."""
    response: EndTxnResponse = await transactions.ask_shard(
        header,
        request.transactional_id,
        lambda shard, now, caller: shard.commit_or_abort(now, caller, request),
        lambda code: EndTxnResponse(error_code=code),
    )
    response.error_code = _as_known(header.api_version, ErrorCode(response.error_code))
    return response


# DescribeTransactions, ListTransactions


def describe_transactions(
    transactions: TransactionCoordinator,
    header: RequestHeader,
    request: DescribeTransactionsRequest,
) -> Steps[DescribeTransactionsResponse]:
    """The state of transactional ids."""
    return answer_each(
        request.transactional_ids,
        lambda transactional_id: _describe(transactions, transactional_id),
        lambda states: DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states),
        cost=lambda _, state: 1 + sum(len(topic.partitions) for topic in state.topics),
    )


def _describe(transactions: TransactionCoordinator, transactional_id: str) -> TransactionState:
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
    transactions: TransactionCoordinator, header: RequestHeader, request: ListTransactionsRequest
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
                if pace.spend(1 if pattern is None else pattern.cost(known.id)):
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
    except PatternRefused as refused:
        if isinstance(refused, LibraryMissing):
            report_missing()
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return ListTransactionsResponse(
        throttle_time_ms=0, unknown_state_filters=unknown, transaction_states=found
    )
