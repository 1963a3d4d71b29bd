"""The segments of a log, and in which of them an offset or a time lies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from trimtab.records import NO_TIMESTAMP
from trimtab.storage.log_files import SWAP
from trimtab.storage.segment import BatchSize, Search, Segment
from trimtab.wire.batch_cy import BatchHeader


class SegmentList:
    """A log's segments, by rising base offset. One begins where the one before ends; where the
    last one ends, only the log knows.

    Attributes:
        active: the last one, which is being written. There is one as long as a log is open.
    """

    __slots__ = ("_base_offsets", "_doomed", "_segments", "active")

    active: Segment

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._base_offsets: list[int] = []
        self._doomed: Sequence[Segment] = ()  # no longer in the log, but on disk

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
        """Bytes of all of them."""
        return sum(segment.size for segment in self._segments)

    @property
    def sealed(self) -> list[Segment]:
        """All but the active one."""
        return self._segments[:-1]

    # -- looking up

    def index_of(self, offset: int) -> int:
        """The index of the segment that holds an offset; the first one if it lies before."""
        return max(0, bisect_right(self._base_offsets, offset) - 1)

    def since(self, offset: int) -> list[Segment]:
        """The segment that holds an offset, and all that follow it."""
        return self._segments[self.index_of(offset) :]

    def end_of_sealed(self, segment: Segment) -> int:
        """The offset after the last one of a segment that is not the active one."""
        return self._base_offsets[bisect_right(self._base_offsets, segment.base_offset)]

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Where the first batch lies that reaches `offset`; None if there is none, because
        compaction has left a gap before the log's end."""
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

    def sizes(self, offset: int, end_offset: int) -> list[BatchSize]:
        """Some batches from the one that holds `offset` on: as many as a small read shows."""
        place = self.locate(offset) if offset < end_offset else None
        return [] if place is None else place[0].sizes(place[1], end_offset)

    def headers(self, offset: int, end_offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches from the one that holds `offset` on, to the one before
        `end_offset`."""
        for segment in self.since(offset):
            if segment.base_offset >= end_offset:
                return
            position = segment.locate(offset)
            if position is not None:
                for _, header in segment.headers(position):
                    if header.base_offset >= end_offset:
                        return
                    yield header

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
        """The first record from `start_offset` on with the largest timestamp of all; None if none
        has one."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp)
        if newest.max_timestamp == NO_TIMESTAMP:
            return None
        return (yield from newest.find_timestamp(newest.max_timestamp, start_offset))

    # -- changing

    def add(self, segment: Segment) -> None:
        """Appends one, which becomes the active one."""
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        self.active = segment

    def drop_first(self) -> None:
        """Deletes the first one. It may be the only one."""
        self._drop(0)

    def drop_last(self) -> None:
        """Deletes the active one; the one before it, if any, becomes that."""
        self._drop(-1)

    def cut_off_last(self) -> None:
        """As `drop_last`, where other batches will be written in its place: a power loss may bring
        its name back, and then nothing may be in it."""
        self.active.truncate(0)
        self.drop_last()

    def _drop(self, index: int) -> None:
        self._segments.pop(index).delete()
        self._base_offsets.pop(index)
        if self._segments:
            self.active = self._segments[-1]

    def doom(self, count: int) -> None:
        """Takes the first ones, not all, out of the log. `delete_doomed` deletes them."""
        self._doomed = self._segments[:count]
        del self._segments[:count], self._base_offsets[:count]

    def delete_doomed(self) -> None:
        """Deletes what has been taken out, in order.

        Raises:
            StorageError: a file could not be deleted; the next call begins with it.
        """
        while self._doomed:
            self._doomed[0].delete()
            self._doomed = self._doomed[1:]

    def holds(self, group: Sequence[Segment]) -> bool:
        """Whether these are all there still, sealed and in a row."""
        first = bisect_right(self._base_offsets, group[0].base_offset) - 1
        return (
            first >= 0
            and self._segments[first : first + len(group)] == group
            and group[-1] is not self.active
        )

    def replace(self, group: Sequence[Segment], cleaned: Segment) -> None:
        """Puts a cleaned segment, which is on disk, in the place of those it was made of.

        A crash finds either the old ones or, complete, the new one: `log_files` finishes what the
        suffix ".swap" says has begun.

        Raises:
            StorageError: some of it is done.
        """
        first = self._segments.index(group[0])
        cleaned.rename(SWAP)
        for segment in group:
            segment.delete()
        cleaned.rename("")
        cleaned.seal()
        self._segments[first : first + len(group)] = [cleaned]
        self._base_offsets[first : first + len(group)] = [cleaned.base_offset]
