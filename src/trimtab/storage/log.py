"""A partition's log: its segments, from the oldest record kept to the next one written.

    log start offset                  recovery point     high watermark     log end offset
           ▼                                 ▼                  ▼                  ▼
    [segment 0 ········][segment 4711 ·········][segment 9801 (active) ···········]

Batches go in and come out whole, as they were sent: a leader's log stamps base offset and leader
epoch into their headers, a follower's takes both as they come, and neither opens a record, except
to find one by its timestamp. Offsets rise, but compaction leaves gaps. The files are those of
Kafka's `UnifiedLog`, so that its tools read them:

    <base offset>.log .index .timeindex     see `segment`
    ... .cleaned and ... .swap              what compaction is writing, see `cleaner`
    <offset>.snapshot                       sequences of idempotent producers up to that offset
    leader-epoch-checkpoint                 where each leader epoch began

A log is used from one thread. What is written counts at once; it is forced to disk when its
segment has been rolled and the log directory's checkpoint has passed, when the log is closed, or
as `flush.messages` and `flush.ms` say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trimtab.errors import CorruptData, KafkaError
from trimtab.records import NO_TIMESTAMP, TimestampType
from trimtab.storage.producer_state import ProducerState
from trimtab.storage.segment import (
    LARGE_READ_BYTES,
    Segment,
    StoredRecords,
    TimestampOffset,
)
from trimtab.storage.segment_indexes import INDEX_ENTRY_BYTES
from trimtab.storage.storage import Storage, StorageError
from trimtab.wire.batch_cy import BatchHeader, restamp
from trimtab.wire.checksum import crc32c

LONG_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_EPOCHS_FILE = "leader-epoch-checkpoint"
_SNAPSHOT = "snapshot"
_CLEANED = "cleaned"
_SWAP = "swap"
_LEFTOVERS = {"tmp", "deleted", _CLEANED, _SWAP}
_SNAPSHOTS_KEPT = 2
_REMEMBERED_READS = 16


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's options that concern its logs, by Kafka's names. Sizes in bytes, times in ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000
    """-1 is no limit."""
    retention_bytes: int = -1
    """-1 is no limit."""
    deletes: bool = True
    """Whether `cleanup.policy` includes "delete"; retention deletes nothing otherwise."""
    compacts: bool = False
    """Whether it includes "compact"."""
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 86_400_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    producer_id_expiration_ms: int = 86_400_000

    roll_ms: int = field(init=False, repr=False)
    """Age at which a segment is sealed, without jitter."""
    earliest_roll_ms: int = field(init=False, repr=False)
    """The same with all the jitter there can be."""
    index_entries: int = field(init=False, repr=False)
    """Entries that fit into an offset index."""
    index_full_bytes: int = field(init=False, repr=False)
    """Bytes of a segment below which its index cannot be full."""

    @classmethod
    def read(
        cls, topic: Mapping[str, object], producer_id_expiration_ms: int = 86_400_000
    ) -> LogConfig:
        """From a topic's options, complete, by their dotted names."""

        def number(name: str) -> int:
            value = topic[name]
            assert isinstance(value, int), f"{name} is {value!r}"
            return value

        policy = topic["cleanup.policy"]
        assert isinstance(policy, Sequence)
        dirty_ratio = topic["min.cleanable.dirty.ratio"]
        assert isinstance(dirty_ratio, float), f"min.cleanable.dirty.ratio is {dirty_ratio!r}"
        return cls(
            segment_bytes=number("segment.bytes"),
            segment_ms=number("segment.ms"),
            segment_jitter_ms=number("segment.jitter.ms"),
            segment_index_bytes=number("segment.index.bytes"),
            index_interval_bytes=number("index.interval.bytes"),
            retention_ms=number("retention.ms"),
            retention_bytes=number("retention.bytes"),
            deletes="delete" in policy,
            compacts="compact" in policy,
            min_cleanable_dirty_ratio=dirty_ratio,
            min_compaction_lag_ms=number("min.compaction.lag.ms"),
            max_compaction_lag_ms=number("max.compaction.lag.ms"),
            delete_retention_ms=number("delete.retention.ms"),
            flush_messages=number("flush.messages"),
            flush_ms=number("flush.ms"),
            producer_id_expiration_ms=producer_id_expiration_ms,
        )

    def __post_init__(self) -> None:
        roll_ms = self.segment_ms
        if self.compacts:
            roll_ms = min(roll_ms, self.max_compaction_lag_ms)
        entries = max(self.segment_index_bytes // INDEX_ENTRY_BYTES, 1)
        # Frozen, but these follow from the rest.
        object.__setattr__(self, "roll_ms", roll_ms)
        object.__setattr__(self, "earliest_roll_ms", roll_ms - min(self.segment_jitter_ms, roll_ms))
        object.__setattr__(self, "index_entries", entries)
        object.__setattr__(self, "index_full_bytes", entries * self.index_interval_bytes)


class AppendInfo(NamedTuple):
    """Where batches were stored. Offsets are inclusive; times in ms, -1 for none.

    `log_append_time` is -1 where the records keep their producer's timestamps.
    """

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int


class LeaderEpoch(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after the last one written in it; -1 and -1 if unknown."""

    epoch: int
    end_offset: int


UNKNOWN_EPOCH_END = EpochEnd(-1, -1)


class LogChanges:
    """Which logs have changed since somebody looked, so that nobody has to ask them all.

    Attributes:
        checkpoints: those whose recovery point or start may have moved, or that have been rolled.
        high_watermarks: those whose high watermark has moved.
        unflushed: those that wait for `flush.ms`.
        begun: called with a log before its first file is written.
        withdrawn: called with a log and the offset to which its end is about to move back. No
            checkpoint on disk may say more afterwards.
    """

    __slots__ = ("begun", "checkpoints", "high_watermarks", "unflushed", "withdrawn")

    def __init__(
        self,
        begun: Callable[[Log], None] = lambda log: None,
        withdrawn: Callable[[Log, int], None] = lambda log, offset: None,
    ) -> None:
        # Not sets: what is done to the logs is done in the same order in every run.
        self.checkpoints: dict[Log, None] = {}
        self.high_watermarks: dict[Log, None] = {}
        self.unflushed: dict[Log, None] = {}
        self.begun = begun
        self.withdrawn = withdrawn

    def forget(self, log: Log) -> None:
        for changed in (self.checkpoints, self.high_watermarks, self.unflushed):
            changed.pop(log, None)


class OffsetOutOfRange(KafkaError):
    """An offset that the log does not have: on the wire OFFSET_OUT_OF_RANGE (1)."""

    def __init__(self, directory: str, offset: int, start: int, end: int) -> None:
        super().__init__(f"{directory}: offset {offset} is not within {start}..{end}")


class Log:
    """One partition's log. `Log.open` makes one.

    Attributes:
        directory: its path in the storage, `<topic>-<partition>`.
        config: may be replaced at any time.
        log_start_offset: of the oldest record that may be read.
        log_end_offset: that the next record will get.
        recovery_point: everything before it is on disk for certain.
        leader_epochs: ascending; the last one is the one being written.
        producers: the idempotent producers' sequences; `append` keeps them up to date.
        cuts: how often the log's end has moved back.
        is_open: whether it has not been closed or abandoned.
    """

    __slots__ = (
        "_active",
        "_base_offsets",
        "_changes",
        "_doomed",
        "_failure",
        "_flushed_ms",
        "_has_files",
        "_has_new_epochs",
        "_high_watermark",
        "_now_ms",
        "_reads",
        "_segments",
        "_snapshots",
        "_storage",
        "config",
        "cuts",
        "directory",
        "is_open",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "recovery_point",
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
        self._has_new_epochs = False  # or has lost some: the file does not know yet
        self._now_ms = now_ms
        self._flushed_ms = now_ms()
        self._failure: StorageError | None = None
        self._segments: list[Segment] = []
        self._base_offsets: list[int] = []
        self._snapshots: list[int] = []
        self._doomed: Sequence[Segment] = ()  # no longer in the log, but on disk
        self._reads: dict[int, tuple[Segment, int]] = {}
        self.directory = directory
        self.config = config
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.cuts = 0
        self.is_open = True
        self.leader_epochs: list[LeaderEpoch] = []
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
        """The log in a directory, empty if there is none. Recovers what a crash has left.

        Args:
            now_ms: the wall clock, ms since the epoch.
            log_start_offset: as checkpointed; records before it stay unread.
            recovery_point: as checkpointed. From its segment on, every batch's CRC is checked,
                the log is cut off at the first that is torn or corrupt, and the indexes are
                rebuilt. Nothing is checked if the log ends there.
            high_watermark: as checkpointed.
            clean: the log was closed properly: nothing is checked.
            changes: where the log notes that it has changed.
            is_new: the directory is known not to exist. It is made when there is something to
                write: ten thousand empty logs cost the disk nothing.

        Raises:
            StorageError: the disk failed.
        """
        log = cls(storage, directory, config, now_ms, changes or LogChanges())
        if is_new:
            log._has_files = False
            log._add(Segment(storage, directory, 0, config.index_interval_bytes, now_ms(), size=0))
        else:
            log._load(log_start_offset, recovery_point, clean)
            log.high_watermark = high_watermark
        return log

    # -- writing

    def append(
        self, records: memoryview, leader_epoch: int, headers: Sequence[BatchHeader]
    ) -> AppendInfo:
        """Gives the batches the next offsets, stamps these and the leader epoch in place, and
        writes them.

        Args:
            records: writable, one or more verified batches and nothing else.
            leader_epoch: this partition's, at least that of every append before.
            headers: the batches' headers, in order.

        Raises:
            StorageError: nothing has been stored; after most such errors the log can go on.
        """
        if self._failure is not None:
            raise self._failure
        first_offset = offset = self.log_end_offset
        if not self.leader_epochs or leader_epoch > self.leader_epochs[-1].epoch:
            self.begin_epoch(leader_epoch)
        if self._has_new_epochs:
            self._write_epochs()
        position = 0
        max_timestamp = NO_TIMESTAMP
        for header in headers:
            restamp(records, position, offset, leader_epoch)
            position += header.size
            offset += header.last_offset_delta + 1
            if header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp

        active = self._active
        if active.size and self._must_roll(position, offset, max_timestamp):
            self.roll()
            active = self._active
        try:
            active.append(records, headers, first_offset)
        except StorageError as error:
            self._discard_torn_bytes(error)
            raise
        self.log_end_offset = offset

        batch_offset = first_offset
        for header in headers:
            if header.producer_id >= 0:
                self.producers.append(header, batch_offset, self._now_ms())
            batch_offset += header.last_offset_delta + 1
        config = self.config
        if config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX:
            self.flush_if_due()
        stamped = headers[0].timestamp_type is TimestampType.LOG_APPEND_TIME
        return AppendInfo(
            first_offset, offset - 1, max_timestamp, max_timestamp if stamped else NO_TIMESTAMP
        )

    def append_replicated(self, records: memoryview, headers: Sequence[BatchHeader]) -> None:
        """Writes batches as a leader has sent them: offsets and leader epochs stay.

        Offsets may leave gaps, as compaction does, but never go back.

        Args:
            records: one or more verified batches and nothing else.
            headers: the batches' headers, in order.

        Raises:
            CorruptData: a batch begins before the log's end or before the end of the one before
                it; nothing has been stored.
            StorageError: of the batches, those before `log_end_offset` have been stored.
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
                    f"but what is stored and sent before it ends at {offset}"
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
        """Fills segments as `segment.bytes` and the other limits say."""
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
            self._active.append(records, headers)
        except StorageError as error:
            self._discard_torn_bytes(error)
            raise
        last = headers[-1]
        self.log_end_offset = last.base_offset + last.last_offset_delta + 1
        now = None
        for header in headers:
            if header.producer_id >= 0:
                if now is None:
                    now = self._now_ms()
                self.producers.append(header, header.base_offset, now)
        epoch = self.latest_epoch
        if headers[0].leader_epoch != epoch or last.leader_epoch != epoch:
            for header in headers:
                if header.leader_epoch >= 0:
                    self._note_epoch(header.leader_epoch, header.base_offset)
        if self._has_new_epochs:
            self._write_epochs()
        config = self.config
        if config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX:
            self.flush_if_due()

    def _roll_for(self, header: BatchHeader) -> None:
        """Begins a segment that a batch from a leader fits into."""
        if header.last_offset - self.log_end_offset <= _INT32_MAX:
            if self._active.size:
                self.roll()
                return
            if header.last_offset - self._active.base_offset <= _INT32_MAX:
                return
        # The gap before it is too wide for the 32 bits of an index. Recovery knows that.
        if self._active.size:
            self._seal_active(header.base_offset)
        else:
            self._drop(-1)
            self._begin_at(header.base_offset)

    def roll(self) -> None:
        """Seals the active segment, unless it is empty, and begins the next.

        Raises:
            StorageError: the active segment is still the active one.
        """
        last = self._active.last_header()
        if last is not None:
            # Truncation may have left the log's end beyond the last batch, but segments are to
            # follow one another without a gap: recovery takes one for a loss.
            self._seal_active(last.next_offset)

    def _seal_active(self, next_base_offset: int) -> None:
        active = self._active
        active.save_indexes()
        self._save_snapshot()
        segment = self._segment(next_base_offset)
        segment.create()
        active.seal()
        self._add(segment)
        self._changes.checkpoints[self] = None

    def flush(self) -> None:
        """Returns once the whole log is on disk.

        Raises:
            StorageError: it may never be; the log refuses further appends until reopened.
        """
        if self._failure is not None:
            raise self._failure
        try:
            for segment in self._segments[self._index_of(self.recovery_point) :]:
                segment.flush()
        except StorageError as error:
            self._failure = error  # the pages may be gone: trying again would only seem to help
            raise
        self.recovery_point = self.log_end_offset
        self._flushed_ms = self._now_ms()
        self._changes.checkpoints[self] = None
        self._changes.unflushed.pop(self, None)

    def flush_if_due(self) -> None:
        """Flushes if `flush.messages` or `flush.ms` says so."""
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
        """Makes the sealed segments durable without holding up the loop, and moves the recovery
        point up to the active one.

        Raises:
            StorageError: as `flush`.
        """
        first = self._index_of(self.recovery_point)
        paths = [path for segment in self._segments[first:-1] for path in segment.paths]
        if not paths or self._failure is not None:
            return
        recovery_point = self._active.base_offset
        cuts = self.cuts
        try:
            await self._storage.flush(paths)
        except StorageError as error:
            self._failure = error
            raise
        if self.cuts == cuts:
            self.recovery_point = max(self.recovery_point, recovery_point)

    def truncate(self, offset: int) -> None:
        """Removes every batch that has a record at `offset` or later, and what was known from
        them. Epochs that have begun at the log's end, without a record, go too.

        Raises:
            StorageError: some of it is done; the log takes no appends until it is recovered.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if offset >= self.log_end_offset:
                self._forget_from(self.log_end_offset)
            elif offset >= self._base_offsets[0]:
                self._truncate(offset)
            else:
                self.restart_at(offset)
        except StorageError as error:
            self._failure = error
            raise

    def _truncate(self, offset: int) -> None:
        index = self._index_of(offset)
        segment = self._segments[index]
        end_offset = offset
        position = segment.locate(offset)
        if position is not None:
            end_offset = min(offset, next(segment.headers(position))[1].base_offset)
        self._withdraw(end_offset)
        while len(self._segments) > 1 and self._base_offsets[-1] >= offset:
            self._drop(-1)
        if position is not None and segment is self._active:
            segment.truncate(position)
        self.log_end_offset = end_offset
        self.high_watermark = self._high_watermark
        self._forget_from(end_offset)
        self._load_producers(end_offset)

    def restart_at(self, offset: int) -> None:
        """Drops everything and begins at `offset`, as a follower does whose leader no longer has
        what comes next. Epochs and producers are forgotten.

        Raises:
            StorageError: some of it is done; the log takes no appends until it is recovered.
        """
        if self._failure is not None:
            raise self._failure
        self._withdraw(offset)
        try:
            self._delete_doomed()
            while self._segments:
                self._drop(-1)
            self.producers = ProducerState(self.config.producer_id_expiration_ms)
            self._forget_from(-1)
            self._begin_at(offset)
        except StorageError as error:
            self._failure = error
            raise
        self.log_start_offset = self.recovery_point = offset
        self.high_watermark = offset
        self._changes.checkpoints[self] = None

    def _withdraw(self, offset: int) -> None:
        """Before the log's end moves back to `offset`: a checkpoint that says more than that must
        not survive until something else has been written there."""
        self._changes.withdrawn(self, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.cuts += 1
        self._reads.clear()

    def delete_records_before(self, offset: int) -> None:
        """Moves the log start offset up; `enforce_retention` deletes what lies before it.

        Raises:
            OffsetOutOfRange: it is beyond the log's end.
        """
        if offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._changes.checkpoints[self] = None
            if self._high_watermark < offset:
                self.high_watermark = offset

    def enforce_retention(self, end_offset: int | None = None) -> int:
        """Deletes the oldest segments as `retention.ms`, `retention.bytes` and the log start
        offset say; if all have expired, the active one too, after rolling.

        Args:
            end_offset: no record at or after it is deleted (the high watermark).

        Returns:
            The number of segments deleted.

        Raises:
            StorageError: they are no longer part of the log, but a file could not be deleted. The
                next call tries again, and deletes no other before: a gap would look like a loss.
        """
        if self._failure is not None or (not self._active.size and len(self._segments) == 1):
            return 0
        self._delete_doomed()
        expired = self._count_expired(self.log_end_offset if end_offset is None else end_offset)
        if not expired:
            return 0
        if expired == len(self._segments):
            self.roll()
        self._reads.clear()
        self._doomed = self._segments[:expired]
        del self._segments[:expired], self._base_offsets[:expired]
        self.log_start_offset = max(self.log_start_offset, self._base_offsets[0])
        if self._high_watermark < self.log_start_offset:
            self.high_watermark = self.log_start_offset
        self._changes.checkpoints[self] = None
        self._forget_epochs_before(self.log_start_offset)
        self._delete_doomed()
        return expired

    def _delete_doomed(self) -> None:
        while self._doomed:
            self._doomed[0].delete()
            self._doomed = self._doomed[1:]

    def close(self) -> None:
        """Flushes, writes indexes and a producer snapshot, and closes the files. A log that has
        failed is only closed, and recovered when it is opened again."""
        try:
            if self._failure is None and self._has_files:
                for segment in self._segments:
                    segment.save_indexes(durable=True)
                self.flush()
                if self.log_end_offset > (self._snapshots[-1] if self._snapshots else 0):
                    self._save_snapshot()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the files and nothing else: the log is about to be deleted, or has failed."""
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
        max_read_bytes: int = LARGE_READ_BYTES,
    ) -> bytes | memoryview | StoredRecords:
        """Whole batches from the one that holds `offset` on, all from one segment.

        The first batch may begin before `offset`. Empty at the end, or where nothing fits. What is
        large is left on disk until it is sent.

        Args:
            max_bytes: bytes to return at most.
            min_one: return the first batch even if it is larger than that (KIP-74).
            end_offset: return no batch that reaches it, such as the high watermark; the log's
                end if None.
            max_read_bytes: where there may be more than this, what there is is left on disk.

        Raises:
            OffsetOutOfRange: before the log's start or after its end.
            CorruptData: the file holds no batch where one must be.
        """
        log_end_offset = self.log_end_offset
        if end_offset is None or end_offset > log_end_offset:
            end_offset = log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise self._out_of_range(offset)
        if offset >= end_offset or (max_bytes <= 0 and not min_one):
            return b""
        place = self._reads.get(offset)
        if place is None or place[1] >= place[0].size:  # a read ended there, before it was rolled
            place = self._locate(offset)
            if place is None:
                return b""
        segment, position = place
        data, next_offset = segment.read(
            position, max(max_bytes, 0), min_one, end_offset, self._end_of(segment), max_read_bytes
        )
        if data:
            reads = self._reads
            reads[next_offset] = segment, position + len(data)
            if len(reads) > _REMEMBERED_READS:
                del reads[next(iter(reads))]
        return data

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Bytes of the batches from the one that holds `offset` to the one before `end_offset`."""
        if offset >= end_offset:
            return 0
        first, last = self._index_of(offset), self._index_of(end_offset)
        total = sum(segment.size for segment in self._segments[first : last + 1])
        start = self._segments[first].locate(offset)
        end = self._segments[last].locate(end_offset) if end_offset < self.log_end_offset else None
        if start is None:
            start = self._segments[first].size
        return total - start - (0 if end is None else self._segments[last].size - end)

    def headers(self, offset: int, end_offset: int | None = None) -> Iterator[BatchHeader]:
        """The headers of all batches from the one that holds `offset` on, to the one before
        `end_offset` if given.

        Raises:
            CorruptData: a file holds no batch where one must be.
        """
        if end_offset is None:
            end_offset = self.log_end_offset
        for segment in self._segments[self._index_of(offset) :]:
            if segment.base_offset >= end_offset:
                return
            position = segment.locate(offset)
            if position is not None:
                for _, header in segment.headers(position):
                    if header.base_offset >= end_offset:
                        return
                    yield header

    def offset_for_timestamp(
        self, timestamp: int, end_offset: int | None = None
    ) -> TimestampOffset | None:
        """The first record whose timestamp (ms) is `timestamp` or later; None if there is none,
        or not before `end_offset`, such as the high watermark."""
        if end_offset is None:
            end_offset = self.log_end_offset
        for segment in self._segments:
            if segment.base_offset >= end_offset:
                break
            if segment.max_timestamp >= timestamp:
                found = segment.find_timestamp(timestamp, self.log_start_offset)
                if found is not None:
                    return found if found.offset < end_offset else None
        return None

    def offset_of_max_timestamp(self, end_offset: int | None = None) -> TimestampOffset | None:
        """The first record with the largest timestamp (KIP-734); None if no record has one, or it
        does not lie before `end_offset`, as in Kafka."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp)
        if newest.max_timestamp == NO_TIMESTAMP:
            return None
        found = newest.find_timestamp(newest.max_timestamp, self.log_start_offset)
        if found is not None and end_offset is not None and found.offset >= end_offset:
            return None
        return found

    @property
    def high_watermark(self) -> int:
        """Everything before it is committed. Whoever replicates the log sets it; what lies outside
        the log counts as its start or its end."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        if offset != self._high_watermark:
            self._high_watermark = offset
            self._changes.high_watermarks[self] = None

    @property
    def latest_epoch(self) -> int:
        """The leader epoch that the log is in; -1 if none has begun."""
        return self.leader_epochs[-1].epoch if self.leader_epochs else -1

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Where a leader epoch ends here: how a follower finds where it parts from its leader.

        An epoch without a record of its own is answered with the largest one below it. An epoch
        that has not begun here is unknown. The rules are those of `LeaderEpochFileCache`.
        """
        epochs = self.leader_epochs
        if not epochs or epoch < 0 or epoch > epochs[-1].epoch:
            return UNKNOWN_EPOCH_END
        if epoch == epochs[-1].epoch:
            return EpochEnd(epoch, self.log_end_offset)
        later = bisect_right(epochs, epoch, key=_epoch_of)
        return EpochEnd(epochs[later - 1].epoch if later else epoch, epochs[later].start_offset)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment: with no record deleted within it, the log's
        start."""
        return self._base_offsets[0]

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment being written."""
        return self._active.base_offset

    @property
    def has_failed(self) -> bool:
        """Whether the disk failed such that the log takes no appends until it is recovered."""
        return self._failure is not None

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    # -- compaction

    @property
    def sealed_segments(self) -> Sequence[Segment]:
        """All but the one being written, in order."""
        return self._segments[:-1]

    def end_of(self, segment: Segment) -> int:
        """The offset after a segment's last one."""
        return self._end_of(segment)

    def begin_cleaned(self, first: Segment) -> Segment:
        """An empty segment, to be what remains of `first` and some that follow it."""
        cleaned = self._segment(first.base_offset, f".{_CLEANED}")
        if cleaned.size:  # what a compaction has left that could not even tidy up
            cleaned.delete()
            cleaned = self._segment(first.base_offset, f".{_CLEANED}")
        return cleaned

    def has_segments(self, group: Sequence[Segment]) -> bool:
        """Whether these sealed segments are all there still."""
        first = bisect_right(self._base_offsets, group[0].base_offset) - 1
        return (
            first >= 0
            and self._segments[first : first + len(group)] == group
            and group[-1] is not self._active
        )

    def replace_segments(self, group: Sequence[Segment], cleaned: Segment) -> None:
        """Puts a cleaned segment in the place of those that it was made of. It must be on disk,
        and the batch that their last offset is in must be in it.

        A crash finds either the old ones or, complete, the new one: whoever opens the log finishes
        what the suffix ".swap" says has begun.

        Raises:
            StorageError: the log takes no appends until it is opened again.
        """
        first = self._segments.index(group[0])
        self._reads.clear()
        try:
            cleaned.rename(f".{_SWAP}")
            for segment in group:
                segment.delete()
            cleaned.rename("")
        except StorageError as error:
            self._failure = error
            raise
        cleaned.seal()
        self._segments[first : first + len(group)] = [cleaned]
        self._base_offsets[first : first + len(group)] = [cleaned.base_offset]

    # -- opening

    def _list_files(self) -> list[int]:
        """The base offsets of the segments, after what was interrupted has been finished or undone;
        notes snapshots and reads epochs."""
        by_suffix: dict[str, list[str]] = {}
        for name in self._storage.list(self.directory):
            stem, _, suffix = name.rpartition(".")
            if stem.partition(".")[0].isdecimal() or not stem or suffix in _LEFTOVERS:
                by_suffix.setdefault(suffix, []).append(stem)
        logs = by_suffix.get("log", [])
        leftovers = by_suffix.keys() & _LEFTOVERS
        indexes = {*by_suffix.get("index", ()), *by_suffix.get("timeindex", ())}
        if leftovers or not indexes <= {*logs}:
            for swap in sorted(by_suffix.get(_SWAP, ())):
                if swap.endswith(".log"):
                    logs = self._finish_swap(swap.removesuffix(".log"), logs)
            for suffix in sorted(leftovers):
                for stem in by_suffix[suffix]:
                    self._storage.delete(f"{self.directory}/{stem}.{suffix}")
            for stem in sorted(indexes.difference(logs)):
                for suffix in ("index", "timeindex"):
                    self._storage.delete(f"{self.directory}/{stem}.{suffix}")
        self._snapshots = sorted(int(stem) for stem in by_suffix.get(_SNAPSHOT, ()))
        if _EPOCHS_FILE in by_suffix:
            self._read_epochs()
        return sorted(map(int, logs))

    def _finish_swap(self, stem: str, logs: list[str]) -> list[str]:
        """Puts a cleaned segment in the place of what is left of those that it was made of.
        Returns the names of the segments there are then."""
        cleaned = self._segment(int(stem), f".{_SWAP}")
        last = cleaned.last_header()
        end_offset = cleaned.base_offset if last is None else last.next_offset
        old = [name for name in logs if cleaned.base_offset <= int(name) < end_offset]
        for name in old:
            self._segment(int(name)).delete()
        cleaned.rename("")
        cleaned.close()
        return [*(name for name in logs if name not in old), stem]

    def _load(self, log_start_offset: int, recovery_point: int, clean: bool) -> None:
        base_offsets = self._list_files()
        for base_offset in base_offsets:
            self._add(self._segment(base_offset))
        if not base_offsets:
            self._begin_at(log_start_offset)

        last, unchecked = self._find_end(recovery_point, clean)
        if unchecked is None:
            self._load_producers(self.log_end_offset)
        else:
            self._load_producers(self._base_offsets[unchecked])
            self._recover(unchecked)
            last = self._active.last_header()
        if last is None and len(self._segments) > 1:
            last = self._segments[-2].last_header()
        self._forget_from(self.log_end_offset)
        self._check_epochs(last)
        if log_start_offset > self.log_end_offset:  # the records it pointed at are lost
            while self._segments:
                self._drop(0)
            self.producers = ProducerState(self.config.producer_id_expiration_ms)
            self._begin_at(log_start_offset)
        self.log_start_offset = max(log_start_offset, self._base_offsets[0])
        self._forget_epochs_before(self.log_start_offset)
        self.recovery_point = (
            self.log_end_offset if unchecked is None else min(recovery_point, self.log_end_offset)
        )

    def _find_end(self, recovery_point: int, clean: bool) -> tuple[BatchHeader | None, int | None]:
        """The active segment's last batch; and the index of the first segment that may not have
        reached the disk whole, None if all have: the log was closed, and not written to since."""
        unchecked = self._index_of(recovery_point)
        try:
            last = self._active.last_header()
        except CorruptData:  # a torn tail; or, if clean, somebody else has touched the files
            return None, 0 if clean else unchecked
        self.log_end_offset = self._base_offsets[-1] if last is None else last.next_offset
        return last, None if clean or self.log_end_offset == recovery_point else unchecked

    def _recover(self, first: int) -> None:
        """Checks the segments from the index `first` on. They must follow one another without a
        gap: what comes after one is dropped."""

        def seen(header: BatchHeader) -> None:
            if header.producer_id >= 0:
                self.producers.append(header, header.base_offset, now)

        now = self._now_ms()
        for index in range(first, len(self._segments)):
            segment = self._segments[index]
            self.log_end_offset = segment.recover(seen)
            if segment is self._active:
                break
            next_base_offset = self._base_offsets[index + 1]
            if (
                self.log_end_offset != next_base_offset
                and next_base_offset - segment.base_offset <= _INT32_MAX
            ):
                while self._active is not segment:
                    self._drop(-1)
                break
            segment.save_indexes()
            segment.seal()

    def _begin_at(self, offset: int) -> None:
        segment = self._segment(offset)
        if offset:
            self._begin_files()
            segment.create()  # the only trace of an offset that no record has
        self._add(segment)
        self.log_end_offset = offset

    def _begin_files(self) -> None:
        if not self._has_files:
            self._changes.begun(self)
            self._has_files = True

    # -- producers

    def _load_producers(self, end_offset: int) -> None:
        """What producers had stored before `end_offset`: the last snapshot before it, and the
        headers of the batches after that."""
        expiration_ms = self.config.producer_id_expiration_ms
        now = self._now_ms()
        for offset in reversed(self._snapshots):
            if offset > end_offset:
                continue
            path = self._snapshot_path(offset)
            snapshot = self._storage.read_file(path)
            try:
                self.producers = ProducerState.decode(snapshot or b"", expiration_ms, now)
            except CorruptData:  # written without fsync: an older one, or the batches, will do
                continue
            start_offset = offset
            break
        else:
            self.producers = ProducerState(expiration_ms)
            start_offset = self._base_offsets[0]
        if start_offset < end_offset:
            for header in self.headers(start_offset, end_offset):
                if header.producer_id >= 0:
                    self.producers.append(header, header.base_offset, now)

    def _save_snapshot(self) -> None:
        offset = self.log_end_offset
        self._storage.write_file(
            self._snapshot_path(offset), self.producers.encode(), durable=False
        )
        if offset not in self._snapshots:
            self._snapshots.append(offset)
        while len(self._snapshots) > _SNAPSHOTS_KEPT:
            self._storage.delete(self._snapshot_path(self._snapshots.pop(0)))

    def _snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{offset:020d}.{_SNAPSHOT}"

    # -- leader epochs

    def begin_epoch(self, epoch: int) -> None:
        """A leader begins its epoch at the log's end; nothing if it has begun already.

        The file learns of it together with its first record: an epoch without one is forgotten
        when the log is opened, as in Kafka.
        """
        if epoch > self.latest_epoch:
            self._note_epoch(epoch, self.log_end_offset)

    def _note_epoch(self, epoch: int, offset: int) -> None:
        """Both must rise: entries that they do not rise above go, as in
        `LeaderEpochFileCache.assign`; such an epoch has begun here and got no record."""
        epochs = self.leader_epochs
        if epochs and epochs[-1].epoch == epoch:
            return
        while epochs and (epochs[-1].start_offset >= offset or epochs[-1].epoch >= epoch):
            epochs.pop()
        epochs.append(LeaderEpoch(epoch, offset))
        self._has_new_epochs = True

    def _forget_from(self, offset: int) -> None:
        """Forgets epochs and snapshots that end beyond `offset`, the log's new end."""
        while self.leader_epochs and self.leader_epochs[-1].start_offset >= offset:
            self.leader_epochs.pop()
            self._has_new_epochs = True
        while self._snapshots and self._snapshots[-1] > offset:
            self._storage.delete(self._snapshot_path(self._snapshots.pop()))

    def _forget_epochs_before(self, offset: int) -> None:
        epochs = self.leader_epochs
        while len(epochs) > 1 and epochs[1].start_offset <= offset:
            epochs.pop(0)
        if epochs and epochs[0].start_offset < offset:
            epochs[0] = epochs[0]._replace(start_offset=offset)
            self._has_new_epochs = True

    def _read_epochs(self) -> None:
        content = self._storage.read_file(f"{self.directory}/{_EPOCHS_FILE}") or b""
        try:
            _, count, *lines, end = content.decode("ascii").split("\n")
            pairs = [line.split() for line in lines]
            if end or int(count) != len(pairs):
                raise ValueError("cut short")
            self.leader_epochs = [LeaderEpoch(int(epoch), int(start)) for epoch, start in pairs]
        except ValueError:  # torn: `_check_epochs` makes up for it
            self.leader_epochs = []

    def _check_epochs(self, last: BatchHeader | None) -> None:
        """The file is written without fsync and with the next record only, so it can be torn or out
        of date: if it disagrees with the log's last batch, all batches are asked."""
        known = self.leader_epochs[-1].epoch if self.leader_epochs else None
        if last is not None and known != last.leader_epoch >= 0:
            self.leader_epochs = []
            for header in self.headers(self._base_offsets[0]):
                if header.leader_epoch > self.latest_epoch:
                    self.leader_epochs.append(LeaderEpoch(header.leader_epoch, header.base_offset))
            self._has_new_epochs = True

    def _write_epochs(self) -> None:
        self._begin_files()
        lines = ["0", str(len(self.leader_epochs))]
        lines += [f"{epoch} {start_offset}" for epoch, start_offset in self.leader_epochs]
        content = "\n".join([*lines, ""]).encode("ascii")
        self._storage.write_file(f"{self.directory}/{_EPOCHS_FILE}", content, durable=False)
        self._has_new_epochs = False

    # -- segments

    def _segment(self, base_offset: int, suffix: str = "") -> Segment:
        interval = self.config.index_interval_bytes
        now = self._now_ms()
        return Segment(self._storage, self.directory, base_offset, interval, now, suffix)

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        self._active = segment

    def _drop(self, index: int) -> None:
        """Deletes the first segment (0) or the last one (-1)."""
        self._segments.pop(index).delete()
        self._base_offsets.pop(index)
        if self._segments:
            self._active = self._segments[-1]

    def _index_of(self, offset: int) -> int:
        """The index of the segment that holds an offset; the first one if it lies before."""
        return max(0, bisect_right(self._base_offsets, offset) - 1)

    def _end_of(self, segment: Segment) -> int:
        if segment is self._active:
            return self.log_end_offset
        return self._base_offsets[bisect_right(self._base_offsets, segment.base_offset)]

    def _locate(self, offset: int) -> tuple[Segment, int] | None:
        """Where the first batch lies that reaches `offset`; None if there is none, because
        compaction has left a gap before the log's end."""
        for segment in self._segments[self._index_of(offset) :]:
            position = segment.locate(offset)
            if position is not None:
                return segment, position
        return None

    def _must_roll(self, size: int, next_offset: int, max_timestamp: int) -> bool:
        active = self._active
        config = self.config
        if next_offset - 1 - active.base_offset > _INT32_MAX:
            return True
        if not active.size:
            return size > config.segment_bytes
        if active.size + size > config.segment_bytes:
            return True
        if active.size >= config.index_full_bytes and active.index_entries >= config.index_entries:
            return True
        first = active.first_timestamp
        if first >= 0 and max_timestamp >= 0:
            age = max_timestamp - first
        else:
            age = self._now_ms() - active.created_ms
        if age <= config.earliest_roll_ms:
            return False
        jitter = config.roll_ms - config.earliest_roll_ms
        if not jitter:
            return True
        # As good as random, but the same whenever this segment is looked at.
        return age > config.roll_ms - crc32c(active.path("").encode("utf-8")) % jitter

    def _count_expired(self, end_offset: int) -> int:
        config = self.config
        now = self._now_ms()
        rest = self.size
        for index, segment in enumerate(self._segments):
            next_offset = self._end_of(segment)
            if next_offset > end_offset or (segment is self._active and not segment.size):
                return index
            if not segment.size:
                continue
            newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
            rest -= segment.size
            if not (
                (next_offset <= self.log_start_offset and segment is not self._active)
                or (config.deletes and 0 <= config.retention_ms < now - newest)
                or (config.deletes and 0 <= config.retention_bytes <= rest)
            ):
                return index
        return len(self._segments)

    def _discard_torn_bytes(self, cause: StorageError) -> None:
        """After a failed append: the file ends with the last whole batch again, or the log takes
        no more appends until it is recovered."""
        try:
            self._active.discard_torn_bytes()
        except StorageError:
            self._failure = cause

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(self.directory, offset, self.log_start_offset, self.log_end_offset)


def _epoch_of(entry: LeaderEpoch) -> int:
    return entry.epoch
