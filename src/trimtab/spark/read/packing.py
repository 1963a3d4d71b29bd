"""Combines small offset ranges into Spark tasks, as starting one costs more than a few records.

Spark's Kafka connector has a task for each Kafka partition. So has trimtab for up to `AUTO_TASKS`
partitions; with more, small ranges share tasks, as small files do in Spark's file sources
(`FilePartition`).

A task takes start + ranges x r + records x c. With PySpark 4.2 in local mode, start = 27 ms
of CPU, with the JVM's; r = 0.2 ms; c = 1.2 µs for a record of 100 bytes, 3.4 µs for one of 1,000.
The constants below are in units of c for the small record: a start costs as much as 22,000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_LEADER

AUTO_TASKS: Final = 64
"""With `maxPartitions=auto`, ranges share tasks only if there are more ranges than this, and then
fill at least this many tasks."""

TASK_RECORDS: Final = 100_000
"""With `auto`, the maximum cost of a shared task. The start is then a fifth of the time of a full
task: larger tasks would save little, and fewer could run in parallel."""

RANGE_RECORDS: Final = 200
"""The cost of a range in addition to its records: its part of the requests, and an Arrow batch."""

RECORD_BYTES: Final = 512
"""If the size of a range is known, it costs at least one record per this many bytes."""

Task = tuple[OffsetRange, ...]
"""What one task reads: one range, or several ranges of different partitions."""


class TaskInput(NamedTuple):
    """What the driver sends to a task.

    Attributes:
        ids: by topic, the id for which the ranges were planned; topics without an id are missing.
    """

    ranges: Task
    ids: Mapping[str, bytes]


def add_ids(tasks: Iterable[Task], ids: Mapping[str, bytes]) -> list[TaskInput]:
    """The tasks, each with the ids of its own topics."""
    return [
        TaskInput(task, {each.topic: ids[each.topic] for each in task if each.topic in ids})
        for task in tasks
    ]


class TaskLimits(NamedTuple):
    """Limits of tasks, from the options; 0: no limit.

    Attributes:
        most: the approximate maximum number of tasks; "auto": see `TASK_RECORDS`.
        least: the approximate minimum number of tasks.
        records: maximum offsets in one task.
        size: maximum bytes in one task. With it, ranges of unknown size share no task.
    """

    most: int | Literal["auto"] = "auto"
    least: int = 0
    records: int = 0
    size: int = 0


def pack_ranges(
    ranges: Sequence[OffsetRange],
    limits: TaskLimits,
    find_sizes: Callable[[], Mapping[TopicPartition, int]],
    find_leaders: Callable[[], Mapping[str, Sequence[int]]],
) -> list[Task]:
    """Combine small ranges into tasks, if possible of partitions with the same leader.

    A range has a task of its own if its partition was cut into several ranges, or if it is large:
    with "auto", if it costs more than `TASK_RECORDS`; otherwise, more than an even share.

    Args:
        ranges: in the order in which tasks should start; none is empty.
        find_sizes: returns the bytes to read of each partition, if known. Called only if there are
            more ranges than tasks.
        find_leaders: returns the broker id of each partition's leader, by topic in the order of
            partition numbers; partitions may be missing. Called if ranges will share tasks.

    Returns:
        Tasks, in the order of their first ranges. A task's ranges are in the order of `ranges`.
    """
    is_auto = limits.most == "auto"
    most = max(AUTO_TASKS, limits.least) if limits.most == "auto" else limits.most
    alone: list[Task] = [(each,) for each in ranges]
    if not 0 < most < len(ranges):
        return alone
    candidates = _measure(ranges, find_sizes(), limits.size > 0)
    total = sum(each.cost for each in candidates)
    largest = TASK_RECORDS if is_auto else total // most
    small = [each for each in candidates if each.may_share and each.cost <= largest]
    count_alone = len(ranges) - len(small)
    least = limits.least - count_alone
    if is_auto:
        least = most
    else:
        most = max(most - count_alone, 1)
    if len(small) <= most:
        return alone
    # Each task but the last gets at least an even share, so there are at most `most` tasks.
    goal = -(-sum(each.cost for each in small) // most) + max(each.cost for each in small) - 1
    if is_auto:
        goal = min(goal, TASK_RECORDS)
    leaders = find_leaders()

    def leader_of(partition: TopicPartition) -> int:
        numbered = leaders.get(partition.topic, ())
        return numbered[partition.partition] if partition.partition < len(numbered) else NO_LEADER

    small.sort(key=lambda each: (leader_of(each.partition), each.partition))
    shared = {each.number for each in small}
    tasks = [[index] for index in range(len(ranges)) if index not in shared]
    tasks += [sorted(each.number for each in task) for task in _fill(small, goal, least, limits)]
    return [tuple(ranges[index] for index in indexes) for indexes in sorted(tasks)]


class _Candidate(NamedTuple):
    """A range that may share a task.

    Attributes:
        number: its index among all ranges.
        cost: its cost for a task, in records.
        may_share: whether no other range has the same partition, and its size is known if needed.
    """

    number: int
    partition: TopicPartition
    cost: int
    records: int
    size: int
    may_share: bool


def _measure(
    ranges: Sequence[OffsetRange], sizes: Mapping[TopicPartition, int], needs_size: bool
) -> list[_Candidate]:
    partitions = [TopicPartition(each.topic, each.partition) for each in ranges]
    parts = Counter(partitions)
    measured = []
    for index, (offset_range, partition) in enumerate(zip(ranges, partitions, strict=True)):
        is_whole = parts[partition] == 1
        size = sizes.get(partition, 0) if is_whole else 0
        cost = RANGE_RECORDS + max(offset_range.size, size // RECORD_BYTES)
        may_share = is_whole and not (needs_size and partition not in sizes)
        measured.append(_Candidate(index, partition, cost, offset_range.size, size, may_share))
    return measured


def _fill(
    small: Sequence[_Candidate], goal: int, least: int, limits: TaskLimits
) -> list[list[_Candidate]]:
    """Fill tasks one after the other, each up to the cost `goal`; makes at least `least` tasks."""
    tasks: list[list[_Candidate]] = []
    cost = records = size = 0
    for done, candidate in enumerate(small):
        if (
            not tasks
            or cost + candidate.cost > goal
            or (limits.records and records + candidate.records > limits.records)
            or (limits.size and size + candidate.size > limits.size)
            or len(tasks) + len(small) - done <= least  # each of the rest needs its own task
        ):
            tasks.append([])
            cost = records = size = 0
        tasks[-1].append(candidate)
        cost, records, size = (
            cost + candidate.cost,
            records + candidate.records,
            size + candidate.size,
        )
    return tasks
