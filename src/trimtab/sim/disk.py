"""A disk in memory: a `storage.storage.Storage` that crashes, fills up, fails and rots on request.

What survives a crash is what a real disk promises, of data and of names apart:

- Of a file: every byte flushed, and of the bytes appended after that any number of the first ones,
  the last of which may read as zeros (a file system that had recorded the new length but not yet
  the data). What was cut off may be there again, and what came after it gone, until the file is
  flushed.
- Of a directory: every name made, changed or deleted before the directory was flushed, and of the
  changes after that any number of the first ones (a journal keeps their order, but directories
  know nothing of each other). So a file may be there whose name is not, and the other way round.

A directory is flushed where `runtime.files` flushes it: with the first `flush` of an open file,
with `Storage.flush`, and with a durable `write_file`. A disk that is not lazy has names and cuts
durable at once.
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

    Args:
        is_lazy: whether names and cuts wait for a flush.

    Attributes:
        capacity: bytes that fit; None is no limit. An append beyond it writes what fits and
            fails with ENOSPC.
        fault: decides which actions fail; a failing append has written half.
        flush_s: draws how long a `flush` takes that does not hold up the loop; None for no time.
        used_after_end: what ended processes, whose files are dead, tried to do all the same.
        rotten: files in which `flip` has changed something since the disk was new.
    """

    def __init__(self, capacity: int | None = None, is_lazy: bool = False) -> None:
        self.capacity = capacity
        self._is_lazy = is_lazy
        self.fault: Fault | None = None
        self.flush_s: Callable[[], float] | None = None
        self.used_after_end: list[str] = []
        self.rotten: dict[str, None] = {}
        self._root = _Directory()
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

        With `random`, each file keeps a random part of its unflushed bytes, perhaps torn (all of
        them now and then, if the disk is lazy: the system has written them back), and each
        directory, if the disk is lazy, a random part of its unflushed changes.
        """
        self._root.crash(random, random if self._is_lazy else None)
        self._used = sum(len(content.data) for content in _contents(self._root))
        self._boots += 1
        self.end()

    def replace(self) -> None:
        """An empty disk of the same size that works takes this one's place."""
        self.end()
        self.fault = None
        self.flush_s = None
        self.rotten.clear()
        self._root = _Directory()
        self._used = 0
        self._boots += 1

    def flip(self, path: str, position: int, bit: int, lasts: bool) -> None:
        """Changes one bit of a file, which nobody is told.

        Args:
            lasts: it is so on the disk; otherwise only in the memory of the machine, and a crash
                takes it back if that byte was flushed.
        """
        content = self._content(path)
        assert content is not None, path
        if not lasts:
            content.flipped.setdefault(position, content.data[position])
        content.data[position] ^= 1 << bit
        self.rotten[path] = None

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
        return [*node.entries]

    def delete(self, path: str) -> None:
        self._fail("delete", path)
        self._remove(path)

    def rename(self, old: str, new: str) -> None:
        self._fail("rename", old)
        source, old_name = self._parent(old)
        node = source.entries.get(old_name)
        if node is None:
            raise StorageError(old, f"rename to {new}", ENOENT)
        target, new_name = self._parent(new, create=True)
        self._used -= _size(target.entries.get(new_name))
        if target is source:
            source.change({old_name: None, new_name: node})
        else:
            target.change({new_name: node})
            source.change({old_name: None})

    def read_file(self, path: str) -> bytes | None:
        self._fail("read", path)
        content = self._content(path)
        return None if content is None else bytes(content.data)

    def write_file(self, path: str, content: BytesLike, durable: bool = True) -> None:
        self._fail("write", path)
        if self.capacity is not None and self._used + len(content) > self.capacity:
            raise StorageError(path, "write", ENOSPC)
        has_parents = self._parent(path)[0].is_attached
        directory, name = self._parent(path, create=True)
        before = directory.entries.get(name)
        if isinstance(before, _Directory):
            raise StorageError(path, "write", EISDIR)
        written = _Content()
        written.data += content
        self._used += len(content) - _size(before)
        directory.change({name: written})  # it was written beside, and renamed
        if durable:
            written.flush()
            if has_parents:
                directory.pending.clear()
            else:
                self._flush_parents(path)

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
                content.flush(written)
                self._flush_parents(path)

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
        node = directory.entries.get(name)
        if node is not None:
            self._used -= _size(node)
            if isinstance(node, _Directory):
                node.clear()
            directory.change({name: None})

    def _flush_parents(self, path: str) -> None:
        """Makes every name that leads to a file durable, and what else is in those directories."""
        directory = self._root
        for name in filter(None, path.split("/")):
            directory.pending.clear()
            node = directory.entries.get(name)
            if not isinstance(node, _Directory):
                return
            directory = node

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in filter(None, path.split("/")):
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(name)
        return node

    def _parent(self, path: str, create: bool = False) -> tuple[_Directory, str]:
        """The directory a path lies in (an unattached one if it does not exist), and its name."""
        *parents, name = filter(None, path.split("/"))
        directory = self._root
        for parent in parents:
            node = directory.entries.get(parent)
            if node is None:
                node = _Directory(is_attached=create)
                if create:
                    directory.change({parent: node})
            if isinstance(node, _Content):
                raise StorageError(path, "open", ENOTDIR)
            directory = node
        return directory, name

    def _content(self, path: str) -> _Content | None:
        node = self._find(path)
        if isinstance(node, _Directory):
            raise StorageError(path, "open", EISDIR)
        return node

    def _create(self, path: str) -> _Content:
        """A new file."""
        directory, name = self._parent(path, create=True)
        content = _Content()
        directory.change({name: content})
        return content


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
    """What is in a file.

    Attributes:
        flushed: of how many bytes a crash leaves nothing to chance.
        cut: what was flushed before bytes were cut off, if that has not been flushed.
        flipped: bytes that only memory has wrong, as they were.
    """

    __slots__ = ("cut", "data", "flipped", "flushed")

    def __init__(self) -> None:
        self.data = bytearray()
        self.flushed = 0
        self.cut: bytes | None = None
        self.flipped: dict[int, int] = {}

    def flush(self, size: int | None = None) -> None:
        """Up to `size` bytes; all if None."""
        size = len(self.data) if size is None else min(size, len(self.data))
        self.flushed = max(self.flushed, size)
        self.cut = None

    def truncate(self, size: int) -> None:
        if size < self.flushed and self.cut is None:
            self.cut = bytes(self.data[: self.flushed])
        self.data += bytes(max(0, size - len(self.data)))
        del self.data[size:]
        self.flushed = min(self.flushed, size)
        self.flipped = {at: was for at, was in self.flipped.items() if at < size}

    def crash(self, random: Random | None, lazily: Random | None) -> None:
        for at, was in self.flipped.items():
            if at < self.flushed:
                self.data[at] = was
        if self.cut is not None and lazily and lazily.random() < 0.3:
            self.data[:] = self.cut
            self.flushed = len(self.data)
        if lazily and lazily.random() < 0.4:
            self.flushed = len(self.data)  # the system has written it back meanwhile
        unflushed = len(self.data) - self.flushed
        kept = random.randint(0, unflushed) if random and unflushed else 0
        del self.data[self.flushed + kept :]
        if random and kept and random.random() < 0.5:
            torn = random.randint(1, kept)
            self.data[-torn:] = bytes(torn)
        self.flushed = len(self.data)
        self.cut = None
        self.flipped = {}


