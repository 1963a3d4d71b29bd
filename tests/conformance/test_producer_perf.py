"""`trimtab producer-perf` and Kafka's own tool, on Apache Kafka, print the same lines.

Also tests its transactions. Skipped without Java or Apache Kafka's jars
(`python -m benchmarks.jars`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.jars import find_kafka_jars
from benchmarks.processes import ApacheKafka, run_java
from trimtab import Admin, TopicPartition

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or find_kafka_jars() is None,
    reason="needs java and Apache Kafka's jars: TRIMTAB_KAFKA_JARS, or python -m benchmarks.jars",
)

TIMEOUT_S = 120
RECORDS = 2000
WORDS = ("--num-records", str(RECORDS), "--record-size", "100", "--throughput", "2000")


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka() as kafka:
        yield kafka


@pytest.fixture(scope="module")
def admin(kafka: ApacheKafka) -> Iterator[Admin]:
    with Admin(bootstrap_servers=kafka.address) as admin:
        yield admin


def run_ours(kafka: ApacheKafka, *words: str) -> str:
    return subprocess.run(
        [
            *(sys.executable, "-m", "trimtab", "producer-perf", *WORDS),
            *("--bootstrap-server", kafka.address, *words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    ).stdout


def run_kafkas(kafka: ApacheKafka, *words: str) -> str:
    tool = "org.apache.kafka.tools.ProducerPerformance"
    return run_java(tool, *WORDS, "--bootstrap-server", kafka.address, *words)


def shapes(text: str) -> list[str]:
    """The lines with `N` in place of every number, without those of metrics."""
    return [
        re.sub(r"\d+(\.\d+)?", "N", line).strip()
        for line in text.splitlines()
        if line and "-metrics:" not in line and not re.match(r"app-info|kafka-metrics-count", line)
    ]


def test_both_print_the_same_lines(kafka: ApacheKafka, admin: Admin) -> None:
    admin.create_topic("lines", partitions=3)
    words = ("--topic", "lines", "--warmup-records", "500", "--print-metrics")
    ours, theirs = run_ours(kafka, *words), run_kafkas(kafka, *words)
    assert [re.sub(" +", " ", line) for line in shapes(ours)] == [
        re.sub(" +", " ", line) for line in shapes(theirs)
    ]
    pattern = r"producer-node-metrics:outgoing-byte-total:\{client-id=(\S+), node-id=node-0\} +: "
    assert re.search(pattern, ours)[1] == re.search(pattern, theirs)[1] == "perf-producer-client"


def test_records_are_sent_in_transactions(kafka: ApacheKafka, admin: Admin) -> None:
    admin.create_topic("transactions", partitions=1)
    text = run_ours(kafka, "--topic", "transactions", "--transaction-duration-ms", "100")
    assert f"{RECORDS} records sent" in text
    partition = TopicPartition("transactions", 0)
    ends = {
        isolation: admin.list_offsets([partition], isolation=isolation)[partition].offset
        for isolation in ("read_uncommitted", "read_committed")
    }
    # One second of transactions of 0.1 s each. Every commit writes a marker; none stays open.
    markers = ends["read_uncommitted"] - RECORDS
    assert 3 <= markers <= 12
    assert ends["read_committed"] == ends["read_uncommitted"]
