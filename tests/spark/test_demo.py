"""Small runs of the demo's parts against a cluster; and Ctrl-C ends all its processes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lab import demo
from lab.demo import experiment, streaming
from lab.demo.display import Display
from lab.demo.flights import Flight
from lab.demo.pipeline import check_totals, run_pipeline, write_parquet
from trimtab import Cluster
from trimtab.cli.live.source import Recorded
from trimtab.kafka.errors import CorruptData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 600

SHORT = 5000
"""Records of each way in a short demo: as long as it takes for sticky to fall behind."""
SLOWER = 4
"""Broker and rate of the short demo are this many times slower, for machines under load."""


def make_flights(count: int) -> list[Flight]:
    """Flights of three carriers from two airports; every tenth was cancelled."""
    flights = []
    for number in range(count):
        carrier = ("AA", "B6", "UA")[number % 3]
        cancelled = number % 10 == 0
        row = {
            "carrier": carrier,
            "origin": ("EWR", "JFK")[number % 2],
            "dep_time": None if cancelled else 1200,
            "dep_delay": None if cancelled else number % 60,
            "distance": number,
            "time_hour": f"2013-{1 + number % 12:02}-01T10:00:00Z",
            "padding": "x" * 220,
        }
        flights.append(Flight(carrier.encode(), json.dumps(row).encode()))
    return flights


def test_every_way_stores_every_flight_and_the_tables_say_where(
    spark: SparkSession, tmp_path: Path
) -> None:
    flights = make_flights(RECORDS)
    shown: list[int] = []

    def show(runs: Sequence[experiment.Run]) -> None:
        shown.append(sum(run.acknowledged for run in runs))

    with Cluster(brokers=3, racks=experiment.RACKS) as cluster:
        servers = cluster.bootstrap_servers
        partitions = demo._create_topics(servers, [way.topic for way in experiment.WAYS])
        assert {(each.partition, each.leader, each.rack) for each in partitions} == {
            (0, 0, "a"),
            (1, 1, "b"),
            (2, 2, "c"),
        }
        runs = asyncio.run(experiment.run_ways(servers, experiment.WAYS, flights, show))
        tables = run_pipeline(spark, servers, partitions, RECORDS)
        with pytest.raises(CorruptData, match="holds 600 records, 601 were sent"):
            check_totals(tables.skew, RECORDS + 1)

    assert shown[-1] == RECORDS * len(experiment.WAYS)
    ways = {run.way.name: demo._summarize(run, flights, tables) for run in runs}
    for way in ways.values():
        assert way["records"] == sum(row["TotalRecords"] for row in way["partitions"]) == RECORDS
        assert sum(way["share_by_broker"].values()) == pytest.approx(1)
        latency = way["latency_ms"]
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99_9"] <= latency["max"]
    assert [row["TotalRecords"] for row in ways["round-robin"]["partitions"]] == [200] * 3
    assert ways["rack-aware"]["share_by_rack"] == {"a": 0.0, "b": 1.0, "c": 0.0}
    counts = [row["TotalRecords"] % 200 for row in ways["by-key"]["partitions"]]
    assert counts == [0, 0, 0]  # each carrier's 200 flights lie in one partition


def test_flights_go_through_the_streams_and_come_out_as_they_were(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "LIMIT_BYTES", 50_000)
    sink = {"topic": streaming.TOPIC, "kafka.batch.size": "16384"}
    monkeypatch.setattr(streaming, "_SINK", sink)
    flights = make_flights(RECORDS)
    streaming.write_files(flights, tmp_path / "files")
    with Cluster(brokers=3, racks=experiment.RACKS) as cluster:
        servers = cluster.bootstrap_servers
        partitions = demo._create_topics(servers, [streaming.TOPIC], {"retention.ms": -1})
        streamed = streaming.stream_flights(spark, servers, partitions, tmp_path)

    rows = streamed.flights.to_pylist()
    assert [(row["carrier"], row["origin"], row["flights"]) for row in rows[:2]] == [
        ("AA", "EWR", 100),
        ("AA", "JFK", 100),
    ]
    assert rows[0]["cancelled_share"] == 0.2
    assert rows[1]["cancelled_share"] == 0.0
    assert rows[1]["mean_departure_delay"] == pytest.approx(30)
    delays = sorted(number % 60 for number in range(RECORDS) if number % 3 == 0 and number % 2 == 1)
    assert rows[1]["p95_departure_delay"] == pytest.approx(delays[94], abs=6)
    batches = streamed.batches
    assert len(batches) >= 4  # 200 KB
    assert sum(batch["records"] for batch in batches) == RECORDS
    assert all(batch["bytes"] <= 50_000 for batch in batches)
    left = [batch["lag_records"] for batch in batches]
    assert left == [
        RECORDS - sum(batch["records"] for batch in batches[: number + 1])
        for number in range(len(batches))
    ]
    windows = streamed.load.to_pylist()
    assert {row["window"]["start"].year for row in windows} == {2012, 2013}  # weeks from 1970 on
    assert sum(row["TotalRecords"] for row in windows) == RECORDS
    assert sum(row["TotalBytes"] for row in windows) == sum(batch["bytes"] for batch in batches)
    values = sum(len(flight.key) + len(flight.value) for flight in flights)
    assert sum(row["RawBytes"] for row in windows) == values
    shown = demo._summarize_stream(streamed)["windows"]
    assert sum(sum(each["records"].values()) for each in shown) == RECORDS
    write_parquet([("flights", streamed.flights)], tmp_path)
    assert spark.read.parquet(str(tmp_path / "flights.parquet")).count() == 6


def test_a_stream_that_gives_other_flights_is_noticed() -> None:
    files = pa.table({"carrier": ["AA", "UA"], "flights": [2, 3]})
    streaming.check_sums(files, files)
    for carriers, counts, why in (
        (["AA", "UA"], [2, 4], "the stream gave .*'flights': 4.* where the files have .*3"),
        (["AA"], [2], "the stream gave 1 carriers, the files have 2"),
        (["AA", "UA", "WN"], [2, 3, 1], "the stream gave 3 carriers, the files have 2"),
    ):
        with pytest.raises(CorruptData, match=why):
            streaming.check_sums(pa.table({"carrier": carriers, "flights": counts}), files)


@pytest.mark.kip(794)
def test_a_short_demo_shows_what_its_report_claims(
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(demo, "load_flights", make_uneven_flights)
    monkeypatch.setattr(demo, "SLOW_PRODUCE_MS", SLOWER * experiment.SLOW_PRODUCE_MS)
    rate = experiment.RATE // SLOWER
    for module in (demo, experiment):
        monkeypatch.setattr(module, "RATE", rate)
    monkeypatch.setattr("trimtab.spark.session.local_session", lambda title: nullcontext(spark))
    summary, *_ = demo._measure(SHORT, Display(), tmp_path / "recording.jsonl.gz")
    recorded = Recorded(tmp_path / "recording.jsonl.gz").summary
    assert recorded is not None
    assert {way.topic for way in experiment.WAYS} == {row.topic for row in recorded.topics}
    assert recorded.totals.bytes_in > 0
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []

    ways = summary["ways"]
    assert len(ways) == 12
    loads = {
        name: tuple(row["TotalRecords"] for row in way["partitions"]) for name, way in ways.items()
    }
    assert all(sum(load) == SHORT for load in loads.values()), loads
    # No two ways are the same one, but for keys that are too few to be called hot.
    others = {name: load for name, load in loads.items() if not name.startswith("by-key-")}
    assert len(set(others.values())) == len(others), loads
    slow = {name: way["share_by_broker"]["0"] for name, way in ways.items()}
    assert slow["sticky"] > slow["uniform"] + 0.1, slow
    assert slow["sticky"] == max(
        share for name, share in slow.items() if not name.startswith("by-key")
    ), slow
    assert slow["free"] < slow["uniform"] - 0.1, slow
    assert slow["free"] < slow["strict"] - 0.1, slow
    assert ways["rack-aware"]["share_by_rack"] == {"a": 0.0, "b": 1.0, "c": 0.0}
    assert summary["findings"]
    batches = summary["stream"]["batches"]
    assert sum(batch["records"] for batch in batches) == SHORT
    assert sum(row["flights"] for row in summary["flights"]) == SHORT


def make_uneven_flights(count: int) -> list[Flight]:
    """Flights of carriers of which some have many, as the real ones."""
    carriers = ("UA", "B6", "EV", "UA", "DL", "UA", "AA", "MQ", "B6", "9E")
    return [
        Flight(carriers[number % 10].encode(), flight.value)
        for number, flight in enumerate(make_flights(count))
    ]


SCRIPT = """
import sys
from lab import demo
from trimtab.cli import main
from lab.demo.flights import Flight
demo.load_flights = lambda count: [Flight(b"AA", b"x" * 300)] * count
sys.exit(main(["demo", "--records", sys.argv[1], "--out", sys.argv[2]]))
"""


@pytest.mark.parametrize(
    ("number", "stage", "records"),
    [(signal.SIGINT, "Producers:", "300000"), (signal.SIGTERM, "Spark:", "100")],
)
def test_an_interrupted_demo_leaves_nothing_running(
    tmp_path: Path, number: int, stage: str, records: str
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, records, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(stage):
                break
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert all(ends(pid) for pid in members_of(process.pid))
    # Nor are the cluster's data.
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def members_of(group: int) -> list[int]:
    """The processes of a process group."""
    members = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getpgid(int(path.name)) == group:
                members.append(int(path.name))
    return members


def ends(pid: int) -> bool:
    """Whether a process ends within 10 s: Spark's Python workers end a moment after Spark."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return select.select([process], [], [], 10)[0] != []
    finally:
        os.close(process)
