"""Faults injected on purpose, to test clients."""

from __future__ import annotations

from trimtab.errors import UsageError


class Faults:
    """The faults of one broker; none at first."""

    __slots__ = ("produce_delay_s",)

    def __init__(self) -> None:
        self.produce_delay_s = 0.0

    def slow(self, produce_ms: float) -> None:
        """Delay the response to every produce request by `produce_ms` milliseconds; 0 ends it.

        During the delay the connection is not served: with 20 ms a connection carries at most 50
        produce requests per second, as in KIP-794's measurements.

        Raises:
            UsageError: a negative time.
        """
        if not 0 <= produce_ms < 86_400_000:
            raise UsageError(
                f"produce_ms={produce_ms}: must be milliseconds, at least 0 and less than a day"
            )
        self.produce_delay_s = produce_ms / 1000
