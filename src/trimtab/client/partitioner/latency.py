"""Adaptive partitioning by what a turn will cost in time (`partitioner.adaptive.signal=latency`).

    a broker's latency, what waits for it and is in flight, how long it has been silent
        ─▶ seconds until a turn given to it now is acknowledged ─▶ its chance of the turn

Everything else, from racks to paying back, is the built-in logic's.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from random import Random
from typing import TypeAlias

from trimtab.client.network.metadata import NO_LEADER, TopicView
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.partitioner import NodeLoad, TopicLoad
from trimtab.client.partitioner.pool import Pool

Chance: TypeAlias = Callable[[int], float]
"""How likely a partition that was drawn is taken, above 0 and up to 1."""

_TRIES = 16
"""Partitions drawn before all brokers are weighed."""

PROMPT = 0.005
"""Seconds that no broker is blamed for."""

TOLERANCE = 2.0
"""Nor is one for costing this much more than the cheapest."""

SPILL = 8.0
"""The client's rack is left for a turn when it costs this many times more than elsewhere."""

TRUST = 1.0
"""Seconds that a measured latency holds while nothing is sent, …"""

HALF_LIFE = 2.0
"""… and after which half of it is believed, so that a broker that was slow is tried again."""

AWAY = 1.0
"""Seconds of silence after which a broker has to prove itself again, …"""

SLOW_START = 5.0
"""… and over which its chance then grows to what its cost allows."""

PROBE = 1 / 64
"""Least chance of a broker with nothing under way, so that it is found out about."""

_LEAST_READINESS = 0.05
_LEAST_CHANCE = 1e-6
_FEW = 8
"""Brokers that may all be looked at for one turn."""


