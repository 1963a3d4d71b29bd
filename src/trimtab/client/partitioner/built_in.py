"""Kafka's built-in logic as its proposals say: turns of equal bytes (KIP-794), racks (KIP-1123).

leaders, racks, unavailable brokers ─▶ the pool: the partitions that may be chosen
the lengths of the pool's queues    ─▶ the partition drawn from it
bytes beyond the quantum            ─▶ subtracted from the partition's next turn
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from trimtab.client.partitioner.pool import Pool, reachable, why_excluded
from trimtab.client.partitioner.protocol import TopicLoad, Weight
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

_POOLS_KEPT = 8


@dataclass(frozen=True, slots=True)
class BuiltInOptions:
    """The options of the built-in logic.

    Attributes:
        quantum: bytes of one turn (`batch.size`, at least 1).
        is_adaptive: `partitioner.adaptive.partitioning.enable`.
        rack: `client.rack` if `partitioner.rack.aware`, else None.
    """

    quantum: int
    is_adaptive: bool = True
    rack: str | None = None

    def __post_init__(self) -> None:
        if self.quantum < 1:
            raise UsageError(
                f"the quantum of a turn is {self.quantum} bytes; it must be at least 1"
            )


class BuiltInPartitioner:
    """Kafka's own logic: turns of equal bytes, fewer of them for partitions that fall behind.

    Goals:
        Equal bytes for all partitions over time (KIP-794), also if a turn ends late so that its
        last batch is full (KAFKA-14156); fewer turns for a partition the longer its queue;
        partitions led in the client's rack first (KIP-1123).

    Algorithm:
        The pool: the partitions led in `rack` whose leader is available; else all whose leader is
        available; else all led in `rack`; else all with a leader; else all.
        Adaptive: a partition's weight is `longest + 1 - its queue` (KIP-794), where `longest` is
        the longest queue in the pool; otherwise all weights are equal. Turns are drawn in rounds
        (`Pool`), which leaves less to chance than independent draws.
        A partition owes the bytes that its turn took beyond the quantum: its next turn is that much
        shorter, or is skipped (deficit round robin). Otherwise a slow broker would get more bytes,
        because its batches tend to be still partial when the quantum is used up.

    Guarantees, for any number of partitions:
        Each draw takes a partition with probability `its weight / sum of the weights` at that
        moment; `weigh` returns these. A round has as many draws as the pool has partitions. While
        weights do not change, a partition gets its share of a round's draws, rounded up or down.
        While they are equal, each partition gets one, so that no two are ever more than a turn
        apart.
        Owed bytes do not change a probability. If a drawn partition owes a whole quantum, its debt
        falls by a quantum, it gets no turn, and another draw follows. So bytes, not turns, are in
        proportion to the weights.
        A draw costs O(log partitions), plus O(log partitions) for each queue that has changed
        since the last draw.

    Apache Kafka's producer departs from its proposals in these points; this class does not: an
    unused partition has a queue of 0, and the others are weighed all the same; an unavailable
    broker is unavailable for all of its partitions, also for those with an empty queue; a turn
    whose leader is lost or unavailable ends with the next record (`may_stay`); the load is current.

    Source: KIP-794, KIP-1123; `org.apache.kafka.clients.producer.internals.BuiltInPartitioner`.
    """

    turns_by_batch = False
    follows_load = False

    def __init__(self, options: BuiltInOptions, random: Random) -> None:
        self._options = options
        self._random = random
        self._owed: dict[int, int] = {}
        self._view: TopicView | None = None
        self._pools: dict[frozenset[int], Pool] = {}

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        if previous >= 0 and overshoot > 0:
            self._owed[previous] = self._owed.get(previous, 0) + overshoot
        pool = self._pool(view, load)
        if len(pool) == 1:
            only = pool.partitions[0]
            self._owed.pop(only, None)
            return only, 0
        draw = pool.draw
        if self._options.is_adaptive:
            self._apply_resized(load)
            draw = partial(pool.draw_by_queue, pool.weigh_queues(load))
        quantum = self._options.quantum
        skipped = 0
        while True:
            chosen = draw()
            owed = self._owed.pop(chosen, 0)
            if owed < quantum:
                return chosen, owed
            self._owed[chosen] = owed - quantum
            skipped += 1
            if skipped == len(pool):
                skipped = 0
                self._reduce_debts(pool, self._weights(pool, load))

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        return partition in self._pool(view, load)

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        pool = self._pool(view, load)
        weights = self._weights(pool, load)
        total = sum(weights)
        chances = {p: weight / total for p, weight in zip(pool.partitions, weights, strict=True)}
        unavailable, rack = self._unavailable(load), self._options.rack
        return {
            partition: Weight(chances[partition])
            if partition in chances
            else Weight(0.0, why_excluded(view, partition, unavailable, rack))
            for partition in range(view.partition_count)
        }

    def _pool(self, view: TopicView, load: TopicLoad) -> Pool:
        """The partitions that may be chosen now."""
        if view is not self._view:
            known = self._view
            if known is None or known.leaders != view.leaders or known.racks != view.racks:
                self._pools.clear()
            self._view = view
        unavailable = self._unavailable(load)
        pool = self._pools.get(unavailable)
        if pool is None:
            if len(self._pools) == _POOLS_KEPT:
                del self._pools[next(iter(self._pools))]
            partitions, _ = reachable(view, unavailable, self._options.rack)
            pool = Pool(view.partition_count, partitions, self._random)
            self._pools[unavailable] = pool
        return pool

    def _unavailable(self, load: TopicLoad) -> frozenset[int]:
        return load.unavailable() if self._options.is_adaptive else _NO_BROKERS

    def _weights(self, pool: Pool, load: TopicLoad) -> Sequence[float]:
        """The weights of the pool's partitions."""
        if not self._options.is_adaptive:
            return [1] * len(pool)
        self._apply_resized(load)
        return pool.weigh_queues(load).weights()

    def _apply_resized(self, load: TopicLoad) -> None:
        for partition in load.take_resized():
            length = load.queued_batches(partition)
            for pool in self._pools.values():
                pool.resize(partition, length)

    def _reduce_debts(self, pool: Pool, weights: Sequence[float]) -> None:
        """Reduce all debts at once, by whole quanta, in proportion to the weights."""
        quantum = self._options.quantum
        shared = min(
            self._owed.get(partition, 0) // quantum / weight
            for partition, weight in zip(pool.partitions, weights, strict=True)
        )
        if shared > 0:
            for partition, weight in zip(pool.partitions, weights, strict=True):
                self._owed[partition] -= int(shared * weight) * quantum


_NO_BROKERS: frozenset[int] = frozenset()
