"""Spark on Kafka topics: the format `trimtab`, and tables of the load of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Register `format("trimtab")` in a session.

    Not needed if the `python3` on PATH (or `PYSPARK_PYTHON`) has both pyspark and trimtab: then
    Spark finds the package `pyspark_trimtab` by itself.
    """
    from trimtab.spark.source import TrimtabDataSource

    session.dataSource.register(TrimtabDataSource)
