"""Looks at a cluster again and again: samples, the ends of followers, and probes.

Tests: tests/unit/client/test_balancer.py, tests/unit/client/test_collector.py
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Final, NamedTuple

from trimtab.client.admin.async_admin import AsyncAdmin
from trimtab.client.measure.followers import (
    Blame,
    EndsRound,
    choose_replicas,
    find_blame,
    find_lags,
    poll_ends,
)
from trimtab.client.measure.probe import BrokerProbe
from trimtab.client.measure.rates import LoadMeter, MeteredLoad
from trimtab.client.measure.sample import LoadSample, take_sample
from trimtab.client.measure.slow import SlowBrokers, collect_signs, find_slow
from trimtab.kafka.records import TopicPartition
from trimtab.threads.clock import wall_clock

_SAMPLES: Final = 6
"""Samples in a window."""
_PARTITIONS_A_SECOND: Final = 4000
"""Samples of so many partitions are no burden; larger clusters are sampled less often."""
_TRIPS: Final = 4
"""The last polls of ends, of which the slowest counts: a broker may pause between two of them."""
_WORST_S: Final = 60.0
NOBODY_SLOW: Final = SlowBrokers({}, {}, {})


class Answers(NamedTuple):
    """How quickly a broker answers.

    Attributes:
        median_s: seconds of the last eight probes; without probes of the last poll, which waits for
            no disk.
        p99_s: of the probes of the last minute; None without probes.
    """

    median_s: float
    p99_s: float | None


class LoadWatch:
    """What is known of a cluster's load and its slow brokers, from one look to the next.

    Args:
        admin: stays open.
        window_s: seconds that rates are means over; six samples at most are in a window.
        probe: has been started, or is None.
        wall: seconds since the epoch.

    Attributes:
        sample: the last one; None before the first.
    """

    def __init__(
        self,
        admin: AsyncAdmin,
        window_s: float,
        probe: BrokerProbe | None,
        wall: Callable[[], float] = wall_clock,
    ) -> None:
        self._admin = admin
        self._wall = wall
        self._window_s = window_s
        self._probe = probe
        self.sample: LoadSample | None = None
        self._watched: dict[int, list[TopicPartition]] = {}
        self._ends: EndsRound | None = None
        self._blame = Blame(frozenset(), frozenset())
        self._trips: deque[Mapping[int, float]] = deque(maxlen=_TRIPS)
        self.start_over()

    def start_over(self) -> None:
        """Forget what was measured."""
        self._meter = LoadMeter(self._window_s)
        self._began_s: float | None = None
        self._next_s = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether there are two samples, which rates need."""
        return self._meter.is_ready

    @property
    def is_measured(self) -> bool:
        """Whether a whole window has passed."""
        now = asyncio.get_running_loop().time()
        return (
            self._meter.is_ready
            and self._began_s is not None
            and now - self._began_s >= self._window_s
        )

    async def look(self) -> bool:
        """Take a sample if it is time, and look at the followers if there are probes. To be called
        about each second.

        Returns:
            Whether there is a new sample.

        Raises:
            KafkaError: as `take_sample`, and `BrokerProbe.cover`.
        """
        loop = asyncio.get_running_loop()
        is_due = loop.time() >= self._next_s
        if is_due:
            self.sample = await take_sample(self._admin, self.sample, wall=self._wall)
            self._meter.add(self.sample)
            if self._began_s is None:
                self._began_s = loop.time()
            partitions = sum(each.partition_count for each in self.sample.topics.value.values())
            every_s = max(self._window_s / _SAMPLES, partitions / _PARTITIONS_A_SECOND)
            self._next_s = loop.time() + every_s
            if self._probe is not None:
                await self._probe.cover()
                if self._meter.is_ready:
                    self._watched = choose_replicas(self._meter.measure().load.partitions)
        if self._probe is not None and self.sample is not None:
            ends = await poll_ends(self._admin, self._watched)
            if self._ends is not None:
                self._blame = find_blame(find_lags(self.sample.topics.value, self._ends, ends))
            self._ends = ends
            self._trips.append(ends.round_trips)
        return is_due

    def tail_start(self, partition: TopicPartition, most_bytes: int) -> int | None:
        """As `LoadMeter.tail_start`."""
        return self._meter.tail_start(partition, most_bytes)

    def answers(self) -> dict[int, Answers]:
        """How quickly each broker answers: its probes of the last minute; without probes, its last
        poll."""
        if self._probe is None:
            trips = {} if self.sample is None else self.sample.round_trips
            return {broker: Answers(trip, None) for broker, trip in trips.items()}
        worst = self._probe.worst_of(_WORST_S)
        return {
            broker: Answers(median(times.recent), worst.get(broker))
            for broker, times in self._probe.times().items()
            if times.recent
        }

    def measure(self) -> MeteredLoad:
        """The load over the window until now.

        Raises:
            UsageError: there are no two samples.
        """
        return self._meter.measure()

    def find_slow(self) -> SlowBrokers:
        """The slow brokers; none without probes."""
        if self._probe is None or self.sample is None:
            return NOBODY_SLOW
        trips: dict[int, float] = dict(self.sample.round_trips)
        for round_trips in self._trips:
            for broker, seconds in round_trips.items():
                trips[broker] = max(seconds, trips.get(broker, 0.0))
        ages = self.sample.fetch_ages
        signs = collect_signs(self._blame, trips, ages and ages.value)
        return find_slow(self._probe.times(), signs)
