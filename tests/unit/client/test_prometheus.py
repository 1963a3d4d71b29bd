"""A client's metrics as Prometheus reads them."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.metrics_cy import ProducerMetrics, Snapshot
from trimtab.client.prometheus import ClientCollector
from trimtab.kafka.records import TopicPartition


class Producing:
    """Has metrics like a producer."""

    def __init__(self) -> None:
        self.measured = ProducerMetrics(lambda: 1.0, 30.0, 2)

    def metrics(self) -> Snapshot:
        return {
            **self.measured.snapshot({"buffer-total-bytes": 64.0}),
            "partitioner-metrics": {"flights": {"turn-total": 5.0}, "fares": {"turn-total": 7.0}},
        }


def scrape(producer: Producing) -> list[str]:
    registry = CollectorRegistry()
    registry.register(ClientCollector(producer, client_id="orders"))
    return generate_latest(registry).decode().splitlines()


def test_a_total_is_a_counter_and_all_else_a_gauge() -> None:
    lines = scrape(Producing())
    assert "# TYPE kafka_producer_record_send_total counter" in lines
    assert 'kafka_producer_record_send_total{client_id="orders"} 0.0' in lines
    assert "# TYPE kafka_producer_buffer_total_bytes gauge" in lines
    assert 'kafka_producer_buffer_total_bytes{client_id="orders"} 64.0' in lines


def test_brokers_and_topics_are_labels() -> None:
    producer = Producing()
    producer.measured.request_sent(2, 100, records=1, batches=1)
    producer.measured.batch_retried("flights", type("B", (), {"count": 3})())
    lines = scrape(producer)
    assert 'kafka_producer_node_outgoing_byte_total{client_id="orders",node="2"} 100.0' in lines
    assert 'kafka_partitioner_turn_total{client_id="orders",topic="fares"} 7.0' in lines
    retried = 'kafka_producer_topic_record_retry_total{client_id="orders",topic="flights"} 3.0'
    assert retried in lines


def test_a_partition_has_two_labels() -> None:
    class Consuming:
        def metrics(self) -> Snapshot:
            measured = ConsumerMetrics(lambda: 1.0, 30.0, 2)
            return measured.snapshot({TopicPartition("a-b", 3): 7}, {}, is_member=False)

    registry = CollectorRegistry()
    registry.register(ClientCollector(Consuming()))
    lag = (
        'kafka_consumer_fetch_manager_partition_records_lag{client_id="",partition="3",topic="a-b"}'
    )
    assert f"{lag} 7.0" in generate_latest(registry).decode().splitlines()


def test_metrics_without_recent_samples_are_left_out() -> None:
    assert not any("NaN" in line or "nan" in line for line in scrape(Producing()))
