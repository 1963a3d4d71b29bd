"""Hot keys: which are treated, where their records go, and in what order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest

from tests.unit.client.accumulator.conftest import Bench
from trimtab.client.accumulator.queues_cy import Batch
from trimtab.client.partitioner.murmur2_cy import murmur2, partition_for_key
from trimtab.client.partitioner.split_records import (
    MOVED_HEADER,
    SPLIT_HEADER,
    SplitMark,
    candidates,
    choices,
    read_moved,
    read_split,
    write_moved,
    write_split,
)
from trimtab.kafka.errors import Unavailable, UsageError
from trimtab.kafka.records import Record

Make = Callable[..., Bench]

PARTITIONS = 20


def zipf(exponent: float, keys: int, number: int, seed: int = 1) -> list[bytes]:
    weights = [1 / rank**exponent for rank in range(1, keys + 1)]
    return Random(seed).choices([b"key-%d" % n for n in range(keys)], weights, k=number)


def acknowledge(bench: Bench, at: list[int]) -> list[Record]:
    """Acknowledge all batches; returns their records. `at`: the next offset of each partition."""
    found = []
    for batch in bench.take_all():
        records = bench.records(batch)
        first = at[batch.queue.partition]
        found += [each._replace(offset=first + i) for i, each in enumerate(records)]
        at[batch.queue.partition] += len(records)
        bench.accumulator.complete(batch, first, -1)
    return found


def send_all(bench: Bench, keys: list[bytes], every: int = 500) -> list[Record]:
    """Send records whose values count per key; acknowledge now and then."""
    numbers: defaultdict[bytes, Any] = defaultdict(count)
    at = [0] * len(bench.accumulator.topic("topic").queues)
    found = []
    for index, key in enumerate(keys):
        bench.send(b"%08d" % next(numbers[key]) + bytes(92), key=key)
        if index % every == every - 1:
            found += acknowledge(bench, at)
    return found + acknowledge(bench, at)


def bytes_by_partition(bench: Bench) -> list[int]:
    return [queue.given_bytes for queue in bench.accumulator.topic("topic").queues]


def mark_of(record: Record) -> SplitMark | None:
    return read_split(dict(record.headers).get(SPLIT_HEADER))


def test_headers_are_read_as_they_were_written() -> None:
    assert read_split(write_split(2**64 - 1, 2**63, 7)) == SplitMark(2**64 - 1, 2**63, 7)
    assert read_split(write_split(1, 2**40, 2**40)) == SplitMark(1, 2**40, 2**32 - 1)
    assert read_moved(write_moved(9999, -1)) == (9999, -1)
    assert read_moved(write_moved(2**31, 2**62)) == (2**31, 2**62)


@pytest.mark.parametrize("content", [None, b"", b"x" * 19, b"x" * 21, write_split(1, 3, 4)])
def test_what_is_no_header_is_left_alone(content: bytes | None) -> None:
    assert read_split(content) is None
    assert read_moved(content) is None


@pytest.mark.parametrize("partitions", [1, 2, 33, 1000])
def test_candidates_are_distinct_and_begin_with_the_own_one(partitions: int) -> None:
    for number in range(20):
        key_hash = murmur2(b"%d" % number)
        most = candidates(key_hash, partitions, partitions)
        assert sorted(most) == list(range(partitions))
        assert most[0] == partition_for_key(b"%d" % number, partitions)
        for some in {1, min(2, partitions), partitions // 2 or 1}:
            assert candidates(key_hash, partitions, some) == most[:some]
        assert candidates(key_hash, partitions, 10_000_000) == most


def test_a_heavier_key_gets_more_choices() -> None:
    assert [choices(share, 100) for share in (0.001, 0.01, 0.1, 1.0)] == [3, 6, 42, 100]


@pytest.mark.parametrize("exponent", [1.0, 1.4, 2.0])
def test_split_evens_the_bytes(make_bench: Make, exponent: float) -> None:
    bench = make_bench((0,) * PARTITIONS, treatment=("split", 0))
    records = send_all(bench, zipf(exponent, 1000, 40_000))
    loads = bytes_by_partition(bench)
    assert max(loads) <= 1.08 * sum(loads) / PARTITIONS
    treated = bench.accumulator.topic("topic").hot.treated
    assert 1 <= len(treated) <= 40
    for record in records:
        if murmur2(record.key) not in treated:
            assert record.partition == partition_for_key(record.key, PARTITIONS)
            assert mark_of(record) is None


def test_a_split_key_keeps_its_order_by_its_numbers(make_bench: Make) -> None:
    bench = make_bench((0,) * PARTITIONS, treatment=("split", 0))
    records = send_all(bench, zipf(1.4, 1000, 20_000))
    by_key: defaultdict[bytes, list[Record]] = defaultdict(list)
    for record in records:
        by_key[record.key].append(record)
    split = 0
    for key, some in by_key.items():
        marks = [(mark.number, each) for each in some if (mark := mark_of(each))]
        before = [each for each in some if mark_of(each) is None]
        own = partition_for_key(key, PARTITIONS)
        assert all(each.partition == own for each in before)
        marks.sort(key=lambda pair: pair[0])
        assert [number for number, _ in marks] == list(range(len(marks)))
        if marks:
            split += 1
            assert marks[0][1].partition == own
            assert len({mark_of(each).sender for _, each in marks}) == 1  # type: ignore[union-attr]
            # The own partition had all earlier records before the first one that was split.
            assert all(each.offset < marks[0][1].offset for each in before)
        values = [each.value for each in before] + [each.value for _, each in marks]
        assert values == sorted(values)
    assert split >= 3


def test_what_is_open_is_known(make_bench: Make) -> None:
    """Numbers below number - open are acknowledged when a record is sent."""
    bench = make_bench((0,) * PARTITIONS, treatment=("split", 0))
    at = [0] * PARTITIONS
    acknowledged: defaultdict[int, set[int]] = defaultdict(set)
    random = Random(3)
    for index, key in enumerate(zipf(1.4, 100, 15_000)):
        bench.send(bytes(100), key=key)
        if index % 97 == 0:
            queue = random.choice(bench.busy_queues())
            batch = bench.accumulator.take_batch(queue)
            for record in bench.records(batch):
                if mark := mark_of(record):
                    settled = range(mark.number - mark.open)
                    missing = [n for n in settled[-50:] if n not in acknowledged[mark.sender]]
                    # What this batch holds itself was sent later than its own first record.
                    assert not missing or min(missing) >= mark.number - mark.open
            for record in bench.records(batch):
                if mark := mark_of(record):
                    acknowledged[mark.sender].add(mark.number)
            bench.accumulator.complete(batch, at[queue.partition], -1)


def test_a_shard_has_so_many_partitions(make_bench: Make) -> None:
    bench = make_bench((0,) * PARTITIONS, treatment=("split", 3))
    records = send_all(bench, zipf(1.4, 1000, 20_000))
    places: defaultdict[bytes, set[int]] = defaultdict(set)
    for record in records:
        places[record.key].add(record.partition)
    hottest = Counter(record.key for record in records).most_common(1)[0][0]
    assert places[hottest] == set(candidates(murmur2(hottest), PARTITIONS, 3))
    assert max(map(len, places.values())) == 3


def test_even_keys_are_left_alone(make_bench: Make) -> None:
    for mode in ("split", "move"):
        bench = make_bench((0,) * PARTITIONS, treatment=(mode, 0))
        keys = [b"key-%d" % n for n in range(5000)]
        send_all(bench, Random(2).choices(keys, k=20_000))
        assert not bench.accumulator.topic("topic").hot.treated


def test_heavy_keys_that_are_spread_evenly_are_left_alone(make_bench: Make) -> None:
    """Each partition has one, so nothing is too full."""
    bench = make_bench((0,) * 6, treatment=("split", 0))
    keys = [
        next(
            key for key in map(b"key-%d".__mod__, range(999)) if partition_for_key(key, 6) == place
        )
        for place in range(6)
    ]
    send_all(bench, keys * 3000)
    assert not bench.accumulator.topic("topic").hot.treated


def test_a_partition_without_leader_gets_nothing_of_a_split_key(
    make_bench: Make, make_view: Callable[..., Any]
) -> None:
    bench = make_bench((0,) * PARTITIONS, treatment=("split", 0))
    send_all(bench, zipf(1.4, 100, 10_000))
    topic = bench.accumulator.topic("topic")
    hottest = max(topic.hot.treated.values(), key=lambda key: sum(key.placed))
    lost = hottest.queues[1].partition
    bench.accumulator.update_topic(make_view([-1 if p == lost else 0 for p in range(PARTITIONS)]))
    before = topic.queues[lost].given_bytes
    key = next(k for k in zipf(1.4, 100, 100) if murmur2(k) == hottest.hash)
    send_all(bench, [key] * 5000)
    # At most the rest of a turn; each of the others gets about 38 kB.
    assert topic.queues[lost].given_bytes - before <= 16_384


def test_drifting_keys_are_found_again(make_bench: Make) -> None:
    """What the partitions got before is made up for, so the whole is even, not each part."""
    bench = make_bench((0,) * PARTITIONS, treatment=("split", 0))
    for era in range(3):
        keys = [b"%d-" % era + key for key in zipf(1.4, 1000, 100_000, era)]
        before = bytes_by_partition(bench)
        send_all(bench, keys)
        loads = [now - then for now, then in zip(bytes_by_partition(bench), before, strict=True)]
        hashed = Counter(partition_for_key(key, PARTITIONS) for key in keys)
        assert max(hashed.values()) > 5 * len(keys) / PARTITIONS
        assert max(loads) <= 2 * sum(loads) / PARTITIONS
    loads = bytes_by_partition(bench)
    assert max(loads) <= 1.25 * sum(loads) / PARTITIONS


# moves


def check_order(records: list[Record]) -> int:
    """Records in the order in which they were stored: each key's values grow. Returns the moves."""
    last: dict[bytes, bytes] = {}
    place: dict[bytes, int] = {}
    moves = 0
    for record in records:
        assert record.value is not None
        assert record.key is not None
        assert last.get(record.key, b"") < record.value
        moved = read_moved(dict(record.headers).get(MOVED_HEADER))
        if record.key in place and place[record.key] != record.partition:
            moves += 1
            assert moved is not None
            assert moved.partition == place[record.key]
        else:
            assert moved is None
        last[record.key], place[record.key] = record.value, record.partition
    return moves


