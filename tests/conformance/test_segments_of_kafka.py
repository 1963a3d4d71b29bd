"""Log segments that Apache Kafka wrote (`load/log_segments.py`), compared with its tools' output.

Skipped without Java; the first run fetches Apache Kafka's jars.
"""

from __future__ import annotations

import json
import struct
from collections import Counter

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka, run_java
from trimtab import Admin, Producer
from trimtab.spark.load.log_segments import find_segments, read_headers
from trimtab.spark.load.snapshots import take_snapshot

PLAIN, MARKED = "segments-plain", "segments-marked"
GROUP = "segments"
TOPICS = f"{PLAIN},{MARKED}"


@pytest.fixture(scope="module")
def kafka(apache_kafka: ApacheKafka) -> ApacheKafka:
    small = {"segment.bytes": 1024 * 1024}
    with Admin(apache_kafka.address) as admin:
        admin.create_topic(PLAIN, partitions=3, config=small)
        admin.create_topic(MARKED, partitions=2)
    with Producer(apache_kafka.address, compression_type="zstd", linger_ms=5) as producer:
        for number in range(20_000):
            producer.send(PLAIN, b"%d" % number * 40, b"%d" % (number % 50))
    with Producer(apache_kafka.address) as producer:
        for number in range(4_000):
            producer.send(PLAIN, b"%d" % number * 200)
    with Producer(apache_kafka.address, transactional_id=MARKED) as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            for partition in range(2):
                producer.send(MARKED, b"v" * number, partition=partition)
            producer.flush()  # aborting unsent records would leave nothing in the log
            if number % 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    # A commit returns before its markers are written; the next producer with this
    # transactional id waits for them.
    with Producer(apache_kafka.address, transactional_id=MARKED) as producer:
        producer.init_transactions()
    return apache_kafka


def test_bytes_and_offsets_are_those_that_kafkas_tools_print(kafka: ApacheKafka) -> None:
    found: dict[tuple[str, int], tuple[int, int]] = {}
    segments = find_segments([str(kafka.directory / "data")], topics=[PLAIN, MARKED])
    for segment in segments:
        partition = (segment.topic, segment.partition)
        for columns in read_headers(segment):
            octets, end = found.get(partition, (0, 0))
            sizes = struct.unpack(f"={columns.rows}i", columns.size)
            last = struct.unpack(f"={columns.rows}q", columns.last_offset)
            found[partition] = (octets + sum(sizes), max(end, last[-1] + 1))
    assert len(segments) > len(found) == 5  # some were rolled

    server = ("--bootstrap-server", kafka.address)
    told = run_java(
        "org.apache.kafka.tools.LogDirsCommand", *server, "--describe", "--topic-list", TOPICS
    )
    (described,) = (line for line in told.splitlines() if line.startswith("{"))
    sizes_by_tool = {
        each["partition"]: each["size"]
        for broker in json.loads(described)["brokers"]
        for directory in broker["logDirs"]
        for each in directory["partitions"]
    }
    assert {f"{name}-{index}": size for (name, index), (size, _) in found.items()} == sizes_by_tool

    told = run_java(
        "org.apache.kafka.tools.GetOffsetShell", *server, "--topic", f"{PLAIN}|{MARKED}"
    )
    ends = {f"{name}:{index}:{end}" for (name, index), (_, end) in found.items()}
    assert set(told.split()) == ends
    # Each transaction has a record and a marker.
    assert found[MARKED, 0][1] == 8


def test_markers_and_codecs_are_seen(kafka: ApacheKafka) -> None:
    directory = [str(kafka.directory / "data")]
    attributes: dict[str, set[int]] = {PLAIN: set(), MARKED: set()}
    for topic, seen in attributes.items():
        for segment in find_segments(directory, topics=[topic]):
            for columns in read_headers(segment):
                seen |= set(struct.unpack(f"={columns.rows}i", columns.attributes))
    assert {each & 7 for each in attributes[PLAIN]} == {0, 4}
    assert {each & 0x30 for each in attributes[MARKED]} == {0x10, 0x30}


def test_a_snapshot_says_what_the_cluster_has(kafka: ApacheKafka) -> None:
    with Admin(kafka.address) as admin:
        admin.alter_group_offsets(GROUP, {(PLAIN, 2): 7})
    snapshot = take_snapshot(
        {"bootstrap.servers": kafka.address}, topics=[PLAIN, MARKED], groups=[GROUP, "nobody"]
    )
    assert [row[1:] for row in snapshot.partitions] == [
        (topic, number, 0, None, [0], [None], [0])
        for topic, count in ((PLAIN, 3), (MARKED, 2))
        for number in range(count)
    ]
    stored: Counter[tuple[str, int]] = Counter()
    for segment in find_segments([str(kafka.directory / "data")], topics=[PLAIN, MARKED]):
        stored[segment.topic, segment.partition] += segment.size
    sizes = {row[3:5]: row[5:] for row in snapshot.replicas if row[3] in (PLAIN, MARKED)}
    assert sizes == {partition: (size, 0, False) for partition, size in stored.items()}
    ends = {row[1:3]: row[3:] for row in snapshot.offsets}
    assert ends.keys() == stored.keys()
    assert ends[MARKED, 1] == (0, 8)
    assert sum(end for (topic, _), (_, end) in ends.items() if topic == PLAIN) == 24_000
    ((_, broker, host, port, rack, *limits),) = snapshot.brokers
    assert (broker, f"{host}:{port}", rack, limits) == (0, kafka.address, None, [None, None])
    ((_, _, directory, total, usable),) = snapshot.directories
    assert directory == str(kafka.directory / "data")
    assert total > usable > 0
    assert [row[1:] for row in snapshot.group_offsets] == [(GROUP, PLAIN, 2, 7)]
    every = [row for rows in snapshot for row in rows]
    assert len({row[0] for row in every}) == 1
