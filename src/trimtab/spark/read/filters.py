"""Filters that Spark pushes down, as limits on the offsets that are read.

Spark checks every filter again on the rows, so a limit may include too many rows, but not too few.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trimtab.kafka.records import TopicPartition
from trimtab.spark.read.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_LEAST: Final = -(2**63)
_MOST: Final = 2**63


class Limits(NamedTuple):
    """Limits of the rows that can pass the filters.

    Attributes:
        topics, partitions: the topics and partitions to read; None: all.
        first_partition, end_partition, first_offset, end_offset: bounds; the end is exclusive.
        since: the earliest timestamp, milliseconds since the epoch; below 0: any. There is no
            latest one, because timestamps need not increase with offsets.
    """

    topics: Collection[str] | None = None
    partitions: Collection[int] | None = None
    first_partition: int = _LEAST
    end_partition: int = _MOST
    first_offset: int = _LEAST
    end_offset: int = _MOST
    since: int = -1


def read_filters(filters: Iterable[Filter]) -> Limits:
    """The limits of all these filters together; ignores filters that set none."""
    limits = Limits()
    for pushed_filter in filters:
        name, value = type(pushed_filter).__name__, getattr(pushed_filter, "value", None)
        values: tuple[Any, ...] = tuple(value or ()) if name == "In" else (value,)
        match getattr(pushed_filter, "attribute", ()):
            case ("topic",) if name in ("EqualTo", "EqualNullSafe", "In"):
                limits = limits._replace(topics=_both(limits.topics, values))
            case ("partition",) if all(map(_is_whole, values)):
                if name in ("EqualTo", "EqualNullSafe", "In"):
                    limits = limits._replace(partitions=_both(limits.partitions, values))
                first, end = _span(name, values)
                limits = limits._replace(
                    first_partition=max(limits.first_partition, first),
                    end_partition=min(limits.end_partition, end),
                )
            case ("offset",) if all(map(_is_whole, values)):
                first, end = _span(name, values)
                limits = limits._replace(
                    first_offset=max(limits.first_offset, first),
                    end_offset=min(limits.end_offset, end),
                )
            case ("timestamp",) if isinstance(value, datetime) and name in (
                "EqualTo",
                "GreaterThan",
                "GreaterThanOrEqual",
            ):
                if 1970 <= value.year < 9999:  # years that `timestamp` supports on every platform
                    # One less, because of floats and truncated microseconds.
                    since = int(value.timestamp() * 1000) - 1
                    limits = limits._replace(since=max(since, limits.since))
    return limits


def narrow(
    ranges: Iterable[OffsetRange],
    limits: Limits,
    find_times: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]],
) -> list[OffsetRange]:
    """The parts of these ranges that can hold rows within the limits.

    Args:
        find_times: as for `resolve_ranges`.
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


def _both(known: Collection[Any] | None, values: Iterable[Any]) -> Collection[Any]:
    return set(values) if known is None else set(known).intersection(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _span(name: str, values: Collection[int]) -> tuple[int, int]:
    """The numbers that pass a filter, as first and (exclusive) end."""
    match name:
        case "EqualTo" | "EqualNullSafe" | "In":
            return min(values, default=_MOST), max(values, default=_LEAST - 1) + 1
        case "GreaterThan":
            return min(values) + 1, _MOST
        case "GreaterThanOrEqual":
            return min(values), _MOST
        case "LessThan":
            return _LEAST, min(values)
        case "LessThanOrEqual":
            return _LEAST, min(values) + 1
    return _LEAST, _MOST
