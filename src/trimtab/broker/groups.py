"""The groups that a broker coordinates: those whose partition of `__consumer_offsets` it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, cast

from trimtab.broker.cluster_view import ClusterView
from trimtab.broker.group_partition import GroupPartition
from trimtab.broker.partition import Partition
from trimtab.broker.partition_rates import PartitionRates
from trimtab.config import resolve_group
from trimtab.coordinator.classic_group import Rules
from trimtab.coordinator.consumer_group import ConsumerRules
from trimtab.coordinator.group_shard import GroupShard, OffsetRules
from trimtab.coordinator.topics import Topic
from trimtab.metadata.image import CONFIG_GROUP, TopicImage
from trimtab.records import TopicPartition
from trimtab.storage.storage import StorageError

GROUPS_TOPIC: Final = "__consumer_offsets"
_MINUTE_MS: Final = 60_000


class Groups:
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
        self.view = view
        self._now_ms = now_ms
        self._new_id = new_id
        self._disk_failed = disk_failed
        self._rates = PartitionRates(view)
        self._led: dict[int, GroupPartition] = {}
        self._expiring: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to delete offsets whose retention time is over. The interval is read now."""
        self._expiring = asyncio.create_task(self._expire())

    async def _expire(self) -> None:
        interval_ms = cast(int, self.view.config["offsets.retention.check.interval.ms"])
        while True:
            await asyncio.sleep(interval_ms / 1000)
            for led in list(self._led.values()):
                await led.expire_offsets()

    def changed(self, partition: Partition) -> None:
        """A partition is led, followed or not hosted by this broker from now on."""
        if partition.topic != GROUPS_TOPIC:
            return
        led = self._led.get(partition.index)
        if partition.is_leader and led is None:
            self._led[partition.index] = GroupPartition(
                partition, self._make_shard, self._now_ms, self._disk_failed
            )
        elif not partition.is_leader and led is not None:
            del self._led[partition.index]
            led.end()

    def forget_topics(self, topics: Collection[str]) -> None:
        """These topics were deleted, and so are the offsets in them."""
        for led in list(self._led.values()):
            led.forget_topics(topics)

    def find(self, group_id: str) -> GroupPartition | None:
        """The groups that hold this one; None if another broker coordinates it."""
        topic = self.view.image.topics.get(GROUPS_TOPIC)
        if topic is None:
            return None
        return self._led.get(group_partition(group_id, len(topic.partitions)))

    def __iter__(self) -> Iterator[GroupPartition]:
        return iter(self._led.values())

    def close(self) -> None:
        """Refuse what waits: this broker ends."""
        if self._expiring is not None:
            self._expiring.cancel()
        self._rates.close()
        led, self._led = self._led, {}
        for each in led.values():
            each.end()

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


def group_partition(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds a group, as in Kafka: by Java's hash of the
    id, a signed number of 32 bits whose smallest value counts as 0."""
    hashed = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        hashed = (31 * hashed + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed & 0x80000000 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
