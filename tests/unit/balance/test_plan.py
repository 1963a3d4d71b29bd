from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from benchmarks.brute_force import judge_plan, least_plan_cost
from benchmarks.reassignment import make_small_cluster
from trimtab.balance.moves import Move, NoPlan, PlacedPartition, TargetBroker
from trimtab.balance.plan import find_moves
from trimtab.records import TopicPartition

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

    def test_more_replicas_than_brokers(self) -> None:
        with pytest.raises(NoPlan, match="t-0 has 3 replicas, but there are only 2 brokers"):
            find_moves(placed((1, 2, 3)), brokers(1, 2))


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_is_better_than_the_one_found(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        partitions, targets = make_small_cluster(random)
        least = least_plan_cost(partitions, targets)
        if least is None:
            with pytest.raises(NoPlan):
                find_moves(partitions, targets)
            continue
        moves = {move.placed.partition: move.replicas for move in find_moves(partitions, targets)}
        chosen = [moves.get(each.partition, each.replicas) for each in partitions]
        assert judge_plan(partitions, targets, chosen) == least, (partitions, targets)
