"""A first plan, fast for any size.

Leaders change where that is enough. Then the replicas that copy the fewest bytes for the load that
they take away leave the brokers above their limits. A broker that is to have no replicas, or no
leaders, loses them even if others exceed the limits of their loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy

from trimtab.balance.level_choices import COUNT, DISK, IN, KINDS, LEADS, OUT, Choice, LevelChoices
from trimtab.balance.moves import MOVE_COST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Integers = NDArray[numpy.int64]

_EXACT = 1e-9
_OF_REPLICAS = slice(IN, COUNT + 1)
"""The kinds of load that a replica brings: written, stored, one more."""
_MOST_STALE = 50
"""After so many replicas whose value had become less, the values of all are worked out again."""


def level_greedily(
    choices: LevelChoices,
    limits: Floats,
    prices: Floats | None = None,
    start: Mapping[int, Choice] = MappingProxyType({}),
) -> dict[int, Choice]:
    """The choices of the partitions that change, by row. Brokers may stay above their limits.

    Args:
        limits: by kind and broker.
        prices: by kind and broker, about the bytes that it costs to take a unit of load away; None
            if only leaders may change.
        start: choices that are made already.
    """
    plan = _Plan(choices, limits, start)
    plan.shift_leaders()
    if prices is not None:
        plan.move_replicas(prices)
        plan.shift_leaders()
    return plan.changed


class _Plan:
    def __init__(self, choices: LevelChoices, limits: Floats, start: Mapping[int, Choice]) -> None:
        self._choices = choices
        self._limits = limits
        self._loads = choices.sum_loads(start)
        self._leaders = choices.leaders.copy()
        # A limit of 0 is reached by any load.
        self._scale = numpy.where(limits > 0, limits, 1.0)
        self._per_limit = 1.0 / self._scale
        self._most = limits * (1 + _EXACT)
        self._weights: list[list[float]] = choices.weights.T.tolist()
        self.changed = dict(start)
        for row, choice in start.items():
            self._leaders[row] = choice.leader

    def _excess(self, kind: int, broker: int) -> float:
        excess = float(self._loads[kind, broker] - self._limits[kind, broker])
        return excess if excess > _EXACT * float(self._scale[kind, broker]) else 0.0

    def _above(self, kind: int) -> list[int]:
        """The brokers above their limits, the worst first."""
        limited = numpy.flatnonzero(numpy.isfinite(self._limits[kind]))
        over = (self._loads - self._limits)[kind, limited] / self._scale[kind, limited]
        order = limited[numpy.argsort(-over, kind="stable")].tolist()
        return [broker for broker in order if self._excess(kind, broker)]

    def shift_leaders(self) -> None:
        for kind in (LEADS, OUT):
            for broker in self._above(kind):
                self._shift_from(broker, kind)

    def _shift_from(self, broker: int, kind: int) -> None:
        choices = self._choices
        rows = numpy.flatnonzero(self._leaders == broker)
        out = choices.weights[OUT, rows]
        # The heaviest that are not much more than is needed; then the others, the lightest first.
        heavy = (
            out > 1.5 * self._excess(OUT, broker) if kind == OUT else numpy.zeros(len(rows), bool)
        )
        order = numpy.lexsort((numpy.where(heavy, out, -out), heavy))
        for row in rows[order].tolist():
            if not self._excess(kind, broker):
                return
            target = self._find_leader(row, broker)
            if target is not None:
                self._lead(row, target)

    def _find_leader(self, row: int, broker: int) -> int | None:
        """The other broker with the most room to lead a partition that it has a replica of."""
        choices = self._choices
        out = float(choices.weights[OUT, row])
        now = (self.changed.get(row) or choices.present(row)).replicas
        best, level = None, 1 + _EXACT
        if self._limits[LEADS, broker] == 0:
            level = numpy.inf
        for place, other in enumerate(now):
            # One that is being copied is not known to follow well.
            if other == broker or other != choices.replicas[row, place]:
                continue
            if not choices.can_lead[row, place] or self._is_full(LEADS, other, 1.0):
                continue
            reached = float((self._loads[OUT, other] + out) / self._scale[OUT, other])
            if reached < level or (reached == level and best is None):
                best, level = other, reached
        return best

    def _is_full(self, kind: int, broker: int, amount: float) -> bool:
        most = float(self._limits[kind, broker])
        return float(self._loads[kind, broker]) + amount > most * (1 + _EXACT)

    def _lead(self, row: int, target: int) -> None:
        before = self.changed.get(row) or self._choices.present(row)
        out = float(self._choices.weights[OUT, row])
        for broker, sign in ((before.leader, -1), (target, 1)):
            self._loads[OUT, broker] += sign * out
            self._loads[LEADS, broker] += sign
        self._leaders[row] = target
        self.changed[row] = Choice(before.replicas, target)

    def move_replicas(self, prices: Floats) -> None:
        """Move the replicas first that take most away for their bytes, at these prices.

        What one takes away becomes less as others move: it is worked out again at its turn, and for
        all replicas of a broker once one of its loads is within its limit.
        """
        choices = self._choices
        total = float(choices.sizes.sum())
        loads = self._loads.sum(1, keepdims=True)
        worth = numpy.where(prices > 0, prices, total / numpy.maximum(loads, 1.0))
        worth[LEADS] = 0
        brokers = numpy.flatnonzero((self._loads > self._limits).any(0)).tolist()
        waiting = {broker: self._line_up(broker, worth) for broker in brokers}
        kinds = {
            broker: (self._loads[:, broker] > self._limits[:, broker]).tolist()
            for broker in brokers
        }
        stale = dict.fromkeys(brokers, 0)
        prices_at = worth.T.tolist()
        costs = (choices.sizes + MOVE_COST).tolist()
        heads = [(line[0][0], broker) for broker, line in waiting.items() if line]
        heapify(heads)
        while heads:
            _, broker = heappop(heads)
            line = waiting[broker]
            excess = (self._loads[:, broker] - self._limits[:, broker]).tolist()
            over = [each > 0 for each in excess]
            if over != kinds[broker] or stale[broker] > _MOST_STALE:
                kinds[broker], stale[broker] = over, 0
                line = waiting[broker] = self._line_up(broker, worth, line)
                if line:
                    heappush(heads, (line[0][0], broker))
                continue
            before, row, place = heappop(line)
            ratio = -self._value_one(row, broker, excess, prices_at[broker]) / costs[row]
            least = min(line[0][0] if line else inf, heads[0][0] if heads else inf)
            if before < ratio < 0 and ratio > least:
                heappush(line, (ratio, row, place))
                stale[broker] += 1
            elif ratio < 0:
                self._move(row, place, broker)
            if line:
                heappush(heads, (line[0][0], broker))

    def _line_up(
        self, broker: int, worth: Floats, only: list[tuple[float, int, int]] | None = None
    ) -> list[tuple[float, int, int]]:
        """A broker's replicas, or some of them: what each takes away for a byte, below 0, the most
        first; its partition and its place."""
        choices = self._choices
        if only is None:
            rows, places = numpy.nonzero((choices.replicas == broker) & choices.can_leave)
        else:
            rows = numpy.array([row for _, row, _ in only], numpy.int64)
            places = numpy.array([place for _, _, place in only], numpy.int64)
        values = self._value(rows, numpy.full(len(rows), broker), worth)
        ratios = -values / (choices.sizes[rows] + MOVE_COST)
        order = numpy.lexsort((places, rows, ratios))
        order = order[ratios[order] < 0]
        found = (each[order].tolist() for each in (ratios, rows, places))
        return list(zip(*found, strict=True))

    def _value(self, rows: Integers, brokers: Integers, worth: Floats) -> Floats:
        """What it is worth if replicas leave their brokers: only the excess counts."""
        choices = self._choices
        excess = self._loads[:, brokers] - self._limits[:, brokers]
        taken = numpy.zeros((KINDS, len(rows)))
        taken[[OUT, IN, DISK]] = choices.weights[:, rows]
        taken[OUT] *= self._leaders[rows] == brokers
        taken[COUNT] = 1.0
        value: Floats = (numpy.clip(taken, 0, numpy.maximum(excess, 0)) * worth[:, brokers]).sum(0)
        return value

    def _value_one(self, row: int, broker: int, excess: list[float], worth: list[float]) -> float:
        """The same for one replica, where arrays would take most of the time.

        Args:
            excess, worth: of the broker, by kind.
        """
        out, written, size = self._weights[row]
        value = 0.0
        for kind, taken in ((IN, written), (DISK, size), (COUNT, 1.0)):
            if excess[kind] > 0:
                value += min(taken, excess[kind]) * worth[kind]
        if excess[OUT] > 0 and self._leaders[row] == broker:
            value += min(out, excess[OUT]) * worth[OUT]
        return value

    def _move(self, row: int, place: int, broker: int) -> None:
        """Move a replica to the broker where it leaves the most room, if there is one."""
        choices = self._choices
        before = self.changed.get(row) or choices.present(row)
        if before.replicas[place] != broker:
            return
        out, written, size = self._weights[row]
        amounts = numpy.array([[written], [size], [1.0]])
        leader: int | None = before.leader
        led: tuple[tuple[int, float], ...] = ()
        if leader == broker:
            leader = self._find_leader(row, broker)
            if leader is None:
                led = (OUT, out), (LEADS, 1.0)
        allowed = choices.destinations(row, place)
        allowed[list(before.replicas)] = False
        after = self._loads[_OF_REPLICAS] + amounts
        within = after <= self._most[_OF_REPLICAS]
        if not (written and size):
            within |= amounts == 0
        fits = within.all(0) & allowed
        levels = (after * self._per_limit[_OF_REPLICAS]).max(0)
        for kind, amount in led:
            if amount:
                after = self._loads[kind] + amount
                fits &= after <= self._most[kind]
                levels = numpy.maximum(levels, after * self._per_limit[kind])
        if not fits.any():
            if self._limits[COUNT, broker]:
                return
            fits = allowed & within[-1]
            if led:
                fits &= self._loads[LEADS] + 1.0 <= self._most[LEADS]
            if not fits.any():
                return
        target = int(numpy.where(fits, levels, inf).argmin())
        replicas = (*before.replicas[:place], target, *before.replicas[place + 1 :])
        is_moved = before.replicas != choices.present(row).replicas
        if is_moved and not choices.is_spread(row, replicas):
            return
        self._loads[_OF_REPLICAS, broker] -= amounts[:, 0]
        self._loads[_OF_REPLICAS, target] += amounts[:, 0]
        self.changed[row] = before._replace(replicas=replicas)
        if before.leader == broker:
            self._lead(row, target if leader is None else leader)
