"""One segment of a log: a file of record batches, two sparse indexes into it, and its transactions.

    00000000000000004711.log        batches, the first at offset 4711 or later
    00000000000000004711.index      (offset - 4711: int32, position: int32) of a batch's last offset
    00000000000000004711.timeindex  (timestamp: int64, offset - 4711: int32) of a new maximum
    00000000000000004711.txnindex   the transactions that were aborted in it, if there are any

The formats are Kafka's (`LogSegment`, `OffsetIndex`, `TimeIndex`). An index has about one entry
per `index.interval.bytes` of log. The active segment's indexes are in memory and are written when
it is sealed or closed. A sealed segment's indexes stay on disk; a binary search reads only the
entries that it compares. The two can be rebuilt from the batches at any time; the aborted
transactions only with the producers' state at the segment's beginning (`log_loader`).

More than 600 lines, because each search takes its start from the indexes and rebuilds them if the
batches contradict them; the indexes' formats are in `segment_indexes`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias
from weakref import WeakSet

from trimtab.errors import CorruptData
from trimtab.records import NO_TIMESTAMP, TimestampType
from trimtab.storage.open_transactions import EndedTransaction
from trimtab.storage.segment_indexes import GrowingIndexes, StoredIndexes
from trimtab.storage.storage import BytesLike, Storage
from trimtab.storage.stored_records import StoredRecords
from trimtab.storage.transaction_index import decode_aborted, encode_aborted
from trimtab.wire.batch_cy import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    read_headers,
    scan_records,
    verify,
)
from trimtab.wire.codec import LARGE_RECORDS_BYTES
from trimtab.wire.compression import TooLarge
from trimtab.wire.end_markers import EndMarker, read_marker

LARGE_READ_BYTES = 128 * 1024
"""Bytes that `Segment.read` reads at most; a larger range is returned as `StoredRecords`."""

_KEPT_BYTES = 16 * 1024 * 1024
"""Bytes of a deleted segment that are kept in memory at most, for responses still being sent."""
_LOCATE_CHUNK = 8 * 1024
_HEADERS_CHUNK = 64 * 1024
_SIZES_CHUNK = 16 * 1024
_VERIFY_CHUNK = 1024 * 1024

# Base offset, batch length, last offset delta: enough to find where a batch ends, and much cheaper
# than parsing the whole header.
_BOUNDS = Struct(">qi11xi")
# The same, with the largest timestamp.
_SIZED = Struct(">qi11xi8xq")
_BEFORE_LENGTH_ENDS = 12
_MIN_LENGTH = HEADER_BYTES - _BEFORE_LENGTH_ENDS
_MAGIC_AT = 16
_MAGIC_BYTE = bytes([MAGIC])
_INT32_MAX = 2**31 - 1
_SEARCHED_BYTES = 1 << 20
"""Bytes after a torn batch that are searched for another whole batch."""

_NOT_THE_LAST = "its last entries are not those of the last batches"

_log = logging.getLogger(__name__)


class TimestampOffset(NamedTuple):
    """A record's timestamp (ms since the epoch), its offset, and its batch's leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


class BatchSize(NamedTuple):
    """A batch's end offset (exclusive), its bytes, and its largest timestamp (ms)."""

    next_offset: int
    size: int
    max_timestamp: int


class Recovered(NamedTuple):
    """The result of `Segment.recover`.

    Attributes:
        end_offset: the offset after the last whole batch; the base offset if there is none.
        problem: why the file was truncated there; empty if it was not.
        is_torn: the only damage is an append that a crash interrupted.
    """

    end_offset: int
    problem: str = ""
    is_torn: bool = False


Search: TypeAlias = Generator[None, None, TimestampOffset | None]
"""A search for a record. It yields where other tasks may run, and returns the record or None."""


