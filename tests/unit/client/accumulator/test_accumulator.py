"""Records into batches, turns between partitions, batches out, deliveries settled.

Long because a batch goes through all of its stations in most cases.
"""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise
from random import Random
from types import ModuleType
from typing import Any

import pytest

from tests.unit.client.accumulator.conftest import Bench, MakeView, request_memory
from tests.unit.interrupts import interrupt_at
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.partitioner.per_record import RoundRobinPartitioner
from trimtab.client.partitioner.sticky import StickyPartitioner
from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.kafka.records import RecordMetadata
from trimtab.kafka.wire.batch_cy import HEADER_BYTES
from trimtab.kafka.wire.compression import Compression


def test_a_topic_that_is_not_known_takes_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    assert bench.accumulator.append("other", b"", None, None, None, None) is None
    assert not bench.accumulator.knows("other")


def test_a_record_is_in_its_batch_as_it_was_sent(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.send(b"value", b"key", partition=1, headers=[("h", b"1"), ("n", None)], timestamp=77)
    bench.send(None, None, partition=1, timestamp=None)
    (batch,) = bench.take_all()
    first, second = bench.records(batch)
    assert (first.key, first.value, first.timestamp) == (b"key", b"value", 77)
    assert list(first.headers) == [("h", b"1"), ("n", None)]
    assert (second.key, second.value, second.timestamp) == (None, None, 1_700_000_000_250)
    assert batch.created == 100.0


def test_keys_decide_unless_they_are_ignored(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    for _ in range(20):
        bench.send(key=b"abc")
    (batch,) = bench.take_all()
    assert batch.queue.partition == 0  # 479470107 % 3
    ignoring = make_bench(ignores_keys=True, batch_size=100)
    for _ in range(20):
        ignoring.send(b"x" * 50, key=b"abc")
    assert {batch.queue.partition for batch in ignoring.take_all()} == {0, 1, 2}


def test_an_empty_key_is_a_key(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=tuple(range(12)))
    bench.send(key=b"")
    (batch,) = bench.take_all()
    assert batch.queue.partition == 9


def test_a_partition_that_is_not_known_is_waited_for(
    make_bench: Callable[..., Bench],
    make_view: MakeView,
    in_form: Callable[[str], ModuleType],
) -> None:
    """`append` accepts nothing until the view has it, and neither do rows or waiting senders."""
    accumulator = make_bench().accumulator
    form = in_form("trimtab.kafka.wire.rows_cy")
    rows = rows_of(form, [b"1", b"2"], lambda share: None, partitions=[0, 3])
    assert accumulator.append("topic", b"", None, None, 3, 0) is None
    assert accumulator.append_rows("topic", rows, 0) == 1
    request = request_memory(accumulator, 100)
    assert accumulator.append_granted(request, "topic", b"", None, None, 3, 0) is None
    assert [accumulator.knows("topic", partition) for partition in (None, 2, 3)] == [1, 1, 0]
    assert not accumulator.knows("other", 0)
    accumulator.update_topic(make_view((0, 1, 0, 1)))
    assert accumulator.knows("topic", 3)
    assert accumulator.append("topic", b"", None, None, 3, 0) is not None
    assert accumulator.append_rows("topic", rows, 1) == 2
    assert accumulator.append_granted(request, "topic", b"", None, None, 3, 0) is not None
    (batch,) = accumulator.topic("topic").queues[3].batches
    assert batch.count == 3


def test_a_negative_partition_is_refused_at_once(make_bench: Callable[..., Bench]) -> None:
    with pytest.raises(UsageError, match="partition"):
        make_bench().send(partition=-1)


def test_batches_fill_to_batch_size(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,))
    for _ in range(100):
        bench.send(b"x" * 90)
    batches = bench.take_all()
    assert sum(batch.count for batch in batches) == 100
    for batch in batches[:-1]:
        assert 1000 - 100 < batch.size <= 1000
        assert len(batch.builder.build(-1, -1, -1)) == batch.size


def test_a_record_larger_than_a_batch_has_one_of_its_own(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,), batch_size=100)
    for _ in range(3):
        bench.send(b"x" * 500)
    assert [batch.count for batch in bench.take_all()] == [1, 1, 1]


