"""Apache Kafka's own tools against our cluster and our files; skipped where they cannot be had.

They are looked for in `TRIMTAB_KAFKA_JARS` and in trimtab's cache (`python -m benchmarks.jars`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.jars import find_kafka_jars
from benchmarks.processes import run_java
from trimtab import Admin, Cluster, Producer

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or find_kafka_jars() is None,
    reason="needs java and Apache Kafka's jars: TRIMTAB_KAFKA_JARS, or python -m benchmarks.jars",
)

RECORDS = 200_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        brokers=3, racks=["a", "b", "c"], config={"log.segment.bytes": 4_000_000}
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("codec", CODECS)
def test_producer_performance_with_its_defaults_is_served(cluster: Cluster, codec: str) -> None:
    """Defaults mean an idempotent producer with acks=all."""
    topic = f"perf-{codec}"
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=6)
    text = run_java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", "100"),
        *("--throughput", "-1", "--bootstrap-server", cluster.bootstrap_servers),
        *("--command-property", f"compression.type={codec}"),
    )
    assert f"{RECORDS} records sent" in text
    assert "WARN" not in text
    assert "Exception" not in text
    offsets = run_java(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic),
    )
    assert sum(int(line.rsplit(":", 1)[1]) for line in offsets.split()) == RECORDS


def test_console_consumer_reads_what_trimtab_produced(cluster: Cluster) -> None:
    topic = "console"
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, compression_type="zstd") as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number)
    text = run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic),
        *("--partition", "0", "--offset", "earliest", "--max-messages", "100"),
    )
    assert [int(line) for line in text.splitlines() if line.isdecimal()] == list(range(100))


def test_topic_command_describes_our_topics(cluster: Cluster) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("described", partitions=3, config={"retention.ms": "60000"})
    text = run_java(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--describe", "--topic", "described"),
    )
    assert re.search(
        r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=60000", text
    )
    assert len(re.findall(r"Leader: [012]\s+Replicas: [012]\s+Isr: [012]", text)) == 3


def test_dump_log_segments_reads_our_files_without_complaint(tmp_path: Path) -> None:
    topic = "dumped"
    with Cluster(brokers=1, data=tmp_path, config={"log.segment.bytes": 1_000_000}) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(topic, partitions=1)
        for codec in CODECS:
            with Producer(
                bootstrap_servers=cluster.bootstrap_servers, compression_type=codec
            ) as producer:
                for number in range(20_000):
                    producer.send(topic, b"value-%d" % number * 3, key=b"%d" % number)
    logs = sorted(tmp_path.rglob(f"{topic}-0/*.log"))
    indexes = sorted(tmp_path.rglob(f"{topic}-0/*index"))
    assert len(logs) > 1
    dumped = dump("--deep-iteration", logs)
    assert dumped.count("isvalid: true") == dumped.count("baseOffset: ")
    counts = [int(count) for count in re.findall(r"baseOffset: .*? count: (\d+)", dumped)]
    assert sum(counts) == 20_000 * len(CODECS)
    # The tool starts each file at -1, and so finds a gap before any but the first.
    gaps = {(int(a), int(b)) for a, b in re.findall(r"(-?\d+) is followed by (\d+)", dumped)}
    assert gaps == {(-1, int(log.stem)) for log in logs[1:]}
    sane = dump("--index-sanity-check", indexes)
    assert sane.count("passed sanity check") == len(indexes)
    verified = dump("--verify-index-only", indexes)
    for complaint in ("Mismatches", "mismatch", "out of order", "not found", "invalid bytes"):
        assert complaint not in dumped + sane + verified


def dump(how: str, files: list[Path]) -> str:
    return run_java(
        "org.apache.kafka.tools.DumpLogSegments", how, "--files", ",".join(map(str, files))
    )
