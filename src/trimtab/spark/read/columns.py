"""Record batches into Arrow, in the schema of Spark's own Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from trimtab.client.partitioner.murmur2_cy import murmur2_column
from trimtab.errors import CorruptData
from trimtab.spark.read.column_names import BATCH_COLUMNS, SIZE_COLUMNS
from trimtab.spark.read.ranges import OffsetRange
from trimtab.wire.columns import BinaryColumn, Columns, HeadersColumn, SizeColumn
from trimtab.wire.records_cy import ColumnScanner

FULL_BYTES: Final = 4 * 1024 * 1024
"""An Arrow batch is closed at about this many bytes."""

_SMALL_BYTES: Final = 64 * 1024
"""Smaller batches are copied into one: for Spark a batch costs more than copying so much."""

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
    "batchBaseOffset": pa.int64(),
    "batchBytes": pa.int32(),
    "batchIndex": pa.int32(),
    "keyBytes": pa.int32(),
    "valueBytes": pa.int32(),
    "keyHash": pa.int32(),
}


def arrow_schema(columns: Iterable[tuple[str, bool]]) -> pa.Schema:
    """The exact schema that Spark requires for columns given by name and nullability."""
    return pa.schema([pa.field(name, _ARROW_TYPES[name], nullable) for name, nullable in columns])


def scan_columns(
    buffers: Iterable[tuple[OffsetRange, memoryview]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The records of ranges, a few megabytes at a time, decoded straight into Arrow's buffers.

    Args:
        buffers: whole record batches, in order for each partition, each with the offsets to keep.
            The batches may begin before these offsets and end after them; missing offsets
            (compaction, transaction markers) are skipped. CRCs are not checked.
        schema: of the result, from `arrow_schema`; other columns are not decoded.

    Returns:
        Batches. A large one is of one partition, small ones are joined.

    Raises:
        CorruptData: a batch that cannot be decoded.
    """
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in _scan_by_partition(buffers, schema):
        is_small = batch.nbytes < _SMALL_BYTES
        if is_small:
            small.append(batch)
            size += batch.nbytes
        if small and (not is_small or size >= _SMALL_BYTES):
            yield _join(small)
            small, size = [], 0
        if not is_small:
            yield batch
    if small:
        yield _join(small)


def _scan_by_partition(
    buffers: Iterable[tuple[OffsetRange, memoryview]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    names = frozenset(schema.names)
    scanner = ColumnScanner(
        key="key" in names or "keyHash" in names,
        value="value" in names,
        headers="headers" in names,
        batch_columns=not names.isdisjoint(BATCH_COLUMNS),
        sizes=not names.isdisjoint(SIZE_COLUMNS),
        full_bytes=FULL_BYTES,
        check_crcs=False,
    )
    scanned: OffsetRange | None = None
    for wanted, buffer in buffers:
        if scanner.rows and scanned is not None and scanned[:2] != wanted[:2]:
            yield _wrap(scanner.take(), scanned, schema)
        scanned = wanted
        scanner.scan(buffer, wanted.start, wanted.end)
        while scanner.full:
            offset = scanner.next_offset
            yield _wrap(scanner.take(), wanted, schema)
            scanner.scan(buffer, offset, wanted.end)
    if scanner.rows and scanned is not None:
        yield _wrap(scanner.take(), scanned, schema)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _wrap(columns: Columns, wanted: OffsetRange, schema: pa.Schema) -> pa.RecordBatch:
    """Arrow arrays over the scanner's buffers; nothing is copied.

    Raises:
        CorruptData: a timestamp that Spark cannot hold, if timestamps are read.
    """
    if columns.far_timestamp is not None and "timestamp" in schema.names:
        offset, timestamp = columns.far_timestamp
        raise CorruptData(
            f"{wanted.topic}-{wanted.partition}: the record at offset {offset} has timestamp "
            f"{timestamp}, which is out of range for Spark's microseconds. Kafka's timestamps are "
            "milliseconds since 1970: did its producer write micro- or nanoseconds? To read the "
            "record, use a schema without the column timestamp"
        )
    arrays = [_array(field.name, columns, wanted) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, columns: Columns, wanted: OffsetRange) -> pa.Array:
    rows = columns.rows
    kind = _ARROW_TYPES[name]
    match name:
        case "key":
            return _binary(kind, rows, columns.key)
        case "value":
            return _binary(kind, rows, columns.value)
        case "headers":
            return _headers(rows, columns.headers)
        case "keyBytes":
            return _sizes(kind, rows, columns.key_bytes)
        case "valueBytes":
            return _sizes(kind, rows, columns.value_bytes)
        case "keyHash":
            return _hashes(kind, rows, columns.key)
        case "topic":
            return pa.repeat(pa.scalar(wanted.topic, kind), rows)
        case "partition":
            return pa.repeat(pa.scalar(wanted.partition, kind), rows)
    numbers = {
        "offset": columns.offset,
        "timestamp": columns.timestamp,
        "timestampType": columns.timestamp_type,
        "batchBaseOffset": columns.batch_base_offset,
        "batchBytes": columns.batch_bytes,
        "batchIndex": columns.batch_index,
    }
    return pa.Array.from_buffers(kind, rows, [None, _buffer(numbers[name])], 0)


def _binary(kind: pa.DataType, rows: int, column: BinaryColumn | None) -> pa.Array:
    assert column is not None
    buffers = [_buffer(column.validity), _buffer(column.offsets), _buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers, column.null_count)


def _sizes(kind: pa.DataType, rows: int, column: SizeColumn | None) -> pa.Array:
    assert column is not None
    buffers = [_buffer(column.validity), _buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers, column.null_count)


def _hashes(kind: pa.DataType, rows: int, key: BinaryColumn | None) -> pa.Array:
    assert key is not None
    hashes = murmur2_column(key.data, key.offsets, rows)
    return pa.Array.from_buffers(
        kind, rows, [_buffer(key.validity), _buffer(hashes)], key.null_count
    )


def _headers(rows: int, column: HeadersColumn | None) -> pa.Array:
    assert column is not None
    parts: Sequence[pa.Array] = [
        _binary(pa.string(), column.header_count, column.key),
        _binary(pa.binary(), column.header_count, column.value),
    ]
    headers = pa.Array.from_buffers(_HEADER, column.header_count, [None], 0, children=parts)
    buffers = [_buffer(column.validity), _buffer(column.offsets)]
    return pa.Array.from_buffers(
        _ARROW_TYPES["headers"], rows, buffers, column.null_count, children=[headers]
    )


def _buffer(octets: bytearray | None) -> pa.Buffer | None:
    return None if octets is None else pa.py_buffer(octets)
