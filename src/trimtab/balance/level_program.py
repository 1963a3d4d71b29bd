"""The plan with the fewest bytes, by linear programs for the solver HiGHS, and its lower bound.

1. Prices. Partitions are divided into groups. A column is a choice for each partition of a group. A
   row says that a group takes one column, in parts, another that a broker's load stays within its
   limit. Being above it costs more than a move. Each round adds the cheapest choices of each group
   at prices between the best so far and the program's (column generation, smoothed). At the same
   prices these choices bound the bytes of any plan from below.
2. Choices. Where all columns of a group agree, a partition is decided. The others' choices are the
   columns of a second program, which leaves at most as many in parts as there are rows of brokers.
3. Whole numbers. Each of these takes its largest part; then single choices change as long as that
   brings brokers nearer to their limits, or costs less (`_Search`). For few partitions all choices
   are columns, and the solver decides in whole numbers, within a number of nodes and not of
   seconds, so that the same input gives the same plan, unless it runs into `Program`'s time limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy

from trimtab.balance.level_choices import (
    COUNT,
    DISK,
    IN,
    KINDS,
    LEADER_COST,
    LEADS,
    OUT,
    Choice,
    LevelChoices,
    Ways,
)
from trimtab.balance.level_greedy import level_greedily
from trimtab.balance.linear_program import Program
from trimtab.balance.moves import MOVE_COST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Integers = NDArray[numpy.int64]

_MOST_ROUNDS: Final = 40
_NEAR: Final = 0.003
"""Relative distance from the bound at which the rounds end."""
_GROUPS: Final = 50
_SMOOTHED: Final = 1 / 3
_PENALTY: Final = 3.0
"""Being above a limit costs so many times the steepest price."""
_SMALL_PENALTY: Final = 3000.0
"""The same for few and large partitions, of which one may have to move for a little excess."""
_ALL_CHOICES: Final = 2000
"""Of so few choices every one is a column, and the plan is the best there is."""
_MOST_NODES: Final = 30
_TURNS: Final = 4
_VARIANTS: Final = 5
_MOST_OTHERS: Final = 2000
_EXACT: Final = 1e-9
_MOST_CHANGES: Final = 2000
_UNITS: Final = 1000.0
"""What a limit is in the program's units."""


class Solved(NamedTuple):
    """The choices of partitions that change, by row. No plan copies fewer than `bound` bytes."""

    choices: dict[int, Choice]
    bound: float


def solve_level(
    choices: LevelChoices, limits: Floats, first: Mapping[int, Choice], prices: Floats
) -> Solved:
    """The choices that copy the fewest bytes.

    Args:
        limits: by kind and broker; infinite where there is none.
        first: a plan to start from.
        prices: by kind and broker, about what a unit of load costs.
    """
    rows = numpy.flatnonzero(
        (choices.can_leave.any(1) | choices.can_lead.any(1)) & (choices.leaders < choices.count)
    )
    is_small = _count_choices(choices, rows) <= _ALL_CHOICES
    frame = _Frame(choices, limits, prices, _SMALL_PENALTY if is_small else _PENALTY)
    program = _ChoiceProgram(frame)
    if is_small:
        program.add_all(rows)
        return Solved(program.decide(first), program.bound(rows))
    groups = _GroupProgram(frame, rows)
    groups.add_plan(first)
    groups.run()
    decided = groups.decide(program)
    chosen = program.round(decided, groups)
    return Solved(level_greedily(choices, limits, groups.prices, chosen), groups.bound)


def _count_choices(choices: LevelChoices, rows: Integers) -> int:
    factors = (choices.replicas[rows] < choices.count).sum(1)
    found, times = numpy.unique(factors, return_counts=True)
    return sum(
        comb(choices.count, factor) * factor * number
        for factor, number in zip(found.tolist(), times.tolist(), strict=True)
    )


