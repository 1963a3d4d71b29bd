"""Options by topics on our cluster: the rows that were written, in the Spark partitions asked for.

Readers are called as Spark calls them, without its JVM. Beside Spark's own connector the same is
read by `lab/benchmarks/parity.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import pytest
from pyspark.sql.types import ArrayType, StructType

from trimtab import Admin, Cluster, Producer
from trimtab.client.network.option_types import ProducerOptions
from trimtab.spark.source import TrimtabDataSource

if TYPE_CHECKING:
    import pyarrow as pa

BEGAN = 1_700_000_000_000
LARGE = 9_000_000
KEPT = {"retention.ms": -1}


class Row(NamedTuple):
    """One record, as Spark's columns have it; `at` in milliseconds, -1 where the broker sets it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    at: int
    headers: list[dict[str, Any]] | None


Written = dict[str, list[Row]]

SCHEMA = (
    StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestampType", "integer")
    .add("headers", ArrayType(StructType().add("key", "string").add("value", "binary")))
)

KEYS = (None, b"", b"key")
VALUES = (b"", b"value", None, b"\x00\xff")
HEADERS: tuple[list[tuple[str, bytes | None]] | None, ...] = (
    None,
    [("h", b"1")],
    [("h", None), ("h", b""), ("", b"x")],
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with Cluster(brokers=1, config={"log.cleaner.backoff.ms": "50"}) as running:
        yield running.bootstrap_servers


@pytest.fixture(scope="module")
def written(cluster: str) -> Written:
    """Topics of every kind, by name, with their records in the order of partition and offset."""
    topics: Written = {}
    with Admin(cluster) as admin:
        admin.create_topic("plain", partitions=3, config=KEPT)
        topics["plain"] = send(cluster, "plain", 3, 12)
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            admin.create_topic(codec, partitions=1, config=KEPT)
            topics[codec] = send(cluster, codec, 1, 30, compression_type=codec, linger_ms=500)
        config = {**KEPT, "message.timestamp.type": "LogAppendTime"}
        admin.create_topic("appended", partitions=1, config=config)
        topics["appended"] = [row._replace(at=-1) for row in send(cluster, "appended", 1, 5)]
        admin.create_topic("large", partitions=1, config={**KEPT, "max.message.bytes": LARGE + 999})
        with Producer(cluster, max_request_size=LARGE + 999) as producer:
            producer.send("large", bytes(LARGE), timestamp=BEGAN)
            producer.send("large", b"small", timestamp=BEGAN + 1000)
        topics["large"] = [
            Row(0, 0, None, bytes(LARGE), BEGAN, None),
            Row(0, 1, None, b"small", BEGAN + 1000, None),
        ]
        admin.create_topic("again", partitions=2, config=KEPT)
        send(cluster, "again", 2, 9)
        admin.delete_topic("again")
        admin.create_topic("again", partitions=1, config=KEPT)
        topics["again"] = send(cluster, "again", 1, 4)
        admin.create_topic("growing", partitions=1, config=KEPT)
        topics["growing"] = send(cluster, "growing", 1, 20)
        admin.create_partitions("growing", 2)
        with Producer(cluster) as producer:
            producer.send("growing", b"late", partition=1, timestamp=BEGAN)
        topics["growing"].append(Row(1, 0, None, b"late", BEGAN, None))
        admin.create_topic("empty", partitions=2, config=KEPT)
        topics["empty"] = []
    return topics


def send(
    servers: str, topic: str, partitions: int, count: int, **options: Unpack[ProducerOptions]
) -> list[Row]:
    rows = []
    with Producer(servers, **options) as producer:
        for partition in range(partitions):
            for number in range(count):
                headers = HEADERS[number % len(HEADERS)]
                row = Row(
                    partition,
                    number,
                    KEYS[number % len(KEYS)],
                    VALUES[number % len(VALUES)],
                    BEGAN + 1000 * number,
                    None
                    if headers is None
                    else [{"key": key, "value": value} for key, value in headers],
                )
                producer.send(
                    topic, row.value, row.key, headers, partition=partition, timestamp=row.at
                )
                rows.append(row)
    return rows


def read(servers: str, topic: str, **options: str) -> list[list[Row]]:
    """The rows of each Spark partition."""
    chosen = {} if "assign" in options else {"subscribe": topic}
    source = TrimtabDataSource(
        {"kafka.bootstrap.servers": servers, "includeHeaders": "true", **chosen, **options}
    )
    reader = source.reader(SCHEMA)
    parts = []
    for partition in reader.partitions():
        rows = []
        for batch in reader.read(partition):
            for each in cast("pa.RecordBatch", batch).to_pylist():
                assert each["topic"] == topic
                is_appended = each["timestampType"] == 1
                at = -1 if is_appended else round(each["timestamp"].timestamp() * 1000)
                rows.append(
                    Row(
                        each["partition"],
                        each["offset"],
                        each["key"],
                        each["value"],
                        at,
                        each["headers"],
                    )
                )
        parts.append(rows)
    return parts


TOPICS = (
    *("plain", "gzip", "snappy", "lz4", "zstd"),
    *("appended", "large", "again", "growing", "empty"),
)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_whole_topic(cluster: str, written: Written, topic: str) -> None:
    parts = read(cluster, topic)
    assert [row for part in parts for row in part] == written[topic]
    assert len(parts) == len({row.partition for row in written[topic]})


@pytest.mark.parametrize("topic", TOPICS)
def test_cut_into_parts(cluster: str, written: Written, topic: str) -> None:
    for options in ({"minPartitions": "7"}, {"maxRecordsPerPartition": "5"}):
        parts = read(cluster, topic, **options)
        assert [row for part in parts for row in part] == written[topic]
        if "maxRecordsPerPartition" in options:
            assert all(0 < len(part) <= 5 for part in parts)
        elif len(written[topic]) >= 7:
            assert len(parts) in (6, 7)  # a hint: parts are rounded


@pytest.mark.parametrize("topic", TOPICS)
def test_all_partitions_in_one_task(cluster: str, written: Written, topic: str) -> None:
    parts = read(cluster, topic, maxPartitions="1")
    assert len(parts) == bool(written[topic])
    rows = [row for part in parts for row in part]
    # Those of a partition are in order; those of several may alternate.
    assert sorted(rows, key=lambda row: row.partition) == written[topic]


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic not in ("appended", "empty")])
def test_from_a_time_to_a_time(cluster: str, written: Written, topic: str) -> None:
    parts = read(
        cluster,
        topic,
        startingTimestamp=str(BEGAN + 500),
        endingTimestamp=str(BEGAN + 8500),
        startingOffsetsByTimestampStrategy="latest",
    )
    expected = [row for row in written[topic] if BEGAN + 500 <= row.at < BEGAN + 8500]
    assert [row for part in parts for row in part] == expected


