"""Chooses brokers for the replicas of new partitions; finds an assignment whenever one exists.

    a quota of replicas for each rack and broker ─▶ one partition after the other

Goals, in this order. The first is a hard limit, the others are pursued as far as possible:

- The replicas of a partition are on distinct brokers, and no broker gets more than its room.
- A partition's replicas are on as many racks as possible.
- All brokers end with the same number of replicas, as far as they have room.
- Every broker is the preferred leader of the same share of its new replicas.

KIP-578 proposes to go round the brokers and skip full ones. That fails if at the end only one
broker has room, for two replicas of the same partition. Here quotas are computed first, and each
step keeps the rest feasible:

1. Let `u` be the room of a broker, capped at the number of partitions. An assignment exists exactly
   if the sum of `u` is at least partitions x factor. Proof: list each broker as often as its quota,
   and give position j of the list to partition j modulo partitions. No quota exceeds the number of
   partitions, so no partition gets a broker twice.
2. No partition has more than k replicas in a rack, where k is the smallest number for which the
   racks have room (k = 1: every partition is on `factor` racks). A rack's quota is between the
   room it has for k - 1 replicas of each partition and the room for k.
3. With j partitions left, a partition takes from each rack 1/j of the rack's remaining quota,
   rounded down, and one more from the racks with the largest remainders; within a rack, from the
   brokers with the largest remaining quotas. Afterwards no broker has more than j - 1 left.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from random import Random
from typing import NamedTuple

_TIE_BREAK = 1e-9


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


def place(rooms: Sequence[Room], partitions: int, factor: int, random: Random) -> list[list[int]]:
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
    racks = _divide(rooms, partitions, factor, random)
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
    """One rack, with the remaining quotas of the rack and of its brokers.

    Attributes:
        left: the rack's remaining quota of replicas.
        heap: its brokers by remaining quota, the largest first: (-left, chance, index).
    """

    __slots__ = ("heap", "left", "rooms")

    def __init__(self, rooms: list[Room]) -> None:
        self.rooms = rooms
        self.left = 0
        self.heap: list[tuple[int, float, int]] = []

    def take(self, count: int, replicas: list[int], chance: Callable[[], float]) -> None:
        """Append `count` brokers of this rack to a partition's replicas: those with the largest
        remaining quotas."""
        self.left -= count
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


def _divide(rooms: Sequence[Room], partitions: int, factor: int, random: Random) -> list[_Rack]:
    """The racks, with the quotas of racks and brokers."""
    by_rack: dict[str | None, list[Room]] = {}
    # Where not all brokers can get one more replica, those with the fewest come first, else chance.
    for room in sorted(rooms, key=lambda room: (room.replicas, random.random())):
        by_rack.setdefault(room.rack, []).append(room)
    racks = [_Rack(each) for each in by_rack.values()]
    total = partitions * factor
    capacities = [_fill(rack.rooms, partitions, partitions) for rack in racks]
    most_each = 1
    while sum(min(capacity, most_each * partitions) for capacity in capacities) < total:
        most_each += 1
    least = [min(capacity, (most_each - 1) * partitions) for capacity in capacities]
    most = [min(capacity, most_each * partitions) for capacity in capacities]

    def quotas(level: int) -> list[int]:
        """Each rack's quota if its brokers get up to `level` replicas, within the rack's bounds."""
        return [
            min(high, max(low, _fill(rack.rooms, partitions, level)))
            for rack, low, high in zip(racks, least, most, strict=True)
        ]

    level, too_high = 0, partitions + 1
    while too_high - level > 1:
        middle = (level + too_high) // 2
        if sum(quotas(middle)) <= total:
            level = middle
        else:
            too_high = middle
    shares = quotas(level)
    # The rest does not suffice for one more replica on all: give it to brokers with the fewest.
    steps = [above - here for above, here in zip(quotas(level + 1), shares, strict=True)]
    takers = sorted(
        (room.replicas, random.random(), index)
        for index, (rack, step) in enumerate(zip(racks, steps, strict=True))
        for room in [room for room in rack.rooms if room.free > level][:step]
    )
    for _, _, index in takers[: total - sum(shares)]:
        shares[index] += 1
    for rack, share in zip(racks, shares, strict=True):
        rack.left = share
        rack.heap = [
            (-quota, random.random(), index)
            for index, quota in enumerate(_quotas(rack.rooms, partitions, share))
            if quota
        ]
        heapify(rack.heap)
    return racks


def _fill(rooms: Sequence[Room], partitions: int, level: int) -> int:
    """Replicas on these brokers if each gets `level` of them, or as many as it has room for."""
    most = min(partitions, level)
    return sum(min(room.free, most) for room in rooms)


def _quotas(rooms: Sequence[Room], partitions: int, share: int) -> list[int]:
    """The brokers' quotas of a rack's share: equal as far as room allows; the first brokers get the
    remainder."""
    level, too_high = 0, partitions + 1
    while too_high - level > 1:
        middle = (level + too_high) // 2
        if _fill(rooms, partitions, middle) <= share:
            level = middle
        else:
            too_high = middle
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
    racks = [rack for rack in racks if rack.left]
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
    assignments = []
    for left in range(partitions, 0, -1):
        replicas: list[int] = []
        missing = factor
        remainders = []
        for rack in racks:
            each, remainder = divmod(rack.left, left)
            missing -= each
            if remainder:
                remainders.append((-remainder, chance(), rack, each))
            elif each:
                rack.take(each, replicas, chance)
        if remainders:
            remainders.sort(key=_by_remainder)
            for position, (_, _, rack, each) in enumerate(remainders):
                rack.take(each + (position < missing), replicas, chance)
        leader = min(replicas, key=led.__getitem__)
        led[leader] += weights[leader]
        replicas.remove(leader)
        if factor > 2:
            random.shuffle(replicas)
        assignments.append([leader, *replicas])
    _balance_leaders(assignments, factor)
    return assignments


def _by_remainder(entry: tuple[int, float, _Rack, int]) -> tuple[int, float]:
    return entry[:2]


# -- leaders


def _balance_leaders(assignments: list[list[int]], factor: int) -> None:
    """Correct the leaders of brokers that have more or fewer than their share, rounded up or down.

    Leaders are moved along the shortest chain of partitions from a broker with too many to one with
    too few. Such a chain always exists, as the replicas can be split into `factor` sets with one
    replica of each partition in which every broker has its share.
    """
    leads = Counter(replicas[0] for replicas in assignments)
    quotas = Counter(broker for replicas in assignments for broker in replicas)
    most = {broker: -(-quota // factor) for broker, quota in quotas.items()}
    least = {broker: quota // factor for broker, quota in quotas.items()}
    for broker in quotas:
        for _ in range(leads[broker] - most[broker]):
            _move_leader(assignments, leads, broker, lambda end: leads[end] < most[end])
        for _ in range(least[broker] - leads[broker]):
            _move_leader(
                assignments, leads, broker, lambda end: leads[end] > least[end], takes=True
            )


def _move_leader(
    assignments: list[list[int]],
    leads: Counter[int],
    start: int,
    is_end: Callable[[int], bool],
    takes: bool = False,
) -> None:
    """Move one leader from `start` to a broker for which `is_end` holds, or, with `takes`, from
    such a broker to `start`; if necessary through other brokers."""
    followed: dict[int, tuple[int, int]] = {}
    seen, waiting = {start}, deque([start])
    while waiting:
        broker = waiting.popleft()
        if broker != start and is_end(broker):
            break
        for index, (leader, *others) in enumerate(assignments):
            if takes:
                reached = [leader] if broker in others else []
            else:
                reached = others if leader == broker else []
            for other in reached:
                if other not in seen:
                    seen.add(other)
                    followed[other] = broker, index
                    waiting.append(other)
    leads[start] += 1 if takes else -1
    leads[broker] += -1 if takes else 1
    while broker != start:
        before, index = followed[broker]
        replicas = assignments[index]
        wanted = before if takes else broker
        replicas.remove(wanted)
        replicas.insert(0, wanted)
        broker = before
