"""Ctrl-C at every line of code that a producer's callers run: the producer continues to work.

Compiled, only Python's own lines can be interrupted; `test_sending_holds_interpreted` runs
those of `send` again with the interpreted form, where that is every line. CI runs all in both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

import pytest

from tests.unit.interrupts import interrupt_at
from trimtab.client.blocking.producer import Producer
from trimtab.cluster.embedded import Cluster
from trimtab.kafka.errors import Unavailable, UsageError

ENOUGH = 2500
"""Lines of one call; more of them, and the sweep would not end."""


def is_ours(code: CodeType) -> bool:
    return "/trimtab/" in code.co_filename


def is_of_waiting(code: CodeType) -> bool:
    """The lines that are Python's in either form."""
    return code.co_filename.endswith(("producer.py", "producer_core.py", "face.py", "waiting.py"))


def is_of_faces(code: CodeType) -> bool:
    return code.co_filename.endswith("client/blocking/producer.py")


def sweep(
    call: Callable[[], object],
    check: Callable[[], object],
    before: Callable[[], object] = lambda: None,
    is_target: Callable[[CodeType], bool] = is_ours,
    by_opcode: bool = False,
    every: int = 1,
) -> int:
    """Interrupt `call` at each line in turn, until it ends; returns the number of lines.

    Args:
        check: called after `every` so many of them.
    """
    places: list[str | None] = []
    for step in range(1, ENOUGH):
        before()
        places.append(interrupt_at(step, call, is_target, by_opcode))
        if step % every == 0 or places[-1] is None:
            try:
                check()
            except BaseException as error:
                error.add_note(f"interrupted at step {step}: {places[-every:]}")
                raise
        if places[-1] is None:
            return step - 1
    raise AssertionError(f"it did not end within {ENOUGH} places")


def verify(producer: Producer) -> None:
    """The lock is free, no waiter is left, and records that are sent now are delivered."""
    accumulator = producer._core.accumulator
    for partition in (0, 1):
        producer.send("t", b"after", partition=partition).result(20)
    producer.flush(20)
    assert len(producer) == 0
    assert accumulator.used == 0
    assert accumulator.memory.waiting == 0
    assert accumulator.incomplete_batches() == []
    assert accumulator.node(0).queued_batches == 0
    assert accumulator.node(0).queued_bytes == 0
    assert accumulator.last_used("t") < float("inf")  # no batch is thought to be unsettled
    # Nothing is set aside for anybody: then one record may be larger than all the memory.
    whole = accumulator.memory.size
    if whole < 100_000:
        assert accumulator.append("t", b"x" * whole, None, None, 0, None) is not None
        producer.flush(20)


@pytest.mark.parametrize(
    "record",
    [
        {"value": b"x"},
        {"value": b"x", "key": b"k", "headers": [("h", b"v")], "partition": 1},
        {"value": bytearray(b"x" * 600), "on_delivery": lambda _: None},
    ],
    ids=["in turn", "told where", "fills a batch"],
)
def test_a_send_that_begins_or_ends_a_batch(cluster: Cluster, record: dict[str, Any]) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=1, batch_size=1000) as producer:
        producer.partitions_for("t")
        steps = sweep(
            lambda: producer.send("t", **record),
            lambda: verify(producer),
            producer.flush,
            every=5,
        )
        assert steps >= 4


def test_a_send_to_a_batch_that_is_open(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=60_000) as producer:
        count = 0

        def send() -> None:
            producer.send("t", b"x", headers=[("h", b"v")])

        def send_more() -> None:
            nonlocal count
            count += 1
            producer.send("t", b"more", headers=[("h", b"v")])
            if count % 20 == 0:
                verify_lingering(producer)

        producer.partitions_for("t")
        producer.send("t", b"first")
        sweep(send, send_more)
        verify_lingering(producer)


def verify_lingering(producer: Producer) -> None:
    batches = producer._core.accumulator.incomplete_batches()
    producer.flush(20)
    assert [batch.error for batch in batches] == [None] * len(batches)
    assert producer._core.accumulator.used == 0


@pytest.mark.parametrize("by_opcode", [False, True], ids=["lines", "instructions"])
def test_a_send_that_waits_for_memory(cluster: Cluster, by_opcode: bool) -> None:
    with Producer(
        cluster.bootstrap_servers, linger_ms=60_000, batch_size=500, buffer_memory=1000
    ) as producer:
        accumulator = producer._core.accumulator
        producer.partitions_for("t")

        def fill() -> None:
            while accumulator.append("t", b"x" * 100, None, None, 0, None) is not None:
                pass

        assert (
            sweep(
                lambda: producer.send("t", b"x" * 100),
                lambda: verify_full(producer),
                fill,
                is_of_faces if by_opcode else is_ours,
                by_opcode,
            )
            >= 20
        )


def verify_full(producer: Producer) -> None:
    accumulator = producer._core.accumulator
    producer.flush(20)
    assert (accumulator.used, accumulator.memory.waiting) == (0, 0)
    assert accumulator.append("t", b"x" * 2000, None, None, 0, None) is not None
    producer.flush(20)


