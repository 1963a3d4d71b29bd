"""A producer's id, epoch and sequence numbers, and when a batch may be sent (KIP-98, KIP-360).

A broker stores a batch of an idempotent producer only if its sequence number follows the last one
it stored from that producer in that partition. So no batch is stored twice or out of order.
For each partition this module decides:

    may_send ──▶ number ──▶ request ──▶ settled            common case: several batches in flight
                                   └──▶ refused ──▶ retry  alone, when nothing later is in flight
                                   └──▶ lost               leaves a gap in the sequence: restart

**One batch before pipelining.** Until a batch is acknowledged, and again after any error and any
change of the leader, only one batch is in flight. The reason: a broker accepts any sequence number
from a producer that it does not know. Suppose the first batch is refused, because its partition
was just created and is not open yet, and the second is stored. Then the first can never be stored,
and every retry is refused until `delivery.timeout.ms`. Kafka's own producer blocks itself that way.

**A retried batch is sent alone.** A broker recognizes only the last five batches it stored from a
producer. A batch that was stored but not acknowledged stays among them only while at most four
later ones are stored. So no new batch is sent while a retried one is in flight. Nor is any batch
sent to a new leader while the old one may still answer: each would remember its own five.

**Restarting a partition's sequence.** A failed batch may be stored or not, so later batches cannot
continue its sequence. Batches that were sent after it may be stored too: they are sent again under
their old numbers, one by one, until they are acknowledged, or one is refused as out of order, which
proves that none of them is stored. Then, once nothing of the partition is in flight, its epoch
rises by one and its sequence begins at 0. Brokers accept that from an idempotent producer without
InitProducerId (KIP-360), and refuse late batches of the old epoch. Only that partition restarts.
After the last epoch the producer requests a new producer id.

Source: `org.apache.kafka.clients.producer.internals.TransactionManager`, `ProducerAppendInfo`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connections import Connections
from trimtab.kafka.errors import BrokerError, ErrorCode, KafkaError, error_code
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.sentinels import NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Batch, PartitionQueue

logger = logging.getLogger("trimtab.client")

LAST_EPOCH = 2**15 - 1
_LAST_SEQUENCE = 2**31 - 1


def _do_nothing(*_: object) -> None:
    """The callback until the sender sets its own."""


class Anonymous:
    """A producer without idempotence: batches have no sequence numbers and may always be sent.

    Also the base class of every identity. For each batch the sender calls:

        is_ready() ─▶ may_send(queue) ─▶ number(batch) ─▶ settled | refused | lost

    Attributes:
        is_transactional: whether batches belong to transactions.
        transactional_id: in each Produce request; None without transactions.
        last_produce_version: the newest version of Produce to use; None for no limit.
        wake: called when the identity becomes ready, or a held queue may be sent.
        fail: called with an error that fails all waiting batches.
    """

    is_transactional = False
    transactional_id: str | None = None
    last_produce_version: int | None = None

    def __init__(self) -> None:
        self.wake: Callable[[], object] = _do_nothing
        self.fail: Callable[[KafkaError], object] = _do_nothing

    def is_ready(self) -> bool:
        """Whether any batch may be sent; if not, starts to fetch the missing producer id."""
        return True

    @property
    def trouble(self) -> str | None:
        """Why no batch may be sent yet, for an error message; None if batches may be sent."""
        return None

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether a queue's oldest batch may be sent now. If not, call it again when a batch of the
        queue has come back, or after `wake`."""
        return True

    def number(self, batch: Batch) -> tuple[int, int, int]:
        """Producer id, epoch and base sequence for a batch that is now in flight."""
        return NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE

    def settled(self, batch: Batch, error: KafkaError | None) -> None:
        """A batch was acknowledged, or failed with `error`."""

    def refused(
        self, batch: Batch, code: ErrorCode | None, log_start_offset: int = NO_OFFSET
    ) -> bool | None:
        """A batch in flight was not acknowledged; `code` is None if the broker did not answer.

        Args:
            log_start_offset: of the partition, as the broker has answered.

        Returns:
            Whether to send it again, if the error concerns the identity; None for other errors,
            whose code decides.
        """
        return None

    def lost(self, batch: Batch) -> None:
        """A batch has failed; if it has a sequence number, it may be stored or not."""

    def split(self, parts: Sequence[Batch], base_sequence: int) -> None:
        """A batch that came back was split into `parts`; its base sequence was `base_sequence`."""

    def recreated(self, queue: PartitionQueue) -> None:
        """The partition was deleted and created again: the brokers do not know the producer."""

    def moved(self, queue: PartitionQueue) -> None:
        """The partition has another leader."""

    async def close(self) -> None:
        """Cancel the requests in flight."""


