"""Tests of an application in confluent-kafka: `python -m pytest`, without Docker or Java.

trimtab's pytest plugin starts the cluster; docs/testing.md describes its fixtures. Threads of
confluent-kafka live in real time, so these tests do, too.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import KafkaException

from orders import bill, key_of, make_producer, send_bills
from trimtab import Cluster, Producer, Record
from trimtab.pytest.evenness import AssertEven
from trimtab.pytest.faults import Faults
from trimtab.pytest.reading import ReadRecords

FRUIT = ("apple", "pear")
ORDERS: list[dict[str, Any]] = [
    {"customer": f"c{n % 1009}", "fruit": FRUIT[n % 2], "count": 1, "number": n}
    for n in range(5000)
]
NUMBERS = Counter(range(len(ORDERS)))


@pytest.fixture
def orders(kafka_cluster: Cluster, kafka_topic: str) -> str:
    """A topic with all orders."""
    with Producer(kafka_cluster.bootstrap_servers) as producer:
        for order in ORDERS:
            producer.send(kafka_topic, json.dumps(order).encode())
    return kafka_topic


def billed(records: list[Record]) -> Counter[int]:
    """How often each order was billed."""
    return Counter(json.loads(record.value or b"")["number"] for record in records)


@pytest.mark.kafka_topic(partitions=3)
def test_each_order_is_billed_once(
    kafka_cluster: Cluster, orders: str, kafka_group: str, kafka_records: ReadRecords
) -> None:
    bill(kafka_cluster.bootstrap_servers, orders, f"{orders}-bills", kafka_group, len(ORDERS))
    assert billed(kafka_records(f"{orders}-bills")) == NUMBERS


@pytest.mark.kafka_topic(partitions=3)
def test_a_killed_broker_costs_no_bill(
    kafka_cluster: Cluster,
    kafka_faults: Faults,
    orders: str,
    kafka_group: str,
    kafka_records: ReadRecords,
) -> None:
    servers, bills = kafka_cluster.bootstrap_servers, f"{orders}-bills"
    bill(servers, orders, bills, kafka_group, 1000)
    kafka_faults.kill(broker=0)
    bill(servers, orders, bills, kafka_group, len(ORDERS) - 1000)
    assert billed(kafka_records(bills, count=len(ORDERS))) == NUMBERS


@pytest.mark.kafka_topic(partitions=1)
def test_a_bill_that_is_not_stored_is_an_error(
    kafka_cluster: Cluster, kafka_faults: Faults, kafka_topic: str
) -> None:
    kafka_faults.kill(broker=0)
    kafka_faults.kill(broker=1)  # one replica is left, and acks=all needs two
    producer = make_producer(kafka_cluster.bootstrap_servers, **{"message.timeout.ms": 2000})
    with pytest.raises(KafkaException):
        send_bills(producer, kafka_topic, ORDERS[:1])


def test_customers_spread_evenly(assert_even: AssertEven) -> None:
    # librdkafka's default hashes keys by CRC32; Java's and trimtab's clients by murmur2.
    assert_even([key_of(order) for order in ORDERS], partitions=12, partitioner="consistent")


def test_fruit_would_not(assert_even: AssertEven) -> None:
    with pytest.raises(AssertionError, match="apple"):
        assert_even([order["fruit"] for order in ORDERS], partitions=12, partitioner="consistent")
