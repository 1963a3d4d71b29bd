"""A log after it was closed, after a crash, and after the disk has failed."""

from contextlib import suppress
from dataclasses import replace
from errno import EIO, ENOSPC

import pytest

from tests.unit.cluster.storage.logs import (
    DIRECTORY,
    ONE,
    SMALL,
    Clock,
    append,
    batch,
    fill,
    header_of,
    note_paths,
    offsets,
    producer_batch,
    replicate,
    sent,
)
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.producer_state import ACCEPTED
from trimtab.cluster.storage.storage import StorageError
from trimtab.sim.disk import VirtualDisk


class TestClose:
    def test_everything_is_on_disk(self, disk: VirtualDisk, clock: Clock, rolled: Log) -> None:
        rolled.close()
        assert rolled.recovery_point == 10
        disk.crash()
        again = Log(disk, DIRECTORY, SMALL, clock, clean=True)
        assert (again.log_start_offset, again.log_end_offset) == (0, 10)
        assert [h.base_offset for h in again.headers(0)] == list(range(10))

    def test_opening_a_clean_log_reads_only_its_end(
        self, disk: VirtualDisk, clock: Clock, log: Log
    ) -> None:
        fill(log, 1000)
        log.close()
        read = note_paths(disk, "read")
        Log(disk, DIRECTORY, LogConfig(), clock, clean=True)
        assert sum(path.endswith(".log") for path in read) == 1

    def test_a_clean_log_that_was_truncated_is_recovered(
        self, disk: VirtualDisk, clock: Clock, log: Log
    ) -> None:
        fill(log, 20)
        log.close()
        disk.open(f"{DIRECTORY}/{0:020d}.log").truncate(10 * ONE + 5)
        again = Log(disk, DIRECTORY, LogConfig(), clock, clean=True)
        assert again.log_end_offset == 10
        assert append(again, batch()).base_offset == 10


class TestRecovery:
    def test_a_torn_tail_is_truncated(self, disk: VirtualDisk, clock: Clock, rolled: Log) -> None:
        disk.open(f"{DIRECTORY}/{8:020d}.log").append(bytes(batch())[:70])
        again = Log(disk, DIRECTORY, SMALL, clock)
        assert again.log_end_offset == 10
        assert again.size == rolled.size
        assert append(again, batch()).base_offset == 10

    def test_segments_after_a_damaged_one_are_deleted(
        self, disk: VirtualDisk, clock: Clock, rolled: Log
    ) -> None:
        path = f"{DIRECTORY}/{4:020d}.log"
        content = bytearray(disk.read_file(path) or b"")
        content[ONE + 65] ^= 1
        disk.write_file(path, content)
        again = Log(disk, DIRECTORY, SMALL, clock)
        assert again.log_end_offset == 5
        assert f"{8:020d}.log" not in disk.list(DIRECTORY)
        assert append(again, batch()).base_offset == 5

    def test_segments_after_a_gap_are_deleted(
        self, disk: VirtualDisk, clock: Clock, rolled: Log
    ) -> None:
        disk.open(f"{DIRECTORY}/{4:020d}.log").truncate(2 * ONE)
        assert Log(disk, DIRECTORY, SMALL, clock).log_end_offset == 6

    def test_segments_before_the_recovery_point_are_not_checked(
        self, disk: VirtualDisk, clock: Clock, rolled: Log
    ) -> None:
        path = f"{DIRECTORY}/{0:020d}.log"
        content = bytearray(disk.read_file(path) or b"")
        content[65] ^= 1
        disk.write_file(path, content)
        assert Log(disk, DIRECTORY, SMALL, clock, recovery_point=4).log_end_offset == 10
        assert Log(disk, DIRECTORY, SMALL, clock, recovery_point=3).log_end_offset == 0

    def test_indexes_are_rebuilt(self, disk: VirtualDisk, clock: Clock, log: Log) -> None:
        fill(log, 500)
        log.close()
        names = [name for name in disk.list(DIRECTORY) if name.endswith("index")]
        before = [disk.read_file(f"{DIRECTORY}/{name}") for name in names]
        assert all(before)
        for name in names:
            disk.delete(f"{DIRECTORY}/{name}")
        again = Log(disk, DIRECTORY, LogConfig(), clock)
        assert offsets(again.read(333, ONE)) == [(333, 333)]
        again.close()
        assert [disk.read_file(f"{DIRECTORY}/{name}") for name in names] == before

    def test_a_log_start_beyond_the_end_deletes_nothing(
        self, disk: VirtualDisk, clock: Clock, rolled: Log
    ) -> None:
        again = Log(disk, DIRECTORY, SMALL, clock, log_start_offset=15)
        assert (again.log_start_offset, again.log_end_offset) == (0, 10)

    def test_the_log_start_is_kept(self, disk: VirtualDisk, clock: Clock, rolled: Log) -> None:
        again = Log(disk, DIRECTORY, SMALL, clock, log_start_offset=5)
        assert (again.log_start_offset, again.log_end_offset) == (5, 10)

    def test_leftovers_of_an_interrupted_write_are_deleted(
        self, disk: VirtualDisk, clock: Clock, rolled: Log
    ) -> None:
        disk.write_file(f"{DIRECTORY}/{0:020d}.index.tmp", b"x")
        Log(disk, DIRECTORY, SMALL, clock)
        assert not disk.exists(f"{DIRECTORY}/{0:020d}.index.tmp")


