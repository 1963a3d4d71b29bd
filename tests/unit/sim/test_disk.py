"""The virtual disk keeps the guarantees of a real one, and fails on request."""

import asyncio
from collections.abc import Callable
from errno import EIO, ENOSPC
from random import Random

import pytest

from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import UsageError
from trimtab.sim.disk import VirtualDisk


def test_it_is_a_tree_of_files() -> None:
    disk = VirtualDisk()
    file = disk.open("t-0/0.log")
    assert (file.size, file.read(0, 5), disk.exists("t-0")) == (0, b"", False)
    file.append(b"abc")
    file.append(memoryview(b"def"))
    disk.write_file("t-0/meta", b"x")
    assert disk.list("t-0") == ["0.log", "meta"]
    assert file.read(2, 3) == b"cde"
    file.truncate(4)
    assert (file.size, disk.used) == (4, 5)
    disk.rename("t-0", "t-1")
    assert disk.list("") == ["t-1"]
    assert disk.read_file("t-1/0.log") == b"abcd"
    disk.delete("t-1")
    assert (disk.list(""), disk.used) == ([], 0)


def test_rename_replaces_a_file() -> None:
    disk = VirtualDisk()
    disk.write_file("a", b"1")
    disk.write_file("b", b"22")
    disk.rename("a", "b")
    assert (disk.list(""), disk.read_file("b"), disk.used) == (["b"], b"1", 1)


def test_a_crash_loses_what_was_not_flushed() -> None:
    disk = VirtualDisk()
    first, second = disk.open("first"), disk.open("second")
    first.append(b"abc")
    first.flush()
    first.append(b"def")
    second.append(b"ghi")
    asyncio.run(disk.flush(["second", "gone"]))
    second.append(b"jkl")
    disk.write_file("durable", b"1")
    disk.write_file("fleeting", b"2", durable=False)
    disk.crash()
    assert [disk.read_file(name) for name in ("first", "second", "durable", "fleeting")] == [
        b"abc",
        b"ghi",
        b"1",
        b"",
    ]
    assert disk.used == 7


def test_a_crash_may_leave_a_torn_tail() -> None:
    left = set()
    for seed in range(300):
        disk = VirtualDisk()
        file = disk.open("log")
        file.append(b"abc")
        file.flush()
        file.append(b"def")
        disk.crash(Random(seed))
        content = disk.read_file("log")
        assert content is not None
        assert content.startswith(b"abc")
        assert content.rstrip(b"\0") == b"abcdef"[: len(content.rstrip(b"\0"))]
        left.add(content)
    assert {b"abc", b"abcdef", b"abcd\0\0"} <= left


def test_files_opened_before_the_crash_are_dead() -> None:
    disk = VirtualDisk()
    file = disk.open("log")
    file.append(b"abc")
    disk.lock()
    disk.crash()
    with pytest.raises(StorageError, match="append after the crash"):
        file.append(b"def")
    disk.lock()
    with pytest.raises(UsageError, match="in use"):
        disk.lock()
    assert disk.open("log").size == 0


def test_a_full_disk_takes_what_fits() -> None:
    disk = VirtualDisk(capacity=5)
    file = disk.open("log")
    file.append(b"abc")
    with pytest.raises(StorageError) as info:
        file.append(b"defg")
    assert info.value.errno == ENOSPC
    assert disk.read_file("log") == b"abcde"
    with pytest.raises(StorageError):
        disk.write_file("meta", b"x")
    file.truncate(3)
    disk.write_file("meta", b"x")
    assert disk.used == 4


def test_a_fault_fails_the_actions_it_names() -> None:
    disk = VirtualDisk()
    file = disk.open("log")
    disk.fault = lambda action, path: EIO if (action, path) == ("append", "log") else 0
    with pytest.raises(StorageError, match="EIO"):
        file.append(b"abcd")
    assert file.read(0, 10) == b"ab"
    disk.open("other").append(b"x")
    disk.fault = None
    file.append(b"!")
    assert file.read(0, 10) == b"ab!"


def test_what_fits_is_what_is_left_of_its_capacity() -> None:
    disk = VirtualDisk()
    assert disk.mount().space() == (-1, -1)
    disk.capacity = 100
    disk.write_file("a", b"x" * 60)
    assert disk.mount().space() == (100, 40)
    disk.capacity = 50
    assert disk.space() == (50, 0)


def test_a_file_that_was_deleted_is_not_made_again() -> None:
    disk = VirtualDisk()
    file = disk.open("t-0/0.log")
    file.confirm()
    file.append(b"abc")
    file.confirm()
    disk.delete("t-0")
    disk.write_file("t-0/0.log", b"another")
    for use in (file.confirm, lambda: file.append(b"d")):
        with pytest.raises(StorageError, match="ENOENT"):
            use()


