"""A consumer whose records are lost by an unclean leader election finds out (KIP-320)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.kafka.errors import LogTruncation
from trimtab.kafka.records import TopicPartition

pytestmark = pytest.mark.kip(320)

TOPIC = "truncated"
T0 = TopicPartition(TOPIC, 0)
KEPT, LOST, NEW = 10, 5, 3


def send(cluster: Cluster, count: int, value: bytes) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for _ in range(count):
            producer.send(TOPIC, value, partition=0)


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    while len(values) < count:
        records = consumer.poll(30_000)
        assert records, f"only {len(values)} records came"
        values += [record.value for record in records]
    return values


def consume(cluster: Cluster, reset: Any, **options: Any) -> Consumer:
    return Consumer(cluster.bootstrap_servers, auto_offset_reset=reset, **options)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """The leader of `TOPIC` is broker 0; broker 1 is stopped, and has not its last records."""
    with Cluster(brokers=3) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(
                TOPIC, assignment={0: [0, 1]}, config={"unclean.leader.election.enable": True}
            )
        send(cluster, KEPT, b"kept")
        cluster.stop_broker(1)
        send(cluster, LOST, b"lost")
        yield cluster


def lose_records(cluster: Cluster) -> None:
    cluster.kill_broker(0)
    cluster.start_broker(1)
    send(cluster, NEW, b"new")


def test_without_a_reset_the_consumer_is_told(cluster: Cluster) -> None:
    with consume(cluster, "none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert len(read(consumer, KEPT + LOST)) == KEPT + LOST
        lose_records(cluster)
        with pytest.raises(LogTruncation) as caught:
            read(consumer, 1)
        error = caught.value
        assert (error.subject, error.position, error.divergence) == (str(T0), KEPT + LOST, KEPT)
        consumer.seek(T0, error.divergence)
        assert read(consumer, NEW) == [b"new"] * NEW


def test_with_a_reset_the_consumer_goes_on_where_the_logs_part(cluster: Cluster) -> None:
    with consume(cluster, "latest") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        read(consumer, KEPT + LOST)
        lose_records(cluster)
        while consumer.position(T0) > KEPT:
            assert consumer.poll(30_000) == []
        assert read(consumer, NEW) == [b"new"] * NEW


def test_a_committed_position_that_was_lost_is_found_by_the_next_consumer(
    cluster: Cluster,
) -> None:
    with consume(cluster, "none", group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        read(consumer, KEPT + LOST)
        consumer.commit()
        committed = consumer.committed([T0])[T0]
        assert committed is not None
        assert (committed.offset, committed.leader_epoch) == (KEPT + LOST, epoch_of(cluster))
    lose_records(cluster)
    with consume(cluster, "none", group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([T0])
        with pytest.raises(LogTruncation) as caught:
            read(consumer, 1)
        assert (caught.value.position, caught.value.divergence) == (KEPT + LOST, KEPT)


def epoch_of(cluster: Cluster) -> int:
    """The leader epoch of the last record."""
    epoch = position = -1
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        while position < KEPT + LOST:
            batches = consumer.fetch_batches(30_000)
            assert batches is not None
            position, epoch = batches.next_offset, batches.leader_epochs[-1][1]
    return epoch


def test_on_apache_kafka_commits_carry_leader_epochs_and_are_confirmed(
    apache_kafka: ApacheKafka,
) -> None:
    topic = TopicPartition("leader-epochs-of-commits", 0)
    servers = apache_kafka.address
    with Admin(servers) as admin:
        admin.create_topic(topic.topic, 1)
    with Producer(servers) as producer:
        for number in range(10):
            producer.send(topic.topic, b"%d" % number)
    options: dict[str, Any] = {
        "group.id": "leader-epochs",
        "auto.offset.reset": "none",
        "enable.auto.commit": False,
    }
    with Consumer(servers, **options) as consumer:
        consumer.assign([topic])
        consumer.seek(topic, 0)
        read(consumer, 10)
        consumer.commit()
        assert consumer.committed([topic])[topic] == OffsetAndMetadata(10, leader_epoch=0)
    with Consumer(servers, **options) as consumer, Producer(servers) as producer:
        consumer.assign([topic])
        producer.send(topic.topic, b"next")
        assert read(consumer, 1) == [b"next"]
        consumer.seek(topic, OffsetAndMetadata(11, leader_epoch=7))
        with pytest.raises(LogTruncation, match="lost records") as caught:
            read(consumer, 1)
        assert (caught.value.position, caught.value.divergence) == (11, -1)
