"""The demo's streams: they copy flights from files into a topic, and from there into tables.

The first stream writes the files to the topic. The second reads the topic in micro-batches of
limited size; from each it writes two small tables, counts of flights and each partition's load. The
sums of these tables are the result, and are compared with sums over the files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

from lab.demo.summary import BatchSummary
from trimtab.kafka.errors import CorruptData, KafkaError
from trimtab.spark import load
from trimtab.spark.pipeline.run import describe
from trimtab.spark.stream.progress import read_progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from lab.demo.flights import Flight
    from lab.demo.pipeline import Partition

TOPIC: Final = "flights"
LIMIT_BYTES: Final = 8_000_000
"""Limit for the bytes of a micro-batch, as stored in the log."""
WINDOW: Final = "7 days"

_FLIGHT: Final = (
    "carrier string, origin string, dep_time int, dep_delay double, distance double,"
    " time_hour string"
)
"""The fields that are read of a flight's JSON."""
_FILES: Final = 4
_SINK: Final = {"kafka.compression.type": "lz4", "topic": TOPIC}


class StreamFailed(KafkaError):
    """Spark ended a stream with an error."""


class Streamed(NamedTuple):
    """The results of both streams.

    Attributes:
        flights: see `count_flights`.
        load: `load.partition_load` of the topic, in windows of `WINDOW` by the flights' own times.
        batches: the micro-batches, in order.
        seconds: the duration of the first and of the second stream.
    """

    flights: pa.Table
    load: pa.Table
    batches: list[BatchSummary]
    seconds: tuple[float, float]


def write_files(flights: Sequence[Flight], directory: Path) -> None:
    """Write the flights to files, with a JSON object on each line."""
    directory.mkdir(parents=True)
    share = -(-len(flights) // _FILES)
    for number in range(_FILES):
        with (directory / f"{number}.json").open("wb") as file:
            for flight in flights[number * share : (number + 1) * share]:
                file.write(flight.value + b"\n")


def stream_flights(
    session: SparkSession, bootstrap_servers: str, partitions: Sequence[Partition], directory: Path
) -> Streamed:
    """Send the flights through both streams.

    Args:
        partitions: the partitions of the topic, which must exist and be empty.
        directory: has the flights in `files`; the streams write to other folders in it.

    Raises:
        CorruptData: the sums of the streamed flights differ from those of the files.
        StreamFailed: Spark ended a stream with an error.
    """
    files = directory / "files"
    began = time.perf_counter()
    lines = session.readStream.schema("value string").text(str(files))
    flight = f.from_json("value", "carrier string, time_hour string")
    rows = lines.select(
        flight["carrier"].alias("key"),
        "value",
        f.try_to_timestamp(flight["time_hour"]).alias("timestamp"),
    )
    sink = rows.writeStream.format("trimtab").options(**_SINK)
    sink = sink.option("kafka.bootstrap.servers", bootstrap_servers)
    _finish(sink, directory / "into")
    written = time.perf_counter()

    where = session.createDataFrame(partitions, load.PARTITIONS)
    stream = (
        session.readStream.format("trimtab")
        .schema(f"{load.RECORDS}, value binary")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", str(LIMIT_BYTES))
        .load()
    )

    def keep(batch: DataFrame, number: int) -> None:
        # A batch that is repeated after a failure overwrites the tables of its first run.
        batch.persist()
        tables = {"tally": _tally(batch), "load": load.partition_load(batch, where, WINDOW)}
        for name, table in tables.items():
            table.write.mode("overwrite").parquet(f"{directory}/{name}/batch={number}")
        batch.unpersist()

    query = _finish(stream.writeStream.foreachBatch(keep), directory / "out_of")
    ended = time.perf_counter()
    tally = session.read.parquet(f"{directory}/tally")
    windows = session.read.parquet(f"{directory}/load")
    check_sums(_sum(tally), _sum(_tally(session.read.text(str(files)))))
    return Streamed(
        flights=count_flights(tally).toArrow(),
        load=load.roll_up(windows, WINDOW).toArrow(),
        batches=_list_batches(query),
        seconds=(written - began, ended - written),
    )


def check_sums(streamed: pa.Table, files: pa.Table) -> None:
    """Check each carrier's flights, minutes of delay, miles and bytes against those of the files.

    Raises:
        CorruptData: they differ.
    """
    for row, wanted in zip(streamed.to_pylist(), files.to_pylist(), strict=False):
        if row != wanted:
            raise CorruptData(f"the stream gave {row} where the files have {wanted}")
    if streamed.num_rows != files.num_rows:
        raise CorruptData(
            f"the stream gave {streamed.num_rows} carriers, the files have {files.num_rows}"
        )


def count_flights(tally: DataFrame) -> DataFrame:
    """Flights by carrier and airport.

    Args:
        tally: the rows that `_tally` made of all micro-batches.

    Returns:
        carrier, origin, flights, mean_departure_delay and p95_departure_delay (minutes; null if no
        flight departed), cancelled_share (0 to 1: the share without a departure time).
    """
    delayed = f.when(f.isnotnull("dep_delay"), f.col("flights"))
    return (
        tally.groupBy("carrier", "origin")
        .agg(
            f.sum("flights").alias("flights"),
            (f.sum(f.col("dep_delay") * f.col("flights")) / f.sum(delayed)).alias(
                "mean_departure_delay"
            ),
            f.percentile("dep_delay", 0.95, f.col("flights")).alias("p95_departure_delay"),
            (
                f.sum(f.when(f.col("is_cancelled"), f.col("flights")).otherwise(0))
                / f.sum("flights")
            ).alias("cancelled_share"),
        )
        .orderBy("carrier", "origin")
    )


def _tally(rows: DataFrame) -> DataFrame:
    """Count the flights by carrier, airport and delay. The counts of batches can be summed."""
    text = f.col("value").cast("string")
    flight = rows.select(
        f.from_json(text, _FLIGHT).alias("flight"), f.octet_length(text).alias("size")
    )
    return (
        flight.select("flight.*", "size")
        .groupBy("carrier", "origin", "dep_delay", f.isnull("dep_time").alias("is_cancelled"))
        .agg(
            f.count("*").alias("flights"),
            f.sum("distance").alias("miles"),
            f.sum("size").alias("bytes"),
        )
    )


def _sum(tally: DataFrame) -> pa.Table:
    return (
        tally.groupBy("carrier")
        .agg(
            f.sum("flights").alias("flights"),
            f.sum(f.col("dep_delay") * f.col("flights")).alias("delay"),
            f.sum("miles").alias("miles"),
            f.sum("bytes").alias("bytes"),
        )
        .orderBy("carrier")
        .toArrow()
    )


def _finish(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a stream until it has written all available records."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        raise StreamFailed(describe(error)) from error
    finally:
        query.stop()
    return query


def _list_batches(query: StreamingQuery) -> list[BatchSummary]:
    batches: list[BatchSummary] = []
    for progress in query.recentProgress:
        for source in read_progress(progress):
            if progress.numInputRows:
                assert source.batch_bytes is not None  # the stream has an option in bytes
                batches.append(
                    {
                        "records": source.batch_records,
                        "bytes": source.batch_bytes,
                        "lag_records": source.lag_records,
                        "lag_bytes": source.lag_bytes,
                        "seconds": progress.batchDuration / 1000,
                    }
                )
    return batches
