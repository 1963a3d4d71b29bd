"""Moves of replicas to other brokers, and the values that they are planned from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trimtab.balance.placement import PlacementGoal
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

MOVE_COST = 1 << 20
"""Bytes added to the cost of each move, so that empty replicas do not move without need."""


class PlacedPartition(NamedTuple):
    """A partition and its current replicas.

    Attributes:
        replicas: broker ids, the preferred leader first.
        size: bytes of one replica.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    size: int


class TargetBroker(NamedTuple):
    """A broker on which replicas may be placed.

    Attributes:
        free: replicas that its limit still allows; negative if it has more than its limit.
    """

    id: int
    rack: str | None
    free: int

    @property
    def room(self) -> int:
        """Number of further replicas that its limit allows."""
        return max(0, self.free)

    @property
    def excess(self) -> int:
        """Number of its replicas above its limit."""
        return max(0, -self.free)


class Move(NamedTuple):
    """A partition whose replicas, or only their order, change.

    Attributes:
        replicas: the new broker ids, the preferred leader first.
        reasons: why, as sentences for people.
    """

    placed: PlacedPartition
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


def rack_bounds(
    racks: Mapping[str | None, int], factor: int, goal: PlacementGoal = PlacementGoal.RACKS
) -> dict[str | None, tuple[int, int]]:
    """By rack, the fewest and the most replicas of a partition that is spread evenly.

    Args:
        racks: number of brokers in each rack.
        factor: number of the partition's replicas.
        goal: with another than `RACKS`, a rack has its share by number of brokers, rounded up or
            down, as then all brokers can have the same number of replicas (KIP-1194).
    """
    if goal is not PlacementGoal.RACKS:
        brokers = sum(racks.values())
        return {
            rack: (factor * size // brokers, -(-factor * size // brokers))
            for rack, size in racks.items()
        }
    most = 1
    while sum(min(size, most) for size in racks.values()) < factor:
        most += 1
    return {rack: (min(size, most - 1), min(size, most)) for rack, size in racks.items()}


def estimate_seconds(moves: Sequence[Move], throttle: int) -> float:
    """The time that the busiest broker needs to send or receive its bytes.

    Args:
        throttle: bytes per second, for each broker and direction.
    """
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for move in moves:
        sent[move.placed.replicas[0]] += move.bytes
        for broker in move.added:
            received[broker] += move.placed.size
    return max((*sent.values(), *received.values()), default=0) / throttle
