"""The choice of leaders where brokers have room for all replicas: a flow of least cost, exactly.

Where each partition's replicas go depends on other partitions only by the leaders: every broker
leads the same number of partitions, give or take one. Everything else is decided by partition: how
many replicas it must get so that racks are even, and which brokers may lead it at no further cost.
Any other broker may lead it too, for one further replica. So the plan is an assignment of
partitions to brokers, each with its share, of least cost: a flow, which is always whole numbers.

It starts from the leaders of least cost, of which some brokers have too many. Then partitions
change their leader along the cheapest path from such a broker to one that has too few (successive
shortest paths). A path goes through few nodes: the brokers; for each rack, any broker in it, for a
partition that gets a replica there anyway; any broker at all, for one further replica; and the
right to lead one partition more than the smallest share. Memory grows with partitions x racks, time
with the leaders that have to move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from typing import TYPE_CHECKING

from trimtab.balance.moves import MOVE_COST, PlacedPartition, TargetBroker, rack_bounds
from trimtab.balance.placement import PlacementGoal
from trimtab.kafka.errors import UsageError

try:
    import numpy
except ImportError:
    raise UsageError("trimtab reassign --generate needs a solver: pip install highspy") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[numpy.int64]

_NEVER = 1 << 60
"""The cost of what is impossible. Two of them can be added."""
_MOST = 1 << 57


def choose_freely(
    placed: Sequence[PlacedPartition],
    targets: Sequence[TargetBroker],
    goal: PlacementGoal = PlacementGoal.RACKS,
) -> list[tuple[int, ...]] | None:
    """The brokers of each partition, the leader first, for the fewest bytes, and then the fewest
    changed leaders; None if these replicas exceed a broker's limit."""
    flow = _Flow(placed, targets, goal)
    flow.run()
    return _Completion(placed, targets, flow.bounds).complete(flow.leaders)


