from __future__ import annotations

import pytest

from trimtab.balance.moves import Move, PlacedPartition
from trimtab.cli.reassign.preview import show_moves
from trimtab.kafka.records import TopicPartition


def move(index: int, before: tuple[int, ...], after: tuple[int, ...], size: int) -> Move:
    return Move(PlacedPartition(TopicPartition("t", index), before, size), after, ("because",))


def test_people_see_the_largest_moves_first_and_how_many_there_are() -> None:
    moves = [move(index, (1,), (2,), index * 1000) for index in range(30)]
    text = show_moves(moves, 40, None)
    lines = text.splitlines()
    assert lines[1] == "t-29: 1 -> 2  29.0 kB: because"
    assert "… and 10 smaller ones" in text
    assert "30 of 40 partitions change; 30 replicas are copied, 435.0 kB." in text


@pytest.mark.parametrize(
    ("throttle", "said"),
    [(2500, "takes 0.4 s."), (1000, "1.0 s."), (10, "1.7 min.")],
)
def test_how_long_it_takes_is_said_in_the_unit_that_fits(throttle: int, said: str) -> None:
    assert show_moves([move(0, (1,), (2,), 1000)], 1, throttle).endswith(said)


def test_one_is_one() -> None:
    assert "1 of 1 partition changes; 1 replica is copied, 1.0 kB." in show_moves(
        [move(0, (1,), (2,), 1000)], 1, None
    )
    assert "the only partition is where it should be" in show_moves([], 1, None)
