"""Chooses the same partitions as Apache Kafka's own producer, defects included.

    each pass of the sender:  queues, leaders, racks ─▶ observe ─▶ load table
    when a turn ends:                           one random draw ─▶ next_turn ─▶ partition

`partitioner.compat=java`: for users who come from Java and want no change, and for
`tests/conformance/test_partitioning_differential.py`, which compares it with kafka-clients 4.4.0.
It has these defects, which the built-in partitioner has not:

- D1: there is no load table until every partition of the topic was used. A rack-aware producer
  never uses partitions of other racks, so neither load nor the availability timeout has an effect.
- D2: an excluded partition's queue length is counted for the next partition, if that one's queue is
  empty.
- D3: a partition without batches is never excluded, whatever its broker does.
- D4: idle time of a broker counts as time in which it accepted no batches.
- D5: the partition of a turn is not checked again before the turn ends.
- D6: it takes about `N * ln N` turns until the table of D1 exists, for N partitions.
- D8: all turns between two passes are drawn from one table. D9: they are not evened out.
- D10: `2 * batch.size` overflows from 1 GiB on, and Java's `send` draws partitions for ever. Such a
  size is refused.

Source: `org.apache.kafka.clients.producer.internals.BuiltInPartitioner` and `RecordAccumulator`,
Apache Kafka 4.4.0; KIP-794, KIP-1123.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from trimtab.client.partitioner.protocol import TopicLoad, Weight
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

BATCH_SIZE_LIMIT = 2**30
_BLANK = "".join(map(chr, range(ord(" ") + 1)))
"""The characters that Java's `String.trim` removes."""


@dataclass(frozen=True, slots=True)
class JavaOptions:
    """The options of Java's built-in logic.

    Attributes:
        batch_size: `batch.size` in bytes; 0 counts as 1. Below 2**30.
        is_adaptive: `partitioner.adaptive.partitioning.enable`.
        rack: `client.rack` if `partitioner.rack.aware`, else None.

    Raises:
        UsageError: a batch size with which Java's producer never returns from send, or a blank
            rack, which Java's producer refuses.
    """

    batch_size: int
    is_adaptive: bool = True
    rack: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.batch_size < BATCH_SIZE_LIMIT:
            raise UsageError(
                f"batch.size is {self.batch_size}: from {BATCH_SIZE_LIMIT} on Apache Kafka's own"
                " producer never returns from send (2 * batch.size overflows its 32 bits); use a"
                " smaller one, or partitioner.compat=kip"
            )
        if self.rack is not None and not self.rack.strip(_BLANK):
            raise UsageError(
                "partitioner.rack.aware is on but client.rack is blank, which Apache Kafka's own"
                " producer refuses; set client.rack, or use partitioner.compat=kip to fall back to"
                " all partitions"
            )


class LoadTable(NamedTuple):
    """Partitions to draw from, each with the running sum of the weights up to its own."""

    partitions: Sequence[int]
    sums: Sequence[int]

    @classmethod
    def of(cls, partitions: Sequence[int], queued: Sequence[int]) -> LoadTable:
        """Weight each partition by the longest queue + 1 - its own."""
        most = max(queued, default=0) + 1
        return cls(partitions, list(accumulate(most - length for length in queued)))

    def pick(self, draw: int) -> int:
        return self.partitions[bisect_right(self.sums, draw % self.sums[-1])]


class JavaPartitioner:
    """One topic's partitioner, bit for bit as in Java.

    Args:
        draw: returns 31 random bits as a number; called once per choice, as in Java.
    """

    turns_by_batch = False
    follows_load = False

    def __init__(self, options: JavaOptions, draw: Callable[[], int]) -> None:
        self._options = options
        self._draw = draw
        self._total: LoadTable | None = None
        self._in_rack: LoadTable | None = None

    @property
    def table(self) -> LoadTable | None:
        """The table for the next turns; None if all partitions with a leader are equally likely."""
        if self._in_rack is not None and self._in_rack.partitions:
            return self._in_rack
        return self._total

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        """The next partition, and 0: Java ignores the overshoot."""
        draw = self._draw()
        table = self.table
        if table is not None:
            return table.pick(draw), 0
        candidates = self._candidates(view)
        return candidates[draw % len(candidates)], 0

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        """True: only bytes end a turn (D5)."""
        return True

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        """Each partition's chance of the next turn, as of the last pass."""
        table = self.table
        if table is None:
            candidates = self._candidates(view)
            chances = dict.fromkeys(candidates, 1 / len(candidates))
        else:
            begins = (0, *table.sums)
            chances = {
                partition: (end - begin) / table.sums[-1]
                for partition, begin, end in zip(table.partitions, begins, table.sums, strict=False)
            }
        return {
            partition: Weight(chances[partition])
            if partition in chances
            else Weight(0.0, self._why_excluded(view, partition))
            for partition in range(view.partition_count)
        }

    def observe(self, view: TopicView, load: TopicLoad) -> None:
        """Compute the table for the turns until the next pass.

        Source: `RecordAccumulator.partitionReady`, with its reuse of array slots.
        """
        used = sorted(load.used())
        if not self._options.is_adaptive or len(used) < view.partition_count:
            self._total = self._in_rack = None
            return
        unavailable = load.unavailable()
        queued = [0] * len(used)
        partitions = [0] * len(used)
        racks: list[str | None] = [None] * len(used)
        slot = -1
        for partition in used:
            if partition >= view.partition_count or view.leaders[partition] < 0:
                continue
            slot += 1
            partitions[slot] = partition
            racks[slot] = view.racks[partition]
            length = load.queued_batches(partition)
            if length > 0:
                queued[slot] = length
                if view.leaders[partition] in unavailable:
                    slot -= 1
        self.update_load(queued, partitions, racks, slot + 1)

    def update_load(
        self,
        queued: Sequence[int],
        partitions: Sequence[int],
        racks: Sequence[str | None],
        length: int,
    ) -> None:
        """Compute the table from the first `length` of these partitions.

        Args:
            queued: waiting batches of each of `partitions`.
            racks: their leaders' racks.

        Source: `BuiltInPartitioner.updatePartitionLoadStats`.
        """
        self._total = self._in_rack = None
        if length < 1 or len(queued) < 2:
            return
        counted, chosen = queued[:length], partitions[:length]
        if length == len(queued) and len(set(counted)) == 1:
            return
        self._total = LoadTable.of(chosen, counted)
        if self._options.rack is not None:
            near = [slot for slot in range(length) if racks[slot] == self._options.rack]
            self._in_rack = LoadTable.of([chosen[s] for s in near], [counted[s] for s in near])

    def _candidates(self, view: TopicView) -> Sequence[int]:
        """The partitions to choose from without a table."""
        if not view.available:
            return range(view.partition_count)
        if self._options.rack is not None:
            near = [p for p in view.available if view.racks[p] == self._options.rack]
            if near:
                return near
        return view.available

    def _why_excluded(self, view: TopicView, partition: int) -> str:
        if view.leaders[partition] < 0:
            return "it has no leader"
        if self._options.rack is not None and view.racks[partition] != self._options.rack:
            return "its leader is in another rack"
        return "at the sender's last pass its leader was late or not known"
