"""Adaptive partitioning by expected latency (`partitioner.adaptive.signal=latency`).

    a broker's latency, its waiting and in-flight batches, the time since its last answer
        ─▶ its cost: seconds until a turn given to it now is acknowledged ─▶ its chance of the turn

Everything else, such as racks and owed bytes, is the built-in logic's.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from random import Random
from typing import TypeAlias

from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.pool import Pool
from trimtab.client.partitioner.protocol import NodeLoad, TopicLoad
from trimtab.client.topic_view import TopicView
from trimtab.wire.sentinels import NO_LEADER

Chance: TypeAlias = Callable[[int], float]
"""The probability with which a drawn partition is accepted, above 0 and up to 1."""

_TRIES = 16
"""Draws before all brokers are weighed."""

PROMPT = 0.005
"""A broker with a cost up to this, in seconds, is always accepted."""

TOLERANCE = 2.0
"""So is a broker that costs up to this many times as much as the cheapest."""

SPILL = 8.0
"""A turn leaves the client's rack if that costs this many times as much as other racks."""

TRUST = 1.0
"""Seconds for which a measured latency holds while nothing is sent to the broker."""

HALF_LIFE = 2.0
"""Seconds in which an older latency halves, so that a broker that was slow is tried again."""

AWAY = 1.0
"""A broker counts as away after this many seconds without an answer or accepting no batches."""

SLOW_START = 5.0
"""Seconds after its return over which its chance grows to the one for its cost."""

PROBE = 1 / 64
"""Least chance of an idle broker, so that its latency is measured."""

_LEAST_READINESS = 0.05
_LEAST_CHANCE = 1e-6
_FEW = 8
"""Up to this many brokers, the cost of each is computed for every turn."""