class _Frame:
    """The rows of brokers, and the units, that both programs share."""

    def __init__(
        self, choices: LevelChoices, limits: Floats, prices: Floats, penalty: float
    ) -> None:
        self.choices = choices
        self.loads = choices.sum_loads()
        self.limits = limits
        self.finite = numpy.isfinite(limits)
        self.units = numpy.ones(KINDS)
        """Load of a kind that is one unit of the program; one replica, one leader."""
        for kind in (OUT, IN, DISK):
            most = limits[kind, self.finite[kind]].max(initial=0.0)
            self.units[kind] = (most or max(1.0, float(self.loads[kind].max()))) / _UNITS
        self.cost_unit = max(1.0, float(choices.sizes.sum()) / _UNITS)
        steepest = float((prices * self.units[:, None]).max(initial=0.0)) / self.cost_unit
        self.penalties = numpy.full(KINDS, penalty * max(steepest, 1.0))
        # A replica or leader that must leave is worth more than all that it does elsewhere.
        largest = (choices.weights / self.units[:3, None]).max(1, initial=0.0).sum()
        copy = float(choices.sizes.max(initial=0.0)) / self.cost_unit
        self.penalties[[COUNT, LEADS]] = _PENALTY * (self.penalties[0] * largest + copy + 1.0)

    def add_rows(self, program: Program, loads: Floats) -> NDArray[numpy.int64]:
        """A row for each limit, less what the brokers have; by kind and broker its index, or -1."""
        rows = numpy.full(self.limits.shape, -1)
        for kind, broker in numpy.argwhere(self.finite).tolist():
            room = float(self.limits[kind, broker] - loads[kind, broker]) / self.units[kind]
            rows[kind, broker] = row = program.add_row(-numpy.inf, room)
            program.add_column(float(self.penalties[kind]), [row], -1.0)
        return rows

    def read_prices(self, program: Program, rows: NDArray[numpy.int64]) -> Floats:
        """By kind and broker, bytes for a unit of load."""
        prices = numpy.zeros(self.limits.shape)
        duals = numpy.maximum(-program.prices[rows[self.finite]], 0)
        prices[self.finite] = duals * self.cost_unit
        return prices / self.units[:, None]

    def price_excess(self, prices: Floats) -> float:
        over = (self.loads - self.limits)[self.finite]
        return float((prices[self.finite] * over).sum())


