"""How a leader learns whether a producer's transaction is open: it asks the coordinator (KIP-890).

    question ─▶ AddPartitionsToTxn to the coordinator, with all questions that have come meanwhile

Source: Kafka's `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, cast

from trimtab.broker.cluster_view import ClusterView
from trimtab.broker.coordinator_topic import CoordinatorTopic
from trimtab.broker.peers import Outbox, Peers
from trimtab.coordinator.transaction import Identity
from trimtab.errors import ErrorCode
from trimtab.records import TopicPartition
from trimtab.server.peer import PeerLost
from trimtab.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

_TIMEOUT_S: Final = 5.0
_FIRST_BACKOFF_S: Final = 0.001
"""The markers of the transaction before are written within milliseconds as a rule."""
_RETRIED: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_COORDINATOR,
)


class _Question:
    __slots__ = ("adds", "answer", "partitions", "producer", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: Collection[TopicPartition],
        adds: bool,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = partitions
        self.adds = adds
        self.answer: asyncio.Future[dict[TopicPartition, ErrorCode]] = (
            asyncio.get_running_loop().create_future()
        )

    def settle(self, codes: dict[TopicPartition, ErrorCode]) -> None:
        if not self.answer.done():  # its connection may be lost
            self.answer.set_result(codes)


class Turn:
    """The turn of one request among those of its producer."""

    __slots__ = ("_before", "_last", "_over", "_producer_id")

    def __init__(self, last: dict[int, Turn], producer_id: int) -> None:
        self._last = last
        self._producer_id = producer_id
        self._before = last.get(producer_id)
        self._over = asyncio.Event()

    async def __aenter__(self) -> None:
        if self._before is not None:
            await self._before._over.wait()
            self._before = None

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """The next request may go on."""
        self._over.set()
        if self._last.get(self._producer_id) is self:
            del self._last[self._producer_id]


class TransactionChecks:
    """Asks the coordinators of transactions.

    Args:
        topic: finds the coordinators.
    """

    def __init__(self, view: ClusterView, topic: CoordinatorTopic) -> None:
        self._view = view
        self._topic = topic
        self._peers = Peers(view, "transactions")
        self._outbox: Outbox[_Question] = Outbox(self._deliver)
        self._last: dict[int, Turn] = {}
        """By producer id, the last request that waits for its turn."""

    def is_free(self, producer_id: int) -> bool:
        """Whether no request of the producer waits for the coordinator or for its turn."""
        return producer_id not in self._last

    def begin_turn(self, producer_id: int) -> Turn:
        """Line up behind the producer's requests that wait. So its batches stay in their order."""
        turn = self._last[producer_id] = Turn(self._last, producer_id)
        return turn

    async def check(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: Collection[TopicPartition],
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether partitions are part of a producer's open transaction, by partition.

        Args:
            adds: whether they become part of it, and it begins if need be (version 2 of
                transactions). The previous one may still end: the question is then repeated for up
                to `add.partitions.to.txn.retry.backoff.max.ms`.
        """
        loop = asyncio.get_running_loop()
        config = self._view.config
        end = loop.time() + (
            cast(int, config["add.partitions.to.txn.retry.backoff.max.ms"]) / 1000 if adds else 0
        )
        most = cast(int, config["add.partitions.to.txn.retry.backoff.ms"]) / 1000
        backoff = min(_FIRST_BACKOFF_S, most)
        while True:
            codes = await self._ask(transactional_id, producer, partitions, adds)
            is_over = all(code is not ErrorCode.CONCURRENT_TRANSACTIONS for code in codes.values())
            if is_over or loop.time() + backoff > end:
                return codes
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, most)

    async def _ask(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: Collection[TopicPartition],
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        coordinator = self._topic.find_leader(transactional_id)
        if coordinator is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        question = _Question(transactional_id, producer, partitions, adds)
        self._outbox.add(coordinator.id, question)
        return await question.answer

    def close(self) -> None:
        """Ask no more; questions without an answer are cancelled with their requests."""
        self._outbox.close()
        self._peers.close()

    async def _deliver(self, coordinator: int, questions: Sequence[_Question]) -> None:
        asked: dict[str, _Question] = {}
        for each in questions:
            if each.transactional_id in asked:  # answers are told apart by it
                self._outbox.add(coordinator, each)
            else:
                asked[each.transactional_id] = each
        request = AddPartitionsToTxnRequest(
            transactions=[_describe(each) for each in asked.values()]
        )
        try:
            response = await self._peers.ask(coordinator, request, _TIMEOUT_S)
        except PeerLost:
            for each in asked.values():
                each.settle(dict.fromkeys(each.partitions, ErrorCode.NETWORK_EXCEPTION))
            return
        found = {
            result.transactional_id: {
                TopicPartition(topic.name, each.partition_index): ErrorCode(
                    each.partition_error_code
                )
                for topic in result.topic_results
                for each in topic.results_by_partition
            }
            for result in response.results_by_transaction
        }
        of_all = ErrorCode(response.error_code) or ErrorCode.UNKNOWN_SERVER_ERROR
        for transactional_id, question in asked.items():
            codes = found.get(transactional_id, {})
            question.settle({each: codes.get(each, of_all) for each in question.partitions})


def tell_producer(code: ErrorCode, retried: ErrorCode, knows_abortable: bool) -> ErrorCode:
    """The code in the response to a producer, for one of the coordinator.

    Args:
        retried: a code that all producers retry for this request.
        knows_abortable: whether the request's version has TRANSACTION_ABORTABLE.
    """
    if code in _RETRIED:
        return retried
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _describe(question: _Question) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for topic, index in question.partitions:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer.producer_id,
        producer_epoch=question.producer.epoch,
        verify_only=not question.adds,
        topics=[
            AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in topics.items()
        ],
    )
