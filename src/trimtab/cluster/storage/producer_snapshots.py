"""Producer snapshot files, `<offset>.snapshot`: a log's idempotent producers up to that offset,
with their sequences and open transactions. They are written without fsync, whenever a segment is
sealed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from trimtab.cluster.storage.producer_state import ProducerState
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import CorruptData

SNAPSHOT = "snapshot"
"""The extension of the files."""

_KEPT = 2


class ProducerSnapshots:
    """A log's producer snapshots.

    Args:
        offsets: the offsets of the existing files.
    """

    __slots__ = ("_directory", "_offsets", "_storage")

    def __init__(self, storage: Storage, directory: str, offsets: Iterable[int] = ()) -> None:
        self._storage = storage
        self._directory = directory
        self._offsets = sorted(offsets)

    @property
    def latest(self) -> int:
        """The offset of the last snapshot; 0 if there is none."""
        return self._offsets[-1] if self._offsets else 0

    def load(
        self, end_offset: int, expiration_ms: int, now_ms: int
    ) -> Iterator[tuple[ProducerState, int]]:
        """The undamaged snapshots at or before `end_offset`, the last one first, each with its
        offset.

        Raises:
            StorageError: the disk failed.
        """
        for offset in reversed(self._offsets):
            if offset > end_offset:
                continue
            snapshot = self._storage.read_file(self._path(offset))
            # One that was not fsynced may be damaged; an older one or the batches replace it.
            with suppress(CorruptData):
                yield ProducerState.decode(snapshot or b"", expiration_ms, now_ms), offset

    def save(self, producers: ProducerState, offset: int) -> None:
        """Writes a snapshot, and deletes the oldest ones beyond two.

        Raises:
            StorageError: the disk failed.
        """
        self._storage.write_file(self._path(offset), producers.encode(), durable=False)
        if offset not in self._offsets:
            self._offsets.append(offset)
        while len(self._offsets) > _KEPT:
            self._storage.delete(self._path(self._offsets.pop(0)))

    def forget_from(self, offset: int) -> None:
        """Deletes the snapshots beyond `offset`, the log's new end.

        Raises:
            StorageError: the disk failed.
        """
        while self._offsets and self._offsets[-1] > offset:
            self._storage.delete(self._path(self._offsets.pop()))

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}.{SNAPSHOT}"
