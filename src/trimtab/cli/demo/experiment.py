"""Eight ways of choosing a partition, side by side against a cluster with one slow broker.

The set-up of KIP-794's measurements: three brokers, one topic per way with one partition on each
broker, linger.ms=0, all other settings default, and broker 0 answering every produce request 20 ms
late, one request at a time per connection. Every way sends all flights at a steady rate: so that an
even third is half of what the slow broker takes, which is one batch every 20 ms.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.demo.flights import Flight
from trimtab.cli.latency import Latency

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Delivery
    from trimtab.client.producer import AsyncProducer

RACKS: Final = ("a", "b", "c")
"""One broker in each; there are as many brokers as racks."""

CLIENT_RACK: Final = "b"
"""Where the client stands that is rack-aware."""

SLOW_BROKER: Final = 0
SLOW_PRODUCE_MS: Final = 20

BATCH_BYTES: Final = 16_384
"""`batch.size`, Kafka's default."""

RATE: Final = len(RACKS) * BATCH_BYTES * 1000 // SLOW_PRODUCE_MS // 2
"""Bytes of values that each way sends per second."""

# As Kafka's ProducerPerformance: it sleeps once it is so far ahead of its rate.
_BURST_S = 0.002
_PROGRESS_S = 0.25


@dataclass(frozen=True)
class Way:
    """One way of choosing a partition: producer settings, and a topic of its own."""

    name: str
    title: str
    kip: str
    settings: Mapping[str, str | int | bool]
    keyed: bool = False

    @property
    def topic(self) -> str:
        return f"flights-{self.name}"

    @property
    def producer_settings(self) -> dict[str, Any]:
        """All of the producer's settings that differ from Kafka's defaults."""
        return {"linger.ms": 0, "batch.size": BATCH_BYTES, **self.settings}


WAYS: Final = (
    Way("round-robin", "round robin", "KIP-369", {"partitioner.class": "round_robin"}),
    Way("sticky", "sticky", "KIP-480", {"partitioner.class": "uniform_sticky"}),
    Way(
        "uniform",
        "uniform",
        "KIP-794",
        {"partitioner.adaptive.partitioning.enable": False, "partitioner.ignore.keys": True},
    ),
    Way("adaptive", "adaptive", "KIP-794", {"partitioner.ignore.keys": True}),
    Way(
        "adaptive-timeout",
        "adaptive with timeout",
        "KIP-794",
        {"partitioner.availability.timeout.ms": 5, "partitioner.ignore.keys": True},
    ),
    Way(
        "latency",
        "by latency",
        "ADR 0008",
        {"partitioner.adaptive.signal": "latency", "partitioner.ignore.keys": True},
    ),
    Way(
        "rack-aware",
        "rack-aware",
        "KIP-1123",
        {
            "partitioner.rack.aware": True,
            "client.rack": CLIENT_RACK,
            "partitioner.ignore.keys": True,
        },
    ),
    Way("by-key", "by key", "murmur2", {}, keyed=True),
)


@dataclass
class Run:
    """One way while it runs, and what it measured."""

    way: Way
    total: int
    acknowledged: int = 0
    error: Exception | None = None
    seconds: float = 0.0
    """From the first `send` to the last acknowledgement."""
    lateness: float = 0.0
    """Seconds by which records were sent after they were due, summed up."""
    _latencies: array[float] = field(default_factory=lambda: array("d"))

    def acknowledge(self, sent_at: float, delivery: Delivery) -> None:
        """Called back for every record once its outcome is known."""
        now = time.perf_counter()
        error = delivery.exception()
        if error is not None:
            self.error = self.error or error
            return
        self._latencies.append(now - sent_at)
        self.acknowledged += 1

    def latency(self) -> Latency:
        """Of the records acknowledged."""
        ordered = sorted(self._latencies)

        def percentile(share: float) -> float:
            return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000

        return {
            "average": sum(ordered) / len(ordered) * 1000,
            "p50": percentile(0.5),
            "p95": percentile(0.95),
            "p99": percentile(0.99),
            "p99_9": percentile(0.999),
            "max": ordered[-1] * 1000,
        }


async def run_ways(
    bootstrap_servers: str,
    ways: Sequence[Way],
    flights: Sequence[Flight],
    show: Callable[[Sequence[Run]], None],
) -> list[Run]:
    """Send all flights once in every way, all ways at the same time.

    Args:
        show: called a few times a second with the runs as they are.

    Raises:
        KafkaError: a record was not stored.
    """
    runs = [Run(way, len(flights)) for way in ways]
    tasks = {asyncio.create_task(_run(run, bootstrap_servers, flights)) for run in runs}
    running = tasks
    try:
        while running:
            done, running = await asyncio.wait(running, timeout=_PROGRESS_S)
            show(runs)
            for task in done:
                task.result()  # raises what the way failed with
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return runs


async def _run(run: Run, bootstrap_servers: str, flights: Sequence[Flight]) -> None:
    from trimtab.client.producer import AsyncProducer

    producer = AsyncProducer(bootstrap_servers, **run.way.producer_settings)
    try:
        # Connecting is not what is measured.
        await producer.partitions_for(run.way.topic)
        began = time.perf_counter()
        await _send_steadily(producer, run, flights)
        await producer.flush()
        run.seconds = time.perf_counter() - began
    except BaseException:
        await producer.close(timeout=0)  # what waits to be sent is of no use any more
        raise
    await producer.close()
    if run.error is not None:
        raise run.error


async def _send_steadily(producer: AsyncProducer, run: Run, flights: Sequence[Flight]) -> None:
    """Send at `RATE` bytes a second, in bursts of a few records."""
    topic = run.way.topic
    # The ways must not burst all at once.
    began = time.perf_counter() + random.uniform(0, _BURST_S)
    sent_bytes = 0
    for key, value in flights:
        ahead = began + sent_bytes / RATE - time.perf_counter()
        if ahead >= _BURST_S:
            await asyncio.sleep(ahead)
        elif ahead < 0:
            run.lateness -= ahead
        sent_at = time.perf_counter()
        delivery = await producer.send(topic, value, key)
        delivery.add_done_callback(partial(run.acknowledge, sent_at))
        sent_bytes += len(value)
        if run.error is not None:
            return
