"""`range`: of each topic consecutive partitions for each member.

Source: Apache Kafka's `RangeAssignor`; KIP-881 for racks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from trimtab.client.group.assignors.protocol import (
    Assignment,
    Subscriber,
    Topic,
    WithoutUserData,
    in_order,
    subscribers_of_topics,
)
from trimtab.kafka.records import TopicPartition


class RangeAssignor(WithoutUserData):
    """Each topic is divided by itself: its first members get one partition more.

    So topics with the same subscribers and equally many partitions are divided alike
    (co-partitioning). If replicas of a topic are only in some racks, a member first gets
    partitions of its rack, as far as the sizes of the shares and co-partitioning allow.
    """

    name = "range"
    is_cooperative = False

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Topic]) -> Assignment:
        by_topic = subscribers_of_topics(in_order(subscribers), topics)
        shapes: dict[tuple[tuple[str, ...], int], list[str]] = {}
        members: dict[tuple[str, ...], list[Subscriber]] = {}
        for name, found in by_topic.items():
            ids = tuple(each.member_id for each in found)
            members[ids] = found
            shapes.setdefault((ids, topics[name].partitions), []).append(name)
        keeps_racks = any(
            _needs_racks(members[ids], topics[name])
            for (ids, _), names in shapes.items()
            for name in names
        )
        assigned: Assignment = {each.member_id: [] for each in subscribers}
        for (ids, count), names in shapes.items():
            division = _Division(members[ids], count)
            if keeps_racks and len(names) > 1:
                division.match_together([topics[name] for name in names])
            elif keeps_racks and _needs_racks(members[ids], topics[names[0]]):
                division.match(topics[names[0]])
            division.fill()
            for member_id, indexes in zip(ids, division.given, strict=True):
                assigned[member_id] += [
                    TopicPartition(name, index) for name in names for index in indexes
                ]
        for partitions in assigned.values():
            partitions.sort()
        return assigned


def _needs_racks(members: Sequence[Subscriber], topic: Topic) -> bool:
    """Whether a member may be nearer to some partitions of the topic than to others."""
    racks = frozenset[str]().union(*topic.racks)
    return any(each.rack in racks for each in members) and any(
        topic.racks_of(index) != racks for index in range(topic.partitions)
    )


class _Division:
    """One topic's partitions, or those of topics that are divided alike, among its members.

    Attributes:
        given: for each member its partitions.
    """

    def __init__(self, members: Sequence[Subscriber], count: int) -> None:
        self._racks = [each.rack for each in members]
        self._count = count
        self._share, self._larger = divmod(count, len(members))
        self._free = dict.fromkeys(range(count))
        self.given: list[list[int]] = [[] for _ in members]

    def _room(self, place: int) -> int:
        return self._share + (self._larger > 0) - len(self.given[place])

    def _give(self, place: int, indexes: Sequence[int]) -> None:
        self.given[place] += indexes
        for index in indexes:
            del self._free[index]
        if indexes and len(self.given[place]) > self._share:
            self._larger -= 1

    def match(self, topic: Topic) -> None:
        """Give each member in turn partitions of its rack."""
        by_rack: dict[str | None, deque[int]] = {None: deque(range(self._count))}
        for index in range(self._count):
            for near in topic.racks_of(index):
                by_rack.setdefault(near, deque()).append(index)
        for place, rack in enumerate(self._racks):
            indexes = by_rack.get(rack, deque())
            taken: list[int] = []
            while indexes and len(taken) < self._room(place):
                index = indexes.popleft()
                if index in self._free:
                    taken.append(index)
            self._give(place, taken)

    def match_together(self, topics: Sequence[Topic]) -> None:
        """Give each partition, of all topics at once, to the first member with room whose rack has
        replicas in all topics."""
        if not any(self._racks):
            return
        waiting: dict[str | None, deque[int]] = {}
        for place, rack in enumerate(self._racks):
            waiting.setdefault(rack, deque()).append(place)
        for index in range(self._count):
            racks = (
                topics[0].racks_of(index).intersection(*(topic.racks_of(index) for topic in topics))
            )
            first: int | None = None
            for rack in (None, *racks):
                places = waiting.get(rack, deque())
                while places and self._room(places[0]) <= 0:
                    places.popleft()
                if places and (first is None or places[0] < first):
                    first = places[0]
            if first is not None:
                self._give(first, [index])

    def fill(self) -> None:
        """Give each member in turn what it still has room for."""
        free = deque(self._free)
        for place in range(len(self.given)):
            room = max(0, min(self._room(place), len(free)))
            self._give(place, [free.popleft() for _ in range(room)])
