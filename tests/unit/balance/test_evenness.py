"""Whether a sample shows that partitions are even: right as often as it says."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import comb
from random import Random

import pytest

from trimtab.balance.evenness import Evenness, chance_of_at_least, judge_evenness

ANSWERS = Counter[Evenness]


def draw(shares: list[float], count: int, times: int, worst: float = 1.3) -> ANSWERS:
    """What so many samples of a topic with these shares show."""
    random, answers = Random(count), ANSWERS()
    for _ in range(times):
        largest = max(Counter(random.choices(range(len(shares)), shares, k=count)).values())
        answers[judge_evenness(largest, count, len(shares), worst, 0.995).evenness] += 1
    return answers


@pytest.mark.parametrize("count", [5, 50, 500, 2000])
@pytest.mark.parametrize("ratio", [1.0, 1.3])
def test_what_is_allowed_is_called_uneven_in_5_of_1000_samples_at_most(
    count: int, ratio: float
) -> None:
    shares = [ratio / 12] + [(1 - ratio / 12) / 11] * 11
    assert draw(shares, count, 1000)[Evenness.UNEVEN] <= 5


@pytest.mark.parametrize("count", [5, 50, 500, 2000])
@pytest.mark.parametrize("ratio", [1.301, 2.0, 6.0])
def test_what_is_not_allowed_is_called_even_in_5_of_1000_samples_at_most(
    count: int, ratio: float
) -> None:
    shares = [ratio / 12] + [(1 - ratio / 12) / 11] * 11
    assert draw(shares, count, 1000)[Evenness.EVEN] <= 5


def test_enough_records_decide_it_and_the_number_is_named() -> None:
    even, uneven = [1 / 12] * 12, [0.14] + [0.86 / 11] * 11
    for shares, right in [(even, Evenness.EVEN), (uneven, Evenness.UNEVEN)]:
        assert draw(shares, 200, 200)[Evenness.UNCLEAR] > 100
        enough = judge_evenness(200 * max(shares), 200, 12, 1.3, 0.995).enough
        assert 200 < enough < 20_000
        assert draw(shares, 4 * enough, 50)[right] >= 49


def test_no_partition_can_have_more_than_all() -> None:
    assert judge_evenness(10, 10, 2, 2.0, 0.995).evenness is Evenness.EVEN
    assert judge_evenness(10, 10, 1, 1.3, 0.995).evenness is Evenness.EVEN


@pytest.mark.parametrize(
    ("number", "count", "share"),
    [(1, 10, 0.01), (4, 10, 0.2), (10, 10, 0.5), (60, 100, 0.5), (900, 1000, 0.85), (3, 3, 0.9)],
)
def test_chances_are_those_of_the_binomial_distribution(
    number: int, count: int, share: float
) -> None:
    exact = sum(
        comb(count, each) * Fraction(share) ** each * (1 - Fraction(share)) ** (count - each)
        for each in range(number, count + 1)
    )
    assert chance_of_at_least(number, count, share) == pytest.approx(float(exact), rel=1e-9)


def test_chances_at_the_ends_and_of_many() -> None:
    assert chance_of_at_least(5, 10, 0.5) == 1.0
    assert chance_of_at_least(11, 10, 0.5) == 0.0
    assert chance_of_at_least(1, 10, 0.0) == 0.0
    assert chance_of_at_least(10, 10, 1.0) == 1.0
    # Four standard deviations above the mean of a hundred million draws.
    assert chance_of_at_least(50_020_000, 100_000_000, 0.5) == pytest.approx(3.17e-5, rel=0.01)
