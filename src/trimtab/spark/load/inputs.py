"""What the load tables are computed from: the schemas of the frames that go in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from trimtab.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
