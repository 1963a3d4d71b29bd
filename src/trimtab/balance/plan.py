"""Plans which replicas move to which brokers, so that the fewest bytes are copied.

Replicas are placed only on the given brokers. The goals, the most important first:

1. No broker exceeds its limit, even while the old and the new replicas both exist; a broker over
   its limit loses the excess.
2. Each partition is spread over the racks as evenly as possible; if the `PlacementGoal` is not
   `RACKS`, in proportion to the brokers of each rack (KIP-1194).
3. All brokers are the preferred leader of the same number of these partitions, give or take one.
4. As few bytes are copied as possible, then as few preferred leaders change.

Replicas that need not move stay where they are. Kafka's own tool assigns all replicas again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trimtab.balance.moves import Move, NoPlan, PlacedPartition, TargetBroker, rack_bounds
from trimtab.balance.placement import PlacementGoal


def find_moves(
    placed: Sequence[PlacedPartition],
    targets: Sequence[TargetBroker],
    goal: PlacementGoal = PlacementGoal.RACKS,
) -> list[Move]:
    """The moves that reach the goals; an empty list if no partition has to change.

    Args:
        targets: at least as many brokers as a partition has replicas.

    Raises:
        NoPlan: there are too few brokers, or their limits allow too few further replicas.
    """
    _check_targets(placed, targets)
    from trimtab.balance.leader_flow import choose_freely

    chosen = choose_freely(placed, targets, goal)
    if chosen is None:
        from trimtab.balance.linear_program import choose_within_limits

        chosen = choose_within_limits(placed, targets, goal)
    allowed = {target.id: target for target in targets}
    return [
        Move(partition, replicas, tuple(_explain(partition, replicas, allowed, goal)))
        for partition, replicas in zip(placed, chosen, strict=True)
        if replicas != partition.replicas
    ]


def find_lone_brokers(
    placed: Iterable[PlacedPartition],
    targets: Sequence[TargetBroker],
    goal: PlacementGoal = PlacementGoal.RACKS,
) -> dict[int, int]:
    """The brokers that are alone in their rack and so must have a replica of each partition, of
    those with fewer replicas than there are brokers: by broker id, how many that are."""
    racks = Counter(target.rack for target in targets)
    lone: Counter[int] = Counter()
    for factor, count in Counter(len(each.replicas) for each in placed).items():
        bounds = rack_bounds(racks, factor, goal)
        elsewhere = sum(most for _, most in bounds.values()) - 1
        if elsewhere < factor < len(targets):
            lone.update({each.id: count for each in targets if racks[each.rack] == 1})
    return dict(lone)


def _check_targets(placed: Iterable[PlacedPartition], targets: Sequence[TargetBroker]) -> None:
    """Raises:
    NoPlan: a partition has more replicas than there are brokers.
    """
    most = max(placed, key=lambda each: len(each.replicas), default=None)
    if most is not None and len(most.replicas) > len(targets):
        there = "is only 1 broker" if len(targets) == 1 else f"are only {len(targets)} brokers"
        raise NoPlan(
            f"partition {most.partition.topic}-{most.partition.partition} has "
            f"{len(most.replicas)} replicas, but there {there} for them: name more with "
            "--broker-list"
        )


def _explain(
    placed: PlacedPartition,
    replicas: tuple[int, ...],
    allowed: Mapping[int, TargetBroker],
    goal: PlacementGoal,
) -> Iterable[str]:
    removed = [each for each in placed.replicas if each not in replicas]
    if not removed:
        yield f"broker {replicas[0]} becomes the leader, to balance leaders; nothing is copied"
        return
    foreign = [each for each in removed if each not in allowed]
    if foreign:
        yield f"{_brokers(foreign)} not in the list"
    ours = [each for each in removed if each in allowed]
    full = [each for each in ours if allowed[each].excess]
    if full:
        yield f"{_brokers(full)} over the limit"
    sizes = Counter(target.rack for target in allowed.values())
    bounds = rack_bounds(sizes, len(placed.replicas), goal)
    racks = Counter(allowed[each].rack for each in placed.replicas if each in allowed)
    crowded = {
        rack
        for rack, count in racks.items()
        if count > sum(each in allowed and allowed[each].rack == rack for each in replicas)
        and (
            count > bounds[rack][1]
            or any(racks[other] < least for other, (least, _) in bounds.items())
        )
    }
    for rack in sorted(crowded, key=str):
        yield f"rack {rack} had {racks[rack]} of its replicas"
    if replicas[0] not in placed.replicas and not foreign and not full and not crowded:
        yield f"broker {replicas[0]} becomes the leader, to balance leaders"
    elif ours and not full and not crowded:
        yield f"{_brokers(ours)} losing a replica, to balance leaders"


def _brokers(ids: Sequence[int]) -> str:
    return f"broker {ids[0]} is" if len(ids) == 1 else f"brokers {', '.join(map(str, ids))} are"
