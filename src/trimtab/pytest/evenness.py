"""Asserts that keys spread records evenly over partitions.

Tests: test_plugin.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from trimtab.balance.evenness import Evenness
from trimtab.client.partitioner.key_spread import Key, KeyPartitioner, KeySkew, key_skew
from trimtab.kafka.errors import UsageError


class AssertEven(Protocol):
    """What the fixture `assert_even` is: `expect_even`."""

    def __call__(
        self,
        keys: Iterable[Key] | Mapping[Any, int],
        partitions: int,
        worst: float = 1.3,
        *,
        weights: Iterable[int] | None = None,
        partitioner: str | KeyPartitioner = "murmur2",
        confidence: float = 0.995,
    ) -> KeySkew: ...


def expect_even(
    keys: Iterable[Key] | Mapping[Any, int],
    partitions: int,
    worst: float = 1.3,
    *,
    weights: Iterable[int] | None = None,
    partitioner: str | KeyPartitioner = "murmur2",
    confidence: float = 0.995,
) -> KeySkew:
    """Assert that no partition would get more than `worst` times the mean.

    Args: those of `trimtab.key_skew`.

    Returns:
        What was found; `str` of it is a text.

    Raises:
        AssertionError: a partition would get more; names the keys to blame.
        UsageError: there are too few keys to tell, says how many are needed; or an argument has a
            wrong type or value.
    """
    __tracebackhide__ = True
    skew = key_skew(
        keys,
        partitions=partitions,
        worst=worst,
        weights=weights,
        partitioner=partitioner,
        confidence=confidence,
    )
    if skew.evenness is Evenness.UNCLEAR:
        raise UsageError(str(skew))
    assert skew.evenness is Evenness.EVEN, str(skew)
    return skew
