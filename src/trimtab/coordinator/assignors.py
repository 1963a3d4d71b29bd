"""Server-side assignors of consumer groups: which member is to read which partitions, as plain
functions.

Each gives every partition of a topic that has a subscriber to exactly one member that subscribes to
it. The result depends only on the arguments, also on their order.

Source: KIP-848; Kafka's `UniformAssignor` and `RangeAssignor`. `load` is trimtab's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heapreplace
from typing import Final, NamedTuple, TypeAlias

from trimtab.balance.load_levels import fill_rates, level_load
from trimtab.coordinator.topics import Load, PartitionKey, Topic
from trimtab.records import TopicPartition

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
    """Numbers of partitions as equal as the subscriptions allow, with few partitions moved.

    Every member keeps what it has. A partition without a member goes to the subscriber with the
    fewest. Then partitions move along the shortest chains of members from one that has at least two
    more than the last of the chain, until there is no such chain: then no assignment is more equal.
    """
    subscribers = _subscribers(members, topics)
    given: dict[str, dict[PartitionKey, None]] = {member_id: {} for member_id in members}
    taken: set[PartitionKey] = set()
    for member_id, member in members.items():
        for key in sorted(member.partitions):
            topic_id, index = key
            if topic_id in member.topics and index < topics.get(topic_id, 0) and key not in taken:
                given[member_id][key] = None
                taken.add(key)
    for topic_id in sorted(subscribers, key=lambda each: (len(subscribers[each]), each)):
        loads = [(len(given[each]), place) for place, each in enumerate(subscribers[topic_id])]
        heapify(loads)
        for index in range(topics[topic_id]):
            key = (topic_id, index)
            if key not in taken:
                count, place = loads[0]
                given[subscribers[topic_id][place]][key] = None
                heapreplace(loads, (count + 1, place))
    while chain := _find_chain(given, subscribers):
        for (giver, key), taker in chain:
            del given[giver][key]
            given[taker][key] = None
    return {member_id: frozenset(keys) for member_id, keys in given.items()}


def _find_chain(
    given: Mapping[str, dict[PartitionKey, None]], subscribers: Mapping[bytes, list[str]]
) -> list[tuple[tuple[str, PartitionKey], str]]:
    """Moves that make the numbers more equal, each of a partition from one member to another; empty
    if there are none."""
    move = _find_move(given, subscribers)
    if move is not None:
        return [move]
    least = min((len(keys) for keys in given.values()), default=0)
    hopeless: set[str] = set()
    for giver in sorted(given, key=lambda each: -len(given[each])):
        count = len(given[giver])
        if count < least + 2:
            break
        if giver in hopeless:
            continue
        came_from: dict[str, tuple[str, PartitionKey]] = {}
        reached = {giver}
        open_members = deque([giver])
        while open_members:
            member = open_members.popleft()
            seen_topics: set[bytes] = set()
            for key in reversed(given[member]):  # what came last goes first
                if key[0] in seen_topics:
                    continue
                seen_topics.add(key[0])
                for taker in sorted(subscribers[key[0]], key=lambda each: len(given[each])):
                    if taker in reached:
                        continue
                    reached.add(taker)
                    came_from[taker] = (member, key)
                    if len(given[taker]) + 2 <= count:
                        return _follow(came_from, giver, taker)
                    open_members.append(taker)
        hopeless |= reached
    return []


def _find_move(
    given: Mapping[str, dict[PartitionKey, None]], subscribers: Mapping[bytes, list[str]]
) -> tuple[tuple[str, PartitionKey], str] | None:
    """A move from a member with most partitions to the one with fewest that may take it."""
    giver = max(given, key=lambda each: len(given[each]), default=None)
    if giver is None:
        return None
    seen_topics: set[bytes] = set()
    for key in reversed(given[giver]):
        if key[0] not in seen_topics:
            seen_topics.add(key[0])
            taker = min(subscribers[key[0]], key=lambda each: len(given[each]))
            if len(given[taker]) + 2 <= len(given[giver]):
                return (giver, key), taker
    return None


def _follow(
    came_from: Mapping[str, tuple[str, PartitionKey]], giver: str, taker: str
) -> list[tuple[tuple[str, PartitionKey], str]]:
    chain = []
    while taker != giver:
        chain.append((came_from[taker], taker))
        taker = came_from[taker][0]
    return chain


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
    """A member, by names of topics."""

    member_id: str
    topics: frozenset[str]
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
