"""Files in a directory that lose power and run full on request."""

from __future__ import annotations

import asyncio
from errno import ENOSPC
from functools import partial
from pathlib import Path
from random import Random

import pytest

from trimtab.cluster.disk.faulty_files import FaultyDisk
from trimtab.cluster.storage.storage import StorageError

SEEDS = range(40)


def content(root: Path, path: str) -> bytes:
    return (root / path).read_bytes()


def kept(root: Path, flushed: bytes, more: bytes) -> list[bytes]:
    """What a file has after losses of power with many seeds."""
    left = []
    for seed in SEEDS:
        disk = FaultyDisk(root / str(seed), durable=False)
        files = disk.mount()
        file = files.open("t-0/log")
        file.append(flushed)
        file.flush()
        file.append(more)
        disk.lose_power(Random(seed))
        left.append(content(root / str(seed), "t-0/log"))
    return left


def test_flushed_bytes_survive_and_others_are_lost_wholly_or_in_part(tmp_path: Path) -> None:
    left = kept(tmp_path, b"flushed", b"unflushed")
    assert all(each.startswith(b"flushed") for each in left)
    rests = {each.removeprefix(b"flushed") for each in left}
    assert b"" in rests
    assert {len(each) for each in rests} == set(range(10))
    assert any(each.endswith(b"\0") for each in rests)  # torn
    assert any(each and b"unflushed".startswith(each) for each in rests)


@pytest.mark.parametrize("durable", [True, False])
def test_every_kind_of_flush_counts(tmp_path: Path, durable: bool) -> None:
    disk = FaultyDisk(tmp_path, durable=durable)
    files = disk.mount()
    for path in ("a/file", "a/storage", "late"):
        files.open(path).append(b"12345")
    files.open("a/file").flush()
    asyncio.run(files.flush(["a/storage", "missing"]))
    files.write_file("b/small", b"12345")
    files.open("late").flush()
    files.open("late").append(b"6")
    for seed in SEEDS:
        disk.lose_power(Random(seed))
        assert content(tmp_path, "late").startswith(b"12345")
        for path in ("a/file", "a/storage", "b/small"):
            assert content(tmp_path, path) == b"12345"


def test_bytes_that_were_there_before_count_as_flushed(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before")
    disk = FaultyDisk(tmp_path, durable=False)
    files = disk.mount()
    files.open("log").append(b"after")
    disk.lose_power(Random(1))
    assert content(tmp_path, "log").startswith(b"before")


def test_what_was_lost_once_is_not_lost_again(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, durable=False)
    files = disk.mount()
    files.open("log").append(bytes(range(1, 100)))
    disk.lose_power(Random(1))
    left = content(tmp_path, "log")
    assert left
    for seed in SEEDS:
        disk.lose_power(Random(seed))
        assert content(tmp_path, "log") == left


def test_a_small_file_that_is_not_durable_may_be_lost(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, durable=False)
    files = disk.mount()
    files.write_file("small", b"12345", durable=False)
    disk.lose_power(Random(1))
    assert content(tmp_path, "small") != b"12345"


def test_unflushed_bytes_move_with_their_file_and_directory(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, durable=False)
    files = disk.mount()
    for path in ("t-0/log", "t-0/other", "root", "replaced"):
        files.open(path).append(bytes(range(1, 200)))
    files.open("new").append(b"flushed")
    files.open("new").flush()
    files.rename("t-0/other", "t-0/moved")
    files.rename("t-0", "t-0-delete")
    files.rename("root", "leaf")
    files.rename("new", "replaced")
    disk.lose_power(Random(1))
    for path in ("t-0-delete/log", "t-0-delete/moved", "leaf"):
        assert content(tmp_path, path) != bytes(range(1, 200))
    assert content(tmp_path, "replaced") == b"flushed"


def test_what_was_deleted_is_forgotten(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, durable=False)
    files = disk.mount()
    for path in ("t-0/log", "file"):
        files.open(path).append(b"12345")
    files.delete("t-0")
    files.delete("file")
    for path in ("t-0/log", "file"):
        files.open(path).append(b"12345")
        files.open(path).flush()
    disk.lose_power(Random(1))
    for path in ("t-0/log", "file"):
        assert content(tmp_path, path) == b"12345"


def test_a_truncation_below_the_flushed_bytes_lets_the_next_ones_be_lost(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, durable=False)
    files = disk.mount()
    file = files.open("log")
    file.append(b"flushed")
    file.flush()
    file.truncate(2)
    file.append(bytes(range(1, 200)))
    disk.lose_power(Random(1))
    left = content(tmp_path, "log")
    assert left.startswith(b"fl")
    assert len(left) < 201


def test_a_loss_of_power_counts_as_a_boot(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    boots = {disk.mount().boot_id()}
    for _ in range(3):
        disk.lose_power(Random(1))
        boots.add(disk.mount().boot_id())
    assert len(boots) == 4
    assert FaultyDisk(tmp_path).mount().boot_id() in boots


def test_nothing_is_written_to_a_full_disk(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    files = disk.mount()
    file = files.open("log")
    file.append(b"before")
    disk.is_full = True
    writes = partial(file.append, b"a"), partial(files.write_file, "small", b"a")
    for write in writes:
        with pytest.raises(StorageError) as refused:
            write()
        assert refused.value.errno == ENOSPC
        assert refused.value.is_disk_full
    assert files.space().usable_bytes == 0
    assert file.read(0, 10) == b"before"
    files.delete("log")
    disk.is_full = False
    files.open("log").append(b"after")
    assert content(tmp_path, "log") == b"after"
    assert files.space().usable_bytes > 0
