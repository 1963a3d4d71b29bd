"""A disk in memory: a `storage.storage.Storage` that crashes, fills up, fails and rots on request.

A crash keeps what a real disk guarantees, for data and names separately:

- In a file: all flushed bytes, and any number of the bytes appended since, from the first on; the
  last of these may read as zeros, as if the file system had recorded the new length but not the
  data. Until the file is flushed, a truncation may be undone, and later bytes may be gone.
- In a directory: all names created, changed or deleted before it was flushed, and any number of
  the changes since, from the first on, as in a journal. Directories are independent of each other:
  after a crash data may exist without its name, or a name without its data.

A directory is flushed when `cluster/disk/files.py` flushes it: by the first `flush` of an open
file, by `Storage.flush`, and by a durable `write_file`. On a disk that is not lazy, names and
truncations are durable at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from errno import EIO, EISDIR, ENOENT, ENOSPC, ENOTDIR
from random import Random
from typing import TypeAlias

from trimtab.cluster.storage.storage import BytesLike, Space, StorageError
from trimtab.kafka.errors import UsageError

Fault: TypeAlias = Callable[[str, str], int]
"""Takes an action (`append`, `read`, `truncate`, `flush`, `write`, `rename`, `delete`, `stat`) and
a path; returns the error number with which it fails, or 0 if it succeeds."""


class Mount:
    """A `VirtualDisk` as one process uses it. After the process has ended, every method but `close`
    fails, and is noted in the disk's `used_after_end`."""

    def __init__(self, disk: VirtualDisk) -> None:
        self._disk = disk
        self._life: int = disk._life

    @property
    def is_alive(self) -> bool:
        return self._life == self._disk._life

    def open(self, path: str) -> _VirtualFile:
        return _VirtualFile(self._disk, path, self._life)

    def exists(self, path: str) -> bool:
        self._disk._check_life("stat", path, self._life)
        return self._disk._find(path) is not None

    def list(self, path: str) -> Sequence[str]:
        self._disk._check_life("list", path, self._life)
        node = self._disk._find(path)
        if node is None:
            return []
        if isinstance(node, _Content):
            raise StorageError(path, "list", ENOTDIR)
        return [*node.entries]

    def delete(self, path: str) -> None:
        self._disk._fail("delete", path, self._life)
        self._disk._remove(path)

    def rename(self, old: str, new: str) -> None:
        disk = self._disk
        disk._fail("rename", old, self._life)
        source, old_name = disk._parent(old)
        node = source.entries.get(old_name)
        if node is None:
            raise StorageError(old, f"rename to {new}", ENOENT)
        target, new_name = disk._parent(new, create=True)
        disk._used -= _size(target.entries.get(new_name))
        if target is source:
            source.change({old_name: None, new_name: node})
        else:
            target.change({new_name: node})
            source.change({old_name: None})

    def read_file(self, path: str) -> bytes | None:
        self._disk._fail("read", path, self._life)
        content = self._disk._content(path)
        return None if content is None else bytes(content.data)

    def write_file(self, path: str, content: BytesLike, durable: bool = True) -> None:
        disk = self._disk
        disk._fail("write", path, self._life)
        if disk.capacity is not None and disk._used + len(content) > disk.capacity:
            raise StorageError(path, "write", ENOSPC)
        has_parents = disk._parent(path)[0].is_attached
        directory, name = disk._parent(path, create=True)
        before = directory.entries.get(name)
        if isinstance(before, _Directory):
            raise StorageError(path, "write", EISDIR)
        written = _Content()
        written.data += content
        disk._used += len(content) - _size(before)
        directory.change({name: written})  # as if written to a temporary file and renamed
        if durable:
            written.flush()
            if has_parents:
                directory.pending.clear()
            else:
                disk._flush_parents(path)

    async def flush(self, paths: Sequence[str]) -> None:
        disk = self._disk
        disk._check_life("flush", "", self._life)
        for path in paths:
            content = disk._content(path)
            written = 0 if content is None else len(content.data)
            if disk.flush_s is not None:
                await asyncio.sleep(disk.flush_s())
            disk._fail("flush", path, self._life)
            if content is not None:
                content.flush(written)
                disk._flush_parents(path)

    def boot_id(self) -> str:
        self._disk._check_life("stat", "", self._life)
        return f"boot {self._disk._boots}"

    def space(self) -> Space:
        disk = self._disk
        disk._fail("stat", "", self._life)
        if disk.capacity is None:
            return Space(-1, -1)
        return Space(disk.capacity, max(0, disk.capacity - disk._used))

    def lock(self) -> None:
        self._disk._check_life("lock", "", self._life)
        if self._disk._locked:
            raise UsageError("the virtual disk is in use by another broker")
        self._disk._locked = True

    def close(self) -> None:
        if self.is_alive:
            self._disk._locked = False


