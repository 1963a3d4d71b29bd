"""The sizes of unread batches that are known so far, and the partitions to look up next.

Pure values: no thread, no cluster. Adding one answer costs O(log n) for n partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.contract import FoundSizes, SizeRequest

_BATCHES_AHEAD: Final = 2
"""Sizes are looked up for this many batches: the one that is planned next, and the one after."""


class PartitionSizes:
    """The known sizes of one partition's unread batches.

    Attributes:
        start: the next offset that the stream reads.
        known_to: sizes are known up to this offset.
        end: the partition's end offset when it was last requested.
        pieces: the sizes, in order of offsets.
        size: bytes of all pieces.
    """

    __slots__ = ("_is_closed", "end", "known_to", "pieces", "size", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = self.known_to = start
        self.end = end
        self.pieces: list[Piece] = []
        self.size = 0
        self._is_closed = True

    def add_pieces(self, pieces: Iterable[Piece], grain: int) -> None:
        """Add the pieces that follow; merges neighbours of together at most `grain` bytes."""
        for piece in pieces:
            if piece.next_offset <= self.known_to:
                continue
            self.size += piece.size
            self.known_to = piece.next_offset
            if not self._is_closed and self.pieces[-1].size + piece.size <= grain:
                last = self.pieces[-1]
                self.pieces[-1] = Piece(
                    piece.next_offset,
                    last.size + piece.size,
                    last.time,
                    last.error + piece.error,
                )
            else:
                self.pieces.append(piece)
                self._is_closed = False

    def until(self, end: int) -> list[Piece]:
        """The pieces up to an offset; later additions do not change them.

        A piece that extends beyond the offset is cut there, but keeps its size.
        """
        self._is_closed = True
        found = []
        at = self.start
        for piece in self.pieces:
            if at >= end:
                break
            at = piece.next_offset
            found.append(piece if at <= end else piece._replace(next_offset=end))
        return found

    def advance(self, start: int) -> None:
        """Forget the pieces before `start`, which the stream has read."""
        passed = 0
        while passed < len(self.pieces) and self.pieces[passed].next_offset <= start:
            self.size -= self.pieces[passed].size
            passed += 1
        del self.pieces[:passed]
        self.start = start
        self.known_to = max(self.known_to, start)
        self._is_closed = self._is_closed or not self.pieces


class FairShare:
    """Each partition's fair share of a limit in bytes.

    Partitions with less than their share leave the rest to the others. If all together have less
    than the limit, the share is the limit. The share only falls as more sizes are known, so a
    partition that has reached its share stays above it.

    Args:
        limit: bytes.
        known: by partition, its known bytes, and whether more may become known.

    Attributes:
        unsatisfied: partitions with less than the share, of which more may become known.
    """

    def __init__(self, limit: int, known: Mapping[TopicPartition, tuple[int, bool]]) -> None:
        self._limit = limit
        self._below = {partition: size for partition, (size, _) in known.items()}
        self._below_size = sum(self._below.values())
        self._above = 0
        self._largest = [(-size, partition) for partition, size in self._below.items()]
        heapify(self._largest)
        self.unsatisfied = {partition for partition, (_, is_open) in known.items() if is_open}
        self._remove_satisfied()

    def grow(self, partition: TopicPartition, size: int, is_open: bool) -> list[TopicPartition]:
        """Set a partition's known bytes, which have grown.

        Returns:
            The partitions that are no longer unsatisfied.
        """
        if partition not in self._below:
            return []
        self._below_size += size - self._below[partition]
        self._below[partition] = size
        heappush(self._largest, (-size, partition))
        satisfied = self._remove_satisfied()
        if not is_open and partition in self.unsatisfied:
            self.unsatisfied.discard(partition)
            satisfied.append(partition)
        return satisfied

    def _remove_satisfied(self) -> list[TopicPartition]:
        """Remove the partitions that have reached the share from those below it."""
        satisfied = []
        while self._largest and -self._largest[0][0] >= self._share():
            size, partition = heappop(self._largest)
            if self._below.get(partition) != -size:
                continue  # it has grown since
            del self._below[partition]
            self._below_size += size
            self._above += 1
            if partition in self.unsatisfied:
                self.unsatisfied.discard(partition)
                satisfied.append(partition)
        return satisfied

    def _share(self) -> int:
        left = self._limit - self._below_size
        if self._above:
            return left // self._above
        return self._limit if left > 0 else 0


class KnownSizes:
    """The known sizes of all partitions.

    Args:
        limit: bytes of a micro-batch. Sizes are looked up for about twice as many bytes.
        grain: neighbouring record batches of together at most this many bytes are one piece.

    Attributes:
        partitions: each partition's sizes.
        wanted: the sizes to look up next, by partition.
        changed: partitions whose entry in `wanted` has changed; the caller empties it.
    """

    def __init__(self, limit: int, grain: int) -> None:
        self._room = limit * _BATCHES_AHEAD
        self._grain = grain
        self._tails = False
        self._supply = FairShare(self._room, {})
        self._watched: FairShare | None = None
        self._must_know: dict[TopicPartition, int] = {}
        self.partitions: dict[TopicPartition, PartitionSizes] = {}
        self.wanted: dict[TopicPartition, SizeRequest] = {}
        self.changed: set[TopicPartition] = set()

    def follow(
        self, start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Set the stream's position to `start`, and the partitions' end offsets to `ends`."""
        before, self.partitions = self.partitions, {}
        for partition, end in ends.items():
            ahead = before.pop(partition, None)
            at = start[partition]
            if ahead is None or not ahead.start <= at <= ahead.known_to:
                ahead = PartitionSizes(at, end)
            else:
                ahead.advance(at)
                ahead.end = end
            self.partitions[partition] = ahead
        for partition in before:
            self._must_know.pop(partition, None)
            self._want(partition)
        self._watched = None
        self._measure()

    def tail(self, tails: bool) -> None:
        """Set whether sizes may be found beyond the end offsets of `follow`."""
        if tails is not self._tails:
            self._tails = tails
            self._measure()

    def learn(self, found: Iterable[FoundSizes]) -> None:
        """Add the sizes that were looked up."""
        for partition, start, pieces in found:
            ahead = self.partitions.get(partition)
            if ahead is None or start != ahead.known_to:
                continue  # the stream has moved meanwhile
            ahead.add_pieces(pieces, self._grain)
            if ahead.known_to >= self._must_know.get(partition, ahead.known_to + 1):
                del self._must_know[partition]
            is_short = ahead.known_to < ahead.end
            for each in self._supply.grow(partition, ahead.size, is_short or self._tails):
                self._want(each)
            if self._watched is not None:
                self._watched.grow(partition, ahead.size, is_short)
            self._want(partition)

    def must_know(self, ends: Mapping[TopicPartition, int]) -> None:
        """Look up everything up to these offsets, however many bytes that is."""
        before = self._must_know
        self._must_know = {p: e for p, e in ends.items() if self.partitions[p].known_to < e}
        for partition in before.keys() | self._must_know.keys():
            self._want(partition)

    @property
    def is_all_known(self) -> bool:
        """Whether everything that `must_know` asked for is known."""
        return not self._must_know

    def watch(self, limit: int) -> None:
        """Set the limit that `is_fair` uses, until the next `follow`."""
        self._watched = FairShare(limit, self._sizes(tails=False))

    @property
    def is_fair(self) -> bool:
        """Whether enough is known to divide the limit of `watch` fairly among all partitions."""
        return self._watched is None or not self._watched.unsatisfied

    def _measure(self) -> None:
        self._supply = FairShare(self._room, self._sizes(self._tails))
        for partition in self.partitions:
            self._want(partition)

    def _sizes(self, tails: bool) -> dict[TopicPartition, tuple[int, bool]]:
        return {
            partition: (ahead.size, tails or ahead.known_to < ahead.end)
            for partition, ahead in self.partitions.items()
        }

    def _want(self, partition: TopicPartition) -> None:
        ahead = self.partitions.get(partition)
        wanted = None
        if ahead is None:
            pass
        elif partition in self._must_know:
            wanted = SizeRequest(ahead.known_to, self._must_know[partition], self._room)
        elif partition in self._supply.unsatisfied:
            wanted = SizeRequest(ahead.known_to, ahead.end, self._room - ahead.size)
        if wanted == self.wanted.get(partition):
            return
        self.changed.add(partition)
        if wanted is None:
            del self.wanted[partition]
        else:
            self.wanted[partition] = wanted
