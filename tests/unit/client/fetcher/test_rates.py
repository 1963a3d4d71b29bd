"""Rates of writing, measured by a consumer that may be far behind."""

from __future__ import annotations

import pytest

from trimtab.client.fetcher.plan import Batches
from trimtab.client.fetcher.rates import WINDOW, WriteRates
from trimtab.kafka.records import TopicPartition

T = TopicPartition("t", 0)


def fetched(start: int, next_offset: int, mark: int, size: int) -> Batches:
    return Batches(T, start, next_offset, mark, memoryview(bytes(size)))


def test_a_rate_is_that_of_writing_whatever_the_speed_of_reading() -> None:
    rates = WriteRates()
    rates.note(fetched(0, 1000, 50_000, 100_000), 0.0)
    assert rates.rates(0.0) == {}
    rates.note(fetched(1000, 9000, 50_200, 800_000), 10.0)
    assert rates.rates(10.0) == {T: pytest.approx(20 * 100)}


def test_the_last_window_counts() -> None:
    rates = WriteRates()
    for second in range(int(WINDOW) + 2):
        rates.note(fetched(second, second + 1, 10 * second, 10), float(second))
    last = 10 * (WINDOW + 1)
    for second in range(1, 101):
        at = WINDOW + 1 + second
        rates.note(fetched(0, 1, int(last) + 1000 * second, 10), at)
    assert rates.rates(WINDOW + 101)[T] == pytest.approx(10_000, rel=0.02)
    assert rates.rates(10 * WINDOW) == {}


def test_a_partition_that_was_made_again_begins_again() -> None:
    rates = WriteRates()
    rates.note(fetched(0, 10, 1000, 100), 0.0)
    rates.note(fetched(0, 10, 5, 100), 10.0)
    assert rates.rates(10.0) == {}


def test_a_truncation_is_no_measurement() -> None:
    rates = WriteRates()
    rates.note(fetched(0, 10, 1000, 100), 0.0)
    rates.note(fetched(5, 5, -1, 0), 5.0)
    rates.note(fetched(5, 15, 1010, 100), 10.0)
    assert rates.rates(10.0) == {T: pytest.approx(10)}