def test_batch_size_zero_sends_each_record_alone(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0, 1), batch_size=0)
    for _ in range(4):
        bench.send(b"x")
    assert [batch.count for batch in bench.take_all()] == [1, 1, 1, 1]


def test_a_record_larger_than_a_request_is_refused(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_request_size=1000)
    with pytest.raises(UsageError, match=r"max\.request\.size is 1000; raise it together with"):
        bench.send(b"x" * 1000)
    with pytest.raises(UsageError, match=r"max\.request\.size"):
        bench.send(headers=[("h", b"x" * 1000)])


@pytest.mark.parametrize("value", ["text", 7, {"a": 1}])
def test_a_value_that_is_not_bytes_is_refused_and_leaves_nothing(
    make_bench: Callable[..., Bench], value: Any
) -> None:
    bench = make_bench()
    with pytest.raises((UsageError, TypeError)):
        bench.send(value)
    assert bench.take_all() == []
    assert bench.accumulator.used == 0


def test_nothing_is_taken_after_closing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.accumulator.close(UsageError("the producer is closed"))
    with pytest.raises(UsageError, match="the producer is closed"):
        bench.send()


@pytest.mark.kip(794)
def test_turns_are_of_batch_size_and_even(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(batch_size=1000)
    for _ in range(3000):
        bench.send(b"x" * 43)
    sizes = bench.bytes_by_partition()
    assert set(sizes) == {0, 1, 2}
    assert max(sizes.values()) - min(sizes.values()) <= 2 * 1000


@pytest.mark.kip(794)
@pytest.mark.parametrize("drained", [True, False])
def test_a_slow_partition_gets_no_more_than_the_others(
    make_bench: Callable[..., Bench], drained: bool
) -> None:
    """All batches are sent at once, but those of partition 0 stay and fill (KAFKA-14156)."""
    bench = make_bench(batch_size=1000)
    produced: Counter[int] = Counter()
    for _ in range(20_000):
        bench.send(b"x" * 43)
        for queue in bench.busy_queues():
            if queue.partition != 0 or (drained and len(queue.batches) > 3):
                batch = bench.accumulator.take_batch(queue)
                produced[queue.partition] += batch.size
                bench.accumulator.complete(batch, 0, -1)
    produced.update(bench.bytes_by_partition())
    mean = sum(produced.values()) / 3
    for partition in range(3):
        assert produced[partition] == pytest.approx(mean, rel=0.01)


@pytest.mark.kip(794)
def test_batches_of_a_turn_are_full_when_nothing_is_sent_meanwhile(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(batch_size=16_384, leaders=(0, 1, 2))
    for _ in range(5000):
        bench.send(b"x" * 512)
    batches = bench.take_all()
    partial = [batch for batch in batches if batch.size < 16_384 - 530]
    assert len(partial) <= 3


@pytest.mark.kip(480)
def test_sticky_turns_with_each_new_batch(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(batch_size=300, make_partitioner=lambda: StickyPartitioner(Random(5)))
    seen = []
    for _ in range(50):
        bench.send(b"x" * 100)
        bench.send(b"x" * 100)
        (batch,) = bench.take_all()
        assert batch.count == 2
        seen.append(batch.queue.partition)
    assert all(a != b for a, b in pairwise(seen))


@pytest.mark.kip(480)
def test_sticky_fills_exactly_one_batch_before_it_turns(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(
        leaders=(0, 1), batch_size=300, make_partitioner=lambda: StickyPartitioner(Random(5))
    )
    for _ in range(4):
        bench.send(b"x" * 100)
    assert [batch.count for batch in bench.take_all()] == [2, 2]


def test_round_robin_spreads_each_record_also_across_full_batches(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0, 1), batch_size=200, make_partitioner=RoundRobinPartitioner)
    for _ in range(40):
        bench.send(b"x" * 60)
    by_partition: Counter[int] = Counter()
    for batch in bench.take_all():
        by_partition[batch.queue.partition] += batch.count
    assert by_partition == {0: 20, 1: 20}


def test_used_memory_is_that_of_waiting_batches(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    for _ in range(50):
        bench.send(b"x" * 100)
    batches = bench.take_all()
    assert bench.accumulator.used == sum(batch.memory for batch in batches)
    assert all(batch.size <= batch.memory <= 1000 for batch in batches)
    for batch in batches:
        bench.accumulator.complete(batch, 0, -1)
    assert bench.accumulator.used == 0


def test_a_full_buffer_takes_nothing_more_until_something_is_settled(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,), buffer_memory=2000)
    sent = 0
    while bench.accumulator.append("topic", b"x" * 100, None, None, None, 0) is not None:
        sent += 1
    assert 10 <= sent < 20
    bench.accumulator.fail(bench.take_all()[0], Unavailable("gone"))
    bench.send(b"x" * 100)


def test_an_empty_buffer_takes_a_record_larger_than_itself(
    make_bench: Callable[..., Bench],
) -> None:
    make_bench(buffer_memory=10).send(b"x" * 100)


def test_the_sender_is_woken_for_a_first_record_and_for_a_complete_batch(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,), batch_size=1000)
    bench.send(b"x" * 100)
    assert len(bench.wakes) == 1
    assert bench.accumulator.take_changed() == bench.busy_queues()
    for _ in range(7):
        bench.send(b"x" * 100)
    assert len(bench.wakes) == 1
    bench.send(b"x" * 200)
    assert len(bench.wakes) == 2
    assert bench.accumulator.take_changed() == bench.busy_queues()
    assert bench.accumulator.take_changed() == []
    (queue,) = bench.busy_queues()
    assert queue.head_is_complete


def test_a_delivery_has_the_partition_and_offset_of_its_record(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,))
    deliveries = [bench.send(b"x", timestamp=40 + i) for i in range(3)]
    (batch,) = bench.take_all()
    assert not deliveries[0].done()
    bench.accumulator.complete(batch, 1000, -1)
    assert [d.result() for d in deliveries] == [
        RecordMetadata("topic", 0, 1000 + i, 40 + i) for i in range(3)
    ]
    assert deliveries[0].exception() is None
    assert deliveries[0].done()


def test_the_time_of_a_record_is_the_logs_where_the_log_gives_it(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,))
    delivery = bench.send(b"x", timestamp=40)
    bench.accumulator.complete(bench.take_all()[0], 5, 99)
    assert delivery.result() == RecordMetadata("topic", 0, 5, 99)


