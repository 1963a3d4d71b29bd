"""What a PySpark that is older than the newest one lacks.

3.5   tables of load only: Python data sources came with 4.0
4.0   reads and writes batches
4.1   writes streams, `decode`, `encode`, the option `pushdown`, `salt`, `load.key_skew`
4.2   reads streams: a Python source is told how much to read, and what "available now" is
"""

from __future__ import annotations

from trimtab.kafka.errors import UsageError


def require_pyspark(feature: str, since: str) -> None:
    """Refuse what this PySpark cannot do.

    Args:
        feature: begins the sentence, such as "spark.readStream.format('trimtab')".
        since: the oldest version that has what it needs.

    Raises:
        UsageError: this PySpark is older; names the feature and both versions.
    """
    import pyspark

    version: str = pyspark.__version__
    if _numbers(version) < _numbers(since):
        raise UsageError(
            f"{feature} needs PySpark {since} or later, on the driver and the executors, and this"
            f" is PySpark {version}: pip install 'pyspark>={since}', with a Spark of that version"
        )


def _numbers(version: str) -> tuple[int, int]:
    """Major and minor version of `4.1.0`, `4.1.0.dev1` or `4.1`."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
