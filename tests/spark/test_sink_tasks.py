"""What tasks of a write store, without Spark around them: Arrow batches to an embedded cluster."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from tests.spark.foreign import read_topic
from trimtab import Admin, Cluster
from trimtab.client.accumulator.table import TableError
from trimtab.client.partitioner.murmur2_cy import murmur2
from trimtab.kafka.errors import UsageError
from trimtab.spark.source import TrimtabDataSource
from trimtab.spark.write.sink import Acknowledged, make_writer

PARTITIONS = 3
LARGE = 9 * 1024 * 1024
FOR_EVER = str(2**63 - 1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_numbers = count()

_HEADER = types.StructType(
    [
        types.StructField("key", types.StringType()),
        types.StructField("value", types.BinaryType()),
    ]
)
TYPES = {
    "key": (types.BinaryType(), pa.binary()),
    "value": (types.BinaryType(), pa.binary()),
    "topic": (types.StringType(), pa.string()),
    "headers": (
        types.ArrayType(_HEADER),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    ),
    "partition": (types.IntegerType(), pa.int32()),
    "timestamp": (types.TimestampType(), pa.timestamp("us", tz="UTC")),
}
"""Of each column, in Spark and in the Arrow that Spark hands over."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=2) as cluster:
        yield cluster.bootstrap_servers


def make_topic(servers: str, partitions: int = PARTITIONS, **config: str) -> str:
    name = f"topic-{next(_numbers)}"
    config.setdefault("message.timestamp.after.max.ms", FOR_EVER)
    with Admin(servers) as admin:
        admin.create_topic(name, partitions, config=config)
    return name


def write(servers: str, columns: dict[str, list[Any]], **options: str) -> Acknowledged:
    """What one task of `df.write` does, as on an executor: its writer was pickled."""
    schema = types.StructType([types.StructField(name, TYPES[name][0]) for name in columns])
    writer = make_writer({"kafka.bootstrap.servers": servers, **options}, schema, overwrite=False)
    table = pa.table({name: pa.array(rows, TYPES[name][1]) for name, rows in columns.items()})
    message = pickle.loads(pickle.dumps(writer)).write(iter(table.to_batches(max_chunksize=100)))
    assert isinstance(message, Acknowledged)
    return message


