"""One member of a consumer group, and the partitions it has, as records tell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from trimtab.cluster.coordinator.consumer_heartbeat import JOIN
from trimtab.cluster.coordinator.effects import Caller
from trimtab.cluster.coordinator.topics import PartitionKey, by_topic
from trimtab.kafka.wire.messages.consumer_group_records import (
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)


class MemberState(IntEnum):
    """How far a member's own assignment is from its target; numbered as in Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ConsumerMember:
    """A member of the group.

    Attributes:
        epoch: of the assignment that it has been told; `LEAVE_FOR_NOW` of a static member that has
            left and is expected back.
        previous_epoch: what it may still send if the response with `epoch` was lost.
        assigned: its partitions, and the epoch at which it got each.
        revoking: partitions that it must let go of first.
        deadline: when it is removed unless it is heard of.
        act_by: when it is removed unless it has let go of `revoking` or, with the classic protocol,
            has joined or synchronized.
    """

    __slots__ = (
        "act_by",
        "assigned",
        "deadline",
        "epoch",
        "id",
        "metadata",
        "previous_epoch",
        "revoking",
        "state",
    )

    def __init__(self, member_id: str, metadata: ConsumerGroupMemberMetadataValue) -> None:
        self.id = member_id
        self.metadata = metadata
        self.epoch = self.previous_epoch = JOIN
        self.state = MemberState.STABLE
        self.assigned: dict[PartitionKey, int] = {}
        self.revoking: dict[PartitionKey, int] = {}
        self.deadline = self.act_by = float("inf")

    @property
    def memory(self) -> int:
        """Bytes of what it has told, about."""
        names = self.metadata.subscribed_topic_names
        return sum(map(len, names)) + len(self.metadata.subscribed_topic_regex or "")

    @property
    def is_classic(self) -> bool:
        """Whether it uses the classic protocol."""
        return self.metadata.classic_member_metadata is not None

    @property
    def rebalance_s(self) -> float:
        """How long it may take to let go of partitions, to join, or to synchronize."""
        return self.metadata.rebalance_timeout_ms / 1000


def describe_nobody(caller: Caller) -> ConsumerGroupMemberMetadataValue:
    """What is known of a member before its first heartbeat."""
    return ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id=caller.client_id,
        client_host=caller.host,
        subscribed_topic_names=[],
        subscribed_topic_regex=None,
        server_assignor=None,
    )


def write_partitions(since: Mapping[PartitionKey, int]) -> list[TopicPartitions]:
    """Partitions with the epoch of each, as a record has them."""
    return [
        TopicPartitions(
            topic_id=topic_id,
            partitions=indexes,
            assignment_epochs=[since[topic_id, index] for index in indexes],
        )
        for topic_id, indexes in by_topic(since)
    ]


def read_partitions(topics: Iterable[TopicPartitions], epoch: int) -> dict[PartitionKey, int]:
    """Partitions with the epoch of each; `epoch` where there is none (Kafka before 4.3)."""
    return {
        (topic.topic_id, index): since
        for topic in topics
        for index, since in zip(
            topic.partitions,
            topic.assignment_epochs or [epoch] * len(topic.partitions),
            strict=False,
        )
    }
