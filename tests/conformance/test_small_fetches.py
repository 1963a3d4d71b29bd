"""Consumers that fetch 1 KiB at a time from twenty partitions read each of them to its end.

Acceptance case 11 of KIP-74: a client may name its partitions in any order (Java's client up to 4.1
uses a hash), so the broker must ensure that no partition starves.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.benchmarks.apache_kafka import run_java
from lab.benchmarks.jars import (
    KAFKA_VERSION,
    OLD_CLIENT,
    find_client_jars,
    find_kafka_jars,
)
from trimtab import Admin, Cluster, Consumer, Producer

# kafka-python uses a deprecated API to read its schemas.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.kip(74),
]

TOPIC = "full"
PARTITIONS = 20
RECORDS = 30
"""Records in each partition, each in its own batch; two batches fit into a response."""
TOTAL = PARTITIONS * RECORDS
MAX_BYTES = 1024
PATIENCE_S = 10
SOURCE = Path(__file__).parent / "java" / "SmallFetches.java"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        with Producer(cluster.bootstrap_servers, batch_size=0) as producer:
            for number in range(TOTAL):
                producer.send(TOPIC, bytes(400), partition=number % PARTITIONS)
        yield cluster.bootstrap_servers


def check(read: list[int], fair: bool = True) -> None:
    """Check that all records were read, and if `fair`, that no partition was finished before all
    had begun."""
    assert Counter(read) == dict.fromkeys(range(PARTITIONS), RECORDS)
    last_to_begin = max(read.index(each) for each in range(PARTITIONS))
    first_to_end = min(
        max(at for at, partition in enumerate(read) if partition == each)
        for each in range(PARTITIONS)
    )
    assert not fair or last_to_begin < first_to_end


def test_ours(servers: str) -> None:
    read: list[int] = []
    with Consumer(servers, fetch_max_bytes=MAX_BYTES, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, each) for each in range(PARTITIONS)])
        while len(read) < TOTAL:
            records = consumer.poll(timeout_ms=PATIENCE_S * 1000)
            assert records, f"{len(read)} of {TOTAL} records, then nothing"
            read += [record.partition for record in records]
    check(read)


def test_confluent_kafka(servers: str) -> None:
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import TopicPartition

    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "not-joined",
            "enable.auto.commit": False,
            "fetch.max.bytes": MAX_BYTES,
            "message.max.bytes": MAX_BYTES,  # else fetch.max.bytes is raised
        }
    )
    consumer.assign([TopicPartition(TOPIC, each, 0) for each in range(PARTITIONS)])
    read: list[int] = []
    while len(read) < TOTAL:
        messages = consumer.consume(TOTAL, PATIENCE_S)
        assert messages, f"{len(read)} of {TOTAL} records, then nothing"
        for message in messages:
            assert message.error() is None
            partition = message.partition()
            assert partition is not None
            read.append(partition)
    consumer.close()
    check(read)


def test_kafka_python(servers: str) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers, enable_auto_commit=False, fetch_max_bytes=MAX_BYTES
    )
    try:
        partitions = [TopicPartition(TOPIC, each) for each in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        read: list[int] = []
        while len(read) < TOTAL:
            fetched = consumer.poll(PATIENCE_S * 1000)
            assert fetched, f"{len(read)} of {TOTAL} records, then nothing"
            read += [record.partition for records in fetched.values() for record in records]
    finally:
        consumer.close()
    check(read)


def test_aiokafka(servers: str) -> None:
    """aiokafka has no fetch sessions, so only its own order matters."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def consume() -> list[int]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers, enable_auto_commit=False, fetch_max_bytes=MAX_BYTES
        )
        await consumer.start()
        try:
            partitions = [TopicPartition(TOPIC, each) for each in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            read: list[int] = []
            while len(read) < TOTAL:
                fetched = await consumer.getmany(timeout_ms=PATIENCE_S * 1000)
                assert fetched, f"{len(read)} of {TOTAL} records, then nothing"
                read += [record.partition for records in fetched.values() for record in records]
            return read
        finally:
            await consumer.stop()

    check(asyncio.run(consume()), fair=False)


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac")
@pytest.mark.parametrize("version", [KAFKA_VERSION, OLD_CLIENT])
def test_java(servers: str, version: str) -> None:
    jars = find_kafka_jars() if version == KAFKA_VERSION else find_client_jars(version)
    if jars is None:
        pytest.skip(f"needs kafka-clients {version}: python -m lab.benchmarks.jars")
    words = (servers, TOPIC, str(PARTITIONS), str(TOTAL))
    read = run_java(str(SOURCE), *words, heap="128m", jars=jars, stderr=None)
    check([int(line) for line in read.split()])
