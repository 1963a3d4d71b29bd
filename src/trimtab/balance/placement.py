"""Chooses brokers for the replicas of new partitions; finds an assignment whenever one exists.

    a quota of replicas for each rack and broker ─▶ one partition after the other

Goals, in this order. The first is a hard limit, the others are pursued as far as possible:

- The replicas of a partition are on distinct brokers, and no broker gets more than its room.
- What the `PlacementGoal` makes even first: the replicas of a partition over the racks, or the
  replicas of all partitions over the brokers or racks; then the other of the two.
- Every broker is the preferred leader of the same share of its new replicas.

KIP-578 proposes to go round the brokers and skip full ones. That fails if at the end only one
broker has room, for two replicas of the same partition. Here quotas are computed first, and each
step keeps the rest feasible:

1. Let `u` be the room of a broker, capped at the number of partitions. An assignment exists exactly
   if the sum of `u` is at least partitions x factor. Proof: list each broker as often as its quota,
   and give position j of the list to partition j modulo partitions. No quota exceeds the number of
   partitions, so no partition gets a broker twice.
2. The goal bounds the racks' quotas. Within these bounds all brokers get the same number of
   replicas, as far as they have room. The rest, too small for one more on each, goes to the brokers
   with the fewest replicas; of equal ones to those in racks with the fewest quotas per partition.
   - `racks`: no partition has more than k replicas in a rack, where k is the smallest number for
     which the racks have room (k = 1: every partition is on `factor` racks). A rack's quota is
     between the room it has for k - 1 replicas of each partition and the room for k.
   - `weighted`: a rack's quota is its share by number of brokers, rounded up or down.
   - `brokers`: every rack has the share of its brokers. No partition has more than k replicas in a
     rack, where k is the smallest number for which these shares, rounded up, have room. So the
     rest does not go to one rack only because its brokers are new.
3. A partition takes from each rack quota / partitions, rounded down, and one more from the racks
   with the largest rest of their quotas; within a rack, from the brokers with the largest remaining
   quotas. With j partitions left, no broker and no rest is more than j, so those that are j are
   among the largest, and afterwards none is more than j - 1. All partitions have the same number of
   replicas in a rack, give or take one: with these quotas they cannot be on more racks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush, heapreplace
from random import Random
from typing import NamedTuple

GOAL = "replica.placement.goal"
"""The controller's option, a `PlacementGoal`."""

_TIE_BREAK = 1e-9


class PlacementGoal(StrEnum):
    """What placement makes even first if racks have different numbers of brokers (KIP-1194).

    Attributes:
        RACKS: a partition is on as many racks as possible. A broker that is alone in its rack gets
            more replicas than others.
        BROKERS: all brokers get the same number of replicas, as far as they have room.
        WEIGHTED: all racks get replicas in proportion to their brokers, as far as they have room.
            What a full broker cannot take goes to others of its rack.
    """

    RACKS = "racks"
    BROKERS = "brokers"
    WEIGHTED = "weighted"


class Room(NamedTuple):
    """The room of one broker.

    Attributes:
        replicas: replicas that it has already.
        leaders: replicas of these that are preferred leaders.
        free: replicas that it may still get.
    """

    id: int
    rack: str | None
    replicas: int
    leaders: int
    free: int


class NoRoom(Exception):
    """Not all partitions can be placed; `most` is the number that can."""

    def __init__(self, most: int) -> None:
        super().__init__(f"at most {most} can be placed")
        self.most = most


def place(
    rooms: Sequence[Room],
    partitions: int,
    factor: int,
    random: Random,
    goal: PlacementGoal = PlacementGoal.RACKS,
) -> list[list[int]]:
    """Broker ids per partition, the preferred leader first.

    The run time is bounded: one step for each replica, then at most one move for each leader that a
    broker has too many or too few.

    Args:
        rooms: each broker once; a negative `free` counts as 0.
        factor: replicas of each partition.

    Raises:
        NoRoom: there is no such assignment.
        ValueError: `factor` or `partitions` is less than 1, or a broker is given twice.
    """
    if factor < 1 or partitions < 1:
        raise ValueError(f"{partitions} partitions x {factor} replicas: place at least one of each")
    if len({room.id for room in rooms}) < len(rooms):
        raise ValueError("a broker is given twice; give each once, with all of its room")
    rooms = [room if room.free >= 0 else room._replace(free=0) for room in rooms]
    if sum(min(room.free, partitions) for room in rooms) < partitions * factor:
        raise NoRoom(count_placeable(rooms, partitions, factor))
    racks = _divide(rooms, partitions, factor, random, goal)
    return _stripe(racks, partitions, factor, random)


def count_placeable(rooms: Iterable[Room], partitions: int, factor: int) -> int:
    """The largest number of partitions, up to `partitions`, that can be placed."""
    free = [max(0, room.free) for room in rooms]
    fits, too_many = 0, partitions + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if sum(min(each, middle) for each in free) >= middle * factor:
            fits = middle
        else:
            too_many = middle
    return fits


