"""A file of record batches with two sparse indexes, in which offsets and timestamps are found.

The active segment's indexes are in memory and are written when it is sealed or closed. A sealed
segment's indexes stay on disk; a binary search reads only the entries that it compares. An index
says at which batch a search begins. If the batches contradict it, it is built again from them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator
from typing import NamedTuple, TypeAlias

from trimtab.cluster.storage.batch_file import (
    BEFORE_LENGTH_ENDS,
    BOUNDS,
    HEADERS_CHUNK,
    MAGIC_AT,
    MIN_LENGTH,
    NO_END,
    BatchFile,
)
from trimtab.cluster.storage.segment_indexes import GrowingIndexes, StoredIndexes
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import NO_TIMESTAMP, TimestampType
from trimtab.kafka.wire.batch_cy import BatchHeader, scan_records
from trimtab.kafka.wire.batch_header import check_crc
from trimtab.kafka.wire.compression import TooLarge

_LOCATE_CHUNK = 8 * 1024
_NOT_THE_LAST = "its last entries are not those of the last batches"

_log = logging.getLogger(__name__)


class TimestampOffset(NamedTuple):
    """A record's timestamp (ms since the epoch), its offset, and its batch's leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


Search: TypeAlias = Generator[None, None, TimestampOffset | None]
"""A search for a record. It yields where other tasks may run, and returns the record or None."""


class IndexedFile(BatchFile):
    """The batches of one segment, by offset and by timestamp. Its subclass appends to them."""

    __slots__ = ("_growing", "_index_interval_bytes", "_next_offset", "_stored", "_tail")

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        index_interval_bytes: int,
        suffix: str,
        size: int | None,
    ) -> None:
        super().__init__(storage, directory, base_offset, suffix, size)
        self._index_interval_bytes = index_interval_bytes
        self._growing: GrowingIndexes | None = None
        self._stored: StoredIndexes | None = None
        self._tail: tuple[int, BatchHeader] | None = None  # a segment size, and its last batch
        self._next_offset: int | None = None

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of its batches, -1 if none has one."""
        return self._indexes.max_timestamp

    @property
    def index_entries(self) -> int:
        """Entries of the offset index."""
        return len(self._indexes.offsets)

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; the base offset if there is none."""
        if self._next_offset is None:
            last = self.last_header()
            self._next_offset = self.base_offset if last is None else last.next_offset
        return self._next_offset

    def last_header(self) -> BatchHeader | None:
        """The last batch's header, found by reading from the last index entry; None if there is
        none. Its CRC is not checked: a log that was closed cleanly keeps all of its records.

        Raises:
            CorruptData: as `headers`.
        """
        if not self.size:
            return None
        positions = self._indexes.positions
        if self._tail is None or self._tail[0] != self.size:
            begin = positions[-1] if len(positions) else 0
            for _, header in self.headers(begin, checks_crcs=False):
                self._tail = self.size, header
        assert self._tail is not None
        return self._tail[1]

    # -- searches

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
                if position < 0 or not self.begins_batch(chunk, 0, self.base_offset, offset):
                    self._rebuild_indexes(f"there is no batch at position {position}")
                    return self.locate(offset)
                is_proven = True
            at = 0
            while at + BOUNDS.size <= len(chunk):
                base_offset, length, delta = BOUNDS.unpack_from(chunk, at)
                if base_offset + delta >= offset:
                    return position + at
                if not MIN_LENGTH <= length <= self.size - position - at - BEFORE_LENGTH_ENDS:
                    raise self.corrupt(position + at, f"length {length}")
                at += BEFORE_LENGTH_ENDS + length
            if not at:
                raise self.corrupt(position, "the file ends within a batch")
            position += at
        return None

    def headers_since(self, offset: int, end: int = NO_END) -> Iterator[tuple[int, BatchHeader]]:
        """As `headers`, of the batches that end after `offset`. Those before it are checked, too,
        from an index entry on: a wrong offset must not hide a batch."""
        for position, header in self.headers(self._indexed_before(offset), end):
            if header.next_offset > offset:
                yield position, header

    def _indexed_before(self, offset: int) -> int:
        """The position of the last indexed batch whose last offset is `offset` or before; 0 if
        there is none."""
        indexes = self._indexes
        entry = bisect_right(indexes.offsets, offset - self.base_offset) - 1
        if entry < 0:
            return 0
        position = indexes.positions[entry]
        if position >= 0:
            head = self._file.read(position, MAGIC_AT + BOUNDS.size)
            if self.begins_batch(head, 0, self.base_offset, offset):
                return position
        self._rebuild_indexes(f"there is no batch at position {position}")
        return self._indexed_before(offset)

    def _last_indexed(self, before_position: int, end_offset: int) -> int:
        """The position of the last indexed batch that begins before a position and ends before an
        offset."""
        indexes = self._indexes
        entry = min(
            bisect_left(indexes.positions, before_position),
            bisect_left(indexes.offsets, end_offset - self.base_offset),
        )
        return indexes.positions[entry - 1] if entry else 0

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

    def _has_timestamp(self, offset: int, timestamp: int) -> bool:
        """Whether `timestamp` is the largest timestamp of the batch at an offset."""
        position = self.locate(offset)
        if position is None:
            return False
        header = next(self.headers(position, checks_crcs=False))[1]
        return header.base_offset <= offset and header.max_timestamp == timestamp

    # -- the indexes

    @property
    def _indexes(self) -> GrowingIndexes | StoredIndexes:
        return self._growing or self._stored or self._open_indexes()

    def _open_indexes(self) -> GrowingIndexes | StoredIndexes:
        """The indexes on disk, if they exist and fit; otherwise in memory, as by `_grow`."""
        _, index, time_index, *_ = self.paths
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
            for at, header in self.headers(position, checks_crcs=False):
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
            CorruptData: a batch's header is damaged, or the file ends within a batch.
        """
        _log.warning("rebuilt the indexes of %s: %s", self.path(".log"), why)
        self._growing = None
        self._forget_stored_indexes()
        return self._index_batches()

    def _index_batches(self) -> GrowingIndexes:
        indexes = GrowingIndexes(self.base_offset, self._index_interval_bytes)
        position, begin = 0, self.base_offset
        while position < self.size:
            chunk, headers = self.batches(position, HEADERS_CHUNK, begin, checks_crcs=False)
            at = 0
            for header in headers:
                noted = header
                try:
                    check_crc(memoryview(chunk), at, header)
                except CorruptData as error:
                    # Nobody can read it, and its timestamp may be wrong. Others can be read.
                    noted = header._replace(record_count=0)
                    _log.warning(
                        "left out of the time index: %s", self.corrupt(position, str(error))
                    )
                indexes.note(noted, position, header.last_offset)
                at += header.size
                position += header.size
                begin = header.next_offset
        self._growing = indexes
        return indexes

    def _forget_stored_indexes(self) -> None:
        if self._stored is not None:
            self._stored.close()
            self._stored = None
