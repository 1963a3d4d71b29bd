"""`spark.readStream.format("trimtab")`: topics as a stream of micro-batches.

Batches are planned in a process of the driver that lives as long as the query
(`trimtab.spark.stream.plan`); tasks read like those of a batch query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from trimtab.spark.options.source import StreamOptions, warn_of_unused
from trimtab.spark.read.batch import Columns, read_partition
from trimtab.spark.read.packing import add_ids
from trimtab.spark.stream.offsets import read_id, read_offset

if TYPE_CHECKING:
    import pyarrow as pa

    from trimtab.spark.stream.plan import StreamPlan


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver; copies of it read them on the executors."""

    def __init__(self, options: StreamOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._plan: StreamPlan | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies on executors plan nothing; the plan and its connections stay on the driver.
        return type(self), (self._options, self._columns)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner().first()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Python sources cannot combine limits, so one of them stands for all. Its value is not
        # used, as the plan reads the options; it only must not be `ReadAllAvailable`.
        options = self._options
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger or options.min_bytes_per_trigger:
            return ReadMinRows(max(options.min_offsets_per_trigger, 1))
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return dict(self._planner().next(start, isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._planner().report()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner().freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ids = {topic: read_id(each) for topic, each in read_offset(end).ids.items()}
        tasks = self._planner().tasks(start, end)
        return [InputPartition(task) for task in add_ids(tasks, ids)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._columns, partition)

    def stop(self) -> None:
        """Close the plan. Spark does not call this if the process crashes."""
        if self._plan is not None:
            self._plan.close()

    def _planner(self) -> StreamPlan:
        if self._plan is None:
            from trimtab.spark.stream.plan import open_plan

            warn_of_unused(self._options)
            self._plan = open_plan(self._options)
        return self._plan
