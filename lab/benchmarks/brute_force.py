"""Optimal placements and plans of small clusters by brute force, for comparison."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from trimtab.balance.moves import MOVE_COST, PlacedPartition, TargetBroker, rack_bounds
from trimtab.balance.placement import PlacementGoal, Room


def rack_cost(racks: Sequence[str | None]) -> int:
    """A cost that grows with the number of a partition's replicas that share a rack."""
    return sum(count * count for count in Counter(racks).values())


def least_rack_costs(
    brokers: Sequence[Room], partitions: int, factor: int
) -> dict[tuple[int, ...], int]:
    """The lowest rack cost of all assignments of new partitions, by the replicas that each broker
    gets; empty if there is no assignment."""
    choices = {
        chosen: rack_cost([brokers[each].rack for each in chosen])
        for chosen in itertools.combinations(range(len(brokers)), factor)
    }
    costs = {(0,) * len(brokers): 0}
    for _ in range(partitions):
        more: dict[tuple[int, ...], int] = {}
        for held, before in costs.items():
            for chosen, cost in choices.items():
                if all(held[each] < brokers[each].free for each in chosen):
                    after = tuple(count + (each in chosen) for each, count in enumerate(held))
                    more[after] = min(before + cost, more.get(after, before + cost))
        costs = more
    return costs


class PlanCost(NamedTuple):
    """The cost of a plan; plans compare by the first attribute, then by the next.

    Attributes:
        excess: replicas above the brokers' limits.
        uneven: replicas by which partitions deviate from an even spread over racks.
        unlevel: leaders by which brokers deviate from an equal share.
        moves: bytes to be copied, plus `MOVE_COST` for each replica.
        leaders: preferred leaders that change.
    """

    excess: int
    uneven: int
    unlevel: int
    moves: int
    leaders: int


def judge_plan(
    placed: Sequence[PlacedPartition],
    targets: Sequence[TargetBroker],
    chosen: Sequence[Sequence[int]],
    goal: PlacementGoal = PlacementGoal.RACKS,
) -> PlanCost | None:
    """The cost of these replicas, leaders first; None if they exceed the brokers' limits."""
    rack = {target.id: target.rack for target in targets}
    sizes = Counter(rack.values())
    pairs = list(zip(placed, chosen, strict=True))
    came = Counter(broker for each, to in pairs for broker in to if broker not in each.replicas)
    if any(came[target.id] > target.room for target in targets):
        return None
    held = Counter(broker for each in placed for broker in each.replicas)
    kept = Counter(broker for each, to in pairs for broker in to if broker in each.replicas)
    excess = sum(
        max(0, kept[target.id] - max(0, held[target.id] - target.excess))
        for target in targets
        if target.excess
    )
    uneven = 0
    for replicas in chosen:
        here = Counter(rack[broker] for broker in replicas)
        for name, (least, most) in rack_bounds(sizes, len(replicas), goal).items():
            uneven += max(0, least - here[name]) + max(0, here[name] - most)
    leaders = Counter(replicas[0] for replicas in chosen)
    share, rest = divmod(len(chosen), len(targets))
    unlevel = sum(
        max(0, share - leaders[target.id]) + max(0, leaders[target.id] - share - bool(rest))
        for target in targets
    )
    moves = sum((each.size + MOVE_COST) * len(set(to) - set(each.replicas)) for each, to in pairs)
    changed = sum(to[0] != each.replicas[0] for each, to in pairs)
    return PlanCost(excess, uneven, unlevel, moves, changed)


def least_plan_cost(
    placed: Sequence[PlacedPartition],
    targets: Sequence[TargetBroker],
    goal: PlacementGoal = PlacementGoal.RACKS,
) -> PlanCost | None:
    """The lowest cost of all plans; None if there is none."""
    ways = [
        [
            (leader, *(other for other in group if other != leader))
            for group in itertools.combinations(
                [target.id for target in targets], len(each.replicas)
            )
            for leader in group
        ]
        for each in placed
    ]
    return min(
        (
            cost
            for chosen in itertools.product(*ways)
            if (cost := judge_plan(placed, targets, chosen, goal)) is not None
        ),
        default=None,
    )
