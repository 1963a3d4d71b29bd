"""The files in which what a log knows of its producers survives: `<offset>.snapshot`, each with
the sequences up to that offset. They are written without fsync, whenever a segment is sealed."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.errors import CorruptData
from trimtab.storage.producer_state import ProducerState
from trimtab.storage.storage import Storage

SNAPSHOT = "snapshot"
"""What the names of the files end with, after a dot."""

_KEPT = 2


class ProducerSnapshots:
    """A log's producer snapshots.

    Args:
        offsets: of those that are there.
    """

    __slots__ = ("_directory", "_offsets", "_storage")

    def __init__(self, storage: Storage, directory: str, offsets: Iterable[int] = ()) -> None:
        self._storage = storage
        self._directory = directory
        self._offsets = sorted(offsets)

    @property
    def latest(self) -> int:
        """The offset up to which the last one goes; 0 if there is none."""
        return self._offsets[-1] if self._offsets else 0

    def load(
        self, end_offset: int, expiration_ms: int, now_ms: int
    ) -> tuple[ProducerState, int] | None:
        """The last snapshot up to `end_offset` that is whole, and the offset up to which it goes;
        None if there is none.

        Raises:
            StorageError: the disk failed.
        """
        for offset in reversed(self._offsets):
            if offset > end_offset:
                continue
            snapshot = self._storage.read_file(self._path(offset))
            try:
                return ProducerState.decode(snapshot or b"", expiration_ms, now_ms), offset
            except CorruptData:  # written without fsync: an older one, or the batches, will do
                continue
        return None

    def save(self, producers: ProducerState, offset: int) -> None:
        """Writes one, and deletes the oldest that are too many.

        Raises:
            StorageError: the disk failed.
        """
        self._storage.write_file(self._path(offset), producers.encode(), durable=False)
        if offset not in self._offsets:
            self._offsets.append(offset)
        while len(self._offsets) > _KEPT:
            self._storage.delete(self._path(self._offsets.pop(0)))

    def forget_from(self, offset: int) -> None:
        """Deletes those that go beyond `offset`, the log's new end.

        Raises:
            StorageError: the disk failed.
        """
        while self._offsets and self._offsets[-1] > offset:
            self._storage.delete(self._path(self._offsets.pop()))

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}.{SNAPSHOT}"
