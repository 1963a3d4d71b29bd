"""A stream of load windows that is killed and started again counts what the batch counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.frames import read
from trimtab import Admin, Cluster, Producer
from trimtab.spark import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, SENT, MINUTES = "flights", 12_000, 30
BEGAN_MS = 1_763_899_200_000
PATIENCE_S = 300

JOB = """
import sys
import time
from trimtab.spark import load
from trimtab.spark.session import start_session

servers, out, checkpoint = sys.argv[1:]
spark = start_session("to be killed", cores=1, config={"spark.sql.shuffle.partitions": "2"})
reader = spark.readStream.schema(load.RECORDS).format("trimtab").option("subscribe", "flights")
reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "1000")
stream = reader.option("kafka.bootstrap.servers", servers).load()
windows = load.partition_load(stream, window="1 minute", watermark="10 minutes")
load.start(windows, out, checkpoint).awaitTermination()
"""


def test_sums_are_those_of_the_batch_after_a_kill(spark: SparkSession, tmp_path: Path) -> None:
    out, checkpoint = str(tmp_path / "out"), tmp_path / "checkpoint"
    with Cluster(brokers=1) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic(TOPIC, partitions=3)
        with Producer(servers, linger_ms=5) as producer:
            for number in range(SENT):
                at = BEGAN_MS + number * MINUTES * 60_000 // SENT
                key = None if number % 4 else b"%d" % number
                producer.send(TOPIC, b"v" * (number % 50), key, timestamp=at)
            producer.flush()
            # Closes all windows before it: the watermark follows the largest timestamp.
            producer.send(TOPIC, b"", timestamp=BEGAN_MS + 86_400_000)
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, servers, out, str(checkpoint)], start_new_session=True
        )
        try:
            wait_for_batches(job, checkpoint, 3)
        finally:
            os.killpg(job.pid, signal.SIGKILL)  # Java and its Python workers, too
            job.wait()

        options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC}
        reader = spark.readStream.schema(load.RECORDS).format("trimtab").options(**options)
        stream = reader.option("startingOffsets", "earliest").load()
        windows = load.partition_load(stream, window="1 minute", watermark="10 minutes")
        query = load.start(windows, out, str(checkpoint), trigger={"availableNow": True})
        query.awaitTermination()
        records = read(spark, servers, load.RECORDS, subscribe=TOPIC)
        expected = load.partition_load(records, window="1 minute").collect()
    written = spark.read.parquet(out).drop("day")
    found = written.orderBy("window", "topic", "partition").collect()
    assert found == expected[:-1]
    assert sum(row.TotalRecords for row in found) == SENT
    assert len({row.window.start for row in found}) == MINUTES


def wait_for_batches(job: subprocess.Popen[bytes], checkpoint: Path, count: int) -> None:
    """Wait until this many micro-batches are committed."""
    until = time.monotonic() + PATIENCE_S
    while not (checkpoint / "commits" / str(count - 1)).exists():
        try:
            raise AssertionError(f"the job ended by itself: {job.wait(0.05)}")
        except subprocess.TimeoutExpired:
            assert time.monotonic() < until, f"no {count} micro-batches within {PATIENCE_S} s"
