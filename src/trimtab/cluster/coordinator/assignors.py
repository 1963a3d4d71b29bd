"""Server-side assignors of consumer groups: which member is to read which partitions, as plain
functions.

Each gives every partition of a topic that has a subscriber to exactly one member that subscribes to
it. The result depends only on the arguments, also on their order.

Source: KIP-848; Kafka's `UniformAssignor` and `RangeAssignor`. `load` is trimtab's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from trimtab.balance.count_levels import level_counts
from trimtab.balance.load_levels import fill_rates, level_load
from trimtab.cluster.coordinator.topics import Load, PartitionKey, Topic
from trimtab.kafka.records import TopicPartition

LOAD: Final = "load"
"""The assignor that depends on rates."""


class Subscriber(NamedTuple):
    """A member for which partitions are chosen.

    Attributes:
        instance_id: of a static member.
        topics: the ids of the topics to which it subscribes.
        partitions: those that it was given last.
        rack: None if it has none.
    """

    instance_id: str | None
    topics: frozenset[bytes]
    partitions: frozenset[PartitionKey]
    rack: str | None = None


Assignment: TypeAlias = dict[str, frozenset[PartitionKey]]
"""The partitions of each member, by its id."""
Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[bytes, Topic], Load], Assignment]
"""From the members by id, the topics by id, and what is known of their partitions."""


def uniform(members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Assignment:
    """Numbers of partitions as equal as the subscriptions allow, with few partitions moved."""
    owned = (
        (key, member_id)
        for member_id, member in members.items()
        for key in member.partitions
        if key[1] < topics.get(key[0], 0)
    )
    readers = [_Reader(each, member.topics, None) for each, member in members.items()]
    given = level_counts(readers, owned, topics, lambda _: ())
    return {member_id: frozenset(given[member_id]) for member_id in members}


def assign_ranges(members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Assignment:
    """`range`: of each topic consecutive partitions, in the order of the members' ids, or instance
    ids. Topics with the same subscribers and equally many partitions are divided alike."""
    given: dict[str, list[PartitionKey]] = {member_id: [] for member_id in members}
    for topic_id, subscribed in _subscribers(members, topics).items():
        order = sorted(
            subscribed,
            key=lambda each: (members[each].instance_id is None, members[each].instance_id or each),
        )
        share, larger = divmod(topics[topic_id], len(order))
        begin = 0
        for place, member_id in enumerate(order):
            end = begin + share + (place < larger)
            given[member_id] += [(topic_id, index) for index in range(begin, end)]
            begin = end
    return {member_id: frozenset(keys) for member_id, keys in given.items()}


def _subscribers(
    members: Mapping[str, Subscriber], topics: Iterable[bytes]
) -> dict[bytes, list[str]]:
    """By topic the ids of the members that subscribe to it; no topic without any."""
    found: dict[bytes, list[str]] = {}
    for member_id, member in members.items():
        for topic_id in member.topics:
            found.setdefault(topic_id, []).append(member_id)
    return {topic_id: found[topic_id] for topic_id in topics if topic_id in found}


class _Reader(NamedTuple):
    """A member, by names of topics, or by ids."""

    member_id: str
    topics: frozenset[str] | frozenset[bytes]
    rack: str | None


def assign_load(
    members: Mapping[str, Subscriber], topics: Mapping[bytes, Topic], load: Load
) -> Assignment:
    """`load`: sums of bytes/s as equal as the partitions allow; then racks of the members where
    replicas are; then few partitions moved. Without rates all partitions count the same."""
    readers = [
        _Reader(
            member_id,
            frozenset(topics[each].name for each in member.topics if each in topics),
            member.rack or None,
        )
        for member_id, member in members.items()
    ]
    subscribed = {topics[each].name: topics[each] for each in _subscribers(members, topics)}
    owner = {
        TopicPartition(topics[topic_id].name, index): member_id
        for member_id, member in members.items()
        for topic_id, index in member.partitions
        if topic_id in member.topics and topic_id in topics and index < topics[topic_id].partitions
    }
    rates = fill_rates(
        {name: topic.partitions for name, topic in subscribed.items()}, load.rates(subscribed)
    )
    return {
        member_id: frozenset((subscribed[each.topic].id, each.partition) for each in given)
        for member_id, given in level_load(readers, owner, rates, load.racks_of).items()
    }


def _by_count(
    assign: Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], Assignment],
) -> Assignor:
    """An assignor that needs only the topics' numbers of partitions."""
    return lambda members, topics, _: assign(
        members, {topic_id: topic.partitions for topic_id, topic in topics.items()}
    )


ASSIGNORS: dict[str, Assignor] = {
    "uniform": _by_count(uniform),
    "range": _by_count(assign_ranges),
    LOAD: assign_load,
}
"""By the name that members ask for."""
