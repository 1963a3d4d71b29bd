"""Which offsets a batch read covers, and how they are shared out among Spark's tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from trimtab.errors import KafkaError, UsageError
from trimtab.records import TopicPartition
from trimtab.spark.options import EARLIEST, LATEST, Offsets

logger = logging.getLogger(__name__)


class DataLoss(KafkaError):
    """Records that should have been read are gone from the topic."""


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


class LogBounds(NamedTuple):
    """The offsets that a partition has now: `earliest` up to, not including, `latest`."""

    earliest: int
    latest: int


def resolve_ranges(
    starting: Offsets,
    ending: Offsets,
    bounds: Mapping[TopicPartition, LogBounds],
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    """The ranges to read, in order of partition; empty ones are left out.

    Args:
        bounds: what each partition that is read holds at this moment.
        fail_on_data_loss: whether offsets asked for by number that the partition does not have are
            an error, or are left out with a warning.

    Raises:
        UsageError: offsets by number that are not given for exactly these partitions, or that end
            before they start.
        DataLoss: if `fail_on_data_loss`.
    """
    _check_partitions("startingOffsets", starting, bounds)
    _check_partitions("endingOffsets", ending, bounds)
    ranges = []
    for partition, (earliest, latest) in sorted(bounds.items()):
        start = _resolve(starting, partition, bounds[partition])
        end = _resolve(ending, partition, bounds[partition])
        if start < earliest or max(start, end) > latest:
            report_data_loss(
                f"{partition}: offsets {start} to {end} were asked for, "
                f"but it holds {earliest} to {latest}",
                fail_on_data_loss,
            )
            start, end = max(start, earliest), min(end, latest)
        elif start > end:
            raise UsageError(f"{partition}: startingOffsets {start} lies after endingOffsets {end}")
        if start < end:
            ranges.append(OffsetRange(*partition, start, end))
    return ranges


def report_data_loss(detail: str, fail_on_data_loss: bool) -> None:
    """Raise or warn, as the option `failOnDataLoss` says.

    Raises:
        DataLoss: if `fail_on_data_loss`.
    """
    if fail_on_data_loss:
        raise DataLoss(
            f"{detail}. They may have been deleted by retention, or the topic was made anew; "
            "the option failOnDataLoss=false reads what is left"
        )
    logger.warning("%s; reading what is left (failOnDataLoss=false)", detail)


def split_ranges(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Cut large ranges so that there are about `min_partitions`, in proportion to their offsets.

    As `KafkaOffsetRangeCalculator` does: a hint, rounding may give a few more or fewer, and a range
    too small to be cut stays whole.
    """
    if len(ranges) >= min_partitions:
        return list(ranges)
    total = sum(each.size for each in ranges)
    # The small ones are set aside first: otherwise they would take parts away from the large.
    whole = {each for each in ranges if _count_parts(each.size, total, min_partitions) == 1}
    divisible = total - sum(each.size for each in whole)
    parts_left = max(min_partitions - len(whole), 1)
    split: list[OffsetRange] = []
    for each in ranges:
        if each in whole:
            split.append(each)
        else:
            split += _cut(each, _count_parts(each.size, divisible, parts_left))
    return split


def _count_parts(size: int, total: int, parts: int) -> int:
    # Half up, as Java rounds.
    return max((2 * size * parts + total) // (2 * total), 1)


def _cut(whole: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    bounds = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    for start, end in pairwise(bounds):
        if start < end:
            yield whole._replace(start=start, end=end)


def _check_partitions(
    name: str, offsets: Offsets, bounds: Mapping[TopicPartition, LogBounds]
) -> None:
    if isinstance(offsets, str) or offsets.keys() == bounds.keys():
        return
    missing = ", ".join(map(str, sorted(bounds.keys() - offsets.keys())))
    extra = ", ".join(map(str, sorted(offsets.keys() - bounds.keys())))
    raise UsageError(
        f"option {name} must give an offset for every partition that is read, and for no other "
        f"(-2 is earliest, -1 is latest): missing {missing or 'none'}; not read {extra or 'none'}"
    )


def _resolve(wanted: Offsets, partition: TopicPartition, bounds: LogBounds) -> int:
    if isinstance(wanted, str):
        return bounds.earliest if wanted == "earliest" else bounds.latest
    offset = wanted[partition]
    return {EARLIEST: bounds.earliest, LATEST: bounds.latest}.get(offset, offset)
