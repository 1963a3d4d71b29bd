"""A model of a producer and its brokers as queues, in virtual time, for the partitioner study.

    records at a rate ─▶ partitioner ─▶ batches ─▶ at most 5 requests in flight ─▶ a broker, one
                              ▲                                                    request at a time
                              └───────────── TopicLoad, NodeLoad ◀────────────────────┘

It calls the real partitioners through the interfaces of a producer. The model leaves out network
bandwidth, compression, and the producer's CPU time.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import cast

from trimtab.client.partitioner.protocol import Partitioner, TurnPartitioner
from trimtab.client.topic_view import PartitionView, TopicView

RECORD_OVERHEAD = 9
BATCH_OVERHEAD = 61
MAX_IN_FLIGHT = 5
BUFFER_MEMORY = 32 << 20
HALF_LIFE = 0.25
"""Half-life in seconds of the measurements in a broker's latency and drain rate."""

Service = Callable[[float, int, Random], float]
"""`(now, bytes, random) -> seconds` that a broker needs for a request; infinite while it fails."""


def serve(delay: float = 0.0003, rate: float = 100e6, slow: float = 0.0) -> Service:
    """A broker that needs `delay + slow` seconds per request, and 1/`rate` seconds per byte."""
    return lambda now, size, random: delay + slow + size / rate


@dataclass(frozen=True, slots=True)
class Death:
    """A broker that does not answer from `begin` to `end`; at `detected` other brokers become the
    leaders of its partitions."""

    node: int
    begin: float
    detected: float
    end: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """Times are in seconds, sizes in bytes, rates in records or bytes per second.

    Attributes:
        watched: the brokers whose share is reported.
        distance: extra seconds that broker 0's answers take on the network.
        racks: the brokers' racks; the producer is in that of the first broker, if there are any.
    """

    name: str
    services: tuple[Service, ...]
    partitions: int
    rate: float
    watched: tuple[int, ...] = (0,)
    size: int = 512
    seconds: float = 30.0
    linger: float = 0.0
    batch_size: int = 16_384
    distance: float = 0.0
    death: Death | None = None
    racks: tuple[str, ...] = ()


