"""Append load tables to files, by a batch or a stream, in Parquet or any format of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from trimtab.kafka.errors import UsageError
from trimtab.spark.load.inputs import window_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def append(
    table: DataFrame,
    path: str,
    format: str = "parquet",
    options: Mapping[str, str] | None = None,
) -> None:
    """Append a table's rows at `path`, in a directory for each day.

    A table without rows creates no directory, because Spark cannot read one without files.

    Args:
        format: "parquet", or another format of the session, such as "delta" or "iceberg".
        options: options of the format.
    """
    kept = table.is_cached
    # Computed once, for `isEmpty` and for writing.
    table.persist()
    try:
        if table.isEmpty():
            return
        writer = _by_day(table).write.format(format).mode("append").options(**(options or {}))
        (writer.partitionBy("day") if _is_dated(table) else writer).save(path)
    finally:
        if not kept:
            table.unpersist()


def start(
    table: DataFrame,
    path: str,
    checkpoint: str,
    format: str = "parquet",
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a stream that appends a table's windows at `path` when they are complete.

    Args:
        checkpoint: a directory; started again with the same one, the stream continues.
        format: as in `append`.
        trigger: the arguments of Spark's `trigger`, such as `{"processingTime": "1 minute"}` or
            `{"availableNow": True}`.

    Raises:
        UsageError: the table is not a stream, or has no windows.
    """
    if not table.isStreaming or not window_of(table):
        raise UsageError("start needs a stream with windows: use append for other tables")
    writer = (
        _by_day(table)
        .writeStream.format(format)
        .outputMode("append")
        .partitionBy("day")
        .option("checkpointLocation", checkpoint)
        .options(**(options or {}))
    )
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start(path)


def _is_dated(table: DataFrame) -> bool:
    return bool(window_of(table)) or "takenAt" in table.columns


def _by_day(table: DataFrame) -> DataFrame:
    if not _is_dated(table):
        return table
    moment = "window.start" if window_of(table) else "takenAt"
    return table.withColumn("day", f.to_date(moment))
