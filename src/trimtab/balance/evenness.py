"""Whether a sample of keys shows that partitions are even, uneven, or too little to say.

A sample of `count` records has `largest` in its largest partition. If the records are independent
draws, the number in a partition is binomial. So the sample is

- uneven, if a partition whose true share is `worst` times the mean would hardly get as many: with
  a chance below `1 - confidence` for all partitions together (Bonferroni);
- even, if such a partition would hardly get as few. One test at this level suffices, because one
  partition that has too much makes all of them uneven (an intersection-union test: Berger, 1982);
- otherwise too small.

A topic that is as uneven as `worst` or less is therefore called uneven in `1 - confidence` of all
samples at most, and one that is more uneven is called even as seldom.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil, exp, lgamma, log, log1p
from statistics import NormalDist
from typing import NamedTuple


class Evenness(StrEnum):
    """What a sample shows."""

    EVEN = "even"
    UNEVEN = "uneven"
    UNCLEAR = "unclear"


class Verdict(NamedTuple):
    """What a sample shows, and how many records would show it.

    Attributes:
        evenness: even, uneven or unclear.
        enough: about how many records of this kind decide it; at least those of the sample.
    """

    evenness: Evenness
    enough: int


def judge_evenness(
    largest: float, count: float, partitions: int, worst: float, confidence: float
) -> Verdict:
    """What a sample shows.

    Args:
        largest: records in the largest partition, 0 to `count`. Records of different weights count
            as fewer of equal weight: `sum(w) ** 2 / sum(w * w)` of them (Kish, 1965).
        count: records in all of them, above 0.
        partitions: 1 or more.
        worst: the largest share that is allowed, as a multiple of the mean; above 1.
        confidence: 0.5 to 1, both excluded.
    """
    if worst >= partitions:  # no share is above 1
        return Verdict(Evenness.EVEN, ceil(count))
    allowed, doubt = worst / partitions, 1 - confidence
    share = largest / count
    if share > allowed:
        found, quantile = Evenness.UNEVEN, _quantile(doubt / partitions)
        chance = partitions * chance_of_at_least(largest, count, allowed)
    else:
        found, quantile = Evenness.EVEN, _quantile(doubt)
        chance = chance_of_at_least(count - largest, count, 1 - allowed)
    if chance < doubt:
        return Verdict(found, ceil(count))
    # By the normal distribution. With few records the largest partition is large by chance, and
    # says nothing: even keys are taken for granted. With more, its distance is taken as it is.
    variance = allowed * (1 - allowed)
    by_chance = _quantile(doubt) + _quantile(1 / partitions)
    enough = ceil(by_chance**2 * variance / ((worst - 1) / partitions) ** 2)
    if enough <= count:
        distance = max(abs(share - allowed), allowed / 100)
        enough = max(2 * ceil(count), ceil(quantile**2 * variance / distance**2))
    return Verdict(Evenness.UNCLEAR, enough)


def _quantile(chance: float) -> float:
    """The standard deviations that a normal variable exceeds with this chance."""
    return NormalDist().inv_cdf(1 - chance)


def chance_of_at_least(number: float, count: float, share: float) -> float:
    """The chance that `number` or more of `count` draws hit, if each does with probability `share`;
    1 for a number up to the expected one. Fractions of draws are allowed."""
    if number <= count * share:
        return 1.0
    if share <= 0.0 or number > count:
        return 0.0
    if share >= 1.0:
        return 1.0
    term = exp(
        lgamma(count + 1)
        - lgamma(number + 1)
        - lgamma(count - number + 1)
        + number * log(share)
        + (count - number) * log1p(-share)
    )
    total = 0.0
    odds = share / (1 - share)
    while term > total * 1e-12:
        total += term
        term *= max(0.0, count - number) / (number + 1) * odds
        number += 1
    return min(1.0, total)