class _Directory:
    """What is in a directory.

    Attributes:
        entries: what it has by name.
        pending: what each change since it was flushed has replaced, by name: None for nothing.
        is_attached: whether it exists.
    """

    __slots__ = ("entries", "is_attached", "pending")

    def __init__(self, is_attached: bool = True) -> None:
        self.entries: dict[str, _Node] = {}
        self.pending: list[dict[str, _Node | None]] = []
        self.is_attached = is_attached

    def change(self, nodes: dict[str, _Node | None]) -> None:
        """At once, by name; None for what is gone."""
        self.pending.append({name: self.entries.get(name) for name in nodes})
        self._set(nodes)

    def clear(self) -> None:
        """Deletes all, one after the other."""
        for name, node in list(self.entries.items()):
            if isinstance(node, _Directory):
                node.clear()
            self.change({name: None})

    def crash(self, random: Random | None, lazily: Random | None) -> None:
        kept = lazily.randint(0, len(self.pending)) if lazily else len(self.pending)
        for nodes in reversed(self.pending[kept:]):
            self._set(nodes)
        self.pending.clear()
        for node in self.entries.values():
            node.crash(random, lazily)

    def _set(self, nodes: dict[str, _Node | None]) -> None:
        for name, node in nodes.items():
            if node is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = node


_Node: TypeAlias = _Directory | _Content


def _contents(node: _Node) -> Iterator[_Content]:
    if isinstance(node, _Content):
        yield node
    else:
        for child in node.entries.values():
            yield from _contents(child)


def _size(node: _Node | None) -> int:
    return 0 if node is None else sum(len(content.data) for content in _contents(node))


class _VirtualFile:
    __slots__ = ("_disk", "_held", "_is_linked", "_life", "_path")

    def __init__(self, disk: VirtualDisk, path: str) -> None:
        self._disk = disk
        self._held: _Content | None = None
        self._path = path
        self._is_linked = False
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
        content = disk._content(self._path)
        if content is None:
            content = disk._create(self._path)
            self._is_linked = False
        self._held = content
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
        content.truncate(size)

    def flush(self) -> None:
        self._disk._fail("flush", self._path, self._life)
        content = self._disk._content(self._path)
        if content is not None:
            content.flush()
            if not self._is_linked:
                self._disk._flush_parents(self._path)
                self._is_linked = True

    def confirm(self) -> None:
        if self._held is not None and self._disk._content(self._path) is not self._held:
            raise StorageError(self._path, "find the file again", ENOENT)

    def close(self) -> None:
        """Nothing is to be done."""

    def _extend(self, content: _Content, data: BytesLike) -> None:
        content.data += data
        self._disk._used += len(data)