def test_move_lowers_the_fullest_partition(make_bench: Make) -> None:
    # The ten heaviest keys have 5 % each and meet in few partitions, so that moving them helps.
    light = [b"light-%d" % n for n in range(2000)]
    heavy = [key for key in (b"heavy-%d" % n for n in range(999)) if partition_for_key(key, 20) < 3]
    keys = Random(4).choices(light + heavy[:10], [0.5 / 2000] * 2000 + [0.05] * 10, k=40_000)
    hashed = Counter(partition_for_key(key, PARTITIONS) for key in keys)
    bench = make_bench((0,) * PARTITIONS, treatment=("move", 0))
    send_all(bench, keys[:10_000])
    before = bytes_by_partition(bench)
    send_all(bench, keys[10_000:])
    loads = [
        after - earlier for after, earlier in zip(bytes_by_partition(bench), before, strict=True)
    ]
    mean = sum(loads) / PARTITIONS
    assert max(hashed.values()) > 3 * len(keys) / PARTITIONS
    assert max(loads) < 1.7 * mean  # the heaviest key has 1.0, beside 0.5 of light ones


@pytest.mark.parametrize("seed", range(30))
def test_moved_keys_are_stored_in_order(make_bench: Make, seed: int) -> None:
    """Batches of a partition are acknowledged in order, those of others at any time; some fail."""
    random = Random(seed)
    bench = make_bench((0,) * 6, treatment=("move", 0))
    numbers: defaultdict[bytes, Any] = defaultdict(count)
    stored: list[Record] = []
    sent = failed = 0
    in_flight: list[Batch] = []

    def settle(batch: Batch) -> None:
        nonlocal failed
        in_flight.remove(batch)
        records = bench.records(batch)
        if random.random() < 0.05:
            failed += len(records)
            bench.accumulator.fail(batch, Unavailable("lost"))
        else:
            stored.extend(records)
            bench.accumulator.complete(batch, 0, -1)

    for key in zipf(1.1, 40, 6000, seed):
        bench.send(b"%08d" % next(numbers[key]) + bytes(92), key=key)
        sent += 1
        if random.random() < 0.1 and bench.busy_queues():
            in_flight.append(bench.accumulator.take_batch(random.choice(bench.busy_queues())))
        if random.random() < 0.09 and in_flight:
            chosen = random.choice(in_flight)
            settle(next(each for each in in_flight if each.queue is chosen.queue))
    while in_flight or bench.busy_queues():
        in_flight += bench.take_all()
        while in_flight:
            chosen = random.choice(in_flight)
            settle(next(each for each in in_flight if each.queue is chosen.queue))
    assert len(stored) + failed == sent
    assert bench.accumulator.unacknowledged == 0
    assert bench.accumulator.used == 0
    assert not bench.callback_errors
    if not failed:
        assert check_order(stored) >= 1
    else:
        last: dict[bytes, bytes] = {}
        for record in stored:
            assert last.get(record.key or b"", b"") < (record.value or b"")
            last[record.key or b""] = record.value or b""


