"""Turns for the broker that will acknowledge them soonest (`partitioner.balance`).

    open requests, their age, answer times ─▶ expected seconds to an acknowledgement ─┐
    bytes chosen so far ─▶ debts ─▶ what they are worth, in seconds ──────────────────┴▶ cost

The turn goes to the broker with the least cost, and there to the partition with the fewest bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from trimtab.client.partitioner.pool import reachable, why_excluded
from trimtab.client.partitioner.protocol import NodeLoad, TopicLoad, Weight, silent_after
from trimtab.client.partitioner.shares import BrokerShare, SharedPool
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import UsageError

STRICT = 0.0
"""The bound of `partitioner.balance=strict`."""

FREE = math.inf
"""The bound of `partitioner.balance=free`."""

BOUNDS = {"strict": STRICT, "free": FREE}

CREDIT = 4
"""Quanta by which a broker may be behind its share or ahead of it."""

PRICE = 2.0
"""What a debt of the whole credit is worth, in answers of the slowest broker."""

PATIENCE = 0.5
"""A batch that gathers gets the next record if that costs it at most this part of an answer."""

EVEN = 0.25
"""With `free`, what a debt of a quantum is worth, in answers of the quickest broker."""

FREE_SHRINKING = 0.5
"""With `free`, the part of a share by which debts shrink."""

TRUST = 0.25
"""Seconds for which a measured answer time holds while nothing is sent to the broker."""

HALF_LIFE = 0.25
"""Seconds in which an older one halves, so that a broker that was slow is tried again."""

TURNS_A_HALF = 16
"""It halves at most once in so many turns, so that few records take a slow broker's time."""

SPILL = 8.0
"""With `free`, a turn leaves the client's rack if it takes this many times as long there."""

SPILL_FLOOR = 0.002
"""Seconds that other racks count with in this comparison, at least."""

SPILL_PATIENCE = 0.05
"""Seconds for which it must have done so, as pauses are shorter."""

SPILL_MEMORY = 1.0
"""Seconds after a turn that left the rack in which the next one may leave it at once."""

_POOLS_KEPT = 8


@dataclass(frozen=True, slots=True)
class SoonestOptions:
    """The options of `SoonestPartitioner`.

    Attributes:
        quantum: bytes of one turn (`batch.size`, at least 1).
        bound: by how much of its share a partition may get more or less: `STRICT`, up to 1, or
            `FREE`.
        linger: seconds that a batch waits for more records (`linger.ms`).
        rack: `client.rack` if `partitioner.rack.aware`, else None.
    """

    quantum: int
    bound: float
    linger: float = 0.0
    rack: str | None = None

    def __post_init__(self) -> None:
        if self.quantum < 1:
            raise UsageError(
                f"the quantum of a turn is {self.quantum} bytes; it must be at least 1"
            )
        if not (0.0 <= self.bound <= 1.0 or self.bound == FREE):
            raise UsageError(f"the bound is {self.bound}; it must be from 0 to 1, or infinite")


