"""Which offsets are read, and how they are shared out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.kafka.errors import DataLoss, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.options.source import Offsets, Timestamps
from trimtab.spark.options.values import EVERY_PARTITION
from trimtab.spark.read.ranges import LogBounds, resolve_ranges, split_ranges

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
BOUNDS = {ONE: LogBounds(5, 9), ZERO: LogBounds(0, 100)}


def plan(
    starting: Offsets,
    ending: Offsets,
    bounds: Mapping[TopicPartition, LogBounds] = BOUNDS,
    fail_on_data_loss: bool = True,
    found: Mapping[TopicPartition, int | None] | None = None,
) -> list[OffsetRange]:
    """`resolve_ranges`, where `found` is what a lookup by time brings."""

    def find_times(times: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        assert found is not None, "looked up without need"
        return {each: found[each] for each in times}

    return resolve_ranges(starting, ending, bounds, find_times, fail_on_data_loss)


def test_words_and_special_numbers_are_bound_to_what_is_there() -> None:
    whole = [OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 5, 9)]
    assert plan("earliest", "latest") == whole
    assert plan({ZERO: -2, ONE: -2}, {ZERO: -1, ONE: -1}) == whole
    assert plan({ZERO: 7, ONE: 9}, {ZERO: 8, ONE: 9}) == [OffsetRange("t", 0, 7, 8)]


@pytest.mark.parametrize(
    ("start", "end", "message", "left"),
    [
        (3, 9, "offsets 3 to 5 are gone, the first one left is 5. .*retention", (5, 9)),
        (1, 4, "offsets 1 to 4 are gone", None),
        (5, 12, "offsets 9 to 12 were asked for, .* can be read now is 8. .*transaction", (5, 9)),
        (10, 12, "offsets 10 to 12 were asked for", None),
    ],
)
def test_offsets_that_are_not_there(
    start: int,
    end: int,
    message: str,
    left: tuple[int, int] | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounds = {ONE: LogBounds(5, 9)}
    with pytest.raises(DataLoss, match=f"t-1: {message}.*failOnDataLoss=false"):
        plan({ONE: start}, {ONE: end}, bounds)
    expected = [OffsetRange("t", 1, *left)] if left else []
    assert plan({ONE: start}, {ONE: end}, bounds, fail_on_data_loss=False) == expected
    assert "t-1: offsets" in caplog.text


def test_a_word_stands_for_all_partitions_of_a_topic() -> None:
    bounds = {TopicPartition("t", n): LogBounds(1, 9) for n in range(2)} | {
        TopicPartition("u", 0): LogBounds(2, 8)
    }
    given = {TopicPartition("t", EVERY_PARTITION): -2, TopicPartition("u", 0): 5}
    ends = {TopicPartition("t", EVERY_PARTITION): -1, TopicPartition("u", EVERY_PARTITION): -1}
    assert resolve_ranges(given, ends, bounds, dict, True) == [
        OffsetRange("t", 0, 1, 9),
        OffsetRange("t", 1, 1, 9),
        OffsetRange("u", 0, 5, 8),
    ]
    del bounds[TopicPartition("u", 0)]
    with pytest.raises(UsageError, match="option endingOffsets names topics that are not read: u"):
        resolve_ranges("earliest", ends, bounds, dict, True)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize(("starting", "ending"), [({ONE: 10}, "latest"), ({ONE: 8}, {ONE: 6})])
def test_a_start_after_its_end_is_an_error_whatever_the_data_loss(
    starting: Offsets, ending: Offsets, fail_on_data_loss: bool
) -> None:
    with pytest.raises(UsageError, match=r"t-1: the start, offset \d+, is after the end"):
        plan(starting, ending, {ONE: LogBounds(5, 9)}, fail_on_data_loss)


def test_times_become_offsets() -> None:
    times = Timestamps({ZERO: 1000, ONE: 2000}, or_latest=False)
    assert plan(times, "latest", found={ZERO: 40, ONE: 6}) == [
        OffsetRange("t", 0, 40, 100),
        OffsetRange("t", 1, 6, 9),
    ]
    one_time = Timestamps(1000, or_latest=False)
    # An end that no record reaches is the latest offset.
    assert plan("earliest", one_time, found={ZERO: 40, ONE: None}) == [
        OffsetRange("t", 0, 0, 40),
        OffsetRange("t", 1, 5, 9),
    ]
    with pytest.raises(UsageError, match=r"t-1: no record has timestamp 1000 .*Strategy=latest"):
        plan(one_time, "latest", found={ZERO: 40, ONE: None})
    or_latest = Timestamps(1000, or_latest=True)
    assert plan(or_latest, "latest", found={ZERO: 40, ONE: None}) == [OffsetRange("t", 0, 40, 100)]
    with pytest.raises(UsageError, match="t-0: the start, offset 41, is after the end"):
        plan({ZERO: 41, ONE: -2}, one_time, found={ZERO: 40, ONE: None})


def test_offsets_must_be_given_for_exactly_what_is_read() -> None:
    with pytest.raises(UsageError, match=r"startingOffsets .* missing t-1; not read u-0"):
        plan({ZERO: 1, TopicPartition("u", 0): 1}, "latest")
    times = Timestamps({ZERO: 1000}, or_latest=True)
    with pytest.raises(UsageError, match=r"endingOffsetsByTimestamp .* missing t-1; not read none"):
        plan("earliest", times)


def test_max_records_cut_first_and_evenly() -> None:
    def sizes(lengths: list[int], parts: int, records: int) -> list[list[int]]:
        ranges = [OffsetRange("t", p, 0, length) for p, length in enumerate(lengths)]
        split = split_ranges(ranges, parts, records)
        return [[r.size for r in split if r.partition == p] for p in range(len(lengths))]

    assert sizes([10, 3], 0, 4) == [[3, 3, 4], [3]]
    assert sizes([10, 3], 0, 10) == [[10], [3]]
    assert sizes([10], 2, 100) == [[5, 5]]
    assert sizes([10], 2, 3) == [[2, 2, 3, 3]]


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
