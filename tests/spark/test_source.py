"""`format("trimtab")` against an embedded cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PythonException

from tests.spark.frames import read
from trimtab import Admin, Cluster, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, OTHER, COMPRESSED = "flights", "flights-too", "compressed"
COUNT = 300
"""Records in each of the topic's three partitions."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A cluster of two brokers with three topics."""
    with Cluster(brokers=2) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic(TOPIC, partitions=3)
            admin.create_topic(OTHER, partitions=1)
            admin.create_topic(COMPRESSED, partitions=1)
        with Producer(servers) as producer:
            for number in range(3 * COUNT):
                headers = [("number", b"%d" % number)] if number % 2 else None
                producer.send(
                    TOPIC,
                    b"value %d" % number,
                    None if number % 5 == 0 else b"key",
                    headers,
                    partition=number % 3,
                    timestamp=1_700_000_000_000 + number,
                )
            producer.send(OTHER, None, b"tombstone")
        with Producer(servers, compression_type="zstd", linger_ms=50) as producer:
            for number in range(COUNT):
                producer.send(COMPRESSED, b"%d" % number)
        yield servers


def test_rows_and_schema_are_those_of_sparks_kafka_source(
    spark: SparkSession, servers: str
) -> None:
    frame = read(spark, servers, subscribe=TOPIC, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in frame.schema)
    rows = sorted(frame.collect(), key=lambda row: (row.offset, row.partition))
    assert [bytes(row.value) for row in rows] == [b"value %d" % n for n in range(3 * COUNT)]
    assert [row.partition for row in rows[:4]] == [0, 1, 2, 0]
    assert rows[0].key is None
    assert bytes(rows[1].key) == b"key"
    assert rows[0].headers is None
    assert [(header.key, bytes(header.value)) for header in rows[1].headers] == [("number", b"1")]
    assert rows[1].timestamp.isoformat() == "2023-11-14T22:13:20.001000"
    assert {row.timestampType for row in rows} == {0}
    assert {row.topic for row in rows} == {TOPIC}


def test_the_name_is_known_without_registration(spark: SparkSession, servers: str) -> None:
    other = spark.newSession()  # registered sources belong to one session
    assert read(other, servers, subscribe=OTHER).collect()[0].value is None


def test_several_topics_and_a_schema_that_chooses_columns(
    spark: SparkSession, servers: str
) -> None:
    schema = "batchBytes int, topic string, batchBaseOffset long, offset long"
    frame = read(spark, servers, schema, subscribePattern="^(comp|flights-)")
    assert frame.columns == ["batchBytes", "topic", "batchBaseOffset", "offset"]
    rows = frame.collect()
    assert sum(row.topic == COMPRESSED for row in rows) == COUNT
    assert sum(row.topic == OTHER for row in rows) == 1
    batches = {(row.topic, row.batchBaseOffset): row.batchBytes for row in rows}
    assert len(batches) < COUNT / 10
    # 61 bytes of header each, and what zstd makes of a few hundred numbers.
    assert all(61 < size < 20_000 for size in batches.values())
    assert all(row.batchBaseOffset <= row.offset for row in rows)


def test_offsets_and_min_partitions(spark: SparkSession, servers: str) -> None:
    frame = read(
        spark,
        servers,
        "partition int, offset long",
        assign=json.dumps({TOPIC: [0, 2]}),
        startingOffsets=json.dumps({TOPIC: {"0": 10, "2": -2}}),
        endingOffsets=json.dumps({TOPIC: {"0": 20, "2": -1}}),
        minPartitions="5",
    )
    assert frame.rdd.getNumPartitions() == 5  # the ten stay whole, the 300 are cut into four
    rows = {(row.partition, row.offset) for row in frame.collect()}
    assert rows == {(0, n) for n in range(10, 20)} | {(2, n) for n in range(COUNT)}


