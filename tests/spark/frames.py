"""DataFrames from topics and into topics, and topics as a consumer reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab import Consumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, servers: str, schema: str = "", **options: str) -> DataFrame:
    """A batch, with the source's own schema if none is given."""
    reader = spark.read.format("trimtab").option("kafka.bootstrap.servers", servers)
    return (reader.schema(schema) if schema else reader).options(**options).load()


def write(frame: DataFrame, servers: str, sink: str = "trimtab", **options: str) -> None:
    """Append the rows of a batch."""
    writer = frame.write.format(sink).mode("append")
    writer.option("kafka.bootstrap.servers", servers).options(**options).save()


def consume(servers: str, rack: str, partitions: Sequence[tuple[str, int]]) -> None:
    """Read partitions from their beginnings to their ends, as a consumer in this rack."""
    with Consumer(servers, client_rack=rack) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        left = sum(consumer.end_offsets(partitions).values())
        while left:
            records = consumer.poll(60_000)
            assert records, f"{left} records of {partitions} did not come"
            left -= len(records)
