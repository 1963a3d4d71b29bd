"""`Consumer` compared with confluent-kafka, aiokafka, kafkarrow and Java's ConsumerPerformance.

Three ways to read: record by record, in lists of up to 500 records, and as Arrow columns. Each run
reads a topic of six partitions from its beginning, in a process of its own; the clients alternate.
ConsumerPerformance makes records without deserializing their values; its figure is the one that it
prints without the time to join its group, its CPU is that of the whole JVM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from lab.benchmarks.apache_kafka import ApacheKafka, run_java
from lab.benchmarks.jars import KAFKA_VERSION, RivalMissing, find_java, kafka_jars
from lab.benchmarks.producer import TUNED
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import PARTITIONS, RECORD_BYTES, Topics, run_producer_loop
from lab.processes import Broker, Trimtab
from trimtab.spark.session.cache import cache_directory

KAFKARROW = "kafkarrow==0.1.1"
JAVA = f"Java's ConsumerPerformance {KAFKA_VERSION}"
SLOW_SHARE = 10
"""aiokafka is slow, and reads this many times fewer records."""

WAYS = {
    "iteration": ("trimtab", ("confluent-kafka", "aiokafka")),
    "asyncio, iteration": ("trimtab asyncio", ("aiokafka",)),
    "lists": ("trimtab lists", ("confluent-kafka lists", "aiokafka lists")),
    "columns": ("trimtab columns", ("confluent-kafka", "confluent-kafka lists", "kafkarrow", JAVA)),
}
"""By the way of reading: our client and its rivals, as `consumer_loop` names them."""


class Reading(NamedTuple):
    """The results of one run."""

    records_per_second: float
    cpu_us_per_record: float


def run(runs: int, records: int) -> None:
    for make in (Trimtab, ApacheKafka):
        with ExitStack() as parts:
            try:
                broker = parts.enter_context(make())
            except RivalMissing as missing:
                progress(f"consumer: without Apache Kafka: {missing}")
                continue
            _compare(broker, runs, records)


def _compare(broker: Broker, runs: int, records: int) -> None:
    where = "Apache Kafka" if isinstance(broker, ApacheKafka) else "our broker"
    topic = Topics(broker.address).create()
    progress(f"consumer: {records} records into {where}")
    run_producer_loop("trimtab send_table", broker, records, TUNED, topic)
    clients = dict.fromkeys(each for ours, rivals in WAYS.values() for each in (ours, *rivals))
    found: dict[str, list[Reading]] = {client: [] for client in clients}
    missing: dict[str, str] = {}
    for number in range(runs):
        for client in clients:
            if client in missing:
                continue
            progress(f"consumer: {client} from {where}, run {number + 1} of {runs}")
            try:
                found[client].append(_read(client, broker, topic, records))
            except RivalMissing as reason:
                missing[client] = str(reason)
    for way, (ours, rivals) in WAYS.items():
        for rival in rivals:
            _report(f"{way}, from {where}", found[ours], rival, found[rival], missing.get(rival))


def _read(client: str, broker: Broker, topic: str, records: int) -> Reading:
    if client == JAVA:
        return read_with_java(broker, topic, records)
    count = max(1, records // SLOW_SHARE) if client.startswith("aiokafka") else records
    told = run_consumer_loop(client, broker.address, topic, PARTITIONS, count, RECORD_BYTES)
    return Reading(count / told["seconds"], told["cpu_seconds"] / count * 1e6)


def run_consumer_loop(
    client: str, address: str, topic: str, partitions: int, records: int, size: int
) -> dict[str, float]:
    """Run a Python client in its own process; returns what `consumer_loop` prints.

    Raises:
        RivalMissing: the client cannot be installed.
        RuntimeError: it failed, or read something else.
    """
    python = _kafkarrow_python() if client == "kafkarrow" else sys.executable
    done = subprocess.run(
        [
            # -P: the modules beside it have the names of others.
            *(python, "-P", str(Path(__file__).with_name("consumer_loop.py")), client, address),
            *(topic, str(partitions), str(records), str(size)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{client}: exit code {done.returncode}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def read_with_java(broker: Broker, topic: str, records: int) -> Reading:
    """One run of ConsumerPerformance.

    Raises:
        RivalMissing: there is no Java, or no jars.
        RuntimeError: it failed, or read fewer records.
    """
    find_java()
    kafka_jars()
    before = _children_seconds()
    told = run_consumer_performance(broker.address, topic, records)
    used = _children_seconds() - before
    return Reading(told["fetch.nMsg.sec"], used / records * 1e6)


def run_consumer_performance(
    address: str, topic: str, records: int, *words: str
) -> dict[str, float]:
    """What Kafka's ConsumerPerformance prints, by column.

    Raises RuntimeError if it failed, or read fewer records.
    """
    text = run_java(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", address, "--topic", topic),
        *("--num-records", str(records), "--timeout", "60000", *words),
    )
    table = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    names = next((row for row in table if "data.consumed.in.nMsg" in row), [])
    row = next((row for row in table if len(row) == len(names) and row != names), [])
    if not row or int(row[names.index("data.consumed.in.nMsg")]) < records:
        raise RuntimeError(f"ConsumerPerformance did not read {records} records: {text}")
    columns = zip(names, row, strict=True)
    return {column: float(cell) for column, cell in columns if not column.endswith(".time")}


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _kafkarrow_python() -> str:
    """The Python of an environment with kafkarrow, in trimtab's cache; made on first use.

    Raises:
        RivalMissing: pip cannot install it.
    """
    directory = cache_directory() / KAFKARROW.replace("==", "-")
    python = directory / "bin" / "python"
    commands: Iterable[list[str]] = (
        [sys.executable, "-m", "venv", str(directory)],
        [str(python), "-m", "pip", "install", "--quiet", KAFKARROW],
    )
    if not (directory / "installed").exists():
        progress(f"installing {KAFKARROW}")
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RivalMissing(f"{KAFKARROW} cannot be installed: {done.stderr[-300:]}")
        (directory / "installed").touch()
    return str(python)


def _report(
    setting: str, ours: list[Reading], rival: str, theirs: list[Reading], missing: str | None
) -> None:
    report(
        *("consumer", f"records_per_s, {setting}", "records/s"),
        [reading.records_per_second for reading in ours],
        rival,
        [reading.records_per_second for reading in theirs],
        more_is_better=True,
        note=missing or "",
    )
    report(
        *("consumer", f"client_cpu_us_per_record, {setting}", "us"),
        [reading.cpu_us_per_record for reading in ours],
        rival,
        [reading.cpu_us_per_record for reading in theirs],
        more_is_better=False,
        note=missing or "",
    )
