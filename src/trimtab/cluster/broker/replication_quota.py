"""The byte rate of throttled replication, measured against a limit (KIP-73).

Source: Kafka's `ReplicationQuotaManager` and `Rate`, with its 11 samples of a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_SAMPLES = 11
_SAMPLE_S = 1.0


class ReplicationQuota:
    """Bytes of the last 11 seconds. The limit is given with each question, as it may change."""

    __slots__ = ("_samples", "_total")

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()
        self._total = 0

    def record(self, size: int, now_s: float) -> None:
        """Count `size` bytes sent or received now."""
        sample = int(now_s / _SAMPLE_S)
        self._total += size
        if self._samples and self._samples[-1][0] == sample:
            size += self._samples.pop()[1]
        self._samples.append((sample, size))

    def is_exceeded(self, limit: int, now_s: float) -> bool:
        """Whether the average of the last 11 seconds exceeds `limit` bytes a second."""
        oldest = int(now_s / _SAMPLE_S) - _SAMPLES + 1
        while self._samples and self._samples[0][0] < oldest:
            self._total -= self._samples.popleft()[1]
        return self._total > limit * _SAMPLES * _SAMPLE_S


def lists_replica(throttled: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether a list of throttled replicas (`partition:broker`, or `*` for all) has this one."""
    return "*" in throttled or f"{partition}:{broker_id}" in throttled