class Segment:
    """One segment. Its log decides when to append, roll and delete.

    Attributes:
        base_offset: the segment's name; no record in it has a smaller offset.
        size: bytes of whole batches.
        created_ms: when this broker opened it; used instead of the timestamps of records without.
        generation: incremented when the segment is truncated or closed.

    Args:
        suffix: the end of its file names while it is not part of the log.
        size: the size of its file, if known.
    """

    __slots__ = (
        "_aborted",
        "_deferred",
        "_directory",
        "_file",
        "_first_timestamp",
        "_growing",
        "_index_interval_bytes",
        "_storage",
        "_stored",
        "_suffix",
        "_tail",
        "base_offset",
        "created_ms",
        "generation",
        "size",
    )

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
        self._storage = storage
        self._directory = directory
        self._suffix = suffix
        self._index_interval_bytes = index_interval_bytes
        self._growing: GrowingIndexes | None = None
        self._stored: StoredIndexes | None = None
        self._first_timestamp: int | None = None
        self._tail: tuple[int, BatchHeader] | None = None  # a segment size, and its last batch
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.generation = 0
        self._deferred: WeakSet[StoredRecords] | None = None
        self._file = storage.open(self.path(".log"))
        self.size = self._file.size if size is None else size
        self._aborted: list[EndedTransaction] | None = None if self.size else []

    def path(self, suffix: str) -> str:
        """The path of one of the segment's files."""
        return f"{self._directory}/{self.base_offset:020d}{suffix}{self._suffix}"

    @property
    def paths(self) -> tuple[str, str, str, str]:
        """The paths of its files: batches, offset index, time index, and aborted transactions,
        which may be missing."""
        suffixes = ".log", ".index", ".timeindex", ".txnindex"
        log, index, time_index, transactions = map(self.path, suffixes)
        return log, index, time_index, transactions

    @property
    def flushed_paths(self) -> list[str]:
        """The paths of its files that exist once it is sealed."""
        *paths, transactions = self.paths
        has_aborted = self._storage.exists(transactions) if self._aborted is None else self._aborted
        return [*paths, transactions] if has_aborted else paths

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

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of its batches, -1 if none has one."""
        return self._indexes.max_timestamp

    @property
    def index_entries(self) -> int:
        """Entries of the offset index."""
        return len(self._indexes.offsets)

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
                indexes.note(header, position, header.base_offset + header.last_offset_delta)
                position += header.size
        else:
            for header in headers:
                last_offset = first_offset + header.last_offset_delta
                indexes.note(header, position, last_offset)
                position += header.size
                first_offset = last_offset + 1
        self.size = position

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
            self._storage.write_file(self.paths[3], encode_aborted(self._aborted), durable)

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
        self._tail = None
        for path in self.paths[1:]:
            self._storage.delete(path)
        self._file.truncate(position)
        # A loss of power must not bring the removed batches back: if the batches written in their
        # place had the same length, recovery might accept a mix of both.
        self._file.flush()
        self.size = position
        self._first_timestamp = None

    def close(self) -> None:
        self.generation += 1
        self._file.close()
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
            path = self.paths[3]
            content = self._storage.read_file(path) if self._storage.exists(path) else None
            try:
                self._aborted = decode_aborted(content or b"", self.base_offset)
            except CorruptData as error:
                raise CorruptData(f"{path}: {error}") from error
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

    def marker_at(self, position: int, header: BatchHeader) -> EndMarker | None:
        """The marker in the control batch at a position; None if compaction has emptied it.

        Raises:
            CorruptData: it is no end of a transaction.
        """
        return read_marker(self._file.read(position, header.size), 0, header)

    # -- reading

    def locate(self, offset: int) -> int | None:
        """The position of the first batch whose last offset is `offset` or later; None if there is
        none."""
        indexes = self._indexes
        entry = bisect_right(indexes.offsets, offset - self.base_offset) - 1
        position = indexes.positions[entry] if entry >= 0 else 0
        is_proven = entry < 0
        while position < self.size or not is_proven:
            chunk = self._file.read(max(position, 0), _LOCATE_CHUNK)
            if not is_proven:
                if position < 0 or not self._begins_batch(chunk, 0, self.base_offset, offset):
                    self._rebuild_indexes(f"there is no batch at position {position}")
                    return self.locate(offset)
                is_proven = True
            at = 0
            while at + _BOUNDS.size <= len(chunk):
                base_offset, length, delta = _BOUNDS.unpack_from(chunk, at)
                if base_offset + delta >= offset:
                    return position + at
                if not _MIN_LENGTH <= length <= self.size - position - at - _BEFORE_LENGTH_ENDS:
                    raise self._corrupt(position + at, f"length {length}")
                at += _BEFORE_LENGTH_ENDS + length
            if not at:
                raise self._corrupt(position, "the file ends within a batch")
            position += at
        return None

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
        data = self._file.read(position, room + _BOUNDS.size)
        if len(data) < _BOUNDS.size:
            raise self._corrupt(position, "the file ends within a batch")
        base_offset, length, delta = _BOUNDS.unpack_from(data)
        if length < _MIN_LENGTH:
            raise self._corrupt(position, f"length {length}")
        at = _BEFORE_LENGTH_ENDS + length
        if position + at > self.size:
            raise self._corrupt(position, "the file ends within a batch")
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
            if not self._begins_batch(data, entry_at, end, end_offset):
                self._rebuild_indexes(f"there is no batch at position {position + entry_at}")
                return self.read(
                    position, max_bytes, min_one, end_offset, next_offset, max_read_bytes
                )
            at = entry_at
            end = _BOUNDS.unpack_from(data, at)[0]
        while at + _BOUNDS.size <= len(data):
            base_offset, length, delta = _BOUNDS.unpack_from(data, at)
            if length < _MIN_LENGTH:
                raise self._corrupt(position + at, f"length {length}")
            after = at + _BEFORE_LENGTH_ENDS + length
            if after > room or base_offset + delta >= end_offset:
                break
            at = after
            end = base_offset + delta + 1
        return memoryview(data)[:at], end

    def read_bytes(self, position: int, size: int) -> bytes:
        """Bytes of the file, without regard to batch boundaries."""
        return self._file.read(position, size)

    def _defer_read(self, position: int, size: int) -> bytes | StoredRecords:
        if size <= LARGE_RECORDS_BYTES:
            return self._file.read(position, size)  # the codec copies these, so they must be bytes
        if self._deferred is None:
            self._deferred = WeakSet()
        records = StoredRecords(self, position, size)
        self._deferred.add(records)
        return records

    def _find_range(
        self, position: int, room: int, min_one: bool, end_offset: int, next_offset: int
    ) -> tuple[bytes | StoredRecords, int]:
        """As `read`, but reads only the first header and the headers near the end."""
        base_offset, at, last_offset = self._bounds_at(position)
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
            head = self._file.read(position + entry_at, _BOUNDS.size)
            if not self._begins_batch(head, 0, end, end_offset):
                self._rebuild_indexes(f"there is no batch at position {position + entry_at}")
                return self._find_range(position, room, min_one, end_offset, next_offset)
            at = entry_at
            end = _BOUNDS.unpack(head)[0]
        while position + at < self.size:
            _, size, last_offset = self._bounds_at(position + at)
            if at + size > room or last_offset >= end_offset:
                break
            at += size
            end = last_offset + 1
        return self._defer_read(position, at), end

    def _last_indexed(self, before_position: int, end_offset: int) -> int:
        """The position of the last indexed batch that begins before a position and ends before an
        offset."""
        indexes = self._indexes
        entry = min(
            bisect_left(indexes.positions, before_position),
            bisect_left(indexes.offsets, end_offset - self.base_offset),
        )
        return indexes.positions[entry - 1] if entry else 0

    def _begins_batch(self, data: bytes, at: int, first: int, last: int) -> bool:
        """Whether a batch with a base offset from `first` to `last` begins at `at`. A damaged index
        may point into the middle of a batch."""
        if not 0 <= at <= len(data) - _BOUNDS.size:
            return False
        base_offset, length, _ = _BOUNDS.unpack_from(data, at)
        return (
            first <= base_offset <= last and length >= _MIN_LENGTH and data[at + _MAGIC_AT] == MAGIC
        )

    def _bounds_at(self, position: int) -> tuple[int, int, int]:
        """Base offset, size and last offset of the batch at a position."""
        head = self._file.read(position, _BOUNDS.size)
        if len(head) < _BOUNDS.size:
            raise self._corrupt(position, "the file ends within a batch")
        base_offset, _, delta = _BOUNDS.unpack(head)
        return base_offset, self._batch_size(head, position), base_offset + delta

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of every batch from `position` on.

        Raises:
            CorruptData: a header is damaged, or the file ends within a batch.
        """
        end_offset = self.base_offset
        while position < self.size:
            for header in self.batches(position, _HEADERS_CHUNK)[1]:
                self._check_offsets(position, header, end_offset)
                end_offset = header.base_offset + header.last_offset_delta + 1
                yield position, header
                position += header.size

    def batches(self, position: int, max_bytes: int) -> tuple[bytes, list[BatchHeader]]:
        """The whole batches within `max_bytes` from `position` on, at least one, and their headers.

        Raises:
            CorruptData: as `headers`.
        """
        wanted = max_bytes
        while True:
            chunk = self._file.read(position, wanted)
            try:
                found = read_headers(chunk, allow_partial=True)
            except CorruptData as error:
                raise self._corrupt(position, str(error)) from error
            if found:
                return chunk, found
            if len(chunk) < wanted:
                raise self._corrupt(position, "the file ends within a batch")
            wanted = self._batch_size(chunk, position)

    def sizes(self, position: int, end_offset: int) -> list[BatchSize]:
        """Sizes of the batches from `position` on whose headers one small read covers: at least
        one, but none that begins at `end_offset` or later.

        Raises:
            CorruptData: as `headers`.
        """
        chunk = self._file.read(position, _SIZES_CHUNK)
        found: list[BatchSize] = []
        at = 0
        while at + _SIZED.size <= len(chunk):
            base_offset, length, delta, max_timestamp = _SIZED.unpack_from(chunk, at)
            if not _MIN_LENGTH <= length <= self.size - position - at - _BEFORE_LENGTH_ENDS:
                raise self._corrupt(position + at, f"length {length}")
            if base_offset >= end_offset:
                return found
            next_offset = base_offset + delta + 1
            found.append(BatchSize(next_offset, _BEFORE_LENGTH_ENDS + length, max_timestamp))
            at += _BEFORE_LENGTH_ENDS + length
        if not found:
            raise self._corrupt(position, "the file ends within a batch")
        return found

    def find_timestamp(self, timestamp: int, start_offset: int) -> Search:
        """The first record from `start_offset` on whose timestamp is `timestamp` or later. A batch
        that decompresses to more than `OPENED_LIMIT` is not decoded: its first possible record
        stands for it."""
        indexes = self._indexes
        entry = bisect_left(indexes.timestamps, timestamp) - 1
        if entry >= 0:
            place = self.base_offset + indexes.timestamp_offsets[entry]
            if place > start_offset:
                if not self._has_timestamp(place, indexes.timestamps[entry]):
                    self._rebuild_indexes(f"no batch of its timestamp is at offset {place}")
                    return (yield from self.find_timestamp(timestamp, start_offset))
                start_offset = place
        position = self.locate(start_offset)
        if position is None:
            return None
        for at, header in self.headers(position):
            if header.max_timestamp >= timestamp:
                found = yield from self._find_in_batch(at, header, timestamp, start_offset)
                if found is not None:
                    return found
        return None

    def _find_in_batch(
        self, position: int, header: BatchHeader, timestamp: int, start_offset: int
    ) -> Search:
        batch = self._file.read(position, header.size)
        append_time = (
            header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
        )
        if header.is_control:
            return None
        try:
            for number, records in enumerate(scan_records(batch, 0, header)):
                if number:
                    yield
                for offset_delta, timestamp_delta, _ in records:
                    offset = header.base_offset + offset_delta
                    time = append_time
                    if time is None:
                        time = header.base_timestamp + timestamp_delta
                    if time >= timestamp and offset >= start_offset:
                        return TimestampOffset(time, offset, header.leader_epoch)
        except TooLarge:
            offset = max(header.base_offset, start_offset)
            return TimestampOffset(header.max_timestamp, offset, header.leader_epoch)
        return None

    def last_header(self) -> BatchHeader | None:
        """The last batch's header, found by reading from the last index entry; None if there is
        none.

        Raises:
            CorruptData: as `headers`.
        """
        if not self.size:
            return None
        positions = self._indexes.positions
        if self._tail is None or self._tail[0] != self.size:
            for _, header in self.headers(positions[-1] if len(positions) else 0):
                self._tail = self.size, header
        assert self._tail is not None
        return self._tail[1]

    def recover(
        self, seen: Callable[[BatchHeader, int], None], allows_gaps: bool, next_offset: int | None
    ) -> Recovered:
        """Checks every batch, rebuilds the indexes, and truncates the file at the first batch that
        is torn or corrupt. Calls `seen` with the header and position of each whole batch. Forgets
        the aborted transactions, which the caller notes again.

        A batch's CRC does not cover its base offset. So a batch after a gap must be confirmed by
        the offset of the next batch or segment; otherwise it counts as damaged.

        Args:
            allows_gaps: compaction may have left gaps, also before the last batch.
            next_offset: the base offset of the next segment; None for the last one.
        """
        indexes = GrowingIndexes(self.base_offset, self._index_interval_bytes)
        self._aborted = []
        end_offset = confirmed_offset = self.base_offset
        position = 0
        wanted = _VERIFY_CHUNK
        problem = ""
        last: tuple[BatchHeader, int] | None = None  # not confirmed yet

        def confirm() -> None:
            nonlocal last
            if last is not None:
                indexes.note(last[0], last[1], last[0].last_offset)
                seen(*last)
                last = None

        try:
            while position < self.size:
                chunk = self._file.read(position, wanted)
                at = 0
                while len(chunk) - at > _BOUNDS.size:
                    size = self._batch_size(chunk, position, at)
                    if at + size > len(chunk):
                        break
                    try:
                        header = verify(chunk, at)
                    except CorruptData as error:
                        raise self._corrupt(position, str(error)) from error
                    if header.base_offset < end_offset and header.base_offset >= confirmed_offset:
                        next_offset = header.base_offset
                    self._check_offsets(position, header, end_offset)
                    confirm()
                    confirmed_offset = end_offset
                    last = header, position
                    end_offset = header.next_offset
                    at += size
                    position += size
                if not at and len(chunk) < wanted:
                    raise self._corrupt(position, "the file ends within a batch")
                wanted = _VERIFY_CHUNK if at else size
        except CorruptData as error:
            problem = str(error)
        is_torn = bool(problem) and self._is_torn(position)
        if last is not None and last[0].base_offset > confirmed_offset:
            is_confirmed = allows_gaps if next_offset is None else end_offset <= next_offset
            if not is_confirmed:
                problem = str(
                    self._corrupt(
                        last[1],
                        f"offset {last[0].base_offset} after {confirmed_offset - 1}, and the next "
                        "batch or segment does not confirm it",
                    )
                )
                end_offset, position, last, is_torn = confirmed_offset, last[1], None, False
        confirm()
        if position < self.size:
            self.truncate(position)
        self._growing = indexes
        self._forget_stored_indexes()
        return Recovered(end_offset, problem, is_torn)

    def _is_torn(self, position: int) -> bool:
        """Whether the bytes at a position are the beginning of a batch whose append a crash has
        interrupted: the file ends within the batch, and no whole batch follows."""
        rest = self._file.read(position, _SEARCHED_BYTES)
        if len(rest) > _BOUNDS.size:
            length = _BOUNDS.unpack_from(rest)[1]
            if not self.size - position < _BEFORE_LENGTH_ENDS + length:
                return False
        found = rest.find(_MAGIC_BYTE, _MAGIC_AT + 1)
        while found >= 0:
            try:
                verify(rest, found - _MAGIC_AT)
            except CorruptData:
                found = rest.find(_MAGIC_BYTE, found + 1)
            else:
                return False
        return True

    # -- inside

    def _batch_size(self, chunk: bytes, position: int, at: int = 0) -> int:
        """The size of the batch at `at` in the chunk, `position` in the file."""
        if len(chunk) - at < _BOUNDS.size:
            raise self._corrupt(position, "the file ends within a batch")
        length: int = _BOUNDS.unpack_from(chunk, at)[1]
        if length < _MIN_LENGTH:
            raise self._corrupt(position, f"length {length}")
        # Checked before memory is allocated for it.
        if position + _BEFORE_LENGTH_ENDS + length > self.size:
            raise self._corrupt(position, "the file ends within a batch")
        return _BEFORE_LENGTH_ENDS + length

    def _check_offsets(self, position: int, header: BatchHeader, end_offset: int) -> None:
        """Checks that a batch's offsets come after `end_offset` and fit into the indexes.

        Raises:
            CorruptData: they do not.
        """
        if header.base_offset < end_offset or header.last_offset - self.base_offset > _INT32_MAX:
            raise self._corrupt(
                position,
                f"offset {header.base_offset} is wrong: the batches before it end at {end_offset}",
            )

    def _has_timestamp(self, offset: int, timestamp: int) -> bool:
        """Whether `timestamp` is the largest timestamp of the batch at an offset."""
        position = self.locate(offset)
        if position is None:
            return False
        header = next(self.headers(position))[1]
        return header.base_offset <= offset and header.max_timestamp == timestamp

    def _corrupt(self, position: int, what: str) -> CorruptData:
        return CorruptData(f"{self.path('.log')}: no batch at position {position}: {what}")

    @property
    def _indexes(self) -> GrowingIndexes | StoredIndexes:
        return self._growing or self._stored or self._open_indexes()

    def _forget_stored_indexes(self) -> None:
        if self._stored is not None:
            self._stored.close()
            self._stored = None

    def _open_indexes(self) -> GrowingIndexes | StoredIndexes:
        """The indexes on disk, if they exist and fit; otherwise in memory, as by `_grow`."""
        _, index, time_index, _ = self.paths
        if self._storage.exists(index):
            stored = StoredIndexes(self._storage.open(index), self._storage.open(time_index))
            if stored.fit(self.size):
                self._stored = stored
                if not self._agrees(stored):
                    self._rebuild_indexes(_NOT_THE_LAST)
                return self._growing or stored
        return self._grow()

    def _grow(self) -> GrowingIndexes:
        """Loads the indexes into memory: from disk if possible, otherwise from the batches."""
        indexes = GrowingIndexes(self.base_offset, self._index_interval_bytes)
        if self.size:
            index, time_index = (self._storage.read_file(path) for path in self.paths[1:3])
            if (
                index is None
                or time_index is None
                or not indexes.decode(index, time_index, self.size)
            ):
                return self._index_batches()
            self._growing = indexes
            return indexes if self._agrees(indexes) else self._rebuild_indexes(_NOT_THE_LAST)
        self._growing = indexes
        return indexes

    def _agrees(self, indexes: GrowingIndexes | StoredIndexes) -> bool:
        """Whether the indexes' last entries match batches in the file, and no later batch has a
        newer timestamp."""
        position = indexes.positions[-1] if len(indexes.positions) else 0
        newest = NO_TIMESTAMP
        try:
            for at, header in self.headers(position):
                if at == position > 0:
                    is_entry = header.base_offset <= self.base_offset + indexes.offsets[-1]
                    if not is_entry:
                        return False
                if header.record_count:
                    newest = max(newest, header.max_timestamp)
                self._tail = self.size, header
        except CorruptData:
            return False
        timestamp = indexes.timestamps[-1]
        if newest == timestamp:
            return True
        place = self.base_offset + indexes.timestamp_offsets[-1]
        return newest < timestamp and self._has_timestamp(place, timestamp)

    def _rebuild_indexes(self, why: str) -> GrowingIndexes:
        """Builds the indexes from the batches, as those on disk are damaged.

        Raises:
            CorruptData: as `headers`.
        """
        _log.warning("rebuilt the indexes of %s: %s", self.path(".log"), why)
        self._growing = None
        self._forget_stored_indexes()
        return self._index_batches()

    def _index_batches(self) -> GrowingIndexes:
        indexes = GrowingIndexes(self.base_offset, self._index_interval_bytes)
        for position, header in self.headers():
            indexes.note(header, position, header.last_offset)
        self._growing = indexes
        return indexes
