"""Record batches into Arrow's, without an object per record: for consumers, scans and Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import pyarrow as pa

from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.client.partitioner.murmur2_cy import murmur2_column
from trimtab.kafka.arguments import shown
from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.columns import BinaryColumn, Columns, HeadersColumn, SizeColumn
from trimtab.kafka.wire.columns_cy import ColumnScanner
from trimtab.kafka.wire.records_cy import RECORDS_LIMIT

HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
FULL_BYTES: Final = 4 * 1024 * 1024
"""A batch of a range is closed at about this many bytes."""
_EAGER: Final = 8
"""Buffers that become a batch each if the caller is in a hurry."""
SMALL_BYTES: Final = 64 * 1024
"""Smaller batches are copied into one: what reads them spends more on a batch than on the copy."""

_TABLE_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "timestamp_type": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
}
"""The columns of a consumer's table: the fields of `Record`."""


def make_scanner(wanted: Collection[str], full_bytes: int, microseconds: bool) -> ColumnScanner:
    """A scanner of these columns, by the names that `BatchMaker` has. CRCs are not checked."""
    return ColumnScanner(
        key="key" in wanted or "key_hash" in wanted,
        value="value" in wanted,
        headers="headers" in wanted,
        offset="offset" in wanted,
        timestamp="timestamp" in wanted,
        timestamp_type="timestamp_type" in wanted,
        microseconds=microseconds,
        batch_columns=not {"batch_base_offset", "batch_bytes", "batch_index"}.isdisjoint(wanted),
        sizes=not {"key_bytes", "value_bytes"}.isdisjoint(wanted),
        full_bytes=full_bytes,
        check_crcs=False,
    )


