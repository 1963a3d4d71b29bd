"""CPU time in µs to choose a partition for a turn, which happens once per `batch.size` bytes.

For each partitioner and number of partitions, queues have various lengths. With every turn one
random queue changes, and that of the chosen partition grows. `table` formats the results for
docs/partitioning.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any, Final

from lab.benchmarks.report import progress
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.partitioner.protocol import TurnPartitioner
from trimtab.client.partitioner.soonest import BOUNDS, SoonestOptions, SoonestPartitioner
from trimtab.client.topic_view import PartitionView, TopicView

SIZES: Final = (
    *((3, 3, 3), (33, 3, 33), (1000, 100, 1000)),
    *((10_000, 100, 0), (10_000, 100, 2000), (10_000, 100, 10_000)),
)
"""Numbers of partitions, of brokers, and of queues with batches."""

TURNS: Final = 3000
LONGEST: Final = 50
NOW: Final = 100.0
BATCH_BYTES: Final = 16_384
POLICIES: Final = ("uniform", "adaptive", "adaptive, rack", "strict", "free", "free, rack")


class _Node:
    """A healthy broker."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.queued_batches = self.queued_bytes = 0
        self.requests = 1
        self.alone = 0.001 * (1 + node_id % 3)
        self.behind = 0.0
        self.moved_at = NOW
        self.drain_rate = 0.0
        self.not_ready_since = -1.0


class _Load:
    """The topic's queues: with every turn a random one changes, and the chosen one grows."""

    def __init__(self, leaders: Sequence[int], busy: int, random: Random) -> None:
        self._leaders = leaders
        self._nodes = {leader: _Node(leader) for leader in leaders}
        self._queued = [1 + each % LONGEST if each < busy else 0 for each in range(len(leaders))]
        self._busy = busy
        self._random = random
        self._resized: set[int] = set(range(busy))
        self._chosen = [0] * len(leaders)

    def pass_turn(self, chosen: int) -> None:
        self._chosen[chosen] += BATCH_BYTES
        if self._busy:
            changed = self._random.randrange(self._busy)
            self._queued[changed] = self._random.randrange(LONGEST)
            self._queued[chosen] += 1
            self._resized |= {changed, chosen}

    def queued_batches(self, partition: int) -> int:
        return self._queued[partition]

    def queued_bytes(self, partition: int) -> int:
        return BATCH_BYTES * self._queued[partition]

    def chosen_bytes(self, partition: int) -> int:
        return self._chosen[partition]

    def take_resized(self) -> Collection[int]:
        resized, self._resized = self._resized, set()
        return resized

    def used(self) -> Collection[int]:
        return range(self._busy)

    def node(self, partition: int) -> _Node:
        return self._nodes[self._leaders[partition]]

    def unavailable(self) -> frozenset[int]:
        return frozenset()

    def now(self) -> float:
        return NOW


def run(runs: int, records: int) -> None:
    """Measure and print; `records` is ignored."""
    for partitions, brokers, busy in SIZES:
        progress(f"turns: {partitions} partitions, {busy} busy queues")
        line: dict[str, Any] = {
            "stage": "turns",
            "partitions": partitions,
            "brokers": brokers,
            "busy": busy,
            "unit": "us",
        }
        for policy in POLICIES:
            least = min(_measure(policy, partitions, brokers, busy) for _ in range(runs))
            line[policy] = round(least, 1)
        print(json.dumps(line), flush=True)


def _measure(policy: str, partitions: int, brokers: int, busy: int) -> float:
    leaders = tuple(each % brokers for each in range(partitions))
    racks = tuple("a" if leader % 3 else "b" for leader in leaders)
    view = TopicView(
        name="topic",
        topic_id=bytes(16),
        is_internal=False,
        partitions=tuple(PartitionView(each, 0, (each,), (each,), ()) for each in leaders),
        leaders=leaders,
        racks=racks,
        available=tuple(range(partitions)),
    )
    name, _, in_rack = policy.partition(", ")
    rack = "a" if in_rack else None
    partitioner: TurnPartitioner
    if name in BOUNDS:
        soonest = SoonestOptions(BATCH_BYTES, BOUNDS[name], rack=rack)
        partitioner = SoonestPartitioner(soonest, Random(1))
    else:
        built_in = BuiltInOptions(BATCH_BYTES, name != "uniform", rack)
        partitioner = BuiltInPartitioner(built_in, Random(1))
    load = _Load(leaders, busy, Random(2))
    chosen, _ = partitioner.next_turn(view, -1, 0, load)
    spent = 0.0
    for _ in range(TURNS):
        load.pass_turn(chosen)
        began = time.process_time()
        chosen, _ = partitioner.next_turn(view, chosen, 0, load)
        spent += time.process_time() - began
    return (spent - _clock_seconds()) / TURNS * 1e6


def _clock_seconds() -> float:
    """Seconds that reading the clock adds to a measurement."""
    spent = 0.0
    for _ in range(TURNS):
        began = time.process_time()
        spent += time.process_time() - began
    return spent


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"| partitions, brokers | busy queues | {' | '.join(POLICIES)} |",
        f"|---|--:|{'--:|' * len(POLICIES)}",
    ]
    for row in rows:
        costs = " | ".join(f"{row[policy]:g}" for policy in POLICIES)
        lines.append(f"| {row['partitions']:,}, {row['brokers']} | {row['busy']:,} | {costs} |")
    return lines
