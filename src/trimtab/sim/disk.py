"""A disk in memory: a `storage.storage.Storage` that crashes, fills up and fails on request.

What survives a crash is what a real disk promises: every byte flushed, and of the bytes appended
after that any number of the first ones, the last of which may read as zeros (a file system that
had recorded the new length but not yet the data). Names are durable at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from errno import EIO, EISDIR, ENOENT, ENOSPC, ENOTDIR
from random import Random
from typing import TypeAlias

from trimtab.errors import UsageError
from trimtab.storage.storage import BytesLike, Space, StorageError

Fault: TypeAlias = Callable[[str, str], int]
"""What fails: of an action (`append`, `read`, `truncate`, `flush`, `write`, `rename`, `delete`,
`stat`) and a path, the error number with which it fails, or 0 if it succeeds."""


class VirtualDisk:
    """A disk in memory.

    Attributes:
        capacity: bytes that fit; None is no limit. An append beyond it writes what fits and
            fails with ENOSPC.
        fault: decides which actions fail; a failing append has written half.
        flush_s: draws how long a `flush` takes that does not hold up the loop; None for no time.
        used_after_end: what ended processes, whose files are dead, tried to do all the same.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.fault: Fault | None = None
        self.flush_s: Callable[[], float] | None = None
        self.used_after_end: list[str] = []
        self._root: _Directory = {}
        self._used = 0
        self._locked = False
        self._life = 0
        self._boots = 0

    @property
    def used(self) -> int:
        """Bytes in all files."""
        return self._used

    def crash(self, random: Random | None = None) -> None:
        """Pulls the plug: unflushed bytes are lost, open files are dead, the lock is free.

        With `random`, each file keeps a random part of its unflushed bytes, perhaps torn.
        """
        for content in _contents(self._root):
            self._used -= len(content.data)
            unflushed = len(content.data) - content.flushed
            kept = random.randint(0, unflushed) if random and unflushed else 0
            del content.data[content.flushed + kept :]
            if random and kept and random.random() < 0.5:
                torn = random.randint(1, kept)
                content.data[-torn:] = bytes(torn)
            content.flushed = len(content.data)
            self._used += len(content.data)
        self._boots += 1
        self.end()

    def end(self) -> None:
        """The process that uses it ends, and nothing else: open files and mounts are dead, the
        lock is free."""
        self._life += 1
        self._locked = False

    def mount(self) -> Mount:
        """The disk as one process sees it, until `end` or `crash`."""
        return Mount(self)

    def open(self, path: str) -> _VirtualFile:
        return _VirtualFile(self, path)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list(self, path: str) -> Sequence[str]:
        node = self._find(path)
        if node is None:
            return []
        if isinstance(node, _Content):
            raise StorageError(path, "list", ENOTDIR)
        return [*node]

    def delete(self, path: str) -> None:
        self._fail("delete", path)
        self._remove(path)

    def rename(self, old: str, new: str) -> None:
        self._fail("rename", old)
        directory, name = self._parent(old)
        if name not in directory:
            raise StorageError(old, f"rename to {new}", ENOENT)
        node = directory.pop(name)
        self._remove(new)
        directory, name = self._parent(new, create=True)
        directory[name] = node

    def read_file(self, path: str) -> bytes | None:
        self._fail("read", path)
        content = self._content(path)
        return None if content is None else bytes(content.data)

    def write_file(self, path: str, content: BytesLike, durable: bool = True) -> None:
        self._fail("write", path)
        if self.capacity is not None and self._used + len(content) > self.capacity:
            raise StorageError(path, "write", ENOSPC)
        self._remove(path)
        written = self._create(path)
        written.data += content
        written.flushed = len(content) if durable else 0
        self._used += len(content)

    async def flush(self, paths: Sequence[str]) -> None:
        await self._flush(paths, None)

    async def _flush(self, paths: Sequence[str], life: int | None) -> None:
        for path in paths:
            content = self._content(path)
            written = 0 if content is None else len(content.data)
            if self.flush_s is not None:
                await asyncio.sleep(self.flush_s())
            self._fail("flush", path, life)
            if content is not None:
                content.flushed = max(content.flushed, min(written, len(content.data)))

    def boot_id(self) -> str:
        return f"boot {self._boots}"

    def space(self) -> Space:
        self._fail("stat", "")
        if self.capacity is None:
            return Space(-1, -1)
        return Space(self.capacity, max(0, self.capacity - self._used))

    def lock(self) -> None:
        if self._locked:
            raise UsageError("the virtual disk is in use by another broker")
        self._locked = True

    def close(self) -> None:
        self._locked = False

    def _fail(self, action: str, path: str, life: int | None = None) -> None:
        if life is not None and life != self._life:
            self.used_after_end.append(f"{action} {path}")
            raise StorageError(path, f"{action} after the crash", EIO)
        errno = self.fault(action, path) if self.fault else 0
        if errno:
            raise StorageError(path, action, errno)

    def _remove(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.pop(name, None)
        if node is not None:
            self._used -= sum(len(content.data) for content in _contents(node))

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in filter(None, path.split("/")):
            if not isinstance(node, dict):
                return None
            node = node.get(name)
        return node

    def _parent(self, path: str, create: bool = False) -> tuple[_Directory, str]:
        """The directory a path lies in (an unattached one if it does not exist), and its name."""
        *parents, name = filter(None, path.split("/"))
        directory = self._root
        for parent in parents:
            node = directory.get(parent)
            if node is None:
                node = {}
                if create:
                    directory[parent] = node
            if isinstance(node, _Content):
                raise StorageError(path, "open", ENOTDIR)
            directory = node
        return directory, name

    def _content(self, path: str) -> _Content | None:
        node = self._find(path)
        if isinstance(node, dict):
            raise StorageError(path, "open", EISDIR)
        return node

    def _create(self, path: str) -> _Content:
        directory, name = self._parent(path, create=True)
        node = directory.setdefault(name, _Content())
        if isinstance(node, dict):
            raise StorageError(path, "open", EISDIR)
        return node


class Mount:
    """A `VirtualDisk` in the hands of one process. Once that has ended, every method but `close`
    fails, and is noted in the disk's `used_after_end`."""

    def __init__(self, disk: VirtualDisk) -> None:
        self._disk = disk
        self._life = disk._life

    @property
    def is_alive(self) -> bool:
        return self._life == self._disk._life

    def open(self, path: str) -> _VirtualFile:
        file = self._disk.open(path)
        file._life = self._life
        return file

    def exists(self, path: str) -> bool:
        return self._living("stat", path).exists(path)

    def list(self, path: str) -> Sequence[str]:
        return self._living("list", path).list(path)

    def delete(self, path: str) -> None:
        self._living("delete", path).delete(path)

    def rename(self, old: str, new: str) -> None:
        self._living("rename", old).rename(old, new)

    def read_file(self, path: str) -> bytes | None:
        return self._living("read", path).read_file(path)

    def write_file(self, path: str, content: BytesLike, durable: bool = True) -> None:
        self._living("write", path).write_file(path, content, durable)

    async def flush(self, paths: Sequence[str]) -> None:
        await self._living("flush", "")._flush(paths, self._life)

    def boot_id(self) -> str:
        return self._living("stat", "").boot_id()

    def space(self) -> Space:
        return self._living("stat", "").space()

    def lock(self) -> None:
        self._living("lock", "").lock()

    def close(self) -> None:
        if self.is_alive:
            self._disk.close()

    def _living(self, action: str, path: str) -> VirtualDisk:
        if not self.is_alive:
            self._disk._fail(action, path, self._life)
        return self._disk


class _Content:
    __slots__ = ("data", "flushed")

    def __init__(self) -> None:
        self.data = bytearray()
        self.flushed = 0


_Directory: TypeAlias = "dict[str, _Node]"
_Node: TypeAlias = "_Directory | _Content"


def _contents(node: _Node) -> Iterator[_Content]:
    if isinstance(node, _Content):
        yield node
    else:
        for child in node.values():
            yield from _contents(child)


class _VirtualFile:
    __slots__ = ("_disk", "_held", "_life", "_path")

    def __init__(self, disk: VirtualDisk, path: str) -> None:
        self._disk = disk
        self._held: _Content | None = None
        self._path = path
        self._life = disk._life

    @property
    def size(self) -> int:
        self._disk._fail("stat", self._path, self._life)
        content = self._disk._content(self._path)
        return 0 if content is None else len(content.data)

    def append(self, data: BytesLike) -> None:
        disk = self._disk
        if self._life != disk._life:
            disk._fail("append", self._path, self._life)
        self.confirm()
        content = self._held = disk._create(self._path)
        try:
            disk._fail("append", self._path)
        except StorageError:
            self._extend(content, data[: len(data) // 2])
            raise
        if disk.capacity is not None and disk._used + len(data) > disk.capacity:
            self._extend(content, data[: disk.capacity - disk._used])
            raise StorageError(self._path, "append", ENOSPC)
        self._extend(content, data)

    def read(self, position: int, size: int) -> bytes:
        self._disk._fail("read", self._path, self._life)
        content = self._disk._content(self._path)
        if content is None and self._held is not None:
            raise StorageError(self._path, "read", ENOENT)
        return b"" if content is None else bytes(content.data[position : position + size])

    def truncate(self, size: int) -> None:
        disk = self._disk
        disk._fail("truncate", self._path, self._life)
        content = disk._content(self._path)
        if content is None:
            if size:
                raise StorageError(self._path, f"truncate to {size} bytes", ENOENT)
            return
        disk._used += size - len(content.data)
        content.data += bytes(max(0, size - len(content.data)))
        del content.data[size:]
        content.flushed = min(content.flushed, size)

    def flush(self) -> None:
        self._disk._fail("flush", self._path, self._life)
        content = self._disk._content(self._path)
        if content is not None:
            content.flushed = len(content.data)

    def confirm(self) -> None:
        if self._held is not None and self._disk._content(self._path) is not self._held:
            raise StorageError(self._path, "find the file again", ENOENT)

    def close(self) -> None:
        """Nothing is to be done."""

    def _extend(self, content: _Content, data: BytesLike) -> None:
        content.data += data
        self._disk._used += len(data)
