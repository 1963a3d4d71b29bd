"""Placement: finds an assignment if one exists, spreads racks, balances replicas and leaders."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.brute_force import least_rack_cost, rack_cost
from trimtab.balance.placement import NoRoom, Room, count_placeable, place
from trimtab.config import LONG_MAX


def rooms(racks: str, free: int = LONG_MAX) -> list[Room]:
    """A broker for each letter, which is its rack; '-' for none."""
    return [
        Room(number, None if rack == "-" else rack, 0, 0, free) for number, rack in enumerate(racks)
    ]


@pytest.mark.parametrize(
    ("racks", "factor"),
    [("-", 1)] + [(r, f) for r in ("---", "abc", "aabbc", "aaab", "aabbccdd") for f in (1, 2, 3)],
)
def test_with_room_leaders_and_replicas_are_balanced(racks: str, factor: int) -> None:
    count = len(racks)
    for seed in range(10):
        for partitions in (1, count, 3 * count + 1):
            placed = place(rooms(racks), partitions, factor, Random(seed))
            assert all(len(set(replicas)) == factor for replicas in placed)
            for replicas in placed:
                used = {racks[replica] for replica in replicas}
                assert "-" in used or len(used) == min(factor, len(set(racks)))
            hosted = Counter(replica for replicas in placed for replica in replicas)
            check_leaders(placed, factor)
            if len(set(racks)) in (1, count) or factor == 1:
                assert max(hosted.values()) - min(hosted[n] for n in range(count)) <= 1


def check_leaders(placed: list[list[int]], factor: int) -> None:
    """Every broker leads its share of its replicas, rounded up or down."""
    leaders = Counter(replicas[0] for replicas in placed)
    hosted = Counter(replica for replicas in placed for replica in replicas)
    for broker, count in hosted.items():
        assert count // factor <= leaders[broker] <= -(-count // factor)


def test_chance_decides_among_equals() -> None:
    assert {place(rooms("abc"), 1, 1, Random(seed))[0][0] for seed in range(50)} == {0, 1, 2}
    placed = place(rooms("------"), 200, 3, Random(1))
    assert len({tuple(sorted(replicas)) for replicas in placed}) == 20


def test_brokers_with_the_fewest_replicas_get_the_remainder() -> None:
    brokers = [room._replace(replicas=number) for number, room in enumerate(rooms("---"))]
    for seed in range(10):
        assert [0] in place(brokers, 1, 1, Random(seed))
        assert sorted(place(brokers, 2, 1, Random(seed))) == [[0], [1]]


def test_the_broker_that_leads_least_leads_among_equals() -> None:
    brokers = [room._replace(leaders=5 - number) for number, room in enumerate(rooms("---"))]
    for seed in range(10):
        assert place(brokers, 1, 3, Random(seed))[0][0] == 2


@pytest.mark.kip(578)
@pytest.mark.parametrize("seed", range(100))
def test_the_proposals_own_example_finds_all_thirty(seed: int) -> None:
    """Going round and skipping full brokers places only 25 here."""
    brokers = [
        room._replace(free=free) for room, free in zip(rooms("---"), (30, 20, 10), strict=True)
    ]
    placed = place(brokers, 30, 2, Random(seed))
    assert Counter(replica for replicas in placed for replica in replicas) == {0: 30, 1: 20, 2: 10}
    assert Counter(replicas[0] for replicas in placed) == {0: 15, 1: 10, 2: 5}
    with pytest.raises(NoRoom, match="at most 30"):
        place(brokers, 31, 2, Random(seed))


@pytest.mark.parametrize(
    ("free", "factor", "most"),
    [((30, 20, 10), 3, 10), ((9, 9), 1, 18), ((0, 5), 2, 0), ((3,), 1, 3)],
)
def test_count_placeable(free: tuple[int, ...], factor: int, most: int) -> None:
    brokers = [Room(number, None, 0, 0, each) for number, each in enumerate(free)]
    assert count_placeable(brokers, 1000, factor) == most
    assert count_placeable(brokers, 1, factor) == min(1, most)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 5)), min_size=1, max_size=5
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 1000),
)
def test_placement_matches_brute_force(
    brokers: list[tuple[str | None, int]], partitions: int, factor: int, seed: int
) -> None:
    """An assignment is found if one exists, and no other is on more racks."""
    factor = min(factor, len(brokers))
    candidates = [Room(number, rack, 0, 0, free) for number, (rack, free) in enumerate(brokers)]
    least = least_rack_cost(candidates, partitions, factor)
    if least is None:
        with pytest.raises(NoRoom):
            place(candidates, partitions, factor, Random(seed))
        return
    placed = place(candidates, partitions, factor, Random(seed))
    assert len(placed) == partitions
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in placed)
    hosted = Counter(replica for replicas in placed for replica in replicas)
    assert all(hosted[room.id] <= room.free for room in candidates)
    check_leaders(placed, factor)
    racks = [rack for rack, _ in brokers]
    assert sum(rack_cost([racks[each] for each in replicas]) for replicas in placed) == least