class LatencyPartitioner(BuiltInPartitioner):
    """Gives turns to the brokers that acknowledge soonest, equally among about equally fast ones.

    Goals:
        A slow broker delays only the records sent to it. The producer's own queue for a broker
        counts at once, a change of its latency with its next answer, and a missing answer while it
        lasts. Equal bytes among brokers within a factor of two of the cheapest, and among all
        within 5 ms, so that noise has no effect.

    Algorithm:
        Cost of a broker: `latency + time for the batches ahead`. That time is the smaller of
        `(queued + in-flight bytes) / drain rate`, which is too large if small requests made the
        measured rate small, and `(queued + in-flight batches) * latency`, which is too large if
        requests overlap. The cost is at least the time since its last answer while a batch is in
        flight, and the time since which it accepts no batches. A latency that was not measured for
        a second halves every two seconds.
        Bar: `max(5 ms, 2 * the cheapest cost)`. A drawn partition is accepted if its leader's cost
        is within the bar, else with probability `(bar / cost)²`, which is at least 1/64 for an
        idle broker: it is probed with one batch at a time. After 16 draws that were not accepted
        all brokers are weighed by these chances; with more than 16 brokers the weights are used
        for `brokers / 16` turns, except for brokers whose cost has risen since.
        If a broker is beyond the bar or was never measured, its turn is one batch, or one record if
        that is sent at once (`linger.ms=0`): a whole turn sent record by record would put five
        requests in flight to a slow broker before the rest gather in a batch.
        A broker that returns after a second or more starts with a small chance that grows over five
        seconds. Racks: the client's own first, unless its cheapest broker costs more than eight
        times `max(5 ms, the cheapest of all racks)`.

    It does not balance the load of slow brokers. They get only what the others cannot take in time,
    so their partitions stay nearly empty while the others suffice.

    Source: ADR 0008; the cost is akin to peak-EWMA load balancing (Finagle).
    """

    def __init__(self, options: BuiltInOptions, random: Random) -> None:
        super().__init__(options, random)
        self._brokers: dict[int, _Broker] = {}
        self._leaders: frozenset[int] = frozenset()
        self._unavailable: frozenset[int] = frozenset()
        self._table: _Table | None = None
        self._shortened = 0
        self._bar = PROMPT
        self._last_cheapest: dict[bool, tuple[int, int]] = {}

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        self._bar = math.inf  # until there is a choice
        chosen, owed = super().next_turn(view, previous, max(0, overshoot - self._shortened), load)
        used_up = self._options.quantum - 1 if self._is_expensive(chosen, load) else owed
        self._shortened = used_up - owed
        return chosen, used_up

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        if partition not in self._reachable(view, load, prefer_rack=False):
            return False
        node = load.node(partition)
        return node is None or self._cost(node, load.now()) <= TOLERANCE * self._bar

    def _update_view(self, view: TopicView) -> None:
        leaders = frozenset(view.leaders) - {NO_LEADER}
        if self._view is not None:
            for node_id in leaders - self._leaders:
                self._broker(node_id).is_away = True
        self._leaders = leaders
        super()._update_view(view)

    def _pool(self, view: TopicView, load: TopicLoad) -> Pool:
        unavailable = load.unavailable()
        if unavailable != self._unavailable:
            for node_id in unavailable:
                self._broker(node_id).is_away = True
            self._unavailable = unavailable
        pool = super()._pool(view, load)
        if pool.is_near:
            everywhere = self._reachable(view, load, prefer_rack=False)
            if len(everywhere) > len(pool):
                now = load.now()
                least = max(PROMPT, self._cheapest(everywhere, load, now))
                if self._cheapest(pool, load, now) > SPILL * least:
                    return everywhere
        return pool

    def _is_expensive(self, partition: int, load: TopicLoad) -> bool:
        """Whether its leader's cost is beyond the bar or unmeasured, if there was a choice."""
        node = load.node(partition)
        if node is None or self._bar == math.inf:
            return False
        return node.latency <= 0 or self._cost(node, load.now()) > self._bar

    def _drawer(self, pool: Pool, load: TopicLoad) -> Callable[[], int]:
        chance = self._chance(pool, load)

        def draw() -> int:
            for _ in range(_TRIES):
                chosen = pool.draw()
                if self._random.random() < chance(chosen):
                    return chosen
            return self._draw_by_chances(pool, chance)

        return draw

    def _draw_by_chances(self, pool: Pool, chance: Chance) -> int:
        """If few draws are accepted: draw by the chances of all brokers, computed now and then."""
        table = self._table
        if table is None or table.pool is not pool or table.draws_left == 0:
            table = self._table = _Table(pool, chance)
        table.draws_left -= 1
        for _ in range(_TRIES):
            place = bisect(table.sums, self._random.random() * table.sums[-1])
            chosen = self._random.choice(pool.by_leader[place])
            # If its cost has risen since, its current chance counts.
            if self._random.random() * table.chances[place] < chance(chosen):
                break
        return chosen

    def _weights(self, pool: Pool, load: TopicLoad) -> Sequence[float]:
        return [*map(self._chance(pool, load), pool.partitions)]

    def _chance(self, pool: Pool, load: TopicLoad) -> Chance:
        now = load.now()
        bar = self._bar = max(PROMPT, TOLERANCE * self._cheapest(pool, load, now))

        def chance(partition: int) -> float:
            node = load.node(partition)
            if node is None or (cost := self._cost(node, now)) <= bar:
                return 1.0
            is_idle = node.in_flight_batches + node.queued_batches == 0
            return max(PROBE if is_idle else _LEAST_CHANCE, (bar / cost) ** 2)

        return chance

    def _cheapest(self, pool: Pool, load: TopicLoad, now: float) -> float:
        """The lowest cost among the pool's brokers; of many, among the last cheapest and a few."""
        brokers = pool.by_leader
        if len(brokers) > _FEW:
            best, start = self._last_cheapest.get(pool.is_near, (brokers[0][0], 0))
            candidates = [led[0] for led in brokers[start : start + _FEW]]
            start = start + _FEW if start + _FEW < len(brokers) else 0
            if best in pool:
                candidates.append(best)
        else:
            candidates = [led[0] for led in brokers]
        best, least = candidates[0], math.inf
        for partition in candidates:
            node = load.node(partition)
            if node is not None and (cost := self._cost(node, now)) < least:
                best, least = partition, cost
        if len(brokers) > _FEW:
            self._last_cheapest[pool.is_near] = best, start
        return 0.0 if least == math.inf else least

    def _cost(self, node: NodeLoad, now: float) -> float:
        """The estimated seconds until a turn given to this broker now is acknowledged."""
        latency = node.latency
        batches = node.queued_batches + node.in_flight_batches
        if batches > 0:
            ahead = batches * latency
            if node.drain_rate > 0:
                waiting = node.queued_bytes + node.in_flight_bytes
                ahead = min(ahead, waiting / node.drain_rate)
            latency += ahead
        else:
            idle = now - node.last_acknowledged - TRUST
            if idle > 0:
                latency *= 0.5 ** (idle / HALF_LIFE)
        broker = self._broker(node.node_id)
        cost = max(latency, broker.wait(node, now))
        readiness = (now - broker.returned) / SLOW_START
        if readiness >= 1.0:
            return cost
        return max(cost, PROMPT) / max(readiness, _LEAST_READINESS)

    def _broker(self, node_id: int) -> _Broker:
        broker = self._brokers.get(node_id)
        if broker is None:
            broker = self._brokers[node_id] = _Broker()
        return broker


class _Table:
    """The chances of a pool's brokers, and the running sums of chance times partitions led.

    Attributes:
        draws_left: draws until it is computed again.
    """

    __slots__ = ("chances", "draws_left", "pool", "sums")

    def __init__(self, pool: Pool, chance: Chance) -> None:
        self.pool = pool
        self.chances = [chance(led[0]) for led in pool.by_leader]
        self.sums = [*accumulate(map(mul, map(len, pool.by_leader), self.chances))]
        self.draws_left = max(1, len(self.chances) // _TRIES)


class _Broker:
    """The state of one broker between turns.

    Attributes:
        is_away: whether it was silent, unavailable or no leader, and has not returned.
        returned: loop time of its last return.
    """

    __slots__ = ("_acknowledged", "_silent_since", "is_away", "returned")

    def __init__(self) -> None:
        self.is_away = False
        self.returned = -math.inf
        self._acknowledged = math.nan
        self._silent_since = math.inf

    def wait(self, node: NodeLoad, now: float) -> float:
        """For how many seconds, at least, it has not answered or accepted no batches."""
        if node.in_flight_batches == 0:
            self._silent_since = math.inf
        elif self._silent_since == math.inf or node.last_acknowledged != self._acknowledged:
            self._silent_since = now
        self._acknowledged = node.last_acknowledged
        waited = max(0.0, now - self._silent_since)
        if node.not_ready_since >= 0:
            waited = max(waited, now - max(node.not_ready_since, node.last_acknowledged))
        if waited > AWAY:
            self.is_away = True
        elif self.is_away:
            self.is_away = False
            self.returned = now
        return waited
