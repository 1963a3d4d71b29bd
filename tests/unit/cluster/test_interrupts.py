"""Ctrl-C in a call of a cluster: what it was about to do is done by the next call, or was done.

So are the clients' calls that wait, as in the cells of a notebook: every object goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.unit.interrupts import interrupt_at, interrupt_when, is_waiting, press_ctrl_c
from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.kafka.errors import UsageError


def is_ours(code: CodeType) -> bool:
    return code.co_filename.endswith("/embedded.py")


def assert_serves(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("t", b"x", partition=0).result(20)


def start_again(cluster: Cluster) -> None:
    if not cluster._is_started:
        cluster.start()
    assert_serves(cluster)


def stop_and_start(cluster: Cluster) -> None:
    cluster.stop()
    cluster.start()
    assert_serves(cluster)


@pytest.mark.parametrize("then", [start_again, stop_and_start])
@pytest.mark.parametrize("call", [Cluster.start, Cluster.stop])
def test_a_start_or_a_stop_at_each_line(
    tmp_path: Path, call: Callable[[Cluster], object], then: Callable[[Cluster], None]
) -> None:
    """Its data are free again, and it starts."""
    place: str | None = ""
    step = 0
    while place is not None:
        step += 1
        cluster = Cluster(brokers=1, data=tmp_path)
        if call is Cluster.stop:
            cluster.start()
        place = interrupt_at(step, lambda: call(cluster), is_ours)  # noqa: B023
        try:
            then(cluster)
        except BaseException as error:
            error.add_note(f"interrupted at step {step}: {place}")
            raise
        cluster.stop()
    assert step > 5


@pytest.mark.parametrize("name", ["_start_all", "_open_broker", "_watch"])
def test_a_start_while_its_nodes_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = getattr(Cluster, name)
    calls: list[str] = []

    def interrupted(*words: Any) -> Any:
        calls.append(name)
        if len(calls) == 1:
            press_ctrl_c()
        return method(*words)

    cluster = Cluster(brokers=2, data=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            cluster.start()
    assert repr(cluster) == "<Cluster of 2 brokers, not up>"
    assert cluster._thread is None
    start_again(cluster)
    cluster.stop()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """Clusters whose nodes are closed; Ctrl-C comes as they begin to, a while before the end."""
    closed: list[Cluster] = []
    close = Cluster._close_all

    async def interrupted(cluster: Cluster) -> None:
        if cluster._controller is not None:
            press_ctrl_c()
            await asyncio.sleep(0.2)
        await close(cluster)
        closed.append(cluster)

    monkeypatch.setattr(Cluster, "_close_all", interrupted)
    return closed


def test_a_stop_that_is_interrupted_goes_on(tmp_path: Path, closed: list[Cluster]) -> None:
    """Until its end, although nobody waits for it: its data are free for another cluster."""
    cluster = Cluster(brokers=1, data=tmp_path).start()
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    with pytest.raises(UsageError, match="only in a cluster with its own thread"):
        cluster.heal()
    interrupt_when(lambda: bool(closed), lambda: None).join(20)
    other = Cluster(brokers=1, data=tmp_path).start()
    assert_serves(other)
    with pytest.raises(KeyboardInterrupt):
        other.stop()


def test_a_stop_after_an_interrupted_one_waits_for_its_end(
    tmp_path: Path, closed: list[Cluster]
) -> None:
    cluster = Cluster(brokers=1, data=tmp_path).start()
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    cluster.stop()
    assert closed == [cluster, cluster]


def test_a_broker_that_stops_while_nobody_waits_can_be_started(tmp_path: Path) -> None:
    with Cluster(brokers=1, data=tmp_path) as cluster:
        place: str | None = ""
        step = 0
        while place is not None:
            step += 1
            place = interrupt_at(step, lambda: cluster.stop_broker(0), is_ours)
            if 0 not in cluster.down:
                cluster.stop_broker(0)
            cluster.start_broker(0)
            assert_serves(cluster)
        assert step > 3


# cells


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


class Notebook:
    """Runs cells; as a notebook it keeps what interrupted the last one, with its frames."""

    def __init__(self) -> None:
        self.interrupted: KeyboardInterrupt | None = None

    def interrupt(self, cell: Callable[[], object]) -> None:
        """Run a cell, and interrupt it once it waits."""
        thread = interrupt_when(is_waiting, press_ctrl_c)
        try:
            cell()
            pytest.fail("the cell ended")
        except KeyboardInterrupt as error:
            self.interrupted = error
        thread.join()


def test_a_cell_that_flushes(cluster: Cluster) -> None:
    notebook = Notebook()
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("t", b"0").result(20)
        cluster.slow(produce_ms=1500)
        delivery = producer.send("t", b"1")
        notebook.interrupt(producer.flush)
        notebook.interrupt(lambda: producer.send_and_wait("t", b"2"))
        cluster.slow(produce_ms=0)
        assert delivery.offset is None
        producer.flush(20)
        assert delivery.offset == 1
        assert producer.send_and_wait("t", b"3").offset == 3


def test_a_cell_that_polls_or_iterates(cluster: Cluster) -> None:
    """What came before the interrupt is in its list, and the next cell reads on from there."""
    notebook = Notebook()
    found: list[bytes | None] = []
    with (
        Producer(cluster.bootstrap_servers) as producer,
        Consumer(cluster.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        producer.send("t", b"0").result(20)
        consumer.subscribe(["t"])
        found += [record.value for record in consumer.poll(20_000)]
        notebook.interrupt(lambda: consumer.poll(60_000))

        def iterate() -> None:
            for record in consumer:
                found.append(record.value)

        for number in range(1, 4):
            producer.send_and_wait("t", b"%d" % number)
            thread = interrupt_when(
                lambda: len(found) > number and is_waiting(),  # noqa: B023
                press_ctrl_c,
            )
            with pytest.raises(KeyboardInterrupt) as caught:
                iterate()
            notebook.interrupted = caught.value
            thread.join()
        producer.send_and_wait("t", b"4")
        found += [record.value for record in consumer.poll(20_000)]
        assert found == [b"%d" % number for number in range(5)]
        consumer.commit()
        (at,) = consumer.committed(consumer.assignment()).values()
        assert at is not None
        assert at.offset == 5


def test_a_cell_that_asks_brokers_that_are_down(cluster: Cluster) -> None:
    notebook = Notebook()
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("t")
        cluster.kill_broker(0)
        notebook.interrupt(admin.topics)
        cluster.start_broker(0)
        assert admin.topics() == ["t"]
