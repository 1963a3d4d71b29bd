"""Hot keys over several partitions: `salt`, the sink, the source and `unsalt`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as f

from tests.spark.frames import read, write
from trimtab import Admin, Cluster
from trimtab.client.partitioner.murmur2_cy import murmur2, partition_for_key
from trimtab.client.partitioner.split_records import candidates, choices
from trimtab.kafka.errors import UsageError
from trimtab.spark import load
from trimtab.spark.write.salting import salt, unsalt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 8
ROWS = 6000
SHARES = {"us": 0.5, "de": 0.125}
HEADERS = "array<struct<key:string,value:binary>>"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(brokers=2) as cluster:
        yield cluster.bootstrap_servers


def make_topic(servers: str, name: str) -> str:
    with Admin(servers) as admin:
        admin.create_topic(name, partitions=PARTITIONS)
    return name


def orders(rows: DataFrame) -> DataFrame:
    """Half of the rows are of one key, an eighth of another; every fourth has a header. Values say
    which partition of Spark the row was in, and its number."""
    return rows.selectExpr(
        "CASE WHEN id % 2 = 0 THEN 'us' WHEN id % 8 = 1 THEN 'de'"
        " WHEN id % 8 = 3 THEN concat('user ', id % 500) END AS key",
        "concat(spark_partition_id(), ' ', id) AS value",
        f"CAST(if(id % 4 = 0, array(struct('trace', X'0102')), null) AS {HEADERS}) AS headers",
    )


def check(rows: list[Any], number: int) -> Counter[str]:
    """What was read back, in the order that `unsalt` gives; returns the senders of each key."""
    assert sorted(int(row.value.split()[1]) for row in rows) == list(range(number))
    senders: defaultdict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        has_header = int(row.value.split()[1]) % 4 == 0
        assert row.headers == ([("trace", b"\1\2")] if has_header else None)
        if row.key in SHARES:
            senders[row.key, bytes(row.split_sender)].append(row)
        else:
            assert (row.split_sender, row.split_number) == (None, None)
            if row.key is not None:
                assert row.partition == partition_for_key(row.key.encode(), PARTITIONS)
    for (key, _), sent in senders.items():
        assert [row.split_number for row in sent] == list(range(len(sent)))
        written = [tuple(map(int, row.value.split())) for row in sent]
        assert len({task for task, _ in written}) == 1
        assert written == sorted(written)
        count = choices(SHARES[key], PARTITIONS)
        allowed = candidates(murmur2(key.encode()), PARTITIONS, count)
        assert sent[0].partition == allowed[0]
        assert {row.partition for row in sent} == set(allowed)
    return Counter(key for key, _ in senders)


def read_back(spark: SparkSession, servers: str, topic: str) -> list[Any]:
    frame = read(spark, servers, subscribe=topic, includeHeaders="true")
    order = Window.partitionBy("key", "split_sender").orderBy("split_number")
    rows = unsalt(frame).withColumn("rank", f.row_number().over(order))
    columns = ("string(key) AS key", "string(value) AS value", "headers", "partition")
    return rows.orderBy("rank").selectExpr(*columns, "split_sender", "split_number").collect()


def test_what_was_salted_and_written_comes_back_in_order(spark: SparkSession, servers: str) -> None:
    topic = make_topic(servers, "salted")
    frame = salt(orders(spark.range(0, ROWS, 1, 3)), PARTITIONS, SHARES)
    write(frame, servers, topic=topic)
    assert check(read_back(spark, servers, topic), ROWS) == {"us": 3, "de": 3}


def test_each_epoch_of_a_stream_has_senders_of_its_own(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    topic, directory = make_topic(servers, "salted-stream"), str(tmp_path / "rows")
    for part in range(2):
        rows = spark.range(part * ROWS // 2, (part + 1) * ROWS // 2, 1, 1)
        rows.write.mode("append").parquet(directory)
    reader = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
    salted = salt(orders(reader.parquet(directory)), PARTITIONS, SHARES)
    writer = salted.writeStream.format("trimtab").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / "kept"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(each["numInputRows"] > 0 for each in query.recentProgress) == 2
    assert check(read_back(spark, servers, topic), ROWS) == {"us": 2, "de": 2}


def test_a_stream_is_unsalted_too(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    topic = make_topic(servers, "unsalted-stream")
    write(salt(orders(spark.range(0, 400, 1, 1)), PARTITIONS, SHARES), servers, topic=topic)
    reader = spark.readStream.format("trimtab").option("kafka.bootstrap.servers", servers)
    options = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
    writer = unsalt(reader.options(**options).load()).writeStream.format("parquet")
    kept = str(tmp_path / "rows")
    writer = writer.option("path", kept).option("checkpointLocation", str(tmp_path / "kept"))
    writer.trigger(availableNow=True).start().awaitTermination()
    counts = (
        spark.read.parquet(kept)
        .groupBy("split_sender")
        .agg(f.count("*").alias("rows"), f.max("split_number").alias("last"))
    )
    assert sorted(tuple(row)[1:] for row in counts.collect() if row.split_sender) == [
        (50, 49),
        (200, 199),
    ]


def test_zipfs_bytes_become_even_with_the_keys_of_the_table(spark: SparkSession) -> None:
    partitions = 100
    # Rank 1 + 0.05 / u ** 2.5 has about the distribution of Zipf with exponent 1.4.
    drawn = spark.range(0, 120_000, 1, 2).selectExpr(
        "concat('key ', least(100000, floor(power(1 - rand(7), -2.5)))) AS key",
        "repeat('v', CAST(50 + 450 * rand(8) AS int)) AS value",
    )
    frame = drawn.localCheckpoint()
    table = load.key_skew(frame, partitions, weight="octet_length(key) + octet_length(value)")
    assert table.first().TimesMean > 20  # type: ignore[union-attr]
    placed = salt(frame, partitions, table).groupBy("key", "partition")
    sums = placed.agg(f.expr("sum(octet_length(key) + octet_length(value))").alias("bytes"))
    loads = [0] * partitions
    for row in sums.collect():
        own = partition_for_key(row.key.encode(), partitions)
        loads[own if row.partition is None else row.partition] += row.bytes
    assert max(loads) * partitions / sum(loads) <= 1.05


def test_partitions_that_one_task_computes_have_senders_of_their_own(spark: SparkSession) -> None:
    salted = unsalt(salt(orders(spark.range(0, 400, 1, 4)), PARTITIONS, {"us": 0.5}).coalesce(1))
    numbers = salted.filter("key = 'us'").select("split_sender", "split_number")
    assert (numbers.count(), numbers.distinct().count()) == (200, 200)
    again = salted.filter("key = 'us'").select("split_sender", "split_number")
    first = {bytes(row.split_sender) for row in again.collect()}
    assert len(first) == 4
    assert not first & {bytes(row.split_sender) for row in again.collect()}  # another write


def test_old_marks_are_replaced_and_what_only_looks_like_one_is_kept(spark: SparkSession) -> None:
    old = "unhex(concat('0102030405060708', '0000000000000009', '00000002'))"
    wrong = "unhex(concat('0102030405060708', '0000000000000001', '00000002'))"
    frame = spark.range(4).selectExpr(
        "CASE WHEN id < 2 THEN binary('hot') WHEN id = 2 THEN binary('cold') END AS key",
        "'v' AS value",
        f"transform(array({wrong}, {old}, binary('mine')), each ->"
        " struct('trimtab.split' AS key, each AS value)) AS headers",
    )
    found = unsalt(frame)
    assert {(bytes(row.split_sender), row.split_number) for row in found.collect()} == {
        (b"\1\2\3\4\5\6\7\x08", 9)
    }
    others = [[bytes(each.value)[-4:] for each in row.headers] for row in found.collect()]
    assert others == [[b"\0\0\0\2", b"mine"]] * 4
    again = unsalt(salt(frame.coalesce(1), PARTITIONS, {b"hot": 0.3})).collect()
    assert [row.split_number for row in again] == [0, 1, None, None]
    assert {len(row.headers) for row in again} == {2}


def test_refusals_name_what_is_wrong(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("k", "v")], "key string, value string")
    table = "key string, Share double, IsHot boolean"
    topics = spark.createDataFrame(
        [("k", 0.5, True, "a"), ("k", 0.5, True, "b")], f"{table}, topic string"
    )
    hashes = spark.createDataFrame([(1, 0.5, True)], "keyHash int, Share double, IsHot boolean")
    stream = spark.readStream.format("rate").load()
    stream = stream.selectExpr("string(value) AS key", "0.5D AS Share", "true AS IsHot")
    shares: Any
    for given, partitions, shares, message in (
        (frame.drop("value"), 8, SHARES, "salt has no column value, but key: add"),
        (frame.selectExpr("*", "1 AS partition"), 8, SHARES, r"frame.drop\('partition'\)"),
        (frame, 0, SHARES, "partitions=0: must be from 1"),
        (frame, 8, {"k": 1.5}, "the share of key 'k' is 1.5: give"),
        (frame, 8, {7: 0.5}, "7: .*give keys as bytes or text"),
        (frame, 8, topics, "has the topics a, b: filter"),
        (frame, 8, hashes, "hashes in place of keys"),
        (frame, 8, stream, "shares is a stream"),
        (frame, 8, frame, "shares has no column Share"),
    ):
        with pytest.raises(UsageError, match=message):
            salt(given, partitions, shares)
    with pytest.raises(UsageError, match="no column headers, but key, value: read with option"):
        unsalt(frame)
