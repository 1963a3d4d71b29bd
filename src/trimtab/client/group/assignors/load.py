"""`load` and `cooperative-load`: equal bytes/s, within racks, with few partitions moved.

Each member reports the rates that it measured in its user data, so it works with any coordinator of
classic groups. All members must be of this client: no other one knows these names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trimtab.balance.load_levels import fill_rates, level_load
from trimtab.client.group.assignors.ownership import find_owners, withhold
from trimtab.client.group.assignors.protocol import (
    NO_GENERATION,
    Assignment,
    Subscriber,
    Topic,
    plain_subscriber,
    subscribers_of_topics,
)
from trimtab.client.group.assignors.user_data import decode_rates, encode_rates
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_protocol import ConsumerProtocolSubscription


class LoadAssignor:
    """Members revoke all partitions before they join.

    A partition whose rate nobody knows counts as the mean of its topic's known ones, else as the
    mean of all; if none is known, all count the same.
    """

    name = "load"
    is_cooperative = False

    def user_data(
        self,
        owned: Collection[TopicPartition],
        generation: int,
        rates: Mapping[TopicPartition, float],
    ) -> bytes:
        return encode_rates(owned, generation, rates)

    def subscriber(
        self, member_id: str, instance_id: str | None, metadata: ConsumerProtocolSubscription
    ) -> Subscriber:
        owned, generation, rates = decode_rates(metadata.user_data)
        return plain_subscriber(member_id, instance_id, metadata)._replace(
            owned=owned, generation=generation, rates=rates
        )

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]) -> Assignment:
        owner = find_owners(subscribers, topics).owner
        return _level(subscribers, topics, owner)


class CooperativeLoadAssignor:
    """Members keep their partitions while they join, as with `cooperative-sticky`.

    A partition that its owner has revoked goes to the member for which it was planned. Were all
    planned again, with only some of the partitions owned, two plans could follow each other for
    ever.
    """

    name = "cooperative-load"
    is_cooperative = True

    def __init__(self) -> None:
        self._planned: dict[TopicPartition, str] = {}

    def user_data(
        self,
        owned: Collection[TopicPartition],
        generation: int,
        rates: Mapping[TopicPartition, float],
    ) -> bytes:
        return encode_rates(owned, generation, rates)

    def subscriber(
        self, member_id: str, instance_id: str | None, metadata: ConsumerProtocolSubscription
    ) -> Subscriber:
        _, generation, rates = decode_rates(metadata.user_data)
        found = plain_subscriber(member_id, instance_id, metadata)
        if found.generation == NO_GENERATION:
            found = found._replace(generation=generation)
        return found._replace(rates=rates)

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]) -> Assignment:
        ownership = find_owners(subscribers, topics)
        present = {each.member_id for each in subscribers}
        awaited = {
            partition: member for partition, member in self._planned.items() if member in present
        }
        assigned = _level(subscribers, topics, {**awaited, **ownership.owner})
        self._planned = {
            partition: member for member, given in assigned.items() for partition in given
        }
        return withhold(assigned, ownership)


def _level(
    subscribers: Sequence[Subscriber],
    topics: Mapping[str, Topic],
    owner: Mapping[TopicPartition, str],
) -> Assignment:
    return level_load(
        subscribers,
        owner,
        find_rates(subscribers, topics),
        lambda each: topics[each.topic].racks_of(each.partition),
    )


def find_rates(
    subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]
) -> dict[TopicPartition, float]:
    """The rate of each partition that has a subscriber.

    If several members report one, the newest generation counts, then the highest rate.
    """
    newest: dict[TopicPartition, tuple[int, float]] = {}
    for subscriber in subscribers:
        for partition, rate in subscriber.rates.items():
            report = (subscriber.generation, rate)
            if partition not in newest or report > newest[partition]:
                newest[partition] = report
    return fill_rates(
        {name: topics[name].partitions for name in subscribers_of_topics(subscribers, topics)},
        {partition: rate for partition, (_, rate) in newest.items()},
    )
