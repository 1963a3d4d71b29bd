"""Where Spark meets the cluster: the one module of this room that reads with the client.

Clients stay open between plans on the driver and between tasks on the executors (`resident.py`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from trimtab.client.admin import Admin
from trimtab.client.consumer import Consumer
from trimtab.client.options import ADMIN
from trimtab.errors import BrokerError, ErrorCode, Unavailable
from trimtab.records import TopicPartition
from trimtab.spark.options.source import SourceOptions, resolve_rack
from trimtab.spark.read.filters import Limits, narrow
from trimtab.spark.read.ranges import LogBounds, OffsetRange, report_data_loss, resolve_ranges
from trimtab.spark.resident import Residents

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DEFAULTS = {"client.id": "trimtab-spark", "max.partition.fetch.bytes": str(4 * 1024 * 1024)}
"""A task reads one partition: fewer and larger answers than for a consumer of many."""

_FIXED = {"auto.offset.reset": "none"}
"""Offsets are planned: going on anywhere else would lose or repeat records in silence."""

CONTACT_SECONDS: Final = 3.0
"""How long one attempt waits for the first answer of any broker."""

_SLICE_MS: Final = 1000
"""How often a task that waits for data looks whether its partition still exists."""

_CERTAIN_SLICES: Final = 3
"""After this many lookups in a row, each with new metadata, a missing partition is gone."""

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class TopicLookup:
    """What the driver asks a cluster: which partitions there are, and which offsets they hold.

    Args:
        client: the consumer's options.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        self._admin = Admin(**{name: value for name, value in client.items() if name in ADMIN})
        self._consumer = Consumer(**client)

    def contact(self) -> None:
        """Return once a broker has answered.

        Raises:
            Unavailable: none did within `CONTACT_SECONDS`; names the addresses.
        """
        self._admin.cluster(timeout_ms=CONTACT_SECONDS * 1000)

    def find_partitions(self, options: SourceOptions) -> list[TopicPartition]:
        """The partitions that the options choose, as they are now.

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
                    f"option assign names it, but topic {topic} has {count} partitions, counted "
                    "from 0",
                    f"{topic}-{number}",
                )
        return list(options.partitions) or [
            TopicPartition(name, number)
            for name, topic in described.items()
            for number in range(topic.partition_count)
        ]

    def find_bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """What each partition holds now; with read_committed up to its first open transaction."""
        asked = list(partitions)
        earliest = self._consumer.beginning_offsets(asked)
        latest = self._consumer.end_offsets(asked)
        return {each: LogBounds(earliest[each], latest[each]) for each in asked}

    def find_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time (ms since the epoch); None where there is none."""
        found = self._consumer.offsets_for_times({(*each,): at for each, at in times.items()})
        return {each: None if at is None else at.offset for each, at in found.items()}

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
    """What a question to the cluster brings, asked again as `fetchOffset.numRetries` says.

    Args:
        question: called with clients that are connected; may be called several times.
        pause: waits a number of seconds.

    Raises:
        Unavailable: no broker can be reached, or one that is needed does not answer.
        BrokerError: the cluster refuses, such as a topic that does not exist.
    """
    client = _client_options(options)
    attempts = options.offset_attempts
    # A question that failed after a minute was asked again all the time, by the client.
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
    """The offsets that a batch reads, by partition, as they are now.

    Args:
        limits: what can pass the filters that were pushed down.

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


def read_range(options: SourceOptions, wanted: OffsetRange) -> Iterator[memoryview]:
    """Record batches that cover a range, whole and verified, in the order of offsets.

    Errors that may pass are ridden out by the consumer. It stays open for the next task.

    Raises:
        DataLoss: offsets of the range, or the partition, are gone. With failOnDataLoss=false
            reading goes on at the first offset that is left, with a warning.
        BrokerError, CorruptData: the partition cannot be read.
        Unavailable: nothing came for `kafkaConsumer.pollTimeoutMs`.
        UsageError: `clientRack` names a variable that this process does not have.
    """
    client = _client_options(options)
    rack = resolve_rack(options.client_rack)
    if rack:
        client["client.rack"] = rack
    with _consumers.borrow(_key(client), lambda: Consumer(**client)) as consumer:
        yield from _read(consumer, options, wanted)


def _read(consumer: Consumer, options: SourceOptions, wanted: OffsetRange) -> Iterator[memoryview]:
    partition = TopicPartition(wanted.topic, wanted.partition)
    offset = wanted.start
    consumer.assign([partition])
    consumer.seek(partition, offset, wanted.end)
    waited = looks_without = 0
    while offset < wanted.end:
        try:
            slice_ms = min(_SLICE_MS, options.poll_timeout_ms - waited)
            batches = consumer.fetch_batches(slice_ms)
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            earliest = consumer.beginning_offsets([partition])[partition]
            report_data_loss(
                f"{partition}: offset {offset} is gone, the first one left is {earliest}",
                options.fail_on_data_loss,
            )
            if earliest <= offset:  # the log ends before it: the topic was created again
                return
            offset = earliest
            consumer.seek(partition, offset, wanted.end)
            continue
        if batches is not None:
            waited = looks_without = 0
            offset = batches.next_offset
            yield batches.data
            continue
        waited += slice_ms
        problem = consumer.problem(partition)
        is_gone = isinstance(problem, BrokerError) and problem.code in _GONE
        looks_without = looks_without + 1 if is_gone else 0
        if looks_without >= _CERTAIN_SLICES:
            report_data_loss(
                f"{partition}: offsets {offset} to {wanted.end} are gone: {problem}",
                options.fail_on_data_loss,
            )
            return
        if waited >= options.poll_timeout_ms:
            raise Unavailable(
                f"{partition}: nothing came from offset {offset} on, of {wanted.end}, within "
                f"{options.poll_timeout_ms} ms ({problem or 'its leader is silent'}); the option "
                "kafkaConsumer.pollTimeoutMs waits longer"
            )


def _client_options(options: SourceOptions) -> dict[str, str]:
    return {**_DEFAULTS, **options.client, **_FIXED}


def _key(client: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(client.items()))