class LatencyPartitioner(BuiltInPartitioner):
    """Turns go where they are acknowledged soonest, and evenly to all who are about as quick.

    Goals:
        A slow broker costs its records' time, not all records'. A queue that the producer itself
        builds up counts at once, what a broker is found out about counts with its next answer, and
        silence counts while it lasts. Evenly in bytes among brokers within a factor of two of the
        cheapest, and among all that take 5 ms: noise moves nothing.

    Algorithm:
        Cost of a broker: `latency + what is ahead`, where ahead is the smaller of `(queued + in
        flight bytes) / drain rate` and `(queued + in flight batches) * latency`: the first is too
        much where small requests made the measured rate small, the second where requests share the
        wait; but not less than the time since it last answered while something is in flight, or
        since it takes nothing. A latency that was not confirmed for a second halves every two.
        Bar: `max(5 ms, 2 * the cheapest cost)`. A partition drawn from the bag is taken if its
        leader's cost is within the bar, else with probability `(bar / cost)²`, which is at least
        1/64 for a broker with nothing under way: it is probed, with one batch at a time. After 16
        that were not taken all brokers are weighed by these chances; of more than 16 brokers the
        weights serve `brokers / 16` turns, but for those that have become dearer since.
        A turn of a broker that is beyond the bar, or was never measured, is one batch, or one
        record if that is sent at once (`linger.ms=0`): a slow broker that gets a whole turn record
        by record has five requests under way before the rest may gather, and each takes its time.
        A broker that comes back after a second or more begins with a small chance that grows over
        five seconds. Racks: the client's own first, unless its cheapest broker costs more than
        eight times `max(5 ms, the cheapest elsewhere)`.

    What it does not do: level the load of slow brokers. They get what the others cannot take in
    time, so their partitions stay nearly empty while the others suffice.

    Source: ADR 0008; the cost is akin to peak-EWMA load balancing (Finagle).
    """

    def __init__(self, options: BuiltInOptions, random: Random) -> None:
        super().__init__(options, random)
        self._brokers: dict[int, _Broker] = {}
        self._leaders: frozenset[int] = frozenset()
        self._left_out: frozenset[int] = frozenset()
        self._table: _Table | None = None
        self._shortened = 0
        self._bar = PROMPT
        self._looked: dict[bool, tuple[int, int]] = {}

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        self._bar = math.inf  # until there is a choice
        chosen, owed = super().next_turn(view, previous, max(0, overshoot - self._shortened), load)
        used_up = self._options.quantum - 1 if self._is_dear(chosen, load) else owed
        self._shortened = used_up - owed
        return chosen, used_up

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        if partition not in self._reachable(view, load, near=False):
            return False
        node = load.node(partition)
        return node is None or self._cost(node, load.now()) <= TOLERANCE * self._bar

    def _look_at(self, view: TopicView) -> None:
        leaders = frozenset(view.leaders) - {NO_LEADER}
        if self._view is not None:
            for node_id in leaders - self._leaders:
                self._broker(node_id).is_away = True
        self._leaders = leaders
        super()._look_at(view)

    def _pool(self, view: TopicView, load: TopicLoad) -> Pool:
        unavailable = load.unavailable()
        if unavailable != self._left_out:
            for node_id in unavailable:
                self._broker(node_id).is_away = True
            self._left_out = unavailable
        pool = super()._pool(view, load)
        if pool.is_near:
            everywhere = self._reachable(view, load, near=False)
            if len(everywhere) > len(pool):
                now = load.now()
                least = max(PROMPT, self._cheapest(everywhere, load, now))
                if self._cheapest(pool, load, now) > SPILL * least:
                    return everywhere
        return pool

    def _is_dear(self, partition: int, load: TopicLoad) -> bool:
        """Whether its leader is beyond the bar, or unknown, where there was a choice."""
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
            return self._draw_among_dear(pool, chance)

        return draw

    def _draw_among_dear(self, pool: Pool, chance: Chance) -> int:
        """Where few are taken when drawn: weigh all, once in as many turns as that costs."""
        table = self._table
        if table is None or table.pool is not pool or table.draws_left == 0:
            table = self._table = _Table(pool, chance)
        table.draws_left -= 1
        for _ in range(_TRIES):
            place = bisect(table.sums, self._random.random() * table.sums[-1])
            chosen = self._random.choice(pool.by_leader[place])
            # One that has become dearer since counts as it is now.
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
        """The lowest cost among the pool's brokers; of many, the last cheapest and a few others."""
        brokers = pool.by_leader
        if len(brokers) > _FEW:
            best, looked = self._looked.get(pool.is_near, (brokers[0][0], 0))
            candidates = [led[0] for led in brokers[looked : looked + _FEW]]
            looked = looked + _FEW if looked + _FEW < len(brokers) else 0
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
            self._looked[pool.is_near] = best, looked
        return 0.0 if least == math.inf else least

    def _cost(self, node: NodeLoad, now: float) -> float:
        """Seconds until a turn given to this broker now is acknowledged, as far as is known."""
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
    """What the chance of each broker of a pool was, and the running sum of what they lead.

    Attributes:
        draws_left: after which it is made again.
    """

    __slots__ = ("chances", "draws_left", "pool", "sums")

    def __init__(self, pool: Pool, chance: Chance) -> None:
        self.pool = pool
        self.chances = [chance(led[0]) for led in pool.by_leader]
        self.sums = [*accumulate(map(mul, map(len, pool.by_leader), self.chances))]
        self.draws_left = max(1, len(self.chances) // _TRIES)


class _Broker:
    """What is remembered of one broker from look to look.

    Attributes:
        is_away: it was silent, unavailable or no leader, and has not been looked at since.
        returned: loop time at which it was back.
    """

    __slots__ = ("_acknowledged", "_silent_since", "is_away", "returned")

    def __init__(self) -> None:
        self.is_away = False
        self.returned = -math.inf
        self._acknowledged = math.nan
        self._silent_since = math.inf

    def wait(self, node: NodeLoad, now: float) -> float:
        """Seconds for which it has owed an answer, or taken nothing, at least."""
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
