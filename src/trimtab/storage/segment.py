"""One segment of a log: a file of record batches, and two sparse indexes into it.

    00000000000000004711.log        batches, the first at offset 4711 or later
    00000000000000004711.index      (offset - 4711: int32, position: int32) of a batch's last offset
    00000000000000004711.timeindex  (timestamp: int64, offset - 4711: int32) of a new maximum

The formats are Kafka's (`LogSegment`, `OffsetIndex`, `TimeIndex`). An index has about one entry
per `index.interval.bytes` of log. The active segment's indexes grow in memory and are written
when it is sealed or closed; a sealed segment's stay on disk, and a look-up reads only the entries
that its binary search touches. Either can be rebuilt from the batches at any time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple
from weakref import WeakSet

from trimtab.errors import CorruptData
from trimtab.records import NO_TIMESTAMP
from trimtab.storage.segment_indexes import GrowingIndexes, StoredIndexes
from trimtab.storage.storage import BytesLike, Storage, StorageError
from trimtab.wire.batch_cy import (
    HEADER_BYTES,
    BatchHeader,
    read_headers,
    read_records,
    verify,
)

LARGE_READ_BYTES = 128 * 1024
"""What `Segment.read` returns at most as bytes; more is left on disk."""

_KEPT_BYTES = 16 * 1024 * 1024
"""Of a segment that is deleted, what is kept at most for those who are being sent something of
it."""
_LOCATE_CHUNK = 8 * 1024
_HEADERS_CHUNK = 64 * 1024
_VERIFY_CHUNK = 1024 * 1024

# Where a batch ends: base offset, length of what follows it, offset delta of the last record.
# Far cheaper than the whole header, and all that reading needs.
_BOUNDS = Struct(">qi11xi")
_BEFORE_LENGTH_ENDS = 12
_MIN_LENGTH = HEADER_BYTES - _BEFORE_LENGTH_ENDS


class TimestampOffset(NamedTuple):
    """A record's timestamp (ms since the epoch), its offset, and its batch's leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


