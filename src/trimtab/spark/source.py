"""The format `trimtab`, which reads topics as DataFrames, like Spark's own Kafka source.

    spark.read.format("trimtab")
        .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "flights").load()

Columns and options are those of Spark's source (`spark-sql-kafka-0-10`), so a job only changes its
`format(...)`. A schema given by `.schema(...)` selects columns; the others are neither decoded nor
sent to the JVM. The driver plans the offsets; each task reads a range of one partition, or several
small ranges, into Arrow.

Raises, through Spark: UsageError for invalid options, BrokerError and Unavailable if the cluster
cannot be read, DataLoss depending on the option `failOnDataLoss`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from trimtab.spark.options.source import read_columns, read_options, read_stream_options
from trimtab.spark.versions import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class TrimtabDataSource(DataSource):
    """The format `trimtab`."""

    @classmethod
    def name(cls) -> str:
        return "trimtab"

    def schema(self) -> str:
        from trimtab.spark.read.column_names import BATCH_COLUMNS, HEADER_COLUMNS, KAFKA_COLUMNS

        headers, batches = read_columns(self.options)
        columns = dict(KAFKA_COLUMNS)
        if headers:
            columns |= HEADER_COLUMNS
        if batches:
            columns |= BATCH_COLUMNS
        return ", ".join(f"{name} {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        from trimtab.spark.read.batch import FilteringTopicReader, TopicBatchReader, check_columns

        options = read_options(self.options)
        if options.pushes_filters:
            require_pyspark("option pushdown", "4.1")
        kind = FilteringTopicReader if options.pushes_filters else TopicBatchReader
        return kind(options, check_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        require_pyspark("spark.readStream.format('trimtab')", "4.2")
        from trimtab.spark.read.batch import check_columns
        from trimtab.spark.stream.reader import TopicStreamReader

        return TopicStreamReader(read_stream_options(self.options), check_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from trimtab.spark.write.sink import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        require_pyspark("df.writeStream.format('trimtab')", "4.1")
        from trimtab.spark.worker import settle
        from trimtab.spark.write.stream_sink import TopicStreamWriter

        settle()  # Spark calls this twice for each micro-batch
        return TopicStreamWriter(self.options, schema)
