"""The offsets that a batch query reads, and how they are divided into ranges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from trimtab.client.fetcher.ranges import DELETED, OffsetRange
from trimtab.kafka.errors import DataLoss, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import EARLIEST, LATEST
from trimtab.spark.options.source import Offsets, Timestamps
from trimtab.spark.options.values import EVERY_PARTITION

logger = logging.getLogger(__name__)


class LogBounds(NamedTuple):
    """The offsets that a partition has now: `earliest` up to, not including, `latest`."""

    earliest: int
    latest: int


def resolve_ranges(
    starting: Offsets,
    ending: Offsets,
    bounds: Mapping[TopicPartition, LogBounds],
    find_times: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]],
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    """The ranges to read, in order of partition, without empty ones.

    Args:
        bounds: the current bounds of each partition to read.
        find_times: returns the first offset at or after a time (ms since the epoch), for each
            partition; None if no record is that late. Called only for starts and ends by time.
        fail_on_data_loss: whether missing offsets that were requested by number are an error;
            otherwise they are skipped with a warning.

    Raises:
        UsageError: the offsets or times do not name exactly these partitions, a start is after its
            end, or no record is as late as the starting time.
        DataLoss: offsets are missing, and `fail_on_data_loss` is set.
    """
    starts = resolve_offsets("starting", starting, bounds, find_times)
    ends = resolve_offsets("ending", ending, bounds, find_times)
    ranges = []
    for partition, (earliest, latest) in sorted(bounds.items()):
        start, end = starts[partition], ends[partition]
        if start > end:
            raise UsageError(
                f"{partition}: the start, offset {start}, is after the end, offset {end}; the "
                f"partition has offsets {earliest} to {latest}. Check the starting and ending "
                "options, and whether the topic was deleted and created again"
            )
        if start < earliest:
            report_data_loss(
                f"{partition}: offsets {start} to {min(end, earliest)} are gone, the first one "
                f"left is {earliest}",
                fail_on_data_loss,
            )
        if end > latest:
            report_data_loss(
                f"{partition}: offsets {max(start, latest)} to {end} were asked for, but the last "
                f"one that can be read now is {latest - 1}",
                fail_on_data_loss,
                "They may not be written yet, be part of an open transaction, or the topic was "
                "deleted and created again",
            )
        start, end = max(start, earliest), min(end, latest)
        if start < end:
            ranges.append(OffsetRange(*partition, start, end))
    return ranges


def report_data_loss(detail: str, fail_on_data_loss: bool, cause: str = DELETED) -> None:
    """Raise or warn, according to the option `failOnDataLoss`.

    Args:
        cause: a sentence about possible causes.

    Raises:
        DataLoss: if `fail_on_data_loss`.
    """
    if fail_on_data_loss:
        raise DataLoss(f"{detail}. {cause}; the option failOnDataLoss=false reads what is left")
    logger.warning("%s. %s; reading what is left (failOnDataLoss=false)", detail, cause)


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int, max_records: int = 0
) -> list[OffsetRange]:
    """Cut large ranges: first into parts of at most `max_records` offsets, then further, in
    proportion to their offsets, so that there are about `min_partitions`.

    Like `KafkaOffsetRangeCalculator`: `min_partitions` is a hint, rounding may give a few more or
    fewer, and a range too small to be cut stays whole.

    Args:
        max_records: offsets in one range; 0: no limit.
    """
    if max_records:
        ranges = [part for whole in ranges for part in _cut(whole, -(-whole.size // max_records))]
    if len(ranges) >= min_partitions:
        return list(ranges)
    total = sum(each.size for each in ranges)
    # Small ranges are not cut, so only the offsets of large ones count for the proportions.
    whole = {each for each in ranges if _count_parts(each.size, total, min_partitions) == 1}
    divisible = total - sum(each.size for each in whole)
    parts_left = max(min_partitions - len(whole), 1)
    split: list[OffsetRange] = []
    for offset_range in ranges:
        if offset_range in whole:
            split.append(offset_range)
        else:
            split += _cut(offset_range, _count_parts(offset_range.size, divisible, parts_left))
    return split


def _count_parts(size: int, total: int, parts: int) -> int:
    # Rounds half up, like Java.
    return max((2 * size * parts + total) // (2 * total), 1)


def _cut(whole: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    """Equal parts; if the size is not divisible, the last parts have one offset more."""
    start = whole.start
    for parts_left in range(parts, 0, -1):
        end = start + (whole.end - start) // parts_left
        if start < end:
            yield whole._replace(start=start, end=end)
        start = end


def resolve_offsets(
    which: Literal["starting", "ending"],
    wanted: Offsets,
    bounds: Mapping[TopicPartition, LogBounds],
    find_times: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]],
) -> dict[TopicPartition, int]:
    """An offset for each partition.

    Raises:
        UsageError: as `resolve_ranges`.
    """
    if isinstance(wanted, Timestamps):
        times = dict.fromkeys(bounds, wanted.at) if isinstance(wanted.at, int) else wanted.at
        _check_partitions(f"{which}OffsetsByTimestamp", "a time", times, bounds)
        found = find_times(times)
        if which == "starting" and not wanted.or_latest:
            for partition in sorted(bounds):
                if found[partition] is None:
                    raise UsageError(
                        f"{partition}: no record has timestamp {times[partition]} or a later one; "
                        "the option startingOffsetsByTimestampStrategy=latest starts at the end"
                    )
        return {
            partition: bounds[partition].latest if offset is None else offset
            for partition, offset in found.items()
        }
    if isinstance(wanted, str):
        return {
            each: earliest if wanted == "earliest" else latest
            for each, (earliest, latest) in bounds.items()
        }
    wanted = _expand(f"{which}Offsets", wanted, bounds)
    _check_partitions(f"{which}Offsets", "an offset (-2 earliest, -1 latest)", wanted, bounds)
    ends = {EARLIEST: 0, LATEST: 1}
    return {
        partition: bounds[partition][ends[offset]] if offset in ends else offset
        for partition, offset in wanted.items()
    }


def _expand(
    name: str, wanted: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset of each partition, including those of topics that have one for all.

    Raises:
        UsageError: such a topic is not read.
    """
    of_topics = {each.topic: at for each, at in wanted.items() if each.partition == EVERY_PARTITION}
    expanded = {each: at for each, at in wanted.items() if each.topic not in of_topics}
    found = {each: of_topics[each.topic] for each in partitions if each.topic in of_topics}
    if unread := sorted(of_topics.keys() - {each.topic for each in found}):
        raise UsageError(f"option {name} names topics that are not read: {', '.join(unread)}")
    return expanded | found


def _check_partitions(
    name: str,
    what: str,
    given: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, LogBounds],
) -> None:
    if given.keys() == bounds.keys():
        return
    missing = ", ".join(map(str, sorted(bounds.keys() - given.keys())))
    extra = ", ".join(map(str, sorted(given.keys() - bounds.keys())))
    raise UsageError(
        f"option {name} must give {what} for every partition that is read, and for no other: "
        f"missing {missing or 'none'}; not read {extra or 'none'}"
    )
