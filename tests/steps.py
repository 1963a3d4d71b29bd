"""Runs work in steps (`trimtab.cluster.server.turns`) to its end at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """Run all steps; returns their result."""
    return count_steps(steps)[1]


def count_steps(steps: Generator[None, None, T]) -> tuple[int, T]:
    """Run all steps; returns how often they yield, and their result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1
