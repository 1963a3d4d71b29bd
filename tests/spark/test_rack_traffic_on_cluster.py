"""`rack_traffic` beside what brokers count when they send: to followers, and to consumers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.frames import consume, read
from trimtab import Admin, Cluster, Producer, TopicPartition
from trimtab.cluster.broker.fetch_reader import FetchReader
from trimtab.spark import load
from trimtab.spark.load.snapshots import take_snapshot, to_frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trimtab.cluster.broker.partition import Partition

NEAR, FAR = "near", "far"
RACKS = ("a", "b", "c")
COUNT = 6000
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def test_traffic_is_what_the_brokers_sent(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: Counter[tuple[str, str, str, str]] = Counter()
    note_sent = FetchReader.note_sent

    def count_sent(reader: FetchReader, partition: Partition, size: int) -> None:
        source = RACKS[reader.replicas.id]
        if reader.is_follower:
            sent[partition.topic, "replicate", source, RACKS[reader.replica_id]] += size
        else:
            # The consumer that names no rack is in b.
            sent[partition.topic, "consume", source, reader.rack or "b"] += size
        note_sent(reader, partition, size)

    monkeypatch.setattr(FetchReader, "note_sent", count_sent)
    config = {"replica.selector.class": SELECTOR}
    with Cluster(3, racks=RACKS, data=tmp_path, config=config) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            for topic in (NEAR, FAR):
                placed = {0: [0, 1], 1: [1, 2], 2: [2, 0], 3: [0, 2]}
                admin.create_topic(topic, assignment=placed)
        aware = {"partitioner_rack_aware": True, "acks": "all"}
        for topic, count, options in (
            (NEAR, COUNT, {"client_rack": "a", **aware}),
            (NEAR, COUNT // 3, {"client_rack": "b", **aware}),
            (FAR, COUNT, {"acks": "all"}),
        ):
            with Producer(servers, **options) as producer:
                for number in range(count):
                    producer.send(topic, b"%d" % number * 50)
        for rack, topics in (("c", (NEAR, FAR)), ("", (NEAR,))):
            for topic in topics:
                consume(servers, rack, [(topic, number) for number in range(4)])
        counted = sent.copy()

        frames = to_frames(spark, take_snapshot({"bootstrap.servers": servers}))
        records = read(spark, servers, load.RECORDS, subscribe=f"{NEAR},{FAR}")
        table = load.partition_load(records, frames.partitions)
        clients = [
            (NEAR, "produce", "a", 3.0, True),
            (NEAR, "produce", "b", 1.0, True),
            (FAR, "produce", "b", 1.0, False),
            (NEAR, "consume", "c", 1.0, True),
            (FAR, "consume", "c", 1.0, True),
            (NEAR, "consume", "b", 1.0, False),
        ]
        traffic = load.rack_traffic(
            table, frames.partitions, spark.createDataFrame(clients, load.CLIENTS)
        ).collect()
        with Admin(servers) as admin:
            (logs,) = admin.describe_log_dirs([1])[1]
    moved = {(row.topic, row.kind, row.fromRack, row.toRack): row.Bytes for row in traffic}
    taken = {key: size for key, size in moved.items() if key[1] != "produce"}
    assert taken.keys() == counted.keys()
    for key, size in taken.items():
        assert size == pytest.approx(counted[key], rel=0.02), key
    # Rack-aware producers wrote to their racks alone; the other from b to all.
    produced = {key: size for key, size in moved.items() if key[1] == "produce"}
    assert set(produced) == {
        (NEAR, "produce", "a", "a"),
        (NEAR, "produce", "b", "b"),
        *((FAR, "produce", "b", rack) for rack in RACKS),
    }
    assert produced[NEAR, "produce", "b", "b"] == logs.logs[TopicPartition(NEAR, 1)].size
    assert produced[FAR, "produce", "b", "b"] == logs.logs[TopicPartition(FAR, 1)].size
    savable = {row.SavedBy for row in traffic if row.SavableBytes}
    assert savable == {"KIP-1123", "KIP-392"}
