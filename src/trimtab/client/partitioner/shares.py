"""The brokers of a pool, and what each has got of its share of the bytes.

bytes of a turn ─▶ its partition, kept in order of bytes      ─▶ the broker's next partition
               └─▶ the broker's debt: its share less its bytes ─▶ the choice of the broker

Shares are those of weighted fair queueing: the pool's level rises by the bytes of a turn divided by
the sum of the brokers' weights, and a broker's share by as much times its weight. So a broker's
weight changes without a look at the others. It is the number of its partitions while it answers,
0 while it is excused, and larger while it catches up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from trimtab.client.partitioner.protocol import TopicLoad
from trimtab.client.topic_view import TopicView

FEW = 8
"""Up to this many brokers, all are compared for a turn."""

CATCH_UP = 2.0
"""Shares that a broker gets while it makes up for what it missed: a burst could overload it."""

OUTAGE = 10.0
"""Seconds of silence after which a broker counts as unavailable, and so is owed no more. Clusters
replace the leader that is silent for so long (`broker.session.timeout.ms`: 9 s)."""


class BrokerShare:
    """A broker with its partitions in a pool, and its share.

    Attributes:
        sample: one of its partitions.
        count: how many partitions of the pool it leads.
        current: the partition of its last turn, -1 before the first.
        known: the value of `load.chosen_bytes(current)` that was last counted.
        silent_since: loop time since which it has not answered in its usual time; -1 if it does.
        weight: its part of the pool's weights, see above.
        lag: bytes of each partition that it missed while it was excused, and has not got since.
        last_turn: the number of its last turn in the pool.
        expected, cost, answer, is_gathering, is_forced, is_last: from the last comparison, see
            `SoonestPartitioner`.
    """

    __slots__ = (
        *("answer", "cost", "expected", "is_forced", "is_gathering", "is_last"),
        *("count", "current", "known", "lag", "last_turn", "node_id", "sample", "silent_since"),
        "weight",
        *("_debt", "_growth", "_level", "_others", "_run", "_taken", "_tie"),
    )

    def __init__(
        self, node_id: int, partitions: Sequence[int], behind: Mapping[int, float]
    ) -> None:
        self.node_id = node_id
        self.sample = partitions[0]
        self.count = len(partitions)
        self.current = -1
        self.known = 0
        self.silent_since = -1.0
        self.weight = float(self.count)
        self.lag = sum(behind.get(each, 0.0) for each in partitions) / self.count
        self.last_turn = 0
        self.expected = self.cost = self.answer = 0.0
        self.is_gathering = self.is_forced = self.is_last = False
        # (bytes, place, partition) of all but `current`, the fewest bytes first.
        self._others = [
            (-int(behind.get(partition, 0.0)), place, partition)
            for place, partition in enumerate(partitions)
        ]
        heapq.heapify(self._others)
        self._taken = self._tie = self._run = 0  # of `current`: bytes, place, bytes of its turn
        self._debt = 0.0
        self._level = 0.0  # the pool's level when `_debt` and `lag` were last computed
        self._growth = 0.0  # of `lag`, for each byte of the level

    def partitions(self) -> Iterator[int]:
        if self.current >= 0:
            yield self.current
        for _, _, partition in self._others:
            yield partition

    def behind(self) -> Iterator[tuple[int, float]]:
        """Each partition, and its bytes behind its share; by the last computed debt."""
        taken = [(taken, partition) for taken, _, partition in self._others]
        if self.current >= 0:
            taken.append((self._taken, self.current))
        share = self.lag + (self._debt + sum(each for each, _ in taken)) / self.count
        for each, partition in taken:
            yield partition, share - each

    def next_partition(self, load: TopicLoad, quantum: int) -> int:
        """The partition of its next turn: that of its last one while its batch waits, else the one
        with the fewest bytes."""
        if self.current >= 0:
            goes_on = self._run < quantum and load.queued_batches(self.current) > 0
            if goes_on or not self._others or self._taken <= self._others[0][0]:
                return self.current
        return self._others[0][2]

    def begin_turn(self, load: TopicLoad, quantum: int) -> tuple[int, int]:
        """The partition of its next turn, and the bytes of the quantum that are used up."""
        partition = self.next_partition(load, quantum)
        if partition != self.current:
            if self.current < 0:
                self._taken, self._tie, self.current = heapq.heappop(self._others)
            else:
                entry = self._taken, self._tie, self.current
                self._taken, self._tie, self.current = heapq.heapreplace(self._others, entry)
            self._run = 0
        elif self._run >= quantum or load.queued_batches(partition) == 0:
            self._run = 0
        self.known = load.chosen_bytes(partition)
        return partition, self._run

    def count_bytes(self, size: int) -> None:
        """Count bytes of the current turn."""
        self._run += size
        self._taken += size
        self._debt -= size

    def debt(self, level: float, shrinking: float) -> float:
        """Bytes that it is behind its share now, negative if it is ahead.

        Args:
            level: the pool's.
            shrinking: the part of the share by which the debt shrinks; 0 keeps it.
        """
        risen = level - self._level
        self._level = level
        self.lag += risen * self._growth
        share = risen * self.weight
        if share == 0.0:
            return self._debt
        debt = self._debt
        if debt < 0.0:
            debt += share * (1.0 + shrinking)
            if debt > 0.0:
                debt *= (1.0 - shrinking) / (1.0 + shrinking)
        else:
            debt += share * (1.0 - shrinking)
        self._debt = debt
        return debt

    @property
    def is_silent(self) -> bool:
        return self.silent_since >= 0.0

    @property
    def is_excused(self) -> bool:
        return self.weight == 0.0

    @property
    def is_catching_up(self) -> bool:
        return self._growth < 0.0

    def weigh(self, shares: float, growth: float) -> None:
        """Set its weight, in shares, and the growth of its lag, from now on."""
        self.weight = shares * self.count
        self._growth = growth


class SharedPool:
    """The brokers to choose from, in random order.

    Attributes:
        is_near: whether it has only partitions of the client's rack.
        level: bytes that each partition would have got so far, had its broker always answered.
        cheapest: the cheapest broker of the last comparison.
        turns: turns so far.
        is_mute: whether no broker answers.
    """

    __slots__ = (
        *("brokers", "cheapest", "is_mute", "is_near", "level", "turns"),
        *("_cursor", "_owed", "_shrinking", "_weight"),
    )

    def __init__(
        self,
        view: TopicView,
        partitions: Sequence[int],
        is_near: bool,
        shrinking: float,
        owed: float,
        random: Random,
        behind: Mapping[int, float] | None = None,
    ) -> None:
        led: dict[int, list[int]] = {}
        for partition in random.sample(partitions, len(partitions)):
            led.setdefault(view.leaders[partition], []).append(partition)
        self.brokers = [BrokerShare(node_id, own, behind or {}) for node_id, own in led.items()]
        self.is_near = is_near
        self.level = 0.0
        self.cheapest = self.brokers[0]
        self.turns = 0
        self._shrinking = shrinking
        self.is_mute = False
        self._owed = owed
        self._weight = float(len(partitions))  # of all brokers
        if behind:
            first = min(each.lag for each in self.brokers)
            for broker in self.brokers:
                broker.lag -= first
                self._answers(broker)
        self._cursor = 0

    def to_compare(self, current: BrokerShare | None) -> Sequence[BrokerShare]:
        """All brokers; of many, the last cheapest, the current one, and the next few in turn."""
        brokers = self.brokers
        if len(brokers) <= FEW:
            return brokers
        begin = self._cursor
        some = brokers[begin : begin + FEW]
        self._cursor = begin + FEW if begin + FEW < len(brokers) else 0
        for broker in (self.cheapest, current):
            if broker is not None and broker not in some:
                some.append(broker)
        return some

    def behind(self) -> dict[int, float]:
        """The bytes by which each partition is behind its share now, negative if it is ahead."""
        found: dict[int, float] = {}
        for broker in self.brokers:
            self.debt(broker)
            found.update(broker.behind())
        return found

    def debt(self, broker: BrokerShare) -> float:
        """Bytes that a broker is behind its share now, its lag aside."""
        debt = broker.debt(self.level, self._shrinking)
        if broker.is_catching_up and broker.lag <= 0.0:
            self._weigh(broker, 1.0, 0.0)
        return debt

    def count_bytes(self, broker: BrokerShare, size: int) -> None:
        """Count bytes of a broker's current turn."""
        self.level += size / self._weight
        self.debt(broker)
        broker.count_bytes(size)

    def note_silence(self, broker: BrokerShare, since: float, now: float, credit: float) -> None:
        """Note since when a broker has been silent, -1 if it answers.

        In a silence it is excused, unless it is the whole credit behind when that begins: one that
        is often silent would never get its share. What it misses is made up for once it answers,
        but for what it misses in an outage. While no broker answers, all share.
        """
        if since < 0.0:
            for share in self.brokers if self.is_mute else (broker,):
                share.silent_since = -1.0
                self._answers(share)
            self.is_mute = False
        elif not self.is_mute and (since != broker.silent_since or now - since > OUTAGE):
            broker.silent_since = since
            if now - since > OUTAGE:
                self._excuse(broker, 0.0)
            elif self._owed == 0.0 or self._behind(broker) < credit:
                self._excuse(broker, self._owed)
            else:
                self._weigh(broker, 1.0, 0.0)

    def _behind(self, broker: BrokerShare) -> float:
        """Bytes; what it is ahead does not count against its lag, which would grow by as much."""
        return max(0.0, self.debt(broker)) + broker.lag * broker.count

    def _answers(self, broker: BrokerShare) -> None:
        if broker.lag > 0.0:
            self._weigh(broker, CATCH_UP, 1.0 - CATCH_UP)
        else:
            self._weigh(broker, 1.0, 0.0)

    def _excuse(self, broker: BrokerShare, owed: float) -> None:
        if self._weight > broker.weight:
            self._weigh(broker, 0.0, owed)
            return
        self.is_mute = True
        for each in self.brokers:
            self._weigh(each, 1.0, 0.0)

    def _weigh(self, broker: BrokerShare, shares: float, growth: float) -> None:
        broker.debt(self.level, self._shrinking)
        self._weight += shares * broker.count - broker.weight
        broker.weigh(shares, growth)
