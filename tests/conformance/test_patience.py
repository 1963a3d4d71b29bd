"""Hostile clients against a broker process with real limits.

These are small versions of the benchmark stage `patience`, which also measures the throughput of
other clients.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.benchmarks.hostile_clients import (
    PRODUCE_VERSION,
    BlockingConnection,
    Garblers,
    HalfOpen,
    Replayers,
    SlowReaders,
    build_batch,
    forge,
    serves,
    write_produce,
)
from lab.benchmarks.patience import SingleBroker, await_that, limit_files, read_values
from trimtab import Admin, Consumer, Producer, TopicPartition
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from trimtab.kafka.wire.messages.metadata import MetadataRequest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are set as on Linux")

METADATA = MetadataRequest(topics=[])
PARTITIONS = 60
VALUE = bytes(100_000)


@pytest.fixture(scope="module")
def broker() -> Iterator[SingleBroker]:
    with SingleBroker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("fill", PARTITIONS)
            admin.create_topic("hostile", 1)
        with Producer(broker.address) as producer:
            for number in range(5 * PARTITIONS):
                producer.send("fill", VALUE, partition=number % PARTITIONS)
        yield broker


def grown_mib(broker: SingleBroker, before: float) -> float:
    """The growth of the broker's memory, after it has answered all earlier requests."""
    assert serves(broker.place)
    assert serves(broker.place)
    return broker.broker_mib() - before


def test_half_open_connections_use_little_memory(broker: SingleBroker) -> None:
    before = broker.broker_mib()
    with HalfOpen(broker.place, 300, head_bytes=60_000) as half_open:
        assert grown_mib(broker, before) < 300 * 0.1
        assert half_open.left == 300


@pytest.mark.parametrize("partition_max_bytes", [90_000, 1 << 20])
def test_slow_readers_use_little_memory(broker: SingleBroker, partition_max_bytes: int) -> None:
    before = broker.broker_mib()
    asked = partial(SlowReaders, broker.place, "fill", PARTITIONS, 40)
    with asked(partition_max_bytes=partition_max_bytes) as readers:
        await_that("they get nothing", lambda: all(readers.received))
        assert grown_mib(broker, before) < 40 * 1.0
        with Consumer(broker.address, check_crcs=True) as consumer:
            partitions = [TopicPartition("fill", number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            missing = 5 * PARTITIONS
            while missing:
                records = consumer.poll(timeout_ms=10_000)
                assert records, f"{missing} records are not read"
                missing -= len(records)


def test_garbled_frames_close_only_their_own_connections(broker: SingleBroker) -> None:
    with (
        Garblers(broker.place, "hostile", 1_000) as garblers,
        BlockingConnection(broker.place) as line,
    ):
        await_that("too few frames were sent", lambda: garblers.outcomes.total() > 300)
        line.ask(METADATA, 9)
    assert garblers.outcomes["closed"] > 100
    log = (broker.directory / "data" / "logs" / "broker-0.log").read_text()
    assert "closed a connection" in log
    assert "its request failed" not in log


@pytest.mark.kip(98)
def test_replayed_and_forged_batches_are_refused_with_the_right_code(broker: SingleBroker) -> None:
    with Replayers(broker.place, "hostile", 1_000) as replayers:
        await_that("no answers", lambda: sum(map(len, replayers.outcomes.values())) >= 6)


@pytest.mark.kip(98)
def test_a_producer_keeps_sending_while_its_batches_are_replayed(broker: SingleBroker) -> None:
    with Admin(broker.address) as admin, BlockingConnection(broker.place) as line:
        admin.create_topic("replayed", 1)
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        producer_id = line.ask(request, 4).producer_id
        forgeries = forge(producer_id)
        offsets = []
        for batch, _ in forgeries.values():
            line.ask(write_produce("replayed", bytes(batch)), PRODUCE_VERSION)
        for sequence in (5, 6):
            batch = build_batch(producer_id, 1, sequence)
            answer = line.ask(write_produce("replayed", batch), PRODUCE_VERSION)
            part = answer.responses[0].partition_responses[0]
            assert part.error_code == ErrorCode.NONE
            offsets.append(part.base_offset)
    assert offsets == [5, 6]


def test_idle_connections_are_closed() -> None:
    with (
        SingleBroker("connections.max.idle.ms=300") as broker,
        HalfOpen(broker.place, 30) as half_open,
        BlockingConnection(broker.place) as busy,
    ):

        def are_gone() -> bool:
            busy.ask(METADATA, 9)
            return half_open.left == 0

        await_that("idle connections stay", are_gone)
        busy.ask(METADATA, 9)


def test_with_few_descriptors_connections_are_limited_and_files_reopened() -> None:
    partitions = 200
    with (
        SingleBroker(prefix=limit_files(160)) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address, delivery_timeout_ms=20_000, request_timeout_ms=5_000) as producer,
    ):
        admin.create_topic("many", partitions)

        def send() -> None:
            deliveries = [producer.send("many", b"v", partition=n) for n in range(partitions)]
            producer.flush()
            assert [each.exception() for each in deliveries] == [None] * partitions

        with HalfOpen(broker.place, 150) as half_open:
            send()
            await_that("a new connection is not served", lambda: serves(broker.place))
            assert half_open.left <= 160 - 40 - 64
            held = len(os.listdir(f"/proc/{broker.broker_pid}/fd"))
            assert held < 160
            # Lower the limit of the running broker, which it does not expect.
            resource.prlimit(broker.broker_pid, resource.RLIMIT_NOFILE, (held - 5, 160))
            send()
        log = (broker.directory / "data" / "logs" / "broker-0.log").read_text()
    assert "connections are open already: the limit on open files is reached" in log
    assert "ERROR" not in log


class Ledger(dict[int, int]):
    """Offsets of acknowledged numbers."""

    def note(self, number: int, delivery: Delivery) -> None:
        if delivery.exception() is None:
            self[number] = delivery.result().offset


def test_a_broker_with_a_full_disk_ends_and_records_wait_until_it_is_back() -> None:
    """A limit on file sizes simulates a full disk; the restarted process has no limit."""
    ledger = Ledger()
    with SingleBroker() as broker, Admin(broker.address) as admin:
        admin.create_topic("t", 1)
        log = broker.directory / "data" / "broker-0" / "t-0" / f"{0:020d}.log"
        with Producer(broker.address, batch_size=5_000) as producer:

            def send(first: int) -> None:
                for number in range(first, first + 2_000):
                    value = b"%d" % number
                    producer.send("t", value, on_delivery=partial(ledger.note, number))

            send(0)
            producer.flush()
            room = log.stat().st_size + 10_001  # in the middle of a batch
            first = broker.broker_pid
            unlimited = resource.prlimit(first, resource.RLIMIT_FSIZE)
            resource.prlimit(first, resource.RLIMIT_FSIZE, (room, unlimited[1]))
            send(2_000)
            producer.flush()
        assert broker.broker_pid != first
        values = read_values(broker.address)
        told = _log_of(broker)
    assert "File too large" in told
    assert "the log directory has failed; this broker stops" in told
    assert sorted(ledger) == list(range(4_000))
    assert {number: values[offset] for number, offset in ledger.items()} == {
        number: number for number in range(4_000)
    }
    assert [value for _, value in sorted(values.items())] == list(range(4_000)), "once, in order"


def _log_of(broker: SingleBroker) -> str:
    return Path(broker.directory, "data", "logs", "broker-0.log").read_text()
