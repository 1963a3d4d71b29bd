"""KIP-1123 on three brokers of Apache Kafka, each in its own rack: one is stopped and restarted.

Skipped without Java; the first run fetches Apache Kafka's jars.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Condition

import pytest

from lab.benchmarks.apache_kafka import KafkaMember
from tests.kafka import three_members
from trimtab import Admin, Delivery, Producer, TopicPartition

PARTITIONS = 6
HOME = 1
"""The broker in the producer's rack."""
MANY = 300
PATIENCE = 60.0


@pytest.fixture
def brokers() -> Iterator[list[KafkaMember]]:
    with three_members(KafkaMember) as members:
        yield members


class Acknowledged:
    """The number of records acknowledged since the last `clear`, by broker."""

    def __init__(self, leaders: tuple[int, ...]) -> None:
        self._leaders = leaders
        self._changed = Condition()
        self.by_broker: Counter[int] = Counter()
        self.total = 0

    def count(self, delivery: Delivery) -> None:
        partition = delivery.result().partition
        with self._changed:
            self.by_broker[self._leaders[partition]] += 1
            self.total += 1
            self._changed.notify()

    def clear(self) -> None:
        with self._changed:
            self.by_broker.clear()

    def send_until(self, send: Callable[[], None], is_enough: Callable[[], bool]) -> int:
        """Send records one by one, at most 1 ms apart; returns their number."""
        deadline = time.monotonic() + PATIENCE
        sent = 0
        while not is_enough():
            assert time.monotonic() < deadline, f"{sent} sent; acknowledged: {self.by_broker}"
            send()
            sent += 1
            with self._changed:
                self._changed.wait(0.001)
        return sent


def test_records_leave_a_rack_without_leaders_and_come_back(brokers: list[KafkaMember]) -> None:
    servers = f"{brokers[0].address},{brokers[2].address}"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("racks", partitions=PARTITIONS, replication_factor=1)
        leaders = admin.describe_topics(["racks"])["racks"].leaders
        acknowledged = Acknowledged(leaders)
        with Producer(
            servers,
            client_rack=f"r{HOME}",
            partitioner_rack_aware=True,
            linger_ms=0,
            reconnect_backoff_max_ms=200,
        ) as producer:

            def send() -> None:
                producer.send("racks", bytes(100), on_delivery=acknowledged.count)

            by_broker = acknowledged.by_broker
            sent = acknowledged.send_until(send, lambda: acknowledged.total >= MANY)
            producer.flush()
            assert set(by_broker) == {HOME}, "healthy: nothing leaves the rack"

            brokers[HOME].stop()
            acknowledged.clear()
            # Each turn of a partition is random, so a few may well have the same leader.
            sent += acknowledged.send_until(
                send, lambda: len(by_broker) > 1 and by_broker.total() >= MANY
            )
            assert set(by_broker) == {0, 2}, "records flow to the other racks"
            excluded = {
                load.leader: load.excluded_because
                for load in producer.partitioning("racks").partitions
            }
            assert excluded[-1], "the view says why its partitions are not chosen"

            brokers[HOME].start()
            acknowledged.clear()
            sent += acknowledged.send_until(send, lambda: by_broker[HOME] >= MANY)
            producer.flush()
            acknowledged.clear()
            sent += acknowledged.send_until(send, lambda: by_broker.total() >= MANY)
            assert set(by_broker) == {HOME}, "back home for good"
            producer.flush()
        assert acknowledged.total == sent
        ends = admin.list_offsets(TopicPartition("racks", n) for n in range(PARTITIONS))
        assert sum(end.offset for end in ends.values()) == sent, "none lost, none doubled"
