"""What waits of a topic and how its brokers do, as a test says: a `TopicLoad` and `NodeLoad`s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from trimtab.client.partitioner.protocol import TurnPartitioner
from trimtab.client.topic_view import TopicView


@dataclass
class ScriptedNode:
    node_id: int
    queued_batches: int = 0
    queued_bytes: int = 0
    requests: int = 0
    moved_at: float = 100.0
    alone: float = 0.001
    behind: float = 0.0
    drain_rate: float = 0.0
    not_ready_since: float = -1.0


@dataclass
class ScriptedLoad:
    """`queued` holds batches for each partition that has any; `reads` counts looks at queues."""

    queued: dict[int, int] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    nodes: dict[int, ScriptedNode] = field(default_factory=dict)
    leaders: tuple[int, ...] = ()
    clock: float = 100.0
    reads: int = 0
    taken: dict[int, int] = field(default_factory=dict)
    chosen: Counter[int] = field(default_factory=Counter)

    def queued_batches(self, partition: int) -> int:
        self.reads += 1
        return self.queued.get(partition, 0)

    def queued_bytes(self, partition: int) -> int:
        return 16_384 * self.queued.get(partition, 0)

    def chosen_bytes(self, partition: int) -> int:
        return self.chosen[partition]

    def take_resized(self) -> Collection[int]:
        was, now = self.taken, dict(self.queued)
        self.taken = now
        return {p for p in was.keys() | now.keys() if was.get(p, 0) != now.get(p, 0)}

    def used(self) -> Collection[int]:
        return self.queued.keys()

    def node(self, partition: int) -> ScriptedNode | None:
        return self.nodes.get(self.leaders[partition]) if self.leaders else None

    def unavailable(self) -> frozenset[int]:
        return self.left_out

    def now(self) -> float:
        return self.clock


def take_turns(
    partitioner: TurnPartitioner, view: TopicView, count: int, load: ScriptedLoad | None = None
) -> Counter[int]:
    """How many of `count` turns, none longer than its quantum, each partition gets."""
    load = load or ScriptedLoad()
    chosen: Counter[int] = Counter()
    previous = -1
    for _ in range(count):
        previous, _ = partitioner.next_turn(view, previous, 0, load)
        chosen[previous] += 1
    return chosen
