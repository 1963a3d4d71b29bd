"""The segments of a log, and look-ups by offset and by timestamp."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from trimtab.cluster.storage.indexed_file import Search
from trimtab.cluster.storage.log_files import SWAP
from trimtab.cluster.storage.segment import Segment
from trimtab.kafka.records import NO_TIMESTAMP
from trimtab.kafka.wire.batch_cy import BatchHeader


class SegmentList:
    """A log's segments, by rising base offset. Each ends where the next begins; the log knows where
    the last one ends.

    Attributes:
        active: the last segment, to which batches are appended. An open log always has one.
    """

    __slots__ = ("_base_offsets", "_removed", "_segments", "active")

    active: Segment

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._base_offsets: list[int] = []
        self._removed: Sequence[Segment] = ()  # removed from the log, but still on disk

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, index: int) -> Segment:
        return self._segments[index]

    @property
    def first_base_offset(self) -> int:
        return self._base_offsets[0]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def sealed(self) -> list[Segment]:
        """All but the active one."""
        return self._segments[:-1]

    # -- looking up

    def index_of(self, offset: int) -> int:
        """The index of the segment that holds an offset; 0 if the offset is before all segments."""
        return max(0, bisect_right(self._base_offsets, offset) - 1)

    def since(self, offset: int) -> list[Segment]:
        """The segment that holds an offset, and all that follow it."""
        return self._segments[self.index_of(offset) :]

    def end_of_sealed(self, segment: Segment) -> int:
        """The end offset of a sealed segment: the next one's base offset."""
        return self._base_offsets[bisect_right(self._base_offsets, segment.base_offset)]

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Segment and position of the first batch that ends after `offset`; None if there is none,
        as after compaction with a gap before the log's end."""
        for segment in self.since(offset):
            position = segment.locate(offset)
            if position is not None:
                return segment, position
        return None

    def bytes_between(self, offset: int, end_offset: int | None) -> int:
        """Bytes of the batches from the one that holds `offset` to the one before `end_offset`;
        to the last one if that is None."""
        first = self.index_of(offset)
        last = len(self._segments) - 1 if end_offset is None else self.index_of(end_offset)
        total = sum(segment.size for segment in self._segments[first : last + 1])
        start = self._segments[first].locate(offset)
        end = None if end_offset is None else self._segments[last].locate(end_offset)
        if start is None:
            start = self._segments[first].size
        return total - start - (0 if end is None else self._segments[last].size - end)

    def headers(self, offset: int, end_offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches from the one that holds `offset` on, to the one before
        `end_offset`.

        Raises:
            CorruptData: a batch is damaged.
        """
        return (header for _, _, header in self.places(offset, end_offset))

    def places(self, offset: int, end_offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Segment, position and header of each of these batches."""
        for segment in self.since(offset):
            if segment.base_offset >= end_offset:
                return
            bound = () if segment is self.active else (self.end_of_sealed(segment),)
            for at, header in segment.headers_since(offset, *bound):
                if header.base_offset >= end_offset:
                    return
                yield segment, at, header

    def batches(
        self, offset: int, end_of: Callable[[Segment], int], max_bytes: int
    ) -> Iterator[tuple[BatchHeader, bytes]]:
        """Every batch from an offset on, and its header, in the order of the files: a wrong offset,
        which no CRC covers, hides none. Between two batches the log may be appended to and
        compacted.

        Args:
            end_of: returns the offset after a segment's last one.
            max_bytes: bytes to read at once, if a batch has not more.

        Raises:
            CorruptData: a batch is damaged, or its offsets do not fit between its neighbours'.
        """
        while True:
            segment = self.since(offset)[0]
            generation, position, begin = segment.generation, 0, segment.base_offset
            while position < segment.size and segment.generation == generation:
                data, headers = segment.batches(position, max_bytes, begin, end_of(segment))
                at = 0
                for header in headers:
                    if header.next_offset > offset:
                        offset = header.next_offset
                        yield header, data[at : at + header.size]
                    at += header.size
                position += at
                begin = headers[-1].next_offset
            if segment.generation == generation:
                if segment is self.active:
                    return
                offset = max(offset, end_of(segment))

    def find_timestamp(self, timestamp: int, start_offset: int, end_offset: int) -> Search:
        """The first record from `start_offset` on whose timestamp is `timestamp` or later; None if
        there is none before `end_offset`."""
        for segment in tuple(self._segments):
            if segment.base_offset >= end_offset:
                break
            if segment.max_timestamp >= timestamp:
                found = yield from segment.find_timestamp(timestamp, start_offset)
                if found is not None:
                    return found if found.offset < end_offset else None
        return None

    def find_max_timestamp(self, start_offset: int) -> Search:
        """The first record from `start_offset` on with the largest timestamp; None if no record has
        a timestamp."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp)
        if newest.max_timestamp == NO_TIMESTAMP:
            return None
        return (yield from newest.find_timestamp(newest.max_timestamp, start_offset))

    # -- changing

    def activate(self, segment: Segment) -> None:
        """Appends a segment, which becomes the active one."""
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        self.active = segment

    def drop_last(self) -> None:
        """Deletes the active segment; the one before it, if any, becomes active."""
        self._segments.pop().delete()
        self._base_offsets.pop()
        if self._segments:
            self.active = self._segments[-1]

    def cut_off_last(self) -> None:
        """As `drop_last`, but truncates the file first: other batches will be written at its
        offsets, and a loss of power may bring the deleted file back."""
        self.active.truncate(0)
        self.drop_last()

    def remove_first(self, count: int) -> None:
        """Removes the first `count` segments (not all) from the log; `delete_removed` deletes their
        files."""
        self._removed = self._segments[:count]
        del self._segments[:count], self._base_offsets[:count]

    def delete_removed(self) -> None:
        """Deletes the files of removed segments, in order.

        Raises:
            StorageError: a file could not be deleted; the next call begins with it.
        """
        while self._removed:
            self._removed[0].delete()
            self._removed = self._removed[1:]

    def holds(self, group: Sequence[Segment]) -> bool:
        """Whether these segments are all in the log still, adjacent and sealed."""
        first = bisect_right(self._base_offsets, group[0].base_offset) - 1
        return (
            first >= 0
            and self._segments[first : first + len(group)] == group
            and group[-1] is not self.active
        )

    def replace(self, group: Sequence[Segment], cleaned: Segment) -> None:
        """Replaces segments by the cleaned one made of them, which has been fsynced.

        After a crash either the old segments or the complete new one are found: if there is a
        file with the suffix ".swap", `log_files` completes the replacement.

        Raises:
            StorageError: the replacement is incomplete; it is completed when the log is opened.
        """
        first = self._segments.index(group[0])
        cleaned.rename(SWAP)
        for segment in group:
            segment.delete()
        cleaned.rename("")
        cleaned.seal()
        self._segments[first : first + len(group)] = [cleaned]
        self._base_offsets[first : first + len(group)] = [cleaned.base_offset]
