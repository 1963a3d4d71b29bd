"""Apache Kafka's console producer and trimtab's: the same input gives the same records and offsets.

Skipped without Java or Apache Kafka's jars (`python -m lab.benchmarks.jars`). Kafka 4 has only
today's partitioning (KIP-794); `tests/unit/lab/experiments/test_console_experiment.py` tests the
console producer with KIP-480's.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from lab.benchmarks.jars import find_kafka_jars, java_command
from tests.kafka import needs_kafka
from trimtab import Admin, Cluster, Consumer, TopicPartition

pytestmark = needs_kafka

PARTITIONS = 5
PATIENCE_S = 60

Count = Callable[[], list[int]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        yield admin


def kafkas() -> list[str]:
    return [
        *java_command("256m"),
        "-cp",
        f"{find_kafka_jars()}/*",
        "org.apache.kafka.tools.ConsoleProducer",
    ]


def ours() -> list[str]:
    return [sys.executable, "-m", "trimtab", "produce"]


TOOLS = pytest.mark.parametrize("tool", [kafkas, ours])


def type_into(
    command: Sequence[str], groups: Sequence[str], count: Callable[[], int], expected: Sequence[int]
) -> None:
    """Type groups of lines into a tool, each after the records of the group before are stored."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        for group, stored in zip(groups, expected, strict=True):
            process.stdin.write(group.encode())
            process.stdin.flush()
            began = time.monotonic()
            while count() < stored:
                assert time.monotonic() - began < PATIENCE_S, f"{count()} of {stored} are stored"
                assert process.poll() is None, f"the tool ended with {process.returncode}"
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


@TOOLS
def test_ten_lines_typed_in_two_goes_share_a_partition(
    tool: Callable[[], list[str]], cluster: Cluster, admin: Admin
) -> None:
    topic = f"ten-{tool.__name__}"
    admin.create_topic(topic, partitions=PARTITIONS)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def offsets() -> list[int]:
        return [end.offset for end in admin.list_offsets(partitions).values()]

    type_into(
        [*tool(), "--topic", topic, "--bootstrap-server", cluster.bootstrap_servers],
        ["1\n2\n3\n4\n5\n", "6\n7\n8\n9\n10\n"],
        lambda: sum(offsets()),
        [5, 10],
    )
    assert sorted(offsets()) == [0, 0, 0, 0, 10]


CASES: dict[str, tuple[list[str], str]] = {
    "plain": ([], "a\n\nb\tc\nü\r\n"),
    "keys": (["parse.key=true"], "k\tv\tw\n\tno key\nk\t\n"),
    "colon": (["parse.key=true", "key.separator=::"], "k::v:w\n"),
    "headers": (["parse.headers=true", "parse.key=true"], "a:1,b:2,a:\tk\tv\nx:y:z\tk\t\n"),
    "null": (
        ["parse.headers=true", "parse.key=true", "null.marker=NULL"],
        "NULL\tNULL\tNULL\na:NULL\tk\tNULLx\n",
    ),
    "ignore": (
        ["parse.headers=true", "parse.key=true", "ignore.error=true"],
        "no separator at all\nonly:header\tand a value\n",
    ),
    "others": (
        ["parse.headers=true", "headers.delimiter=|", "headers.separator=;"],
        "a:1;b:2|v|w\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_both_make_the_same_records_of_a_line(case: str, cluster: Cluster, admin: Admin) -> None:
    properties, text = CASES[case]
    stored: list[list[Any]] = []
    for tool in (kafkas, ours):
        topic = f"lines-{case}-{tool.__name__}"
        admin.create_topic(topic, partitions=1)
        words = [word for each in properties for word in ("--reader-property", each)]
        command = [*tool(), "--topic", topic, "--bootstrap-server", cluster.bootstrap_servers]
        subprocess.run([*command, *words], input=text.encode(), check=True, timeout=PATIENCE_S)
        stored.append(read_all(cluster, topic, text.count("\n")))
    assert stored[0] == stored[1]


def read_all(cluster: Cluster, topic: str, count: int) -> list[Any]:
    consumer = Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    with consumer:
        consumer.assign([TopicPartition(topic, 0)])
        records: list[Any] = []
        began = time.monotonic()
        while len(records) < count and time.monotonic() - began < PATIENCE_S:
            records += consumer.poll(1)
    return [(record.key, record.value, list(record.headers)) for record in records]
