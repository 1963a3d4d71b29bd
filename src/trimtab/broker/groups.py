"""The groups that a broker coordinates: those whose partition of `__consumer_offsets` it leads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, cast

from trimtab.broker.cluster_view import ClusterView
from trimtab.broker.coordinator import Coordinator
from trimtab.broker.coordinator_topic import GROUPS_TOPIC
from trimtab.broker.partition_rates import PartitionRates
from trimtab.config import resolve_group
from trimtab.coordinator.classic_group import Rules
from trimtab.coordinator.consumer_group import ConsumerRules
from trimtab.coordinator.effects import Now
from trimtab.coordinator.group_shard import GroupShard, OffsetRules
from trimtab.coordinator.topics import Topic
from trimtab.metadata.image import CONFIG_GROUP, TopicImage
from trimtab.records import TopicPartition
from trimtab.storage.storage import StorageError

_MINUTE_MS: Final = 60_000


class Groups(Coordinator[GroupShard]):
    """Which groups this broker coordinates.

    Args:
        view: the topics of the cluster, and the options.
        now_ms: wall time.
        new_id: makes the part of a member's id that tells it from others.
        disk_failed: told when a log cannot be written or read.
    """

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

    def start(self) -> None:
        """Begin to delete offsets whose retention time is over. The interval is read now."""
        self._begin_expiry("offsets.retention.check.interval.ms")

    def forget_topics(self, topics: Collection[str]) -> None:
        """These topics were deleted, and so are the offsets in them."""
        for led in list(self._led.values()):
            led.act(lambda shard, _: shard.forget_topics(topics))

    def close(self) -> None:
        self._rates.close()
        super().close()

    def _expire(self, shard: GroupShard, now: Callable[[], Now]) -> Iterator[None]:
        return shard.expire_offsets(now)

    def _make_shard(self, max_batch: Callable[[], int]) -> GroupShard:
        config = self.view.config

        def number(name: str) -> int:
            return cast(int, config[name])

        return GroupShard(
            Rules(
                number("group.min.session.timeout.ms") / 1000,
                number("group.max.session.timeout.ms") / 1000,
                number("group.initial.rebalance.delay.ms") / 1000,
                number("group.max.size"),
            ),
            self._consumer_rules,
            OffsetRules(
                number("offset.metadata.max.bytes"),
                number("offsets.retention.minutes") * _MINUTE_MS,
            ),
            ImageTopics(self.view, self._rates),
            self._new_id,
            max_batch,
        )

    def _consumer_rules(self, group_id: str) -> ConsumerRules:
        """The options of a consumer group: its own, else the broker's."""
        config = self.view.config
        values = resolve_group(config, self.view.image.configs(CONFIG_GROUP, group_id))
        return ConsumerRules(
            values["consumer.session.timeout.ms"] / 1000,
            values["consumer.heartbeat.interval.ms"],
            values["consumer.assignment.interval.ms"],
            cast(int, config["group.consumer.max.size"]),
            config["group.consumer.migration.policy"] in ("bidirectional", "upgrade"),
            config["group.consumer.migration.policy"] in ("bidirectional", "downgrade"),
            cast("tuple[str, ...]", config["group.consumer.assignors"]),
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