def test_partitions_of_several_topics_share_tasks(spark: SparkSession, servers: str) -> None:
    schema = "topic string, partition int, offset long"
    topics = ",".join((TOPIC, OTHER, COMPRESSED))
    few = read(spark, servers, schema, subscribe=topics, maxPartitions="2")
    each = read(spark, servers, schema, subscribe=topics, maxPartitions="unlimited")
    assert few.rdd.getNumPartitions() == 2
    assert each.rdd.getNumPartitions() == 5
    rows = few.collect()
    assert sorted(rows) == sorted(each.collect())
    assert len(rows) == 4 * COUNT + 1
    last: dict[tuple[str, int], int] = {}
    for row in rows:
        assert row.offset == last.get((row.topic, row.partition), -1) + 1
        last[row.topic, row.partition] = row.offset


def test_nothing_to_read_is_an_empty_frame(spark: SparkSession, servers: str) -> None:
    assert read(spark, servers, subscribePattern="no such topic").count() == 0
    offsets = json.dumps({OTHER: {"0": 1}})
    assert read(spark, servers, subscribe=OTHER, startingOffsets=offsets).collect() == []


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"subscribe": TOPIC, "startingOffset": "x"}, "", "did you mean startingOffsets"),
        ({}, "", "exactly one of the options subscribe, subscribePattern, assign"),
        ({"subscribe": TOPIC}, "valu binary", "did you mean value"),
        ({"subscribe": TOPIC}, "offset int", "column offset as int, but it is bigint"),
        ({"subscribe": "nowhere"}, "", "UNKNOWN_TOPIC_OR_PARTITION"),
        (
            {"subscribe": TOPIC, "kafka.fetch.max.byte": "1"},
            "",
            "did you mean kafka.fetch.max.bytes",
        ),
    ],
)
def test_refusals_reach_the_user(
    spark: SparkSession, servers: str, options: dict[str, str], schema: str, message: str
) -> None:
    with pytest.raises((AnalysisException, PythonException), match=message):
        read(spark, servers, schema, **options).count()


def test_offsets_that_are_gone(spark: SparkSession, servers: str) -> None:
    options = {"subscribe": OTHER, "endingOffsets": json.dumps({OTHER: {"0": 5}})}
    with pytest.raises(AnalysisException, match="flights-too-0: offsets 1 to 5 were asked for"):
        read(spark, servers, **options).count()
    assert read(spark, servers, failOnDataLoss="false", **options).count() == 1


def test_a_temporary_view_works_and_a_table_is_refused(spark: SparkSession, servers: str) -> None:
    options = f"OPTIONS (kafka.bootstrap.servers '{servers}', subscribe '{OTHER}')"
    spark.sql(f"CREATE TEMPORARY VIEW seen USING trimtab {options}")
    assert spark.sql("SELECT count(*) AS n FROM seen").collect()[0].n == 1
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING trimtab {options}")


def test_pushed_filters_leave_the_rows_as_they_are(spark: SparkSession, servers: str) -> None:
    began = 1_700_000_000_000
    condition = (
        "partition IN (0, 2) AND offset > 5 AND offset <= 250"
        f" AND timestamp >= timestamp_millis({began + 300})"
    )
    switch = "spark.sql.python.filterPushdown.enabled"
    plain = read(spark, servers, subscribe=TOPIC).where(condition).collect()
    assert {row.partition for row in plain} == {0, 2}
    assert min(row.offset for row in plain) == 100
    spark.conf.set(switch, "true")
    try:
        narrowed = read(spark, servers, subscribe=TOPIC, pushdown="true").where(condition)
        assert narrowed.rdd.getNumPartitions() == 2  # partition 1 has no task
        found = {(row.partition, row.offset, bytes(row.value)) for row in narrowed.collect()}
        assert found == {(row.partition, row.offset, bytes(row.value)) for row in plain}
    finally:
        spark.conf.unset(switch)


def test_a_read_by_time(spark: SparkSession, servers: str) -> None:
    times = {"startingTimestamp": "1700000000100", "endingTimestamp": "1700000000200"}
    rows = read(spark, servers, subscribe=TOPIC, **times).collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(
        b"value %d" % number for number in range(100, 200)
    )
