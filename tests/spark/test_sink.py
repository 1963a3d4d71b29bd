"""Writing with `format("trimtab")` to an embedded cluster; what it holds is read by a client of
others and by our own source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import functions

from tests.spark.foreign import read_topic
from tests.spark.frames import read, write
from trimtab import Admin, Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

HEADERS = "array<struct<key:string,value:binary>>"
PARTITIONS = 3


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=2) as cluster:
        make_topic(cluster.bootstrap_servers, "unlimited", **{"max.message.bytes": "10000000"})
        yield cluster.bootstrap_servers


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    return make_topic(servers, request.node.name.split("[")[0])


def make_topic(servers: str, name: str, **configs: str) -> str:
    with Admin(servers) as admin:
        admin.create_topic(name, partitions=PARTITIONS, config=configs)
    return name


def test_a_topic_that_is_read_and_written_is_the_same_again(
    spark: SparkSession, servers: str, topic: str
) -> None:
    rows = [
        (None, b"no key", None, 0, 1),
        (b"", None, [], 1, 1_700_000_000_123),
        ("größe 😀".encode(), b"", [("", None), ("ключ", b""), ("ключ", b"\0")], None, 0),
        (b"large", bytes(1_000_000), [("a", b"b")], 2, 5),
    ]
    schema = f"key binary, value binary, headers {HEADERS}, partition int, ms bigint"
    frame = spark.createDataFrame(rows, schema)
    frame = frame.withColumn("timestamp", functions.expr("timestamp_millis(ms)")).drop("ms")
    write(frame, servers, topic=topic)
    stored = read_topic(servers, topic)
    assert sorted(((e.key, e.value, e.headers, e.timestamp) for e in stored), key=repr) == sorted(
        ((key, value, headers or [], time) for key, value, headers, _, time in rows), key=repr
    )
    again = make_topic(servers, f"{topic}-again")
    write(read(spark, servers, subscribe=topic, includeHeaders="true"), servers, topic=again)
    assert read_topic(servers, again) == stored


def test_text_and_rows_of_several_topics_stay_in_order(spark: SparkSession, servers: str) -> None:
    topics = [make_topic(servers, f"several-{number}") for number in range(3)]
    frame = spark.range(0, 30_000, 1, 1).selectExpr(
        "concat('several-', id % 3) AS topic",
        "CAST(id AS STRING) AS value",
        "CAST(id % 7 AS STRING) AS key",
    )
    write(frame, servers)
    for number, topic in enumerate(topics):
        stored = read_topic(servers, topic)
        assert sorted(int(each.value or b"") for each in stored) == list(range(number, 30_000, 3))
        for partition in range(PARTITIONS):
            values = [int(each.value or b"") for each in stored if each.partition == partition]
            assert values == sorted(values)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["id AS value"], {"topic": "t"}, r"column value has type bigint.*CAST\(value AS STRING"),
        (["'v' AS value"], {"topik": "t"}, "unknown option topik of a write: did you mean topic"),
        (
            ["repeat('v', 2000000) AS value"],
            {"topic": "unlimited"},
            "needs up to 20000.. bytes, max.request.size is 1048576; raise it.*kafka.NAME",
        ),
    ],
)
def test_refusals_reach_the_user(
    spark: SparkSession, servers: str, columns: list[str], options: dict[str, str], message: str
) -> None:
    frame = spark.range(0, 5, 1, 1).selectExpr(*columns)
    with pytest.raises((AnalysisException, PythonException), match=f"(?s){message}"):
        write(frame, servers, **options)


def test_modes_other_than_append_are_refused(spark: SparkSession, servers: str) -> None:
    frame = spark.range(1).selectExpr("'v' AS value")
    writer = frame.write.format("trimtab").option("kafka.bootstrap.servers", servers)
    with pytest.raises(AnalysisException, match=r"mode\('overwrite'\) is not supported"):
        writer.option("topic", "t").mode("overwrite").save()
    for mode in ("ignore", "errorifexists"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            writer.option("topic", "t").mode(mode).save()


# -- Streams


class Files:
    """A stream source: one micro-batch for each file."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.directory = directory / "files"
        self.directory.mkdir()
        self.checkpoint = str(directory / "checkpoint")
        self._count = 0

    def add(self, *lines: str) -> None:
        self._count += 1
        hidden = self.directory / f".{self._count}"
        hidden.write_text("".join(f"{line}\n" for line in lines))
        hidden.rename(self.directory / f"{self._count}.txt")

    def read(self) -> DataFrame:
        reader = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        return reader.load(str(self.directory))

    def run(self, writer: DataStreamWriter) -> int:
        """Write all there is; returns how many micro-batches had rows."""
        writer = writer.option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path)


def stream(frame: DataFrame, servers: str, topic: str) -> DataStreamWriter:
    writer = frame.writeStream.format("trimtab")
    return writer.option("kafka.bootstrap.servers", servers).option("topic", topic)


def values_of(servers: str, topic: str) -> list[str]:
    return sorted((each.value or b"").decode() for each in read_topic(servers, topic))


def test_a_stream_appends_each_micro_batch_once(servers: str, topic: str, files: Files) -> None:
    for part in (["a", "b"], [], ["c"]):
        files.add(*part)
    assert files.run(stream(files.read(), servers, topic)) == 2
    files.add("d")
    assert files.run(stream(files.read(), servers, topic)) == 1
    assert values_of(servers, topic) == ["a", "b", "c", "d"]


def test_a_stream_in_complete_mode_writes_the_whole_result_each_time(
    servers: str, topic: str, files: Files
) -> None:
    files.add("a", "b")
    files.add("a")
    counts = files.read().groupBy("value").count()
    lines = counts.selectExpr("concat(value, ' ', count) AS value")
    files.run(stream(lines, servers, topic).outputMode("complete"))
    assert values_of(servers, topic) == ["a 1", "a 2", "b 1", "b 1"]


def test_updates_go_through_foreach_batch(servers: str, topic: str, files: Files) -> None:
    def write_batch(frame: DataFrame, number: int) -> None:
        write(frame.selectExpr("concat(value, ' ', count) AS value"), servers, topic=topic)

    files.add("a", "b")
    files.add("a")
    counts = files.read().groupBy("value").agg(functions.count("*").alias("count"))
    files.run(counts.writeStream.outputMode("update").foreachBatch(write_batch))
    assert values_of(servers, topic) == ["a 1", "a 2", "b 1"]


def test_a_stream_says_why_it_cannot_be_written(servers: str, topic: str, files: Files) -> None:
    files.add("a")
    with pytest.raises(StreamingQueryException, match="column value has type int"):
        files.run(stream(files.read().selectExpr("1 AS value"), servers, topic))
