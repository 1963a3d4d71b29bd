"""trimtab's and other projects' clients, while nodes of the cluster are killed and restarted.

There are three brokers, RF 3, `min.insync.replicas` 2. Each client produces with acks=all,
idempotently, and consumes by assignment at the same time, while the leader of a partition gets
SIGKILL, then the controller, then the leader of another partition; the supervisor starts them
again. Every record is acknowledged, and read once, in order, at its acknowledged offset.

`ROUNDS` (environment; default 2) is the number of kills of a leader; `pytest -s` prints counts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import NamedTemporaryFile
from threading import Event
from typing import IO, Any

import pytest

from lab.benchmarks.jars import java_command, kafka_jars
from lab.processes import free_neighbours, nodes_of
from tests.conformance.test_cluster_process import addresses, kill_node, running
from tests.kafka import needs_kafka
from trimtab import Admin, Consumer, Delivery, Producer, TopicPartition
from trimtab.threads.clock import monotonic_clock

# kafka-python uses a deprecated API to read its schemas, and leaves unconnected sockets open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

ROUNDS = int(os.environ.get("ROUNDS", "2"))
CONTROLLER_EVERY = 3
"""Rounds; the supervisor delays the restart of a process that ends repeatedly."""

PARTITIONS = 3
BURST = 20
PAUSE_S = 0.01
PATIENCE_S = 60
POLL_MS = 200


class Load:
    """The records that a client has sent and read.

    Attributes:
        sends: number of records passed to the producer.
        sent: the number at each acknowledged (partition, offset).
        read: the number at each (partition, offset) that was read.
        newest: the last number that was read, by partition.
        faults: errors found, such as a record read twice.
        is_over: set to stop sending.
        is_read: set to stop reading.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic
        self.sends = 0
        self.sent: dict[tuple[int, int], int] = {}
        self.read: dict[tuple[int, int], int] = {}
        self.newest = dict.fromkeys(range(PARTITIONS), -1)
        self.faults: list[str] = []
        self.is_over = Event()
        self.is_read = Event()

    def next_burst(self) -> Iterator[tuple[int, int]]:
        """Numbers to send, and the partitions for them."""
        for number in range(self.sends, self.sends + BURST):
            self.sends += 1
            yield number, number % PARTITIONS

    def was_sent(self, partition: int, offset: int, number: int) -> None:
        if (partition, offset) in self.sent:
            self.faults.append(f"acknowledged twice: {partition=} {offset=} {number=}")
        self.sent[partition, offset] = number

    def was_read(self, partition: int, offset: int, value: bytes | str | None) -> None:
        number = int(value or -1)
        if (partition, offset) in self.read:
            self.faults.append(f"read twice: {partition=} {offset=} {number=}")
        if number <= self.newest[partition]:
            self.faults.append(f"out of order: {partition=} {offset=} {number=}")
        self.read[partition, offset] = number
        self.newest[partition] = number

    def failed(self, error: object) -> None:
        self.faults.append(f"not acknowledged: {error!r}")


# --- trimtab --------------------------------------------------------------------------------------


def produce_with_trimtab(load: Load) -> None:
    def note(number: int, delivery: Delivery) -> None:
        if (error := delivery.exception()) is not None:
            load.failed(error)
        else:
            load.was_sent(delivery.result().partition, delivery.result().offset, number)

    with Producer(load.servers, acks="all") as producer:
        while not load.is_over.wait(PAUSE_S):
            for number, index in load.next_burst():
                delivery = producer.send(load.topic, b"%d" % number, partition=index)
                delivery.add_done_callback(partial(note, number))
        producer.flush(PATIENCE_S)


def consume_with_trimtab(load: Load) -> None:
    partitions = [TopicPartition(load.topic, index) for index in range(PARTITIONS)]
    with Consumer(load.servers, check_crcs=True) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while not load.is_read.is_set():
            for record in consumer.poll(timeout_ms=POLL_MS):
                load.was_read(record.partition, record.offset, record.value)


# --- confluent-kafka ------------------------------------------------------------------------------


def produce_with_confluent(load: Load) -> None:
    from confluent_kafka import Producer as ConfluentProducer

    def note(error: Any, message: Any) -> None:
        if error is not None:
            load.failed(error)
        else:
            load.was_sent(message.partition(), message.offset(), int(message.value()))

    producer = ConfluentProducer(
        {"bootstrap.servers": load.servers, "enable.idempotence": True, "log_level": 0}
    )
    while not load.is_over.is_set():
        for number, index in load.next_burst():
            producer.produce(load.topic, b"%d" % number, partition=index, on_delivery=note)
        producer.poll(PAUSE_S)
    assert producer.flush(PATIENCE_S) == 0