def make_moving(make_bench: Make, **options: Any) -> tuple[Bench, bytes, Any]:
    """A bench with a key that moves, and has held records."""
    bench = make_bench((0,) * 6, treatment=("move", 0), **options)
    keys = zipf(1.1, 40, 6000)
    topic = bench.accumulator.topic("topic")
    for index, key in enumerate(keys):
        bench.send(b"%08d" % index + bytes(92), key=key)
        held = [each for each in topic.hot.treated.values() if each.held]
        if held:
            found = next(k for k in keys if murmur2(k) == held[0].hash)
            return bench, found, held[0]
    raise AssertionError("no key moves")


def test_the_header_of_a_move_tells_where_the_old_partition_ends(make_bench: Make) -> None:
    """Also if it was written before the key's earlier records were acknowledged."""
    bench, _, moving = make_moving(make_bench)
    old = moving.place
    ends = [1000 * (queue.partition + 1) for queue in bench.accumulator.topic("topic").queues]
    acknowledge(bench, ends)
    (released,) = moving.place.batches
    assert released.held_for is None
    first = bench.records(bench.accumulator.take_batch(moving.place))[0]
    assert read_moved(dict(first.headers)[MOVED_HEADER]) == (old.partition, ends[old.partition])
    assert old.stored_end == ends[old.partition] > 1000


