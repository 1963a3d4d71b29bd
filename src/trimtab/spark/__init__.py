"""Spark over Kafka-protocol topics: `spark.read.format("trimtab")`, and the load of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Make `format("trimtab")` known to a session.

    Not needed where Spark finds `pyspark_trimtab` by itself, which it does if the `python3` on PATH
    (or `PYSPARK_PYTHON`) has both pyspark and trimtab.
    """
    from trimtab.spark.source import TrimtabDataSource

    session.dataSource.register(TrimtabDataSource)
