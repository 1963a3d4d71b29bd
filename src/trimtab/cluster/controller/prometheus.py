"""A controller's metrics for Prometheus; needs the package prometheus_client.

What Kafka's controller has too has the names that the usual rules of Prometheus' JMX exporter give
to it. Of replicas, their limits and rejections (KIP-578):

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
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trimtab.balance.limits import PER_BROKER, PER_CLUSTER, LimitUsage
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.wire.sentinels import NO_LEADER

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PER_STEP: Final = 1000
"""Partitions that are looked at before other requests are served."""

_OF_CLUSTER: Final = (
    ("activecontrollercount", "1 on the controller.", "controllers"),
    ("globaltopiccount", "Topics.", "topics"),
    ("globalpartitioncount", "Partitions.", "partitions"),
    ("offlinepartitionscount", "Partitions without a leader.", "leaderless"),
    (
        "preferredreplicaimbalancecount",
        "Partitions that their preferred replica does not lead.",
        "imbalanced",
    ),
    ("activebrokercount", "Brokers that are not fenced.", "active_brokers"),
    ("fencedbrokercount", "Brokers that are registered and fenced.", "fenced_brokers"),
)
"""Name, explanation, and attribute of `ClusterFigures`."""


class ClusterFigures(NamedTuple):
    """Counts of a cluster's metadata."""

    topics: int
    partitions: int
    leaderless: int
    imbalanced: int
    active_brokers: int
    fenced_brokers: int
    controllers: int = 1


def measure_cluster(image: ClusterImage) -> Steps[ClusterFigures]:
    """The figures of a cluster now."""
    partitions = leaderless = imbalanced = 0
    pace = Pace(_PER_STEP)
    for topic in list(image.topics.values()):
        for partition in list(topic.partitions):
            partitions += 1
            leaderless += partition.leader == NO_LEADER
            imbalanced += partition.leader != partition.preferred_leader
            if pace.spend():
                yield
    fenced = sum(broker.fenced for broker in image.brokers.values())
    return ClusterFigures(
        len(image.topics),
        partitions,
        leaderless,
        imbalanced,
        len(image.brokers) - fenced,
        fenced,
    )


def list_cluster_metrics(figures: ClusterFigures) -> Iterator[Metric]:
    """The metrics of a cluster that was measured."""
    for name, text, attribute in _OF_CLUSTER:
        yield GaugeMetricFamily(
            f"kafka_controller_kafkacontroller_{name}", text, getattr(figures, attribute)
        )


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
