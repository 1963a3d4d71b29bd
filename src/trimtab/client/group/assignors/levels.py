"""Equal numbers of partitions, for the sticky assignors: first balance, then racks, then few moves.

    keep ─▶ fill ─▶ level ─▶ swap for racks ─▶ return

Members keep what they own. Partitions without an owner go to the subscribers with the fewest. Then
partitions move along chains of members, until no chain makes the numbers more equal: then no
assignment is more equal. Then chains and rings that leave the numbers as they are bring partitions
to members in a rack of their replicas. At last partitions return to their owners where that costs
neither balance nor racks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from trimtab.client.group.assignors.protocol import (
    Assignment,
    Subscriber,
    Topic,
    existing_topics,
)
from trimtab.client.group.assignors.rack_rings import Group, Groups, Step
from trimtab.records import TopicPartition

MAX_STEPS = 1_000_000
"""Steps of the search for racks: it ends early only in groups where most members have other topics
than the others."""


_Move: TypeAlias = tuple[TopicPartition, int]  # to the member at this place


def level_counts(
    subscribers: Sequence[Subscriber],
    topics: Mapping[str, Topic],
    owner: Mapping[TopicPartition, str],
) -> Assignment:
    """Each partition of a subscribed topic with exactly one subscriber.

    Numbers of partitions are as equal as the subscriptions allow: if all subscribe alike, they
    differ by at most one.

    Args:
        owner: the member that has the partition now. It keeps it if it still subscribes to it and
            balance and racks allow.
    """
    levels = _Levels(sorted(subscribers, key=lambda each: each.member_id), topics, owner)
    levels.keep()
    levels.fill()
    levels.level()
    levels.swap_for_racks()
    levels.bring_back()
    return levels.assignment()


class _Levels:
    def __init__(
        self,
        members: Sequence[Subscriber],
        topics: Mapping[str, Topic],
        owner: Mapping[TopicPartition, str],
    ) -> None:
        self._members = members
        self._topics = topics
        place_of = {each.member_id: place for place, each in enumerate(members)}
        self._racks = [each.rack for each in members]
        self._given: list[dict[str, set[int]]] = [{} for _ in members]
        self._loads = [0] * len(members)
        self._holder: dict[TopicPartition, int] = {}

        class_of: dict[frozenset[str], int] = {}
        self._class = [
            class_of.setdefault(existing_topics(each, topics), len(class_of)) for each in members
        ]
        self._class_topics = list(class_of)
        self._classes: list[list[int]] = [[] for _ in class_of]
        for place, number in enumerate(self._class):
            self._classes[number].append(place)
        self._topic_classes: dict[str, list[int]] = {}
        for number, names in enumerate(class_of):
            for name in names:
                self._topic_classes.setdefault(name, []).append(number)
        self._owner = {
            partition: place
            for partition, member_id in owner.items()
            if partition.topic in self._class_topics[self._class[place := place_of[member_id]]]
        }

    def assignment(self) -> Assignment:
        return {
            each.member_id: [
                TopicPartition(name, index)
                for name, indexes in sorted(given.items())
                for index in sorted(indexes)
            ]
            for each, given in zip(self._members, self._given, strict=True)
        }

    def _put(self, partition: TopicPartition, place: int) -> None:
        self._given[place].setdefault(partition.topic, set()).add(partition.partition)
        self._loads[place] += 1
        self._holder[partition] = place

    def _move(self, partition: TopicPartition, place: int) -> None:
        giver = self._holder[partition]
        indexes = self._given[giver][partition.topic]
        indexes.discard(partition.partition)
        if not indexes:
            del self._given[giver][partition.topic]
        self._loads[giver] -= 1
        self._put(partition, place)

    def _is_far(self, partition: TopicPartition, rack: str | None) -> bool:
        """Whether a member in this rack reads the partition from another rack."""
        racks = self._topics[partition.topic].racks_of(partition.partition)
        return rack is not None and bool(racks) and rack not in racks

    # keep, fill

    def keep(self) -> None:
        """Members keep what they own; at most their share, where all subscribe alike."""
        owned: list[list[TopicPartition]] = [[] for _ in self._members]
        for partition, place in self._owner.items():
            owned[place].append(partition)
        shares = self._shares([len(each) for each in owned])
        for place, partitions in enumerate(owned):
            ranked = sorted(
                (self._is_far(each, self._racks[place]), each.partition, each.topic)
                for each in partitions
            )
            for _, index, name in ranked[: shares[place] if shares else None]:
                self._put(TopicPartition(name, index), place)

    def _shares(self, owned: list[int]) -> list[int]:
        """What each member gets if all subscribe alike: the larger shares go to those that own
        most. Empty if they subscribe to different topics."""
        if len(self._classes) != 1:
            return []
        total = sum(self._topics[name].partitions for name in self._topic_classes)
        share, larger = divmod(total, len(owned))
        shares = [share] * len(owned)
        for place in sorted(range(len(owned)), key=lambda each: -min(owned[each], share + 1))[
            :larger
        ]:
            shares[place] += 1
        return shares

    def fill(self) -> None:
        """Partitions without an owner go to the subscriber with the fewest; topics with the fewest
        subscribers first, and near ones first if several have the fewest."""
        sizes = {
            name: sum(len(self._classes[each]) for each in numbers)
            for name, numbers in self._topic_classes.items()
        }
        classes: list[int] = []
        heaps: dict[str | None, list[tuple[int, int]]] = {}
        for name in sorted(sizes, key=lambda each: (sizes[each], self._topic_classes[each], each)):
            if classes != self._topic_classes[name]:
                classes = self._topic_classes[name]
                heaps = {}
                for number in classes:
                    for place in self._classes[number]:
                        heaps.setdefault(self._racks[place], []).append((self._loads[place], place))
                for heap in heaps.values():
                    heapify(heap)
            for index in range(self._topics[name].partitions):
                partition = TopicPartition(name, index)
                if partition in self._holder:
                    continue
                if len(heaps) == 1:
                    (heap,) = heaps.values()
                else:
                    *_, heap = min(
                        (heap[0][0], self._is_far(partition, rack), heap[0][1], heap)
                        for rack, heap in heaps.items()
                    )
                load, place = heap[0]
                self._put(partition, place)
                heapreplace(heap, (load + 1, place))

    # level

    def level(self) -> None:
        """Move partitions along chains of members, from one with at least two more than the last.

        A member from which there is no such chain keeps what it has, and so do all members that its
        chains reach: they have at most one less than it, and they get nothing more, since each
        later giver has at most as many as this one.
        """
        if len(self._classes) == 1:
            return
        most = [(-load, place) for place, load in enumerate(self._loads)]
        heapify(most)
        least = [[(self._loads[place], place) for place in places] for places in self._classes]
        for heap in least:
            heapify(heap)
        settled: set[int] = set()
        while most:
            load, giver = heappop(most)
            if -load != self._loads[giver] or giver in settled:
                continue
            chain = self._find_move(giver, least) or self._find_chain(giver, settled)
            for partition, taker in chain:
                self._move(partition, taker)
            for place in {giver, *(taker for _, taker in chain)} if chain else ():
                heappush(most, (-self._loads[place], place))
                heappush(least[self._class[place]], (self._loads[place], place))

    def _find_move(self, giver: int, least: list[list[tuple[int, int]]]) -> list[_Move]:
        """A partition from this member to the one with the fewest of those that may take it."""
        fewest: tuple[int, int] | None = None
        for number in dict.fromkeys(
            number for name in self._given[giver] for number in self._topic_classes[name]
        ):
            heap = least[number]
            while heap[0][0] != self._loads[heap[0][1]]:
                heappop(heap)
            if fewest is None or heap[0] < fewest:
                fewest = heap[0]
        if fewest is None or fewest[0] + 2 > self._loads[giver]:
            return []
        taker = fewest[1]
        wanted = self._class_topics[self._class[taker]]
        names = [name for name in self._given[giver] if name in wanted]
        return [(self._choose(giver, taker, names), taker)]

    def _find_chain(self, giver: int, settled: set[int]) -> list[_Move]:
        """The moves of the shortest chain; empty if there is none, and then all
        members that were reached are settled."""
        count = self._loads[giver]
        came_from: dict[int, tuple[int, str]] = {}
        reached = {giver}
        seen_classes: set[int] = set()
        seen_topics: set[str] = set()
        queue = deque([giver])
        while queue:
            member = queue.popleft()
            for name in sorted(self._given[member].keys() - seen_topics):
                seen_topics.add(name)
                for number in self._topic_classes[name]:
                    if number in seen_classes:
                        continue
                    seen_classes.add(number)
                    for taker in self._classes[number]:
                        if taker in reached:
                            continue
                        reached.add(taker)
                        came_from[taker] = (member, name)
                        if self._loads[taker] + 2 <= count:
                            return self._follow(came_from, giver, taker)
                        queue.append(taker)
        settled |= reached
        return []

    def _follow(
        self, came_from: Mapping[int, tuple[int, str]], giver: int, taker: int
    ) -> list[_Move]:
        chain: list[_Move] = []
        while taker != giver:
            member, name = came_from[taker]
            chain.append((self._choose(member, taker, [name]), taker))
            taker = member
        return chain

    def _choose(self, giver: int, taker: int, names: Iterable[str]) -> TopicPartition:
        """The partition whose move costs least: racks first, then moves; of equal ones that with
        the highest number, as in Java."""
        from_rack, to_rack = self._racks[giver], self._racks[taker]
        return min(
            (TopicPartition(name, index) for name in names for index in self._given[giver][name]),
            key=lambda each: (
                self._is_far(each, to_rack) - self._is_far(each, from_rack),
                self._cost(each, giver, taker),
                -each.partition,
                each.topic,
            ),
        )

    def _cost(self, partition: TopicPartition, giver: int, taker: int) -> int:
        """By how many the partitions that are not with their owner increase."""
        return self._is_home(partition, giver) - self._is_home(partition, taker)

    # racks

    def swap_for_racks(self) -> None:
        """Bring partitions near by chains and rings of moves that leave the numbers as they are."""
        if not any(self._racks):
            return
        groups = Groups(self._class, self._racks, self._topic_classes, self._topics)
        for place, load in enumerate(self._loads):
            groups.set_load(place, load)
        for partition, place in sorted(self._holder.items()):
            groups.add(partition, place, self._is_home(partition, place))
        steps = MAX_STEPS
        improved = True
        while improved:
            improved = False
            for group, kind in groups.far():
                for partition in groups.pools[group][kind]:
                    path, used = groups.find_ring(group, kind)
                    steps -= used
                    if steps <= 0:
                        return
                    if not path:
                        break
                    improved = True
                    self._walk(groups, partition, path)

    def _is_home(self, partition: TopicPartition, place: int) -> bool:
        return self._owner.get(partition) == place

    def _walk(self, groups: Groups, partition: TopicPartition, path: list[Step]) -> None:
        """Move the partition into the path's first group, from there one of the next kind into the
        second, and so on."""
        giver = self._holder[partition]
        start = groups.group_of[giver]
        moves: list[_Move] = []

        def end_chain(group: Group, first: int) -> None:
            """Give the partition to a member of this group that has one less than the first giver
            of a chain. If only another one of its group has one more, that one gives it one."""
            taker, more = groups.find_pair(group, first)
            groups.set_load(more, self._loads[taker])
            groups.set_load(taker, self._loads[taker] + 1)
            moves.append((partition, taker))
            if more != first:
                moves.append((self._choose(more, first, self._given[more]), first))

        ended: Group | None = None
        for group, gives in path:
            if gives is None:
                ended = group
                continue
            following = groups.pools[group][gives].first()
            holder = self._holder[following]
            if ended is None:
                moves.append((partition, holder))
            else:
                end_chain(ended, holder)
                ended = None
            partition = following
        if ended is None or ended == start:
            moves.append((partition, giver))
        else:
            end_chain(ended, giver)
        for moved, taker in moves:
            groups.discard(moved, self._holder[moved])
            self._move(moved, taker)
            groups.add(moved, taker, self._is_home(moved, taker))

    # return

    def bring_back(self) -> None:
        """Return partitions to their owners: for another one, or from a member with one more."""
        for _ in range(2):
            for partition, owner in sorted(self._owner.items()):
                holder = self._holder[partition]
                if holder == owner:
                    continue
                change = self._far_change(partition, owner)
                if self._loads[holder] == self._loads[owner] + 1 and change <= 0:
                    self._move(partition, owner)
                elif (other := self._find_return(owner, holder, -change)) is not None:
                    self._move(partition, owner)
                    self._move(other, holder)

    def _find_return(self, giver: int, taker: int, limit: int) -> TopicPartition | None:
        """A partition that may move between these members without a new one away from its owner."""
        wanted = self._class_topics[self._class[taker]]
        for name in sorted(self._given[giver].keys() & wanted):
            for index in sorted(self._given[giver][name]):
                partition = TopicPartition(name, index)
                if (
                    not self._is_home(partition, giver)
                    and self._far_change(partition, taker) <= limit
                ):
                    return partition
        return None

    def _far_change(self, partition: TopicPartition, taker: int) -> int:
        return self._is_far(partition, self._racks[taker]) - self._is_far(
            partition, self._racks[self._holder[partition]]
        )
