"""`spark.read.format("trimtab")`: topics as DataFrames, like Spark's own Kafka source.

    spark.read.format("trimtab")
        .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "flights").load()

Columns, option names and their meaning are those of Spark's source (`spark-sql-kafka-0-10`), so a
job moves over by an edit of `format(...)`. A schema given by `.schema(...)` chooses columns; the
others are neither decoded nor sent to the JVM. Offsets are planned on the driver; every task reads
a range of one partition, straight into Arrow.

Raises, through Spark: UsageError for options that cannot be, BrokerError and Unavailable where the
cluster cannot be read, DataLoss as the option `failOnDataLoss` says.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from trimtab.errors import UsageError
from trimtab.spark.options import SourceOptions, read_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TrimtabDataSource(DataSource):
    """The format `trimtab`."""

    @classmethod
    def name(cls) -> str:
        return "trimtab"

    def schema(self) -> str:
        from trimtab.spark.columns import BATCH_COLUMNS, HEADER_COLUMNS, KAFKA_COLUMNS

        options = read_options(self.options)
        columns = dict(KAFKA_COLUMNS)
        if options.include_headers:
            columns |= HEADER_COLUMNS
        if options.include_batches:
            columns |= BATCH_COLUMNS
        return ", ".join(f"{name} {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(read_options(self.options), _check_columns(schema))


class TopicReader(DataSourceReader):
    """Plans a read on the driver; copies of it carry out the parts on the executors."""

    def __init__(self, options: SourceOptions, columns: Sequence[tuple[str, bool]]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        from trimtab.spark.cluster import find_bounds
        from trimtab.spark.ranges import resolve_ranges, split_ranges

        options = self._options
        bounds = find_bounds(options)
        ranges = resolve_ranges(options.starting, options.ending, bounds, options.fail_on_data_loss)
        return [InputPartition(each) for each in split_ranges(ranges, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from trimtab.spark.cluster import read_range
        from trimtab.spark.columns import arrow_schema, scan_columns

        wanted = partition.value
        if wanted is None:  # what Spark makes of a plan without partitions
            return
        options = self._options
        buffers = read_range(
            options.client, wanted, options.poll_timeout_ms, options.fail_on_data_loss
        )
        yield from scan_columns(buffers, wanted, arrow_schema(self._columns))


def _check_columns(schema: StructType) -> list[tuple[str, bool]]:
    """Name and nullability of the columns to read.

    Raises:
        UsageError: a column that there is not, or of another type.
    """
    from trimtab.spark.columns import BATCH_COLUMNS, HEADER_COLUMNS, KAFKA_COLUMNS

    known = KAFKA_COLUMNS | HEADER_COLUMNS | BATCH_COLUMNS
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in known:
            nearest = difflib.get_close_matches(field.name, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known)}"
            raise UsageError(f"the schema's column {field.name} is none of a record: {hint}")
        if kind != known[field.name]:
            raise UsageError(
                f"the schema's column {field.name} is {known[field.name]}, not {kind}: read it as "
                "that and cast it"
            )
    return [(field.name, field.nullable) for field in schema.fields]
