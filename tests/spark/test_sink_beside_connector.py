"""The same DataFrame written by Spark's own Kafka connector and by ours, to Apache Kafka.

Skipped without Java and Maven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.benchmarks.apache_kafka import ApacheKafka
from lab.benchmarks.jars import RivalMissing, connector_jars
from tests.spark import frames
from tests.spark.foreign import Stored, read_topic
from trimtab import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 5


@pytest.fixture(scope="module")
def kafka(spark: SparkSession, apache_kafka: ApacheKafka) -> str:
    try:
        jars = connector_jars()
    except RivalMissing as missing:
        pytest.skip(str(missing))
    for jar in sorted(jars.glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")
    return apache_kafka.address


def write(frame: DataFrame, kind: str, servers: str, topic: str, **options: str) -> list[Stored]:
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    frames.write(frame, servers, kind, topic=topic, **options)
    return read_topic(servers, topic)


def test_keys_nulls_headers_and_partitions_are_stored_alike(
    spark: SparkSession, kafka: str
) -> None:
    frame = spark.range(0, 2000, 1, 1).selectExpr(
        "CASE WHEN id % 4 = 0 THEN '' WHEN id % 4 = 1 THEN concat('ключ', id % 50)"
        " ELSE CAST(id % 100 AS STRING) END AS key",
        "CASE id % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE CAST(id AS STRING) END AS value",
        "CASE WHEN id % 5 = 0 THEN CAST(id % 4 AS INT) END AS partition",
        "CASE id % 3 WHEN 0 THEN NULL WHEN 1 THEN array() ELSE array("
        " struct('' AS key, CAST(NULL AS BINARY) AS value),"
        " struct('größe' AS key, CAST('x' AS BINARY) AS value),"
        " struct('größe' AS key, CAST('' AS BINARY) AS value)) END AS headers",
        "id AS other",
    )
    theirs = write(frame, "kafka", kafka, "connector-theirs")
    ours = write(frame, "trimtab", kafka, "connector-ours")
    assert len(ours) == 2000
    assert {each.partition for each in ours} == set(range(PARTITIONS))
    assert [each._replace(timestamp=0) for each in ours] == [
        each._replace(timestamp=0) for each in theirs
    ]


def test_null_keys_go_to_all_partitions_with_either(spark: SparkSession, kafka: str) -> None:
    frame = spark.range(0, 100_000, 1, 1).selectExpr("CAST(id AS STRING) AS value")
    for kind in ("kafka", "trimtab"):
        stored = write(
            frame, kind, kafka, f"connector-null-keys-{kind}", **{"kafka.batch.size": "16384"}
        )
        assert len({each.value for each in stored}) == 100_000
        assert {each.partition for each in stored} == set(range(PARTITIONS))
        assert all(each.key is None for each in stored)
