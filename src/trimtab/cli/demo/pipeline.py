"""The demo's pipeline: Spark reads the topics back and says how load lies and what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

from trimtab.errors import CorruptData
from trimtab.spark import load

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FLIGHT: Final = "carrier string, origin string, dep_time int, dep_delay double"
"""What of a flight's JSON is looked at."""


class Partition(NamedTuple):
    """A row of `load.PARTITIONS`: a partition and where it is led."""

    topic: str
    partition: int
    leader: int
    rack: str | None


class Tables(NamedTuple):
    """What the pipeline computes; see `trimtab.spark.load` and `count_flights` for the columns."""

    load: pa.Table
    skew: pa.Table
    by_broker: pa.Table
    by_rack: pa.Table
    flights: pa.Table


def run_pipeline(
    session: SparkSession,
    bootstrap_servers: str,
    partitions: Sequence[Partition],
    flights_topic: str,
    total: int,
) -> Tables:
    """Compute every table from the topics that the partitions belong to.

    Args:
        flights_topic: the topic that the flights themselves are read from.
        total: how many records each topic must hold.

    Raises:
        CorruptData: a topic holds more or fewer.
    """
    topics = list(dict.fromkeys(partition.topic for partition in partitions))
    reader = session.read.format("trimtab").option("kafka.bootstrap.servers", bootstrap_servers)
    records = reader.schema(load.RECORDS).option("subscribe", ",".join(topics)).load()
    where = session.createDataFrame(partitions, load.PARTITIONS)
    table = load.partition_load(records, where).cache()
    try:
        tables = Tables(
            load=table.toArrow(),
            skew=load.topic_skew(table).toArrow(),
            by_broker=load.share_by(table, "leader").toArrow(),
            by_rack=load.share_by(table, "rack").toArrow(),
            flights=count_flights(
                reader.schema("value binary").option("subscribe", flights_topic).load()
            ).toArrow(),
        )
    finally:
        table.unpersist()
    check_totals(tables.skew, total)
    return tables


def check_totals(skew: pa.Table, total: int) -> None:
    """Every topic must hold `total` records.

    Raises:
        CorruptData: a topic holds more or fewer.
    """
    for row in skew.to_pylist():
        if row["TotalRecords"] != total:
            raise CorruptData(
                f"topic {row['topic']} holds {row['TotalRecords']:,} records, {total:,} were sent"
            )


def count_flights(records: DataFrame) -> DataFrame:
    """Flights by carrier and airport.

    Args:
        records: with the column `value`, a flight as JSON.

    Returns:
        carrier, origin, flights, mean_departure_delay and p95_departure_delay (minutes, of those
        that took off; null if none did), cancelled_share (0 to 1: without a departure time).
    """
    flight = records.select(f.from_json(f.col("value").cast("string"), _FLIGHT).alias("flight"))
    return (
        flight.select("flight.*")
        .groupBy("carrier", "origin")
        .agg(
            f.count("*").alias("flights"),
            f.mean("dep_delay").alias("mean_departure_delay"),
            f.percentile("dep_delay", 0.95).alias("p95_departure_delay"),
            f.mean(f.isnull("dep_time").cast("int")).alias("cancelled_share"),
        )
        .orderBy("carrier", "origin")
    )


def write_parquet(tables: Iterable[tuple[str, pa.Table]], directory: Path) -> None:
    """One Parquet file for each table, by its name."""
    import pyarrow.parquet as parquet

    for name, table in tables:
        parquet.write_table(table, directory / f"{name}.parquet")
