"""The seam to the disk: what the broker needs of files, whoever keeps them.

`trimtab.runtime.files` keeps them in a directory, `trimtab.sim.disk` in memory, where a crash
loses what was not flushed. Paths are relative, with `/` between parts. One thread (the loop's)
uses a storage; only `Storage.flush` works beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import (
    EDQUOT,
    EFBIG,
    EIO,
    EISDIR,
    EMFILE,
    ENFILE,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    EROFS,
    errorcode,
)
from os import strerror
from typing import NamedTuple, Protocol, TypeAlias

from trimtab.errors import KafkaError

BytesLike: TypeAlias = bytes | bytearray | memoryview

_REMEDIES = {
    ENOSPC: "; free space on the data directory's disk",
    EDQUOT: "; raise the disk quota of the broker's user",
    EFBIG: "; raise the limit on the size of files (ulimit -f), or lower segment.bytes",
    EMFILE: "; raise the limit on open files (ulimit -n), or lower max.connections",
    ENFILE: "; raise the system's limit on open files (sysctl fs.file-max)",
    EROFS: "; mount the data directory writable",
    EIO: "; the disk reports a hardware fault: check it",
    ENOENT: "; it was there: restore the data directory, or start with an empty one",
}

_NO_ROOM = (ENOSPC, EDQUOT, EFBIG)
"""What was written before is there."""

_NOT_THE_DISK = (EMFILE, ENFILE, EISDIR, ENOTDIR)
"""No descriptor is left, which passes; or something else is where one file should be."""


class StorageError(KafkaError):
    """The disk failed. Kafka's code for it on the wire is KAFKA_STORAGE_ERROR (56).

    Attributes:
        path: the file or directory, relative to the storage.
        errno: the operating system's error number, such as `errno.ENOSPC`.
    """

    def __init__(self, path: str, action: str, errno: int) -> None:
        self.path = path
        self.action = action
        self.errno = errno
        super().__init__(
            f"{path}: cannot {action}: {strerror(errno)} ({errorcode.get(errno, errno)})"
            f"{_REMEDIES.get(errno, '')}"
        )

    @property
    def fails_directory(self) -> bool:
        """Whether nothing in the directory can be relied on any more, as Kafka has it for every
        `IOException`; but not where the process has run out of descriptors, or a directory is where
        a file should be."""
        return self.errno not in _NOT_THE_DISK

    @property
    def is_for_want_of_room(self) -> bool:
        """Whether the disk, a quota or a limit is full: all that was written before is there."""
        return self.errno in _NO_ROOM

    def __reduce__(self) -> tuple[type[StorageError], tuple[str, str, int]]:
        return StorageError, (self.path, self.action, self.errno)


class Space(NamedTuple):
    """How large a volume is, and how much more this process may write to it; -1 if unknown."""

    total_bytes: int
    usable_bytes: int


class File(Protocol):
    """One append-only file. It comes into being, with its parents, at the first append.

    Every method raises `StorageError` when the disk fails. A file that somebody has deleted or
    moved away, or its directory, is not made again: `append` and `confirm` raise ENOENT, although
    the operating system would go on writing to what nobody can find any more.
    """

    @property
    def size(self) -> int:
        """Bytes in the file; 0 while it does not exist."""

    def append(self, data: BytesLike) -> None:
        """Writes all of `data` at the end. Empty data creates the file.

        After an error part of it may be there: `truncate` to a known size before going on.
        """

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`: fewer only where the file ends."""

    def truncate(self, size: int) -> None:
        """Cuts the file down to `size` bytes."""

    def flush(self) -> None:
        """Returns once everything appended survives a loss of power (fsync)."""

    def confirm(self) -> None:
        """Returns if the file is at its path, or was never made."""

    def close(self) -> None:
        """Lets go of what the open file holds; using it again opens it again."""


class Storage(Protocol):
    """A tree of files. Every method raises `StorageError` when the disk fails."""

    def open(self, path: str) -> File:
        """The file at `path`, whether it exists or not. Touches no disk yet."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> Sequence[str]:
        """Names of the files and directories in the directory `path` ("" is the root), in no
        order; none if it does not exist."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with all that is in it. Nothing there is no error."""

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory, replacing a file of the new name at once."""

    def read_file(self, path: str) -> bytes | None:
        """A small file's whole content; None if it does not exist."""

    def write_file(self, path: str, content: BytesLike, durable: bool = True) -> None:
        """Replaces a small file's content at once: a reader sees the old or the new, whole. Makes
        its parents, but for the root if that was deleted after `lock`: ENOENT.

        With `durable` it also survives a loss of power on return; without, it costs no fsync.
        """

    async def flush(self, paths: Sequence[str]) -> None:
        """Makes the named files durable without holding up the loop. Missing ones are no error:
        what has been deleted needs no flush."""

    def boot_id(self) -> str:
        """Which life of the machine this is: as long as it stays the same, what was written is
        there, flushed or not. Empty where that is not known."""

    def space(self) -> Space:
        """Of the volume that the files lie on."""

    def lock(self) -> None:
        """Claims the whole storage for this process until `close`.

        Raises:
            UsageError: someone else has it.
        """

    def close(self) -> None:
        """Closes every open file and gives up the lock."""
