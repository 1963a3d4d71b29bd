"""Spans and metrics of clients (`trimtab.client.opentelemetry`), as its SDK exports them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from trimtab import AsyncProducer, BrokerError, Cluster, Consumer, Producer, UsageError
from trimtab.client.opentelemetry import TracedProducer, observe, processing


class Traces:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster() as cluster:
        yield cluster.bootstrap_servers


def read(servers: str, topic: str) -> Any:
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        return next(iter(consumer))


def test_the_span_that_processes_a_record_is_in_the_trace_of_the_one_that_sent_it(
    servers: str, traces: Traces
) -> None:
    given = [("a", b"1"), ("traceparent", b"old")]
    heard: list[Any] = []
    with Producer(servers) as producer:
        traced = TracedProducer(producer, traces.provider)
        delivery = traced.send("t", b"v", headers=given, partition=0, on_delivery=heard.append)
        place = delivery.result()
    assert heard == [delivery]
    (sent,) = traces.spans
    assert (sent.name, sent.kind) == ("send t", SpanKind.PRODUCER)
    assert dict(sent.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": place.offset,
    }
    record = read(servers, "t")
    context = sent.get_span_context()
    written = (
        f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()
    )
    assert list(record.headers) == [("a", b"1"), ("traceparent", written)]
    assert given[1] == ("traceparent", b"old")
    with pytest.raises(ValueError, match="bad"), processing(record, "g", traces.provider):
        raise ValueError("bad")
    _, processed = traces.spans
    assert (processed.name, processed.kind) == ("process t", SpanKind.CONSUMER)
    assert processed.parent.span_id == context.span_id
    assert processed.context.trace_id == context.trace_id
    assert [link.context.span_id for link in processed.links] == [context.span_id]
    assert processed.status.status_code is StatusCode.ERROR
    assert dict(processed.attributes) == {
        **sent.attributes,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": "g",
    }


def test_a_record_without_a_context_begins_a_trace(servers: str, traces: Traces) -> None:
    with Producer(servers) as producer:
        producer.send("plain", None, key=b"k", partition=0).result()
    with processing(read(servers, "plain"), tracer_provider=traces.provider):
        pass
    (span,) = traces.spans
    assert (span.parent, list(span.links)) == (None, [])
    assert span.attributes["messaging.kafka.message.tombstone"] is True
    assert "messaging.consumer.group.name" not in span.attributes


def test_a_record_that_is_refused_or_fails_ends_its_span_with_the_error(
    servers: str, traces: Traces
) -> None:
    with Producer(servers) as producer, pytest.raises(BrokerError):
        TracedProducer(producer, traces.provider).send("bad name")
    with Producer("127.0.0.1:1", max_block_ms=60_000) as producer:
        producer.close(0)
        with pytest.raises(UsageError):
            TracedProducer(producer, traces.provider).send("t", b"v")
    assert [span.status.status_code for span in traces.spans] == [StatusCode.ERROR] * 2
    assert [span.attributes["error.type"] for span in traces.spans] == ["BrokerError", "UsageError"]


def test_an_asynchronous_producer(servers: str, traces: Traces) -> None:
    async def scenario() -> None:
        async with AsyncProducer(servers) as producer:
            traced = TracedProducer(producer, traces.provider)
            await (await traced.send("t", None, key=b"k"))
            with pytest.raises(BrokerError):
                await traced.send("bad name")

    asyncio.run(scenario())
    good, bad = traces.spans
    assert good.attributes["messaging.kafka.message.tombstone"] is True
    assert good.attributes["messaging.kafka.offset"] >= 0
    assert bad.status.status_code is StatusCode.ERROR


def test_metrics_are_read_at_each_export(servers: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def values() -> dict[str, Any]:
        data = reader.get_metrics_data()
        (scope,) = data.resource_metrics[0].scope_metrics  # type: ignore[union-attr]
        return {metric.name: metric.data.data_points[0] for metric in scope.metrics}

    with Producer(servers) as producer:
        observe(producer, "orders", provider)
        for count in (1, 2):
            producer.send("m", b"v").result()
            point = values()["kafka.producer.record_send_total"]
            assert (point.value, dict(point.attributes)) == (count, {"client-id": "orders"})
        assert "kafka.producer.buffer_available_bytes" in values()
    provider.shutdown()
