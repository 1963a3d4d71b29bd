"""One file of the controller's journal, with batches one after the other."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator

from trimtab.errors import CorruptData
from trimtab.storage.storage import Storage
from trimtab.wire.batch_cy import BatchHeader, read_header, read_headers, verify

SUFFIX = ".log"

_INDEX_BYTES = 4096
_MAGIC_AT = 16
_MAGIC = b"\2"
_MIN_BATCH_BYTES = 61

_log = logging.getLogger(__name__)


class Segment:
    """One file, with an index of its batches in memory.

    Attributes:
        base_offset: the offset of its first record.
        flushed_size: bytes that have been fsynced, and may be read.
    """

    __slots__ = ("_entries", "_file", "_storage", "base_offset", "flushed_size", "path", "size")

    def __init__(self, storage: Storage, directory: str, base_offset: int) -> None:
        self.path = f"{directory}/{base_offset:020d}{SUFFIX}"
        self.base_offset = base_offset
        self.size = 0
        self.flushed_size = 0
        self._storage = storage
        self._file = storage.open(self.path)
        # Offset and position of a batch every few KiB.
        self._entries: list[tuple[int, int]] = []

    def append(self, batch: bytes | bytearray, base_offset: int) -> None:
        """Append a batch. It may be read once `flushed_size` includes it."""
        self._file.append(batch)
        self._index(base_offset, self.size)
        self.size += len(batch)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`, which must be in this file. The first one
        is returned even if it is larger than `max_bytes`."""
        position = self._entries[bisect_right(self._entries, (offset, self.size)) - 1][1]
        while True:
            header = read_header(self._file.read(position, _MIN_BATCH_BYTES))
            if header.next_offset > offset:
                break
            position += header.size
        size = min(max(max_bytes, header.size), self.flushed_size - position)
        data = self._file.read(position, size)
        whole = sum(header.size for header in read_headers(data, allow_partial=True))
        return data[:whole]

    def recover(self, is_last: bool) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch. Truncates a torn tail, if this is the log's last file.

        Raises:
            CorruptData: a batch is damaged, other than by a torn last write.
        """
        data = memoryview(self._file.read(0, self._file.size))
        offset = self.base_offset
        while self.size < len(data):
            rest = data[self.size :]
            try:
                header = verify(rest)
            except CorruptData as error:
                if not is_last or _has_batch(rest):
                    raise CorruptData(
                        f"{self.path} at byte {self.size}: {error}; restore the file from a copy"
                    ) from error
                _log.warning(
                    "truncated a torn tail path=%s at=%d bytes=%d", self.path, self.size, len(rest)
                )
                self._file.truncate(self.size)
                break
            if header.base_offset != offset:
                raise CorruptData(
                    f"{self.path} at byte {self.size}: offset {header.base_offset} where {offset} "
                    "should be; restore the file from a copy"
                )
            self._index(offset, self.size)
            offset = header.next_offset
            self.size += header.size
            yield header, rest[: header.size]
        # The last batch may not have been fsynced before the crash.
        self._file.flush()
        self.flushed_size = self.size

    def close(self) -> None:
        self._file.close()

    def delete(self) -> None:
        self._file.close()
        self._storage.delete(self.path)

    def _index(self, offset: int, position: int) -> None:
        if not self._entries or position - self._entries[-1][1] >= _INDEX_BYTES:
            self._entries.append((offset, position))


def _has_batch(data: memoryview) -> bool:
    """Whether a whole batch follows a damaged one, which excludes a torn last write."""
    content = bytes(data)
    found = content.find(_MAGIC, _MAGIC_AT + 1)
    while found >= 0:
        try:
            verify(data, found - _MAGIC_AT)
        except CorruptData:
            found = content.find(_MAGIC, found + 1)
        else:
            return True
    return False
