"""The fill level of brokers: replicas and KIP-578's limits, disks, and days until they are full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from trimtab.spark.load.inputs import ratio, require

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DAY_SECONDS = 86_400.0
_LEAST_SECONDS = 3600.0
"""Growth over a shorter time is not extrapolated to days."""
_SAME_VOLUME = 0.001
"""Directories whose usable bytes differ by less than this part of the volume's size share a volume:
brokers measure one directory after the other."""


def broker_capacity(
    brokers: DataFrame, replicas: DataFrame, directories: DataFrame, partitions: DataFrame
) -> DataFrame:
    """Each broker at the last snapshot, and how fast its logs grow; batch only.

    Args:
        brokers, replicas, directories, partitions: with the columns of `snapshots.BROKERS`,
            `REPLICAS`, `DIRECTORIES` and `PARTITIONS`, of one or more snapshots. Growth needs at
            least two: it is measured from the first to the last.

    Returns:
        broker, rack, takenAt (of the last snapshot), Replicas, Leaders, MaxReplicas
        (`max.broker.partitions`; null without a limit), UsedShare (Replicas / MaxReplicas),
        LogBytes (of all its replicas), DiskTotalBytes, DiskUsableBytes (sums over the volumes of
        its log directories; null if the broker does not report them), BytesPerDay (growth of the
        logs; null unless snapshots are an hour apart), DaysToFull (null if the logs do not grow),
        in the order of brokers; only brokers of the last snapshot.

        A broker reports the size of each directory's volume, but not which volume it is. So
        directories whose volumes have the same size, and the same usable bytes within a thousandth
        of it, count as one volume.
    """
    require(brokers, "brokers", "takenAt", "broker", "rack", "maxBrokerPartitions")
    require(replicas, "replicas", "takenAt", "broker", "bytes")
    require(directories, "directories", "takenAt", "broker", "totalBytes", "usableBytes")
    require(partitions, "partitions", "takenAt", "leader", "replicas")
    last = brokers.agg(f.max("takenAt").alias("takenAt"))
    leaders = _latest(partitions, last).groupBy(f.col("leader").alias("broker"))
    held = _latest(partitions, last).select(f.explode("replicas").alias("broker")).groupBy("broker")
    disks = (
        _volumes(_latest(directories, last))
        .groupBy("broker")
        .agg(
            f.sum(_known("totalBytes")).alias("DiskTotalBytes"),
            f.sum(_known("usableBytes")).alias("DiskUsableBytes"),
        )
    )
    # A broker of a snapshot that had no replica then stored 0 bytes.
    stored = (
        brokers.select("takenAt", "broker")
        .join(
            replicas.groupBy("takenAt", "broker").agg(f.sum("bytes").alias("bytes")),
            ["takenAt", "broker"],
            "left",
        )
        .fillna(0, ["bytes"])
        .groupBy("broker")
        .agg(
            f.max_by("bytes", "takenAt").alias("LogBytes"),
            f.min_by("bytes", "takenAt").alias("firstBytes"),
            (f.max("takenAt").cast("double") - f.min("takenAt").cast("double")).alias("seconds"),
        )
    )
    growth = f.when(
        f.col("seconds") >= _LEAST_SECONDS,
        ratio((f.col("LogBytes") - f.col("firstBytes")) * f.lit(_DAY_SECONDS), "seconds"),
    )
    return (
        _latest(brokers, last)
        .join(held.agg(f.count("*").alias("Replicas")), "broker", "left")
        .join(leaders.agg(f.count("*").alias("Leaders")), "broker", "left")
        .join(disks, "broker", "left")
        .join(stored, "broker")
        .fillna(0, ["Replicas", "Leaders"])
        .withColumn("BytesPerDay", growth)
        .select(
            "broker",
            "rack",
            "takenAt",
            "Replicas",
            "Leaders",
            f.col("maxBrokerPartitions").alias("MaxReplicas"),
            ratio("Replicas", "maxBrokerPartitions").alias("UsedShare"),
            "LogBytes",
            "DiskTotalBytes",
            "DiskUsableBytes",
            "BytesPerDay",
            f.when(f.col("BytesPerDay") > 0, f.col("DiskUsableBytes") / f.col("BytesPerDay")).alias(
                "DaysToFull"
            ),
        )
        .orderBy("broker")
    )


def _latest(frame: DataFrame, last: DataFrame) -> DataFrame:
    return frame.join(f.broadcast(last), "takenAt")


def _volumes(directories: DataFrame) -> DataFrame:
    """One directory of each volume."""
    alike = Window.partitionBy("broker", "totalBytes").orderBy("usableBytes")
    before = f.lag("usableBytes").over(alike)
    is_new = f.isnull(before) | (f.col("usableBytes") - before > f.col("totalBytes") * _SAME_VOLUME)
    return directories.withColumn("isNew", is_new).filter("isNew")


def _known(column: str) -> Column:
    """Null for -1, which brokers report if they cannot measure a volume (KIP-827)."""
    return f.when(f.col(column) >= 0, f.col(column))
