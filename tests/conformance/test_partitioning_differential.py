"""The partition of each record: Apache Kafka 4.4.0's producer compared with `compat=java`.

Each seed is a scenario: options, records of many sizes with and without keys, runs of the sender,
brokers that are not ready for a while, leaders that are lost or moved, racks that change,
partitions that are added. `java/PartitioningTwin.java` runs it with Kafka's own RecordAccumulator
and BuiltInPartitioner, `Scenario` with trimtab's Accumulator and JavaPartitioner. Both use the same
random numbers. The test compares the partition of each record, the count of random numbers used by
then, and the partition and number of records of each drained batch.

DECISIONS is the number of the partitioner's choices to compare (1,000,000 take about three
minutes); without it the run is small. Skipped without javac or kafka-clients
(`python -m lab.benchmarks.jars`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.benchmarks.jars import find_client_jars, java_command
from trimtab.client.accumulator.java_accumulator_cy import JavaAccumulator
from trimtab.client.partitioner.java import JavaOptions, JavaPartitioner
from trimtab.client.partitioner.protocol import TopicLoad
from trimtab.client.sender.node_record import NodeRecord
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.wire.compression import Compression

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or shutil.which("javac") is None or find_client_jars() is None,
    reason="needs javac and kafka-clients 4.4.0: python -m lab.benchmarks.jars",
)

DECISIONS = int(os.environ.get("DECISIONS", "100000"))
OPERATIONS = 4000
"""Operations of each scenario: enough to use each of a hundred partitions."""

MAIN = "org.apache.kafka.clients.producer.internals.PartitioningTwin"
SOURCE = Path(__file__).parent / "java" / "PartitioningTwin.java"

TOPIC = "topic"
MASK = 2**64 - 1
MAX_NODES = 6
RACKS = (None, "a", "b", "c")
BATCH_SIZES = (1, 2, 70, 100, 128, 333, 512, 1024, 4096, 16384, 16384, 65536, 262144)
CODECS = ("none", "none", "none", "lz4", "snappy")
TIMEOUTS = (0, 0, 3, 40)
BEGIN_MS = 1_700_000_000_000


def seconds(ms: int) -> float:
    """Milliseconds as units of 1/1024 s, whose differences are as exact as Java's integers."""
    return ms / 1024


