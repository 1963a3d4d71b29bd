"""Files in a directory: appended, read, bounded in number, and honest about errors."""

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EISDIR, EMFILE, ENOENT, ENOSPC
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from trimtab.cluster.disk.files import DirectoryStorage
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import UsageError


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

    def test_the_first_append_to_a_new_file_opens_it_once(
        self, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A broker does this for every partition that it opens."""
        storage.write_file("flights-0/partition.metadata", b"")
        calls: list[str] = []

        def count(name: str) -> None:
            function = getattr(os, name)

            def counted(*given: Any) -> Any:
                calls.append(name)
                return function(*given)

            monkeypatch.setattr(os, name, counted)

        for name in ("open", "stat", "write", "fstat"):
            count(name)
        storage.open("flights-0/0.log").append(b"abc")
        assert calls == ["open", "write", "fstat"]

    def test_an_append_to_an_older_file_counts_its_bytes(self, storage: DirectoryStorage) -> None:
        storage.open("0.log").append(b"abc")
        file = storage.open("0.log")
        file.append(b"de")
        assert file.size == 5
        file.append(b"f")
        assert (file.size, file.read(0, 10)) == (6, b"abcdef")

    def test_truncates_and_appends_at_the_new_end(self, storage: DirectoryStorage) -> None:
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

    def test_the_open_files_are_limited(self, tmp_path: Path) -> None:
        storage = DirectoryStorage(tmp_path, max_open_files=3)
        files = [storage.open(f"{i}.log") for i in range(10)]
        for turn in range(3):
            for i, file in enumerate(files):
                file.append(bytes([i, turn]))
                assert storage.open_files <= 3
        assert [file.read(4, 2) for file in files] == [bytes([i, 2]) for i in range(10)]
        storage.close()
        assert storage.open_files == 0

    @pytest.mark.parametrize("count", [1, 33, 1_000])
    @pytest.mark.parametrize("most", [32, 1_000])
    def test_files_within_the_limit_are_opened_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, most: int
    ) -> None:
        real, opened = os.open, Counter[str]()

        def count_opened(path: str, flags: int, mode: int = 0o777) -> int:
            opened[path] += 1
            return real(path, flags, mode)

        monkeypatch.setattr(os, "open", count_opened)
        storage = DirectoryStorage(tmp_path, max_open_files=most)
        files = [storage.open(str(number)) for number in range(count)]
        for turn in range(3):
            for file in files:
                file.append(bytes([turn]))
        storage.close()
        assert set(opened.values()) == {1 if count <= most else 3}
        sizes = {os.path.getsize(tmp_path / str(number)) for number in range(count)}
        assert (len(opened), sizes) == (count, {3})

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

    def test_flushes_in_another_thread_and_ignores_deleted_files(
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
        flushed: list[os.stat_result] = []
        flush = os.fsync

        def note_and_flush(descriptor: int) -> None:
            flushed.append(os.fstat(descriptor))
            flush(descriptor)

        monkeypatch.setattr(os, "fsync", note_and_flush)
        file = storage.open("t-0/0.log")
        file.append(b"abc")
        file.flush()
        file.flush()
        log, directory, root = (
            os.stat(f"{storage.root}/{path}").st_ino for path in ("t-0/0.log", "t-0", "")
        )
        assert [status.st_ino for status in flushed] == [log, directory, root, log]

    def test_a_file_that_a_killed_process_has_made_is_flushed_with_its_directories(
        self, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.open("t-0/0.log").append(b"abc")
        flushed = []
        monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.fstat(fd).st_ino))
        DirectoryStorage(storage.root).open("t-0/0.log").flush()
        paths = [f"{storage.root}/{path}" for path in ("t-0/0.log", "t-0", "")]
        assert flushed == [os.stat(path).st_ino for path in paths]

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


def test_the_volume_has_usable_space(storage: DirectoryStorage) -> None:
    space = storage.space()
    assert 0 <= space.usable_bytes <= space.total_bytes
    assert space.total_bytes > 0


def test_a_volume_that_is_gone_has_no_size(storage: DirectoryStorage) -> None:
    os.rmdir(storage.root)
    with pytest.raises(StorageError, match="size of the volume"):
        storage.space()


@contextmanager
def few_descriptors(left: int) -> Iterator[list[int]]:
    """So many more may be open; yields those that are held."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/dev/fd"))
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 30, hard))
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        for _ in range(left):
            os.close(held.pop())
        yield held
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TestFewDescriptors:
    """What the process may have open is less than `max_open_files`, or others have it."""

    def test_files_are_opened_by_turns(self, storage: DirectoryStorage) -> None:
        files = [storage.open(f"t-0/{number}") for number in range(20)]
        with few_descriptors(5):
            for turn in range(3):
                for number, file in enumerate(files):
                    file.append(bytes([number, turn]))
                    assert storage.open_files <= 5
            contents = [file.read(0, 10) for file in files]
        assert contents == [bytes([n, 0, n, 1, n, 2]) for n in range(20)]

    @pytest.mark.parametrize(
        "act",
        [
            lambda storage: storage.write_file("new/small", b"x"),
            lambda storage: storage.read_file("0"),
            lambda storage: storage.list(""),
            lambda storage: storage.delete("directory"),
            lambda storage: storage.lock(),
            lambda storage: storage.open("new/file").append(b"x"),
            lambda storage: storage.open("0").truncate(0),
        ],
    )
    def test_whatever_needs_one_gets_it(
        self, storage: DirectoryStorage, act: Callable[[DirectoryStorage], object]
    ) -> None:
        storage.write_file("directory/file", b"x")
        files = [storage.open(f"{number}") for number in range(12)]
        with few_descriptors(12):
            for file in files:
                file.append(b"x")
            assert storage.open_files == 12
            act(storage)
            assert 0 < storage.open_files < 12

    def test_a_flush_beside_the_loop_gets_one_too(self, storage: DirectoryStorage) -> None:
        files = [storage.open(f"{number}") for number in range(6)]

        async def scenario() -> None:
            await asyncio.get_running_loop().run_in_executor(None, int)  # it has its thread
            with few_descriptors(6):
                for file in files:
                    file.append(b"x")
                await storage.flush([f"{number}" for number in range(6)])
                assert storage.open_files == 3

        asyncio.run(scenario())

    def test_a_file_that_was_just_made_can_be_flushed(self, storage: DirectoryStorage) -> None:
        files = [storage.open(f"new-{number}/file") for number in range(4)]
        with few_descriptors(4):
            for file in files:
                file.append(b"x")
            for file in files:
                file.flush()

    def test_without_descriptors_the_only_open_file_is_closed(
        self, storage: DirectoryStorage
    ) -> None:
        first, second = storage.open("0"), storage.open("1")
        first.append(b"x")
        with few_descriptors(0):
            second.append(b"y")
        assert storage.open_files == 1
        assert (first.read(0, 1), second.read(0, 1)) == (b"x", b"y")

    def test_without_descriptors_the_error_names_the_fix(self, storage: DirectoryStorage) -> None:
        file = storage.open("0")
        with (
            few_descriptors(0),
            pytest.raises(StorageError, match=r"Too many open files.*ulimit -n") as failure,
        ):
            file.append(b"x")
        assert failure.value.errno == EMFILE
        file.append(b"x")
        assert file.read(0, 10) == b"x"


