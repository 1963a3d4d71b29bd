"""Other clients read the records of split and moved keys, whatever they make of the headers; and
`trimtab consume --merge` prints them in order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from lab.benchmarks.apache_kafka import KafkaCluster, run_java
from tests.kafka import needs_kafka
from trimtab import Admin, Cluster, Producer

pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

PARTITIONS = 6
RECORDS = 12_000
Read = list[tuple[int, bytes, bytes]]
"""Partition, key and value of each record, in the order of each partition."""


def produce(servers: str, topic: str, treatment: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    with Producer(
        servers, partitioner_hot_keys=f"{topic}={treatment}", linger_ms=5, compression_type="lz4"
    ) as producer:
        for number in range(RECORDS):
            key = b"hot-%d" % (number % 4) if number % 2 else b"user-%d" % number
            producer.send(topic, b"%06d" % number, key)


@pytest.fixture(scope="module", params=["split", "move"])
def topic(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    with Cluster() as cluster:
        produce(cluster.bootstrap_servers, "clicks", request.param)
        yield cluster.bootstrap_servers, "clicks"


def read_with_confluent(servers: str, topic: str) -> Read:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    read: Read = []
    while len(read) < RECORDS:
        for message in consumer.consume(RECORDS, 10):
            assert message.error() is None
            key, value, partition = message.key(), message.value(), message.partition()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            assert partition is not None
            read.append((partition, key, value))
    consumer.close()
    return read


def read_with_aiokafka(servers: str, topic: str) -> Read:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> Read:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
            read: Read = []
            while len(read) < RECORDS:
                found = await consumer.getmany(timeout_ms=10_000)
                assert found
                read += [(r.partition, r.key, r.value) for each in found.values() for r in each]
            return read
        finally:
            await consumer.stop()

    return asyncio.run(run())


def read_with_java(servers: str, topic: str) -> Read:
    text = run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", servers, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(RECORDS), "--formatter-property", "print.key=true"),
        *("--formatter-property", "print.partition=true"),
    )
    lines = [line.split("\t") for line in text.splitlines() if line.startswith("Partition:")]
    return [
        (int(partition.partition(":")[2]), key.encode(), value.encode())
        for partition, key, value in lines
    ]


def check(read: Read) -> None:
    assert sorted(value for _, _, value in read) == [b"%06d" % number for number in range(RECORDS)]
    last: dict[tuple[int, bytes], bytes] = {}
    places: dict[bytes, set[int]] = {}
    for partition, key, value in read:
        assert last.get((partition, key), b"") < value
        last[partition, key] = value
        places.setdefault(key, set()).add(partition)
    assert max(len(places[b"hot-1"]), len(places[b"hot-3"])) > 1


@pytest.mark.parametrize(
    "read_with",
    [read_with_confluent, read_with_aiokafka, pytest.param(read_with_java, marks=needs_kafka)],
)
def test_other_clients_read_what_was_split_or_moved(
    topic: tuple[str, str], read_with: Callable[[str, str], Read]
) -> None:
    check(read_with(*topic))


def consume_merged(servers: str, topic: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trimtab", "consume", "--bootstrap-server", servers),
            *("--topic", topic, "--from-beginning", "--merge"),
            *("--max-messages", str(RECORDS), "--formatter-property", "print.key=true"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    last: dict[str, str] = {}
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(lines) == RECORDS
    for key, value in lines:
        assert last.get(key, "") < value
        last[key] = value


def test_consume_merge_prints_each_key_in_order(topic: tuple[str, str]) -> None:
    consume_merged(*topic)


@needs_kafka
def test_so_it_is_on_apache_kafka() -> None:
    with KafkaCluster(1) as cluster:
        for treatment in ("split", "move"):
            produce(cluster.address, f"clicks-{treatment}", treatment)
            check(read_with_confluent(cluster.address, f"clicks-{treatment}"))
            consume_merged(cluster.address, f"clicks-{treatment}")
