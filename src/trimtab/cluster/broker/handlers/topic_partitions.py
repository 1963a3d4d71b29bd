"""DescribeTopicPartitions (75): topics' partitions, a page at a time, with their ELRs (KIP-966).

- Topics are sorted by name. A request without topics asks for all of them.
- A page ends after `response_partition_limit` partitions, 2000 at most; its cursor says where the
  next one begins. A cursor at a topic that was not requested makes every topic an error.
- A requested topic that does not exist has an error code, and does not count towards the limit.
- The authorized operations allow everything, as there is no authorizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from trimtab.balance.replica_counts import INTERNAL_TOPICS
from trimtab.cluster.broker.authorized_operations import ON_TOPIC
from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.metadata.image import ClusterImage, PartitionRegistration, TopicImage
from trimtab.cluster.server.turns import Pace, Steps, answer_each, in_order
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.topic_name import find_fault
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.kafka.wire.types import ZERO_UUID

MAX_PARTITIONS = 2000
"""Partitions in a page at most (Kafka's `max.request.partition.size.limit`)."""


def describe_topic_partitions(
    view: ClusterView, header: RequestHeader, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    """One page."""
    pace = Pace()
    image = view.image
    start = request.cursor
    names: list[str] = []
    names_start = False
    for request_topic in request.topics:
        names.append(request_topic.name)
        names_start |= start is not None and request_topic.name == start.topic_name
        if pace.spend():
            yield
    if start is not None and (start.partition_index < 0 or (names and not names_start)):
        refused = _once((yield from in_order(names or [start.topic_name])))
        topics = yield from answer_each(
            refused, lambda name: _refuse(name, ErrorCode.INVALID_REQUEST), list
        )
        return _page(topics, None)
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    topics = []
    for name in _once((yield from in_order(names or list(image.topics)))):
        if pace.spend():
            yield
        if start is not None and name < start.topic_name:
            continue
        if left == 0:
            return _page(topics, Cursor(topic_name=name, partition_index=0))
        topic = image.topics.get(name)
        if topic is None:
            if names:
                fault = find_fault(name)
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
                topics.append(
                    _refuse(name, code if fault else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                )
            continue
        first = start.partition_index if start is not None and name == start.topic_name else 0
        end = min(first + left, len(topic.partitions))
        topics.append(_describe(image, topic, first, end))
        if end < len(topic.partitions):
            return _page(topics, Cursor(topic_name=name, partition_index=end))
        left -= max(0, end - first)
    return _page(topics, None)


def _once(ordered: Iterable[str]) -> Iterator[str]:
    return (name for name, _ in groupby(ordered))


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def _refuse(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_id=ZERO_UUID)


def _describe(
    image: ClusterImage, topic: TopicImage, first: int, end: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(image, each) for each in topic.partitions[first:end]],
        topic_authorized_operations=ON_TOPIC,
    )


def _partition(
    image: ClusterImage, partition: PartitionRegistration
) -> DescribeTopicPartitionsResponsePartition:
    leader = partition.leader
    return DescribeTopicPartitionsResponsePartition(
        partition_index=partition.id,
        leader_id=leader if _is_alive(image, leader) else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=[each for each in partition.replicas if not _is_alive(image, each)],
    )


def _is_alive(image: ClusterImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced
