"""The effect of another number of partitions on a topic, computed from the hashes of its keys.

Apache Kafka's producer and trimtab's send a record with a key to partition
`(murmur2(key) & 0x7fffffff) % partitions`. A partitioner spreads records without a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from trimtab.kafka.errors import UsageError
from trimtab.spark.load.inputs import ratio, require
from trimtab.spark.load.skew import spread_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def what_if_partitions(records: DataFrame, counts: Iterable[int]) -> DataFrame:
    """The load that each partition would have; batch only.

    Args:
        records: with the columns of `KEY_HASHES`.
        counts: numbers of partitions to try, each at least 1.

    Returns:
        topic, NewPartitions, partition (null: the records without a key), TotalRecords, RawBytes
        (keys and values, uncompressed), Keys, MovedKeys, MovedRecords (those that are in
        another partition today). Keys are distinguished by their hashes: of a million keys, about a
        hundred share a hash with another key, and go to the same partition as that key.

    Raises:
        UsageError: columns are missing, or a count is invalid.
    """
    tried = _check_counts(counts)
    placed = (
        _by_key(records)
        .select("*", f.explode(f.array(*map(f.lit, tried))).alias("NewPartitions"))
        .withColumn("new", f.expr("(keyHash & 2147483647) % NewPartitions"))
    )
    has_moved = f.col("new") != f.col("partition")
    # A key counts once, also if its records lie in several partitions today.
    keys = placed.groupBy("topic", "NewPartitions", "new", "keyHash").agg(
        f.sum("records").alias("records"),
        f.sum("bytes").alias("bytes"),
        f.max(has_moved.cast("int")).alias("moved"),
        f.sum(f.when(has_moved, f.col("records")).otherwise(0)).alias("movedRecords"),
    )
    return (
        keys.groupBy("topic", "NewPartitions", f.col("new").alias("partition"))
        .agg(
            f.sum("records").alias("TotalRecords"),
            f.sum("bytes").alias("RawBytes"),
            f.count("keyHash").alias("Keys"),
            f.sum(f.coalesce("moved", f.lit(0))).alias("MovedKeys"),
            f.sum("movedRecords").alias("MovedRecords"),
        )
        .orderBy("topic", "NewPartitions", "partition")
    )


def what_if(
    records: DataFrame,
    counts: Iterable[int],
    partitions: DataFrame | None = None,
    brokers: DataFrame | None = None,
) -> DataFrame:
    """The effect of other numbers of partitions on each topic; batch only.

    Args:
        records: with the columns of `KEY_HASHES`.
        counts: numbers of partitions to try, each at least 1.
        partitions: all partitions of the cluster, with the columns of `snapshots.PARTITIONS`, of
            one snapshot; the current state.
        brokers: with the columns of `snapshots.BROKERS`, of one snapshot, with the limits of
            KIP-578. Needs `partitions`.

    Returns:
        topic, NewPartitions, Keys, MovedKeys, MovedRecords, KeyedRecords, NullKeyRecords,
        MaxOverMean, CoefficientOfVariation and Gini of the keys' bytes (as in `topic_skew`; null
        without keys), HottestKeyShare (the share of one key in the keys' bytes, 0 to 1, which no
        number of partitions reduces), NewReplicas (replicas to create; null without `partitions`,
        negative if there are more partitions today: Kafka cannot remove any), FreeReplicas (that
        the limits still allow, null without a limit), Fits (NewReplicas is from 0 to FreeReplicas).

    Raises:
        UsageError: columns are missing, or a count is invalid.
    """
    if brokers is not None and partitions is None:
        raise UsageError("what_if(brokers=...) needs partitions, to count the replicas")
    placed = what_if_partitions(records, counts)
    is_keyed = f.isnotnull("partition")
    sums = placed.groupBy("topic", "NewPartitions").agg(
        *(f.sum(name).alias(name) for name in ("Keys", "MovedKeys", "MovedRecords")),
        f.sum(f.when(is_keyed, f.col("TotalRecords")).otherwise(0)).alias("KeyedRecords"),
        f.sum(f.when(is_keyed, 0).otherwise(f.col("TotalRecords"))).alias("NullKeyRecords"),
        # collect_list passes over nulls: the records without a key.
        f.sort_array(f.collect_list(f.when(is_keyed, f.col("RawBytes").cast("double")))).alias(
            "sizes"
        ),
    )
    hottest = (
        _by_key(records)
        .filter(f.isnotnull("keyHash"))
        .groupBy("topic", "keyHash")
        .agg(f.sum("bytes").alias("bytes"))
        .groupBy("topic")
        .agg(f.max("bytes").alias("hottest"), f.sum("bytes").alias("keyed"))
    )
    table = sums.join(hottest, "topic", "left").select(
        *(name for name in sums.columns if name != "sizes"),
        *spread_of("sizes", "NewPartitions"),
        ratio("hottest", "keyed").alias("HottestKeyShare"),
    )
    return _add_limits(table, partitions, brokers).orderBy("topic", "NewPartitions")


def _by_key(records: DataFrame) -> DataFrame:
    """Records and bytes of each key in each partition of today."""
    require(records, "records", "topic", "partition", "keyHash", "keyBytes", "valueBytes")
    octets = f.expr("cast(coalesce(keyBytes, 0) + coalesce(valueBytes, 0) as bigint)")
    return records.groupBy("topic", "partition", "keyHash").agg(
        f.count("*").alias("records"), f.sum(octets).alias("bytes")
    )


def _add_limits(
    table: DataFrame, partitions: DataFrame | None, brokers: DataFrame | None
) -> DataFrame:
    unknown = f.lit(None).cast("long")
    if partitions is None:
        return table.withColumns(
            {"NewReplicas": unknown, "FreeReplicas": unknown, "Fits": unknown.cast("boolean")}
        )
    require(partitions, "partitions", "topic", "partition", "replicas")
    today = partitions.groupBy("topic").agg(
        f.count("*").alias("today"), f.max(f.size("replicas")).alias("factor")
    )
    added = (f.col("NewPartitions") - f.col("today")) * f.col("factor")
    table = table.join(today, "topic", "left").withColumn("NewReplicas", added)
    if brokers is None:
        table = table.withColumns({"FreeReplicas": unknown, "Fits": unknown.cast("boolean")})
    else:
        table = table.crossJoin(_free_replicas(partitions, brokers)).withColumn(
            "Fits",
            (f.col("NewReplicas") >= 0)
            & (f.isnull("FreeReplicas") | (f.col("NewReplicas") <= f.col("FreeReplicas"))),
        )
    return table.drop("today", "factor")


def _free_replicas(partitions: DataFrame, brokers: DataFrame) -> DataFrame:
    """One row: how many more replicas the brokers and the cluster may have; null without limits."""
    require(brokers, "brokers", "broker", "maxBrokerPartitions", "maxPartitions")
    held = partitions.select(f.explode("replicas").alias("broker")).groupBy("broker").count()
    room = brokers.join(held, "broker", "left").fillna(0, ["count"])
    sums = room.agg(
        f.sum("count").alias("held"),
        f.max("maxPartitions").alias("most"),
        # Null as soon as one broker has no limit: then there is room for any number.
        f.when(
            f.count("maxBrokerPartitions") == f.count("*"),
            f.sum(f.greatest(f.lit(0), f.col("maxBrokerPartitions") - f.col("count"))),
        ).alias("byBroker"),
    )
    by_cluster = f.when(
        f.isnotnull("most"), f.greatest(f.lit(0), f.col("most") - f.col("held"))
    ).alias("byCluster")
    # `least` passes over nulls, which is right here: a limit that is none.
    return sums.select("byBroker", by_cluster).select(
        f.least("byBroker", "byCluster").alias("FreeReplicas")
    )


def _check_counts(counts: Iterable[int]) -> list[int]:
    tried = sorted(set(counts))
    if not tried or tried[0] < 1:
        raise UsageError(f"what_if(counts={tried}): give numbers of partitions, each from 1 on")
    return tried
