"""Optimal placements and plans of small clusters by brute force, for comparison."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from trimtab.balance.moves import MOVE_COST, PlacedPartition, TargetBroker, rack_bounds
from trimtab.balance.placement import Room


def rack_cost(racks: Sequence[str | None]) -> int:
    """A cost that grows with the number of a partition's replicas that share a rack."""
    return sum(count * count for count in Counter(racks).values())


def least_rack_cost(brokers: Sequence[Room], partitions: int, factor: int) -> int | None:
    """The lowest rack cost of all assignments of new partitions; None if there is none."""
    choices = {
        chosen: rack_cost([brokers[each].rack for each in chosen])
        for chosen in itertools.combinations(range(len(brokers)), factor)
    }

    @cache
    def search(left: int, free: tuple[int, ...]) -> int | None:
        if not left:
            return 0
        costs = []
        for chosen, cost in choices.items():
            if all(free[each] for each in chosen):
                rest = tuple(count - (each in chosen) for each, count in enumerate(free))
                others = search(left - 1, rest)
                if others is not None:
                    costs.append(cost + others)
        return min(costs, default=None)

    return search(partitions, tuple(min(room.free, partitions) for room in brokers))


class PlanCost(NamedTuple):
    """The cost of a plan; plans compare by the first attribute, then by the next.

    Attributes:
        excess: replicas above the brokers' limits.
        uneven: replicas by which partitions deviate from an even spread over racks.
        unlevel: leaders by which brokers deviate from an equal share.
        moves: bytes to be copied, plus `MOVE_COST` for each replica.
    """

    excess: int
    uneven: int
    unlevel: int
    moves: int


def judge_plan(
    placed: Sequence[PlacedPartition],
    targets: Sequence[TargetBroker],
    chosen: Sequence[Sequence[int]],
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
        for name, (least, most) in rack_bounds(sizes, len(replicas)).items():
            uneven += max(0, least - here[name]) + max(0, here[name] - most)
    leaders = Counter(replicas[0] for replicas in chosen)
    share, rest = divmod(len(chosen), len(targets))
    unlevel = sum(
        max(0, share - leaders[target.id]) + max(0, leaders[target.id] - share - bool(rest))
        for target in targets
    )
    moves = sum((each.size + MOVE_COST) * len(set(to) - set(each.replicas)) for each, to in pairs)
    return PlanCost(excess, uneven, unlevel, moves)


def least_plan_cost(
    placed: Sequence[PlacedPartition], targets: Sequence[TargetBroker]
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
            if (cost := judge_plan(placed, targets, chosen)) is not None
        ),
        default=None,
    )
