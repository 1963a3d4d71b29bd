"""A model of producers and their brokers as queues, in virtual time, for the partitioner study.

    records at a rate ─▶ partitioner ─▶ batches ─▶ requests in flight ─▶ a broker, one request
                              ▲                                            at a time
                              └───────── TopicLoad, NodeLoad ◀─────────────────┘

It calls the real partitioners and windows through the interfaces of a producer. The model leaves
out network bandwidth, compression, and the producer's CPU time.

Long because producers, brokers and time are one model, which one reads as a whole.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final, cast

from lab.benchmarks.partitioning_bound import WINDOW, least_total
from trimtab.client.partitioner.protocol import Partitioner, TurnPartitioner, silent_after
from trimtab.client.sender.window import RecordRate, Window, gather_time
from trimtab.client.topic_view import PartitionView, TopicView

RECORD_OVERHEAD = 9
BATCH_OVERHEAD = 61
MAX_IN_FLIGHT = 5
BUFFER_MEMORY = 32 << 20

Service = Callable[[float, int, float], float]
"""`(now, bytes, luck) -> seconds` that a broker needs for a request; `luck` is a random number from
0 to 1."""

Sizes = Callable[[Random], int]
"""The size of the next record, in bytes."""


def serve(delay: float = 0.0003, rate: float = 100e6, slow: float = 0.0) -> Service:
    """A broker that needs `delay + slow` seconds per request, and 1/`rate` seconds per byte."""
    return lambda now, size, luck: delay + slow + size / rate


def always(size: int) -> Sizes:
    return lambda random: size


_DEFAULT_SIZES: Final = always(512)


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
        rate: records of all producers together.
        watched: the brokers whose share is reported.
        burst: records that arrive at once.
        distance: extra seconds that broker 0's answers take on the network.
        racks: the brokers' racks; the producers are in that of the first broker, if there are any.
    """

    name: str
    services: tuple[Service, ...]
    partitions: int
    rate: float
    watched: tuple[int, ...] = (0,)
    sizes: Sizes = _DEFAULT_SIZES
    seconds: float = 30.0
    linger: float = 0.0
    batch_size: int = 16_384
    burst: int = 1
    producers: int = 1
    distance: float = 0.0
    death: Death | None = None
    racks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run. Latencies are in milliseconds; shares are fractions.

    Attributes:
        share: the watched brokers' share of the bytes that the partitioner placed.
        deviation: the largest difference of a partition's bytes from the mean, over the mean.
        kept: records acknowledged by the end, divided by those due.
        batch: mean number of records per batch.
        least: the average latency that no placement can be below, see `partitioning_bound`.
    """

    average: float
    p99: float
    share: float
    deviation: float
    kept: float
    batch: float
    least: float


@dataclass(frozen=True, slots=True)
class Policy:
    """How a producer places records.

    Attributes:
        make: makes a partitioner for a quantum, a linger and a rack.
        has_windows: whether small batches gather while a broker is busy.
        is_patient: whether they gather while the broker is known to be busy, with any producer.
    """

    make: Callable[[int, float, str | None, Random], Partitioner]
    has_windows: bool = False
    is_patient: bool = False


@dataclass(slots=True)
class Placed:
    """What producers placed on a broker in a window of `partitioning_bound`."""

    records: int = 0
    bytes: int = 0


class Broker:
    """A broker that serves one request at a time, and what it will do."""

    def __init__(self, number: int, service: Service, distance: float, seed: int) -> None:
        self.number = number
        self.distance = distance
        self.free_at = 0.0
        self.is_dead = False
        self.placed_bytes = 0
        self.windows: list[Placed] = []
        self._service = service
        self._random = Random(f"{seed} {number}")
        self._luck = self._random.random()

    def serve(self, now: float, size: int) -> float:
        """Take a request; returns when its answer arrives."""
        begin = max(now, self.free_at)
        self.free_at = begin + self._service(begin, size, self._luck)
        self._luck = self._random.random()
        return self.free_at + self.distance

    def best(self, now: float, size: int) -> float:
        """How long an answer to a request takes if it is not late at random."""
        return self._service(now, size, 1.0) + self.distance

    def foresee(self, now: float, size: int) -> float:
        """How long a request that is sent when the broker is free will take from now."""
        begin = max(now, self.free_at)
        return begin - now + self.service_at(begin, size) + self.distance

    def service_at(self, begin: float, size: int) -> float:
        """How long it will work on a request that it begins then."""
        return math.inf if self.is_dead else self._service(begin, size, self._luck)


@dataclass(slots=True, eq=False)
class Batch:
    """Records of a partition; it may be sent at `due`, or earlier if it is full."""

    partition: int
    due: float
    arrivals: list[float]
    size: int = BATCH_OVERHEAD


@dataclass(slots=True, eq=False)
class Request:
    sent: float
    was_alone: bool
    batches: list[Batch]


@dataclass(slots=True, eq=False)
class Node:
    """One producer's view of a broker (`NodeLoad`)."""

    node_id: int
    broker: Broker
    queued_batches: int = 0
    queued_bytes: int = 0
    requests: int = 0
    moved_at: float = -1.0
    alone: float = 0.0
    behind: float = 0.0
    drain_rate: float = 0.0
    not_ready_since: float = -1.0
    watched_until: float = math.inf
    window: Window = field(init=False)
    waiting: list[Request] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.window = Window(self, MAX_IN_FLIGHT)

    @property
    def load(self) -> Node:
        return self


