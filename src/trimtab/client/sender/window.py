"""How many requests keep one broker busy: further small batches gather instead of being sent.

    answers to requests sent alone    ─▶ alone:  seconds that an answer takes
    answers to requests behind others ─▶ behind: seconds between two answers
                                            └─▶ window = alone / behind, about

A broker that works on one request at a time has `alone = behind`, and a second request only waits
there. Meanwhile the records for it are better gathered in one batch, as Nagle's algorithm (RFC 896)
does with bytes. A broker that is far away, or works on several requests at once, has `behind` far
below `alone`, and takes as many requests as fit into one answer time (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from trimtab.client.sender.smoothing import DrainRate, RecentLeast, RecentMedian

STALE = 1.0
"""Seconds after which the window is tried with one more request, so that `behind` is measured."""

GATHER = 0.4
"""The part of an answer time for which a batch waits for more records, if enough come."""

WORTH = 1.5
"""How many records must be expected for that."""

RATE_INTERVAL = 0.1
"""Seconds after which the rate of records is computed again, at least."""

_ROUNDING = 0.5
"""Added before `alone / behind` is rounded down, as noise must not add a request to the window of a
broker that works on one at a time."""


class WindowedLoad(Protocol):
    """The part of `NodeLoad` that a `Window` writes."""

    requests: int
    moved_at: float
    alone: float
    behind: float
    drain_rate: float


class WindowedNode(Protocol):
    @property
    def load(self) -> WindowedLoad: ...


class Window:
    """Counts the open requests of one broker, and measures its answers. Times are in seconds.

    Args:
        load: where `requests` to `drain_rate` are written.
        most: `max.in.flight.requests.per.connection`, the largest window.
    """

    __slots__ = (
        "_alone",
        "_behind",
        "_drain",
        "_least",
        "_least_alone",
        "_load",
        "_measured_behind",
        "_most",
    )

    def __init__(self, load: WindowedLoad, most: int) -> None:
        self._load = load
        self._most = most
        self._alone = RecentMedian()
        self._behind = RecentMedian()
        self._drain = DrainRate()
        self._least = RecentLeast()
        self._least_alone = 0.0
        self._measured_behind = -math.inf

    def sent(self, now: float) -> bool:
        """A request was sent; returns whether it is the only open one."""
        load = self._load
        if load.requests:
            load.requests += 1
            return False
        # In this order, as another thread may read in between.
        load.moved_at = now
        load.requests = 1
        return True

    def answered(self, now: float, sent_at: float, was_alone: bool, size: int) -> None:
        """The answer to a request of `size` bytes of records, sent at `sent_at`, arrived."""
        load = self._load
        took = now - sent_at
        gap = now - max(sent_at, load.moved_at)
        self._least_alone = self._least.add_sample(took, now)
        if was_alone:
            load.alone = self._alone.add_sample(took, now)
        else:
            load.behind = self._behind.add_sample(gap, now)
            self._measured_behind = now
            # Behind others, an answer takes at most `took` and at least `gap` for itself.
            if load.alone == 0.0 or took < load.alone:
                load.alone = self._alone.add_sample(took, now)
            elif gap > load.alone:
                load.alone = self._alone.add_sample(gap, now)
        load.drain_rate = self._drain.add_bytes(size, gap)
        self._close(now)

    def lost(self, now: float) -> None:
        """A request ended without an answer."""
        self._close(now)

    def size(self, now: float) -> int:
        """How many requests may be open before batches gather, from 1 to `most`."""
        load = self._load
        if load.behind <= 0.0 or load.alone <= 0.0:
            return self._most
        size = int(self._least_alone / load.behind + _ROUNDING)
        if now - self._measured_behind > STALE:
            size += 1
        return max(1, min(size, self._most))

    def has_room(self, now: float) -> bool:
        """Whether a batch that is not complete may be sent."""
        return self._load.requests < self.size(now)

    def _close(self, now: float) -> None:
        load = self._load
        load.requests -= 1
        load.moved_at = now


class RecordRate:
    """Records per second, over the last tenth of a second or more.

    Attributes:
        per_second: the rate.
    """

    __slots__ = ("_counted", "_since", "per_second")

    def __init__(self) -> None:
        self.per_second = 0.0
        self._counted = 0
        self._since = -math.inf

    def count(self, records: int, now: float) -> bool:
        """Update the rate from the number of records so far; returns whether it was updated."""
        elapsed = now - self._since
        if elapsed < RATE_INTERVAL:
            return False
        self.per_second = (records - self._counted) / elapsed
        self._counted, self._since = records, now
        return True


def gather_time(rate: float, nodes: Iterable[WindowedNode]) -> float:
    """Seconds that a batch waits for more records, of which `rate` come in a second.

    It is a part of the quickest broker's answer time, or nothing if too few would come.
    """
    answers = (node.load.alone for node in nodes)
    gather = GATHER * min((answer for answer in answers if answer > 0.0), default=0.0)
    return gather if rate * gather >= WORTH else 0.0