Keeps = Callable[[Row], bool]


@pytest.mark.parametrize(
    ("topic", "options", "keeps"),
    [
        (
            "plain",
            {
                "startingOffsets": json.dumps({"plain": {0: -2, 1: 4, 2: 12}}),
                "endingOffsets": json.dumps({"plain": {0: 9, 1: -1, 2: -1}}),
            },
            lambda row: (
                (row.partition, row.offset)
                in {(0, n) for n in range(9)} | {(1, n) for n in range(4, 12)}
            ),
        ),
        ("plain", {"assign": '{"plain":[2,0]}'}, lambda row: row.partition != 1),
        (
            "zstd",
            {"startingOffsets": '{"zstd":{"0":11}}', "endingOffsets": '{"zstd":{"0":12}}'},
            lambda row: row.offset == 11,
        ),
        ("large", {"kafka.max.partition.fetch.bytes": "1000"}, lambda row: True),
        ("plain", {"kafka.isolation.level": "read_committed"}, lambda row: True),
        (
            "again",
            {"failOnDataLoss": "false", "endingOffsets": '{"again":{"0":9}}'},
            lambda row: True,
        ),
    ],
)
def test_parts_of_a_topic(
    cluster: str, written: Written, topic: str, options: dict[str, str], keeps: Keeps
) -> None:
    found = [row for part in read(cluster, topic, **options) for row in part]
    assert found == [row for row in written[topic] if keeps(row)]


def test_what_compaction_left(cluster: str) -> None:
    config = {
        **KEPT,
        "cleanup.policy": "compact",
        "segment.ms": 50,
        "min.cleanable.dirty.ratio": 0.01,
    }
    with Admin(cluster) as admin, Producer(cluster) as producer:
        admin.create_topic("compacted", partitions=1, config=config)
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        sent = 0
        while True:
            for number in range(12):
                key, value = b"%d" % (number % 5), b"%d" % sent
                newest[key] = producer.send("compacted", value, key).result(60).offset, value
                sent += 1
            (rows,) = read(cluster, "compacted")
            if len(rows) < sent:
                break
    assert [row.offset for row in rows] == sorted({row.offset for row in rows})
    found = {row.key: (row.offset, row.value) for row in rows}
    assert found == newest
