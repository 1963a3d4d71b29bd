"""Which brokers get the replicas of new partitions: an assignment whenever there is one.

    how many replicas each broker gets ─▶ how many each rack ─▶ one partition after the other

Room is a hard limit, racks and levelness are wishes: first every partition has its replicas on
distinct brokers with room; then on as many racks as can be; then brokers get the same number each,
as far as they have room, and lead the same share of what they get.

KIP-578 would go round the brokers and skip those that are full, which fails where one broker is
left with room for two replicas of a partition, while others were filled that could have waited.
Here quotas come first, and each step keeps the rest feasible:

1. With `u` the room of a broker, but no more than there are partitions, it is feasible exactly if
   the `u` add up to partitions x factor: write each broker as often as its quota in a row, and give
   the position j to partition j modulo partitions. No run is longer than a round, so no partition
   gets a broker twice.
2. No partition has more than k replicas in a rack, where k is the least number for which the racks
   have room (k = 1: every partition is on `factor` racks); a rack's quota lies between what it can
   take with k - 1 and with k in each partition.
3. With j partitions left, a partition takes from each rack the j-th part of what is left of its
   quota, rounded down, and one more from those racks where the remainder is largest; within a rack
   from the brokers with the most left. So nobody has more than j - 1 left afterwards.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from random import Random
from typing import NamedTuple

_HARDLY = 1e-9


class Room(NamedTuple):
    """One broker, as placement sees it.

    Attributes:
        replicas: how many it has already.
        leaders: how many of them are the preferred leaders of their partitions.
        free: how many more it may get.
    """

    id: int
    rack: str | None
    replicas: int
    leaders: int
    free: int


class NoRoom(Exception):
    """So many partitions cannot be placed. `most` says how many can."""

    def __init__(self, most: int) -> None:
        super().__init__(f"at most {most} can be placed")
        self.most = most


def place(rooms: Sequence[Room], partitions: int, factor: int, random: Random) -> list[list[int]]:
    """Broker ids per partition, the preferred leader first.

    Ends whatever it is given: it does one step for each replica, and then moves a leader at most
    once for each that a broker has too many.

    Args:
        rooms: each broker once; one that has more than it may get has no room.
        factor: replicas of each partition.

    Raises:
        NoRoom: there is no such assignment.
        ValueError: less than one replica or partition, or a broker twice.
    """
    if factor < 1 or partitions < 1:
        raise ValueError(f"{partitions} partitions x {factor} replicas: place at least one of each")
    if len({room.id for room in rooms}) < len(rooms):
        raise ValueError("a broker is there twice; give each once, with the room that it has")
    rooms = [room if room.free >= 0 else room._replace(free=0) for room in rooms]
    if sum(min(room.free, partitions) for room in rooms) < partitions * factor:
        raise NoRoom(count_placeable(rooms, partitions, factor))
    racks = _divide(rooms, partitions, factor, random)
    return _stripe(racks, partitions, factor, random)


def count_placeable(rooms: Iterable[Room], partitions: int, factor: int) -> int:
    """How many of so many partitions there is room for."""
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
    """One rack: what is left of its quota, and of that of each of its brokers.

    Attributes:
        left: replicas that the rack has still to get.
        heap: its brokers, the one with the most left first: (-left, chance, index).
    """

    __slots__ = ("heap", "left", "rooms")

    def __init__(self, rooms: list[Room]) -> None:
        self.rooms = rooms
        self.left = 0
        self.heap: list[tuple[int, float, int]] = []

    def take(self, count: int, replicas: list[int], chance: Callable[[], float]) -> None:
        """Give a partition so many replicas here, on the brokers with the most left."""
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
    """The racks, with what each of them and each of their brokers is to get."""
    by_rack: dict[str | None, list[Room]] = {}
    # Who has the fewest comes first wherever not everybody can get one more; then chance decides.
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
        """Of each rack, if its brokers were filled up to a level as far as its bounds allow."""
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
    # What is left is less than a level: single replicas, for those who have the fewest.
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
    """Replicas on these brokers if each has as many as the level, or its room, says."""
    most = min(partitions, level)
    return sum(min(room.free, most) for room in rooms)


def _quotas(rooms: Sequence[Room], partitions: int, share: int) -> list[int]:
    """A rack's share, as level as room allows; the first ones get what cannot be level."""
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
    """Every partition's replicas, the one first that leads the least of what it gets."""
    racks = [rack for rack in racks if rack.left]
    chance = random.random
    weights = {
        rack.rooms[index].id: 1 / -negative for rack in racks for negative, _, index in rack.heap
    }
    # Leaders so far as a share of the quota; among equals those who led less before come first.
    led = {
        room.id: (room.leaders + chance()) * _HARDLY * weights[room.id]
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
    _level_leaders(assignments, factor)
    return assignments


def _by_remainder(entry: tuple[int, float, _Rack, int]) -> tuple[int, float]:
    return entry[:2]


# -- leaders


def _level_leaders(assignments: list[list[int]], factor: int) -> None:
    """Where going one by one has left a broker more than one leader off its share, leaders change
    places along the shortest way from who has too many to who has too few. There is one always:
    the partitions, cut into `factor` parts of which each has every broker level, are a matching.
    """
    leads = Counter(replicas[0] for replicas in assignments)
    quotas = Counter(broker for replicas in assignments for broker in replicas)
    most = {broker: -(-quota // factor) for broker, quota in quotas.items()}
    least = {broker: quota // factor for broker, quota in quotas.items()}
    for broker in quotas:
        for _ in range(leads[broker] - most[broker]):
            _pass_on(assignments, leads, broker, lambda end: leads[end] < most[end])
        for _ in range(least[broker] - leads[broker]):
            _pass_on(assignments, leads, broker, lambda end: leads[end] > least[end], takes=True)


def _pass_on(
    assignments: list[list[int]],
    leads: Counter[int],
    start: int,
    is_end: Callable[[int], bool],
    takes: bool = False,
) -> None:
    """Move one leader from `start`, or to it if it `takes`, over others if need be, to a broker
    that can have it, or spare it."""
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