def test_an_unknown_offset_is_minus_one(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,))
    bench.send(b"x")
    delivery = bench.send(b"x")
    bench.accumulator.complete(bench.take_all()[0], -1, -1)
    assert delivery.result().offset == -1


def test_a_delivery_raises_the_error_of_its_batch(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,))
    delivery = bench.send(b"x")
    bench.accumulator.fail(bench.take_all()[0], Unavailable("nobody there"))
    with pytest.raises(Unavailable, match="nobody there"):
        delivery.result()
    assert isinstance(delivery.exception(), Unavailable)


def test_waiting_ends_after_its_timeout(make_bench: Callable[..., Bench]) -> None:
    with pytest.raises(TimeoutError):
        make_bench().send(b"x").result(timeout=0)


def test_the_offset_is_there_once_the_record_is_stored(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,))
    deliveries = [bench.send(b"x") for _ in range(3)]
    assert [(each.partition, each.offset) for each in deliveries] == [(0, None)] * 3
    bench.accumulator.complete(bench.take_all()[0], 2**40, -1)
    assert [each.offset for each in deliveries] == [2**40, 2**40 + 1, 2**40 + 2]
    assert deliveries[0].partition == 0


def test_there_is_no_offset_after_an_error_or_if_the_broker_tells_none(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0, 0))
    failed, untold = bench.send(b"x", partition=0), bench.send(b"x", partition=1)
    for batch in bench.take_all():
        if batch.queue.partition:
            bench.accumulator.complete(batch, -1, -1)  # as with acks=0
        else:
            bench.accumulator.fail(batch, Unavailable("nobody there"))
    assert [failed.done(), untold.done()] == [True, True]
    assert (failed.partition, failed.offset) == (0, None)
    assert (untold.partition, untold.offset) == (1, None)


