"""The brokers of a pool, and what each has got of its share of the bytes.

bytes of a turn ─▶ its partition, kept in order of bytes      ─▶ the broker's next partition
               └─▶ the broker's debt: its share less its bytes ─▶ the choice of the broker
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from random import Random

from trimtab.client.partitioner.protocol import TopicLoad
from trimtab.client.topic_view import TopicView

FEW = 8
"""Up to this many brokers, all are compared for a turn."""


class Broker:
    """A broker with its partitions in a pool, and its share.

    Attributes:
        sample: one of its partitions.
        count: how many partitions of the pool it leads.
        current: the partition of its last turn, -1 before the first.
        known: the value of `load.chosen_bytes(current)` that was last counted.
        is_silent: whether it gets no turns because it does not answer.
        is_out: whether it has been silent for so long that the others share without it.
        last_turn: the number of its last turn in the pool.
        expected, cost, answer, is_gathering, is_forced, is_last: from the last comparison, see
            `SoonestPartitioner`.
    """

    __slots__ = (
        *("answer", "cost", "expected", "is_forced", "is_gathering", "is_last"),
        *("count", "current", "is_out", "is_silent", "known", "last_turn", "node_id", "sample"),
        *("_debt", "_level", "_others", "_run", "_taken", "_tie"),
    )

    def __init__(self, node_id: int, partitions: Sequence[int]) -> None:
        self.node_id = node_id
        self.sample = partitions[0]
        self.count = len(partitions)
        self.current = -1
        self.known = 0
        self.is_silent = False
        self.is_out = False
        self.last_turn = 0
        self.expected = self.cost = self.answer = 0.0
        self.is_gathering = self.is_forced = self.is_last = False
        # (bytes, place, partition) of all but `current`, the fewest bytes first.
        self._others = [(0, place, each) for place, each in enumerate(partitions)]
        self._taken = self._tie = self._run = 0  # of `current`: bytes, place, bytes of its turn
        self._debt = 0.0
        self._level = 0.0  # the pool's level when `_debt` was last computed

    def partitions(self) -> Iterator[int]:
        if self.current >= 0:
            yield self.current
        for _, _, partition in self._others:
            yield partition

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
        if not self.is_out:
            self._debt -= size

    def debt(self, level: float, shrinking: float) -> float:
        """Bytes that it is behind its share now, negative if it is ahead.

        Args:
            level: the pool's.
            shrinking: the part of the share by which the debt shrinks; 0 keeps it.
        """
        share = (level - self._level) * self.count
        self._level = level
        if share == 0.0 or self.is_out:
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

    def forgive(self, size: float) -> None:
        self._debt -= size


class SharedPool:
    """The brokers to choose from, in random order.

    Attributes:
        is_near: whether it has only partitions of the client's rack.
        level: bytes that each partition would have got so far if all had got the same.
        cheapest: the cheapest broker of the last comparison.
        turns: turns so far.
    """

    __slots__ = (
        *("brokers", "cheapest", "is_near", "level", "turns"),
        *("_cursor", "_partitions", "_shrinking"),
    )

    def __init__(
        self,
        view: TopicView,
        partitions: Sequence[int],
        is_near: bool,
        shrinking: float,
        random: Random,
    ) -> None:
        led: dict[int, list[int]] = {}
        for partition in random.sample(partitions, len(partitions)):
            led.setdefault(view.leaders[partition], []).append(partition)
        self.brokers = [Broker(node_id, own) for node_id, own in led.items()]
        self.is_near = is_near
        self.level = 0.0
        self.cheapest = self.brokers[0]
        self.turns = 0
        self._shrinking = shrinking
        self._partitions = len(partitions)  # of the brokers that share
        self._cursor = 0

    def to_compare(self, current: Broker | None) -> Sequence[Broker]:
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

    def debt(self, broker: Broker) -> float:
        """Bytes that a broker is behind its share now."""
        return broker.debt(self.level, self._shrinking)

    def count_bytes(self, broker: Broker, size: int) -> None:
        """Count bytes of a broker's current turn."""
        if not broker.is_out:
            self.level += size / self._partitions
        self.debt(broker)
        broker.count_bytes(size)

    def set_silent(self, broker: Broker, is_silent: bool, credit: float) -> None:
        """Note that a broker does not answer, or answers again.

        What it misses in a short silence is made up for later. Once that is the whole credit, the
        others share without it until it answers.
        """
        broker.is_silent = is_silent
        is_out = is_silent and (broker.is_out or self.debt(broker) >= credit)
        if is_out == broker.is_out:
            return
        for each in self.brokers:
            self.debt(each)
        broker.is_out = is_out
        # Debts sum to 0 afterwards, or else they would drift with every such change.
        sharing = [each for each in self.brokers if not each.is_out]
        self._partitions = sum(each.count for each in sharing or self.brokers)
        surplus = sum(map(self.debt, sharing)) / self._partitions
        for each in sharing:
            each.forgive(surplus * each.count)
