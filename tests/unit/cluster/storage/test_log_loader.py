"""Opening a log whose files contradict each other (`trimtab.cluster.storage.log_loader`)."""

import logging

import pytest

from tests.unit.cluster.storage.logs import (
    DIRECTORY,
    SMALL,
    Clock,
    append,
    batch,
    fill,
    offsets,
    sent,
)
from trimtab.cluster.storage import log_loader
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_changes import LogChanges
from trimtab.kafka.errors import CorruptData
from trimtab.sim.disk import VirtualDisk

END = 10


def path(base_offset: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base_offset:020d}{suffix}"


def change(disk: VirtualDisk, name: str, at: int, to: bytes) -> None:
    content = bytearray(disk.read_file(name) or b"")
    content[at : at + len(to)] = to
    disk.write_file(name, content)


def reopen(
    disk: VirtualDisk,
    clock: Clock,
    recovery_point: int = 0,
    clean: bool = False,
    high_watermark: int = 0,
) -> tuple[Log, bool]:
    """The opened log, and whether it has lost records."""
    damaged: list[bool] = []
    log = Log(
        disk,
        DIRECTORY,
        SMALL,
        clock,
        recovery_point=recovery_point,
        high_watermark=high_watermark,
        clean=clean,
        changes=LogChanges(on_loss=lambda: damaged.append(True)),
    )
    return log, bool(damaged)


@pytest.mark.parametrize("clean", [True, False])
def test_a_whole_log_is_not_damaged(
    disk: VirtualDisk, clock: Clock, rolled: Log, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rolled.close()
    again, is_damaged = reopen(disk, clock, END, clean)
    assert (again.log_end_offset, is_damaged) == (END, False)
    assert caplog.records == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_ends_before_its_recovery_point_is_damaged(
    disk: VirtualDisk, clock: Clock, rolled: Log, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rolled.close()
    disk.delete(path(8))
    again, is_damaged = reopen(disk, clock, END, clean)
    assert (again.log_end_offset, is_damaged) == (8, True)
    assert "ends at offset 8, but its recovery point was 10" in caplog.text


def test_what_is_left_of_a_log_that_ends_before_its_recovery_point_is_checked(
    disk: VirtualDisk, clock: Clock, rolled: Log
) -> None:
    """A crash has brought back segments that retention had deleted before they were flushed."""
    rolled.close()
    for base_offset in (0, 8):
        whole = disk.read_file(path(base_offset)) or b""
        disk.write_file(path(base_offset), whole[: len(whole) // 3])
    again, is_damaged = reopen(disk, clock, END)
    assert (again.log_end_offset, is_damaged) == (1, True)
    assert append(again, batch()).base_offset == 1


def test_a_log_that_ends_before_its_high_watermark_is_damaged(
    disk: VirtualDisk, clock: Clock, rolled: Log
) -> None:
    disk.delete(path(8))
    again, is_damaged = reopen(disk, clock, high_watermark=9)
    assert (again.log_end_offset, is_damaged) == (8, True)


@pytest.mark.parametrize("clean", [True, False])
def test_an_emptied_segment_in_the_middle_ends_the_log(
    disk: VirtualDisk, clock: Clock, rolled: Log, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rolled.close()
    disk.write_file(path(4), b"")
    again, is_damaged = reopen(disk, clock, END, clean)
    assert (again.log_end_offset, is_damaged) == (4, True)
    assert "deleted 1 segments of flights-3, from offset 8 on" in caplog.text
    assert append(again, batch()).base_offset == 4


def test_a_missing_segment_in_the_middle_is_reported_by_reads(
    disk: VirtualDisk, clock: Clock, rolled: Log
) -> None:
    rolled.close()
    disk.delete(path(4))
    again, _ = reopen(disk, clock, END, clean=True)
    assert offsets(again.read(0, 10_000))[-1] == (3, 3)
    with pytest.raises(CorruptData, match="no batch has offset 4, and the log ends at 10"):
        again.read(4, 10_000)
    assert offsets(again.read(8, 10_000))[0] == (8, 8)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("stale", [b"", bytes(batch())])
def test_a_truncated_segment_that_a_crash_has_brought_back_is_deleted(
    disk: VirtualDisk, clock: Clock, rolled: Log, stale: bytes, clean: bool
) -> None:
    """Only the first of the segments that a truncation deleted was appended to again."""
    rolled.truncate(8)
    rolled.close()
    disk.open(path(4)).append(b"".join(bytes(sent((n, 1))) for n in (8, 9, 10)))
    disk.write_file(path(8), stale)
    again, is_damaged = reopen(disk, clock, 8 + len(stale) // len(batch()), clean)
    assert (again.log_end_offset, is_damaged) == (11, False)
    assert offsets(again.read(4, 10_000)) == [(n, n) for n in range(4, 11)]


def test_an_interrupted_append_is_no_damage(
    disk: VirtualDisk, clock: Clock, rolled: Log, caplog: pytest.LogCaptureFixture
) -> None:
    disk.open(path(8)).append(bytes(batch())[:40])
    again, is_damaged = reopen(disk, clock, 8)
    assert (again.log_end_offset, is_damaged) == (END, False)
    assert "as a crash interrupted an append" in caplog.text


def test_a_changed_byte_truncates_the_log_with_a_warning(
    disk: VirtualDisk, clock: Clock, rolled: Log, caplog: pytest.LogCaptureFixture
) -> None:
    change(disk, path(4), 100, b"\xff")
    again, is_damaged = reopen(disk, clock, 4)
    assert (again.log_end_offset, is_damaged) == (4, True)
    assert "truncated flights-3 to offset 4, as it is damaged" in caplog.text
    assert "they changed on the way or on disk" in caplog.text


def test_an_impossible_base_offset_does_not_keep_a_log_from_opening(
    disk: VirtualDisk, clock: Clock, rolled: Log
) -> None:
    change(disk, path(8), 3, b"\1")
    for clean in (True, False):
        files = {
            name: disk.read_file(f"{DIRECTORY}/{name}") or b"" for name in disk.list(DIRECTORY)
        }
        again, is_damaged = reopen(disk, clock, 8, clean)
        assert (again.log_end_offset, is_damaged) == (8, True)
        for name, content in files.items():
            disk.write_file(f"{DIRECTORY}/{name}", content)


def test_damage_before_the_recovery_point_has_the_whole_log_checked(
    disk: VirtualDisk, clock: Clock, rolled: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshots are missing, so the headers of all batches are read for producers."""
    caplog.set_level(logging.WARNING, logger=log_loader.__name__)
    rolled.close()
    for name in disk.list(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.delete(f"{DIRECTORY}/{name}")
    change(disk, path(0), 16, b"\7")
    again, is_damaged = reopen(disk, clock, END)
    assert (again.log_end_offset, is_damaged) == (0, True)
    assert "checks the whole log flights-3" in caplog.text


def test_a_truncation_at_unreadable_batches_removes_the_segment(
    disk: VirtualDisk, clock: Clock, rolled: Log
) -> None:
    fill(rolled, 2)
    change(disk, path(8), 16, b"\7")
    rolled.truncate(9)
    assert rolled.log_end_offset == 8
    assert append(rolled, batch()).base_offset == 8
