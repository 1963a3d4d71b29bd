"""How much Spark does for a load report: its jobs, and how often it reads the topics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trimtab.cli.load import survey
from trimtab.cli.load.history import remember
from trimtab.cli.load.reading import Reading
from trimtab.spark.load.snapshots import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
RACKS = {1: "a", 2: "b", 3: "c"}
GROWN = 10
MOST_JOBS = 37


def take(at: datetime, topics: int, partitions: int, groups: int, latest: int) -> Snapshot:
    """A cluster with three brokers; each partition has two replicas."""
    placed = [
        (f"t{topic}", number, 1 + number % 3, 1 + (number + 1) % 3)
        for topic in range(topics)
        for number in range(partitions)
    ]
    return Snapshot(
        partitions=[
            (
                at,
                topic,
                number,
                leader,
                RACKS[leader],
                [leader, other],
                [RACKS[leader], RACKS[other]],
                [leader],
            )
            for topic, number, leader, other in placed
        ],
        offsets=[(at, topic, number, 0, latest) for topic, number, _, _ in placed],
        brokers=[(at, broker, "h", 9092, rack, 9999, None) for broker, rack in RACKS.items()],
        directories=[(at, broker, "/d", 10**12, 10**11) for broker in RACKS],
        replicas=[
            (at, broker, "/d", topic, number, 100 * latest, 0, False)
            for topic, number, leader, other in placed
            for broker in (leader, other)
        ],
        group_offsets=[
            (at, f"g{group}", topic, number, latest - 1 - group)
            for group in range(groups)
            for topic, number, _, _ in placed
        ],
    )


def look(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    history: Path,
    topics: int,
    partitions: int,
    groups: int,
) -> tuple[survey.Tables, int, float]:
    """A report's tables, Spark's jobs for it, and how often each record was read."""
    remember(take(NOON - timedelta(hours=2), topics, partitions, groups, GROWN), history)
    snapshot = take(NOON, topics, partitions, groups, 2 * GROWN)
    rows = [
        (topic, number, offset, NOON - timedelta(hours=offset), 0, 100, 1, 9, b"%d" % offset)
        for _, topic, number, *_ in snapshot.partitions
        for offset in range(2)
    ]
    context = spark.sparkContext
    evaluated = context.accumulator(0)

    def read(_: object, __: object, schema: str) -> DataFrame:
        columns = len(schema.split(", "))

        def evaluate(row: tuple[Any, ...]) -> tuple[Any, ...]:
            evaluated.add(1)
            return row[:columns]

        return spark.createDataFrame(
            context.parallelize(rows, 2).map(evaluate), schema, verifySchema=False
        )

    monkeypatch.setattr(survey, "_read", read)
    request = survey.SurveyRequest(
        client={},
        topics=[f"t{topic}" for topic in range(topics)],
        snapshot=snapshot,
        reading=Reading({}, 0.0, 1.0),
        window="1 hour",
        keys="text",
        clients=[("t0", "produce", "a", 1.0, False), ("t1", "consume", "c", 1.0, True)],
        cost_per_gb=0.02,
        top=5,
        history=history,
    )
    scheduler = spark._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    said: list[str] = []
    tables = survey.survey(spark, request, said.append)
    assert [line.partition("]")[0] for line in said] == ["[1/3", "[2/3", "[3/3"]
    return tables, scheduler.numTotalJobs() - before, evaluated.value / len(rows)


def test_a_report_reads_the_topics_twice_in_as_many_jobs_whatever_their_number(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small, jobs_of_small, _ = look(spark, monkeypatch, tmp_path / "small", 3, 2, 1)
    large, jobs_of_large, reads = look(spark, monkeypatch, tmp_path / "large", 40, 30, 5)
    print(f"{jobs_of_small} jobs of 6 partitions, {jobs_of_large} of 1,200")
    assert jobs_of_small == jobs_of_large <= MOST_JOBS
    assert reads == 2  # for the loads, and for the keys
    for tables, partitions, groups in ((small, 6, 1), (large, 1200, 5)):
        assert tables.totals.num_rows == partitions
        assert tables.partition_load.num_rows == 2 * partitions
        assert tables.group_lag is not None
        assert tables.group_lag.num_rows == partitions * groups
        grown = tables.broker_capacity.column("BytesPerDay").to_pylist()
        assert sum(grown) == pytest.approx(2 * partitions * 100 * GROWN * 12)
