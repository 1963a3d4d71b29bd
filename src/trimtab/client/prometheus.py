"""A producer's metrics for Prometheus: needs the package prometheus_client.

    from prometheus_client import REGISTRY, start_http_server
    from trimtab.client.prometheus import ProducerCollector

    REGISTRY.register(ProducerCollector(producer, client_id="orders"))
    start_http_server(9400)

`record-send-total` of `producer-metrics` becomes `kafka_producer_record_send_total`; a broker's
becomes `kafka_producer_node_record_send_total{node="0"}`, and a topic's
`kafka_producer_topic_…{topic="…"}`. These are the names that the usual JMX exporter rules give to
the Java producer's metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from trimtab.client.metrics_cy import Snapshot, Values

_TOTAL = "-total"
_LABELS = {"producer-node-metrics": "node", "producer-topic-metrics": "topic"}
_LABEL_PREFIXES = {"producer-node-metrics": "node-"}


class Measured(Protocol):
    """A `Producer` or an `AsyncProducer`."""

    def metrics(self) -> Snapshot: ...


class ProducerCollector(Collector):
    """Reads a producer's metrics at each scrape; stores none itself.

    Args:
        producer: read on the exporter's thread.
        client_id: the label `client_id` of every metric, to distinguish a process's producers.
    """

    def __init__(self, producer: Measured, client_id: str = "") -> None:
        self._producer = producer
        self._client_id = client_id

    def describe(self) -> list[Metric]:
        """An empty list: the metrics depend on brokers and topics."""
        return []

    def collect(self) -> Iterator[Metric]:
        for group, metrics in self._producer.metrics().items():
            label = _LABELS.get(group)
            families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
            for owner, values in _by_owner(group, metrics):
                for name, value in values.items():
                    if math.isnan(value):
                        continue  # nothing was measured in the last windows
                    family = families.get(name)
                    if family is None:
                        family = families[name] = _family(group, name, label)
                    family.add_metric([self._client_id, *owner], value)
            yield from families.values()


def _by_owner(
    group: str, metrics: Values | dict[str, Values]
) -> Iterator[tuple[tuple[str, ...], Values]]:
    """Each broker's or topic's label and values; the producer's own values have no label."""
    own: Values = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield (name.removeprefix(_LABEL_PREFIXES.get(group, "")),), value
        else:
            own[name] = value
    if own:
        yield (), own


def _family(group: str, name: str, label: str | None) -> CounterMetricFamily | GaugeMetricFamily:
    full = f"kafka-{group.removesuffix('-metrics')}-{name}".replace("-", "_")
    text = f"{name} of Kafka's {group}"
    labels = ["client_id", label] if label else ["client_id"]
    if name.endswith(_TOTAL):
        return CounterMetricFamily(full.removesuffix("_total"), text, labels=labels)
    return GaugeMetricFamily(full, text, labels=labels)
