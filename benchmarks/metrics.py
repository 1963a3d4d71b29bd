"""What a broker's metrics cost: the same load on a broker with and on one without them.

The metrics are scraped every second; Prometheus does so every minute by default. The broker's CPU
time varies less than the throughput, which depends on the client and the machine, too. Small
requests are the worst case: metrics cost by request, partition and scrape.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks.processes import Side, Trimtab, free_neighbours
from benchmarks.report import progress, report
from benchmarks.workload import Topics, run_producer_loop

SCRAPE_S = 1.0
PRODUCES: Mapping[str, Mapping[str, object]] = {
    "produce, batches of 64 KiB": {"batch.size": 65_536, "linger.ms": 5},
    "produce, batches of 10 records": {"batch.num.messages": 10},
}
FETCHES = {"fetches of 1 MiB": 1 << 20, "fetches of 64 KiB": 1 << 16}


class Measured(Trimtab):
    """A cluster whose nodes serve metrics."""

    def __init__(self) -> None:
        super().__init__()
        self._metrics_port = free_neighbours(2)

    def command(self) -> list[str]:
        return [*super().command(), "--metrics-port", str(self._metrics_port)]

    @contextmanager
    def scraped(self) -> Iterator[None]:
        """Fetch the metrics of both nodes every second meanwhile."""
        ended = threading.Event()

        def scrape() -> None:
            while not ended.wait(SCRAPE_S):
                for port in (self._metrics_port, self._metrics_port + 1):
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                        page.read()

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


class Load(NamedTuple):
    """One run."""

    records_per_second: float
    broker_cpu_us_per_record: float


def run(runs: int, records: int) -> None:
    with Trimtab() as without, Measured() as measured, measured.scraped():
        filled = {}
        for side in (without, measured):
            filled[side.address] = Topics(side.address).create(1)
            run_producer_loop("confluent-kafka", side, records, {}, filled[side.address])
        loads: dict[str, Callable[[Side], float]] = {
            name: lambda side, options=options: (
                run_producer_loop(  # type: ignore[misc]
                    "confluent-kafka", side, records, options
                ).records_per_second
            )
            for name, options in PRODUCES.items()
        }
        for name, size in FETCHES.items():
            loads[name] = lambda side, size=size: read(  # type: ignore[misc]
                side.address, filled[side.address], records, size
            )
        for name, load in loads.items():
            found: dict[str, list[Load]] = {without.address: [], measured.address: []}
            for number in range(runs):
                progress(f"metrics: {name}, run {number + 1} of {runs}")
                for side in (without, measured) if number % 2 else (measured, without):
                    before = side.cpu_seconds()
                    rate = load(side)
                    used = side.cpu_seconds() - before
                    found[side.address].append(Load(rate, used / records * 1e6))
            for metric, unit, more_is_better, index in (
                ("records_per_s", "records/s", True, 0),
                ("broker_cpu_us_per_record", "us", False, 1),
            ):
                report(
                    *("metrics", f"{metric}, {name}", unit),
                    [each[index] for each in found[measured.address]],
                    "trimtab without metrics",
                    [each[index] for each in found[without.address]],
                    more_is_better=more_is_better,
                )


def read(address: str, topic: str, records: int, size: int) -> float:
    """Records per second of a consumer that fetches up to `size` bytes at a time."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",  # required, though nobody joins it
            "enable.auto.commit": False,
            "fetch.message.max.bytes": size,
            "fetch.max.bytes": size,
            "message.max.bytes": min(size, 1_000_000),
            "queued.max.messages.kbytes": 65_536,
        }
    )
    consumer.list_topics(topic, timeout=30)
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    count = 0
    while count < records:
        messages = consumer.consume(10_000, 1.0)
        if any(message.error() for message in messages):
            raise RuntimeError(f"{next(filter(None, (each.error() for each in messages)))}")
        count += len(messages)
    rate = count / (time.perf_counter() - began)
    consumer.close()
    return rate
