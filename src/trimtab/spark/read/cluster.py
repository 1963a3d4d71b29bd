"""Reads offsets and records from the cluster; the only module of this folder that uses clients.

Clients stay open between plans on the driver and between tasks on the executors (`resident.py`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from trimtab.client.blocking import range_reader
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.range_reader import ReadRules
from trimtab.client.fetcher.ranges import DELETED, Limits, OffsetRange, narrow
from trimtab.client.options import ADMIN
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.types import ZERO_UUID
from trimtab.spark.options.client import resolve_rack
from trimtab.spark.options.source import SourceOptions
from trimtab.spark.read.ranges import LogBounds, report_data_loss, resolve_ranges
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


class Found(NamedTuple):
    """What a batch query reads now.

    Attributes:
        ids: by topic, its id; topics without an id are missing.
        leaders: by topic, the leader's broker id of each partition; -1 if it has none now.
    """

    ranges: list[OffsetRange]
    ids: Mapping[str, bytes]
    leaders: Mapping[str, Sequence[int]]


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

    def find_partitions(
        self, options: SourceOptions
    ) -> tuple[list[TopicPartition], Mapping[str, TopicView]]:
        """The partitions that the options select now, and their topics.

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
        partitions = list(options.partitions) or [
            TopicPartition(name, number)
            for name, topic in described.items()
            for number in range(topic.partition_count)
        ]
        return partitions, described

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

    def close(self) -> None:
        try:
            self._admin.close()
        finally:
            self._consumer.close()


_lookups: Residents[TopicLookup] = Residents(TopicLookup.close)
_consumers: Residents[Consumer] = Residents(Consumer.close)


def ask_with_retries(
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
            with _lookups.borrow(client, TopicLookup) as lookup:
                lookup.contact()
                return question(lookup)
        except (BrokerError, Unavailable) as error:
            may_pass = not isinstance(error, BrokerError) or error.retriable
            if not may_pass or attempts <= 0 or time.monotonic() > give_up_at:
                raise
            logger.info("asking the cluster for offsets failed, trying again: %s", error)
        pause(options.offset_retry_s)


def find_ranges(options: SourceOptions, limits: Limits) -> Found:
    """The offsets that a batch query reads now, by partition.

    Args:
        limits: those of the filters that were pushed down.

    Raises:
        UsageError, DataLoss: as `resolve_ranges`.
        BrokerError, Unavailable: as `ask_with_retries`.
    """

    def plan(lookup: TopicLookup) -> Found:
        partitions, topics = lookup.find_partitions(options)
        bounds = lookup.find_bounds(partitions)
        ranges = resolve_ranges(
            options.starting,
            options.ending,
            bounds,
            lookup.find_times,
            options.fail_on_data_loss,
        )
        return Found(
            narrow(ranges, limits, lookup.find_times),
            {name: each.topic_id for name, each in topics.items() if each.topic_id != ZERO_UUID},
            {name: each.leaders for name, each in topics.items()},
        )

    return ask_with_retries(options, plan)


def read_ranges(
    options: SourceOptions,
    ranges: Sequence[OffsetRange],
    ids: Mapping[str, bytes] = MappingProxyType({}),
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[tuple[OffsetRange, memoryview]]:
    """Whole, verified record batches that cover a task's ranges.

    The consumer retries after temporary errors, and stays open for the next task.

    Args:
        ranges: of different partitions.
        ids: by topic, the id for which the ranges were planned; those without an id are not
            checked.
        pause: waits for a number of seconds.

    Returns:
        Pairs of the unread part of a range, and record batches that begin at or before its start.
        Those of one partition are in order of offsets; partitions alternate as brokers answer.

    Raises:
        DataLoss: offsets of a range, or its topic, were deleted, or the topic was created again.
            With failOnDataLoss=false reading continues at the first remaining offset, with a
            warning.
        BrokerError, CorruptData: a partition cannot be read.
        Unavailable: no data arrived for `kafkaConsumer.pollTimeoutMs`.
        UsageError: `clientRack` names an environment variable that is not set.
    """
    client = _client_options(options)
    rack = resolve_rack(options.client_rack)
    if rack:
        client["client.rack"] = rack

    def report_loss(detail: str, cause: str = DELETED) -> None:
        report_data_loss(detail, options.fail_on_data_loss, cause)

    rules = ReadRules(options.poll_timeout_ms, "kafkaConsumer.pollTimeoutMs", report_loss)
    with _consumers.borrow(client, Consumer) as consumer:
        yield from range_reader.read_ranges(consumer, ranges, ids, rules, pause)


def _client_options(options: SourceOptions) -> dict[str, str]:
    return {**_DEFAULTS, **options.client, **_FIXED}
