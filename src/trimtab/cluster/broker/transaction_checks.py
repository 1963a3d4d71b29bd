"""How a leader learns whether a producer's transaction is open: it asks the coordinator (KIP-890).

    question ─▶ AddPartitionsToTxn to the coordinator, with all questions that have come meanwhile

Source: Kafka's `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.coordinator_topic import CoordinatorTopic
from trimtab.cluster.broker.peers import Outbox, Peers
from trimtab.cluster.coordinator.topics import by_topic
from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
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


class _Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Collection[TopicPartition]
    adds: bool
    answer: asyncio.Future[dict[TopicPartition, ErrorCode]]

    def settle(self, codes: dict[TopicPartition, ErrorCode]) -> None:
        if not self.answer.done():  # its connection may be lost
            self.answer.set_result(codes)


class RequestTurn:
    """The turn of one request among those of its producer."""

    __slots__ = ("_before", "_last", "_over", "_producer_id")

    def __init__(self, last: dict[int, RequestTurn], producer_id: int) -> None:
        self._last = last
        self._producer_id = producer_id
        self._before = last.get(producer_id)
        self._over = asyncio.Event()

    async def __aenter__(self) -> None:
        if self._before is not None:
            await self._before._over.wait()
            self._before = None

    async def __aexit__(self, *_: object) -> None:
        self.pass_on()

    def pass_on(self) -> None:
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
        self._last: dict[int, RequestTurn] = {}
        """By producer id, the last request that waits for its turn."""

    def is_free(self, producer_id: int) -> bool:
        """Whether no request of the producer waits for the coordinator or for its turn."""
        return producer_id not in self._last

    def begin_turn(self, producer_id: int) -> RequestTurn:
        """Line up behind the producer's requests that wait. So its batches stay in their order."""
        turn = self._last[producer_id] = RequestTurn(self._last, producer_id)
        return turn

    async def check(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
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
            config.seconds("add.partitions.to.txn.retry.backoff.max.ms") if adds else 0
        )
        most = config.seconds("add.partitions.to.txn.retry.backoff.ms")
        backoff = min(_FIRST_BACKOFF_S, most)
        while True:
            coordinator = self._topic.find_leader(transactional_id)
            if coordinator is None:
                codes = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                answer: asyncio.Future[dict[TopicPartition, ErrorCode]] = loop.create_future()
                question = _Question(transactional_id, producer, partitions, adds, answer)
                self._outbox.queue_item(coordinator.id, question)
                codes = await answer
            is_over = all(code is not ErrorCode.CONCURRENT_TRANSACTIONS for code in codes.values())
            if is_over or loop.time() + backoff > end:
                return codes
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, most)

    def close(self) -> None:
        """Ask no more; questions without an answer are cancelled with their requests."""
        self._outbox.close()
        self._peers.close()

    async def _deliver(self, coordinator: int, questions: Sequence[_Question]) -> None:
        asked: dict[str, _Question] = {}
        for question in questions:
            if question.transactional_id in asked:  # answers are told apart by it
                self._outbox.queue_item(coordinator, question)
            else:
                asked[question.transactional_id] = question
        request = AddPartitionsToTxnRequest(
            transactions=[_describe(each) for each in asked.values()]
        )
        try:
            response = await self._peers.ask(coordinator, request, _TIMEOUT_S)
            of_all, found = _read(response)
        except (PeerLost, ValueError):  # or it answers with a code that is none of Kafka's
            for each in asked.values():
                each.settle(dict.fromkeys(each.partitions, ErrorCode.NETWORK_EXCEPTION))
            return
        for transactional_id, question in asked.items():
            codes = found.get(transactional_id, {})
            question.settle({each: codes.get(each, of_all) for each in question.partitions})


def _read(
    response: AddPartitionsToTxnResponse,
) -> tuple[ErrorCode, dict[str, dict[TopicPartition, ErrorCode]]]:
    """The code for what is not in the response, and the codes of each transaction."""
    return (
        ErrorCode(response.error_code) or ErrorCode.UNKNOWN_SERVER_ERROR,
        {
            result.transactional_id: {
                TopicPartition(topic.name, partition.partition_index): ErrorCode(
                    partition.partition_error_code
                )
                for topic in result.topic_results
                for partition in topic.results_by_partition
            }
            for result in response.results_by_transaction
        },
    )


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
    return AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer.producer_id,
        producer_epoch=question.producer.epoch,
        verify_only=not question.adds,
        topics=[
            AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in by_topic(question.partitions)
        ],
    )
