"""The replicas that may lead partitions besides the in-sync ones (KIP-966)."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.client.admin.answers import EligibleLeaders
from trimtab.client.admin.calls import Family, FinalError, check, unknown_topic
from trimtab.kafka.arguments import checked_integer, checked_names
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)


class EligibleLeaderAdmin(Family):
    """Tells which replicas may lead."""

    async def eligible_leaders(
        self, names: Iterable[str], page_size: int = 2000
    ) -> dict[TopicPartition, EligibleLeaders]:
        """The replicas that may lead these topics' partitions besides the ISR (KIP-966).

        Args:
            page_size: partitions that one response may describe; a broker may choose fewer.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, with the first unknown topic;
                UNSUPPORTED_VERSION, from brokers before Kafka 3.7.
        """
        wanted = checked_names("names", names)
        page_size = checked_integer("page_size", page_size, 1)
        topics = [TopicRequest(name=name) for name in sorted(set(wanted))]

        async def ask() -> dict[TopicPartition, EligibleLeaders]:
            connection = await self._calls.connect_any()
            found: dict[TopicPartition, EligibleLeaders] = {}
            request = DescribeTopicPartitionsRequest(
                topics=topics, response_partition_limit=page_size
            )
            while True:
                response = await connection.request(request)
                for topic in response.topics:
                    name = topic.name or ""
                    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise FinalError(unknown_topic(name))
                    check(topic.error_code, None, f"topic {name}")
                    for partition in topic.partitions:
                        found[TopicPartition(name, partition.partition_index)] = EligibleLeaders(
                            _or_none(partition.eligible_leader_replicas),
                            _or_none(partition.last_known_elr),
                        )
                if response.next_cursor is None:
                    return found
                request.cursor = response.next_cursor

        return await self._calls.retry("describe eligible leaders", ask) if topics else {}


def _or_none(replicas: list[int] | None) -> tuple[int, ...] | None:
    return None if replicas is None else tuple(replicas)
