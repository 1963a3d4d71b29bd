"""The least average latency that any placement could have, in the partitioner study's model.

Any: also one that knows the future, and searches all placements that give each broker as many
records in each second as the partitioner did. Three things bound it, each by itself:

- A record takes as long as its broker's quickest request in that second, or waits for another
  second.
- A broker that works on one request at a time, and on few of them in a second, gets many records in
  each. The first of them has waited for the last.
- A broker that gets more bytes than it can work on has a backlog.

It is not tight: queueing by chance, and answers that are late at random, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

WINDOW = 1.0
"""Seconds."""

_LOOKS = 20
_LARGE = 1 << 20

Serve = Callable[[float, int], float]
"""`(now, bytes) -> seconds` that a broker works on a request, at best."""


def least_total(
    serve: Serve,
    records: Sequence[int],
    sizes: Sequence[int],
    arrivals: Sequence[int],
    step: float,
    burst: int,
) -> float:
    """The sum of the latencies of one broker's records, at least, in seconds.

    Args:
        records: how many it got in each window.
        sizes: their bytes.
        arrivals: how many all brokers got in each window.
        step: seconds between the bursts of one producer.
        burst: records that arrive at once.
    """
    count = sum(records)
    if not count:
        return 0.0
    windows = len(records)
    moments = [
        [WINDOW * (window + look / _LOOKS) for look in range(_LOOKS)] for window in range(windows)
    ]
    empty = min(serve(now, 0) for window in moments for now in window)
    requests = windows * WINDOW / empty if empty > 0.0 else math.inf
    together = max(1, math.floor(count / requests))
    request = together * sum(sizes) // count
    quickest = [min(serve(now, request) for now in window) for window in moments]
    total = later = 0.0  # at the end records may not have waited for an answer yet
    for window in reversed(range(windows)):
        usual = quickest[window]
        # Those that come shortly before the end of the window may wait for a better one.
        last = min(records[window], math.ceil(arrivals[window] * usual / WINDOW))
        total += (records[window] - last) * usual + last * min(usual, later)
        later = min(later or usual, usual)
    gathering = sum(each // burst for each in range(together)) * step / together
    return max(total + count * gathering, _backlog(serve, moments, sum(sizes) / count, sizes))


def _backlog(
    serve: Serve, moments: Sequence[Sequence[float]], record: float, sizes: Sequence[int]
) -> float:
    """The seconds that records wait because the broker gets more bytes than it can work on: the sum
    of the records that wait, over time."""
    left = total = 0.0
    for window, size in zip(moments, sizes, strict=True):
        rate = _LARGE / max(min(serve(now, _LARGE) - serve(now, 0) for now in window), 1e-9)
        busy = min(WINDOW, left / rate)  # with what came in earlier windows
        total += (left * busy - rate * busy * busy / 2) / record
        left = max(0.0, left + size - rate * WINDOW)
    return total
