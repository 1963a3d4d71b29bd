"""Consumer and admin client, through their synchronous faces, against the embedded cluster."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import pytest

from tests.unit.interrupts import interrupt_at
from trimtab.client.admin import AsyncAdmin
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.network.option_types import ConsumerOptions, ProducerOptions
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import Record, TopicPartition
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.batch_header import read_headers

PARTITIONS = 4
RECORDS = 3_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)
    admin.create_topic(name, partitions=PARTITIONS)
    return name


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def produce(
    cluster: Cluster, topic: str, count: int = RECORDS, **options: Unpack[ProducerOptions]
) -> None:
    with Producer(cluster.bootstrap_servers, **options) as producer:
        for number in range(count):
            producer.send(
                topic,
                b"value %d" % number,
                key=b"%d" % number,
                headers=[("n", b"%d" % number)],
                partition=number % PARTITIONS,
                timestamp=1_000_000 + number,
            )


def read_all(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        polled = consumer.poll(10_000)
        assert polled, f"{len(records)} of {count} records, then nothing for 10 s"
        records += polled
    return records


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_record_once_and_in_order(cluster: Cluster, topic: str, codec: Any) -> None:
    produce(cluster, topic, compression_type=codec)
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions_of(topic))
        records = read_all(consumer, RECORDS)
        for partition in partitions_of(topic):
            mine = [record for record in records if record.partition == partition.partition]
            numbers = range(partition.partition, RECORDS, PARTITIONS)
            assert [record.offset for record in mine] == list(range(len(numbers)))
            assert [record.value for record in mine] == [b"value %d" % n for n in numbers]
            assert [record.key for record in mine] == [b"%d" % n for n in numbers]
            assert [record.timestamp for record in mine] == [1_000_000 + n for n in numbers]
            assert [tuple(record.headers) for record in mine] == [
                (("n", b"%d" % n),) for n in numbers
            ]
            assert consumer.position(partition) == len(numbers)
        assert consumer.poll(0) == []


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_columns_have_what_records_have(cluster: Cluster, topic: str, codec: Any) -> None:
    produce(cluster, topic, compression_type=codec)
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions_of(topic))
        names = ("partition", "offset", "key", "value")
        rows: list[tuple[object, ...]] = []
        while len(rows) < RECORDS:
            table = consumer.arrow(max_bytes=20_000, timeout_ms=10_000, columns=names)
            assert table.num_rows
            rows += [tuple(row.values()) for row in table.to_pylist()]
        assert consumer.lag() == dict.fromkeys(partitions_of(topic), 0)
        consumer.seek_to_beginning()
        records = read_all(consumer, RECORDS)
        assert sorted(rows) == sorted(
            (record.partition, record.offset, record.key, record.value) for record in records
        )


READS: list[Callable[[Consumer], list[int]]] = [
    lambda consumer: [record.offset for record in consumer.poll(10_000, max_records=7)],
    lambda consumer: [next(iter(consumer)).offset],
    lambda consumer: consumer.arrow(1, 10_000, ["offset"]).column("offset").to_pylist(),
]


@pytest.mark.parametrize("read", READS, ids=["poll", "iteration", "columns"])
def test_ctrl_c_in_a_call_that_reads_loses_no_record(
    cluster: Cluster, topic: str, read: Callable[[Consumer], list[int]]
) -> None:
    """At each line of the call: what it would have returned, the next call returns."""
    produce(cluster, topic, batch_size=500)
    partition = partitions_of(topic)[0]
    limits: ConsumerOptions = {"max_partition_fetch_bytes": 2_000}
    places: list[str | None] = []
    with Consumer(cluster.bootstrap_servers, **limits) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        position = 0
        while not places or places[-1] is not None:
            places.append(
                interrupt_at(
                    len(places) + 1,
                    lambda: read(consumer),
                    lambda code: code.co_filename.endswith(("/consumer.py", "fetcher/reader.py")),
                )
            )
            if places[-1] is None:
                break
            offsets = read(consumer)
            assert offsets == list(range(position, position + len(offsets))), places[-1]
            position += len(offsets)
            if position > RECORDS // PARTITIONS - 50:
                position = 0
                consumer.seek(partition, 0)
    assert len(places) > 20


def test_small_fetches_share_the_room(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, batch_size=1_000)
    limits: ConsumerOptions = {
        "fetch_max_bytes": 1_500,
        "max_partition_fetch_bytes": 1_200,
        "max_poll_records": 50,
        "auto_offset_reset": "earliest",
    }
    with Consumer(cluster.bootstrap_servers, **limits) as consumer:
        consumer.assign(partitions_of(topic))
        progress = dict.fromkeys(range(PARTITIONS), 0)
        for _ in range(40):
            for record in consumer.poll(10_000):
                progress[record.partition] += 1
        assert min(progress.values()) > 0.5 * max(progress.values()), progress


def test_batches_lead_to_the_end(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, batch_size=500)
    partition = partitions_of(topic)[1]
    with Consumer(cluster.bootstrap_servers, max_partition_fetch_bytes=4_000) as consumer:
        end = consumer.end_offsets([partition])[partition]
        consumer.assign([partition])
        consumer.seek(partition, 100)
        position, values = 100, []
        while position < end:
            batches = consumer.fetch_batches(10_000)
            assert batches is not None
            assert batches.start == position
            assert read_headers(batches.data)[-1].next_offset == batches.next_offset
            records = read_records(topic, 1, batches.data, batches.start)
            values += [record.value for record in records]
            position = batches.next_offset
            assert batches.high_watermark == end
        assert position == end
        assert values == [b"value %d" % n for n in range(1 + 100 * PARTITIONS, RECORDS, PARTITIONS)]


def test_iteration(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, count=10)
    seen: set[bytes | None] = set()
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions_of(topic))
        for record in consumer:
            seen.add(record.value)
            if len(seen) == 10:
                break
    assert seen == {b"value %d" % number for number in range(10)}


def test_a_record_written_during_a_poll_ends_its_wait(cluster: Cluster, topic: str) -> None:
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign(partitions_of(topic))
        assert [consumer.position(partition) for partition in partitions_of(topic)] == [0] * 4
        writing = threading.Thread(target=produce, args=(cluster, topic, 1))
        writing.start()
        assert [record.value for record in consumer.poll(30_000)] == [b"value 0"]
        writing.join()


def test_offsets_and_times(cluster: Cluster, admin: Admin, topic: str) -> None:
    produce(cluster, topic, count=40)
    first, second, *_ = partitions_of(topic)
    with Consumer(cluster.bootstrap_servers) as consumer:
        assert consumer.beginning_offsets([first]) == {first: 0}
        assert consumer.end_offsets([first, second]) == {first: 10, second: 10}
        found = consumer.offsets_for_times({first: 1_000_010, second: 2_000_000})
        at = found[first]
        assert at is not None
        assert at[:2] == (3, 1_000_012)
        assert found[second] is None
    assert admin.list_offsets([first], "max_timestamp")[first][:2] == (9, 1_000_036)
    assert admin.list_offsets([second], 1_000_001)[second][:2] == (0, 1_000_001)


def test_a_position_outside_the_log(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, count=40)
    partition = partitions_of(topic)[0]
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1_000)
        with pytest.raises(BrokerError) as caught:
            consumer.poll(10_000)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1_000)
        assert [record.offset for record in consumer.poll(10_000)] == list(range(10))


def test_a_recreated_topic_is_read_from_its_beginning(
    cluster: Cluster, admin: Admin, topic: str
) -> None:
    produce(cluster, topic, count=8)
    partition = partitions_of(topic)[0]
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        assert len(read_all(consumer, 2)) == 2
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=PARTITIONS)
        produce(cluster, topic, count=4)
        assert [record.value for record in consumer.poll(10_000)] == [b"value 0"]


def test_a_closed_consumer_says_so(cluster: Cluster, topic: str) -> None:
    consumer = Consumer(cluster.bootstrap_servers)
    consumer.assign(partitions_of(topic))
    consumer.close()
    consumer.close()
    with pytest.raises(UsageError, match="the consumer is closed"):
        consumer.poll()
    with pytest.raises(UsageError, match="the consumer is closed"):
        consumer.end_offsets(partitions_of(topic))


def test_the_async_faces(cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, count=40)

    async def scenario() -> None:
        servers = cluster.bootstrap_servers
        async with (
            AsyncAdmin(servers) as admin,
            AsyncConsumer(servers, auto_offset_reset="earliest") as consumer,
        ):
            assert topic in await admin.topics()
            consumer.assign(partitions_of(topic))
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == 40:
                    break
            batches = await consumer.fetch_batches(0)
            assert batches is None

    asyncio.run(scenario())


def test_topics_come_and_go(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("comes", partitions=3, config={"retention.ms": 60_000})
    view = admin.describe_topics(["comes"])["comes"]
    assert view.partition_count == 3
    assert set(view.leaders) == {0, 1}
    assert "comes" in admin.topics()
    entries = {entry.name: entry for entry in admin.describe_configs("topic", "comes")}
    assert entries["retention.ms"].value == "60000"
    assert not entries["retention.ms"].is_default
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topic("comes")
    admin.delete_topic("comes")
    assert "comes" not in admin.topics()
    with pytest.raises(BrokerError, match="topic comes: UNKNOWN_TOPIC_OR_PARTITION"):
        admin.describe_topics(["comes"])


def test_the_cluster_is_described(cluster: Cluster, admin: Admin) -> None:
    described = admin.cluster()
    assert [(node.host, node.port) for node in described.nodes] == cluster.addresses
    assert [node.id for node in described.nodes] == [0, 1]
    names = {entry.name for entry in admin.describe_configs("broker", 1)}
    assert "fetch.max.bytes" in names
