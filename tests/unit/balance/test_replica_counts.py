"""Replicas by broker (`trimtab.balance.replica_counts`)."""

from __future__ import annotations

from trimtab.balance.replica_counts import ReplicaCounts


def test_counts_follow_created_and_deleted_partitions() -> None:
    counts = ReplicaCounts()
    counts.add_replicas((2, 1))
    counts.add_replicas((1, 2, 3))
    assert (dict(counts.on), dict(counts.preferred), counts.total) == (
        {1: 2, 2: 2, 3: 1},
        {1: 1, 2: 1},
        5,
    )
    counts.remove_replicas((2, 1))
    assert (counts.on[1], counts.on[2], counts.preferred[2], counts.total) == (1, 1, 0, 3)


def test_a_copy_is_independent() -> None:
    counts = ReplicaCounts()
    counts.add_replicas((1,))
    copied = counts.copy()
    assert copied == counts
    copied.add_replicas((1,))
    assert (copied != counts, counts.on[1]) == (True, 1)


def test_a_broker_without_replicas_counts_zero() -> None:
    counts = ReplicaCounts()
    counts.add_replicas((1, 2))
    counts.remove_replicas((1, 2))
    assert counts == ReplicaCounts()
