"""Moving estimates of what the sender measures."""

from __future__ import annotations

import math
from collections import deque

HALF_LIFE = 0.25
"""Seconds after which a sample's weight in a `DrainRate` has halved."""

KEPT = 5
"""Samples in a `RecentMedian`, at most."""

MEMORY = 1.0
"""Seconds after which a sample no longer counts in a `RecentMedian`."""

LEAST_MEMORY = 10.0
"""Seconds for which a sample counts at least in a `RecentLeast`; twice as many at most."""


class RecentMedian:
    """The median of the last few samples of the last second.

    Up to two odd samples of five, such as pauses, do not move it; the third of a new kind does. If
    there was none for a second, the next one counts alone. So a broker that was slow is forgiven
    after one to three quick answers, however long it was slow.
    """

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def add_sample(self, sample: float, now: float) -> float:
        """The median with one more sample."""
        samples = self._samples
        while samples and samples[0][0] < now - MEMORY:
            samples.popleft()
        samples.append((now, sample))
        ordered = sorted(each for _, each in samples)
        return ordered[(len(ordered) - 1) // 2]


class RecentLeast:
    """The least sample of the last ten to twenty seconds."""

    __slots__ = ("_before", "_least", "_since")

    def __init__(self) -> None:
        self._before = math.inf
        self._least = math.inf
        self._since = -math.inf

    def add_sample(self, sample: float, now: float) -> float:
        """The least one with one more sample."""
        if now - self._since > LEAST_MEMORY:
            self._before, self._least, self._since = self._least, math.inf, now
        self._least = min(self._least, sample)
        return min(self._before, self._least)


class DrainRate:
    """Bytes per second that a broker acknowledges while it is busy: the ratio of two moving sums.

    Idle time does not count. Of several acknowledgements at the same instant, all bytes count.
    """

    __slots__ = ("_bytes", "_seconds")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    def add_bytes(self, size: int, seconds: float) -> float:
        """The rate after `size` more bytes in `seconds` busy seconds; 0 while it is unknown."""
        kept = math.pow(0.5, seconds / HALF_LIFE)
        self._bytes = self._bytes * kept + size
        self._seconds = self._seconds * kept + seconds
        return self._bytes / self._seconds if self._seconds > 0 else 0.0
