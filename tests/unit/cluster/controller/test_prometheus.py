"""A controller's metrics for Prometheus."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from tests.steps import finish
from trimtab.balance.limits import PER_CLUSTER, LimitUsage, PartitionLimits
from trimtab.cluster.controller.prometheus import (
    ClusterFigures,
    LimitCollector,
    list_cluster_metrics,
    measure_cluster,
)
from trimtab.cluster.metadata.image import (
    BrokerRegistration,
    ClusterImage,
    PartitionRegistration,
    partition_record,
    register_broker_record,
)
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.wire.messages.metadata_records import TopicRecord

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


def test_counts_of_the_clusters_metadata() -> None:
    image = ClusterImage()
    for broker in range(3):
        registration = BrokerRegistration(
            broker, broker, bytes(16), "h", 1, None, fenced=broker == 2
        )
        image.replay(register_broker_record(registration))
    image.replay(TopicRecord(name="t", topic_id=b"t" * 16))
    for index, leader in enumerate((0, 1, -1, 0)):
        partition = PartitionRegistration(index, leader, 1, 1, (0, 1), (0, 1))
        image.replay(partition_record(b"t" * 16, partition))
    figures = finish(measure_cluster(image))
    assert figures == ClusterFigures(
        topics=1, partitions=4, leaderless=1, imbalanced=2, active_brokers=2, fenced_brokers=1
    )
    values = {each.name: each.samples[0].value for each in list_cluster_metrics(figures)}
    prefix = "kafka_controller_kafkacontroller_"
    assert {name.removeprefix(prefix): value for name, value in values.items()} == {
        "activecontrollercount": 1,
        "globaltopiccount": 1,
        "globalpartitioncount": 4,
        "offlinepartitionscount": 1,
        "preferredreplicaimbalancecount": 2,
        "activebrokercount": 2,
        "fencedbrokercount": 1,
    }
