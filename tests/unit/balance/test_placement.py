"""Placement: finds an assignment if one exists, spreads racks, balances replicas and leaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.benchmarks.brute_force import least_rack_costs, rack_cost
from trimtab.balance.placement import NoRoom, PlacementGoal, Room, count_placeable, place
from trimtab.kafka.options import LONG_MAX


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
    st.sampled_from(PlacementGoal),
)
def test_placement_matches_brute_force(
    brokers: list[tuple[str | None, int]],
    partitions: int,
    factor: int,
    seed: int,
    goal: PlacementGoal,
) -> None:
    """An assignment is found if one exists, and no other is better: on more racks, or more level,
    whichever the goal puts first. With what each broker gets, none is on more racks."""
    factor = min(factor, len(brokers))
    candidates = [Room(number, rack, 0, 0, free) for number, (rack, free) in enumerate(brokers)]
    costs = least_rack_costs(candidates, partitions, factor)
    if not costs:
        with pytest.raises(NoRoom):
            place(candidates, partitions, factor, Random(seed), goal)
        return
    placed = place(candidates, partitions, factor, Random(seed), goal)
    assert len(placed) == partitions
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in placed)
    hosted = Counter(replica for replicas in placed for replica in replicas)
    assert all(hosted[room.id] <= room.free for room in candidates)
    check_leaders(placed, factor)
    racks = [rack for rack, _ in brokers]
    counts = tuple(hosted[room.id] for room in candidates)
    cost = sum(rack_cost([racks[each] for each in replicas]) for replicas in placed)
    assert cost == costs[counts]
    if goal is PlacementGoal.RACKS:
        best = min((costs[each], unlevelness(each)) for each in costs)
        assert (cost, unlevelness(counts)) == best
    elif goal is PlacementGoal.BROKERS:
        best = min((unlevelness(each), costs[each]) for each in costs)
        assert (unlevelness(counts), cost) == best


def unlevelness(counts: Iterable[int]) -> int:
    """A measure that is lowest if all are equal."""
    return sum(count * count for count in counts)


@pytest.mark.parametrize("goal", PlacementGoal)
def test_the_work_grows_with_replicas_not_with_racks(goal: PlacementGoal) -> None:
    class Counting(Random):
        draws = 0

        def random(self) -> float:
            self.draws += 1
            return super().random()

    random = Counting(1)
    place(
        [Room(number, f"r{number}", 0, 0, LONG_MAX) for number in range(100)], 2000, 3, random, goal
    )
    assert random.draws < 3 * 2000 * 4


@pytest.mark.kip(1194)
class TestUnevenRacks:
    """The proposal's five brokers, in racks of two, two and one."""

    RACKS = "aabbc"

    @pytest.mark.parametrize("goal", [PlacementGoal.BROKERS, PlacementGoal.WEIGHTED])
    @pytest.mark.parametrize(("factor", "widely"), [(2, 1.0), (3, 0.6)])
    def test_every_broker_gets_a_fifth(
        self, goal: PlacementGoal, factor: int, widely: float
    ) -> None:
        partitions = 1001
        placed = place(rooms(self.RACKS), partitions, factor, Random(1), goal)
        hosted = Counter(replica for replicas in placed for replica in replicas)
        leaders = Counter(replicas[0] for replicas in placed)
        for number in range(5):
            assert hosted[number] / (partitions * factor) == pytest.approx(0.2, abs=0.002)
            assert leaders[number] / partitions == pytest.approx(0.2, abs=0.002)
        spread = Counter(len({self.RACKS[each] for each in replicas}) for replicas in placed)
        assert spread[factor] == pytest.approx(widely * partitions, abs=1)
        assert spread.total() == spread[factor] + spread[factor - 1]

    def test_with_racks_first_the_lone_broker_gets_a_third(self) -> None:
        placed = place(rooms(self.RACKS), 300, 3, Random(1))
        assert Counter(each for replicas in placed for each in replicas)[4] == 300

    @pytest.mark.parametrize("goal", [PlacementGoal.BROKERS, PlacementGoal.WEIGHTED])
    def test_topics_of_one_partition_level_brokers_over_time(self, goal: PlacementGoal) -> None:
        brokers, random = rooms(self.RACKS), Random(1)
        for _ in range(100):
            ((*replicas,),) = place(brokers, 1, 3, random, goal)
            brokers = [
                room._replace(replicas=room.replicas + (room.id in replicas)) for room in brokers
            ]
        assert [room.replicas for room in brokers] == [60] * 5

    @pytest.mark.parametrize("goal", PlacementGoal)
    def test_a_rack_of_new_brokers_does_not_get_whole_partitions(self, goal: PlacementGoal) -> None:
        old = [room._replace(replicas=1000) for room in rooms(self.RACKS)]
        new = [Room(number, "d", 0, 0, LONG_MAX) for number in (5, 6, 7)]
        for seed in range(20):
            (replicas,) = place([*old, *new], 1, 3, Random(seed), goal)
            assert 1 <= len({*replicas} & {5, 6, 7}) <= 2

    @pytest.mark.parametrize(
        ("goal", "expected"),
        [
            (PlacementGoal.RACKS, [20, 80, 50, 50, 100]),
            (PlacementGoal.BROKERS, [20, 70, 70, 70, 70]),
            (PlacementGoal.WEIGHTED, [20, 100, 60, 60, 60]),
        ],
    )
    def test_what_a_full_broker_cannot_take(self, goal: PlacementGoal, expected: list[int]) -> None:
        brokers = [Room(0, "a", 0, 0, 20), *rooms(self.RACKS)[1:]]
        placed = place(brokers, 100, 3, Random(1), goal)
        hosted = Counter(each for replicas in placed for each in replicas)
        assert [hosted[number] for number in range(5)] == expected