class _Flow:
    """Moves leaders until each broker has its share: call `run`, then see `leaders`.

    Attributes:
        leaders: by partition, the index of its leader among the targets.
        bounds: by number of replicas, the fewest and the most of them in each rack.
    """

    def __init__(
        self,
        placed: Sequence[PlacedPartition],
        targets: Sequence[TargetBroker],
        goal: PlacementGoal,
    ) -> None:
        count, brokers = len(placed), len(targets)
        racks = Counter(target.rack for target in targets)
        rack_index = {rack: index for index, rack in enumerate(racks)}
        index_of = {target.id: index for index, target in enumerate(targets)}
        rack_of = numpy.array([rack_index[target.rack] for target in targets])
        self._brokers = brokers
        self._rack_of = rack_of
        self._share, self._rest = divmod(count, brokers)
        self._anywhere = brokers + len(racks)
        self._extra = self._anywhere + 1
        factors = {len(each.replicas) for each in placed}
        self.bounds = {factor: rack_bounds(racks, factor, goal) for factor in factors}

        widest = max(factors)
        # A broker that is no target has the index after the last node.
        self._nowhere = self._extra + 1
        self._present = numpy.full((count, widest), self._nowhere)
        for number, partition in enumerate(placed):
            for place, broker in enumerate(partition.replicas):
                self._present[number, place] = index_of.get(broker, self._nowhere)
        here = numpy.zeros((count, len(racks)), numpy.int16)
        for place in range(widest):
            there = numpy.flatnonzero(self._present[:, place] < brokers)
            here[there, rack_of[self._present[there, place]]] += 1
        self._comes = numpy.zeros((count, len(racks)), bool)
        """The racks in which a partition gets a replica, or may get one, without a further copy."""
        lengths = numpy.array([len(each.replicas) for each in placed])
        for factor, bounds in self.bounds.items():
            least, most = numpy.array(list(bounds.values())).T
            which = numpy.flatnonzero(lengths == factor)
            some = here[which]
            above = ((some > least) & (most > least)).sum(1)
            spare = factor - int(least.sum()) > above
            self._comes[which] = (some < least) | (
                (some <= least) & (most > least) & spare[:, None]
            )

        # One byte costs more than all changes of leaders.
        heaviest = max(each.size for each in placed) + MOVE_COST
        shift = max(0, (heaviest * (count + 1)).bit_length() - _MOST.bit_length() + 1)
        self._weights = numpy.array(
            [((each.size + MOVE_COST) >> shift) * (count + 1) + 1 for each in placed]
        )
        self.leaders = self._start()
        self._costs = (self.leaders != self._present[:, 0]).astype(numpy.int64)
        self._led = [numpy.flatnonzero(self.leaders == index) for index in range(brokers)]

        nodes = self._nowhere
        self._steps = numpy.full((nodes, nodes), _NEVER)
        self._steps[self._anywhere, :brokers] = 0
        for index in range(brokers):
            self._steps[brokers + rack_of[index], index] = 0
            self._look(index)

    def _start(self) -> NDArray[numpy.int_]:
        """The present leaders; for partitions that lose them, others without a further copy."""
        leaders = self._present[:, 0].copy()
        counts = numpy.bincount(leaders[leaders < self._brokers], minlength=self._brokers)
        for number in numpy.flatnonzero(leaders == self._nowhere).tolist():
            free = self._comes[number][self._rack_of]
            present = self._present[number]
            free[present[present < self._brokers]] = True
            index = int(numpy.where(free, counts, len(leaders) + 1).argmin())
            leaders[number] = index
            counts[index] += 1
        return leaders

    def run(self) -> None:
        counts = [len(each) for each in self._led]
        excess = numpy.maximum(numpy.array(counts) - self._share, 0)
        lacks = numpy.maximum(self._share - numpy.array(counts), 0)
        self._has_extra = numpy.zeros(self._brokers, bool)
        self._has_extra[numpy.flatnonzero(excess)[: self._rest]] = True
        excess[self._has_extra] -= 1
        left = self._rest - int(self._has_extra.sum())
        self._show_extras()
        while excess.any():
            path = self._find_path(excess > 0, lacks > 0, left > 0)
            most = 1
            if self._extra not in path:
                most = int(min(excess[path[0]], lacks[path[-1]]))
            moved = self._move_along(path, most)
            excess[path[0]] -= moved
            if path[-1] == self._extra:
                left -= moved
            else:
                lacks[path[-1]] -= moved

    def _show_extras(self) -> None:
        brokers, extra = self._brokers, self._extra
        self._steps[:brokers, extra] = numpy.where(self._has_extra, _NEVER, 0)
        self._steps[extra, :brokers] = numpy.where(self._has_extra, 0, _NEVER)

    def _find_path(
        self, begins: NDArray[numpy.bool_], ends: NDArray[numpy.bool_], is_extra_left: bool
    ) -> list[int]:
        """The nodes of the cheapest path from any broker of `begins` to one of `ends`, or to the
        right to an extra leader (Bellman-Ford, since moving back saves what it has cost)."""
        nodes = self._nowhere
        distances = numpy.full(nodes, _NEVER)
        distances[: self._brokers][begins] = 0
        before = numpy.full(nodes, -1)
        changed = numpy.flatnonzero(begins)
        while len(changed):
            ways = distances[changed, None] + self._steps[changed]
            best = ways.argmin(0)
            shorter = ways[best, numpy.arange(nodes)]
            better = shorter < distances
            distances[better] = shorter[better]
            before[better] = changed[best[better]]
            changed = numpy.flatnonzero(better)
        reached = numpy.where(ends, distances[: self._brokers], _NEVER)
        node = int(reached.argmin())
        if is_extra_left and distances[self._extra] < reached[node]:
            node = self._extra
        path = [node]
        while before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
        return path[::-1]

    def _move_along(self, path: list[int], most: int) -> int:
        """Move up to `most` partitions along each step of a path; returns how many. All of a step
        cost the same, so the path is the cheapest one for each of them."""
        steps = []
        for place, node in enumerate(path[:-1]):
            to = path[place + 1]
            if node < self._brokers and to != self._extra:
                end = path[place + 2] if to >= self._brokers else to
                steps.append((self._choose(node, to), node, end))
        count = min([most, *(len(numbers) for numbers, _, _ in steps)])
        for numbers, _, end in steps:
            self.leaders[numbers[:count]] = end
            for number in numbers[:count].tolist():
                self._costs[number] = self._cost_at(number, end)
        for numbers, begin, end in steps:
            led = self._led[begin]
            self._led[begin] = led[self.leaders[led] == begin]
            self._led[end] = numpy.append(self._led[end], numbers[:count])
        if self._extra in path:
            place = path.index(self._extra)
            self._has_extra[path[place - 1]] = True
            if path[place + 1 :]:
                self._has_extra[path[place + 1]] = False
            self._show_extras()
        for index in {index for _, *ends in steps for index in ends}:
            self._look(index)
        return count

    def _cost_at(self, number: int, index: int) -> int:
        """What it costs that this broker leads a partition: a copy, a change of the leader."""
        present = self._present[number]
        if index == present[0]:
            return 0
        if index in present or self._comes[number, self._rack_of[index]]:
            return 1
        return int(self._weights[number])

    def _look(self, index: int) -> None:
        """Compute the costs of the cheapest changes of a leader from this broker."""
        numbers = self._led[index]
        row = numpy.full(self._nowhere + 1, _NEVER)
        if len(numbers):
            now = self._costs[numbers]
            row[self._anywhere] = (self._weights[numbers] - now).min()
            row[self._brokers : self._anywhere] = numpy.where(
                self._comes[numbers], 1 - now[:, None], _NEVER
            ).min(0)
            present = self._present[numbers]
            for place in range(present.shape[1]):
                numpy.minimum.at(row, present[:, place], (place > 0) - now)
            row[index] = _NEVER
        row[self._extra] = self._steps[index, self._extra]
        self._steps[index] = row[:-1]

    def _choose(self, index: int, to: int) -> NDArray[numpy.int_]:
        """The partitions whose change from this broker to that node is the cheapest."""
        numbers = self._led[index]
        now = self._costs[numbers]
        if to == self._anywhere:
            costs = self._weights[numbers] - now
        elif to >= self._brokers:
            costs = numpy.where(self._comes[numbers, to - self._brokers], 1 - now, _NEVER)
        else:
            present = self._present[numbers] == to
            costs = numpy.where(present.any(1), ~present[:, 0] - now, _NEVER)
        cheapest: NDArray[numpy.int_] = numbers[costs == costs.min()]
        return cheapest


