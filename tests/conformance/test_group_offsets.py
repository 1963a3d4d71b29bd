"""Offsets that a stream commits to a consumer group (`trimtab.client.admin.group_offsets`).

Runs against Apache Kafka, whose tool shows the lag; skipped without Java. `Admin` sends
OffsetCommit (`trimtab.kafka.wire.messages.offset_commit`).
"""

from __future__ import annotations

import re

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka, run_java
from trimtab import Admin, Cluster, Producer
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.kafka.errors import BrokerError, UsageError

TOPIC = GROUP = "group-offsets"


@pytest.fixture(scope="module")
def kafka(apache_kafka: ApacheKafka) -> str:
    with Admin(apache_kafka.address) as admin:
        admin.create_topic(TOPIC, partitions=2)
    with Producer(apache_kafka.address) as producer:
        for number in range(30):
            producer.send(TOPIC, b"x", partition=number % 2)
    return apache_kafka.address


def lag(servers: str, group: str) -> dict[int, tuple[int, int]]:
    """Committed offset and lag by partition, as Kafka's tool shows them."""
    told = run_java(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", servers, "--describe", "--group", group),
    )
    rows = re.findall(rf"^{group}\s+{TOPIC}\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)", told, re.MULTILINE)
    return {int(partition): (int(offset), int(left)) for partition, offset, left in rows}


def test_kafkas_tool_shows_the_lag_of_what_was_set(kafka: str) -> None:
    with Admin(kafka) as admin:
        admin.alter_group_offsets(GROUP, {(TOPIC, 0): 5, (TOPIC, 1): 15})
        assert lag(kafka, GROUP) == {0: (5, 10), 1: (15, 0)}
        admin.alter_group_offsets(GROUP, {(TOPIC, 0): 6})
        admin.alter_group_offsets(GROUP, {})
        assert lag(kafka, GROUP)[0] == (6, 9)
        assert admin.list_group_offsets(GROUP) == {
            (TOPIC, 0): OffsetAndMetadata(6),
            (TOPIC, 1): OffsetAndMetadata(15),
        }
        assert admin.list_group_offsets("nobody") == {}


def test_refusals_name_the_group(kafka: str) -> None:
    with Admin(kafka) as admin:
        with pytest.raises(
            BrokerError, match=rf"group {GROUP}, {TOPIC}-9: UNKNOWN_TOPIC_OR_PARTITION"
        ):
            admin.alter_group_offsets(GROUP, {(TOPIC, 9): 5})
        with pytest.raises(UsageError, match="must be a group's id"):
            admin.alter_group_offsets("", {})
        with pytest.raises(UsageError, match="must be a group's id"):
            admin.list_group_offsets("")


def test_our_cluster_keeps_them_too() -> None:
    with Cluster(brokers=1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, partitions=2)
        admin.alter_group_offsets("g", {(TOPIC, 0): 5})
        assert admin.list_group_offsets("g") == {(TOPIC, 0): OffsetAndMetadata(5)}
        with pytest.raises(BrokerError, match=rf"group g, {TOPIC}-9: UNKNOWN_TOPIC_OR_PARTITION"):
            admin.alter_group_offsets("g", {(TOPIC, 9): 5})
