"""`merge_split` of a `Consumer`, on one thread, against the embedded cluster."""

from __future__ import annotations

from itertools import islice

import pytest

from trimtab import Admin, Cluster, Consumer, Producer, UsageError, merge_split
from trimtab.client.partitioner.split_records import SPLIT_HEADER, write_split

PARTITIONS = 2
"""Of the topic `t` of the cluster."""


def write(cluster: Cluster, topic: str, *numbers: int) -> None:
    """Split records, odd ones in partition 0, the others in 1; each between two others."""
    with Producer(cluster.bootstrap_servers) as producer:
        for number in numbers:
            partition = 1 - number % 2
            headers = [(SPLIT_HEADER, write_split(7, number, 0))]
            producer.send(topic, b"plain", partition=partition)
            producer.send(topic, b"%d" % number, key=b"k", partition=partition, headers=headers)


def make_topic(cluster: Cluster, name: str) -> str:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(name, PARTITIONS)
    return name


def reader(cluster: Cluster, **options: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest", **options}
    )


def test_records_are_iterated_over_in_order(cluster: Cluster) -> None:
    topic = make_topic(cluster, "in-order")
    write(cluster, topic, *(number for number in range(1_000) if number % 10 != 3))
    with reader(cluster) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        records = merge_split(consumer)
        found = [record.value for record in islice(records, 1_800)]
        numbers = [int(value) for value in found if value != b"plain"]
        assert numbers == [number for number in range(1_000) if number % 10 != 3]
        assert (records.held, records.given_up, records.late) == (0, 0, 0)


def test_a_poll_waits_no_longer_than_it_should(cluster: Cluster) -> None:
    topic = make_topic(cluster, "empty")
    with reader(cluster) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert merge_split(consumer).poll(100) == []


def test_a_member_commits_what_was_returned(cluster: Cluster) -> None:
    topic = make_topic(cluster, "committed")
    write(cluster, topic, 0, 1)
    options = {"group.id": "committed", "enable.auto.commit": "false"}
    with reader(cluster, **options) as consumer:
        consumer.subscribe([topic])
        records = merge_split(consumer)
        found = [record.value for record in islice(records, 3)]
        records.commit()
        offsets = consumer.committed([(topic, 0), (topic, 1)]).values()
        assert sum(each.offset for each in offsets if each is not None) == 3
    with reader(cluster, **options) as consumer:
        consumer.subscribe([topic])
        found += [record.value for record in islice(merge_split(consumer), 1)]
    assert sorted(found) == [b"0", b"1", b"plain", b"plain"]


def test_a_consumer_that_commits_by_itself_is_refused(cluster: Cluster) -> None:
    with (
        reader(cluster, **{"group.id": "g"}) as consumer,
        pytest.raises(UsageError, match=r"set enable\.auto\.commit=false"),
    ):
        merge_split(consumer)
