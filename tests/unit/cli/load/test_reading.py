"""Which records a load report reads, and in which windows."""

from __future__ import annotations

import pytest

from trimtab.cli.load.reading import Stored, choose_offsets, choose_window
from trimtab.kafka.records import TopicPartition

ONE, TWO, THREE = (TopicPartition("t", number) for number in range(3))


def test_everything_is_read_within_the_limit() -> None:
    stored = {TWO: Stored(5, 5, 25, 2000), ONE: Stored(0, 0, 10, 1000), THREE: Stored(7, 7, 7, 0)}
    reading = choose_offsets(stored, 3000)
    assert reading == ({ONE: (0, 10), TWO: (5, 25)}, 3000, 1.0)
    assert list(reading.offsets) == [ONE, TWO]


def test_beyond_the_limit_the_same_newest_part_of_each_partition_is_read() -> None:
    stored = {ONE: Stored(0, 0, 1000, 90_000), TWO: Stored(100, 100, 300, 10_000)}
    reading = choose_offsets(stored, 10_000)
    assert reading.offsets == {ONE: (900, 1000), TWO: (280, 300)}
    assert (reading.bytes, reading.share) == (10_000, 0.1)


def test_a_partition_with_records_is_never_left_out() -> None:
    stored = {ONE: Stored(0, 0, 10**9, 10**12), TWO: Stored(0, 0, 1, 70)}
    assert choose_offsets(stored, 1).offsets == {ONE: (10**9 - 1, 10**9), TWO: (0, 1)}


def test_what_was_written_before_the_time_asked_for_does_not_count() -> None:
    stored = {ONE: Stored(0, 900, 1000, 100_000), TWO: Stored(0, 50, 50, 100_000)}
    reading = choose_offsets(stored, 10_000)
    assert reading == ({ONE: (900, 1000)}, 10_000, 1.0)
    assert choose_offsets({}, 1) == ({}, 0, 1.0)


@pytest.mark.parametrize(
    ("seconds", "partitions", "window"),
    [
        (0, 1, "1 minute"),
        (200 * 60, 33, "1 minute"),
        (200 * 60 + 1, 33, "5 minutes"),
        (30 * 86_400, 1000, "6 hours"),
        (30 * 86_400, 10_000, "1 day"),  # 100 windows of 10,000 rows
        (30 * 86_400, 10_000_000, "30 days"),
        (1e12, 1, "365 days"),
    ],
)
def test_windows_fit_the_time_and_the_partitions(
    seconds: float, partitions: int, window: str
) -> None:
    assert choose_window(seconds, partitions) == window
