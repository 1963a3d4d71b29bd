"""Deliveries, also after a split, and the load of brokers."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

import pytest

from trimtab.client.partitioner.built_in import BuiltInOptions, BuiltInPartitioner
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import BrokerError, ErrorCode, Unavailable
from trimtab.kafka.wire.batch_cy import read_records
from trimtab.kafka.wire.compression import Compression

MakeView = Callable[..., TopicView]
MakeAccumulator = Callable[..., Any]


@pytest.fixture
def make_accumulator(make_view: MakeView, in_form: Callable[[str], ModuleType]) -> MakeAccumulator:
    form = in_form("trimtab.client.accumulator.accumulator_cy")

    def make(leaders: tuple[int, ...] = (0,), batch_size: int = 1000, **options: Any) -> Any:
        made = form.Accumulator(
            batch_size=batch_size,
            buffer_memory=1 << 30,
            max_request_size=1 << 20,
            compression=options.pop("compression", Compression.NONE),
            ignores_keys=False,
            make_partitioner=lambda: BuiltInPartitioner(
                BuiltInOptions(batch_size, False), Random(3)
            ),
            now=lambda: 100.0,
            wall_clock=lambda: 1.0,
            lock=threading.RLock(),
            wake=lambda: None,
            on_callback_error=lambda error: pytest.fail(str(error)),
            **options,
        )
        made.update_topic(make_view(leaders))
        return made

    return make


def send(accumulator: Any, value: bytes = b"", partition: int = 0, **options: Any) -> Any:
    return accumulator.append("topic", value, None, None, partition, 0, **options)


def take(accumulator: Any, partition: int = 0) -> Any:
    return accumulator.take_batch(accumulator.topic("topic").queues[partition])


def values(batch: Any) -> list[bytes | None]:
    return [record.value for record in read_records("topic", 0, batch.builder.build(), 0)]


def test_a_split_batch_is_replaced_by_smaller_ones_that_are_as_old(
    make_accumulator: MakeAccumulator,
) -> None:
    accumulator = make_accumulator(batch_size=10_000)
    for i in range(50):
        send(accumulator, b"%100d" % i)
    big = take(accumulator)
    send(accumulator, b"later")
    queue = accumulator.topic("topic").queues[0]
    big_size = big.size
    accumulator.split(big)
    assert len(queue.in_flight) == 0
    *parts, later = queue.batches
    assert values(later) == [b"later"]
    assert [part.count for part in parts] == [1] * 50  # it was no larger than batch.size
    assert [value for part in parts for value in values(part)] == [b"%100d" % i for i in range(50)]
    assert {part.created for part in parts} == {100.0}
    serials = [batch.serial for batch in queue.batches]
    assert serials == sorted(set(serials))
    assert accumulator.incomplete_batches() == [*parts, later]
    assert accumulator.oldest() is parts[0]
    assert queue.queued_bytes == sum(batch.size for batch in queue.batches) > big_size
    assert accumulator.used == sum(batch.memory for batch in queue.batches)


def test_a_compressed_batch_beyond_batch_size_is_split_into_such_of_batch_size(
    make_accumulator: MakeAccumulator,
) -> None:
    accumulator = make_accumulator(batch_size=1000, compression=Compression.GZIP)
    accumulator.topic("topic").compression_ratio = 0.1
    for i in range(40):
        send(accumulator, b"%100d" % i)
    batch = take(accumulator)
    assert batch.count == 40
    accumulator.split(batch)
    parts = list(accumulator.topic("topic").queues[0].batches)
    assert [part.count for part in parts] == [8] * 5
    assert [value for part in parts for value in values(part)] == [b"%100d" % i for i in range(40)]


def test_deliveries_and_callbacks_follow_their_records_through_a_split(
    make_accumulator: MakeAccumulator,
) -> None:
    accumulator = make_accumulator()
    seen: list[Any] = []
    deliveries = [send(accumulator, on_delivery=seen.append) for _ in range(3)]
    batch = take(accumulator)
    future = accumulator.future_of(batch)
    accumulator.split(batch)
    assert future.done()  # waiters look again
    assert not any(delivery.done() for delivery in deliveries)
    first, second, third = (take(accumulator) for _ in range(3))
    accumulator.complete(second, 71, -1)
    assert seen == [deliveries[1]]
    assert deliveries[1].result().offset == 71
    assert [delivery.offset for delivery in deliveries] == [None, 71, None]
    accumulator.split(first)  # of one record: into itself
    first = take(accumulator)
    accumulator.fail(third, Unavailable("gone"))
    accumulator.complete(first, 70, -1)
    results = [deliveries[0].result().offset, deliveries[1].result().offset]
    assert results == [70, 71]
    assert [delivery.offset for delivery in deliveries] == [70, 71, None]
    with pytest.raises(Unavailable, match="gone"):
        deliveries[2].result()
    assert seen == [deliveries[1], deliveries[2], deliveries[0]]
    assert accumulator.incomplete_batches() == []
    assert accumulator.used == 0


def test_a_wait_for_a_split_batch_continues(make_accumulator: MakeAccumulator) -> None:
    accumulator = make_accumulator()
    send(accumulator)
    delivery = send(accumulator)
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(delivery.result(30).offset))
    batch = take(accumulator)
    waiter.start()
    accumulator.split(batch)
    accumulator.complete(take(accumulator), 8, -1)
    accumulator.complete(take(accumulator), 9, -1)
    waiter.join(30)
    assert found == [9]


def test_each_delivery_raises_its_own_copy_of_the_error(
    make_accumulator: MakeAccumulator,
) -> None:
    accumulator = make_accumulator()
    deliveries = [send(accumulator) for _ in range(2)]
    cause = OSError("cut")
    error = BrokerError(ErrorCode.INVALID_RECORD, "no key", "topic-0")
    error.__cause__ = cause
    accumulator.fail(take(accumulator), error)
    raised = []
    for delivery in deliveries:
        with pytest.raises(BrokerError) as caught:
            delivery.result()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    for each in (*raised, deliveries[0].exception()):
        assert str(each) == str(error)
        assert (each.code, each.subject) == (error.code, error.subject)
        assert each.__cause__ is cause
    assert error.__traceback__ is None


def test_deliveries_that_are_kept_keep_no_bytes_and_leak_nothing(
    make_accumulator: MakeAccumulator,
) -> None:
    class Told:
        def __call__(self, delivery: Any) -> None:
            self.delivery = delivery  # a ring, until it is let go

    accumulator = make_accumulator()
    told = Told()
    delivery = send(accumulator, on_delivery=told)
    batch = take(accumulator)
    accumulator.complete(batch, 5, -1)
    assert batch.builder is None
    assert delivery.result().offset == 5
    gone = weakref.ref(told)
    del told
    gc.collect()
    assert gone() is None


def test_callbacks_of_a_batch_run_in_the_order_of_its_records(
    make_accumulator: MakeAccumulator,
) -> None:
    accumulator = make_accumulator(batch_size=100_000)
    seen: list[int] = []
    for _ in range(500):
        send(accumulator, on_delivery=lambda delivery: seen.append(delivery.result().offset))
    accumulator.complete(take(accumulator), 1000, -1)
    assert seen == list(range(1000, 1500))


def test_a_callback_gets_a_delivery_equal_to_that_of_send(
    make_accumulator: MakeAccumulator,
) -> None:
    accumulator = make_accumulator(batch_size=100_000)
    seen: list[Any] = []
    others: list[Any] = []
    sent = [
        accumulator.append(
            "topic", b"x", None, None, 0, time, others.append if number % 5 == 4 else tell
        )
        for tell in (seen.append,)
        for number, time in enumerate([7, 7, 7, 8, 8, 9, 7, 7, 7, 7])
    ]
    accumulator.complete(take(accumulator), 100, -1)
    assert others == [sent[4], sent[9]]
    assert seen == [sent[number] for number in (0, 1, 2, 3, 5, 6, 7, 8)]
    assert [delivery.result() for delivery in seen + others] == [
        sent[number].result() for number in (0, 1, 2, 3, 5, 6, 7, 8, 4, 9)
    ]
    assert {*seen, *others} == set(sent)
    assert len(set(sent)) == 10
    assert sent[0] != 100


def test_loads_are_those_of_the_leaders(
    make_accumulator: MakeAccumulator, make_view: MakeView
) -> None:
    accumulator = make_accumulator(leaders=(0, 1, -1))
    for partition in (0, 1, 1, 2):
        send(accumulator, b"x" * 600, partition)

    def loads() -> list[tuple[int, int]]:
        return [
            (n.queued_batches, n.queued_bytes) for n in (accumulator.node(0), accumulator.node(1))
        ]

    size = 61 + 600 + 9
    assert loads() == [(1, size), (2, 2 * size)]
    batch = take(accumulator, 1)
    assert loads() == [(1, size), (1, size)]
    # The leader moves: waiting batches count for the new one, batches in flight for the old one.
    accumulator.update_topic(make_view((0, 0, 1)))
    assert loads() == [(2, 2 * size), (1, size)]
    accumulator.put_back(batch)
    assert loads() == [(3, 3 * size), (1, size)]
    while accumulator.oldest() is not None:
        accumulator.fail(accumulator.oldest(), Unavailable("gone"))
    assert loads() == [(0, 0), (0, 0)]


def test_the_longest_queue_is_known_whatever_happens(make_accumulator: MakeAccumulator) -> None:
    accumulator = make_accumulator(leaders=(0,) * 5, batch_size=100)
    topic = accumulator.topic("topic")
    random = Random(11)
    in_flight: list[Any] = []
    before = [0] * 5
    for _ in range(3000):
        partition = random.randrange(5)
        match random.randrange(5):
            case 0 | 1:
                send(accumulator, b"x" * 80, partition)
            case 2 if topic.queues[partition].batches:
                in_flight.append(take(accumulator, partition))
            case 3 if in_flight:
                accumulator.put_back(in_flight.pop(random.randrange(len(in_flight))))
            case 4 if accumulator.oldest() is not None:
                batch = random.choice(accumulator.incomplete_batches())
                accumulator.fail(batch, Unavailable("gone"))
                in_flight = [each for each in in_flight if each is not batch]
        lengths = [len(queue.batches) for queue in topic.queues]
        assert topic.take_resized() == {p for p in range(5) if lengths[p] != before[p]}
        before = lengths
        assert [topic.queued_batches(p) for p in range(5)] == lengths
        assert [topic.queued_bytes(p) for p in range(5)] == [
            sum(batch.size for batch in queue.batches) for queue in topic.queues
        ]


def test_shares_of_a_table_are_divided_with_their_batch(
    make_accumulator: MakeAccumulator, in_form: Callable[[str], ModuleType]
) -> None:
    rows_form = in_form("trimtab.kafka.wire.rows_cy")
    accumulator = make_accumulator()
    shares: list[Any] = []
    column = rows_form.BytesColumn(4, 0, None, None, 2, b"aabbccdd")
    rows = rows_form.Rows(4, None, column, None, None, None, shares.append)
    send(accumulator, b"before")
    assert accumulator.append_rows("topic", rows, 0) == 4
    batch = take(accumulator)
    assert values(batch) == [b"before", b"aa", b"bb", b"cc", b"dd"]
    accumulator.split(batch)
    for offset in range(5):
        accumulator.complete(take(accumulator), 100 + offset, -1)
    assert [
        (share.count, share.batch.base_offset + share.first, share.first, share.last)
        for share in shares
    ] == [(1, 101 + i, 0, 0) for i in range(4)]
