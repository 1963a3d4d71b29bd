"""How long to wait before trying again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before trying again: doubled each time, a fifth more or less (KIP-580).

    Attributes:
        initial: seconds after the first failure (`retry.backoff.ms`).
        maximum: seconds at most (`retry.backoff.max.ms`).
    """

    initial: float
    maximum: float

    def wait(self, failures: int, random: Random) -> float:
        """Seconds to wait when `failures` attempts had failed before the last one, 0 or more."""
        doubled = self.initial * 2.0 ** min(failures, 30)
        return min(doubled * (0.8 + 0.4 * random.random()), self.maximum)
