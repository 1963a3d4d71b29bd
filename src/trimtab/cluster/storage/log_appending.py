"""How a partition's log grows: batches are appended, segments are rolled, files are fsynced.

append ─▶ offsets into the headers ─▶ roll if due ┐
append_replicated ─▶ roll where due ──────────────┴▶ active segment ─▶ producers ─▶ flush if due
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from trimtab.cluster.storage.log_changes import LogChanges
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_reading import ReadableLog
from trimtab.cluster.storage.producer_snapshots import ProducerSnapshots
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.storage import Storage, StorageError
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import NO_TIMESTAMP, TimestampType
from trimtab.kafka.wire.batch_cy import BatchHeader, restamp
from trimtab.kafka.wire.end_markers import read_marker

_INT32_MAX = 2**31 - 1


class Appended(NamedTuple):
    """Where batches were stored. `log_append_time` (ms) is -1 if the topic keeps the producer's
    times. They are committed once the high watermark reaches `next_offset`."""

    base_offset: int
    next_offset: int
    log_append_time: int


class GrowingLog(ReadableLog):
    """The middle layer of a `Log`: nothing here removes a record.

    Attributes:
        is_open: False once the log was closed or abandoned.
        recovery_point: records before it have been fsynced.
        truncations: how often the log has been truncated.
    """

    __slots__ = (
        "_changes",
        "_failure",
        "_flushed_ms",
        "_has_files",
        "_high_watermark",
        "_snapshots",
        "is_open",
        "recovery_point",
        "truncations",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        config: LogConfig,
        now_ms: Callable[[], int],
        changes: LogChanges[Any],
    ) -> None:
        super().__init__(storage, directory, config, now_ms)
        self._changes = changes
        self._failure: StorageError | None = None
        self._flushed_ms = now_ms()
        self._has_files = True
        self._high_watermark = 0
        self._snapshots = ProducerSnapshots(storage, directory)
        self.is_open = True
        self.recovery_point = 0
        self.truncations = 0

    # -- appending

    def append(
        self, records: memoryview, leader_epoch: int, headers: Sequence[BatchHeader]
    ) -> Appended:
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
        epochs = self.epochs
        if leader_epoch > epochs.latest:
            epochs.begin_leader_epoch(leader_epoch, first_offset)
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
        return Appended(first_offset, offset, max_timestamp if stamped else NO_TIMESTAMP)

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
        epochs = self.epochs
        epoch = epochs.latest
        if headers[0].leader_epoch != epoch or last.leader_epoch != epoch:
            for header in headers:
                if header.leader_epoch >= 0:
                    epochs.begin_leader_epoch(header.leader_epoch, header.base_offset)
        if epochs.has_changed:
            self._save_epochs()
        if self.config.flushes_early:
            self.flush_if_due()

    def _note_batch(
        self, records: memoryview, at: int, header: BatchHeader, offset: int, now_ms: int
    ) -> None:
        """Record a batch of a producer that was appended, and the transaction that it aborts."""
        marker = read_marker(records, at, header) if header.is_control else None
        ended = self.producers.note_stored(header, offset, now_ms, marker)
        if ended is not None and marker is not None and not marker.is_commit:
            self._segments.active.note_aborted(ended)

    # -- rolling

    def roll(self) -> None:
        """Seals the active segment, unless it is empty, and begins the next.

        Raises:
            StorageError: the active segment stays the active one.
        """
        if self._segments.active.size:
            # Not at `log_end_offset`, which after a truncation may be beyond the last batch:
            # recovery takes a gap between segments for lost records.
            self._seal_active(self._segments.active.next_offset)

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

    def _must_roll(self, size: int, next_offset: int, max_timestamp: int) -> bool:
        active = self._segments.active
        return self.config.must_roll(active, size, next_offset, max_timestamp, self._now_ms)

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
        self._segments.activate(segment)
        self._changes.checkpoints[self] = None

    def _segment(self, base_offset: int, suffix: str = "") -> Segment:
        interval = self.config.index_interval_bytes
        now = self._now_ms()
        return Segment(self._storage, self.directory, base_offset, interval, now, suffix)

    def _begin_at(self, offset: int) -> None:
        segment = self._segment(offset)
        self._segments.activate(segment)
        if offset:
            self._begin_files()
            segment.create()  # only the file name keeps this offset until a record is appended
        self.log_end_offset = offset

    def _begin_files(self) -> None:
        if not self._has_files:
            self._changes.before_first_file(self)
            self._has_files = True

    # -- leader epochs

    def begin_epoch(self, epoch: int) -> None:
        """Begins a leader epoch at the log's end, unless it has begun already.

        The epoch is written to the file with its first record. An epoch without a record is gone
        when the log is reopened, as in Kafka.
        """
        if epoch > self.epochs.latest:
            self.epochs.begin_leader_epoch(epoch, self.log_end_offset)

    def _save_epochs(self) -> None:
        self._begin_files()
        self.epochs.save()

    # -- flushing

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

    # -- failing

    @property
    def has_failed(self) -> bool:
        """Whether the disk failed so that the log refuses appends until it is recovered."""
        return self._failure is not None

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

    def _undo(self, undo: Callable[[], None], cause: StorageError) -> None:
        """Undo a failed write. If that fails, the log refuses appends until it is recovered: the
        next `open` would take torn bytes, or an empty segment's file, for the log's end."""
        try:
            undo()
        except StorageError:
            self._fail(cause)

    # -- what is committed

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
