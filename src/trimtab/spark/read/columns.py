"""Record batches into Arrow, in the schema of Spark's own Kafka source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from trimtab.client.fetcher import arrow
from trimtab.client.fetcher.arrow import HEADER
from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.spark.read.column_names import HEADER_COLUMNS, KNOWN_COLUMNS

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
    """The records of ranges as `trimtab.client.fetcher.arrow.scan_columns` returns them, in a
    schema from `arrow_schema`."""
    # `BatchMaker` has the same names in snake case.
    names = [re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in schema.names]
    return arrow.scan_columns(buffers, schema, names, microseconds=True)
