"""Spark imports every top-level `pyspark_*` module when it meets a format that it does not know.

So `format("trimtab")` works wherever trimtab is installed beside Spark (SPARK-45639).
"""

from trimtab.spark.source import TrimtabDataSource


class DefaultSource(TrimtabDataSource):
    """The name Spark looks for."""
