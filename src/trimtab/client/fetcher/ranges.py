"""Ranges of offsets that are read once, and what filters leave of them. Does no I/O.

Tests: tests/unit/spark/read/test_filters.py
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from trimtab.kafka.records import TopicPartition

CONFIRMATIONS: Final = 3
CONFIRM_SECONDS: Final = 0.3
"""Before data count as lost, the cluster is asked again so many times, after such pauses: a broker
may have old metadata or a low end offset."""

GONE_SECONDS: Final = 30.0
"""A topic counts as deleted if the cluster has not shown it for this long: a broker that has just
started may know only some topics."""

DELETED: Final = (
    "They may have been deleted by retention, or the topic was deleted and created again"
)

LEAST: Final = -(2**63)
MOST: Final = 2**63


class OffsetRange(NamedTuple):
    """Offsets of one partition from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets; after compaction there may be fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from {self.start} to {self.end}"


class Limits(NamedTuple):
    """Limits of the rows that can pass filters. There may be too many rows in them, never too few.

    Attributes:
        topics, partitions: the topics and partitions to read; None: all.
        first_partition, end_partition, first_offset, end_offset: bounds; the end is exclusive.
        since: the earliest timestamp, milliseconds since the epoch; below 0: any. There is no
            latest one, because timestamps need not increase with offsets.
    """

    topics: Collection[str] | None = None
    partitions: Collection[int] | None = None
    first_partition: int = LEAST
    end_partition: int = MOST
    first_offset: int = LEAST
    end_offset: int = MOST
    since: int = -1


def narrow(
    ranges: Iterable[OffsetRange],
    limits: Limits,
    find_times: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]],
) -> list[OffsetRange]:
    """The parts of these ranges that can hold rows within the limits.

    Args:
        find_times: returns the first offset at or after a time (ms since the epoch), for each
            partition; None if no record is that late.
    """
    narrowed = [
        offset_range._replace(
            start=max(offset_range.start, limits.first_offset),
            end=min(offset_range.end, limits.end_offset),
        )
        for offset_range in ranges
        if (limits.topics is None or offset_range.topic in limits.topics)
        and (limits.partitions is None or offset_range.partition in limits.partitions)
        and limits.first_partition <= offset_range.partition < limits.end_partition
    ]
    narrowed = [each for each in narrowed if each.start < each.end]
    if limits.since < 0 or not narrowed:
        return narrowed
    partitions = [TopicPartition(each.topic, each.partition) for each in narrowed]
    # Every record before the found offset is older.
    found = find_times(dict.fromkeys(partitions, limits.since))
    since = [found[partition] for partition in partitions]
    return [
        offset_range._replace(start=max(offset_range.start, first))
        for offset_range, first in zip(narrowed, since, strict=True)
        if first is not None and first < offset_range.end
    ]