class VirtualDisk(Mount):
    """A disk in memory; used directly, it is a mount that never ends.

    Args:
        is_lazy: whether names and truncations become durable only by a flush.

    Attributes:
        capacity: size in bytes; None is no limit. An append beyond it writes the bytes that fit,
            and fails with ENOSPC.
        fault: decides which actions fail; an append that fails writes half of its bytes.
        flush_s: returns the duration of an asynchronous `flush` in seconds; None for no time.
        used_after_end: actions that processes tried after their end.
        rotten: files that `flip` has changed since the disk was new.
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
        super().__init__(self)

    @property
    def used(self) -> int:
        """Bytes in all files."""
        return self._used

    def crash(self, random: Random | None = None) -> None:
        """Lose power: unflushed bytes are lost, open files are unusable, the lock is free.

        With `random`, each file keeps a random part of its unflushed bytes, perhaps torn. If the
        disk is lazy, a file may also keep all of them, as if the system had written them back, and
        each directory keeps a random part of its unflushed changes.
        """
        self._root.crash(random, random if self._is_lazy else None)
        self._used = sum(len(content.data) for content in _contents(self._root))
        self._boots += 1
        self.end_mount()

    def replace(self) -> None:
        """Replace the disk by an empty one of the same size that works."""
        self.end_mount()
        self.fault = None
        self.flush_s = None
        self.rotten.clear()
        self._root = _Directory()
        self._used = 0
        self._boots += 1

    def flip(self, path: str, position: int, bit: int, lasts: bool) -> None:
        """Flip one bit of a file, silently.

        Args:
            lasts: the bit changes on the disk; otherwise only in the machine's memory, so that a
                crash restores it if the byte was flushed.
        """
        content = self._content(path)
        assert content is not None, path
        content.flip(position, bit, lasts)
        self.rotten[path] = None

    def restore(self) -> None:
        """Undo every `flip`, as if the files were copied from a backup."""
        for path in self.rotten:
            content = self._content(path)
            if content is not None:
                content.restore()
        self.rotten.clear()

    def read_undamaged(self, path: str) -> bytes:
        """A file's bytes as they would be without `flip`."""
        content = self._content(path)
        assert content is not None, path
        data = bytearray(content.data)
        for at, (was, _) in content.flipped.items():
            data[at] = was
        return bytes(data)

    def end_mount(self) -> None:
        """The process that uses the disk ends: its files and mount become unusable, the lock is
        free. No bytes are lost."""
        self._life += 1
        self._locked = False

    def mount(self) -> Mount:
        """The disk as one process sees it, until `end_mount` or `crash`."""
        return Mount(self)

    def _check_life(self, action: str, path: str, life: int) -> None:
        if life != self._life:
            self.used_after_end.append(f"{action} {path}")
            raise StorageError(path, f"{action} after the crash", EIO)

    def _fail(self, action: str, path: str, life: int) -> None:
        self._check_life(action, path, life)
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
        """Flush all directories on the path to a file, with all their names."""
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
        """A path's parent directory (an unattached one if it does not exist), and its last name."""
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


