"""What failed can be sent elsewhere: `Delivery.record`; and `purge` and `len` of a producer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from trimtab.client.accumulator.table import TableError
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.producer import AsyncProducer
from trimtab.client.topic_view import TopicView
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable
from trimtab.kafka.records import Record, TimestampType

Make = Callable[..., Any]
NOW_MS = 1_700_000_000_250


@pytest.fixture
def make(in_form: Callable[[str], ModuleType], make_view: Callable[..., TopicView]) -> Make:
    def made(compression: int = 0) -> Any:
        accumulator = in_form("trimtab.client.accumulator.accumulator_cy").Accumulator(
            batch_size=1000,
            buffer_memory=1 << 20,
            max_request_size=1 << 20,
            compression=compression,
            ignores_keys=False,
            make_partitioner=lambda: BuiltInPartitioner(BuiltInOptions(1000, False), Random(3)),
            now=lambda: 100.0,
            wall_clock=lambda: NOW_MS / 1000,
            lock=threading.RLock(),
            wake=lambda: None,
            on_callback_error=lambda error: pytest.fail(str(error)),
        )
        accumulator.update_topic(make_view((0, 1)))
        return accumulator

    return made


@pytest.fixture
def accumulator(make: Make) -> Any:
    return make()


def send(accumulator: Any, number: int, on_delivery: Any = None) -> Any:
    return accumulator.append(
        "topic", b"%d" % number, b"k", [("h", None)], 1, NOW_MS + number, on_delivery
    )


def record(number: int) -> Record:
    return Record(
        *("topic", 1, -1, NOW_MS + number, TimestampType.CREATE_TIME, b"k", b"%d" % number),
        [("h", None)],
    )


def test_a_delivery_that_failed_has_its_record_and_others_have_none(accumulator: Any) -> None:
    seen: list[Any] = []
    deliveries = [send(accumulator, number, seen.append) for number in range(4)]
    assert [delivery.record for delivery in deliveries] == [None] * 4
    batch = accumulator.take_batch(accumulator.topic("topic").queues[1])
    accumulator.fail(batch, Unavailable("gone"))
    assert [delivery.record for delivery in deliveries] == [record(n) for n in range(4)]
    assert [delivery.record for delivery in seen] == [record(n) for n in range(4)]

    stored = send(accumulator, 9)
    batch = accumulator.take_batch(accumulator.topic("topic").queues[1])
    accumulator.complete(batch, 7, -1)
    assert stored.result().offset == 7
    assert stored.record is None


def test_only_a_batch_that_failed_keeps_its_bytes(accumulator: Any) -> None:
    queue = accumulator.topic("topic").queues[1]
    for fails in (False, True, True, False):
        for _ in range(3):
            held = accumulator.append("topic", b"x" * 280, None, None, 1, NOW_MS)
        batch = accumulator.take_batch(queue)
        kept, used = accumulator.pool.kept, accumulator.used
        if fails:
            accumulator.fail(batch, Unavailable("gone"))
        else:
            accumulator.complete(batch, 0, -1)
        assert batch.builder is None
        assert accumulator.pool.kept == kept + (0 if fails else 1000)
        assert accumulator.used < used
        assert (held.record is not None) == fails


def test_the_records_of_a_batch_that_was_split_are_found_in_its_parts(accumulator: Any) -> None:
    deliveries = [send(accumulator, number) for number in range(5)]
    queue = accumulator.topic("topic").queues[1]
    accumulator.split(accumulator.take_batch(queue))
    assert len(accumulator.incomplete_batches()) == 5
    for number in range(5):
        part = accumulator.take_batch(queue)
        if number % 2:
            accumulator.fail(part, Unavailable("gone"))
        else:
            accumulator.complete(part, number, -1)
    assert [delivery.record for delivery in deliveries] == [
        record(number) if number % 2 else None for number in range(5)
    ]


def test_parts_of_several_records_have_each_its_own(make: Make) -> None:
    accumulator = make(compression=1)
    queue = accumulator.topic("topic").queues[1]
    queue.topic_queues.compression_ratio = 0.1  # so that a batch is larger than batch.size
    deliveries = [send(accumulator, number) for number in range(100)]
    accumulator.split(accumulator.take_batch(queue))
    counts = [batch.count for batch in queue.batches]
    assert len(counts) > 1
    assert min(counts[:-1]) > 1
    for _ in counts:
        accumulator.fail(accumulator.take_batch(queue), Unavailable("gone"))
    assert [delivery.record for delivery in deliveries] == [record(n) for n in range(100)]


def test_unacknowledged_records_are_counted_through_splits_and_failures(accumulator: Any) -> None:
    queue = accumulator.topic("topic").queues[1]
    for number in range(5):
        send(accumulator, number)
    assert accumulator.unacknowledged == 5
    batch = accumulator.take_batch(queue)
    assert accumulator.unacknowledged == 5
    accumulator.split(batch)
    assert accumulator.unacknowledged == 5
    accumulator.complete(accumulator.take_batch(queue), 0, -1)
    accumulator.fail(accumulator.take_batch(queue), Unavailable("gone"))
    assert accumulator.unacknowledged == 3


@pytest.fixture
def idle(silent: str, make_view: Callable[..., TopicView]) -> Iterator[Producer]:
    """A producer that knows its topic, and whose batches no broker accepts."""
    producer = Producer(silent, batch_size=200, compression_type="gzip")
    producer._core.accumulator.update_topic(make_view((0, 1)))
    yield producer
    producer.close(timeout=0)


def test_a_producer_has_a_length_and_is_always_true(idle: Producer) -> None:
    assert len(idle) == 0
    assert idle
    for number in range(30):
        idle.send("topic", b"%d" % number)
    assert len(idle) == 30


def test_purge_drops_waiting_records_and_returns_their_number(idle: Producer) -> None:
    errors: list[str] = []
    deliveries = [
        idle.send("topic", b"%d" % number, on_delivery=lambda d: errors.append(str(d.exception())))
        for number in range(30)
    ]
    assert idle.purge() == 30
    assert errors == ["dropped by purge() before it was acknowledged"] * 30
    assert len(idle) == 0
    assert idle.purge() == 0
    assert [d.record.value for d in deliveries if d.record] == [b"%d" % n for n in range(30)]
    assert idle.metrics()["producer-metrics"]["buffer-available-bytes"] == 33_554_432
    assert idle.send("topic", b"more").done() is False


def test_purge_leaves_records_in_flight(idle: Producer) -> None:
    under_way = idle.send("topic", b"under way", partition=0)
    accumulator = idle._core.accumulator
    accumulator.take_batch(accumulator.topic("topic").queues[0])
    waiting = idle.send("topic", b"waiting", partition=0)
    assert idle.purge() == 1
    assert (under_way.done(), waiting.done()) == (False, True)


def test_purge_in_a_callback(idle: Producer) -> None:
    purged: list[int] = []
    idle.send("topic", b"first", partition=0, on_delivery=lambda _: purged.append(idle.purge()))
    idle.send("topic", b"second", partition=1)
    assert idle.purge() == 1  # the callback of the first has dropped the second
    assert purged == [1]


def test_records_that_failed_at_closing_stay_readable(idle: Producer) -> None:
    delivery = idle.send("topic", b"v", key=b"k", headers=[("h", b"1")], timestamp=5)
    idle.close(timeout=0)
    assert isinstance(delivery.exception(), Unavailable)
    assert delivery.record is not None
    assert delivery.record[3:] == (5, TimestampType.CREATE_TIME, b"k", b"v", [("h", b"1")])


def test_an_asynchronous_producer_counts_and_purges_too(
    silent: str, make_view: Callable[..., TopicView]
) -> None:
    async def scenario() -> None:
        producer = AsyncProducer(silent)
        producer._core.accumulator.update_topic(make_view((0,)))
        delivery = await producer.send("topic", b"v")
        assert (len(producer), bool(producer)) == (1, True)
        assert producer.purge() == 1
        with pytest.raises(Unavailable, match="purge"):
            await delivery
        assert (len(producer), bool(producer)) == (0, True)
        await producer.close(timeout=0)

    asyncio.run(scenario())


def test_records_refused_by_a_topic_can_be_sent_to_another(cluster: Cluster) -> None:
    def bury(delivery: Any) -> None:
        if (lost := delivery.record) is not None:
            producer.send("dead", lost.value, lost.key, lost.headers, timestamp=lost.timestamp)

    with Producer(cluster.bootstrap_servers) as producer:
        producer.partitions_for("dead")
        headers = [("why", "ä".encode()), ("none", None)]
        lost = producer.send("small", b"x" * 500, b"k", headers, 0, 77, bury)
        kept = producer.send("small", b"x", on_delivery=bury)
        assert isinstance(error := lost.exception(20), BrokerError)
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE
        kept.result(20)
        producer.flush(20)
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("dead", 0)])
        (found,) = consumer.poll(20_000)
    assert (found.key, found.value, found.timestamp) == (b"k", b"x" * 500, 77)
    assert list(found.headers) == headers


def test_the_rows_of_a_table_that_failed(cluster: Cluster) -> None:
    values = [b"a", b"x" * 500, b"b", b"y" * 600]
    table = pa.table({"value": pa.array(values, pa.binary()), "to": [0, 0, 0, 0]})
    with Producer(cluster.bootstrap_servers, batch_size=100) as producer:
        sent = producer.send_table("small", table, partition="to")
        error = sent.exception(20)
    assert isinstance(error, TableError)
    assert error.failed == {0: 2}
    assert [record.value for record in error.records()] == [values[1], values[3]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        with Admin(running.bootstrap_servers) as admin:
            admin.create_topic("small", 1, config={"max.message.bytes": 300})
            admin.create_topic("dead", 1)
        yield running
