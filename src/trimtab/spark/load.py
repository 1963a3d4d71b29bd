"""How load lies on partitions, brokers and racks: KIP-794's table, from the records themselves.

KIP-794 shows what a partitioner does to a topic by one row per partition: TotalBatches, TotalBytes,
TotalRecords, BytesPerBatch, RecordsPerBatch. These functions compute it from records read with
`format("trimtab").option("includeBatches", "true")`, of which only five columns are needed: ask for
no more, and no key or value leaves the reader:

    records = spark.read.schema(load.RECORDS).format("trimtab").options(...).load()
    table = load.partition_load(records, partitions)

Bytes are those of the batches as they lie in the log and went over the wire: compressed, with the
61-byte header of each. Every function is pure: DataFrames in, one out, nothing collected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORDS: Final = "topic string, partition int, offset long, batchBaseOffset long, batchBytes int"
"""Schema of the records: what to ask the reader for."""

PARTITIONS: Final = "topic string, partition int, leader int, rack string"
"""Schema of the partitions, one row each, also for those without a record.

`leader` is the id of the leading broker, `rack` where it stands (null if it does not say).
"""


def partition_load(records: DataFrame, partitions: DataFrame) -> DataFrame:
    """KIP-794's load table.

    Args:
        records: with the columns of `RECORDS`. A batch counts once however its records were read.
        partitions: with the columns of `PARTITIONS`. A partition without records has zeros in the
            table; left out, it would make skew look smaller. Records of others are not counted.

    Returns:
        topic, partition, leader, rack, TotalBatches, TotalBytes, TotalRecords (longs),
        BytesPerBatch, RecordsPerBatch (doubles, null without a batch), ShareOfBytes (of the topic's
        bytes, 0 to 1, null without any), in the order of topic and partition.
    """
    batches = records.groupBy("topic", "partition", "batchBaseOffset").agg(
        f.first("batchBytes").alias("bytes"), f.count("*").alias("records")
    )
    totals = batches.groupBy("topic", "partition").agg(
        f.count("*").alias("TotalBatches"),
        f.sum("bytes").alias("TotalBytes"),
        f.sum("records").alias("TotalRecords"),
    )
    filled = partitions.join(totals, ["topic", "partition"], "left").fillna(
        0, ["TotalBatches", "TotalBytes", "TotalRecords"]
    )
    shares = _shares(filled, filled)
    return shares.select(
        "topic",
        "partition",
        "leader",
        "rack",
        "TotalBatches",
        "TotalBytes",
        "TotalRecords",
        _ratio("TotalBytes", "TotalBatches").alias("BytesPerBatch"),
        _ratio("TotalRecords", "TotalBatches").alias("RecordsPerBatch"),
        "ShareOfBytes",
    ).orderBy("topic", "partition")


def topic_skew(load: DataFrame) -> DataFrame:
    """How unevenly each topic's bytes lie on its partitions.

    Args:
        load: what `partition_load` returns.

    Returns:
        topic, Partitions, TotalBytes, TotalRecords, MaxOverMean (fullest partition's bytes over the
        mean: 1 is level, the number of partitions is all in one), CoefficientOfVariation (standard
        deviation of the partitions' bytes over their mean: 0 is level). Both null without bytes.
    """
    skew = load.groupBy("topic").agg(
        f.count("*").alias("Partitions"),
        f.sum("TotalBytes").alias("TotalBytes"),
        f.sum("TotalRecords").alias("TotalRecords"),
        f.max("TotalBytes").alias("max"),
        f.mean("TotalBytes").alias("mean"),
        f.stddev_pop("TotalBytes").alias("deviation"),
    )
    return skew.select(
        "topic",
        "Partitions",
        "TotalBytes",
        "TotalRecords",
        _ratio("max", "mean").alias("MaxOverMean"),
        _ratio("deviation", "mean").alias("CoefficientOfVariation"),
    ).orderBy("topic")


def share_by(load: DataFrame, where: Literal["leader", "rack"]) -> DataFrame:
    """Each topic's bytes by leading broker or by rack.

    Args:
        load: what `partition_load` returns.
        where: the column to sum by.

    Returns:
        topic, leader or rack, TotalBytes, TotalRecords, ShareOfBytes (of the topic, 0 to 1).
    """
    sums = load.groupBy("topic", where).agg(
        f.sum("TotalBytes").alias("TotalBytes"), f.sum("TotalRecords").alias("TotalRecords")
    )
    return _shares(sums, load).orderBy("topic", where)


def _shares(part: DataFrame, whole: DataFrame) -> DataFrame:
    """`part` with its share of its topic's bytes in `whole`."""
    totals = whole.groupBy("topic").agg(f.sum("TotalBytes").alias("topicBytes"))
    share = _ratio("TotalBytes", "topicBytes").alias("ShareOfBytes")
    return part.join(totals, "topic").select(*part.columns, share)


def _ratio(numerator: str, denominator: str) -> Column:
    """Null, not an error, where the denominator is 0 (Spark 4 is strict about it)."""
    return f.try_divide(f.col(numerator).cast("double"), f.col(denominator))
