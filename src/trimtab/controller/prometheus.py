"""Metrics of replicas, their limits and rejections, for Prometheus (KIP-578); needs the package
prometheus_client.

    trimtab_broker_replicas{broker="1"}         replicas that count against max.broker.partitions
    trimtab_broker_replicas_limit{broker="1"}   +Inf without a limit
    trimtab_cluster_replicas                    replicas that count against max.partitions
    trimtab_cluster_replicas_limit
    trimtab_limit_rejections_total{limit="max.partitions"}

Rejections are counted since the start of the controller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trimtab.balance.limits import PER_BROKER, PER_CLUSTER, LimitUsage
from trimtab.config import LONG_MAX

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class LimitCollector(Collector):
    """Reads the current values at every scrape; stores nothing.

    Args:
        look: returns the values; called on the scraping thread.
    """

    def __init__(self, look: Callable[[], LimitUsage]) -> None:
        self._look = look

    def describe(self) -> list[Metric]:
        """Empty, as the set of brokers may change."""
        return []

    def collect(self) -> Iterator[Metric]:
        usage = self._look()
        replicas = GaugeMetricFamily(
            "trimtab_broker_replicas", "Partition replicas of a broker.", labels=["broker"]
        )
        limits = GaugeMetricFamily(
            "trimtab_broker_replicas_limit", f"{PER_BROKER}.", labels=["broker"]
        )
        for broker, count in sorted(usage.replicas.items()):
            replicas.add_metric([str(broker)], count)
            limits.add_metric([str(broker)], _limit(usage.limits.per_broker))
        yield replicas
        yield limits
        yield GaugeMetricFamily(
            "trimtab_cluster_replicas", "Partition replicas of all brokers.", usage.total
        )
        yield GaugeMetricFamily(
            "trimtab_cluster_replicas_limit", f"{PER_CLUSTER}.", _limit(usage.limits.per_cluster)
        )
        rejections = CounterMetricFamily(
            "trimtab_limit_rejections",
            "Topics and partitions that a limit has refused.",
            labels=["limit"],
        )
        for name in (PER_BROKER, PER_CLUSTER):
            rejections.add_metric([name], usage.rejections[name])
        yield rejections


def _limit(value: int) -> float:
    return math.inf if value == LONG_MAX else value
