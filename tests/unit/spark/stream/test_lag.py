"""Lag, as it stands in a query's progress (`trimtab.spark.stream.lag`)."""

from __future__ import annotations

from trimtab.kafka.records import TopicPartition
from trimtab.spark.stream.lag import measure_lag


def test_how_far_partitions_are_behind_has_the_names_of_sparks_kafka_source() -> None:
    begins = {TopicPartition("t", n): 0 for n in range(3)}
    ends = {TopicPartition("t", n): 1 for n in range(3)}
    latest = {TopicPartition("t", n): 1 + n * n for n in range(3)}
    shown = measure_lag(begins, ends, latest, None, 0)
    assert shown["lagRecords"] == 5
    assert [shown[f"{which}OffsetsBehindLatest"] for which in ("min", "max", "avg")] == [
        0,
        4,
        5 / 3,
    ]


def test_what_is_not_known_is_left_out() -> None:
    where = TopicPartition("t", 0)
    assert measure_lag({where: 0}, {where: 3}, {where: 10}, None, 0) == {
        "batchRecords": 3,
        "lagRecords": 7,
        "lagBytesIsEstimate": False,
        "driverBytes": 0,
        "minOffsetsBehindLatest": 7,
        "maxOffsetsBehindLatest": 7,
        "avgOffsetsBehindLatest": 7,
    }