class _Content:
    """The contents of a file.

    Attributes:
        flushed: number of bytes that survive a crash for certain.
        cut: the flushed bytes before a truncation that has not been flushed; None without one.
        flipped: original values of flipped bytes, by position, and whether they are wrong on the
            disk, not in memory only.
    """

    __slots__ = ("cut", "data", "flipped", "flushed")

    def __init__(self) -> None:
        self.data = bytearray()
        self.flushed = 0
        self.cut: bytes | None = None
        self.flipped: dict[int, tuple[int, bool]] = {}

    def flip(self, position: int, bit: int, lasts: bool) -> None:
        was, lasted = self.flipped.get(position, (self.data[position], False))
        self.flipped[position] = was, lasts or lasted
        self.data[position] ^= 1 << bit

    def restore(self) -> None:
        for at, (was, _) in self.flipped.items():
            self.data[at] = was
        self.flipped = {}

    def flush(self, size: int | None = None) -> None:
        """Make the first `size` bytes durable; all bytes if None."""
        size = len(self.data) if size is None else min(size, len(self.data))
        self.flushed = max(self.flushed, size)
        self.cut = None

    def truncate(self, size: int) -> None:
        if size < self.flushed and self.cut is None:
            self.cut = bytes(self.data[: self.flushed])
        self.data += bytes(max(0, size - len(self.data)))
        del self.data[size:]
        self.flushed = min(self.flushed, size)
        self.flipped = {at: flip for at, flip in self.flipped.items() if at < size}

    def crash(self, random: Random | None, lazily: Random | None) -> None:
        for at, (was, lasts) in list(self.flipped.items()):
            if at < self.flushed and not lasts:
                self.data[at] = was
                del self.flipped[at]
        if self.cut is not None and lazily and lazily.random() < 0.3:
            self.data[:] = self.cut
            self.flushed = len(self.data)
        if lazily and lazily.random() < 0.4:
            self.flushed = len(self.data)  # the system had written all bytes back
        unflushed = len(self.data) - self.flushed
        kept = random.randint(0, unflushed) if random and unflushed else 0
        del self.data[self.flushed + kept :]
        if random and kept and random.random() < 0.5:
            torn = random.randint(1, kept)
            self.data[-torn:] = bytes(torn)
        self.flushed = len(self.data)
        self.cut = None
        self.flipped = {at: flip for at, flip in self.flipped.items() if at < self.flushed}


class _Directory:
    """The contents of a directory.

    Attributes:
        entries: files and directories by name.
        pending: for each change since the last flush, the former entries by name; None for no
            entry.
        is_attached: whether it exists.
    """

    __slots__ = ("entries", "is_attached", "pending")

    def __init__(self, is_attached: bool = True) -> None:
        self.entries: dict[str, _Node] = {}
        self.pending: list[dict[str, _Node | None]] = []
        self.is_attached = is_attached

    def change(self, nodes: dict[str, _Node | None]) -> None:
        """Set entries by name in one atomic change; None deletes an entry."""
        self.pending.append({name: self.entries.get(name) for name in nodes})
        self._set(nodes)

    def clear(self) -> None:
        """Delete all entries, one after the other."""
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

    def __init__(self, disk: VirtualDisk, path: str, life: int) -> None:
        self._disk = disk
        self._held: _Content | None = None
        self._path = path
        self._is_linked = False
        self._life = life

    @property
    def size(self) -> int:
        self._disk._fail("stat", self._path, self._life)
        content = self._disk._content(self._path)
        return 0 if content is None else len(content.data)

    def append(self, data: BytesLike) -> None:
        disk = self._disk
        disk._check_life("append", self._path, self._life)
        self.confirm()
        content = disk._content(self._path)
        if content is None:
            content = disk._create(self._path)
            self._is_linked = False
        self._held = content
        try:
            disk._fail("append", self._path, self._life)
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
        """Does nothing."""

    def _extend(self, content: _Content, data: BytesLike) -> None:
        content.data += data
        self._disk._used += len(data)