class _Rack:
    """One rack, with its quota, and the remaining quotas of its brokers.

    Attributes:
        heap: its brokers by remaining quota, the largest first: (-left, chance, index).
    """

    __slots__ = ("heap", "quota", "rooms")

    def __init__(self, rooms: list[Room]) -> None:
        self.rooms = rooms
        self.quota = 0
        self.heap: list[tuple[int, float, int]] = []

    def take(self, count: int, replicas: list[int], chance: Callable[[], float]) -> None:
        """Append `count` brokers of this rack to a partition's replicas: those with the largest
        remaining quotas."""
        heap = self.heap
        if count == 1:
            negative, _, index = heap[0]
            replicas.append(self.rooms[index].id)
            if negative < -1:
                heapreplace(heap, (negative + 1, chance(), index))
            else:
                heappop(heap)
            return
        taken = [heappop(heap) for _ in range(count)]
        for negative, _, index in taken:
            replicas.append(self.rooms[index].id)
            if negative < -1:
                heappush(heap, (negative + 1, chance(), index))


# -- quotas


def _divide(
    rooms: Sequence[Room], partitions: int, factor: int, random: Random, goal: PlacementGoal
) -> list[_Rack]:
    """The racks, with the quotas of racks and brokers."""
    by_rack: dict[str | None, list[Room]] = {}
    # Where not all brokers can get one more replica, those with the fewest come first, else chance.
    for room in sorted(rooms, key=lambda room: (room.replicas, random.random())):
        by_rack.setdefault(room.rack, []).append(room)
    racks = [_Rack(each) for each in by_rack.values()]
    total = partitions * factor
    bounds = _bound([rack.rooms for rack in racks], partitions, total, goal)

    def quotas(level: int) -> list[int]:
        """Each rack's quota if its brokers get up to `level` replicas, within the rack's bounds."""
        return [
            min(most, max(least, _fill(rack.rooms, partitions, level)))
            for rack, (least, most) in zip(racks, bounds, strict=True)
        ]

    level = _find_level(quotas, total, partitions)
    shares = quotas(level)
    takers: list[deque[Room]] = []
    """By rack, the brokers that may get one more of the rest."""
    for rack, share, above in zip(racks, shares, quotas(level + 1), strict=True):
        first = max(0, share - _fill(rack.rooms, partitions, level))
        able = [room for room in rack.rooms if room.free > level]
        takers.append(deque(able[first : first + above - share]))

    def rank(index: int) -> tuple[int, int, float, int]:
        return takers[index][0].replicas, shares[index] // partitions, random.random(), index

    waiting = [rank(index) for index, able in enumerate(takers) if able]
    heapify(waiting)
    for _ in range(total - sum(shares)):
        index = waiting[0][-1]
        shares[index] += 1
        takers[index].popleft()
        if takers[index]:
            heapreplace(waiting, rank(index))
        else:
            heappop(waiting)
    for rack, share in zip(racks, shares, strict=True):
        rack.quota = share
        rack.heap = [
            (-quota, random.random(), index)
            for index, quota in enumerate(_quotas(rack.rooms, partitions, share))
            if quota
        ]
        heapify(rack.heap)
    return racks


