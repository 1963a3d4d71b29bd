"""Equal bytes/s for the members of a group, pure: first balance, then racks, then few moves.

The assignors `load` of the client (classic groups) and of the coordinator (KIP-848) use it.

Up to three ways are tried, each only if the one before left something to improve:

- Members keep all that they own.
- They keep what they own, except what they read from another rack.
- They keep nothing.

Each of them gives the other partitions, heaviest first, to the lightest member that may have them.
It then moves and swaps partitions until no member has more than it should; first among members in
racks of the replicas, then among all. Where that leads no further, it tries every way to divide the
partitions of some members, if there are few ways. At last it feeds members that have much less than
the others.

A partition weighs its bytes/s, and 1 % of the mean of all on top: so idle partitions are spread as
well, and do not all end with one member. All sums are of integers, so they depend on no order.

Long because the ways and the moves share one state of loads, and build on each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, nlargest, nsmallest
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from trimtab.balance.members import Group, Member, find_groups
from trimtab.kafka.records import TopicPartition

_EQUAL_RATE = 1.0
_UNIT = 10_000
"""The weight of a partition with the mean rate, without what all have on top."""
_ON_TOP = _UNIT // 100

_MAX_SHARE = 1.03
"""A member may have this many times the mean. In bytes/s that is within 1.05: 1 % of the weight is
on top."""
_MIN_SHARE = 0.9
_NEAR_BOUND = 1.005
_LIGHTEST_LOOKED_AT = 4
_HEAVIEST_LOOKED_AT = 8
_FEW_GROUPS = 12
"""Of so many groups the lightest members are compared; of more, members are looked at in the order
of their loads."""
_MOST_RELIEVED = 8
"""So many partitions of mean weight may be too many, for a member to be relieved one by one."""
_MAX_WAYS = 4096
"""Of so many ways to divide the partitions of some members every one is tried."""

_Rank: TypeAlias = tuple[float, int, int, int, TopicPartition]


_NO_RACKS: Final[frozenset[str]] = frozenset()


class _Choice(NamedTuple):
    """Groups whose members may have a partition."""

    order: tuple[Group, ...]
    groups: frozenset[Group]


class _Score(NamedTuple):
    """How bad an assignment is."""

    excess: int
    far: int
    moves: int


def fill_rates(
    partitions: Mapping[str, int], known: Mapping[TopicPartition, float]
) -> dict[TopicPartition, float]:
    """The rate of each partition of the topics.

    One whose rate is unknown counts as the mean of its topic's known ones, else as the mean of all;
    if none is known, all count the same.

    Args:
        partitions: by topic their number.
        known: bytes/s; also of partitions that are not asked for.
    """
    wanted = {
        name: [TopicPartition(name, index) for index in range(count)]
        for name, count in partitions.items()
    }
    found = {
        name: [known[each] for each in of_topic if each in known]
        for name, of_topic in wanted.items()
    }
    mean = _mean([rate for rates in found.values() for rate in rates], _EQUAL_RATE)
    filled: dict[TopicPartition, float] = {}
    for name, of_topic in wanted.items():
        usual = _mean(found[name], mean)
        filled.update((each, known.get(each, usual)) for each in of_topic)
    return filled


def _mean(rates: Sequence[float], otherwise: float) -> float:
    return sum(rates) / len(rates) if rates else otherwise


def level_load(
    readers: Sequence[Member],
    owner: Mapping[TopicPartition, str],
    rates: Mapping[TopicPartition, float],
    racks_of: Callable[[TopicPartition], Collection[str]],
) -> dict[str, list[TopicPartition]]:
    """Each partition with exactly one of the members that subscribe to its topic; by member its
    partitions, in order.

    If all subscribe alike, the largest sum of rates is at most 1.05 times the mean, or within 1 %
    of the least possible, if moves and swaps lead there or there are few ways to divide the
    partitions. Partitions that weigh more than a member's share have members of their own; then the
    mean is that of the others.

    Args:
        owner: the member that has the partition now.
        rates: bytes/s of each partition that has a subscriber.
        racks_of: the racks of a partition's replicas; none if they are unknown.
    """
    scene = _Scene(sorted(readers, key=lambda each: each.member_id), owner, rates, racks_of)
    best = _Shares(scene)
    best.keep(with_far=True)
    best.settle()
    score = best.score()
    if score.far > scene.least_far or score.excess:
        for keeps in (True, False):
            other = _Shares(scene)
            if keeps:
                other.keep(with_far=False)
            other.settle()
            if other.score() < score:
                best, score = other, other.score()
            if not score.excess:
                break
    return best.assignment()


class _Scene:
    """What all ways have alike: members, weights, racks.

    Attributes:
        near: for each partition the groups whose members may have it and are in a rack of its
            replicas; all that may have it, if there are none.
        everywhere: for each partition all groups whose members may have it.
        limit: a member should not have more, unless it is a single partition.
        least: a member should not have less.
        least_far: the weight that must be read from other racks, whichever members read it.
    """

    def __init__(
        self,
        members: Sequence[Member],
        owner: Mapping[TopicPartition, str],
        rates: Mapping[TopicPartition, float],
        racks_of: Callable[[TopicPartition], Collection[str]],
    ) -> None:
        self.members = members
        mean = sum(rates.values()) / len(rates) if rates else 0.0
        self.weight = {
            partition: _ON_TOP + (round(rates[partition] / mean * _UNIT) if mean > 0 else 0)
            for partition in sorted(rates)
        }
        existing = {partition.topic for partition in rates}
        self.group_of, class_topics = find_groups(members, existing)
        place_of = {each.member_id: place for place, each in enumerate(members)}
        self.owner = {
            partition: place
            for partition in self.weight
            if partition in owner
            and partition.topic
            in class_topics[self.group_of[place := place_of[owner[partition]]].topics]
        }
        self._is_near: dict[TopicPartition, frozenset[Group]] = {}
        by_topic = {
            name: _choose_from(
                group
                for group in dict.fromkeys(self.group_of)
                if name in class_topics[group.topics]
            )
            for name in existing
        }
        near_of: dict[tuple[str, frozenset[str]], _Choice] = {}
        self.everywhere: dict[TopicPartition, _Choice] = {}
        self.near: dict[TopicPartition, _Choice] = {}
        self.least_far = 0
        self._has_racks = any(each.rack is not None for each in members)
        for partition, weight in self.weight.items():
            everywhere = by_topic[partition.topic]
            racks = frozenset(racks_of(partition)) if self._has_racks else _NO_RACKS
            near = near_of.get((partition.topic, racks))
            if near is None:
                near = near_of[partition.topic, racks] = _choose_from(
                    group
                    for group in everywhere.order
                    if group.rack is None or not racks or group.rack in racks
                )
            if not near.order:
                self.least_far += weight
            self.everywhere[partition] = everywhere
            self.near[partition] = near if near.order else everywhere
            self._is_near[partition] = near.groups
        self.limit, self.least = _find_limits(sorted(self.weight.values(), reverse=True), members)

    def is_far(self, partition: TopicPartition, place: int) -> bool:
        """Whether the member reads the partition from another rack."""
        return self._has_racks and self.group_of[place] not in self._is_near[partition]

    def cost(self, partition: TopicPartition, giver: int, taker: int) -> tuple[int, int]:
        """What a move adds to the bytes from other racks, and to the partitions moved."""
        far = 0
        if self._has_racks:
            far = self.is_far(partition, taker) - self.is_far(partition, giver)
        owner = self.owner.get(partition)
        return self.weight[partition] * far, (owner == giver) - (owner == taker)


def _choose_from(groups: Iterable[Group]) -> _Choice:
    order = tuple(groups)
    return _Choice(order, frozenset(order))


def _find_limits(weights: Sequence[int], members: Sequence[Member]) -> tuple[float, float]:
    """What a member should have at most and at least, from the weights in descending order."""
    if not members:
        return 0, 0
    rest, alone = sum(weights), 0
    while alone < len(members) - 1 and alone < len(weights):
        if weights[alone] * (len(members) - alone) <= rest:
            break
        rest -= weights[alone]
        alone += 1
    count = len(members) - alone
    mean = rest / count
    bound = mean
    sums = [0, *accumulate(weights)]
    # Of `size` times as many partitions as members and one more, one member has size + 1.
    for size in range(1, (len(weights) - alone - 1) // count + 1):
        last = alone + size * count
        bound = max(bound, sums[last + 1] - sums[last - size])
    return max(_MAX_SHARE * mean, _NEAR_BOUND * bound), _MIN_SHARE * mean


class _Shares:
    """The partitions of each member, while they are moved."""

    def __init__(self, scene: _Scene) -> None:
        self._scene = scene
        self._weight = scene.weight
        self._loads = [0] * len(scene.members)
        self._given: list[dict[TopicPartition, None]] = [{} for _ in scene.members]
        self._holder: dict[TopicPartition, int] = {}
        self._lightest: dict[Group, list[tuple[int, int]]] = {}
        self._all: list[tuple[int, int]] = []
        for place, group in enumerate(scene.group_of):
            self._lightest.setdefault(group, []).append((0, place))
            self._all.append((0, place))

    def assignment(self) -> dict[str, list[TopicPartition]]:
        return {
            each.member_id: sorted(given)
            for each, given in zip(self._scene.members, self._given, strict=True)
        }

    def score(self) -> _Score:
        scene = self._scene
        return _Score(
            sum(round(self._excess(place)) for place in range(len(self._loads))),
            sum(
                self._weight[partition]
                for partition, place in self._holder.items()
                if scene.is_far(partition, place)
            ),
            sum(self._holder[each] != place for each, place in scene.owner.items()),
        )

    def _excess(self, place: int) -> float:
        return (
            max(0.0, self._loads[place] - self._scene.limit) if len(self._given[place]) > 1 else 0.0
        )

    # changes

    def _put(self, partition: TopicPartition, place: int) -> None:
        self._given[place][partition] = None
        self._holder[partition] = place
        self._add(place, self._weight[partition])

    def _move(self, partition: TopicPartition, place: int) -> None:
        giver = self._holder[partition]
        del self._given[giver][partition]
        self._add(giver, -self._weight[partition])
        self._put(partition, place)

    def _add(self, place: int, weight: int) -> None:
        self._loads[place] += weight
        now = (self._loads[place], place)
        heappush(self._lightest[self._scene.group_of[place]], now)
        heappush(self._all, now)

    def _first(self, heap: list[tuple[int, int]]) -> tuple[int, int]:
        """The lightest member of a heap, without the entries that are no longer true."""
        while heap[0][0] != self._loads[heap[0][1]]:
            heappop(heap)
        return heap[0]

    def _lightest_of(self, choice: _Choice) -> int:
        if len(choice.order) <= _FEW_GROUPS:
            return min(self._first(self._lightest[group]) for group in choice.order)[1]
        passed: list[tuple[int, int]] = []
        while self._scene.group_of[self._first(self._all)[1]] not in choice.groups:
            passed.append(heappop(self._all))
        place = self._all[0][1]
        for each in dict.fromkeys(passed):
            heappush(self._all, each)
        return place

    def _remember_lightest_of(self, choice: _Choice, known: dict[int, int]) -> int:
        """`_lightest_of`, looked up once for each choice while nothing moves."""
        place = known.get(id(choice))
        if place is None:
            place = known[id(choice)] = self._lightest_of(choice)
        return place

    # the ways

    def keep(self, with_far: bool) -> None:
        """Members keep what they own; without `with_far` only what is in their racks.

        Who owns much too much keeps only as much as it should have, without its heaviest ones: to
        move them one by one would take time in the square of their number.
        """
        scene = self._scene
        owned: dict[int, list[TopicPartition]] = {}
        for partition, place in scene.owner.items():
            if with_far or not scene.is_far(partition, place):
                owned.setdefault(place, []).append(partition)
        for place, partitions in owned.items():
            load = sum(self._weight[each] for each in partitions)
            if load - scene.limit > _MOST_RELIEVED * load / len(partitions):
                partitions.sort(key=lambda each: (scene.is_far(each, place), self._weight[each]))
                while partitions and load > scene.limit:
                    load -= self._weight[partitions.pop()]
            self._given[place] = dict.fromkeys(partitions)
            self._holder.update(dict.fromkeys(partitions, place))
            self._add(place, sum(self._weight[each] for each in partitions))

    def settle(self) -> None:
        scene = self._scene
        free = [each for each in scene.weight if each not in self._holder]
        for partition in sorted(free, key=lambda each: (-scene.weight[each], each)):
            self._put(partition, self._lightest_of(scene.near[partition]))
        self._level(scene.near)
        self._level(scene.everywhere)
        self._feed()
        self._bring_back()

    # less for those that have too much

    def _level(self, groups: Mapping[TopicPartition, _Choice]) -> None:
        """Relieve the members that have too much, the heaviest first."""
        heaviest = [(-load, place) for place, load in enumerate(self._loads)]
        heapify(heaviest)
        while heaviest:
            load, place = heappop(heaviest)
            if -load != self._loads[place]:
                continue
            if -load <= self._scene.limit:
                break
            if self._excess(place):
                for changed in self._relieve(place, groups):
                    heappush(heaviest, (-self._loads[changed], changed))

    def _relieve(self, giver: int, groups: Mapping[TopicPartition, _Choice]) -> tuple[int, ...]:
        """Make the heaviest of some members lighter. Returns them; none if that is impossible."""
        scene = self._scene
        takers: dict[int, None] = {}
        best: tuple[_Rank, int] | None = None
        lightest: dict[int, int] = {}
        for partition in self._given[giver]:
            choice = groups[partition]
            candidates = {self._remember_lightest_of(choice, lightest)}
            if choice is not scene.near[partition]:
                candidates.add(self._remember_lightest_of(scene.near[partition], lightest))
            owner = scene.owner.get(partition)
            if owner is not None and scene.group_of[owner] in choice.groups:
                candidates.add(owner)
            for taker in candidates:
                if taker == giver:
                    continue
                takers[taker] = None
                rank = self._rank(giver, taker, partition)
                if rank is not None and (best is None or (rank, taker) < best):
                    best = rank, taker
        if best is None or best[0][0] > scene.limit:
            most = best[0][0] if best is not None else float(self._loads[giver])
            near = nsmallest(
                _LIGHTEST_LOOKED_AT, takers, key=lambda each: (self._loads[each], each)
            )
            for taker in near:
                if self._swap(giver, taker, most, groups):
                    return giver, taker
            if best is None:
                light = (
                    place
                    for place, load in enumerate(self._loads)
                    if load <= scene.limit or self._excess(place)
                )
                for some in [*((giver, taker) for taker in near), tuple(light)]:
                    if self._divide(some, most, groups):
                        return some
        if best is None:
            return ()
        self._move(best[0][-1], best[1])
        return giver, best[1]

    def _rank(self, giver: int, taker: int, partition: TopicPartition) -> _Rank | None:
        """The load of the heavier one after the move, its cost, then few bytes; None if it is no
        better than before."""
        weight = self._weight[partition]
        heavier = max(self._loads[giver] - weight, self._loads[taker] + weight)
        if heavier >= self._loads[giver]:
            return None
        return (
            max(heavier, self._scene.limit),
            *self._scene.cost(partition, giver, taker),
            weight,
            partition,
        )

    def _swap(
        self,
        giver: int,
        taker: int,
        limit: float,
        groups: Mapping[TopicPartition, _Choice],
    ) -> bool:
        """Swap two partitions so that both members have less than `limit`."""
        to_taker = self._may_go(giver, taker, groups)
        to_giver = self._may_go(taker, giver, groups)
        wanted = (self._loads[giver] - self._loads[taker]) / 2
        best: tuple[float, tuple[TopicPartition, ...]] | None = None
        for weight, partition in to_taker:
            at = bisect_left(to_giver, (weight - wanted,))
            for other_weight, other in to_giver[max(0, at - 1) : at + 1]:
                change = weight - other_weight
                heavier = max(self._loads[giver] - change, self._loads[taker] + change)
                if heavier < limit and (best is None or heavier < best[0]):
                    best = heavier, (partition, other)
        if best is None:
            return False
        self._move(best[1][0], taker)
        self._move(best[1][1], giver)
        return True

    def _may_go(
        self,
        giver: int,
        taker: int,
        groups: Mapping[TopicPartition, _Choice],
    ) -> list[tuple[int, TopicPartition]]:
        group = self._scene.group_of[taker]
        return sorted(
            (self._weight[partition], partition)
            for partition in self._given[giver]
            if group in groups[partition].groups
        )

    def _divide(
        self, places: Sequence[int], limit: float, groups: Mapping[TopicPartition, _Choice]
    ) -> bool:
        """Divide the partitions of these members in the best of all ways, if there are few ways, so
        that none has as much as `limit`; with the fewest moves among equals."""
        movable: list[tuple[int, TopicPartition, list[int]]] = []
        ways = 1
        for place in places:
            for partition in self._given[place]:
                takers = self._takers(partition, places, groups)
                if len(takers) == 1:
                    continue
                ways *= len(takers)
                if ways > _MAX_WAYS:
                    return False
                movable.append((-self._weight[partition], partition, takers))
        movable.sort()
        loads = {place: self._loads[place] for place in places}
        for weight, each, _ in movable:
            loads[self._holder[each]] += weight
        best: tuple[float, int] = (limit, 0)
        chosen: list[int] = []
        found: list[int] = []

        def search(heaviest: float, moved: int) -> None:
            nonlocal best, found
            if (heaviest, moved) >= best:
                return
            if len(chosen) == len(movable):
                best, found = (heaviest, moved), chosen.copy()
                return
            weight, each, takers = movable[len(chosen)]
            for taker in takers:
                chosen.append(taker)
                loads[taker] -= weight
                search(max(heaviest, loads[taker]), moved + (taker != self._holder[each]))
                loads[taker] += weight
                chosen.pop()

        search(max(self._scene.limit, *loads.values()), 0)
        if not found:
            return False
        for (_, partition, _), taker in zip(movable, found, strict=True):
            if taker != self._holder[partition]:
                self._move(partition, taker)
        return True

    def _takers(
        self,
        partition: TopicPartition,
        places: Sequence[int],
        groups: Mapping[TopicPartition, _Choice],
    ) -> list[int]:
        """Those of the members that may have it: first the one that has it, then in order."""
        holder = self._holder[partition]
        allowed = groups[partition].groups
        return [
            holder,
            *(each for each in places if each != holder and self._scene.group_of[each] in allowed),
        ]

    # more for those that have too little

    def _feed(self) -> None:
        """Members that have much less than the others get from the heaviest."""
        least = self._scene.least
        hungry = sorted((load, place) for place, load in enumerate(self._loads) if load < least)
        for _, taker in hungry:
            while self._loads[taker] < least and self._take(taker):
                pass

    def _take(self, taker: int) -> bool:
        scene = self._scene
        group, has = scene.group_of[taker], self._loads[taker]
        best: tuple[tuple[int, int, int, int, TopicPartition], TopicPartition] | None = None
        for giver in nlargest(
            _HEAVIEST_LOOKED_AT, range(len(self._loads)), key=lambda each: self._loads[each]
        ):
            if giver == taker:
                continue
            for partition in self._given[giver]:
                weight = self._weight[partition]
                left, got = self._loads[giver] - weight, has + weight
                if left <= has or got > scene.limit or (left < scene.least and left < got):
                    continue
                if group not in scene.near[partition].groups:
                    continue
                key = (*scene.cost(partition, giver, taker), -left, -weight, partition)
                if best is None or key < best[0]:
                    best = key, partition
        if best is None:
            return False
        self._move(best[1], taker)
        return True

    # few moves

    def _bring_back(self) -> None:
        """Return partitions to their owners where that makes nobody too heavy or too light."""
        scene = self._scene
        guests = [
            {each for each in given if scene.owner.get(each) != place}
            for place, given in enumerate(self._given)
        ]

        def move(partition: TopicPartition, place: int) -> None:
            guests[self._holder[partition]].discard(partition)
            self._move(partition, place)
            if scene.owner.get(partition) != place:
                guests[place].add(partition)

        for partition, owner in scene.owner.items():
            holder = self._holder[partition]
            if holder == owner or scene.is_far(partition, owner) > scene.is_far(partition, holder):
                continue
            weight = self._weight[partition]
            if (
                self._loads[owner] + weight <= scene.limit
                and self._loads[holder] - weight >= scene.least
            ):
                move(partition, owner)
                continue
            others: Iterable[TopicPartition] = (
                guest
                for guest in guests[owner]
                if scene.group_of[holder] in scene.everywhere[guest].groups
                and scene.is_far(guest, holder) <= scene.is_far(guest, owner)
                and self._fits(owner, weight - self._weight[guest])
                and self._fits(holder, self._weight[guest] - weight)
            )
            other = min(others, default=None)
            if other is not None:
                move(partition, owner)
                move(other, holder)

    def _fits(self, place: int, change: int) -> bool:
        load = self._loads[place] + change
        return change == 0 or self._scene.least <= load <= self._scene.limit
