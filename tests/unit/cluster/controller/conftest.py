"""A cluster as an image without a journal, for testing decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from trimtab.balance.limits import Allowance
from trimtab.cluster.config import BROKER
from trimtab.cluster.controller.decision import Decision
from trimtab.cluster.controller.partition_limits import read_goal, read_limits
from trimtab.cluster.controller.topic_rules import TopicRules
from trimtab.cluster.metadata.image import (
    CONFIG_BROKER,
    CONFIG_TOPIC,
    BrokerRegistration,
    ClusterImage,
    PartitionRegistration,
    partition_record,
    register_broker_record,
)
from trimtab.kafka.options import read
from trimtab.kafka.wire.messages.metadata_records import ConfigRecord, TopicRecord

CONTROLLER = 3000


def content_of(image: ClusterImage) -> dict[str, object]:
    """All that an image holds, to compare two. Its shape's number is another one in each image."""
    return {**vars(image), "_counts": image.counts, "shape": None}


class Scene:
    """Brokers 1, 2 and 3, whose epochs are 101, 102 and 103, all active; topics as they are added.

    A topic's id is 16 times its name's first letter.
    """

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.config = read(BROKER, {})
        self.rules = TopicRules(self.image, self.config)
        self.rejections: Counter[str] = Counter()
        for number in (1, 2, 3):
            self.put_broker(number)

    def put_broker(self, number: int, **changed: Any) -> BrokerRegistration:
        broker = BrokerRegistration(
            number, 100 + number, bytes([number]) * 16, f"host{number}", 9092, None
        )._replace(**changed)
        self.image.replay(register_broker_record(broker))
        return broker

    def put_topic(
        self, name: str, *partitions: PartitionRegistration, **configs: str
    ) -> list[PartitionRegistration]:
        """The topic's partitions, which change with the image."""
        topic_id = self.id(name)
        self.image.replay(TopicRecord(name=name, topic_id=topic_id))
        for option, value in configs.items():
            self.configure(name, option, value)
        for partition in partitions:
            self.image.replay(partition_record(topic_id, partition))
        return self.image.topics[name].partitions

    def configure(self, topic: str, option: str, value: str) -> None:
        """Set an option; for all brokers if the topic is empty."""
        self.image.replay(
            ConfigRecord(
                resource_type=CONFIG_TOPIC if topic else CONFIG_BROKER,
                resource_name=topic,
                name=option.replace("_", "."),
                value=value,
            )
        )

    def id(self, name: str) -> bytes:
        return name[:1].encode("ascii") * 16

    def partition(
        self, index: int, leader: int, isr: Iterable[int], **changed: Any
    ) -> PartitionRegistration:
        """Of replicas 1, 2, 3, in leader epoch 5 and partition epoch 7."""
        base = PartitionRegistration(index, leader, 5, 7, (1, 2, 3), tuple(isr))
        return base._replace(**changed)

    def allowance(self) -> Allowance:
        """The allowance of one request under the current limits."""
        limits = read_limits(self.image, self.config, CONTROLLER)
        goal = read_goal(self.image, self.config, CONTROLLER)
        return Allowance(self.image.counts, limits, self.rejections, goal=goal)

    def apply(self, decided: Decision | Iterable[Any]) -> Any:
        """Replay a decision's records; returns its response."""
        records = decided.records if isinstance(decided, Decision) else decided
        for record in records:
            self.image.replay(record)
        return decided.response if isinstance(decided, Decision) else None

    def brief(self, name: str) -> Mapping[int, tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Leader, ISR and ELR of each partition."""
        return {
            partition.id: (partition.leader, partition.isr, partition.elr)
            for partition in self.image.topics[name].partitions
        }


@pytest.fixture
def scene() -> Scene:
    return Scene()
