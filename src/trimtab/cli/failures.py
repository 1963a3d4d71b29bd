"""Which of the records sent were not stored."""

from __future__ import annotations

import sys


class Failures:
    """Counts failed deliveries and keeps the first error: memory does not grow with them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: BaseException | None = None

    def add(self, error: BaseException) -> None:
        if self.first is None:
            self.first = error
        self.count += 1

    def report(self, sent: int) -> int:
        """Say on standard error how many of the records sent failed; the command's exit code."""
        if not self.count:
            return 0
        print(f"{self.count} of {sent} records failed; the first: {self.first}", file=sys.stderr)
        return 1
