"""The controller's journal: the partition `__cluster_metadata-0`, in Kafka's own formats.

One decision is one record batch, so it is there whole or not at all. Kafka's
`DumpLogSegments --cluster-metadata-decoder` reads the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from trimtab.errors import CorruptData
from trimtab.wire.batch_cy import BatchBuilder, read_header, read_records, restamp, verify
from trimtab.wire.messages.metadata_records import decode_record, encode_record

TOPIC = "__cluster_metadata"
PATH = f"{TOPIC}-0/00000000000000000000.log"

LEADER_EPOCH = 1
"""There is one controller and it is never deposed."""

_BATCH_LIMIT = 2**31 - 1
_MIN_BATCH_BYTES = 61

_log = logging.getLogger(__name__)


class JournalFile(Protocol):
    """The file the journal is in."""

    @property
    def size(self) -> int: ...

    def append(self, data: bytes | bytearray | memoryview) -> object: ...

    def read(self, position: int, size: int) -> bytes: ...

    def truncate(self, size: int) -> object: ...

    def flush(self) -> object: ...

    def close(self) -> object: ...


class JournalStorage(Protocol):
    """Where the journal's file is opened, created if it is not there."""

    def open(self, path: str) -> JournalFile: ...


class Journal:
    """An append-only sequence of metadata records.

    Call `replay` first: it finds the end. `next_offset` is the offset of the next record.
    """

    def __init__(self, storage: JournalStorage, now_ms: Callable[[], int]) -> None:
        self._file = storage.open(PATH)
        self._now_ms = now_ms
        self.next_offset = 0

    def replay(self) -> Iterator[Any]:
        """Every record from the first; cuts off a last batch that was not written whole.

        Raises:
            CorruptData: a batch before the last one is damaged.
        """
        data = memoryview(self._file.read(0, self._file.size))
        position = 0
        while position < len(data):
            size = _whole_batch(data, position)
            if size is None:
                _log.warning(
                    "cut off a torn tail journal=%s at=%d bytes=%d",
                    PATH,
                    position,
                    len(data) - position,
                )
                self._file.truncate(position)
                return
            batch = data[position : position + size]
            header = read_header(batch, 0)
            if header.base_offset != self.next_offset:
                raise CorruptData(
                    f"{PATH} at byte {position}: offset {header.base_offset} where "
                    f"{self.next_offset} should be; restore the file from a copy"
                )
            for record in read_records(TOPIC, 0, batch, header.base_offset):
                if record.value is None:
                    raise CorruptData(f"{PATH}: record {record.offset} has no value")
                yield decode_record(record.value)
            self.next_offset = header.next_offset
            position += size

    def append(self, records: Iterable[Any]) -> None:
        """Write down one decision, whole, and force it to disk.

        Whatever the file raises is raised; the decision is then not in the journal.
        """
        builder = BatchBuilder(_BATCH_LIMIT)
        now = self._now_ms()
        for record in records:
            builder.append(now, None, encode_record(record), ())
        count = builder.count
        if not count:
            return
        batch = bytearray(builder.build())
        restamp(batch, 0, self.next_offset, LEADER_EPOCH)
        size = self._file.size
        try:
            self._file.append(batch)
            self._file.flush()
        except BaseException:
            self._file.truncate(size)
            raise
        self.next_offset += count

    def close(self) -> None:
        self._file.close()


def _whole_batch(data: memoryview, position: int) -> int | None:
    """The size of the batch at this position; None if it is the last one and torn."""
    rest = len(data) - position
    if rest < _MIN_BATCH_BYTES:
        return None
    size = 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
    if size > rest:
        return None
    try:
        verify(data, position, size)
    except CorruptData as error:
        if size == rest:
            return None
        raise CorruptData(
            f"{PATH} at byte {position}: {error}; restore the file from a copy"
        ) from error
    return size
