"""The bounds of `trimtab.read`: what a caller writes, and the offsets that it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from trimtab.client.blocking.range_reader import ReportLoss
from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.kafka.arguments import MAX_INT64, checked_integer, checked_time, shown
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import NO_OFFSET, TopicPartition

Moment: TypeAlias = int | str | datetime
"""An offset, "earliest", "latest", or a time: a datetime, ISO 8601 text, or as "-1h" before now. A
negative offset counts from the end of the partition, as in a slice."""
Bound: TypeAlias = Moment | Mapping[int, Moment]
"""A moment for all partitions, or one for each by its number."""

_FORMS: Final = (
    "an offset, 'earliest', 'latest', a datetime, ISO 8601 text as '2026-01-31T08:00:00Z', or a"
    " time before now as '-1h' (ms, s, m, h, d, w)"
)
_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_AGO: Final = re.compile(rf"-(\d+(?:\.\d+)?) ?({'|'.join(_UNITS_MS)})")
_NOT_WRITTEN: Final = "Either they are not written yet, or the topic was deleted and created again"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Time(NamedTuple):
    """The first record at or after a time, milliseconds since the epoch."""

    ms: int


class Bounds(NamedTuple):
    """Checked bounds: a moment for all partitions, or one for each."""

    start: Checked | Mapping[int, Checked]
    end: Checked | Mapping[int, Checked]


Checked: TypeAlias = int | str | Time
Log: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
"""The earliest and the latest offset of each partition."""


def checked_bounds(start: object, end: object, now_ms: int) -> Bounds:
    """The bounds of `trimtab.read`.

    Raises:
        UsageError: one has another form, or they contradict each other.
    """
    bounds = Bounds(_checked_bound("start", start, now_ms), _checked_bound("end", end, now_ms))
    match bounds:
        case (int(first), int(stop)) | (Time(first), Time(stop)) if (
            first > stop >= 0 or 0 > first > stop
        ):
            raise UsageError(f"start={shown(start)} is after end={shown(end)}; exchange the two")
    return bounds


def _checked_bound(what: str, value: object, now_ms: int) -> Checked | dict[int, Checked]:
    if isinstance(value, Mapping):
        return {
            checked_integer(f"{what}: partition", number): _moment(
                f"{what}[{number}]", each, now_ms
            )
            for number, each in value.items()
        }
    return _moment(what, value, now_ms)


def _moment(what: str, value: object, now_ms: int) -> Checked:
    if isinstance(value, datetime):
        return Time(_milliseconds(what, value))
    if not isinstance(value, str):
        return checked_integer(what, value, -MAX_INT64, MAX_INT64, _FORMS)
    if value in ("earliest", "latest"):
        return value
    if (ago := _AGO.fullmatch(value)) is not None:
        return Time(max(0, now_ms - round(float(ago[1]) * _UNITS_MS[ago[2]])))
    try:
        if value.isdigit():  # an offset, and not the compact form of a date
            raise ValueError
        return Time(_milliseconds(what, datetime.fromisoformat(value)))
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{what}={shown(value)}: give {_FORMS}") from None


def _milliseconds(what: str, at: datetime) -> int:
    """Rounded up: no record has a part of a millisecond."""
    since = at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH
    return checked_time(what, -(-since // timedelta(milliseconds=1)))


def find_ranges(
    bounds: Bounds,
    log: Log,
    find_time: Callable[[int, Iterable[TopicPartition]], Mapping[TopicPartition, int]],
    report_loss: ReportLoss,
) -> list[OffsetRange]:
    """The offsets of each partition within the bounds, possibly none.

    Args:
        find_time: the first offset at or after a time, ms since the epoch; -1 if there is none.
        report_loss: called if offsets are asked for that the log has not; raises, or returns to
            have what is left.

    Raises:
        UsageError: a start is after its end, or the bounds of partitions are not of these.
    """
    starts = _offsets("start", bounds.start, log, find_time)
    ends = _offsets("end", bounds.end, log, find_time)
    ranges = []
    for partition, (earliest, latest) in log.items():
        start, end = starts[partition], min(ends[partition], latest)
        has = f"the log has offsets {earliest} to {latest}"
        if start > latest:
            report_loss(f"{partition}: start={start}, but {has}", _NOT_WRITTEN)
        for what, offset in (("start", start), ("end", end)):
            if offset < earliest:
                report_loss(f"{partition}: {what}={offset}, but {has}")
        start, end = min(max(start, earliest), latest), max(end, earliest)
        if start > end:
            raise UsageError(
                f"{partition}: the start, offset {start}, is after the end, offset {end}; {has}:"
                " give an earlier start, or a later end"
            )
        ranges.append(OffsetRange(*partition, start, end))
    return ranges


def _offsets(
    what: str,
    bound: Checked | Mapping[int, Checked],
    log: Log,
    find_time: Callable[[int, Iterable[TopicPartition]], Mapping[TopicPartition, int]],
) -> dict[TopicPartition, int]:
    if isinstance(bound, Mapping):
        numbers = {each.partition for each in log}
        if bound.keys() != numbers:
            missing, other = sorted(numbers - bound.keys()), sorted(bound.keys() - numbers)
            raise UsageError(
                f"{what}= must name every partition that is read, and no other: missing"
                f" {shown(missing)}, not read {shown(other)}; partitions= says which are read"
            )
    offsets: dict[TopicPartition, int] = {}
    times: dict[int, list[TopicPartition]] = {}
    for partition, (earliest, latest) in log.items():
        match bound[partition.partition] if isinstance(bound, Mapping) else bound:
            case "earliest":
                offsets[partition] = earliest
            case Time(ms):
                times.setdefault(ms, []).append(partition)
            case int(offset):
                offsets[partition] = offset if offset >= 0 else max(earliest, latest + offset)
            case _:
                offsets[partition] = latest
    for ms, partitions in times.items():
        for partition, offset in find_time(ms, partitions).items():
            # Records that came since the log was looked at do not count.
            latest = log[partition][1]
            offsets[partition] = latest if offset == NO_OFFSET else min(offset, latest)
    return offsets
