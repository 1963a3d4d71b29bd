"""One segment of a log: a file of record batches, two sparse indexes into it, and its transactions.

    00000000000000004711.log        batches, the first at offset 4711 or later
    00000000000000004711.index      (offset - 4711: int32, position: int32) of a batch's last offset
    00000000000000004711.timeindex  (timestamp: int64, offset - 4711: int32) of a new maximum
    … .txnindex and .txnindex.crc   the transactions that were aborted in it, if there are any

The formats are Kafka's (`LogSegment`, `OffsetIndex`, `TimeIndex`). An index has about one entry
per `index.interval.bytes` of log. It can be rebuilt from the batches at any time; the aborted
transactions only with the producers' state at the segment's beginning (`log_loader`).

A segment is made of three layers, a module each; none calls the one above it:

    segment         what changes the files: append, seal, truncate, rename; and `read`, for fetches
    indexed_file    searches by offset and by timestamp, and the indexes
    batch_file      batches by their positions

`segment_recovery` checks its batches after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from weakref import WeakSet

from trimtab.cluster.storage.batch_file import BEFORE_LENGTH_ENDS, BOUNDS, MIN_LENGTH
from trimtab.cluster.storage.indexed_file import IndexedFile
from trimtab.cluster.storage.open_transactions import EndedTransaction
from trimtab.cluster.storage.segment_indexes import GrowingIndexes
from trimtab.cluster.storage.segment_recovery import RecoveredSegment, check_batches
from trimtab.cluster.storage.storage import BytesLike, Storage
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.cluster.storage.transaction_index import read_aborted, write_aborted
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import NO_TIMESTAMP
from trimtab.kafka.wire.batch_cy import BatchHeader
from trimtab.kafka.wire.codec import LARGE_RECORDS_BYTES

LARGE_READ_BYTES = 128 * 1024
"""Bytes that `Segment.read` reads at most; a larger range is returned as `StoredRecords`."""

_KEPT_BYTES = 16 * 1024 * 1024
"""Bytes of a deleted segment that are kept in memory at most, for responses still being sent."""

_log = logging.getLogger(__name__)


class Segment(IndexedFile):
    """One segment. Its log decides when to append, roll and delete.

    Attributes:
        created_ms: when this broker opened it; used instead of the timestamps of records without.
    """

    __slots__ = ("_aborted", "_deferred", "_first_timestamp", "created_ms")

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        index_interval_bytes: int,
        created_ms: int,
        suffix: str = "",
        size: int | None = None,
    ) -> None:
        super().__init__(storage, directory, base_offset, index_interval_bytes, suffix, size)
        self._first_timestamp: int | None = None
        self._deferred: WeakSet[StoredRecords] | None = None
        self._aborted: list[EndedTransaction] | None = None if self.size else []
        self.created_ms = created_ms

    @property
    def flushed_paths(self) -> list[str]:
        """The paths of its files that exist once it is sealed."""
        *paths, transactions, crc = self.paths
        has_aborted = self._storage.exists(transactions) if self._aborted is None else self._aborted
        return [*paths, transactions, crc] if has_aborted else paths

    def create(self) -> None:
        """Creates the empty file, whose name keeps the segment's base offset."""
        self._file.append(b"")

    @property
    def first_timestamp(self) -> int:
        """The first batch's largest timestamp, from which `segment.ms` counts; -1 if there is
        none."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            try:
                self._first_timestamp = next(self.headers())[1].max_timestamp
            except CorruptData as error:  # do not fail the append; reads will fail
                _log.warning("the age of a segment is unknown: %s", error)
                self._first_timestamp = NO_TIMESTAMP
        return self._first_timestamp

    # -- writing

    def append(
        self, data: BytesLike, headers: Sequence[BatchHeader], first_offset: int | None = None
    ) -> None:
        """Appends batches.

        Args:
            first_offset: the first offset stamped into the batches, where `headers` have the old
                ones; None if the offsets in `headers` are right.

        Raises:
            StorageError: the batches do not count, but the file may have torn bytes beyond `size`;
                call `discard_torn_bytes`.
        """
        indexes = self._growing or self._grow()
        self._file.append(data)
        position = self.size
        if not position:
            self._first_timestamp = headers[0].max_timestamp
        if first_offset is None:
            for header in headers:
                last_offset = header.base_offset + header.last_offset_delta
                indexes.note(header, position, last_offset)
                position += header.size
        else:
            for header in headers:
                last_offset = first_offset + header.last_offset_delta
                indexes.note(header, position, last_offset)
                position += header.size
                first_offset = last_offset + 1
        self.size = position
        self._next_offset = last_offset + 1

    def confirm(self) -> None:
        """Checks that the file still exists.

        Raises:
            StorageError: the file or its directory was deleted from outside.
        """
        self._file.confirm()

    def discard_torn_bytes(self) -> None:
        self._file.truncate(self.size)

    def flush(self) -> None:
        """Fsyncs the batches, and the indexes too if the segment is sealed."""
        for path in self.flushed_paths[1:] if self._growing is None else ():
            self._storage.open(path).flush()
        self._file.flush()

    def save_indexes(self, durable: bool = False) -> None:
        """Writes the indexes if they are in memory."""
        if self._growing is not None:
            for path, content in zip(self.paths[1:3], self._growing.encode(), strict=True):
                self._storage.write_file(path, content, durable)
            self._forget_stored_indexes()
            self.save_aborted(durable)

    def save_aborted(self, durable: bool = False) -> None:
        """Writes the aborted transactions if they are in memory and there are any."""
        if self._aborted:
            write_aborted(self._storage, *self.paths[3:], self._aborted, durable)

    def seal(self) -> None:
        """Removes the indexes from memory, after `save_indexes`: no more appends follow."""
        self._growing = None
        self._aborted = self._aborted and None

    def truncate(self, position: int) -> None:
        """Removes the batch at `position` and all that follow it. The aborted transactions stay, in
        memory; `forget_aborted_from` removes those that ended in what is gone.

        Raises:
            CorruptData: the file of aborted transactions is damaged; nothing was removed.
        """
        if position:
            self._aborted = self.aborted
        else:
            self._aborted = []
        self.generation += 1
        # Drop the indexes first: if the disk fails half-way, they are rebuilt from the file.
        self._growing = None
        self._forget_stored_indexes()
        self._tail = self._next_offset = None
        for path in self.paths[1:]:
            self._storage.delete(path)
        self._file.truncate(position)
        # A loss of power must not bring the removed batches back: if the batches written in their
        # place had the same length, recovery might accept a mix of both.
        self._file.flush()
        self.size = position
        self._first_timestamp = None

    def recover(
        self, seen: Callable[[BatchHeader, int], None], allows_gaps: bool, next_offset: int | None
    ) -> RecoveredSegment:
        """Checks every batch as `check_batches`, rebuilds the indexes, and truncates the file at
        the first batch that is torn or corrupt. Forgets the aborted transactions, which the caller
        notes again.
        """
        indexes = GrowingIndexes(self.base_offset, self._index_interval_bytes)
        self._aborted = []
        found, position = check_batches(self, indexes, seen, allows_gaps, next_offset)
        if position < self.size:
            self.truncate(position)
        self._growing = indexes
        self._forget_stored_indexes()
        return found

    def close(self) -> None:
        self.generation += 1
        super().close()
        self._forget_stored_indexes()

    def delete(self) -> None:
        room = _KEPT_BYTES
        for records in sorted(self._deferred or (), key=len):
            room -= len(records)
            if room < 0:
                break
            records.keep()
        self.close()
        for path in self.paths:
            self._storage.delete(path)

    def rename(self, suffix: str) -> None:
        """Gives its files another suffix: the indexes first, as the .log file decides which segment
        counts."""
        self.close()
        old_paths = self.paths
        self._suffix = suffix
        for old, new in reversed([*zip(old_paths, self.paths, strict=True)]):
            if self._storage.exists(old):
                self._storage.rename(old, new)
        self._file = self._storage.open(self.paths[0])

    # -- transactions

    @property
    def aborted(self) -> list[EndedTransaction]:
        """The transactions whose abort markers it holds, in order.

        Raises:
            CorruptData: the file is damaged.
        """
        if self._aborted is None:
            self._aborted = read_aborted(self._storage, *self.paths[3:], self.base_offset)
        return self._aborted

    def note_aborted(self, transaction: EndedTransaction) -> None:
        """The transaction's marker is its latest batch."""
        self.aborted.append(transaction)

    def forget_aborted_from(self, offset: int) -> None:
        """Forgets the aborted transactions whose markers are at `offset` or later.

        Raises:
            CorruptData: as `aborted`, unless all are to be forgotten.
        """
        kept = self.aborted if offset > self.base_offset else ()
        self._aborted = [each for each in kept if each.last_offset < offset]

    # -- reading

    def read(
        self,
        position: int,
        max_bytes: int,
        min_one: bool,
        end_offset: int,
        next_offset: int,
        max_read_bytes: int | None = None,
    ) -> tuple[bytes | memoryview | StoredRecords, int]:
        """Whole batches from the batch at `position` on, and the offset after the last of them.

        Args:
            max_bytes: bytes to return at most.
            min_one: return the first batch even if it is larger than that.
            end_offset: return only batches that end before this offset.
            next_offset: the offset after the segment's last batch.
            max_read_bytes: a range that may be larger than this, or than `LARGE_READ_BYTES`, is
                returned as `StoredRecords`.
        """
        large = LARGE_READ_BYTES
        if max_read_bytes is not None and max_read_bytes < large:
            large = max_read_bytes
        room = min(max_bytes, self.size - position)
        if room > large:
            return self._find_range(position, room, min_one, end_offset, next_offset)
        # Read one header more than fits: it has the offset where the next read continues.
        data = self._file.read(position, room + BOUNDS.size)
        if len(data) < BOUNDS.size:
            raise self.corrupt(position, "the file ends within a batch")
        base_offset, length, delta = BOUNDS.unpack_from(data)
        if length < MIN_LENGTH:
            raise self.corrupt(position, f"length {length}")
        at = BEFORE_LENGTH_ENDS + length
        if position + at > self.size:
            raise self.corrupt(position, "the file ends within a batch")
        end = base_offset + delta + 1
        if end > end_offset:
            return b"", base_offset
        if at > room:
            if not min_one:
                return b"", base_offset
            if at > large:
                return self._defer_read(position, at), end
            return self._file.read(position, at), end
        if position + room == self.size and end_offset >= next_offset:
            return (data if len(data) == room else memoryview(data)[:room]), next_offset

        entry_at = self._last_indexed(position + room, end_offset) - position
        if entry_at > at:  # all batches before the index entry fit: search for the end from there
            if not self.begins_batch(data, entry_at, end, end_offset):
                self._rebuild_indexes(f"there is no batch at position {position + entry_at}")
                return self.read(
                    position, max_bytes, min_one, end_offset, next_offset, max_read_bytes
                )
            at = entry_at
            end = BOUNDS.unpack_from(data, at)[0]
        while at + BOUNDS.size <= len(data):
            base_offset, length, delta = BOUNDS.unpack_from(data, at)
            if length < MIN_LENGTH:
                raise self.corrupt(position + at, f"length {length}")
            after = at + BEFORE_LENGTH_ENDS + length
            if after > room or base_offset + delta >= end_offset:
                break
            at = after
            end = base_offset + delta + 1
        return memoryview(data)[:at], end

    def _find_range(
        self, position: int, room: int, min_one: bool, end_offset: int, next_offset: int
    ) -> tuple[bytes | StoredRecords, int]:
        """As `read`, but reads only the first header and the headers near the end."""
        base_offset, at, last_offset = self.bounds_at(position)
        if last_offset >= end_offset:
            return b"", base_offset
        if at > room:
            return (
                (self._defer_read(position, at), last_offset + 1) if min_one else (b"", base_offset)
            )
        end = last_offset + 1
        if position + room == self.size and end_offset >= next_offset:
            return self._defer_read(position, room), next_offset
        entry_at = self._last_indexed(position + room, end_offset) - position
        if entry_at > at:
            head = self._file.read(position + entry_at, BOUNDS.size)
            if not self.begins_batch(head, 0, end, end_offset):
                self._rebuild_indexes(f"there is no batch at position {position + entry_at}")
                return self._find_range(position, room, min_one, end_offset, next_offset)
            at = entry_at
            end = BOUNDS.unpack(head)[0]
        while position + at < self.size:
            _, size, last_offset = self.bounds_at(position + at)
            if at + size > room or last_offset >= end_offset:
                break
            at += size
            end = last_offset + 1
        return self._defer_read(position, at), end

    def _defer_read(self, position: int, size: int) -> bytes | StoredRecords:
        if size <= LARGE_RECORDS_BYTES:
            return self._file.read(position, size)  # the codec copies these, so they must be bytes
        if self._deferred is None:
            self._deferred = WeakSet()
        records = StoredRecords(self, position, size)
        self._deferred.add(records)
        return records
