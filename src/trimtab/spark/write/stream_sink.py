"""`df.writeStream.format("trimtab")`: micro-batches into topics, as `sink` writes DataFrames.

A module of its own, because PySpark 4.0 has no class to derive from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from trimtab.spark.write.sink import TaskWriter


class TopicStreamWriter(TaskWriter, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. In the output mode `complete` each of them appends the
    whole result."""

    is_stream = True

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._guarantee.commit(messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._guarantee.abort(messages, batchId)
