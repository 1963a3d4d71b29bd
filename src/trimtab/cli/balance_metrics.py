"""What `trimtab balance --watch` does, for Prometheus: needs prometheus_client.

Tests: test_balance.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from trimtab.balance.level_plan import Goal, Level, LevelPlan, find_levels
from trimtab.client.balancer import Event, Measured
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.moves.executor import MoveReport

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_COUNTERS: Final = {
    "plans": "plans that were carried out",
    "leaders": "leaders that were changed",
    "partitions": "partitions whose replicas were copied to other brokers",
    "bytes": "bytes that were copied",
    "given_up": "changes that were given up",
}


class BalanceMetrics:
    """Keeps what the balancer tells, for the scrapes."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._levels: Mapping[str, Level] = {}
        self._slow: Mapping[int, str] = {}
        self._left_out = 0
        self._counts = dict.fromkeys(_COUNTERS, 0)

    def note(self, event: Event) -> None:
        counts = self._counts
        if isinstance(event, Measured):
            self._levels = find_levels(event.metered.load, self._goal)
            self._left_out = len(event.metered.left_out)
        elif isinstance(event, LevelPlan):
            counts["plans"] += bool(event.changes)
        elif isinstance(event, MoveReport):
            counts["leaders"] += len(event.elected)
            counts["partitions"] += len(event.moved)
            counts["bytes"] += event.bytes
            counts["given_up"] += len(event.given_up)
        elif isinstance(event, SlowBrokers):
            self._slow = {**event.slow, **event.alarm}

    async def measure(self) -> Iterable[Metric]:
        level = GaugeMetricFamily(
            "trimtab_balance_level",
            "busiest broker : mean, of the last window",
            labels=["resource"],
        )
        load = GaugeMetricFamily(
            "trimtab_balance_broker_load",
            "bytes per second that leaders send (out), that are written (in); bytes stored (disk)",
            labels=["resource", "broker"],
        )
        for resource, found in self._levels.items():
            level.add_metric([resource], found.level)
            for broker, amount in found.loads.items():
                load.add_metric([resource, str(broker)], amount)
        slow = GaugeMetricFamily(
            "trimtab_balance_slow_broker", "1 for each broker that is slow", labels=["broker"]
        )
        for broker in self._slow:
            slow.add_metric([str(broker)], 1)
        left_out = GaugeMetricFamily(
            "trimtab_balance_partitions_left_out",
            "partitions that could not be measured in the last window",
            value=self._left_out,
        )
        counters = [
            CounterMetricFamily(f"trimtab_balance_{name}", text, value=self._counts[name])
            for name, text in _COUNTERS.items()
        ]
        return [level, load, slow, left_out, *counters]

    def close(self) -> None:
        """Nothing is measured between scrapes."""