def consume_with_confluent(load: Load) -> None:
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import TopicPartition as ConfluentPartition

    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": load.servers,
            "group.id": "not-joined",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([ConfluentPartition(load.topic, index, 0) for index in range(PARTITIONS)])
    while not load.is_read.is_set():
        for message in consumer.consume(1000, POLL_MS / 1000):
            if (error := message.error()) is not None:
                assert error.retriable(), error
            else:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                load.was_read(partition, offset, message.value())
    consumer.close()


# --- aiokafka -------------------------------------------------------------------------------------


def produce_with_aiokafka(load: Load) -> None:
    from aiokafka import AIOKafkaProducer

    def note(number: int, done: Any) -> None:
        if (error := done.exception()) is not None:
            load.failed(error)
        else:
            load.was_sent(done.result().partition, done.result().offset, number)

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=load.servers, enable_idempotence=True)
        await producer.start()
        try:
            while not load.is_over.is_set():
                for number, index in load.next_burst():
                    done = await producer.send(load.topic, b"%d" % number, partition=index)
                    done.add_done_callback(partial(note, number))
                await asyncio.sleep(PAUSE_S)
            await asyncio.wait_for(producer.flush(), PATIENCE_S)
        finally:
            await producer.stop()

    asyncio.run(run())


def consume_with_aiokafka(load: Load) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as AiokafkaPartition

    async def run() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=load.servers, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [AiokafkaPartition(load.topic, index) for index in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            while not load.is_read.is_set():
                for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                    for record in records:
                        load.was_read(record.partition, record.offset, record.value)
        finally:
            await consumer.stop()

    asyncio.run(run())


# --- kafka-python ---------------------------------------------------------------------------------


def produce_with_kafka_python(load: Load) -> None:
    from kafka import KafkaProducer

    def note(number: int, metadata: Any) -> None:
        load.was_sent(metadata.partition, metadata.offset, number)

    producer = KafkaProducer(bootstrap_servers=load.servers, enable_idempotence=True, acks="all")
    try:
        while not load.is_over.wait(PAUSE_S):
            for number, index in load.next_burst():
                future = producer.send(load.topic, b"%d" % number, partition=index)
                future.add_callback(note, number)
                future.add_errback(load.failed)
        producer.flush(PATIENCE_S)
    finally:
        producer.close()


def consume_with_kafka_python(load: Load) -> None:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaPythonPartition

    consumer = KafkaConsumer(bootstrap_servers=load.servers, enable_auto_commit=False)
    try:
        partitions = [KafkaPythonPartition(load.topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while not load.is_read.is_set():
            for records in consumer.poll(POLL_MS).values():
                for record in records:
                    load.was_read(record.partition, record.offset, record.value)
    finally:
        consumer.close()


# --- Java -----------------------------------------------------------------------------------------


@contextmanager
def tool(main: str, load: Load, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run one of Apache Kafka's tools during the block."""
    command = [
        *(*java_command("128m"), "-cp", f"{kafka_jars()}/*"),
        *(f"org.apache.kafka.tools.{main}", "--bootstrap-server", load.servers),
        *("--topic", load.topic, *words),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def produce_with_java(load: Load) -> None:
    """Use VerifiableProducer, which prints the outcome of each of its numbers."""

    def note(lines: IO[str]) -> None:
        for line in lines:
            event = json.loads(line)
            if event["name"] == "producer_send_success":
                number = int(event["value"])
                load.sends = max(load.sends, number + 1)
                load.was_sent(event["partition"], event["offset"], number)
            elif event["name"] == "producer_send_error":
                load.failed(event["message"])
            elif event["name"] == "tool_data":
                load.sends = event["sent"]

    with NamedTemporaryFile("w", suffix=".properties") as options, ExitStack() as started:
        # Without this option the tool does not retry.
        options.write("enable.idempotence=true\nretries=2147483647\n")
        options.flush()
        threads = started.enter_context(ThreadPoolExecutor(1))
        process = started.enter_context(
            tool(
                *("VerifiableProducer", load, "--acks", "-1", "--throughput", "2000"),
                *("--repeating-keys", "50", "--command-config", options.name),
            )
        )
        assert process.stdout is not None
        noting = threads.submit(note, process.stdout)
        load.is_over.wait()
        process.terminate()
        noting.result(PATIENCE_S)


def consume_with_java(load: Load) -> None:
    """Use a ConsoleConsumer for each partition, as it reads only one."""

    def read(index: int, lines: IO[str]) -> None:
        for line in lines:
            offset, value = line.removeprefix("Offset:").split()
            load.was_read(index, int(offset), value)

    with ExitStack() as started:
        readers = started.enter_context(ThreadPoolExecutor(PARTITIONS))
        reading = []
        for index in range(PARTITIONS):
            process = started.enter_context(
                tool(
                    *("consumer.ConsoleConsumer", load, "--partition", str(index)),
                    *("--offset", "earliest", "--formatter-property", "print.offset=true"),
                )
            )
            assert process.stdout is not None
            reading.append(readers.submit(read, index, process.stdout))
        load.is_read.wait()
    for each in reading:
        each.result()


# --- the tests ------------------------------------------------------------------------------------


class Killed:
    """A cluster whose nodes are killed."""

    def __init__(self, supervisor: subprocess.Popen[str], servers: str) -> None:
        self.supervisor = supervisor
        self.servers = servers
        self.kills = 0

    def kill(self, name: str, load: Load, admin: Admin, clients: list[Future[None]]) -> None:
        """Kill a node; return when it is back, all replicas are in sync, and from each partition a
        record was read that was sent after the kill."""
        before = nodes_of(self.supervisor.pid)[name]
        kill_node(name, self.supervisor)
        self.kills += 1
        await_that(
            lambda: nodes_of(self.supervisor.pid).get(name) not in (None, before), load, clients
        )
        await_that(lambda: is_in_sync(admin, load.topic), load, clients)
        sends = load.sends
        await_that(lambda: min(load.newest.values()) >= sends, load, clients)


def is_in_sync(admin: Admin, topic: str) -> bool:
    view = admin.describe_topics([topic])[topic]
    return all(len(each.in_sync_replicas) == 3 and each.leader >= 0 for each in view.partitions)


def await_that(is_so: Callable[[], bool], load: Load, clients: list[Future[None]]) -> None:
    """Wait until a condition holds; raises the error of a client that has ended meanwhile."""
    deadline = monotonic_clock() + PATIENCE_S
    while not is_so():
        for client in clients:
            if client.done():
                client.result()
                raise AssertionError("a client has ended")
        assert load.faults == []
        late = f"sends {load.sends}, acknowledged {len(load.sent)}, read {load.newest}"
        assert monotonic_clock() < deadline, late
        load.is_read.wait(PAUSE_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    port = free_neighbours(3)
    data = tmp_path_factory.mktemp("cluster")
    with running(port, data, "--config", "min.insync.replicas=2") as supervisor:
        killed = Killed(supervisor, addresses(port))
        yield killed
        supervisor.terminate()
        assert supervisor.wait(30) == 0
        assert supervisor.stderr is not None
        told = supervisor.stderr.read()
    gc.collect()  # finalize the clients' leftovers while warnings about them are allowed
    assert told.count("was killed by SIGKILL, it is started again") == killed.kills


@pytest.mark.timeout(600 + 60 * ROUNDS)
@pytest.mark.parametrize(
    ("produce", "consume"),
    [
        pytest.param(produce_with_trimtab, consume_with_trimtab, id="trimtab"),
        pytest.param(produce_with_confluent, consume_with_confluent, id="confluent-kafka"),
        pytest.param(produce_with_aiokafka, consume_with_aiokafka, id="aiokafka"),
        pytest.param(produce_with_kafka_python, consume_with_kafka_python, id="kafka-python"),
        pytest.param(produce_with_java, consume_with_java, id="java", marks=needs_kafka),
    ],
)
def test_everything_sent_is_read_once_and_in_order_while_nodes_are_killed(
    cluster: Killed,
    request: pytest.FixtureRequest,
    produce: Callable[[Load], None],
    consume: Callable[[Load], None],
) -> None:
    topic = request.node.callspec.id
    load = Load(cluster.servers, topic)
    with Admin(cluster.servers) as admin, ThreadPoolExecutor(2) as threads:
        admin.create_topic(topic, PARTITIONS, replication_factor=3)
        sending, reading = threads.submit(produce, load), threads.submit(consume, load)
        try:
            await_that(lambda: min(load.newest.values()) >= 0, load, [sending, reading])
            for number in range(ROUNDS):
                leader = admin.describe_topics([topic])[topic].leaders[number % PARTITIONS]
                cluster.kill(f"broker-{leader}", load, admin, [sending, reading])
                if number % CONTROLLER_EVERY == 0:
                    cluster.kill("controller", load, admin, [sending, reading])
            load.is_over.set()
            sending.result(PATIENCE_S)
            await_that(lambda: len(load.read) >= len(load.sent), load, [reading])
        finally:
            load.is_over.set()
            load.is_read.set()
        reading.result(PATIENCE_S)
    print(f"\n{topic}: {len(load.sent)} of {load.sends} acknowledged, {len(load.read)} read")
    assert load.faults == []
    assert len(load.sent) == load.sends
    assert load.read == load.sent
