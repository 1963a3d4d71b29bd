"""Writing a DataFrame to a topic: our data source beside Spark's own Kafka connector, which is also
given options that suit it. On our broker, and on Apache Kafka.

Both write the same rows from the same Spark session, by turns, each time into a new topic, whose
records are counted by confluent-kafka. And both write to 100, 1,000 and 10,000 partitions; keys
reach all. `micro_batch.py` measures streams.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.jars import CONNECTOR_VERSION, RivalMissing, connector_config
from lab.benchmarks.report import progress, report
from lab.benchmarks.workload import RECORD_BYTES, Topics
from lab.processes import Broker, Trimtab
from trimtab.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP_RUNS = 2
RIVAL = f"spark-sql-kafka-0-10 {CONNECTOR_VERSION}"
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "131072"}
"""What suits the connector: what our sink does by default. Both have acks=all, idempotence, and no
compression unless told otherwise."""

WIDE = (100, 1_000, 10_000)
"""Partitions."""
WIDE_ROWS = 200_000

TASKS = 4


def run(runs: int, records: int) -> None:
    config, note = connector_config()
    session = start_session("benchmarks", memory="2g", config=config)
    brokers: list[type[Broker]] = [Trimtab, ApacheKafka]
    try:
        for broker in brokers:
            try:
                with broker() as side:
                    _measure_writes(session, side, runs, records, note)
                    _measure_partitions(session, side, runs, note)
            except RivalMissing as missing:
                progress(f"spark_write: no {broker.name}: {missing}")
    finally:
        stop_session(session)


def _measure_writes(
    session: SparkSession, side: Broker, runs: int, records: int, note: str
) -> None:
    topics = Topics(side.address)
    # The same for every row, so that making it costs next to nothing.
    value = f"CAST(repeat('x', {RECORD_BYTES}) AS BINARY) AS value"
    rows = session.range(0, records, 1, TASKS).selectExpr(value)
    few = session.range(0, 100, 1, TASKS).selectExpr(value)
    ways: dict[str, tuple[str, dict[str, str]]] = {"trimtab": ("trimtab", {})}
    if not note:
        ways |= {"default": ("kafka", {}), "tuned": ("kafka", TUNED)}
    rates: dict[str, list[float]] = {"trimtab": [], "default": [], "tuned": []}
    for number in range(-WARM_UP_RUNS, runs):
        progress(f"spark_write on {side.name}: run {number + 1} of {runs}")
        for name, (kind, options) in ways.items():
            topic = topics.create()
            # Its partitions are open before the clock runs.
            _write(few, side, kind, topic, options)
            began = time.perf_counter()
            _write(rows, side, kind, topic, options)
            seconds = time.perf_counter() - began
            if (stored := topics.count_records(topic)) != records + 100:
                raise RuntimeError(f"{name} stored {stored} records of {records + 100}")
            topics.delete(topic)
            if number >= 0:
                rates[name].append(records / seconds)
    for tuning in ("default", "tuned"):
        report(
            "spark_write",
            f"rows_per_s on {side.name}, {records} records of {RECORD_BYTES} B, connector {tuning}",
            "rows/s",
            rates["trimtab"],
            RIVAL,
            rates[tuning],
            more_is_better=True,
            note=note,
        )


def _write(rows: DataFrame, side: Broker, kind: str, topic: str, options: dict[str, str]) -> None:
    writer = rows.write.format(kind).mode("append").options(**options)
    writer.option("kafka.bootstrap.servers", side.address).option("topic", topic).save()


def _measure_partitions(session: SparkSession, side: Broker, runs: int, note: str) -> None:
    """Seconds to write the same rows, by key, to few partitions and to many."""
    topics = Topics(side.address)
    rows = session.range(0, WIDE_ROWS, 1, TASKS).selectExpr(
        "CAST(id AS STRING) AS key", f"CAST(repeat('x', {RECORD_BYTES}) AS BINARY) AS value"
    )
    for partitions in WIDE:
        topic = topics.create(partitions)
        seconds: dict[str, list[float]] = {"trimtab": [], "kafka": []}
        written = 0
        for number in range(-1, runs):  # the first opens the partitions
            progress(f"spark_write on {side.name}: {partitions} partitions, {number + 1} of {runs}")
            for kind in seconds if not note else ("trimtab",):
                began = time.perf_counter()
                _write(rows, side, kind, topic, TUNED if kind == "kafka" else {})
                if number >= 0:
                    seconds[kind].append(time.perf_counter() - began)
                written += WIDE_ROWS
                if (stored := topics.count_records(topic)) != written:
                    raise RuntimeError(f"{kind} left {stored} records there, not {written}")
        topics.delete(topic)
        report(
            "spark_write",
            f"write_s on {side.name}, {WIDE_ROWS} records to {partitions} partitions",
            "s",
            seconds["trimtab"],
            RIVAL,
            seconds["kafka"],
            more_is_better=False,
            note=note,
        )
