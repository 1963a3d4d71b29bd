"""Plans which replicas move to which brokers, so that the fewest bytes are copied.

Replicas are placed only on the given brokers. The goals, the most important first:

1. No broker exceeds its limit, even while the old and the new replicas both exist; a broker over
   its limit loses the excess.
2. Each partition is spread over the racks as evenly as possible.
3. All brokers are the preferred leader of the same number of these partitions, give or take one.
4. As few bytes are copied as possible, then as few preferred leaders change.

Replicas that need not move stay where they are. Kafka's own tool assigns all replicas again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from trimtab.errors import UsageError
from trimtab.records import TopicPartition

MOVE_COST = 1 << 20
"""Bytes added to the cost of each move, so that empty replicas do not move without need."""


class Placed(NamedTuple):
    """A partition and its current replicas.

    Attributes:
        replicas: broker ids, the preferred leader first.
        size: bytes of one replica.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    size: int


class Target(NamedTuple):
    """A broker on which replicas may be placed.

    Attributes:
        room: number of further replicas that its limit allows.
        excess: number of its replicas above its limit.
    """

    id: int
    rack: str | None
    room: int
    excess: int = 0


class Move(NamedTuple):
    """A partition whose replicas, or only their order, change.

    Attributes:
        replicas: the new broker ids, the preferred leader first.
        reasons: why, as sentences for people.
    """

    placed: Placed
    replicas: tuple[int, ...]
    reasons: tuple[str, ...]

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.placed.replicas)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(each for each in self.placed.replicas if each not in self.replicas)

    @property
    def bytes(self) -> int:
        """Bytes to be copied."""
        return self.placed.size * len(self.added)


class NoPlan(UsageError):
    """There are too few brokers, or their limits allow too few further replicas."""


def find_moves(placed: Sequence[Placed], targets: Sequence[Target]) -> list[Move]:
    """The moves that reach the goals; an empty list if no partition has to change.

    Args:
        targets: at least as many brokers as a partition has replicas.

    Raises:
        NoPlan: there are too few brokers, or their limits allow too few further replicas.
    """
    check_targets(placed, targets)
    from trimtab.cli.reassign.program import choose_leaders, choose_replicas

    chosen = choose_replicas(placed, targets)
    leaders = choose_leaders(placed, chosen, targets)
    allowed = {target.id: target for target in targets}
    moves = []
    for each, replicas, leader in zip(placed, chosen, leaders, strict=True):
        stay = [broker for broker in each.replicas if broker in replicas and broker != leader]
        come = sorted(replicas.difference(each.replicas, {leader}))
        ordered = (leader, *stay, *come)
        if ordered != each.replicas:
            moves.append(Move(each, ordered, tuple(_explain(each, ordered, allowed))))
    return moves


def check_targets(placed: Iterable[Placed], targets: Sequence[Target]) -> None:
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


def rack_bounds(racks: Mapping[str | None, int], factor: int) -> dict[str | None, tuple[int, int]]:
    """By rack, the fewest and the most replicas of a partition that is spread evenly.

    Args:
        racks: number of brokers in each rack.
        factor: number of the partition's replicas.
    """
    most = 1
    while sum(min(size, most) for size in racks.values()) < factor:
        most += 1
    return {rack: (min(size, most - 1), min(size, most)) for rack, size in racks.items()}


def _explain(
    placed: Placed, replicas: tuple[int, ...], allowed: Mapping[int, Target]
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
    bounds = rack_bounds(Counter(target.rack for target in allowed.values()), len(placed.replicas))
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