def test_a_log_can_be_read_after_a_failed_truncation(disk: VirtualDisk, clock: Clock) -> None:
    """The indexes are gone by then."""
    log = Log(disk, DIRECTORY, replace(SMALL, index_interval_bytes=1), clock)
    fill(log, 10)
    log.roll()
    assert [header.base_offset for header in log.headers(9)] == [9]
    disk.fault = lambda action, path: EIO if action == "truncate" else 0
    with pytest.raises(StorageError):
        log.truncate(9)
    disk.fault = None
    assert [header.base_offset for header in log.headers(9)] == [9]


class TestFlush:
    def test_by_messages(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, LogConfig(flush_messages=3), clock)
        fill(log, 2)
        assert log.recovery_point == 0
        fill(log, 1)
        assert log.recovery_point == 3
        fill(log, 2)
        disk.crash()
        assert Log(disk, DIRECTORY, LogConfig(), clock).log_end_offset == 3

    def test_by_time(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, LogConfig(flush_ms=1000), clock)
        fill(log, 1)
        clock.ms += 999
        log.flush_if_due()
        assert log.recovery_point == 0
        clock.ms += 1
        log.flush_if_due()
        assert log.recovery_point == 1

    def test_all_segments_since_the_recovery_point(
        self, disk: VirtualDisk, clock: Clock, rolled: Log
    ) -> None:
        rolled.flush()
        disk.crash()
        assert Log(disk, DIRECTORY, SMALL, clock).log_end_offset == 10