class _GroupProgram:
    """Finds prices: call `run`.

    Attributes:
        prices: the best ones, by kind and broker.
        bound: bytes.
    """

    def __init__(self, frame: _Frame, rows: Integers) -> None:
        self._frame = frame
        self._rows = rows
        count = min(_GROUPS, len(rows))
        self._groups = numpy.arange(len(rows)) % count
        self._program = Program()
        self._broker_rows = frame.add_rows(self._program, frame.loads)
        self._group_rows = [self._program.add_row(1.0, 1.0) for _ in range(count)]
        self._columns: list[tuple[int, int, Integers, Integers]] = []
        """The group of each column, its index, and the replicas and leaders it stands for."""
        choices = frame.choices
        self._add(choices.replicas[rows], choices.leaders[rows])
        self.prices = numpy.zeros(frame.limits.shape)
        self.bound = 0.0

    def add_plan(self, plan: Mapping[int, Choice]) -> None:
        """Add a plan as columns."""
        choices = self._frame.choices
        replicas, leaders = choices.replicas.copy(), choices.leaders.copy()
        for row, choice in plan.items():
            replicas[row, : len(choice.replicas)] = choice.replicas
            leaders[row] = choice.leader
        self._add(replicas[self._rows], leaders[self._rows])

    def _add(self, replicas: Integers, leaders: Integers) -> None:
        """A column for each group."""
        frame, choices = self._frame, self._frame.choices
        rows, groups, brokers = self._rows, self._groups, choices.count
        count = len(self._group_rows)
        changes = numpy.zeros((KINDS, count, brokers + 1))

        def gather(kind: int, at: Integers, amounts: Floats) -> None:
            sums = numpy.bincount(groups * (brokers + 1) + at, amounts, count * (brokers + 1))
            changes[kind] += sums.reshape(count, brokers + 1)

        before = choices.leaders[rows]
        other = (before != leaders).astype(float)
        for at, sign in ((before, -1.0), (leaders, 1.0)):
            gather(OUT, at, sign * other * choices.weights[OUT, rows])
            gather(LEADS, at, sign * other)
        moved = numpy.zeros(len(rows))
        for place in range(replicas.shape[1]):
            old, new = choices.replicas[rows, place], replicas[:, place]
            differs = (old != new).astype(float)
            moved += differs
            for at, sign in ((old, -1.0), (new, 1.0)):
                gather(IN, at, sign * differs * choices.weights[IN, rows])
                gather(DISK, at, sign * differs * choices.weights[DISK, rows])
                gather(COUNT, at, sign * differs)
        costs = moved * (choices.sizes[rows] + MOVE_COST) + other * LEADER_COST
        sums = numpy.bincount(groups, costs, count) / frame.cost_unit
        changes /= frame.units[:, None, None]
        for group in range(count):
            mine = changes[:, group, :brokers]
            used = (numpy.abs(mine) > 1e-12) & frame.finite
            column = self._program.add_column(
                float(sums[group]),
                [self._group_rows[group], *self._broker_rows[used].tolist()],
                [1.0, *mine[used].tolist()],
            )
            members = groups == group
            self._columns.append((group, column, replicas[members], leaders[members]))

    def run(self) -> None:
        """Rounds until the program costs as little as the bound allows."""
        frame, choices = self._frame, self._frame.choices
        best = -numpy.inf
        for number in range(_MOST_ROUNDS):
            self._values = self._program.solve()
            found_prices = frame.read_prices(self._program, self._broker_rows)
            prices = self.prices + (found_prices - self.prices) * (
                1.0 if best == -numpy.inf else _SMOOTHED
            )
            values, found = choices.choose(prices, self._rows)
            least = float(values.sum()) + frame.price_excess(prices)
            if least > best:
                best, self.prices = least, prices
            reached = self._program.cost * frame.cost_unit
            if reached - best <= _NEAR * abs(reached) or number == _MOST_ROUNDS - 1:
                break
            self._add(found.replicas, found.leaders)
        values, _ = choices.choose(self.prices, self._rows, is_free=True)
        self.bound = max(0.0, float(values.sum()) + frame.price_excess(self.prices))

    def decide(self, program: _ChoiceProgram) -> dict[int, Choice]:
        """The choices on which a group's columns agree; the others become columns of `program`."""
        choices = self._frame.choices
        agreed, doubtful = [], []
        for group in range(len(self._group_rows)):
            rows = self._rows[self._groups == group]
            used = [
                Ways(rows, replicas, leaders)
                for mine, column, replicas, leaders in self._columns
                if mine == group and self._values[column] > 1e-6
            ]
            agree = numpy.ones(len(rows), bool)
            for other in used[1:]:
                agree &= (other.replicas == used[0].replicas).all(1)
                agree &= other.leaders == used[0].leaders
            agreed.append(used[0].pick(agree))
            doubtful += [each.pick(~agree) for each in used]
        decided = dict(choices.unpack(self._select(agreed)))
        program.begin(decided)
        program.add(self._select(doubtful))
        return decided

    def _select(self, found: Sequence[Ways]) -> Ways:
        """The choices that are allowed, each once, in order; none that changes nothing."""
        ways = _join(found)
        choices = self._frame.choices
        changes = (ways.replicas != choices.replicas[ways.rows]).any(1)
        changes |= ways.leaders != choices.leaders[ways.rows]
        return _order(ways.pick(changes & choices.are_allowed(ways)))[0]

    def list_others(self, variant: int, over: NDArray[numpy.bool_]) -> Ways:
        """Choices that are the cheapest at somewhat other prices, for corrections.

        Args:
            variant: another one gives other choices.
            over: by kind and broker, what must become less.
        """
        random = numpy.random.default_rng(variant)
        factors = random.uniform(0.7, 1.5, self.prices.shape)
        factors[over] *= 2
        values, found = self._frame.choices.choose(self.prices * factors, self._rows)
        some = numpy.flatnonzero(values < 0)
        nearest = some[numpy.argsort(-values[some], kind="stable")][:_MOST_OTHERS]
        return self._select([found.pick(nearest)])