def test_nothing_overtakes_what_is_held(make_bench: Make) -> None:
    """Not even a record that is sent when the earlier ones are just acknowledged."""
    bench = make_bench((0,) * 6, treatment=("move", 0))
    topic = bench.accumulator.topic("topic")
    keys = zipf(1.1, 40, 6000)
    order: list[bytes] = []
    late: list[bytes] = []

    def send(key: bytes, on_delivery: Any = None) -> None:
        value = b"%08d" % len(order) + bytes(92)
        order.append(value)
        bench.accumulator.append("topic", value, key, None, None, 0, on_delivery)

    def send_again(_: object) -> None:
        """Where the key was, all is acknowledged by now."""
        moving = [each for each in topic.hot.treated.values() if each.held]
        if late and moving and not moving[0].place.in_flight and not moving[0].place.batches:
            send(late.pop())

    for key in keys:
        send(key, send_again)
        moving = next((each for each in topic.hot.treated.values() if each.held), None)
        if moving is not None and murmur2(key) == moving.hash:
            late.append(key)
            break
    hot = late[0]
    found = [each for _ in range(3) for each in acknowledge(bench, [0] * 6)]
    assert late == []
    values = [each.value for each in found if each.key == hot]
    assert values == sorted(values)
    assert len(found) == len(order)
    assert bench.accumulator.unacknowledged == 0