class StoredRecords:
    """Whole batches of a segment that are read when they are sent, a piece at a time: what a slow
    client has asked for takes no memory while it waits. If the segment is deleted meanwhile some
    of it is kept; the rest cannot be read any more.
    """

    __slots__ = ("__weakref__", "_generation", "_kept", "_position", "_segment", "_size")

    def __init__(self, segment: Segment, position: int, size: int) -> None:
        self._segment = segment
        self._position = position
        self._size = size
        self._generation = segment.generation
        self._kept: bytes | None = None

    def __len__(self) -> int:
        return self._size

    def read(self, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on.

        Raises:
            CorruptData: the log has been cut off or closed meanwhile, or its segment was deleted
                and too much of it was being sent, or the file is shorter than it was.
            StorageError: the disk failed.
        """
        if self._kept is not None:
            return self._kept[start : start + size]
        wanted = min(size, self._size - start)
        if self._generation == self._segment.generation:
            data = self._segment.read_bytes(self._position + start, wanted)
            if len(data) == wanted:
                return data
        raise CorruptData(f"{self._segment.path('.log')}: cut off while it was being sent")

    def keep(self) -> None:
        """Takes them into memory, as the segment is about to be deleted."""
        with suppress(CorruptData, StorageError):  # whoever reads them will learn of it
            self._kept = self.read(0, self._size)


class Segment:
    """One segment. Its log decides when to append, roll and delete.

    Attributes:
        base_offset: the segment's name; no record in it has a smaller offset.
        size: bytes of whole batches.
        created_ms: when this broker opened it; stands in for the time of records without one.
        was_damaged: `recover` has cut off more than an append that a kill may have interrupted.
        generation: raised when what has been written is taken back, and when the segment is closed.

    Args:
        suffix: what the names of its files end with while it is not part of the log.
        size: of its file, where that is known.
    """

    __slots__ = (
        "_directory",
        "_file",
        "_first_timestamp",
        "_growing",
        "_index_interval_bytes",
        "_lent",
        "_storage",
        "_stored",
        "_suffix",
        "base_offset",
        "created_ms",
        "generation",
        "size",
        "was_damaged",
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
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.generation = 0
        self.was_damaged = False
        self._lent: WeakSet[StoredRecords] | None = None
        self._file = storage.open(self.path(".log"))
        self.size = self._file.size if size is None else size

    def path(self, suffix: str) -> str:
        """The path of one of the segment's files."""
        return f"{self._directory}/{self.base_offset:020d}{suffix}{self._suffix}"

    @property
    def paths(self) -> tuple[str, str, str]:
        """The paths of its files: batches, offset index, time index."""
        return self.path(".log"), self.path(".index"), self.path(".timeindex")

    def create(self) -> None:
        """Makes the empty file, so that the segment's base offset is remembered."""
        self._file.append(b"")

    @property
    def first_timestamp(self) -> int:
        """The first batch's largest timestamp, -1 if there is none: `segment.ms` counts from it."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            self._first_timestamp = next(self.headers())[1].max_timestamp
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
        """Writes batches.

        Args:
            first_offset: they have been stamped with this and what follows it; None if they have
                the offsets that their headers say.

        Raises:
            StorageError: the segment is as before, but for bytes beyond `size` in its file:
                `discard_torn_bytes`.
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
        """Returns if its file is where it was.

        Raises:
            StorageError: somebody has deleted it, or its directory.
        """
        self._file.confirm()

    def discard_torn_bytes(self) -> None:
        self._file.truncate(self.size)

    def flush(self) -> None:
        """Returns once the batches are on disk, and the indexes too if they no longer grow."""
        for path in self.paths[1:] if self._growing is None else ():
            self._storage.open(path).flush()
        self._file.flush()

    def save_indexes(self, durable: bool = False) -> None:
        """Writes the indexes if they have grown since they were read."""
        if self._growing is not None:
            for path, content in zip(self.paths[1:], self._growing.encode(), strict=True):
                self._storage.write_file(path, content, durable)
            self._forget_stored_indexes()

    def seal(self) -> None:
        """No more appends: after `save_indexes`, drops the indexes from memory."""
        self._growing = None

    def truncate(self, position: int) -> None:
        """Removes the batch at `position` and all that follow it."""
        self.generation += 1
        # First, as the disk may fail half-way: what is on it then counts, and can still be read.
        self._growing = None
        self._forget_stored_indexes()
        for path in self.paths[1:]:
            self._storage.delete(path)
        self._file.truncate(position)
        self.size = position
        self._first_timestamp = None

    def close(self) -> None:
        self.generation += 1
        self._file.close()
        self._forget_stored_indexes()

    def delete(self) -> None:
        room = _KEPT_BYTES
        for records in sorted(self._lent or (), key=len):
            room -= len(records)
            if room < 0:
                break
            records.keep()
        self.close()
        for path in self.paths:
            self._storage.delete(path)

    def rename(self, suffix: str) -> None:
        """Gives its files another suffix: first the indexes, as the batches are what counts."""
        self.close()
        old_paths = self.paths
        self._suffix = suffix
        for old, new in reversed([*zip(old_paths, self.paths, strict=True)]):
            if self._storage.exists(old):
                self._storage.rename(old, new)
        self._file = self._storage.open(self.paths[0])

    # -- reading

    def locate(self, offset: int) -> int | None:
        """The position of the first batch whose last offset is `offset` or later, if any."""
        indexes = self._indexes
        entry = bisect_right(indexes.offsets, offset - self.base_offset) - 1
        position = indexes.positions[entry] if entry >= 0 else 0
        while position < self.size:
            chunk = self._file.read(position, _LOCATE_CHUNK)
            at = 0
            while at + _BOUNDS.size <= len(chunk):
                base_offset, length, delta = _BOUNDS.unpack_from(chunk, at)
                if base_offset + delta >= offset:
                    return position + at
                if length < _MIN_LENGTH:
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
            end_offset: return no batch that reaches this offset.
            next_offset: the offset after the segment's last batch.
            max_read_bytes: where there may be more, or more than `LARGE_READ_BYTES`, it is left on
                disk.
        """
        large = LARGE_READ_BYTES
        if max_read_bytes is not None and max_read_bytes < large:
            large = max_read_bytes
        room = min(max_bytes, self.size - position)
        if room > large:
            return self._find_range(position, room, min_one, end_offset, next_offset)
        # One header more than there is room for: it tells where to go on.
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
                return self._lend(position, at), end
            return self._file.read(position, at), end
        if position + room == self.size and end_offset >= next_offset:
            return (data if len(data) == room else memoryview(data)[:room]), next_offset

        indexes = self._indexes
        entry = min(
            bisect_left(indexes.positions, position + room),
            bisect_left(indexes.offsets, end_offset - self.base_offset),
        )
        if entry:
            entry_at = indexes.positions[entry - 1] - position
            if entry_at > at:  # all before it fits: look for the end from there
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
        """Bytes of the file, wherever batches begin and end."""
        return self._file.read(position, size)

    def _lend(self, position: int, size: int) -> StoredRecords:
        if self._lent is None:
            self._lent = WeakSet()
        records = StoredRecords(self, position, size)
        self._lent.add(records)
        return records

    def _find_range(
        self, position: int, room: int, min_one: bool, end_offset: int, next_offset: int
    ) -> tuple[bytes | StoredRecords, int]:
        """As `read`: looks at the first header, and at those near the end."""
        base_offset, at, last_offset = self._bounds_at(position)
        if last_offset >= end_offset:
            return b"", base_offset
        if at > room:
            return (self._lend(position, at), last_offset + 1) if min_one else (b"", base_offset)
        end = last_offset + 1
        if position + room == self.size and end_offset >= next_offset:
            return self._lend(position, room), next_offset
        indexes = self._indexes
        entry = min(
            bisect_left(indexes.positions, position + room),
            bisect_left(indexes.offsets, end_offset - self.base_offset),
        )
        if entry and indexes.positions[entry - 1] - position > at:
            at = indexes.positions[entry - 1] - position
            end = self._bounds_at(position + at)[0]
        while position + at < self.size:
            _, size, last_offset = self._bounds_at(position + at)
            if at + size > room or last_offset >= end_offset:
                break
            at += size
            end = last_offset + 1
        return self._lend(position, at), end

    def _bounds_at(self, position: int) -> tuple[int, int, int]:
        """Base offset, size and last offset of the batch at a position."""
        head = self._file.read(position, _BOUNDS.size)
        if len(head) < _BOUNDS.size:
            raise self._corrupt(position, "the file ends within a batch")
        base_offset, length, delta = _BOUNDS.unpack(head)
        if length < _MIN_LENGTH:
            raise self._corrupt(position, f"length {length}")
        return base_offset, _BEFORE_LENGTH_ENDS + length, base_offset + delta

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of every batch from `position` on.

        Raises:
            CorruptData: a header cannot be right, or the file ends within a batch.
        """
        while position < self.size:
            for header in self.batches(position, _HEADERS_CHUNK)[1]:
                yield position, header
                position += header.size

    def batches(self, position: int, max_bytes: int) -> tuple[bytes, list[BatchHeader]]:
        """The whole batches among the next `max_bytes` from `position` on, but at least one, and
        their headers.

        Raises:
            CorruptData: as `headers`.
        """
        wanted = max_bytes
        while True:
            chunk = self._file.read(position, wanted)
            found = read_headers(chunk, allow_partial=True)
            if found:
                return chunk, found
            if len(chunk) < wanted:
                raise self._corrupt(position, "the file ends within a batch")
            wanted = self._batch_size(chunk, position)

    def find_timestamp(self, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """The first record from `start_offset` on whose timestamp is `timestamp` or later."""
        indexes = self._indexes
        entry = bisect_left(indexes.timestamps, timestamp) - 1
        if entry >= 0:
            start_offset = max(start_offset, self.base_offset + indexes.timestamp_offsets[entry])
        position = self.locate(start_offset)
        if position is None:
            return None
        for at, header in self.headers(position):
            if header.max_timestamp >= timestamp:
                for found in self._records(at, header, start_offset):
                    if found.timestamp >= timestamp:
                        return found
        return None

    def last_header(self) -> BatchHeader | None:
        """The last batch's header, found from the last index entry on; None if there is none.

        Raises:
            CorruptData: as `headers`.
        """
        last = None
        if self.size:
            positions = self._indexes.positions
            for _, header in self.headers(positions[-1] if len(positions) else 0):
                last = header
        return last

    def recover(self, seen: Callable[[BatchHeader], None]) -> int:
        """Checks every batch, rebuilds the indexes, and cuts the file off at the first that is
        torn or corrupt. Calls `seen` with each whole batch.

        Returns:
            The offset after the last whole batch; the base offset if there is none.
        """
        indexes = GrowingIndexes(self.base_offset, self._index_interval_bytes)
        end_offset = self.base_offset
        position = 0
        wanted = _VERIFY_CHUNK
        is_torn = False
        try:
            while position < self.size:
                chunk = self._file.read(position, wanted)
                at = 0
                while len(chunk) - at > _BOUNDS.size:
                    size = self._batch_size(chunk, position, at)
                    if at + size > len(chunk):
                        break
                    header = verify(chunk, at)
                    if header.base_offset < end_offset:
                        raise self._corrupt(position, f"offset {header.base_offset} again")
                    indexes.note(header, position, header.last_offset)
                    end_offset = header.next_offset
                    at += size
                    position += size
                    seen(header)
                if not at and len(chunk) < wanted:
                    is_torn = True
                    raise self._corrupt(position, "the file ends within a batch")
                wanted = _VERIFY_CHUNK if at else size
        except CorruptData:  # what is whole ends here: this is what we came to find out
            self.was_damaged = not is_torn
        if position < self.size:
            self.truncate(position)
        self._growing = indexes
        self._forget_stored_indexes()
        return end_offset

    # -- inside

    def _batch_size(self, chunk: bytes, position: int, at: int = 0) -> int:
        """The size of the batch at `at` in the chunk, `position` in the file."""
        length: int = _BOUNDS.unpack_from(chunk, at)[1]
        if length < _MIN_LENGTH:
            raise self._corrupt(position, f"length {length}")
        return _BEFORE_LENGTH_ENDS + length

    def _records(
        self, position: int, header: BatchHeader, start_offset: int
    ) -> Iterator[TimestampOffset]:
        batch = self._file.read(position, header.size)
        for record in read_records("", 0, batch, start_offset):
            yield TimestampOffset(record.timestamp, record.offset, header.leader_epoch)

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
        """The indexes on disk, searched there; in memory if they are not all there."""
        _, index, time_index = self.paths
        if self._storage.exists(index):
            stored = StoredIndexes(self._storage.open(index), self._storage.open(time_index))
            if stored.fit(self.size):
                self._stored = stored
                return stored
        return self._grow()

    def _grow(self) -> GrowingIndexes:
        """The indexes in memory, from disk if they are there, otherwise from the batches."""
        indexes = GrowingIndexes(self.base_offset, self._index_interval_bytes)
        if self.size:
            index, time_index = (self._storage.read_file(path) for path in self.paths[1:])
            if (
                index is None
                or time_index is None
                or not indexes.decode(index, time_index, self.size)
            ):
                indexes = GrowingIndexes(self.base_offset, self._index_interval_bytes)
                for position, header in self.headers():
                    indexes.note(header, position, header.last_offset)
        self._growing = indexes
        return indexes
