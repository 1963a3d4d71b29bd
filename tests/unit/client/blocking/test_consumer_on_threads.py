"""A consumer for threads that several threads use, and one whose process forks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.unit.forked import in_child
from trimtab import Admin, Cluster, Consumer, Producer
from trimtab.kafka.errors import UsageError

RECORDS = 4_000
T0 = ("t", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t")
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("t", b"%d" % number)
        yield cluster


class Gate:
    """A deserializer that stops the thread that reads, at its first record."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, data: bytes) -> bytes:
        self.reached.set()
        assert self.opened.wait(60)
        return data


@contextmanager
def reading(consumer: Consumer, gate: Gate) -> Iterator[list[object]]:
    """Another thread that polls, and stops at the gate. Gives what that poll returns or raises."""
    outcome: list[object] = []

    def read() -> None:
        try:
            outcome.extend(consumer.poll(60_000))
        except UsageError as error:
            outcome.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert gate.reached.wait(60)
    try:
        yield outcome
    finally:
        gate.opened.set()
        thread.join()


def consume(cluster: Cluster, **options: object) -> Consumer:
    options = {"auto_offset_reset": "earliest", **options}
    consumer = Consumer({"bootstrap_servers": cluster.bootstrap_servers, **options})
    if "group_id" not in options:
        consumer.assign([T0])
    return consumer


CALLS: dict[str, Callable[[Consumer], object]] = {
    "poll": lambda consumer: consumer.poll(1),
    "arrow": lambda consumer: consumer.arrow(timeout_ms=1),
    "fetch_batches": lambda consumer: consumer.fetch_batches(1),
    "iteration": lambda consumer: next(iter(consumer)),
    "position": lambda consumer: consumer.position(T0),
    "seek": lambda consumer: consumer.seek(T0, 0),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(),
    "seek_to_end": lambda consumer: consumer.seek_to_end(),
    "pause": lambda consumer: consumer.pause(T0),
    "resume": lambda consumer: consumer.resume(T0),
    "assign": lambda consumer: consumer.assign([T0]),
    "subscribe": lambda consumer: consumer.subscribe(["t"]),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "commit": lambda consumer: consumer.commit(),
}


def test_calls_that_read_are_refused_while_another_thread_is_in_one(cluster: Cluster) -> None:
    gate = Gate()
    with consume(cluster, value_deserializer=gate, max_poll_records=100) as consumer:
        with reading(consumer, gate) as outcome:
            for name, call in CALLS.items():
                with pytest.raises(UsageError, match="another thread is using this consumer"):
                    raise AssertionError(f"{name} returned {call(consumer)!r}")
            assert consumer.assignment() == {T0}
            assert consumer.lag().keys() == {T0}
            assert consumer.end_offsets([T0]) == {T0: RECORDS}
        assert len(outcome) == 100
        assert consumer.poll(10_000)[0].offset == 100, "threads may take turns"


def test_an_iteration_belongs_to_its_thread_until_it_is_left(cluster: Cluster) -> None:
    refused: list[UsageError] = []
    offsets: list[int] = []

    with consume(cluster) as consumer:

        def poll() -> None:
            try:
                offsets.extend(record.offset for record in consumer.poll(10_000, max_records=10))
            except UsageError as error:
                refused.append(error)

        def on_another_thread() -> None:
            thread = threading.Thread(target=poll)
            thread.start()
            thread.join()

        for record in consumer:
            offsets.append(record.offset)
            on_another_thread()
            if len(refused) == 3:
                break
        assert offsets == [0, 1, 2]
        on_another_thread()
        assert offsets == list(range(13))


@pytest.fixture
def restless() -> Iterator[None]:
    """Has the interpreter change between threads all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_many_threads_get_no_record_twice(cluster: Cluster) -> None:
    seen: list[int] = []
    consumer = consume(cluster, max_poll_records=50)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            with suppress(UsageError):  # another thread reads, or the consumer is closed
                for count, record in enumerate(consumer, 1):
                    seen.append(record.offset)
                    if len(seen) >= RECORDS:
                        done.set()
                    if count == 70:
                        break

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert done.wait(60)
    consumer.close()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(RECORDS))


def test_closing_from_another_thread_commits_nothing_that_may_not_be_processed(
    cluster: Cluster,
) -> None:
    gate = Gate()
    consumer = consume(
        cluster, group_id="closed", value_deserializer=gate, auto_commit_interval_ms=600_000
    )
    consumer.subscribe(["t"])
    with reading(consumer, gate) as outcome:
        consumer.close()
    assert outcome
    with pytest.raises(UsageError, match="closed"):
        consumer.poll()
    with Admin(cluster.bootstrap_servers) as admin:
        assert admin.list_group_offsets("closed") == {}


# a forked process


def test_a_forked_process_gets_nothing_that_was_fetched_before(cluster: Cluster) -> None:
    with consume(cluster) as consumer:
        assert len(consumer.poll(10_000, max_records=10)) == 10
        for call in (consumer.poll, consumer.fetch_batches, lambda: next(iter(consumer))):
            said = in_child(call)
            assert said.startswith("UsageError: this consumer was created before the process")
            assert "after the fork" in said
        assert in_child(consumer.close) == "None"
        assert consumer.poll(10_000)[0].offset == 10


def test_an_iteration_ends_in_a_forked_process(cluster: Cluster) -> None:
    with consume(cluster) as consumer:
        iteration = iter(consumer)
        assert next(iteration).offset == 0
        assert in_child(lambda: next(iteration)).startswith("UsageError: this consumer was created")
        assert next(iteration).offset == 1
