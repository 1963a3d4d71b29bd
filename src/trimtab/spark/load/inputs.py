"""The inputs of the load tables: schemas of frames, and functions on frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from trimtab.kafka.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

RECORDS: Final = (
    "topic string, partition int, offset long, timestamp timestamp, "
    "batchIndex int, batchBytes int, keyBytes int, valueBytes int"
)
"""Records without keys and values: the schema to read `format("trimtab")` with."""

KEYS: Final = RECORDS + ", key binary"
"""Records with their keys, for `key_sketches`. To keep keys inside the reader, read `keyHash int`
instead of the key: a hot key is then identified by its hash."""

KEY_HASHES: Final = RECORDS + ", keyHash int"
"""Records with the hashes of their keys, for `what_if`: no key leaves the reader."""

BATCHES: Final = (
    "topic string, partition int, baseOffset long, lastOffset long, timestamp timestamp, "
    "batchBytes int, records int, isControl boolean"
)
"""Record batches, as from `trimtab.spark.load.log_segments`; additional columns are ignored.

`timestamp` is the first record's, `batchBytes` the size in the log. `isControl` marks transaction
markers, which take bytes and offsets but are not records.
"""

PARTITIONS: Final = "topic string, partition int, leader int, rack string"
"""Partitions, one row each, including empty ones; `snapshots.PARTITIONS` has these columns.

`leader` is the leader's broker id (-1: none) and `rack` its rack (null: unknown).
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
    """An Arrow table as a DataFrame that contains its rows; starts no Spark job.

    A small table is one partition, so that grouping, sorting and joining it needs no shuffle.

    Args:
        schema: needed for tables without rows, for which Spark Connect cannot infer one.
    """
    frame = session.createDataFrame(table, schema)
    return frame.coalesce(1) if table.nbytes <= _ONE_PARTITION_BYTES else frame


def require(frame: DataFrame, name: str, *columns: str) -> None:
    """Check that a frame has the required columns.

    Args:
        name: the caller's name for the frame.

    Raises:
        UsageError: names the missing columns.
    """
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise UsageError(
            f"{name} has no column {', '.join(missing)}; it has {', '.join(frame.columns)}"
        )


def window_of(frame: DataFrame) -> list[str]:
    """`["window"]` if a table has time windows, otherwise an empty list."""
    return ["window"] if "window" in frame.columns else []


def ratio(numerator: Column | str, denominator: Column | str) -> Column:
    """The quotient; null if the denominator is 0, for which Spark 4 would raise an error."""
    return f.try_divide(_column(numerator).cast("double"), _column(denominator))


def in_order(frame: DataFrame, *columns: str) -> DataFrame:
    """Sorted, unless it is a stream, which has no order."""
    return frame if frame.isStreaming else frame.orderBy(*columns)


def _column(value: Column | str) -> Column:
    return f.col(value) if isinstance(value, str) else value
