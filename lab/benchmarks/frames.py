"""`trimtab.read` into Polars, DuckDB and pandas; with loops over messages that build the same.

A topic of six partitions, records of about 100 bytes. The loops are of confluent-kafka (`consume`,
columns of 100,000 messages at a time) and aiokafka (`getmany`), which is slow, and reads a tenth.
DuckDB's own reader of Kafka, the extension tributary, is used if DuckDB can install it. Memory is
the peak beyond what the process had after its imports; the frame itself is part of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple

from lab.benchmarks.frames_loop import CLIENTS
from lab.benchmarks.producer import TUNED
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import PARTITIONS, Topics, run_producer_loop
from lab.processes import Trimtab
from trimtab.spark.session.cache import cache_directory

FRAMES = ("polars", "duckdb", "pandas")
SLOW_SHARE = 10
_RIVALS = tuple(client for client in CLIENTS if client != "trimtab")
_INSTALL = "import duckdb; duckdb.execute('INSTALL tributary FROM community')"


class Built(NamedTuple):
    """The results of one run."""

    rows_per_second: float
    cpu_us_per_row: float
    peak_bytes_per_row: float


def run(runs: int, records: int) -> None:
    missing = {"tributary": _why_not([sys.executable, "-c", _INSTALL])}
    pandas = cache_directory() / "pandas-3"
    arguments = ["install", "--quiet", "--no-deps", "--target", str(pandas), "pandas==3.*"]
    pip = [sys.executable, "-m", "pip", *arguments, "python-dateutil", "tzdata"]
    missing["pandas"] = "" if (pandas / "pandas").exists() else _why_not(pip)
    environment = {**os.environ, "PYTHONPATH": str(pandas)}
    with Trimtab() as broker:
        topic, few = Topics(broker.address).create(), Topics(broker.address).create()
        for name, count in ((topic, records), (few, records // SLOW_SHARE)):
            progress(f"frames: {count} records into {name}")
            run_producer_loop("trimtab send_table", broker, count, TUNED, name)
        for frame in FRAMES:
            if missing.get(frame):
                progress(f"frames: without {frame}: {missing[frame]}")
                continue
            found: dict[str, list[Built]] = {client: [] for client in CLIENTS}
            for number in range(runs):
                for client, builds in found.items():
                    if client == "tributary" and (frame != "duckdb" or missing["tributary"]):
                        continue
                    progress(f"frames: {frame}, {client}, run {number + 1} of {runs}")
                    is_slow = client == "aiokafka"
                    count = records // SLOW_SHARE if is_slow else records
                    words = [client, frame, broker.address, few if is_slow else topic]
                    builds.append(_build(words, count, environment))
            _report(frame, found, missing)


def _build(words: Iterable[str], records: int, environment: dict[str, str]) -> Built:
    module = (sys.executable, "-m", "lab.benchmarks.frames_loop")
    done = subprocess.run(
        [*module, *words, str(PARTITIONS), str(records)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    told = json.loads(done.stdout)
    return Built(
        records / told["seconds"],
        told["cpu_seconds"] / records * 1e6,
        told["peak_mib"] * (1 << 20) / records,
    )


def _why_not(command: list[str]) -> str:
    """Why a command fails; empty if it does not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join(done.stderr.split())[-300:] if done.returncode else ""


def _report(frame: str, found: dict[str, list[Built]], missing: dict[str, str]) -> None:
    metrics = (("rows_per_s", "rows/s"), ("cpu_us_per_row", "us"), ("peak_bytes_per_row", "bytes"))
    for rival in _RIVALS:
        if rival == "tributary" and frame != "duckdb":
            continue
        for at, (metric, unit) in enumerate(metrics):
            report(
                *("frames", f"{metric}, {frame}", unit),
                [each[at] for each in found["trimtab"]],
                rival,
                [each[at] for each in found[rival]],
                more_is_better=metric == "rows_per_s",
                note=missing.get(rival, ""),
            )
