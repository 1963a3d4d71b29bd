"""Work in steps (`trimtab.server.turns`), done at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """What the steps make."""
    return count_steps(steps)[1]


def count_steps(steps: Generator[None, None, T]) -> tuple[int, T]:
    """How often they yield, and what they make."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1
