"""Placement: leaders level, racks alternating."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, NamedTuple

import pytest

from trimtab.controller.placement import alternate_racks, place, usable_brokers


class Candidate(NamedTuple):
    id: int
    rack: str | None
    fenced: bool = False


def brokers(racks: str) -> list[Candidate]:
    return [Candidate(number, None if rack == "-" else rack) for number, rack in enumerate(racks)]


@pytest.mark.parametrize(
    ("racks", "order"),
    [("---", [0, 1, 2]), ("abc", [0, 1, 2]), ("aabb", [0, 2, 1, 3]), ("aaab", [0, 3, 1, 2])],
)
def test_neighbours_are_of_different_racks(racks: str, order: list[int]) -> None:
    assert [broker.id for broker in alternate_racks(reversed(brokers(racks)))] == order


@pytest.mark.parametrize(
    ("racks", "factor"),
    [("-", 1)] + [(r, f) for r in ("---", "abc", "aabbc", "aaab", "aabbccdd") for f in (1, 2, 3)],
)
def test_leaders_and_replicas_are_level(racks: str, factor: int) -> None:
    count = len(racks)
    for seed in range(10):
        for partitions in (1, count, 3 * count + 1):
            placed = place(brokers(racks), partitions, factor, Random(seed))
            assert all(len(set(replicas)) == factor for replicas in placed)
            leaders = Counter(replicas[0] for replicas in placed)
            assert max(leaders.values()) - min(leaders[n] for n in range(count)) <= 1
            for replicas in placed:
                used = {racks[replica] for replica in replicas}
                if "-" not in used:
                    assert len(used) == min(factor, len(set(racks)))


def test_the_start_is_drawn() -> None:
    starts = {place(brokers("abc"), 1, 1, Random(seed))[0][0] for seed in range(50)}
    assert starts == {0, 1, 2}


def test_followers_of_one_leader_differ() -> None:
    placed = place(brokers("----"), 12, 2, Random(0))
    assert len({tuple(replicas) for replicas in placed}) == 12


def test_fenced_brokers_lead_nothing_and_follow_where_no_other_is_left() -> None:
    candidates = [broker._replace(fenced=broker.id > 2) for broker in brokers("-----")]
    for seed in range(10):
        placed = place(candidates, 9, 3, Random(seed))
        assert all(max(replicas) < 3 for replicas in placed)
        placed = place(candidates, 9, 4, Random(seed))
        assert all(max(replicas[:3]) < 3 <= replicas[3] for replicas in placed)


def test_another_rack_counts_for_more_than_a_fence() -> None:
    candidates = [broker._replace(fenced=broker.id == 2) for broker in brokers("aab")]
    assert all(replicas[1] == 2 for replicas in place(candidates, 6, 2, Random(1)))


def test_brokers_that_are_about_to_end_get_nothing(scene: Any) -> None:
    scene.put_broker(1, in_controlled_shutdown=True)
    scene.put_broker(2, in_controlled_shutdown=True, fenced=True)
    assert [broker.id for broker in usable_brokers(scene.image)] == [2, 3]
