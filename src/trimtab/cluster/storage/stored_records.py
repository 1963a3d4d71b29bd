"""Batches that stay on disk until they are sent."""

from __future__ import annotations

from contextlib import suppress

from trimtab.cluster.storage.batch_file import BatchFile
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import CorruptData


class StoredRecords:
    """Whole batches of a segment that are read from disk piece by piece while a response is sent,
    so that a slow client costs no memory. If the segment is deleted before, up to 16 MiB of it are
    kept in memory; reading the rest fails.
    """

    __slots__ = ("__weakref__", "_generation", "_kept", "_position", "_segment", "_size")

    def __init__(self, segment: BatchFile, position: int, size: int) -> None:
        self._segment = segment
        self._position = position
        self._size = size
        self._generation = segment.generation
        self._kept: bytes | None = None

    def __len__(self) -> int:
        return self._size

    def read(self, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on.

        Raises:
            CorruptData: the log was truncated or closed since, or its segment was deleted and these
                batches were not kept, or the file is shorter than before.
            StorageError: the disk failed.
        """
        if self._kept is not None:
            return self._kept[start : start + size]
        wanted = min(size, self._size - start)
        if self._generation == self._segment.generation:
            data = self._segment.read_bytes(self._position + start, wanted)
            if len(data) == wanted:
                return data
        raise CorruptData(f"{self._segment.path('.log')}: truncated while it was being sent")

    def keep(self) -> None:
        """Reads the batches into memory, as the segment is about to be deleted."""
        with suppress(CorruptData, StorageError):  # `read` will raise it
            self._kept = self.read(0, self._size)
