"""Callbacks and partitioners that wait for their own client, or raise errors that end a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.client.scripted_produce import ProduceCluster
from trimtab.client.accumulator.table import TableDelivery
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import UsageError


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 1)
        yield cluster


def refusals(calls: list[Callable[[], object]]) -> list[str]:
    """What each call is refused with."""
    said = []
    for call in calls:
        try:
            call()
            said.append("was not refused")
        except UsageError as error:
            said.append(str(error))
    return said


def blocking_calls(cluster: Cluster, producer: Producer, other: Producer, admin: Admin) -> Any:
    pending = other.send("t", b"pending", timestamp=1)
    table = TableDelivery("t", other._core.accumulator.wait)
    consumer = Consumer(cluster.bootstrap_servers)
    consumer.assign([("t", 0)])
    calls: list[Callable[[], object]] = [
        pending.result,
        lambda: pending.result(5),
        lambda: pending.exception(5),
        table.result,
        table.exception,
        producer.flush,
        producer.close,
        other.flush,
        other.close,
        lambda: producer.partitions_for("new"),
        lambda: producer.send("new", b"x"),
        producer.init_transactions,
        producer.begin_transaction,
        producer.commit_transaction,
        admin.topics,
        admin.close,
        consumer.poll,
        consumer.close,
        lambda: Producer(cluster.bootstrap_servers),
    ]
    return pending, consumer, calls


@pytest.mark.parametrize("where", ["callback", "partitioner"])
def test_a_wait_that_would_not_end_is_refused_at_once(cluster: Cluster, where: str) -> None:
    said: list[str] = []
    calls: list[Callable[[], object]] = []

    def partition(*_: object) -> int:
        if where == "partitioner" and calls and not said:
            said.extend(refusals(calls))
        return 0

    servers = cluster.bootstrap_servers
    with (
        Producer(servers, partitioner_class=partition) as producer,
        Producer(servers, linger_ms=60_000) as other,
        Admin(servers) as admin,
    ):
        producer.send("t", b"x").result(30)
        pending, consumer, calls[:] = blocking_calls(cluster, producer, other, admin)
        if where == "callback":
            delivery = producer.send("t", b"x", on_delivery=lambda _: said.extend(refusals(calls)))
        else:
            delivery = producer.send("t", b"x")
        delivery.result(30)
        producer.flush(30)
        expected = {
            "callback": "in a delivery callback, where it would block every client",
            "partitioner": "a partitioner is called while its producer is locked",
        }[where]
        assert len(said) == len(calls)
        assert [text for text in said if expected not in text] == []
        # Nothing was closed, nothing is stuck.
        assert "t" in admin.topics()
        producer.send("new", b"x").result(30)
        other.flush(30)
        assert pending.done()
        assert consumer.poll(5000)
        consumer.close()


def test_a_finished_delivery_answers_in_a_callback(cluster: Cluster) -> None:
    offsets: list[int] = []
    with Producer(cluster.bootstrap_servers) as producer:
        first = producer.send("t", b"x")
        first.result(30)
        producer.send(
            "t", b"x", on_delivery=lambda d: offsets.extend([first.result().offset, d.result()[2]])
        )
        producer.flush(30)
        assert offsets == [first.result().offset, first.result().offset + 1]


async def test_an_unfinished_delivery_is_to_be_awaited_on_its_loop(kafka: ProduceCluster) -> None:
    async with kafka.producer() as producer:
        delivery = await producer.send("topic", b"x")
        for ask in (delivery.result, delivery.exception, lambda: delivery.result(60)):
            with pytest.raises(UsageError, match="in a coroutine `await` it"):
                ask()
        await delivery
        assert delivery.result().offset == 0
        assert delivery.exception() is None


def test_a_partitioner_may_ask_and_use_its_own_producer(cluster: Cluster) -> None:
    seen: list[Any] = []
    inner: list[Any] = []

    def partition(topic: str, key: bytes | None, *_: object) -> int:
        if key == b"ask":
            metrics: Any = producer.metrics()
            seen.append(metrics["partitioner-metrics"]["t"]["turn-total"])
            seen.append(producer.partitioning("t").topic)
            inner.append(producer.send("t", b"within", key=b"plain"))
        return 0

    with Producer(cluster.bootstrap_servers, partitioner_class=partition) as producer:
        producer.send("t", b"x").result(30)
        outer = producer.send("t", b"x", key=b"ask")
        producer.flush(30)
        assert seen == [0, "t"]
        assert inner[0].result().offset + 1 == outer.result().offset


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_partitioner_that_raises_costs_its_record_alone(
    cluster: Cluster, kind: type[BaseException]
) -> None:
    def partition(topic: str, key: bytes | None, *_: object) -> int:
        if key == b"fail":
            raise kind("the partitioner's own")
        return 0

    with Producer(cluster.bootstrap_servers, partitioner_class=partition) as producer:
        for headers in (None, [("h", b"v")]):
            producer.send("t", b"x", key=b"good", headers=headers)
            with pytest.raises(kind, match="the partitioner's own"):
                producer.send("t", b"x", key=b"fail", headers=headers)
        producer.flush(30)
        metrics: Any = producer.metrics()
        assert metrics["producer-metrics"]["record-send-total"] == 2
        assert producer._core.accumulator.used == 0


class Failed(BaseException):
    """As what `pytest.fail` raises."""


@pytest.mark.parametrize(
    "kind",
    [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Failed],
)
def test_a_callback_may_raise_any_error_without_effect_on_others(
    cluster: Cluster, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    arrow = pytest.importorskip("pyarrow")
    called: list[str] = []

    def fail(name: str) -> Callable[[object], None]:
        def callback(_: object) -> None:
            called.append(name)
            raise kind("the callback's own")

        return callback

    class Partitioner:
        def partition(self, *_: object) -> int:
            return 0

        def close(self) -> None:
            fail("close")(None)

    own = fail("send")
    with (
        caplog.at_level(logging.ERROR, "trimtab.client"),
        Producer(
            cluster.bootstrap_servers, linger_ms=60_000, partitioner_class=Partitioner()
        ) as producer,
    ):
        for _ in range(2):
            producer.send("t", b"x", on_delivery=own)
        delivery = producer.send("t", b"x", on_delivery=fail("other"))
        delivery.add_done_callback(fail("done"))
        delivery.add_done_callback(lambda _: called.append("last"))
        table = producer.send_table("t", arrow.table({"value": [b"x"] * 3}))
        table.add_done_callback(fail("table"))
        producer.flush(30)
        assert sorted(called) == sorted(["send", "send", "other", "done", "last", "table"])
        assert table.result(30).records == 3
        thread = producer._thread
        assert "trimtab-clients" in {each.name for each in threading.enumerate()}
    assert thread.is_released
    assert called[-1] == "close"
    texts = [record.message for record in caplog.records]
    assert texts == ["a delivery callback raised"] * 5 + ["the partitioner's close() raised"]
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[0] is kind


def test_a_callback_for_what_is_known_already_is_called_at_once_and_its_error_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    arrow = pytest.importorskip("pyarrow")

    def fail(_: object) -> None:
        raise ValueError(threading.current_thread().name)

    def leave(_: object) -> None:
        raise SystemExit(3)

    with Producer(cluster.bootstrap_servers) as producer:
        delivery = producer.send("t", b"x")
        table = producer.send_table("t", arrow.table({"value": [b"x"]}))
        producer.flush(30)
        table.result(30)
        for each in (delivery, table):
            each.add_done_callback(fail)
            with pytest.raises(SystemExit):  # on this very thread
                each.add_done_callback(leave)
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info is not None]
    assert [str(error) for error in errors] == [threading.current_thread().name] * 2