def crashes(prepare: Callable[[VirtualDisk], None]) -> set[tuple[str, ...]]:
    """What may be left after a power loss: names and contents."""
    found = set()
    for seed in range(200):
        disk = VirtualDisk(is_lazy=True)
        prepare(disk)
        disk.crash(Random(seed))
        found.add(
            tuple(f"{name}={disk.read_file(f't/{name}')!r}" for name in sorted(disk.list("t")))
        )
    return found


def test_a_name_is_not_durable_before_its_directory() -> None:
    def prepare(disk: VirtualDisk) -> None:
        file = disk.open("t/a")
        file.append(b"1")
        file.flush()  # and the directories that lead to it
        disk.write_file("t/b", b"2")
        disk.write_file("t/c", b"3", durable=False)
        disk.delete("t/a")
        disk.rename("t/b", "t/d")

    left = crashes(prepare)
    assert ("a=b'1'", "b=b'2'") in left
    assert ("a=b'1'", "b=b'2'", "c=b'3'") in left
    assert ("b=b'2'", "c=b''") in left
    assert ("c=b'3'", "d=b'2'") in left
    assert not any("a=b'1'" in each and "d=b'2'" in each for each in left)  # a journal keeps order


def test_who_flushes_a_file_flushes_its_directories_once() -> None:
    def prepare(disk: VirtualDisk) -> None:
        disk.open("t/a").append(b"1")
        file = disk.open("t/a")  # as after a restart: it did not make the file
        file.flush()
        disk.write_file("t/b", b"", durable=False)
        file.flush()

    assert crashes(prepare) == {("a=b'1'",), ("a=b'1'", "b=b''")}


def test_a_deletion_may_be_undone_in_part() -> None:
    def prepare(disk: VirtualDisk) -> None:
        disk.write_file("t/a", b"1")
        disk.write_file("t/b", b"2")
        disk.delete("t")

    assert {("a=b'1'", "b=b'2'"), ("b=b'2'",), ()} == crashes(prepare)


def test_what_was_cut_off_may_be_there_again_until_it_is_flushed() -> None:
    def prepare(disk: VirtualDisk, flushes: bool) -> None:
        file = disk.open("t/a")
        file.append(b"abc")
        file.flush()
        file.truncate(1)
        if flushes:
            file.flush()

    assert crashes(lambda disk: prepare(disk, False)) == {("a=b'abc'",), ("a=b'a'",)}
    assert crashes(lambda disk: prepare(disk, True)) == {("a=b'a'",)}


@pytest.mark.parametrize("lasts", [True, False])
def test_a_bit_that_flips_in_memory_alone_is_right_again_after_a_crash(lasts: bool) -> None:
    disk = VirtualDisk()
    disk.write_file("a", b"abc")
    disk.flip("a", 1, 0, lasts)
    assert disk.read_file("a") == b"acc"
    assert [*disk.rotten] == ["a"]
    disk.crash(Random(1))
    assert disk.read_file("a") == (b"acc" if lasts else b"abc")


@pytest.mark.parametrize("lasts", [True, False])
def test_flipped_bits_can_be_restored(lasts: bool) -> None:
    disk = VirtualDisk()
    disk.write_file("a", b"abc")
    disk.write_file("b", b"xyz")
    for position, bit in ((0, 3), (1, 0), (1, 5), (2, 1)):
        disk.flip("a", position, bit, lasts)
    disk.flip("b", 0, 0, lasts)
    disk.delete("b")
    file = disk.open("a")
    file.truncate(2)
    disk.restore()
    assert disk.read_file("a") == b"ab"
    assert not disk.rotten


def test_a_flip_that_lasts_is_restored_even_after_a_crash() -> None:
    disk = VirtualDisk()
    disk.write_file("a", b"abc")
    disk.flip("a", 1, 0, True)
    disk.crash(Random(1))
    assert disk.read_file("a") == b"acc"
    disk.restore()
    assert disk.read_file("a") == b"abc"


def test_another_disk_is_empty_and_works() -> None:
    disk = VirtualDisk(capacity=10)
    disk.write_file("a", b"abc")
    disk.flip("a", 1, 0, lasts=True)
    disk.fault = lambda action, path: EIO
    mount, boot_id = disk.mount(), disk.boot_id()
    disk.replace()
    assert not mount.is_alive
    assert disk.boot_id() != boot_id
    assert (disk.list(""), [*disk.rotten], disk.space()) == ([], [], (10, 10))