def _join(found: Sequence[Ways]) -> Ways:
    return Ways(*(numpy.concatenate(each) for each in zip(*found, strict=True)))


def _order(ways: Ways) -> tuple[Ways, Integers]:
    """Each choice once, in order of partitions; and where each of the given ones is."""
    table = numpy.column_stack(ways)
    found, places = numpy.unique(table, axis=0, return_inverse=True)
    return Ways(found[:, 0], found[:, 1:-1], found[:, -1]), places.reshape(-1)


class _ChoiceProgram:
    """Decides partitions whose choices are columns of their own."""

    def __init__(self, frame: _Frame) -> None:
        self._frame = frame
        self._program = Program()
        self._ways: list[Ways] = []
        self._columns: list[int] = []
        """Of each choice, in the order of `_ways`."""
        self._partition_rows: dict[int, int] = {}
        self._broker_rows = numpy.zeros(0, numpy.int64)

    def begin(self, decided: Mapping[int, Choice]) -> None:
        """Begin with the loads after some choices."""
        loads = self._frame.choices.sum_loads(decided)
        self._broker_rows = self._frame.add_rows(self._program, loads)

    def add_all(self, rows: Integers) -> None:
        """Begin with all choices of these partitions."""
        self.begin({})
        choices = self._frame.choices
        for row in rows.tolist():
            present = choices.present(row)
            listed = [(row, each) for each in choices.list_choices(row) if each != present]
            if listed:
                self.add(choices.pack(listed))

    def add(self, ways: Ways) -> None:
        """Add columns for choices, none of which is no change."""
        self._ways.append(ways)
        choices, units = self._frame.choices, self._frame.units
        costs = (choices.find_costs(ways) / self._frame.cost_unit).tolist()
        at, kinds, brokers, amounts = choices.list_changes(ways)
        rows = self._broker_rows[kinds, brokers]
        used = numpy.flatnonzero((rows >= 0) & (amounts != 0))
        used = used[numpy.argsort(at[used], kind="stable")]
        starts = numpy.searchsorted(at[used], numpy.arange(len(costs) + 1)).tolist()
        indexes = rows[used].tolist()
        values = (amounts[used] / units[kinds[used]]).tolist()
        for number, row in enumerate(ways.rows.tolist()):
            if row not in self._partition_rows:
                self._partition_rows[row] = self._program.add_row(-numpy.inf, 1.0)
            some = slice(starts[number], starts[number + 1])
            column = self._program.add_column(
                costs[number], [self._partition_rows[row], *indexes[some]], [1.0, *values[some]]
            )
            self._columns.append(column)

    def round(self, decided: Mapping[int, Choice], groups: _GroupProgram) -> dict[int, Choice]:
        """The solution in parts, of each partition its largest part, and improved."""
        choices = self._frame.choices
        values = self._program.solve()
        found = _join(self._ways)
        parts = values[numpy.array(self._columns, numpy.int64)]
        now = _join([choices.pack(decided.items()), found.pick(_find_largest(found.rows, parts))])
        over = numpy.zeros(self._frame.limits.shape, bool)
        cost = numpy.inf
        for turn in range(_TURNS):
            found = _join(
                [found]
                + [
                    groups.list_others(variant, over)
                    for variant in range(_VARIANTS * turn, _VARIANTS * (turn + 1))
                ]
            )
            found, places = _order(_join([found, now]))
            search = _Search(self._frame, found, places[len(places) - len(now.rows) :])
            search.run()
            now, over = search.read(), search.list_over()
            if not over.any() and search.cost > (1 - _NEAR) * cost:
                break
            cost = numpy.inf if over.any() else search.cost
        return dict(choices.unpack(now))

    def decide(self, first: Mapping[int, Choice]) -> dict[int, Choice]:
        """The solution in whole numbers; `first` if even in parts none keeps the limits."""
        columns = numpy.array(self._columns, numpy.int32)
        values = self._program.solve()
        self._prices = self._frame.read_prices(self._program, self._broker_rows)
        chosen = numpy.zeros(len(values), bool)
        chosen[columns] = True
        if values[~chosen].sum() > 1e-6:
            return dict(first)
        if (numpy.abs(values - values.round()) > 1e-6).any():
            values = self._program.solve(whole=columns, nodes=_MOST_NODES)
        chosen_ways = _join(self._ways).pick(values[columns] > 0.5) if self._ways else None
        return {} if chosen_ways is None else dict(self._frame.choices.unpack(chosen_ways))

    def bound(self, rows: Integers) -> float:
        """Bytes, after `decide`."""
        values, _ = self._frame.choices.choose(self._prices, rows, is_free=True)
        return max(0.0, float(values.sum()) + self._frame.price_excess(self._prices))