class Chance:
    """Knuth's 64-bit random number generator, as in PartitioningTwin."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 1) & MASK
        self.draws = 0
        self.next()

    def next(self) -> int:
        self.draws += 1
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & MASK
        return self._state >> 33

    def below(self, bound: int) -> int:
        return self.next() % bound


class WatchedPartitioner(JavaPartitioner):
    """A JavaPartitioner that records its choices, and how it made them."""

    def __init__(self, options: JavaOptions, draws: Chance) -> None:
        super().__init__(options, draws.next)
        self._rack = options.rack
        self.chosen: list[int] = []
        self.kinds: Counter[str] = Counter()

    def next_turn(
        self, view: TopicView, previous: int, overshoot: int, load: TopicLoad
    ) -> tuple[int, int]:
        chosen = super().next_turn(view, previous, overshoot, load)
        self.chosen.append(chosen[0])
        if self.table is not None:
            kind = "of the rack by load" if self._rack in self._racks(view) else "by load"
        elif not view.available:
            kind = "without leaders"
        else:
            kind = "of the rack evenly" if self._rack in self._racks(view) else "evenly"
        self.kinds[kind] += 1
        return chosen

    def _racks(self, view: TopicView) -> tuple[str | None, ...]:
        return () if self._rack is None else view.racks


class Scenario:
    """Runs a seed's scenario with trimtab. `PartitioningTwin` is the same code in Java, line by
    line."""

    def __init__(self, seed: int, is_traced: bool = False) -> None:
        self._numbers = Chance(seed)
        self._draws = Chance(~seed)
        below = self._numbers.below
        batch_size = BATCH_SIZES[below(len(BATCH_SIZES))]
        if seed % 50 == 0:
            batch_size = 2**30 - 1
        self._batch_size = batch_size
        self._codec = CODECS[below(len(CODECS))]
        is_adaptive = below(4) != 0
        self._timeout_ms = TIMEOUTS[below(len(TIMEOUTS))]
        is_rack_aware = below(3) == 0
        rack = RACKS[1 + below(len(RACKS) - 1)]
        self._ignores_keys = below(4) == 0
        self._node_count = 1 + below(MAX_NODES)
        partitions = 1 + below(120 if below(8) == 0 else 9)
        has_racks = below(4) != 0
        self._typical_value = max(1, min(batch_size, 1 << 16) * (1 + below(8)) // 8)
        self._max_incomplete = max(24, min(400, (1 << 27) // batch_size))
        self._racks: list[str | None] = [None] * MAX_NODES
        for node in range(MAX_NODES):
            if has_racks:
                self._racks[node] = RACKS[below(len(RACKS))]
        self._takes = [True] * MAX_NODES
        self._leaders: list[int] = []
        for _ in range(partitions):
            self._add_partition()
        self._now_ms = BEGIN_MS
        self._hash = 0
        self._incomplete = 0
        self._seen: list[tuple[int, int]] = []
        self._nodes: dict[int, NodeRecord] = {}
        self.records = 0
        self.trace: list[str] | None = [] if is_traced else None
        options = JavaOptions(batch_size, is_adaptive, rack if is_rack_aware else None)
        self._partitioner = WatchedPartitioner(options, self._draws)
        self._accumulator = JavaAccumulator(
            batch_size=batch_size,
            buffer_memory=2**50,
            max_request_size=2**31 - 1,
            compression=Compression[self._codec.upper()],
            ignores_keys=self._ignores_keys,
            make_partitioner=lambda: self._partitioner,
            now=self._now,
            wall_clock=lambda: self._now_ms / 1000,
            lock=threading.RLock(),
            wake=lambda: None,
            on_callback_error=lambda error: pytest.fail(str(error)),
        )
        self._look()
        self._topic = self._accumulator.topic(TOPIC)

    @property
    def draws(self) -> int:
        """The count of random numbers used by the partitioner, which is that of its decisions."""
        return self._draws.draws - 1

    @property
    def kinds(self) -> Counter[str]:
        return self._partitioner.kinds

    def run(self, operations: int) -> str:
        """Run the scenario; returns a hash of all choices, with the counts of records and draws."""
        for operation in range(operations):
            what = self._act(self._numbers.below(1000))
            if self.trace is not None:
                self.trace.append(f"{operation} {what} draws={self._draws.draws}")
        return f"{self._hash:x} {self.records} {self._draws.draws}"

    def _now(self) -> float:
        return seconds(self._now_ms - BEGIN_MS)

    def _add_partition(self) -> None:
        below = self._numbers.below
        self._leaders.append(-1 if below(10) == 0 else below(self._node_count))

    def _look(self) -> None:
        """Publish new metadata."""
        leaders = tuple(self._leaders)
        self._accumulator.update_topic(
            TopicView(
                name=TOPIC,
                topic_id=bytes(16),
                is_internal=False,
                partitions=tuple(PartitionView(leader, 0, (), (), ()) for leader in leaders),
                leaders=leaders,
                racks=tuple(None if leader < 0 else self._racks[leader] for leader in leaders),
                available=tuple(p for p, leader in enumerate(leaders) if leader >= 0),
            )
        )
        self._seen += [(0, 0)] * (len(leaders) - len(self._seen))

    def _act(self, kind: int) -> str:
        below = self._numbers.below
        if self._incomplete >= self._max_incomplete:
            return self._drain_all()
        if kind < 700:
            return self._append(None, None)
        if kind < 760:
            return self._append(None, bytes(below(256) for _ in range(below(9))))
        if kind < 820:
            return self._append(below(len(self._leaders)), None)
        if kind < 900:
            return self._pass()
        if kind < 930:
            partition = below(len(self._leaders))
            come_back = below(3) == 0
            self._settle(partition, come_back)
            return f"settle {partition}{' again' if come_back else ''}"
        if kind < 955:
            self._now_ms += below(30)
            return "time"
        if kind < 975:
            node = below(self._node_count)
            self._takes[node] = not self._takes[node]
            return f"node {node} takes {str(self._takes[node]).lower()}"
        if kind < 985:
            partition = below(len(self._leaders))
            self._leaders[partition] = -1 if below(3) == 0 else below(self._node_count)
            self._look()
            return f"leader of {partition} {self._leaders[partition]}"
        if kind < 990:
            node = below(self._node_count)
            self._racks[node] = RACKS[below(len(RACKS))]
            self._look()
            return f"rack of {node} {self._racks[node] or 'null'}"
        if kind < 992:
            if len(self._leaders) < 150:
                self._add_partition()
            self._look()
            return f"partitions {len(self._leaders)}"
        if kind < 994:
            self._leaders = [-1] * len(self._leaders)
            self._look()
            return "no leaders"
        if kind < 998:
            self._leaders = [below(self._node_count) for _ in self._leaders]
            self._look()
            return "all leaders"
        return self._drain_all()

    def _append(self, partition: int | None, key: bytes | None) -> str:
        below = self._numbers.below
        value = self._value()
        headers = None
        if below(8) == 0:
            headers = []
            for _ in range(1 + below(3)):
                name = "n" * (1 + below(12)) + ("é" if below(4) == 0 else "")
                size = below(80)
                headers.append((name, None if size < 10 else bytes(size - 10)))
        timestamp = self._now_ms
        if below(16) == 0:
            timestamp += below(1 << (1 + below(29))) - (1 << 20)
        # If the turn is over, the partition changes before this record or after it.
        current = self._topic.current
        self._partitioner.chosen.clear()
        delivery = self._accumulator.append(TOPIC, value, key, headers, partition, timestamp)
        assert delivery is not None
        if partition is None and (key is None or self._ignores_keys):
            candidates = [p for p in (current, *self._partitioner.chosen) if p >= 0]
        else:
            candidates = list(range(len(self._leaders)))
        found = next(p for p in candidates if self._load(p) != self._seen[p])
        seen = self._load(found)
        self._incomplete += seen[1] - self._seen[found][1]
        self._seen[found] = seen
        self.records += 1
        self._mix(found)
        self._mix(self._draws.draws)
        return f"append {-1 if value is None else len(value)}: {found}"

    def _load(self, partition: int) -> tuple[int, int]:
        queue = self._topic.queues[partition]
        return queue.queued_bytes, len(queue.batches)

    def _value(self) -> bytes | None:
        below = self._numbers.below
        kind = below(16)
        if kind == 0:
            return None
        if kind < 9:
            return bytes(below(self._typical_value))
        if kind < 14:
            return bytes(below(40))
        if kind < 15:
            # Sizes near a full batch, where the free bytes of a larger buffer matter.
            return bytes(max(0, min(self._batch_size, 1 << 16) - 90 + below(100)))
        return bytes(below(3 * min(self._batch_size, 1 << 17)))

    def _pass(self) -> str:
        """One run of the sender: ready partitions, ready brokers, drained batches."""
        self._publish_load()
        ready = {self._leaders[partition] for partition in self._busy()} - {-1}
        said = "pass"
        for node in sorted(ready):
            self._note(node, self._takes[node])
            self._mix(node)
            said += f" {node}{'' if self._takes[node] else ' (not ready)'}"
            if self._takes[node] and self._numbers.below(4) != 0:
                self._drain({node})
        return said

    def _busy(self) -> list[int]:
        return [queue.partition for queue in self._topic.queues if queue.batches]

    def _publish_load(self) -> None:
        late = (
            node_id
            for node_id, node in self._nodes.items()
            if node.is_unavailable(self._now(), seconds(self._timeout_ms), True)
        )
        self._accumulator.publish_load(frozenset(late if self._timeout_ms else ()))

    def _note(self, node_id: int, takes: bool) -> None:
        """Note, as the sender does, whether a broker with batches is ready."""
        if node_id not in self._nodes:
            self._nodes[node_id] = NodeRecord(self._accumulator.node(node_id), None, self._now())
        if takes:
            self._nodes[node_id].take(self._now())
        else:
            self._nodes[node_id].wait(self._now())

    def _drain(self, nodes: set[int]) -> None:
        """Drain the oldest batch of every partition that these nodes lead."""
        for partition in self._busy():
            if self._leaders[partition] in nodes:
                batch = self._accumulator.take_batch(self._topic.queues[partition])
                self._seen[partition] = self._load(partition)
                self._mix(partition)
                self._mix(batch.count)
        if self._codec != "none":
            ratio = (20 + self._numbers.below(100)) / 100
            self._topic.compression_ratio = struct.unpack("f", struct.pack("f", ratio))[0]

    def _settle(self, partition: int, come_back: bool) -> None:
        """Acknowledge a partition's batches in flight, or put them back for a retry."""
        for batch in reversed(list(self._topic.queues[partition].in_flight)):
            if come_back:
                self._accumulator.put_back(batch)
            else:
                self._accumulator.complete(batch, 0, -1)
                self._incomplete -= 1
        self._seen[partition] = self._load(partition)

    def _drain_all(self) -> str:
        """Send and acknowledge all batches; partitions without a leader get one."""
        for partition, leader in enumerate(self._leaders):
            if leader < 0:
                self._leaders[partition] = self._numbers.below(self._node_count)
        self._look()
        while True:
            self._publish_load()
            ready = {self._leaders[partition] for partition in self._busy()}
            if not ready:
                break
            for node in range(self._node_count):
                self._note(node, True)
            self._drain(ready)
        for partition in range(len(self._leaders)):
            self._settle(partition, False)
        return "drain all"

    def _mix(self, fact: int) -> None:
        self._hash = (self._hash * 1_000_003 + fact) & MASK


