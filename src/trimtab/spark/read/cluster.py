"""Reads offsets and records from the cluster; the only module of this folder that uses clients.

Clients stay open between plans on the driver and between tasks on the executors (`resident.py`).
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from trimtab.blocking.admin import Admin
from trimtab.blocking.consumer import Consumer
from trimtab.client.options import ADMIN
from trimtab.errors import BrokerError, ErrorCode, Unavailable
from trimtab.records import TopicPartition
from trimtab.spark.options.source import SourceOptions, resolve_rack
from trimtab.spark.read.filters import Limits, narrow
from trimtab.spark.read.packing import look_up_leaders
from trimtab.spark.read.ranges import LogBounds, OffsetRange, report_data_loss, resolve_ranges
from trimtab.spark.resident import Residents

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DEFAULTS = {"client.id": "trimtab-spark", "max.partition.fetch.bytes": str(4 * 1024 * 1024)}
"""A task usually reads one partition, so its responses are larger and fewer than those of a
consumer of many. If it reads several, `fetch.max.bytes` limits a response."""

_FIXED = {"auto.offset.reset": "none"}
"""The driver has planned the offsets: others would silently lose or repeat records."""

CONTACT_SECONDS: Final = 3.0
"""How long one attempt waits for the first response of any broker."""

_SLICE_MS: Final = 1000
"""How often a task that waits for data checks whether its partitions still exist."""

_CERTAIN_SLICES: Final = 3
"""A partition counts as deleted if it is missing from this many metadata responses in a row."""

_RANGES_AT_ONCE: Final = 128
"""A task fetches from at most this many partitions at a time, to keep requests small."""

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class TopicLookup:
    """The driver's requests to a cluster, for partitions and their offsets.

    Args:
        client: the consumer's options.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        self._admin = Admin({name: value for name, value in client.items() if name in ADMIN})
        self._consumer = Consumer(client)

    def contact(self) -> None:
        """Return when a broker has answered.

        Raises:
            Unavailable: none has answered within `CONTACT_SECONDS`; names the addresses.
        """
        self._admin.cluster(timeout_ms=CONTACT_SECONDS * 1000)

    def find_partitions(self, options: SourceOptions) -> list[TopicPartition]:
        """The partitions that the options select now.

        Raises:
            BrokerError: a topic or an assigned partition does not exist, or may not be read.
        """
        topics = list(options.topics) or list(dict.fromkeys(p.topic for p in options.partitions))
        if options.pattern:
            topics = [topic for topic in self._admin.topics() if re.search(options.pattern, topic)]
        described = self._admin.describe_topics(topics) if topics else {}
        for topic, number in options.partitions:
            count = described[topic].partition_count
            if number >= count:
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"option assign names it, but topic {topic} has only {count} partitions, "
                    "numbered from 0",
                    f"{topic}-{number}",
                )
        return list(options.partitions) or [
            TopicPartition(name, number)
            for name, topic in described.items()
            for number in range(topic.partition_count)
        ]

    def find_bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """The current bounds of each partition.

        With read_committed they end at its first open transaction.
        """
        asked = list(partitions)
        earliest = self._consumer.beginning_offsets(asked)
        latest = self._consumer.end_offsets(asked)
        return {each: LogBounds(earliest[each], latest[each]) for each in asked}

    def find_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time (ms since the epoch); None if there is none."""
        found = self._consumer.offsets_for_times({(*each,): at for each, at in times.items()})
        return {each: None if at is None else at.offset for each, at in found.items()}

    def find_leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The id of the broker that leads each partition; -1 if it has no leader now."""
        topics = self._admin.describe_topics(sorted({each.topic for each in partitions}))
        return look_up_leaders(partitions, {name: topics[name].leaders for name in topics})

    def close(self) -> None:
        try:
            self._admin.close()
        finally:
            self._consumer.close()


_lookups: Residents[TopicLookup] = Residents(TopicLookup.close)
_consumers: Residents[Consumer] = Residents(Consumer.close)