def test_callbacks_run_once_with_the_delivery(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,))
    seen: list[tuple[str, int]] = []
    delivery = bench.send(b"x")
    delivery.add_done_callback(lambda d: seen.append(("before", d.result().offset)))
    bench.accumulator.complete(bench.take_all()[0], 8, -1)
    delivery.add_done_callback(lambda d: seen.append(("after", d.result().offset)))
    assert seen == [("before", 8), ("after", 8)]


def test_a_callback_that_raises_is_reported_and_stops_no_other(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,))
    seen: list[Delivery] = []
    bench.send(b"x").add_done_callback(lambda _: 1 / 0)
    bench.send(b"x").add_done_callback(seen.append)
    bench.accumulator.complete(bench.take_all()[0], 8, -1)
    assert len(seen) == 1
    assert [type(error) for error in bench.callback_errors] == [ZeroDivisionError]


def test_many_can_await_a_delivery_and_some_can_be_cancelled(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,))

    async def wait(delivery: Delivery) -> RecordMetadata:
        return await delivery

    async def run() -> RecordMetadata:
        delivery = bench.send(b"x")
        impatient = asyncio.create_task(wait(delivery))
        patient = asyncio.create_task(wait(delivery))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        bench.accumulator.complete(bench.take_all()[0], 3, -1)
        assert await wait(delivery) == await patient
        return await delivery

    assert asyncio.run(run()).offset == 3


def test_a_batch_that_is_put_back_precedes_later_batches(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,), batch_size=200)
    for _ in range(4):
        bench.send(b"x" * 150)
    first, second, third = (bench.accumulator.take_batch(bench.busy_queues()[0]) for _ in range(3))
    for sequence, batch in enumerate([first, second, third]):
        batch.base_sequence = sequence
    bench.accumulator.put_back(second)
    bench.accumulator.put_back(third)
    bench.accumulator.put_back(first)
    (queue,) = bench.busy_queues()
    assert list(queue.batches)[:3] == [first, second, third]
    assert list(queue.in_flight) == []


def test_a_waiting_batch_can_fail(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,))
    delivery = bench.send(b"x")
    (queue,) = bench.busy_queues()
    bench.accumulator.fail(queue.batches[0], Unavailable("too late"))
    assert bench.busy_queues() == []
    assert bench.accumulator.incomplete_batches() == []
    assert delivery.done()
    assert bench.send(b"y").done() is False


def test_partitions_that_are_added_are_used(
    make_bench: Callable[..., Bench], make_view: MakeView
) -> None:
    bench = make_bench(leaders=(0,), batch_size=100)
    bench.accumulator.update_topic(make_view((0, 1)))
    for _ in range(10):
        bench.send(b"x" * 60)
    assert {batch.queue.partition for batch in bench.take_all()} == {0, 1}


def test_compressed_batches_are_filled_beyond_batch_size(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,), batch_size=1000, compression=Compression.GZIP)
    bench.accumulator.topic("topic").compression_ratio = 0.1
    for _ in range(200):
        bench.send(b"x" * 90)
    first = bench.take_all()[0]
    assert 5_000 < first.size < 10_000
    assert len(first.builder.build(-1, -1, -1)) < 1000


