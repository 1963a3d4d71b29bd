"""Which partition comes next: everything that decides, and nothing that acts.

    bytes produced ──▶┐
    queued batches ──▶├─ next partition
    leaders, racks ──▶┘

Two kinds. A *per-record* partitioner is asked for each record (round robin, a callable). A
*turn-taking* partitioner is asked when a turn ends: KIP-480's when a batch is full or sent,
KIP-794's when `batch.size` bytes were produced. Keys are hashed before either is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol, TypeAlias

from trimtab.client.metadata import TopicView
from trimtab.errors import UsageError

logger = logging.getLogger("trimtab.client")

CustomPartitioner: TypeAlias = Callable[
    [str, bytes | None, bytes | None, Sequence[int], Sequence[int]], int
]
"""`(topic, key, value, partitions, available) -> partition`."""

_TRIES = 16


class PerRecordPartitioner(Protocol):
    """Chooses for each record."""

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int: ...


class TurnPartitioner(Protocol):
    """Chooses for a turn of many records.

    Attributes:
        turns_by_batch: whether a turn ends when a new batch is needed, not after some bytes.

    Args of `next_turn`:
        previous: the partition whose turn ends, -1 at the first.
        overshoot: bytes produced to it beyond its quantum.
        queued: batches waiting to be sent, for each partition that has any.
        unavailable: node ids of leaders that take nothing at the moment.

    Returns: the partition, and how many bytes of its quantum are already used up.
    """

    turns_by_batch: bool

    def next_turn(
        self,
        view: TopicView,
        previous: int,
        overshoot: int,
        queued: Mapping[int, int],
        unavailable: Collection[int],
    ) -> tuple[int, int]: ...


class RoundRobinPartitioner:
    """Each record to the next partition that has a leader; keys are ignored.

    Source: `org.apache.kafka.clients.producer.RoundRobinPartitioner`, without its habit of skipping
    every other partition when a batch is closed (KAFKA-9965): the counter moves once for a record.
    """

    def __init__(self) -> None:
        self._count = 0

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int:
        candidates = view.available or range(view.partition_count)
        chosen = candidates[self._count % len(candidates)]
        self._count += 1
        return chosen


class CallablePartitioner:
    """A user's function, checked."""

    def __init__(self, function: CustomPartitioner) -> None:
        self._function = function

    def partition(self, view: TopicView, key: bytes | None, value: bytes | None) -> int:
        chosen = self._function(view.name, key, value, range(view.partition_count), view.available)
        if not isinstance(chosen, int) or not 0 <= chosen < view.partition_count:
            raise UsageError(
                f"the partitioner returned {chosen!r} for topic {view.name}, which has partitions"
                f" 0 to {view.partition_count - 1}; return one of these"
            )
        return chosen


class StickyPartitioner:
    """One partition until a new batch is needed, then another (KIP-480).

    Never the same one twice in a row while others have a leader.
    Source: `org.apache.kafka.clients.producer.internals.StickyPartitionCache` (2.4 to 3.2).
    """

    turns_by_batch = True

    def __init__(self, random: Random) -> None:
        self._random = random

    def next_turn(
        self,
        view: TopicView,
        previous: int,
        overshoot: int,
        queued: Mapping[int, int],
        unavailable: Collection[int],
    ) -> tuple[int, int]:
        available = view.available
        if not available:
            return self._random.randrange(view.partition_count), 0
        if len(available) == 1:
            return available[0], 0
        while True:
            chosen = available[self._random.randrange(len(available))]
            if chosen != previous:
                return chosen, 0


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
    """Kafka's own logic: turns of equal bytes, fewer of them for brokers that fall behind.

    Goals:
        Uniform in bytes over time (KIP-794), also where a turn ends late so that its last batch
        is full (KAFKA-14156); fewer turns for a partition in proportion to its queue; partitions
        led in the client's rack first (KIP-1123).

    Algorithm:
        Who may be chosen: the partitions led in `rack`, if there are any that are not unavailable;
        else all with a leader that is not unavailable; else all with a leader; else all.
        Not adaptive: a shuffled bag of them, refilled when empty, so that no two partitions ever
        differ by more than one turn. Adaptive: at random, with weight `longest queue + 1 - queue`
        (a partition without a queue has queue 0).
        What a turn took beyond its quantum is owed: it shortens that partition's next turn, or
        swallows it (deficit round robin). Without this a slow broker, whose batches are the ones
        that are still partial when the quantum is used up, would get more.

    Source: KIP-794, KIP-1123; `org.apache.kafka.clients.producer.internals.BuiltInPartitioner`.
    """

    turns_by_batch = False

    def __init__(self, options: BuiltInOptions, random: Random) -> None:
        self._options = options
        self._random = random
        self._owed: dict[int, int] = {}
        self._bag: list[int] = []
        self._view: TopicView | None = None
        self._available = _NOBODY
        self._in_rack = _NOBODY

    def next_turn(
        self,
        view: TopicView,
        previous: int,
        overshoot: int,
        queued: Mapping[int, int],
        unavailable: Collection[int],
    ) -> tuple[int, int]:
        if view is not self._view:
            self._look_at(view)
        if previous >= 0 and overshoot > 0:
            self._owed[previous] = self._owed.get(previous, 0) + overshoot
        pool = self._reachable(unavailable if self._options.is_adaptive else ())
        if len(pool.partitions) == 1:
            only = pool.partitions[0]
            self._owed.pop(only, None)
            return only, 0
        quantum = self._options.quantum
        while True:
            if self._options.is_adaptive:
                chosen = self._draw_weighted(pool, queued)
            else:
                chosen = self._draw_from_bag(pool)
            owed = self._owed.pop(chosen, 0)
            if owed < quantum:
                return chosen, owed
            self._owed[chosen] = owed - quantum

    def _look_at(self, view: TopicView) -> None:
        self._view = view
        self._available = _Pool.of(view.available or range(view.partition_count))
        rack = self._options.rack
        self._in_rack = (
            _NOBODY
            if rack is None
            else _Pool.of(p for p in view.available if view.racks[p] == rack)
        )
        self._bag.clear()

    def _reachable(self, unavailable: Collection[int]) -> _Pool:
        pools = [pool for pool in (self._in_rack, self._available) if pool.partitions]
        if unavailable and self._view is not None:
            leaders = self._view.leaders
            for pool in pools:
                if not any(leaders[p] in unavailable for p in pool.partitions):
                    return pool
                reachable = _Pool.of(p for p in pool.partitions if leaders[p] not in unavailable)
                if reachable.partitions:
                    return reachable
        return pools[0]

    def _draw_from_bag(self, pool: _Pool) -> int:
        if not self._bag:
            self._bag = list(pool.partitions)
            self._random.shuffle(self._bag)
        return self._bag.pop()

    def _draw_weighted(self, pool: _Pool, queued: Mapping[int, int]) -> int:
        random, partitions = self._random, pool.partitions
        longest = max((n for p, n in queued.items() if p in pool.members), default=0)
        if longest == 0:
            return partitions[random.randrange(len(partitions))]
        # Most partitions of a large topic have no queue: a few draws beat weighing them all.
        for _ in range(_TRIES):
            chosen = partitions[random.randrange(len(partitions))]
            if random.randrange(longest + 1) >= queued.get(chosen, 0):
                return chosen
        weights = [longest + 1 - queued.get(p, 0) for p in partitions]
        return random.choices(partitions, weights)[0]


class _Pool(NamedTuple):
    """Partitions to choose from, to draw by index and to ask for membership."""

    partitions: tuple[int, ...]
    members: frozenset[int]

    @classmethod
    def of(cls, partitions: Iterable[int]) -> _Pool:
        chosen = tuple(partitions)
        return cls(chosen, frozenset(chosen))


_NOBODY = _Pool((), frozenset())


def client_rack(is_rack_aware: bool, rack: str) -> str | None:
    """The rack to prefer; None if rack awareness is off or, with a warning, if no rack is given."""
    if not is_rack_aware:
        return None
    if not rack.strip():
        logger.warning(
            "partitioner.rack.aware is on but client.rack is empty: all partitions are used;"
            " set client.rack to this client's rack"
        )
        return None
    return rack