class BatchMaker:
    """Makes Arrow batches of one schema from what a scanner has taken.

    Args:
        names: for each column of the schema, where its values come from: a field of `Columns`, or
            `topic`, `partition` or `key_hash`.
    """

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        self._schema = schema
        self._columns = list(zip(names, schema.types, strict=True))
        self._topic = ""
        self._repeated = pa.array([], pa.string())

    def make(self, columns: Columns, partition: TopicPartition) -> pa.RecordBatch:
        """One partition's records: arrays over the scanner's buffers, without a copy."""
        arrays = [self._array(name, kind, columns, partition) for name, kind in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(
        self, name: str, kind: pa.DataType, columns: Columns, partition: TopicPartition
    ) -> pa.Array:
        rows = columns.rows
        match name:
            case "topic":
                return self._repeat_topic(partition.topic, kind, rows)
            case "partition":
                return pa.repeat(pa.scalar(partition.partition, kind), rows)
            case "key" | "value":
                return _binary(kind, rows, getattr(columns, name))
            case "headers":
                return _headers(kind, rows, columns.headers)
            case "key_bytes" | "value_bytes":
                return _sizes(kind, rows, getattr(columns, name))
            case "key_hash":
                return _hashes(kind, rows, columns.key)
        return pa.Array.from_buffers(kind, rows, [None, _buffer(getattr(columns, name))], 0)

    def _repeat_topic(self, topic: str, kind: pa.DataType, rows: int) -> pa.Array:
        """A slice of the longest such column so far."""
        if self._topic != topic or len(self._repeated) < rows:
            self._topic, self._repeated = topic, pa.repeat(pa.scalar(topic, kind), rows)
        return self._repeated.slice(0, rows)


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order; of small batches that follow each other, one is made."""
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        is_small = batch.nbytes < SMALL_BYTES
        if is_small:
            small.append(batch)
            size += batch.nbytes
        if small and (not is_small or size >= SMALL_BYTES or not batch.num_rows):
            yield _join(small)
            small, size = [], 0
        if not is_small:
            yield batch
    if small:
        yield _join(small)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def scan_columns(
    buffers: Iterable[tuple[OffsetRange, memoryview]],
    schema: pa.Schema,
    names: Sequence[str],
    *,
    microseconds: bool = False,
    is_eager: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of ranges, a few megabytes at a time, decoded straight into Arrow's buffers.

    Args:
        buffers: whole record batches, in order for each partition, each with the offsets to keep.
            The batches may begin before these offsets and end after them; missing offsets
            (compaction, transaction markers) are skipped. CRCs are not checked. After an empty
            buffer comes a batch of what was there before, even of no rows.
        names: as for `BatchMaker`; other columns are not decoded.
        microseconds: whether timestamps are microseconds, not milliseconds.
        is_eager: whether the first buffers become a batch each, for callers that may need only a
            few rows.

    Returns:
        Batches. A large one is of one partition, small ones are joined.

    Raises:
        CorruptData: a batch that cannot be decoded, or a timestamp that has no microseconds.
    """
    eager = _EAGER if is_eager else 0
    batches = _scan_by_partition(buffers, schema, names, microseconds, eager)
    yield from islice(batches, eager)
    yield from join_small(batches)


def _scan_by_partition(
    buffers: Iterable[tuple[OffsetRange, memoryview]],
    schema: pa.Schema,
    names: Sequence[str],
    microseconds: bool,
    eager: int,
) -> Iterator[pa.RecordBatch]:
    scanner = make_scanner(names, FULL_BYTES, microseconds)
    maker = BatchMaker(schema, names)

    def take(scanned: OffsetRange) -> pa.RecordBatch:
        columns = scanner.take()
        _check_times(columns, scanned)
        return maker.make(columns, TopicPartition(scanned.topic, scanned.partition))

    scanned: OffsetRange | None = None
    for wanted, buffer in buffers:
        if not buffer or (scanner.rows and scanned is not None and scanned[:2] != wanted[:2]):
            yield take(scanned or wanted)
        scanned = wanted
        scanner.scan(buffer, wanted.start, wanted.end)
        while scanner.full:
            offset = scanner.next_offset
            yield take(wanted)
            scanner.scan(buffer, offset, wanted.end)
        if scanner.rows and eager:
            eager -= 1
            yield take(wanted)
    if scanner.rows and scanned is not None:
        yield take(scanned)


def _check_times(columns: Columns, wanted: OffsetRange) -> None:
    """Raises CorruptData for a timestamp that has no microseconds."""
    if columns.far_timestamp is not None:
        offset, timestamp = columns.far_timestamp
        raise CorruptData(
            f"{wanted.topic}-{wanted.partition}: the record at offset {offset} has timestamp "
            f"{timestamp}, which is out of range for microseconds. Kafka's timestamps are "
            "milliseconds since 1970: did its producer write micro- or nanoseconds? To read the "
            "record, use a schema without the column timestamp"
        )


class Projection:
    """What `Consumer.arrow` reads: some of a record's fields, as columns of a table."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._schema = table_schema(columns)
        self._maker = BatchMaker(self._schema, columns)
        self._scanner = make_scanner(columns, RECORDS_LIMIT, microseconds=False)

    def scan(
        self, partition: TopicPartition, data: memoryview, start: int, end: int, max_bytes: int
    ) -> tuple[pa.RecordBatch | None, int, int]:
        """The records of [start, end), until there are `max_bytes`.

        Returns:
            The rows, or None; the offset to go on at; and about how many bytes the rows are.

        Raises:
            CorruptData: the first batch is malformed. Another one only ends the rows.
        """
        scanner = self._scanner
        scanner.fill_to(max(1, min(max_bytes, RECORDS_LIMIT)))
        try:
            scanner.scan(data, start, end)
        except CorruptData:
            end = scanner.next_offset
            if end <= start:
                raise
            scanner.scan(data, start, end)
        next_offset = scanner.next_offset if scanner.full else end
        size = scanner.data_bytes
        rows = self._maker.make(scanner.take(), partition) if scanner.rows else None
        return rows, next_offset, size

    def table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """The batches as one table."""
        return pa.Table.from_batches(join_small(batches), self._schema)


def table_schema(columns: Iterable[str]) -> pa.Schema:
    """The schema of these columns of `checked_columns`."""
    return pa.schema([(name, _TABLE_TYPES[name]) for name in columns])


def checked_columns(columns: object) -> tuple[str, ...]:
    """The names of a table's columns; all of them for None."""
    if columns is None:
        return tuple(_TABLE_TYPES)
    if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
        raise UsageError(f"columns={shown(columns)}: give a list of names, as in ['value']")
    names = tuple(columns)
    for name in names:
        if not isinstance(name, str) or name not in _TABLE_TYPES:
            raise UsageError(
                f"columns={shown(names)}: there is no column {shown(name)}; there are"
                f" {', '.join(_TABLE_TYPES)}"
            )
    if not names or len(set(names)) < len(names):
        raise UsageError(f"columns={shown(names)}: name at least one column, and each once")
    return names


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


def _headers(kind: pa.DataType, rows: int, column: HeadersColumn | None) -> pa.Array:
    assert column is not None
    parts: Sequence[pa.Array] = [
        _binary(pa.string(), column.header_count, column.key),
        _binary(pa.binary(), column.header_count, column.value),
    ]
    headers = pa.Array.from_buffers(HEADER, column.header_count, [None], 0, children=parts)
    buffers = [_buffer(column.validity), _buffer(column.offsets)]
    return pa.Array.from_buffers(kind, rows, buffers, column.null_count, children=[headers])


def _buffer(octets: bytearray | None) -> pa.Buffer | None:
    return None if octets is None else pa.py_buffer(octets)