class _Sequence:
    """The producer id, epoch and next sequence number of one partition.

    Attributes:
        is_proven: whether the leader has acknowledged the last batch that came back.
        must_restart: whether to restart the sequence, once nothing is in flight and it is known of
            each sent batch whether it is stored.
        is_barred: whether no unacknowledged batch is stored, or can be under its number.
        acknowledged_end: the offset after the last record whose offset was acknowledged; -1 if none
            was.
    """

    __slots__ = (
        "acknowledged_end",
        "epoch",
        "is_barred",
        "is_proven",
        "must_restart",
        "next",
        "producer_id",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.next = 0
        self.is_proven = False
        self.must_restart = False
        self.is_barred = False
        self.acknowledged_end = NO_OFFSET


class Identity(Anonymous):
    """An idempotent producer's id, and its sequence in each partition.

    A transactional producer's identity inherits this and decides when to call `renew`.

    Args:
        connections: to any broker, for producer ids.
        backoff: between attempts to get one.

    Attributes:
        producer_id: the id with which partitions begin; -1 while there is none.
        producer_epoch: the epoch with which they begin; a restarted partition has a higher one.
    """

    def __init__(self, connections: Connections, backoff: Backoff, random: Random) -> None:
        super().__init__()
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self._connections = connections
        self._backoff = backoff
        self._random = random
        self._sequences: dict[PartitionQueue, _Sequence] = {}
        # A topic that idled and was forgotten gets new queues, but must continue its sequences:
        # its brokers would take a repeated number for a duplicate.
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._asking: asyncio.Task[None] | None = None
        self._refusal: KafkaError | None = None

    @property
    def trouble(self) -> str | None:
        if self.producer_id != NO_PRODUCER_ID:
            return None
        return f"this producer has no id yet: {self._refusal or 'no broker has answered'}"

    def is_ready(self) -> bool:
        if self.producer_id != NO_PRODUCER_ID:
            return True
        if self._asking is None or self._asking.cancelled():  # cancelled before it began
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return False

    def may_send(self, queue: PartitionQueue) -> bool:
        sequence = self._sequences.get(queue)
        if sequence is None:
            return True
        in_flight = queue.in_flight
        if not in_flight:
            if not sequence.must_restart or (_may_be_stored(queue) and not sequence.is_barred):
                return True
            return self._restart(queue, sequence)
        if sequence.must_restart or not sequence.is_proven or in_flight[-1].attempts > 1:
            return False
        expected = queue.batches[0].base_sequence
        if expected < 0:
            return True
        last = in_flight[-1]
        return sequence_after(last.base_sequence, last.count) == expected

    def number(self, batch: Batch) -> tuple[int, int, int]:
        queue = batch.queue
        sequence = self._sequences.get(queue) or self._begin(queue)
        number = batch.base_sequence
        if number < 0:
            number = batch.base_sequence = sequence.next
            sequence.next = sequence_after(number, batch.count)
        return sequence.producer_id, sequence.epoch, number

    def settled(self, batch: Batch, error: KafkaError | None) -> None:
        queue = batch.queue
        sequence = self._sequences.get(queue)
        if error is not None or sequence is None:
            return
        if batch.base_offset >= sequence.acknowledged_end:
            sequence.acknowledged_end = batch.base_offset + batch.count
        # A batch still in flight may be in flight to the previous leader: see `moved`.
        if not queue.in_flight:
            sequence.is_proven = True

    def refused(
        self, batch: Batch, code: ErrorCode | None, log_start_offset: int = NO_OFFSET
    ) -> bool | None:
        sequence = self._sequences.get(batch.queue)
        if sequence is None:
            return None
        sequence.is_proven = False
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if not _awaits_earlier(batch):
                if log_start_offset > sequence.acknowledged_end and _has_later(batch):
                    return False  # it may have been stored, and deleted by retention
                # A failed batch is not stored, or the broker has lost an acknowledged one.
                sequence.must_restart = sequence.is_barred = True
            return True
        if code in _FORGOTTEN:
            sequence.must_restart = sequence.is_barred = True
            return True
        return None

    def lost(self, batch: Batch) -> None:
        sequence = self._sequences.get(batch.queue)
        if sequence is not None and batch.base_sequence >= 0:
            sequence.must_restart = True

    def split(self, parts: Sequence[Batch], base_sequence: int) -> None:
        if base_sequence < 0:
            return
        for part in parts:
            part.base_sequence = base_sequence
            base_sequence = sequence_after(base_sequence, part.count)

    def recreated(self, queue: PartitionQueue) -> None:
        if (sequence := self._sequences.get(queue)) is not None:
            sequence.must_restart = sequence.is_barred = True
            sequence.acknowledged_end = NO_OFFSET

    def moved(self, queue: PartitionQueue) -> None:
        # Batches in flight to the old leader must come back before any is sent to the new one.
        if (sequence := self._sequences.get(queue)) is not None:
            sequence.is_proven = False

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """Restart every partition with this id and epoch. Only while nothing is in flight."""
        if producer_id != self.producer_id:
            self._sequences.clear()
            self._queues.clear()
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        for queue, sequence in self._sequences.items():
            # `is_proven` stays: a broker that knows the id accepts a new epoch only from 0 on.
            self._begin_at(queue, sequence, producer_id, producer_epoch)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _begin(self, queue: PartitionQueue) -> _Sequence:
        """The sequence of a new queue: its partition's earlier sequence, or a new one."""
        partition = queue.topic, queue.partition
        before = self._queues.get(partition)
        self._queues[partition] = queue
        sequence = None if before is None else self._sequences.pop(before)
        if sequence is None:
            sequence = _Sequence(self.producer_id, self.producer_epoch)
        self._sequences[queue] = sequence
        return sequence

    def _restart(self, queue: PartitionQueue, sequence: _Sequence) -> bool:
        """Restart a partition's sequence; False if that has to wait for a new producer id."""
        if sequence.producer_id == self.producer_id:
            if sequence.epoch == LAST_EPOCH:
                self.producer_id = NO_PRODUCER_ID
                self.is_ready()
                return False
            self._begin_at(queue, sequence, sequence.producer_id, sequence.epoch + 1)
        elif self.producer_id == NO_PRODUCER_ID:
            return False
        else:
            self._begin_at(queue, sequence, self.producer_id, self.producer_epoch)
        sequence.is_proven = False
        logger.debug("%s: sequence restarts with producer epoch %d", queue, sequence.epoch)
        return True

    def _begin_at(
        self, queue: PartitionQueue, sequence: _Sequence, producer_id: int, epoch: int
    ) -> None:
        sequence.producer_id = producer_id
        sequence.epoch = epoch
        sequence.next = 0
        sequence.must_restart = sequence.is_barred = False
        for batch in queue.batches:
            if batch.base_sequence < 0:
                break
            batch.base_sequence = NO_SEQUENCE

    async def _ask(self) -> None:
        attempts = 0
        try:
            while True:
                try:
                    self.producer_id, self.producer_epoch = await self._fetch_producer_id()
                    return
                except KafkaError as error:
                    if isinstance(error, BrokerError) and not error.retriable:
                        self.fail(error)
                        return
                    self._refusal = error
                    logger.debug("no producer id yet: %s", error)
                await asyncio.sleep(self._backoff.wait(attempts, self._random))
                attempts += 1
        finally:
            self._asking = None
            self.wake()

    async def _fetch_producer_id(self) -> tuple[int, int]:
        connection = await self._connections.connect_any()
        response = await connection.request(
            # Without a transactional id a broker returns a new producer id and ignores the rest.
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1),
        )
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            raise BrokerError(
                code,
                "while requesting a producer id; grant IdempotentWrite on the cluster, or set"
                " enable.idempotence=false"
                if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                else "while requesting a producer id",
                str(connection.node),
            )
        return response.producer_id, response.producer_epoch


_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH})
"""The broker does not know the producer, or knows a later epoch (KIP-360, KIP-588)."""


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number that follows `count` records; numbers wrap to 0 after 2^31 - 1."""
    return (sequence + count) & _LAST_SEQUENCE


def _may_be_stored(queue: PartitionQueue) -> bool:
    """Whether the oldest batch of a queue was already sent under its sequence number."""
    return bool(queue.batches) and queue.batches[0].base_sequence >= 0 < queue.batches[0].attempts


def _has_later(batch: Batch) -> bool:
    """Whether a batch of the same partition was sent after this one, which awaits no earlier one,
    and is not acknowledged yet."""
    return len(batch.queue.in_flight) > 1 or _may_be_stored(batch.queue)


def _awaits_earlier(batch: Batch) -> bool:
    """Whether an earlier batch of the same partition is not acknowledged yet."""
    queue = batch.queue
    return any(
        earlier.base_sequence >= 0
        and 0 < (batch.base_sequence - earlier.base_sequence) & _LAST_SEQUENCE < _LAST_SEQUENCE // 2
        for earlier in (*queue.in_flight, *queue.batches)
    )
