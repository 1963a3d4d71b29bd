"""Which member has which partition before the rebalance, from what all members say they own.

Source: Apache Kafka's `AbstractStickyAssignor`; KIP-429.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trimtab.client.group.assignors.protocol import Assignment, Subscriber, Topic
from trimtab.kafka.records import TopicPartition


class Ownership(NamedTuple):
    """The owners of the partitions that exist.

    Attributes:
        owner: the member that claims the partition in the newest generation.
        contested: partitions that several members claim in their newest generation: none owns them.
    """

    owner: dict[TopicPartition, str]
    contested: frozenset[TopicPartition]


def find_owners(subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]) -> Ownership:
    """The owners, also those that no longer subscribe to the topic."""
    newest: dict[TopicPartition, tuple[int, str]] = {}
    contested: set[TopicPartition] = set()
    for subscriber in subscribers:
        for partition in subscriber.owned:
            topic = topics.get(partition.topic)
            if topic is None or not 0 <= partition.partition < topic.partitions:
                continue
            known = newest.get(partition)
            if known is None or subscriber.generation > known[0]:
                newest[partition] = (subscriber.generation, subscriber.member_id)
                contested.discard(partition)
            elif subscriber.generation == known[0]:
                contested.add(partition)
    return Ownership(
        {
            partition: member
            for partition, (_, member) in newest.items()
            if partition not in contested
        },
        frozenset(contested),
    )


def withhold(assigned: Assignment, ownership: Ownership) -> Assignment:
    """The assignment without the partitions that change hands: their owners revoke them first, and
    join again. Nobody is given a contested one, as each who claims it may still read it."""
    owner, contested = ownership
    return {
        member: [
            partition
            for partition in partitions
            if partition not in contested and owner.get(partition, member) == member
        ]
        for member, partitions in assigned.items()
    }