class SoonestPartitioner:
    """Gives each turn to the broker that will acknowledge it soonest, within a bound on unevenness.

    Goals:
        A record waits for no broker while another one is free. A slow broker gets its share, less
        the bound, and delays only the records sent to it; one that does not answer delays none
        after that. Equal bytes for the partitions of a broker, and for brokers as far as the bound
        says.

    Algorithm:
        Expected time of a broker: what its open requests will still take, by the measured time
        between answers, plus the measured time of an answer. An answer that is late is expected to
        be as late again. An answer time that is old shrinks.
        Debt of a broker: the bytes that it is behind its share. With a bound `d` debts shrink by
        the part `d` of the share, so that lasting differences up to the bound cost nothing.
        Cost: the expected time, less what the debt is worth. The cheapest broker gets the turn
        (drift plus penalty). A debt of the whole credit forces a turn, and a broker that is as far
        ahead gets none. With `free` debts only decide between brokers about as quick.
        A turn ends when a quantum was produced, or when another broker has become cheaper by more
        than batches linger. While a batch gathers, it also gets records for which another broker is
        a little cheaper, so that batches are fewer.
        A silent broker, which has owed an answer for twice the usual time, gets no turns, unless it
        is the credit behind already. What it missed is made up for at twice its share once it
        answers, also if leaders change meanwhile: the part `1 - d` of it, and with `free` nothing.
        After ten seconds of silence it is owed no more. Nor are partitions that are unavailable.
        Of more than eight brokers some are compared: the last cheapest, and eight others in turn.

    Guarantees:
        The bytes of two partitions of one broker differ by at most a quantum and what turns
        exceeded it. With a bound of 0, brokers that answer are at most the credit and a turn away
        from their shares, whatever they cost; any other is behind by twice the credit, a turn, and
        what was produced in its longest silence, at most. A turn costs O(log partitions).

    Source: ADR 0016.
    """

    turns_by_batch = False
    follows_load = True

    def __init__(self, options: SoonestOptions, random: Random) -> None:
        self._options = options
        self._random = random
        self._credit = CREDIT * options.quantum
        self._is_free = options.bound == FREE
        self._shrinking = FREE_SHRINKING if self._is_free else options.bound
        # The part of what a silent broker misses that is made up for.
        self._owed = max(0.0, 1.0 - options.bound)
        self._view: TopicView | None = None
        self._behind: dict[int, float] = {}  # when leaders last changed, for the next pool
        self._pools: dict[tuple[frozenset[int], bool], SharedPool] = {}
        self._turn: tuple[SharedPool, BrokerShare] | None = None
        self._overloaded_since = math.inf
        self._spilled_at = -math.inf

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        self._count_bytes(load)
        pool = self._pool(view, load)
        chosen = self._compare(pool, load)
        pool.turns += 1
        chosen.last_turn = pool.turns
        self._turn = pool, chosen
        partition, used = chosen.begin_turn(load, self._options.quantum)
        if chosen.answer == 0.0 and len(pool.brokers) > 1:
            used = self._options.quantum - 1  # not yet measured: one record
        return partition, used

    def may_stay(self, view: TopicView, partition: int, load: TopicLoad) -> bool:
        # With a linger a turn fills its batch, whatever is owed by then.
        if self._options.linger == 0.0:
            self._count_bytes(load)
        pool = self._pool(view, load)
        if self._turn is None or self._turn[0] is not pool or self._turn[1].current != partition:
            return False
        current = self._turn[1]
        best = self._compare(pool, load, current)
        if best is current or current.is_silent or best.is_forced:
            return best is current
        return current.cost - best.cost <= self._options.linger

    def weigh(self, view: TopicView, load: TopicLoad) -> Mapping[int, Weight]:
        self._count_bytes(load)
        pool = self._pool(view, load)
        best = self._compare(pool, load)
        likely = best.next_partition(load, self._options.quantum)
        now = load.now()
        weights: dict[int, Weight] = {}
        for broker in pool.brokers:
            node = load.node(broker.sample)
            weight = Weight(
                0.0,
                f"broker {broker.node_id} does not answer in its usual time"
                if broker.is_silent and broker is not best
                else None,
                0.0 if node is None else self._expected(node, now, pool.turns - broker.last_turn),
                pool.debt(broker) / broker.count + broker.lag,
            )
            weights |= dict.fromkeys(broker.partitions(), weight)
        weights[likely] = weights[likely]._replace(probability=1.0)
        for partition in range(view.partition_count):
            if partition not in weights:
                because = why_excluded(view, partition, load.unavailable(), self._options.rack)
                weights[partition] = Weight(0.0, because)
        return weights

    def _count_bytes(self, load: TopicLoad) -> None:
        """Count what the current turn has produced since this was last called."""
        if self._turn is None:
            return
        pool, broker = self._turn
        chosen = load.chosen_bytes(broker.current)
        if chosen != broker.known:
            pool.count_bytes(broker, chosen - broker.known)
            broker.known = chosen

    # which brokers

    def _pool(self, view: TopicView, load: TopicLoad) -> SharedPool:
        """The brokers to choose from: with `free`, all if those in the rack are overloaded."""
        pool = self._reachable(view, load, self._options.rack)
        if pool.is_near and self._is_free:
            everywhere = self._reachable(view, load, None)
            if len(everywhere.brokers) > len(pool.brokers):
                here = self._compare(pool, load).expected
                is_overloaded = here > SPILL * SPILL_FLOOR and here > SPILL * max(
                    SPILL_FLOOR, self._compare(everywhere, load).expected
                )
                if self._may_spill(is_overloaded, load.now()):
                    return everywhere
        return pool

    def _may_spill(self, is_overloaded: bool, now: float) -> bool:
        """Whether a turn leaves the rack, which is overloaded or not."""
        if not is_overloaded:
            self._overloaded_since = math.inf
            return False
        self._overloaded_since = min(self._overloaded_since, now)
        lasts = now - self._overloaded_since >= SPILL_PATIENCE
        if not lasts and now - self._spilled_at > SPILL_MEMORY:
            return False
        self._spilled_at = now
        return True

    def _reachable(self, view: TopicView, load: TopicLoad, rack: str | None) -> SharedPool:
        if view is not self._view:
            known = self._view
            if known is None or known.leaders != view.leaders or known.racks != view.racks:
                if self._turn is not None and self._owed:
                    self._behind = self._turn[0].behind()
                self._pools.clear()
                self._turn = None
            self._view = view
        unavailable = load.unavailable()
        pool = self._pools.get((unavailable, rack is not None))
        if pool is None:
            if len(self._pools) == _POOLS_KEPT:
                del self._pools[next(iter(self._pools))]
            partitions, is_near = reachable(view, unavailable, rack)
            pool = SharedPool(
                view, partitions, is_near, self._shrinking, self._owed, self._random, self._behind
            )
            self._behind = {}
            self._pools[unavailable, rack is not None] = pool
        return pool

    # what they cost

    def _compare(
        self, pool: SharedPool, load: TopicLoad, current: BrokerShare | None = None
    ) -> BrokerShare:
        """The broker for a turn now. Also sets `expected` to `is_last` of those compared."""
        now, brokers = load.now(), pool.to_compare(current)
        slowest, soonest = 0.0, math.inf
        for broker in brokers:
            node = load.node(broker.sample)
            broker.expected = broker.answer = 0.0
            broker.is_gathering = False
            silent_since = -1.0
            if node is not None:
                broker.expected = self._expected(node, now, pool.turns - broker.last_turn)
                broker.answer = node.alone
                broker.is_gathering = node.queued_batches > 0
                silent_since = self._silent_since(node, now)
            if silent_since >= 0.0 or broker.is_silent or pool.is_mute:
                pool.note_silence(broker, silent_since, now, self._credit)
            if silent_since < 0.0:
                soonest = min(soonest, broker.expected)
                if node is not None:
                    slowest = max(slowest, node.alone, node.behind)
        if soonest == math.inf:
            soonest = 0.0
        for broker in brokers:
            debt = pool.debt(broker) / self._credit
            if self._is_free:
                worth = EVEN * (soonest + self._options.linger) * max(-1.0, min(CREDIT * debt, 1.0))
                broker.is_forced, broker.is_last = False, broker.is_silent
            else:
                worth = PRICE * slowest * debt
                broker.is_forced = debt >= 1.0 and not broker.is_excused
                broker.is_last = debt <= -1.0 or broker.is_silent
            # Among those forced the one with the largest debt comes first.
            broker.cost = -debt if broker.is_forced else broker.expected - worth
        best = pool.cheapest = min(brokers, key=_order)
        return best if best.is_forced or best.is_gathering else self._consolidate(best, brokers)

    def _consolidate(self, best: BrokerShare, brokers: Sequence[BrokerShare]) -> BrokerShare:
        """Instead of the best broker, one that costs little more and for which a batch gathers."""
        most = best.cost + PATIENCE * best.answer
        for broker in brokers:
            if broker.is_gathering and not broker.is_last and broker.cost <= most:
                best, most = broker, broker.cost
        return best

    def _expected(self, node: NodeLoad, now: float, turns: int) -> float:
        """Seconds until a turn given to this broker now is acknowledged; its last one was `turns`
        turns ago."""
        answer, requests = node.alone, node.requests
        remaining = 0.0
        if requests:
            gap = node.behind or answer
            waited = now - node.moved_at
            late = waited - max(answer, gap)
            remaining = (requests - 1) * gap + late if late > 0.0 else requests * gap - waited
            remaining = max(0.0, remaining)
        else:
            old = now - node.moved_at - TRUST
            if old > 0.0:
                answer *= 0.5 ** min(old / HALF_LIFE, turns / TURNS_A_HALF)
            if node.not_ready_since >= 0.0:
                remaining = now - node.not_ready_since
        waiting = node.queued_bytes - self._options.quantum
        if waiting > 0 and node.drain_rate > 0.0:
            remaining += waiting / node.drain_rate
        return remaining + answer

    def _silent_since(self, node: NodeLoad, now: float) -> float:
        """Loop time since which it has owed an answer, or accepted no batches, if that is more than
        twice its usual time; else -1."""
        since = node.moved_at if node.requests else node.not_ready_since
        return since if since >= 0.0 and now - since > silent_after(node) else -1.0


def _order(broker: BrokerShare) -> tuple[bool, bool, float, float]:
    """Forced brokers first; those that are silent or too far ahead last."""
    return (not broker.is_forced, broker.is_last, broker.cost, broker.expected)
