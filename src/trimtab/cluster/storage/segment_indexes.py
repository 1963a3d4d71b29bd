"""A segment's two sparse indexes, in memory while they grow and on disk afterwards.

Both forms have the same columns. Offset index: the relative offsets (to the segment's base offset)
of the last records of some batches, and those batches' positions. Time index: rising maximum
timestamps, and the relative offsets of their batches. Formats: Kafka's `OffsetIndex` and
`TimeIndex`, big-endian.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import TypeAlias

from trimtab.cluster.storage.storage import File
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import NO_TIMESTAMP
from trimtab.kafka.wire.batch_cy import BatchHeader

_INT32 = Struct(">i")
_INT64 = Struct(">q")
_TIME_ENTRY = Struct(">qi")
INDEX_ENTRY_BYTES = 8
"""Bytes of an entry of the offset index."""
_TIME_ENTRY_BYTES = _TIME_ENTRY.size


class GrowingIndexes:
    """The in-memory indexes of the active segment.

    Attributes:
        max_timestamp: the largest timestamp so far, -1 if none.
    """

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "_interval_bytes",
        "_max_timestamp_offset",
        "max_timestamp",
        "offsets",
        "positions",
        "timestamp_offsets",
        "timestamps",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.offsets = array("i")
        self.positions = array("i")
        self.timestamps = array("q")
        self.timestamp_offsets = array("i")
        self.max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = 0
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0

    def note(self, header: BatchHeader, position: int, last_offset: int) -> None:
        """Adds the next batch: an entry if `index.interval.bytes` have passed since the last."""
        # The timestamp of a batch that compaction has emptied belongs to no record.
        if header.max_timestamp > self.max_timestamp and header.record_count:
            self.max_timestamp = header.max_timestamp
            self._max_timestamp_offset = last_offset - self._base_offset
        if self._bytes_since_entry > self._interval_bytes:
            self.offsets.append(last_offset - self._base_offset)
            self.positions.append(position)
            self._note_timestamp()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.size

    def encode(self) -> tuple[bytes, bytes]:
        """The content of the offset index file and of the time index file."""
        self._note_timestamp()
        index = array("i", bytes(INDEX_ENTRY_BYTES * len(self.offsets)))
        index[0::2] = self.offsets
        index[1::2] = self.positions
        if sys.byteorder == "little":
            index.byteswap()
        times = map(_TIME_ENTRY.pack, self.timestamps, self.timestamp_offsets)
        return index.tobytes(), b"".join(times)

    def decode(self, index: bytes, time_index: bytes, log_size: int) -> bool:
        """Loads the two files' content; False if it does not fit a log of that size."""
        if len(index) % INDEX_ENTRY_BYTES or len(time_index) % _TIME_ENTRY_BYTES:
            return False
        entries = array("i", index)
        if sys.byteorder == "little":
            entries.byteswap()
        times = list(_TIME_ENTRY.iter_unpack(time_index))
        self.offsets = entries[0::2]
        self.positions = entries[1::2]
        self.timestamps = array("q", (timestamp for timestamp, _ in times))
        self.timestamp_offsets = array("i", (offset for _, offset in times))
        if not _fit(self.offsets, self.positions, self.timestamps, log_size):
            return False
        if times:
            self.max_timestamp, self._max_timestamp_offset = times[-1]
        self._bytes_since_entry = log_size - (self.positions[-1] if self.positions else 0)
        return True

    def _note_timestamp(self) -> None:
        last = self.timestamps[-1] if self.timestamps else NO_TIMESTAMP
        if self.max_timestamp > last:
            self.timestamps.append(self.max_timestamp)
            self.timestamp_offsets.append(self._max_timestamp_offset)


class StoredIndexes:
    """The indexes on disk: each look-up reads a few entries, and keeps nothing in memory."""

    __slots__ = (
        "_files",
        "_max_timestamp",
        "offsets",
        "positions",
        "timestamp_offsets",
        "timestamps",
    )

    def __init__(self, index: File, time_index: File) -> None:
        self._files = (index, time_index)
        self._max_timestamp: int | None = None
        self.offsets = _StoredColumn(index, INDEX_ENTRY_BYTES, 0, _INT32)
        self.positions = _StoredColumn(index, INDEX_ENTRY_BYTES, 4, _INT32)
        self.timestamps = _StoredColumn(time_index, _TIME_ENTRY_BYTES, 0, _INT64)
        self.timestamp_offsets = _StoredColumn(time_index, _TIME_ENTRY_BYTES, 8, _INT32)

    @property
    def max_timestamp(self) -> int:
        if self._max_timestamp is None:
            self._max_timestamp = self.timestamps[-1] if len(self.timestamps) else NO_TIMESTAMP
        return self._max_timestamp

    def fit(self, log_size: int) -> bool:
        """Whether they fit a log of that size. Missing or incomplete indexes do not."""
        index, time_index = self._files
        if index.size % INDEX_ENTRY_BYTES or time_index.size % _TIME_ENTRY_BYTES:
            return False
        return _fit(self.offsets, self.positions, self.timestamps, log_size)

    def close(self) -> None:
        for file in self._files:
            file.close()


class _StoredColumn:
    """One column of an index file, so that `bisect` can search it in place."""

    __slots__ = ("_at", "_file", "_form", "_length", "_stride")

    def __init__(self, file: File, stride: int, at: int, form: Struct) -> None:
        self._file = file
        self._stride = stride
        self._at = at
        self._form = form
        self._length = file.size // stride

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        if not -self._length <= index < self._length:
            raise IndexError(index)
        position = index % self._length * self._stride + self._at
        data = self._file.read(position, self._form.size)
        if len(data) < self._form.size:
            raise CorruptData(
                f"an index file ends before its entry {index}: it was truncated from outside"
            )
        value: int = self._form.unpack(data)[0]
        return value


_Column: TypeAlias = "array[int] | _StoredColumn"


def _fit(offsets: _Column, positions: _Column, timestamps: _Column, log_size: int) -> bool:
    """Whether first and last entries rise and are within the log, and there is a timestamp entry.
    Zeros from a lost write fail this test. An index without timestamps is rebuilt."""
    if not len(timestamps) or (len(offsets) and not 0 < positions[-1] < log_size):
        return False
    return all(len(keys) < 2 or keys[0] < keys[-1] for keys in (offsets, positions, timestamps))
