"""Files in a directory: the `trimtab.cluster.storage.storage.Storage` of real processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from errno import EIO, EMFILE, ENFILE, ENOENT
from typing import TypeVar

from trimtab.cluster.storage.storage import BytesLike, Space, StorageError
from trimtab.kafka.errors import UsageError

LOCK_FILE = ".lock"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LONG_MAX = 2**63 - 1

_NO_DESCRIPTOR = (EMFILE, ENFILE)
"""This process, or the system, has as many files open as it may."""

T = TypeVar("T")


class DirectoryStorage:
    """A directory and the files below it.

    A file is opened when it is first used, and at most `max_open_files` are open at a time: the
    least recently used one is closed to open another, so tens of thousands of logs fit any limit.
    If the process gets no more descriptors, because connections use them or the limit was lowered,
    the least recently used half of the open files is closed.

    Only the owner can read files and directories created here.

    Args:
        root: the directory; created if it does not exist.
        max_open_files: the most open files at a time, at least 1.
        durable: False omits every fsync: for data that need not survive a crash of the machine.

    Raises:
        StorageError: the directory cannot be created.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, max_open_files: int = 512, durable: bool = True
    ) -> None:
        if max_open_files < 1:
            raise UsageError(f"max_open_files must be at least 1, is {max_open_files}")
        self.root = os.path.abspath(root)
        self.durable = durable
        self._max_open_files = max_open_files
        self._open_files: OrderedDict[DirectoryFile, None] = OrderedDict()
        self._lock: int | None = None
        try:
            os.makedirs(self.root, 0o700, exist_ok=True)
        except OSError as error:
            raise _translate(self.root, "create the directory", error) from error

    def open(self, path: str) -> DirectoryFile:
        return DirectoryFile(self, path)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._absolute(path))

    def list(self, path: str) -> Sequence[str]:
        try:
            return self._with_free_descriptor(lambda: os.listdir(self._absolute(path)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _translate(path, "list", error) from error

    def delete(self, path: str) -> None:
        try:
            self._with_free_descriptor(lambda: _delete_tree(self._absolute(path)))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _translate(path, "delete", error) from error

    def rename(self, old: str, new: str) -> None:
        try:
            os.replace(self._absolute(old), self._absolute(new))
        except OSError as error:
            raise _translate(old, f"rename to {new}", error) from error

    def read_file(self, path: str) -> bytes | None:
        absolute = self._absolute(path)
        try:
            with self._with_free_descriptor(lambda: open(absolute, "rb", buffering=0)) as file:
                return file.readall()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _translate(path, "read", error) from error

    def write_file(self, path: str, content: BytesLike, durable: bool = True) -> None:
        absolute = self._absolute(path)
        temporary = absolute + ".tmp"
        durable = durable and self.durable
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            descriptor, new_parents = self._open_with_parents(temporary, flags)
            try:
                _write(descriptor, content)
                if durable:
                    os.fsync(descriptor)
            except OSError:
                with suppress(OSError):  # free the space, as the disk may be full
                    os.unlink(temporary)
                raise
            finally:
                os.close(descriptor)
            os.replace(temporary, absolute)
            if durable:
                parent = os.path.dirname(absolute)
                self._with_free_descriptor(
                    lambda: self._flush_parents([absolute]) if new_parents else _flush_path(parent)
                )
        except OSError as error:
            raise _translate(path, "write", error) from error

    async def flush(self, paths: Sequence[str]) -> None:
        if not self.durable or not paths:
            return
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(None, self._flush, tuple(paths))
            except StorageError as error:
                # No data is lost: the file was not opened.
                if error.errno not in _NO_DESCRIPTOR or not self._close_half():
                    raise
            else:
                return

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except OSError:  # not on Linux
            return ""

    def space(self) -> Space:
        try:
            volume = os.statvfs(self.root)
        except OSError as error:
            raise _translate(self.root, "look up the size of the volume", error) from error
        # Some network file systems report sizes that do not fit into the message's int64.
        return Space(
            min(volume.f_blocks * volume.f_frsize, _LONG_MAX),
            min(volume.f_bavail * volume.f_frsize, _LONG_MAX),
        )

    def lock(self) -> None:
        absolute = self._absolute(LOCK_FILE)
        try:
            descriptor = self._open(absolute, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _translate(LOCK_FILE, "create", error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise UsageError(
                f"data directory {self.root} is in use by another broker; "
                "stop it or choose another directory"
            ) from error
        self._lock = descriptor

    def close(self) -> None:
        for file in list(self._open_files):
            file.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def open_files(self) -> int:
        """Files that are open now."""
        return len(self._open_files)

    def _absolute(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _register_open_file(self, file: DirectoryFile) -> None:
        """Close files until one more may be open, and add `file` as the most recently used."""
        while len(self._open_files) >= self._max_open_files:
            next(iter(self._open_files)).close()
        self._open_files[file] = None

    def _open(self, absolute: str, flags: int) -> int:
        try:
            return os.open(absolute, flags, 0o600)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            return self._with_free_descriptor(lambda: os.open(absolute, flags, 0o600))

    def _open_with_parents(self, absolute: str, flags: int) -> tuple[int, bool]:
        """The descriptor, and whether directories had to be created for it."""
        try:
            return self._open(absolute, flags), False
        except FileNotFoundError:
            self._confirm_root()
            os.makedirs(os.path.dirname(absolute), 0o700, exist_ok=True)
            return self._open(absolute, flags), True

    def _confirm_root(self) -> None:
        """Raise FileNotFoundError if the root was deleted or moved: the open files no longer belong
        to it."""
        if self._lock is not None and not _is_at(self._lock, self._absolute(LOCK_FILE)):
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), self.root)

    def _with_free_descriptor(self, act: Callable[[], T]) -> T:
        """Call `act`, which needs a descriptor; if there is none, close files and repeat."""
        while True:
            try:
                return act()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR or not self._close_half():
                    raise

    def _close_half(self) -> bool:
        """Close the least recently used half of the open files; returns whether there was any.

        Half of them, so that alternating between many files does not close files every time.
        """
        number = (len(self._open_files) + 1) // 2
        for file in list(self._open_files)[:number]:
            file.close()
        return number > 0

    def _flush(self, paths: Iterable[str]) -> None:
        """Opens its own descriptors, so that it can run in another thread than the loop's."""
        existing = []
        for path in paths:
            absolute = self._absolute(path)
            try:
                _flush_path(absolute)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _translate(path, "flush", error) from error
            existing.append(absolute)
        try:
            self._flush_parents(existing)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _translate("", "flush the directories", error) from error

    def _flush_parents(self, absolutes: Iterable[str]) -> None:
        """Flush the directories above these files: without that a new file may be lost."""
        parents = set()
        for absolute in absolutes:
            while len(absolute) > len(self.root):
                absolute = os.path.dirname(absolute)
                parents.add(absolute)
        for parent in sorted(parents, reverse=True):
            _flush_path(parent)


class DirectoryFile:
    """A file of a `DirectoryStorage`."""

    __slots__ = ("_descriptor", "_exists", "_is_linked", "_path", "_size", "_storage")

    def __init__(self, storage: DirectoryStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._descriptor = -1
        self._size = -1
        self._exists = False  # it existed once; if it is missing now, it was deleted from outside
        self._is_linked = False  # its directory entry is certainly on disk

    @property
    def size(self) -> int:
        if self._size < 0:
            try:
                self._size = os.stat(self._storage._absolute(self._path)).st_size
                self._exists = True
            except FileNotFoundError:
                self._size = 0
            except OSError as error:
                raise _translate(self._path, "look up the size", error) from error
        return self._size

    def append(self, data: BytesLike) -> None:
        try:
            descriptor = self._open_descriptor(create=not self._exists)
            written = os.write(descriptor, data)
            if written < len(data):
                _write(descriptor, memoryview(data)[written:])
            status = os.fstat(descriptor)
            if not status.st_nlink:
                raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
        except OSError as error:
            raise _translate(self._path, "append", error) from error
        self._size = status.st_size if self._size < 0 else self._size + len(data)

    def confirm(self) -> None:
        if not self._exists:
            return
        try:
            absolute = self._storage._absolute(self._path)
            if self._descriptor < 0:
                os.stat(absolute)
            elif not _is_at(self._descriptor, absolute):
                raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
        except OSError as error:
            raise _translate(self._path, "find the file again", error) from error

    def read(self, position: int, size: int) -> bytes:
        try:
            return os.pread(self._open_descriptor(create=False), size, position)
        except FileNotFoundError as error:
            if self._exists:
                raise _translate(self._path, "read", error) from error
            return b""
        except OSError as error:
            raise _translate(self._path, "read", error) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._open_descriptor(create=False), size)
        except FileNotFoundError as error:
            if size:
                raise _translate(self._path, f"truncate to {size} bytes", error) from error
        except OSError as error:
            raise _translate(self._path, f"truncate to {size} bytes", error) from error
        self._size = size

    def flush(self) -> None:
        if not self._storage.durable:
            return
        try:
            os.fsync(self._open_descriptor(create=False))
            if not self._is_linked:  # perhaps created by a killed process, or renamed
                storage = self._storage
                absolute = storage._absolute(self._path)
                storage._with_free_descriptor(lambda: storage._flush_parents([absolute]))
                self._is_linked = True
        except FileNotFoundError as error:
            if self._exists:
                raise _translate(self._path, "flush", error) from error
            return
        except OSError as error:
            raise _translate(self._path, "flush", error) from error
        self.confirm()

    def close(self) -> None:
        if self._descriptor >= 0:
            del self._storage._open_files[self]
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _open_descriptor(self, create: bool) -> int:
        storage = self._storage
        if self._descriptor >= 0:
            storage._open_files.move_to_end(self)
            return self._descriptor
        absolute = storage._absolute(self._path)
        flags = os.O_RDWR | os.O_APPEND
        if create:
            descriptor, _ = storage._open_with_parents(absolute, flags | os.O_CREAT)
        else:
            descriptor = storage._open(absolute, flags)
        storage._register_open_file(self)
        self._descriptor = descriptor
        self._exists = True
        return descriptor


def _write(descriptor: int, data: BytesLike) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _is_at(descriptor: int, absolute: str) -> bool:
    """Whether the open file is still the one at that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(absolute))
    except FileNotFoundError:
        return False


def _flush_path(absolute: str) -> None:
    descriptor = os.open(absolute, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete_tree(absolute: str) -> None:
    if not os.path.isdir(absolute):
        os.unlink(absolute)
        return
    for name in os.listdir(absolute):
        _delete_tree(f"{absolute}/{name}")
    os.rmdir(absolute)


def _translate(path: str, action: str, error: OSError) -> StorageError:
    return StorageError(path, action, error.errno or EIO)
