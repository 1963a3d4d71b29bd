"""Other projects' clients and trimtab's read each other's records from trimtab's cluster.

Tests run with every codec; each partition has three replicas.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from trimtab import Admin, Cluster, Consumer, Producer, TopicPartition

# kafka-python uses a deprecated API to read its schemas.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

PARTITIONS = 3
RECORDS = 600
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Read = list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]
"""The records read, sorted: partition, key, value, headers."""

HEADERS = (("origin", b"EWR"), ("empty", b""))


def expected() -> Read:
    return sorted(
        (number % PARTITIONS, b"key-%d" % number, b"value-%05d " % number * 9, HEADERS)
        for number in range(RECORDS)
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(data: Path) -> Iterator[Cluster]:
    with Cluster(brokers=3, racks=["a", "b", "c"], data=data) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    return name


def produce_with_trimtab(servers: str, topic: str, codec: str) -> None:
    with Producer({"bootstrap.servers": servers, "compression.type": codec}) as producer:
        deliveries = [
            producer.send(topic, value, key=key, headers=list(headers), partition=partition)
            for partition, key, value, headers in expected()
        ]
        producer.flush()
        assert {delivery.result().partition for delivery in deliveries} == set(range(PARTITIONS))


def consume_with_trimtab(servers: str, topic: str) -> Read:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    read: Read = []
    with Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while len(read) < RECORDS:
            records = consumer.poll(timeout_ms=5000)
            assert records, f"{len(read)} of {RECORDS} records, then nothing for 5 s"
            read += [(r.partition, r.key, r.value, tuple(r.headers)) for r in records]
    return sorted(read)


def produce_with_confluent(servers: str, topic: str, codec: str) -> None:
    from confluent_kafka import Producer as ConfluentProducer

    errors: list[object] = []

    def note(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    producer = ConfluentProducer({"bootstrap.servers": servers, "compression.type": codec})
    for partition, key, value, headers in expected():
        producer.produce(
            topic,
            value,
            key=key,
            headers=list(headers),
            partition=partition,
            on_delivery=note,
        )
    assert producer.flush(30) == 0
    assert errors == []


def consume_with_confluent(servers: str, topic: str) -> Read:
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import TopicPartition as ConfluentPartition

    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "not-joined",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([ConfluentPartition(topic, number, 0) for number in range(PARTITIONS)])
    read: Read = []
    while len(read) < RECORDS:
        messages = consumer.consume(RECORDS, 10)
        assert messages, f"{len(read)} of {RECORDS} records, then nothing for 10 s"
        for message in messages:
            assert message.error() is None
            partition = message.partition()
            assert partition is not None
            headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            read.append((partition, message.key(), message.value(), tuple(headers)))
    consumer.close()
    return sorted(read)


def produce_with_aiokafka(servers: str, topic: str, codec: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, compression_type=None if codec == "none" else codec
        )
        await producer.start()
        try:
            sent = [
                await producer.send(topic, value, key, partition, headers=list(headers))
                for partition, key, value, headers in expected()
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(run())


def consume_with_aiokafka(servers: str, topic: str) -> Read:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as AiokafkaPartition

    async def run() -> Read:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [AiokafkaPartition(topic, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            read: Read = []
            while len(read) < RECORDS:
                fetched = await consumer.getmany(timeout_ms=10_000)
                assert fetched, f"{len(read)} of {RECORDS} records, then nothing for 10 s"
                for records in fetched.values():
                    read += [(r.partition, r.key, r.value, tuple(r.headers)) for r in records]
            return sorted(read)
        finally:
            await consumer.stop()

    return asyncio.run(run())


def produce_with_kafka_python(servers: str, topic: str, codec: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=servers, compression_type=None if codec == "none" else codec
    )
    try:
        sent = [
            producer.send(topic, value, key, list(headers), partition)
            for partition, key, value, headers in expected()
        ]
        producer.flush(30)
        assert [future.exception for future in sent if future.failed()] == []
    finally:
        producer.close()


def consume_with_kafka_python(servers: str, topic: str) -> Read:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaPythonPartition

    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    try:
        partitions = [KafkaPythonPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        read: Read = []
        while len(read) < RECORDS:
            fetched = consumer.poll(10_000)
            assert fetched, f"{len(read)} of {RECORDS} records, then nothing for 10 s"
            for records in fetched.values():
                read += [(r.partition, r.key, r.value, tuple(r.headers)) for r in records]
        return sorted(read)
    finally:
        consumer.close()


PRODUCERS: dict[str, Callable[[str, str, str], None]] = {
    "trimtab": produce_with_trimtab,
    "confluent-kafka": produce_with_confluent,
    "aiokafka": produce_with_aiokafka,
    "kafka-python": produce_with_kafka_python,
}
CONSUMERS: dict[str, Callable[[str, str], Read]] = {
    "trimtab": consume_with_trimtab,
    "confluent-kafka": consume_with_confluent,
    "aiokafka": consume_with_aiokafka,
    "kafka-python": consume_with_kafka_python,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_what_one_client_produces_every_client_reads(
    cluster: Cluster, topic: str, producer: str, codec: str
) -> None:
    PRODUCERS[producer](cluster.bootstrap_servers, topic, codec)
    read = {name: consume(cluster.bootstrap_servers, topic) for name, consume in CONSUMERS.items()}
    assert all(records == expected() for records in read.values()), {
        name: len(records) for name, records in read.items()
    }


def test_confluent_kafka_sends_compressed_batches(cluster: Cluster, data: Path, topic: str) -> None:
    """Unless Produce is advertised from version 0, librdkafka silently stops compressing."""
    produce_with_confluent(cluster.bootstrap_servers, topic, "zstd")
    assert stored_codecs(data, topic) == {4}


def test_librdkafka_reads_which_apis_our_brokers_have(cluster: Cluster) -> None:
    from confluent_kafka.admin import AdminClient

    said: list[str] = []
    logger = logging.getLogger("librdkafka")
    logger.setLevel(logging.DEBUG)
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        client = AdminClient(
            {"bootstrap.servers": cluster.bootstrap_servers, "debug": "protocol,feature"},
            logger=logger,
        )
        assert client.list_topics(timeout=30).brokers
        client.poll(0.1)
    finally:
        logger.removeHandler(handler)
    assert any(line.endswith("Enabling feature ZSTD") for line in said)


def stored_codecs(data: Path, topic: str) -> set[int]:
    """The compression codecs of the batches in the topic's log files."""
    codecs = set()
    for path in data.rglob(f"{topic}-*/*.log"):
        log, position = path.read_bytes(), 0
        while position < len(log):
            codecs.add(int.from_bytes(log[position + 21 : position + 23], "big") & 7)
            position += 12 + int.from_bytes(log[position + 8 : position + 12], "big")
    return codecs


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_topic_that_does_not_exist_is_created_by_the_first_record(producer: str) -> None:
    """The first answer about it is that it is unknown, as Apache Kafka's."""
    with Cluster(config={"num.partitions": PARTITIONS}) as cluster:
        servers, topic = cluster.bootstrap_servers, f"made-by-{producer}"
        PRODUCERS[producer](servers, topic, "none")
        assert consume_with_trimtab(servers, topic) == expected()
