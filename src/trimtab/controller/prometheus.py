"""Replicas, their limits and what these have refused, for Prometheus (KIP-578): `pip install
trimtab[prometheus]`.

    trimtab_broker_replicas{broker="1"}         what counts against max.broker.partitions
    trimtab_broker_replicas_limit{broker="1"}   +Inf without a limit
    trimtab_cluster_replicas                    what counts against max.partitions
    trimtab_cluster_replicas_limit
    trimtab_limit_rejections_total{limit="max.partitions"}

Rejections count since the controller has started.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trimtab.config import LONG_MAX
from trimtab.controller.partition_limits import PER_BROKER, PER_CLUSTER, LimitUsage

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from trimtab.controller.controller import Controller

_ANSWER_S = 10.0


class LimitCollector(Collector):
    """Looks each time that Prometheus asks; holds nothing itself.

    Args:
        look: called on the thread that asks.
    """

    def __init__(self, look: Callable[[], LimitUsage]) -> None:
        self._look = look

    def describe(self) -> list[Metric]:
        """Nothing: which brokers there are may change."""
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


class MetricsServer:
    """Answers `GET /metrics`, on threads of its own; each answer is made on the controller's loop,
    which is the running one.

    Raises:
        OSError: the address is taken.
    """

    def __init__(self, controller: Controller, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()

        async def measure() -> LimitUsage:
            return controller.limit_usage()

        def look() -> LimitUsage:
            return asyncio.run_coroutine_threadsafe(measure(), loop).result(_ANSWER_S)

        registry = CollectorRegistry()
        registry.register(LimitCollector(look))
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    async def close(self) -> None:
        """Answer no more. The loop goes on meanwhile: an answer may be waiting for it."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        self._thread.join()


def _limit(value: int) -> float:
    return math.inf if value == LONG_MAX else value
