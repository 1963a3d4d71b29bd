"""The load of partitions, brokers and racks: KIP-794's table, optionally in time windows.

KIP-794 shows a partitioner's effect on a topic by one row per partition: TotalBatches, TotalBytes,
TotalRecords, BytesPerBatch, RecordsPerBatch. Bytes are those of the batches in the log: compressed,
and with the 61-byte header of each batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import Window
from pyspark.sql import functions as f

from trimtab.kafka.errors import UsageError
from trimtab.spark.load.inputs import in_order, ratio, require, window_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SUMS: Final = ("TotalBatches", "TotalBytes", "TotalRecords", "RawBytes", "NullKeyRecords")


def partition_load(
    rows: DataFrame,
    partitions: DataFrame | None = None,
    window: str | None = None,
    watermark: str = "10 minutes",
) -> DataFrame:
    """KIP-794's load table, from records or from batches; a batch or a stream.

    Args:
        rows: with the columns of `RECORDS`, or of `BATCHES`. A batch is counted with its first
            record, so once, even if its records are divided among tasks. The bytes of a batch whose
            first record was not read are not counted.
        partitions: with the columns of `PARTITIONS`. Records of other partitions are not counted.
            Without a window, a partition without records has a row of zeros: without that row, skew
            would look smaller. If None, `leader` and `rack` are null.
        window: the length of time windows by the records' timestamps, such as "1 minute"; the table
            then has a row for each window of a partition with records. A batch counts in the window
            of its first record. None: one row per partition. Required for a stream.
        watermark: how late a stream's records may arrive; see Spark's `withWatermark`.

    Returns:
        [window,] topic, partition, leader, rack, TotalBatches, TotalBytes (in the log),
        TotalRecords, RawBytes (keys and values, uncompressed; null from batches), NullKeyRecords
        (null from batches), FirstOffset, LastOffset (longs), BytesPerBatch, RecordsPerBatch
        (doubles, null without a batch), and without a window ShareOfBytes (of the topic's bytes, 0
        to 1, null if the topic has none), in the order of topic and partition.

    Raises:
        UsageError: columns are missing, or `window` is, for a stream.
    """
    if rows.isStreaming and window is None:
        raise UsageError('partition_load of a stream needs a window, such as window="1 minute"')
    measured = _measure(rows)
    if window is not None:
        if rows.isStreaming:
            measured = measured.withWatermark("timestamp", watermark)
        groups: list[Column | str] = [f.window("timestamp", window), "topic", "partition"]
    else:
        groups = ["topic", "partition"]
    totals = measured.groupBy(*groups).agg(*_totals())
    return _finish(_add_leaders(totals, partitions, window is not None))


def roll_up(load: DataFrame, window: str | None = None, watermark: str = "10 minutes") -> DataFrame:
    """Longer windows from shorter ones; a batch or a stream.

    Args:
        load: what `partition_load` returns with a window.
        window: the new length, such as "1 hour" or "1 day"; None combines all windows.

    Returns:
        As `partition_load`.
    """
    require(load, "load", "window", "topic", "partition", *_SUMS)
    groups: list[Column | str] = ["topic", "partition", "leader", "rack"]
    if window is not None:
        groups.insert(0, f.window("window", window))
    elif load.isStreaming:
        raise UsageError('roll_up of a stream needs a window, such as window="1 hour"')
    return _finish(load.groupBy(*groups).agg(*_totals()))


def share_by(load: DataFrame, where: Literal["leader", "rack"]) -> DataFrame:
    """Each topic's bytes by leading broker or by rack.

    Args:
        load: what `partition_load` returns without a window.
        where: the column to sum by.

    Returns:
        topic, leader or rack, TotalBytes, TotalRecords, ShareOfBytes (of the topic, 0 to 1).
    """
    sums = load.groupBy("topic", where).agg(
        f.sum("TotalBytes").alias("TotalBytes"), f.sum("TotalRecords").alias("TotalRecords")
    )
    return _add_shares(sums).orderBy("topic", where)


def _measure(rows: DataFrame) -> DataFrame:
    """The values that each record or batch adds to the sums."""
    if "batchIndex" in rows.columns:
        require(rows, "records", "topic", "partition", "offset", "batchBytes", "keyBytes")
        is_first = f.col("batchIndex") == 0
        columns = {
            "TotalBatches": is_first.cast("long"),
            "TotalBytes": f.when(is_first, f.col("batchBytes")).otherwise(0).cast("long"),
            "TotalRecords": f.lit(1).cast("long"),
            "RawBytes": f.expr("cast(coalesce(keyBytes, 0) + coalesce(valueBytes, 0) as bigint)"),
            "NullKeyRecords": f.isnull("keyBytes").cast("long"),
            "FirstOffset": f.col("offset"),
            "LastOffset": f.col("offset"),
        }
    else:
        require(rows, "batches", "topic", "partition", "baseOffset", "lastOffset", "isControl")
        columns = {
            "TotalBatches": (~f.col("isControl")).cast("long"),
            "TotalBytes": f.col("batchBytes").cast("long"),
            "TotalRecords": f.expr("if(isControl, 0, records)").cast("long"),
            "RawBytes": f.lit(None).cast("long"),
            "NullKeyRecords": f.lit(None).cast("long"),
            "FirstOffset": f.col("baseOffset"),
            "LastOffset": f.col("lastOffset"),
        }
    return rows.select(
        "topic", "partition", "timestamp", *(value.alias(name) for name, value in columns.items())
    )


def _totals() -> list[Column]:
    return [
        *(f.sum(name).alias(name) for name in _SUMS),
        f.min("FirstOffset").alias("FirstOffset"),
        f.max("LastOffset").alias("LastOffset"),
    ]


def _add_leaders(totals: DataFrame, partitions: DataFrame | None, is_windowed: bool) -> DataFrame:
    """`totals` with leader and rack; without a window, also the partitions without records."""
    if partitions is None:
        return totals.withColumns(
            {"leader": f.lit(None).cast("int"), "rack": f.lit(None).cast("string")}
        )
    where = partitions.select("topic", "partition", "leader", "rack")
    if is_windowed:
        return totals.join(where, ["topic", "partition"])
    return where.join(totals, ["topic", "partition"], "left").fillna(
        0, ["TotalBatches", "TotalBytes", "TotalRecords"]
    )


def _finish(totals: DataFrame) -> DataFrame:
    window = window_of(totals)
    columns: list[Column | str] = [
        *window,
        "topic",
        "partition",
        "leader",
        "rack",
        *_SUMS,
        "FirstOffset",
        "LastOffset",
        ratio("TotalBytes", "TotalBatches").alias("BytesPerBatch"),
        ratio("TotalRecords", "TotalBatches").alias("RecordsPerBatch"),
    ]
    if not window:
        totals = _add_shares(totals)
        columns.append("ShareOfBytes")
    return in_order(totals.select(*columns), *window, "topic", "partition")


def _add_shares(sums: DataFrame) -> DataFrame:
    """`sums` with each row's share of its topic's bytes."""
    whole = f.sum("TotalBytes").over(Window.partitionBy("topic"))
    return sums.withColumn("ShareOfBytes", ratio("TotalBytes", whole))
