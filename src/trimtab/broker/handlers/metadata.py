"""Metadata (3), versions 0-13: brokers, topics, partitions and their leaders.

- No topics (null; in version 0 also none) asks for all of them.
- A topic that does not exist is created if the request allows it (always before version 4) and
  `auto.create.topics.enable` does, with `num.partitions` partitions. Unlike Kafka, which answers
  with UNKNOWN_TOPIC_OR_PARTITION or LEADER_NOT_AVAILABLE first, the answer is that of the created
  topic.
- Brokers that are fenced are left out, and a partition whose leader is one has none.
- The broker that is asked is named as the controller: it passes requests on, as with KRaft.
- No authorized operations are given.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from trimtab.errors import ErrorCode
from trimtab.metadata.image import NO_LEADER, TopicImage
from trimtab.metadata.replica_counts import INTERNAL_TOPICS
from trimtab.metadata.topic_name import find_fault
from trimtab.server.peer import PeerLost
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trimtab.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from trimtab.wire.types import ZERO_UUID

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_BY_DEFAULT = -1
_CREATE_TIMEOUT_S = 5.0


def describe_metadata(
    broker: Broker, header: RequestHeader, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """What clients know of the cluster, after creating what is missing."""
    version = header.api_version
    if request.topics is None or (version == 0 and not request.topics):
        topics = [_describe(broker, topic) for topic in broker.image.topics.values()]
        return _respond(broker, topics)
    wanted = {(topic.name, topic.topic_id): None for topic in request.topics}
    if request.allow_auto_topic_creation and broker.config["auto.create.topics.enable"]:
        missing = [
            name
            for name, topic_id in wanted
            if name is not None
            and topic_id == ZERO_UUID
            and name not in broker.image.topics
            and find_fault(name) is None
        ]
        if missing:
            return _create(broker, version, missing, list(wanted))
    return _respond(broker, [_find(broker, version, *each) for each in wanted])


async def _create(
    broker: Broker, version: int, missing: list[str], wanted: list[tuple[str | None, bytes]]
) -> MetadataResponse:
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=_BY_DEFAULT,
                replication_factor=_BY_DEFAULT,
                assignments=[],
                configs=[],
            )
            for name in missing
        ]
    )
    try:
        created = await broker.controller.ask(request, _CREATE_TIMEOUT_S)
        codes = {result.name: result.error_code for result in created.topics}
    except PeerLost:
        codes = {}
    topics = []
    for name, topic_id in wanted:
        topic = _find(broker, version, name, topic_id)
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name is not None:
            topic.error_code = codes.get(name, topic.error_code)
        topics.append(topic)
    return _respond(broker, topics)


def _respond(broker: Broker, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponseBroker(node_id=each.id, host=each.host, port=each.port, rack=each.rack)
            for _, each in sorted(broker.image.brokers.items())
            if not each.fenced
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=topics,
    )


def _find(broker: Broker, version: int, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    if topic_id != ZERO_UUID and version >= 12:
        topic = broker.image.topics_by_id.get(topic_id)
        return (
            _describe(broker, topic)
            if topic
            else _refuse(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
        )
    if name is None or topic_id != ZERO_UUID:
        # Versions 10 and 11 carry topic ids, but no request may name a topic by one.
        return _refuse(ErrorCode.INVALID_REQUEST, name or "", topic_id)
    topic = broker.image.topics.get(name)
    if topic is not None:
        return _describe(broker, topic)
    if find_fault(name) is not None:
        return _refuse(ErrorCode.INVALID_TOPIC_EXCEPTION, name, ZERO_UUID)
    return _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, ZERO_UUID)


def _refuse(code: ErrorCode, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
    )


def _describe(broker: Broker, topic: TopicImage) -> MetadataResponseTopic:
    alive = {each.id for each in broker.image.brokers.values() if not each.fenced}
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            MetadataResponsePartition(
                error_code=(
                    ErrorCode.NONE if partition.leader in alive else ErrorCode.LEADER_NOT_AVAILABLE
                ),
                partition_index=partition.id,
                leader_id=partition.leader if partition.leader in alive else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=[each for each in partition.replicas if each not in alive],
            )
            for partition in topic.partitions
        ],
    )
