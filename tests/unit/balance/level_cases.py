"""Random clusters for the tests of level plans, and all plans of the smallest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from random import Random

import numpy
import numpy.typing

from trimtab.balance.cluster_load import RESOURCES, BrokerState, ClusterLoad, PartitionLoad
from trimtab.balance.level_plan import Goal, LevelPlan, find_levels
from trimtab.kafka.records import TopicPartition

Levels = numpy.typing.NDArray[numpy.float64]
MB = 1_000_000
SLOW = Goal(payback_s=float("inf"))
"""Replicas may move however long that takes to pay."""


def partition(
    number: int,
    replicas: tuple[int, ...],
    bytes_in: float = MB,
    bytes_out: float = 0.0,
    size: int = 100 * MB,
    leader: int | None = None,
    in_sync: frozenset[int] | None = None,
) -> PartitionLoad:
    return PartitionLoad(
        TopicPartition("t", number),
        replicas,
        replicas[0] if leader is None else leader,
        frozenset(replicas) if in_sync is None else in_sync,
        bytes_in,
        bytes_out,
        size,
    )


def cluster(
    partitions: list[PartitionLoad],
    brokers: int,
    racks: int = 1,
    moving: frozenset[TopicPartition] = frozenset(),
    each: BrokerState = BrokerState(0, None, 1000),  # noqa: B008
) -> ClusterLoad:
    states = {
        number: each._replace(id=number, rack=f"r{number % racks}") for number in range(brokers)
    }
    return ClusterLoad(states, partitions, moving)


def random_cluster(
    random: Random, brokers: int, partitions: int, racks: int = 1, spread: float = 1.0
) -> ClusterLoad:
    """Some brokers have more than others, and some replicas are out of the ISR.

    Args:
        spread: how much partitions differ.
    """
    states = {}
    for number in range(brokers):
        state = BrokerState(number, f"r{number % racks}", random.choice((0, 1, 2, 1000)))
        if brokers > 3 and random.random() < 0.1:
            state = state._replace(is_alive=random.random() < 0.5, takes_replicas=False)
        states[number] = state
    weights = [random.random() ** 2 + 0.05 for _ in range(brokers)]
    loads = []
    for number in range(partitions):
        factor = random.randint(1, min(3, brokers))
        replicas = sorted(
            range(brokers), key=lambda broker: random.random() ** (1 / weights[broker])
        )[-factor:]
        alive = [broker for broker in replicas if states[broker].is_alive]
        in_sync = [broker for broker in alive if random.random() < 0.95]
        written = random.lognormvariate(0, spread) * MB
        loads.append(
            partition(
                number,
                tuple(replicas),
                written,
                written * random.choice((0, 1, 3)) * min(1.0, spread),
                int(written * random.lognormvariate(6, spread)),
                in_sync[0] if in_sync else -1,
                frozenset(in_sync),
            )
        )
    moving = frozenset(each.partition for each in loads if random.random() < 0.03)
    return ClusterLoad(states, loads, moving)


def is_spread(load: ClusterLoad, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    old, new = (
        Counter(load.brokers[broker].rack for broker in brokers) for brokers in (before, after)
    )
    return max(new.values()) <= max(old.values()) and len(new) >= len(old)


def check_rules(load: ClusterLoad, goal: Goal, plan: LevelPlan) -> None:
    """Fail if a change breaks a rule that holds for every plan."""
    added: Counter[int] = Counter()
    removed: Counter[int] = Counter()
    for change in plan.changes:
        before = change.before
        old, new = set(before.replicas), set(change.replicas)
        assert before.partition not in load.moving
        assert before.leader >= 0
        assert len(new) == len(change.replicas) == len(old)
        assert is_spread(load, before.replicas, change.replicas)
        assert change.copied == before.size * len(new - old)
        out = old - before.in_sync
        assert new == old or not out or (len(out) == 1 and old - new == out)
        for broker in new - old:
            assert load.brokers[broker].takes_replicas
            assert load.brokers[broker].is_alive
            assert broker not in goal.drain | goal.relieve
        if change.leader != before.leader:
            assert change.leader in before.in_sync | (new - old)
            assert load.brokers[change.leader].is_alive
            assert change.leader not in goal.drain | goal.without_leaders
            assert not goal.relieve or before.leader in goal.relieve
        assert not goal.relieve or old - new <= goal.relieve
        assert not goal.leaders_only or new == old
        added.update(new - old)
        removed.update(old - new)
    for broker, count in added.items():
        assert count - removed[broker] <= max(0, load.brokers[broker].free)


def choices_of(load: ClusterLoad, each: PartitionLoad) -> Iterator[tuple[tuple[int, ...], int]]:
    """All replicas and leaders that a partition may have."""
    yield each.replicas, each.leader
    if each.partition in load.moving or each.leader < 0:
        return
    old = set(each.replicas)
    out = old - each.in_sync
    able = {broker for broker in each.in_sync if load.brokers[broker].is_alive}
    for some in combinations(sorted(load.brokers), len(old)):
        new = set(some)
        if new != old and out and (len(out) > 1 or old - new != out):
            continue
        if not all(
            load.brokers[broker].takes_replicas and load.brokers[broker].is_alive
            for broker in new - old
        ) or not is_spread(load, each.replicas, some):
            continue
        for leader in some:
            if leader in able | (new - old) and (new, leader) != (old, each.leader):
                yield some, leader


class Everything:
    """All plans of a small cluster, with what they lead to and the bytes that they copy.

    Attributes:
        loads: by plan, resource (out, in, disk) and broker.
    """

    def __init__(self, load: ClusterLoad, goal: Goal) -> None:
        self._goal = goal
        before = find_levels(load)
        self._acts = [before[name].level > goal.act_above for name in RESOURCES]
        self._alive = numpy.array([broker.is_alive for broker in load.brokers.values()])
        count = len(load.brokers)
        self._shares = [0.0, 0.0, 0.0]
        weights = [self._cap(load, kind) for kind in range(3)]
        self.loads = numpy.zeros((1, 3, count))
        self._copied = numpy.zeros(1)
        held = numpy.zeros((1, count), int)
        self._way = numpy.zeros(1, int)
        """By plan, its number if all plans were counted."""
        self._ways: list[dict[tuple[frozenset[int], int], int]] = []
        for number, each in enumerate(load.partitions):
            ways = list(choices_of(load, each))
            loads = numpy.zeros((len(ways), 3, count))
            copied = numpy.zeros(len(ways))
            placed = numpy.zeros((len(ways), count), int)
            for way, (replicas, leader) in enumerate(ways):
                if leader >= 0:
                    loads[way, 0, leader] = weights[0][number]
                loads[way, 1, list(replicas)] = weights[1][number]
                loads[way, 2, list(replicas)] = weights[2][number]
                placed[way, list(replicas)] = 1
                copied[way] = each.size * len(set(replicas) - set(each.replicas))
            self.loads = (self.loads[:, None] + loads).reshape(-1, 3, count)
            self._copied = (self._copied[:, None] + copied).reshape(-1)
            held = (held[:, None] + placed).reshape(-1, count)
            self._ways.append({(frozenset(way[0]), way[1]): at for at, way in enumerate(ways)})
        free = numpy.array([max(0, broker.free) for broker in load.brokers.values()])
        self._allowed = (held <= held[0] + free).all(1)

    def _cap(self, load: ClusterLoad, kind: int) -> list[float]:
        """Of each partition the load, at most what a broker should have at `plan_to`."""
        weights = [(e.leader_out, e.bytes_in, float(e.size))[kind] for e in load.partitions]
        alive = {broker.id for broker in load.brokers.values() if broker.is_alive}
        copies = [
            len(alive.intersection([each.leader] if kind == 0 else each.replicas))
            for each in load.partitions
        ]
        below, above = 0.0, self._goal.plan_to * sum(weights) * 3
        for _ in range(100):
            most = (below + above) / 2
            capped = sum(
                min(weight, most) * times for weight, times in zip(weights, copies, strict=True)
            )
            if self._goal.plan_to * capped / len(alive) >= most:
                below = most
            else:
                above = most
        smallest = min(
            (w for w, times in zip(weights, copies, strict=True) if w and times), default=0
        )
        self._shares[kind] = max(below, smallest)
        return [min(weight, self._shares[kind]) for weight in weights]

    def compare(self, plan: LevelPlan, load: ClusterLoad) -> tuple[float, float, float]:
        """The level that a plan reaches, the least level, and the fewest bytes for the former."""
        changes = {change.before.partition: change for change in plan.changes}
        index = 0
        for each, ways in zip(load.partitions, self._ways, strict=True):
            change = changes.get(each.partition)
            replicas, leader = (
                (each.replicas, each.leader) if change is None else (change.replicas, change.leader)
            )
            index = index * len(ways) + ways[frozenset(replicas), leader]
        levels = self._find_levels()
        reached = float(levels[index])
        allowed = self._copied[levels <= reached * (1 + 1e-6)]
        return reached, float(levels.min()), float(allowed.min())

    def find_fewest(self, limits: Levels) -> float:
        """The fewest bytes of the plans within limits by resource and broker."""
        within = (self.loads <= limits * (1 + 1e-9)).all((1, 2))
        return float(self._copied[within].min())

    def _find_levels(self) -> Levels:
        """By plan, the level of what must be levelled; infinite if something else gets too bad."""
        goal = self._goal
        levels = numpy.full(len(self.loads), goal.plan_to)
        levels[~self._allowed] = numpy.inf
        for kind in range(3):
            if not self._shares[kind]:
                continue
            ratios = self.loads[:, kind, self._alive] / self._shares[kind] * goal.plan_to
            if self._acts[kind]:
                levels = numpy.maximum(levels, ratios.max(1))
            else:
                worst = numpy.where(ratios > ratios[0] + 1e-9, ratios, 0.0).max(1)
                levels = numpy.maximum(levels, worst)
                levels[worst > goal.act_above + 1e-9] = numpy.inf
        return levels
