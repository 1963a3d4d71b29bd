"""A partition's log: its segments, from the oldest record kept to the log end offset.

    log start offset                  recovery point     high watermark     log end offset
           ▼                                 ▼                  ▼                  ▼
    [segment 0 ········][segment 4711 ·········][segment 9801 (active) ···········]

Whole batches are appended and read, as the producer sent them. A leader's log writes base offset
and leader epoch into their headers; a follower's log keeps the leader's. Records are decoded only
to find one by its timestamp. Offsets rise, but compaction leaves gaps. The files are those of
Kafka's `UnifiedLog`, and Kafka's tools can read them:

    <base offset>.log .index .timeindex     see `segment`
    ... .cleaned and ... .swap              segments that compaction writes, see `cleaner`
    <base offset>.txnindex                  the aborted transactions, see `transaction_index`
    <offset>.snapshot                       the idempotent producers up to that offset
    leader-epoch-checkpoint                 the start offset of each leader epoch

More than 600 lines, because every operation changes the same offsets together; the rest is in the
modules around it: segments, leader epochs, producers, loading, compaction.

A log is used from one thread. Appended batches can be read at once. They are fsynced by the next
checkpoint after their segment was rolled, at the end, or by `flush.messages` and `flush.ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EIO

from trimtab.errors import CorruptData
from trimtab.records import NO_TIMESTAMP, TimestampType
from trimtab.storage.leader_epochs import EpochEnd, LeaderEpoch, LeaderEpochs
from trimtab.storage.log_answers import AppendInfo, OffsetOutOfRange
from trimtab.storage.log_changes import LogChanges
from trimtab.storage.log_config import LogConfig
from trimtab.storage.log_files import CLEANED, list_files
from trimtab.storage.log_loader import Loader, find_all_aborted, load_producers
from trimtab.storage.open_transactions import EndedTransaction
from trimtab.storage.producer_snapshots import ProducerSnapshots
from trimtab.storage.producer_state import ProducerState
from trimtab.storage.retention import count_expired
from trimtab.storage.segment import BatchSize, Search, Segment
from trimtab.storage.segment_list import SegmentList
from trimtab.storage.storage import Storage, StorageError
from trimtab.storage.stored_records import StoredRecords
from trimtab.storage.transaction_index import find_aborted
from trimtab.wire.batch_cy import BatchHeader, restamp
from trimtab.wire.end_markers import read_marker

_log = logging.getLogger(__name__)

_INT32_MAX = 2**31 - 1
_REMEMBERED_READS = 16


class Log:
    """One partition's log. `Log.open` makes one.

    Attributes:
        directory: its path in the storage, `<topic>-<partition>`.
        config: may be replaced at any time.
        log_start_offset: the offset of the oldest record that may be read.
        log_end_offset: the offset of the next record.
        recovery_point: records before it have been fsynced.
        producers: the idempotent producers' sequences; `append` updates them.
        read_end: the offset after the last batch of the latest read that returned some.
        truncations: how often the log has been truncated.
        is_open: False once the log was closed or abandoned.
    """

    __slots__ = (
        "_changes",
        "_epochs",
        "_failure",
        "_flushed_ms",
        "_has_files",
        "_high_watermark",
        "_now_ms",
        "_reads",
        "_segments",
        "_snapshots",
        "_storage",
        "config",
        "directory",
        "is_open",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "read_end",
        "recovery_point",
        "truncations",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        config: LogConfig,
        now_ms: Callable[[], int],
        changes: LogChanges,
    ) -> None:
        self._storage = storage
        self._changes = changes
        self._high_watermark = 0
        self._has_files = True
        self._now_ms = now_ms
        self._flushed_ms = now_ms()
        self._failure: StorageError | None = None
        self._segments = SegmentList()
        self._epochs = LeaderEpochs(storage, directory)
        self._snapshots = ProducerSnapshots(storage, directory)
        self._reads: dict[int, tuple[Segment, int]] = {}
        self.directory = directory
        self.config = config
        self.log_start_offset = 0
        self.log_end_offset = self.read_end = 0
        self.recovery_point = 0
        self.truncations = 0
        self.is_open = True
        self.producers = ProducerState(config.producer_id_expiration_ms)

    @classmethod
    def open(
        cls,
        storage: Storage,
        directory: str,
        config: LogConfig,
        now_ms: Callable[[], int],
        *,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        high_watermark: int = 0,
        clean: bool = False,
        changes: LogChanges | None = None,
        is_new: bool = False,
    ) -> Log:
        """Open the log in a directory, or an empty one; recovers the log after a crash.

        Args:
            now_ms: the wall clock, ms since the epoch.
            log_start_offset: from the checkpoint; records before it are not read. Ignored if the
                log ends before it.
            recovery_point: from the checkpoint. From its segment on, every batch's CRC is checked,
                the log is truncated at the first torn or corrupt batch, and the indexes are
                rebuilt. Nothing is checked if the log ends there.
            high_watermark: from the checkpoint.
            clean: the log was closed cleanly. If it does not end at the recovery point all the
                same, all of it is checked.
            changes: where the log registers its changes.
            is_new: the directory is known not to exist. It is created by the first append: ten
                thousand empty logs cost no disk access.

        Raises:
            StorageError: the disk failed.
        """
        log = cls(storage, directory, config, now_ms, changes or LogChanges())
        if is_new:
            log._has_files = False
            interval = config.index_interval_bytes
            log._segments.add(Segment(storage, directory, 0, interval, now_ms(), size=0))
        else:
            is_damaged = log._load(log_start_offset, recovery_point, high_watermark, clean)
            if is_damaged or high_watermark > log.log_end_offset:
                log._changes.on_loss()
            log.high_watermark = high_watermark
        return log

    # -- writing

    def append(
        self, records: memoryview, leader_epoch: int, headers: Sequence[BatchHeader]
    ) -> AppendInfo:
        """Assigns the next offsets to the batches, writes offsets and leader epoch into their
        headers, and appends them.

        Args:
            records: writable; one or more verified batches and nothing else.
            leader_epoch: the partition's; not lower than in any append before.
            headers: the batches' headers, in order.

        Raises:
            StorageError: nothing has been stored; the log usually accepts further appends.
        """
        if self._failure is not None:
            raise self._failure
        first_offset = offset = self.log_end_offset
        epochs = self._epochs
        if leader_epoch > epochs.latest:
            epochs.begin(leader_epoch, first_offset)
        if epochs.has_changed:
            self._save_epochs()
        position = 0
        max_timestamp = NO_TIMESTAMP
        for header in headers:
            restamp(records, position, offset, leader_epoch)
            position += header.size
            offset += header.last_offset_delta + 1
            if header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp

        active = self._segments.active
        if active.size and self._must_roll(position, offset, max_timestamp):
            self.roll()
            active = self._segments.active
        try:
            active.append(records, headers, first_offset)
        except StorageError as error:
            self._undo(self._segments.active.discard_torn_bytes, error)
            raise
        self.log_end_offset = offset

        batch_offset = first_offset
        at = 0
        for header in headers:
            if header.producer_id >= 0:
                self._note_batch(records, at, header, batch_offset, self._now_ms())
            batch_offset += header.last_offset_delta + 1
            at += header.size
        if self.config.flushes_early:
            self.flush_if_due()
        stamped = headers[0].timestamp_type is TimestampType.LOG_APPEND_TIME
        return AppendInfo(
            first_offset, offset - 1, max_timestamp, max_timestamp if stamped else NO_TIMESTAMP
        )

    def append_replicated(self, records: memoryview, headers: Sequence[BatchHeader]) -> None:
        """Appends batches from a leader, with the leader's offsets and leader epochs.

        Offsets may have gaps, from compaction, but must rise.

        Args:
            records: one or more verified batches and nothing else.
            headers: the batches' headers, in order.

        Raises:
            CorruptData: a batch begins before the log's end, or before the end of the previous
                batch; nothing has been stored.
            StorageError: only the batches before the new `log_end_offset` have been stored.
        """
        if self._failure is not None:
            raise self._failure
        offset = self.log_end_offset
        max_timestamp = NO_TIMESTAMP
        size = 0
        for header in headers:
            if header.base_offset < offset:
                raise CorruptData(
                    f"{self.directory}: the leader sent a batch at offset {header.base_offset}, "
                    f"but the batches before it end at {offset}"
                )
            offset = header.base_offset + header.last_offset_delta + 1
            size += header.size
            if header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp
        if self._must_roll(size, offset, max_timestamp):
            self._append_rolling(records, headers)
        else:
            self._append_placed(records, headers)

    def _append_rolling(self, records: memoryview, headers: Sequence[BatchHeader]) -> None:
        """Appends batches to several segments, by `segment.bytes` and the other limits."""
        begin = first = end = size = 0
        max_timestamp = NO_TIMESTAMP
        for index, header in enumerate(headers):
            newest = max(max_timestamp, header.max_timestamp)
            if self._must_roll(size + header.size, header.next_offset, newest):
                if size:
                    self._append_placed(records[begin:end], headers[first:index])
                self._roll_for(header)
                begin, first, size = end, index, 0
                newest = header.max_timestamp
            max_timestamp = newest
            size += header.size
            end += header.size
        self._append_placed(records[begin:end], headers[first:])

    def _append_placed(self, records: memoryview, headers: Sequence[BatchHeader]) -> None:
        self._begin_files()
        try:
            self._segments.active.append(records, headers)
        except StorageError as error:
            self._undo(self._segments.active.discard_torn_bytes, error)
            raise
        last = headers[-1]
        self.log_end_offset = last.base_offset + last.last_offset_delta + 1
        now = None
        at = 0
        for header in headers:
            if header.producer_id >= 0:
                if now is None:
                    now = self._now_ms()
                self._note_batch(records, at, header, header.base_offset, now)
            at += header.size
        epochs = self._epochs
        epoch = epochs.latest
        if headers[0].leader_epoch != epoch or last.leader_epoch != epoch:
            for header in headers:
                if header.leader_epoch >= 0:
                    epochs.begin(header.leader_epoch, header.base_offset)
        if epochs.has_changed:
            self._save_epochs()
        if self.config.flushes_early:
            self.flush_if_due()

    def _roll_for(self, header: BatchHeader) -> None:
        """Begins a new segment for a leader's batch."""
        if header.last_offset - self.log_end_offset <= _INT32_MAX:
            if self._segments.active.size:
                self.roll()
                return
            if header.last_offset - self._segments.active.base_offset <= _INT32_MAX:
                return
        # The gap before the batch exceeds the 32 bits of an index entry. Begin the segment at the
        # batch's offset; recovery accepts such a gap between segments.
        if self._segments.active.size:
            self._seal_active(header.base_offset)
        else:
            with self._failing():
                self._segments.drop_last()
                self._begin_at(header.base_offset)

    def roll(self) -> None:
        """Seals the active segment, unless it is empty, and begins the next.

        Raises:
            StorageError: the active segment stays the active one.
        """
        last = self._segments.active.last_header()
        if last is not None:
            # Not at `log_end_offset`, which after a truncation may be beyond the last batch:
            # recovery takes a gap between segments for lost records.
            self._seal_active(last.next_offset)

    def _seal_active(self, next_base_offset: int) -> None:
        active = self._segments.active
        active.confirm()  # otherwise writing the next file would recreate a deleted directory
        active.save_indexes()
        self._snapshots.save(self.producers, self.log_end_offset)
        segment = self._segment(next_base_offset)
        try:
            segment.create()
        except StorageError as error:
            self._undo(segment.delete, error)
            raise
        active.seal()
        self._segments.add(segment)
        self._changes.checkpoints[self] = None

    def flush(self) -> None:
        """Returns once the whole log is fsynced.

        Raises:
            StorageError: data may be lost; the log refuses appends until it is reopened.
        """
        if self._failure is not None:
            raise self._failure
        with self._failing():  # the kernel may have dropped the pages; fsync again proves nothing
            for segment in self._segments.since(self.recovery_point):
                segment.flush()
        self.recovery_point = self.log_end_offset
        self._flushed_ms = self._now_ms()
        self._changes.checkpoints[self] = None
        self._changes.unflushed.pop(self, None)

    def _fail(self, error: StorageError) -> None:
        self._failure = error
        self._changes.on_loss()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A block that leaves the log unusable if the disk fails within it."""
        try:
            yield
        except StorageError as error:
            self._fail(error)
            raise

    def flush_if_due(self) -> None:
        """Flushes if `flush.messages` or `flush.ms` is reached."""
        unflushed = self.log_end_offset - self.recovery_point
        if not unflushed:
            return
        if (
            unflushed >= self.config.flush_messages
            or self._now_ms() - self._flushed_ms >= self.config.flush_ms
        ):
            self.flush()
        else:
            self._changes.unflushed[self] = None

    async def flush_sealed(self) -> None:
        """Fsyncs the sealed segments without blocking the loop, and raises the recovery point to
        the active segment.

        Raises:
            StorageError: as `flush`.
        """
        if self._failure is not None:
            return
        active = self._segments.active
        sealed = self._segments.since(self.recovery_point)[:-1]
        recovery_point = active.base_offset
        truncations = self.truncations
        with self._failing():
            active.confirm()
            if sealed:
                await self._storage.flush([path for each in sealed for path in each.flushed_paths])
        if self.truncations == truncations and sealed:
            self.recovery_point = max(self.recovery_point, recovery_point)

    def truncate(self, offset: int) -> None:
        """Removes every batch that has a record at `offset` or later, and their leader epochs and
        producer states. Epochs that began at the log's end and have no record are removed too.

        Raises:
            StorageError: not all was removed, or the rest is damaged; the log refuses appends.
        """
        if self._failure is not None:
            raise self._failure
        committed = min(offset, self._high_watermark)
        with self._failing():
            try:
                if offset >= self.log_end_offset:
                    self._forget_from(self.log_end_offset)
                elif offset >= self.first_base_offset:
                    self._truncate(offset)
                else:
                    self.restart_at(offset)
                return
            except CorruptData as error:
                lower, cause = self._segments.since(offset - 1)[0].base_offset, error
            if lower < committed:
                # Others count on the committed records. The next run deletes the damaged ones, and
                # tells the controller that this broker has lost records (KIP-966).
                _log.error("%s: cannot truncate to %d: %s", self.directory, offset, cause)
                raise StorageError(self.directory, "read what was written", EIO) from cause
            # Truncate further; the follower fetches the missing batches again.
            _log.warning("%s: truncates to %d, not %d: %s", self.directory, lower, offset, cause)
            self.truncate(lower)

    def _truncate(self, offset: int) -> None:
        segment = self._segments.since(offset)[0]
        end_offset = offset
        position: int | None = 0
        if offset > segment.base_offset:
            position = segment.locate(offset)
            if position is not None:
                end_offset = min(offset, next(segment.headers(position))[1].base_offset)
        self._lower_checkpoints(end_offset)
        while len(self._segments) > 1 and self._segments.active.base_offset >= offset:
            self._segments.cut_off_last()
        if position is not None and segment is self._segments.active:
            segment.truncate(position)
        self.log_end_offset = end_offset
        self.high_watermark = self._high_watermark
        self._forget_from(end_offset)
        self.producers = self._load_producers(end_offset, self._high_watermark)

    def restart_at(self, offset: int) -> None:
        """Deletes all records, epochs and producer states, and continues at `offset`. A follower
        does so if the leader no longer has the records after the follower's log end.

        Raises:
            StorageError: only a part was deleted; the log refuses appends until it is recovered.
        """
        if self._failure is not None:
            raise self._failure
        self._lower_checkpoints(offset)
        with self._failing():
            self._segments.delete_removed()
            while self._segments:
                self._segments.drop_last()
            self.producers = self._new_producers()
            self._forget_from(-1)
            self._begin_at(offset)
        self.log_start_offset = self.recovery_point = offset
        self.high_watermark = offset
        self._changes.checkpoints[self] = None

    def _lower_checkpoints(self, offset: int) -> None:
        """Lowers all checkpoints to `offset` before the log is truncated to it: a higher one must
        not be on disk when other batches are written there."""
        self._changes.before_truncation(self, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.truncations += 1
        self._reads.clear()

    def delete_records_before(self, offset: int) -> None:
        """Raises the log start offset; `enforce_retention` deletes the segments before it.

        Raises:
            OffsetOutOfRange: `offset` is beyond the log's end.
        """
        if offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._changes.checkpoints[self] = None
            if self._high_watermark < offset:
                self.high_watermark = offset

    def enforce_retention(self, end_offset: int | None = None) -> int:
        """Deletes the oldest segments by `retention.ms`, `retention.bytes` and the log start
        offset. If all have expired, rolls the active one and deletes it too.

        Args:
            end_offset: no record at or after it is deleted (the high watermark).

        Returns:
            The number of segments deleted.

        Raises:
            StorageError: the segments left the log, but a file could not be deleted. The next call
                retries it before it deletes another: a gap would look like lost records.
        """
        segments = self._segments
        if self._failure is not None or (not segments.active.size and len(segments) == 1):
            return 0
        segments.delete_removed()
        expired = count_expired(
            *(segments, self.config, self.log_start_offset, self.log_end_offset),
            *(self.log_end_offset if end_offset is None else end_offset, self._now_ms()),
        )
        if not expired:
            return 0
        if expired == len(segments):
            self.roll()
        self._reads.clear()
        segments.remove_first(expired)
        self.log_start_offset = max(self.log_start_offset, self.first_base_offset)
        if self._high_watermark < self.log_start_offset:
            self.high_watermark = self.log_start_offset
        self._changes.checkpoints[self] = None
        self._epochs.forget_before(self.log_start_offset)
        segments.delete_removed()
        return expired

    def close(self) -> None:
        """Flushes, writes indexes and a producer snapshot, and closes the files. A failed log is
        only closed; the next `open` recovers it."""
        try:
            if self._failure is None and self._has_files:
                for segment in self._segments:
                    segment.save_indexes(durable=True)
                self.flush()
                if self.log_end_offset > self._snapshots.latest:
                    self._snapshots.save(self.producers, self.log_end_offset)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the files without writing; for a log that has failed or will be deleted."""
        self.is_open = False
        for segment in self._segments:
            segment.close()

    # -- reading

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
            if not self.config.compacts and (
                self._ends_after(offset) if place is None else place[0].base_offset > offset
            ):
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

    def _ends_after(self, offset: int) -> bool:
        """Whether the last batch, which may end before the log, ends after this offset."""
        last = self._segments.active.last_header()
        return last is not None and last.next_offset > offset

    def sizes(self, offset: int, end_offset: int) -> list[BatchSize]:
        """Sizes and timestamps of some batches from the one that holds `offset` on: as many as one
        small read covers. No batch begins at `end_offset` or later.

        Raises:
            OffsetOutOfRange, CorruptData: as `read`.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise self._out_of_range(offset)
        return self._segments.sizes(offset, min(end_offset, self.log_end_offset))

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
            CorruptData: a file has no valid batch where one must be.
        """
        end = self.log_end_offset if end_offset is None else end_offset
        return self._segments.headers(offset, end)

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

    @property
    def high_watermark(self) -> int:
        """Records before it are committed. Set by the partition; a value outside the log is
        replaced by the log's start or end."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        if offset != self._high_watermark:
            self._high_watermark = offset
            self._changes.high_watermarks[self] = None

    @property
    def last_stable_offset(self) -> int:
        """Records before it are committed, and their transactions, if any, have ended (KIP-98)."""
        high_watermark = self._high_watermark
        first = self.producers.transactions.first_unstable(high_watermark)
        if first is None or first >= high_watermark:
            return high_watermark
        return max(first, self.log_start_offset)

    def aborted_between(self, offset: int, end_offset: int) -> list[EndedTransaction]:
        """The aborted transactions with records from `offset` up to before `end_offset`, which is
        at most the last stable offset.

        Raises:
            CorruptData: a batch is damaged, so that a damaged index could not be built again.
        """
        segments = self._segments
        try:
            return find_aborted(segments.aborted_since(offset), offset, end_offset)
        except CorruptData as error:
            now_ms = self._now_ms()
            find_all_aborted(segments, self._new_producers, self.log_end_offset, now_ms, error)
        return find_aborted(segments.aborted_since(offset), offset, end_offset)

    @property
    def leader_epochs(self) -> Sequence[LeaderEpoch]:
        """The leader epochs, ascending; the last one is current."""
        return self._epochs.entries

    @property
    def latest_epoch(self) -> int:
        """The current leader epoch; -1 if none has begun."""
        return self._epochs.latest

    @property
    def has_confirmed_epoch(self) -> bool:
        """Whether the file of leader epochs had the last batch's epoch, too. A batch's CRC does
        not cover its leader epoch."""
        return self._epochs.is_confirmed

    def forget_epochs_after(self, epoch: int) -> None:
        """Removes the epochs above `epoch`; their batches count as written in an earlier epoch."""
        self._epochs.forget_after(epoch)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The end offset of a leader epoch in this log, with which followers find the divergence.

        If no record has that epoch, the result is for the largest epoch below it. An epoch
        that has not begun here is unknown. The rules are those of `LeaderEpochFileCache`.
        """
        return self._epochs.end_of(epoch, self.log_end_offset)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.size

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
    def has_failed(self) -> bool:
        """Whether the disk failed so that the log refuses appends until it is recovered."""
        return self._failure is not None

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    # -- compaction

    @property
    def sealed_segments(self) -> Sequence[Segment]:
        """All segments but the active one, in order."""
        return self._segments.sealed

    def end_of(self, segment: Segment) -> int:
        """The offset after a segment's last one."""
        if segment is self._segments.active:
            return self.log_end_offset
        return self._segments.end_of_sealed(segment)

    def begin_cleaned(self, first: Segment) -> Segment:
        """An empty segment for the remaining records of `first` and some following segments."""
        cleaned = self._segment(first.base_offset, CLEANED)
        if cleaned.size:  # left by a compaction that failed and could not delete it
            cleaned.delete()
            cleaned = self._segment(first.base_offset, CLEANED)
        return cleaned

    def has_segments(self, group: Sequence[Segment]) -> bool:
        """Whether these sealed segments are all still in the log."""
        return self._segments.holds(group)

    def replace_segments(self, group: Sequence[Segment], cleaned: Segment) -> None:
        """Replaces segments by the cleaned one made of them. It must have been fsynced, and must
        contain the batch with their last offset. After a crash either the old segments or the
        complete new one are found.

        Raises:
            StorageError: the log refuses appends until it is opened again.
        """
        self._reads.clear()
        with self._failing():
            self._segments.replace(group, cleaned)

    # -- opening

    def _load(
        self, log_start_offset: int, recovery_point: int, high_watermark: int, clean: bool
    ) -> bool:
        """Loads the files; returns whether the log has lost records."""
        files = list_files(self._storage, self.directory, self._segment)
        self._snapshots = ProducerSnapshots(self._storage, self.directory, files.snapshots)
        if files.has_epochs:
            self._epochs.load()
        for base_offset in files.base_offsets:
            self._segments.add(self._segment(base_offset))
        if not files.base_offsets:
            self._begin_at(log_start_offset)
        loader = Loader(
            self.directory,
            self._segments,
            self._epochs,
            lambda end_offset: self._load_producers(end_offset, high_watermark),
            allows_gaps=self.config.compacts,
            now_ms=self._now_ms,
        )
        found = loader.load(recovery_point, clean)
        self.log_end_offset = found.end_offset
        self.producers = found.producers
        self._forget_from(found.end_offset)
        # A start beyond the log's end is ignored; `LogDirectory.open_log` sets such a log aside.
        starts_within = log_start_offset <= found.end_offset
        self.log_start_offset = max(
            log_start_offset if starts_within else 0, self.first_base_offset
        )
        self._epochs.forget_before(self.log_start_offset)
        self.recovery_point = (
            found.end_offset if found.is_whole else min(recovery_point, found.end_offset)
        )
        return found.is_damaged

    def _begin_at(self, offset: int) -> None:
        segment = self._segment(offset)
        self._segments.add(segment)
        if offset:
            self._begin_files()
            segment.create()  # only the file name keeps this offset until a record is appended
        self.log_end_offset = offset

    def _begin_files(self) -> None:
        if not self._has_files:
            self._changes.before_first_file(self)
            self._has_files = True

    # -- producers

    def _note_batch(
        self, records: memoryview, at: int, header: BatchHeader, offset: int, now_ms: int
    ) -> None:
        """Record a batch of a producer that was appended, and the transaction that it aborts."""
        marker = read_marker(records, at, header) if header.is_control else None
        ended = self.producers.append(header, offset, now_ms, marker)
        if ended is not None and marker is not None and not marker.is_commit:
            self._segments.active.note_aborted(ended)

    def _new_producers(self) -> ProducerState:
        return ProducerState(self.config.producer_id_expiration_ms)

    def _load_producers(self, end: int, high_watermark: int) -> ProducerState:
        sources = self._snapshots, self._segments, self._new_producers
        return load_producers(*sources, end, high_watermark, self._now_ms())

    # -- leader epochs

    def begin_epoch(self, epoch: int) -> None:
        """Begins a leader epoch at the log's end, unless it has begun already.

        The epoch is written to the file with its first record. An epoch without a record is gone
        when the log is reopened, as in Kafka.
        """
        if epoch > self._epochs.latest:
            self._epochs.begin(epoch, self.log_end_offset)

    def _save_epochs(self) -> None:
        self._begin_files()
        self._epochs.save()

    def _forget_from(self, offset: int) -> None:
        """Removes epochs that begin at `offset`, the log's new end, or later, and producer
        snapshots beyond it."""
        self._epochs.forget_from(offset)
        self._snapshots.forget_from(offset)

    # -- segments

    def _segment(self, base_offset: int, suffix: str = "") -> Segment:
        interval = self.config.index_interval_bytes
        now = self._now_ms()
        return Segment(self._storage, self.directory, base_offset, interval, now, suffix)

    def _must_roll(self, size: int, next_offset: int, max_timestamp: int) -> bool:
        active = self._segments.active
        return self.config.must_roll(active, size, next_offset, max_timestamp, self._now_ms)

    def _undo(self, undo: Callable[[], None], cause: StorageError) -> None:
        """Undo a failed write. If that fails, the log refuses appends until it is recovered: the
        next `open` would take torn bytes, or an empty segment's file, for the log's end."""
        try:
            undo()
        except StorageError:
            self._fail(cause)

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(self.directory, offset, self.log_start_offset, self.log_end_offset)
