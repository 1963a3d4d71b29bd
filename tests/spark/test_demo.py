"""The demo's parts against a cluster, small; and that it ends whole when told to."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trimtab import Cluster
from trimtab.cli import demo
from trimtab.cli.demo import experiment
from trimtab.cli.demo.display import Display
from trimtab.cli.demo.flights import Flight
from trimtab.cli.demo.pipeline import check_totals, run_pipeline, write_parquet
from trimtab.errors import CorruptData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 600

SHORT = 5000
"""Records of each way in a short demo: as long as it takes for sticky to fall behind."""
SLOWER = 4
"""Broker and rate of the short demo are so many times slower, for machines that have more to do."""


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
        partitions = demo._create_topics(servers, experiment.WAYS)
        assert {(each.partition, each.leader, each.rack) for each in partitions} == {
            (0, 0, "a"),
            (1, 1, "b"),
            (2, 2, "c"),
        }
        runs = asyncio.run(experiment.run_ways(servers, experiment.WAYS, flights, show))
        topic = experiment.WAYS[0].topic
        tables = run_pipeline(spark, servers, partitions, topic, RECORDS)
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

    rows = tables.flights.to_pylist()
    assert [(row["carrier"], row["origin"], row["flights"]) for row in rows[:2]] == [
        ("AA", "EWR", 100),
        ("AA", "JFK", 100),
    ]
    assert rows[0]["cancelled_share"] == 0.2
    assert rows[1]["cancelled_share"] == 0.0
    assert rows[1]["mean_departure_delay"] == pytest.approx(30)
    write_parquet([("flights", tables.flights)], tmp_path)
    assert spark.read.parquet(str(tmp_path / "flights.parquet")).count() == 6


@pytest.mark.kip(794)
def test_a_short_demo_shows_what_its_report_claims(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "load_flights", make_uneven_flights)
    monkeypatch.setattr(demo, "SLOW_PRODUCE_MS", SLOWER * experiment.SLOW_PRODUCE_MS)
    rate = experiment.RATE // SLOWER
    for module in (demo, experiment):
        monkeypatch.setattr(module, "RATE", rate)
    monkeypatch.setattr("trimtab.spark.session.local_session", lambda title: nullcontext(spark))
    summary, _ = demo._measure(SHORT, Display())
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []

    ways = summary["ways"]
    assert len(ways) == 8
    loads = {
        name: tuple(row["TotalRecords"] for row in way["partitions"]) for name, way in ways.items()
    }
    assert all(sum(load) == SHORT for load in loads.values()), loads
    assert len(set(loads.values())) == len(ways), loads  # no two ways are the same one
    slow = {name: way["share_by_broker"]["0"] for name, way in ways.items()}
    assert slow["sticky"] > slow["uniform"] + 0.1, slow
    assert slow["sticky"] == max(share for name, share in slow.items() if name != "by-key"), slow
    assert slow["latency"] < slow["uniform"] - 0.1, slow
    assert ways["rack-aware"]["share_by_rack"] == {"a": 0.0, "b": 1.0, "c": 0.0}
    assert summary["findings"]


def make_uneven_flights(count: int) -> list[Flight]:
    """Flights of carriers of which some have many, as the real ones."""
    carriers = ("UA", "B6", "EV", "UA", "DL", "UA", "AA", "MQ", "B6", "9E")
    return [
        Flight(carriers[number % 10].encode(), flight.value)
        for number, flight in enumerate(make_flights(count))
    ]


SCRIPT = """
import sys
from trimtab.cli import demo, main
from trimtab.cli.demo.flights import Flight
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
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)  # nobody of its group is left
    # Nor are the cluster's data.
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
