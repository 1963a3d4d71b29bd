"""What a producer measures: windows as Kafka's, and the snapshot's names."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from trimtab.client.blocking.producer import Producer
from trimtab.client.metrics_cy import ProducerMetrics, Sampled
from trimtab.client.topic_view import TopicView
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import Unavailable

WINDOW = 30.0


@dataclass
class Sent:
    count: int = 10
    size: int = 1_000
    created: float = 0.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sampled(samples: int = 2) -> Sampled:
    return Sampled(WINDOW, samples)


def test_a_rate_counts_a_full_window_before_one_has_passed() -> None:
    quantity = sampled()
    quantity.record_amount(300, 0.0)
    assert quantity.rate(1.0) == pytest.approx(300 / 31)


def test_a_rate_is_of_the_time_since_the_oldest_window_began() -> None:
    quantity = sampled()
    for second in range(50):
        quantity.record_amount(10, float(second))
    assert quantity.rate(50.0) == pytest.approx(10.0)


def test_windows_that_are_too_old_count_no_more_but_in_the_total() -> None:
    quantity = sampled()
    quantity.record_amount(300, 0.0)
    assert quantity.rate(60.0) == 0.0
    assert math.isnan(quantity.average(60.0))
    assert math.isnan(quantity.maximum(60.0))
    assert (quantity.total, quantity.count) == (300, 1)


def test_an_average_and_a_maximum_are_of_the_recent_windows() -> None:
    quantity = sampled()
    quantity.record_amount(1_000, 0.0)
    quantity.record_amount(20, 40.0)
    quantity.record_amount(40, 75.0)
    assert quantity.average(75.0) == 30.0
    assert quantity.maximum(75.0) == 40.0


def test_no_more_windows_are_kept_than_asked_for() -> None:
    quantity = sampled(samples=3)
    for minute in range(1_000):
        quantity.record_amount(1, minute * WINDOW)
    assert quantity.windows <= 3


def measured() -> tuple[ProducerMetrics, Clock]:
    clock = Clock()
    return ProducerMetrics(clock, WINDOW, 2), clock


def test_a_sent_batch_counts_for_producer_node_and_topic() -> None:
    metrics, clock = measured()
    clock.now = 0.25
    metrics.batch_sent("flights", Sent(), 500, is_first=True)
    metrics.request_sent(0, 600, records=10, batches=1)
    metrics.response_received(0, 80, 0.02)
    clock.now = 1.0
    snapshot = metrics.snapshot({"buffer-total-bytes": 32.0})
    producer = snapshot["producer-metrics"]
    assert producer["record-send-total"] == 10
    assert producer["batch-size-avg"] == 500
    assert producer["compression-rate-avg"] == 0.5
    assert producer["record-queue-time-avg"] == 250
    assert producer["records-per-request-avg"] == 10
    assert producer["request-latency-max"] == 20
    assert producer["outgoing-byte-total"] == 600
    assert producer["request-total"] == producer["response-total"] == 1
    assert producer["buffer-total-bytes"] == 32
    node = snapshot["producer-node-metrics"]["node-0"]
    assert isinstance(node, dict)
    assert node["outgoing-byte-total"] == 600
    assert node["incoming-byte-total"] == 80
    assert node["record-total"] == 10
    topic = snapshot["producer-topic-metrics"]["flights"]
    assert isinstance(topic, dict)
    assert topic["byte-total"] == 500
    assert topic["record-send-total"] == 10


def test_a_batch_sent_again_is_a_retry_and_not_sent_twice() -> None:
    metrics, _ = measured()
    metrics.batch_sent("flights", Sent(), 500, is_first=True)
    metrics.batch_retried("flights", Sent())
    metrics.batch_sent("flights", Sent(), 500, is_first=False)
    metrics.batch_failed("flights", Sent())
    producer = metrics.snapshot({})["producer-metrics"]
    assert producer["record-send-total"] == 10
    assert producer["record-retry-total"] == 10
    assert producer["record-error-total"] == 10


def test_waiting_for_memory_is_a_share_of_the_time() -> None:
    metrics, clock = measured()
    metrics.waited_for_memory(0.5)
    clock.now = 30.0
    metrics.waited_for_memory(1.0)
    clock.now = 50.0
    producer = metrics.snapshot({})["producer-metrics"]
    assert producer["bufferpool-wait-ratio"] == pytest.approx(1.5 / 50)
    assert producer["bufferpool-wait-time-ns-total"] == 1.5e9


def test_throttling_and_splits_are_counted() -> None:
    metrics, _ = measured()
    metrics.throttled(0.1)
    metrics.batch_split()
    producer = metrics.snapshot({})["producer-metrics"]
    assert producer["produce-throttle-time-max"] == 100
    assert producer["batch-split-total"] == 1


def test_waiting_times_add_up_by_call() -> None:
    metrics, _ = measured()
    metrics.waited("flush", 0.25)
    metrics.waited("flush", 0.5)
    metrics.waited("txn-commit", 2.0)
    producer = metrics.snapshot({})["producer-metrics"]
    assert producer["flush-time-ns-total"] == 0.75e9
    assert producer["txn-commit-time-ns-total"] == 2e9
    assert producer["txn-abort-time-ns-total"] == 0


def test_rates_of_requests_and_responses() -> None:
    metrics, clock = measured()
    for node in (0, 0, 1):
        metrics.request_sent(node, 600, records=10, batches=1)
    metrics.response_received(0, 90, 0.02)
    clock.now = WINDOW
    snapshot = metrics.snapshot({})
    producer = snapshot["producer-metrics"]
    assert producer["request-rate"] == pytest.approx(3 / WINDOW)
    assert producer["response-rate"] == pytest.approx(1 / WINDOW)
    assert producer["network-io-rate"] == pytest.approx(4 / WINDOW)
    assert producer["network-io-total"] == 4
    assert producer["outgoing-byte-rate"] == pytest.approx(1800 / WINDOW)
    assert producer["incoming-byte-rate"] == pytest.approx(90 / WINDOW)
    assert producer["request-size-avg"] == producer["request-size-max"] == 600
    of_node = snapshot["producer-node-metrics"]["node-0"]
    assert isinstance(of_node, dict)
    assert of_node["request-rate"] == pytest.approx(2 / WINDOW)
    assert of_node["response-rate"] == pytest.approx(1 / WINDOW)


JAVA = """
batch-size-avg batch-size-max batch-split-rate batch-split-total buffer-available-bytes
buffer-exhausted-rate buffer-exhausted-total buffer-total-bytes bufferpool-wait-ratio
bufferpool-wait-time-ns-total compression-rate-avg connection-close-rate connection-close-total
connection-count connection-creation-rate connection-creation-total failed-authentication-rate
failed-authentication-total flush-time-ns-total incoming-byte-rate incoming-byte-total metadata-age
metadata-wait-time-ns-total network-io-rate network-io-total outgoing-byte-rate outgoing-byte-total
produce-throttle-time-avg produce-throttle-time-max record-error-rate record-error-total
record-queue-time-avg record-queue-time-max record-retry-rate record-retry-total record-send-rate
record-send-total record-size-avg records-per-request-avg request-latency-avg request-latency-max
request-rate request-size-avg request-size-max request-total requests-in-flight response-rate
response-total successful-authentication-rate successful-authentication-total
txn-abort-time-ns-total txn-begin-time-ns-total txn-commit-time-ns-total txn-init-time-ns-total
txn-send-offsets-time-ns-total waiting-threads
"""
"""`producer-metrics` of Kafka 4.4's producer, but for those that SKIPPED.md names."""


