"""trimtab's transactional producer on its own cluster and on Apache Kafka, with other projects'
clients as readers.

Each test runs with both protocols: `transaction.version` 2, the default of Apache Kafka 4, and 1,
that of older brokers. Those on Apache Kafka are skipped without Java; the first run fetches its
jars.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from tests.kafka import transaction_version
from trimtab import Admin, Cluster, ErrorCode, Producer, TopicPartition
from trimtab.client.group_offsets import ConsumerGroup
from trimtab.client.network.connections import Connections
from trimtab.client.network.options import Options
from trimtab.client.options import PRODUCER
from trimtab.kafka.errors import BrokerError, TransactionError, UsageError

PARTITIONS = 3
END = b"end"
PATIENCE = 60.0
"""Timeout of a reader, in seconds."""


@pytest.fixture(
    scope="module",
    params=[("trimtab", 2), ("trimtab", 1), ("kafka", 2), ("kafka", 1)],
    ids=["trimtab-version-2", "trimtab-version-1", "kafka-version-2", "kafka-version-1"],
)
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    where, level = request.param
    if where == "trimtab":
        with Cluster(brokers=3) as cluster:
            if level == 1:
                with Admin(cluster.bootstrap_servers) as admin:
                    admin.update_features({"transaction.version": 1}, "safe_downgrade")
            yield cluster.bootstrap_servers
        return
    apache_kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
    with transaction_version(apache_kafka, level):
        yield apache_kafka.address


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for the topic, the transactional id and the group of a test."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)


@pytest.fixture
def topic(servers: str, name: str) -> str:
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(name, partitions=PARTITIONS)
    return name


def transactional(servers: str, name: str, **options: Any) -> Producer:
    return Producer(servers, transactional_id=name, linger_ms=5, **options)


def send_end(producer: Producer, topic: str) -> None:
    """Commit a last transaction, whose records mark the end for a reader of committed records."""
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.send(topic, END, partition=partition)
    producer.commit_transaction()


def poll(consumer: Any) -> Any:
    message = consumer.poll(PATIENCE)
    assert message is not None, f"nothing more for {PATIENCE:g} s"
    assert message.error() is None, message.error()
    return message


def read_committed(servers: str, topic: str) -> list[bytes]:
    """The records that confluent-kafka reads with read_committed up to the end, sorted."""
    from confluent_kafka import Consumer as ForeignConsumer
    from confluent_kafka import TopicPartition as ForeignPartition

    consumer = ForeignConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ForeignPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values = []
    open_partitions = set(range(PARTITIONS))
    try:
        while open_partitions:
            message = poll(consumer)
            if message.value() == END:
                open_partitions.remove(message.partition())
            else:
                values.append(message.value())
    finally:
        consumer.close()
    return sorted(values)


def test_a_reader_sees_exactly_the_committed_ones_of_20_transactions(
    servers: str, topic: str
) -> None:
    expected = []
    with transactional(servers, topic) as producer:
        producer.init_transactions()
        for number in range(20):
            producer.begin_transaction()
            values = [b"%02d-%04d" % (number, i) for i in range(200)]
            for value in values:
                producer.send(topic, value)
            if number % 4 == 3:
                # Discards both stored records and those not sent yet.
                if number % 8 == 3:
                    producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected += values
        send_end(producer, topic)
    assert read_committed(servers, topic) == sorted(expected)


def test_a_block_is_a_transaction(servers: str, topic: str) -> None:
    with transactional(servers, topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)

        def fail_halfway() -> None:
            with producer.transaction():
                producer.send(topic, b"dropped", partition=0).result(30)
                raise LookupError("no such flight")

        with pytest.raises(LookupError):
            fail_halfway()
        send_end(producer, topic)
    assert read_committed(servers, topic) == [b"kept"]


def test_the_newer_of_two_producers_fences_the_older(servers: str, topic: str) -> None:
    with transactional(servers, topic) as old, transactional(servers, topic) as new:
        old.init_transactions()
        old.begin_transaction()
        old.send(topic, b"old", partition=0).result(30)
        new.init_transactions()
        late = old.send(topic, b"late", partition=0)
        with pytest.raises(BrokerError) as refused:
            late.result(30)
        assert refused.value.code in (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.PRODUCER_FENCED,
        )
        with pytest.raises(TransactionError):
            old.commit_transaction()
        with pytest.raises(TransactionError, match="close this producer") as fenced:
            old.abort_transaction()
        assert fenced.value.is_fatal
        assert fenced.value.code is ErrorCode.PRODUCER_FENCED
        new.begin_transaction()
        new.send(topic, b"new", partition=0)
        new.commit_transaction()
        send_end(new, topic)
    assert read_committed(servers, topic) == [b"new"]


def test_a_fenced_producer_cannot_commit(servers: str, topic: str) -> None:
    with transactional(servers, topic) as old, transactional(servers, topic) as new:
        old.init_transactions()
        old.begin_transaction()
        old.send(topic, b"old", partition=0).result(30)
        new.init_transactions()
        with pytest.raises(TransactionError, match="PRODUCER_FENCED") as fenced:
            old.commit_transaction()
        assert fenced.value.is_fatal
        send_end(new, topic)
    assert read_committed(servers, topic) == []


def test_read_process_write_is_exactly_once(servers: str, topic: str, name: str) -> None:
    """confluent-kafka reads, trimtab writes; every third transaction is aborted at its end."""
    from confluent_kafka import Consumer as ForeignConsumer
    from confluent_kafka import TopicPartition as ForeignPartition

    source, count, batch = f"{topic}-source", 600, 50
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(source, partitions=PARTITIONS)
    with Producer(servers) as feeder:
        for number in range(count):
            feeder.send(source, b"%04d" % number, partition=number % PARTITIONS)
    reader = ForeignConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    every = [ForeignPartition(source, partition) for partition in range(PARTITIONS)]
    reader.subscribe([source])
    done = attempts = 0
    with transactional(servers, name) as producer:
        producer.init_transactions()
        while done < count:
            attempts += 1
            positions: dict[TopicPartition, int] = {}
            producer.begin_transaction()
            for _ in range(batch):
                message = poll(reader)
                producer.send(topic, message.value().replace(b"0", b"o"))
                key = TopicPartition(source, message.partition())
                positions[key] = message.offset() + 1
            producer.send_offsets_to_transaction(positions, name)
            if attempts % 3 == 0:
                producer.abort_transaction()
                # As after a crash: read again from the committed offsets.
                for committed in reader.committed(every, PATIENCE):
                    committed.offset = max(committed.offset, 0)
                    reader.seek(committed)
            else:
                producer.commit_transaction()
                done += batch
        send_end(producer, topic)
    ends = [position.offset for position in reader.committed(every, PATIENCE)]
    reader.close()
    assert attempts == 17
    assert ends == [count // PARTITIONS] * PARTITIONS
    assert read_committed(servers, topic) == sorted(
        (b"%04d" % number).replace(b"0", b"o") for number in range(count)
    )


def test_a_consumer_that_its_group_gave_up_cannot_commit(
    servers: str, topic: str, name: str
) -> None:
    with transactional(servers, name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        stranger = ConsumerGroup(name, generation_id=5, member_id="stranger")
        with pytest.raises(TransactionError, match="no longer a member") as raised:
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, stranger)
        assert not raised.value.is_fatal
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, name)
        producer.commit_transaction()


VICTIM = """
import json, sys
from trimtab import Producer
servers, topic, partitions = json.loads(sys.argv[1])
producer = Producer(servers, transactional_id=topic)
producer.init_transactions()
producer.begin_transaction()
for number in range(1000):
    producer.send(topic, b"half", partition=number % partitions)
