"""`load.key_skew` of frames and streams has the numbers of `trimtab.key_skew`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from trimtab import key_skew
from trimtab.client.partitioner.murmur2_cy import murmur2
from trimtab.kafka.errors import UsageError
from trimtab.spark import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trimtab.client.partitioner.key_spread import KeySkew

PARTITIONS = 40


def draw(number: int, seed: int) -> list[str]:
    weights = list(accumulate(rank**-1.2 for rank in range(1, 901)))
    return [f"key {at}" for at in Random(seed).choices(range(900), cum_weights=weights, k=number)]


def check(rows: Sequence[Mapping[str, Any]], plain: KeySkew, key: str = "key") -> None:
    """Rows of a topic or window, in any order."""
    first, *others = sorted(rows, key=lambda row: row["Rank"])
    assert (first["Rank"], first[key], first["Partition"]) == (0, None, plain.partition)
    assert first["TimesMean"] == pytest.approx(plain.ratio)
    whole = {tuple(row[name] for name in ("Evenness", "Records", "Enough")) for row in rows}
    assert whole == {(plain.evenness, plain.records, plain.enough)}
    assert {row["NullKeyRecords"] for row in rows} == {plain.without_key}
    expected = [(each.share, each.partition) for each in plain.heaviest]
    assert [(row["Share"], row["Partition"]) for row in others[:10]] == expected
    for row in others:
        assert row["TimesMean"] == pytest.approx(row["Share"] * PARTITIONS)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def test_a_frame_of_topics_is_judged_by_records_and_by_bytes(spark: SparkSession) -> None:
    one, two = draw(5000, 1), draw(3000, 2)
    given: list[tuple[str, str | None, str]] = [
        *(("one", key, "v" * (1 + at % 30)) for at, key in enumerate(one)),
        *(("two", key, "w") for key in two),
        *(("two", None, "w"), ("empty", None, "w")),
    ]
    frame = spark.createDataFrame(given, "topic string, key string, value string").repartition(3)
    rows = rows_of(load.key_skew(frame, PARTITIONS))
    assert [row["topic"] for row in rows] == sorted(row["topic"] for row in rows)
    assert {row["topic"] for row in rows} == {"one", "two"}
    keys = {name: [key for topic, key, _ in given if topic == name] for name in ("one", "two")}
    for name in keys:
        of_topic = [row for row in rows if row["topic"] == name]
        check(of_topic, key_skew(keys[name], partitions=PARTITIONS))
        assert [row["Rank"] for row in of_topic] == sorted(row["Rank"] for row in of_topic)
    hot = [row["key"] for row in rows if row["topic"] == "one" and row["IsHot"]]
    assert hot[:2] == ["key 0", "key 1"]
    heavy = load.key_skew(frame.filter("topic = 'one'"), PARTITIONS, weight="octet_length(value)")
    weights = [len(value) for topic, _, value in given if topic == "one"]
    check(rows_of(heavy), key_skew(keys["one"], partitions=PARTITIONS, weights=weights))


def test_hashes_stand_for_keys(spark: SparkSession) -> None:
    keys = draw(4000, 3)
    hashes = [murmur2(key.encode()) for key in keys]
    signed = [(each - (each >> 31 << 32),) for each in hashes]
    rows = rows_of(load.key_skew(spark.createDataFrame(signed, "keyHash int"), PARTITIONS, top=3))
    plain = key_skew(keys, partitions=PARTITIONS)
    names = {murmur2(each.key): each for each in plain.heaviest[:3]}
    assert rows[0]["TimesMean"] == pytest.approx(plain.ratio)
    found = {row["keyHash"] & 0xFFFFFFFF: (row["Share"], row["Partition"]) for row in rows[1:4]}
    assert found == {key: (each.share, each.partition) for key, each in names.items()}


def test_each_window_of_a_stream_is_judged_once_it_is_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    minutes = [draw(1500, seed) for seed in (4, 5, 6)]
    for at, keys in enumerate(minutes):  # a file has the end of a minute, and begins the next one
        parts = [(at, keys[500:]), (at + 1, minutes[at + 1][:500])] if at < 2 else [(2, keys[500:])]
        if not at:
            parts.insert(0, (0, keys[:500]))
        lines = [
            json.dumps({"timestamp": f"2026-11-23T12:0{minute}:30Z", "key": key})
            for minute, some in parts
            for key in some
        ]
        (files / f"{at}.json").write_text("\n".join(lines))
    reader = spark.readStream.schema("timestamp timestamp, key string")
    frame = (
        reader.option("maxFilesPerTrigger", 1)
        .json(str(files))
        .selectExpr("timestamp", "binary(key) AS key")
    )
    table = load.key_skew(frame, PARTITIONS, window="1 minute", watermark="0 seconds")
    kept = str(tmp_path / "table")
    query = load.start(table, kept, str(tmp_path / "checkpoint"), trigger={"availableNow": True})
    query.awaitTermination()
    rows = rows_of(spark.read.parquet(kept).selectExpr("minute(window.start) AS minute", "*"))
    assert {row["minute"] for row in rows} == {0, 1}
    for minute in (0, 1):
        plain = key_skew(minutes[minute], partitions=PARTITIONS)
        check([row for row in rows if row["minute"] == minute], plain)


def test_refusals_name_what_is_wrong(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("k", 1)], "key string, number bigint")
    stream = spark.readStream.format("rate").load().selectExpr("timestamp", "string(value) AS key")
    for given, options, message in (
        (frame, {"partitions": 0}, "partitions=0: must be from 1 to 1000000"),
        (frame, {"partitions": 2, "worst": 1}, r"worst=1\): the largest has at least the mean"),
        (frame, {"partitions": 2, "confidence": 1}, "confidence=1"),
        (frame, {"partitions": 2, "window": "1 minute"}, "no column timestamp"),
        (frame.drop("key"), {"partitions": 2}, "no column keyHash"),
        (frame.selectExpr("number AS key"), {"partitions": 2}, "column key has type bigint: cast"),
        (stream, {"partitions": 2}, "a stream needs a window"),
    ):
        with pytest.raises(UsageError, match=message):
            load.key_skew(given, **options)
