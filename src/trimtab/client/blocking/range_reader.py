"""Reads ranges of offsets with a consumer: what a task of Spark, and a scan of `trimtab.read`, do.

Tests: tests/unit/spark/read/test_cluster.py
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from trimtab.client.blocking.consumer import Consumer
from trimtab.client.fetcher.ranges import (
    CONFIRM_SECONDS,
    CONFIRMATIONS,
    DELETED,
    GONE_SECONDS,
    OffsetRange,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, TopicRecreated, Unavailable
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.types import ZERO_UUID

logger = logging.getLogger(__name__)

_SLICE_MS: Final = 1000
"""How often a reader that waits for data checks whether its partitions still exist."""

_QUIET_MS: Final = 3000
"""After so long without data, a reader looks whether the offsets that it waits for have records."""

_RANGES_AT_ONCE: Final = 128
"""Fetches are for at most this many partitions at a time, to keep requests small."""

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class ReportLoss(Protocol):
    """Raises, or warns and lets what is left be read."""

    def __call__(self, detail: str, cause: str = DELETED, /) -> None: ...


class ReadRules(NamedTuple):
    """When reading ends early.

    Attributes:
        timeout_ms: how long no partition may have data.
        timeout_option: its name, for the error.
        report_loss: called if records are gone.
        has_pulse: whether an empty buffer comes after each second without data, so that the caller
            can end the reading.
    """

    timeout_ms: int
    timeout_option: str
    report_loss: ReportLoss
    has_pulse: bool = False


def read_ranges(
    consumer: Consumer,
    ranges: Sequence[OffsetRange],
    ids: Mapping[str, bytes],
    rules: ReadRules,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[tuple[OffsetRange, memoryview]]:
    """Whole, verified record batches that cover ranges of different partitions.

    Args:
        consumer: reads nothing else, with `auto.offset.reset=none`; retries after temporary errors.
        ids: by topic, the id for which the ranges were planned; those without an id are not
            checked.
        pause: waits for a number of seconds.

    Returns:
        Pairs of the unread part of a range, and record batches that begin at or before its start.
        Those of one partition are in order of offsets; partitions alternate as brokers answer.

    Raises:
        BrokerError, CorruptData: a partition cannot be read.
        Unavailable: no data arrived for `rules.timeout_ms`.
        Exception: what `rules.report_loss` raises, if offsets of a range, or its topic, were
            deleted, or the topic was created again.
    """
    for begin in range(0, len(ranges), _RANGES_AT_ONCE):
        yield from _read(consumer, ranges[begin : begin + _RANGES_AT_ONCE], ids, rules, pause)


def _read(
    consumer: Consumer,
    ranges: Sequence[OffsetRange],
    ids: Mapping[str, bytes],
    rules: ReadRules,
    pause: Callable[[float], object],
) -> Iterator[tuple[OffsetRange, memoryview]]:
    left = {TopicPartition(each.topic, each.partition): each for each in ranges}
    by_name = {str(partition): partition for partition in left}

    # A broker may count offsets that it never sends (Redpanda). If even the last one of the log is
    # not sent, those before it are not.
    asked_last: set[TopicPartition] = set()
    has_asked_last = False

    def seek(partition: TopicPartition) -> None:
        asked_last.discard(partition)
        each = left[partition]
        topic_id = ids.get(partition.topic, ZERO_UUID)
        consumer.seek(partition, each.start, each.end, topic_id)

    consumer.assign(left)
    for partition in left:
        seek(partition)
    waited = 0
    absent: Counter[TopicPartition] = Counter()  # milliseconds
    recreated: Counter[TopicPartition] = Counter()
    while left:
        try:
            slice_ms = min(_SLICE_MS, rules.timeout_ms - waited)
            batches = consumer.fetch_batches(slice_ms)
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            partition = by_name[error.subject]
            each = left[partition]
            if isinstance(error, TopicRecreated):
                recreated[partition] += 1
                if recreated[partition] <= CONFIRMATIONS:
                    pause(CONFIRM_SECONDS)
                    seek(partition)
                    continue
                earliest = each.end
                rules.report_loss(
                    f"{partition}: offsets {each.start} to {each.end} are gone: its topic was"
                    f" deleted and created again, its id was {error.was} and is {error.now} now",
                    "The offsets mean other records",
                )
            else:
                earliest = consumer.beginning_offsets([partition])[partition]
                rules.report_loss(
                    f"{partition}: offset {each.start} is gone, the first one left is {earliest}",
                )
            if each.start < earliest < each.end:
                left[partition] = each._replace(start=earliest)
                seek(partition)
            else:  # the whole range was deleted, or the topic was created again and is shorter
                del left[partition]
                consumer.assign(left)
            continue
        if batches is not None and batches.partition in asked_last and not batches.is_barren:
            seek(batches.partition)  # so the range has records, and the broker is slow
            continue
        if batches is not None:
            waited = 0
            has_asked_last = False
            absent.clear()
            each = left[batches.partition]
            if batches.partition in asked_last:
                logger.warning("%s: no record is at or after this start", each)
                del left[batches.partition]
                continue
            if batches.next_offset < each.end:
                left[batches.partition] = each._replace(start=batches.next_offset)
            else:
                del left[batches.partition]
            if batches.data:
                yield each, batches.data
            continue
        waited += slice_ms
        if waited >= _QUIET_MS and not has_asked_last:
            has_asked_last = True
            quiet = [each for each in left if consumer.problem(each) is None]
            for partition, end in consumer.end_offsets(quiet).items():
                if end >= left[partition].end:
                    asked_last.add(partition)
                    topic_id = ids.get(partition.topic, ZERO_UUID)
                    consumer.seek(partition, end - 1, end, topic_id)
        for partition, offset_range in list(left.items()):
            problem = consumer.problem(partition)
            if not (isinstance(problem, BrokerError) and problem.code in _GONE):
                absent[partition] = 0
                continue
            absent[partition] += slice_ms
            if absent[partition] >= GONE_SECONDS * 1000:
                rules.report_loss(
                    f"{partition}: offsets {offset_range.start} to {offset_range.end} are gone: "
                    f"{problem}",
                )
                del left[partition]
                consumer.assign(left)
        if left and waited >= rules.timeout_ms:
            raise Unavailable(_describe_silence(consumer, rules, left))
        if left and rules.has_pulse:
            yield next(iter(left.values())), memoryview(b"")


def _describe_silence(
    consumer: Consumer, rules: ReadRules, left: Mapping[TopicPartition, OffsetRange]
) -> str:
    """The message for partitions without data; names one, if possible with the reason."""
    problems = {each: consumer.problem(each) for each in left}
    partition = next((each for each in left if problems[each]), next(iter(left)))
    wanted = left[partition]
    others = f" nor from {len(left) - 1} others," if len(left) > 1 else ""
    return (
        f"{partition}: no data came for offsets {wanted.start} to {wanted.end},{others} within "
        f"{rules.timeout_ms} ms ({problems[partition] or 'its leader does not answer'}); "
        f"raise the option {rules.timeout_option} to wait longer"
    )
