"""A file of record batches, read by position: it knows nothing of indexes.

base offset: int64, length: int32, …, last offset delta: int32, …     see `batch_cy`
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import HEADER_BYTES, MAGIC, BatchHeader, CorruptBatch, verify
from trimtab.kafka.wire.batch_header import is_cut_short, read_whole_header
from trimtab.kafka.wire.end_markers import EndMarker, read_marker

# Base offset, batch length, last offset delta: enough to find where a batch ends, and much cheaper
# than parsing the whole header.
BOUNDS = Struct(">qi11xi")
BEFORE_LENGTH_ENDS = 12
MIN_LENGTH = HEADER_BYTES - BEFORE_LENGTH_ENDS
MAGIC_AT = 16
HEADERS_CHUNK = 64 * 1024
NO_END = 2**63 - 1

_INT32_MAX = 2**31 - 1


class BatchFile:
    """The batches of one segment, by their positions in its file.

    Attributes:
        base_offset: the segment's name; no record in it has a smaller offset.
        size: bytes of whole batches.
        generation: incremented when the file is truncated or closed.

    Args:
        suffix: the end of its file names while it is not part of the log.
        size: the size of its file, if known.
    """

    __slots__ = ("_directory", "_file", "_storage", "_suffix", "base_offset", "generation", "size")

    def __init__(
        self, storage: Storage, directory: str, base_offset: int, suffix: str, size: int | None
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._suffix = suffix
        self.base_offset = base_offset
        self.generation = 0
        self._file = storage.open(self.path(".log"))
        self.size = self._file.size if size is None else size

    def path(self, suffix: str) -> str:
        """The path of one of the segment's files."""
        return f"{self._directory}/{self.base_offset:020d}{suffix}{self._suffix}"

    @property
    def paths(self) -> tuple[str, str, str, str, str]:
        """The paths of its files: batches, offset index, time index, and aborted transactions and
        their CRC, which may be missing."""
        suffixes = ".log", ".index", ".timeindex", ".txnindex", ".txnindex.crc"
        log, index, time_index, transactions, crc = map(self.path, suffixes)
        return log, index, time_index, transactions, crc

    def close(self) -> None:
        self._file.close()

    def read_bytes(self, position: int, size: int) -> bytes:
        """Bytes of the file, without regard to batch boundaries."""
        return self._file.read(position, size)

    def batches(
        self,
        position: int,
        max_bytes: int,
        begin: int,
        end: int = NO_END,
        checks_crcs: bool = True,
    ) -> tuple[bytes, list[BatchHeader]]:
        """The whole batches within `max_bytes` from `position` on, and their headers: at least one,
        and none from the first damaged one on.

        Args:
            begin: no offset in them is smaller, such as the end of the batch before.
            end: they end at this offset or before.
            checks_crcs: whether a batch with a wrong CRC counts as damaged.

        Raises:
            CorruptData: as `headers`, about the batch at `position`.
        """
        read = verify if checks_crcs else read_whole_header
        wanted = max_bytes
        while True:
            chunk = self._file.read(position, wanted)
            found: list[BatchHeader] = []
            at = 0
            try:
                while not is_cut_short(chunk, at):
                    header = read(chunk, at)
                    self.check_offsets(position + at, header, begin, end)
                    found.append(header)
                    begin = header.next_offset
                    at += header.size
            except CorruptBatch as error:
                if not found:
                    raise self.corrupt(position, str(error)) from error
            except CorruptData:
                if not found:
                    raise
            if found:
                return chunk, found
            if len(chunk) < wanted:
                raise self.corrupt(position, "the file ends within a batch")
            wanted = self.batch_size(chunk, position)

    def headers(
        self, position: int = 0, end: int = NO_END, checks_crcs: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of every batch from `position` on.

        Args:
            end, checks_crcs: as for `batches`.

        Raises:
            CorruptData: a batch is damaged, its offsets do not come after those of the batch before
                or not before `end`, or the file ends within a batch.
        """
        begin = self.base_offset
        while position < self.size:
            for header in self.batches(position, HEADERS_CHUNK, begin, end, checks_crcs)[1]:
                yield position, header
                position += header.size
                begin = header.next_offset

    def marker_at(self, position: int, header: BatchHeader) -> EndMarker | None:
        """The marker in the control batch at a position; None if compaction has emptied it.

        Raises:
            CorruptData: it is no end of a transaction.
        """
        return read_marker(self._file.read(position, header.size), 0, header)

    # -- the bounds of one batch

    def bounds_at(self, position: int) -> tuple[int, int, int]:
        """Base offset, size and last offset of the batch at a position."""
        head = self._file.read(position, BOUNDS.size)
        if len(head) < BOUNDS.size:
            raise self.corrupt(position, "the file ends within a batch")
        base_offset, _, delta = BOUNDS.unpack(head)
        return base_offset, self.batch_size(head, position), base_offset + delta

    def begins_batch(self, data: bytes, at: int, first: int, last: int) -> bool:
        """Whether a batch with a base offset from `first` to `last` begins at `at`. A damaged index
        may point into the middle of a batch."""
        if not 0 <= at <= len(data) - BOUNDS.size:
            return False
        base_offset, length, _ = BOUNDS.unpack_from(data, at)
        return (
            first <= base_offset <= last and length >= MIN_LENGTH and data[at + MAGIC_AT] == MAGIC
        )

    def batch_size(self, chunk: bytes, position: int, at: int = 0) -> int:
        """The size of the batch at `at` in the chunk, `position` in the file."""
        if len(chunk) - at < BOUNDS.size:
            raise self.corrupt(position, "the file ends within a batch")
        length: int = BOUNDS.unpack_from(chunk, at)[1]
        if length < MIN_LENGTH:
            raise self.corrupt(position, f"length {length}")
        # Checked before memory is allocated for it.
        if position + BEFORE_LENGTH_ENDS + length > self.size:
            raise self.corrupt(position, "the file ends within a batch")
        return BEFORE_LENGTH_ENDS + length

    def check_offsets(
        self, position: int, header: BatchHeader, begin: int, end: int = NO_END
    ) -> None:
        """Checks that a batch's offsets are from `begin` to before `end` and fit into the indexes.

        Raises:
            CorruptData: they do not.
        """
        if header.base_offset < begin or header.last_offset - self.base_offset > _INT32_MAX:
            raise self.corrupt(
                position,
                f"offset {header.base_offset} is wrong: the batches before it end at {begin}",
            )
        if header.next_offset > end:
            raise self.corrupt(
                position, f"offset {header.base_offset} is wrong: the segment ends at {end}"
            )

    def corrupt(self, position: int, what: str) -> CorruptData:
        return CorruptData(f"{self.path('.log')}: no batch at position {position}: {what}")
