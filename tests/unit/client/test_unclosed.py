"""Unclosed clients: garbage-collected, or open at the interpreter's exit. Nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.scripted_produce import ProduceCluster
from tests.unit.client.scripted_transactions import make_transaction_cluster
from trimtab.client.admin import AsyncAdmin
from trimtab.client.blocking.admin import Admin
from trimtab.client.blocking.consumer import Consumer
from trimtab.client.blocking.producer import Producer
from trimtab.client.consumer import AsyncConsumer
from trimtab.client.producer import AsyncProducer
from trimtab.client.producer_core import INTERRUPT_GRACE, Core
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import Unavailable
from trimtab.sim.world import World
from trimtab.threads import forks
from trimtab.threads.unclosed import close_when_collected


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


def create(cluster: Cluster, topic: str) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        if topic not in admin.topics():
            admin.create_topic(topic, 1)


def stored(cluster: Cluster, topic: str) -> int:
    with Consumer(cluster.bootstrap_servers) as consumer:
        return consumer.end_offsets([(topic, 0)])[(topic, 0)]  # type: ignore[index]


def run_script(cluster: Cluster, topic: str, body: str) -> tuple[int, str]:
    """A script's exit code and its standard error."""
    create(cluster, topic)
    script = f"import os, sys\nservers, topic = {cluster.bootstrap_servers!r}, {topic!r}\n{body}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_records_of_all_threads_are_delivered_before_the_interpreter_exits(
    cluster: Cluster,
) -> None:
    """A worker, a thread that makes its own producer, an exit handler and a dropped producer."""
    code, said = run_script(
        cluster,
        "exit",
        """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor
from trimtab import Admin, Consumer, Producer
producer = Producer(servers, linger_ms=60_000)
gate = threading.Event()
def send(*_):
    gate.wait()
    producer.send(topic, b"x")
def send_by_itself():
    gate.wait()
    threading.current_thread().producer = own = Producer(servers, linger_ms=60_000)
    own.send(topic, b"x")
def drop():
    Producer(servers, linger_ms=60_000).send(topic, b"x")
ThreadPoolExecutor(2).map(send, range(10))
thread = threading.Thread(target=send_by_itself)
thread.start()
atexit.register(send)
drop()
admin, consumer = Admin(servers), Consumer(servers)
admin.topics()
gate.set()
sys.exit(3)
""",
    )
    assert (code, said) == (3, "")
    assert stored(cluster, "exit") == 13


def test_forked_processes_deliver_their_own_records_and_not_the_parents(
    cluster: Cluster,
) -> None:
    code, said = run_script(
        cluster,
        "forks",
        """
import multiprocessing
from trimtab import Producer
producer = Producer(servers, linger_ms=60_000)
producer.send(topic, b"x")
if os.fork() == 0:
    sys.exit(5)
os.wait()
def work():
    global own
    own = Producer(servers, linger_ms=60_000)
    own.send(topic, b"x")
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
""",
    )
    assert (code, said) == (0, "")
    assert stored(cluster, "forks") == 2


def test_the_exit_says_how_many_records_of_which_producer_are_lost(cluster: Cluster) -> None:
    """The brokers are away: it does not wait for longer than the records would live."""
    code, said = run_script(
        cluster,
        "away",
        """
from trimtab import Cluster, Producer
with Cluster(brokers=1) as gone:
    producer = Producer(
        gone.bootstrap_servers, client_id="meter", linger_ms=0, max_block_ms=5000,
        request_timeout_ms=300, delivery_timeout_ms=400, reconnect_backoff_ms=10,
    )
    producer.send(topic, b"x").result()
for _ in range(7):
    producer.send(topic, b"x")
raise ValueError("the script's own")
""",
    )
    assert code == 1
    assert "ValueError: the script's own" in said
    assert ", client_id='meter') was never closed, and 7 of its records could not be" in said
    assert "delivery.timeout.ms" in said


def test_an_async_producer_is_flushed_by_its_loop_or_missed_in_the_log(cluster: Cluster) -> None:
    code, said = run_script(
        cluster,
        "async",
        """
import asyncio, uvloop
from trimtab import AsyncProducer
kept = []
async def main(kept):
    kept.append(AsyncProducer(servers, linger_ms=60_000))
    for _ in range(10):
        await kept[0].send(topic, b"x")
asyncio.run(main([]))
uvloop.run(main([]))
asyncio.run(main(kept))
""",
    )
    assert code == 0
    assert said.count("\n") == 1
    assert "was never closed, and its event loop is closed: 10 records are lost" in said
    assert stored(cluster, "async") == 20


