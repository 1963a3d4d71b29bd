"""A controller's metrics as Prometheus reads them."""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from trimtab.config import LONG_MAX
from trimtab.controller.partition_limits import PER_CLUSTER, LimitUsage, PartitionLimits
from trimtab.controller.prometheus import LimitCollector, MetricsServer

USAGE = LimitUsage(PartitionLimits(40, LONG_MAX), {2: 7, 1: 9}, 16, Counter({PER_CLUSTER: 3}))


class Measured:
    """Stands for a controller."""

    def limit_usage(self) -> LimitUsage:
        asyncio.get_running_loop()  # as a controller may only be asked on its own
        return USAGE


@pytest.mark.kip(578)
def test_replicas_limits_and_rejections() -> None:
    registry = CollectorRegistry()
    registry.register(LimitCollector(lambda: USAGE))
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'trimtab_broker_replicas{broker="1"} 9.0',
        'trimtab_broker_replicas{broker="2"} 7.0',
        'trimtab_broker_replicas_limit{broker="1"} 40.0',
        'trimtab_broker_replicas_limit{broker="2"} 40.0',
        "trimtab_cluster_replicas 16.0",
        "trimtab_cluster_replicas_limit +Inf",
        'trimtab_limit_rejections_total{limit="max.broker.partitions"} 0.0',
        'trimtab_limit_rejections_total{limit="max.partitions"} 3.0',
    ]


def test_over_http() -> None:
    async def scenario() -> None:
        server = MetricsServer(Measured(), "127.0.0.1", 0)  # type: ignore[arg-type]

        def ask() -> str:
            with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as response:
                return str(response.read().decode())

        assert "trimtab_cluster_replicas 16.0" in await asyncio.to_thread(ask)
        await server.close()
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(ask)

    asyncio.run(scenario())