def ask(
    options: SourceOptions,
    question: Callable[[TopicLookup], T],
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """The result of `question`, which is repeated as `fetchOffset.numRetries` says.

    Args:
        question: sends requests; called with connected clients, possibly several times.
        pause: waits for a number of seconds.

    Raises:
        Unavailable: no broker can be reached, or a required one does not answer.
        BrokerError: the cluster refuses, for example because a topic does not exist.
    """
    client = _client_options(options)
    attempts = options.offset_attempts
    # The client itself has repeated a request that failed after a minute.
    give_up_at = time.monotonic() + 2 * attempts * (CONTACT_SECONDS + options.offset_retry_s)
    while True:
        attempts -= 1
        try:
            with _lookups.borrow(_key(client), lambda: TopicLookup(client)) as lookup:
                lookup.contact()
                return question(lookup)
        except (BrokerError, Unavailable) as error:
            may_pass = not isinstance(error, BrokerError) or error.retriable
            if not may_pass or attempts <= 0 or time.monotonic() > give_up_at:
                raise
            logger.info("asking the cluster for offsets failed, trying again: %s", error)
        pause(options.offset_retry_s)


def find_ranges(options: SourceOptions, limits: Limits) -> list[OffsetRange]:
    """The offsets that a batch query reads now, by partition.

    Args:
        limits: those of the filters that were pushed down.

    Raises:
        UsageError, DataLoss: as `resolve_ranges`.
        BrokerError, Unavailable: as `ask`.
    """

    def plan(lookup: TopicLookup) -> list[OffsetRange]:
        bounds = lookup.find_bounds(lookup.find_partitions(options))
        ranges = resolve_ranges(
            options.starting,
            options.ending,
            bounds,
            lookup.find_times,
            options.fail_on_data_loss,
        )
        return narrow(ranges, limits, lookup.find_times)

    return ask(options, plan)


def find_leaders(
    options: SourceOptions, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The id of the broker that leads each partition; -1 if it has no leader now.

    Raises:
        BrokerError, Unavailable: as `ask`.
    """
    return ask(options, lambda lookup: lookup.find_leaders(partitions))


def read_ranges(
    options: SourceOptions, ranges: Sequence[OffsetRange]
) -> Iterator[tuple[OffsetRange, memoryview]]:
    """Whole, verified record batches that cover a task's ranges.

    The consumer retries after temporary errors, and stays open for the next task.

    Args:
        ranges: of different partitions.

    Returns:
        Pairs of the unread part of a range, and record batches that begin at or before its start.
        Those of one partition are in order of offsets; partitions alternate as brokers answer.

    Raises:
        DataLoss: offsets of a range, or its partition, were deleted. With failOnDataLoss=false
            reading continues at the first remaining offset, with a warning.
        BrokerError, CorruptData: a partition cannot be read.
        Unavailable: no data arrived for `kafkaConsumer.pollTimeoutMs`.
        UsageError: `clientRack` names an environment variable that is not set.
    """
    client = _client_options(options)
    rack = resolve_rack(options.client_rack)
    if rack:
        client["client.rack"] = rack
    with _consumers.borrow(_key(client), lambda: Consumer(client)) as consumer:
        for begin in range(0, len(ranges), _RANGES_AT_ONCE):
            yield from _read(consumer, options, ranges[begin : begin + _RANGES_AT_ONCE])


def _read(
    consumer: Consumer, options: SourceOptions, ranges: Sequence[OffsetRange]
) -> Iterator[tuple[OffsetRange, memoryview]]:
    left = {TopicPartition(each.topic, each.partition): each for each in ranges}
    by_name = {str(partition): partition for partition in left}
    consumer.assign(left)
    for partition, each in left.items():
        consumer.seek(partition, each.start, each.end)
    waited = 0
    missing_count: Counter[TopicPartition] = Counter()
    while left:
        try:
            slice_ms = min(_SLICE_MS, options.poll_timeout_ms - waited)
            batches = consumer.fetch_batches(slice_ms)
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            partition = by_name[error.subject]
            each = left[partition]
            earliest = consumer.beginning_offsets([partition])[partition]
            report_data_loss(
                f"{partition}: offset {each.start} is gone, the first one left is {earliest}",
                options.fail_on_data_loss,
            )
            if each.start < earliest < each.end:
                left[partition] = each._replace(start=earliest)
                consumer.seek(partition, earliest, each.end)
            else:  # the whole range was deleted, or the topic was created again and is shorter
                del left[partition]
                consumer.assign(left)
            continue
        if batches is not None:
            waited = 0
            missing_count.clear()
            each = left[batches.partition]
            if batches.next_offset < each.end:
                left[batches.partition] = each._replace(start=batches.next_offset)
            else:
                del left[batches.partition]
            yield each, batches.data
            continue
        waited += slice_ms
        for partition, each in list(left.items()):
            problem = consumer.problem(partition)
            if not (isinstance(problem, BrokerError) and problem.code in _GONE):
                missing_count[partition] = 0
                continue
            missing_count[partition] += 1
            if missing_count[partition] >= _CERTAIN_SLICES:
                report_data_loss(
                    f"{partition}: offsets {each.start} to {each.end} are gone: {problem}",
                    options.fail_on_data_loss,
                )
                del left[partition]
                consumer.assign(left)
        if left and waited >= options.poll_timeout_ms:
            raise Unavailable(_describe_silence(consumer, options, left))


def _describe_silence(
    consumer: Consumer, options: SourceOptions, left: Mapping[TopicPartition, OffsetRange]
) -> str:
    """The message for partitions without data; names one, if possible with the reason."""
    problems = {each: consumer.problem(each) for each in left}
    partition = next((each for each in left if problems[each]), next(iter(left)))
    wanted = left[partition]
    others = f" nor from {len(left) - 1} others," if len(left) > 1 else ""
    return (
        f"{partition}: no data came for offsets {wanted.start} to {wanted.end},{others} within "
        f"{options.poll_timeout_ms} ms ({problems[partition] or 'its leader does not answer'}); "
        "raise the option kafkaConsumer.pollTimeoutMs to wait longer"
    )


def _client_options(options: SourceOptions) -> dict[str, str]:
    return {**_DEFAULTS, **options.client, **_FIXED}


def _key(client: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(client.items()))