def read(servers: str, topic: str) -> list[dict[str, Any]]:
    """The rows that our source makes of a topic."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    schema = types.StructType(
        [types.StructField(name, spark_type) for name, (spark_type, _) in TYPES.items()]
    )
    reader = TrimtabDataSource(options).reader(schema)
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in cast("pa.RecordBatch", batch).to_pylist()
    ]


BYTES = st.none() | st.binary(max_size=40) | st.just(bytes(100_000))
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)
PLACES = st.none() | st.integers(0, PARTITIONS - 1)
TIMES = st.integers(0, 253_402_300_799_000)
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, PLACES, TIMES), max_size=250)


@settings(max_examples=10)
@given(RECORDS)
def test_what_the_source_reads_is_what_the_sink_wrote(
    servers: str, records: list[tuple[Any, ...]]
) -> None:
    topic = make_topic(servers)
    keys, values, headers, partitions, times = zip(*records, strict=True) if records else [()] * 5
    # The place of a record in the list, as a header: what identifies it.
    names = [
        [{"key": name, "value": value} for name, value in [*(own or []), ("n", b"%d" % number)]]
        for number, own in enumerate(headers)
    ]
    message = write(
        servers,
        {
            "key": list(keys),
            "value": list(values),
            "headers": names,
            "partition": list(partitions),
            "timestamp": [EPOCH + timedelta(milliseconds=time) for time in times],
        },
        topic=topic,
    )
    rows = read(servers, topic)
    assert len(rows) == len(records)
    order: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for row in rows:
        number = int(row["headers"][-1]["value"])
        key, value, _, partition, time = records[number]
        if partition is None and key is not None:
            partition = (murmur2(key) & 0x7FFFFFFF) % PARTITIONS  # as Java's producer does
        assert (row["key"], row["value"], row["headers"]) == (key, value, names[number])
        assert row["timestamp"] == EPOCH + timedelta(milliseconds=time)
        assert partition in (None, row["partition"])
        order[row["partition"]].append(number)
    assert all(numbers == sorted(numbers) for numbers in order.values())
    counted = {number: len(rows) for number, rows in order.items() if rows}
    taken = message.counts.get(topic, {})
    assert {partition: each.records for partition, each in taken.items()} == counted


def test_another_client_reads_what_was_written(servers: str) -> None:
    topic = make_topic(servers, 1)
    before = datetime.now(UTC).timestamp() * 1000 - 1
    headers = [None, [], [{"key": "größe", "value": None}, {"key": "", "value": b""}]]
    write(
        servers,
        {"key": [None, b"", b"k"], "value": [b"v", None, b""], "headers": headers},
        topic=topic,
    )
    stored = read_topic(servers, topic)
    assert [(each.key, each.value, each.headers) for each in stored] == [
        (None, b"v", []),
        (b"", None, []),
        (b"k", b"", [("größe", None), ("", b"")]),
    ]
    assert all(each.timestamp >= before for each in stored)


def test_a_time_of_null_is_when_the_record_was_written(servers: str) -> None:
    topic = make_topic(servers, 1)
    before = datetime.now(UTC).timestamp() * 1000 - 1
    finer = EPOCH + timedelta(microseconds=1_700_000_000_123_999)
    write(servers, {"value": [b"a", b"b"], "timestamp": [None, finer]}, topic=topic)
    now, then = read_topic(servers, topic)
    assert now.timestamp >= before
    assert then.timestamp == 1_700_000_000_123  # Kafka's times are whole milliseconds


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"value": [b"v"], "topic": [None]}, {"topic": ""}, "1 rows have a null topic"),
        ({"value": [b"v"], "topic": [""]}, {"topic": ""}, "topic=''"),
        ({"value": [b"v"], "partition": [-1]}, {}, "partition column holds -1"),
        ({"value": [b"v"], "headers": [[None]]}, {}, "header whose name is null"),
        ({"value": [bytes(2_000_000)]}, {}, "needs up to 20000.. bytes, max.request.size is 10485"),
        ({"value": [b"v"]}, {"clientRack": "env:NOWHERE"}, "no environment variable NOWHERE"),
        ({"value": [b"v"]}, {"kafka.partitioner.class": "no.such:Thing"}, "no.such"),
    ],
)
def test_rows_that_cannot_be_sent_say_why(
    servers: str, columns: dict[str, list[Any]], options: dict[str, str], message: str
) -> None:
    topic = {"topic": make_topic(servers), **options}
    given_options = {name: value for name, value in topic.items() if value}
    with pytest.raises(UsageError, match=message):
        write(servers, columns, **given_options)


def test_a_row_of_exactly_the_largest_size_goes_and_one_byte_more_does_not(servers: str) -> None:
    topic, limit = make_topic(servers, 1), 1_048_576
    with pytest.raises(UsageError) as refused:
        write(servers, {"value": [bytes(limit)]}, topic=topic)
    needed = re.search(r"needs up to (\d+) bytes", str(refused.value))
    assert needed is not None
    largest = 2 * limit - int(needed[1])
    with pytest.raises(UsageError, match=f"needs up to {limit + 1} bytes"):
        write(servers, {"value": [bytes(largest + 1)]}, topic=topic)
    write(servers, {"value": [bytes(largest)]}, topic=topic)
    assert [len(each.value or b"") for each in read_topic(servers, topic)] == [largest]


def test_a_refused_record_fails_the_task_and_names_partition_and_reason(servers: str) -> None:
    topic = make_topic(servers, PARTITIONS, **{"max.message.bytes": "1000"})
    columns: dict[str, list[Any]] = {"value": [b"small", bytes(2000)], "partition": [0, 2]}
    with pytest.raises(TableError, match=rf"{topic}-2 .*MESSAGE_TOO_LARGE .*max.message.bytes"):
        write(servers, columns, topic=topic)
    # The next task has a producer of its own, which nothing is wrong with.
    write(servers, {"value": [b"again"], "partition": [2]}, topic=topic)
    assert [each.value for each in read_topic(servers, topic)][-1] == b"again"


def test_large_records_go_once_the_limits_let_them(servers: str) -> None:
    topic = make_topic(servers, PARTITIONS, **{"max.message.bytes": str(2 * LARGE)})
    values = [bytes([number]) * LARGE for number in range(5)]
    options = {"topic": topic, "kafka.max.request.size": str(2 * LARGE)}
    message = write(servers, {"value": values}, **options)
    assert sorted(each.value or b"" for each in read_topic(servers, topic)) == values
    assert sum(each.bytes for each in message.counts[topic].values()) >= 5 * LARGE


def test_rows_go_to_hundreds_of_partitions_and_are_counted(servers: str) -> None:
    partitions = 300
    topic = make_topic(servers, partitions)
    numbers = [number % partitions for number in range(3 * partitions)]
    values = [b"%d" % number for number in range(3 * partitions)]
    message = write(servers, {"value": values, "partition": numbers}, topic=topic)
    assert {each.records for each in message.counts[topic].values()} == {3}
    assert sorted(message.counts[topic]) == list(range(partitions))
    assert len(pickle.dumps(message)) < 100 * partitions


def test_a_producer_that_stayed_open_writes_to_a_topic_that_was_made_again(servers: str) -> None:
    topic = make_topic(servers)
    for number in range(3):
        values = [b"%d" % (3 * number + n) for n in range(PARTITIONS)]
        write(servers, {"value": values, "partition": list(range(PARTITIONS))}, topic=topic)
        assert [each.value for each in read_topic(servers, topic)] == values
        with Admin(servers) as admin:
            admin.delete_topic(topic)
            admin.create_topic(topic, PARTITIONS)


def test_a_producer_that_stayed_open_writes_when_its_brokers_are_back(tmp_path: Path) -> None:
    with Cluster(brokers=1, data=tmp_path) as cluster:
        servers = cluster.bootstrap_servers
        topic = make_topic(servers, 1)
        for number in range(3):
            write(servers, {"value": [b"%d" % number]}, topic=topic)
            cluster.stop_broker(0)
            cluster.start_broker(0)
        assert [each.value for each in read_topic(servers, topic)] == [b"0", b"1", b"2"]


def test_what_a_failed_attempt_has_sent_stays_and_the_next_one_writes_all(servers: str) -> None:
    topic = make_topic(servers)
    values = [b"%d" % number for number in range(500)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    schema = types.StructType([types.StructField("value", types.BinaryType())])
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    writer = make_writer(options, schema, overwrite=False)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from table.slice(0, 300).to_batches(max_chunksize=100)
        raise EOFError("the JVM went away")

    with pytest.raises(EOFError):
        writer.write(broken())
    message = writer.write(iter(table.to_batches(max_chunksize=100)))
    assert isinstance(message, Acknowledged)
    assert sum(each.records for each in message.counts[topic].values()) == len(values)
    stored = [each.value or b"" for each in read_topic(servers, topic)]
    assert set(stored) == set(values)
    assert len(stored) <= len(values) + 300
