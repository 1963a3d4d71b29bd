"""A consumer group as ConsumerGroupDescribe shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.coordinator.consumer_group import ConsumerGroup, ConsumerRules
from trimtab.coordinator.consumer_member import by_topic
from trimtab.coordinator.topics import PartitionKey, Topics
from trimtab.errors import ErrorCode
from trimtab.wire.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


def describe_consumers(
    group: ConsumerGroup, rules: ConsumerRules, topics: Topics
) -> DescribedGroup:
    """The group, its members, and what each has and is to have."""
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.choose_assignor(rules),
        members=[
            Member(
                member_id=each.id,
                instance_id=each.metadata.instance_id,
                rack_id=each.metadata.rack_id,
                member_epoch=each.epoch,
                client_id=each.metadata.client_id,
                client_host=each.metadata.client_host,
                subscribed_topic_names=each.metadata.subscribed_topic_names,
                subscribed_topic_regex=each.metadata.subscribed_topic_regex or None,
                assignment=_describe_assignment(each.assigned, topics),
                target_assignment=_describe_assignment(
                    group.targets.get(each.id, frozenset()), topics
                ),
                member_type=_CLASSIC_MEMBER if each.is_classic else _CONSUMER_MEMBER,
            )
            for each in group.members.values()
        ],
    )


def _describe_assignment(keys: Iterable[PartitionKey], topics: Topics) -> Assignment:
    partitions = []
    for topic_id, indexes in by_topic(keys):
        topic = topics.find_id(topic_id)
        if topic is not None:
            partitions.append(
                TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=indexes)
            )
    return Assignment(topic_partitions=partitions)
