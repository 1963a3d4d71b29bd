"""The producers of one partition: the last batches that it has stored of each, and their
transactions. With them it stores a batch that is sent twice only once, and notices a missing one
(KIP-98).

The rules are those of Kafka's `ProducerAppendInfo` and `ProducerStateEntry`, and the snapshot
file is in the format of its `ProducerStateManager`, with these differences:

- A snapshot has all remembered batches of a producer, oldest first; Kafka's has only the last. So
  all five are known after a restart. Kafka can read such a file and keeps the last batch.
- Compaction keeps the headers of these batches, so a replica that copies the log has all five, too.
- A producer expires by this broker's clock since its last append, not by its records' timestamps:
  a producer of records with last year's timestamps must not lose its sequences at once.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from trimtab.cluster.storage.open_transactions import EndedTransaction, OpenTransactions
from trimtab.cluster.storage.storage import BytesLike
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.records import NO_TIMESTAMP
from trimtab.kafka.wire.batch_cy import BatchHeader
from trimtab.kafka.wire.checksum import crc32c
from trimtab.kafka.wire.end_markers import EndMarker
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_OFFSET, NO_SEQUENCE

REMEMBERED_BATCHES = 5
"""Batches kept per producer: the maximum that a producer may have in flight."""

_MAX_SEQUENCE = 2**31 - 1
_MAX_EPOCH = 2**15 - 1
_BUMPS_EPOCHS_SINCE = 2
"""The version of transactions from which on every end has an epoch of its own (KIP-890)."""
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
"""Producer id and epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch,
first offset of the open transaction."""


class StoredBatch(NamedTuple):
    """A stored batch of a producer. Sequences and offsets are inclusive."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Verdict(NamedTuple):
    """What to do with a batch: store it (`ACCEPTED`), answer with the offsets of the `duplicate`
    stored before, or refuse it with `error`."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    duplicate: StoredBatch | None = None


ACCEPTED = Verdict()
"""The verdict on a batch to be stored; compare with `is`."""


class KnownProducer(NamedTuple):
    """A producer that is remembered. Sequence and timestamp are those of its last batch, -1 if
    none is remembered. Then the epoch of the coordinator of its last transaction that has ended,
    and the first offset of the one that is open; -1 if there is none."""

    id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_since_offset: int


class SnapshotEntry(NamedTuple):
    """An entry of a snapshot file: a producer with one of its last batches, or with none. Then as
    in `KnownProducer`."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    open_since_offset: int
    timestamp: int
    batch: StoredBatch | None


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "seen_ms")

    def __init__(self, epoch: int, coordinator_epoch: int = NO_EPOCH) -> None:
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.seen_ms = 0
        self.batches: deque[StoredBatch] = deque(maxlen=REMEMBERED_BATCHES)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerState:
    """The idempotent producers of one partition, with their last batches and transactions.

    Args:
        expiration_ms: how long a producer is remembered after its last append
            (`producer.id.expiration.ms`). One with an open transaction is not forgotten.

    Attributes:
        transactions: those that are open or undecided.
    """

    def __init__(self, expiration_ms: int = 86_400_000) -> None:
        self.expiration_ms = expiration_ms
        self.transactions = OpenTransactions()
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def describe(self) -> list[KnownProducer]:
        """The producers that are remembered."""
        return [
            KnownProducer(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.batches[-1].timestamp if producer.batches else NO_TIMESTAMP,
                producer.coordinator_epoch,
                self.transactions.first_offsets.get(producer_id, NO_OFFSET),
            )
            for producer_id, producer in self._producers.items()
        ]

    @property
    def has_markers(self) -> bool:
        """Whether transactions of these producers have ended here."""
        return any(each.coordinator_epoch != NO_EPOCH for each in self._producers.values())

    def knows(self, producer_id: int) -> bool:
        """Whether the producer is remembered."""
        return producer_id in self._producers

    def has_begun(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of the producer is open, with this epoch."""
        producer = self._producers.get(producer_id)
        is_open = producer_id in self.transactions.first_offsets
        return is_open and producer is not None and producer.epoch == epoch

    def check_epoch(self, producer_id: int, epoch: int) -> Verdict:
        """Whether a batch without sequences may be stored, as coordinators write them."""
        producer = self._producers.get(producer_id)
        if producer is None or epoch >= producer.epoch:
            return ACCEPTED
        return _refuse_epoch(producer_id, epoch, producer.epoch)

    def check_batch(self, header: BatchHeader) -> Verdict:
        """Whether a client's batch may be stored; changes no state.

        A batch without a producer id is always accepted. So is any sequence of an unknown producer,
        as its earlier batches may have been deleted by retention.
        """
        verdict = self._check_sequence(header)
        if (
            verdict is ACCEPTED
            and not header.is_transactional
            and header.producer_id in self.transactions.first_offsets
        ):
            return Verdict(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, and the batch is not "
                "part of it",
            )
        return verdict

    def _check_sequence(self, header: BatchHeader) -> Verdict:
        producer = self._producers.get(header.producer_id)
        if producer is None or header.producer_id < 0:
            return ACCEPTED
        epoch, first = header.producer_epoch, header.base_sequence
        if epoch == producer.epoch:
            last = producer.last_sequence
            if first == (0 if last == _MAX_SEQUENCE else last + 1):
                return ACCEPTED
            last_of_batch = _advance(first, header.last_offset_delta)
            for batch in producer.batches:
                if batch.first_sequence == first and batch.last_sequence == last_of_batch:
                    return Verdict(duplicate=batch)
            return Verdict(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first}, "
                f"but the last one stored is {last}",
            )
        if epoch < producer.epoch:
            return _refuse_epoch(header.producer_id, epoch, producer.epoch)
        if first != 0:
            return Verdict(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins epoch {epoch} with sequence {first}, not 0",
            )
        return ACCEPTED

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, version: int
    ) -> Verdict:
        """Whether the end of a producer's transaction may be stored; changes no state.

        Args:
            epoch: the producer's, in the marker.
            version: of transactions. From 2 on the marker's epoch is above that of the
                transaction's records, so that an older transaction's marker, late, is told apart.
                The same epoch without an open transaction is a marker that is sent again.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return ACCEPTED
        is_late = epoch < producer.epoch
        if version >= _BUMPS_EPOCHS_SINCE and epoch == producer.epoch != _MAX_EPOCH:
            is_late = producer_id in self.transactions.first_offsets
        if is_late:
            return Verdict(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {producer_id} has epoch {epoch}, "
                f"but epoch {producer.epoch} has written here",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            return Verdict(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of producer {producer_id} is from coordinator epoch "
                f"{coordinator_epoch}, but {producer.coordinator_epoch} has written here",
            )
        return ACCEPTED

    def note_stored(
        self, header: BatchHeader, first_offset: int, now_ms: int, marker: EndMarker | None = None
    ) -> EndedTransaction | None:
        """Records that a producer's batch was stored at `first_offset`; does not check it.

        Args:
            marker: what a control batch holds; None if compaction has emptied it.

        Returns:
            The transaction that the marker ends, if one was open.
        """
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            since = NO_EPOCH if producer is None else producer.coordinator_epoch
            producer = self._producers[producer_id] = _Producer(header.producer_epoch, since)
        producer.seen_ms = now_ms
        if marker is not None:
            producer.coordinator_epoch = marker.coordinator_epoch
            return self.transactions.note_marker(producer_id, first_offset)
        if not header.is_control:
            if header.is_transactional:
                self.transactions.open_transaction(producer_id, first_offset)
            delta = header.last_offset_delta
            first = header.base_sequence
            if first != NO_SEQUENCE:
                producer.batches.append(
                    StoredBatch(
                        first,
                        _advance(first, delta),
                        first_offset,
                        first_offset + delta,
                        header.max_timestamp,
                    )
                )
        return None

    def needs(self, header: BatchHeader) -> bool:
        """Whether compaction must keep this batch, without its records, because the producer may
        send it again, or because it alone has the producer's epoch (a control batch).

        Kafka keeps only the producer's last batch. Then a replica that copies the compacted log
        does not know the batches before it. It refuses one that is sent again. The producer then
        begins a new epoch and sends the batch in it, so it is stored twice.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return False
        if producer.batches:
            return any(batch.last_offset == header.last_offset for batch in producer.batches)
        return header.is_control and producer.epoch == header.producer_epoch

    def expire(self, now_ms: int) -> None:
        """Removes the producers that have not appended for `expiration_ms`, and have no open
        transaction."""
        if not self._producers:
            return
        horizon = now_ms - self.expiration_ms
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.seen_ms <= horizon and producer_id not in self.transactions.first_offsets
        ]
        for producer_id in expired:
            del self._producers[producer_id]

    def encode(self) -> bytes:
        """The content of a snapshot file (`ProducerSnapshot`, version 1)."""
        entries = [
            _ENTRY.pack(
                producer_id,
                producer.epoch,
                *fields,
                producer.coordinator_epoch,
                self.transactions.first_offsets.get(producer_id, NO_OFFSET),
            )
            for producer_id, producer in self._producers.items()
            for fields in _snapshot_fields(producer.batches)
        ]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def decode(cls, snapshot: BytesLike, expiration_ms: int, now_ms: int) -> ProducerState:
        """The state in a snapshot file, trimtab's or Kafka's. Expiration of its producers counts
        from now.

        Raises:
            CorruptData: it is not a whole snapshot of version 1.
        """
        state = cls(expiration_ms)
        open_since = {}
        for entry in decode_snapshot(snapshot):
            producer = state._producers.get(entry.producer_id)
            if producer is None or producer.epoch != entry.epoch:
                producer = _Producer(entry.epoch, entry.coordinator_epoch)
                state._producers[entry.producer_id] = producer
            producer.seen_ms = now_ms
            if entry.open_since_offset >= 0:
                open_since[entry.producer_id] = entry.open_since_offset
            if entry.batch is not None:
                producer.batches.append(entry.batch)
        for producer_id, since in sorted(open_since.items(), key=lambda item: item[1]):
            state.transactions.open_transaction(producer_id, since)
        return state


def decode_snapshot(snapshot: BytesLike) -> list[SnapshotEntry]:
    """The entries of a snapshot file, trimtab's or Kafka's.

    Raises:
        CorruptData: it is not a whole snapshot of version 1.
    """
    body = memoryview(snapshot)[_SNAPSHOT_HEADER.size :]
    try:
        version, crc = _SNAPSHOT_HEADER.unpack_from(snapshot)
        (count,) = _COUNT.unpack_from(body)
        rows = list(_ENTRY.iter_unpack(body[_COUNT.size :]))
    except struct.error as error:
        raise CorruptData(f"producer snapshot of {len(snapshot)} bytes: {error}") from error
    if version != _SNAPSHOT_VERSION or crc != crc32c(body) or count != len(rows):
        raise CorruptData(
            f"producer snapshot of version {version} with {count} entries: "
            "unknown version, wrong CRC or wrong length"
        )
    entries = []
    for producer_id, epoch, sequence, offset, delta, timestamp, coordinator, since in rows:
        batch = None
        if offset >= 0:
            first = (sequence - delta) & _MAX_SEQUENCE
            batch = StoredBatch(first, sequence, offset - delta, offset, timestamp)
        entries.append(SnapshotEntry(producer_id, epoch, coordinator, since, timestamp, batch))
    return entries


def _refuse_epoch(producer_id: int, epoch: int, known: int) -> Verdict:
    return Verdict(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} has epoch {epoch}, but epoch {known} has written here",
    )


def _advance(sequence: int, by: int) -> int:
    """Add to a sequence; sequences wrap from 2^31-1 to 0."""
    return (sequence + by) & _MAX_SEQUENCE


def _snapshot_fields(batches: Iterable[StoredBatch]) -> list[tuple[int, int, int, int]]:
    """Last sequence, last offset, offset delta and timestamp of each batch. A producer without
    batches has one entry with Kafka's values for "none"."""
    fields = [
        (
            batch.last_sequence,
            batch.last_offset,
            batch.last_offset - batch.first_offset,
            batch.timestamp,
        )
        for batch in batches
    ]
    return fields or [(-1, -1, 0, -1)]
