"""`readStream.format("trimtab")` against an embedded cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from lab.benchmarks.jars import RivalMissing, connector_jars
from trimtab import Admin, Cluster, Producer
from trimtab.spark.stream.offsets import STATE
from trimtab.spark.stream.progress import ProgressListener, SourceProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SKEWED = "skewed"
LIMIT = 100_000
COLUMNS = "partition int, offset long, batchBaseOffset long, batchBytes int"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A cluster of two brokers with a topic of which most is in one of four partitions."""
    with Cluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(SKEWED, partitions=4)
        fill(cluster.bootstrap_servers, SKEWED, 300)
        yield cluster.bootstrap_servers


def fill(servers: str, topic: str, records: int) -> None:
    """Records of 100 B and of 20 kB, nine of ten in partition 0."""
    with Producer(servers, linger_ms=0, batch_size=4096) as producer:
        for number in range(records):
            partition = number % 4 if number % 10 == 9 else 0
            size = 20_000 if number % 7 == 0 else 100
            producer.send(topic, bytes(size), partition=partition)


def stream(spark: SparkSession, servers: str, **options: str) -> DataFrame:
    given = {
        "kafka.bootstrap.servers": servers,
        "subscribe": SKEWED,
        "startingOffsets": "earliest",
        "includeBatches": "true",
    }
    reader = spark.readStream.format("trimtab").schema(COLUMNS)
    return reader.options(**given | options).load()


class Sink:
    """Keeps the rows of every batch. Fails at a given batch, as a job may."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int, int, int]]] = {}
        self.fails_at = -1

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = [tuple(row) for row in frame.collect()]
        if number == self.fails_at:
            raise RuntimeError("killed here")
        assert number not in self.batches
        self.batches[number] = rows

    def write(self, frame: DataFrame, checkpoint: Path) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(self).option("checkpointLocation", str(checkpoint))

    @property
    def read(self) -> list[tuple[int, int]]:
        return sorted((row[0], row[1]) for rows in self.batches.values() for row in rows)

    def sizes(self) -> list[int]:
        """Bytes of the record batches that each batch has read."""
        return [
            sum({(p, base): size for p, _, base, size in rows}.values())
            for rows in self.batches.values()
        ]


def offsets_of(checkpoint: Path, batch: int) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(
        (checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
    )
    return written


def there(servers: str, topic: str = SKEWED) -> list[tuple[int, int]]:
    with Admin(servers) as admin:
        ends = admin.list_offsets([(topic, n) for n in range(4)])
    return sorted((p.partition, n) for p, end in ends.items() for n in range(end.offset))


def test_batches_are_bounded_in_bytes_and_every_record_is_read_once(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    """Available now, with a failure and a restart in the middle, and records that come later."""
    sink = Sink()
    frame = stream(spark, servers, maxBytesPerTrigger=str(LIMIT), maxBytesPerPartition="30000")
    expected = there(servers)
    sink.fails_at = 3
    query = sink.write(frame, tmp_path).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="killed here"):
        query.awaitTermination(120)
    assert len(sink.batches) == 3
    sink.fails_at = -1
    query = sink.write(frame, tmp_path).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sink.read == expected
    assert max(sink.sizes()) <= LIMIT
    assert min(sink.sizes()[:-1]) > LIMIT - 21_000  # one more record batch has no room
    progress = query.lastProgress
    assert progress is not None
    latest = progress.sources[0].latestOffset
    latest = json.loads(latest) if isinstance(latest, str) else latest
    assert latest[STATE]["lagRecords"] == 0
    assert latest[STATE]["batchBytes"] == sink.sizes()[-1]
    written = offsets_of(tmp_path, 4)
    assert set(written) == {SKEWED, STATE}
    assert set(written[STATE]) == {"ids"}
    fill(servers, SKEWED, 20)
    query = sink.write(frame, tmp_path).trigger(once=True).start()
    assert query.awaitTermination(120)
    assert sink.read == there(servers)


def test_a_checkpoint_of_sparks_own_source_is_continued(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    """Records that come later are read by ours; each is read once by one of the two."""
    try:
        jars = connector_jars()
    except RivalMissing as missing:
        pytest.skip(str(missing))
    for jar in sorted(jars.glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")
    with Admin(servers) as admin:
        admin.create_topic("moving", partitions=4)
    fill(servers, "moving", 40)
    theirs, ours = Sink(), Sink()
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    frame = reader.option("subscribe", "moving").option("startingOffsets", "earliest").load()
    frame = frame.selectExpr("partition", "offset", "offset AS base", "0 AS size")
    query = theirs.write(frame, tmp_path).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert theirs.read == there(servers, "moving")
    written = offsets_of(tmp_path, 0)
    fill(servers, "moving", 40)
    frame = stream(spark, servers, subscribe="moving")
    query = ours.write(frame, tmp_path).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(theirs.read + ours.read) == there(servers, "moving")
    continued = offsets_of(tmp_path, 1)
    assert continued.pop(STATE)
    assert continued.keys() == written.keys()


def test_an_idle_query_shows_its_progress_and_stops_at_once(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    """By its default trigger: batches begin as records come."""
    with Admin(servers) as admin:
        admin.create_topic("live", partitions=4)
    sink = Sink()
    shown: list[SourceProgress] = []
    listener = ProgressListener(shown.append)
    spark.streams.addListener(listener)
    try:
        frame = stream(spark, servers, subscribe="live", maxBytesPerTrigger="1m")
        query = sink.write(frame, tmp_path).queryName("live").start()
        try:
            for _ in range(2):
                fill(servers, "live", 40)
                query.processAllAvailable()
                assert sink.read == there(servers, "live")
            deadline = time.monotonic() + 60
            while count(shown) < len(sink.read) and time.monotonic() < deadline:
                Event().wait(0.1)  # listeners hear of a batch some time after it
            Event().wait(1)  # it idles now
            began = time.monotonic()
        finally:
            query.stop()
        assert time.monotonic() - began < 5
        assert query.exception() is None
    finally:
        spark.streams.removeListener(listener)
    assert count(shown) == len(sink.read)
    assert shown[-1].lag_records == 0


def count(shown: list[SourceProgress]) -> int:
    return sum(each.batch_records for each in shown if each.query == "live")


def test_small_partitions_share_tasks_and_no_record_is_read_twice(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    """Limited batches of a topic with many partitions, a failure, a restart, and later records."""
    with Admin(servers) as admin:
        admin.create_topic("many", partitions=40)
    expected: list[tuple[int, int]] = []

    def send(first: int, end: int) -> None:
        with Producer(servers) as producer:
            for offset in range(first, end):
                for partition in range(40):
                    producer.send("many", b"v", partition=partition)
                    expected.append((partition, offset))

    send(0, 3)
    sink = Sink()
    frame = stream(spark, servers, subscribe="many", maxPartitions="4", maxOffsetsPerTrigger="80")
    tagged = frame.select("partition", "offset", f.spark_partition_id(), "batchBytes")
    sink.fails_at = 1
    query = sink.write(tagged, tmp_path).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="killed here"):
        query.awaitTermination(120)
    sink.fails_at = -1
    send(3, 4)
    query = sink.write(tagged, tmp_path).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sink.read == sorted(expected)
    assert len(sink.batches) == 3
    for rows in sink.batches.values():
        assert {partition for partition, *_ in rows} == set(range(40))
        tasks = {task for _, _, task, _ in rows}
        assert 1 < len(tasks) <= 4
        # Every partition is read by one task.
        assert len({(partition, task) for partition, _, task, _ in rows}) == 40