class TestDiskErrors:
    def test_a_full_disk_stores_nothing_and_the_log_continues(
        self, disk: VirtualDisk, clock: Clock, log: Log
    ) -> None:
        fill(log, 3)
        disk.capacity = disk.used + ONE // 2
        with pytest.raises(StorageError) as info:
            append(log, producer_batch(0))
        assert info.value.errno == ENOSPC
        assert log.log_end_offset == 3
        assert offsets(log.read(0, 10**6)) == [(0, 0), (1, 1), (2, 2)]
        assert log.producers.check_batch(header_of(producer_batch(7))) is ACCEPTED
        disk.capacity = None
        assert append(log, batch()).base_offset == 3
        assert [h.base_offset for h in Log(disk, DIRECTORY, LogConfig(), clock).headers(0)] == [
            0,
            1,
            2,
            3,
        ]

    @pytest.mark.parametrize("lasts", [False, True])
    @pytest.mark.parametrize("step", range(90))
    def test_at_any_step_lose_nothing_that_was_acknowledged(
        self, disk: VirtualDisk, clock: Clock, step: int, lasts: bool
    ) -> None:
        config = replace(SMALL, flush_messages=5, retention_bytes=6 * ONE, retention_ms=-1)
        log = Log(disk, DIRECTORY, config, clock)
        count = 0

        def fail(action: str, path: str) -> int:
            nonlocal count
            count += 1
            return EIO if count == step or (lasts and count > step) else 0

        disk.fault = fail
        places: list[tuple[int, int]] = []  # offset and leader epoch of every record in the log
        for number in range(24):
            epoch = number // 5
            with suppress(StorageError):
                if number % 2:
                    append(log, producer_batch(number), epoch)
                else:
                    replicate(log, sent((log.log_end_offset, epoch)))
            if log.log_end_offset > len(places):
                places.append((len(places), epoch))
            if number % 8 == 7:
                with suppress(StorageError):
                    log.enforce_retention()
        disk.fault = None
        for each in (log, Log(disk, DIRECTORY, config, clock)):
            stored = [(header.base_offset, header.leader_epoch) for header in each.headers(0)]
            assert stored == [place for place in places if place[0] >= each.first_base_offset]

    def test_a_segment_that_cannot_be_deleted_is_deleted_before_any_other(
        self, disk: VirtualDisk, clock: Clock, rolled: Log
    ) -> None:
        clock.ms = 10**12
        disk.fault = lambda action, path: (
            EIO if action == "delete" and path.endswith("0.log") else 0
        )
        with pytest.raises(StorageError):
            rolled.enforce_retention(end_offset=4)
        assert rolled.log_start_offset == 4
        with pytest.raises(StorageError):
            rolled.enforce_retention(end_offset=8)
        assert sorted(name for name in disk.list(DIRECTORY) if name.endswith(".log")) == [
            f"{base:020d}.log" for base in (0, 4, 8)
        ]
        disk.fault = None
        rolled.enforce_retention(end_offset=8)
        assert [name for name in disk.list(DIRECTORY) if name.endswith(".log")] == [f"{8:020d}.log"]

    def test_a_disk_that_cannot_even_truncate_ends_the_log(
        self, disk: VirtualDisk, clock: Clock, log: Log
    ) -> None:
        fill(log, 3)
        disk.fault = lambda action, path: EIO if action in ("append", "truncate") else 0
        with pytest.raises(StorageError):
            append(log, batch())
        disk.fault = None
        with pytest.raises(StorageError, match="EIO"):
            append(log, batch())
        assert log.has_failed
        assert len(offsets(log.read(0, 10**6))) == 3
        log.close()
        again = Log(disk, DIRECTORY, LogConfig(), clock)
        assert append(again, batch()).base_offset == 3

    def test_a_failed_flush_is_not_tried_again(self, disk: VirtualDisk, log: Log) -> None:
        fill(log, 1)
        disk.fault = lambda action, path: EIO if action == "flush" else 0
        with pytest.raises(StorageError):
            log.flush()
        disk.fault = None
        with pytest.raises(StorageError):
            append(log, batch())
        assert log.recovery_point == 0

    @pytest.mark.parametrize("kind", [".index", ".timeindex", ".snapshot", "8.log"])
    def test_a_roll_that_fails_half_way_can_be_repeated(
        self, disk: VirtualDisk, clock: Clock, kind: str
    ) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        fill(log, 8)
        disk.fault = lambda action, path: (
            ENOSPC if action in ("write", "append") and path.endswith(kind) else 0
        )
        with pytest.raises(StorageError):
            append(log, batch())
        assert log.log_end_offset == 8
        disk.fault = None
        assert append(log, batch()).base_offset == 8
        log.close()
        again = Log(disk, DIRECTORY, SMALL, clock)
        assert [h.base_offset for h in again.headers(0)] == list(range(9))
