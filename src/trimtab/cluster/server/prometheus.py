"""A node's requests and connections for Prometheus; needs the package prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from trimtab.cluster.server.request_metrics_cy import BOUNDS_MS, RequestMetrics
from trimtab.kafka.wire.messages import APIS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from trimtab.cluster.server.listener import Listener


def list_server_metrics(listener: Listener) -> Iterator[Metric]:
    """The metrics of a node's listener now."""
    counts = listener.counts
    yield GaugeMetricFamily(
        "kafka_server_socket_server_metrics_connection_count", "Open connections.", counts.open
    )
    yield CounterMetricFamily(
        "kafka_server_socket_server_metrics_connection_creation",
        "Accepted connections.",
        counts.accepted,
    )
    yield CounterMetricFamily(
        "trimtab_connections_refused",
        "Connections closed for an invalid request, or because there were too many.",
        counts.refused,
    )
    yield CounterMetricFamily(
        "trimtab_requests_failed",
        "Connections closed because a request failed: bugs of the node.",
        counts.failed,
    )
    if listener.requests is not None:
        yield from _list_requests(listener.requests)


def _list_requests(requests: RequestMetrics) -> Iterator[Metric]:
    counts = CounterMetricFamily(
        "kafka_network_requestmetrics_requests",
        "Answered requests by API and version.",
        labels=["request", "version"],
    )
    times = HistogramMetricFamily(
        "kafka_network_requestmetrics_totaltimems",
        "Milliseconds from the begin of serving a request until its response is passed on.",
        labels=["request"],
    )
    for key, api in requests.apis.items():
        if not any(api.requests):
            continue
        name = APIS[key].name
        for version, count in enumerate(api.requests):
            if count:
                counts.add_metric([name, str(version)], count)
        below = 0
        buckets = []
        for bound, count in zip([*map(str, BOUNDS_MS), "+Inf"], api.buckets, strict=True):
            below += count
            buckets.append((bound, below))
        times.add_metric([name], buckets, api.total_ms)
    yield counts
    yield times
