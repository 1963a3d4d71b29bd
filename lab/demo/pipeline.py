"""The demo's tables: Spark reads the producers' topics and computes the load of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trimtab.kafka.errors import CorruptData
from trimtab.spark import load

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class Partition(NamedTuple):
    """A row of `load.PARTITIONS`: a partition, its leader and the leader's rack."""

    topic: str
    partition: int
    leader: int
    rack: str | None


class Tables(NamedTuple):
    """How load is distributed; see `trimtab.spark.load` for the columns."""

    load: pa.Table
    skew: pa.Table
    by_broker: pa.Table
    by_rack: pa.Table


def run_pipeline(
    session: SparkSession,
    bootstrap_servers: str,
    partitions: Sequence[Partition],
    total: int,
) -> Tables:
    """Compute every table from the topics that the partitions belong to.

    Args:
        total: the number of records that each topic must have.

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
        )
    finally:
        table.unpersist()
    check_totals(tables.skew, total)
    return tables


def check_totals(skew: pa.Table, total: int) -> None:
    """Check that every topic has `total` records.

    Raises:
        CorruptData: a topic holds more or fewer.
    """
    for row in skew.to_pylist():
        if row["TotalRecords"] != total:
            raise CorruptData(
                f"topic {row['topic']} holds {row['TotalRecords']:,} records, {total:,} were sent"
            )


def write_parquet(tables: Iterable[tuple[str, pa.Table]], directory: Path) -> None:
    """Write each table to a Parquet file of its name."""
    import pyarrow.parquet as parquet

    for name, table in tables:
        parquet.write_table(table, directory / f"{name}.parquet")
