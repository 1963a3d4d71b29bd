"""Plans which leaders and replicas move, so that the load is level for the fewest bytes.

Brokers are levelled by what their leaders send, by what is written to their replicas, and by what
they store. A plan begins only if a broker has more than `act_above` times the mean, and ends at
`plan_to` times the mean: with one threshold it would begin again at once. Leaders change first, as
this copies nothing; replicas move only if that is not enough.

A partition that has more than a broker's share of a load counts as one share, so it does not spoil
the level of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy

from trimtab.balance import cluster_load
from trimtab.balance.cluster_load import RESOURCES, ClusterLoad, PartitionLoad
from trimtab.balance.level_bounds import bound_by_knapsacks
from trimtab.balance.level_choices import (
    COUNT,
    DISK,
    IN,
    KINDS,
    LEADS,
    OUT,
    Choice,
    LevelChoices,
)
from trimtab.balance.level_greedy import level_greedily
from trimtab.balance.level_program import solve_level
from trimtab.balance.linear_program import PlanTooLarge
from trimtab.kafka.errors import UsageError
from trimtab.kafka.notebook import to_table
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.balance.level_choices import Floats, Integers

_TRIES: Final = ((1_000, 6), (30_000, 2))
"""Up to so many replicas x brokers, so many plans at most look for the least level."""
_NEAR_BOUND: Final = ((5_000_000, 1.005), (100_000_000, 1.02))
"""Up to so many replicas x brokers, a first plan is good enough if it copies at most so many times
the bytes of the bound. Of larger clusters it is taken as it is."""
_EXACT: Final = 1e-6
_FULL: Final = 0.9
"""The part of a broker's disks that a plan fills at most."""


class Goal(NamedTuple):
    """What a plan is for.

    Attributes:
        act_above: a resource is levelled if a broker has more than this many times the mean.
        plan_to: how many times the mean a broker has afterwards at most.
        payback_s: a replica moves only if in so many seconds it takes as many bytes away from its
            broker as are copied; this does not hold for disks, nor for `drain` and `relieve`.
        drain: brokers that end without replicas.
        relieve: if there are any, leaders and replicas leave only these.
        without_leaders: brokers that end without leaders, such as slow ones.
        leaders_only: whether no replica moves.
    """

    act_above: float = 1.15
    plan_to: float = 1.05
    payback_s: float = 6 * 3600.0
    drain: frozenset[int] = frozenset()
    relieve: frozenset[int] = frozenset()
    without_leaders: frozenset[int] = frozenset()
    leaders_only: bool = False


class Level(NamedTuple):
    """How one resource is spread over the brokers.

    Attributes:
        loads: by broker id.
        level: the largest load, as a multiple of the mean; 1 if there is no load.
        reachable: no placement reaches a lower level, as one partition may have more than the mean
            alone; whole partitions may keep the level higher.
    """

    loads: Mapping[int, float]
    mean: float
    level: float
    reachable: float

    @property
    def busiest(self) -> int:
        """The broker with the largest load."""
        return max(self.loads, key=lambda broker: (self.loads[broker], -broker))


class Change(NamedTuple):
    """A partition whose leader or replicas change.

    Attributes:
        replicas: the new ones, the new leader first.
        copied: bytes.
        payback_s: seconds until the brokers that it leaves have been spared as many bytes; None if
            nothing is copied, or no rate is spared.
        reason: a sentence for people.
    """

    before: PartitionLoad
    replicas: tuple[int, ...]
    copied: int
    payback_s: float | None
    reason: str

    @property
    def leader(self) -> int:
        return self.replicas[0]

    @property
    def moves_replicas(self) -> bool:
        return self.copied > 0 or set(self.replicas) != set(self.before.replicas)


