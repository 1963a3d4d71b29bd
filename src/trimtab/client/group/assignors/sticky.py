"""`sticky` and `cooperative-sticky`: equal numbers of partitions, with few of them moved.

Members of Apache Kafka's Java client and of this one can be in one group, whichever of them leads:
both read and write the same user data.

Source: KIP-54, KIP-429; Apache Kafka's `StickyAssignor` and `CooperativeStickyAssignor`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trimtab.balance.count_levels import level_counts
from trimtab.client.group.assignors.ownership import find_owners, withhold
from trimtab.client.group.assignors.protocol import (
    NO_GENERATION,
    Assignment,
    Subscriber,
    Topic,
    plain_subscriber,
)
from trimtab.client.group.assignors.user_data import (
    decode_generation,
    decode_owned,
    encode_generation,
    encode_owned,
)
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_protocol import ConsumerProtocolSubscription


class StickyAssignor:
    """Members revoke all partitions before they join; their user data has those they owned."""

    name = "sticky"
    is_cooperative = False

    def user_data(
        self,
        owned: Collection[TopicPartition],
        generation: int,
        rates: Mapping[TopicPartition, float],
    ) -> bytes | None:
        if not owned and generation == NO_GENERATION:
            return None
        return encode_owned(owned, generation)

    def subscriber(
        self, member_id: str, instance_id: str | None, metadata: ConsumerProtocolSubscription
    ) -> Subscriber:
        owned, generation = decode_owned(metadata.user_data)
        return plain_subscriber(member_id, instance_id, metadata)._replace(
            owned=owned, generation=generation
        )

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]) -> Assignment:
        return _level(subscribers, topics, find_owners(subscribers, topics).owner)


class CooperativeStickyAssignor:
    """Members keep their partitions while they join. One that moves is assigned in two rebalances:
    in the first its owner loses it, in the second its new owner gets it."""

    name = "cooperative-sticky"
    is_cooperative = True

    def user_data(
        self,
        owned: Collection[TopicPartition],
        generation: int,
        rates: Mapping[TopicPartition, float],
    ) -> bytes:
        return encode_generation(generation)

    def subscriber(
        self, member_id: str, instance_id: str | None, metadata: ConsumerProtocolSubscription
    ) -> Subscriber:
        found = plain_subscriber(member_id, instance_id, metadata)
        if found.generation == NO_GENERATION:
            found = found._replace(generation=decode_generation(metadata.user_data))
        return found

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]) -> Assignment:
        ownership = find_owners(subscribers, topics)
        return withhold(_level(subscribers, topics, ownership.owner), ownership)


def _level(
    subscribers: Sequence[Subscriber],
    topics: Mapping[str, Topic],
    owner: Mapping[TopicPartition, str],
) -> Assignment:
    levelled = level_counts(
        subscribers,
        owner.items(),
        {name: topic.partitions for name, topic in topics.items()},
        lambda each: topics[each[0]].racks_of(each[1]),
    )
    return {
        member_id: [TopicPartition(*each) for each in sorted(given)]
        for member_id, given in levelled.items()
    }
