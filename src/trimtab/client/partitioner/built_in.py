"""Kafka's built-in logic as its proposals say: turns of equal bytes (KIP-794), racks (KIP-1123).

leaders, racks, unavailable brokers ─▶ the pool: who may be chosen
the pool's shuffled bag, queues     ─▶ who it is
bytes beyond the quantum            ─▶ owed, and paid back
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from trimtab.client.network.metadata import TopicView
from trimtab.client.partitioner.partitioner import TopicLoad, Weight
from trimtab.errors import UsageError

Chance: TypeAlias = Callable[[int], float]
"""How likely a partition that was drawn is taken, above 0 and up to 1."""

_TRIES = 16
"""Partitions drawn from the bag before all (of few) or those drawn (of many) are weighed."""

_FEW = 32
"""Partitions that may all be looked at for one turn."""

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


class Pool:
    """Partitions to choose from: a shuffled bag of them, drawn from without putting back.

    Attributes:
        partitions: at least one.
        of_each_leader: one partition of each broker that leads any.
        is_near: whether these are of the client's rack alone.
    """

    __slots__ = (
        "_left",
        "_longest_of_last_sweep",
        "_longest_of_this_sweep",
        "_members",
        "_order",
        "_swept",
        "is_near",
        "is_whole",
        "of_each_leader",
        "partitions",
    )

    def __init__(self, view: TopicView, partitions: Iterable[int], is_near: bool = False) -> None:
        self.partitions = tuple(partitions)
        self.of_each_leader = tuple({view.leaders[p]: p for p in self.partitions}.values())
        self.is_near = is_near
        self.is_whole = len(self.partitions) == view.partition_count
        self._members = bytearray(view.partition_count)
        for partition in self.partitions:
            self._members[partition] = 1
        self._order = list(self.partitions)
        self._left = 0
        self._swept = 0
        self._longest_of_this_sweep = 0
        self._longest_of_last_sweep = 0

    def __len__(self) -> int:
        return len(self.partitions)

    def __contains__(self, partition: int) -> bool:
        return partition < len(self._members) and self._members[partition] == 1

    def draw(self, random: Random) -> int:
        """The next partition; none comes twice before all came once. O(1), also when it refills."""
        order = self._order
        if self._left == 0:
            self._left = len(order)
        place = int(random.random() * self._left)
        self._left -= 1
        chosen = order[place]
        order[place] = order[self._left]
        order[self._left] = chosen
        return chosen

    def longest(self, load: TopicLoad) -> int:
        """Batches of the pool's longest queue, in O(1).

        Of a large pool that is not the whole topic, each call looks at the next few queues: what
        became shorter or longer is noticed within two rounds.
        """
        longest = load.longest
        if longest == 0 or self.is_whole:
            return longest
        queued = load.queued_batches
        if len(self.partitions) <= _FEW:
            return max(map(queued, self.partitions))
        busy = load.busy()
        if len(busy) <= _FEW:
            return max((queued(p) for p in busy if p in self), default=0)
        end = self._swept + _FEW
        seen = max(map(queued, self.partitions[self._swept : end]))
        self._longest_of_this_sweep = max(self._longest_of_this_sweep, seen)
        found = max(self._longest_of_this_sweep, self._longest_of_last_sweep)
        self._swept = end
        if end >= len(self.partitions):
            self._swept = 0
            self._longest_of_last_sweep = self._longest_of_this_sweep
            self._longest_of_this_sweep = 0
        return min(longest, found)


class BuiltInPartitioner:
    """Kafka's own logic: turns of equal bytes, fewer of them for partitions that fall behind.

    Goals:
        Uniform in bytes over time (KIP-794), also where a turn ends late so that its last batch
        is full (KAFKA-14156); fewer turns for a partition in proportion to its queue; partitions
        led in the client's rack first (KIP-1123). O(1) a turn, however many partitions or queues.

    Algorithm:
        Who may be chosen: the partitions led in `rack`, if there are any that are not unavailable;
        else all with a leader that is not unavailable; else all with a leader; else all.
        They come out of a shuffled bag, so that no two are ever more than a turn apart. Adaptive:
        one that is drawn is taken with probability `1 - queue / (longest queue + 1)`, otherwise it
        has missed its turn; so all are taken in proportion to `longest + 1 - queue` (KIP-794's
        weights), and evenly while nothing waits. `longest` is that of those who may be chosen.
        What a turn took beyond its quantum is owed: it shortens that partition's next turn, or
        swallows it (deficit round robin). Without this a slow broker, whose batches are the ones
        that are still partial when the quantum is used up, would get more.

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
        chance = self._chance(pool, load)
        quantum = self._options.quantum
        swallowed = 0
        while True:
            chosen = pool.draw(self._random) if chance is None else self._draw(pool, chance)
            owed = self._owed.pop(chosen, 0)
            if owed < quantum:
                return chosen, owed
            self._owed[chosen] = owed - quantum
            swallowed += 1
            if swallowed == len(pool):
                swallowed = 0
                self._forgive(pool)

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        return partition in self._pool(view, load)

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        pool = self._pool(view, load)
        chance = self._chance(pool, load) if len(pool) > 1 else None
        chances = {p: 1.0 if chance is None else chance(p) for p in pool.partitions}
        return weigh(view, pool, chances, load.unavailable(), self._options)

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
            return Pool(view, range(view.partition_count))
        in_rack = [p for p in view.available if near and view.racks[p] == self._options.rack]
        reachable = [p for p in in_rack if view.leaders[p] not in unavailable]
        if reachable:
            return Pool(view, reachable, is_near=True)
        reachable = [p for p in view.available if view.leaders[p] not in unavailable]
        if reachable:
            return Pool(view, reachable)
        return Pool(view, in_rack or view.available, is_near=bool(in_rack))

    def _chance(self, pool: Pool, load: TopicLoad) -> Chance | None:
        """How likely each partition is taken when drawn; None if all are."""
        if not self._options.is_adaptive:
            return None
        longest = pool.longest(load)
        if longest == 0:
            return None
        most, queued = longest + 1, load.queued_batches
        return lambda partition: max(1, most - queued(partition)) / most

    def _draw(self, pool: Pool, chance: Chance) -> int:
        random = self._random
        drawn: list[int] = []
        weights: list[float] = []
        for _ in range(_TRIES):
            chosen = pool.draw(random)
            weight = chance(chosen)
            if random.random() < weight:
                return chosen
            drawn.append(chosen)
            weights.append(weight)
        if len(pool) <= _FEW:
            drawn = list(pool.partitions)
            weights = [chance(partition) for partition in drawn]
        return random.choices(drawn, weights)[0]

    def _forgive(self, pool: Pool) -> None:
        """Take off at once, in whole quanta, what everybody owes."""
        quantum = self._options.quantum
        shared = min(self._owed.get(p, 0) for p in pool.partitions) // quantum * quantum
        if shared > 0:
            for partition in pool.partitions:
                self._owed[partition] -= shared


_NONE: frozenset[int] = frozenset()


def weigh(
    view: TopicView,
    pool: Pool,
    chances: Mapping[int, float],
    unavailable: frozenset[int],
    options: BuiltInOptions,
) -> dict[int, Weight]:
    """Every partition's probability among those of the pool, and why the others have none."""
    total = sum(chances.values())

    def excluded(partition: int) -> str:
        leader = view.leaders[partition]
        if leader < 0:
            return "it has no leader"
        if leader in unavailable and options.is_adaptive:
            return f"broker {leader} takes nothing (partitioner.availability.timeout.ms)"
        return f"broker {leader} is not in rack {options.rack} (partitioner.rack.aware)"

    return {
        partition: Weight(chances[partition] / total)
        if partition in pool
        else Weight(0.0, excluded(partition))
        for partition in range(view.partition_count)
    }
