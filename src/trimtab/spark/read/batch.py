"""The batch reader: the driver plans the offsets, and tasks read them straight into Arrow."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from trimtab.client.fetcher.ranges import Limits
from trimtab.kafka.errors import UsageError
from trimtab.spark.options.source import SourceOptions, warn_of_unused
from trimtab.spark.read.filters import read_filters

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

Columns = Sequence[tuple[str, bool]]
"""Names and nullability of the columns to read."""


class TopicBatchReader(DataSourceReader):
    """Plans a query on the driver; copies of it read the records on the executors."""

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._limits = Limits()

    def partitions(self) -> Sequence[InputPartition]:
        from trimtab.spark.read.cluster import find_ranges
        from trimtab.spark.read.packing import TaskLimits, add_ids, pack_ranges
        from trimtab.spark.read.ranges import split_ranges

        options = self._options
        warn_of_unused(options)
        found = find_ranges(options, self._limits)
        ranges = split_ranges(
            found.ranges,
            options.min_partitions,
            options.max_records_per_partition,
        )
        limits = TaskLimits(
            options.max_partitions, options.min_partitions, options.max_records_per_partition
        )
        tasks = pack_ranges(ranges, limits, dict, lambda: found.leaders)
        return [InputPartition(task) for task in add_ids(tasks, found.ids)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._columns, partition)


class FilteringTopicReader(TopicBatchReader):
    """A reader that accepts filters, for the option `pushdown`.

    A separate class, because Spark raises an error for every reader that accepts filters unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._limits = read_filters(filters)
        return filters  # Spark checks all of them again


def read_partition(
    options: SourceOptions, columns: Columns, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """The records of an input partition (`packing.TaskInput`); called in a task.

    Raises:
        DataLoss, BrokerError, CorruptData, Unavailable: as `read_ranges`.
    """
    from trimtab.spark.read.cluster import read_ranges
    from trimtab.spark.read.columns import arrow_schema, scan_columns

    # Spark runs one task for a plan without partitions; before 4.2 it hands it None.
    task = None if partition is None else partition.value
    if task is None:
        return
    yield from scan_columns(read_ranges(options, task.ranges, task.ids), arrow_schema(columns))


def check_columns(schema: StructType) -> list[tuple[str, bool]]:
    """Names and nullability of the columns to read, for batches and streams.

    Raises:
        UsageError: a column that records do not have, or a wrong type.
    """
    from trimtab.spark.read.column_names import KNOWN_COLUMNS

    known = KNOWN_COLUMNS
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in known:
            nearest = difflib.get_close_matches(field.name, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known)}"
            raise UsageError(f"the schema names column {field.name}, which no record has: {hint}")
        if kind != (own := known[field.name]):
            raise UsageError(
                f"the schema reads column {field.name} as {kind}, but it is {own}: read it as {own}"
                " and cast it"
            )
    return [(field.name, field.nullable) for field in schema.fields]
