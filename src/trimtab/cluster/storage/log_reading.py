"""What a partition's log answers: its batches, its offsets, and its leader epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trimtab.cluster.storage.indexed_file import Search
from trimtab.cluster.storage.leader_epochs import EpochEnd, LeaderEpochs
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_loader import find_all_aborted
from trimtab.cluster.storage.open_transactions import EndedTransaction
from trimtab.cluster.storage.producer_state import ProducerState
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.segment_list import SegmentList
from trimtab.cluster.storage.storage import Storage
from trimtab.cluster.storage.stored_records import StoredRecords
from trimtab.cluster.storage.transaction_index import find_aborted
from trimtab.kafka.errors import CorruptData, KafkaError
from trimtab.kafka.wire.batch_cy import BatchHeader

_REMEMBERED_READS = 16


class OffsetOutOfRange(KafkaError):
    """An offset that the log does not have: on the wire OFFSET_OUT_OF_RANGE (1)."""

    def __init__(self, directory: str, offset: int, start: int, end: int) -> None:
        super().__init__(f"{directory}: offset {offset} is not within {start}..{end}")


class ReadableLog:
    """The lowest layer of a `Log`: nothing here changes the log.

    Attributes:
        directory: its path in the storage, `<topic>-<partition>`.
        config: may be replaced at any time.
        log_start_offset: the offset of the oldest record that may be read.
        log_end_offset: the offset of the next record.
        epochs: its leader epochs.
        producers: the idempotent producers' sequences; `append` updates them.
        read_end: the offset after the last batch of the latest read that returned some.
    """

    __slots__ = (
        "_now_ms",
        "_reads",
        "_segments",
        "_storage",
        "config",
        "directory",
        "epochs",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "read_end",
    )

    def __init__(
        self, storage: Storage, directory: str, config: LogConfig, now_ms: Callable[[], int]
    ) -> None:
        self._storage = storage
        self._now_ms = now_ms
        self._segments = SegmentList()
        self.epochs = LeaderEpochs(storage, directory)
        self._reads: dict[int, tuple[Segment, int]] = {}
        self.directory = directory
        self.config = config
        self.log_start_offset = 0
        self.log_end_offset = self.read_end = 0
        self.producers = self._new_producers()

    # -- batches

    def read(
        self,
        offset: int,
        max_bytes: int,
        min_one: bool = True,
        end_offset: int | None = None,
        max_read_bytes: int | None = None,
    ) -> bytes | memoryview | StoredRecords:
        """Whole batches from the one that holds `offset` on, all from one segment.

        The first batch may begin before `offset`. Empty at the log's end, or if no batch fits into
        `max_bytes`. A large range is returned as `StoredRecords`, which are read when sent.

        Args:
            max_bytes: bytes to return at most.
            min_one: return the first batch even if it is larger than `max_bytes` (KIP-74).
            end_offset: return only batches that end before it, such as the high watermark; the
                log's end if None.
            max_read_bytes: a range that may be larger is returned as `StoredRecords`.

        Raises:
            OffsetOutOfRange: `offset` is before the log's start or after its end.
            CorruptData: the file has no valid batch where one must be.
        """
        log_end_offset = self.log_end_offset
        if end_offset is None or end_offset > log_end_offset:
            end_offset = log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise self._out_of_range(offset)
        if offset >= end_offset or (max_bytes <= 0 and not min_one):
            return b""
        place = self._reads.get(offset)
        if place is None or place[1] >= place[0].size:  # at the end of a segment since rolled
            place = self._segments.locate(offset)
            found = self._segments.active.next_offset if place is None else place[0].base_offset
            if not self.config.compacts and found > offset:
                raise CorruptData(
                    f"{self.directory}: no batch has offset {offset}, and the log ends at "
                    f"{log_end_offset}: a file is missing or damaged"
                )
            if place is None:
                return b""
        segment, position = place
        data, next_offset = segment.read(
            position, max(max_bytes, 0), min_one, end_offset, self.end_of(segment), max_read_bytes
        )
        if data:
            self.read_end = next_offset
            reads = self._reads
            reads[next_offset] = segment, position + len(data)
            if len(reads) > _REMEMBERED_READS:
                del reads[next(iter(reads))]
        return data

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Bytes of the batches from the one that holds `offset` to the one before `end_offset`."""
        if offset >= end_offset:
            return 0
        is_whole = end_offset >= self.log_end_offset
        return self._segments.bytes_between(offset, None if is_whole else end_offset)

    def headers(self, offset: int, end_offset: int | None = None) -> Iterator[BatchHeader]:
        """The headers of all batches from the one that holds `offset` on, to the one before
        `end_offset` if given.

        Raises:
            CorruptData: a batch is damaged.
        """
        end = self.log_end_offset if end_offset is None else end_offset
        return self._segments.headers(offset, end)

    def batches(self, max_bytes: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Every batch from the log start offset on, and its header; see `SegmentList.batches`."""
        return self._segments.batches(self.log_start_offset, self.end_of, max_bytes)

    def offset_for_timestamp(self, timestamp: int, end_offset: int | None = None) -> Search:
        """The first record whose timestamp (ms) is `timestamp` or later; None if there is none
        before `end_offset`, such as the high watermark."""
        end = self.log_end_offset if end_offset is None else end_offset
        return self._segments.find_timestamp(timestamp, self.log_start_offset, end)

    def offset_of_max_timestamp(self, end_offset: int | None = None) -> Search:
        """The first record with the largest timestamp (KIP-734); None if no record has a timestamp,
        or if that record is not before `end_offset`, as in Kafka."""
        found = yield from self._segments.find_max_timestamp(self.log_start_offset)
        if found is not None and end_offset is not None and found.offset >= end_offset:
            return None
        return found

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(self.directory, offset, self.log_start_offset, self.log_end_offset)

    # -- transactions

    def aborted_between(self, offset: int, end_offset: int) -> list[EndedTransaction]:
        """The aborted transactions with records from `offset` up to before `end_offset`, which is
        at most the last stable offset.

        Raises:
            CorruptData: a batch is damaged, so that a damaged index could not be built again.
        """
        segments = self._segments

        def find() -> list[EndedTransaction]:
            entries = (segment.aborted for segment in segments.since(offset))
            return find_aborted(entries, offset, end_offset)

        try:
            return find()
        except CorruptData as error:
            now_ms = self._now_ms()
            find_all_aborted(segments, self._new_producers, self.log_end_offset, now_ms, error)
        return find()

    def _new_producers(self) -> ProducerState:
        return ProducerState(self.config.producer_id_expiration_ms)

    # -- leader epochs

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The end offset of a leader epoch in this log, with which followers find the divergence.

        If no record has that epoch, the result is for the largest epoch below it. An epoch
        that has not begun here is unknown. The rules are those of `LeaderEpochFileCache`.
        """
        return self.epochs.end_of(epoch, self.log_end_offset)

    # -- segments

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.size

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment. The log start offset is there, or further on if
        records within the segment were deleted."""
        return self._segments.first_base_offset

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment being written."""
        return self._segments.active.base_offset

    @property
    def sealed_segments(self) -> Sequence[Segment]:
        """All segments but the active one, in order."""
        return self._segments.sealed

    def end_of(self, segment: Segment) -> int:
        """The offset after a segment's last one."""
        if segment is self._segments.active:
            return self.log_end_offset
        return self._segments.end_of_sealed(segment)

    def has_segments(self, group: Sequence[Segment]) -> bool:
        """Whether these sealed segments are all still in the log."""
        return self._segments.holds(group)
