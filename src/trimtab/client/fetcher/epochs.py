"""Asks leaders where leader epochs end in their logs, to find truncation (KIP-320)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.client.fetcher.plan import EpochEnd, PartitionFetch
from trimtab.client.network.connection import Connection
from trimtab.kafka.errors import BrokerError, error_code
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from trimtab.kafka.wire.sentinels import CONSUMER

_FIRST_VERSION_FOR_CONSUMERS: Final = 3
"""Before it, the request needed a permission that only brokers have."""


def can_ask(connection: Connection) -> bool:
    """Whether a consumer may ask this broker: Kafka 2.3 or later."""
    try:
        version = connection.version_of(OffsetForLeaderEpochRequest)
    except BrokerError:
        return False
    return version >= _FIRST_VERSION_FOR_CONSUMERS


async def find_epoch_ends(
    connection: Connection, fetches: Iterable[PartitionFetch]
) -> dict[TopicPartition, EpochEnd]:
    """Where the epoch of each position's last record ends.

    Raises:
        KafkaError: no answer.
    """
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for fetch in fetches:
        topics.setdefault(fetch.partition.topic, []).append(
            OffsetForLeaderPartition(
                partition=fetch.partition.partition,
                current_leader_epoch=fetch.leader_epoch,
                leader_epoch=fetch.last_epoch,
            )
        )
    response = await connection.request(
        OffsetForLeaderEpochRequest(
            replica_id=CONSUMER,
            topics=[OffsetForLeaderTopic(topic=name, partitions=of) for name, of in topics.items()],
        )
    )
    return {
        TopicPartition(topic.topic, end.partition): EpochEnd(
            error_code(end.error_code), end.leader_epoch, end.end_offset
        )
        for topic in response.topics
        for end in topic.partitions
    }
