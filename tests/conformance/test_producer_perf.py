"""`trimtab producer-perf` and Kafka's own tool, on Apache Kafka, print the same lines.

Also tests its transactions. Skipped without Java; the first run fetches Apache Kafka's jars.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka, run_java
from lab.benchmarks.exactly_once import wait_for_markers
from trimtab import Admin, TopicPartition

TIMEOUT_S = 120
RECORDS = 2000
PLAIN, IN_TRANSACTIONS = "perf-plain", "perf-in-transactions"
WORDS = ("--num-records", str(RECORDS), "--record-size", "100", "--throughput", "2000")


@pytest.fixture(scope="module")
def admin(apache_kafka: ApacheKafka) -> Iterator[Admin]:
    with Admin(bootstrap_servers=apache_kafka.address) as admin:
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


def test_both_print_the_same_lines(apache_kafka: ApacheKafka, admin: Admin) -> None:
    admin.create_topic(PLAIN, partitions=3)
    words = ("--topic", PLAIN, "--warmup-records", "500", "--print-metrics")
    ours, theirs = run_ours(apache_kafka, *words), run_kafkas(apache_kafka, *words)
    assert [re.sub(" +", " ", line) for line in shapes(ours)] == [
        re.sub(" +", " ", line) for line in shapes(theirs)
    ]
    pattern = r"producer-node-metrics:outgoing-byte-total:\{client-id=(\S+), node-id=node-0\} +: "
    for metrics in (ours, theirs):
        assert re.findall(pattern, metrics) == ["perf-producer-client"]


def test_records_are_sent_in_transactions(apache_kafka: ApacheKafka, admin: Admin) -> None:
    admin.create_topic(IN_TRANSACTIONS, partitions=1)
    began = time.monotonic()
    text = run_ours(apache_kafka, "--topic", IN_TRANSACTIONS, "--transaction-duration-ms", "100")
    seconds = time.monotonic() - began
    assert f"{RECORDS} records sent" in text
    partition = TopicPartition(IN_TRANSACTIONS, 0)
    wait_for_markers(admin)
    ends = {
        isolation: admin.list_offsets([partition], isolation=isolation)[partition].offset
        for isolation in ("read_uncommitted", "read_committed")
    }
    # Transactions of 0.1 s or longer. Every commit writes a marker; none stays open.
    markers = ends["read_uncommitted"] - RECORDS
    assert 2 <= markers <= seconds / 0.1
    assert ends["read_committed"] == ends["read_uncommitted"]
