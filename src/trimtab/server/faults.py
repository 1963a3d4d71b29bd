"""Faults on purpose, to test clients with."""

from __future__ import annotations

from trimtab.errors import UsageError


class Faults:
    """What goes wrong at one broker. Nothing, to begin with."""

    __slots__ = ("produce_delay_s",)

    def __init__(self) -> None:
        self.produce_delay_s = 0.0

    def slow(self, produce_ms: float) -> None:
        """Answer every produce request so many milliseconds late, 0 for on time.

        Meanwhile its connection is not served: with 20 ms a connection carries at most 50
        produce requests per second, the set-up of KIP-794's measurements.

        Raises:
            UsageError: a negative time.
        """
        if not 0 <= produce_ms < 86_400_000:
            raise UsageError(
                f"produce_ms={produce_ms}: must be milliseconds, at least 0 and less than a day"
            )
        self.produce_delay_s = produce_ms / 1000
