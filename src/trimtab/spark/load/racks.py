"""Traffic between racks, its cost, and the savings that KIP-392 and KIP-1123 allow.

A log shows how many bytes a partition received, but not who sent and read them: the caller
describes the clients (`CLIENTS`). Replication follows from the log: every follower gets each byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from trimtab.spark.load.inputs import ratio, require, window_of
from trimtab.spark.options.load import COST_PER_GB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CLIENTS: Final = "topic string, kind string, rack string, share double, isNear boolean"
"""The producers and consumers of topics.

`kind` is "produce" or "consume". For a producer, `share` is its weight among the topic's producers;
the sum is arbitrary. For a consumer, it is the part of the topic that it reads: 1 for all of it,
0.25 for one of four members of a group. `isNear` is true for a rack-aware producer
(`partitioner.rack.aware`, KIP-1123), and for a consumer that reads from a replica in its rack
(`client.rack` and a `replica.selector.class`, KIP-392).
"""

GB: Final = 1_000_000_000
"""Bytes that providers bill as one GB."""


def rack_traffic(
    load: DataFrame,
    partitions: DataFrame,
    clients: DataFrame,
    cost_per_gb: float = COST_PER_GB,
) -> DataFrame:
    """Bytes between racks by topic; batch only.

    The bytes of a partition are divided among the topic's producers by their weights. A rack-aware
    producer writes only to partitions with leaders in its rack, if there are any; every other
    producer writes evenly to all partitions.

    Args:
        load: what `partition_load` returns.
        partitions: with the columns of `snapshots.PARTITIONS`, of one snapshot.
        clients: with the columns of `CLIENTS`. If it has no producer of a topic, the topic's bytes
            come from an unknown rack (null).
        cost_per_gb: price of a GB (10^9 bytes) between racks, in any currency.

    Returns:
        [window,] topic, kind ("produce", "replicate", "consume"), fromRack, toRack (null: unknown),
        Bytes (a double, because of shares), IsCrossRack (null if a rack is unknown), GB, Cost (0
        within a rack, or if a rack is unknown), SavedBy ("KIP-1123" for producers, "KIP-392" for
        consumers, null if neither applies), SavableBytes and SavableCost (the part of Bytes and
        Cost that could stay in the rack; for producers, only records without a key, which may go to
        another partition).
    """
    window = window_of(load)
    require(load, "load", "topic", "partition", "TotalBytes", "TotalRecords", "NullKeyRecords")
    require(partitions, "partitions", "topic", "partition", "rack", "leader", "replicas")
    require(clients, "clients", "topic", "kind", "rack", "share", "isNear")
    where = partitions.select("topic", "partition", "leader", "rack", "replicas", "replicaRacks")
    stored = load.select(
        *window,
        "topic",
        "partition",
        f.col("TotalBytes").cast("double").alias("bytes"),
        f.coalesce(ratio("NullKeyRecords", "TotalRecords"), f.lit(0.0)).alias("free"),
    ).join(where, ["topic", "partition"])
    moved = (
        _produced(stored, where, clients, window)
        .unionByName(_replicated(stored, window))
        .unionByName(_consumed(stored, clients, window))
    )
    crosses = f.col("fromRack") != f.col("toRack")
    cost = f.when(crosses, f.col("Bytes") / GB * cost_per_gb).otherwise(0.0)
    return (
        moved.filter("bytes > 0")
        .groupBy(*window, "topic", "kind", "fromRack", "toRack")
        .agg(
            f.sum("bytes").alias("Bytes"),
            f.sum(f.when(crosses, f.col("bytes") * f.col("free")).otherwise(0.0)).alias(
                "SavableBytes"
            ),
        )
        .select(
            *window,
            "topic",
            "kind",
            "fromRack",
            "toRack",
            "Bytes",
            crosses.alias("IsCrossRack"),
            (f.col("Bytes") / GB).alias("GB"),
            cost.alias("Cost"),
            f.when(
                f.col("SavableBytes") > 0,
                f.when(f.col("kind") == "produce", "KIP-1123").otherwise("KIP-392"),
            ).alias("SavedBy"),
            "SavableBytes",
            (f.col("SavableBytes") / GB * cost_per_gb).alias("SavableCost"),
        )
        .orderBy(*window, "topic", "kind", "fromRack", "toRack")
    )


def _produced(
    stored: DataFrame, where: DataFrame, clients: DataFrame, window: list[str]
) -> DataFrame:
    """From the producers' racks to the leaders'; `free` is the part that may go elsewhere."""
    in_rack = where.filter("leader >= 0").groupBy("topic", f.col("rack").alias("home")).count()
    producers = (
        clients.filter("kind = 'produce' and share > 0")
        .withColumnRenamed("rack", "home")
        .join(in_rack, ["topic", "home"], "left")
        .withColumnRenamed("count", "nearPartitions")
        .drop("kind")
    )
    # The part of its share of the topic that a producer sends to this partition: a relative weight,
    # which is divided by the sum over all producers below.
    keeps_near = f.col("isNear") & f.isnotnull("nearPartitions")
    counts = where.groupBy("topic").agg(f.count("*").alias("allPartitions"))
    weight = (
        f.when(~keeps_near, f.col("share") / f.col("allPartitions"))
        .when(f.col("home") == f.col("rack"), f.col("share") / f.col("nearPartitions"))
        .otherwise(0.0)
    )
    of_partition = Window.partitionBy(*window, "topic", "partition")
    each = (
        stored.join(counts, "topic")
        .join(producers, "topic", "left")
        .withColumn("weight", f.coalesce(weight, f.lit(0.0)))
        .withColumn("weights", f.sum("weight").over(of_partition))
        .withColumn("nth", f.row_number().over(of_partition.orderBy("home")))
    )
    is_known = f.col("weights") > 0
    # No known producer writes to the partition: its bytes come from an unknown rack, counted once.
    unknown = f.when(f.col("nth") == 1, f.col("bytes")).otherwise(0.0)
    part = f.col("bytes") * f.col("weight") / f.col("weights")
    free = f.col("free") * f.isnotnull("nearPartitions").cast("double")
    return each.select(
        *window,
        "topic",
        f.lit("produce").alias("kind"),
        f.when(is_known, f.col("home")).alias("fromRack"),
        f.col("rack").alias("toRack"),
        f.when(is_known, part).otherwise(unknown).alias("bytes"),
        f.when(is_known, free).otherwise(0.0).alias("free"),
    )


def _replicated(stored: DataFrame, window: list[str]) -> DataFrame:
    """From the leaders' racks to the followers'."""
    copies = stored.select(
        "*", f.explode(f.arrays_zip("replicas", "replicaRacks")).alias("replica")
    )
    return copies.filter("leader >= 0 and replica.replicas != leader").select(
        *window,
        "topic",
        f.lit("replicate").alias("kind"),
        f.col("rack").alias("fromRack"),
        f.col("replica.replicaRacks").alias("toRack"),
        "bytes",
        f.lit(0.0).alias("free"),
    )


def _consumed(stored: DataFrame, clients: DataFrame, window: list[str]) -> DataFrame:
    """From the leaders' racks, or the nearest replicas', to the consumers'."""
    consumers = (
        clients.filter("kind = 'consume' and share > 0")
        .withColumnRenamed("rack", "home")
        .drop("kind")
    )
    has_near = f.array_contains("replicaRacks", f.col("home"))
    source = f.when(f.col("isNear") & has_near, f.col("home")).otherwise(f.col("rack"))
    return stored.join(consumers, "topic").select(
        *window,
        "topic",
        f.lit("consume").alias("kind"),
        source.alias("fromRack"),
        f.col("home").alias("toRack"),
        (f.col("bytes") * f.col("share")).alias("bytes"),
        f.coalesce(has_near.cast("double"), f.lit(0.0)).alias("free"),
    )
