"""The image of a cluster: what the controller's records add up to.

record ─▶ replay ─▶ topics, partitions, brokers, configs, next producer id

Replaying the same records always gives the same image. Reads hand out the image's own immutable
values, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from trimtab.errors import CorruptData
from trimtab.metadata.topic_name import collision_key
from trimtab.wire.messages.metadata_records import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

NO_LEADER = -1

CONFIG_TOPIC = 2
CONFIG_BROKER = 4
"""Kinds of things that have configs, as `ConfigResource.Type` numbers them."""

METADATA_VERSION = "metadata.version"
METADATA_LEVEL = 25
"""The feature that says how records are encoded, at Kafka 4.0's level (IBP_4_0_IV3)."""

_LISTENER = "PLAINTEXT"


class BrokerRegistration(NamedTuple):
    """A broker that belongs to the cluster, and where clients reach it."""

    id: int
    epoch: int
    incarnation_id: bytes
    host: str
    port: int
    rack: str | None


class PartitionRegistration(NamedTuple):
    """Who has a partition. The leader is -1 where there is none."""

    id: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicImage(NamedTuple):
    """A topic; `partitions[i]` is partition i."""

    name: str
    id: bytes
    partitions: list[PartitionRegistration]


class ClusterImage:
    """Everything the cluster knows about itself, by replaying records one after the other."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._names: dict[str, str] = {}

    def configs(self, kind: int, name: str) -> Mapping[str, str]:
        """What was set on a topic or broker, `kind` being `CONFIG_TOPIC` or `CONFIG_BROKER`."""
        return self._configs.get((kind, name), _NOTHING)

    def colliding(self, name: str) -> str | None:
        """The topic whose name is this one or differs in '.' and '_' only, if any."""
        return self._names.get(collision_key(name))

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    def replay(self, record: object) -> None:
        """Apply one record.

        Raises:
            CorruptData: a kind this image does not know, or one that does not fit what came before.
        """
        replay = _REPLAYS.get(type(record))
        if replay is None:
            raise CorruptData(f"metadata record {type(record).__name__} cannot be replayed here")
        replay(self, record)

    def records(self) -> Iterator[Any]:
        """The records that rebuild this image: what a newcomer replays."""
        for feature, level in self.features.items():
            yield FeatureLevelRecord(name=feature, feature_level=level)
        for broker in self.brokers.values():
            yield register_broker_record(broker)
        for topic in self.topics.values():
            yield TopicRecord(name=topic.name, topic_id=topic.id)
            for partition in topic.partitions:
                yield partition_record(topic.id, partition)
        for (kind, name), configs in self._configs.items():
            for key, value in configs.items():
                yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        if self.next_producer_id:
            yield ProducerIdsRecord(
                broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id
            )

    def _replay_topic(self, record: TopicRecord) -> None:
        if record.name in self.topics or record.topic_id in self.topics_by_id:
            raise CorruptData(f"topic {record.name} is created twice")
        topic = TopicImage(record.name, record.topic_id, [])
        self.topics[topic.name] = topic
        self.topics_by_id[topic.id] = topic
        self._names[collision_key(topic.name)] = topic.name

    def _replay_partition(self, record: PartitionRecord) -> None:
        topic = self.topics_by_id.get(record.topic_id)
        if topic is None:
            raise CorruptData(f"partition {record.partition_id} of unknown topic id")
        partition = PartitionRegistration(
            record.partition_id,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            tuple(record.replicas),
            tuple(record.isr),
        )
        if 0 <= partition.id < len(topic.partitions):
            topic.partitions[partition.id] = partition
        elif partition.id == len(topic.partitions):
            topic.partitions.append(partition)
        else:
            raise CorruptData(
                f"partition {topic.name}-{partition.id} comes before "
                f"{topic.name}-{len(topic.partitions)}"
            )

    def _replay_remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self.topics_by_id.pop(record.topic_id, None)
        if topic is None:
            raise CorruptData("removal of an unknown topic id")
        del self.topics[topic.name]
        self._names.pop(collision_key(topic.name), None)
        self._configs.pop((CONFIG_TOPIC, topic.name), None)

    def _replay_register_broker(self, record: RegisterBrokerRecord) -> None:
        end_point = record.end_points[0]
        self.brokers[record.broker_id] = BrokerRegistration(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            end_point.host,
            end_point.port,
            record.rack,
        )

    def _replay_config(self, record: ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        configs = self._configs.setdefault(key, {})
        if record.value is None:
            configs.pop(record.name, None)
            if not configs:
                del self._configs[key]
        else:
            configs[record.name] = record.value

    def _replay_producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id < self.next_producer_id:
            raise CorruptData(
                f"next producer id goes back from {self.next_producer_id} to "
                f"{record.next_producer_id}"
            )
        self.next_producer_id = record.next_producer_id

    def _replay_feature_level(self, record: FeatureLevelRecord) -> None:
        self.features[record.name] = record.feature_level


_NOTHING: Mapping[str, str] = {}

_REPLAYS: dict[type, Callable[[ClusterImage, Any], None]] = {
    TopicRecord: ClusterImage._replay_topic,
    PartitionRecord: ClusterImage._replay_partition,
    RemoveTopicRecord: ClusterImage._replay_remove_topic,
    RegisterBrokerRecord: ClusterImage._replay_register_broker,
    ConfigRecord: ClusterImage._replay_config,
    ProducerIdsRecord: ClusterImage._replay_producer_ids,
    FeatureLevelRecord: ClusterImage._replay_feature_level,
}


def register_broker_record(broker: BrokerRegistration) -> RegisterBrokerRecord:
    """The record of a broker that is in service."""
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(name=_LISTENER, host=broker.host, port=broker.port, security_protocol=0)
        ],
        features=[],
        rack=broker.rack,
        fenced=False,
    )


def partition_record(topic_id: bytes, partition: PartitionRegistration) -> PartitionRecord:
    """The record of a partition as it is."""
    return PartitionRecord(
        partition_id=partition.id,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=[],
        adding_replicas=[],
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=[],
    )
