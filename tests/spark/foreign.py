"""A topic as confluent-kafka's reader finds it."""

from __future__ import annotations

from typing import NamedTuple, cast


class Stored(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int
    """Milliseconds since the Unix epoch."""


def read_topic(servers: str, topic: str) -> list[Stored]:
    """All its records, partition by partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "fetch.message.max.bytes": 32 * 1024 * 1024,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), 30)
            for number in partitions
        }
        consumer.assign([TopicPartition(topic, number, low) for number, (low, _) in ends.items()])
        left = sum(high - low for low, high in ends.values())
        stored: list[Stored] = []
        while len(stored) < left:
            messages = consumer.consume(min(1000, left - len(stored)), 30)
            assert messages, f"nothing more of {topic} for 30 s, {left - len(stored)} are missing"
            for message in messages:
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                stored.append(
                    Stored(
                        partition,
                        offset,
                        message.key(),
                        message.value(),
                        cast("list[tuple[str, bytes | None]]", message.headers() or []),
                        message.timestamp()[1],
                    )
                )
    finally:
        consumer.close()
    return sorted(stored, key=lambda each: (each.partition, each.offset))
