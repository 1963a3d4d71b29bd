"""Ctrl-C at every line of a transaction: it is there as a whole or not at all, also its offset, and
the next producer goes on."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType

import pytest

from tests.unit.interrupts import interrupt_at
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

PARTITIONS = 2
PART = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", PARTITIONS)
        yield cluster


def is_ours(code: CodeType) -> bool:
    return code.co_filename.endswith(("/blocking/producer.py", "/blocking/face.py"))


def committed(cluster: Cluster) -> list[int]:
    """Which transactions are there, in both partitions."""
    with Consumer(
        cluster.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        partitions = [TopicPartition("t", index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[list[int]] = [[], []]
        while any(consumer.position(each) < ends[each] for each in partitions):
            for record in consumer.poll(1000):
                found[record.partition].append(int(record.value or b""))
    assert found[0] == found[1]
    return found[0]


def transact(producer: Producer, number: int) -> None:
    with producer.transaction():
        for index in range(PARTITIONS):
            producer.send("t", b"%d" % number, partition=index)
        producer.send_offsets_to_transaction({PART: number}, "g")


@pytest.mark.kip(98)
@pytest.mark.parametrize("closes", [True, False])
def test_a_transaction_is_there_as_a_whole_or_not_at_all(cluster: Cluster, closes: bool) -> None:
    """Whether its producer is closed, or the next one fences it."""
    before = committed(cluster)
    number = max(before, default=0)
    first = number + 1
    place: str | None = ""
    left: list[Producer] = []
    with Admin(cluster.bootstrap_servers) as admin:
        while place is not None:
            number += 1
            producer = Producer(cluster.bootstrap_servers, transactional_id="x")
            producer.init_transactions()
            step = number - first + 1
            place = interrupt_at(step, lambda: transact(producer, number), is_ours)  # noqa: B023
            if closes:
                producer.close()
                offsets = [at.offset for at in admin.list_group_offsets("g").values() if at]
                assert committed(cluster)[-1:] == offsets
            else:
                left.append(producer)
    found = committed(cluster)
    assert found == sorted(set(found))
    assert number in found, "the last one was not interrupted"
    assert number - first > 20
    for each in left:
        each.close()


@pytest.mark.kip(98)
def test_the_same_producer_goes_on_or_says_what_to_call_first(cluster: Cluster) -> None:
    number = first = max(committed(cluster), default=0)
    place: str | None = ""
    with Producer(cluster.bootstrap_servers, transactional_id="y") as producer:
        producer.init_transactions()
        while place is not None:
            number += 1
            step = number - first
            place = interrupt_at(step, lambda: transact(producer, number), is_ours)  # noqa: B023
            try:
                producer.begin_transaction()
            except UsageError as error:
                told = str(error)
                end = (
                    producer.commit_transaction
                    if "commit_transaction() has not" in told
                    else producer.abort_transaction
                )
                assert end.__name__ in told
                end()
            else:
                producer.abort_transaction()
    found = committed(cluster)
    assert found == sorted(set(found))
    assert number in found
