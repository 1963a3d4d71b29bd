"""Which replicas move where: the fewest bytes that bring limits, racks and leaders into order.

Replicas go to the brokers that are given and to no others. Beyond that, in this order:

1. no broker gets beyond its limit, not even while both the old and the new replicas are there, and
   one that is beyond it loses what it has too much;
2. each partition is spread over the racks as evenly as can be;
3. each broker is the preferred leader of as many of these partitions as the others, give or take
   one;
4. as few bytes move as possible, then as few preferred leaders change.

What does not have to move, stays. Kafka's own tool deals the replicas out anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from trimtab.errors import UsageError
from trimtab.records import TopicPartition

MOVE_COST = 1 << 20
"""Bytes that a move costs besides those of its log: an empty replica is not moved for nothing."""


class Placed(NamedTuple):
    """A partition as it is placed now.

    Attributes:
        replicas: broker ids, the preferred leader first.
        size: bytes of one replica.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    size: int


class Target(NamedTuple):
    """A broker that replicas may be on.

    Attributes:
        room: how many replicas it may get.
        excess: how many it has beyond its limit.
    """

    id: int
    rack: str | None
    room: int
    excess: int = 0


class Move(NamedTuple):
    """One partition that changes its replicas, or only their order.

    Attributes:
        reasons: why, in words.
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
        """To be copied."""
        return self.placed.size * len(self.added)


class NoPlan(UsageError):
    """The brokers have no room for what must move to them."""


def find_moves(placed: Sequence[Placed], targets: Sequence[Target]) -> list[Move]:
    """The moves that bring the partitions to where they should be; none if all is well.

    Args:
        targets: at least as many as a partition has replicas.

    Raises:
        NoPlan: there are too few brokers, or they have too little room.
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
    NoPlan: a partition has more replicas than there are brokers for it.
    """
    most = max(placed, key=lambda each: len(each.replicas), default=None)
    if most is not None and len(most.replicas) > len(targets):
        there = "is only 1 broker" if len(targets) == 1 else f"are only {len(targets)} brokers"
        raise NoPlan(
            f"partition {most.partition.topic}-{most.partition.partition} has "
            f"{len(most.replicas)} replicas, but there {there} to put them on: name more with "
            "--broker-list"
        )


def rack_bounds(racks: Mapping[str | None, int], factor: int) -> dict[str | None, tuple[int, int]]:
    """The fewest and the most replicas of one partition in each rack, where they are spread as
    evenly as can be.

    Args:
        racks: how many brokers each has.
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
        yield f"broker {replicas[0]} is to lead, so that leaders are level; nothing is copied"
        return
    foreign = [each for each in removed if each not in allowed]
    if foreign:
        yield f"{_brokers(foreign)} not in the list"
    ours = [each for each in removed if each in allowed]
    full = [each for each in ours if allowed[each].excess]
    if full:
        yield f"{_brokers(full)} beyond the limit"
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
        yield f"broker {replicas[0]} is to lead, so that leaders are level"
    elif ours and not full and not crowded:
        yield f"{_brokers(ours)} making room, so that leaders are level"


def _brokers(ids: Sequence[int]) -> str:
    return f"broker {ids[0]} is" if len(ids) == 1 else f"brokers {', '.join(map(str, ids))} are"
