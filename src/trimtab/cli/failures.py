"""Counts records that could not be sent."""

from __future__ import annotations

from trimtab.cli.style import say_error
from trimtab.cli.table import show_count


class Failures:
    """Counts failed deliveries; keeps only the first error, so memory does not grow with them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: BaseException | None = None

    def add(self, error: BaseException) -> None:
        if self.first is None:
            self.first = error
        self.count += 1

    def report(self, sent: int) -> int:
        """Print on standard error how many of the `sent` records failed; the exit code."""
        if not self.count:
            return 0
        say_error(f"{self.count:,} of {show_count(sent, 'record')} failed; the first: {self.first}")
        return 1
