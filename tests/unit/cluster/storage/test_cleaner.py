"""Compaction: the last record of every key keeps its offset, also after crashes and truncation.

Long because the cases share one log, and each stage of compaction has its crashes.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from errno import EIO, ENOSPC
from random import Random
from typing import Any

import pytest

from tests.steps import finish
from tests.unit.cluster.storage.logs import in_memory, note_paths
from trimtab.cluster.storage import segment as segment_module
from trimtab.cluster.storage.cleaner import Cleaner, DirtyPart, find_dirty_part
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.cluster.storage.storage import StorageError
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import Record, TopicPartition
from trimtab.kafka.wire.batch_cy import (
    BatchBuilder,
    BatchHeader,
    read_headers,
    read_records,
    restamp,
)
from trimtab.kafka.wire.compression import Compression
from trimtab.sim.disk import VirtualDisk

TOPIC_ID = bytes(range(16))
DIRECTORY = "flights-0"
CONFIG = LogConfig(
    segment_bytes=600, index_interval_bytes=100, deletes=False, compacts=True, retention_ms=-1
)
"""About five records fill a segment."""

Pair = tuple[bytes | None, bytes | None]


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def batch(pairs: Iterable[Pair], timestamp: int = 1000, **kind: Any) -> memoryview:
    builder = BatchBuilder(1 << 24)
    for key, value in pairs:
        builder.append(timestamp, key, value, [])
    return memoryview(bytearray(builder.build(**kind)))


def append(log: Log, *pairs: Pair, timestamp: int = 1000, **kind: Any) -> None:
    """One batch, committed."""
    data = batch(pairs, timestamp, **kind)
    log.append(data, 0, read_headers(data))
    log.high_watermark = log.log_end_offset


def fill(log: Log, keys: str, value: bytes = b"v" * 40) -> None:
    """A batch with one record for each letter, which is its key; all values differ."""
    for key in keys:
        append(log, (key.encode(), b"%d " % log.log_end_offset + value))


def records(log: Log) -> list[Record]:
    found: list[Record] = []
    offset = log.log_start_offset
    while data := in_memory(log.read(offset, 10_000)):
        found += read_records("flights", 0, data, offset)
        offset = read_headers(data)[-1].next_offset
    return found


def offsets(log: Log) -> list[int]:
    return [record.offset for record in records(log)]


def latest(log: Log) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records(log)}


def compact(directory: LogDirectory) -> int:
    return asyncio.run(directory.compact())


def open_directory(disk: VirtualDisk, clock: Clock) -> LogDirectory:
    return LogDirectory(disk, node_id=1, cluster_id="c", now_ms=clock, random=Random(1))


def open_log(directory: LogDirectory, config: LogConfig = CONFIG, partition: int = 0) -> Log:
    return directory.open_log("flights", partition, TOPIC_ID, config)


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(disk: VirtualDisk, clock: Clock) -> LogDirectory:
    return open_directory(disk, clock)


@pytest.fixture
def log(directory: LogDirectory) -> Log:
    return open_log(directory)


class TestCompaction:
    def test_keeps_the_last_record_of_each_key(self, directory: LogDirectory, log: Log) -> None:
        fill(log, "abcabcabaxyz")
        log.roll()
        expected = latest(log)
        assert compact(directory) == 1
        assert offsets(log) == [5, 7, 8, 9, 10, 11]
        assert latest(log) == expected
        assert (log.log_start_offset, log.log_end_offset) == (0, 12)

    def test_makes_one_segment_of_small_ones(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log
    ) -> None:
        for _ in range(10):
            fill(log, "ab")
            log.roll()
        compact(directory)
        assert log.segment_count == 2
        assert sorted(name for name in disk.list(DIRECTORY) if name.endswith(".log")) == [
            f"{base:020d}.log" for base in (0, 20)
        ]

    def test_merges_segments_that_surely_fit(self, directory: LogDirectory, log: Log) -> None:
        for _ in range(10):
            fill(log, "abc")
            log.roll()
        compact(directory)
        sizes = [segment.size for segment in log.sealed_segments]
        assert len(sizes) == 1
        fill(log, "defghi" * 2)
        log.roll()
        compact(directory)
        assert all(segment.size <= CONFIG.segment_bytes for segment in log.sealed_segments)

    def test_leaves_the_active_segment_alone(self, directory: LogDirectory, log: Log) -> None:
        fill(log, "abc" * 4)
        first_active = log.active_base_offset
        assert first_active < 11
        compact(directory)
        assert offsets(log)[-(12 - first_active) :] == list(range(first_active, 12))

    def test_does_not_compact_uncommitted_segments(self, directory: LogDirectory, log: Log) -> None:
        fill(log, "a" * 20)
        log.high_watermark = 7
        compact(directory)
        assert offsets(log) == [4, *range(5, 20)]

    def test_finds_a_newer_record_in_the_same_batch(
        self, directory: LogDirectory, log: Log
    ) -> None:
        append(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
        log.roll()
        compact(directory)
        assert offsets(log) == [1, 2]

    def test_drops_records_without_a_key(self, directory: LogDirectory, log: Log) -> None:
        append(log, (None, b"1"), (b"a", b"1"))
        log.roll()
        compact(directory)
        assert offsets(log) == [1]

    def test_continues_at_the_clean_offset(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log
    ) -> None:
        fill(log, "abcdab" * 3)
        compact(directory)
        clean = log.active_base_offset
        assert disk.read_file("cleaner-offset-checkpoint") == f"0\n1\nflights 0 {clean}\n".encode()
        assert compact(directory) == 0
        fill(log, "ab" * 10)
        expected = latest(log)
        assert compact(directory) == 1
        assert latest(log) == expected
        assert len(offsets(log)) < 10

    def test_continues_after_a_restart(
        self, disk: VirtualDisk, clock: Clock, directory: LogDirectory, log: Log
    ) -> None:
        fill(log, "abcdab" * 3)
        compact(directory)
        before = records(log)
        directory.close()
        again = open_directory(disk, clock)
        log = open_log(again)
        assert records(log) == before
        assert compact(again) == 0

    @pytest.mark.parametrize("content", [b"", b"0\n1\nflights 0 9999\n", b"nonsense"])
    def test_begins_at_the_log_start_if_the_checkpoint_is_invalid(
        self,
        disk: VirtualDisk,
        clock: Clock,
        directory: LogDirectory,
        log: Log,
        content: bytes,
    ) -> None:
        fill(log, "ab" * 10)
        directory.close()
        disk.write_file("cleaner-offset-checkpoint", content)
        again = open_directory(disk, clock)
        log = open_log(again)
        log.high_watermark = log.log_end_offset
        assert compact(again) == 1
        assert len(offsets(log)) < 10

    def test_a_truncated_log_is_dirty_again(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log
    ) -> None:
        fill(log, "ab" * 20)
        compact(directory)
        log.truncate(10)
        fill(log, "ab" * 20)
        compact(directory)
        assert len(offsets(log)) < 12

    def test_retention_deletes_nothing_of_a_log_that_is_only_compacted(
        self, directory: LogDirectory, log: Log
    ) -> None:
        log.config = replace(CONFIG, retention_bytes=0)
        fill(log, "a" * 20)
        compact(directory)
        assert asyncio.run(directory.retain()) == 0

    def test_a_log_that_is_compacted_and_deleted_gets_both(
        self, directory: LogDirectory, log: Log
    ) -> None:
        log.config = replace(CONFIG, deletes=True, retention_bytes=0)
        fill(log, "abcde" * 8)
        compact(directory)
        assert len(offsets(log)) == 10
        asyncio.run(directory.retain())
        assert (log.size, log.log_start_offset) == (0, 40)

    def test_a_log_that_is_not_compacted_is_left_alone(
        self, directory: LogDirectory, log: Log
    ) -> None:
        log.config = replace(CONFIG, compacts=False)
        fill(log, "a" * 20)
        assert compact(directory) == 0
        assert len(offsets(log)) == 20

    def test_an_unchanged_segment_is_not_replaced(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log
    ) -> None:
        fill(log, "abcdefghijklmn", value=b"v" * 200)
        renamed = note_paths(disk, "rename")
        compact(directory)
        assert len(offsets(log)) == 14
        assert renamed == []
        assert not [name for name in disk.list(DIRECTORY) if "cleaned" in name]


class TestReading:
    @pytest.fixture
    def compacted(self, directory: LogDirectory, log: Log) -> Log:
        """Records at 3, 17, 18 and 19 of 20; times are ten times the offset plus 1000."""
        log.config = replace(CONFIG, segment_bytes=10_000)
        for offset in range(20):
            key = b"rare" if offset == 3 else b"%d" % (offset % 3)
            append(log, (key, b"v" * 40), timestamp=1000 + 10 * offset)
        log.roll()
        assert compact(directory) == 1
        return log

    def test_a_read_in_a_gap_returns_the_next_batch(self, compacted: Log) -> None:
        assert offsets(compacted) == [3, 17, 18, 19]
        for offset in range(20):
            data = compacted.read(offset, 1)
            (record, *_) = read_records("flights", 0, data, offset)
            assert record.offset == next(at for at in (3, 17, 18, 19) if at >= offset)

    def test_not_beyond_the_end_asked_for(self, compacted: Log) -> None:
        assert compacted.read(4, 1000, end_offset=17) == b""
        assert compacted.read(4, 1000, end_offset=18) != b""

    def test_a_remembered_read_position_is_dropped(self, directory: LogDirectory, log: Log) -> None:
        fill(log, "a" * 20)
        log.read(0, 300)
        compact(directory)
        (header, *_) = read_headers(in_memory(log.read(2, 1)))
        assert header.last_offset >= 2

    def test_records_being_sent_stay_readable(
        self, directory: LogDirectory, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(log, "a" * 20)
        expected = bytes(in_memory(log.read(0, 10_000)))
        monkeypatch.setattr(segment_module, "LARGE_READ_BYTES", 100)
        monkeypatch.setattr(segment_module, "LARGE_RECORDS_BYTES", 100)
        lent = log.read(0, 10_000)
        assert isinstance(lent, StoredRecords)
        compact(directory)
        assert lent.read(0, 10_000) == expected

    def test_headers_rise(self, compacted: Log) -> None:
        bases = [header.base_offset for header in compacted.headers(5)]
        assert bases == sorted(set(bases))
        assert bases[-1] == 19

    @pytest.mark.parametrize(
        ("timestamp", "expected"), [(0, 3), (1030, 3), (1031, 17), (1180, 18), (1191, None)]
    )
    def test_times_are_found(self, compacted: Log, timestamp: int, expected: int | None) -> None:
        found = finish(compacted.offset_for_timestamp(timestamp))
        assert (found.offset if found else None) == expected

    def test_the_largest_time_is_found(self, compacted: Log) -> None:
        assert finish(compacted.offset_of_max_timestamp()) == (1190, 19, 0)

    def test_after_a_restart_too(
        self, disk: VirtualDisk, clock: Clock, directory: LogDirectory, compacted: Log
    ) -> None:
        directory.close()
        log = open_log(open_directory(disk, clock))
        assert offsets(log) == [3, 17, 18, 19]
        found = finish(log.offset_for_timestamp(1031))
        assert found is not None
        assert found.offset == 17


class TestWhenItIsDue:
    def dirt(self, log: Log, first: int = 0, now_ms: int = 10_000) -> DirtyPart:
        dirt = find_dirty_part(log, first, now_ms)
        assert dirt is not None
        return dirt

    def test_the_dirty_share_is_that_of_the_sealed_segments(self, log: Log) -> None:
        fill(log, "a" * 22)
        assert log.active_base_offset == 20
        dirt = self.dirt(log, 15)
        assert (dirt.first_offset, dirt.end_offset) == (15, 20)
        assert dirt.ratio == pytest.approx(0.25, abs=0.01)
        assert not dirt.is_due(replace(CONFIG, min_cleanable_dirty_ratio=0.26))
        assert dirt.is_due(replace(CONFIG, min_cleanable_dirty_ratio=0.24))

    def test_a_clean_log_has_none(self, log: Log) -> None:
        fill(log, "a" * 22)
        assert find_dirty_part(log, 20, 0) is None

    def test_begins_with_the_log(self, log: Log) -> None:
        fill(log, "a" * 22)
        log.delete_records_before(7)
        assert self.dirt(log).first_offset == 7

    @pytest.mark.kip(58)
    def test_records_younger_than_the_minimum_lag_are_not_compacted(self, log: Log) -> None:
        for offset in range(22):
            append(log, (b"a", b"v" * 40), timestamp=1000 + offset)
        log.config = replace(CONFIG, min_compaction_lag_ms=500)
        assert self.dirt(log, now_ms=1509).end_offset == 10
        assert find_dirty_part(log, 0, 1503) is None

    @pytest.mark.kip(354)
    def test_records_older_than_the_maximum_lag_make_it_due(self, log: Log) -> None:
        for offset in range(22):
            append(log, (b"a", b"v" * 40), timestamp=1000 + offset)
        config = log.config = replace(
            CONFIG, max_compaction_lag_ms=500, min_cleanable_dirty_ratio=1.0
        )
        assert not self.dirt(log, 15, now_ms=1515).is_due(config)
        assert self.dirt(log, 15, now_ms=1516).is_due(config)

    @pytest.mark.kip(354)
    def test_segments_are_sealed_in_time_for_the_largest_lag(self, log: Log) -> None:
        log.config = replace(CONFIG, max_compaction_lag_ms=500)
        append(log, (b"a", b"1"), timestamp=1000)
        append(log, (b"a", b"1"), timestamp=1500)
        assert log.segment_count == 1
        append(log, (b"a", b"1"), timestamp=1501)
        assert log.segment_count == 2

    def test_the_dirtiest_log_comes_first(
        self, directory: LogDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        logs = [open_log(directory, partition=partition) for partition in range(3)]
        for log in logs:
            fill(log, "abcdefghij", value=b"v" * 40)
            log.roll()
        compact(directory)
        for log, count in zip(logs, (10, 60, 30), strict=True):
            fill(log, "abcdefghij" * (count // 10))
            log.roll()
        order = []
        clean = Cleaner.clean

        async def note(cleaner: Cleaner, log: Log, dirt: DirtyPart) -> int | None:
            order.append(log)
            return await clean(cleaner, log, dirt)

        monkeypatch.setattr(Cleaner, "clean", note)
        for log in logs:
            log.config = replace(CONFIG, min_cleanable_dirty_ratio=0.1)
        assert compact(directory) == 3
        assert order == [logs[1], logs[2], logs[0]]


@pytest.mark.kip(534)
class TestDeleteMarkers:
    @pytest.fixture
    def marked(self, directory: LogDirectory, log: Log) -> Log:
        log.config = replace(CONFIG, delete_retention_ms=1000, min_cleanable_dirty_ratio=0.0)
        fill(log, "ab")
        append(log, (b"a", None))
        fill(log, "c")
        log.roll()
        compact(directory)
        return log

    def test_stay_for_a_time(self, marked: Log) -> None:
        assert [record.key for record in records(marked)] == [b"b", b"a", b"c"]

    def test_go_after_it(self, clock: Clock, directory: LogDirectory, marked: Log) -> None:
        clock.ms += 999
        fill(marked, "d")
        marked.roll()
        compact(directory)
        assert latest(marked)[b"a"] is None
        clock.ms += 1
        fill(marked, "d")
        marked.roll()
        compact(directory)
        assert b"a" not in latest(marked)


class TestProducers:
    def sent(self, sequence: int) -> BatchHeader:
        data = batch([(b"a", b"1")], producer_id=9, producer_epoch=2, base_sequence=sequence)
        return read_headers(data)[0]

    def fill(self, log: Log) -> None:
        log.config = replace(CONFIG, segment_bytes=10_000)
        for sequence in range(10):
            append(log, (b"a", b"1"), producer_id=9, producer_epoch=2, base_sequence=sequence)
        fill(log, "abcd")
        log.roll()

    def test_keep_their_last_five_batches_without_records(
        self, directory: LogDirectory, log: Log
    ) -> None:
        self.fill(log)
        compact(directory)
        headers = [header for header in log.headers(0) if header.producer_id == 9]
        assert [(h.base_offset, h.base_sequence, h.record_count) for h in headers] == [
            (n, n, 0) for n in range(5, 10)
        ]

    def test_are_known_from_the_batches_alone(
        self, disk: VirtualDisk, clock: Clock, directory: LogDirectory, log: Log
    ) -> None:
        self.fill(log)
        compact(directory)
        directory.close()
        for name in disk.list(DIRECTORY):
            if name.endswith(".snapshot"):
                disk.delete(f"{DIRECTORY}/{name}")
        again = open_log(open_directory(disk, clock))
        for sequence in range(5, 10):
            duplicate = again.producers.check_batch(self.sent(sequence)).duplicate
            assert duplicate is not None
            assert duplicate.first_offset == sequence

    def test_that_have_gone_on_do_not_need_the_oldest(
        self, directory: LogDirectory, log: Log
    ) -> None:
        self.fill(log)
        append(log, (b"z", b"1"), producer_id=9, producer_epoch=2, base_sequence=10)
        log.roll()
        compact(directory)
        headers = [header for header in log.headers(0) if header.producer_id == 9]
        assert [header.base_offset for header in headers] == [6, 7, 8, 9, 14]

    def test_that_are_forgotten_leave_nothing(
        self, clock: Clock, directory: LogDirectory, log: Log
    ) -> None:
        self.fill(log)
        clock.ms += 10**9
        log.producers.expire(clock.ms)
        compact(directory)
        assert not [header for header in log.headers(0) if header.producer_id == 9]


class TestLeaderEpochs:
    @pytest.mark.kip(101)
    def test_are_known_from_the_batches_alone(
        self, disk: VirtualDisk, clock: Clock, directory: LogDirectory, log: Log
    ) -> None:
        for epoch, keys in ((0, "ab"), (2, "ba"), (5, "abc"), (6, "abc")):
            for key in keys:
                data = batch([(key.encode(), b"v")])
                log.append(data, epoch, read_headers(data))
        log.high_watermark = log.log_end_offset
        log.roll()
        for _ in range(2):
            compact(directory)
            assert offsets(log) == [7, 8, 9]
            ends = [log.end_of_epoch(epoch).end_offset for epoch in range(7)]
            assert ends == [2, 2, 4, 4, 4, 7, 10]
            directory.close()
            disk.delete(f"{DIRECTORY}/leader-epoch-checkpoint")
            directory = open_directory(disk, clock)
            log = open_log(directory)
            assert [log.end_of_epoch(epoch).end_offset for epoch in range(7)] == ends


class TestMarkers:
    """Of transactions: control batches."""

    def marker(self, log: Log, producer_id: int) -> None:
        append(
            log,
            (b"\0\0\0\1", b"\0\0\0\0\0\0"),
            producer_id=producer_id,
            producer_epoch=0,
            is_control=True,
            is_transactional=True,
        )

    def markers(self, log: Log) -> list[int]:
        return [header.base_offset for header in log.headers(0) if header.is_control]

    def clean(self, directory: LogDirectory, log: Log) -> None:
        fill(log, "y" * 6)
        log.roll()
        compact(directory)

    def test_stay_while_a_batch_before_them_does_and_some_time_after(
        self, clock: Clock, directory: LogDirectory, log: Log
    ) -> None:
        log.config = replace(CONFIG, delete_retention_ms=1000, min_cleanable_dirty_ratio=0.0)
        kind = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
        append(log, (b"x", b"1"), base_sequence=0, **kind)
        self.marker(log, 5)
        append(log, (b"w", b"1"), base_sequence=1, **kind)
        self.marker(log, 5)
        self.clean(directory, log)
        clock.ms += 1000
        fill(log, "x")
        self.clean(directory, log)  # removes its record, but keeps the batch for its sequence
        clock.ms += 1000
        self.clean(directory, log)
        assert self.markers(log) == [1, 3]
        clock.ms += 10**9
        log.producers.expire(clock.ms)
        self.clean(directory, log)  # removes the batch
        assert self.markers(log) == [1, 3]
        self.clean(directory, log)  # sets its delete horizon
        assert self.markers(log) == [1, 3]
        clock.ms += 1000
        self.clean(directory, log)
        assert self.markers(log) == [3]


class TestMemory:
    def test_a_log_with_more_keys_than_fit_takes_more_rounds(
        self, directory: LogDirectory, log: Log
    ) -> None:
        directory.cleaner.dedupe_buffer_bytes = 24 * 32  # for 28 keys
        log.config = replace(CONFIG, min_cleanable_dirty_ratio=0.0)
        for round_ in range(2):
            for key in range(100):
                append(log, (b"%d" % key, b"%d" % round_))
        log.roll()
        expected = latest(log)
        rounds = 0
        while compact(directory):
            rounds += 1
            assert latest(log) == expected
        assert rounds == 8
        assert offsets(log) == list(range(100, 200))

    def test_many_small_records_are_one_round_all_the_same(
        self, directory: LogDirectory, log: Log
    ) -> None:
        log.config = replace(CONFIG, segment_bytes=10_000)
        for _ in range(2):
            builder = BatchBuilder(1 << 20, Compression.ZSTD)
            for key in range(5000):
                builder.append(1000, b"%d" % (key * 7919), b"", [])
            data = memoryview(bytearray(builder.build()))
            assert len(data) < 2 * 24 * 5000
            log.append(data, 0, read_headers(data))
        log.roll()
        log.high_watermark = log.log_end_offset
        assert compact(directory) == 1
        assert compact(directory) == 0
        assert offsets(log) == list(range(5000, 10_000))

    def test_a_round_may_end_within_a_batch(self, directory: LogDirectory, log: Log) -> None:
        directory.cleaner.dedupe_buffer_bytes = 24 * 32
        log.config = replace(CONFIG, min_cleanable_dirty_ratio=0.0)
        for _ in range(2):
            append(log, *((b"%d" % key, b"v") for key in range(60)))
        log.roll()
        while compact(directory):
            assert len(latest(log)) == 60
        assert offsets(log) == list(range(60, 120))

    def test_other_tasks_get_their_turn(self, directory: LogDirectory) -> None:
        log = open_log(directory, replace(CONFIG, segment_bytes=1 << 20))
        for i in range(300):
            append(log, (b"%d" % i, b"v" * 10_000))
        log.roll()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def both() -> None:
            counting = asyncio.create_task(count())
            await directory.compact()
            counting.cancel()

        asyncio.run(both())
        assert turns > 2 * 3_000_000 / (256 * 1024)


def test_other_tasks_run_after_each_decompressed_batch(directory: LogDirectory, log: Log) -> None:
    """The batches of a slice may decompress to hundreds of times its size."""
    for _ in range(60):
        builder = BatchBuilder(1 << 16, Compression.GZIP)
        builder.append(1000, b"k", bytes(500), [])
        data = memoryview(bytearray(builder.build()))
        log.append(data, 0, read_headers(data))
    log.high_watermark = log.log_end_offset

    async def count() -> int:
        compacting = asyncio.create_task(directory.compact())
        turns = 0
        while not compacting.done():
            turns += 1
            await asyncio.sleep(0)
        assert compacting.result() == 1
        return turns

    assert asyncio.run(count()) > 2 * 40


def test_a_batch_that_the_topic_accepts_can_be_compacted(directory: LogDirectory) -> None:
    log = open_log(directory, replace(CONFIG, segment_bytes=1 << 26, max_message_bytes=18 << 20))
    for value in (bytes(17 << 20), b"last"):
        builder = BatchBuilder(1 << 25, Compression.GZIP)
        builder.append(1000, b"k", value, [])
        data = memoryview(bytearray(builder.build()))
        log.append(data, 0, read_headers(data))
    log.high_watermark = log.log_end_offset
    log.roll()
    assert compact(directory) == 1
    assert offsets(log) == [1]


def interrupt(directory: LogDirectory, turn: int, act: Callable[[], object]) -> int:
    """Compacts, and performs an action at a given step."""

    async def both() -> int:
        compacting = asyncio.create_task(directory.compact())
        for _ in range(turn):
            await asyncio.sleep(0)
        act()
        return await compacting

    return asyncio.run(both())


TURNS = range(1, 24)


@pytest.mark.parametrize("turn", TURNS)
class TestMeanwhile:
    @pytest.fixture
    def log(self, directory: LogDirectory) -> Log:
        log = open_log(directory, replace(CONFIG, min_cleanable_dirty_ratio=0.0))
        fill(log, "abcdefghi" * 6, value=b"v" * 100)
        return log

    def leftovers(self, disk: VirtualDisk) -> list[str]:
        return [name for name in disk.list(DIRECTORY) if name.endswith((".cleaned", ".swap"))]

    def test_the_log_may_grow(self, directory: LogDirectory, log: Log, turn: int) -> None:
        expected = dict.fromkeys(latest(log), b"new")

        def grow() -> None:
            for key in expected:
                append(log, (key, b"new"))

        interrupt(directory, turn, grow)
        assert latest(log) == expected

    def test_the_log_may_be_truncated(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log, turn: int
    ) -> None:
        before = {record.offset: record for record in records(log)}
        interrupt(directory, turn, lambda: log.truncate(20))
        assert log.log_end_offset == 20
        assert all(before[record.offset] == record for record in records(log))
        assert offsets(log)[-1] == 19
        assert self.leftovers(disk) == []

    def test_the_log_may_be_deleted(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log, turn: int
    ) -> None:
        interrupt(directory, turn, lambda: directory.delete_log("flights", 0))
        asyncio.run(directory.checkpoint())
        assert not [name for name in disk.list("") if name.startswith("flights")]

    def test_the_directory_may_be_closed(
        self, disk: VirtualDisk, clock: Clock, directory: LogDirectory, log: Log, turn: int
    ) -> None:
        expected = latest(log)
        interrupt(directory, turn, directory.close)
        again = open_log(open_directory(disk, clock))
        assert latest(again) == expected
        assert self.leftovers(disk) == []

    def test_retention_may_delete_segments(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log, turn: int
    ) -> None:
        def retain() -> None:
            log.delete_records_before(25)
            log.enforce_retention(log.high_watermark)

        expected = {record.key: record.value for record in records(log) if record.offset >= 25}
        interrupt(directory, turn, retain)
        assert latest(log) == expected
        assert log.log_start_offset == 25
        assert self.leftovers(disk) == []

    def test_it_may_be_cancelled(
        self, disk: VirtualDisk, clock: Clock, directory: LogDirectory, log: Log, turn: int
    ) -> None:
        async def cancel() -> None:
            compacting = asyncio.create_task(directory.compact())
            for _ in range(turn):
                await asyncio.sleep(0)
            compacting.cancel()
            await asyncio.wait([compacting])

        expected = latest(log)
        asyncio.run(cancel())
        assert latest(log) == expected
        compact(directory)
        assert latest(log) == expected
        directory.close()
        assert latest(open_log(open_directory(disk, clock))) == expected
        assert self.leftovers(disk) == []


class TestCrashes:
    def prepared(self, disk: VirtualDisk, clock: Clock) -> tuple[LogDirectory, Log]:
        directory = open_directory(disk, clock)
        log = open_log(directory)
        fill(log, "abcdefgh" * 4)
        log.flush()
        return directory, log

    @pytest.mark.parametrize("checkpointed", [True, False])
    @pytest.mark.parametrize("step", range(40))
    def test_at_any_step_lose_nothing(self, clock: Clock, step: int, checkpointed: bool) -> None:
        disk = VirtualDisk()
        directory, log = self.prepared(disk, clock)
        if checkpointed:
            asyncio.run(directory.checkpoint())
        expected = latest(log)
        count = 0

        def fail_from_then_on(action: str, path: str) -> int:
            nonlocal count
            count += action != "read"
            return EIO if count > step else 0

        disk.fault = fail_from_then_on
        try:
            assert compact(directory) == 1
            assert count <= step
        except StorageError:
            pass
        disk.fault = None
        disk.crash(Random(step))
        again = open_directory(disk, clock)
        log = open_log(again)
        assert latest(log) == expected
        assert log.log_end_offset == 32
        assert not [name for name in disk.list(DIRECTORY) if name.endswith((".cleaned", ".swap"))]
        log.high_watermark = 32
        compact(again)
        assert latest(log) == expected

    def test_leave_no_gap_between_segments(
        self, disk: VirtualDisk, clock: Clock, directory: LogDirectory
    ) -> None:
        log = open_log(directory, replace(CONFIG, min_cleanable_dirty_ratio=0.0))
        for i in range(60):
            append(log, (b"%d" % (i % 30), b"v" * 40))
        fill(log, "x" * 5)
        compact(directory)
        assert log.segment_count > 3
        expected = records(log)
        log.flush()
        disk.crash()
        disk.delete("recovery-point-offset-checkpoint")
        disk.delete("cleaner-offset-checkpoint")
        assert records(open_log(open_directory(disk, clock))) == expected


class TestFailures:
    def test_a_full_disk_costs_nothing(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log
    ) -> None:
        fill(log, "ab" * 20)
        before = records(log)
        disk.fault = lambda action, path: ENOSPC if ".cleaned" in path and action == "append" else 0
        with pytest.raises(StorageError):
            compact(directory)
        disk.fault = None
        assert records(log) == before
        assert not log.has_failed
        assert compact(directory) == 1

    def test_a_swap_that_fails_ends_the_log(
        self, disk: VirtualDisk, directory: LogDirectory, log: Log
    ) -> None:
        fill(log, "ab" * 20)
        disk.fault = lambda action, path: EIO if action == "delete" and "cleaned" not in path else 0
        with pytest.raises(StorageError):
            compact(directory)
        disk.fault = None
        assert log.has_failed
        assert compact(directory) == 0

    def test_a_damaged_log_is_skipped_and_the_others_are_compacted(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        logs = [open_log(directory, partition=partition) for partition in range(2)]
        for log in logs:
            fill(log, "ab" * 20)
        path = f"{DIRECTORY}/{0:020d}.log"
        content = bytearray(disk.read_file(path) or b"")
        content[70] ^= 1
        disk.write_file(path, content)
        with pytest.raises(CorruptData, match="CRC"):
            compact(directory)
        assert len(offsets(logs[1])) < 10
        assert logs[0].segment_count > 5
        assert compact(directory) == 0


def test_a_follower_compacts_what_it_was_sent(directory: LogDirectory, log: Log) -> None:
    for base_offset in range(0, 100, 4):
        data = batch([(b"%d" % (base_offset % 3), b"v" * 40)])
        restamp(data, 0, base_offset, 3)
        log.append_replicated(data, read_headers(data))
    log.high_watermark = log.log_end_offset
    log.roll()
    expected = latest(log)
    compact(directory)
    assert latest(log) == expected
    assert offsets(log) == [88, 92, 96]
    assert directory.logs[TopicPartition("flights", 0)].epochs.latest == 3
