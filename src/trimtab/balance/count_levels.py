"""Equal numbers of partitions for the members of a group, pure: first balance, then racks, then few
moves.

The client's sticky assignors (classic groups) and the coordinator's `uniform` (KIP-848) use it.

    keep ─▶ fill ─▶ level ─▶ swap for racks ─▶ return

Members keep what they own. Partitions without an owner go to the subscribers with the fewest. Then
partitions move along chains of members, until no chain makes the numbers more equal: then no
assignment is more equal. Then chains and rings that leave the numbers as they are bring partitions
to members in a rack of their replicas. At last partitions return to their owners where that costs
neither balance nor racks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace, nsmallest
from typing import TypeAlias

from trimtab.balance.members import Group, Member, Partition, TopicKey, find_groups
from trimtab.balance.rack_rings import Groups, Step

MAX_STEPS = 1_000_000
"""Steps of the search for racks: it ends early only in groups where most members have other topics
than the others."""


_Move: TypeAlias = tuple[Partition, int]  # to the member at this place


def level_counts(
    members: Sequence[Member],
    owned: Iterable[tuple[Partition, str]],
    partitions: Mapping[TopicKey, int],
    racks_of: Callable[[Partition], Collection[str]],
) -> dict[str, list[Partition]]:
    """Each partition with exactly one of the members that subscribe to its topic; by member its
    partitions, in no order. None of topics without a subscriber.

    Numbers of partitions are as equal as the subscriptions allow: if all subscribe alike, they
    differ by at most one.

    Args:
        owned: partitions with the member that has each now: the first that still subscribes to it.
            This one keeps it if balance and racks allow.
        partitions: by topic their number.
        racks_of: the racks of a partition's replicas; none if they are unknown.
    """
    in_order = sorted(members, key=lambda each: each.member_id)
    levels = _Levels(in_order, owned, partitions, racks_of)
    levels.keep()
    levels.fill()
    levels.level()
    levels.swap_for_racks()
    levels.bring_back()
    return {each.member_id: levels.given(place) for place, each in enumerate(in_order)}


class _Levels:
    def __init__(
        self,
        members: Sequence[Member],
        owned: Iterable[tuple[Partition, str]],
        partitions: Mapping[TopicKey, int],
        racks_of: Callable[[Partition], Collection[str]],
    ) -> None:
        self._partitions = partitions
        self._racks_of = racks_of
        place_of = {each.member_id: place for place, each in enumerate(members)}
        self._given: list[dict[TopicKey, set[Partition]]] = [{} for _ in members]
        self._loads = [0] * len(members)
        self._holder: dict[Partition, int] = {}

        existing = [name for name, count in partitions.items() if count > 0]
        self._group_of, class_topics = find_groups(members, existing)
        self._topics_of = [class_topics[group.topics] for group in self._group_of]
        self._has_racks = any(group.rack for group in self._group_of)
        self._classes: list[list[int]] = [[] for _ in class_topics]
        for place, group in enumerate(self._group_of):
            self._classes[group.topics].append(place)
        self._topic_classes: dict[TopicKey, list[int]] = {}
        for number, names in enumerate(class_topics):
            for name in names:
                self._topic_classes.setdefault(name, []).append(number)
        self._owner: dict[Partition, int] = {}
        for partition, member_id in owned:
            place = place_of[member_id]
            if partition[0] in self._topics_of[place]:
                self._owner.setdefault(partition, place)

    def given(self, place: int) -> list[Partition]:
        return [each for partitions in self._given[place].values() for each in partitions]

    def _put(self, partition: Partition, place: int) -> None:
        self._given[place].setdefault(partition[0], set()).add(partition)
        self._loads[place] += 1
        self._holder[partition] = place

    def _move(self, partition: Partition, place: int) -> None:
        giver = self._holder[partition]
        name, _ = partition
        of_topic = self._given[giver][name]
        of_topic.discard(partition)
        if not of_topic:
            del self._given[giver][name]
        self._loads[giver] -= 1
        self._put(partition, place)

    def _is_far(self, partition: Partition, rack: str | None) -> bool:
        """Whether a member in this rack reads the partition from another rack."""
        return rack is not None and bool(racks := self._racks_of(partition)) and rack not in racks

    # keep, fill

    def keep(self) -> None:
        """Members keep what they own; at most their share, where all subscribe alike."""
        owned: list[list[Partition]] = [[] for _ in self._loads]
        for partition, place in self._owner.items():
            owned[place].append(partition)
        shares = self._shares([len(each) for each in owned])
        for place, partitions in enumerate(owned):
            if shares and len(partitions) > shares[place]:
                rack = self._group_of[place].rack
                partitions.sort(key=lambda each: (self._is_far(each, rack), each[1], each[0]))
                del partitions[shares[place] :]
            given = self._given[place]
            for partition in partitions:
                given.setdefault(partition[0], set()).add(partition)
            self._holder.update(dict.fromkeys(partitions, place))
            self._loads[place] = len(partitions)

    def _shares(self, owned: list[int]) -> list[int]:
        """What each member gets if all subscribe alike: the larger shares go to those that own
        most. Empty if they subscribe to different topics."""
        if len(self._classes) != 1:
            return []
        total = sum(self._partitions[name] for name in self._topic_classes)
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
                        rack = self._group_of[place].rack
                        heaps.setdefault(rack, []).append((self._loads[place], place))
                for heap in heaps.values():
                    heapify(heap)
            for index in range(self._partitions[name]):
                partition = (name, index)
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
        fewest = min(self._loads, default=0)
        while most and -most[0][0] >= fewest + 2:
            load, giver = heappop(most)
            if -load != self._loads[giver] or giver in settled:
                continue
            chain = self._find_move(giver, least) or self._find_chain(giver, settled)
            for partition, taker in chain:
                self._move(partition, taker)
            for place in {giver, *(taker for _, taker in chain)} if chain else ():
                heappush(most, (-self._loads[place], place))
                heappush(least[self._group_of[place].topics], (self._loads[place], place))

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
        wanted = self._topics_of[taker]
        names = [name for name in self._given[giver] if name in wanted]
        count = (self._loads[giver] - fewest[0]) // 2
        return [(each, taker) for each in self._choose_some(count, giver, taker, names)]

    def _find_chain(self, giver: int, settled: set[int]) -> list[_Move]:
        """The moves of the shortest chain; empty if there is none, and then all
        members that were reached are settled."""
        count = self._loads[giver]
        came_from: dict[int, tuple[int, TopicKey]] = {}
        reached = {giver}
        seen_classes: set[int] = set()
        seen_topics: set[TopicKey] = set()
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
        self, came_from: Mapping[int, tuple[int, TopicKey]], giver: int, taker: int
    ) -> list[_Move]:
        chain: list[_Move] = []
        while taker != giver:
            member, name = came_from[taker]
            chain.append((self._choose(member, taker, [name]), taker))
            taker = member
        return chain

    def _choose(self, giver: int, taker: int, names: Iterable[TopicKey]) -> Partition:
        """The partition whose move costs least: racks first, then moves; of equal ones that with
        the highest number, as in Java."""
        return self._choose_some(1, giver, taker, names)[0]

    def _choose_some(
        self, count: int, giver: int, taker: int, names: Iterable[TopicKey]
    ) -> list[Partition]:
        from_rack, to_rack = self._group_of[giver].rack, self._group_of[taker].rack
        return nsmallest(
            count,
            (each for name in names for each in self._given[giver][name]),
            key=lambda each: (
                self._is_far(each, to_rack) - self._is_far(each, from_rack),
                self._cost(each, giver, taker),
                -each[1],
                each[0],
            ),
        )

    def _cost(self, partition: Partition, giver: int, taker: int) -> int:
        """By how many the partitions that are not with their owner increase."""
        return self._is_home(partition, giver) - self._is_home(partition, taker)

    # racks

    def swap_for_racks(self) -> None:
        """Bring partitions near by chains and rings of moves that leave the numbers as they are."""
        if not self._has_racks:
            return
        groups = Groups(self._group_of, self._topic_classes, self._racks_of)
        for place, load in enumerate(self._loads):
            groups.set_load(place, load)
        for partition, place in sorted(self._holder.items()):
            groups.add_to_pool(partition, place, self._is_home(partition, place))
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

    def _is_home(self, partition: Partition, place: int) -> bool:
        return self._owner.get(partition) == place

    def _walk(self, groups: Groups, partition: Partition, path: list[Step]) -> None:
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
            groups.discard_from_pool(moved, self._holder[moved])
            self._move(moved, taker)
            groups.add_to_pool(moved, taker, self._is_home(moved, taker))

    # return

    def bring_back(self) -> None:
        """Return partitions to their owners: for another one, or from a member with one more."""
        if len(self._classes) == 1 and not self._has_racks:
            return  # who owned more than its share has nothing else
        away: list[_Move] = []
        # By member, what others owned.
        self._foreign = [
            {each for each in self.given(place) if not self._is_home(each, place)}
            for place in range(len(self._given))
        ]
        for _ in range(2):
            before = away
            away = sorted(each for each in self._owner.items() if self._holder[each[0]] != each[1])
            if away == before:
                break
            for partition, owner in away:
                holder = self._holder[partition]
                if holder == owner:
                    continue
                change = self._far_change(partition, owner)
                if self._loads[holder] == self._loads[owner] + 1 and change <= 0:
                    self._return(partition, owner)
                elif (other := self._find_return(owner, holder, -change)) is not None:
                    self._return(partition, owner)
                    self._return(other, holder)

    def _return(self, partition: Partition, place: int) -> None:
        """Move a partition, and keep `_foreign` right."""
        self._foreign[self._holder[partition]].discard(partition)
        self._move(partition, place)
        if not self._is_home(partition, place):
            self._foreign[place].add(partition)

    def _find_return(self, giver: int, taker: int, limit: int) -> Partition | None:
        """A partition that may move between these members without a new one away from its owner."""
        wanted = self._topics_of[taker]
        found = (
            partition
            for partition in self._foreign[giver]
            if partition[0] in wanted and self._far_change(partition, taker) <= limit
        )
        return min(found, default=None)

    def _far_change(self, partition: Partition, taker: int) -> int:
        holder = self._holder[partition]
        return self._is_far(partition, self._group_of[taker].rack) - self._is_far(
            partition, self._group_of[holder].rack
        )