def test_a_failed_write_leaves_no_file_behind(
    storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, data: object) -> int:
        raise OSError(ENOSPC, "full")

    storage.write_file("small", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(StorageError):
            storage.write_file("small", b"new")
    assert storage.list("") == ["small"]
    assert storage.read_file("small") == b"old"


class TestDeletedBelow:
    """Files in use are deleted or moved from outside; the system would go on writing to them."""

    @pytest.mark.parametrize("is_open", [True, False])
    @pytest.mark.parametrize("content", [b"abc", b""])
    def test_an_append_notices(
        self, storage: DirectoryStorage, content: bytes, is_open: bool
    ) -> None:
        file = storage.open("t-0/0.log")
        file.append(content)
        if not is_open:
            file.close()
        rmtree(f"{storage.root}/t-0")
        with pytest.raises(StorageError, match="restore the data directory") as caught:
            file.append(b"d")
        assert caught.value.errno == ENOENT
        assert not storage.exists("t-0")

    @pytest.mark.parametrize("use", ["flush", "confirm"])
    @pytest.mark.parametrize("is_open", [True, False])
    @pytest.mark.parametrize("is_moved", [True, False])
    def test_a_sync_notices(
        self, storage: DirectoryStorage, use: str, is_open: bool, is_moved: bool
    ) -> None:
        file = storage.open("t-0/0.log")
        file.confirm()
        file.append(b"abc")
        getattr(file, use)()
        if not is_open:
            file.close()
        if is_moved:
            os.rename(f"{storage.root}/t-0", f"{storage.root}/away")
        else:
            rmtree(f"{storage.root}/t-0")
        with pytest.raises(StorageError) as caught:
            getattr(file, use)()
        assert caught.value.errno == ENOENT

    def test_a_read_of_a_deleted_file_is_an_error(self, storage: DirectoryStorage) -> None:
        file = storage.open("t-0/0.log")
        file.append(b"abc")
        file.close()
        rmtree(f"{storage.root}/t-0")
        with pytest.raises(StorageError):
            file.read(0, 3)

    def test_the_root_is_not_made_again(self, storage: DirectoryStorage) -> None:
        storage.lock()
        storage.write_file("t-0/partition.metadata", b"")
        rmtree(storage.root)
        for path in ("checkpoint", "t-0/partition.metadata"):
            with pytest.raises(StorageError) as caught:
                storage.write_file(path, b"")
            assert caught.value.errno == ENOENT
        with pytest.raises(StorageError):
            storage.open("u-0/0.log").append(b"a")
        assert not os.path.exists(storage.root)
        storage.close()
