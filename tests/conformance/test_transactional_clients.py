"""Other projects' transactional producers, and Apache Kafka's tool, on trimtab's cluster."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.benchmarks.apache_kafka import call_java, run_java
from lab.benchmarks.jars import KAFKA_VERSION, OLD_CLIENT, find_client_jars, find_kafka_jars
from trimtab import Admin, Cluster, Consumer, Producer, TopicPartition
from trimtab.cli import main

# kafka-python uses a deprecated API to read its schemas.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

PATIENCE_S = 60
SOURCE = Path(__file__).parent / "java" / "Transactions.java"
needs_java = pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def servers(data: Path) -> Iterator[str]:
    with Cluster(brokers=3, data=data) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
        admin.create_topic(f"{name}-copy", 1)
    return name


def committed(servers: str, topic: str) -> list[bytes | None]:
    """What a consumer of committed records reads."""
    partition = TopicPartition(topic, 0)
    with Consumer(servers, isolation_level="read_committed", enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        (end,) = consumer.end_offsets([partition]).values()
        found: list[bytes | None] = []
        while consumer.position(partition) < end:
            found += [record.value for record in consumer.poll(1)]
        return found


def offset_of(servers: str, group: str, topic: str) -> int:
    with Consumer(servers, group_id=group, enable_auto_commit=False) as consumer:
        (at,) = consumer.committed([TopicPartition(topic, 0)]).values()
        assert at is not None
        return at.offset


def test_confluent_kafka(servers: str, topic: str) -> None:
    from confluent_kafka import Consumer as ForeignConsumer
    from confluent_kafka import Producer as ForeignProducer
    from confluent_kafka import TopicPartition as ForeignPartition

    producer = ForeignProducer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    reader = ForeignConsumer(
        {"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False}
    )
    for number in range(6):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, b"%d-%d" % (number, each), partition=0)
        producer.send_offsets_to_transaction(
            [ForeignPartition(topic, 0, number + 1)],
            reader.consumer_group_metadata(),
            PATIENCE_S,
        )
        if number % 3 == 2:
            producer.flush()
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    reader.close()
    kept = [b"%d-%d" % (number, each) for number in (0, 1, 3, 4) for each in range(10)]
    assert committed(servers, topic) == kept
    assert offset_of(servers, topic, topic) == 5


def test_aiokafka(servers: str, topic: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka import TopicPartition as ForeignPartition

    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=topic) as producer:
            for number in range(6):
                await producer.begin_transaction()
                for each in range(10):
                    await producer.send_and_wait(topic, b"%d-%d" % (number, each), partition=0)
                await producer.send_offsets_to_transaction(
                    {ForeignPartition(topic, 0): number + 1}, topic
                )
                if number % 3 == 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()

    asyncio.run(asyncio.wait_for(produce(), PATIENCE_S))
    kept = [b"%d-%d" % (number, each) for number in (0, 1, 3, 4) for each in range(10)]
    assert committed(servers, topic) == kept
    assert offset_of(servers, topic, topic) == 5


def test_kafka_python(servers: str, topic: str) -> None:
    from kafka import KafkaProducer
    from kafka import TopicPartition as ForeignPartition
    from kafka.structs import OffsetAndMetadata

    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=topic)
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for each in range(10):
            producer.send(topic, b"%d-%d" % (number, each), partition=0)
        producer.send_offsets_to_transaction(
            {ForeignPartition(topic, 0): OffsetAndMetadata(number + 1, "", -1)}, topic
        )
        if number % 3 == 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    kept = [b"%d-%d" % (number, each) for number in (0, 1, 3, 4) for each in range(10)]
    assert committed(servers, topic) == kept
    assert offset_of(servers, topic, topic) == 5


@needs_java
@pytest.mark.parametrize("version", [KAFKA_VERSION, OLD_CLIENT])
def test_java(servers: str, topic: str, version: str) -> None:
    find: Callable[[], Path | None] = (
        find_kafka_jars if version == KAFKA_VERSION else lambda: find_client_jars(version)
    )
    jars = find()
    if jars is None:
        pytest.skip(f"needs kafka-clients {version}: python -m lab.benchmarks.jars")
    said = run_java(
        str(SOURCE), servers, topic, f"{topic}-copy", heap="128m", jars=jars, stderr=None
    )
    assert said.split("\n")[:3] == ["offset true", "copied 60", "fenced true"]


@needs_java
def test_kafkas_tool_finds_and_aborts_a_transaction_as_ours_does(
    servers: str, topic: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_kafka_jars() is None:
        pytest.skip("needs Apache Kafka: python -m lab.benchmarks.jars")

    def ask(*words: str, duration: int | None = None) -> list[list[str]]:
        """What Kafka's tool prints, and ours, too; but for a duration in the given column."""
        tool = "org.apache.kafka.tools.TransactionsCommand"
        login = ("--command-config", str(data / "controller" / "cluster.secret"))
        words = ("--bootstrap-server", servers, *login, *words)
        done = call_java(tool, *words, heap="128m", level="off", stderr=None)
        assert done.returncode == 0, done.stdout
        rows = sorted(line.split("\t") for line in done.stdout.splitlines())
        if words[4] != "abort":
            assert main(["transactions", *words]) == 0
            ours = sorted(line.split("\t") for line in capsys.readouterr().out.splitlines())
            if duration is not None:
                for table in (rows, ours):
                    for row in table:
                        row[duration] = ""
            assert ours == rows
        return [[cell.strip() for cell in row] for row in rows if not row[0].strip().endswith("Id")]

    with Producer(servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        offset = producer.send(topic, b"left", partition=0).result(PATIENCE_S).offset
        (listed,) = [row for row in ask("list") if row[0] == topic]
        assert listed[3] == "Ongoing"
        (described,) = ask("describe", "--transactional-id", topic, duration=7)
        assert described[4:6] == ["Ongoing", "60000"]
        assert described[8] == f"{topic}-0"
        (open_here,) = ask("describe-producers", "--topic", topic, "--partition", "0")
        assert open_here[5] == str(offset)
        assert committed(servers, topic) == []
        ask("abort", "--topic", topic, "--partition", "0", "--start-offset", str(offset))
        (open_here,) = ask("describe-producers", "--topic", topic, "--partition", "0")
        assert open_here[5] == "None"
        producer.abort_transaction()
