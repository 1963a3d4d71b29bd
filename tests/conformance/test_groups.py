"""Other projects' consumers in groups, on trimtab's cluster: records read once, offsets kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka, run_java
from lab.benchmarks.jars import RivalMissing, find_java, kafka_jars
from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, partition_of

# kafka-python uses a deprecated API to read its schemas.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

PARTITIONS = 6
RECORDS = 3000
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    return fill(cluster.bootstrap_servers, request, replicas=3)


def fill(servers: str, request: pytest.FixtureRequest, replicas: int) -> str:
    """A topic for the test, with its records."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    with Admin(servers) as admin:
        admin.create_topic(name, PARTITIONS, replicas)
    with Producer(servers) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number, partition=number % PARTITIONS)
    return name


class Reading:
    """What the members of a group have read together."""

    def __init__(self) -> None:
        self.values: Counter[bytes] = Counter()
        self.members: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.has_all = threading.Event()

    def note(self, member: str, value: bytes) -> None:
        with self._lock:
            self.values[value] += 1
            self.members[member] += 1
            if len(self.values) == RECORDS:
                self.has_all.set()


def read_with_confluent(
    servers: str, topic: str, member: str, reading: Reading, protocol: str = "classic"
) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": topic,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )

    closes = False

    def commit(*_: object) -> None:
        """Also when partitions are revoked, as their next owner begins there."""
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            # It has read nothing since. Or it closes: librdkafka may end the group before it
            # takes the callback's commit, and what was read is committed already.
            harmless = {KafkaError._NO_OFFSET} | ({KafkaError._DESTROY} if closes else set())
            if error.args[0].code() not in harmless:
                raise

    consumer.subscribe([topic], on_revoke=commit)
    try:
        while not reading.has_all.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                reading.note(member, message.value() or b"")
        commit()
        closes = True
    finally:
        consumer.close()


def read_with_kafka_python(servers: str, topic: str, member: str, reading: Reading) -> None:
    import kafka

    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        while not reading.has_all.is_set():
            for records in consumer.poll(100).values():
                for record in records:
                    reading.note(member, record.value)
        consumer.commit()
    finally:
        consumer.close()


def read_with_aiokafka(servers: str, topic: str, member: str, reading: Reading) -> None:
    import aiokafka

    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            while not reading.has_all.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        reading.note(member, record.value)
            await consumer.commit()
        finally:
            await consumer.stop()

    asyncio.run(read())


def read_with_trimtab(
    servers: str, topic: str, member: str, reading: Reading, protocol: str = "classic"
) -> None:
    options: dict[str, Any] = {"group_protocol": protocol}
    if protocol == "classic":
        options["partition_assignment_strategy"] = "range,roundrobin"  # aiokafka's is the latter
    with Consumer(servers, group_id=topic, auto_offset_reset="earliest", **options) as consumer:
        consumer.subscribe([topic])
        while not reading.has_all.is_set():
            for record in consumer.poll(100):
                reading.note(member, record.value or b"")


read_with_the_consumer_protocol = partial(read_with_confluent, protocol="consumer")
CLIENTS = [read_with_confluent, read_with_kafka_python, read_with_aiokafka, read_with_trimtab]


def read_in_group(
    servers: str, topic: str, members: Sequence[Callable[[str, str, str, Reading], None]]
) -> Reading:
    """Have members read the topic together, each in a thread."""
    reading = Reading()
    threads = [
        threading.Thread(target=read, args=(servers, topic, f"member-{number}", reading))
        for number, read in enumerate(members)
    ]
    for thread in threads:
        thread.start()
    has_all = reading.has_all.wait(PATIENCE_S)
    reading.has_all.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert has_all, f"{len(reading.values)} of {RECORDS} records were read"
    return reading


