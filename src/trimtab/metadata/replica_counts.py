"""How many replicas each broker has, as KIP-578 counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that the cluster makes for itself: neither limited nor counted."""


class ReplicaCounts:
    """Replicas by broker, alive or dead. While a partition moves, what is being added and what is
    to be removed both count: both are there.

    `ClusterImage` keeps one, so that creating a topic costs the same however many there are.

    Attributes:
        on: replicas of each broker; 0 for those that have none.
        preferred: how many of them are the first of their partition's.
        total: of all brokers.
    """

    __slots__ = ("on", "preferred", "total")

    def __init__(self) -> None:
        self.on: Counter[int] = Counter()
        self.preferred: Counter[int] = Counter()
        self.total = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplicaCounts) and (self.on, self.preferred, self.total) == (
            other.on,
            other.preferred,
            other.total,
        )

    __hash__ = None  # type: ignore[assignment]

    def add(self, replicas: Sequence[int]) -> None:
        """A partition with these replicas is there."""
        for broker in replicas:
            self.on[broker] += 1
        self.preferred[replicas[0]] += 1
        self.total += len(replicas)

    def remove(self, replicas: Sequence[int]) -> None:
        """A partition with these replicas is gone."""
        for broker in replicas:
            self.on[broker] -= 1
        self.preferred[replicas[0]] -= 1
        self.total -= len(replicas)

    def copy(self) -> ReplicaCounts:
        """Counts of their own that are the same now."""
        copied = ReplicaCounts()
        copied.on = self.on.copy()
        copied.preferred = self.preferred.copy()
        copied.total = self.total
        return copied
