"""Sends records in twelve ways of choosing a partition, at the same time; one broker is slow.

The set-up of KIP-794's measurements: three brokers, one topic per way with one partition on each
broker, linger.ms=0, all other settings default. Broker 0 answers every produce request 20 ms late,
one request at a time per connection, so it accepts one batch every 20 ms. Every way sends all
flights at a steady rate, of which a third is half of what the slow broker accepts.
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

from lab.demo.flights import Flight
from lab.output import Latency

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Delivery
    from trimtab.client.producer import AsyncProducer

RACKS: Final = ("a", "b", "c")
"""One broker in each; there are as many brokers as racks."""

CLIENT_RACK: Final = "b"
"""The rack of the client whose partitioner is rack-aware."""

SLOW_BROKER: Final = 0
SLOW_PRODUCE_MS: Final = 20

BATCH_BYTES: Final = 16_384
"""`batch.size`, Kafka's default."""

RATE: Final = len(RACKS) * BATCH_BYTES * 1000 // SLOW_PRODUCE_MS // 2
"""Bytes of values that each way sends per second."""

# Sleep when this far ahead of the rate, as Kafka's ProducerPerformance does.
_BURST_S = 0.002
_PROGRESS_S = 0.25


@dataclass(frozen=True)
class Way:
    """One way of choosing a partition: producer settings and a separate topic."""

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
        """The producer's settings that differ from Kafka's defaults, and `batch.size`."""
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
    *(
        Way(
            balance,
            balance,
            "ADR 0016",
            {"partitioner.balance": balance, "partitioner.ignore.keys": True},
        )
        for balance in ("strict", "0.1", "free")
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
    *(
        Way(
            f"by-key-{treatment}",
            f"by key, {treatment}",
            "hot keys",
            {"partitioner.hot.keys": f"flights-by-key-{treatment}={treatment}"},
            keyed=True,
        )
        for treatment in ("split", "move")
    ),
)


@dataclass
class Run:
    """One way's run and its measurements."""

    way: Way
    total: int
    acknowledged: int = 0
    error: Exception | None = None
    seconds: float = 0.0
    """From the first `send` to the last acknowledgement."""
    lateness: float = 0.0
    """Sum over all records of the seconds by which they were sent late."""
    _latencies: array[float] = field(default_factory=lambda: array("d"))

    def acknowledge(self, sent_at: float, delivery: Delivery) -> None:
        """The delivery callback of every record."""
        now = time.perf_counter()
        error = delivery.exception()
        if error is not None:
            self.error = self.error or error
            return
        self._latencies.append(now - sent_at)
        self.acknowledged += 1

    def latency(self) -> Latency:
        """The latencies of the acknowledged records, in milliseconds."""
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
        show: called about four times a second with the runs.

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
                task.result()  # raises the way's error
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return runs


async def _run(run: Run, bootstrap_servers: str, flights: Sequence[Flight]) -> None:
    from trimtab.client.producer import AsyncProducer

    producer = AsyncProducer(bootstrap_servers, **run.way.producer_settings)
    try:
        # Connect first: the measurement does not include it.
        await producer.partitions_for(run.way.topic)
        began = time.perf_counter()
        await _send_steadily(producer, run, flights)
        await producer.flush()
        run.seconds = time.perf_counter() - began
    except BaseException:
        await producer.close(timeout=0)  # drops unsent records
        raise
    await producer.close()
    if run.error is not None:
        raise run.error


async def _send_steadily(producer: AsyncProducer, run: Run, flights: Sequence[Flight]) -> None:
    """Send at `RATE` bytes a second, in bursts of a few records."""
    topic = run.way.topic
    # A random start, so that the ways do not all send their bursts at the same time.
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
