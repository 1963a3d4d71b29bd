"""What is known ahead of a stream, and of which partitions more is wanted."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.ahead import Ahead, Horizon, Level
from trimtab.spark.stream.size_sources.contract import Found, Wanted

ZERO, ONE, TWO = (TopicPartition("t", number) for number in range(3))


def test_small_record_batches_are_remembered_as_one() -> None:
    ahead = Ahead(0, 100)
    ahead.add([Piece(n + 1, 10, n) for n in range(10)], grain=30)
    assert ahead.pieces == [Piece(3, 30, 0), Piece(6, 30, 3), Piece(9, 30, 6), Piece(10, 10, 9)]
    ahead.add([Piece(10, 10), Piece(11, 500), Piece(12, 1)], grain=30)
    assert [piece.size for piece in ahead.pieces] == [30, 30, 30, 10, 500, 1]
    assert (ahead.size, ahead.known_to) == (601, 12)


def test_what_was_asked_for_stays_as_it_is() -> None:
    ahead = Ahead(0, 100)
    ahead.add([Piece(1, 10)], grain=30)
    assert ahead.until(100) == [Piece(1, 10)]
    ahead.add([Piece(2, 10), Piece(3, 10)], grain=30)
    assert ahead.until(100) == [Piece(1, 10), Piece(3, 20)]
    assert ahead.until(2) == [Piece(1, 10), Piece(2, 20)]  # all of it counts
    ahead.advance(1)
    assert (ahead.pieces, ahead.size) == ([Piece(3, 20)], 20)


def even_share(sizes: list[int], limit: int) -> Fraction:
    """The level from all sizes at once."""
    left = limit
    for index, size in enumerate(sorted(sizes)):
        share = Fraction(left, len(sizes) - index)
        if size >= share:
            return share
        left -= size
    return Fraction(limit)


@given(
    st.integers(1, 500),
    st.lists(st.integers(0, 300), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 200), st.booleans()), max_size=20),
)
def test_the_level_is_that_of_all_sizes_whatever_order_they_come_in(
    limit: int, sizes: list[int], growth: list[tuple[int, int, bool]]
) -> None:
    partitions = [TopicPartition("t", number) for number in range(len(sizes))]
    known = dict(zip(partitions, sizes, strict=True))
    is_open = dict.fromkeys(partitions, True)
    level = Level(limit, {p: (size, True) for p, size in known.items()})
    was_hungry = set(level.hungry)
    for number, more, stays_open in growth:
        partition = partitions[number % len(partitions)]
        known[partition] += more
        is_open[partition] &= stays_open
        sated = level.grow(partition, known[partition], is_open[partition])
        height = even_share(list(known.values()), limit)
        # Rounding may have sated one before that is a few bytes below the level now.
        assert level.hungry <= {p for p in partitions if known[p] < height and is_open[p]}
        assert all(
            known[p] >= height - len(partitions)
            for p in partitions
            if is_open[p] and p not in level.hungry
        )
        assert was_hungry - level.hungry == set(sated)
        was_hungry = set(level.hungry)


def test_who_is_hungry() -> None:
    assert Level(90, {ZERO: (1000, False), ONE: (10, True), TWO: (0, True)}).hungry == {ONE, TWO}
    assert Level(90, {ZERO: (1000, True), ONE: (10, True), TWO: (0, False)}).hungry == {ONE}
    assert Level(90, {ZERO: (50, True), ONE: (50, True)}).hungry == set()
    assert Level(90, {ZERO: (50, True), ONE: (40, True)}).hungry == {ONE}
    assert Level(90, {}).hungry == set()


def test_what_is_wanted_follows_what_is_known() -> None:
    horizon = Horizon(50, 1)
    horizon.follow({ZERO: 0, ONE: 0}, {ZERO: 10, ONE: 10})
    assert horizon.wanted == {ZERO: Wanted(0, 10, 100), ONE: Wanted(0, 10, 100)}
    horizon.changed.clear()
    horizon.learn([Found(ZERO, 0, [Piece(1, 30)])])
    assert horizon.wanted[ZERO] == Wanted(1, 10, 70)
    assert horizon.changed == {ZERO}
    horizon.learn([Found(ZERO, 0, [Piece(9, 99)]), Found(TWO, 0, [])])  # late, and unknown
    assert horizon.wanted[ZERO] == Wanted(1, 10, 70)
    horizon.learn([Found(ZERO, 1, [Piece(2, 30)])])
    assert horizon.wanted == {ZERO: Wanted(2, 10, 40), ONE: Wanted(0, 10, 100)}
    horizon.learn([Found(ONE, 0, [Piece(1, 45)])])
    assert horizon.wanted == {ONE: Wanted(1, 10, 55)}
    horizon.changed.clear()
    horizon.learn([Found(ONE, 1, [Piece(10, 5)])])
    assert (horizon.wanted, horizon.changed) == ({}, {ONE})
    horizon.must_know({ZERO: 4, ONE: 4})
    assert horizon.wanted == {ZERO: Wanted(2, 4, 100)}
    horizon.learn([Found(ZERO, 2, [Piece(4, 1)])])
    assert horizon.is_all_known
    assert horizon.wanted == {}
    horizon.follow({ONE: 10}, {ONE: 12})
    assert horizon.wanted == {ONE: Wanted(10, 12, 100)}
    horizon.follow({}, {})
    assert horizon.wanted == {}


def test_a_source_that_tails_is_asked_beyond_the_end() -> None:
    horizon = Horizon(50, 1)
    horizon.follow({ZERO: 0}, {ZERO: 1})
    horizon.watch(50)
    horizon.learn([Found(ZERO, 0, [Piece(1, 5)])])
    assert horizon.is_fair  # all is known
    assert horizon.wanted == {}
    horizon.tail(True)
    assert horizon.is_fair
    assert horizon.wanted == {ZERO: Wanted(1, 1, 95)}
    horizon.learn([Found(ZERO, 1, [Piece(2, 99)])])
    assert horizon.wanted == {}


def test_what_is_watched_is_forgotten_as_the_stream_goes_on() -> None:
    horizon = Horizon(50, 1)
    horizon.follow({ZERO: 0}, {ZERO: 1})
    horizon.watch(50)
    assert not horizon.is_fair
    horizon.follow({ZERO: 0}, {ZERO: 1})
    assert horizon.is_fair


def count_steps(partitions: int) -> int:
    """The lines of Python that run for a hundred answers."""
    every = [TopicPartition("t", number) for number in range(partitions)]
    horizon = Horizon(1000 * partitions, 1)
    horizon.follow(dict.fromkeys(every, 0), dict.fromkeys(every, 1000))
    horizon.watch(1000 * partitions)
    horizon.must_know(dict.fromkeys(every, 500))
    horizon.changed.clear()
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    answers = [[Found(every[n % 10], n // 10, [Piece(n // 10 + 1, 3)])] for n in range(100)]
    before = sys.gettrace()
    sys.settrace(count)
    try:
        for answer in answers:
            horizon.learn(answer)
            assert not horizon.is_fair
            assert not horizon.is_all_known
            assert len(horizon.changed) == 1
            horizon.changed.clear()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("partitions", [1_000, 10_000])
def test_an_answer_costs_no_more_with_more_partitions(partitions: int) -> None:
    assert count_steps(partitions) < 2 * count_steps(10)
