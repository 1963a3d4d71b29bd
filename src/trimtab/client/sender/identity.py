"""Who a producer is to the brokers, and which of its batches may go (KIP-98, KIP-360).

A broker stores a batch of an idempotent producer only if its sequence number follows the last one
it stored of that producer in that partition; so none is stored twice, and none out of order.
What this room decides, for each partition:

    may_send ──▶ number ──▶ request ──▶ settled            the common way, several batches at once
                                   └──▶ refused ──▶ again  until nothing later is in flight: alone
                                   └──▶ lost               its numbers leave a hole: begin anew

**Proof before pipelining.** Until a batch has been acknowledged, and again after any refusal and
any change of the leader, one batch is in flight alone. A broker takes any sequence number from a
producer that it does not know; were the first batch refused (its partition was just created, and is
not open yet) while the second was stored, the first could never be stored again, and every retry
would be refused until `delivery.timeout.ms`. That is how Kafka's own producer wedges itself.

**Sent again, sent alone.** A broker knows the last five batches it stored of a producer again, and
no others. One that was stored and not acknowledged is among them only as long as no more than four
later ones are; so nothing new goes while one that is sent again is in flight. Nor does anything go
to a new leader while the one before may still answer: each would have its own five.

**Beginning anew.** A batch that is given up may be stored or not, so what follows cannot go on
with its numbers. Those that were sent behind it may be stored too: they are sent again under their
old numbers, one by one, until they are acknowledged, or one is refused as out of order, and then
none of them is stored. After that, once nothing of the partition is in flight, its epoch goes up by
one and its numbers begin at 0: brokers take that from an idempotent producer without being asked
(KIP-360), and refuse whatever of the old epoch still comes along. Only the partition concerned
begins anew. When an epoch has reached its end a new producer id is asked for.

Source: `org.apache.kafka.clients.producer.internals.TransactionManager`, `ProducerAppendInfo`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connections import ApiKey, Connections
from trimtab.errors import BrokerError, ErrorCode, KafkaError, error_code
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Batch, PartitionQueue

logger = logging.getLogger("trimtab.client")

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
LAST_EPOCH = 2**15 - 1
_LAST_SEQUENCE = 2**31 - 1


def _do_nothing(*_: object) -> None:
    """What is called before a sender has put itself in its place."""


class Anonymous:
    """A producer without idempotence: nothing is numbered, everything may go at any time.

    Also the face of every identity. The sender asks, for each batch:

        is_ready() ─▶ may_send(queue) ─▶ number(batch) ─▶ settled | refused | lost

    Attributes:
        is_transactional: whether batches are parts of transactions.
        transactional_id: named in each Produce request; None without transactions.
        last_produce_version: the newest version of Produce to use; None where nothing limits it.
        wake: called when something is ready, or may be sent, that was not before.
        fail: called with an error for which everything that waits is to be given up.
    """

    is_transactional = False
    transactional_id: str | None = None
    last_produce_version: int | None = None

    def __init__(self) -> None:
        self.wake: Callable[[], object] = _do_nothing
        self.fail: Callable[[KafkaError], object] = _do_nothing

    def is_ready(self) -> bool:
        """Whether anything may be sent at all; if not, what that needs is begun."""
        return True

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether a queue's oldest batch may go now. If not: ask again when one of the queue's
        batches has come back, or after `wake`."""
        return True

    def number(self, batch: Batch) -> tuple[int, int, int]:
        """Producer id, epoch and base sequence that a batch, now in flight, is sent under."""
        return NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE

    def settled(self, batch: Batch, error: KafkaError | None) -> None:
        """A batch was acknowledged, or given up for `error`."""

    def refused(self, batch: Batch, code: ErrorCode | None) -> bool | None:
        """A batch in flight came back unstored; `code` is None if the broker did not answer.

        Returns:
            Whether it is to be sent again, where the answer is about identity; None where it is
            not, and the code says so itself.
        """
        return None

    def lost(self, batch: Batch) -> None:
        """A batch is given up: if it has a number, nobody knows whether that is stored."""

    def split(self, parts: Sequence[Batch], base_sequence: int) -> None:
        """A batch that came back was replaced by these; it was numbered `base_sequence`."""

    def begin_anew(self, queue: PartitionQueue) -> None:
        """The partition is another one now, or knows nothing of this producer."""

    def moved(self, queue: PartitionQueue) -> None:
        """The partition has another leader."""

    async def close(self) -> None:
        """Ask for nothing any more."""


class _Sequence:
    """What one partition is sent under.

    Attributes:
        is_proven: whether the leader has acknowledged the last batch that came back.
        must_restart: whether to begin anew, once nothing is in flight and it is known of everything
            that was sent whether it is stored.
        is_barred: whether nothing that was sent is stored, nor can be under its number.
    """

    __slots__ = ("epoch", "is_barred", "is_proven", "must_restart", "next", "producer_id")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.next = 0
        self.is_proven = False
        self.must_restart = False
        self.is_barred = False


