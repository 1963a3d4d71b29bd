"""One transactional id: its producer, and its transaction.

    EMPTY ──▶ ONGOING ──▶ PREPARE_COMMIT ──▶ COMPLETE_COMMIT ──▶ ONGOING …
                   └────▶ PREPARE_ABORT ───▶ COMPLETE_ABORT ───▶ ONGOING …

Once a PREPARE state is committed in the log, the outcome is certain: markers are written until
every partition has one. COMPLETE follows the last of them.

With version 2 of transactions (KIP-890) every end raises the producer's epoch, so that late
requests and records of a transaction are not taken for those of the next one. The marker has the
raised epoch. Producers do not use the last epoch, so that each can always be fenced; one that comes
to it gets another id.

Source: Kafka's `TransactionMetadata` and `TransactionCoordinator`; KIP-939 for prepared
transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from trimtab.cluster.coordinator.topics import by_topic
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogValue,
    TransactionStatus,
)
from trimtab.kafka.wire.sentinels import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

LAST_EPOCH: Final = 2**15 - 1
NO_TIMEOUT: Final = 2**31 - 1
"""The timeout of a transaction that stays open until it is ended (KIP-939)."""
BUMPS_EPOCHS_SINCE: Final = 2
"""The version of transactions from which on every end raises the epoch."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    epoch: int

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer must get another id before its epoch rises again."""
        return self.epoch >= LAST_EPOCH - 1


NOBODY: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Transaction:
    """What is known of a transactional id.

    Attributes:
        producer: whose records are, or were last, in the transaction.
        last_epoch: the epoch that the producer had before; -1 if it is not known, as after a load.
        previous_id: the producer id before the last change.
        next: whom the producer is after this transaction has ended; of a prepared transaction that
            another producer has taken over (KIP-939), that one meanwhile. `NOBODY`: no other.
        timeout_ms: how long a transaction may be open; `NO_TIMEOUT` for ever.
        status: its state.
        partitions: those with records in the transaction, also of `__consumer_offsets`.
        started_ms: when the transaction was begun, wall clock; -1 if there was none.
        updated_ms: of the last change, wall clock.
        version: of transactions, as the client speaks it.
    """

    __slots__ = (
        "id",
        "last_epoch",
        "next",
        "partitions",
        "previous_id",
        "producer",
        "started_ms",
        "status",
        "timeout_ms",
        "updated_ms",
        "version",
    )

    def __init__(self, transactional_id: str, value: TransactionLogValue) -> None:
        self.id = transactional_id
        self.producer = ProducerIdAndEpoch(value.producer_id, value.producer_epoch)
        self.last_epoch = NO_PRODUCER_EPOCH
        self.previous_id = value.previous_producer_id
        self.next = ProducerIdAndEpoch(value.next_producer_id, value.next_producer_epoch)
        self.timeout_ms = value.transaction_timeout_ms
        self.status = TransactionStatus(value.transaction_status)
        self.partitions = frozenset(
            TopicPartition(topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        )
        self.started_ms = value.transaction_start_timestamp_ms
        self.updated_ms = value.transaction_last_update_timestamp_ms
        self.version = value.client_transaction_version

    @property
    def caller(self) -> ProducerIdAndEpoch:
        """The producer that may ask for something now."""
        return self.next if self.is_taken_over else self.producer

    @property
    def is_taken_over(self) -> bool:
        """Whether another producer keeps the prepared transaction of this one (KIP-939)."""
        is_open = self.status is TransactionStatus.ONGOING
        return is_open and self.next.producer_id != NO_PRODUCER_ID

    @property
    def is_ending(self) -> bool:
        """Whether its outcome is certain, and markers are still to be written."""
        return self.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def bumps_epochs(self) -> bool:
        return self.version >= BUMPS_EPOCHS_SINCE

    @property
    def due_ms(self) -> int | None:
        """When it is aborted, wall clock; None: never."""
        if self.status is not TransactionStatus.ONGOING or self.timeout_ms == NO_TIMEOUT:
            return None
        return self.started_ms + self.timeout_ms

    def write(
        self,
        now_ms: int,
        status: TransactionStatus,
        producer: ProducerIdAndEpoch | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        next_producer: ProducerIdAndEpoch = NOBODY,
        timeout_ms: int | None = None,
        started_ms: int | None = None,
        version: int | None = None,
    ) -> TransactionLogValue:
        """The record of a change; what is None stays as it is."""
        identity = self.producer if producer is None else producer
        kept = self.partitions if partitions is None else partitions
        return TransactionLogValue(
            producer_id=identity.producer_id,
            previous_producer_id=self.producer.producer_id,
            next_producer_id=next_producer.producer_id,
            producer_epoch=identity.epoch,
            next_producer_epoch=next_producer.epoch,
            transaction_timeout_ms=self.timeout_ms if timeout_ms is None else timeout_ms,
            transaction_status=status,
            transaction_partitions=None
            if status is TransactionStatus.EMPTY
            else [PartitionsSchema(topic=name, partition_ids=ids) for name, ids in by_topic(kept)],
            transaction_last_update_timestamp_ms=now_ms,
            transaction_start_timestamp_ms=self.started_ms if started_ms is None else started_ms,
            client_transaction_version=self.version if version is None else version,
        )


def make_transaction(
    transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int
) -> Transaction:
    """A transactional id that is not in the log yet. Its first epoch is yet to come."""
    return Transaction(
        transactional_id,
        TransactionLogValue(
            producer_id=producer_id,
            producer_epoch=NO_PRODUCER_EPOCH,
            transaction_timeout_ms=timeout_ms,
            transaction_status=TransactionStatus.EMPTY,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=now_ms,
            transaction_start_timestamp_ms=NO_TIMESTAMP,
        ),
    )