def test_a_producer_has_the_metrics_of_javas() -> None:
    with Cluster() as cluster, Producer(cluster.bootstrap_servers) as producer:
        producer.send("t", b"v").result(20)
        metrics = producer.metrics()["producer-metrics"]
        assert set(metrics) == set(JAVA.split())
        created = metrics["connection-creation-total"]
        assert not isinstance(created, dict)
        assert created >= 1
        assert metrics["connection-close-total"] == 0
        assert metrics["successful-authentication-total"] == 0


def test_sends_that_got_no_memory_are_counted(make_view: Callable[..., TopicView]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Producer(
            f"127.0.0.1:{silent.getsockname()[1]}",
            buffer_memory=5000,
            batch_size=1000,
            max_block_ms=20,
        ) as producer,
    ):
        producer._core.accumulator.update_topic(make_view((0,)))
        while producer._core.accumulator.append("topic", bytes(500), *(None,) * 4) is not None:
            pass
        with pytest.raises(Unavailable, match="buffer memory is full"):
            producer.send("topic", bytes(500))
        producer.purge()
        assert producer.metrics()["producer-metrics"]["buffer-exhausted-total"] == 1
        producer.close(0)


def test_connection_events_are_counted() -> None:
    metrics, _ = measured()
    for what in ("connection-creation", "failed-authentication", "failed-authentication"):
        metrics.connection_event(what)
    producer = metrics.snapshot({})["producer-metrics"]
    assert producer["connection-creation-total"] == 1
    assert producer["failed-authentication-total"] == 2
    assert producer["failed-authentication-rate"] == pytest.approx(2 / WINDOW)
