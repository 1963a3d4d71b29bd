"""What the moving estimates keep, and for how long."""

from __future__ import annotations

import pytest

from trimtab.client.sender.smoothing import DrainRate, RecentLeast, RecentMedian


def test_two_odd_samples_of_five_do_not_move_the_median() -> None:
    median = RecentMedian()
    samples = [3.0, 3.0, 3.0, 50.0, 50.0, 3.0, 3.0]
    assert [median.add_sample(sample, 0.1 * at) for at, sample in enumerate(samples)] == [3.0] * 7


def test_the_third_sample_of_a_new_kind_moves_it() -> None:
    median = RecentMedian()
    for at in range(9):
        median.add_sample(20.0, 0.1 * at)
    assert [median.add_sample(1.0, 0.9 + at / 100) for at in range(3)] == [20.0, 20.0, 1.0]


def test_what_is_older_than_a_second_does_not_count() -> None:
    median = RecentMedian()
    for at in range(5):
        median.add_sample(20.0, 0.1 * at)
    assert median.add_sample(1.0, 1.35) == 1.0, "one of 20 left, and the lower of two counts"
    assert median.add_sample(7.0, 9.0) == 7.0


def test_the_least_is_kept_for_ten_to_twenty_seconds() -> None:
    least = RecentLeast()
    assert least.add_sample(5.0, 0.0) == 5.0
    assert least.add_sample(1.0, 1.0) == 1.0
    assert least.add_sample(4.0, 10.5) == 1.0, "of the ten seconds before"
    assert least.add_sample(4.5, 19.0) == 1.0
    assert least.add_sample(6.0, 21.0) == 4.0
    assert least.add_sample(6.0, 32.0) == 6.0


def test_a_drain_rate_counts_bytes_that_come_back_together_and_not_idle_time() -> None:
    rate = DrainRate()
    assert rate.add_bytes(1000, 0.0) == 0.0, "unknown: it took no time"
    assert rate.add_bytes(1000, 0.01) == pytest.approx(200_000, rel=0.02)
    for _ in range(200):
        current = rate.add_bytes(500, 0.01)
    assert current == pytest.approx(50_000, rel=0.02)
