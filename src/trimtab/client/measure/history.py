"""The rates of the last hour, in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Final, NamedTuple

from trimtab.balance.cluster_load import IN, OUT, ClusterLoad
from trimtab.balance.level_plan import Level
from trimtab.client.topic_view import TopicView

HISTORY_S: Final = 3600.0
_MOST_RATES: Final = 2_000_000
"""Of four bytes each."""
_MOST_FRAMES: Final = 720


class Curve(NamedTuple):
    """Something over time.

    Attributes:
        times: seconds since the epoch, in order.
        values: one for each time; NaN where it was not measured.
    """

    times: tuple[float, ...]
    values: tuple[float, ...]


class _Frame(NamedTuple):
    """All partitions at one time: their rates in the order of topics and numbers.

    Attributes:
        starts: by topic where its partitions begin in the arrays, and how many they are.
    """

    at: float
    starts: Mapping[str, tuple[int, int]]
    bytes_in: array[float]
    brokers: Mapping[int, tuple[float, float]]


class LoadHistory:
    """Keeps a frame of all partitions' rates every few seconds; the more partitions there are, the
    more seconds: with 40,000 it is 72.

    Args:
        seconds: how long a frame is kept.
    """

    def __init__(self, seconds: float = HISTORY_S) -> None:
        self._seconds = seconds
        self._frames: tuple[_Frame, ...] = ()  # replaced as a whole: other threads read it
        self._starts: dict[str, tuple[int, int]] = {}

    def add(
        self,
        at: float,
        topics: Mapping[str, TopicView],
        load: ClusterLoad,
        levels: Mapping[str, Level],
    ) -> None:
        """Take note of a load, unless it is too soon after the last one.

        Args:
            at: seconds since the epoch.
            topics: as the load's sample has them.
            levels: of this load, as `find_levels` returns them.
        """
        partitions = sum(view.partition_count for view in topics.values())
        frames = max(10, min(_MOST_FRAMES, _MOST_RATES // max(1, partitions)))
        kept = tuple(each for each in self._frames if at - self._seconds <= each.at < at)
        if kept and at - kept[-1].at < 0.9 * self._seconds / frames:
            return
        counts = {name: topics[name].partition_count for name in sorted(topics)}
        if counts != {name: count for name, (_, count) in self._starts.items()}:
            start, self._starts = 0, {}
            for name, count in counts.items():
                self._starts[name] = start, count
                start += count
        rates = array("f", (math.nan,)) * partitions
        for each in load.partitions:
            start, count = self._starts.get(each.partition.topic, (0, 0))
            if each.partition.partition < count:
                rates[start + each.partition.partition] = each.bytes_in
        brokers = {
            broker: (levels[IN].loads.get(broker, 0.0), levels[OUT].loads.get(broker, 0.0))
            for broker in load.brokers
        }
        self._frames = (*kept, _Frame(at, self._starts, rates, brokers))

    # With `last` only so many of the newest times.

    def of_broker(self, broker: int, last: int = _MOST_FRAMES) -> tuple[Curve, Curve]:
        """Bytes/s written to a broker, and sent by its leaders."""
        known = [
            (each.at, *each.brokers[broker])
            for each in self._frames[-last:]
            if broker in each.brokers
        ]
        times = tuple(at for at, _, _ in known)
        return (
            Curve(times, tuple(written for _, written, _ in known)),
            Curve(times, tuple(sent for _, _, sent in known)),
        )

    def of_topic(self, topic: str, last: int = _MOST_FRAMES) -> Curve:
        """Bytes/s that producers send to a topic; partitions that were not measured count 0."""
        times, values = [], []
        for frame, rates in self._of(topic, last):
            times.append(frame.at)
            values.append(sum(rate for rate in rates if rate == rate))
        return Curve(tuple(times), tuple(values))

    def of_partition(self, topic: str, partition: int, last: int = _MOST_FRAMES) -> Curve:
        """Bytes/s that producers send to a partition."""
        known = [
            (frame.at, rates[partition])
            for frame, rates in self._of(topic, last)
            if partition < len(rates)
        ]
        return Curve(tuple(at for at, _ in known), tuple(rate for _, rate in known))

    def _of(self, topic: str, last: int) -> list[tuple[_Frame, array[float]]]:
        return [
            (frame, frame.bytes_in[start : start + count])
            for frame in self._frames[-last:]
            if (place := frame.starts.get(topic)) is not None
            for start, count in [place]
        ]
