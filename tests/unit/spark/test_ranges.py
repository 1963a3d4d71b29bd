"""Which offsets are read, and how they are shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import UsageError
from trimtab.records import TopicPartition
from trimtab.spark.ranges import DataLoss, LogBounds, OffsetRange, resolve_ranges, split_ranges

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
BOUNDS = {ONE: LogBounds(5, 9), ZERO: LogBounds(0, 100)}


def test_words_and_special_numbers_are_bound_to_what_is_there() -> None:
    whole = [OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 5, 9)]
    assert resolve_ranges("earliest", "latest", BOUNDS, True) == whole
    assert resolve_ranges({ZERO: -2, ONE: -2}, {ZERO: -1, ONE: -1}, BOUNDS, True) == whole
    assert resolve_ranges({ZERO: 7, ONE: 9}, {ZERO: 8, ONE: 9}, BOUNDS, True) == [
        OffsetRange("t", 0, 7, 8)
    ]


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [(3, 9, (5, 9)), (5, 12, (5, 9)), (10, -1, None), (1, 4, None)],
)
def test_offsets_that_are_gone(
    start: int, end: int, left: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    bounds = {ONE: LogBounds(5, 9)}
    with pytest.raises(DataLoss, match=r"t-1: offsets .* holds 5 to 9.*failOnDataLoss=false"):
        resolve_ranges({ONE: start}, {ONE: end}, bounds, True)
    expected = [OffsetRange("t", 1, *left)] if left else []
    assert resolve_ranges({ONE: start}, {ONE: end}, bounds, False) == expected
    assert "t-1: offsets" in caplog.text


def test_offsets_must_be_given_for_exactly_what_is_read() -> None:
    with pytest.raises(UsageError, match=r"startingOffsets .* missing t-1; not read u-0"):
        resolve_ranges({ZERO: 1, TopicPartition("u", 0): 1}, "latest", BOUNDS, True)
    with pytest.raises(UsageError, match="t-1: startingOffsets 8 lies after endingOffsets 6"):
        resolve_ranges({ZERO: 1, ONE: 8}, {ZERO: 2, ONE: 6}, BOUNDS, True)


def test_split_like_spark() -> None:
    # KafkaOffsetRangeCalculatorSuite: "N TopicPartitions to M offset ranges", and skew
    def sizes(lengths: list[int], parts: int) -> list[list[int]]:
        ranges = [OffsetRange("t", p, 0, length) for p, length in enumerate(lengths)]
        split = split_ranges(ranges, parts)
        return [[r.size for r in split if r.partition == p] for p in range(len(lengths))]

    assert sizes([5], 3) == [[1, 2, 2]]
    assert sizes([4], 3) == [[1, 1, 2]]
    assert sizes([1], 4) == [[1]]
    assert sizes([100, 100], 1) == [[100], [100]]
    assert sizes([100, 1, 100], 6) == [[33, 33, 34], [1], [33, 33, 34]]
    assert sizes([10_000, 1, 1], 6) == [[2500] * 4, [1], [1]]


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**9)), min_size=1, max_size=20),
    st.integers(0, 200),
)
def test_a_split_covers_every_offset_once(spans: list[tuple[int, int]], parts: int) -> None:
    ranges = [OffsetRange("t", p, start, start + size) for p, (start, size) in enumerate(spans)]
    split = split_ranges(ranges, parts)
    assert all(each.size > 0 for each in split)
    merged: list[OffsetRange] = []
    for each in split:
        if merged and merged[-1].partition == each.partition:
            assert merged[-1].end == each.start
            merged[-1] = merged[-1]._replace(end=each.end)
        else:
            merged.append(each)
    assert merged == ranges
