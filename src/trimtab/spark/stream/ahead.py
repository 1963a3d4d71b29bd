"""What is known to lie before a stream, and of which partitions more has to be known.

Values in, values out: no thread, no cluster. What one answer costs does not grow with the number of
partitions, but for a logarithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from trimtab.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.size_sources.contract import Found, Wanted

_BATCHES_AHEAD: Final = 2
"""Sizes are looked up this many batches ahead: the one to be planned, and the next."""


class Ahead:
    """What is known to lie before one partition.

    Attributes:
        start: where the stream stands.
        known_to: where what is known ends.
        end: where the partition ended when that was last asked.
        size: bytes of all pieces.
        rest: bytes from there to `end`; None where nobody knows.
    """

    __slots__ = ("_is_closed", "end", "known_to", "pieces", "rest", "size", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = self.known_to = start
        self.end = end
        self.pieces: list[Piece] = []
        self.size = 0
        self.rest: int | None = None
        self._is_closed = True

    def add(self, pieces: Iterable[Piece], grain: int) -> None:
        """What follows; joined to what is known up to `grain` bytes."""
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
        """The pieces up to an offset. They stay as they are from now on.

        One that goes on beyond it counts with all its bytes.
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
        """The stream stands there now."""
        passed = 0
        while passed < len(self.pieces) and self.pieces[passed].next_offset <= start:
            self.size -= self.pieces[passed].size
            passed += 1
        del self.pieces[:passed]
        self.start = start
        self.known_to = max(self.known_to, start)
        self._is_closed = self._is_closed or not self.pieces


class Level:
    """The even share of a limit: what each partition may take so that all take the limit together,
    where those that have less than it leave the rest to the others; the limit if there is room.

    The more is known, the lower the level, so a partition that has reached it stays above it.

    Args:
        limit: bytes.
        known: by partition, bytes, and whether more may be known.

    Attributes:
        hungry: partitions below the level, of which more may be known.
    """

    def __init__(self, limit: int, known: Mapping[TopicPartition, tuple[int, bool]]) -> None:
        self._limit = limit
        self._below = {partition: size for partition, (size, _) in known.items()}
        self._below_size = sum(self._below.values())
        self._above = 0
        self._largest = [(-size, partition) for partition, size in self._below.items()]
        heapify(self._largest)
        self.hungry = {partition for partition, (_, is_open) in known.items() if is_open}
        self._lift()

    def grow(self, partition: TopicPartition, size: int, is_open: bool) -> list[TopicPartition]:
        """More is known of a partition.

        Returns:
            The partitions that are no longer hungry.
        """
        if partition not in self._below:
            return []
        self._below_size += size - self._below[partition]
        self._below[partition] = size
        heappush(self._largest, (-size, partition))
        sated = self._lift()
        if not is_open and partition in self.hungry:
            self.hungry.discard(partition)
            sated.append(partition)
        return sated

    def _lift(self) -> list[TopicPartition]:
        """Who has reached the level leaves those below it."""
        sated = []
        while self._largest and -self._largest[0][0] >= self._height():
            size, partition = heappop(self._largest)
            if self._below.get(partition) != -size:
                continue  # it has grown since
            del self._below[partition]
            self._below_size += size
            self._above += 1
            if partition in self.hungry:
                self.hungry.discard(partition)
                sated.append(partition)
        return sated

    def _height(self) -> int:
        left = self._limit - self._below_size
        if self._above:
            return left // self._above
        return self._limit if left > 0 else 0


class Horizon:
    """What is known ahead of all partitions.

    Args:
        limit: the bytes of a batch. Sizes are looked up for about twice as many.
        grain: neighbouring record batches are remembered as one up to this many bytes.

    Attributes:
        partitions: what is known of each.
        wanted: what to look for next.
        changed: of which partitions something else is wanted than when this was last emptied.
    """

    def __init__(self, limit: int, grain: int) -> None:
        self._room = limit * _BATCHES_AHEAD
        self._grain = grain
        self._tails = False
        self._supply = Level(self._room, {})
        self._watched: Level | None = None
        self._must_know: dict[TopicPartition, int] = {}
        self.partitions: dict[TopicPartition, Ahead] = {}
        self.wanted: dict[TopicPartition, Wanted] = {}
        self.changed: set[TopicPartition] = set()

    def follow(
        self, start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """The stream stands at `start`, and partitions end at `ends`."""
        before, self.partitions = self.partitions, {}
        for partition, end in ends.items():
            ahead = before.pop(partition, None)
            at = start[partition]
            if ahead is None or not ahead.start <= at <= ahead.known_to:
                ahead = Ahead(at, end)
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
        """Whether more may be found of what is known up to its end."""
        if tails is not self._tails:
            self._tails = tails
            self._measure()

    def learn(self, found: Iterable[Found]) -> None:
        """An answer has come."""
        for partition, start, pieces, rest in found:
            ahead = self.partitions.get(partition)
            if ahead is None or start != ahead.known_to:
                continue  # it was moved meanwhile
            ahead.add(pieces, self._grain)
            ahead.rest = rest
            if ahead.known_to >= self._must_know.get(partition, ahead.known_to + 1):
                del self._must_know[partition]
            is_short = ahead.known_to < ahead.end
            for each in self._supply.grow(partition, ahead.size, is_short or self._tails):
                self._want(each)
            if self._watched is not None:
                self._watched.grow(partition, ahead.size, is_short)
            self._want(partition)

    def must_know(self, ends: Mapping[TopicPartition, int]) -> None:
        """Everything up to these offsets is to be known, however much it is."""
        before = self._must_know
        self._must_know = {p: e for p, e in ends.items() if self.partitions[p].known_to < e}
        for partition in before.keys() | self._must_know.keys():
            self._want(partition)

    @property
    def is_all_known(self) -> bool:
        """Whether what must be known is."""
        return not self._must_know

    def watch(self, limit: int) -> None:
        """`is_fair` is about this limit, until the stream goes on."""
        self._watched = Level(limit, self._sizes(tails=False))

    @property
    def is_fair(self) -> bool:
        """Whether enough is known to share out the limit that is watched among all partitions."""
        return self._watched is None or not self._watched.hungry

    def _measure(self) -> None:
        self._supply = Level(self._room, self._sizes(self._tails))
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
            wanted = Wanted(ahead.known_to, self._must_know[partition], self._room)
        elif partition in self._supply.hungry:
            wanted = Wanted(ahead.known_to, ahead.end, self._room - ahead.size)
        if wanted == self.wanted.get(partition):
            return
        self.changed.add(partition)
        if wanted is None:
            del self.wanted[partition]
        else:
            self.wanted[partition] = wanted