def _find_largest(rows: Integers, parts: Floats) -> Integers:
    """Of each partition the choice with the largest part, unless no change is larger.

    Args:
        rows: the partition of each choice.
    """
    _, partitions = numpy.unique(rows, return_inverse=True)
    stays = 1.0 - numpy.bincount(partitions, parts)
    order = numpy.lexsort((-parts, partitions))
    is_first = numpy.append(True, numpy.diff(partitions[order]) > 0)
    largest = order[is_first[: len(order)]]
    found: Integers = largest[parts[largest] > stays[partitions[largest]]]
    return found


class _Search:
    """Changes one partition's choice at a time, the change that helps most first.

    Args:
        ways: the choices other than no change, in order of partitions.
        chosen: the indexes of those to begin with.
    """

    def __init__(self, frame: _Frame, ways: Ways, chosen: Integers) -> None:
        choices = frame.choices
        self._ways = ways
        self._frame = frame
        rows = numpy.full(frame.limits.shape, -1)
        rows[frame.finite] = numpy.arange(int(frame.finite.sum()))
        _, partitions = numpy.unique(ways.rows, return_inverse=True)
        # After the choices, for each partition, that it does not change.
        self._stays = count = len(partitions)
        rest = int(partitions.max(initial=-1)) + 1
        self._partition = numpy.append(partitions, numpy.arange(rest))
        self._costs = numpy.append(choices.find_costs(ways) / frame.cost_unit, numpy.zeros(rest))
        self._now = numpy.arange(count, count + rest)
        self._now[partitions[chosen]] = chosen
        at, kinds, brokers, amounts = choices.list_changes(ways)
        columns = rows[kinds, brokers]
        used = columns >= 0
        self._changes = _Sparse(
            at[used],
            columns[used],
            (amounts / frame.units[kinds])[used],
            count + rest,
            int(frame.finite.sum()),
        )
        over = ((frame.loads - frame.limits) / frame.units[:, None])[frame.finite]
        self._over = over + self._changes.sum_of(self._now)
        self._penalties = frame.penalties[numpy.nonzero(frame.finite)[0]]

    @property
    def cost(self) -> float:
        """What the choices cost, in the program's units."""
        return float(self._costs[self._now].sum())

    def list_over(self) -> NDArray[numpy.bool_]:
        """By kind and broker, whether it is above its limit."""
        over = numpy.zeros(self._frame.limits.shape, bool)
        over[self._frame.finite] = self._over > _EXACT
        return over

    def run(self) -> None:
        """Change choices until no single change helps."""
        for _ in range(_MOST_CHANGES):
            over = numpy.flatnonzero(self._over > _EXACT)
            # What takes from the fullest broker; if nothing does, from the next.
            order = over[numpy.argsort(-self._over[over], kind="stable")]
            for row in [*order.tolist(), -1]:
                some = self._find_better(row)
                if not len(some):
                    continue
                gains = self._find_gains(some)
                best = int(gains.argmax())
                if gains[best] > _EXACT:
                    break
            else:
                return
            chosen = int(some[best])
            partition = int(self._partition[chosen])
            self._over += self._changes.sum_of(numpy.array([chosen]))
            self._over -= self._changes.sum_of(self._now[[partition]])
            self._now[partition] = chosen

    def _find_better(self, row: int) -> Integers:
        """The choices that take from a row what their partitions' present ones do not; for -1 those
        that cost less."""
        values = self._costs if row < 0 else self._changes.column(row)
        better: Integers = numpy.flatnonzero(
            values - values[self._now][self._partition] < (-_EXACT if row < 0 else 0)
        )
        return better

    def _find_gains(self, some: Integers) -> Floats:
        """How much better it becomes if each of these choices is made."""
        now = self._now[self._partition[some]]
        places, rows, amounts = self._changes.subtract(some, now)
        over = self._over[rows]
        less = numpy.maximum(over, 0) - numpy.maximum(over + amounts, 0)
        gains = self._costs[now] - self._costs[some]
        gains += numpy.bincount(places, less * self._penalties[rows], len(some))
        return gains

    def read(self) -> Ways:
        """The choices, without those that change nothing."""
        return self._ways.pick(self._now[self._now < self._stays])