@dataclass(slots=True)
class Node:
    """A broker, and the producer's view of its load (`NodeLoad`)."""

    node_id: int
    service: Service
    queued_batches: int = 0
    queued_bytes: int = 0
    in_flight_batches: int = 0
    in_flight_bytes: int = 0
    latency: float = 0.0
    drain_rate: float = 0.0
    not_ready_since: float = -1.0
    last_acknowledged: float = 0.0
    drained: float = 0.0
    drained_in: float = 0.0
    requests: int = 0
    free_at: float = 0.0
    acknowledged_bytes: int = 0
    waiting: list[tuple[float, list[Batch]]] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    partition: int
    created: float
    arrivals: list[float]
    size: int = BATCH_OVERHEAD


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run. Latencies are in milliseconds; shares and spread are fractions.

    Attributes:
        share: the watched brokers' share of all bytes.
        spread: of the other brokers' partitions, the largest minus the smallest, over the mean.
        kept: records acknowledged by the end, divided by those due.
        batch: mean number of records per batch.
    """

    average: float
    p99: float
    share: float
    spread: float
    kept: float
    batch: float


Policy = Callable[[int, str | None, Random], Partitioner]
"""Makes a partitioner for a quantum and a rack."""


class Model:
    """One run; also the `TopicLoad` that the partitioner sees."""

    def __init__(self, scenario: Scenario, make: Policy, seed: int) -> None:
        self._scenario = scenario
        self._random = Random(seed)
        rack = scenario.racks[0] if scenario.racks else None
        self._partitioner = make(scenario.batch_size, rack, self._random)
        self._now = 0.0
        self._nodes = [Node(i, service) for i, service in enumerate(scenario.services)]
        count = scenario.partitions
        self._leaders = [p % len(self._nodes) for p in range(count)]
        self._queues: list[deque[Batch]] = [deque() for _ in range(count)]
        self._open: list[Batch | None] = [None] * count
        self._busy: set[int] = set()
        self._resized: set[int] = set()
        self._bytes = [0] * count
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._used = 0
        self._turn, self._produced = -1, 0
        self._latencies: list[float] = []
        self._batches = 0
        self._dead = -1
        self._view = self._look()

    # TopicLoad

    def queued_batches(self, partition: int) -> int:
        return len(self._queues[partition])

    def queued_bytes(self, partition: int) -> int:
        return sum(batch.size for batch in self._queues[partition])

    def take_resized(self) -> Collection[int]:
        resized, self._resized = self._resized, set()
        return resized

    def used(self) -> Collection[int]:
        return range(len(self._queues))

    def node(self, partition: int) -> Node | None:
        return self._nodes[self._leaders[partition]]

    def unavailable(self) -> frozenset[int]:
        return frozenset()

    def now(self) -> float:
        return self._now

    # the run

    def run(self) -> Outcome:
        scenario = self._scenario
        death = scenario.death
        if death is not None:
            self._at(death.begin, lambda: self._die(death))
            self._at(death.detected, lambda: self._move(death))
            self._at(death.end, lambda: self._revive(death))
        due, step = 0.0, 1.0 / scenario.rate
        while due < scenario.seconds:
            self._advance(max(due, self._now))
            if self._used >= BUFFER_MEMORY:
                if not self._events or self._events[0][0] >= scenario.seconds:
                    break
                self._advance(self._events[0][0])
                continue
            self._append()
            due += step
        self._advance(scenario.seconds)
        return self._outcome()

    def _advance(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self._now, _, action = heapq.heappop(events)
            action()
        self._now = until

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, action))

    # the accumulator

    def _append(self) -> None:
        size = self._scenario.size + RECORD_OVERHEAD
        partition = self._choose(size)
        batch = self._open[partition]
        if batch is not None and batch.size + size > self._scenario.batch_size:
            batch = self._open[partition] = None
        grown = size
        if batch is None:
            batch = Batch(partition, self._now, [])
            self._open[partition] = batch
            self._queues[partition].append(batch)
            self._busy.add(partition)
            self._resized.add(partition)
            self._nodes[self._leaders[partition]].queued_batches += 1
            grown += BATCH_OVERHEAD
            self._at(self._now + self._scenario.linger, lambda: self._send(partition))
        batch.arrivals.append(self._now)
        batch.size += size
        self._used += grown
        self._produced += grown
        self._nodes[self._leaders[partition]].queued_bytes += grown
        if batch.size + size > self._scenario.batch_size:
            self._open[partition] = None
            self._send(partition)

    def _choose(self, size: int) -> int:
        if not hasattr(self._partitioner, "next_turn"):
            return self._partitioner.partition(self._view, None, None)
        partitioner = cast(TurnPartitioner, self._partitioner)
        turn, quantum = self._turn, self._scenario.batch_size
        if turn >= 0:
            batch = self._open[turn]
            needs_batch = batch is None or batch.size + size > quantum
            if partitioner.turns_by_batch:
                is_over = needs_batch
            else:
                is_over = self._produced >= 2 * quantum or (
                    needs_batch
                    and (
                        self._produced >= quantum
                        or not partitioner.may_stay(self._view, turn, self)
                    )
                )
            if not is_over:
                return turn
        overshoot = max(0, self._produced - quantum)
        self._turn, self._produced = partitioner.next_turn(self._view, turn, overshoot, self)
        return self._turn

    # the sender

    def _send(self, partition: int) -> None:
        node = self._nodes[self._leaders[partition]]
        while node.requests < MAX_IN_FLIGHT:
            taken = [
                self._take(p, node)
                for p in sorted(p for p in self._busy if self._leaders[p] == node.node_id)
                if self._is_due(p)
            ]
            if not taken:
                node.not_ready_since = -1.0
                return
            self._request(node, taken)
        if node.not_ready_since < 0:
            node.not_ready_since = self._now

    def _is_due(self, partition: int) -> bool:
        head = self._queues[partition][0]
        return (
            self._open[partition] is not head
            or self._now >= head.created + self._scenario.linger - 1e-9
        )

    def _take(self, partition: int, node: Node) -> Batch:
        queue = self._queues[partition]
        batch = queue.popleft()
        self._resized.add(partition)
        if self._open[partition] is batch:
            self._open[partition] = None
        if not queue:
            self._busy.discard(partition)
        node.queued_batches -= 1
        node.queued_bytes -= batch.size
        node.in_flight_batches += 1
        node.in_flight_bytes += batch.size
        return batch

    def _request(self, node: Node, taken: list[Batch]) -> None:
        node.requests += 1
        node.waiting.append((self._now, taken))
        if node.node_id == self._dead:
            return
        size = sum(batch.size for batch in taken)
        begin = max(self._now, node.free_at)
        node.free_at = begin + node.service(begin, size, self._random)
        sent = self._now
        distance = 0.0 if node.node_id else self._scenario.distance
        self._at(node.free_at + distance, lambda: self._answered(node, sent, taken, size))

    def _answered(self, node: Node, sent: float, taken: list[Batch], size: int) -> None:
        if (sent, taken) not in node.waiting:
            return
        node.waiting.remove((sent, taken))
        now = self._now
        busy = max(1e-6, now - max(sent, node.last_acknowledged))
        kept = 0.5 ** ((now - node.last_acknowledged) / HALF_LIFE) if node.latency else 0.0
        node.latency = kept * node.latency + (1 - kept) * (now - sent)
        kept = 0.5 ** (busy / HALF_LIFE)
        node.drained = kept * node.drained + size
        node.drained_in = kept * node.drained_in + busy
        node.drain_rate = node.drained / node.drained_in
        node.last_acknowledged = now
        node.requests -= 1
        node.in_flight_batches -= len(taken)
        node.in_flight_bytes -= size
        node.acknowledged_bytes += size
        self._used -= size
        self._batches += len(taken)
        for batch in taken:
            self._bytes[batch.partition] += batch.size
            self._latencies.extend(now - arrival for arrival in batch.arrivals)
        for batch in taken[:1]:
            self._send(batch.partition)

    # failing brokers

    def _die(self, death: Death) -> None:
        self._dead = death.node

    def _move(self, death: Death) -> None:
        """Give the broker's partitions other leaders, and send unanswered batches to these."""
        node = self._nodes[death.node]
        batches = [batch for _, taken in node.waiting for batch in taken]
        node.waiting.clear()
        node.requests = node.in_flight_batches = node.in_flight_bytes = 0
        for batch in reversed(batches):
            self._queues[batch.partition].appendleft(batch)
            self._busy.add(batch.partition)
            self._resized.add(batch.partition)
            node.queued_batches += 1
            node.queued_bytes += batch.size
        others = [other for other in self._nodes if other is not node]
        for partition, leader in enumerate(self._leaders):
            if leader == death.node:
                self._lead(partition, others[partition % len(others)])
        self._view = self._look()

    def _revive(self, death: Death) -> None:
        self._dead = -1
        node = self._nodes[death.node]
        node.free_at = self._now
        for partition in range(death.node, len(self._leaders), len(self._nodes)):
            self._lead(partition, node)
        self._view = self._look()

    def _lead(self, partition: int, node: Node) -> None:
        before = self._nodes[self._leaders[partition]]
        size = self.queued_bytes(partition)
        before.queued_batches -= len(self._queues[partition])
        before.queued_bytes -= size
        node.queued_batches += len(self._queues[partition])
        node.queued_bytes += size
        self._leaders[partition] = node.node_id
        if self._queues[partition]:
            self._send(partition)

    def _look(self) -> TopicView:
        racks = self._scenario.racks
        leaders = tuple(self._leaders)
        return TopicView(
            name="study",
            topic_id=bytes(16),
            is_internal=False,
            partitions=tuple(PartitionView(n, 0, (n,), (n,), ()) for n in leaders),
            leaders=leaders,
            racks=tuple(racks[n] if racks else None for n in leaders),
            available=tuple(range(len(leaders))),
        )

    def _outcome(self) -> Outcome:
        scenario = self._scenario
        due = math.floor(scenario.rate * scenario.seconds)
        # Unacknowledged records count with the time they have waited so far.
        waiting = [
            self._now - arrival
            for batch in (
                *(batch for queue in self._queues for batch in queue),
                *(b for node in self._nodes for _, taken in node.waiting for b in taken),
            )
            for arrival in batch.arrivals
        ]
        latencies = sorted(self._latencies + waiting)
        total = sum(node.acknowledged_bytes for node in self._nodes) or 1
        healthy = [
            size
            for partition, size in enumerate(self._bytes)
            if partition % len(self._nodes) not in scenario.watched
        ]
        return Outcome(
            average=1000 * sum(latencies) / len(latencies),
            p99=1000 * latencies[int(0.99 * len(latencies))],
            share=sum(self._nodes[n].acknowledged_bytes for n in scenario.watched) / total,
            spread=(max(healthy) - min(healthy)) / (sum(healthy) / len(healthy)) if healthy else 0,
            kept=len(self._latencies) / due,
            batch=len(self._latencies) / max(1, self._batches),
        )