class Twin:
    """The compiled PartitioningTwin, which runs the scenarios with Apache Kafka's code."""

    def __init__(self, classes: Path) -> None:
        self._class_path = f"{classes}{os.pathsep}{find_client_jars()}/*"
        subprocess.run(
            ["javac", "-d", str(classes), "-cp", self._class_path, str(SOURCE)], check=True
        )

    @contextmanager
    def lines(self, seed: int, count: int, *flags: str) -> Iterator[Iterator[str]]:
        """The lines that it prints for each of `count` scenarios, while it runs."""
        arguments = (str(seed), str(count), str(OPERATIONS), *flags)
        command = [*java_command("512m"), "-ea", "-cp", self._class_path, MAIN, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield (line.rstrip("\n") for line in process.stdout)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return Twin(tmp_path_factory.mktemp("classes"))


def first_difference(twin: Twin, seed: int) -> str:
    """The first difference of the two runs of a scenario, with the operations before it."""
    scenario = Scenario(seed, is_traced=True)
    scenario.run(OPERATIONS)
    assert scenario.trace is not None
    with twin.lines(seed, 1, "trace") as lines:
        java = list(itertools.islice(lines, OPERATIONS))
    for index, (theirs, ours) in enumerate(zip(java, scenario.trace, strict=True)):
        if theirs != ours:
            before = "\n".join(java[max(0, index - 5) : index])
            return f"scenario {seed}:\n{before}\nJava:    {theirs}\ntrimtab: {ours}"
    return f"scenario {seed}: the traces agree, but not the batches that were taken"


@pytest.mark.timeout(600 + DECISIONS // 500)
def test_every_choice_equals_javas(twin: Twin, capsys: pytest.CaptureFixture[str]) -> None:
    decisions = records = 0
    kinds: Counter[str] = Counter()
    different: list[int] = []
    with twin.lines(1, 10**9) as lines:
        for seed in itertools.count(1):
            scenario = Scenario(seed)
            ours = f"{seed} {scenario.run(OPERATIONS)}"
            if next(lines, "nothing: it has ended") != ours:
                different.append(seed)
                if len(different) == 3:
                    break
            decisions += scenario.draws
            records += scenario.records
            kinds += scenario.kinds
            if decisions >= DECISIONS:
                break
    with capsys.disabled():
        print(
            f"\n{seed} scenarios, {records} records, {decisions} decisions"
            f" ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))});"
            f" differences: {len(different)}"
        )
    assert not different, "\n\n".join(first_difference(twin, each) for each in different)
    assert len(kinds) == 5, "the scenarios must lead to every kind of choice"
