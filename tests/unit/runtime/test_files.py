"""Files in a directory: appended, read, bounded in number, and honest about errors."""

import asyncio
import os
from errno import EISDIR, ENOENT, ENOSPC
from pathlib import Path

import pytest

from trimtab.errors import UsageError
from trimtab.runtime.files import DirectoryStorage
from trimtab.storage.storage import StorageError


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path / "data")


class TestFile:
    def test_nothing_is_created_until_the_first_append(self, storage: DirectoryStorage) -> None:
        file = storage.open("flights-0/0.log")
        assert file.size == 0
        assert file.read(0, 10) == b""
        file.truncate(0)
        file.flush()
        assert not storage.exists("flights-0")

    def test_appends_and_reads_back(self, storage: DirectoryStorage) -> None:
        file = storage.open("flights-0/0.log")
        file.append(memoryview(b"abc"))
        file.append(bytearray(b"defg"))
        assert file.size == 7
        assert file.read(2, 3) == b"cde"
        assert file.read(5, 100) == b"fg"
        assert storage.open("flights-0/0.log").size == 7

    def test_empty_data_creates_the_file(self, storage: DirectoryStorage) -> None:
        storage.open("flights-0/0.log").append(b"")
        assert storage.list("flights-0") == ["0.log"]

    def test_truncates_and_goes_on_at_the_new_end(self, storage: DirectoryStorage) -> None:
        file = storage.open("0.log")
        file.append(b"abcdef")
        file.truncate(2)
        file.append(b"X")
        assert file.read(0, 10) == b"abX"
        assert file.size == 3

    def test_can_be_used_again_after_close(self, storage: DirectoryStorage) -> None:
        file = storage.open("0.log")
        file.append(b"abc")
        file.flush()
        file.close()
        file.close()
        file.append(b"d")
        assert file.read(0, 10) == b"abcd"

    def test_at_most_so_many_files_are_open(self, tmp_path: Path) -> None:
        storage = DirectoryStorage(tmp_path, max_open_files=3)
        files = [storage.open(f"{i}.log") for i in range(10)]
        for turn in range(3):
            for i, file in enumerate(files):
                file.append(bytes([i, turn]))
                assert storage.open_files <= 3
        assert [file.read(4, 2) for file in files] == [bytes([i, 2]) for i in range(10)]
        storage.close()
        assert storage.open_files == 0

    def test_the_file_used_last_stays_open(self, tmp_path: Path) -> None:
        storage = DirectoryStorage(tmp_path, max_open_files=2)
        first, second, third = (storage.open(name) for name in "abc")
        first.append(b"1")
        second.append(b"2")
        first.read(0, 1)
        third.append(b"3")
        assert list(storage._open_files) == [first, third]


class TestTree:
    def test_write_file_replaces_at_once(self, storage: DirectoryStorage) -> None:
        assert storage.read_file("t-0/meta") is None
        storage.write_file("t-0/meta", b"old")
        storage.write_file("t-0/meta", b"new", durable=False)
        assert storage.read_file("t-0/meta") == b"new"
        assert storage.list("t-0") == ["meta"]

    def test_deletes_files_and_trees(self, storage: DirectoryStorage) -> None:
        storage.write_file("t-0/a/b", b"1")
        storage.write_file("t-0/c", b"2")
        storage.delete("t-0/c")
        assert storage.list("t-0") == ["a"]
        storage.delete("t-0")
        storage.delete("t-0")
        assert not storage.exists("t-0")
        assert storage.list("t-0") == []

    def test_renames(self, storage: DirectoryStorage) -> None:
        storage.write_file("t-0/a", b"1")
        storage.rename("t-0", "t-0.x-delete")
        assert storage.list("") == ["t-0.x-delete"]

    def test_flushes_beside_the_loop_and_forgives_what_is_gone(
        self, storage: DirectoryStorage
    ) -> None:
        storage.open("t-0/0.log").append(b"abc")
        asyncio.run(storage.flush(["t-0/0.log", "t-0/deleted.log", "gone-0/0.log"]))
        assert storage.read_file("t-0/0.log") == b"abc"

    def test_one_broker_at_a_time(self, storage: DirectoryStorage) -> None:
        storage.lock()
        other = DirectoryStorage(storage.root)
        with pytest.raises(UsageError, match="in use by another broker"):
            other.lock()
        storage.close()
        other.lock()
        other.close()


class TestDurability:
    def test_a_new_file_is_flushed_with_the_directories_that_lead_to_it(
        self, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flushed = []
        real = os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(os.fstat(fd)), real(fd)))
        file = storage.open("t-0/0.log")
        file.append(b"abc")
        file.flush()
        file.flush()
        log, directory, root = (
            os.stat(f"{storage.root}/{path}").st_ino for path in ("t-0/0.log", "t-0", "")
        )
        assert [status.st_ino for status in flushed] == [log, directory, root, log]

    def test_without_durability_nothing_is_flushed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = DirectoryStorage(tmp_path, durable=False)
        monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("fsync"))
        file = storage.open("t-0/0.log")
        file.append(b"abc")
        file.flush()
        storage.write_file("meta", b"x")
        asyncio.run(storage.flush(["t-0/0.log"]))


class TestErrors:
    def test_a_full_disk_is_named_with_path_and_remedy(
        self, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = storage.open("t-0/0.log")
        file.append(b"abc")

        def fail(descriptor: int, data: bytes) -> int:
            raise OSError(ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", fail)
        with pytest.raises(StorageError, match=r"t-0/0\.log: cannot append.*ENOSPC.*free") as info:
            file.append(b"def")
        assert info.value.errno == ENOSPC
        assert file.size == 3

    def test_a_short_write_is_completed(
        self, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:2]))
        file = storage.open("0.log")
        file.append(b"abcdefg")
        assert file.read(0, 10) == b"abcdefg"

    def test_the_operating_system_is_quoted(self, storage: DirectoryStorage) -> None:
        storage.write_file("t-0/a", b"1")
        with pytest.raises(StorageError) as read:
            storage.read_file("t-0")
        assert read.value.errno == EISDIR
        with pytest.raises(StorageError) as renamed:
            storage.rename("none", "other")
        assert renamed.value.errno == ENOENT

    def test_room_for_one_file_at_least(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="max_open_files must be at least 1, is 0"):
            DirectoryStorage(tmp_path, max_open_files=0)


def test_the_volume_has_room_for_what_is_not_used(storage: DirectoryStorage) -> None:
    space = storage.space()
    assert 0 <= space.usable_bytes <= space.total_bytes
    assert space.total_bytes > 0


def test_a_volume_that_is_gone_has_no_size(storage: DirectoryStorage) -> None:
    os.rmdir(storage.root)
    with pytest.raises(StorageError, match="size of the volume"):
        storage.space()
