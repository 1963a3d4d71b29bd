"""Which offset ranges share a task."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.kafka.records import TopicPartition
from trimtab.spark.read.packing import (
    AUTO_TASKS,
    RANGE_RECORDS,
    RECORD_BYTES,
    TASK_RECORDS,
    Task,
    TaskLimits,
    pack_ranges,
)

BROKERS = 3
AUTO = TaskLimits()


def ranges_of(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 7, 7 + size) for number, size in enumerate(sizes)]


LEADERS = {"t": [number % BROKERS for number in range(20_000)]}


def pack(
    ranges: list[OffsetRange],
    limits: TaskLimits = AUTO,
    sizes: Mapping[TopicPartition, int] | None = None,
) -> list[Task]:
    return pack_ranges(ranges, limits, lambda: sizes or {}, lambda: LEADERS)


def cost(task: Task) -> int:
    return sum(RANGE_RECORDS + each.size for each in task)


def refuse(*arguments: object) -> Any:
    pytest.fail("asked without need")


@pytest.mark.parametrize(
    ("count", "limits"),
    [
        (0, AUTO),
        (AUTO_TASKS, AUTO),
        (200, TaskLimits(least=200)),
        (200, TaskLimits(200)),
        (10_000, TaskLimits(0)),
    ],
)
def test_each_range_has_a_task_where_that_is_not_too_many(count: int, limits: TaskLimits) -> None:
    ranges = ranges_of(*[1] * count)
    assert pack_ranges(ranges, limits, refuse, refuse) == [(each,) for each in ranges]


def test_small_ranges_share_tasks_and_large_ones_do_not() -> None:
    ranges = ranges_of(*[20] * 500, 10**9, *[20] * 500)
    tasks = pack(ranges)
    assert len(tasks) == AUTO_TASKS + 1
    assert (ranges[500],) in tasks
    assert max(len(task) for task in tasks) == -(-1000 // AUTO_TASKS)


def test_a_task_is_full_when_reading_takes_as_long_as_starting_it() -> None:
    size = TASK_RECORDS // 2 - RANGE_RECORDS
    assert {len(task) for task in pack(ranges_of(*[size] * 1000))} == {2}
    ranges = ranges_of(*[size + 1] * 1000)
    assert pack(ranges) == [(each,) for each in ranges]


def test_bytes_count_where_they_are_known() -> None:
    ranges = ranges_of(*[20] * 1000)
    large = {TopicPartition("t", n): TASK_RECORDS * RECORD_BYTES for n in range(0, 1000, 2)}
    tasks = pack(ranges, sizes=large)
    assert len(tasks) == 500 + AUTO_TASKS
    assert all(task in tasks for task in [(ranges[0],), (ranges[998],)])


def test_ranges_of_a_partition_that_was_cut_stay_alone() -> None:
    cut = [OffsetRange("t", 5, 12 + 3 * part, 15 + 3 * part) for part in range(9)]
    ranges = ranges_of(*[5] * 300)[:5] + cut + ranges_of(*[5] * 300)[6:]
    for limits in (AUTO, TaskLimits(20)):
        tasks = pack(ranges, limits)
        assert [task for task in tasks if task[0].partition == 5] == [(each,) for each in cut]


def test_a_task_has_ranges_of_one_leader_but_where_two_meet() -> None:
    for limits in (AUTO, TaskLimits(10)):
        tasks = pack(ranges_of(*[20] * 1000), limits)
        counts = [len({each.partition % BROKERS for each in task}) for task in tasks]
        assert sum(counts) - len(counts) <= BROKERS - 1


def test_partitions_without_a_leader_are_packed_too() -> None:
    ranges = ranges_of(*[20] * 1000)
    tasks = pack_ranges(ranges, AUTO, dict, dict)
    assert sorted(each for task in tasks for each in task) == ranges
    assert len(tasks) == AUTO_TASKS


def test_ranges_whose_bytes_are_unknown_stay_alone_where_bytes_are_limited() -> None:
    ranges = ranges_of(*[20] * 200)
    known = {TopicPartition("t", number): 10 for number in range(100)}
    tasks = pack(ranges, TaskLimits(size=100), known)
    assert all(len(task) == 1 for task in tasks if task[0].partition >= 100)
    assert any(len(task) > 1 for task in tasks)


@given(
    st.lists(st.integers(1, 30_000) | st.integers(1, 200), min_size=1, max_size=400),
    st.sampled_from(["auto", 1, 7, 100]),
    st.sampled_from([0, 1, 5, 150]),
    st.sampled_from([0, 0, 100, 5000]),
    st.sampled_from([0, 0, 10_000]),
    st.randoms(use_true_random=False),
)
def test_every_range_once_in_order_and_tasks_within_their_bounds(
    sizes: list[int], most: Any, least: int, records: int, max_bytes: int, random: Any
) -> None:
    ranges = ranges_of(*sizes)
    random.shuffle(ranges)
    if most != "auto":
        least = min(least, most)
    bytes_of = {TopicPartition(each.topic, each.partition): each.size for each in ranges}
    limits = TaskLimits(most, least, records, max_bytes)
    tasks = pack(ranges, limits, bytes_of)
    place = {each: index for index, each in enumerate(ranges)}
    places = [[place[each] for each in task] for task in tasks]
    assert sorted(index for each in places for index in each) == list(range(len(ranges)))
    assert all(each == sorted(each) for each in places)
    assert [each[0] for each in places] == sorted(each[0] for each in places)
    shared = [task for task in tasks if len(task) > 1]
    for task in shared:
        size = sum(each.size for each in task)
        assert size <= (records or size)
        assert size <= (max_bytes or size)
    if most == "auto":
        assert all(cost(task) <= TASK_RECORDS for task in shared)
        assert len(tasks) >= min(len(ranges), max(AUTO_TASKS, least))
        if not records and not max_bytes:
            large = sum(each.size + RANGE_RECORDS > TASK_RECORDS for each in ranges)
            small = sum(cost((each,)) for each in ranges if cost((each,)) <= TASK_RECORDS)
            assert len(tasks) <= large + max(AUTO_TASKS, least, 2 * small // TASK_RECORDS + 1)
    else:
        assert len(tasks) >= min(len(ranges), least)
        if not records and not max_bytes:
            assert len(tasks) <= most
            even = -(-sum(map(cost, tasks)) // most)
            assert all(cost(task) <= 2 * even for task in shared)


def count_lines(call: Callable[[], object]) -> int:
    """How many lines of Python run in a call."""
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("limits", [AUTO, TaskLimits(32)])
def test_the_work_grows_with_the_ranges(limits: TaskLimits) -> None:
    def lines_for_each(count: int) -> float:
        ranges = ranges_of(*[20] * count)
        return count_lines(lambda: pack(ranges, limits)) / count

    thousand = lines_for_each(1000)
    assert lines_for_each(10_000) < 1.2 * thousand
    assert lines_for_each(33) < 1.2 * thousand
    assert lines_for_each(1) < 1.2 * thousand
