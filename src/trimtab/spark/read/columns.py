"""Record batches into Arrow, in the schema of Spark's own Kafka source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from trimtab.client.fetcher.arrow import HEADER, BatchMaker, join_small, make_scanner
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.columns import Columns
from trimtab.spark.read.column_names import HEADER_COLUMNS, KNOWN_COLUMNS
from trimtab.spark.read.ranges import OffsetRange

FULL_BYTES: Final = 4 * 1024 * 1024
"""An Arrow batch is closed at about this many bytes."""

_ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    HEADER_COLUMNS["headers"]: pa.list_(pa.field("element", HEADER)),
}
"""The types of columns by their names in Spark SQL."""


def arrow_schema(columns: Iterable[tuple[str, bool]]) -> pa.Schema:
    """The exact schema that Spark requires for columns given by name and nullability."""
    return pa.schema(
        [pa.field(name, _ARROW_TYPES[KNOWN_COLUMNS[name]], nullable) for name, nullable in columns]
    )


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
    yield from join_small(_scan_by_partition(buffers, schema))


def _scan_by_partition(
    buffers: Iterable[tuple[OffsetRange, memoryview]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    # `BatchMaker` has the same names in snake case.
    names = [re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in schema.names]
    scanner = make_scanner(names, FULL_BYTES, microseconds=True)
    maker = BatchMaker(schema, names)

    def take(scanned: OffsetRange) -> pa.RecordBatch:
        columns = scanner.take()
        _check_times(columns, scanned)
        return maker.make(columns, TopicPartition(scanned.topic, scanned.partition))

    scanned: OffsetRange | None = None
    for wanted, buffer in buffers:
        if scanner.rows and scanned is not None and scanned[:2] != wanted[:2]:
            yield take(scanned)
        scanned = wanted
        scanner.scan(buffer, wanted.start, wanted.end)
        while scanner.full:
            offset = scanner.next_offset
            yield take(wanted)
            scanner.scan(buffer, offset, wanted.end)
    if scanner.rows and scanned is not None:
        yield take(scanned)


def _check_times(columns: Columns, wanted: OffsetRange) -> None:
    """Raises CorruptData for a timestamp that Spark cannot hold."""
    if columns.far_timestamp is not None:
        offset, timestamp = columns.far_timestamp
        raise CorruptData(
            f"{wanted.topic}-{wanted.partition}: the record at offset {offset} has timestamp "
            f"{timestamp}, which is out of range for Spark's microseconds. Kafka's timestamps are "
            "milliseconds since 1970: did its producer write micro- or nanoseconds? To read the "
            "record, use a schema without the column timestamp"
        )
