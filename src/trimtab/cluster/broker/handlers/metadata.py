"""Metadata (3), versions 0-13: brokers, topics, partitions and their leaders.

- No topics (null; in version 0 also none) asks for all of them.
- A topic that does not exist is created if the request allows it (always before version 4) and
  `auto.create.topics.enable` does, with `num.partitions` partitions. The response says
  UNKNOWN_TOPIC_OR_PARTITION, as Kafka's, or the code why it was not created; the next one has it.
- Fenced brokers are left out, and a partition whose leader is fenced has no leader.
- The controller in the response is the broker itself: it forwards requests, as with KRaft.
- The response has authorized operations if the request asks for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from trimtab.balance.replica_counts import INTERNAL_TOPICS
from trimtab.cluster.broker.authorized_operations import ON_CLUSTER, ON_TOPIC
from trimtab.cluster.broker.auto_creation import AutoCreation
from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.metadata.image import ClusterImage, TopicImage
from trimtab.cluster.server.turns import Pace, Steps, in_turns
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.topic_name import find_fault
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from trimtab.kafka.wire.sentinels import NO_LEADER, UNKNOWN_AUTHORIZED_OPERATIONS
from trimtab.kafka.wire.types import ZERO_UUID


def describe_metadata(
    view: ClusterView, creation: AutoCreation, header: RequestHeader, request: MetadataRequest
) -> Steps[MetadataResponse | Awaitable[MetadataResponse]]:
    """The cluster's brokers and the requested topics, after creating missing ones if allowed."""
    version = header.api_version
    if request.topics is None or (version == 0 and not request.topics):
        topics = yield from _describe_each(view, list(view.image.topics.values()))
        return _respond(view, request, topics)
    creates = request.allow_auto_topic_creation and view.config["auto.create.topics.enable"]
    missing: list[str] = []
    wanted: dict[tuple[str | None, bytes], None] = {}
    pace = Pace()
    for topic in request.topics:
        name, topic_id = key = topic.name, topic.topic_id
        if pace.spend():
            yield
        if key in wanted:
            continue
        wanted[key] = None
        if (
            creates
            and name is not None
            and topic_id == ZERO_UUID
            and name not in view.image.topics
            and find_fault(name) is None
        ):
            missing.append(name)
    if missing:
        return _create(view, creation, version, request, missing, list(wanted))
    found = (_find(view.image, version, *key) for key in wanted)
    topics = yield from _describe_each(view, found)
    return _respond(view, request, topics)


async def _create(
    view: ClusterView,
    creation: AutoCreation,
    version: int,
    request: MetadataRequest,
    missing: list[str],
    wanted: list[tuple[str | None, bytes]],
) -> MetadataResponse:
    codes = dict.fromkeys(missing, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    codes.update(await creation.create(missing))
    found = (_find(view.image, version, *key) for key in wanted)
    topics = await in_turns(_describe_each(view, found))
    for place, (name, _) in enumerate(wanted):
        if name in codes:
            topics[place] = _refuse(ErrorCode(codes[name]), name, ZERO_UUID)
    return _respond(view, request, topics)


def _respond(
    view: ClusterView, request: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = ON_TOPIC
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponseBroker(
                node_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for _, broker in sorted(view.image.brokers.items())
            if not broker.fenced
        ],
        cluster_id=view.cluster_id,
        controller_id=view.id,
        topics=topics,
        cluster_authorized_operations=ON_CLUSTER
        if request.include_cluster_authorized_operations
        else UNKNOWN_AUTHORIZED_OPERATIONS,
    )


def _find(
    image: ClusterImage, version: int, name: str | None, topic_id: bytes
) -> TopicImage | MetadataResponseTopic:
    """A topic, or the answer that there is no such one."""
    if topic_id != ZERO_UUID and version >= 12:
        found = image.topics_by_id.get(topic_id)
        return found or _refuse(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    if name is None or topic_id != ZERO_UUID:
        # Versions 10 and 11 have topic ids, but only in responses: a request must use the name.
        return _refuse(ErrorCode.INVALID_REQUEST, name or "", topic_id)
    topic = image.topics.get(name)
    if topic is not None:
        return topic
    if find_fault(name) is not None:
        return _refuse(ErrorCode.INVALID_TOPIC_EXCEPTION, name, ZERO_UUID)
    return _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, ZERO_UUID)


def _refuse(code: ErrorCode, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
    )


def _describe_each(
    view: ClusterView, topics: Iterable[TopicImage | MetadataResponseTopic]
) -> Steps[list[MetadataResponseTopic]]:
    """Describe topics. One that is refused has its answer already."""
    described = []
    pace = Pace()
    for topic in topics:
        if pace.spend():
            yield
        if isinstance(topic, MetadataResponseTopic):
            described.append(topic)
            continue
        alive = {each.id for each in view.image.brokers.values() if not each.fenced}
        partitions = []
        for partition in topic.partitions:
            leader = partition.leader
            is_led = leader in alive
            partitions.append(
                MetadataResponsePartition(
                    error_code=ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=partition.id,
                    leader_id=leader if is_led else NO_LEADER,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=list(partition.replicas),
                    isr_nodes=list(partition.isr),
                    offline_replicas=[each for each in partition.replicas if each not in alive],
                )
            )
            if pace.spend():
                yield
        described.append(
            MetadataResponseTopic(
                error_code=ErrorCode.NONE,
                name=topic.name,
                topic_id=topic.id,
                is_internal=topic.name in INTERNAL_TOPICS,
                partitions=partitions,
            )
        )
    return described