def test_held_records_fail_with_their_batch(make_bench: Make) -> None:
    bench, _, moving = make_moving(make_bench)
    (batch,) = moving.held
    assert batch in bench.accumulator.incomplete_batches()
    bench.accumulator.fail(batch, Unavailable("dropped"))
    assert batch.is_done
    assert not moving.held
    for other in bench.take_all():
        bench.accumulator.complete(other, 0, -1)
    assert moving.target < 0 or not moving.held
    assert bench.accumulator.unacknowledged == 0


class Interrupted:
    """A partitioner during which Ctrl-C comes, under the lock."""

    turns_by_batch = follows_load = False

    def next_turn(self, *_: object) -> tuple[int, int]:
        raise KeyboardInterrupt


@pytest.mark.parametrize("counts", [(), (9,), (9, 12)])
def test_held_batches_are_counted_again_after_an_interruption(
    make_bench: Make, make_view: Callable[..., Any], counts: tuple[int, ...]
) -> None:
    """Also those of keys that are not treated any more, since the topic has more partitions."""
    bench, _, moving = make_moving(make_bench, make_partitioner=Interrupted)
    for number in counts:
        bench.accumulator.update_topic(make_view((0,) * number))
    used, waiting = bench.accumulator.used, bench.accumulator.unacknowledged
    with pytest.raises(KeyboardInterrupt):
        bench.send(b"without a key")
    assert (bench.accumulator.used, bench.accumulator.unacknowledged) == (used, waiting)
    for batch in bench.take_all():
        bench.accumulator.complete(batch, 0, -1)
    assert not moving.held
    released = bench.take_all()
    assert released
    for batch in released:
        bench.accumulator.complete(batch, 0, -1)
    assert bench.accumulator.used == 0


def test_the_header_of_a_move_is_sent_again_if_its_transaction_was_aborted(
    make_bench: Make,
) -> None:
    bench, key, moving = make_moving(make_bench, in_transactions=True)
    left = moving.place.partition
    while bench.busy_queues():
        acknowledge(bench, [0] * 6)

    def send() -> Any:
        bench.send(b"next", key=key)
        (record,) = acknowledge(bench, [0] * 6)
        return read_moved(dict(record.headers).get(MOVED_HEADER))

    assert send() is None
    for _ in range(2):
        bench.accumulator.end_transaction(False)
        again = send()
        assert again is not None
        assert again.partition == left
    assert send() is None
    bench.accumulator.end_transaction(True)
    bench.accumulator.end_transaction(False)  # of another transaction
    assert send() is None


def test_the_header_of_a_move_is_sent_although_ctrl_c_came_before(make_bench: Make) -> None:
    bench, key, moving = make_moving(make_bench)
    for batch in list(moving.held):
        bench.accumulator.fail(batch, Unavailable("dropped"))
    for batch in bench.take_all():
        bench.accumulator.complete(batch, 0, -1)
    assert moving.target >= 0

    bench.interrupts.append(None)
    with pytest.raises(KeyboardInterrupt):
        bench.send(b"interrupted", key=key)
    bench.send(b"next", key=key)
    records = acknowledge(bench, [0] * 6)
    marked = [dict(each.headers).get(MOVED_HEADER) for each in records if each.key == key]
    assert read_moved(marked[0]) is not None


def test_a_topic_that_is_created_again_with_fewer_partitions_uses_only_those(
    make_bench: Make, make_view: Callable[..., Any]
) -> None:
    for mode in ("split", "move"):
        bench = make_bench((0,) * PARTITIONS, treatment=(mode, 0))
        send_all(bench, zipf(1.4, 1000, 20_000))
        again = replace(make_view((0,) * 3), topic_id=bytes(15) + b"2")
        bench.accumulator.update_topic(again)
        assert not bench.accumulator.knows("topic")  # until it is known not to be compacted
        assert bench.accumulator.append("topic", b"", b"k", None, None, 0) is None
        bench.accumulator.treat_keys("topic", mode, 0, Random(5))
        before = bytes_by_partition(bench)
        records = send_all(bench, zipf(1.4, 1000, 20_000, 2))
        assert {record.partition for record in records} == {0, 1, 2}
        assert bytes_by_partition(bench)[3:] == before[3:]
        marks = [mark for record in records if (mark := mark_of(record))]
        assert not marks or min(mark.number for mark in marks) == 0


