"""The choice of replicas as a linear program, for the solver HiGHS.

One column says that a broker keeps a replica of a partition, or gets one, as a follower or as the
leader; rows say how many of them there must be:

    partition        as many replicas as before, one of them the leader
    partition, rack  not more and not fewer than an even spread has
    partition, broker  one replica at most
    broker           not more new replicas than it has room for, nor more than its limit in all;
                     as many leaders as the others

Most partitions are well where they are, and move only if another broker is to lead them: that one
takes the place of a replica in its own rack. Of these it is enough to say who leads.

Where racks, limits or leaders cannot be as they should, a row may be broken at a price, which is
higher than that of any moves. There are partitions x brokers columns for replicas that might come,
of which hardly any are used: columns are added only where, by the prices that the solver has found
for the rows, they would make the plan cheaper, until there is none (column generation). If the
result is not whole numbers, which is rare, it is solved anew in whole numbers, with all columns
that can be part of a better one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trimtab.cli.reassign.plan import MOVE_COST, NoPlan, Placed, Target, rack_bounds
from trimtab.errors import KafkaError, UsageError

try:
    import highspy
    import numpy
except ImportError:
    raise UsageError("trimtab reassign --generate needs a solver: pip install highspy") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INFINITY = highspy.kHighsInf
_TOLERANCE = 1e-6
_NO_ROW = -1


def choose_replicas(placed: Sequence[Placed], targets: Sequence[Target]) -> list[set[int]]:
    """The brokers of each partition.

    Raises:
        NoPlan: the brokers have too little room.
    """
    program = ReplicaProgram(placed, targets)
    program.solve()
    return program.read()


def choose_leaders(
    placed: Sequence[Placed], chosen: Sequence[set[int]], targets: Sequence[Target]
) -> list[int]:
    """A leader for each partition, of the brokers chosen: each broker leads as many as the others,
    as far as that can be, and as many as can be keep theirs."""
    program = _Program()
    index_of = {target.id: index for index, target in enumerate(targets)}
    by_broker = _add_leader_rows(program, len(placed), len(targets), len(placed) + 1.0)
    columns: list[dict[int, int]] = []
    for each, brokers in zip(placed, chosen, strict=True):
        row = program.add_row(1, 1)
        columns.append(
            {
                broker: program.add_column(
                    float(broker != each.replicas[0]), [row, by_broker[index_of[broker]]]
                )
                for broker in sorted(brokers)
            }
        )
    values = program.solve()
    return [max(each, key=lambda broker: values[each[broker]]) for each in columns]


class _Program:
    """Rows and columns that the solver has, or is about to get. Coefficients are 1, or -1 where
    said; a variable lies between 0 and `most`."""

    def __init__(self) -> None:
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self._rows: list[tuple[float, float, list[int], list[float]]] = []
        self._columns: list[tuple[float, float, list[int], list[float]]] = []
        self.row_count = 0
        self.column_count = 0

    def add_row(self, least: float, most: float, columns: Sequence[int] = ()) -> int:
        """A row; `columns` are those that the solver has already."""
        self._rows.append((least, most, list(columns), [1.0] * len(columns)))
        self.row_count += 1
        return self.row_count - 1

    def add_column(
        self, cost: float, rows: list[int], sign: float = 1.0, most: float = _INFINITY
    ) -> int:
        self._columns.append((cost, most, rows, [sign] * len(rows)))
        self.column_count += 1
        return self.column_count - 1

    def solve(self, whole: bool = False) -> NDArray[Any]:
        """The value of each column where the sum of costs is least.

        Args:
            whole: only whole numbers will do.
        """
        self._hand_over()
        if whole:
            columns = numpy.arange(self.column_count, dtype=numpy.int32)
            kinds = numpy.full(self.column_count, highspy.HighsVarType.kInteger)
            self.solver.changeColsIntegrality(self.column_count, columns, kinds)
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            status = self.solver.modelStatusToString(self.solver.getModelStatus())
            raise KafkaError(f"the solver HiGHS finds no plan: {status}")
        return numpy.array(self.solver.getSolution().col_value)

    @property
    def prices(self) -> NDArray[Any]:
        """What one more, or one fewer, in each row would save."""
        return numpy.array(self.solver.getSolution().row_dual)

    @property
    def cost(self) -> float:
        return float(self.solver.getInfo().objective_function_value)

    def _hand_over(self) -> None:
        """Rows first, with what they have of older columns, then columns."""
        if self._rows:
            least, most, indexes, values = zip(*self._rows, strict=True)
            starts, flat, coefficients = _flatten(indexes, values)
            self.solver.addRows(
                len(self._rows),
                numpy.array(least, float),
                numpy.array(most, float),
                len(flat),
                starts,
                flat,
                coefficients,
            )
            self._rows = []
        if self._columns:
            costs, tops, indexes, values = zip(*self._columns, strict=True)
            starts, flat, coefficients = _flatten(indexes, values)
            self.solver.addCols(
                len(self._columns),
                numpy.array(costs, float),
                numpy.zeros(len(costs)),
                numpy.array(tops, float),
                len(flat),
                starts,
                flat,
                coefficients,
            )
            self._columns = []


def _flatten(
    indexes: Sequence[list[int]], values: Sequence[list[float]]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    starts = numpy.zeros(len(indexes), numpy.int32)
    starts[1:] = numpy.cumsum([len(each) for each in indexes])[:-1]
    return (
        starts,
        numpy.array([index for each in indexes for index in each], numpy.int32),
        numpy.array([value for each in values for value in each], float),
    )


def _add_leader_rows(program: _Program, partitions: int, brokers: int, price: float) -> list[int]:
    """A row per broker: its share of the leaders, more or fewer at a price."""
    least = partitions // brokers
    rows = [program.add_row(least, least + bool(partitions % brokers)) for _ in range(brokers)]
    for row in rows:
        program.add_column(price, [row])
        program.add_column(price, [row], -1.0)
    return rows


class ReplicaProgram:
    """Which brokers each partition is on. `solve` it, then `read` it."""

    def __init__(self, placed: Sequence[Placed], targets: Sequence[Target]) -> None:
        self._placed = placed
        self._targets = targets
        self._index_of = {target.id: index for index, target in enumerate(targets)}
        racks = Counter(target.rack for target in targets)
        rack_index = {rack: index for index, rack in enumerate(racks)}
        self._rack_of = numpy.array([rack_index[target.rack] for target in targets])
        # A move costs at most 1; whatever moves mend takes no more than one of each broker.
        heaviest = max(each.size for each in placed) + MOVE_COST
        self._costs = numpy.array([(each.size + MOVE_COST) / heaviest for each in placed])
        self._leader_price = 2.0 * len(targets)
        self._rack_price = 8 * self._leader_price
        self._limit_price = 8 * self._rack_price
        self._gap_price = 8 * self._limit_price

        program = self._program = _Program()
        bounds = {
            factor: rack_bounds(racks, factor) for factor in {len(each.replicas) for each in placed}
        }
        excessive = {target.id for target in targets if target.excess}
        self._stays = numpy.array(
            [
                excessive.isdisjoint(each.replicas)
                and self._is_well_spread(each, bounds[len(each.replicas)], racks)
                for each in placed
            ]
        )
        """Partitions that are well where they are, as long as others lead as many."""
        count = len(placed)
        self._leader_rows = numpy.array([program.add_row(1, 1) for _ in placed])
        self._replica_rows = numpy.full(count, _NO_ROW)
        self._rack_rows = numpy.full((count, len(racks)), _NO_ROW)
        self._room_rows = numpy.array(
            [program.add_row(0, min(target.room, count)) for target in targets]
        )
        self._broker_leader_rows = numpy.array(
            _add_leader_rows(program, count, len(targets), self._leader_price)
        )
        held = Counter(broker for each in placed for broker in each.replicas)
        self._limit_rows = {
            index: program.add_row(0, max(0, held[target.id] - target.excess))
            for index, target in enumerate(targets)
            if target.excess
        }
        for row in self._limit_rows.values():
            program.add_column(self._limit_price, [row], -1.0)
        self._gaps: list[int] = []
        self._columns: dict[tuple[int, int], list[int]] = {}
        """The columns of a replica, by the indexes of its partition and broker."""
        self._may_come = numpy.ones((count, len(targets)), bool)
        for number, each in enumerate(placed):
            if not self._stays[number]:
                self._add_rows(number, bounds[len(each.replicas)])
            for broker in each.replicas:
                if broker in self._index_of:
                    self._may_come[number, self._index_of[broker]] = False
                    self._add(number, self._index_of[broker], is_new=False)
            if not self._stays[number]:
                for index in numpy.flatnonzero(self._may_come[number]):
                    self._add(number, int(index), is_new=True)
        self._foresee(held)

    def _foresee(self, held: Counter[int]) -> None:
        """Who has too little to lead its share will need the cheapest of the others'."""
        share = len(self._placed) // len(self._targets) + 1
        cheapest = numpy.argsort(self._costs, kind="stable")
        for index, target in enumerate(self._targets):
            if held[target.id] < share:
                numbers = cheapest[self._may_come[cheapest, index]][: 2 * share]
                for number in numbers.tolist():
                    self._add(number, index, is_new=True)

    def _is_well_spread(
        self,
        placed: Placed,
        bounds: dict[str | None, tuple[int, int]],
        racks: Counter[str | None],
    ) -> bool:
        """Whether it is on none but the targets, and on their racks evenly."""
        if not all(broker in self._index_of for broker in placed.replicas):
            return False
        here = Counter(self._rack(broker) for broker in placed.replicas)
        return all(bounds[rack][0] <= here[rack] <= bounds[rack][1] for rack in racks)

    def _rack(self, broker: int) -> str | None:
        return self._targets[self._index_of[broker]].rack

    def _add_rows(self, number: int, bounds: dict[str | None, tuple[int, int]]) -> None:
        """How many replicas a partition must have, in all and in each rack; each may be broken."""
        program = self._program
        factor = len(self._placed[number].replicas)
        self._replica_rows[number] = row = program.add_row(factor, factor)
        self._gaps.append(program.add_column(self._gap_price, [row]))
        program.add_column(self._gap_price, [int(self._leader_rows[number])])
        for index, (least, most) in enumerate(bounds.values()):
            self._rack_rows[number, index] = row = program.add_row(least, most)
            program.add_column(self._rack_price, [row])
            program.add_column(self._rack_price, [row], -1.0)

    def _add(self, number: int, index: int, is_new: bool) -> None:
        program = self._program
        leads = [int(self._leader_rows[number]), int(self._broker_leader_rows[index])]
        rows = []
        if is_new:
            rows.append(int(self._room_rows[index]))
            self._may_come[number, index] = False
        elif index in self._limit_rows:
            rows.append(self._limit_rows[index])
        cost = float(self._costs[number]) if is_new else 0.0
        if self._stays[number]:
            self._columns[number, index] = [program.add_column(cost, rows + leads)]
            return
        rows += [
            int(self._replica_rows[number]),
            int(self._rack_rows[number, self._rack_of[index]]),
            program.add_row(0, 1),
        ]
        self._columns[number, index] = [
            program.add_column(cost, rows),
            program.add_column(cost, rows + leads),
        ]

    def solve(self) -> None:
        """Find the values of least cost, which are whole numbers."""
        program = self._program
        self._values = program.solve()
        while self.add_columns(-_TOLERANCE):
            self._values = program.solve()
        if self.is_whole:
            return
        # No plan is cheaper than this one in parts. What would add more to it than the difference
        # to a whole one cannot be part of a better one.
        least, prices = program.cost, program.prices
        self.solve_whole()
        if self.add_columns(program.cost - least, prices):
            self.solve_whole()

    def solve_whole(self) -> None:
        """Find the whole numbers of least cost, with the columns that there are."""
        self._values = self._program.solve(whole=True)

    @property
    def is_whole(self) -> bool:
        return bool(numpy.abs(self._values - numpy.round(self._values)).max() < _TOLERANCE)

    @property
    def cost(self) -> float:
        return self._program.cost

    @property
    def column_count(self) -> int:
        return self._program.column_count

    def add_columns(self, below: float, prices: NDArray[Any] | None = None) -> bool:
        """Add the replicas that might come and would, by these prices of rows, add less than that
        to the cost; False if there is none.

        Args:
            prices: those of the last solution, if not given.
        """
        if prices is None:
            prices = self._program.prices
        prices = numpy.append(prices, 0.0)  # of _NO_ROW
        follower = (
            self._costs[:, None]
            - prices[self._replica_rows][:, None]
            - prices[self._rack_rows][:, self._rack_of]
            - prices[self._room_rows][None, :]
        )
        leader = (
            follower
            - prices[self._leader_rows][:, None]
            - prices[self._broker_leader_rows][None, :]
        )
        follower[self._stays] = numpy.inf
        costs = numpy.where(self._may_come, numpy.minimum(follower, leader), numpy.inf)
        if below <= 0:
            # The best for each broker, twice as many as it may lead, will mostly do.
            few = min(len(costs), 2 * (len(costs) // costs.shape[1] + 1)) - 1
            costs = numpy.where(costs <= numpy.partition(costs, few, axis=0)[few], costs, numpy.inf)
        numbers, indexes = numpy.nonzero(costs < below)
        for number, index in zip(numbers.tolist(), indexes.tolist(), strict=True):
            self._add(number, index, is_new=True)
        return len(numbers) > 0

    def read(self) -> list[set[int]]:
        """The brokers of each partition, as the solver has found them."""
        values = numpy.round(self._values).astype(int)
        missing = int(values[self._gaps].sum())
        if missing:
            room = sum(target.room for target in self._targets)
            raise NoPlan(
                f"{missing} replicas that must move find no room: the {len(self._targets)} brokers "
                f"may get {room} more in all, until those that leave are gone; name more brokers "
                "with --broker-list, or raise max.broker.partitions for the time of the move"
            )
        chosen = [
            {*each.replicas} if stays else set()
            for each, stays in zip(self._placed, self._stays, strict=True)
        ]
        for (number, index), columns in self._columns.items():
            broker = self._targets[index].id
            if values[columns].any() and broker not in chosen[number]:
                if self._stays[number]:
                    chosen[number].remove(self._choose_neighbour(number, index))
                chosen[number].add(broker)
        return chosen

    def _choose_neighbour(self, number: int, index: int) -> int:
        """Whose place a new leader takes: of a follower in its rack; of any where no rack has two
        replicas and its own has none."""
        replicas = self._placed[number].replicas[::-1]
        rack = self._targets[index].rack
        return next((each for each in replicas if self._rack(each) == rack), replicas[0])
