"""The load tables, from frames small enough to check by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trimtab.spark import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEVEL, TILTED, IDLE = "level", "tilted", "idle"


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    # topic, partition, offset, base offset of its batch, bytes of its batch
    records = [
        (LEVEL, 0, 0, 0, 100),
        (LEVEL, 0, 1, 0, 100),
        (LEVEL, 0, 2, 2, 50),
        (LEVEL, 1, 0, 0, 150),
        (TILTED, 0, 7, 5, 900),  # offsets 5 and 6 are gone, as after compaction
        (TILTED, 0, 8, 5, 900),
        (TILTED, 2, 0, 0, 300),
        ("stranger", 0, 0, 0, 1),
    ]
    partitions = [
        (topic, partition, leader, rack)
        for topic in (LEVEL, TILTED, IDLE)
        for partition, leader, rack in [(0, 10, "a"), (1, 11, "b"), (2, 12, "a")]
        if topic != LEVEL or partition < 2
    ]
    # Two frame partitions cut batches in the middle, as a split of a range of offsets does.
    frame = spark.createDataFrame(records, load.RECORDS).repartition(2)
    table = load.partition_load(frame, spark.createDataFrame(partitions, load.PARTITIONS))
    return table.cache()


@pytest.mark.kip(794)
def test_partition_load_is_the_table_of_kip_794(table: DataFrame) -> None:
    assert table.columns == [
        "topic",
        "partition",
        "leader",
        "rack",
        "TotalBatches",
        "TotalBytes",
        "TotalRecords",
        "BytesPerBatch",
        "RecordsPerBatch",
        "ShareOfBytes",
    ]
    assert [tuple(row) for row in table.collect()] == [
        (IDLE, 0, 10, "a", 0, 0, 0, None, None, None),
        (IDLE, 1, 11, "b", 0, 0, 0, None, None, None),
        (IDLE, 2, 12, "a", 0, 0, 0, None, None, None),
        (LEVEL, 0, 10, "a", 2, 150, 3, 75.0, 1.5, 0.5),
        (LEVEL, 1, 11, "b", 1, 150, 1, 150.0, 1.0, 0.5),
        (TILTED, 0, 10, "a", 1, 900, 2, 900.0, 2.0, 0.75),
        (TILTED, 1, 11, "b", 0, 0, 0, None, None, 0.0),
        (TILTED, 2, 12, "a", 1, 300, 1, 300.0, 1.0, 0.25),
    ]


def test_skew_counts_empty_partitions(table: DataFrame) -> None:
    skew = {row.topic: row for row in load.topic_skew(table).collect()}
    assert (skew[LEVEL].MaxOverMean, skew[LEVEL].CoefficientOfVariation) == (1.0, 0.0)
    tilted = skew[TILTED]
    assert (tilted.Partitions, tilted.TotalBytes, tilted.TotalRecords) == (3, 1200, 3)
    assert tilted.MaxOverMean == 900 / 400
    assert tilted.CoefficientOfVariation == pytest.approx((140_000**0.5) / 400)
    assert (skew[IDLE].MaxOverMean, skew[IDLE].CoefficientOfVariation) == (None, None)


def test_shares_by_broker_and_rack(table: DataFrame) -> None:
    by_leader = load.share_by(table, "leader").filter(f"topic = '{TILTED}'")
    assert [tuple(row) for row in by_leader.collect()] == [
        (TILTED, 10, 900, 2, 0.75),
        (TILTED, 11, 0, 0, 0.0),
        (TILTED, 12, 300, 1, 0.25),
    ]
    by_rack = load.share_by(table, "rack").filter(f"topic = '{TILTED}'")
    assert [tuple(row) for row in by_rack.collect()] == [
        (TILTED, "a", 1200, 3, 1.0),
        (TILTED, "b", 0, 0, 0.0),
    ]
