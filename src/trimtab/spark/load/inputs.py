"""What the load tables are computed from: the schemas of the frames that go in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from trimtab.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

RECORDS: Final = (
    "topic string, partition int, offset long, timestamp timestamp, "
    "batchIndex int, batchBytes int, keyBytes int, valueBytes int"
)
"""Records without what is in them: the schema to read `format("trimtab")` with.

No key and no value leaves the reader.
"""

KEYS: Final = RECORDS + ", key binary"
"""Records with their keys, for `key_sketches`. With `keyHash int` in place of the key no key leaves
the reader, and a hot key is known by its hash alone."""

KEY_HASHES: Final = RECORDS + ", keyHash int"
"""Records with the hashes of their keys, for `what_if`: no key leaves the reader."""

BATCHES: Final = (
    "topic string, partition int, baseOffset long, lastOffset long, timestamp timestamp, "
    "batchBytes int, records int, isControl boolean"
)
"""Record batches, as `trimtab.spark.load.log_segments` finds them; further columns do no harm.

`timestamp` is that of the first record, `batchBytes` the size in the log. `isControl` marks
transaction markers: they take bytes and offsets, and are no records.
"""

PARTITIONS: Final = "topic string, partition int, leader int, rack string"
"""Partitions, one row each, also those without a record; `snapshots.PARTITIONS` has these columns.

`leader` is the leading broker's id (-1: none) and `rack` its rack (null: not known).
"""


_ONE_PARTITION_BYTES: Final = 16 * 1024 * 1024
"""Larger tables keep several partitions: a task carries its rows, and Spark limits its size."""


def to_arrow(rows: Sequence[Sequence[Any]], schema: str) -> pa.Table:
    """Rows as an Arrow table, without Spark.

    Args:
        schema: one of those of the load tables, such as `PARTITIONS`.
    """
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "int": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<int>": pa.list_(pa.int32()),
        "array<string>": pa.list_(pa.string()),
    }
    fields = [column.split() for column in schema.split(", ")]
    kept = pa.schema([(name, kinds[kind]) for name, kind in fields])
    columns = zip(*rows, strict=True) if rows else [()] * len(fields)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, kept, strict=True)],
        schema=kept,
    )


def to_frame(session: SparkSession, table: pa.Table, schema: str | StructType) -> DataFrame:
    """An Arrow table as a DataFrame that holds its rows; no Spark job.

    A small table is one partition, so that grouping, sorting and joining it needs no shuffle.

    Args:
        schema: needed for a table without rows, of which Spark Connect infers none.
    """
    frame = session.createDataFrame(table, schema)
    return frame.coalesce(1) if table.nbytes <= _ONE_PARTITION_BYTES else frame


def require(frame: DataFrame, name: str, *columns: str) -> None:
    """Check that a frame has what a table needs.

    Args:
        name: what the caller knows the frame as.

    Raises:
        UsageError: names the missing columns.
    """
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise UsageError(
            f"{name} has no column {', '.join(missing)}; it has {', '.join(frame.columns)}"
        )


def window_of(frame: DataFrame) -> list[str]:
    """`["window"]` if the rows of a table are of time windows, else nothing."""
    return ["window"] if "window" in frame.columns else []


def ratio(numerator: Column | str, denominator: Column | str) -> Column:
    """Null, not an error, where the denominator is 0 (Spark 4 is strict about it)."""
    return f.try_divide(_column(numerator).cast("double"), _column(denominator))


def in_order(frame: DataFrame, *columns: str) -> DataFrame:
    """Sorted, unless it is a stream, which has no order."""
    return frame if frame.isStreaming else frame.orderBy(*columns)


def _column(value: Column | str) -> Column:
    return f.col(value) if isinstance(value, str) else value
