"""Filters that Spark pushes down, as limits on the offsets that are read.

Spark checks every filter again on the rows, so a limit may include too many rows, but not too few.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trimtab.client.fetcher.ranges import LEAST, MOST, Limits

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


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


def _both(known: Collection[Any] | None, values: Iterable[Any]) -> Collection[Any]:
    return set(values) if known is None else set(known).intersection(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _span(name: str, values: Collection[int]) -> tuple[int, int]:
    """The numbers that pass a filter, as first and (exclusive) end."""
    match name:
        case "EqualTo" | "EqualNullSafe" | "In":
            return min(values, default=MOST), max(values, default=LEAST - 1) + 1
        case "GreaterThan":
            return min(values) + 1, MOST
        case "GreaterThanOrEqual":
            return min(values), MOST
        case "LessThan":
            return LEAST, min(values)
        case "LessThanOrEqual":
            return LEAST, min(values) + 1
    return LEAST, MOST
