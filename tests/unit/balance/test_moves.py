from __future__ import annotations

from trimtab.balance.moves import Move, PlacedPartition, estimate_seconds, rack_bounds
from trimtab.balance.placement import PlacementGoal
from trimtab.kafka.records import TopicPartition


def move(index: int, before: tuple[int, ...], after: tuple[int, ...], size: int) -> Move:
    return Move(PlacedPartition(TopicPartition("t", index), before, size), after, ("because",))


def test_replicas_are_spread_as_evenly_as_racks_allow() -> None:
    assert rack_bounds({"a": 2, "b": 2, "c": 2}, 3) == {"a": (0, 1), "b": (0, 1), "c": (0, 1)}
    assert rack_bounds({"a": 3, "b": 3}, 3) == {"a": (1, 2), "b": (1, 2)}
    assert rack_bounds({"a": 1, "b": 4}, 4) == {"a": (1, 1), "b": (2, 3)}
    assert rack_bounds({None: 3}, 2) == {None: (1, 2)}


def test_racks_get_their_share_by_brokers_unless_racks_come_first() -> None:
    sizes: dict[str | None, int] = {"a": 2, "b": 2, "c": 1}
    shares = {"a": (1, 2), "b": (1, 2), "c": (0, 1)}
    assert rack_bounds(sizes, 3, PlacementGoal.BROKERS) == shares
    assert rack_bounds(sizes, 3, PlacementGoal.WEIGHTED) == shares
    assert rack_bounds(sizes, 3, PlacementGoal.RACKS) == {"a": (0, 1), "b": (0, 1), "c": (0, 1)}
    assert rack_bounds(sizes, 5, PlacementGoal.BROKERS) == {"a": (2, 2), "b": (2, 2), "c": (1, 1)}


def test_the_broker_with_the_most_to_send_or_to_get_takes_longest() -> None:
    moves = [
        move(0, (1,), (2, 3), 1000),  # 1 sends twice as much as each of them gets
        move(1, (4,), (2,), 500),
    ]
    assert estimate_seconds(moves, 100) == 20
    assert estimate_seconds([*moves, move(2, (5,), (2,), 700)], 100) == 22
    assert estimate_seconds([move(0, (1, 2), (2, 1), 1000)], 100) == 0
