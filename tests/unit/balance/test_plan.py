from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from lab.benchmarks.brute_force import judge_plan, least_plan_cost
from lab.benchmarks.reassignment import make_small_cluster
from trimtab.balance.moves import Move, NoPlan, PlacedPartition, TargetBroker
from trimtab.balance.placement import PlacementGoal, Room, place
from trimtab.balance.plan import find_lone_brokers, find_moves
from trimtab.kafka.records import TopicPartition

PLENTY = 1000


def placed(*replicas: tuple[int, ...], sizes: Sequence[int] = ()) -> list[PlacedPartition]:
    return [
        PlacedPartition(TopicPartition("t", index), each, sizes[index] if sizes else 100)
        for index, each in enumerate(replicas)
    ]


def brokers(*ids: int, racks: str = "", room: int = PLENTY) -> list[TargetBroker]:
    return [
        TargetBroker(each, racks[index] if racks else None, room) for index, each in enumerate(ids)
    ]


def describe(moves: list[Move]) -> dict[int, tuple[int, ...]]:
    return {move.placed.partition.partition: move.replicas for move in moves}


class TestFindMoves:
    def test_what_is_where_it_should_be_stays(self) -> None:
        assert find_moves(placed((1, 2), (2, 3), (3, 1)), brokers(1, 2, 3)) == []

    def test_the_smallest_go_to_a_broker_that_is_new(self) -> None:
        moves = find_moves(
            placed((1,), (1,), (2,), (2,), sizes=(9 << 30, 5 << 30, 7 << 30, 8 << 30)),
            brokers(1, 2, 3, room=1),
        )
        assert describe(moves) == {1: (3,)}
        assert moves[0].bytes == 5 << 30
        assert moves[0].reasons == ("broker 3 becomes the leader, to balance leaders",)

    def test_a_broker_that_is_not_in_the_list_is_left_and_the_rest_stays(self) -> None:
        (move,) = find_moves(placed((1, 2), (2, 4)), brokers(1, 2, 3))
        assert move.replicas in ((2, 1), (2, 3))
        assert move.removed == (4,)
        assert move.reasons == ("broker 4 is not in the list",)

    def test_a_rack_that_has_two_replicas_gives_one_away(self) -> None:
        (move,) = find_moves(placed((1, 2)), brokers(1, 2, 3, racks="aab"))
        assert move.added == (3,)
        assert move.reasons == ("rack a had 2 of its replicas",)

    def test_a_broker_beyond_its_limit_loses_what_it_has_too_much(self) -> None:
        targets = [TargetBroker(1, None, -1), TargetBroker(2, None, 5), TargetBroker(3, None, 5)]
        moves = find_moves(
            placed((1, 2), (2, 1), (3, 1), sizes=(1 << 30, 2 << 30, 3 << 30)), targets
        )
        (copied,) = [move for move in moves if move.added]
        assert copied.placed.partition.partition == 0
        assert (copied.removed, copied.added) == ((1,), (3,))
        assert copied.reasons == ("broker 1 is over the limit",)

    def test_leaders_are_levelled_without_copying_where_that_is_enough(self) -> None:
        moves = find_moves(placed((1, 2), (1, 2)), brokers(1, 2))
        assert len(moves) == 1
        assert moves[0].replicas == (2, 1)
        assert moves[0].bytes == 0
        assert "nothing is copied" in moves[0].reasons[0]

    def test_no_broker_gets_more_than_it_has_room_for_even_if_leaders_are_uneven(self) -> None:
        targets = [*brokers(1, 2), TargetBroker(3, None, 1)]
        moves = find_moves(placed(*[(1,), (2,)] * 5), targets)
        assert Counter(broker for move in moves for broker in move.added) == {3: 1}

    def test_what_finds_no_room_is_counted(self) -> None:
        with pytest.raises(NoPlan, match="1 replicas that must move cannot be placed"):
            find_moves(placed((1,), (1,)), [TargetBroker(2, None, 1)])

    def test_of_replicas_that_cost_the_same_those_come_that_leave_the_leader(self) -> None:
        (move,) = find_moves(placed((0, 1)), brokers(0, 1, 3, racks="aab"))
        assert move.replicas == (0, 3)
        (move,) = find_moves(placed((0, 1)), [*brokers(0, 1, racks="aa"), TargetBroker(3, "b", 1)])
        assert move.replicas == (0, 3)

    def test_more_replicas_than_brokers(self) -> None:
        with pytest.raises(NoPlan, match="t-0 has 3 replicas, but there are only 2 brokers"):
            find_moves(placed((1, 2, 3)), brokers(1, 2))


def test_a_lone_broker_in_its_rack_is_named_with_the_partitions_that_it_must_get() -> None:
    three = placed((1, 2), (1, 2), (1,))
    assert find_lone_brokers(three, brokers(1, 2, 3, racks="aab")) == {3: 2}
    assert find_lone_brokers(three, brokers(1, 2, 3, racks="abc")) == {}
    assert find_lone_brokers(three, brokers(1, 2, 3)) == {}
    assert find_lone_brokers(three, brokers(1, 2, racks="ab")) == {}


@pytest.mark.parametrize("goal", [PlacementGoal.RACKS, PlacementGoal.BROKERS])
@pytest.mark.parametrize("seed", range(4))
def test_no_plan_is_better_than_the_one_found(seed: int, goal: PlacementGoal) -> None:
    random = Random(seed)
    for _ in range(50):
        partitions, targets = make_small_cluster(random)
        least = least_plan_cost(partitions, targets, goal)
        if least is None:
            with pytest.raises(NoPlan):
                find_moves(partitions, targets, goal)
            continue
        found = find_moves(partitions, targets, goal)
        moves = {move.placed.partition: move.replicas for move in found}
        chosen = [moves.get(each.partition, each.replicas) for each in partitions]
        assert judge_plan(partitions, targets, chosen, goal) == least, (partitions, targets)


@pytest.mark.kip(1194)
@pytest.mark.parametrize("goal", [PlacementGoal.BROKERS, PlacementGoal.WEIGHTED])
@pytest.mark.parametrize("factor", [2, 3])
def test_a_plan_does_not_undo_what_placement_has_made_even(
    goal: PlacementGoal, factor: int
) -> None:
    targets = brokers(0, 1, 2, 3, 4, racks="aabbc")
    rooms = [Room(each.id, each.rack, 0, 0, PLENTY) for each in targets]
    chosen = place(rooms, 40, factor, Random(1), goal)
    partitions = placed(*map(tuple, chosen))
    assert find_moves(partitions, targets, goal) == []
    assert find_lone_brokers(partitions, targets, goal) == {}
    to_lone = [4 in move.added for move in find_moves(partitions, targets)]
    assert to_lone.count(True) == (16 if factor == 3 else 0)
