"""A broker's metrics for Prometheus; needs the package prometheus_client.

The names are those that the usual rules of Prometheus' JMX exporter (`kafka-2_0_0.yml`, which
Strimzi's follow) give to Kafka's. `docs/metrics.md` explains each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from trimtab.cluster.broker.figures import BrokerFigures

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_OF_TOPICS: Final = (
    ("bytesin", "Bytes of batches from producers.", "bytes_in"),
    ("bytesout", "Bytes of records sent to consumers.", "bytes_out"),
    ("messagesin", "Records from producers.", "records_in"),
    ("bytesrejected", "Bytes of batches above max.message.bytes.", "bytes_rejected"),
    ("totalproducerequests", "Batches in produce requests.", "produces"),
    ("failedproducerequests", "Batches that were refused unexpectedly.", "failed_produces"),
    ("totalfetchrequests", "Partitions in fetch responses.", "fetches"),
    ("failedfetchrequests", "Partitions that could not be read unexpectedly.", "failed_fetches"),
)
"""Name, explanation, and attribute of `TopicTraffic`; with a label `topic`, and for all topics."""

_OF_BROKER: Final = (
    ("brokertopicmetrics_replicationbytesin", "Bytes from leaders.", "replication_bytes_in"),
    ("brokertopicmetrics_replicationbytesout", "Bytes to followers.", "replication_bytes_out"),
    ("replicamanager_isrshrinks", "ISRs of led partitions that got smaller.", "isr_shrinks"),
    ("replicamanager_isrexpands", "ISRs of led partitions that got larger.", "isr_expands"),
)

_OF_REPLICAS: Final = (
    ("leadercount", "Partitions that this broker leads.", "leaders"),
    (
        "underreplicatedpartitions",
        "Led partitions with fewer replicas in sync than they have.",
        "under_replicated",
    ),
    (
        "underminisrpartitioncount",
        "Led partitions with fewer than min.insync.replicas in sync.",
        "under_min_isr",
    ),
    (
        "atminisrpartitioncount",
        "Led partitions with just min.insync.replicas in sync.",
        "at_min_isr",
    ),
    ("reassigningpartitions", "Led partitions that are being reassigned.", "reassigning"),
    ("offlinereplicacount", "Replicas whose logs could not be opened.", "offline"),
)

_OF_LOGS: Final = (
    ("size", "Bytes of a replica's log.", "size"),
    ("logstartoffset", "First offset of a replica's log.", "start_offset"),
    ("logendoffset", "The offset after the last one of a replica's log.", "end_offset"),
)


_OF_COORDINATORS: Final = (
    ("coordinator_groups", "Groups that this broker coordinates.", "groups"),
    ("coordinator_members", "Members of these groups.", "members"),
    (
        "coordinator_transactional_ids",
        "Transactional ids that this broker coordinates.",
        "transactional_ids",
    ),
    (
        "coordinator_memory_bytes",
        "Bytes that this broker remembers of groups and transactional ids, about.",
        "coordinator_bytes",
    ),
    (
        "producer_ids",
        "Idempotent producers that this broker's replicas remember, counted for each replica.",
        "producer_ids",
    ),
)


def list_broker_metrics(figures: BrokerFigures) -> Iterator[Metric]:
    """The metrics of a broker that was measured."""
    for name, text, attribute in _OF_TOPICS:
        value = attrgetter(attribute)
        counter = CounterMetricFamily(
            f"kafka_server_brokertopicmetrics_{name}",
            f"{text} Without a topic: of all topics.",
            labels=["topic"],
        )
        counter.add_sample(f"{counter.name}_total", {}, value(figures.total))
        for topic, traffic in figures.traffic.items():
            counter.add_metric([topic], value(traffic))
        yield counter
    for name, text, attribute in _OF_BROKER:
        yield CounterMetricFamily(f"kafka_server_{name}", text, getattr(figures.total, attribute))
    yield GaugeMetricFamily(
        "kafka_server_replicamanager_partitioncount",
        "Replicas on this broker.",
        len(figures.logs),
    )
    for name, text, attribute in _OF_REPLICAS:
        yield GaugeMetricFamily(
            f"kafka_server_replicamanager_{name}", text, getattr(figures, attribute)
        )
    for name, text, attribute in _OF_LOGS:
        value = attrgetter(attribute)
        yield _by_partition(
            f"kafka_log_log_{name}",
            text,
            ((each.topic, str(each.partition), value(each)) for each in figures.logs),
        )
    yield from _list_groups(figures)
    yield from _list_disk(figures)


def _by_partition(
    name: str, text: str, values: Iterable[tuple[str, str, float]]
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=["topic", "partition"])
    for topic, partition, value in values:
        gauge.add_metric([topic, partition], value)
    return gauge


def _list_groups(figures: BrokerFigures) -> Iterator[Metric]:
    labels = ["consumergroup", "topic", "partition"]
    offsets = GaugeMetricFamily(
        "kafka_consumergroup_current_offset",
        "The offset that a group has committed.",
        labels=labels,
    )
    lags = GaugeMetricFamily(
        "kafka_consumergroup_lag",
        "Committed records after the offset that a group has committed.",
        labels=labels,
    )
    for name, text, attribute in _OF_COORDINATORS:
        yield GaugeMetricFamily(f"trimtab_{name}", text, getattr(figures, attribute))
    for committed in figures.committed:
        of = [committed.group, committed.partition.topic, str(committed.partition.partition)]
        offsets.add_metric(of, committed.offset)
        end = figures.ends.get(committed.partition)
        if end is not None:
            lags.add_metric(of, max(0, end - committed.offset))
    yield offsets
    yield lags


def _list_disk(figures: BrokerFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "trimtab_logs_bytes",
        "Bytes of all logs of this broker.",
        sum(each.size for each in figures.logs),
    )
    if figures.space is not None:
        yield GaugeMetricFamily(
            "trimtab_disk_total_bytes",
            "Size of the volume with the logs.",
            figures.space.total_bytes,
        )
        yield GaugeMetricFamily(
            "trimtab_disk_free_bytes",
            "Bytes that this process may still write to the volume with the logs.",
            figures.space.usable_bytes,
        )