class LevelPlan(NamedTuple):
    """The changes, leaders first, and the levels before and after them, by resource.

    Attributes:
        copied: bytes, of all changes.
        bound: no plan that reaches these levels copies fewer bytes.
        reasons: why the cluster needs a plan; empty if it is level.
        unmet: what this plan does not reach; empty if it reaches the goal.
    """

    changes: Sequence[Change]
    before: Mapping[str, Level]
    after: Mapping[str, Level]
    copied: int
    bound: int
    reasons: Sequence[str]
    unmet: Sequence[str]

    @property
    def assignment(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The new replicas of each partition that changes, the leader first."""
        return {change.before.partition: change.replicas for change in self.changes}

    def _repr_html_(self) -> str:
        """The levels, the reasons and the changes, in a notebook."""
        levels = [
            (
                name,
                level.busiest if level.loads else None,
                f"{level.level:.2f} x",
                f"{self.after[name].level:.2f} x",
            )
            for name, level in self.before.items()
        ]
        changes = [
            (each.before.partition, each.before.replicas, each.replicas, each.reason)
            for each in self.changes
        ]
        heads = ("bytes", "busiest broker", "of the mean", "with the plan")
        title = (
            f"{len(changes)} changes, {_bytes(self.copied)} copied; at least {_bytes(self.bound)}"
        )
        notes = [*self.reasons, *(f"not reached: {each}" for each in self.unmet)]
        shown = to_table("Levels", heads, levels, notes or ["Level: nothing to do."])
        return shown + to_table(title, ("partition", "from", "to", "why"), changes)


def find_levels(load: ClusterLoad, goal: Goal = Goal()) -> dict[str, Level]:  # noqa: B008
    """The level of each resource over the brokers that may have it.

    These are the brokers that are alive, but those that are to be drained, or to lead nothing. What
    they have counts for the mean, as the others get it.
    """
    alive = {broker.id for broker in load.brokers.values() if broker.is_alive}
    stored_on = alive - goal.drain
    counted = {
        cluster_load.OUT: stored_on - goal.without_leaders,
        cluster_load.IN: stored_on,
        cluster_load.DISK: stored_on,
    }
    sums: dict[str, dict[int, float]] = {
        name: dict.fromkeys(load.brokers, 0.0) for name in RESOURCES
    }
    out, written, stored = (sums[name] for name in RESOURCES)
    largest = dict.fromkeys(RESOURCES, 0.0)
    for partition in load.partitions:
        if partition.leader in out:
            out[partition.leader] += partition.leader_out
        for broker in partition.replicas:
            if broker in written:
                written[broker] += partition.bytes_in
                stored[broker] += partition.size
        amounts = (partition.leader_out, partition.bytes_in, float(partition.size))
        for name, amount in zip(RESOURCES, amounts, strict=True):
            largest[name] = max(largest[name], amount)
    found = {}
    for name in RESOURCES:
        loads, brokers = sums[name], counted[name]
        total = sum(loads[broker] for broker in sorted(alive | goal.drain.intersection(loads)))
        mean = total / len(brokers) if brokers else 0.0
        most = max((loads[broker] for broker in sorted(brokers)), default=0.0)
        found[name] = Level(
            {broker: loads[broker] for broker in load.brokers if broker in brokers},
            mean,
            most / mean if mean else 1.0,
            max(1.0, largest[name] / mean) if mean else 1.0,
        )
    return found


def find_level_plan(load: ClusterLoad, goal: Goal = Goal()) -> LevelPlan:  # noqa: B008
    """The plan that levels a cluster with the fewest bytes.

    The same load gives the same plan, unless a machine is so slow that the solver's 50 s are over:
    then the first plan is taken. `copied` may exceed `bound`, most where partitions are few
    and large.

    Raises:
        UsageError: the goal names a broker that the cluster does not have.
    """
    for name in ("drain", "relieve", "without_leaders"):
        for broker in sorted(getattr(goal, name).difference(load.brokers)):
            known = ", ".join(map(str, load.brokers))
            raise UsageError(f"{name} {broker}: there is no such broker; there are {known}")
    before = find_levels(load, goal)
    planner = _Planner(load, goal, before)
    chosen, bound = planner.plan() if planner.reasons else ({}, 0.0)
    changes = [planner.describe(row, choice) for row, choice in sorted(chosen.items())]
    changes.sort(key=lambda change: change.moves_replicas)
    after = {change.before.partition: change for change in changes}
    moved = load._replace(
        partitions=[
            partition
            if (change := after.get(partition.partition)) is None
            else partition._replace(replicas=change.replicas, leader=change.leader)
            for partition in load.partitions
        ]
    )
    copied = sum(change.copied for change in changes)
    levels = find_levels(moved, goal) if changes else before
    return LevelPlan(
        changes,
        before,
        levels,
        copied,
        min(copied, round(bound)),
        planner.reasons,
        planner.explain(chosen, levels) if planner.reasons else [],
    )


class _Judged(NamedTuple):
    """Choices, and what makes them better than others, less of it first.

    Attributes:
        rank: how far it is beyond limits that hold at any level; the level that it reaches, at
            least the one that is tried; bytes copied.
    """

    choices: dict[int, Choice]
    rank: tuple[float, float, float]


class _Found(NamedTuple):
    """Choices that were to reach the level `tried`, and the level that they reach."""

    choices: dict[int, Choice]
    bound: float
    tried: float
    beyond: float
    level: float


class _Planner:
    def __init__(self, load: ClusterLoad, goal: Goal, levels: Mapping[str, Level]) -> None:
        self._load = load
        self._goal = goal
        self._levels = levels
        self._choices = LevelChoices(load, goal.relieve or None)
        brokers = load.brokers.values()
        self.reasons: list[str] = []
        self._alive = numpy.array([b.is_alive and b.id not in goal.drain for b in brokers], bool)
        self._leads = self._alive & ~numpy.isin(self._choices.ids, list(goal.without_leaders))
        self._drained = numpy.isin(self._choices.ids, list(goal.drain))
        self._relieved = numpy.isin(self._choices.ids, list(goal.relieve))
        self._choices.takes &= self._alive & ~self._relieved
        self._levelled = ((OUT, self._leads), (IN, self._alive), (DISK, self._alive))
        self._shares = self._cap_weights()
        self._acts = [self._must_level(kind) for kind in (OUT, IN, DISK)]
        self._kept = self._find_kept()
        leaders = self._choices.leaders
        for number, broker in enumerate(self._choices.ids):
            if self._drained[number] and (self._choices.replicas == number).any():
                self.reasons.append(f"broker {broker} is to be drained")
            elif broker in goal.without_leaders and (leaders == number).any():
                self.reasons.append(f"broker {broker} is to lead nothing")

    def _must_level(self, kind: int) -> bool:
        name = RESOURCES[kind]
        level = self._levels[name]
        if self._goal.leaders_only and kind != OUT:
            return False
        most = self._goal.plan_to if self._goal.relieve else self._goal.act_above
        some = [
            each for each in level.loads if not self._goal.relieve or each in self._goal.relieve
        ]
        worst = max(some, key=lambda broker: (level.loads[broker], -broker), default=-1)
        if worst < 0 or level.loads[worst] <= most * level.mean:
            return False
        ratio = level.loads[worst] / level.mean
        self.reasons.append(f"broker {worst} has {ratio:.2f} times the mean of {_WORDS[name]}")
        return True

    def plan(self) -> tuple[dict[int, Choice], float]:
        """The choices by row, and the bound in bytes."""
        self._refuse_slow_payback()
        if self._goal.leaders_only:
            self._choices.can_leave[:] = False
        best = self._plan_to(self._goal.plan_to)
        least, work = self._goal.plan_to, self._choices.replicas.size * self._choices.count
        tries = next((tries for most, tries in _TRIES if work <= most), 0)
        for _ in range(tries):
            # Few large partitions do not reach the level: find the least one that is reached.
            if best.level - least <= 0.005 * least:
                break
            other = self._plan_to((least + best.level) / 2)
            if (other.beyond, other.level) < (best.beyond, best.level - _EXACT):
                best = other
            if other.level > other.tried + _EXACT:
                least = other.tried
        if best.level > best.tried + _EXACT:
            # What the plan reaches takes perhaps fewer bytes than what it was to reach.
            if tries:
                other = self._plan_to(best.level)
                if (other.beyond, other.level) <= (best.beyond, best.level + _EXACT):
                    return other.choices, other.bound
            limits = self._set_limits(best.level)
            bound, _ = bound_by_knapsacks(self._choices, self._choices.sum_loads(), limits)
            return best.choices, bound
        return best.choices, best.bound

    def _plan_to(self, level: float) -> _Found:
        choices = self._choices
        limits = self._set_limits(level)
        leaders = self._judge(level_greedily(choices, limits), level)
        if leaders.rank <= (0, level, 0.0):
            return _Found(leaders.choices, 0.0, level, 0.0, level)
        bound, prices = bound_by_knapsacks(choices, choices.sum_loads(), limits)
        best = self._judge(level_greedily(choices, limits, prices), level)
        best = min(best, leaders, key=lambda each: each.rank)
        work = choices.replicas.size * choices.count
        near = next((near for most, near in _NEAR_BOUND if work <= most), None)
        if near is not None and best.rank > (0, level, near * bound):
            try:
                solved = solve_level(choices, limits, best.choices, prices)
            except PlanTooLarge:
                # The first plan is good enough.
                pass
            else:
                bound = max(bound, solved.bound)
                best = min(best, self._judge(solved.choices, level), key=lambda each: each.rank)
        beyond, reached, _ = best.rank
        return _Found(best.choices, bound, level, beyond, reached)

    def _refuse_slow_payback(self) -> None:
        choices = self._choices
        if self._acts[DISK] or self._goal.relieve:
            return
        for place in range(choices.replicas.shape[1]):
            here = choices.replicas[:, place]
            relieved = choices.raw_weights[IN] + choices.raw_weights[OUT] * (
                here == choices.leaders
            )
            pays = choices.sizes <= relieved * self._goal.payback_s
            pays |= numpy.append(self._drained, False)[here]
            choices.can_leave[:, place] &= pays

    def _cap_weights(self) -> Floats:
        """By kind and broker, what it has at most at `plan_to`; no partition counts as more."""
        choices = self._choices
        shares = numpy.full((COUNT, choices.count), numpy.inf)
        for kind, counted in self._levelled:
            if kind == OUT:
                copies = numpy.append(self._alive | self._drained, False)[choices.leaders]
            else:
                copies = numpy.append(counted | self._drained, False)[choices.replicas].sum(1)
            raw = choices.raw_weights[kind]
            most = _share(raw, copies.astype(int), int(counted.sum()), self._goal.plan_to)
            numpy.minimum(raw, most, out=choices.weights[kind])
            shares[kind, counted] = most
        return shares

    def _find_kept(self) -> Floats:
        """By kind and broker, the present load if that may stay as it is, else 0."""
        kept = self._choices.sum_loads()[:COUNT]
        for kind, acts in enumerate(self._acts):
            if acts:
                kept[kind, self._relieved if self._goal.relieve else slice(None)] = 0
        return kept

    def _set_limits(self, level: float) -> Floats:
        """The limits, by kind and broker; at an infinite level those that hold for any."""
        choices = self._choices
        limits = numpy.full((KINDS, choices.count), numpy.inf)
        for kind, _ in self._levelled:
            # Above `act_above` another plan would begin at once.
            most = level if self._acts[kind] else min(level, self._goal.act_above)
            ceilings = numpy.full(choices.count, most)
            if self._goal.relieve:
                ceilings[~self._relieved] = min(level, self._goal.act_above)
            some = numpy.isfinite(self._shares[kind]) & numpy.isfinite(ceilings)
            limits[kind, some] = self._shares[kind, some] * ceilings[some] / self._goal.plan_to
            limits[kind] = numpy.maximum(limits[kind], self._kept[kind])
        loads = choices.sum_loads()
        for number, broker in enumerate(self._load.brokers.values()):
            limits[COUNT, number] = loads[COUNT, number] + max(0, broker.free)
            if broker.disk is not None and limits[DISK, number] > _FULL * broker.disk:
                limits[DISK, number] = max(_FULL * broker.disk, loads[DISK, number])
        limits[COUNT, self._drained] = 0
        limits[LEADS, ~self._leads & (self._alive | self._drained)] = 0
        return limits

    def _judge(self, chosen: dict[int, Choice], level: float) -> _Judged:
        choices = self._choices
        loads = choices.sum_loads(chosen)
        ways = choices.pack(chosen.items())
        copied = float((choices.sizes[ways.rows] * choices.count_copies(ways)).sum())
        always = self._set_limits(numpy.inf)
        over = loads > always * (1 + _EXACT) + _EXACT
        left = float((loads - always)[COUNT:][over[COUNT:]].sum())
        spoilt = (
            float((loads[over] / numpy.maximum(always[over], 1.0)).sum()) if over.any() else 0.0
        )
        counts = loads[:COUNT] > self._kept * (1 + _EXACT) + _EXACT
        counts &= numpy.isfinite(self._shares)
        ratios = loads[:COUNT][counts] / numpy.maximum(self._shares[counts], _EXACT)
        reached = self._goal.plan_to * float(ratios.max(initial=0.0))
        return _Judged(
            chosen,
            (round(left + spoilt, 6), level if reached <= level + _EXACT else reached, copied),
        )

    def explain(self, chosen: Mapping[int, Choice], levels: Mapping[str, Level]) -> list[str]:
        """What the choices do not reach."""
        choices = self._choices
        loads = choices.sum_loads(chosen)
        said = []
        for number, broker in enumerate(choices.ids):
            replicas, leaders = int(loads[COUNT, number]), int(loads[LEADS, number])
            if self._drained[number] and replicas:
                said.append(
                    f"broker {broker} keeps {replicas} replicas: they move, or are not in sync, or "
                    "no other broker may take them"
                )
            elif broker in self._goal.without_leaders and leaders:
                said.append(f"broker {broker} keeps {leaders} leaders: no other replica may lead")
        for name, acts in zip(RESOURCES, self._acts, strict=True):
            some = self._goal.relieve or levels[name].loads
            most = max((levels[name].loads.get(broker, 0.0) for broker in some), default=0.0)
            if acts and most > (self._goal.plan_to + 0.0005) * levels[name].mean:
                said.append(
                    f"{_WORDS[name]}: {most / levels[name].mean:.2f} times the mean is the least "
                    "level found"
                )
        return said

    def describe(self, row: int, choice: Choice) -> Change:
        """The change that a choice makes, and why."""
        ids = self._choices.ids
        before = self._load.partitions[row]
        leader = ids[choice.leader]
        replicas = [ids[broker] for broker in choice.replicas]
        kept = [broker for broker in replicas if broker in before.replicas]
        added = [broker for broker in replicas if broker not in before.replicas]
        removed = [broker for broker in before.replicas if broker not in replicas]
        order = (leader, *(each for each in (*kept, *added) if each != leader))
        copied = before.size * len(added)
        spared = before.bytes_in * len(removed)
        if before.leader != leader and before.leader in removed:
            spared += before.leader_out
        parts = []
        if leader != before.leader:
            parts.append(
                f"broker {leader} leads instead of {before.leader}: {_rate(before.leader_out)} sent"
            )
        for old, new in zip(removed, added, strict=True):
            parts.append(f"its replica goes from {old} to {new}: {_rate(before.bytes_in)} written")
        reason = "; ".join(parts) + (f", {_bytes(copied)} copied" if copied else ", nothing copied")
        payback = copied / spared if copied and spared else None
        return Change(before, order, copied, payback, reason)


_WORDS: Final = {
    "out": "bytes that leaders send",
    "in": "bytes written",
    "disk": "bytes stored",
}


def _share(weights: Floats, copies: Integers, brokers: int, plan_to: float) -> float:
    """The most that a broker should have, if a partition that has more counts as that much.

    It is at least what the smallest partition has: of few partitions each broker has one at most.
    """
    loaded = (weights > 0) & (copies > 0)
    if not brokers or not loaded.any():
        return 0.0
    weights, copies = weights[loaded], copies[loaded]
    order = numpy.argsort(-weights, kind="stable")
    weights, copies = weights[order], copies[order]
    part = plan_to / brokers
    # If the largest ones, so many, count as one share each.
    left = 1 - part * numpy.append(0, numpy.cumsum(copies)[:-1])
    others = numpy.cumsum((weights * copies)[::-1])[::-1]
    shares = part * others / numpy.where(left > 0, left, 1.0)
    fits = numpy.flatnonzero((left > 0) & (shares >= weights))
    return float(shares[fits[0]]) if len(fits) else float(weights[-1])


def _rate(amount: float) -> str:
    return f"{_bytes(amount)}/s"


def _bytes(amount: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"
