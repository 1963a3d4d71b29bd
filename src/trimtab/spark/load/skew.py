"""The skew of load among a topic's partitions, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from trimtab.spark.load.inputs import in_order, ratio, require, window_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def topic_skew(load: DataFrame, partitions: DataFrame | None = None) -> DataFrame:
    """The skew of each topic's bytes among its partitions; of a batch or a stream.

    Args:
        load: what `partition_load` returns. With a window there is a row for each window.
        partitions: with the columns of `PARTITIONS`; gives the number of partitions of each topic.
            Needed with a window, because `load` then has no rows for partitions without records.
            None: only the partitions in `load` count.

    Returns:
        [window,] topic, Partitions, TotalBytes, TotalRecords, MaxOverMean (bytes of the
        largest partition divided by the mean: 1 if all are equal, the number of partitions if one
        has all bytes), CoefficientOfVariation (standard deviation of the partitions' bytes divided
        by their mean: 0 if all are equal), Gini (0 if all are equal, (n - 1) / n if one of n has
        all bytes), TopPartition (the largest), TopShare (its share of the bytes, 0 to 1),
        NullKeyShare (share of records without a key, 0 to 1, whose partition a partitioner is free
        to choose; null from log segments). Null without bytes.
    """
    require(load, "load", "topic", "partition", "TotalBytes", "TotalRecords", "NullKeyRecords")
    window = window_of(load)
    sums = load.groupBy(*window, "topic").agg(
        f.count("*").alias("Partitions"),
        f.sum("TotalBytes").alias("TotalBytes"),
        f.sum("TotalRecords").alias("TotalRecords"),
        f.sum("NullKeyRecords").alias("NullKeyRecords"),
        f.max_by("partition", "TotalBytes").alias("fullest"),
        f.sort_array(f.collect_list(f.col("TotalBytes").cast("double"))).alias("sizes"),
    )
    if partitions is not None:
        counts = partitions.groupBy("topic").agg(f.count("*").alias("Partitions"))
        sums = sums.drop("Partitions").join(counts, "topic")
    has_bytes = f.col("TotalBytes") > 0
    skew = sums.select(
        *window,
        "topic",
        "Partitions",
        "TotalBytes",
        "TotalRecords",
        *spread_of("sizes", "Partitions"),
        f.when(has_bytes, f.col("fullest")).alias("TopPartition"),
        f.when(has_bytes, f.array_max("sizes") / f.col("TotalBytes")).alias("TopShare"),
        ratio("NullKeyRecords", "TotalRecords").alias("NullKeyShare"),
    )
    return in_order(skew, *window, "topic")


def spread_of(sizes: str, count: str) -> list[Column]:
    """MaxOverMean, CoefficientOfVariation and Gini of numbers; null where all are 0.

    Args:
        sizes: the column with an array of doubles, ascending.
        count: the column with the number of values; values missing from the array are 0.
    """
    total = f"aggregate({sizes}, 0D, (sum, size) -> sum + size)"
    mean = f"({total} / {count})"
    empty = f"({count} - size({sizes}))"
    squares = (
        f"(aggregate({sizes}, 0D, (sum, size) -> sum + power(size - {mean}, 2))"
        f" + {empty} * power({mean}, 2))"
    )
    # The k-th smallest of all; zeros that are not in the array come first.
    ranked = f"aggregate(transform({sizes}, (size, at) -> ({empty} + at + 1) * size), 0D, " + (
        "(sum, size) -> sum + size)"
    )
    measures = {
        "MaxOverMean": f"array_max({sizes}) / {mean}",
        "CoefficientOfVariation": f"sqrt({squares} / {count}) / {mean}",
        "Gini": f"2 * {ranked} / ({count} * {total}) - ({count} + 1) / {count}",
    }
    return [
        f.expr(f"if({total} > 0, {formula}, null)").alias(name)
        for name, formula in measures.items()
    ]
