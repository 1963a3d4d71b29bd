"""The load tables of a cluster, beside what the cluster says of itself and what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql import functions as f

from tests.spark.frames import read
from trimtab import Admin, Cluster, Producer, TopicPartition
from trimtab.spark.load.brokers import broker_capacity
from trimtab.spark.load.inputs import KEY_HASHES, KEYS, RECORDS
from trimtab.spark.load.keys import hot_keys, key_sketches
from trimtab.spark.load.log_segments import read_segments
from trimtab.spark.load.partitions import partition_load
from trimtab.spark.load.repartitioning import what_if_partitions
from trimtab.spark.load.snapshots import SnapshotFrames, take_snapshot, to_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYED, PLAIN, RESENT = "keyed", "plain", "resent"
NEW_COUNT = 7
SENT = 18_000
NAMES = [b"key %d" % rank for rank in range(3000)]


class Field(NamedTuple):
    """A cluster that has been written to."""

    servers: str
    directories: dict[int, str]
    keys: list[bytes]


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    data = tmp_path_factory.mktemp("load")
    weights = [1 / rank for rank in range(1, len(NAMES) + 1)]  # Zipf's
    keys = Random(6).choices(NAMES, weights, k=SENT)
    config = {"log.segment.bytes": 40 * 1024, "max.broker.partitions": 50}
    with Cluster(3, racks=["a", "b", "c"], data=data, config=config) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic(KEYED, partitions=4, replication_factor=2)
            admin.create_topic(PLAIN, partitions=3, replication_factor=1)
            admin.create_topic(RESENT, partitions=NEW_COUNT, replication_factor=1)
        options: dict[str, Any] = {"linger_ms": 5, "compression_type": "lz4"}
        with Producer(servers, acks="all", **options) as producer:
            for number, key in enumerate(keys):
                value = b"%d" % number * (1 + number % 7)
                producer.send(KEYED, value, key)
                if number % 3 == 0:
                    producer.send(PLAIN, value, None if number % 2 else b"k")
            producer.flush()
        with Producer(servers, **options) as producer:  # the same again, elsewhere
            for number, key in enumerate(keys):
                producer.send(RESENT, b"%d" % number * (1 + number % 7), key)
        directories = {
            int(path.name.removeprefix("broker-")): str(path)
            for path in Path(data).iterdir()
            if (path / "meta.properties").exists() and path.name != "controller"
        }
        yield Field(servers, directories, keys)


@pytest.fixture(scope="module")
def frames(spark: SparkSession, field: Field) -> SnapshotFrames:
    return to_frames(spark, take_snapshot({"bootstrap.servers": field.servers}))


def as_dict(frame: DataFrame, keys: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {tuple(row)[:keys]: tuple(row)[keys:] for row in frame.collect()}


def test_segments_have_the_bytes_of_log_dirs_and_the_offsets_of_get_offsets(
    spark: SparkSession, field: Field, frames: SnapshotFrames
) -> None:
    assert set(field.directories) == {0, 1, 2}
    batches = read_segments(spark, field.directories.values(), task_bytes=1)
    with Admin(field.servers) as admin:
        logs = {
            (field.directories[broker], *partition): log.size
            for broker, directories in admin.describe_log_dirs().items()
            for each in directories
            for partition, log in each.logs.items()
            if log.size
        }
        latest = admin.list_offsets([(KEYED, n) for n in range(4)] + [(PLAIN, n) for n in range(3)])
    assert len(logs) == 4 * 2 + 3 + NEW_COUNT
    found = as_dict(
        batches.groupBy("directory", "topic", "partition").agg(
            f.sum("batchBytes"), f.max("lastOffset"), f.sum("records"), f.count_distinct("segment")
        ),
        3,
    )
    assert {replica: row[0] for replica, row in found.items()} == logs
    for (_, topic, partition), (_, last_offset, records, _) in found.items():
        if topic != RESENT:
            assert last_offset + 1 == records == latest[TopicPartition(topic, partition)].offset
    # A task each, as they have more than a byte; several segments a partition.
    assert batches.rdd.getNumPartitions() == sum(row[3] for row in found.values()) > len(logs)

    # What the snapshot's rows say is the same.
    replicas = as_dict(frames.replicas.select("directory", "topic", "partition", "bytes"), 3)
    assert {key: size for key, (size,) in replicas.items() if size} == logs
    offsets = as_dict(frames.offsets.select("topic", "partition", "earliest", "latest"), 2)
    for partition, each in latest.items():
        assert offsets[tuple(partition)] == (0, each.offset)


def test_records_and_segments_make_the_same_table_with_full_counts(
    spark: SparkSession, field: Field, frames: SnapshotFrames
) -> None:
    records = read(spark, field.servers, RECORDS, subscribe=f"{KEYED},{PLAIN}")
    from_records = partition_load(records, frames.partitions).filter(f"topic != '{RESENT}'")
    # Of each partition the leader's log.
    led = frames.partitions.select("topic", "partition", "leader")
    directories = spark.createDataFrame(
        list(field.directories.items()), "leader int, directory string"
    )
    batches = read_segments(spark, field.directories.values(), topics=[KEYED, PLAIN])
    batches = batches.join(led, ["topic", "partition"]).join(directories, ["leader", "directory"])
    from_segments = partition_load(batches.drop("leader"), frames.partitions)
    columns = ("topic", "partition", "leader", "rack", "TotalBatches", "TotalBytes", "TotalRecords")
    more = ("FirstOffset", "LastOffset", "ShareOfBytes")
    table = as_dict(from_records.select(*columns, *more), 2)
    assert table == as_dict(from_segments.filter(f"topic != '{RESENT}'").select(*columns, *more), 2)
    totals = Counter[str]()
    for (topic, _), row in table.items():
        totals[topic] += row[4]
        assert row[1] == "abc"[row[0]]
    assert totals == {KEYED: SENT, PLAIN: SENT // 3}
    raw = from_records.groupBy("topic").sum("RawBytes", "NullKeyRecords")
    values = [len(b"%d" % number) * (1 + number % 7) for number in range(SENT)]
    assert as_dict(raw, 1) == {
        (KEYED,): (sum(values) + sum(map(len, field.keys)), 0),
        (PLAIN,): (sum(values[::3]) + SENT // 6, SENT // 6),
    }


def test_the_top_twenty_keys_and_where_they_would_go(spark: SparkSession, field: Field) -> None:
    records = read(spark, field.servers, KEYS, subscribe=KEYED)
    hot = hot_keys(key_sketches(records, counters=300), top=20)
    counted = Counter(field.keys)
    least = counted.most_common(20)[-1][1]
    rows = hot.collect()
    assert len(rows) == 20
    recalled = [row for row in rows if counted[bytes(row.key)] >= least]
    assert len(recalled) == 20
    for row in rows:
        assert row.Records <= counted[bytes(row.key)] <= row.MostRecords

    # The same keys over seven partitions: what is foretold is what a producer then did.
    hashes = read(spark, field.servers, KEY_HASHES, subscribe=KEYED)
    foretold = what_if_partitions(hashes, [NEW_COUNT])
    sent = read(spark, field.servers, RECORDS, subscribe=RESENT).groupBy("partition")
    happened = sent.agg({"offset": "count", "keyBytes": "sum", "valueBytes": "sum"}).selectExpr(
        "partition", "`count(offset)`", "`sum(keyBytes)` + `sum(valueBytes)`"
    )
    columns = ("partition", "TotalRecords", "RawBytes")
    assert as_dict(foretold.select(*columns), 1) == as_dict(happened, 1)
    assert sum(row.Keys for row in foretold.collect()) == len(counted)


def test_capacity_of_the_brokers(frames: SnapshotFrames, field: Field) -> None:
    table = broker_capacity(
        frames.brokers, frames.replicas, frames.directories, frames.partitions
    ).collect()
    assert [(row.broker, row.rack, row.MaxReplicas) for row in table] == [
        (0, "a", 50),
        (1, "b", 50),
        (2, "c", 50),
    ]
    assert sum(row.Replicas for row in table) == 4 * 2 + 3 + NEW_COUNT
    assert sum(row.Leaders for row in table) == 4 + 3 + NEW_COUNT
    for row in table:
        assert row.DiskTotalBytes >= row.DiskUsableBytes > 0
        assert (row.BytesPerDay, row.DaysToFull) == (None, None)
