"""Spark on Kafka topics: the format `trimtab`, and tables of the load of partitions.

Tests of source: tests/spark/test_source.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Register `format("trimtab")` in a session.

    Not needed if the `python3` on PATH (or `PYSPARK_PYTHON`) has both pyspark and trimtab: then
    Spark finds the package `pyspark_trimtab` by itself.

    Raises:
        UsageError: this PySpark is older than 4.0.
    """
    from trimtab.spark.versions import require_pyspark

    require_pyspark("format('trimtab')", "4.0")
    from pyspark.errors import AnalysisException

    from trimtab.spark.source import TrimtabDataSource

    try:
        session.dataSource.register(TrimtabDataSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses to register what it has found by itself.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