def test_a_send_that_stops_waiting_for_memory(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, batch_size=500, buffer_memory=1000) as producer:
        accumulator = producer._core.accumulator
        producer.send("t", b"x").result(20)
        producer._core.max_block = 0.001
        sender: Any = producer._core.sender
        send_to, sender._send_to = sender._send_to, lambda node_id, now: float("inf")
        while accumulator.append("t", b"x" * 100, None, None, 0, None) is not None:
            pass

        def send() -> None:
            with pytest.raises(Unavailable, match="buffer memory is full"):
                producer.send("t", b"x" * 100)

        def check() -> None:
            assert accumulator.memory.waiting == 0

        assert sweep(send, check) >= 20
        sender._send_to = send_to
        verify_full(producer)


def test_a_send_to_a_topic_that_is_not_known(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        core = producer._core
        producer.send("t", b"x").result(20)

        async def forget() -> None:  # as `metadata.max.idle.ms` does
            core.metadata._wanted.pop("t")
            core.metadata._topics.pop("t")
            core.accumulator.forget("t")
            core.metadata._announce()

        assert (
            sweep(
                lambda: producer.send("t", b"x"),
                lambda: verify(producer),
                lambda: producer._thread.run(forget),
                is_of_waiting,
            )
            >= 10
        )


def test_flush_and_result(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=1) as producer:
        producer.send("t", b"x").result(20)
        sent: list[Any] = []

        def send() -> None:
            sent.append(producer.send("t", b"x"))

        assert sweep(producer.flush, lambda: verify(producer), send, every=3) >= 5
        assert sweep(lambda: sent[-1].result(20), lambda: verify(producer), send, every=3) >= 5
        assert [delivery.result(20)[:1] for delivery in sent] == [("t",)] * len(sent)
        wait = partial(producer.send_and_wait, "t", b"x")
        assert sweep(wait, lambda: verify(producer), every=3) >= 5


def test_a_thread_that_lets_the_sender_run(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=0, batch_size=1000) as producer:
        producer.send("t", b"x").result(20)
        assert sweep(producer._let_sender_run, lambda: verify(producer)) >= 5


def test_close_and_construction_of_a_producer(cluster: Cluster) -> None:
    """An interrupted close() can be made again, and neither leaves a thread behind."""
    made: list[Producer] = []

    def make() -> None:
        made.append(Producer(cluster.bootstrap_servers, linger_ms=60_000))

    def check_made() -> None:
        while made:
            verify_lingering(made[-1])
            made.pop().close()

    def send() -> None:
        make()
        made[0].send("t", b"x", timestamp=7)

    def check_closed() -> None:
        producer = made.pop()
        thread = producer._thread._engine.thread
        producer.close(20)
        thread.join(20)
        assert not thread.is_alive()

    with Producer(cluster.bootstrap_servers) as warm:
        warm.partitions_for("t")
        assert sweep(make, check_made, is_target=is_of_making) >= 5
    assert sweep(lambda: made[0].close(), check_closed, send) >= 5


def is_of_making(code: CodeType) -> bool:
    return code.co_filename.endswith(("producer.py", "face.py", "loop_thread.py", "waiting.py"))


def test_a_table(cluster: Cluster) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"value": [b"x" * 100] * 8})
    with Producer(cluster.bootstrap_servers, batch_size=500, buffer_memory=1000) as producer:
        producer.partitions_for("t")
        producer.send_table("t", table)
        assert (
            sweep(
                lambda: producer.send_table("t", table),
                lambda: verify_full(producer),
                is_target=is_of_waiting,
            )
            >= 20
        )


class SoftTimeout(Exception):
    """What a handler of SIGALRM raises."""


def test_a_signal_handler_that_raises_any_other_error(cluster: Cluster) -> None:
    def handler(place: str) -> None:
        raise SoftTimeout(place)

    with Producer(cluster.bootstrap_servers, linger_ms=1, batch_size=1000) as producer:
        producer.partitions_for("t")
        for step in range(1, ENOUGH):
            producer.flush(20)
            try:
                place = interrupt_at(
                    step, lambda: producer.send("t", b"x" * 600), is_ours, handler=handler
                )
            except SoftTimeout as raised:
                place = str(raised)
            try:
                verify(producer)
            except BaseException as error:
                error.add_note(f"interrupted at {place}")
                raise
            if place is None:
                break
        assert step > 4


def test_a_signal_handler_that_waits_succeeds_or_is_refused(cluster: Cluster) -> None:
    """In a send, the lock that the loop takes may be held: to wait for the loop has no end then."""
    refused: list[str] = []

    def handler(place: str) -> None:
        try:
            producer.flush(20)
        except UsageError as error:
            refused.append(str(error))

    with Producer(cluster.bootstrap_servers, linger_ms=1, batch_size=1000) as producer:
        producer.partitions_for("t")
        for step in range(1, ENOUGH):
            producer.flush(20)
            if not interrupt_at(
                step, lambda: producer.send("t", b"x" * 600), is_ours, handler=handler
            ):
                break
        assert step > len(refused) > 0
        assert [text for text in refused if "A signal handler must raise" not in text] == []
        verify(producer)


@pytest.mark.skipif(os.environ.get("TRIMTAB_PURE") == "1", reason="this is it")
def test_sending_holds_interpreted() -> None:
    tests = [
        test_a_send_that_begins_or_ends_a_batch,
        test_a_send_to_a_batch_that_is_open,
        test_a_send_that_stops_waiting_for_memory,
        test_a_signal_handler_that_raises_any_other_error,
        test_a_signal_handler_that_waits_succeeds_or_is_refused,
    ]
    named = [f"{__file__}::{test.__name__}" for test in tests]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *named],
        env={**os.environ, "TRIMTAB_PURE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