def committed(servers: str, group: str) -> dict[int, int]:
    """The offsets that a group has committed, asked with another project's client."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    partitions = [TopicPartition(group, index) for index in range(PARTITIONS)]
    found = consumer.committed(partitions, PATIENCE_S)
    consumer.close()
    return {each.partition: each.offset for each in found}


@pytest.mark.parametrize("read", [*CLIENTS, read_with_the_consumer_protocol])
def test_two_members_share_the_partitions(
    cluster: Cluster, topic: str, read: Callable[[str, str, str, Reading], None]
) -> None:
    read_in_group(cluster.bootstrap_servers, topic, [read, read])
    assert committed(cluster.bootstrap_servers, topic) == dict.fromkeys(
        range(PARTITIONS), RECORDS // PARTITIONS
    )


def test_clients_of_different_projects_share_a_group(cluster: Cluster, topic: str) -> None:
    reading = read_in_group(cluster.bootstrap_servers, topic, CLIENTS)
    assert len(reading.values) == RECORDS


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_trimtabs_consumer_shares_groups_on_apache_kafka(
    apache_kafka: ApacheKafka, request: pytest.FixtureRequest, protocol: str
) -> None:
    topic = fill(apache_kafka.address, request, replicas=1)
    ours = partial(read_with_trimtab, protocol=protocol)
    other = partial(read_with_confluent, protocol=protocol)
    read_in_group(apache_kafka.address, topic, [ours, other, ours])
    found = committed(apache_kafka.address, topic)
    assert found == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)


def test_trimtabs_consumer_shares_groups_of_the_consumer_protocol(
    cluster: Cluster, topic: str
) -> None:
    ours = partial(read_with_trimtab, protocol="consumer")
    read_in_group(cluster.bootstrap_servers, topic, [ours, read_with_the_consumer_protocol, ours])
    found = committed(cluster.bootstrap_servers, topic)
    assert found == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_group_goes_on_where_it_was_when_its_coordinator_has_gone(
    topic: str, cluster: Cluster, protocol: str
) -> None:
    from confluent_kafka import Consumer

    options = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": topic,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(options)
    consumer.subscribe([topic])
    values: Counter[bytes] = Counter()
    positions: dict[int, int] = {}
    coordinator = None
    while len(values) < RECORDS:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{len(values)} of {RECORDS} records were read"
        if message.error() is not None:
            continue
        values[message.value() or b""] += 1
        if len(values) in (RECORDS // 3, 2 * RECORDS // 3):
            for each in consumer.commit(asynchronous=False):
                if each.offset >= 0:  # it has read records of this partition
                    assert each.offset >= positions.get(each.partition, 0)
                    positions[each.partition] = each.offset
            if coordinator is not None:
                cluster.start_broker(coordinator)
            coordinator = find_coordinator(cluster, topic)
            cluster.kill_broker(coordinator)
    consumer.close()
    assert coordinator is not None
    cluster.start_broker(coordinator)


def test_members_of_the_consumer_protocol_come_and_go(cluster: Cluster, topic: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    owners: dict[int, str] = {}

    def assigned(name: str, _: object, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            assert each.partition not in owners, f"{owners[each.partition]} still has it"
            owners[each.partition] = name

    def revoked(_: object, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            del owners[each.partition]

    consumers: dict[str, Consumer] = {}

    def start(name: str, **options: str) -> None:
        consumers[name] = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": topic,
                "group.protocol": "consumer",
                **options,
            }
        )
        consumers[name].subscribe(
            [f"^{topic[:-1]}.*"], on_assign=partial(assigned, name), on_revoke=revoked
        )

    def settle(*sizes: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while sorted(Counter(owners.values()).values()) != sorted(sizes):
            assert time.monotonic() < deadline, owners
            for each in consumers.values():
                each.poll(0.05)

    start("a")
    settle(6)
    start("b", **{"group.instance.id": "i", "group.remote.assignor": "range"})
    settle(3, 3)
    start("c")
    settle(2, 2, 2)
    consumers.pop("a").close()
    settle(3, 3)
    owned = {index for index, name in owners.items() if name == "b"}
    consumers.pop("b").close()
    start("b", **{"group.instance.id": "i"})
    settle(3, 3)
    assert owned == {index for index, name in owners.items() if name == "b"}
    for each in consumers.values():
        each.close()


@pytest.mark.kip(848)
def test_a_group_changes_its_protocol_while_members_stay(cluster: Cluster, topic: str) -> None:
    from confluent_kafka import Consumer

    consumers: dict[str, Consumer] = {}
    read: set[bytes] = set()

    def start(name: str, protocol: str) -> None:
        consumers[name] = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": topic,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                **(
                    {"partition.assignment.strategy": "cooperative-sticky"}
                    if protocol == "classic"
                    else {}
                ),
            }
        )
        consumers[name].subscribe([topic])

    def settle(protocol: str, *sizes: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (
            sorted(len(each.assignment()) for each in consumers.values()) != sorted(sizes)
            or find_type(cluster, topic) != protocol
        ):
            assert time.monotonic() < deadline
            for each in consumers.values():
                message = each.poll(0.1)
                if message is not None and message.error() is None:
                    read.add(message.value() or b"")

    start("a", "classic")
    settle("Classic", 6)
    start("b", "consumer")
    settle("Consumer", 3, 3)
    start("c", "classic")
    settle("Consumer", 2, 2, 2)
    consumers.pop("b").close()
    settle("Classic", 3, 3)
    start("b", "consumer")
    settle("Consumer", 2, 2, 2)
    consumers.pop("a").close()
    consumers.pop("c").close()
    settle("Consumer", 6)
    deadline = time.monotonic() + PATIENCE_S
    while len(read) < RECORDS:
        assert time.monotonic() < deadline, len(read)
        for message in consumers["b"].consume(RECORDS, 0.5):
            read.add(message.value() or b"")
    consumers["b"].close()


def find_type(cluster: Cluster, group: str) -> str | None:
    """Consumer or Classic."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    listed = admin.list_consumer_groups(request_timeout=PATIENCE_S).result()
    return next(
        (each.type.name.capitalize() for each in listed.valid if each.group_id == group), None
    )


