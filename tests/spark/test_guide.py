"""The Python in docs/spark.md runs as it is written, one block after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trimtab import Admin, Cluster, Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
BLOCKS = {
    section.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    for section in GUIDE.split("\n## ")
}
RECORDS = 1000


@pytest.fixture(scope="module")
def guide(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What a reader has typed so far: a cluster, a topic, and the names of the first steps."""
    directory = tmp_path_factory.mktemp("guide")
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("flights", partitions=3)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("flights", b"%d" % (number + 1))
        typed: dict[str, Any] = {"directory": directory, "address": cluster.bootstrap_servers}
        for block in BLOCKS["First steps"]:
            run(block, typed)
        yield typed


def run(block: str, typed: dict[str, Any]) -> None:
    """With this test's cluster and directory in place of the guide's."""
    directory, address = str(typed["directory"]), str(typed["address"])
    text = block.replace("127.0.0.1:9092", address)
    text = text.replace('"/tmp/guide/', f'"{directory}/').replace('"/data/', f'"{directory}/')
    exec(compile(text, "docs/spark.md", "exec"), typed)


def count(typed: dict[str, Any], topic: str) -> int:
    with Admin(typed["address"]) as admin:
        partitions = range(admin.describe_topics([topic])[topic].partition_count)
        ends = admin.list_offsets([(topic, number) for number in partitions])
    return sum(each.offset for each in ends.values())


def committed(typed: dict[str, Any], topic: str) -> int:
    """How many records a reader of committed ones sees."""
    with Consumer(typed["address"], isolation_level="read_committed") as consumer:
        with Admin(typed["address"]) as admin:
            count = admin.describe_topics([topic])[topic].partition_count
        partitions = [TopicPartition(topic, number) for number in range(count)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found = 0
        while any(consumer.position(each) < end for each, end in ends.items()):
            found += len(consumer.poll(500))
    return found


def test_every_block_is_python() -> None:
    assert [section for section, blocks in BLOCKS.items() if blocks] == [
        "First steps",
        "Reading a batch",
        "Reading streams",
        "Writing",
        "Exactly once, in plain words",
        "Load tables",
    ]
    for blocks in BLOCKS.values():
        for block in blocks:
            compile(block, "docs/spark.md", "exec")


def test_the_first_steps(guide: dict[str, Any], spark: SparkSession) -> None:
    assert spark.read.parquet(f"{guide['directory']}/flights").count() == RECORDS
    assert count(guide, "flights") == RECORDS + 100


def test_reading_and_writing(guide: dict[str, Any], spark: SparkSession) -> None:
    (choose,) = BLOCKS["Reading a batch"]
    (listener,) = BLOCKS["Reading streams"]
    stream, update, _ = BLOCKS["Writing"]
    run(choose, guide)
    run(listener, guide)
    try:
        run(stream, guide)
    finally:
        spark.streams.removeListener(guide["listener"])
    assert count(guide, "copies") == RECORDS + 100
    run(update, guide)
    assert count(guide, "counts") >= 8  # seven keys, and records without one


def test_exactly_once(guide: dict[str, Any], spark: SparkSession) -> None:
    """A batch with the number of the last one is not written again."""
    stream, batch = BLOCKS["Exactly once, in plain words"]
    with Admin(guide["address"]) as admin:
        if "copies" not in admin.topics():
            admin.create_topic("copies", partitions=3)
    before, all_flights = committed(guide, "copies"), count(guide, "flights")
    guide["stream"] = (
        spark.readStream.format("trimtab")
        .option("kafka.bootstrap.servers", guide["address"])
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
    )
    run(stream, guide)
    guide["query"].processAllAvailable()
    guide["query"].stop()
    assert committed(guide, "copies") == before + all_flights
    run(batch, guide)
    before = committed(guide, "copies")
    rows = guide["flights"].selectExpr("value")
    for number in (1, 1, 2):
        guide["write_once"](rows, number)
    assert committed(guide, "copies") == before + 2 * rows.count()


def test_load_tables(guide: dict[str, Any], spark: SparkSession) -> None:
    """The first block: the others are tried in test_load.py and test_load_on_cluster.py."""
    run(BLOCKS["Load tables"][0], guide)
    assert spark.read.parquet(f"{guide['directory']}/partition_load").count() >= 3


def test_hot_keys(guide: dict[str, Any]) -> None:
    run(BLOCKS["Writing"][-1], guide)
    first = guide["rows"].filter("split_number = 0")
    # A sender for each partition of Spark.
    assert first.count() == guide["orders"].rdd.getNumPartitions()
    split = guide["rows"].filter("split_sender IS NOT NULL")
    assert {bytes(row.key) for row in split.select("key").collect()} == {b"us"}
    assert split.count() == 500