producer.flush()
print("stored", flush=True)
sys.stdin.read()
"""


def test_a_killed_producers_transaction_is_aborted_by_the_next_of_its_id(
    servers: str, topic: str
) -> None:
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, json.dumps([servers, topic, PARTITIONS])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"stored\n"
    finally:
        victim.kill()
        victim.communicate()
    with transactional(servers, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"whole", partition=0)
        producer.commit_transaction()
        send_end(producer, topic)
    assert read_committed(servers, topic) == [b"whole"]


def test_a_transaction_with_a_record_that_is_too_large_is_aborted_and_repeated(
    servers: str, topic: str
) -> None:
    limit = 1 << 20
    with transactional(servers, topic, max_request_size=4 * limit, batch_size=10_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"small", partition=0)
        producer.flush()
        large = producer.send(topic, bytes(2 * limit), partition=0)
        with pytest.raises(TransactionError, match="abort_transaction") as raised:
            producer.commit_transaction()
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert not raised.value.is_fatal
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            large.result(30)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"small again", partition=0)
        producer.commit_transaction()
        send_end(producer, topic)
    assert read_committed(servers, topic) == [b"small again"]


def test_a_timeout_above_the_brokers_is_explained(servers: str, name: str) -> None:
    with (
        transactional(servers, name, transaction_timeout_ms=3_600_000) as producer,
        pytest.raises(BrokerError, match=r"transaction\.max\.timeout\.ms"),
    ):
        producer.init_transactions()


def test_records_need_a_transaction(servers: str, topic: str) -> None:
    calls: list[Callable[[Producer], object]] = [
        lambda producer: producer.send(topic, b"1"),
        lambda producer: producer.commit_transaction(),
    ]
    with transactional(servers, topic) as producer:
        for call in calls:
            with pytest.raises(UsageError, match="init_transactions"):
                call(producer)
        producer.init_transactions()
        for call in calls:
            with pytest.raises(UsageError, match="begin_transaction"):
                call(producer)


def test_both_protocols_are_met(servers: str, request: pytest.FixtureRequest) -> None:
    _, level = request.node.callspec.params["servers"]

    async def ask() -> int:
        options = Options(PRODUCER, {"bootstrap.servers": servers})
        connections = Connections(options.bootstrap, options.connection_options(), Random())
        try:
            return (await connections.connect_any()).feature("transaction.version")
        finally:
            await connections.close()

    assert asyncio.run(ask()) == level
