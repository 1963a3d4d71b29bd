"""Who causes the load of a partition: the keys and producers of its newest records.

One fetch to each leader, of a bounded number of bytes; nobody's offsets change.

Tests: tests/unit/client/test_collector.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple, TypeVar

from trimtab.client.network.connections import Connections
from trimtab.kafka.errors import BrokerError, CorruptData, ErrorCode, KafkaError, error_code
from trimtab.kafka.records import TopicPartition, by_topic
from trimtab.kafka.wire.batch_header import BytesLike, read_headers
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from trimtab.kafka.wire.records_cy import read_records
from trimtab.kafka.wire.sentinels import NO_PRODUCER_ID

K = TypeVar("K", bound=Hashable)

TAIL_BYTES: Final = 262_144
"""Bytes that are read of a partition."""
_SHOWN: Final = 10
_LAST_VERSION_WITH_NAMES: Final = 12


class Share(NamedTuple):
    """One key or producer, and its share of the bytes, from 0 to 1."""

    name: str
    share: float


class Tail(NamedTuple):
    """What the newest records of a partition show.

    Attributes:
        records, batches: that were read, whole ones.
        bytes: of these batches, as stored.
        keys: the keys with most bytes of keys and values, at most ten; "" stands for no key.
        producers: the ids of the producers with most bytes, at most ten; "" without idempotence.
    """

    records: int
    batches: int
    bytes: int
    keys: tuple[Share, ...]
    producers: tuple[Share, ...]


async def read_tails(
    connections: Connections,
    starts: Mapping[int, Mapping[TopicPartition, int]],
    show_key: Callable[[bytes], str],
    timeout_s: float = 5.0,
) -> tuple[dict[TopicPartition, Tail], dict[TopicPartition, str]]:
    """Read the newest records of some partitions, from all leaders at once.

    Right: Read on the topics.

    Args:
        starts: by leader, the offset of each partition at which to begin.
        show_key: a key as it may be shown.
        timeout_s: for each leader; seconds.

    Returns:
        The tails of the partitions that have any records there, and why others have none.
    """
    tails: dict[TopicPartition, Tail] = {}
    missing: dict[TopicPartition, str] = {}

    async def read(leader: int, offsets: Mapping[TopicPartition, int]) -> None:
        request = _request(offsets)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await connections.connect(leader)
                version = connection.version_of(FetchRequest, _LAST_VERSION_WITH_NAMES)
                response = await connection.request(request, version)
            if response.error_code != ErrorCode.NONE:
                raise BrokerError(error_code(response.error_code), "", f"broker {leader}")
        except TimeoutError:
            why = f"no answer within {timeout_s:g} s"
            missing.update(dict.fromkeys(offsets, f"broker {leader}: {why}"))
            return
        except KafkaError as error:
            missing.update(dict.fromkeys(offsets, str(error)))
            return
        for topic in response.responses:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                if data.error_code != ErrorCode.NONE:
                    missing[partition] = str(BrokerError(error_code(data.error_code), ""))
                    continue
                try:
                    tail = summarize_tail(partition, data.records or b"", show_key)
                except CorruptData as error:
                    missing[partition] = str(error)
                else:
                    if tail.records:
                        tails[partition] = tail

    await asyncio.gather(*(read(*each) for each in starts.items()))
    return tails, missing


def summarize_tail(
    partition: TopicPartition, data: BytesLike, show_key: Callable[[bytes], str]
) -> Tail:
    """The keys and producers of some batches; one that is cut short at the end does not count.

    Raises:
        CorruptData: a batch is damaged.
    """
    keys: dict[bytes | None, int] = {}
    producers: dict[int, int] = {}
    headers = [each for each in read_headers(data, allow_partial=True) if not each.is_control]
    for header in headers:
        size = producers.get(header.producer_id, 0) + header.size
        producers[header.producer_id] = size
    records = read_records(*partition, data)
    for record in records:
        key = record.key
        size = len(key or b"") + len(record.value or b"")
        keys[key] = keys.get(key, 0) + size
    return Tail(
        len(records),
        len(headers),
        sum(header.size for header in headers),
        _find_largest(keys, lambda key: "" if key is None else show_key(key)),
        _find_largest(producers, lambda id: "" if id == NO_PRODUCER_ID else str(id)),
    )


def _find_largest(sizes: Mapping[K, int], show: Callable[[K], str]) -> tuple[Share, ...]:
    total = sum(sizes.values()) or 1
    largest = sorted(sizes.items(), key=lambda each: -each[1])[:_SHOWN]
    return tuple(Share(show(name), size / total) for name, size in largest)


def _request(offsets: Mapping[TopicPartition, int]) -> FetchRequest:
    topics = [
        FetchTopic(
            topic=topic,
            partitions=[
                FetchPartition(
                    partition=index,
                    fetch_offset=offsets[TopicPartition(topic, index)],
                    partition_max_bytes=TAIL_BYTES,
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(offsets).items()
    ]
    most = TAIL_BYTES * len(offsets)
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=most, topics=topics)
