"""The producer of threads: sending, waiting, being interrupted, closed or forked meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.forked import in_child
from tests.unit.interrupts import interrupt_when, press_ctrl_c
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.producer import Producer
from trimtab.client.producer import AsyncProducer
from trimtab.client.producer_core import Core
from trimtab.client.topic_view import TopicView
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import BrokerError, TransactionError, Unavailable, UsageError
from trimtab.kafka.records import RecordMetadata, TopicPartition

MakeView = Callable[..., TopicView]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def stuck(silent: str, make_view: MakeView) -> Iterator[Producer]:
    """A producer that knows its topic, and whose memory is used up for ever."""
    producer = Producer(silent, buffer_memory=20_000, batch_size=10_000)
    accumulator = producer._core.accumulator
    accumulator.update_topic(make_view((0,)))
    while accumulator.append("topic", b"x" * 1000, None, None, None, None) is not None:
        pass
    yield producer
    producer.close(timeout=0)


# sending


def test_records_are_sent_and_their_deliveries_have_the_offsets(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        deliveries = [producer.send("sent", b"%d" % i, key=b"k", timestamp=7 + i) for i in range(9)]
        producer.flush()
        assert [delivery.done() for delivery in deliveries] == [True] * 9
        assert [delivery.result()[:1] + delivery.result()[2:] for delivery in deliveries] == [
            ("sent", i, 7 + i) for i in range(9)
        ]
        view = producer.partitions_for("sent")
        assert view.leaders == (0,)
        metrics: Any = producer.metrics()
        assert metrics["producer-metrics"]["record-send-total"] == 9
        assert metrics["producer-metrics"]["buffer-available-bytes"] == 32 << 20
        assert metrics["producer-metrics"]["connection-count"] >= 1
        assert metrics["producer-metrics"]["requests-in-flight"] == 0
        assert 0 <= metrics["producer-metrics"]["metadata-age"] < 300
        assert metrics["producer-metrics"]["flush-time-ns-total"] > 0
        assert metrics["producer-metrics"]["metadata-wait-time-ns-total"] > 0
        assert metrics["producer-topic-metrics"]["sent"]["record-send-total"] == 9
        assert metrics["partitioner-metrics"]["sent"]["turn-total"] == 0  # they had keys


def test_send_and_wait_returns_where_the_record_is_stored(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=0, value_serializer=str.encode) as producer:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("awaited", partitions=9)
        for partition in range(9):
            found = producer.send_and_wait(
                "awaited", "v", key=b"k", headers=[("h", None)], partition=partition, timestamp=7
            )
            assert found == RecordMetadata("awaited", partition, 0, 7)
        with pytest.raises(UsageError, match="timestamp"):
            producer.send_and_wait("awaited", "v", timestamp=-2)


def test_send_is_the_compiled_method_and_no_other() -> None:
    assert "send" not in vars(Producer)
    assert "send" not in vars(AsyncProducer)


def test_callbacks_run_once_each_on_the_clients_thread(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[int, str]] = []

    def on_delivery(delivery: Any) -> None:
        seen.append((delivery.result().offset, threading.current_thread().name))
        if len(seen) == 3:
            raise ValueError("the user's fault")

    with caplog.at_level(logging.ERROR), Producer(cluster.bootstrap_servers) as producer:
        for _ in range(10):
            producer.send("called", b"x", on_delivery=on_delivery)
        producer.flush()
    assert seen == [(i, "trimtab-clients") for i in range(10)]
    assert [record.message for record in caplog.records] == ["a delivery callback raised"]


def test_a_table_is_sent_and_waits_for_memory_as_often_as_needed(cluster: Cluster) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"value": [b"%200d" % i for i in range(5000)]})
    with Producer(cluster.bootstrap_servers, buffer_memory=50_000, linger_ms=0) as producer:
        delivery = producer.send_table("table", table)
        summary = delivery.result(30)
        assert (summary.topic, summary.records) == ("table", 5000)
        assert summary.partitions[0][:3] == (5000, 0, 4999)
        metrics: Any = producer.metrics()
        assert metrics["producer-metrics"]["bufferpool-wait-time-ns-total"] > 0


def test_a_table_of_a_few_rows_is_sent_by_itself(cluster: Cluster) -> None:
    arrow = pytest.importorskip("pyarrow")
    with Producer(cluster.bootstrap_servers) as producer:
        for rows in (1, 5, 2):
            delivery = producer.send_table("few", arrow.table({"value": [b"x"] * rows}))
            assert delivery.result(30).records == rows


def test_errors_of_the_topic_are_the_senders(cluster: Cluster, silent: str) -> None:
    with Producer(cluster.bootstrap_servers, max_block_ms=500) as producer:
        with pytest.raises(BrokerError, match="no/name"):
            producer.send("no/name", b"x")
        nothing: Any
        for nothing in ("", None, 7):
            with pytest.raises(UsageError, match="topic="):
                producer.send(nothing, b"x")
        with pytest.raises(UsageError, match="'never' is not known to this producer yet"):
            producer.partitioning("never")
    with Producer(silent, max_block_ms=50) as producer:
        with pytest.raises(Unavailable, match=r"topic t is not known after 0\.0"):
            producer.send("t", b"x")
        with pytest.raises(Unavailable, match=r"topic t is not known"):
            producer.partitions_for("t")


# waiting


def test_send_stops_waiting_for_memory_and_leaves_the_queue(
    silent: str, make_view: MakeView
) -> None:
    with Producer(silent, buffer_memory=5000, batch_size=1000, max_block_ms=20) as producer:
        producer._core.accumulator.update_topic(make_view((0,)))
        accumulator = producer._core.accumulator
        while accumulator.append("topic", b"x" * 1000, None, None, None, None) is not None:
            pass
        with pytest.raises(Unavailable, match=r"buffer\.memory=5000.* for 0\.02 s"):
            producer.send("topic", b"x" * 1000)
        assert producer._core.accumulator.memory.waiting == 0
        producer.close(timeout=0)


def test_ctrl_c_ends_a_send_that_waits_for_memory_at_once(stuck: Producer) -> None:
    memory = stuck._core.accumulator.memory
    thread = interrupt_when(lambda: memory.waiting == 1, press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        stuck.send("topic", b"x" * 1000)
    thread.join()
    assert memory.waiting == 0


def test_ctrl_c_ends_flush_and_result_at_once(stuck: Producer, make_view: MakeView) -> None:
    core: Core = stuck._core
    thread = interrupt_when(lambda: bool(core.sender._flushes), press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        stuck.flush()
    thread.join()
    core.accumulator.fail(core.accumulator.incomplete_batches()[-1], Unavailable("makes room"))
    delivery = stuck.send("topic", b"x")
    batch = core.accumulator.incomplete_batches()[-1]
    thread = interrupt_when(lambda: batch.is_waited_for, press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        delivery.result(30)
    thread.join()


def test_a_send_that_waits_for_memory_raises_when_the_producer_is_closed(stuck: Producer) -> None:
    memory = stuck._core.accumulator.memory
    thread = interrupt_when(lambda: memory.waiting == 1, lambda: stuck.close(timeout=0))
    with pytest.raises(UsageError, match="the producer is closed"):
        stuck.send("topic", b"x" * 1000)
    thread.join()
    with pytest.raises(UsageError, match="the producer is closed"):
        stuck.send("topic", b"x")


def test_a_send_that_wakes_after_the_loop_has_ended_raises_that_it_is_closed(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have waited for memory, when no loop is left to record for how long."""

    def refuse(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    producer = Producer(silent)
    monkeypatch.setattr(producer._core, "loop", SimpleNamespace(call_soon_threadsafe=refuse))
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        producer._core.has_waited(0.0)
    producer.close(timeout=0)
    producer._core.has_waited(0.0)
    producer._core.wake()


def test_a_send_that_waits_for_a_topic_raises_when_the_producer_is_closed(silent: str) -> None:
    producer = Producer(silent)
    wanted = producer._core.metadata._wanted
    thread = interrupt_when(lambda: "topic" in wanted, lambda: producer.close(timeout=0))
    with pytest.raises(UsageError, match="the producer is closed"):
        producer.send("topic", b"x")
    thread.join()


def test_a_callback_cannot_wait_for_memory(cluster: Cluster) -> None:
    errors: list[BaseException] = []
    with Producer(cluster.bootstrap_servers, buffer_memory=3000, batch_size=1000) as producer:

        def send_more(_: object) -> None:
            try:
                for _ in range(10):
                    producer.send("from-callback", b"x" * 1000)
            except UsageError as error:
                errors.append(error)

        producer.send("from-callback", b"x", on_delivery=send_more)
        producer.flush()
        assert "a delivery callback cannot wait for it" in str(errors[0])
        producer.send("from-callback", b"x").result(10)


def test_flush_counts_the_records_not_acknowledged_in_time(stuck: Producer) -> None:
    with pytest.raises(Unavailable, match=r"flush: \d+ records are not acknowledged after 0\.01 s"):
        stuck.flush(timeout=0.01)


def test_all_threads_that_wait_for_memory_get_some(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, buffer_memory=20_000, batch_size=5000) as producer:

        def work(name: int) -> None:
            for i in range(300):
                producer.send("shared", b"%d %900d" % (name, i))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        metrics: Any = producer.metrics()
        assert metrics["producer-metrics"]["record-send-total"] == 1200
        assert producer._core.accumulator.used == 0


# a forked process


def test_a_forked_process_is_refused_and_the_parents_producer_works_on(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=60_000) as producer:
        delivery = producer.send("forked", b"before")
        for call in (
            lambda: producer.send("forked", b"x"),
            lambda: producer.send("new", b"x"),
            lambda: delivery.result(),
            lambda: delivery.add_done_callback(print),
            lambda: producer.flush(),
            lambda: producer.partitions_for("forked"),
            lambda: producer.init_transactions(),
        ):
            said = in_child(call)
            assert said.startswith("UsageError"), said
            assert "after the fork" in said
        assert in_child(producer.close) == "None"
        producer.send("forked", b"after")
        producer.flush()
        assert delivery.result().offset == 0


# transactions


def test_without_a_transactional_id_there_are_no_transactions(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for call in (
            producer.init_transactions,
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            lambda: producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g"),
            lambda: producer.transaction().__enter__(),
        ):
            with pytest.raises(UsageError, match=r"set transactional\.id to a name"):
                call()


@pytest.mark.parametrize(
    ("body", "commit", "calls"),
    [
        (None, None, ["begin", "commit"]),
        (ValueError("body"), None, ["begin", "abort"]),
        (KeyboardInterrupt(), None, ["begin", "abort"]),
        (None, TransactionError("lost"), ["begin", "commit", "abort"]),
        (None, TransactionError("fenced", is_fatal=True), ["begin", "commit"]),
        (None, Unavailable("the commit goes on"), ["begin", "commit"]),
        (Unavailable("a delivery"), None, ["begin", "abort"]),
    ],
)
def test_a_transaction_block_commits_or_aborts(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    body: BaseException | None,
    commit: BaseException | None,
    calls: list[str],
) -> None:
    made: list[str] = []

    def note(name: str, error: BaseException | None = None) -> None:
        made.append(name)
        if error is not None:
            raise error

    def run_in_block(producer: Producer) -> None:
        with producer.transaction():
            if body is not None:
                raise body

    async def run_in_async_block() -> None:
        async with AsyncProducer(cluster.bootstrap_servers) as producer:
            for name, error in (("begin", None), ("commit", commit), ("abort", None)):

                async def call(name: str = name, error: Any = error) -> None:
                    note(name, error)

                monkeypatch.setattr(producer, f"{name}_transaction", call)
            async with producer.transaction():
                if body is not None:
                    raise body

    expected = body or commit
    with Producer(cluster.bootstrap_servers) as producer:
        for name, error in (("begin", None), ("commit", commit), ("abort", None)):
            monkeypatch.setattr(producer, f"{name}_transaction", lambda n=name, e=error: note(n, e))
        if expected is None:
            run_in_block(producer)
        else:
            with pytest.raises(type(expected)):
                run_in_block(producer)
    assert made == calls
    made.clear()
    if expected is None:
        asyncio.run(run_in_async_block())
    else:
        with pytest.raises(type(expected)):
            asyncio.run(run_in_async_block())
    assert made == calls


def test_a_look_after_its_waiter_gave_up_opens_the_way_once(silent: str) -> None:
    producer = Producer(silent)
    core: Core = producer._core

    async def look_twice() -> None:
        for _ in range(2):  # the first is for a waiter that has gone, the second for none
            core.after_look = producer._after_look
            core._woken()

    producer._thread.run(look_twice)
    assert producer._look_done.acquire(False)
    producer.close(timeout=0)
