"""Traces and metrics of clients for OpenTelemetry: needs the package opentelemetry-api.

    from trimtab.client.opentelemetry import TracedProducer, observe, processing

    traced = TracedProducer(producer)
    traced.send("orders", b"...")               a span `send orders`, until the delivery
    for record in consumer:
        with processing(record, group="billing"):      a span `process orders`, in the same trace
            ...
    observe(producer, client_id="orders")       its metrics, at each export

A record carries the context of its span in the header `traceparent` (W3C Trace Context), or what
the configured propagator writes. Clients that are not wrapped cost nothing more.

Source: OpenTelemetry's semantic conventions for messaging and for Kafka, which are in development.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

from opentelemetry import propagate, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.kafka.records import Header, Headers, Record

T_co = TypeVar("T_co", covariant=True)

_NAME = "trimtab"
_TOTAL = "-total"


class Sends(Protocol[T_co]):
    """A producer: `send` of an `AsyncProducer` is awaited."""

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> T_co: ...


class Measured(Protocol):
    """A producer or a consumer."""

    def metrics(self) -> dict[str, Any]: ...


class TracedProducer(Generic[T_co]):
    """Sends records by a producer, each in a span that ends with its delivery.

    Args:
        producer: a `Producer`, or an `AsyncProducer`, whose `send` is awaited here as well.
        tracer_provider: where spans go; None for the global one.
    """

    def __init__(
        self, producer: Sends[T_co], tracer_provider: TracerProvider | None = None
    ) -> None:
        self._producer = producer
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> T_co:
        """As the producer's `send`; adds the headers of the span's context."""
        attributes = _describe(topic, "send", value)
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        sent = list(headers or ())
        propagate.inject(sent, trace.set_span_in_context(span), setter=_HEADERS)

        def delivered(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is None:
                _note_place(span, *delivery.result()[:3])
            _end(span, error)
            if on_delivery is not None:
                on_delivery(delivery)

        try:
            result = self._producer.send(topic, value, key, sent, partition, timestamp, delivered)
        except BaseException as error:
            _end(span, error)
            raise
        if isinstance(result, Delivery):
            return result
        return cast(T_co, _end_if_refused(span, cast("Awaitable[Delivery]", result)))


async def _end_if_refused(span: Span, sending: Awaitable[Delivery]) -> Delivery:
    try:
        return await sending
    except BaseException as error:
        _end(span, error)
        raise


@contextmanager
def processing(
    record: Record, group: str = "", tracer_provider: TracerProvider | None = None
) -> Iterator[Span]:
    """A `with` block in which a record is processed: a span in the trace of the span that sent it,
    to which it also has a link. An exception is recorded.

    Args:
        group: the consumer's group, if it has one.
        tracer_provider: where the span goes; None for the global one.
    """
    sent = propagate.extract(record.headers, getter=_HEADERS)
    origin = trace.get_current_span(sent).get_span_context()
    attributes = _describe(record.topic, "process", record.value)
    if group:
        attributes["messaging.consumer.group.name"] = group
    tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
    with tracer.start_as_current_span(
        f"process {record.topic}",
        context=sent,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(origin)] if origin.is_valid else [],
    ) as span:
        _note_place(span, record.topic, record.partition, record.offset)
        yield span


def observe(
    client: Measured, client_id: str = "", meter_provider: MeterProvider | None = None
) -> None:
    """Export a client's own metrics, not those by broker, topic or partition: `record-send-total`
    of `producer-metrics` becomes `kafka.producer.record_send_total`, as with OpenTelemetry's
    reporter for Java's clients. They are read at each export, for as long as the process runs.

    Args:
        client: a producer or a consumer.
        client_id: the attribute `client-id`, to distinguish a process's clients.
        meter_provider: where the metrics go; None for the global one.
    """
    meter = get_meter(_NAME, meter_provider=meter_provider)
    attributes = {"client-id": client_id} if client_id else {}

    def read(group: str, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            value = client.metrics()[group][name]
            return [] if math.isnan(value) else [Observation(value, attributes)]

        return callback

    for group, metrics in client.metrics().items():
        for name, value in metrics.items():
            if isinstance(value, dict):
                continue
            create = (
                meter.create_observable_counter
                if name.endswith(_TOTAL)
                else meter.create_observable_gauge
            )
            full = f"kafka.{group.removesuffix('-metrics')}.{name}".replace("-", "_")
            create(full, [read(group, name)], description=f"{name} of Kafka's {group}")


def _describe(topic: str, operation: str, value: object) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }
    if value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    return attributes


def _note_place(span: Span, topic: str, partition: int, offset: int) -> None:
    span.set_attribute("messaging.destination.partition.id", str(partition))
    if offset >= 0:
        span.set_attribute("messaging.kafka.offset", offset)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


class _HeaderAccess(Getter[Sequence[Header]], Setter[list[Header]]):
    """A record's headers, as propagators read and write them. The last of a name counts, as in
    Kafka's `Headers.lastHeader`."""

    def get(self, carrier: Sequence[Header], key: str) -> list[str] | None:
        found = [value for name, value in carrier if name.lower() == key and value is not None]
        return [str(found[-1], "utf-8", "replace")] if found else None

    def keys(self, carrier: Sequence[Header]) -> list[str]:
        return [name for name, _ in carrier]

    def set(self, carrier: list[Header], key: str, value: str) -> None:
        carrier[:] = [each for each in carrier if each[0] != key]
        carrier.append((key, value.encode()))


_HEADERS = _HeaderAccess()
