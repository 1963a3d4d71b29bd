"""Records of split and moved keys, put in order by `trimtab.client.split_merger`."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from trimtab.client import split_merger
from trimtab.client.partitioner.split_records import (
    MOVED_HEADER,
    SPLIT_HEADER,
    write_moved,
    write_split,
)
from trimtab.client.split_merger import SplitMerger
from trimtab.kafka.records import Headers, Record, TimestampType, TopicPartition

PATIENCE = 150.0
PLENTY = 1 << 30
SIZE = split_merger._OVERHEAD + 300
"""More than each record below is counted as."""


def make(
    partition: int, offset: int, value: Any, *, key: Any = b"k", headers: Headers = (), at: int = 0
) -> Record:
    return Record("t", partition, offset, at, TimestampType.CREATE_TIME, key, value, headers)


def split(sender: int, number: int, open_numbers: int = 0) -> tuple[str, bytes]:
    return SPLIT_HEADER, write_split(sender, number, open_numbers)


def moved(source: int, end: int = -1) -> tuple[str, bytes]:
    return MOVED_HEADER, write_moved(source, end)


class Reader:
    """Feeds a merger what is stored in a topic `t`, and answers its look-ups."""

    def __init__(
        self, partitions: int, max_bytes: int = PLENTY, patience: float = PATIENCE
    ) -> None:
        self.merger = SplitMerger(max_bytes, patience)
        self.logs: list[list[Record]] = [[] for _ in range(partitions)]
        self.positions = [0] * partitions
        self.now = 0.0
        self.returned: list[Record] = []
        self.most_held = 0

    def store(self, partition: int, value: Any, *headers: tuple[str, bytes], **more: Any) -> None:
        log = self.logs[partition]
        log.append(make(partition, len(log), value, headers=headers, **more))

    def position(self, partition: TopicPartition) -> int:
        return self.positions[partition.partition]

    def read(self, partition: int, most: int = 1_000_000) -> list[Any]:
        """Take what there is in a partition, unless it is full; the values that are returned."""
        merger = self.merger
        at = self.positions[partition]
        records = self.logs[partition][at : at + most]
        while records and TopicPartition("t", partition) not in merger.full:
            taken = merger.take(records, self.now)
            self.positions[partition] += taken
            records = records[taken:]
            if merger.unsure is not None:
                merger.set_partitions("t", len(self.logs))
        return self.take_ready()

    def take_ready(self) -> list[Any]:
        self.most_held = max(self.most_held, self.merger.held_bytes)
        ready = list(self.merger.ready)
        self.merger.ready.clear()
        self.returned += ready
        return [record.value for record in ready]

    def ends(self, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: len(self.logs[each.partition]) for each in wanted}

    def look(self, seconds: float = 0.25) -> list[Any]:
        """Time passes, and what is to be looked up is found; the values that are returned."""
        self.now += seconds
        if wanted := self.merger.plan(self.now):
            self.merger.found(self.ends(wanted))
        self.merger.check(self.now, self.position)
        return self.take_ready()


def test_records_without_headers_pass() -> None:
    reader = Reader(2)
    reader.store(0, 0)
    reader.store(0, 1, ("other", b""), (SPLIT_HEADER, b"not ours"), (MOVED_HEADER, b""))
    assert reader.read(0) == [0, 1]
    assert reader.merger.plan(10) == []


def test_split_records_come_in_the_order_of_their_numbers() -> None:
    reader = Reader(2)
    reader.store(0, 0, split(7, 0))
    reader.store(1, 1, split(7, 1))
    reader.store(0, 2, split(7, 2))
    assert (reader.read(1), reader.merger.held) == ([], 1)
    assert (reader.read(0), reader.merger.held_bytes) == ([0, 1, 2], 0)


def test_a_gap_ends_when_all_partitions_have_shown_what_is_beyond() -> None:
    reader = Reader(2)
    for partition, number in ((0, 0), (0, 2), (1, 3)):
        reader.store(partition, number, split(7, number, open_numbers=number))
    assert reader.read(0) == [0]
    assert reader.look() == []
    assert reader.read(1) == []
    assert reader.look() == [2, 3]
    assert reader.merger.given_up == 0


def test_a_gap_ends_when_the_others_were_read_to_ends_that_were_looked_up_later() -> None:
    reader = Reader(3)
    reader.store(0, 0, split(7, 0))
    reader.store(0, 2, split(7, 2))
    reader.store(1, "other", key=b"o")
    assert reader.read(0) == [0]
    assert reader.look() == []
    assert reader.read(1) == ["other"]
    assert reader.look() == [2]


def test_a_gap_does_not_end_by_ends_that_were_looked_up_before_it_was_settled() -> None:
    reader = Reader(2)
    reader.store(0, 1, split(7, 1, 0))
    reader.store(0, 3, split(7, 3, 3))
    assert reader.read(0) == []
    reader.now += 1
    wanted = reader.merger.plan(reader.now)
    ends = reader.ends(wanted)
    reader.store(1, 2, split(7, 2, 2))
    reader.store(0, 4, split(7, 4, 0))  # all before it are settled
    assert reader.read(0) == []
    reader.merger.found(ends)
    reader.merger.check(reader.now, reader.position)
    assert reader.take_ready() == [1]
    assert reader.look() == []
    assert reader.read(1) == [2, 3, 4]


def test_open_numbers_are_waited_for_until_patience_is_over() -> None:
    reader = Reader(2)
    reader.store(0, 0, split(7, 0))
    reader.store(1, 2, split(7, 2, 1))
    assert reader.read(0) + reader.read(1) == [0]
    assert reader.look(1) == reader.look(100) == []
    assert reader.look(51) == [2]
    reader.store(0, 1, split(7, 1))
    assert (reader.read(0), reader.merger.late) == ([1], 1)


def test_a_look_up_that_fails_is_tried_again() -> None:
    reader = Reader(2)
    reader.store(0, 5, split(7, 5))
    reader.store(1, "m", moved(0), key=b"m")
    assert reader.read(0) + reader.read(1) == []
    assert len(reader.merger.plan(1)) == 2
    reader.merger.found(None)
    reader.merger.check(1, reader.position)
    reader.now = 1
    assert set(reader.look()) == {5, "m"}


def test_a_gap_that_fills_at_once_costs_no_look_up() -> None:
    reader = Reader(2)
    reader.store(0, 1, split(7, 1))
    reader.read(0)
    assert reader.merger.plan(0.1) == []


def test_a_reader_that_begins_in_the_middle_waits_for_the_ends() -> None:
    reader = Reader(2)
    for number in range(100, 110):
        reader.store(number % 2, number, split(7, number))
    assert reader.read(1) + reader.read(0) == []
    assert reader.look() == list(range(100, 110))
    assert (reader.merger.given_up, reader.merger.late) == (0, 0)


def test_a_moved_key_waits_for_its_old_partition() -> None:
    reader = Reader(2)
    reader.store(1, "b0", moved(0), key=b"b")
    reader.store(1, "other", key=b"c")
    reader.store(1, "b1", key=b"b")
    reader.store(0, "a", key=b"b")
    assert reader.read(1) == ["other"]
    assert reader.look() == []
    assert reader.read(0) == ["a"]
    assert reader.look() == ["b0", "b1"]
    reader.store(1, "b2", key=b"b")
    assert reader.read(1) == ["b2"]


def test_a_key_that_moves_on_waits_for_what_waits_in_its_old_partition() -> None:
    reader = Reader(3)
    reader.store(0, 0)
    reader.store(1, 1, moved(0), at=1)
    reader.store(2, 2, moved(1), at=2)
    assert reader.read(2) + reader.read(1) == []
    assert reader.look() == []
    assert reader.read(0) == [0]
    assert reader.look() + reader.look() == [1, 2]


def test_a_key_that_moved_there_and_back_is_in_order() -> None:
    reader = Reader(2)
    reader.store(0, 0)
    reader.store(1, 1, moved(0), at=1)
    reader.store(0, 2, moved(1), at=2)
    reader.store(0, 3)
    assert reader.read(0) == [0]
    assert reader.read(1) == []
    assert reader.look() + reader.look() == [1, 2, 3]


def test_keys_that_no_dictionary_takes_are_told_apart() -> None:
    reader = Reader(2)
    reader.store(1, 0, moved(0), key={"user": 1})
    reader.store(1, "other", key={"user": 2})
    reader.store(1, 1, key={"user": 1})
    assert reader.read(1) == ["other"]
    assert reader.look() == [0, 1]


def test_a_moved_key_that_is_split_later_is_in_order() -> None:
    reader = Reader(2)
    reader.store(1, 0, moved(0))
    reader.store(1, 2, split(7, 1))
    reader.store(0, 1, split(7, 0))
    reader.read(1)
    assert reader.read(0) == [1]
    assert reader.look() == [0, 2]


@pytest.mark.parametrize("source", [1, 9])
def test_a_move_from_nowhere_is_none(source: int) -> None:
    reader = Reader(2)
    reader.store(1, 0, moved(source))
    assert reader.read(1) == [0]


def test_full_partitions_are_not_read_until_there_is_memory() -> None:
    reader = Reader(2, max_bytes=2_100)
    for number in range(1, 10):
        reader.store(1, number, split(7, number))
    assert reader.read(1) == []
    assert reader.merger.full == {("t", 1)}
    assert reader.merger.held <= 4
    reader.store(0, 0, split(7, 0))
    assert reader.read(0) + reader.read(1) == list(range(10))
    assert (reader.merger.full, reader.merger.given_up) == (set(), 0)


def test_what_waited_longest_is_given_up_when_nothing_else_can_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = Reader(2, max_bytes=2_100)
    for number in range(1, 9):
        reader.store(0, number, split(7, number, number))
    assert reader.read(0) == []
    with caplog.at_level(logging.WARNING):
        assert reader.look(0.5) == []
        assert len(reader.look(0.6)) == 4
    assert reader.read(0) == [5, 6, 7, 8]
    assert reader.merger.given_up == 1
    assert "max_bytes is 2100" in caplog.text
    for number in range(20, 28):
        reader.store(0, number, split(7, number, number))
    assert reader.read(0) == []
    assert len(reader.look(0.5) + reader.look(0.6)) == 4
    assert (reader.merger.given_up, len(caplog.records)) == (2, 1)


def test_a_partition_that_cannot_be_read_is_waited_for_no_longer_than_patience() -> None:
    reader = Reader(2, max_bytes=700)
    reader.store(1, "unreadable")
    for number in range(1, 4):
        reader.store(0, number, split(7, number, number))
    assert reader.read(0) == []
    assert reader.look(1) == reader.look(100) == []
    assert reader.look(50) == [1, 2]


def test_moves_that_wait_for_each_other_are_given_up() -> None:
    reader = Reader(2, max_bytes=700)
    reader.store(0, "a", moved(1), key=b"a")
    reader.store(0, "a2", moved(1), key=b"b")
    reader.store(1, "b", moved(0), key=b"b")
    reader.store(1, "b2", moved(0), key=b"a")
    assert reader.read(0) + reader.read(1) == []
    assert reader.merger.full == {("t", 0), ("t", 1)}
    assert set(reader.look(0.5) + reader.look(0.6) + reader.look(0.6)) == {"a", "a2", "b"}
    reader.read(1)
    reader.look()
    assert sorted(record.value for record in reader.returned) == ["a", "a2", "b", "b2"]


def test_a_record_that_is_stored_twice_comes_twice() -> None:
    reader = Reader(2)
    for number in (1, 1, 2):
        reader.store(1, number, split(7, number))
    reader.store(0, 0, split(7, 0))
    reader.read(1)
    assert reader.read(0) == [0, 1, 1, 2]


def test_what_is_read_again_is_dropped_first() -> None:
    reader = Reader(2)
    for number in (1, 2, 4):
        reader.store(1, number, split(7, number))
    reader.store(1, "m", moved(0), key=b"m")
    reader.read(1)
    assert reader.merger.first_offsets() == {("t", 1): 0}
    reader.merger.reset(TopicPartition("t", 1), 1)
    reader.positions[1] = 1
    assert reader.merger.held == 1
    reader.read(1)
    reader.store(0, 0, split(7, 0))
    assert reader.read(0) == [0, 1, 2]
    assert reader.look() == ["m", 4]
    reader.merger.reset(TopicPartition("t", 1), -1)
    assert reader.merger.first_offsets() == {}


def test_ready_records_of_a_partition_that_is_taken_away_are_dropped() -> None:
    reader = Reader(2)
    reader.merger.take([make(0, 0, "mine"), make(0, 1, "mine")], 0)
    reader.merger.take([make(1, 5, "lost")], 0)
    assert reader.merger.first_offsets() == {("t", 0): 0, ("t", 1): 5}
    reader.merger.reset(TopicPartition("t", 1), -1)
    assert reader.take_ready() == ["mine", "mine"]


def test_a_sender_that_was_forgotten_waits_for_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_merger, "MOST_SENDERS", 10)
    reader = Reader(2)
    for sender in range(100):
        reader.store(0, sender, split(sender, 0))
    assert reader.read(0) == list(range(100))
    assert len(reader.merger._topics["t"].senders) == 10
    reader.store(0, "old", split(3, 1))
    reader.store(0, "new", split(99, 1))
    assert reader.read(0) == ["new"]
    assert reader.look() == ["old"]


@pytest.mark.parametrize(
    ("value", "least"),
    [
        (b"x" * 5_000, 5_000),
        ({"a": ["y" * 1_000, "z" * 1_000], "b": {"c": "w" * 3_000}}, 5_000),
        (list(range(1_000_000)), 8_000_000),
        (
            type("Order", (), {"__init__": lambda self: self.__dict__.update(n="x" * 5_000)})(),
            5_000,
        ),
    ],
    ids=["bytes", "nested", "long", "object"],
)
def test_the_bytes_of_deserialized_objects_are_estimated(value: Any, least: int) -> None:
    reader = Reader(2)
    reader.store(0, value, split(7, 1))
    reader.read(0)
    assert least < reader.merger.held_bytes < 10 * least


# random topics


class Life:
    """A producer from its start to its end: what it has sent and what became of it."""

    def __init__(self, draw: random.Random, partitions: int, name: int, keys: int) -> None:
        self.draw, self.partitions, self.name = draw, partitions, name
        self.queues: list[list[Record]] = [[] for _ in range(partitions)]
        self.kinds = {key: draw.choice(("plain", "split", "split", "moved")) for key in range(keys)}
        self.home = {key: draw.randrange(partitions) for key in range(keys)}
        self.sent: dict[int, int] = defaultdict(int)
        self.numbers: dict[int, int] = defaultdict(int)
        self.open: dict[int, set[int]] = defaultdict(set)
        self.unsettled: dict[int, int] = defaultdict(int)
        self.clock = 0

    def send(self) -> None:
        draw, key = self.draw, self.draw.choice(list(self.kinds))
        kind, partition = self.kinds[key], self.home[key]
        headers: list[tuple[str, bytes]] = []
        number = None
        if kind == "split" and self.sent[key] >= 2:
            number = self.numbers[key]
            self.numbers[key] += 1
            if number > 0:
                partition = draw.randrange(self.partitions)
            oldest = min(self.open[key], default=number)
            headers.append(split(1000 * self.name + key, number, number - oldest))
            self.open[key].add(number)
        elif kind == "moved" and not self.unsettled[key] and draw.random() < 0.3:
            old, partition = partition, draw.randrange(self.partitions)
            if self.sent[key] and old != partition:
                headers.append(moved(old))
            self.home[key] = partition
        self.clock += 1
        self.unsettled[key] += 1
        value = self.name, key, self.sent[key], number
        self.sent[key] += 1
        name = b"%d/%d" % (self.name, key)
        record = make(partition, 0, value, key=name, headers=headers, at=self.clock)
        self.queues[partition].append(record)

    def settle(self, reader: Reader, losing: bool) -> None:
        """The next batch of a partition is stored, or lost."""
        queues = [queue for queue in self.queues if queue]
        if not queues:
            return
        queue = self.draw.choice(queues)
        batch = queue[: self.draw.randint(1, 4)]
        del queue[: len(batch)]
        has_moved = any(name == MOVED_HEADER for each in batch for name, _ in each.headers)
        is_lost = losing and not has_moved and self.draw.random() < 0.2
        for record in batch:
            _, key, _, number = record.value
            self.unsettled[key] -= 1
            self.open[key].discard(number)
            if not is_lost:
                log = reader.logs[record.partition]
                log.append(record._replace(offset=len(log)))


def read_some(draw: random.Random, reader: Reader, answers: list[Any]) -> None:
    """The reader reads a little, looks up ends, or gets an answer, which may be late."""
    reader.now += 0.02
    reader.read(draw.randrange(len(reader.logs)), draw.randint(1, 6))
    if not answers and (wanted := reader.merger.plan(reader.now)):
        answers.append([wanted, None, draw.randint(0, 5)])
    if answers:
        wanted, ends, left = answers[0]
        if ends is None:
            answers[0][1] = reader.ends(wanted)
        answers[0][2] = left - 1
        if left <= 0:
            reader.merger.found(None if draw.random() < 0.2 else answers[0][1])
            answers.clear()
    if draw.random() < 0.3:
        reader.merger.check(reader.now, reader.position)
        reader.take_ready()


def run_topic(seed: int) -> tuple[Reader, bool]:
    """A random topic that is read while it is written; and whether order must have been kept."""
    draw = random.Random(seed)
    partitions, losing = draw.randint(2, 8), draw.random() < 0.5
    lives = [Life(draw, partitions, name, draw.randint(1, 3)) for name in range(draw.randint(1, 3))]
    small = draw.random() < 0.3
    reader = Reader(partitions, draw.randint(1, 12) * SIZE if small else PLENTY)
    answers: list[Any] = []
    # At the same time, or each begins when the last one has ended, or was killed.
    for running in [lives] if draw.random() < 0.5 else [[life] for life in lives]:
        for _ in range(draw.randint(10, 40) * len(running)):
            life = draw.choice(running)
            for _ in range(draw.randint(0, 3)):
                life.send()
            for _ in range(draw.randint(0, 3)):
                life.settle(reader, losing)
            if draw.random() < 0.7:
                read_some(draw, reader, answers)
        for life in running:
            is_killed = losing and draw.random() < 0.5
            while any(life.queues) and not is_killed:
                life.settle(reader, losing)
    if answers:
        reader.merger.found(None)
    for _ in range(300):
        if not reader.merger.held and reader.positions == [len(log) for log in reader.logs]:
            break
        for partition in draw.sample(range(partitions), partitions):
            reader.read(partition, draw.randint(1, 6))
        reader.look(PATIENCE if losing and draw.random() < 0.1 else 0.5)
    is_simple = len(lives) == 1 and not losing and "moved" not in lives[0].kinds.values()
    return reader, is_simple


def faults(reader: Reader) -> Iterator[str]:
    """What is wrong with what was returned."""
    stored = sorted((r.partition, r.offset) for log in reader.logs for r in log)
    returned = sorted((r.partition, r.offset) for r in reader.returned)
    if stored != returned:
        yield "lost or doubled"
    if reader.merger.held or reader.merger.held_bytes or reader.merger._held or reader.merger.full:
        yield "held at the end"
    if reader.most_held > reader.merger._max_bytes + len(reader.logs) * SIZE:
        yield "too much was held"
    if reader.merger.given_up == 0:
        last: dict[tuple[int, int], int] = {}
        for record in reader.returned:
            life, key, count, _ = record.value
            if count <= last.get((life, key), -1):
                yield f"{record.value} is late"
            last[life, key] = count
        if reader.merger.late:
            yield "counted as late"


@pytest.mark.parametrize("lot", range(4))
def test_random_topics_are_returned_in_order_whole_and_within_the_memory(lot: int) -> None:
    in_order = 0
    for seed in range(1_000 * lot, 1_000 * (lot + 1)):
        reader, is_simple = run_topic(seed)
        assert list(faults(reader)) == [], f"seed {seed}"
        in_order += reader.merger.given_up == 0
        if is_simple:
            assert reader.merger.given_up == 0, f"seed {seed}: memory was enough to go on"
    assert in_order > 800


def test_ten_thousand_keys_and_partitions_cost_no_more_for_each_record() -> None:
    def steps(count: int) -> int:
        """How often a position is asked for while each of so many keys waits, and is released."""
        reader, asked = Reader(count), 0

        def position(partition: TopicPartition) -> int:
            nonlocal asked
            asked += 1
            return reader.positions[partition.partition]

        for key in range(count):
            reader.store(key, 1, split(key, 1), key=b"%d" % key)
            reader.read(key)
        reader.now += 1
        reader.merger.found(reader.ends(reader.merger.plan(reader.now)))
        reader.merger.check(reader.now, position)
        assert len(reader.take_ready()) == count
        return asked

    assert steps(10_000) <= 10 * steps(1_000)
