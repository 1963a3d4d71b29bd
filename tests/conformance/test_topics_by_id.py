"""Topics that are created again, and subscriptions that the coordinator evaluates: trimtab's
consumer on Apache Kafka as on trimtab's cluster. Skipped for Apache Kafka without Java.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from trimtab import (
    Admin,
    BrokerError,
    Cluster,
    Consumer,
    ErrorCode,
    LogTruncation,
    Producer,
    SubscriptionPattern,
)

PATIENCE_S = 60.0
PROTOCOLS: dict[str, dict[str, Any]] = {
    "assign": {},
    "classic": {"group_protocol": "classic"},
    "consumer": {"group_protocol": "consumer"},
}
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture(params=["trimtab", "kafka"])
def servers(request: pytest.FixtureRequest) -> str:
    if request.param == "trimtab":
        cluster: Cluster = request.getfixturevalue("cluster")
        return cluster.bootstrap_servers
    kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
    return kafka.address


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of this test: a topic and a group."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


def fill(servers: str, topic: str, first: int, last: int) -> list[int]:
    """Create a topic with the records of these numbers, once its name is free."""
    deadline = time.monotonic() + PATIENCE_S
    with Admin(servers) as admin:
        while True:
            try:
                admin.create_topic(topic, partitions=2)
                break
            except BrokerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
    with Producer(servers) as producer:
        for number in range(first, last):
            producer.send(topic, b"%d" % number, partition=number % 2)
    return list(range(first, last))


def create_again(servers: str, topic: str, first: int, last: int) -> list[int]:
    with Admin(servers) as admin:
        admin.delete_topic(topic)
    return fill(servers, topic, first, last)


def read(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [int(record.value or b"") for record in consumer.poll(500)]
    return sorted(found)


def begin(consumer: Consumer, topic: str, protocol: str) -> None:
    if protocol == "assign":
        consumer.assign([(topic, 0), (topic, 1)])
    else:
        consumer.subscribe([topic])


@pytest.mark.kip(516)
@protocols
def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    servers: str, name: str, protocol: str
) -> None:
    options = {"group_id": name, "auto_offset_reset": "earliest", **PROTOCOLS[protocol]}
    old = fill(servers, name, 0, 20)
    with Consumer(servers, auto_commit_interval_ms=100, **options) as consumer:
        begin(consumer, name, protocol)
        assert read(consumer, len(old)) == old
        new = create_again(servers, name, 100, 140)
        assert read(consumer, len(new)) == new
    with Consumer(servers, **options) as consumer:
        found = consumer.committed([(name, 0), (name, 1)])
        assert [each and each.offset for each in found.values()] == [20, 20]


@pytest.mark.kip(516)
def test_offsets_of_the_old_topic_are_refused(servers: str, name: str) -> None:
    fill(servers, name, 0, 20)
    with Consumer(
        servers, group_id=name, auto_offset_reset="none", enable_auto_commit=False
    ) as consumer:
        consumer.assign([(name, 0)])
        consumer.seek((name, 0), 0)
        assert len(read(consumer, 10)) == 10
        create_again(servers, name, 100, 140)
        with pytest.raises(BrokerError, match="was deleted") as raised:
            consumer.commit()
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_ID
        with pytest.raises(LogTruncation, match="created again"):
            consumer.poll(60_000)
        assert set(consumer.committed([(name, 0)]).values()) == {None}


@pytest.mark.kip(848)
def test_the_coordinator_evaluates_an_expression(servers: str, name: str) -> None:
    fill(servers, f"{name}.a", 0, 10)
    fill(servers, f"{name}.b", 10, 20)
    fill(servers, f"{name}-c", 20, 30)
    options = {"group.protocol": "consumer", "auto.offset.reset": "earliest", "group.id": name}
    with Consumer({"bootstrap.servers": servers, **options}) as consumer:
        consumer.subscribe(SubscriptionPattern(rf"{name}\..*"))
        assert read(consumer, 20) == list(range(20))
        consumer.subscribe([f"{name}-c"])
        assert read(consumer, 10) == list(range(20, 30))
        assert {each.topic for each in consumer.assignment()} == {f"{name}-c"}
        consumer.subscribe(SubscriptionPattern(f"{name}.a"))
        deadline = time.monotonic() + PATIENCE_S
        while {each.topic for each in consumer.assignment()} != {f"{name}.a"}:
            assert time.monotonic() < deadline
            consumer.poll(100)


@pytest.mark.kip(848)
def test_an_invalid_expression_is_refused_for_good(servers: str, name: str) -> None:
    with Consumer(servers, group_id=name, group_protocol="consumer") as consumer:
        consumer.subscribe(SubscriptionPattern("orders-("))
        with pytest.raises(BrokerError) as raised:
            read(consumer, 1)
        assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "orders-(" in str(raised.value)
