"""The replicas that may lead partitions besides the in-sync ones (KIP-966)."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.client.admin.answers import EligibleLeaders
from trimtab.client.admin.calls import Calls, FinalError, check, unknown_topic
from trimtab.errors import ErrorCode
from trimtab.records import TopicPartition
from trimtab.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)


async def describe_eligible_leaders(
    calls: Calls, names: Iterable[str], page_size: int
) -> dict[TopicPartition, EligibleLeaders]:
    topics = [TopicRequest(name=name) for name in sorted(set(names))]

    async def ask() -> dict[TopicPartition, EligibleLeaders]:
        connection = await calls.connect_any()
        found: dict[TopicPartition, EligibleLeaders] = {}
        request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=page_size)
        while True:
            response = await connection.request(request)
            for topic in response.topics:
                name = topic.name or ""
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise FinalError(unknown_topic(name))
                check(topic.error_code, None, f"topic {name}")
                for each in topic.partitions:
                    found[TopicPartition(name, each.partition_index)] = EligibleLeaders(
                        _or_none(each.eligible_leader_replicas), _or_none(each.last_known_elr)
                    )
            if response.next_cursor is None:
                return found
            request.cursor = response.next_cursor

    return await calls.retry("describe eligible leaders", ask) if topics else {}


def _or_none(replicas: list[int] | None) -> tuple[int, ...] | None:
    return None if replicas is None else tuple(replicas)
