"""A disk with a directory of files that loses power and runs full on request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from errno import ENOSPC
from random import Random

from trimtab.cluster.disk.files import DirectoryFile, DirectoryStorage
from trimtab.cluster.storage.storage import BytesLike, Space, StorageError


class FaultyDisk:
    """Remembers of each file where the bytes begin that were not flushed.

    What the directory contains at first counts as flushed; so do names and truncations, at once.
    One process at a time uses a `mount` of it.

    Args:
        root: the directory.
        durable: False omits every fsync, and a flush is only remembered.

    Attributes:
        is_full: whether every write fails with ENOSPC.
        losses: how often it has lost power.
    """

    def __init__(self, root: str | os.PathLike[str], durable: bool = True) -> None:
        self.is_full = False
        self.losses = 0
        self._root = os.path.abspath(root)
        self._durable = durable
        self._unflushed: dict[str, dict[str, int]] = {}

    def mount(self, max_open_files: int = 512) -> FaultyStorage:
        """The disk as one process uses it.

        Raises:
            StorageError: the directory cannot be created.
        """
        return FaultyStorage(self._root, self, max_open_files, self._durable)

    def lose_power(self, random: Random) -> None:
        """Lose the bytes that were not flushed, once no process uses the disk any more: each file
        keeps a random part of them, perhaps torn, as if the file system had recorded the new length
        but not the data."""
        self.losses += 1
        for directory, names in self._unflushed.items():
            for name, flushed in names.items():
                with suppress(FileNotFoundError):  # moved or deleted from outside
                    _lose(f"{self._root}/{directory}/{name}", flushed, random)
        self._unflushed.clear()

    def unflushed_in(self, directory: str) -> dict[str, int]:
        """By the name of a file, where its bytes begin that were not flushed. Files that were not
        changed are not in it."""
        names = self._unflushed.get(directory)
        if names is None:
            names = self._unflushed[directory] = {}
        return names

    def move(self, old: str, new: str | None) -> None:
        """A file or directory has got another name, or None."""
        names = self._unflushed.pop(old, None)
        if names is not None and new is not None:
            self._unflushed[new] = names
        directory, _, name = old.rpartition("/")
        flushed = self.unflushed_in(directory).pop(name, None)
        if new is not None:
            directory, _, name = new.rpartition("/")
            target = self.unflushed_in(directory)
            target.pop(name, None)
            if flushed is not None:
                target[name] = flushed


class FaultyStorage(DirectoryStorage):
    """The files of a `FaultyDisk`. Use `FaultyDisk.mount`."""

    def __init__(self, root: str, disk: FaultyDisk, max_open_files: int, durable: bool) -> None:
        super().__init__(root, max_open_files=max_open_files, durable=durable)
        self._disk = disk

    def open(self, path: str) -> _FaultyFile:
        return _FaultyFile(self, self._disk, path)

    def delete(self, path: str) -> None:
        super().delete(path)
        self._disk.move(path, None)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._disk.move(old, new)

    def write_file(self, path: str, content: BytesLike, durable: bool = True) -> None:
        if self._disk.is_full:
            raise StorageError(path, "write", ENOSPC)
        super().write_file(path, content, durable)
        directory, _, name = path.rpartition("/")
        self._disk.unflushed_in(directory)[name] = len(content) if durable else 0

    async def flush(self, paths: Sequence[str]) -> None:
        sizes = {path: self.open(path).size for path in paths}
        await super().flush(paths)
        for path, size in sizes.items():
            directory, _, name = path.rpartition("/")
            names = self._disk.unflushed_in(directory)
            if name in names:
                names[name] = size

    def boot_id(self) -> str:
        booted, losses = super().boot_id(), self._disk.losses
        return f"{booted}/{losses}" if losses else booted

    def space(self) -> Space:
        space = super().space()
        return space._replace(usable_bytes=0) if self._disk.is_full else space


class _FaultyFile(DirectoryFile):
    __slots__ = ("_disk", "_name", "_parent")

    def __init__(self, storage: FaultyStorage, disk: FaultyDisk, path: str) -> None:
        super().__init__(storage, path)
        self._disk = disk
        self._parent, _, self._name = path.rpartition("/")

    def append(self, data: BytesLike) -> None:
        disk = self._disk
        if disk.is_full:
            raise StorageError(self._path, "append", ENOSPC)
        names = disk.unflushed_in(self._parent)
        if self._name not in names:
            names[self._name] = self.size
        super().append(data)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        names = self._disk.unflushed_in(self._parent)
        if names.get(self._name, 0) > size:
            names[self._name] = size

    def flush(self) -> None:
        super().flush()
        names = self._disk.unflushed_in(self._parent)
        if self._name in names:
            names[self._name] = self.size


def _lose(path: str, flushed: int, random: Random) -> None:
    unflushed = os.path.getsize(path) - flushed
    if unflushed <= 0:
        return
    kept = random.randint(0, unflushed)
    with open(path, "r+b") as file:
        file.truncate(flushed + kept)
        if kept and random.random() < 0.5:
            torn = random.randint(1, kept)
            file.seek(-torn, os.SEEK_END)
            file.write(bytes(torn))
