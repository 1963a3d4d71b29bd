"""Kafka's built-in logic as its proposals say: turns of equal bytes (KIP-794), racks (KIP-1123).

leaders, racks, unavailable brokers ─▶ the pool: who may be chosen
the lengths of the pool's queues    ─▶ who it is
bytes beyond the quantum            ─▶ owed, and paid back
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from trimtab.client.network.metadata import TopicView
from trimtab.client.partitioner.partitioner import TopicLoad, Weight
from trimtab.client.partitioner.pool import Pool
from trimtab.errors import UsageError

_POOLS_KEPT = 8


@dataclass(frozen=True, slots=True)
class BuiltInOptions:
    """What governs the built-in logic.

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
        Uniform in bytes over time (KIP-794), also where a turn ends late so that its last batch
        is full (KAFKA-14156); fewer turns for a partition in proportion to its queue; partitions
        led in the client's rack first (KIP-1123).

    Algorithm:
        Who may be chosen: the partitions led in `rack`, if there are any that are not unavailable;
        else all with a leader that is not unavailable; else all with a leader; else all.
        Adaptive: each weighs `longest + 1 - its queue` (KIP-794), where `longest` is the longest
        queue of those who may be chosen; otherwise all weigh the same. Turns are drawn in rounds
        (`Pool`), so that fewer are left to chance than if each was drawn by itself.
        What a turn took beyond its quantum is owed: it shortens that partition's next turn, or
        swallows it (deficit round robin). Without this a slow broker, whose batches are the ones
        that are still partial when the quantum is used up, would get more.

    What holds, at any number of partitions:
        Each draw takes a partition with probability `its weight / sum of the weights` of that
        moment, which is what `weigh` shows. While weights stay as they are, each round gives a
        partition its share of as many draws as there are partitions, rounded up or down; while
        they are equal, one each, so that no two are ever more than a turn apart.
        What is owed does not change a probability. A partition that is drawn and owes a whole
        quantum gets no turn, owes that much less, and another is drawn. So it is bytes, not
        turns, that are in proportion to the weights.
        A draw costs O(log partitions), and O(log partitions) more for each queue that has changed
        since the last one.

    Where Apache Kafka's producer departs from its proposals, this does not: a partition that has
    not been used yet has a queue of 0 and keeps nobody from being weighed; a broker that is
    unavailable is so for all of its partitions, whether they have a queue or not; a turn whose
    leader is lost or unavailable ends with the next record (`may_stay`); the load is that of now.

    Source: KIP-794, KIP-1123; `org.apache.kafka.clients.producer.internals.BuiltInPartitioner`.
    """

    turns_by_batch = False
    is_eager = False

    def __init__(self, options: BuiltInOptions, random: Random) -> None:
        self._options = options
        self._random = random
        self._owed: dict[int, int] = {}
        self._view: TopicView | None = None
        self._pools: dict[tuple[frozenset[int], bool], Pool] = {}

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
        draw = self._drawer(pool, load)
        quantum = self._options.quantum
        swallowed = 0
        while True:
            chosen = draw()
            owed = self._owed.pop(chosen, 0)
            if owed < quantum:
                return chosen, owed
            self._owed[chosen] = owed - quantum
            swallowed += 1
            if swallowed == len(pool):
                swallowed = 0
                self._forgive(pool, self._weights(pool, load))

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        return partition in self._pool(view, load)

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        pool = self._pool(view, load)
        weights = self._weights(pool, load)
        return weigh(view, pool, weights, load.unavailable(), self._options)

    def _pool(self, view: TopicView, load: TopicLoad) -> Pool:
        """Who may be chosen now."""
        return self._reachable(view, load, near=self._options.rack is not None)

    def _reachable(self, view: TopicView, load: TopicLoad, near: bool) -> Pool:
        """Who can be reached; of the client's rack alone if `near` and there are any."""
        if view is not self._view:
            self._look_at(view)
        unavailable = load.unavailable() if self._options.is_adaptive else _NONE
        pool = self._pools.get((unavailable, near))
        if pool is None:
            if len(self._pools) == _POOLS_KEPT:
                del self._pools[next(iter(self._pools))]
            pool = self._pools[unavailable, near] = self._choose_pool(view, unavailable, near)
        return pool

    def _look_at(self, view: TopicView) -> None:
        known = self._view
        if known is None or known.leaders != view.leaders or known.racks != view.racks:
            self._pools.clear()
        self._view = view

    def _choose_pool(self, view: TopicView, unavailable: frozenset[int], near: bool) -> Pool:
        if not view.available:
            return Pool(view, range(view.partition_count), self._random)
        in_rack = [p for p in view.available if near and view.racks[p] == self._options.rack]
        reachable = [p for p in in_rack if view.leaders[p] not in unavailable]
        if reachable:
            return Pool(view, reachable, self._random, is_near=True)
        reachable = [p for p in view.available if view.leaders[p] not in unavailable]
        if reachable:
            return Pool(view, reachable, self._random)
        return Pool(view, in_rack or view.available, self._random, is_near=bool(in_rack))

    def _drawer(self, pool: Pool, load: TopicLoad) -> Callable[[], int]:
        """What draws for this turn."""
        if not self._options.is_adaptive:
            return pool.draw
        self._catch_up(load)
        return partial(pool.draw_by_queue, pool.weigh_queues(load))

    def _weights(self, pool: Pool, load: TopicLoad) -> Sequence[float]:
        """What each of the pool's partitions weighs."""
        if not self._options.is_adaptive:
            return [1] * len(pool)
        self._catch_up(load)
        return pool.weigh_queues(load).weights()

    def _catch_up(self, load: TopicLoad) -> None:
        for partition in load.take_resized():
            length = load.queued_batches(partition)
            for pool in self._pools.values():
                pool.resize(partition, length)

    def _forgive(self, pool: Pool, weights: Sequence[float]) -> None:
        """Take off at once, in whole quanta, what everybody owes in proportion to the weights."""
        quantum = self._options.quantum
        shared = min(
            self._owed.get(partition, 0) // quantum / weight
            for partition, weight in zip(pool.partitions, weights, strict=True)
        )
        if shared > 0:
            for partition, weight in zip(pool.partitions, weights, strict=True):
                self._owed[partition] -= int(shared * weight) * quantum


_NONE: frozenset[int] = frozenset()


def weigh(
    view: TopicView,
    pool: Pool,
    weights: Sequence[float],
    unavailable: frozenset[int],
    options: BuiltInOptions,
) -> dict[int, Weight]:
    """Every partition's probability among those of the pool, and why the others have none."""
    total = sum(weights)
    probability = {p: weight / total for p, weight in zip(pool.partitions, weights, strict=True)}

    def excluded(partition: int) -> str:
        leader = view.leaders[partition]
        if leader < 0:
            return "it has no leader"
        if leader in unavailable and options.is_adaptive:
            return f"broker {leader} takes nothing (partitioner.availability.timeout.ms)"
        return f"broker {leader} is not in rack {options.rack} (partitioner.rack.aware)"

    return {
        partition: Weight(probability[partition])
        if partition in probability
        else Weight(0.0, excluded(partition))
        for partition in range(view.partition_count)
    }
