"""The choice of replicas within limits as a linear program, for the solver HiGHS. It is needed only
where the plan without limits (`leader_flow.py`) exceeds them.

Each column means that a broker keeps, or receives, a replica of a partition, as a follower or as
the leader. The rows constrain how many of these are chosen:

    partition          as many replicas as before, one of them the leader
    partition, rack    the numbers of an even spread
    partition, broker  at most one replica
    broker             at most as many new replicas as its limit allows, at most its limit in all,
                       and as many leaders as the other brokers

Most partitions are already placed well, and change only if another broker becomes their leader; it
then replaces a replica in its own rack. For these partitions only the leader is a variable.

If racks, limits or leaders cannot be as required, a row may be violated at a price, which is higher
than the cost of all moves. Of the partitions x brokers columns for new replicas hardly any are
used, so the program starts with few columns, and adds those that would make the plan cheaper by the
row prices of the last solution, until there are none (column generation). If the solution is not
whole numbers, which is rare, the program is solved again in whole numbers, with all columns that
could be part of a better plan. Finally it is solved once more, with a row that keeps the cost at
this minimum, for the fewest changes of leaders.

A program that would take more than about a minute, or a gigabyte, is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trimtab.balance.moves import MOVE_COST, NoPlan, PlacedPartition, TargetBroker, rack_bounds
from trimtab.balance.placement import PlacementGoal
from trimtab.kafka.errors import KafkaError, UsageError

try:
    import highspy
    import numpy
except ImportError:
    raise UsageError("trimtab reassign --generate needs a solver: pip install highspy") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INFINITY = highspy.kHighsInf
_TOLERANCE = 1e-6
_EXACT = 1e-9
_NO_ROW = -1
_MOST_CHOICES = 100_000
"""Replicas of badly placed partitions x brokers: beyond it the program takes minutes."""
_FEW_CHOICES = 20_000
_PATIENCE_S = 50.0


def choose_within_limits(
    placed: Sequence[PlacedPartition],
    targets: Sequence[TargetBroker],
    goal: PlacementGoal = PlacementGoal.RACKS,
) -> list[tuple[int, ...]]:
    """The brokers chosen for each partition, the leader first.

    Raises:
        NoPlan: the brokers' limits allow too few further replicas, or the program is too large.
    """
    program = ReplicaProgram(placed, targets, goal)
    program.solve()
    program.keep_leaders()
    chosen = []
    for partition, (leader, brokers) in zip(placed, program.read(), strict=True):
        stay = [broker for broker in partition.replicas if broker in brokers and broker != leader]
        chosen.append((leader, *stay, *sorted(brokers.difference(partition.replicas, {leader}))))
    return chosen


class PlanTooLarge(NoPlan):
    """There may be a plan, but finding it would take too long."""

    def __init__(self) -> None:
        super().__init__(
            "the brokers' limits leave so little room that a plan for all these partitions takes "
            "too long to find: plan a few topics at a time (--topics-to-move-json-file), name more "
            "brokers with --broker-list, or raise max.broker.partitions during the move"
        )


class Program:
    """A linear program: rows and columns, which `solve` passes to the solver.

    Coefficients are 1 unless others are given; a variable is between 0 and `most`.
    """

    def __init__(self) -> None:
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self.solver.setOptionValue("time_limit", _PATIENCE_S)
        self._rows: list[tuple[float, float, list[int], list[float]]] = []
        self._columns: list[tuple[float, float, list[int], list[float]]] = []
        self.row_count = 0
        self.costs: list[float] = []

    def add_row(self, least: float, most: float, columns: Sequence[int] = ()) -> int:
        """Add a row, with coefficient 1 for existing columns; returns its index."""
        self._rows.append((least, most, list(columns), [1.0] * len(columns)))
        self.row_count += 1
        return self.row_count - 1

    def add_column(
        self,
        cost: float,
        rows: list[int],
        values: float | list[float] = 1.0,
        most: float = _INFINITY,
    ) -> int:
        """Add a column, with one coefficient for all rows or one for each; returns its index."""
        each = values if isinstance(values, list) else [values] * len(rows)
        self._columns.append((cost, most, rows, each))
        self.costs.append(cost)
        return self.column_count - 1

    @property
    def column_count(self) -> int:
        return len(self.costs)

    def replace_costs(self, most: float, costs: NDArray[Any]) -> None:
        """Allow a total cost of at most `most`, and give the columns other costs."""
        self._hand_over()
        columns = numpy.arange(self.column_count, dtype=numpy.int32)
        self.solver.addRow(-_INFINITY, most, len(columns), columns, numpy.array(self.costs))
        self.row_count += 1
        self.solver.changeColsCost(len(columns), columns, costs)

    def solve(self, whole: bool | NDArray[Any] = False, nodes: int | None = None) -> NDArray[Any]:
        """The values of the columns with the lowest total cost.

        Args:
            whole: whether whole numbers are required, or of which columns.
            nodes: end with the best whole numbers after so many branches.
        """
        self._hand_over()
        if whole is not False:
            columns = numpy.arange(self.column_count, dtype=numpy.int32)
            if whole is not True:
                columns = whole
            kinds = numpy.full(len(columns), highspy.HighsVarType.kInteger)
            self.solver.changeColsIntegrality(len(columns), columns, kinds)
        accepted = [highspy.HighsModelStatus.kOptimal]
        if nodes is not None:
            self.solver.setOptionValue("mip_max_nodes", nodes)
            accepted.append(highspy.HighsModelStatus.kSolutionLimit)
        self.solver.run()
        if self.solver.getModelStatus() == highspy.HighsModelStatus.kTimeLimit:
            raise PlanTooLarge
        if self.solver.getModelStatus() not in accepted:
            status = self.solver.modelStatusToString(self.solver.getModelStatus())
            raise KafkaError(f"the solver HiGHS finds no plan: {status}")
        return numpy.array(self.solver.getSolution().col_value)

    @property
    def prices(self) -> NDArray[Any]:
        """The dual value of each row: how the cost changes with the row's bound."""
        return numpy.array(self.solver.getSolution().row_dual)

    @property
    def cost(self) -> float:
        return float(self.solver.getInfo().objective_function_value)

    def _hand_over(self) -> None:
        """Pass new rows to the solver, then new columns."""
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