class Identity(Anonymous):
    """An idempotent producer's id, and its sequence in each partition.

    A transactional producer's identity inherits this and says when the next `renew` is due.

    Args:
        connections: ways to a broker that gives producer ids; any does.
        backoff: between attempts to get one.

    Attributes:
        producer_id: what partitions begin with; -1 while there is none.
        producer_epoch: likewise. A partition that began anew is beyond it.
    """

    def __init__(self, connections: Connections, backoff: Backoff, random: Random) -> None:
        super().__init__()
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self._connections = connections
        self._backoff = backoff
        self._random = random
        self._sequences: dict[PartitionQueue, _Sequence] = {}
        # A topic that is forgotten while it idles has other queues later, and the same sequences:
        # beginning with an old number again would look like a duplicate to its brokers.
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._asking: asyncio.Task[None] | None = None

    def is_ready(self) -> bool:
        if self.producer_id != NO_PRODUCER_ID:
            return True
        if self._asking is None or self._asking.cancelled():  # before it began
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
        # As long as anything is in flight it may be to the leader before this one: see `moved`.
        if error is None and not queue.in_flight and (sequence := self._sequences.get(queue)):
            sequence.is_proven = True

    def refused(self, batch: Batch, code: ErrorCode | None) -> bool | None:
        sequence = self._sequences.get(batch.queue)
        if sequence is None:
            return None
        sequence.is_proven = False
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if not _awaits_earlier(batch):
                # What was given up is not stored, or the broker lacks what it had acknowledged.
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

    def begin_anew(self, queue: PartitionQueue) -> None:
        if (sequence := self._sequences.get(queue)) is not None:
            sequence.must_restart = sequence.is_barred = True

    def moved(self, queue: PartitionQueue) -> None:
        # What is in flight to the old leader comes back before the new one gets anything.
        if (sequence := self._sequences.get(queue)) is not None:
            sequence.is_proven = False

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """Begin every partition with this id and epoch. Only while nothing is in flight."""
        if producer_id != self.producer_id:
            self._sequences.clear()
            self._queues.clear()
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        for queue, sequence in self._sequences.items():
            # What was proven stays so: a broker that knows the id takes no new epoch but from 0.
            self._begin_at(queue, sequence, producer_id, producer_epoch)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _begin(self, queue: PartitionQueue) -> _Sequence:
        """The sequence of a queue that was not seen before."""
        partition = queue.topic, queue.partition
        before = self._queues.get(partition)
        self._queues[partition] = queue
        sequence = None if before is None else self._sequences.pop(before)
        if sequence is None:
            sequence = _Sequence(self.producer_id, self.producer_epoch)
        self._sequences[queue] = sequence
        return sequence

    def _restart(self, queue: PartitionQueue, sequence: _Sequence) -> bool:
        """Begin a partition anew; False if that has to wait for another producer id."""
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
        logger.debug("%s begins anew with producer epoch %d", queue, sequence.epoch)
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
                    logger.debug("no producer id yet: %s", error)
                await asyncio.sleep(self._backoff.wait(attempts, self._random))
                attempts += 1
        finally:
            self._asking = None
            self.wake()

    async def _fetch_producer_id(self) -> tuple[int, int]:
        connection = await self._connections.connect_any()
        response: InitProducerIdResponse = await connection.request(
            # Without a transactional id a broker gives a new producer id, whatever else it is told.
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1),
            ApiKey.INIT_PRODUCER_ID,
        )
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            raise BrokerError(
                code,
                "asked for a producer id; grant it, or set enable.idempotence=false"
                if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                else "asked for a producer id",
                str(connection.node),
            )
        return response.producer_id, response.producer_epoch


_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH})
"""The broker knows nothing of the producer, or of a later epoch (KIP-360, KIP-588)."""


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number that follows `count` records; numbers wrap to 0 after 2^31 - 1."""
    return (sequence + count) & _LAST_SEQUENCE


def _may_be_stored(queue: PartitionQueue) -> bool:
    """Whether the oldest batch of a queue was sent under the number that it has."""
    return bool(queue.batches) and queue.batches[0].base_sequence >= 0 < queue.batches[0].attempts


def _awaits_earlier(batch: Batch) -> bool:
    """Whether a batch of the same partition that goes before this one is not stored yet."""
    queue = batch.queue
    return any(
        earlier.base_sequence >= 0
        and 0 < (batch.base_sequence - earlier.base_sequence) & _LAST_SEQUENCE < _LAST_SEQUENCE // 2
        for earlier in (*queue.in_flight, *queue.batches)
    )
