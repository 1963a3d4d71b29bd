"""A partition's log: assigning offsets, reading batches, rolling and deleting segments.

Long because the layers of a log are tested as callers see them, together.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from errno import EIO, ENOSPC
from random import Random

import pytest

from tests.steps import finish
from tests.unit.cluster.storage.logs import (
    DIRECTORY,
    HOUR_MS,
    ONE,
    SMALL,
    Clock,
    append,
    batch,
    fill,
    header_of,
    in_memory,
    note_paths,
    offsets,
    producer_batch,
    replicate,
    sent,
)
from trimtab.cluster.storage.leader_epochs import LeaderEpoch
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_appending import Appended
from trimtab.cluster.storage.log_changes import LogChanges
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_reading import OffsetOutOfRange
from trimtab.cluster.storage.producer_state import ACCEPTED
from trimtab.cluster.storage.segment_list import SegmentList
from trimtab.cluster.storage.storage import StorageError
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import (
    read_headers,
    restamp,
    stamp_append_time,
    verify,
)
from trimtab.sim.disk import VirtualDisk


class TestAppend:
    def test_gives_offsets_and_the_leader_epoch(self, log: Log) -> None:
        first = append(log, batch(3, timestamp=5), leader_epoch=7)
        second = append(log, batch(2, timestamp=4), leader_epoch=7)
        assert first == Appended(0, 3, -1)
        assert second == Appended(3, 5, -1)
        assert log.log_end_offset == 5
        stored = in_memory(log.read(0, 1000))
        for header in read_headers(stored):
            assert header.leader_epoch == 7
        verify(stored, 0)

    def test_several_batches_at_once(self, log: Log) -> None:
        data = memoryview(bytearray(batch(2)) + bytearray(batch(1, 99)) + bytearray(batch(4)))
        assert append(log, data) == Appended(0, 7, -1)
        assert offsets(log.read(0, 1000)) == [(0, 1), (2, 2), (3, 6)]

    def test_says_when_the_broker_stamped(self, log: Log) -> None:
        data = batch()
        stamp_append_time(data, 0, 123_456)
        assert append(log, data) == Appended(0, 1, 123_456)

    def test_nothing_is_on_disk_before(self, disk: VirtualDisk, log: Log) -> None:
        assert disk.list("") == []

    def test_offsets_are_stamped_into_the_callers_bytes(self, log: Log) -> None:
        fill(log, 3)
        data = batch()
        append(log, data, 5)
        assert bytes(data) == bytes(in_memory(log.read(3, 1000)))


class TestAppendReplicated:
    def test_keeps_offsets_and_epochs(self, log: Log) -> None:
        data = sent((3, 1), (4, 1), (9, 2), records=1)
        replicate(log, data)
        assert bytes(in_memory(log.read(3, 10_000))) == bytes(data)
        assert (log.log_start_offset, log.log_end_offset) == (0, 10)
        assert log.epochs.entries == [LeaderEpoch(1, 3), LeaderEpoch(2, 9)]

    def test_reads_pass_over_gaps(self, log: Log) -> None:
        replicate(log, sent((3, 0), (9, 0), records=2))
        assert offsets(log.read(0, 1)) == [(3, 4)]
        assert offsets(log.read(5, 10_000)) == [(9, 10)]
        assert [header.base_offset for header in log.headers(5)] == [9]

    @pytest.mark.parametrize("places", [[(4, 0)], [(5, 0), (5, 0)], [(5, 0), (7, 0), (6, 0)]])
    def test_refuses_offsets_that_go_back(self, log: Log, places: list[tuple[int, int]]) -> None:
        fill(log, 5)
        with pytest.raises(CorruptData, match=r"flights-3: the leader sent a batch at offset"):
            replicate(log, sent(*places))
        assert (log.log_end_offset, log.size) == (5, 5 * ONE)

    def test_writes_the_file_once(
        self, disk: VirtualDisk, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written = note_paths(disk, "append")
        replicate(log, sent(*((i, 0) for i in range(50))))
        assert len(written) == 1

    def test_fills_segments_as_an_append_does(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        replicate(log, sent(*((i, 0) for i in range(3))))
        replicate(log, sent(*((i, 0) for i in range(3, 10))))
        logs = sorted(name for name in disk.list(DIRECTORY) if name.endswith(".log"))
        assert logs == [f"{base:020d}.log" for base in (0, 4, 8)]

    def test_a_batch_larger_than_a_segment_gets_one_of_its_own(self, rolled: Log) -> None:
        replicate(rolled, sent((10, 0), (11, 0), size=10_000))
        assert rolled.segment_count == 5
        assert offsets(rolled.read(10, 1)) == [(10, 10)]
        assert offsets(rolled.read(11, 1)) == [(11, 11)]

    @pytest.mark.parametrize("first", [0, 10**10])
    def test_a_gap_too_wide_for_an_index_gets_a_new_segment(
        self, disk: VirtualDisk, clock: Clock, log: Log, first: int
    ) -> None:
        places = [(first, 0), (first + 2**31 - 1, 0), (first + 2**31, 0), (first + 2**40, 0)]
        replicate(log, sent(*places))
        replicate(log, sent((first + 2**41, 1)))
        again = Log(disk, DIRECTORY, LogConfig(), clock)
        assert [header.base_offset for header in again.headers(0)] == [
            *(place for place, _ in places),
            first + 2**41,
        ]
        assert again.active_base_offset == first + 2**41

    @pytest.mark.parametrize("clean", [True, False])
    def test_gaps_and_epochs_come_back(self, disk: VirtualDisk, clock: Clock, clean: bool) -> None:
        compacted = replace(SMALL, compacts=True)
        log = Log(disk, DIRECTORY, compacted, clock)
        for i in range(20):
            replicate(log, sent((10 * i, i // 7), (10 * i + 3, i // 7)))
        epochs = [LeaderEpoch(0, 0), LeaderEpoch(1, 70), LeaderEpoch(2, 140)]
        assert log.epochs.entries == epochs
        if clean:
            log.close()
        again = Log(disk, DIRECTORY, compacted, clock, clean=clean)
        assert [h.base_offset for h in again.headers(0)] == sorted(
            [*range(0, 200, 10), *range(3, 200, 10)]
        )
        assert again.epochs.entries == epochs

    def test_knows_the_producers(self, log: Log) -> None:
        for i in range(3):
            data = producer_batch(i)
            restamp(data, 0, 100 + i, 0)
            replicate(log, data)
        duplicate = log.producers.check_batch(header_of(producer_batch(2))).duplicate
        assert duplicate is not None
        assert duplicate.first_offset == 102
        assert log.producers.check_batch(header_of(producer_batch(3))) is ACCEPTED

    def test_an_epoch_without_records_is_replaced(self, log: Log) -> None:
        fill(log, 2)
        log.begin_epoch(8)
        replicate(log, sent((2, 7), (3, 9)))
        assert log.epochs.entries == [LeaderEpoch(0, 0), LeaderEpoch(7, 2), LeaderEpoch(9, 3)]

    def test_flushes_as_the_options_say(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, LogConfig(flush_messages=3), clock)
        replicate(log, sent((0, 0), (1, 0)))
        assert log.recovery_point == 0
        replicate(log, sent((5, 0)))
        assert log.recovery_point == 6

    def test_a_full_disk_keeps_the_earlier_segments(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        fill(log, 2)
        disk.fault = lambda action, path: (
            ENOSPC if action == "append" and path.endswith("4.log") else 0
        )
        data = sent(*((i, 0) for i in range(2, 10)))
        with pytest.raises(StorageError):
            replicate(log, data)
        disk.fault = None
        assert log.log_end_offset == 4
        replicate(log, data[2 * ONE :])
        assert [header.base_offset for header in log.headers(0)] == list(range(10))


class TestRoll:
    def test_that_fails_leaves_no_empty_segment_within_the_log(
        self, disk: VirtualDisk, clock: Clock
    ) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        fill(log, 2)
        disk.fault = lambda action, path: (
            ENOSPC if action in ("append", "delete") and path.endswith("2.log") else 0
        )
        with pytest.raises(StorageError):
            log.roll()
        assert log.has_failed, "the file is there, and could not be deleted"
        disk.fault = None
        log = Log(disk, DIRECTORY, SMALL, clock)
        assert log.log_end_offset == 2

        fill(log, 1)
        disk.fault = lambda action, path: (
            ENOSPC if action == "append" and path.endswith("3.log") else 0
        )
        with pytest.raises(StorageError):
            log.roll()
        disk.fault = None
        assert not log.has_failed
        fill(log, 1)
        log.close()
        again = Log(disk, DIRECTORY, SMALL, clock, recovery_point=4, clean=True)
        assert again.log_end_offset == 4
        assert [header.base_offset for header in again.headers(0)] == [0, 1, 2, 3]

    def test_by_size(self, disk: VirtualDisk, rolled: Log) -> None:
        logs = sorted(name for name in disk.list(DIRECTORY) if name.endswith(".log"))
        assert logs == [f"{base:020d}.log" for base in (0, 4, 8)]
        assert rolled.active_base_offset == 8

    def test_a_batch_larger_than_a_segment_gets_one_of_its_own(self, rolled: Log) -> None:
        append(rolled, batch(size=10_000))
        append(rolled, batch())
        assert rolled.active_base_offset == 11
        assert offsets(rolled.read(10, 1)) == [(10, 10)]

    def test_by_the_time_between_records(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, LogConfig(segment_ms=HOUR_MS), clock)
        append(log, batch(timestamp=1000))
        append(log, batch(timestamp=1000 + HOUR_MS))
        assert log.segment_count == 1
        append(log, batch(timestamp=1001 + HOUR_MS))
        assert log.active_base_offset == 2

    def test_by_the_clock_where_records_have_no_time(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, LogConfig(segment_ms=HOUR_MS), clock)
        append(log, batch(timestamp=-1))
        clock.ms += HOUR_MS + 1
        append(log, batch(timestamp=-1))
        assert log.active_base_offset == 1

    def test_with_jitter_some_time_before(self, disk: VirtualDisk, clock: Clock) -> None:
        config = LogConfig(segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS // 2)
        ages = set()
        for partition in range(20):
            log = Log(disk, f"flights-{partition}", config, clock)
            age = 0
            while log.segment_count == 1:
                append(log, batch(timestamp=1000 + age))
                age += 60_000
            ages.add(age)
            assert HOUR_MS // 2 < age <= HOUR_MS + 120_000
        assert len(ages) > 5

    def test_when_the_index_is_full(self, disk: VirtualDisk, clock: Clock) -> None:
        config = LogConfig(index_interval_bytes=2 * ONE, segment_index_bytes=3 * 8)
        log = Log(disk, DIRECTORY, config, clock)
        fill(log, 40)
        log.close()
        sizes = {
            disk.open(f"{DIRECTORY}/{name}").size
            for name in disk.list(DIRECTORY)
            if name.endswith(".index")
        }
        assert log.segment_count == 4
        assert max(sizes) == 24

    def test_an_empty_segment_is_not_rolled(self, log: Log) -> None:
        log.roll()
        assert log.segment_count == 1

    def test_the_end_of_an_empty_segment_is_remembered(
        self, disk: VirtualDisk, clock: Clock, rolled: Log
    ) -> None:
        rolled.roll()
        rolled.close()
        assert Log(disk, DIRECTORY, SMALL, clock).log_end_offset == 10


class TestRead:
    def test_whole_batches_as_many_as_fit(self, log: Log) -> None:
        fill(log, 5)
        assert offsets(log.read(0, 2 * ONE)) == [(0, 0), (1, 1)]
        assert offsets(log.read(1, 3 * ONE - 1)) == [(1, 1), (2, 2)]
        assert offsets(log.read(0, 10**9)) == [(i, i) for i in range(5)]

    def test_an_offset_inside_a_batch_returns_it_whole(self, log: Log) -> None:
        append(log, batch(5))
        append(log, batch(5))
        assert offsets(log.read(3, 10_000)) == [(0, 4), (5, 9)]
        assert offsets(log.read(9, 10_000)) == [(5, 9)]

    @pytest.mark.parametrize("max_bytes", [-1, 0, 1, 60, ONE - 1])
    def test_the_first_batch_comes_whole_or_not_at_all(self, log: Log, max_bytes: int) -> None:
        fill(log, 3)
        assert offsets(log.read(1, max_bytes, min_one=True)) == [(1, 1)]
        assert log.read(1, max_bytes, min_one=False) == b""

    def test_a_batch_larger_than_any_limit(self, log: Log) -> None:
        append(log, batch(size=3_000_000))
        append(log, batch())
        first = log.read(0, 100)
        assert isinstance(first, StoredRecords), "read it only when it is sent"
        assert offsets(first.read(0, len(first))) == [(0, 0)]
        assert log.read(0, 100, min_one=False) == b""

    def test_not_beyond_the_end_offset(self, log: Log) -> None:
        for _ in range(4):
            append(log, batch(2))
        assert offsets(log.read(0, 10_000, end_offset=4)) == [(0, 1), (2, 3)]
        assert offsets(log.read(0, 10_000, end_offset=5)) == [(0, 1), (2, 3)]
        assert log.read(4, 10_000, end_offset=4) == b""
        assert log.read(6, 10_000, end_offset=4) == b""
        assert log.read(4, 10_000, end_offset=5) == b""
        assert len(offsets(log.read(0, 10_000, end_offset=99))) == 4

    def test_one_segment_at_a_time(self, rolled: Log) -> None:
        seen = []
        offset = 0
        while data := rolled.read(offset, 10**9):
            seen.append(offsets(data))
            offset = seen[-1][-1][1] + 1
        assert [len(each) for each in seen] == [4, 4, 2]
        assert offset == 10

    def test_empty_at_the_end(self, log: Log) -> None:
        assert log.read(0, 1000) == b""
        fill(log, 1)
        assert log.read(1, 1000) == b""

    def test_outside_the_log(self, rolled: Log) -> None:
        rolled.delete_records_before(5)
        with pytest.raises(OffsetOutOfRange, match=r"flights-3: offset 11 is not within 5\.\.10"):
            rolled.read(11, 1000)
        with pytest.raises(OffsetOutOfRange):
            rolled.read(4, 1000)
        assert offsets(rolled.read(5, ONE)) == [(5, 5)]

    def test_the_next_read_needs_no_look_up(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(log, 200)
        data = log.read(0, 30 * ONE)
        monkeypatch.setattr(SegmentList, "locate", lambda *_: pytest.fail("looked up"))
        for start in (30, 60, 90):
            data = log.read(start, 30 * ONE)
            assert offsets(data)[0] == (start, start)
        log.read(120, 10**9)
        fill(log, 1)
        assert offsets(log.read(200, 100)) == [(200, 200)]

    def test_a_reader_at_the_end_follows_a_roll(self, rolled: Log) -> None:
        rolled.read(8, 10**9)
        fill(rolled, 3)
        assert offsets(rolled.read(10, 10**9)) == [(10, 10), (11, 11)]
        assert offsets(rolled.read(12, 10**9)) == [(12, 12)]

    def test_headers_from_any_offset(self, rolled: Log) -> None:
        for offset in (0, 3, 4, 9):
            found = [header.base_offset for header in rolled.headers(offset)]
            assert found == list(range(offset, 10))
        assert list(rolled.headers(10)) == []


class TestTimestamps:
    @pytest.fixture
    def timed(self, disk: VirtualDisk, clock: Clock) -> Log:
        log = Log(disk, DIRECTORY, SMALL, clock)
        for timestamp in (10, 20, 15, 30, 25, 50, 40, 50, 35):
            append(log, batch(timestamp=timestamp), leader_epoch=3)
        return log

    @pytest.mark.parametrize(
        ("target", "expected"),
        [(0, (10, 0)), (10, (10, 0)), (11, (20, 1)), (21, (30, 3)), (31, (50, 5)), (50, (50, 5))],
    )
    def test_first_at_or_after(self, timed: Log, target: int, expected: tuple[int, int]) -> None:
        assert finish(timed.offset_for_timestamp(target)) == (*expected, 3)

    def test_none_after_the_last(self, timed: Log) -> None:
        assert finish(timed.offset_for_timestamp(51)) is None

    def test_not_before_the_start(self, timed: Log) -> None:
        timed.delete_records_before(6)
        assert finish(timed.offset_for_timestamp(0)) == (40, 6, 3)
        assert finish(timed.offset_of_max_timestamp()) == (50, 7, 3)

    def test_of_the_largest(self, timed: Log) -> None:
        assert finish(timed.offset_of_max_timestamp()) == (50, 5, 3)

    def test_not_beyond_the_end_asked_for(self, timed: Log) -> None:
        assert finish(timed.offset_for_timestamp(31, end_offset=6)) == (50, 5, 3)
        assert finish(timed.offset_for_timestamp(31, end_offset=5)) is None
        assert finish(timed.offset_of_max_timestamp(end_offset=6)) == (50, 5, 3)
        assert finish(timed.offset_of_max_timestamp(end_offset=5)) is None

    def test_nothing_has_a_time(self, log: Log) -> None:
        assert finish(log.offset_of_max_timestamp()) is None
        append(log, batch(timestamp=-1))
        assert finish(log.offset_of_max_timestamp()) is None
        assert finish(log.offset_for_timestamp(0)) is None


class TestRetention:
    def test_by_size(self, rolled: Log) -> None:
        rolled.config = replace(SMALL, retention_bytes=2 * ONE + 1, retention_ms=-1)
        assert rolled.enforce_retention() == 1
        assert (rolled.log_start_offset, rolled.segment_count) == (4, 2)
        rolled.config = replace(SMALL, retention_bytes=2 * ONE, retention_ms=-1)
        assert rolled.enforce_retention() == 1
        assert rolled.log_start_offset == 8

    def test_by_time(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, replace(SMALL, retention_ms=HOUR_MS), clock)
        for i in range(10):
            append(log, batch(timestamp=clock.ms + i))
        clock.ms += HOUR_MS + 4
        assert log.enforce_retention() == 1
        clock.ms += 3
        assert log.enforce_retention() == 0
        clock.ms += 1
        assert log.enforce_retention() == 1
        assert log.log_start_offset == 8

    def test_everything_expired(self, disk: VirtualDisk, clock: Clock, rolled: Log) -> None:
        clock.ms = 10**12
        assert rolled.enforce_retention() == 3
        assert (rolled.log_start_offset, rolled.log_end_offset, rolled.size) == (10, 10, 0)
        assert rolled.enforce_retention() == 0
        assert append(rolled, batch()).base_offset == 10
        rolled.close()
        again = Log(disk, DIRECTORY, SMALL, clock)
        assert (again.log_start_offset, again.log_end_offset) == (10, 11)

    def test_records_without_a_time_count_from_when_they_were_opened(
        self, disk: VirtualDisk, clock: Clock
    ) -> None:
        log = Log(disk, DIRECTORY, replace(SMALL, retention_ms=HOUR_MS), clock)
        fill(log, 5, timestamp=-1)
        assert log.enforce_retention() == 0
        clock.ms += HOUR_MS + 1
        assert log.enforce_retention() == 2

    def test_not_beyond_the_high_watermark(self, clock: Clock, rolled: Log) -> None:
        clock.ms = 10**12
        assert rolled.enforce_retention(end_offset=7) == 1
        assert rolled.log_start_offset == 4

    def test_a_compacted_topic_keeps_everything(self, clock: Clock, rolled: Log) -> None:
        clock.ms = 10**12
        rolled.config = replace(SMALL, deletes=False, retention_bytes=0)
        assert rolled.enforce_retention() == 0

    def test_deleted_records_free_their_segments(self, disk: VirtualDisk, rolled: Log) -> None:
        rolled.config = replace(SMALL, retention_ms=-1)
        rolled.delete_records_before(7)
        assert rolled.enforce_retention() == 1
        assert rolled.log_start_offset == 7
        rolled.delete_records_before(3)
        assert rolled.log_start_offset == 7
        rolled.delete_records_before(10)
        assert rolled.enforce_retention() == 1
        assert rolled.segment_count == 1
        with pytest.raises(OffsetOutOfRange):
            rolled.delete_records_before(11)
        assert f"{4:020d}.log" not in disk.list(DIRECTORY)


class TestHighWatermark:
    def test_stays_within_the_log(self, rolled: Log) -> None:
        assert rolled.high_watermark == 0
        rolled.high_watermark = 99
        assert rolled.high_watermark == 10
        rolled.high_watermark = 7
        assert rolled.high_watermark == 7

    def test_rises_with_the_logs_start(self, clock: Clock, rolled: Log) -> None:
        rolled.delete_records_before(3)
        assert rolled.high_watermark == 3
        clock.ms = 10**12
        rolled.enforce_retention()
        assert rolled.high_watermark == rolled.log_start_offset == 10

    @pytest.mark.parametrize(("checkpointed", "expected"), [(0, 4), (7, 7), (99, 10)])
    def test_comes_back_within_the_log(
        self, disk: VirtualDisk, clock: Clock, rolled: Log, checkpointed: int, expected: int
    ) -> None:
        again = Log(disk, DIRECTORY, SMALL, clock, log_start_offset=4, high_watermark=checkpointed)
        assert again.high_watermark == expected

    def test_notes_that_it_has_moved(self, disk: VirtualDisk, clock: Clock) -> None:
        changes = LogChanges[Log]()
        log = Log(disk, DIRECTORY, SMALL, clock, changes=changes)
        fill(log, 2)
        assert changes.high_watermarks == {}
        log.high_watermark = 2
        assert changes.high_watermarks == {log: None}


class TestRestartAt:
    @pytest.mark.parametrize("offset", [0, 3, 10, 500])
    def test_begins_there_with_nothing(
        self, disk: VirtualDisk, clock: Clock, rolled: Log, offset: int
    ) -> None:
        append(rolled, producer_batch(0), 3)
        rolled.roll()
        rolled.restart_at(offset)
        assert (rolled.log_start_offset, rolled.log_end_offset, rolled.size) == (offset, offset, 0)
        assert (rolled.high_watermark, rolled.recovery_point) == (offset, offset)
        assert (rolled.epochs.entries, len(rolled.producers)) == ([], 0)
        assert not [name for name in disk.list(DIRECTORY) if name.endswith(".snapshot")]

    @pytest.mark.parametrize("offset", [3, 500])
    def test_is_remembered(self, disk: VirtualDisk, clock: Clock, rolled: Log, offset: int) -> None:
        rolled.restart_at(offset)
        disk.crash()
        again = Log(disk, DIRECTORY, SMALL, clock)
        assert (again.log_start_offset, again.log_end_offset) == (offset, offset)
        assert append(again, batch()).base_offset == offset

    def test_that_fails_ends_the_log(self, disk: VirtualDisk, clock: Clock, rolled: Log) -> None:
        disk.fault = lambda action, path: EIO if action == "delete" else 0
        with pytest.raises(StorageError):
            rolled.restart_at(500)
        disk.fault = None
        assert rolled.has_failed


class TestNewLog:
    def test_touches_no_disk_before_its_first_record(self, disk: VirtualDisk, clock: Clock) -> None:
        begun: list[Log] = []
        changes = LogChanges[Log](before_first_file=begun.append)
        disk.fault = lambda action, path: EIO
        log = Log(disk, DIRECTORY, SMALL, clock, changes=changes, is_new=True)
        log.begin_epoch(4)
        log.roll()
        log.truncate(0)
        log.enforce_retention()
        log.close()
        assert (log.read(0, 100), list(log.headers(0)), begun) == (b"", [], [])

    @pytest.mark.parametrize(
        "write",
        [
            lambda log: fill(log, 1),
            lambda log: replicate(log, sent((5, 0))),
            lambda log: replicate(log, sent((2**40, -1))),
            lambda log: log.restart_at(5),
        ],
    )
    def test_says_so_when_it_begins_to_write(
        self, disk: VirtualDisk, clock: Clock, write: Callable[[Log], None]
    ) -> None:
        begun: list[bool] = []
        changes = LogChanges[Log](
            before_first_file=lambda log: begun.append(disk.exists(DIRECTORY))
        )
        log = Log(disk, DIRECTORY, SMALL, clock, changes=changes, is_new=True)
        write(log)
        assert begun == [False]
        fill(log, 10)
        log.close()
        assert begun == [False]
        again = Log(disk, DIRECTORY, SMALL, clock)
        assert again.log_end_offset == log.log_end_offset


class TestTruncate:
    @pytest.mark.parametrize("offset", range(11))
    def test_at_a_batch(self, disk: VirtualDisk, clock: Clock, rolled: Log, offset: int) -> None:
        rolled.truncate(offset)
        assert rolled.log_end_offset == offset
        assert append(rolled, batch()).base_offset == offset
        rolled.close()
        again = Log(disk, DIRECTORY, SMALL, clock)
        assert [h.base_offset for h in again.headers(0)] == list(range(offset + 1))

    def test_whole_segments_do_not_come_back_with_a_power_loss(self, clock: Clock) -> None:
        for seed in range(20):
            disk = VirtualDisk(is_lazy=True)
            log = Log(disk, DIRECTORY, SMALL, clock)
            fill(log, 10)  # segments 0, 4 and 8
            log.close()
            log = Log(disk, DIRECTORY, SMALL, clock)
            log.truncate(4)
            disk.crash(Random(seed))
            again = Log(disk, DIRECTORY, SMALL, clock, clean=False)
            assert again.log_end_offset <= 4

    def test_inside_a_batch_removes_it(self, log: Log) -> None:
        append(log, batch(5))
        append(log, batch(5))
        log.truncate(7)
        assert log.log_end_offset == 5

    def test_in_a_gap_ends_the_log_there(self, log: Log) -> None:
        replicate(log, sent((0, 0), (9, 0), records=2))
        log.truncate(6)
        assert log.log_end_offset == 6
        assert log.read(3, 1000) == b""
        assert append(log, batch()).base_offset == 6

    def test_in_a_gap_before_a_roll_leaves_none_between_segments(
        self, disk: VirtualDisk, clock: Clock
    ) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        replicate(log, sent((0, 0), (9, 0)))
        log.truncate(6)
        log.roll()
        fill(log, 2)
        again = Log(disk, DIRECTORY, SMALL, clock)
        assert [header.base_offset for header in again.headers(0)] == [0, 6, 7]

    def test_before_the_first_segment_begins_anew(self, log: Log) -> None:
        log.restart_at(50)
        fill(log, 3)
        log.truncate(20)
        assert (log.log_start_offset, log.log_end_offset, log.size) == (20, 20, 0)

    def test_at_the_end_forgets_an_epoch_without_a_record(self, log: Log) -> None:
        fill(log, 2)
        log.begin_epoch(5)
        log.truncate(2)
        assert log.epochs.latest == 0

    def test_forgets_where_readers_were(self, rolled: Log) -> None:
        rolled.read(0, 10**9)
        rolled.read(4, 10**9)
        rolled.truncate(6)
        replicate(rolled, sent((8, 1), (9, 1)))
        assert offsets(rolled.read(8, 10**9)) == [(8, 8), (9, 9)]

    def test_lowers_the_recovery_point(self, log: Log) -> None:
        fill(log, 6)
        log.flush()
        log.truncate(2)
        fill(log, 4)
        assert log.recovery_point == 2  # the new records are not fsynced

    def test_takes_the_high_watermark_along(self, rolled: Log) -> None:
        rolled.high_watermark = 9
        rolled.truncate(7)
        assert rolled.high_watermark == 7

    def test_says_so_before_a_checkpoint_is_wrong(self, disk: VirtualDisk, clock: Clock) -> None:
        withdrawn: list[tuple[int, int]] = []
        changes = LogChanges[Log](
            before_truncation=lambda log, offset: withdrawn.append((offset, log.segment_count))
        )
        log = Log(disk, DIRECTORY, SMALL, clock, changes=changes)
        fill(log, 10)
        log.flush()
        log.truncate(5)
        assert withdrawn == [(5, 3)]
        log.truncate(5)
        assert len(withdrawn) == 1

    @pytest.mark.parametrize("action", ["delete", "truncate"])
    def test_that_fails_ends_the_log(
        self, disk: VirtualDisk, clock: Clock, rolled: Log, action: str
    ) -> None:
        disk.fault = lambda what, path: EIO if what == action and path.endswith("4.log") else 0
        with pytest.raises(StorageError):
            rolled.truncate(3 if action == "delete" else 5)
        disk.fault = None
        assert rolled.has_failed
        for refuse in (lambda: append(rolled, batch()), lambda: rolled.truncate(3)):
            with pytest.raises(StorageError):
                refuse()
        rolled.close()
        again = Log(disk, DIRECTORY, SMALL, clock)
        again.truncate(3)
        assert [header.base_offset for header in again.headers(0)] == [0, 1, 2]

    def test_takes_epochs_and_sequences_along(self, disk: VirtualDisk, log: Log) -> None:
        for i in range(4):
            data = batch(producer_id=9, producer_epoch=0, base_sequence=i)
            append(log, data, leader_epoch=i)
        log.truncate(2)
        assert log.epochs.entries == [LeaderEpoch(0, 0), LeaderEpoch(1, 1)]
        append(log, batch(), 1)
        assert disk.read_file(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n2\n0 0\n1 1\n"
        (header,) = read_headers(batch(producer_id=9, producer_epoch=0, base_sequence=2))
        assert log.producers.check_batch(header) is ACCEPTED


class TestDeletedBelow:
    """The directory of a log in use is deleted from outside, and must not be recreated in part."""

    def test_a_roll_notices(self, disk: VirtualDisk, rolled: Log) -> None:
        disk.delete(DIRECTORY)
        with pytest.raises(StorageError, match="ENOENT"):
            rolled.roll()
        assert not disk.exists(DIRECTORY)

    def test_a_sync_notices(self, disk: VirtualDisk, rolled: Log) -> None:
        disk.delete(DIRECTORY)
        with pytest.raises(StorageError, match="ENOENT"):
            asyncio.run(rolled.flush_sealed())
        assert rolled.has_failed
        assert rolled.recovery_point == 0