def _bound(
    racks: Sequence[Sequence[Room]], partitions: int, total: int, goal: PlacementGoal
) -> list[tuple[int, int]]:
    """By rack, the least and the most quota that the goal allows."""
    capacities = [_fill(rooms, partitions, partitions) for rooms in racks]
    most_each = 1
    if goal is PlacementGoal.RACKS:
        while sum(min(capacity, most_each * partitions) for capacity in capacities) < total:
            most_each += 1
        return [
            (min(capacity, (most_each - 1) * partitions), min(capacity, most_each * partitions))
            for capacity in capacities
        ]

    def fill(level: int) -> list[int]:
        if goal is PlacementGoal.BROKERS:
            return [_fill(rooms, partitions, level) for rooms in racks]
        return [
            min(most, len(rooms) * level) for rooms, most in zip(racks, capacities, strict=True)
        ]

    level = _find_level(fill, total, partitions)
    filled = fill(level)
    steps = [above - here for above, here in zip(fill(level + 1), filled, strict=True)]
    rest, whole = total - sum(filled), max(1, sum(steps))
    shares = [
        (here + rest * step // whole, here - (-rest * step // whole))
        for here, step in zip(filled, steps, strict=True)
    ]
    if goal is PlacementGoal.WEIGHTED:
        return shares
    most_each = -(-max(most for _, most in shares) // partitions)
    return [(0, min(capacity, most_each * partitions)) for capacity in capacities]


def _find_level(quotas: Callable[[int], Iterable[int]], total: int, highest: int) -> int:
    """The highest level, up to `highest`, at which the sum of the quotas is at most `total`."""
    level, too_high = 0, highest + 1
    while too_high - level > 1:
        middle = (level + too_high) // 2
        if sum(quotas(middle)) <= total:
            level = middle
        else:
            too_high = middle
    return level


def _fill(rooms: Sequence[Room], partitions: int, level: int) -> int:
    """Replicas on these brokers if each gets `level` of them, or as many as it has room for."""
    most = min(partitions, level)
    return sum(min(room.free, most) for room in rooms)


def _quotas(rooms: Sequence[Room], partitions: int, share: int) -> list[int]:
    """The brokers' quotas of a rack's share: equal as far as room allows; the first brokers get the
    remainder."""
    level = _find_level(lambda level: [_fill(rooms, partitions, level)], share, partitions)
    left = share - _fill(rooms, partitions, level)
    quotas = []
    for room in rooms:
        quota = min(room.free, partitions, level)
        if left and quota < min(room.free, partitions):
            quota += 1
            left -= 1
        quotas.append(quota)
    return quotas


# -- partitions


def _stripe(racks: list[_Rack], partitions: int, factor: int, random: Random) -> list[list[int]]:
    """Every partition's replicas; the first is the one that leads the smallest share of its quota
    so far."""
    chance = random.random
    weights = {
        rack.rooms[index].id: 1 / -negative for rack in racks for negative, _, index in rack.heap
    }
    # Leaders so far, as a share of the quota. Leaders before this call break ties.
    led = {
        room.id: (room.leaders + chance()) * _TIE_BREAK * weights[room.id]
        for rack in racks
        for room in rack.rooms
        if room.id in weights
    }
    always = {
        index: rack.quota // partitions
        for index, rack in enumerate(racks)
        if rack.quota >= partitions
    }
    rests = [
        (-(rack.quota % partitions), chance(), index)
        for index, rack in enumerate(racks)
        if rack.quota % partitions
    ]
    heapify(rests)
    missing = factor - sum(always.values())
    assignments = []
    for _ in range(partitions):
        counts = always.copy()
        taken = [heappop(rests) for _ in range(missing)]
        for negative, _, index in taken:
            counts[index] = counts.get(index, 0) + 1
            if negative < -1:
                heappush(rests, (negative + 1, chance(), index))
        replicas: list[int] = []
        for index, count in counts.items():
            racks[index].take(count, replicas, chance)
        leader = min(replicas, key=led.__getitem__)
        led[leader] += weights[leader]
        replicas.remove(leader)
        if factor > 2:
            random.shuffle(replicas)
        assignments.append([leader, *replicas])
    _balance_leaders(assignments, factor)
    return assignments


# -- leaders


def _balance_leaders(assignments: list[list[int]], factor: int) -> None:
    """Correct the leaders of brokers that have more or fewer than their share, rounded up or down.

    Leaders are moved along the shortest chain of partitions from a broker with too many to one with
    too few. Such a chain always exists, as the replicas can be split into `factor` sets with one
    replica of each partition in which every broker has its share.
    """
    leads = Counter(replicas[0] for replicas in assignments)
    hosted: dict[int, list[list[int]]] = {}
    for replicas in assignments:
        for broker in replicas:
            hosted.setdefault(broker, []).append(replicas)
    most = {broker: -(-len(some) // factor) for broker, some in hosted.items()}
    least = {broker: len(some) // factor for broker, some in hosted.items()}
    for broker in hosted:
        for _ in range(leads[broker] - most[broker]):
            _move_leader(hosted, leads, broker, lambda end: leads[end] < most[end])
        for _ in range(least[broker] - leads[broker]):
            _move_leader(hosted, leads, broker, lambda end: leads[end] > least[end], takes=True)


def _move_leader(
    hosted: Mapping[int, Sequence[list[int]]],
    leads: Counter[int],
    start: int,
    is_end: Callable[[int], bool],
    takes: bool = False,
) -> None:
    """Move one leader from `start` to a broker for which `is_end` holds, or, with `takes`, from
    such a broker to `start`; if necessary through other brokers.

    Args:
        hosted: by broker, the replicas of its partitions.
    """
    followed: dict[int, tuple[int, list[int]]] = {}
    seen, waiting = {start}, deque([start])
    while waiting:
        broker = waiting.popleft()
        if broker != start and is_end(broker):
            break
        for replicas in hosted[broker]:
            leads_it = replicas[0] == broker
            if takes == leads_it:
                continue
            for other in replicas[:1] if takes else replicas[1:]:
                if other not in seen:
                    seen.add(other)
                    followed[other] = broker, replicas
                    waiting.append(other)
    leads[start] += 1 if takes else -1
    leads[broker] += -1 if takes else 1
    while broker != start:
        before, replicas = followed[broker]
        wanted = before if takes else broker
        replicas.remove(wanted)
        replicas.insert(0, wanted)
        broker = before
