"""A client's metrics for Prometheus: needs the package prometheus_client.

    from prometheus_client import REGISTRY, start_http_server
    from trimtab.client.prometheus import ClientCollector

    REGISTRY.register(ClientCollector(producer, client_id="orders"))
    start_http_server(9400)

`record-send-total` of `producer-metrics` becomes `kafka_producer_record_send_total`; a broker's
becomes `kafka_producer_node_record_send_total{node="0"}`, and a topic's
`kafka_producer_topic_…{topic="…"}`. These are the names that the usual JMX exporter rules give to
the Java clients' metrics. A partition's lag is
`kafka_consumer_fetch_manager_partition_records_lag{topic="…",partition="…"}`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from trimtab.client.metrics_cy import Snapshot, Values

_TOTAL = "-total"
_LABELS = {
    "node": ("node",),
    "topic": ("topic",),
    "partitioner": ("topic",),
    "partition": ("topic", "partition"),
}
"""By the word before `-metrics` in a group's name: what its metrics are told apart by."""


class Measured(Protocol):
    """A producer or a consumer."""

    def metrics(self) -> Snapshot: ...


class ClientCollector(Collector):
    """Reads a client's metrics at each scrape; stores none itself.

    Args:
        client: a producer or a consumer, read on the exporter's thread.
        client_id: the label `client_id` of every metric, to distinguish a process's clients.
    """

    def __init__(self, client: Measured, client_id: str = "") -> None:
        self._client = client
        self._client_id = client_id

    def describe(self) -> list[Metric]:
        """An empty list: the metrics depend on brokers and topics."""
        return []

    def collect(self) -> Iterator[Metric]:
        for group, metrics in self._client.metrics().items():
            labels = _LABELS.get(group.split("-")[-2], ())
            families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
            for owner, values in _by_owner(metrics, labels):
                for name, value in values.items():
                    if math.isnan(value):
                        continue  # nothing was measured in the last windows
                    family = families.get(name)
                    if family is None:
                        family = families[name] = _family(group, name, labels)
                    family.add_metric([self._client_id, *owner], value)
            yield from families.values()


def _by_owner(
    metrics: Values | dict[str, Values], labels: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Values]]:
    """Each broker's, topic's or partition's labels and values; the client's own have no labels."""
    own: Values = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            owner = name.removeprefix("node-") if "node" in labels else name
            yield tuple(owner.rsplit("-", len(labels) - 1)), value
        else:
            own[name] = value
    if own:
        yield (), own


def _family(
    group: str, name: str, labels: Sequence[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    full = f"kafka-{group.removesuffix('-metrics')}-{name}".replace("-", "_")
    text = f"{name} of Kafka's {group}"
    named = ["client_id", *labels]
    if name.endswith(_TOTAL):
        return CounterMetricFamily(full.removesuffix("_total"), text, labels=named)
    return GaugeMetricFamily(full, text, labels=named)
