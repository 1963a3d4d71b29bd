"""Which offsets a batch of a stream gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.admission import (
    Admitted,
    Piece,
    admit,
    admit_offsets,
    split_by_bytes,
)

ZERO, ONE, TWO = (TopicPartition("t", number) for number in range(3))


def pieces(*sizes: int) -> list[Piece]:
    return [Piece(10 * (number + 1), size) for number, size in enumerate(sizes)]


Ahead = Mapping[TopicPartition, Sequence[Piece]]

backlogs = st.dictionaries(
    st.integers(0, 20).map(lambda number: TopicPartition("t", number)),
    st.lists(st.one_of(st.integers(1, 20), st.integers(1, 2000)), max_size=30).map(
        lambda sizes: pieces(*sizes)
    ),
    max_size=8,
)


def sizes_of(ahead: Ahead, admitted: Admitted) -> dict[TopicPartition, int]:
    return {p: sum(each.size for each in ahead[p][:n]) for p, n in admitted.counts.items()}


@given(backlogs, st.integers(1, 3000), st.integers(0, 2**32))
def test_a_batch_stays_below_the_limit_but_for_one_piece(
    ahead: Ahead, limit: int, turn: int
) -> None:
    admitted = admit(ahead, limit, turn, {})
    taken = sizes_of(ahead, admitted)
    assert admitted.size == sum(taken.values())
    if admitted.size > limit:
        assert list(admitted.counts.values()) == [1]
    assert bool(admitted.counts) == any(ahead.values())


@given(backlogs, st.integers(1, 3000), st.integers(0, 2**32))
def test_nothing_that_fits_is_left(ahead: Ahead, limit: int, turn: int) -> None:
    admitted = admit(ahead, limit, turn, {})
    if admitted.size <= limit:
        for partition, all_ in ahead.items():
            rest = all_[admitted.counts.get(partition, 0) :]
            assert not rest or rest[0].size > limit - admitted.size


@given(backlogs, st.integers(1, 3000), st.integers(0, 2**32))
def test_every_partition_gets_its_share_or_is_owed_it(ahead: Ahead, limit: int, turn: int) -> None:
    admitted = admit(ahead, limit, turn, {})
    active = [each for each in ahead if ahead[each]]
    if admitted.size > limit or not active:
        return
    taken = sizes_of(ahead, admitted)
    share = limit // len(active)
    for partition in active:
        rest = ahead[partition][admitted.counts.get(partition, 0) :]
        got = taken.get(partition, 0) + admitted.owed.get(partition, 0)
        assert not rest or got >= min(share, taken.get(partition, 0) + rest[0].size)


@given(backlogs, st.integers(1, 3000))
def test_all_is_read_in_the_end_and_nobody_waits_for_long(backlog: Ahead, limit: int) -> None:
    ahead = {partition: list(all_) for partition, all_ in backlog.items()}
    total = sum(piece.size for all_ in ahead.values() for piece in all_)
    owed: Mapping[TopicPartition, int] = {}
    waited = dict.fromkeys(ahead, 0)
    turn = 0
    while any(ahead.values()):
        active = [each for each in ahead if ahead[each]]
        firsts = {each: ahead[each][0].size for each in active}
        largest = max(firsts.values())
        admitted = admit(ahead, limit, turn, owed)
        assert admitted.counts
        for partition in active:
            got = admitted.counts.get(partition, 0)
            waited[partition] = 0 if got else waited[partition] + 1
            # A turn of everybody else, for every share that its piece takes.
            turns_saved = -(-firsts[partition] // max(limit // len(active), 1))
            assert waited[partition] <= len(backlog) * (turns_saved + largest) + len(backlog)
            del ahead[partition][:got]
        owed, total, turn = admitted.owed, total - admitted.size, turn + 1
    assert total == 0


def test_what_some_do_not_need_goes_to_the_others() -> None:
    ahead = {ZERO: pieces(*[1] * 100), ONE: pieces(5), TWO: pieces(*[1] * 100)}
    admitted = admit(ahead, 65, 0, {})
    assert (admitted.counts, admitted.size) == ({ZERO: 30, ONE: 1, TWO: 30}, 65)


def test_large_pieces_are_saved_for() -> None:
    """Half a turn each time for a piece of 10, beside two that would take all there is."""
    ahead = {ZERO: pieces(10, 10), ONE: pieces(*[1] * 100), TWO: pieces(*[1] * 100)}
    first = admit(ahead, 15, 0, {})
    assert ZERO not in first.counts
    assert first.owed == {ZERO: 5}
    assert admit(ahead, 15, 1, first.owed).counts[ZERO] == 1


@pytest.mark.parametrize("turn", [0, 1])
def test_a_piece_larger_than_the_limit_is_a_batch_of_its_own(turn: int) -> None:
    ahead = {ZERO: pieces(100, 1), ONE: pieces(200, 1)}
    counts = admit(ahead, 50, turn, {}).counts
    assert counts == {[ZERO, ONE][turn]: 1}


def test_a_huge_piece_waits_until_it_has_saved_enough_turns() -> None:
    ahead = {ZERO: pieces(100), ONE: pieces(*[10] * 100)}
    owed: Mapping[TopicPartition, int] = {}
    counts = []
    for turn in range(4):
        admitted = admit(ahead, 50, turn, owed)
        counts.append(admitted.counts)
        owed = admitted.owed
    assert counts == [{ONE: 5}, {ONE: 5}, {ONE: 5}, {ZERO: 1}]


def test_offsets_are_shared_out_in_proportion_to_lag_as_sparks_source_does() -> None:
    start = {ZERO: 0, ONE: 100, TWO: 7}
    latest = {ZERO: 900, ONE: 200, TWO: 7}
    assert admit_offsets(start, latest, 10) == {ZERO: 9, ONE: 101, TWO: 7}
    # Rounded down, but up where less than one is left.
    assert admit_offsets(start, latest, 5) == {ZERO: 4, ONE: 101, TWO: 7}
    assert admit_offsets(start, latest, 10_000) == latest
    assert admit_offsets(start, start, 10) == start


def test_ranges_are_cut_where_pieces_end_and_the_largest_comes_first() -> None:
    whole = [OffsetRange("t", 0, 0, 30), OffsetRange("t", 1, 0, 20), OffsetRange("t", 2, 5, 6)]
    ahead = {ZERO: pieces(3, 3, 3), ONE: pieces(9, 2)}
    assert split_by_bytes(whole, ahead, 6) == [
        (OffsetRange("t", 1, 0, 10), 9),
        (OffsetRange("t", 0, 0, 20), 6),
        (OffsetRange("t", 0, 20, 30), 3),
        (OffsetRange("t", 1, 10, 20), 2),
        (OffsetRange("t", 2, 5, 6), 0),
    ]
    assert [each for each, _ in split_by_bytes(whole, ahead, 0)] == [whole[1], whole[0], whole[2]]
