"""What is known ahead of a stream, and of which partitions more is wanted."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.admission import Piece
from trimtab.spark.stream.known_sizes import FairShare, KnownSizes, PartitionSizes
from trimtab.spark.stream.size_sources.contract import FoundSizes, SizeRequest

ZERO, ONE, TWO = (TopicPartition("t", number) for number in range(3))


def test_small_record_batches_are_remembered_as_one() -> None:
    ahead = PartitionSizes(0, 100)
    ahead.add_pieces([Piece(n + 1, 10, n) for n in range(10)], grain=30)
    assert ahead.pieces == [Piece(3, 30, 0), Piece(6, 30, 3), Piece(9, 30, 6), Piece(10, 10, 9)]
    ahead.add_pieces([Piece(10, 10), Piece(11, 500), Piece(12, 1)], grain=30)
    assert [piece.size for piece in ahead.pieces] == [30, 30, 30, 10, 500, 1]
    assert (ahead.size, ahead.known_to) == (601, 12)


def test_what_was_asked_for_stays_as_it_is() -> None:
    ahead = PartitionSizes(0, 100)
    ahead.add_pieces([Piece(1, 10)], grain=30)
    assert ahead.until(100) == [Piece(1, 10)]
    ahead.add_pieces([Piece(2, 10), Piece(3, 10)], grain=30)
    assert ahead.until(100) == [Piece(1, 10), Piece(3, 20)]
    assert ahead.until(2) == [Piece(1, 10), Piece(2, 20)]  # all of it counts
    ahead.advance(1)
    assert (ahead.pieces, ahead.size) == ([Piece(3, 20)], 20)


def even_share(sizes: list[int], limit: int) -> Fraction:
    """The share from all sizes at once."""
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
    share = FairShare(limit, {p: (size, True) for p, size in known.items()})
    was_unsatisfied = set(share.unsatisfied)
    for number, more, stays_open in growth:
        partition = partitions[number % len(partitions)]
        known[partition] += more
        is_open[partition] &= stays_open
        satisfied = share.grow(partition, known[partition], is_open[partition])
        height = even_share(list(known.values()), limit)
        # Rounding may have satisfied one before that is a few bytes below the share now.
        assert share.unsatisfied <= {p for p in partitions if known[p] < height and is_open[p]}
        assert all(
            known[p] >= height - len(partitions)
            for p in partitions
            if is_open[p] and p not in share.unsatisfied
        )
        assert was_unsatisfied - share.unsatisfied == set(satisfied)
        was_unsatisfied = set(share.unsatisfied)


def test_partitions_below_the_share_are_unsatisfied() -> None:
    share = FairShare(90, {ZERO: (1000, False), ONE: (10, True), TWO: (0, True)})
    assert share.unsatisfied == {ONE, TWO}
    share = FairShare(90, {ZERO: (1000, True), ONE: (10, True), TWO: (0, False)})
    assert share.unsatisfied == {ONE}
    assert FairShare(90, {ZERO: (50, True), ONE: (50, True)}).unsatisfied == set()
    assert FairShare(90, {ZERO: (50, True), ONE: (40, True)}).unsatisfied == {ONE}
    assert FairShare(90, {}).unsatisfied == set()


def test_what_is_wanted_follows_what_is_known() -> None:
    sizes = KnownSizes(50, 1)
    sizes.follow({ZERO: 0, ONE: 0}, {ZERO: 10, ONE: 10})
    assert sizes.wanted == {ZERO: SizeRequest(0, 10, 100), ONE: SizeRequest(0, 10, 100)}
    sizes.changed.clear()
    sizes.learn([FoundSizes(ZERO, 0, [Piece(1, 30)])])
    assert sizes.wanted[ZERO] == SizeRequest(1, 10, 70)
    assert sizes.changed == {ZERO}
    sizes.learn([FoundSizes(ZERO, 0, [Piece(9, 99)]), FoundSizes(TWO, 0, [])])  # late, and unknown
    assert sizes.wanted[ZERO] == SizeRequest(1, 10, 70)
    sizes.learn([FoundSizes(ZERO, 1, [Piece(2, 30)])])
    assert sizes.wanted == {ZERO: SizeRequest(2, 10, 40), ONE: SizeRequest(0, 10, 100)}
    sizes.learn([FoundSizes(ONE, 0, [Piece(1, 45)])])
    assert sizes.wanted == {ONE: SizeRequest(1, 10, 55)}
    sizes.changed.clear()
    sizes.learn([FoundSizes(ONE, 1, [Piece(10, 5)])])
    assert (sizes.wanted, sizes.changed) == ({}, {ONE})
    sizes.must_know({ZERO: 4, ONE: 4})
    assert sizes.wanted == {ZERO: SizeRequest(2, 4, 100)}
    sizes.learn([FoundSizes(ZERO, 2, [Piece(4, 1)])])
    assert sizes.is_all_known
    assert sizes.wanted == {}
    sizes.follow({ONE: 10}, {ONE: 12})
    assert sizes.wanted == {ONE: SizeRequest(10, 12, 100)}
    sizes.follow({}, {})
    assert sizes.wanted == {}


def test_a_source_that_tails_is_asked_beyond_the_end() -> None:
    sizes = KnownSizes(50, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1})
    sizes.watch(50)
    sizes.learn([FoundSizes(ZERO, 0, [Piece(1, 5)])])
    assert sizes.is_fair  # all is known
    assert sizes.wanted == {}
    sizes.tail(True)
    assert sizes.is_fair
    assert sizes.wanted == {ZERO: SizeRequest(1, 1, 95)}
    sizes.learn([FoundSizes(ZERO, 1, [Piece(2, 99)])])
    assert sizes.wanted == {}


def test_what_is_watched_is_forgotten_as_the_stream_goes_on() -> None:
    sizes = KnownSizes(50, 1)
    sizes.follow({ZERO: 0}, {ZERO: 1})
    sizes.watch(50)
    assert not sizes.is_fair
    sizes.follow({ZERO: 0}, {ZERO: 1})
    assert sizes.is_fair


def count_steps(partitions: int) -> int:
    """The lines of Python that run for a hundred answers."""
    every = [TopicPartition("t", number) for number in range(partitions)]
    sizes = KnownSizes(1000 * partitions, 1)
    sizes.follow(dict.fromkeys(every, 0), dict.fromkeys(every, 1000))
    sizes.watch(1000 * partitions)
    sizes.must_know(dict.fromkeys(every, 500))
    sizes.changed.clear()
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    answers = [[FoundSizes(every[n % 10], n // 10, [Piece(n // 10 + 1, 3)])] for n in range(100)]
    before = sys.gettrace()
    sys.settrace(count)
    try:
        for answer in answers:
            sizes.learn(answer)
            assert not sizes.is_fair
            assert not sizes.is_all_known
            assert len(sizes.changed) == 1
            sizes.changed.clear()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("partitions", [1_000, 10_000])
def test_an_answer_costs_no_more_with_more_partitions(partitions: int) -> None:
    assert count_steps(partitions) < 2 * count_steps(10)
