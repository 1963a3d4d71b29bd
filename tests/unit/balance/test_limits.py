"""The replicas that limits still allow; the controller's tests have the cases of KIP-578."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest

from trimtab.balance.limits import (
    PER_BROKER,
    PER_CLUSTER,
    Allowance,
    LimitExceeded,
    PartitionLimits,
)
from trimtab.balance.replica_counts import ReplicaCounts
from trimtab.kafka.errors import ErrorCode

pytestmark = pytest.mark.kip(578)

RACKS = {1: None, 2: None, 3: None}


class Replicas(NamedTuple):
    id: int
    replicas: Sequence[int]
    final_replicas: Sequence[int]


class Limited:
    """An allowance beside 2 replicas on broker 1 and 1 on broker 2."""

    def __init__(self, per_broker: int, per_cluster: int) -> None:
        self.counts = ReplicaCounts()
        self.counts.add_replicas([1, 2])
        self.counts.add_replicas([1])
        self.rejections: Counter[str] = Counter()
        limits = PartitionLimits(per_broker, per_cluster)
        self.allowance = Allowance(self.counts, limits, self.rejections)


@pytest.mark.parametrize(
    ("per_broker", "per_cluster", "most", "limit"),
    [(3, 100, 3, PER_BROKER), (100, 8, 2, PER_CLUSTER), (100, 2, 0, PER_CLUSTER)],
)
def test_a_refusal_says_how_many_partitions_fit_and_grants_none(
    per_broker: int, per_cluster: int, most: int, limit: str
) -> None:
    limited = Limited(per_broker, per_cluster)
    with pytest.raises(LimitExceeded) as refusal:
        limited.allowance.place("t", RACKS, 4, 2, Random(1))
    assert (refusal.value.code, refusal.value.most) == (ErrorCode.POLICY_VIOLATION, most)
    assert f"at most {most} can be placed" in refusal.value.message
    assert limited.rejections == {limit: 1}
    if most:
        assert len(limited.allowance.place("t", RACKS, most, 2, Random(1))) == most


def test_an_allowance_counts_its_own_replicas_and_not_later_ones() -> None:
    limited = Limited(4, 100)
    limited.counts.add_replicas([3, 3, 3, 3])
    placed = limited.allowance.place("t", RACKS, 2, 3, Random(1))
    assert [sorted(each) for each in placed] == [[1, 2, 3], [1, 2, 3]]
    with pytest.raises(LimitExceeded, match="broker 1 would host 5 partition replicas"):
        limited.allowance.check("u", [[1]])
    limited.allowance.check("u", [[2]])


def test_fenced_brokers_get_followers_where_live_ones_are_too_few() -> None:
    placed = Limited(9, 99).allowance.place("t", {1: None}, 2, 2, Random(1), {2: None, 3: None})
    assert [leader for leader, _ in placed] == [1, 1]
    assert {follower for _, follower in placed} <= {2, 3}


def test_a_move_counts_old_and_new_replicas_against_the_brokers_limit_only() -> None:
    limited = Limited(2, 2)
    before, after = Replicas(0, [1, 2], [1, 2]), Replicas(0, [3, 2, 1], [3, 2])
    limited.allowance.check_move("t", before, after)
    with pytest.raises(LimitExceeded, match=r"Unable to reassign partition t-1 to \[1, 3\]"):
        limited.allowance.check_move("t", Replicas(1, [3], [3]), Replicas(1, [1, 3], [1, 3]))
    assert limited.rejections == {PER_BROKER: 1}


def test_exempt_topics_are_neither_limited_nor_counted() -> None:
    limited = Limited(2, 3)
    assert len(limited.allowance.place("__consumer_offsets", RACKS, 50, 3, Random(1))) == 50
    limited.allowance.check("__transaction_state", [[1, 2, 3]] * 9)
    strict = Allowance(limited.counts, PartitionLimits(2, 3), Counter(), exempt=())
    with pytest.raises(LimitExceeded):
        strict.place("__consumer_offsets", RACKS, 1, 1, Random(1))
