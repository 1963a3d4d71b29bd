"""The partitions that may get a turn, and random draws from them, weighted by queue lengths.

a round's slots, shuffled ─▶ a point, 0 to 1 ─────┐
queue lengths ─▶ weights, laid end to end ─▶ the partition that the point falls on
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from random import Random

from trimtab.client.partitioner.protocol import TopicLoad
from trimtab.client.topic_view import TopicView


def reachable(
    view: TopicView, unavailable: Collection[int], rack: str | None
) -> tuple[Sequence[int], bool]:
    """The partitions to choose from: those led in `rack` whose leader is available; else all whose
    leader is available; else all led in `rack`; else all with a leader; else all.

    Returns: the partitions, and whether they are those of the rack.

    Source: KIP-794, KIP-1123.
    """
    if not view.available:
        return range(view.partition_count), False
    in_rack = [p for p in view.available if rack is not None and view.racks[p] == rack]
    found = [p for p in in_rack if view.leaders[p] not in unavailable]
    if found:
        return found, True
    found = [p for p in view.available if view.leaders[p] not in unavailable]
    if found:
        return found, False
    return in_rack or view.available, bool(in_rack)


def why_excluded(
    view: TopicView, partition: int, unavailable: Collection[int], rack: str | None
) -> str:
    """Why a partition is not reachable."""
    leader = view.leaders[partition]
    if leader < 0:
        return "it has no leader"
    if leader in unavailable:
        return f"broker {leader} accepts no batches (partitioner.availability.timeout.ms)"
    return f"broker {leader} is not in rack {rack} (partitioner.rack.aware)"


_OFFSET_BITS = 32
_GOLDEN = 0x9E3779B9
"""The part of `2 ** _OFFSET_BITS` that divides it by the golden ratio."""


class Pool:
    """Partitions to choose from.

    A round has as many draws as there are partitions. Its points lie at equal distances, and are
    drawn in random order. So each draw hits any point with the same probability, and in a round a
    partition is hit in proportion to its weight, rounded up or down: once, if weights are equal.
    The partitions are in random order, so that a pattern in the weights cannot coincide with the
    pattern of the points. The first round's points have a random offset; each further round moves
    it by the golden ratio, so that rounding evens out over rounds.

    Attributes:
        partitions: at least one, in random order.
        queues: the lengths of their queues, once `weigh_queues` was called.
    """

    __slots__ = (
        "_left",
        "_offset",
        "_order",
        "_places",
        "_random",
        "partitions",
        "queues",
    )

    def __init__(self, partition_count: int, partitions: Sequence[int], random: Random) -> None:
        self.partitions = tuple(random.sample(partitions, len(partitions)))
        self.queues: QueueLengths | None = None
        self._places = [-1] * partition_count
        for place, partition in enumerate(self.partitions):
            self._places[partition] = place
        self._order = list(range(len(self.partitions)))
        self._left = 0
        self._random = random
        self._offset = random.getrandbits(_OFFSET_BITS)

    def __len__(self) -> int:
        return len(self.partitions)

    def __contains__(self, partition: int) -> bool:
        return partition < len(self._places) and self._places[partition] >= 0

    def draw(self) -> int:
        """The next partition with equal weights. O(1), also when a round begins."""
        return self.partitions[self._next_slot()]

    def draw_by_queue(self, queues: QueueLengths) -> int:
        """The next partition with KIP-794's weights. O(log partitions)."""
        slot = self._next_slot()
        if queues.are_equal:
            return self.partitions[slot]
        # In integers, so that rounding cannot move a point to a neighbouring partition.
        along = (slot << _OFFSET_BITS) + self._offset
        point = along * queues.total_weight // (len(self.partitions) << _OFFSET_BITS)
        return self.partitions[queues.place_at(point)]

    def weigh_queues(self, load: TopicLoad) -> QueueLengths:
        """The lengths of the queues: read at the first call, and updated by `resize` after it."""
        if self.queues is None:
            self.queues = QueueLengths([load.queued_batches(p) for p in self.partitions])
        return self.queues

    def resize(self, partition: int, length: int) -> None:
        """Set the length of a partition's queue, if the partition is in the pool."""
        if self.queues is not None and partition in self:
            self.queues.change(self._places[partition], length)

    def _next_slot(self) -> int:
        order = self._order
        if self._left == 0:
            self._left = len(order)
            self._offset = (self._offset + _GOLDEN) % (1 << _OFFSET_BITS)
        drawn = int(self._random.random() * self._left)
        self._left -= 1
        slot = order[drawn]
        order[drawn] = order[self._left]
        order[self._left] = slot
        return slot


class QueueLengths:
    """The lengths of a pool's queues, by place in the pool, and KIP-794's weights from them.

    The weight of a place is `longest + 1 - its length`. A queue that becomes the longest changes
    all weights at once; so the sums kept here are of lengths, not weights. They are in a Fenwick
    tree: `_sums[i]` is the sum of the `i & -i` lengths before place `i`.

    Attributes:
        longest: the largest length.
        total_weight: the sum of all weights.
    """

    __slots__ = ("_counts", "_lengths", "_sum", "_sums", "longest")

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)
        self.longest = max(lengths)
        self._counts = [0] * (self.longest + 1)
        for length in lengths:
            self._counts[length] += 1
        before = [0, *accumulate(lengths)]
        self._sum = before[-1]
        self._sums = [before[i] - before[i & (i - 1)] for i in range(len(before))]

    @property
    def total_weight(self) -> int:
        return len(self._lengths) * (self.longest + 1) - self._sum

    @property
    def are_equal(self) -> bool:
        return self._sum == len(self._lengths) * self.longest

    def weights(self) -> list[int]:
        return [self.longest + 1 - length for length in self._lengths]

    def change(self, place: int, length: int) -> None:
        """Set a queue's length. O(log places), plus O(1) per batch that it grew or shrank by."""
        change = length - self._lengths[place]
        if change == 0:
            return
        counts = self._counts
        if length >= len(counts):
            counts.extend([0] * (length + 1 - len(counts)))
        counts[self._lengths[place]] -= 1
        counts[length] += 1
        self._lengths[place] = length
        longest = max(self.longest, length)
        while counts[longest] == 0:
            longest -= 1
        self.longest = longest
        self._sum += change
        sums = self._sums
        place += 1
        while place < len(sums):
            sums[place] += change
            place += place & -place

    def place_at(self, point: int) -> int:
        """The place at `point`, below `total_weight`, if the weights are laid end to end."""
        most, sums = self.longest + 1, self._sums
        place, step = 0, 1 << (len(self._lengths).bit_length() - 1)
        while step:
            end = place + step
            if end < len(sums):
                weight = step * most - sums[end]
                if weight <= point:
                    point -= weight
                    place = end
            step >>= 1
        return place
