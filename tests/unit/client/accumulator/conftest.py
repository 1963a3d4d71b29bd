"""An accumulator with the calls of a sender."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import ModuleType
from typing import Any

import pytest

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.memory_cy import MemoryRequest
from trimtab.client.accumulator.queues_cy import Batch, Delivery, PartitionQueue
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.topic_view import TopicView
from trimtab.kafka.records import Record
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.compression import Compression

MakeView = Callable[..., TopicView]


@dataclass
class Bench:
    """An accumulator, with the calls of a sender."""

    accumulator: Accumulator
    wakes: list[None]
    callback_errors: list[Exception]
    time: list[float] = field(default_factory=lambda: [100.0])
    interrupts: list[None] = field(default_factory=list)
    """So often the next look at the clock meets Ctrl-C."""

    def send(
        self,
        value: bytes | None = b"",
        key: bytes | None = None,
        partition: int | None = None,
        headers: Any = None,
        timestamp: int | None = 0,
    ) -> Delivery:
        delivery = self.accumulator.append("topic", value, key, headers, partition, timestamp)
        assert delivery is not None
        return delivery

    def busy_queues(self) -> list[PartitionQueue]:
        topic = self.accumulator.topic("topic")
        return [queue for queue in topic.queues if queue.batches]

    def take_all(self) -> list[Batch]:
        return [
            self.accumulator.take_batch(queue)
            for queue in self.busy_queues()
            for _ in range(len(queue.batches))
        ]

    def bytes_by_partition(self) -> Counter[int]:
        return Counter(
            {
                queue.partition: sum(batch.size for batch in queue.batches)
                for queue in self.busy_queues()
            }
        )

    def records(self, batch: Batch) -> list[Record]:
        return read_records("topic", batch.queue.partition, batch.builder.build(-1, -1, -1), 0)


def request_memory(accumulator: Any, size: int) -> MemoryRequest:
    """A queued request for memory, in the form that the accumulator has."""
    request: MemoryRequest = sys.modules[type(accumulator.memory).__module__].MemoryRequest(size)
    accumulator.queue_for_memory(request)
    return request


@pytest.fixture
def make_bench(make_view: MakeView, in_form: Callable[[str], ModuleType]) -> Callable[..., Bench]:
    form = in_form("trimtab.client.accumulator.accumulator_cy")
    java_form = in_form("trimtab.client.accumulator.java_accumulator_cy")
    base = in_form("trimtab.client.accumulator.batching_cy").Batching

    def make(
        leaders: tuple[int, ...] = (0, 1, 2),
        batch_size: int = 1000,
        make_partitioner: Callable[[], object] | None = None,
        is_java: bool = False,
        treatment: tuple[str, int] | None = None,
        in_transactions: bool = False,
        **options: Any,
    ) -> Bench:
        wakes: list[None] = []
        errors: list[Exception] = []
        time = [100.0]
        interrupts: list[None] = []

        def now() -> float:
            if interrupts:
                interrupts.pop()
                raise KeyboardInterrupt
            return time[0]

        kind = java_form.JavaAccumulator if is_java else form.Accumulator
        accumulator = kind(
            batch_size=batch_size,
            buffer_memory=options.pop("buffer_memory", 1 << 30),
            max_request_size=options.pop("max_request_size", 1 << 20),
            compression=options.pop("compression", Compression.NONE),
            ignores_keys=options.pop("ignores_keys", False),
            untreated=["topic"] if treatment else (),
            make_partitioner=make_partitioner
            or (lambda: BuiltInPartitioner(BuiltInOptions(max(1, batch_size), False), Random(3))),
            now=now,
            wall_clock=lambda: 1_700_000_000.25,
            lock=threading.RLock(),
            wake=lambda: wakes.append(None),
            on_callback_error=errors.append,
        )
        assert not options
        assert isinstance(accumulator, base)
        accumulator.update_topic(make_view(leaders))
        if treatment is not None:
            accumulator.treat_keys("topic", *treatment, Random(5), in_transactions)
        return Bench(accumulator, wakes, errors, time, interrupts)

    return make
