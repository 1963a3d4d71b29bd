"""Replays the controller's records in a broker: its view of the cluster, then its replicas.

    MetadataFollower ─▶ MetadataReplay ─┬▶ ClusterView: image, options
                                        ├▶ Replicas: what has changed
                                        └▶ Groups: which topics were deleted

Until the broker has registered, records only go into the view. Source: Kafka's
`BrokerMetadataPublisher`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.metadata.image import CONFIG_BROKER, CONFIG_TOPIC, ClusterImage
from trimtab.kafka.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

_RECORDS_PER_STEP = 1000


class MetadataReplay:
    """Applies one decision of the controller, or one snapshot, at a time.

    Args:
        forget_topics: called with the names of topics that were deleted.
    """

    def __init__(
        self,
        view: ClusterView,
        replicas: Replicas,
        forget_topics: Callable[[Collection[str]], None],
    ) -> None:
        self.id = view.id
        self._view = view
        self._replicas = replicas
        self._forget_topics = forget_topics
        self._lock = asyncio.Lock()

    async def open_replicas(self) -> None:
        """Open the replicas that the records so far assign to this broker; the next ones change
        them.

        Raises:
            CorruptData, StorageError: as `Replicas.open_all`.
        """
        async with self._lock:
            self._view.configure()
            await self._replicas.open_all()

    async def replay(self, records: list[Any]) -> None:
        """Replay the controller's records; their partitions are open when this returns."""
        view, replicas = self._view, self._replicas
        async with self._lock:
            if not replicas.follows_metadata:
                for number, record in enumerate(records, 1):
                    view.image.replay(record)
                    if not number % _RECORDS_PER_STEP:
                        await asyncio.sleep(0)
                return
            try:
                partitions, topics, brokers = await self._replay_and_collect(records)
            finally:
                view.image.show_topics()
            for broker_id in brokers:
                replicas.reconnect(broker_id)
            for name in topics:
                replicas.configure(name)
            await replicas.apply(partitions)
            if brokers:
                await replicas.review_isrs()

    async def replay_snapshot(self, records: list[Any]) -> None:
        """Replace the image by a snapshot, and apply the differences to the replicas."""
        view, replicas = self._view, self._replicas
        async with self._lock:
            image = ClusterImage()
            for record in records:
                image.replay(record)
            before, view.image = view.image, image
            if not replicas.follows_metadata:
                return
            gone = [each for each in before.topics.values() if each.id not in image.topics_by_id]
            for topic in gone:
                await replicas.drop_topic(topic)
            if gone:
                self._forget_topics({topic.name for topic in gone})
            view.configure()
            await replicas.apply_all()

    async def _replay_and_collect(
        self, records: list[Any]
    ) -> tuple[Collection[tuple[bytes, int]], Collection[str], Collection[int]]:
        """Replay the records of one decision into the image; returns the partitions, topics and
        brokers that they change. Other tasks run in between only while a new topic's partitions are
        replayed; the image hides the topic until all of them are there."""
        image = self._view.image
        partitions: dict[tuple[bytes, int], None] = {}
        topics: dict[str, None] = {}
        brokers: dict[int, None] = {}
        is_new = False
        for number, record in enumerate(records, 1):
            kind = type(record)
            if is_new and not number % _RECORDS_PER_STEP:
                await asyncio.sleep(0)
            if kind is RemoveTopicRecord:
                image.show_topics()
                topic = image.topics_by_id[record.topic_id]
                for partition in topic.partitions:
                    partitions.pop((topic.id, partition.id), None)
                await self._replicas.drop_topic(topic)
            image.replay(record)
            if kind is RemoveTopicRecord:
                self._forget_topics({topic.name})
            if kind is TopicRecord:
                image.hide_topic(record.topic_id)
                is_new = True
            if kind is PartitionRecord or kind is PartitionChangeRecord:
                partitions[record.topic_id, record.partition_id] = None
            elif kind is ClearElrRecord:
                partitions.update(
                    dict.fromkeys(
                        (topic.id, partition.id)
                        for topic in image.topics.values()
                        if record.topic_name in ("", None, topic.name)
                        for partition in topic.partitions
                        if self.id in partition.replicas
                    )
                )
            elif kind is ConfigRecord:
                if record.resource_type == CONFIG_TOPIC:
                    topics[record.resource_name] = None
                elif record.resource_type == CONFIG_BROKER:
                    topics.update(dict.fromkeys(image.topics))
                    self._view.configure()
            elif kind is RegisterBrokerRecord or kind is BrokerRegistrationChangeRecord:
                brokers[record.broker_id] = None
        return partitions, topics, brokers
