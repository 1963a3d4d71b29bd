"""Which records a load report reads: from when on, how much at most, in which windows of time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from trimtab.kafka.records import TopicPartition

_DAY: Final = 86_400
_WINDOWS: Final = (
    ("1 minute", 60),
    ("5 minutes", 300),
    ("15 minutes", 900),
    ("1 hour", 3600),
    ("6 hours", 6 * 3600),
    ("1 day", _DAY),
    ("7 days", 7 * _DAY),
    ("30 days", 30 * _DAY),
    ("365 days", 365 * _DAY),
)
_MOST_WINDOWS: Final = 200
_MOST_ROWS: Final = 1_000_000


class Stored(NamedTuple):
    """What a partition holds, and from where on it is asked for.

    Attributes:
        earliest, since, latest: offsets; `since` lies between the others.
        bytes: of its leader's log.
    """

    earliest: int
    since: int
    latest: int
    bytes: int

    @property
    def wanted_bytes(self) -> float:
        """About the bytes from `since` on: offsets are taken to be of one size."""
        offsets = self.latest - self.earliest
        return self.bytes * (self.latest - self.since) / offsets if offsets > 0 else 0.0


class Reading(NamedTuple):
    """What is read.

    Attributes:
        offsets: of each partition from where up to where; those without any are left out.
        bytes: about as many, of the log.
        share: how much of what was asked for: below 1 where that was more than the limit.
    """

    offsets: Mapping[TopicPartition, tuple[int, int]]
    bytes: float
    share: float


def choose_offsets(stored: Mapping[TopicPartition, Stored], max_bytes: int) -> Reading:
    """Everything that is asked for, or of each partition the same newest part.

    The same part, so that partitions compare as they do in the log.

    Args:
        max_bytes: about as many are read at most.
    """
    wanted = sum(each.wanted_bytes for each in stored.values())
    share = min(1.0, max_bytes / wanted) if wanted else 1.0
    offsets = {}
    for partition, log in sorted(stored.items()):
        count = math.ceil((log.latest - log.since) * share)
        if count > 0:
            offsets[partition] = (log.latest - count, log.latest)
    return Reading(offsets, wanted * share, share)


def choose_window(seconds: float, partitions: int) -> str:
    """The shortest window that gives tables of a size to handle.

    Args:
        seconds: that the records were written in.
        partitions: each has a row in each window at most.
    """
    most = max(1, min(_MOST_WINDOWS, _MOST_ROWS // max(1, partitions)))
    fitting = [name for name, length in _WINDOWS if seconds <= length * most]
    return fitting[0] if fitting else _WINDOWS[-1][0]