def test_many_threads_lose_and_mix_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(batch_size=500)

    def work(name: int) -> None:
        for i in range(2000):
            bench.send(b"%d %d" % (name, i), partition=name % 3)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen: dict[int, list[int]] = {}
    for batch in bench.take_all():
        for record in bench.records(batch):
            assert record.value is not None
            name, i = record.value.split()
            seen.setdefault(int(name), []).append(int(i))
    assert seen == {name: list(range(2000)) for name in range(4)}


def test_header_bytes_count_towards_a_turn(make_bench: Callable[..., Bench]) -> None:
    """Batches of one record each take their header's bytes too, as the log does."""
    bench = make_bench(leaders=(0, 1), batch_size=1000)
    turns: list[int] = []
    for _ in range(200):
        bench.send(b"")
        (batch,) = bench.take_all()
        assert batch.size > HEADER_BYTES
        turns.append(batch.queue.partition)
    lengths = [len(list(run)) for _, run in groupby(turns)]
    assert max(lengths[:-1]) <= 2 * (1000 // HEADER_BYTES) + 1


# memory: the line


def test_senders_that_wait_for_memory_get_it_in_order(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,), batch_size=1000, buffer_memory=3000)
    accumulator = bench.accumulator
    while accumulator.append("topic", b"x" * 900, None, None, None, 0) is not None:
        pass
    first, second = request_memory(accumulator, 1000), request_memory(accumulator, 1500)
    assert accumulator.is_waited_for
    accumulator.fail(bench.take_all()[0], Unavailable("gone"))
    assert first.granted.done()
    assert not second.granted.done()
    # Free memory is reserved for the first request, so even a small record must wait.
    assert accumulator.append("topic", b"", None, None, None, 0) is None
    assert accumulator.append_granted(first, "topic", b"x" * 900, None, None, None, 0) is not None
    accumulator.cancel_memory_request(first)  # once more does nothing
    assert not second.granted.done()
    accumulator.cancel_memory_request(second)
    assert not accumulator.is_waited_for
    for batch in [*accumulator.incomplete_batches()]:
        accumulator.fail(batch, Unavailable("gone"))
    assert accumulator.used == 0
    assert accumulator.append("topic", b"", None, None, None, 0) is not None


def test_a_cancelled_request_frees_its_memory_for_the_next_one(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,), batch_size=1000, buffer_memory=1000)
    accumulator = bench.accumulator
    bench.send(b"x" * 900)
    first, second = request_memory(accumulator, 500), request_memory(accumulator, 700)
    accumulator.fail(bench.take_all()[0], Unavailable("gone"))
    assert (first.granted.done(), second.granted.done()) == (True, False)
    accumulator.cancel_memory_request(first)
    assert second.granted.done()


