"""What may change in each partition, as arrays; and which change is cheapest at given prices.

A partition may get another leader, for nothing, or keep replicas and have others replaced, for the
bytes that are copied. Prices say what a unit of load costs on each broker. At given prices each
partition chooses alone, which bounds the bytes of any plan from below (Lagrange's dual).

A replica may go where its partition is spread over the racks as well as before. It may go at all if
all other replicas are in the ISR, so that no move leaves a partition with fewer replicas in sync.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, permutations
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.balance.cluster_load import ClusterLoad
from trimtab.balance.moves import MOVE_COST
from trimtab.kafka.errors import UsageError

try:
    import numpy
except ImportError:
    raise UsageError("trimtab balance needs a solver: pip install 'trimtab[reassign]'") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Integers = NDArray[numpy.int64]

OUT, IN, DISK, COUNT, LEADS = range(5)
"""Loads of a broker: bytes/s sent by leaders, bytes/s written, bytes stored, replicas, leaders."""
KINDS: Final = 5
LEADER_COST: Final = 1 << 16
"""Bytes that a change of leader counts as, so that leaders do not change without need."""
_ROWS_AT_ONCE: Final = 10_000
"""Bounds the memory: some 4 arrays of so many partitions x brokers."""


class Choice(NamedTuple):
    """Brokers of a partition, by index, in the places of its present replicas; and the leader."""

    replicas: tuple[int, ...]
    leader: int


class Ways(NamedTuple):
    """Choices as arrays; a partition may have several.

    Attributes:
        rows: the partitions.
        replicas: the index of the broker at each place; the number of brokers where there is none.
        leaders: the index of the leader's broker.
    """

    rows: Integers
    replicas: Integers
    leaders: Integers

    def pick(self, which: Integers | NDArray[numpy.bool_]) -> Ways:
        return Ways(self.rows[which], self.replicas[which], self.leaders[which])


class Entries(NamedTuple):
    """How choices change loads: `amounts` to those of `kinds` on `brokers`, by the choice `at`."""

    at: Integers
    kinds: Integers
    brokers: Integers
    amounts: Floats


class LevelChoices:
    """The partitions and brokers of a cluster as arrays.

    Args:
        only_from: leaders and replicas leave these brokers only; None for all.

    Attributes:
        ids: broker ids in order; an index into it stands for a broker.
        replicas: by partition and place, the index of a broker; `len(ids)` where there is none.
        leaders: by partition, the index of the leader's broker; `len(ids)` if there is none.
        sizes: by partition, the bytes of one replica.
        raw_weights: by kind of OUT, IN and DISK, each partition's load.
        weights: the same, as plans count it.
        can_lead, can_leave: by partition and place.
    """

    def __init__(self, load: ClusterLoad, only_from: Collection[int] | None = None) -> None:
        brokers = list(load.brokers.values())
        self.ids = [broker.id for broker in brokers]
        self.count = count = len(brokers)
        index = {broker: number for number, broker in enumerate(self.ids)}
        racks = {rack: number for number, rack in enumerate({b.rack: None for b in brokers})}
        self._rack_of = numpy.array([racks[broker.rack] for broker in brokers] + [len(racks)])
        self.takes = numpy.array([broker.takes_replicas for broker in brokers], bool)
        alive = numpy.array([broker.is_alive for broker in brokers] + [False])
        partitions = load.partitions
        widest = max((len(each.replicas) for each in partitions), default=1)
        shape = (len(partitions), widest)
        self.replicas = numpy.full(shape, count)
        in_sync = numpy.zeros(shape, bool)
        for row, partition in enumerate(partitions):
            for place, broker in enumerate(partition.replicas):
                self.replicas[row, place] = index.get(broker, count)
                in_sync[row, place] = broker in partition.in_sync
        self.leaders = numpy.array([index.get(each.leader, count) for each in partitions], int)
        self._present: list[list[int]] = self.replicas.tolist()
        self._leads: list[int] = self.leaders.tolist()
        self.sizes = numpy.array([float(each.size) for each in partitions])
        self.raw_weights = numpy.array(
            [
                [each.leader_out for each in partitions],
                [each.bytes_in for each in partitions],
                [float(each.size) for each in partitions],
            ]
        ).reshape(3, len(partitions))
        self.weights = self.raw_weights.copy()
        still = numpy.array([each.partition not in load.moving for each in partitions], bool)
        still &= self.leaders < count
        there = self.replicas < count
        factors = numpy.array([len(each.replicas) for each in partitions], int)
        # A replica on a broker that is not known cannot be planned with.
        still &= there.sum(1) == factors
        self._factors = there.sum(1).tolist()
        missing = (there & ~in_sync).sum(1)
        self.can_lead = in_sync & alive[self.replicas] & still[:, None]
        self.can_leave = there & still[:, None] & (missing[:, None] <= ~in_sync)
        if only_from is not None:
            chosen = numpy.array([broker in only_from for broker in self.ids] + [False])
            self.can_leave &= chosen[self.replicas]
            self.can_lead &= chosen[self.leaders][:, None]
        self._in_rack = numpy.zeros((len(partitions), len(racks) + 1), numpy.int8)
        for place in range(widest):
            rows = numpy.flatnonzero(there[:, place])
            self._in_rack[rows, self._rack_of[self.replicas[rows, place]]] += 1

    def sum_loads(self, chosen: Mapping[int, Choice] = MappingProxyType({})) -> Floats:
        """The loads by kind and broker, at present or after these choices, by row."""
        count = self.count
        loads = numpy.zeros((KINDS, count))
        loads[OUT] = numpy.bincount(self.leaders, self.weights[OUT], count + 1)[:count]
        loads[LEADS] = numpy.bincount(self.leaders, minlength=count + 1)[:count]
        for place in range(self.replicas.shape[1]):
            here = self.replicas[:, place]
            for kind in (IN, DISK):
                loads[kind] += numpy.bincount(here, self.weights[kind], count + 1)[:count]
            loads[COUNT] += numpy.bincount(here, minlength=count + 1)[:count]
        _, kinds, brokers, amounts = self.list_changes(self.pack(chosen.items()))
        numpy.add.at(loads, (kinds, brokers), amounts)
        return loads

    def pack(self, chosen: Collection[tuple[int, Choice]]) -> Ways:
        """Choices as arrays."""
        rows = numpy.array([row for row, _ in chosen], numpy.int64)
        replicas = self.replicas[rows]
        for number, (_, choice) in enumerate(chosen):
            replicas[number, : len(choice.replicas)] = choice.replicas
        return Ways(rows, replicas, numpy.array([each.leader for _, each in chosen], numpy.int64))

    def unpack(self, ways: Ways) -> Iterator[tuple[int, Choice]]:
        """Choices as values."""
        for row, replicas, leader in zip(*(each.tolist() for each in ways), strict=True):
            yield row, Choice(tuple(replicas[: self._factors[row]]), leader)

    def present(self, row: int) -> Choice:
        """No change."""
        here = self._present[row]
        count = self.count
        if count in here:
            here = [each for each in here if each < count]
        return Choice(tuple(here), self._leads[row])

    def destinations(self, row: int, place: int) -> NDArray[numpy.bool_]:
        """The brokers to which a replica may go."""
        if not self.can_leave[row, place]:
            return numpy.zeros(self.count, bool)
        here = self.replicas[row]
        counts = self._in_rack[row]
        mine = self._rack_of[here[place]]
        fits = counts < counts[mine]
        fits[mine] = True
        allowed: NDArray[numpy.bool_] = fits[self._rack_of[:-1]] & self.takes
        allowed[here[here < self.count]] = False
        return allowed

    def _allow(self, rows: Integers, places: Integers, brokers: Integers) -> NDArray[numpy.bool_]:
        """For each replica, by these brokers, whether it may go there."""
        every = numpy.arange(len(rows))
        mine = self._rack_of[self.replicas[rows, places]]
        counts = self._in_rack[rows]
        fits = counts < counts[every, mine][:, None]
        fits[every, mine] = True
        allowed = numpy.zeros((len(rows), len(brokers) + 1), bool)
        allowed[:, :-1] = fits[:, self._rack_of[brokers]]
        allowed[:, :-1] &= self.takes[brokers]
        allowed[~self.can_leave[rows, places]] = False
        columns = numpy.full(self.count + 1, len(brokers))
        columns[brokers] = numpy.arange(len(brokers))
        for other in range(self.replicas.shape[1]):
            allowed[every, columns[self.replicas[rows, other]]] = False
        return allowed[:, :-1]

    def are_allowed(self, ways: Ways) -> NDArray[numpy.bool_]:
        """Whether no two replicas of each choice are on a broker, and its partition is spread over
        the racks as well as at present."""
        rows, replicas, _ = ways
        every = numpy.arange(len(rows))
        ordered = numpy.sort(replicas, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < self.count)
        racks = numpy.zeros((len(rows), self._in_rack.shape[1]), numpy.int8)
        for place in range(replicas.shape[1]):
            # Where there is no replica is no rack: the last column, which is always empty before.
            racks[every, self._rack_of[replicas[:, place]]] += 1
        racks[:, -1] = 0
        before = self._in_rack[rows]
        allowed: NDArray[numpy.bool_] = ~twice.any(1)
        allowed &= racks.max(1) <= before.max(1)
        allowed &= (racks > 0).sum(1) >= (before > 0).sum(1)
        return allowed

    def count_copies(self, ways: Ways) -> Integers:
        """The number of replicas that each choice copies."""
        copies: Integers = (ways.replicas != self.replicas[ways.rows]).sum(1)
        return copies

    def find_costs(self, ways: Ways) -> Floats:
        """The bytes that each choice copies, and what moves and leaders count as."""
        costs: Floats = self.count_copies(ways) * (self.sizes[ways.rows] + MOVE_COST)
        costs += LEADER_COST * (ways.leaders != self.leaders[ways.rows])
        return costs

    def list_changes(self, ways: Ways) -> Entries:
        """How the choices change the loads."""
        rows = ways.rows
        before = self.leaders[rows]
        # What changes, where it was, where it is, and by kind how much that is.
        parts: list[tuple[Integers, Integers, Integers, tuple[tuple[int, Floats], ...]]] = []
        amounts: tuple[tuple[int, Floats], ...]
        at = numpy.flatnonzero(ways.leaders != before)
        ones = numpy.ones(len(at))
        amounts = ((OUT, self.weights[OUT, rows[at]]), (LEADS, ones))
        parts.append((at, before[at], ways.leaders[at], amounts))
        for place in range(ways.replicas.shape[1]):
            old, new = self.replicas[rows, place], ways.replicas[:, place]
            at = numpy.flatnonzero(old != new)
            written, size = self.weights[IN, rows[at]], self.weights[DISK, rows[at]]
            amounts = ((IN, written), (DISK, size), (COUNT, numpy.ones(len(at))))
            parts.append((at, old[at], new[at], amounts))
        found = [
            (at, numpy.full(len(at), kind), brokers, sign * amount)
            for at, old, new, amounts in parts
            for kind, amount in amounts
            for brokers, sign in ((old, -1.0), (new, 1.0))
        ]
        return Entries(*(numpy.concatenate(each) for each in zip(*found, strict=True)))

    def choose(self, prices: Floats, rows: Integers, is_free: bool = False) -> tuple[Floats, Ways]:
        """The cheapest choice of each of these partitions, and what it costs more than no change,
        at most 0.

        Two replaced replicas may meet on a broker or in a rack, so the values bound those of real
        plans from below.

        Args:
            prices: of a unit of each kind on each broker, at least 0.
            is_free: moves cost their bytes alone.
        """
        replicas, leaders = self.replicas[rows].copy(), self.leaders[rows].copy()
        values = numpy.zeros(len(rows))
        some = numpy.flatnonzero(self._may_change(prices, rows, is_free))
        for start in range(0, len(some), _ROWS_AT_ONCE):
            part = some[start : start + _ROWS_AT_ONCE]
            values[part], replicas[part], leaders[part] = self._choose(prices, rows[part], is_free)
        return values, Ways(rows, replicas, leaders)

    def _may_change(self, prices: Floats, rows: Integers, is_free: bool) -> NDArray[numpy.bool_]:
        """Whether leading, or the bytes of a copy, cost less than the present brokers."""
        leads = self._price_leaders(prices, rows, self.leaders[rows])
        may: NDArray[numpy.bool_] = leads > (0 if is_free else LEADER_COST)
        for place in range(self.replicas.shape[1]):
            here = self.replicas[rows, place]
            saved = self._price_replicas(prices, rows, here)
            saved += numpy.where(here == self.leaders[rows], leads, 0)
            may |= self.can_leave[rows, place] & (saved > self._copy_cost(rows, is_free))
        return may

    def _copy_cost(self, rows: Integers, is_free: bool) -> Floats:
        cost: Floats = self.sizes[rows] + (0 if is_free else MOVE_COST)
        return cost

    def _price_leaders(self, prices: Floats, rows: Integers, brokers: Integers) -> Floats:
        """What it costs that these brokers lead; infinite where there is none."""
        leads = numpy.append(prices[LEADS], numpy.inf)[brokers]
        cost: Floats = leads + self.weights[OUT, rows] * numpy.append(prices[OUT], 0)[brokers]
        return cost

    def _price_replicas(self, prices: Floats, rows: Integers, brokers: Integers) -> Floats:
        """What replicas cost on these brokers; 0 where there is none."""
        written, size, count = (
            numpy.append(prices[kind], 0.0)[brokers] for kind in (IN, DISK, COUNT)
        )
        cost: Floats = self.weights[IN, rows] * written + self.weights[DISK, rows] * size + count
        return cost

    def _find_place(
        self, prices: Floats, rows: Integers, places: Integers, leads: bool
    ) -> tuple[Floats, Integers]:
        """The cheapest broker for each replica, and what it costs there; infinite if none is."""
        out, written, size = self.weights[:, rows]
        brokers = self._find_undominated(prices if leads else prices[[IN, DISK, COUNT]])
        some = prices[:, brokers]
        ways = numpy.multiply.outer(written, some[IN])
        ways += numpy.multiply.outer(size, some[DISK])
        ways += some[COUNT]
        if leads:
            ways += numpy.multiply.outer(out, some[OUT])
            ways += some[LEADS]
        ways[~self._allow(rows, places, brokers)] = numpy.inf
        best = ways.argmin(1)
        return ways[numpy.arange(len(rows)), best], brokers[best]

    def _find_undominated(self, prices: Floats) -> Integers:
        """The brokers that may be the cheapest for a replica. Others have at least as high prices
        as so many brokers of their rack that one of these is free."""
        takers = numpy.flatnonzero(self.takes)
        if not len(takers):
            return numpy.zeros(1, numpy.int64)  # none is allowed
        mine, rack = prices[:, takers], self._rack_of[takers]
        as_low = (mine[:, :, None] <= mine[:, None, :]).all(0)
        # Of equals the first dominates.
        dominates = as_low & (~as_low.T | numpy.triu(numpy.ones_like(as_low), 1))
        dominates &= rack[:, None] == rack[None, :]
        found: Integers = takers[dominates.sum(0) <= self.replicas.shape[1]]
        return found

    def _choose(
        self, prices: Floats, rows: Integers, is_free: bool
    ) -> tuple[Floats, Integers, Integers]:
        widest = self.replicas.shape[1]
        every = numpy.arange(len(rows))
        here, before = self.replicas[rows], self.leaders[rows]
        cost = self._copy_cost(rows, is_free)
        leader_cost = 0 if is_free else LEADER_COST

        gone = numpy.zeros((widest, len(rows)))
        """What it costs to copy each replica to a broker without prices."""
        goes, goes_to = numpy.zeros((widest, len(rows))), here.T.copy()
        for place in range(widest):
            gone[place] = cost - self._price_replicas(prices, rows, here[:, place])
            some = numpy.flatnonzero((gone[place] < 0) & self.can_leave[rows, place])
            ways, best = self._find_place(prices, rows[some], numpy.full(len(some), place), False)
            ways += gone[place, some]
            pays = ways < 0
            goes[place, some[pays]] = ways[pays]
            goes_to[place, some[pays]] = best[pays]
        all_go = goes.sum(0)

        least = numpy.full(len(rows), numpy.inf)
        leads = numpy.full(len(rows), -1)
        for place in range(widest):
            changes = here[:, place] != before
            value = self._price_leaders(prices, rows, here[:, place])
            value += all_go - goes[place] + leader_cost * changes
            # The leader stays where it is even if it must not be elected again.
            value[changes & ~self.can_lead[rows, place]] = numpy.inf
            better = value < least
            least[better], leads[better] = value[better], place
        leaders = here[every, leads]
        chosen = goes_to.T.copy()
        chosen[every, leads] = leaders
        any_leads = self.can_lead[rows].any(1)
        for place in range(widest):
            # Only where the leader's own replica goes, or leaders may change.
            may = self.can_leave[rows, place] & ((here[:, place] == before) | any_leads)
            value = gone[place] + all_go - goes[place] + leader_cost
            some = numpy.flatnonzero(may & (value < least))
            ways, best = self._find_place(prices, rows[some], numpy.full(len(some), place), True)
            ways += value[some]
            better = ways < least[some]
            some, best = some[better], best[better]
            least[some], leaders[some] = ways[better], best
            chosen[some] = goes_to.T[some]
            chosen[some, place] = best
        values = numpy.minimum(least - self._price_leaders(prices, rows, before), 0)
        stays = values >= 0
        chosen[stays], leaders[stays] = here[stays], before[stays]
        return values, chosen, leaders

    def list_choices(self, row: int) -> Iterator[Choice]:
        """All choices of a partition."""
        before = self.present(row)
        places = range(len(before.replicas))
        ways = [self.destinations(row, place) for place in places]
        can_lead = dict(zip(before.replicas, self.can_lead[row].tolist(), strict=False))
        for count in range(len(places) + 1):
            for some in combinations(places, count):
                for targets in permutations(range(self.count), count):
                    replicas = list(before.replicas)
                    for place, target in zip(some, targets, strict=True):
                        replicas[place] = target
                    if not all(
                        ways[place][target] for place, target in zip(some, targets, strict=True)
                    ) or not self.is_spread(row, tuple(replicas)):
                        continue
                    may_come = before.leader not in replicas or any(can_lead.values())
                    for leader in replicas:
                        if leader == before.leader or can_lead.get(leader, may_come):
                            yield Choice(tuple(replicas), leader)

    def is_spread(self, row: int, replicas: tuple[int, ...]) -> bool:
        """Whether these replicas are spread over the racks as well as the present ones."""
        before, after = (
            Counter(self._rack_of[list(brokers)].tolist())
            for brokers in (self.present(row).replicas, replicas)
        )
        return max(after.values()) <= max(before.values()) and len(after) >= len(before)