class Model:
    """One run of all producers."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int) -> None:
        self.scenario = scenario
        self.policy = policy
        self.now = 0.0
        self.brokers = [
            Broker(i, service, 0.0 if i else scenario.distance, seed)
            for i, service in enumerate(scenario.services)
        ]
        for broker in self.brokers:
            broker.windows = [Placed() for _ in range(math.ceil(scenario.seconds / WINDOW))]
        count = scenario.partitions
        self.leaders = [p % len(self.brokers) for p in range(count)]
        self.bytes = [0] * count
        self.latencies: list[float] = []
        self.batches = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._sizes = Random(seed)
        self.view = self._look()
        self._producers = [
            Producer(self, Random(seed * 1000 + number)) for number in range(scenario.producers)
        ]

    def run(self) -> Outcome:
        scenario = self.scenario
        death = scenario.death
        if death is not None:
            self.at(death.begin, lambda: self._die(death))
            self.at(death.detected, lambda: self._move(death))
            self.at(death.end, lambda: self._revive(death))
        step = scenario.producers * scenario.burst / scenario.rate
        for number, producer in enumerate(self._producers):
            producer.produce(self._arrivals(step, number / len(self._producers) * step))
        self._advance(scenario.seconds)
        return self._outcome()

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, action))

    def place(self, partition: int, size: int) -> None:
        """A producer has put a record of so many bytes into a partition's batch."""
        self.bytes[partition] += size
        broker = self.brokers[self.leaders[partition]]
        broker.placed_bytes += size
        window = min(int(self.now / WINDOW), len(broker.windows) - 1)
        broker.windows[window].records += 1
        broker.windows[window].bytes += size

    def _arrivals(self, step: float, first: float) -> Iterator[tuple[float, int]]:
        due = first
        while due < self.scenario.seconds:
            for _ in range(self.scenario.burst):
                yield due, self.scenario.sizes(self._sizes)
            due += step

    def _advance(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, action = heapq.heappop(events)
            action()
        self.now = until

    # failing brokers

    def _die(self, death: Death) -> None:
        self.brokers[death.node].is_dead = True

    def _move(self, death: Death) -> None:
        """Give the broker's partitions other leaders, and send unanswered batches to these."""
        others = [each.number for each in self.brokers if each.number != death.node]
        moved = [p for p, leader in enumerate(self.leaders) if leader == death.node]
        self._lead({p: others[p % len(others)] for p in moved}, death.node)

    def _revive(self, death: Death) -> None:
        broker = self.brokers[death.node]
        broker.is_dead = False
        broker.free_at = self.now
        moved = range(death.node, len(self.leaders), len(self.brokers))
        self._lead(dict.fromkeys(moved, death.node), None)

    def _lead(self, leaders: dict[int, int], dead: int | None) -> None:
        before = list(self.leaders)
        for partition, leader in leaders.items():
            self.leaders[partition] = leader
        self.view = self._look()
        for producer in self._producers:
            producer.follow(before, leaders, dead)

    def _look(self) -> TopicView:
        racks = self.scenario.racks
        leaders = tuple(self.leaders)
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
        scenario = self.scenario
        due = math.floor(scenario.rate * scenario.seconds)
        # Unacknowledged records count with the time they have waited so far.
        waiting = [self.now - arrival for each in self._producers for arrival in each.unanswered()]
        latencies = sorted(self.latencies + waiting)
        total = sum(self.bytes)
        mean = sum(self.bytes) / len(self.bytes)
        return Outcome(
            average=1000 * sum(latencies) / len(latencies),
            p99=1000 * latencies[int(0.99 * len(latencies))],
            share=sum(self.brokers[n].placed_bytes for n in scenario.watched) / total,
            deviation=max(abs(size - mean) for size in self.bytes) / mean,
            kept=len(self.latencies) / due,
            batch=len(self.latencies) / max(1, self.batches),
            least=1000 * self._least() / len(latencies),
        )

    def _least(self) -> float:
        """The sum of all latencies, at least."""
        scenario = self.scenario
        arrivals = [
            sum(each.records for each in column)
            for column in zip(*(broker.windows for broker in self.brokers), strict=True)
        ]
        return sum(
            least_total(
                broker.best,
                [each.records for each in broker.windows],
                [each.bytes for each in broker.windows],
                arrivals,
                scenario.producers * scenario.burst / scenario.rate,
                scenario.burst,
            )
            for broker in self.brokers
        )


class Producer:
    """One producer; also the `TopicLoad` that its partitioner sees."""

    def __init__(self, model: Model, random: Random) -> None:
        scenario = model.scenario
        self._model = model
        self._linger = scenario.linger
        self._batch_size = scenario.batch_size
        rack = scenario.racks[0] if scenario.racks else None
        self._partitioner = model.policy.make(scenario.batch_size, self._linger, rack, random)
        self._nodes = [Node(each.number, each) for each in model.brokers]
        count = scenario.partitions
        self._queues: list[deque[Batch]] = [deque() for _ in range(count)]
        self._open: list[Batch | None] = [None] * count
        self._resized: set[int] = set()
        self._chosen = [0] * count
        self._used = 0
        self._turn, self._produced = -1, 0
        self._rate = RecordRate()
        self._appended = 0
        self._gather = 0.0
        self._load_changes = 0
        self._asked_at = -1
        self._arrivals: Iterator[tuple[float, int]] = iter(())
        self._next: tuple[float, int] | None = None
        self._is_blocked = False

    # TopicLoad

    def queued_batches(self, partition: int) -> int:
        return len(self._queues[partition])

    def queued_bytes(self, partition: int) -> int:
        return sum(batch.size for batch in self._queues[partition])

    def chosen_bytes(self, partition: int) -> int:
        return self._chosen[partition]

    def take_resized(self) -> Collection[int]:
        resized, self._resized = self._resized, set()
        return resized

    def used(self) -> Collection[int]:
        return range(len(self._queues))

    def node(self, partition: int) -> Node | None:
        return self._nodes[self._model.leaders[partition]]

    def unavailable(self) -> frozenset[int]:
        return frozenset()

    def now(self) -> float:
        return self._model.now

    # the records

    def produce(self, arrivals: Iterator[tuple[float, int]]) -> None:
        self._arrivals = arrivals
        self._expect()

    def _expect(self) -> None:
        self._next = next(self._arrivals, None)
        if self._next is not None:
            self._model.at(max(self._next[0], self._model.now), self._arrive)

    def _arrive(self) -> None:
        assert self._next is not None
        if self._used >= BUFFER_MEMORY:
            self._is_blocked = True
            return
        self._append(self._next[1])
        self._expect()

    def _append(self, size: int) -> None:
        self._appended += 1
        if self._rate.count(self._appended, self._model.now):
            self._gather = gather_time(self._rate.per_second, self._nodes)
        size += RECORD_OVERHEAD
        partition = self._choose(size)
        batch = self._open[partition]
        if batch is not None and batch.size + size > self._batch_size:
            batch = self._open[partition] = None
        grown = size
        node = self._nodes[self._model.leaders[partition]]
        if batch is None:
            due = self._model.now + self._gathers()
            batch = Batch(partition, due, [])
            self._open[partition] = batch
            self._queues[partition].append(batch)
            node.busy.add(partition)
            self._resized.add(partition)
            node.queued_batches += 1
            grown += BATCH_OVERHEAD
            self._model.at(due, lambda: self._send_to(partition))
        # A record that waited for memory counts from when it could be appended, as `send` blocks.
        batch.arrivals.append(self._model.now)
        batch.size += size
        self._used += grown
        self._produced += grown
        self._chosen[partition] += grown
        node.queued_bytes += grown
        self._model.place(partition, grown)
        if batch.size + size > self._batch_size:
            self._open[partition] = None
            self._send_to(partition)

    def _choose(self, size: int) -> int:
        view = self._model.view
        if not hasattr(self._partitioner, "next_turn"):
            return self._partitioner.partition(view, None, None)
        partitioner = cast(TurnPartitioner, self._partitioner)
        turn, quantum = self._turn, self._batch_size
        if turn >= 0:
            batch = self._open[turn]
            needs_batch = batch is None or batch.size + size > quantum
            if partitioner.turns_by_batch:
                is_over = needs_batch
            else:
                is_over = self._produced >= 2 * quantum or (
                    needs_batch and self._produced >= quantum
                )
                has_changed = partitioner.follows_load and self._asked_at != self._load_changes
                if not is_over and (needs_batch or has_changed):
                    self._asked_at = self._load_changes
                    is_over = not partitioner.may_stay(view, turn, self)
            if not is_over:
                return turn
        overshoot = max(0, self._produced - quantum)
        self._turn, self._produced = partitioner.next_turn(view, turn, overshoot, self)
        self._asked_at = self._load_changes
        return self._turn

    # the sender

    def _send_to(self, partition: int) -> None:
        self._send(self._nodes[self._model.leaders[partition]])

    def _send(self, node: Node) -> None:
        while node.requests < MAX_IN_FLIGHT:
            has_room = self._has_room(node)
            taken = [self._take(p, node) for p in sorted(node.busy) if self._is_due(p, has_room)]
            if not taken:
                node.not_ready_since = -1.0
                return
            self._request(node, taken)
        if node.not_ready_since < 0 and node.busy:
            node.not_ready_since = self._model.now

    def _has_room(self, node: Node) -> bool:
        policy = self._model.policy
        if policy.is_patient:
            return node.broker.free_at <= self._model.now + 1e-9
        return not policy.has_windows or node.requests < node.window.size(self._model.now)

    def _is_due(self, partition: int, has_room: bool) -> bool:
        head = self._queues[partition][0]
        if self._open[partition] is not head:
            return True
        return has_room and self._model.now >= head.due

    def _gathers(self) -> float:
        if not self._model.policy.has_windows:
            return self._linger
        return max(self._linger, self._gather)

    def _take(self, partition: int, node: Node) -> Batch:
        queue = self._queues[partition]
        batch = queue.popleft()
        self._resized.add(partition)
        if self._open[partition] is batch:
            self._open[partition] = None
        if not queue:
            node.busy.discard(partition)
        node.queued_batches -= 1
        node.queued_bytes -= batch.size
        return batch

    def _request(self, node: Node, taken: list[Batch]) -> None:
        now = self._model.now
        request = Request(now, node.window.sent(now), taken)
        node.waiting.append(request)
        self._load_changes += 1
        self._watch(node)
        if node.broker.is_dead:
            return
        size = sum(batch.size for batch in taken)
        answer = node.broker.serve(now, size)
        if self._model.policy.is_patient:
            self._model.at(node.broker.free_at, lambda: self._send(node))
        self._model.at(answer, lambda: self._answered(node, request, size))

    def _watch(self, node: Node) -> None:
        """As the sender does: notice that a broker becomes silent."""
        silent_at = node.moved_at + silent_after(node)
        if node.requests and silent_at < node.watched_until:
            node.watched_until = silent_at
            self._model.at(silent_at + 1e-9, lambda: self._look_at(node, silent_at))

    def _look_at(self, node: Node, at: float) -> None:
        if node.watched_until != at:
            return  # an earlier look replaced this one
        node.watched_until = math.inf
        if node.requests:
            if node.moved_at + silent_after(node) > self._model.now:
                self._watch(node)
            else:
                self._load_changes += 1

    def _answered(self, node: Node, request: Request, size: int) -> None:
        if request not in node.waiting or node.broker.is_dead:
            return
        model, now = self._model, self._model.now
        node.waiting.remove(request)
        node.window.answered(now, request.sent, request.was_alone, size)
        self._load_changes += 1
        self._watch(node)
        self._used -= size
        model.batches += len(request.batches)
        for batch in request.batches:
            model.latencies.extend(now - arrival for arrival in batch.arrivals)
        self._send(node)
        if self._is_blocked and self._used < BUFFER_MEMORY:
            self._is_blocked = False
            self._arrive()

    def follow(self, before: list[int], leaders: dict[int, int], dead: int | None) -> None:
        """Partitions have other leaders; `dead`, if any, has lost its requests."""
        if dead is not None:
            node = self._nodes[dead]
            batches = [batch for request in node.waiting for batch in request.batches]
            for _ in node.waiting:
                node.window.lost(self._model.now)
            node.waiting.clear()
            for batch in reversed(batches):
                self._queues[batch.partition].appendleft(batch)
                node.busy.add(batch.partition)
                self._resized.add(batch.partition)
                node.queued_batches += 1
                node.queued_bytes += batch.size
        self._load_changes += 1
        for partition, leader in leaders.items():
            old, new = self._nodes[before[partition]], self._nodes[leader]
            size = self.queued_bytes(partition)
            old.queued_batches -= len(self._queues[partition])
            old.queued_bytes -= size
            new.queued_batches += len(self._queues[partition])
            new.queued_bytes += size
            if self._queues[partition]:
                old.busy.discard(partition)
                new.busy.add(partition)
                self._send(new)

    def unanswered(self) -> Iterator[float]:
        """When the records that are not acknowledged arrived."""
        for queue in self._queues:
            for batch in queue:
                yield from batch.arrivals
        for node in self._nodes:
            for request in node.waiting:
                for batch in request.batches:
                    yield from batch.arrivals