def test_an_interrupt_while_memory_is_reserved_leaves_no_sender_waiting(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(leaders=(0,), batch_size=1000, buffer_memory=1000)
    memory = bench.accumulator.memory
    request = request_memory(bench.accumulator, 500)
    kind = type(request)
    for step in range(1, 1000):
        bench.accumulator.cancel_memory_request(request)
        request = kind(500)
        where = interrupt_at(
            step,
            lambda request=request: bench.accumulator.queue_for_memory(request),  # type: ignore[misc]
            lambda code: "/trimtab/" in code.co_filename,
        )
        assert memory.waiting == 0, where  # there is room
        if where is None:
            break
    assert request.granted.done()
    bench.accumulator.cancel_memory_request(request)
    # No memory is reserved, so one record may be larger than all of it.
    assert bench.accumulator.append("topic", b"x" * 2000, None, None, 0, None) is not None


def test_memory_stays_within_its_limit_but_for_one_batch(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(leaders=(0,) * 50, batch_size=1000, buffer_memory=20_000)
    random = Random(7)
    for _ in range(3000):
        value = b"x" * random.randrange(300)
        partition = random.randrange(50)
        if bench.accumulator.append("topic", value, None, None, partition, 0) is None:
            oldest = bench.accumulator.oldest()
            assert oldest is not None
            bench.accumulator.fail(oldest, Unavailable("gone"))
        held = sum(batch.builder.capacity for batch in bench.accumulator.incomplete_batches())
        assert bench.accumulator.used == held <= 20_000 + 1000


def test_send_can_be_refused_for_a_while(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.send()
    bench.accumulator.refuse(UsageError("call begin_transaction() first"))
    for _ in range(2):
        with pytest.raises(UsageError, match="call begin_transaction"):
            bench.send()
    bench.accumulator.refuse(None)
    bench.send()
    bench.accumulator.close(UsageError("the producer is closed"))
    bench.accumulator.refuse(None)
    with pytest.raises(UsageError, match="is closed"):
        bench.send()


# tables


def rows_of(
    form: ModuleType,
    values: list[bytes],
    settle: Callable[[Any], object],
    keys: list[bytes] | None = None,
    partitions: list[int] | None = None,
) -> Any:
    def column(cells: list[bytes]) -> Any:
        ends = [0]
        for cell in cells:
            ends.append(ends[-1] + len(cell))
        offsets = array("i", ends)
        return form.BytesColumn(len(cells), 0, None, offsets, 4, b"".join(cells))

    return form.Rows(
        len(values),
        None if keys is None else column(keys),
        column(values),
        None,
        None if partitions is None else array("i", partitions),
        None,
        settle,
    )


@pytest.mark.parametrize("kind", ["turns", "keys", "partitions", "each"])
def test_rows_go_where_sends_would(
    make_bench: Callable[..., Bench], in_form: Callable[[str], ModuleType], kind: str
) -> None:
    form = in_form("trimtab.kafka.wire.rows_cy")
    random = Random(13)
    values = [b"%d" % i + b"x" * random.randrange(60) for i in range(3000)]
    keys = [b"%d" % random.randrange(100) for _ in values] if kind == "keys" else None
    partitions = [random.randrange(3) for _ in values] if kind == "partitions" else None
    options = {"make_partitioner": RoundRobinPartitioner} if kind == "each" else {}
    by_rows, by_sends = make_bench(**options), make_bench(**options)
    shares: list[Any] = []
    rows = rows_of(form, values, shares.append, keys, partitions)
    assert by_rows.accumulator.append_rows("topic", rows, 0) == 3000
    for i, value in enumerate(values):
        by_sends.send(
            value,
            keys[i] if keys else None,
            partitions[i] if partitions else None,
            timestamp=1_700_000_000_250,
        )
    assert by_rows.accumulator.unacknowledged == by_sends.accumulator.unacknowledged == 3000
    taken = by_rows.take_all()
    assert [(batch.queue.partition, by_rows.records(batch)) for batch in taken] == [
        (batch.queue.partition, by_sends.records(batch)) for batch in by_sends.take_all()
    ]
    for number, batch in enumerate(taken):
        by_rows.accumulator.complete(batch, 1000 * number, -1)
    assert by_rows.accumulator.unacknowledged == 0
    assert sum(share.count for share in shares) == 3000
    assert {share.batch for share in shares} == set(taken)


@pytest.mark.parametrize("kind", ["turns", "keys", "partitions", "each"])
@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_rows_wake_the_sender_as_sends_do(
    make_bench: Callable[..., Bench], in_form: Callable[[str], ModuleType], kind: str, count: int
) -> None:
    form = in_form("trimtab.kafka.wire.rows_cy")
    values = [b"%d" % i for i in range(count)]
    keys = values if kind == "keys" else None
    partitions = [i % 3 for i in range(count)] if kind == "partitions" else None
    options = {"make_partitioner": RoundRobinPartitioner} if kind == "each" else {}
    by_rows, by_sends = make_bench(**options), make_bench(**options)
    for _ in range(2):  # with empty queues, and again once everything was taken
        rows = rows_of(form, values, lambda share: None, keys, partitions)
        by_rows.accumulator.append_rows("topic", rows, 0)
        for i, value in enumerate(values):
            by_sends.send(value, keys[i] if keys else None, partitions[i] if partitions else None)
        told = [
            [queue.partition for queue in bench.accumulator.take_changed()]
            for bench in (by_rows, by_sends)
        ]
        assert told[0] == told[1] != []
        assert {batch.queue.partition for batch in by_rows.take_all()} == set(told[0])
        by_sends.take_all()


def test_rows_stop_where_memory_is_used_up_and_go_on_from_there(
    make_bench: Callable[..., Bench], in_form: Callable[[str], ModuleType]
) -> None:
    form = in_form("trimtab.kafka.wire.rows_cy")
    bench = make_bench(leaders=(0,), buffer_memory=5000)
    settled: list[int] = []
    rows = rows_of(form, [b"%100d" % i for i in range(200)], lambda s: settled.append(s.count))
    assert bench.accumulator.append_rows("unknown", rows, 0) == 0
    first, rounds, seen = 0, 0, []
    while (first := bench.accumulator.append_rows("topic", rows, first)) < 200:
        rounds += 1
        rows.seek(first)
        request = request_memory(bench.accumulator, rows.bound)
        for batch in bench.take_all():
            seen += [record.value for record in bench.records(batch)]
            bench.accumulator.complete(batch, 0, -1)
        assert request.granted.done()
        first = bench.accumulator.append_rows("topic", rows, first, request)
    for batch in bench.take_all():
        seen += [record.value for record in bench.records(batch)]
        bench.accumulator.complete(batch, 0, -1)
    assert rounds > 3
    assert seen == [b"%100d" % i for i in range(200)]
    assert sum(settled) == 200
    assert bench.accumulator.used == 0


def test_a_row_that_cannot_be_sent_is_named(
    make_bench: Callable[..., Bench], in_form: Callable[[str], ModuleType]
) -> None:
    form = in_form("trimtab.kafka.wire.rows_cy")
    bench = make_bench(max_request_size=500)
    with pytest.raises(UsageError, match=r"row 2: a record .* max\.request\.size is 500"):
        bench.accumulator.append_rows(
            "topic", rows_of(form, [b"", b"", b"x" * 500], lambda s: None), 0
        )
    assert sum(batch.count for batch in bench.take_all()) == 2


# topics that are added and forgotten


def test_a_topic_that_is_not_used_is_forgotten_and_its_queues_are_kept(
    make_bench: Callable[..., Bench], make_view: MakeView
) -> None:
    bench = make_bench(leaders=(0,))
    accumulator = bench.accumulator
    queue = accumulator.topic("topic").queues[0]
    bench.send()
    assert accumulator.last_used("topic") == accumulator.last_used("other") == float("inf")
    accumulator.forget("topic")
    assert accumulator.knows("topic")  # it is in use
    accumulator.complete(bench.take_all()[0], 0, -1)
    assert accumulator.last_used("topic") == 100.0
    accumulator.forget("topic")
    assert not accumulator.knows("topic")
    assert accumulator.append("topic", b"", None, None, None, 0) is None
    bench.time[0] = 500.0
    accumulator.update_topic(make_view((0,)))
    assert accumulator.last_used("topic") == 500.0
    assert accumulator.topic("topic").queues[0] is queue


def test_a_topic_with_fewer_partitions_than_before_uses_those(
    make_bench: Callable[..., Bench], make_view: MakeView
) -> None:
    bench = make_bench(leaders=(0, 1, 2), batch_size=100)
    for _ in range(9):
        bench.send(b"x" * 60)
    bench.take_all()
    bench.accumulator.update_topic(make_view((0,)))
    assert bench.accumulator.append("topic", b"", None, None, 1, 0) is None
    for _ in range(9):
        bench.send(b"x" * 60)
        bench.send(b"x", key=b"k")
    assert {batch.queue.partition for batch in bench.take_all()} == {0}