class _Sparse:
    """A matrix of few entries, to be read by rows and by columns.

    Args:
        at, columns_at, values: of each entry its row, its column and its value.
        rows, columns: how many there are.
    """

    def __init__(
        self, at: Integers, columns_at: Integers, values: Floats, rows: int, columns: int
    ) -> None:
        order = numpy.argsort(at, kind="stable")
        self._at, self._columns, self._values = at[order], columns_at[order], values[order]
        self._starts = numpy.searchsorted(self._at, numpy.arange(rows + 1))
        self._order = numpy.argsort(self._columns, kind="stable")
        self._column_starts = numpy.searchsorted(
            self._columns[self._order], numpy.arange(columns + 1)
        )

    def column(self, number: int) -> Floats:
        """A column, dense."""
        some = self._order[self._column_starts[number] : self._column_starts[number + 1]]
        found = numpy.zeros(len(self._starts) - 1)
        found[self._at[some]] = self._values[some]
        return found

    def subtract(self, rows: Integers, others: Integers) -> tuple[Integers, Integers, Floats]:
        """Rows less as many others: of each entry the place of the row among these, its column and
        its value."""
        width = len(self._column_starts) - 1
        keys, values = [], []
        for some, sign in ((rows, 1.0), (others, -1.0)):
            places, entries = self._find(some)
            keys.append(places * width + self._columns[entries])
            values.append(sign * self._values[entries])
        key, value = numpy.concatenate(keys), numpy.concatenate(values)
        order = numpy.argsort(key, kind="stable")
        key = key[order]
        first = numpy.flatnonzero(numpy.append(True, key[1:] != key[:-1])[: len(key)])
        sums = numpy.add.reduceat(value[order], first) if len(first) else value
        return key[first] // width, key[first] % width, sums

    def sum_of(self, rows: Integers) -> Floats:
        """The sum of some rows."""
        _, entries = self._find(rows)
        sums = numpy.zeros(len(self._column_starts) - 1)
        numpy.add.at(sums, self._columns[entries], self._values[entries])
        return sums

    def _find(self, rows: Integers) -> tuple[Integers, Integers]:
        """The entries of some rows: the place of the row among these, and the entry's index."""
        counts = self._starts[rows + 1] - self._starts[rows]
        places = numpy.repeat(numpy.arange(len(rows)), counts)
        before = numpy.repeat(numpy.cumsum(counts) - counts, counts)
        return places, self._starts[rows][places] + numpy.arange(len(places)) - before