def _add_leader_rows(program: Program, partitions: int, brokers: int, price: float) -> list[int]:
    """A row per broker: an equal share of the leaders; each leader above or below costs `price`."""
    least = partitions // brokers
    rows = [program.add_row(least, least + bool(partitions % brokers)) for _ in range(brokers)]
    for row in rows:
        program.add_column(price, [row])
        program.add_column(price, [row], -1.0)
    return rows


class ReplicaProgram:
    """Chooses the brokers of each partition: call `solve`, then `read`."""

    def __init__(
        self,
        placed: Sequence[PlacedPartition],
        targets: Sequence[TargetBroker],
        goal: PlacementGoal = PlacementGoal.RACKS,
    ) -> None:
        self._placed = placed
        self._targets = targets
        self._index_of = {target.id: index for index, target in enumerate(targets)}
        racks = Counter(target.rack for target in targets)
        rack_index = {rack: index for index, rack in enumerate(racks)}
        self._rack_of = numpy.array([rack_index[target.rack] for target in targets])
        # A move costs at most 1; repairing one violated row takes at most one move per broker.
        heaviest = max(each.size for each in placed) + MOVE_COST
        self._costs = numpy.array([(each.size + MOVE_COST) / heaviest for each in placed])
        self._leader_price = 2.0 * len(targets)
        self._rack_price = 8 * self._leader_price
        self._limit_price = 8 * self._rack_price
        self._gap_price = 8 * self._limit_price

        program = self._program = Program()
        bounds = {
            factor: rack_bounds(racks, factor, goal)
            for factor in {len(each.replicas) for each in placed}
        }
        excessive = {target.id for target in targets if target.excess}
        self._stays = numpy.array(
            [
                excessive.isdisjoint(partition.replicas)
                and self._is_well_spread(partition, bounds[len(partition.replicas)], racks)
                for partition in placed
            ]
        )
        """Partitions that change only to balance leaders."""
        if int((~self._stays).sum()) * len(targets) > _MOST_CHOICES:
            raise PlanTooLarge
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
        for number, partition in enumerate(placed):
            if not self._stays[number]:
                self._add_rows(number, bounds[len(partition.replicas)])
            for broker in partition.replicas:
                if broker in self._index_of:
                    self._may_come[number, self._index_of[broker]] = False
                    self._add(number, self._index_of[broker], is_new=False)
            if not self._stays[number]:
                for index in numpy.flatnonzero(self._may_come[number]):
                    self._add(number, int(index), is_new=True)
        self._foresee(held)

    def _foresee(self, held: Counter[int]) -> None:
        """Add columns for the cheapest replicas that a broker with too few replicas to lead its
        share may receive from other brokers."""
        share = len(self._placed) // len(self._targets) + 1
        cheapest = numpy.argsort(self._costs, kind="stable")
        for index, target in enumerate(self._targets):
            if held[target.id] < share:
                numbers = cheapest[self._may_come[cheapest, index]][: 2 * share]
                for number in numbers.tolist():
                    self._add(number, index, is_new=True)

    def _is_well_spread(
        self,
        placed: PlacedPartition,
        bounds: dict[str | None, tuple[int, int]],
        racks: Counter[str | None],
    ) -> bool:
        """Whether all its replicas are on targets, and spread evenly over their racks."""
        if not all(broker in self._index_of for broker in placed.replicas):
            return False
        here = Counter(self._rack(broker) for broker in placed.replicas)
        return all(bounds[rack][0] <= here[rack] <= bounds[rack][1] for rack in racks)

    def _rack(self, broker: int) -> str | None:
        return self._targets[self._index_of[broker]].rack

    def _add_rows(self, number: int, bounds: dict[str | None, tuple[int, int]]) -> None:
        """Rows for a partition's replicas, in all and in each rack; each may be violated at a
        price."""
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
        """Find the plan of least cost, in whole numbers."""
        program = self._program
        self._values = program.solve()
        while self.add_columns(-_TOLERANCE):
            self._values = program.solve()
        self._least, self._prices = program.cost, program.prices
        if self.is_whole:
            return
        # No whole plan is cheaper than this fractional one. A column that would raise its cost
        # above that of the whole plan found so far cannot be part of a better whole plan.
        self.solve_whole()
        if self.add_columns(program.cost - self._least, self._prices):
            self.solve_whole()

    def keep_leaders(self) -> None:
        """Of the plans that cost as little, find one that changes the fewest leaders; call `solve`
        before. In a large program only the present columns are considered."""
        program, before = self._program, numpy.round(self._values)
        if self._may_come.size <= _FEW_CHOICES:
            self.add_columns(program.cost - self._least + _TOLERANCE, self._prices)
        least = float(numpy.dot(program.costs[: len(before)], before))
        costs = numpy.zeros(program.column_count)
        for (number, index), columns in self._columns.items():
            costs[columns[-1]] = self._targets[index].id != self._placed[number].replicas[0]
        program.replace_costs(least + _TOLERANCE, costs)
        self._values = program.solve()
        if not self.is_whole:
            self.solve_whole()
        if numpy.dot(program.costs, numpy.round(self._values)) > least + _EXACT:
            self._values = numpy.append(before, numpy.zeros(program.column_count - len(before)))

    def solve_whole(self) -> None:
        """Find the whole-number plan of least cost, with the present columns."""
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
        """Add columns for new replicas that would, by the row prices, add less than `below` to the
        cost; False if there are none.

        Args:
            prices: of the rows; by default those of the last solution.
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
            # The best columns of each broker, twice as many as it may lead, are usually enough.
            few = min(len(costs), 2 * (len(costs) // costs.shape[1] + 1)) - 1
            costs = numpy.where(costs <= numpy.partition(costs, few, axis=0)[few], costs, numpy.inf)
        numbers, indexes = numpy.nonzero(costs < below)
        for number, index in zip(numbers.tolist(), indexes.tolist(), strict=True):
            self._add(number, index, is_new=True)
        return len(numbers) > 0

    def read(self) -> list[tuple[int, set[int]]]:
        """The leader and the brokers of each partition, from the solution.

        Raises:
            NoPlan: the brokers' limits allow too few further replicas.
        """
        values = numpy.round(self._values).astype(int)
        missing = int(values[self._gaps].sum())
        if missing:
            room = sum(target.room for target in self._targets)
            raise NoPlan(
                f"{missing} replicas that must move cannot be placed: the {len(self._targets)} "
                f"brokers may get {room} more in all while the old replicas exist; name more "
                "brokers with --broker-list, or raise max.broker.partitions during the move"
            )
        chosen = [
            {*each.replicas} if stays else set()
            for each, stays in zip(self._placed, self._stays, strict=True)
        ]
        leaders = [each.replicas[0] for each in self._placed]
        for (number, index), columns in self._columns.items():
            broker = self._targets[index].id
            if values[columns[-1]]:
                leaders[number] = broker
            if values[columns].any() and broker not in chosen[number]:
                if self._stays[number]:
                    chosen[number].remove(self._choose_neighbour(number, index))
                chosen[number].add(broker)
        return list(zip(leaders, chosen, strict=True))

    def _choose_neighbour(self, number: int, index: int) -> int:
        """The replica that a new leader replaces: the last one in its rack; the last of all if
        there is none in its rack, because no rack has two."""
        replicas = self._placed[number].replicas[::-1]
        rack = self._targets[index].rack
        return next((each for each in replicas if self._rack(each) == rack), replicas[0])
