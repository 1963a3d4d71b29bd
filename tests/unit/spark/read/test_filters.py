"""Filters that Spark pushes down never leave out a row that would pass."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from trimtab.client.fetcher.ranges import OffsetRange, narrow
from trimtab.kafka.records import TopicPartition
from trimtab.spark.read.filters import read_filters

WHOLE = [OffsetRange("t", 0, 10, 20), OffsetRange("t", 1, 0, 5), OffsetRange("u", 0, 0, 9)]
SPANS = {(each.topic, each.partition): (each.start, each.end) for each in WHOLE}


def narrowed(*filters: Filter, found: Mapping[Any, int | None] | None = None) -> dict[Any, Any]:
    """Start and end that are left, by topic and partition."""

    def find_times(times: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        assert found is not None, "looked up without need"
        return {each: found[each, at] for each, at in times.items()}

    ranges = narrow(WHOLE, read_filters(filters), find_times)
    return {(each.topic, each.partition): (each.start, each.end) for each in ranges}


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ((), SPANS),
        ((IsNotNull(("partition",)), EqualTo(("partition",), 1)), {("t", 1): (0, 5)}),
        ((In(("partition",), (1, 7)),), {("t", 1): (0, 5)}),
        ((GreaterThan(("partition",), 0),), {("t", 1): (0, 5)}),
        ((EqualTo(("topic",), "u"),), {("u", 0): (0, 9)}),
        ((EqualTo(("topic",), "u"), EqualTo(("topic",), "t")), {}),
        ((EqualTo(("offset",), 4),), {("t", 1): (4, 5), ("u", 0): (4, 5)}),
        ((In(("offset",), (3, 12)),), {("t", 0): (10, 13), ("t", 1): (3, 5), ("u", 0): (3, 9)}),
        (
            (GreaterThan(("offset",), 3), LessThanOrEqual(("offset",), 11)),
            {("t", 0): (10, 12), ("t", 1): (4, 5), ("u", 0): (4, 9)},
        ),
        ((GreaterThanOrEqual(("offset",), 20),), {}),
        ((LessThan(("offset",), 1),), {("t", 1): (0, 1), ("u", 0): (0, 1)}),
        # Not narrowed: negations, other columns, values of another type, nested attributes.
        ((Not(EqualTo(("partition",), 1)),), SPANS),
        ((EqualTo(("timestampType",), 1),), SPANS),
        ((EqualTo(("partition",), None), GreaterThan(("offset",), 1.5)), SPANS),
        ((EqualTo(("offset", "partition"), 1),), SPANS),
        ((LessThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC)),), SPANS),
        ((GreaterThan(("timestamp",), datetime(1969, 12, 31, tzinfo=UTC)),), SPANS),
        ((GreaterThan(("timestamp",), datetime(1, 1, 1)),), SPANS),
    ],
)
def test_partition_offset_and_topic(filters: tuple[Filter, ...], left: dict[Any, Any]) -> None:
    assert narrowed(*filters) == left


def test_a_time_becomes_the_first_offset_that_is_so_late() -> None:
    at = datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)
    looked_up = 1_767_225_600_122  # a millisecond earlier lets nothing be left out
    found = {
        (TopicPartition("t", 0), looked_up): 15,
        (TopicPartition("t", 1), looked_up): None,  # no record is that late
        (TopicPartition("u", 0), looked_up): 9,  # only what came after planning began
    }
    for kind in (GreaterThan, GreaterThanOrEqual, EqualTo):
        assert narrowed(kind(("timestamp",), at), found=found) == {("t", 0): (15, 20)}


def test_nothing_is_looked_up_for_what_is_not_read() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert narrowed(EqualTo(("partition",), 9), GreaterThan(("timestamp",), at)) == {}
