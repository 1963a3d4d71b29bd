from __future__ import annotations

from itertools import permutations

import pytest

from trimtab.balance.next_replicas import Blocked, next_replicas
from trimtab.balance.observed import ShownPartition


def shown(*replicas: int, leader: int | None = None, out: set[int] | None = None) -> ShownPartition:
    first = replicas[0] if leader is None else leader
    return ShownPartition(replicas, first, frozenset(replicas) - (out or set()))


@pytest.mark.parametrize(
    ("present", "wanted", "steps"),
    [
        ((1, 2), (1, 3), [(1, 3)]),
        ((1, 2), (3, 4), [(3, 2), (3, 4)]),
        ((1, 2, 3), (4, 5, 6), [(4, 2, 3), (4, 5, 3), (4, 5, 6)]),
        ((1, 2, 3), (2, 4, 5), [(2, 4, 1), (2, 4, 5)]),
        ((1,), (2, 3), [(2, 1), (2, 3)]),
        ((1, 2, 3), (2,), [(2,)]),
        ((1, 2, 3), (4,), [(4,)]),
        ((1, 2, 3, 4), (5, 6), [(5, 4), (5, 6)]),
    ],
)
def test_one_replica_comes_at_a_time_and_the_wanted_leader_first(
    present: tuple[int, ...], wanted: tuple[int, ...], steps: list[tuple[int, ...]]
) -> None:
    found = []
    at = shown(*present)
    while at.replicas != wanted:
        found.append(next_replicas(at, wanted))
        at = shown(*found[-1])
    assert found == steps


def test_any_change_takes_as_many_steps_as_replicas_come() -> None:
    for present in permutations(range(5), 3):
        for wanted in permutations(range(5), 3):
            if {*present} == {*wanted}:
                continue
            at, steps = shown(*present), 0
            while at.replicas != wanted:
                target = next_replicas(at, wanted)
                assert len({*target} - {*at.replicas}) == 1
                assert wanted[0] == target[0]
                at, steps = shown(*target), steps + 1
            assert steps == len({*wanted} - {*present})


def test_a_replica_that_is_out_is_replaced_before_any_other() -> None:
    assert next_replicas(shown(1, 2, 3, out={3}), (1, 4, 5)) == (1, 4, 2)
    assert next_replicas(shown(1, 2, 3, out={3}), (1, 2)) == (1, 2)


@pytest.mark.parametrize("out", [{1}, {2, 3}])
def test_nothing_moves_while_a_replica_that_stays_or_more_than_one_is_out(out: set[int]) -> None:
    with pytest.raises(Blocked, match=f"{min(out)}.* not in the ISR"):
        next_replicas(shown(1, 2, 3, leader=4, out=out), (1, 4, 5))


def test_without_a_leader_nothing_moves() -> None:
    with pytest.raises(Blocked, match="no leader"):
        next_replicas(shown(1, 2, leader=-1), (1, 3))
