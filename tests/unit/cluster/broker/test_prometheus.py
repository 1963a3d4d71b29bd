"""A broker's metrics for Prometheus (`trimtab.cluster.broker.prometheus`)."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client")

from trimtab.cluster.broker.figures import BrokerFigures, CommittedFigures, LogFigures
from trimtab.cluster.broker.prometheus import list_broker_metrics
from trimtab.cluster.broker.traffic import Traffic
from trimtab.cluster.storage.storage import Space
from trimtab.kafka.records import TopicPartition


def written(figures: BrokerFigures) -> dict[str, float]:
    """The values of the samples by name and labels."""
    return {
        f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
        for metric in list_broker_metrics(figures)
        for sample in metric.samples
    }


def test_every_figure_has_its_name() -> None:
    figures = BrokerFigures()
    traffic = Traffic()
    counts = traffic.add_replica("t")
    for number, name in enumerate(sorted(vars(counts))):
        setattr(counts, name, 100 + number)
    traffic.others.bytes_in = 1000
    figures.total, figures.traffic = traffic.total(), traffic.topics
    figures.leaders, figures.under_replicated, figures.under_min_isr = 1, 2, 3
    figures.at_min_isr, figures.reassigning, figures.offline = 4, 5, 6
    figures.groups, figures.members, figures.transactional_ids = 13, 14, 15
    figures.coordinator_bytes, figures.producer_ids = 16, 17
    figures.logs = [LogFigures("t", 7, 8, 9, 10)]
    figures.space = Space(12, 11)
    found = written(figures)
    topics, manager = "kafka_server_brokertopicmetrics", "kafka_server_replicamanager"
    for name, attribute in {
        "bytesin": "bytes_in",
        "bytesout": "bytes_out",
        "messagesin": "records_in",
        "bytesrejected": "bytes_rejected",
        "totalproducerequests": "produces",
        "failedproducerequests": "failed_produces",
        "totalfetchrequests": "fetches",
        "failedfetchrequests": "failed_fetches",
    }.items():
        assert found.pop(f"{topics}_{name}_total t") == getattr(counts, attribute)
        total = getattr(counts, attribute) + (1000 if name == "bytesin" else 0)
        assert found.pop(f"{topics}_{name}_total") == total
    assert found == {
        f"{topics}_replicationbytesin_total": counts.replication_bytes_in,
        f"{topics}_replicationbytesout_total": counts.replication_bytes_out,
        f"{manager}_isrshrinks_total": counts.isr_shrinks,
        f"{manager}_isrexpands_total": counts.isr_expands,
        f"{manager}_partitioncount": 1,
        f"{manager}_leadercount": 1,
        f"{manager}_underreplicatedpartitions": 2,
        f"{manager}_underminisrpartitioncount": 3,
        f"{manager}_atminisrpartitioncount": 4,
        f"{manager}_reassigningpartitions": 5,
        f"{manager}_offlinereplicacount": 6,
        "kafka_log_log_size t 7": 8,
        "kafka_log_log_logstartoffset t 7": 9,
        "kafka_log_log_logendoffset t 7": 10,
        "trimtab_coordinator_groups": 13,
        "trimtab_coordinator_members": 14,
        "trimtab_coordinator_transactional_ids": 15,
        "trimtab_coordinator_memory_bytes": 16,
        "trimtab_producer_ids": 17,
        "trimtab_logs_bytes": 8,
        "trimtab_disk_total_bytes": 12,
        "trimtab_disk_free_bytes": 11,
    }


def test_the_lag_is_never_negative_and_left_out_if_the_end_is_unknown() -> None:
    figures = BrokerFigures()
    figures.committed = [CommittedFigures("g", TopicPartition("t", index), 5) for index in range(3)]
    figures.ends = {TopicPartition("t", 0): 7, TopicPartition("t", 1): 4}
    found = written(figures)
    assert {name: value for name, value in found.items() if "consumergroup" in name} == {
        "kafka_consumergroup_current_offset g t 0": 5,
        "kafka_consumergroup_current_offset g t 1": 5,
        "kafka_consumergroup_current_offset g t 2": 5,
        "kafka_consumergroup_lag g t 0": 2,
        "kafka_consumergroup_lag g t 1": 0,
    }
    assert "trimtab_disk_free_bytes" not in found
