"""The interface to the disk: the file operations that brokers and controllers need.

`trimtab.cluster.disk.files` implements it with a directory, `trimtab.sim.disk` in memory, where a
crash loses unflushed data. Paths are relative, with `/` between parts. Only the loop's thread uses
a storage, except that `Storage.flush` does its work on another.
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

from trimtab.kafka.errors import KafkaError

BytesLike: TypeAlias = bytes | bytearray | memoryview

_REMEDIES = {
    ENOSPC: "; free space on the data directory's disk",
    EDQUOT: "; raise the disk quota of the broker's user",
    EFBIG: "; raise the limit on the size of files (ulimit -f), or lower segment.bytes",
    EMFILE: "; raise the limit on open files (ulimit -n), or lower max.connections",
    ENFILE: "; raise the system's limit on open files (sysctl fs.file-max)",
    EROFS: "; mount the data directory writable",
    EIO: "; the disk reports a hardware fault: check it",
    ENOENT: "; it existed before: restore the data directory, or start with an empty one",
}

_FULL = (ENOSPC, EDQUOT, EFBIG)
"""A disk, quota or size limit is full; data written before is intact."""

_NOT_DISK_FAILURES = (EMFILE, ENFILE, EISDIR, ENOTDIR)
"""No file descriptor is left, which is temporary; or a directory is in the place of a file, or a
file in that of a directory."""


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
        """Whether the whole directory counts as failed. Kafka says so for every `IOException`;
        here it is False if the process is out of file descriptors, or a directory is in the place
        of a file."""
        return self.errno not in _NOT_DISK_FAILURES

    @property
    def is_disk_full(self) -> bool:
        """Whether a disk, quota or size limit is full; data written before is intact."""
        return self.errno in _FULL

    def __reduce__(self) -> tuple[type[StorageError], tuple[str, str, int]]:
        return StorageError, (self.path, self.action, self.errno)


class Space(NamedTuple):
    """A volume's size, and the bytes that this process may still write to it; -1 if unknown."""

    total_bytes: int
    usable_bytes: int


class File(Protocol):
    """One append-only file. The first append creates it and its parent directories.

    Every method raises `StorageError` when the disk fails. If the file or its directory has been
    deleted or moved from outside, it is not created again: `append` and `confirm` raise ENOENT,
    although the operating system would still write to the unlinked file.
    """

    @property
    def size(self) -> int:
        """Bytes in the file; 0 while it does not exist."""

    def append(self, data: BytesLike) -> None:
        """Writes all of `data` at the end. Empty data creates the file.

        After an error the file may have part of `data`: `truncate` it before the next append.
        """

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`: fewer only where the file ends."""

    def truncate(self, size: int) -> None:
        """Cuts the file down to `size` bytes."""

    def flush(self) -> None:
        """Returns once all appended data survives a loss of power (fsync)."""

    def confirm(self) -> None:
        """Raises ENOENT if the file was created but is not at its path any more."""

    def close(self) -> None:
        """Closes the file descriptor; the next use opens the file again."""


class Storage(Protocol):
    """A tree of files. Every method raises `StorageError` when the disk fails."""

    def open(self, path: str) -> File:
        """The file at `path`, which need not exist. Does not access the disk yet."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> Sequence[str]:
        """Names of the files and directories in the directory `path` ("" is the root), in no
        order; none if it does not exist."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with its contents. A missing path is no error."""

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory, atomically replacing a file of the new name."""

    def read_file(self, path: str) -> bytes | None:
        """A small file's whole content; None if it does not exist."""

    def write_file(self, path: str, content: BytesLike, durable: bool = True) -> None:
        """Replaces a small file's content atomically. Creates its parent directories, but not the
        root: ENOENT if that was deleted after `lock`.

        Args:
            durable: fsync, so that the content survives a loss of power when this returns.
        """

    async def flush(self, paths: Sequence[str]) -> None:
        """Fsyncs the named files without blocking the loop. Missing files are skipped, as they
        have been deleted."""

    def boot_id(self) -> str:
        """Identifies the machine's current boot; empty if unknown. While it stays the same, data
        written without fsync is not lost."""

    def space(self) -> Space:
        """The size and free space of the volume that holds the files."""

    def lock(self) -> None:
        """Locks the storage for this process until `close`.

        Raises:
            UsageError: another process or node has locked it.
        """

    def close(self) -> None:
        """Closes all files and releases the lock."""
