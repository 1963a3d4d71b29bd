"""Producer snapshot files, `<offset>.snapshot`: the sequences of a log's idempotent producers up to
that offset. They are written without fsync, whenever a segment is sealed."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.errors import CorruptData
from trimtab.storage.producer_state import ProducerState
from trimtab.storage.storage import Storage

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
    ) -> tuple[ProducerState, int] | None:
        """The last undamaged snapshot at or before `end_offset`, and its offset; None if there is
        none.

        Raises:
            StorageError: the disk failed.
        """
        for offset in reversed(self._offsets):
            if offset > end_offset:
                continue
            snapshot = self._storage.read_file(self._path(offset))
            try:
                return ProducerState.decode(snapshot or b"", expiration_ms, now_ms), offset
            except CorruptData:  # not fsynced; an older snapshot or the batches replace it
                continue
        return None

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
