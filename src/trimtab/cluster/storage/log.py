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
    ... .txnindex and .txnindex.crc         the aborted transactions, see `transaction_index`
    <offset>.snapshot                       the idempotent producers up to that offset
    leader-epoch-checkpoint                 the start offset of each leader epoch

A log is made of three layers, a module each; none calls the one above it:

    log             opening, truncating, retention, compaction, closing
    log_appending   appending, rolling, flushing
    log_reading     reading, and everything else that changes nothing

A log is used from one thread. Appended batches can be read at once. They are fsynced by the next
checkpoint after their segment was rolled, at the end, or by `flush.messages` and `flush.ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from errno import EIO

from trimtab.cluster.storage.log_appending import GrowingLog
from trimtab.cluster.storage.log_changes import LogChanges
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_files import CLEANED, list_files
from trimtab.cluster.storage.log_loader import Loader, load_producers
from trimtab.cluster.storage.producer_snapshots import ProducerSnapshots
from trimtab.cluster.storage.producer_state import ProducerState
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.storage import Storage, StorageError
from trimtab.kafka.errors import CorruptData

_log = logging.getLogger(__name__)


class Log(GrowingLog):
    """One partition's log: opens that in a directory, or an empty one; recovers it after a crash.

    Args:
        now_ms: the wall clock, ms since the epoch.
        log_start_offset: from the checkpoint; records before it are not read. Ignored if the log
            ends before it.
        recovery_point: from the checkpoint. From its segment on, every batch's CRC is checked, the
            log is truncated at the first torn or corrupt batch, and the indexes are rebuilt.
            Nothing is checked if the log ends there.
        high_watermark: from the checkpoint.
        clean: the log was closed cleanly. If it does not end at the recovery point all the same,
            all of it is checked.
        changes: where the log registers its changes.
        is_new: the directory is known not to exist. It is created by the first append: ten thousand
            empty logs cost no disk access.

    Raises:
        StorageError: the disk failed.
    """

    __slots__ = ()

    def __init__(
        self,
        storage: Storage,
        directory: str,
        config: LogConfig,
        now_ms: Callable[[], int],
        *,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        high_watermark: int = 0,
        clean: bool = False,
        changes: LogChanges[Log] | None = None,
        is_new: bool = False,
    ) -> None:
        super().__init__(storage, directory, config, now_ms, changes or LogChanges())
        if is_new:
            self._has_files = False
            interval = config.index_interval_bytes
            self._segments.activate(Segment(storage, directory, 0, interval, now_ms(), size=0))
            return
        is_damaged = self._load(log_start_offset, recovery_point, high_watermark, clean)
        if is_damaged or high_watermark > self.log_end_offset:
            self._changes.on_loss()
        self.high_watermark = high_watermark

    # -- opening and closing

    def _load(
        self, log_start_offset: int, recovery_point: int, high_watermark: int, clean: bool
    ) -> bool:
        """Loads the files; returns whether the log has lost records."""
        files = list_files(self._storage, self.directory, self._segment)
        self._snapshots = ProducerSnapshots(self._storage, self.directory, files.snapshots)
        if files.has_epochs:
            self.epochs.load()
        for base_offset in files.base_offsets:
            self._segments.activate(self._segment(base_offset))
        if not files.base_offsets:
            self._begin_at(log_start_offset)
        loader = Loader(
            self.directory,
            self._segments,
            self.epochs,
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
        self.epochs.forget_before(self.log_start_offset)
        self.recovery_point = (
            found.end_offset if found.is_whole else min(recovery_point, found.end_offset)
        )
        return found.is_damaged

    def _load_producers(self, end: int, high_watermark: int) -> ProducerState:
        sources = self._snapshots, self._segments, self._new_producers
        return load_producers(*sources, end, high_watermark, self._now_ms())

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

    # -- truncating

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
                end_offset = min(
                    offset, next(segment.headers(position, checks_crcs=False))[1].base_offset
                )
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

    def _forget_from(self, offset: int) -> None:
        """Removes epochs that begin at `offset`, the log's new end, or later, and producer
        snapshots beyond it."""
        self.epochs.forget_from(offset)
        self._snapshots.forget_from(offset)

    # -- retention

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
        expired = self._count_expired(self.log_end_offset if end_offset is None else end_offset)
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
        self.epochs.forget_before(self.log_start_offset)
        segments.delete_removed()
        return expired

    def _count_expired(self, end_offset: int) -> int:
        """How many of the oldest segments are to be deleted."""
        config, now_ms = self.config, self._now_ms()
        rest = self._segments.size
        for index, segment in enumerate(self._segments):
            is_active = segment is self._segments.active
            next_offset = self.end_of(segment)
            if next_offset > end_offset or (is_active and not segment.size):
                return index
            if not segment.size:
                continue
            newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
            rest -= segment.size
            if not (
                (next_offset <= self.log_start_offset and not is_active)
                or (config.deletes and 0 <= config.retention_ms < now_ms - newest)
                or (config.deletes and 0 <= config.retention_bytes <= rest)
            ):
                return index
        return len(self._segments)

    # -- compaction

    def begin_cleaned(self, first: Segment) -> Segment:
        """An empty segment for the remaining records of `first` and some following segments."""
        cleaned = self._segment(first.base_offset, CLEANED)
        if cleaned.size:  # left by a compaction that failed and could not delete it
            cleaned.delete()
            cleaned = self._segment(first.base_offset, CLEANED)
        return cleaned

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