class _Completion:
    """Chooses the followers, given the leaders: as many as possible stay, and others come to the
    brokers with the most room."""

    def __init__(
        self,
        placed: Sequence[PlacedPartition],
        targets: Sequence[TargetBroker],
        bounds: dict[int, dict[str | None, tuple[int, int]]],
    ) -> None:
        self._placed = placed
        self._targets = targets
        self._bounds = bounds
        self._free = {target.id: target.free for target in targets}
        """The replicas that each broker's limit still allows after the moves."""
        self._rack = {target.id: target.rack for target in targets}
        self._in_rack: dict[str | None, list[int]] = {}
        for target in targets:
            self._in_rack.setdefault(target.rack, []).append(target.id)

    def complete(self, leaders: NDArray[numpy.int_]) -> list[tuple[int, ...]] | None:
        pairs = [
            (each, self._targets[index].id)
            for each, index in zip(self._placed, leaders.tolist(), strict=True)
        ]
        for each, leader in pairs:
            self._free[leader] -= leader not in each.replicas
        chosen = [self._choose(each, leader) for each, leader in pairs]
        came = Counter(
            broker
            for each, to in zip(self._placed, chosen, strict=True)
            for broker in to
            if broker not in each.replicas
        )
        fits = all(
            came[target.id] <= target.room and (not target.excess or self._free[target.id] >= 0)
            for target in self._targets
        )
        return chosen if fits else None

    def _choose(self, placed: PlacedPartition, leader: int) -> tuple[int, ...]:
        """The leader, the replicas that stay, in their order, and those that come."""
        bounds = self._bounds[len(placed.replicas)]
        here: dict[str | None, list[int]] = {rack: [] for rack in bounds}
        for broker in placed.replicas:
            if broker in self._rack and broker != leader:
                here[self._rack[broker]].append(broker)
        own = self._rack[leader]
        counts = {rack: least for rack, (least, _) in bounds.items()}
        spread = [rack for rack, (least, most) in bounds.items() if least < most]
        if counts[own]:
            counts[own] -= 1
        else:  # the leader is the one that its rack has more than the least
            spread.remove(own)
        missing = len(placed.replicas) - 1 - sum(counts.values())
        if missing < len(spread):
            spread.sort(key=lambda rack: (len(here[rack]) <= counts[rack], -self._room(rack)))
        for rack in spread[:missing]:
            counts[rack] += 1
        stay: set[int] = set()
        come: list[int] = []
        for rack, count in counts.items():
            kept = here[rack]
            if len(kept) > count:
                kept = nlargest(count, kept, self._free.__getitem__)
            stay.update(kept)
            if len(kept) < count:
                others = [
                    broker
                    for broker in self._in_rack[rack]
                    if broker != leader and broker not in placed.replicas
                ]
                come += nlargest(count - len(kept), others, self._free.__getitem__)
        chosen = (
            leader,
            *(broker for broker in placed.replicas if broker in stay),
            *sorted(come),
        )
        for broker in come:
            self._free[broker] -= 1
        for broker in placed.replicas:
            if broker in self._free:
                self._free[broker] += broker not in chosen
        return chosen

    def _room(self, rack: str | None) -> int:
        return max(self._free[broker] for broker in self._in_rack[rack])