def test_a_record_that_is_too_large_with_its_header_is_refused(make_bench: Make) -> None:
    bench = make_bench((0,) * PARTITIONS, treatment=("split", 0), max_request_size=2000)
    send_all(bench, zipf(1.4, 1000, 20_000))
    hottest = max(
        bench.accumulator.topic("topic").hot.treated.values(), key=lambda key: sum(key.placed)
    )
    key = next(k for k in zipf(1.4, 1000, 100) if murmur2(k) == hottest.hash)
    with pytest.raises(UsageError, match="with the header of a hot key"):
        bench.send(bytes(1850), key=key)
    bench.send(bytes(1850), key=b"another")
    bench.send(bytes(1750), key=key)


def test_a_released_batch_stays_behind_what_was_sent_before_it(make_bench: Make) -> None:
    """Although its first record is older: a retry must not change the order of a queue."""
    bench, _, moving = make_moving(make_bench)
    queue = moving.queues[moving.target]
    others = [key for key in zipf(1.1, 40, 6000) if partition_for_key(key, 6) == queue.partition]
    treated = bench.accumulator.topic("topic").hot.treated
    other = next(key for key in others if murmur2(key) not in treated)
    while queue.batches:
        bench.accumulator.complete(bench.accumulator.take_batch(queue), 0, -1)
    bench.send(b"sent after the held ones", key=other)
    for batch in [each for each in bench.take_all() if each.queue is not queue]:
        bench.accumulator.complete(batch, 0, -1)
    assert not moving.held
    before = list(queue.in_flight)
    released = bench.accumulator.take_batch(queue)
    assert before
    bench.accumulator.put_back(released)
    for batch in reversed(before):
        bench.accumulator.put_back(batch)
    assert list(queue.batches) == [*before, released]


def test_the_header_of_a_move_is_sent_again_if_it_was_lost(make_bench: Make) -> None:
    bench, key, moving = make_moving(make_bench)
    left = moving.place.partition
    for batch in bench.take_all():
        bench.accumulator.complete(batch, 0, -1)
    for batch in bench.take_all():
        bench.accumulator.fail(batch, Unavailable("lost"))
    bench.send(b"next", key=key)
    bench.send(b"and one more", key=key)
    (batch,) = bench.take_all()
    headers = [dict(record.headers) for record in bench.records(batch)]
    again = read_moved(headers[0].get(MOVED_HEADER))
    assert again is not None
    assert again.partition == left
    bench.accumulator.complete(batch, 0, -1)
    bench.send(b"later", key=key)
    (batch,) = bench.take_all()
    assert [record.headers for record in bench.records(batch)] == [()]


def test_a_moving_key_arrives_although_its_batch_is_split(make_bench: Make) -> None:
    bench, _, moving = make_moving(make_bench)
    for batch in bench.take_all():
        if batch.count > 1:
            bench.accumulator.split(batch)
        else:
            bench.accumulator.complete(batch, 0, -1)
    assert moving.held
    for batch in bench.take_all():
        bench.accumulator.complete(batch, 0, -1)
    assert not moving.held
    assert moving.target < 0


def test_a_topic_with_more_partitions_begins_anew(
    make_bench: Make, make_view: Callable[..., Any]
) -> None:
    bench, _, moving = make_moving(make_bench)
    bench.accumulator.update_topic(make_view((0,) * 9))
    assert not bench.accumulator.topic("topic").hot.treated
    for batch in bench.take_all():
        bench.accumulator.complete(batch, 0, -1)
    assert not moving.held
    for batch in bench.take_all():
        bench.accumulator.complete(batch, 0, -1)
    assert bench.accumulator.unacknowledged == 0
