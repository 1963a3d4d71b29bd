"""A controller's metrics for Prometheus."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from trimtab.balance.limits import PER_CLUSTER, LimitUsage, PartitionLimits
from trimtab.config import LONG_MAX
from trimtab.controller.prometheus import LimitCollector

USAGE = LimitUsage(PartitionLimits(40, LONG_MAX), {2: 7, 1: 9}, 16, Counter({PER_CLUSTER: 3}))


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
