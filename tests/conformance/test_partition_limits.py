"""KIP-578 over the wire, with Kafka's own tools, confluent-kafka and kafka-python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.benchmarks.apache_kafka import call_java, run_java
from tests.kafka import needs_kafka
from trimtab import Admin, BrokerError, Cluster, ErrorCode, Producer

# kafka-python uses a deprecated API to read its schemas.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.kip(578),
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Brokers 0, 1 and 2 with 10, 20 and 30 replicas, and a limit of 40, as in the proposal."""
    with Cluster(brokers=3, config={"max.broker.partitions": 40}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            for broker in range(3):
                count = 10 * (broker + 1)
                admin.create_topic(
                    f"on-{broker}", assignment={index: [broker] for index in range(count)}
                )
        yield cluster


def create_with_trimtab(servers: str, name: str, partitions: int, factor: int) -> str:
    with Admin(servers) as admin:
        try:
            admin.create_topic(name, partitions, factor)
        except BrokerError as error:
            return f"{error.code.name}: {error}"
    return ""


def create_with_confluent(servers: str, name: str, partitions: int, factor: int) -> str:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
        AdminClient,
        NewTopic,
    )

    admin = AdminClient({"bootstrap.servers": servers})
    try:
        admin.create_topics([NewTopic(name, partitions, factor)])[name].result(30)
    except KafkaException as error:
        return f"{error.args[0].name()}: {error.args[0].str()}"
    return ""


def create_with_kafka_python(servers: str, name: str, partitions: int, factor: int) -> str:
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import PolicyViolationError

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics([NewTopic(name, partitions, factor)])
    except PolicyViolationError as error:
        return f"POLICY_VIOLATION: {error}"
    finally:
        admin.close()
    return ""


def create_with_java(servers: str, name: str, partitions: int, factor: int) -> str:
    done = call_java(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", servers, "--create", "--topic", name),
        *("--partitions", str(partitions), "--replication-factor", str(factor)),
        heap="128m",
    )
    if "PolicyViolationException" in done.stdout:
        return f"POLICY_VIOLATION: {done.stdout}"
    return "" if done.returncode == 0 else done.stdout


@pytest.mark.parametrize(
    "create",
    [
        create_with_trimtab,
        create_with_confluent,
        create_with_kafka_python,
        pytest.param(create_with_java, marks=needs_kafka),
    ],
)
def test_every_client_learns_how_many_partitions_fit_and_can_create_them(
    cluster: Cluster, create: Callable[[str, str, int, int], str]
) -> None:
    servers = cluster.bootstrap_servers
    refused = create(servers, "t", 31, 2)
    assert refused.startswith("POLICY_VIOLATION")
    assert "at most 30 can be placed (max.broker.partitions=40, max.partitions=" in refused
    assert "cluster=60, by broker={0=10, 1=20, 2=30}" in refused
    assert "at most 10 can be placed" in create(servers, "t", 20, 3)
    assert create(servers, "t", 30, 2) == ""
    assert "at most 0" in create(servers, "u", 1, 1)


@needs_kafka
def test_kafkas_own_tool_sets_the_limit_for_all_brokers(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers

    def configure(*words: str) -> str:
        tool = "kafka.admin.ConfigCommand"
        where = ("--bootstrap-server", servers, "--entity-type", "brokers", "--entity-default")
        return run_java(tool, *where, *words, heap="128m")

    configure("--alter", "--add-config", "max.broker.partitions=41,max.partitions=62")
    assert "max.broker.partitions=41" in configure("--describe")
    assert "exceeding max.partitions=62" in create_with_trimtab(servers, "t", 1, 3)
    assert create_with_trimtab(servers, "t", 1, 2) == ""
    configure("--alter", "--delete-config", "max.broker.partitions,max.partitions")
    assert create_with_trimtab(servers, "u", 1, 3) == ""


def test_an_auto_created_topic_over_the_limit_is_rejected_with_the_code(
    cluster: Cluster,
) -> None:
    servers = cluster.bootstrap_servers
    assert create_with_trimtab(servers, "t", 60, 1) == ""
    with Producer(servers, delivery_timeout_ms=3000, request_timeout_ms=1000) as producer:
        with pytest.raises(BrokerError) as refused:
            producer.send("made-by-asking", b"v")
        assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_a_hundred_at_once_get_room_for_fifty() -> None:
    with Cluster(brokers=1, config={"max.broker.partitions": 50}) as cluster:
        servers = cluster.bootstrap_servers
        with ThreadPoolExecutor(10) as pool:
            answers = list(
                pool.map(lambda n: create_with_trimtab(servers, f"t{n}", 1, 1), range(100))
            )
        assert answers.count("") == 50
        usage = cluster.limit_usage
        assert usage.replicas == {0: 50}
        assert usage.rejections == {"max.broker.partitions": 50}
        with Admin(servers) as admin:
            assert len(admin.topics()) == 50
