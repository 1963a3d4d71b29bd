"""The groups that a broker coordinates: those whose partition of `__consumer_offsets` it leads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.coordinator import Coordinator
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC
from trimtab.cluster.broker.partition_rates import PartitionRates
from trimtab.cluster.config import resolve_group
from trimtab.cluster.coordinator.classic_group import Rules
from trimtab.cluster.coordinator.consumer_group import ConsumerRules
from trimtab.cluster.coordinator.group_shard import GroupShard, OffsetRules
from trimtab.cluster.coordinator.topics import Topic
from trimtab.cluster.metadata.image import CONFIG_GROUP, TopicImage
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.records import TopicPartition

_MINUTE_MS: Final = 60_000


class GroupCoordinator(Coordinator[GroupShard]):
    """Which groups this broker coordinates.

    Args:
        view: the topics of the cluster, and the options.
        now_ms: wall time.
        new_id: makes the part of a member's id that tells it from others.
        disk_failed: told when a log cannot be written or read.
    """

    _limit_names = (
        "coordinator.groups.max",
        "coordinator.members.max",
        "coordinator.memory.max.bytes",
    )
    _expiry_interval = "offsets.retention.check.interval.ms"

    def __init__(
        self,
        view: ClusterView,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
        disk_failed: Callable[[StorageError], None],
    ) -> None:
        super().__init__(GROUPS_TOPIC, view, now_ms, disk_failed)
        self._new_id = new_id
        self._rates = PartitionRates(view)

    def forget_topics(self, topics: Collection[str]) -> None:
        """These topics were deleted, and so are the offsets in them."""
        for led in list(self._led.values()):
            led.act(lambda shard, _: shard.forget_topics(topics))

    def close(self) -> None:
        self._rates.close()
        super().close()

    def _make_shard(self, max_batch: Callable[[], int]) -> GroupShard:
        config = self.view.config
        return GroupShard(
            Rules(
                config.seconds("group.min.session.timeout.ms"),
                config.seconds("group.max.session.timeout.ms"),
                config.seconds("group.initial.rebalance.delay.ms"),
                config.integer("group.max.size"),
            ),
            self._consumer_rules,
            OffsetRules(
                config.integer("offset.metadata.max.bytes"),
                config.integer("offsets.retention.minutes") * _MINUTE_MS,
            ),
            ImageTopics(self.view, self._rates),
            self._new_id,
            max_batch,
            self.room.admit,
        )

    def _consumer_rules(self, group_id: str) -> ConsumerRules:
        """The options of a consumer group: its own, else the broker's."""
        config = self.view.config
        values = resolve_group(config, self.view.image.configs(CONFIG_GROUP, group_id))
        return ConsumerRules(
            values["consumer.session.timeout.ms"] / 1000,
            values["consumer.heartbeat.interval.ms"],
            values["consumer.assignment.interval.ms"],
            config.integer("group.consumer.max.size"),
            config["group.consumer.migration.policy"] in ("bidirectional", "upgrade"),
            config["group.consumer.migration.policy"] in ("bidirectional", "downgrade"),
            config.words("group.consumer.assignors"),
        )


class ImageTopics:
    """The topics of the cluster's metadata, for consumer groups."""

    def __init__(self, view: ClusterView, rates: PartitionRates) -> None:
        self._view = view
        self._rates = rates

    @property
    def version(self) -> object:
        return self._view.image.shape

    def find(self, name: str) -> Topic | None:
        return _describe(self._view.image.topics.get(name))

    def find_id(self, topic_id: bytes) -> Topic | None:
        return _describe(self._view.image.topics_by_id.get(topic_id))

    def names(self) -> Iterable[str]:
        return self._view.image.topics.keys()

    def racks_of(self, partition: TopicPartition) -> Collection[str]:
        topic = self._view.image.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return ()
        brokers = self._view.image.brokers
        found = (brokers.get(each) for each in topic.partitions[partition.partition].replicas)
        return {each.rack for each in found if each is not None and each.rack}

    @property
    def rates_version(self) -> object:
        return self._rates.version

    def rates(self, topics: Iterable[str]) -> Mapping[TopicPartition, float]:
        return self._rates.of(topics)


def _describe(topic: TopicImage | None) -> Topic | None:
    return None if topic is None else Topic(topic.name, topic.id, len(topic.partitions))
