"""Record batches into Arrow: the values, the schema, the cuts."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from trimtab.client.fetcher import arrow
from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.client.partitioner.murmur2_cy import murmur2
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import Headers
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.batch_header import restamp
from trimtab.kafka.wire.compression import Compression
from trimtab.spark.read import columns
from trimtab.spark.read.column_names import KNOWN_COLUMNS

EVERY = KNOWN_COLUMNS


def make_batch(
    base_offset: int,
    values: list[bytes | None],
    *,
    key: bytes | None = b"k",
    headers: Headers = (),
    compression: Compression = Compression.NONE,
) -> memoryview:
    builder = BatchBuilder(1 << 20, compression)
    for index, value in enumerate(values):
        assert builder.append(1_000 + index, key, value, headers)
    batch = bytearray(builder.build())
    restamp(batch, 0, base_offset, 3)
    return memoryview(batch)


def scan(buffers: list[memoryview], wanted: OffsetRange, *names: str) -> list[pa.RecordBatch]:
    schema = columns.arrow_schema((name, True) for name in names or EVERY)
    return list(columns.scan_columns([(wanted, each) for each in buffers], schema))


def test_every_column_of_a_record() -> None:
    first = make_batch(5, [b"one", None, b""], key=None)
    second = make_batch(8, [b"four"], headers=[("h", b"1"), ("h", None)])
    (batch,) = scan([memoryview(bytes(first) + bytes(second))], OffsetRange("t", 7, 5, 9))
    batch.validate(full=True)
    rows = batch.to_pylist()
    at = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    assert rows[0] == {
        "key": None,
        "value": b"one",
        "topic": "t",
        "partition": 7,
        "offset": 5,
        "timestamp": at,
        "timestampType": 0,
        "headers": None,
        "batchBaseOffset": 5,
        "batchBytes": len(first),
        "batchIndex": 0,
        "keyBytes": None,
        "valueBytes": 3,
        "keyHash": None,
    }
    assert [row["value"] for row in rows] == [b"one", None, b"", b"four"]
    assert [row["offset"] for row in rows] == [5, 6, 7, 8]
    assert rows[2]["timestamp"] == at + dt.timedelta(milliseconds=2)
    assert rows[3]["key"] == b"k"
    assert rows[3]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (rows[3]["batchBaseOffset"], rows[3]["batchBytes"]) == (8, len(second))
    assert [row["batchIndex"] for row in rows] == [0, 1, 2, 0]
    assert [row["valueBytes"] for row in rows] == [3, None, 0, 4]
    assert rows[3]["keyBytes"] == 1
    assert rows[3]["keyHash"] & 0xFFFFFFFF == murmur2(b"k")


def test_the_schema_is_the_one_spark_makes_of_its_kafka_source() -> None:
    header = types.StructType().add("key", "string").add("value", "binary")
    spark = types.StructType()
    python_names = {"int": "integer", "bigint": "long"}
    for name, kind in EVERY.items():
        python = types.ArrayType(header) if name == "headers" else python_names.get(kind, kind)
        spark = spark.add(name, python, True)
        assert spark[name].dataType.simpleString() == kind
    expected = to_arrow_schema(spark, timezone="UTC")
    assert columns.arrow_schema((name, True) for name in EVERY).equals(expected)
    required = types.StructType().add("offset", "long", False)
    assert columns.arrow_schema([("offset", False)]).equals(
        to_arrow_schema(required, timezone="UTC")
    )


def test_only_the_range_is_kept_and_gaps_are_passed_over() -> None:
    buffers = [
        make_batch(0, [b"0", b"1", b"2"]),
        make_batch(10, [b"10", b"11"], compression=Compression.LZ4),
        make_batch(12, [b"12", b"13"]),
    ]
    (batch,) = scan(buffers, OffsetRange("t", 0, 1, 13), "value", "offset")
    assert batch.column("offset").to_pylist() == [1, 2, 10, 11, 12]
    assert batch.column("value").to_pylist() == [b"1", b"2", b"10", b"11", b"12"]
    assert scan(buffers, OffsetRange("t", 0, 3, 10)) == []


def test_batches_are_cut_at_a_few_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "FULL_BYTES", 1000)
    monkeypatch.setattr(arrow, "SMALL_BYTES", 0)
    # One buffer that fills three Arrow batches, then one that goes into the last of them.
    one = b"".join(bytes(make_batch(offset, [b"v" * 600])) for offset in range(5))
    batches = scan([memoryview(one), make_batch(5, [b"w"])], OffsetRange("t", 0, 0, 6))
    assert [batch.num_rows for batch in batches] == [2, 2, 2]
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(6))


@pytest.mark.parametrize(
    ("small", "joined"),
    [(0, [3, 1, 1, 1]), (40, [3, 2, 1]), (1 << 20, [6])],
    ids=["none is small", "a few are", "all are"],
)
def test_small_batches_of_several_partitions_are_joined(
    monkeypatch: pytest.MonkeyPatch, small: int, joined: list[int]
) -> None:
    monkeypatch.setattr(arrow, "SMALL_BYTES", small)
    buffers = [
        (OffsetRange("t", 0, 0, 9), make_batch(0, [b"a", b"b"])),
        (OffsetRange("t", 0, 2, 9), make_batch(2, [b"c"])),
        (OffsetRange("t", 1, 0, 9), make_batch(5, [b"d"])),
        (OffsetRange("u", 1, 0, 9), make_batch(0, [b"e"])),
        (OffsetRange("t", 0, 3, 9), make_batch(0, [b"a", b"b", b"c", b"f"])),
        (OffsetRange("t", 2, 3, 4), make_batch(0, [b"g"])),  # nothing of it is wanted
    ]
    names = ("topic", "partition", "offset", "value")
    schema = columns.arrow_schema((name, True) for name in names)
    batches = list(columns.scan_columns(buffers, schema))
    assert [batch.num_rows for batch in batches] == joined
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == [
        ("t", 0, 0, b"a"),
        ("t", 0, 1, b"b"),
        ("t", 0, 2, b"c"),
        ("t", 1, 5, b"d"),
        ("u", 1, 0, b"e"),
        ("t", 0, 3, b"f"),
    ]


def test_a_timestamp_that_spark_cannot_hold_is_an_error_where_it_is_read() -> None:
    builder = BatchBuilder(1 << 20, Compression.NONE)
    assert builder.append(1000, None, b"good", ())
    assert builder.append(1_700_000_000_000_000_000, None, b"nanoseconds", ())
    buffers = [memoryview(bytearray(builder.build()))]
    with pytest.raises(CorruptData, match=r"t-7: the record at offset 1 has timestamp 17000000"):
        scan(buffers, OffsetRange("t", 7, 0, 2), "value", "timestamp")
    (batch,) = scan(buffers, OffsetRange("t", 7, 0, 2), "value")
    assert batch.column("value").to_pylist() == [b"good", b"nanoseconds"]
    (batch,) = scan(buffers, OffsetRange("t", 7, 0, 1), "timestamp")
    assert batch.num_rows == 1


def test_columns_not_asked_for_are_not_decoded() -> None:
    (batch,) = scan([make_batch(0, [b"v" * 100] * 3)], OffsetRange("t", 0, 0, 3), "batchBytes")
    assert batch.schema.names == ["batchBytes"]
    assert batch.get_total_buffer_size() == 3 * 4


def test_a_batch_has_one_first_record_however_its_range_is_split() -> None:
    batch = make_batch(0, [b"v"] * 4)
    places = [
        place
        for start, end in [(0, 2), (2, 4)]
        for part in scan([batch], OffsetRange("t", 0, start, end), "batchIndex")
        for place in part.column("batchIndex").to_pylist()
    ]
    assert places == [0, 1, 2, 3]


def test_sizes_and_hashes_come_without_keys_and_values() -> None:
    keys = [b"one", b"", b"a key beyond a word"]
    buffers = [make_batch(number, [b"v" * number], key=key) for number, key in enumerate(keys)]
    (batch,) = scan(buffers, OffsetRange("t", 0, 0, 3), "keyBytes", "valueBytes", "keyHash")
    assert batch.schema.names == ["keyBytes", "valueBytes", "keyHash"]
    assert batch.get_total_buffer_size() == 3 * 3 * 4
    assert batch.column("keyBytes").to_pylist() == [3, 0, 19]
    assert batch.column("valueBytes").to_pylist() == [0, 1, 2]
    hashes = [number & 0xFFFFFFFF for number in batch.column("keyHash").to_pylist()]
    assert hashes == [murmur2(key) for key in keys]
