"""Where Spark meets the cluster: the one module of this room that uses the client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from trimtab.client.admin import Admin
from trimtab.client.consumer import Consumer
from trimtab.client.options import ADMIN
from trimtab.errors import BrokerError, ErrorCode, Unavailable
from trimtab.records import TopicPartition
from trimtab.spark.options import SourceOptions
from trimtab.spark.ranges import LogBounds, OffsetRange, report_data_loss

_DEFAULTS = {"client.id": "trimtab-spark", "max.partition.fetch.bytes": str(4 * 1024 * 1024)}
"""A task reads one partition: fewer and larger answers than for a consumer of many."""

_FIXED = {"auto.offset.reset": "none"}
"""Offsets are planned: going on anywhere else would lose or repeat records in silence."""


def find_bounds(options: SourceOptions) -> dict[TopicPartition, LogBounds]:
    """The partitions that the options choose, and what each holds at this moment.

    Raises:
        BrokerError: a topic is not there, or may not be read.
        Unavailable: no broker answers.
    """
    with _open_consumer(options.client) as consumer:
        partitions = list(options.partitions) or _find_partitions(options)
        earliest = consumer.beginning_offsets(partitions)
        latest = consumer.end_offsets(partitions)
    return {each: LogBounds(earliest[each], latest[each]) for each in partitions}


def read_range(
    client: Mapping[str, str], wanted: OffsetRange, poll_timeout_ms: int, fail_on_data_loss: bool
) -> Iterator[memoryview]:
    """Record batches that cover a range, whole and verified, in the order of offsets.

    Errors that may pass are ridden out by the consumer.

    Args:
        client: the consumer's options.
        poll_timeout_ms: how long no data at all may come.
        fail_on_data_loss: whether it is an error if offsets of the range are gone by now; otherwise
            reading goes on at the first one that is left, with a warning.

    Raises:
        DataLoss: offsets are gone.
        BrokerError, CorruptData: the partition cannot be read.
        Unavailable: nothing came for `poll_timeout_ms`.
    """
    partition = TopicPartition(wanted.topic, wanted.partition)
    offset = wanted.start
    with _open_consumer(client) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, offset)
        while offset < wanted.end:
            try:
                batches = consumer.fetch_batches(poll_timeout_ms)
            except BrokerError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                earliest = consumer.beginning_offsets([partition])[partition]
                report_data_loss(
                    f"{partition}: offset {offset} is gone, the first one left is {earliest}",
                    fail_on_data_loss,
                )
                if earliest <= offset:  # the log ends before it: the topic was made anew
                    return
                offset = earliest
                consumer.seek(partition, offset)
                continue
            if batches is None:
                raise Unavailable(
                    f"{partition}: nothing came from offset {offset} on, of {wanted.end}, within "
                    f"{poll_timeout_ms} ms ({consumer.problem(partition) or 'its leader is silent'}"
                    "); the option kafkaConsumer.pollTimeoutMs waits longer"
                )
            offset = batches.next_offset
            yield batches.data


def _open_consumer(client: Mapping[str, str]) -> Consumer:
    return Consumer(**{**_DEFAULTS, **client, **_FIXED})


def _find_partitions(options: SourceOptions) -> Sequence[TopicPartition]:
    known = {name: value for name, value in options.client.items() if name in ADMIN}
    with Admin(**known) as admin:
        topics = list(options.topics) or [
            topic for topic in admin.topics() if re.search(options.pattern, topic)
        ]
        described = admin.describe_topics(topics) if topics else {}
    return [
        TopicPartition(name, number)
        for name, topic in described.items()
        for number in range(topic.partition_count)
    ]
