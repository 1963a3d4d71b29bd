"""The number of replicas of each broker, as KIP-578 counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that the cluster creates itself: neither limited nor counted."""


class ReplicaCounts:
    """Replicas by broker, live or dead. During a reassignment the added and the removed replicas
    both count, as both exist.

    `ClusterImage` keeps one up to date, so that the cost of creating a topic does not depend on the
    number of topics.

    Attributes:
        on: replicas by broker id; 0 for brokers without replicas.
        preferred: by broker id, the replicas that are the first of their partition.
        total: replicas of all brokers.
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

    def add_replicas(self, replicas: Sequence[int]) -> None:
        """Count a new partition with these replicas."""
        for broker in replicas:
            self.on[broker] += 1
        self.preferred[replicas[0]] += 1
        self.total += len(replicas)

    def remove_replicas(self, replicas: Sequence[int]) -> None:
        """Stop counting a partition with these replicas."""
        for broker in replicas:
            self.on[broker] -= 1
        self.preferred[replicas[0]] -= 1
        self.total -= len(replicas)

    def copy(self) -> ReplicaCounts:
        """An independent copy."""
        copied = ReplicaCounts()
        copied.on = self.on.copy()
        copied.preferred = self.preferred.copy()
        copied.total = self.total
        return copied
