"""`roundrobin`: all partitions of all topics in order, dealt to the members in order.

Source: Apache Kafka's `RoundRobinAssignor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimtab.client.group.assignors.protocol import (
    Assignment,
    Subscriber,
    Topic,
    WithoutUserData,
    existing_topics,
    in_order,
)
from trimtab.kafka.records import TopicPartition


class RoundRobinAssignor(WithoutUserData):
    """A member that does not subscribe to a partition's topic is passed over."""

    name = "roundrobin"
    is_cooperative = False

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]) -> Assignment:
        members = in_order(subscribers)
        assigned: Assignment = {each.member_id: [] for each in subscribers}
        places: dict[str, list[int]] = {}
        for place, member in enumerate(members):
            for name in existing_topics(member, topics):
                places.setdefault(name, []).append(place)
        turn = 0
        for name in sorted(places):
            # The turns of this topic's subscribers alone: the others are passed over.
            subscribed = places[name]
            position = next((i for i, place in enumerate(subscribed) if place >= turn), 0)
            for index in range(topics[name].partitions):
                place = subscribed[position]
                assigned[members[place].member_id].append(TopicPartition(name, index))
                position = (position + 1) % len(subscribed)
                turn = (place + 1) % len(members)
        return assigned
