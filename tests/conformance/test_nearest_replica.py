"""A consumer with `client.rack` reads from the replica in its rack (KIP-392), on trimtab's cluster
and on Apache Kafka."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lab.benchmarks.apache_kafka import KafkaMember
from tests.kafka import needs_kafka, three_members
from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.client.fetcher.fetcher import Fetcher

pytestmark = pytest.mark.kip(392)

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
TOPIC = "near"
LEADER, NEAREST = 0, 2
COUNT, BYTES = 300, 10_000


class RackAwareMember(KafkaMember):
    def settings(self) -> dict[str, str]:
        return {**super().settings(), "replica.selector.class": SELECTOR}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Record bytes that each broker has sent to this process's consumers."""
    bytes_of: Counter[int] = Counter()
    receive = Fetcher._receive

    def count(self: Fetcher, node: int, fetch: Any, response: Any, names: Any) -> None:
        for topic in response.responses:
            bytes_of[node] += sum(len(data.records or b"") for data in topic.partitions)
        receive(self, node, fetch, response, names)

    monkeypatch.setattr(Fetcher, "_receive", count)
    return bytes_of


def read_in_a_rack(servers: str, rack: str, lose: Callable[[], object] = lambda: None) -> None:
    """Read all records in their order; after the first, `lose` a broker."""
    with Admin(servers) as admin:
        admin.create_topic(TOPIC, assignment={0: [LEADER, 1, NEAREST]})
    with Producer(servers, acks="all") as producer:
        for number in range(COUNT):
            producer.send(TOPIC, number.to_bytes(4, "big") * (BYTES // 4))
    options: dict[str, Any] = {
        "client.rack": rack,
        "auto.offset.reset": "earliest",
        "max.partition.fetch.bytes": 100_000,
    }
    with Consumer(servers, **options) as consumer:
        consumer.assign([(TOPIC, 0)])
        offsets: list[int] = []
        while len(offsets) < COUNT:
            records = consumer.poll(30_000)
            assert records
            if not offsets:
                lose()
            offsets += [record.offset for record in records]
        assert offsets == list(range(COUNT))


def test_on_our_cluster(served: Counter[int]) -> None:
    config = {"replica.selector.class": SELECTOR}
    with Cluster(brokers=3, racks=["r0", "r1", "r2"], config=config) as cluster:
        read_in_a_rack(cluster.bootstrap_servers, "r2")
    assert served[NEAREST] >= COUNT * BYTES
    assert served[LEADER] == served[1] == 0


def test_a_rack_without_a_replica_reads_from_the_leader(served: Counter[int]) -> None:
    config = {"replica.selector.class": SELECTOR}
    with Cluster(brokers=3, racks=["r0", "r1", "r2"], config=config) as cluster:
        read_in_a_rack(cluster.bootstrap_servers, "elsewhere")
    assert served[LEADER] >= COUNT * BYTES
    assert served[NEAREST] == 0


def test_when_the_nearest_replica_dies_the_leader_is_read(served: Counter[int]) -> None:
    config = {"replica.selector.class": SELECTOR}
    with Cluster(brokers=3, racks=["r0", "r1", "r2"], config=config) as cluster:
        read_in_a_rack(cluster.bootstrap_servers, "r2", lambda: cluster.kill_broker(NEAREST))
    assert served[NEAREST] > 0
    assert served[LEADER] > COUNT * BYTES / 2


@needs_kafka
def test_when_the_nearest_replica_dies_on_apache_kafka(served: Counter[int]) -> None:
    with three_members(RackAwareMember) as members:
        (nearest,) = members[NEAREST].pids
        read_in_a_rack(members[0].address, "r2", lambda: os.kill(nearest, signal.SIGKILL))
    assert served[NEAREST] > 0
    assert served[LEADER] > COUNT * BYTES / 2


@needs_kafka
def test_on_apache_kafka(served: Counter[int]) -> None:
    with three_members(RackAwareMember) as members:
        read_in_a_rack(members[0].address, "r2")
    assert served[NEAREST] >= 0.9 * COUNT * BYTES, "it may lag behind for a moment"
    assert served[NEAREST] > 9 * served[LEADER]