def test_the_end_of_the_process_waits_for_a_loop_in_another_thread(cluster: Cluster) -> None:
    code, said = run_script(
        cluster,
        "daemon",
        """
import asyncio, threading
from trimtab import AsyncProducer
kept, ready = [], threading.Event()
async def main():
    kept.append(AsyncProducer(servers, linger_ms=60_000))
    for _ in range(10):
        await kept[0].send(topic, b"x")
    ready.set()
    await asyncio.Event().wait()
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
ready.wait()
""",
    )
    assert (code, stored(cluster, "daemon")) == (0, 10), said


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until_ended(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(30)


@pytest.mark.skipif(sys.platform != "linux", reason="counts what /proc/self/fd lists")
def test_producers_that_are_dropped_deliver_and_hold_nothing(cluster: Cluster) -> None:
    create(cluster, "dropped")
    wait_until_ended("trimtab-clients")
    gc.collect()
    held, threads, callbacks = descriptors(), threading.active_count(), len(forks._callbacks)
    cores: weakref.WeakSet[Core] = weakref.WeakSet()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(205):
            producer = Producer(cluster.bootstrap_servers, linger_ms=60_000)
            cores.add(producer._core)
            producer.send("dropped", b"x")
        del producer
        gc.collect()
        wait_until_ended("trimtab-clients")
    said = {str(warning.message) for warning in caught}
    assert len(caught) == 205
    assert said == {
        f"unclosed Producer({cluster.bootstrap_servers!r}): it is closed in the background;"
        " use `with`, or call close()"
    }
    assert stored(cluster, "dropped") == 205
    wait_until_ended("trimtab-clients")
    gc.collect()
    assert len(cores) == 0
    # Less, if a client of another test has ended meanwhile.
    assert threading.active_count() <= threads
    assert len(forks._callbacks) <= callbacks
    # The cluster is of this process, too, and sees its connections end a moment later.
    assert descriptors() < held + 20


@pytest.mark.parametrize("make", [Admin, Consumer])
def test_other_clients_that_are_dropped_hold_nothing(cluster: Cluster, make: Any) -> None:
    create(cluster, "here")
    wait_until_ended("trimtab-clients")
    client = make(cluster.bootstrap_servers)
    if isinstance(client, Consumer):
        client.end_offsets([("here", 0)])
    else:
        client.topics()
    held = [client]
    del client
    with pytest.warns(ResourceWarning, match=rf"unclosed {make.__name__}\('127.0.0.1"):
        held.clear()
    wait_until_ended("trimtab-clients")
    assert "trimtab-clients" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("make", [AsyncAdmin, AsyncConsumer, AsyncProducer])
def test_a_client_that_is_dropped_on_a_running_loop_is_closed_there(
    cluster: Cluster, make: Any
) -> None:
    create(cluster, "here")

    async def scenario() -> None:
        before = asyncio.all_tasks()
        client = make(cluster.bootstrap_servers)
        if isinstance(client, AsyncProducer):
            delivery = await client.send("here", b"x")
        elif isinstance(client, AsyncConsumer):
            await client.end_offsets([("here", 0)])
        else:
            await client.topics()
        held = [client]
        del client
        with pytest.warns(ResourceWarning, match=f"unclosed {make.__name__}"):
            held.clear()
        while asyncio.all_tasks() - before:
            await asyncio.wait(asyncio.all_tasks() - before)
        if make is AsyncProducer:
            assert (await delivery).offset == 0

    asyncio.run(scenario())


def test_a_client_whose_loop_does_not_run_logs_the_lost_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Client:
        pass

    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    async def make() -> Client:
        client = Client()
        close_when_collected(client, "Client('a:1')", close, lambda: 3)
        return client

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(make())
    with pytest.warns(ResourceWarning, match="its event loop does not run: 3 records are lost"):
        del client
    assert "Client('a:1') was never closed, and its event loop does not run: 3" in caplog.text
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert closed == ["closed"]
    client = loop.run_until_complete(make())
    loop.close()
    with pytest.warns(ResourceWarning, match="its event loop is closed: 3 records are lost"):
        del client
    assert closed == ["closed"]


def test_a_client_of_a_loop_that_is_collected_in_a_forked_process_is_the_parents(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Client: ...

    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    async def collect() -> None:
        client = Client()
        close_when_collected(client, "Client('a:1')", close, lambda: 3)
        with monkeypatch.context() as forked:
            pid = os.getpid()
            forked.setattr(os, "getpid", lambda: pid + 1)
            del client
        await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(collect())
    assert (closed, warned, caplog.messages) == ([], [], [])


def test_an_open_transaction_is_aborted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with World(29) as world:
        brokers = make_transaction_cluster(world, 2)

        async def scenario() -> None:
            async with brokers.producer(linger_ms=60_000) as producer:
                await producer.init_transactions()
                await producer.begin_transaction()
                deliveries = [await producer.send("topic", b"x") for _ in range(5)]
                with caplog.at_level(logging.WARNING, "trimtab.client"):
                    await producer._core.close_unattended(30.0)
                assert [delivery.done() for delivery in deliveries] == [True] * 5

        brokers.world.run(scenario())
        assert brokers.decisions in ([], [False])
        assert all(not values for values in brokers.committed.values())
    assert "its open transaction was not committed, and 5 unsent records are lost" in (caplog.text)


async def test_closing_unattended_ends_in_time_and_counts_records_of_split_batches_too(
    kafka: ProduceCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with kafka.producer(linger_ms=60_000, acks="1") as producer:
        deliveries = [await producer.send("topic", b"%d" % i, partition=i % 2) for i in range(10)]
        accumulator = producer._core.accumulator
        queue = accumulator.topic("topic").queues[0]
        batch = accumulator.take_batch(queue)
        accumulator.split(batch)
        for broker in kafka.cluster.brokers.values():
            broker.stop()
        began = kafka.world.loop.time()
        with caplog.at_level(logging.WARNING, "trimtab.client"):
            await producer._core.close_unattended(7.0)
        assert 7.0 <= kafka.world.loop.time() - began < 20.0
        assert batch.failed_count == 5
        assert all(delivery.done() for delivery in deliveries)
    assert "was never closed, and 10 of its records could not be delivered" in caplog.text
    assert "closed before this was acknowledged (7 s)" in caplog.text


@pytest.mark.parametrize(
    ("error", "grace"),
    [
        (None, None),
        (ValueError(), None),
        (SystemExit(3), None),
        (GeneratorExit(), None),
        (asyncio.CancelledError(), None),
        (KeyboardInterrupt(), INTERRUPT_GRACE),
    ],
)
def test_only_an_interrupt_of_a_with_block_closes_in_haste(
    kafka: ProduceCluster,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
    grace: float | None,
) -> None:
    given: list[float | None] = []
    close = Core.close

    async def note(core: Core, timeout: float | None) -> None:
        given.append(timeout)
        await close(core, timeout)

    monkeypatch.setattr(Core, "close", note)
    kind = None if error is None else type(error)
    with Producer("127.0.0.1:1") as producer:
        pass
    producer = Producer("127.0.0.1:1")
    producer.__exit__(kind, error, None)

    async def scenario() -> None:
        async with kafka.producer() as producer:
            await producer.__aexit__(kind, error, None)

    kafka.world.run(scenario())
    assert given == [None, grace, grace]


async def test_the_records_of_a_cancelled_task_are_delivered(kafka: ProduceCluster) -> None:
    async def work() -> None:
        async with AsyncProducer(
            kafka.cluster.bootstrap, random=kafka.world.random("own"), linger_ms=60_000
        ) as producer:
            await producer.send("topic", b"x")
            await asyncio.get_running_loop().create_future()

    async with kafka.producer():
        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert sum(map(len, kafka.stored.values())) == 1


def test_a_second_close_hastens_the_first(cluster: Cluster) -> None:
    create(cluster, "hastened")
    with Producer(cluster.bootstrap_servers) as producer:
        producer.partitions_for("hastened")
        core = producer._core
        core.sender.look = lambda: None  # type: ignore[method-assign]
        delivery = producer.send("hastened", b"x")
        thread = threading.Thread(target=producer.close)
        thread.start()
        while not core._closing.done():
            thread.join(0.001)
        producer.close(timeout=0.01)
        thread.join(30)
        with pytest.raises(Unavailable, match=r"was closed before this was acknowledged \(0\.01 s"):
            delivery.result()
        assert producer._thread.is_released