def find_coordinator(cluster: Cluster, group: str) -> int:
    with Producer(cluster.bootstrap_servers) as producer:
        partitions = producer.partitions_for(GROUPS_TOPIC).partitions
    return partitions[partition_of(group, len(partitions))].leader


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_javas_tools_see_the_group(cluster: Cluster, topic: str, protocol: str) -> None:
    try:
        find_java()
        kafka_jars()
    except RivalMissing as missing:
        pytest.skip(str(missing))
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*servers, "--topic", topic, "--group", topic, "--from-beginning"),
        *("--max-messages", str(RECORDS), "--timeout-ms", str(round(PATIENCE_S * 1000))),
        *("--consumer-property", f"group.protocol={protocol}"),
        heap="128m",
    )
    described = run_java(tool, *servers, "--describe", "--group", topic, heap="128m")
    rows = [line.split() for line in described.splitlines()]
    lags = {row[2]: row[5] for row in rows if row and row[0] == topic}
    assert lags == {str(index): "0" for index in range(PARTITIONS)}
    listed = run_java(tool, *servers, "--list", "--state", "--type", heap="128m")
    rows = [line.split() for line in listed.splitlines()]
    assert [topic, protocol.capitalize(), "Empty"] in rows
    run_java(
        tool,
        *(*servers, "--reset-offsets", "--group", topic, "--topic", topic, "--to-offset", "7"),
        "--execute",
        heap="128m",
    )
    assert committed(cluster.bootstrap_servers, topic) == dict.fromkeys(range(PARTITIONS), 7)
    told = run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*servers, "--topic", GROUPS_TOPIC, "--from-beginning", "--timeout-ms", "5000"),
        *("--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"),
        heap="128m",
    )
    assert f'"group":"{topic}"' in told
    run_java(tool, *servers, "--delete", "--group", topic, heap="128m")
    assert set(committed(cluster.bootstrap_servers, topic).values()) == {-1001}
