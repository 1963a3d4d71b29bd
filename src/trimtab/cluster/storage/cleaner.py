"""Compaction: a log keeps only the last record of each key (`cleanup.policy=compact`).

    clean ─────────────────────┐ first dirty offset
    [0 ·· ·  ·· ][211 · ·· ·· ][305 ·········][411 ·········][520 (active) ····
    └───────────── rewritten ─────────────────┘ dirty: its keys are collected

A round collects the last offset of every key in the dirty part, as far as memory suffices. Then it
rewrites every segment up to that point without the records that have a later record of the same
key, and merges small segments. Records keep their offsets, so gaps appear. A record without a value
is removed, too, `delete.retention.ms` after it was first compacted (KIP-534).

Three kinds of batches are kept as empty batches: the last five of each producer, for their
sequences; the first of each leader epoch, so that a copy of the log knows where the epoch began,
and its followers truncate there (Kafka removes it); and the last batch of each segment, so that
segments stay contiguous and recovery can tell compaction from lost records.

The new segment is written beside the old ones as `.log.cleaned`. After an fsync it is renamed to
`.log.swap`, the old segments are deleted, and the suffix is removed. So after a crash either the
old segments or the new one are complete.

Records of aborted transactions are removed, whatever their keys. The marker of a transaction stays
until no batch of the transaction is left, and then for `delete.retention.ms`; an aborted
transaction is in the new segment's index as long as its marker is in the segment.

The rules are those of Kafka's `LogCleaner`, `LogCleanerManager` and `Cleaner`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import zip_longest
from random import Random
from typing import NamedTuple, TypeVar, cast

from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.segment_indexes import INDEX_ENTRY_BYTES
from trimtab.cluster.storage.storage import BytesLike, Storage, StorageError
from trimtab.cluster.storage.transaction_index import AbortedBatches
from trimtab.kafka.wire.batch_cy import BatchHeader, read_header
from trimtab.kafka.wire.compaction_cy import (
    DELETE_HORIZON,
    KeyOffsets,
    compact_batch,
    empty_batch,
    note_keys,
    set_delete_horizon,
)

# Bytes processed before other tasks run: milliseconds of work, however small the batches are.
_BYTES_PER_STEP = 128 * 1024
_INT32_MAX = 2**31 - 1

T = TypeVar("T")


class DirtyPart(NamedTuple):
    """The dirty part of a log that may be compacted: the segments from `first_offset` to
    `end_offset`."""

    first_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty bytes divided by all bytes that a round would read."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    def is_due(self, config: LogConfig) -> bool:
        return self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio


def find_dirty_part(log: Log, first_dirty_offset: int, now_ms: int) -> DirtyPart | None:
    """The part that may be compacted: dirty segments that are sealed, older than
    `min.compaction.lag.ms`, and before the last stable offset; None if there are none.

    Args:
        first_dirty_offset: the checkpointed offset up to which the log has been compacted.
    """
    config = log.config
    first_offset = max(first_dirty_offset, log.log_start_offset)
    if first_offset > log.log_end_offset:  # the checkpoint is of another log
        first_offset = log.log_start_offset
    end_offset = first_offset
    clean_bytes = dirty_bytes = 0
    oldest_ms = now_ms
    for segment in log.sealed_segments:
        segment_end = log.end_of(segment)
        if segment_end <= first_offset:
            clean_bytes += segment.size
            continue
        lag_ms = config.min_compaction_lag_ms
        if segment_end > log.last_stable_offset or (
            lag_ms and segment.max_timestamp > now_ms - lag_ms
        ):
            break
        dirty_bytes += segment.size
        end_offset = segment_end
        if segment.first_timestamp > 0:
            oldest_ms = min(oldest_ms, segment.first_timestamp)
    if not dirty_bytes:
        return None
    is_overdue = oldest_ms < now_ms - config.max_compaction_lag_ms
    return DirtyPart(first_offset, end_offset, clean_bytes, dirty_bytes, is_overdue)


class Cleaner:
    """Compacts logs, one at a time.

    Args:
        storage: the storage of the logs.
        now_ms: the wall clock, ms since the epoch.
        random: draws the secret with which keys are hashed.
        dedupe_buffer_bytes: memory for keys (`log.cleaner.dedupe.buffer.size`): 24 bytes for each.
            A log with more dirty keys takes more rounds.
    """

    def __init__(
        self,
        storage: Storage,
        now_ms: Callable[[], int],
        random: Random,
        dedupe_buffer_bytes: int = 128 << 20,
    ) -> None:
        self.dedupe_buffer_bytes = dedupe_buffer_bytes
        self._storage = storage
        self._now_ms = now_ms
        self._secret = random.randbytes(16)

    async def clean(self, log: Log, dirt: DirtyPart) -> int | None:
        """Compacts a log in one round. Lets other tasks run every few milliseconds; they may
        append to, truncate, close or delete the log.

        Returns:
            The offset up to which the log is clean now; None if the round was cancelled because
            the log was truncated, closed or shortened by retention.

        Raises:
            CorruptData: a batch is damaged; segments compacted before it stay compacted.
            StorageError: the disk failed, likewise; see `Log.replace_segments`.
        """
        # Enough for records of a hundred bytes. Start small, as a large table is slow.
        size = dirt.dirty_bytes // 4
        while True:
            size = min(size, self.dedupe_buffer_bytes)
            keys = KeyOffsets(size, self._secret)
            this = _Round(self._storage, log, dirt, self._now_ms(), keys)
            try:
                if await this.note_keys() or size == self.dedupe_buffer_bytes:
                    return await this.rewrite()
            except _Cancelled:
                return None
            size *= 4


class _Cancelled(Exception):
    """The log was truncated, closed or lost segments during the round."""


class _Round:
    """One round over one log."""

    def __init__(
        self, storage: Storage, log: Log, dirt: DirtyPart, now_ms: int, keys: KeyOffsets
    ) -> None:
        self._storage = storage
        self._log = log
        self._dirt = dirt
        self._now_ms = now_ms
        self._keys = keys
        self._truncations = log.truncations
        self._end_offset = dirt.first_offset
        self._aborted = AbortedBatches(())
        self._in_transaction: set[int] = set()
        """Producers of which batches of the present transaction stay."""
        self._epoch = 0
        """The leader epoch of the batch before. Epoch 0 is the first, wherever it begins."""

    async def note_keys(self) -> bool:
        """Collects the keys of the dirty part; False if memory does not suffice for all of them."""
        dirt = self._dirt
        self._aborted = AbortedBatches(
            self._log.aborted_between(dirt.first_offset, dirt.end_offset)
        )
        for segment in self._segments_before(self._dirt.end_offset):
            if self._log.end_of(segment) > self._dirt.first_offset:
                await self._note_keys(segment)
                if self._end_offset < self._log.end_of(segment):
                    return False
        return True

    async def rewrite(self) -> int:
        """Rewrites the segments up to the offset to which keys were collected; returns it."""
        segments = self._segments_before(self._end_offset)
        self._aborted = AbortedBatches(
            self._log.aborted_between(self._log.first_base_offset, self._end_offset)
        )
        while segments:
            done = await self._rewrite(segments)
            del segments[:done]
        return self._end_offset

    def _segments_before(self, offset: int) -> list[Segment]:
        return [each for each in self._log.sealed_segments if each.base_offset < offset]

    async def _note_keys(self, segment: Segment) -> None:
        """Collects a dirty segment's keys, and sets `_end_offset` to the offset reached."""
        first_offset, limit = self._dirt.first_offset, self._log.config.unpacked_limit
        self._check([segment])
        end = self._log.end_of(segment)
        position, begin = 0, segment.base_offset
        while position < segment.size:
            data, headers = segment.batches(position, _BYTES_PER_STEP, begin, end)
            begin = headers[-1].next_offset
            at = 0
            for header in headers:
                if header in self._aborted:
                    noted = header.next_offset
                else:
                    noted = await self._in_turns(
                        note_keys(data, at, header, self._keys, first_offset, limit), [segment]
                    )
                self._end_offset = max(self._end_offset, noted)
                if noted < header.next_offset:
                    return
                at += header.size
                if header.compression:
                    await self._pause([segment])
            position += at
            await self._pause([segment])
        self._end_offset = end

    async def _rewrite(self, segments: Sequence[Segment]) -> int:
        """Rewrites the first segments into one new segment: as many as fit.

        Returns:
            The number of segments that were replaced.
        """
        log = self._log
        group = [segments[0]]
        self._check(group)
        cleaned = log.begin_cleaned(segments[0])
        is_changed = False
        try:
            for segment, following in zip_longest(segments, segments[1:]):
                if segment is not group[-1]:
                    group.append(segment)
                    self._check(group)
                aborted = {each.last_offset: each for each in segment.aborted}
                joins = False
                position, begin, end_of_segment = 0, segment.base_offset, log.end_of(segment)
                while position < segment.size:
                    data, headers = segment.batches(
                        position, _BYTES_PER_STEP, begin, end_of_segment
                    )
                    begin = headers[-1].next_offset
                    kept: list[BytesLike] = []
                    kept_headers = []
                    at = 0
                    for header in headers:
                        end = at + header.size
                        is_last = position + end == segment.size
                        if is_last and following is not None:
                            joins = self._fits(
                                cleaned, sum(map(len, kept)) + header.size, following
                            )
                        batch = await self._compact(data, at, header, is_last and not joins, group)
                        if header.is_transactional and not header.is_control and batch != b"":
                            self._in_transaction.add(header.producer_id)
                        if batch is None:
                            kept.append(data[at:end])
                            kept_headers.append(header)
                        else:
                            is_changed = True
                            if batch:
                                kept.append(batch)
                                kept_headers.append(read_header(batch))
                        at = end
                        if header.compression:
                            await self._pause(group)
                    position += at
                    if kept:
                        cleaned.append(b"".join(kept), kept_headers)
                    for header in kept_headers:
                        if header.is_control and header.record_count:
                            ended = aborted.get(header.base_offset)
                            if ended is not None:
                                cleaned.note_aborted(ended)
                    await self._pause(group)
                if not joins:
                    break
            if is_changed or len(group) > 1:
                cleaned.created_ms = max(segment.created_ms for segment in group)
                cleaned.save_indexes()
                await self._storage.flush(cleaned.flushed_paths)
                self._check(group)
                log.replace_segments(group, cleaned)
            else:
                cleaned.delete()
        except Exception:  # not on cancellation: `list_files` deletes it at the next open
            if log.is_open and not log.has_failed:
                with suppress(StorageError):
                    cleaned.delete()
            raise
        return len(group)

    def _fits(self, cleaned: Segment, pending_bytes: int, following: Segment) -> bool:
        """Whether the next segment fits in too, even if nothing of it is removed."""
        config = self._log.config
        entries = cleaned.index_entries + following.index_entries
        return (
            cleaned.size + pending_bytes + following.size <= config.segment_bytes
            and entries < config.segment_index_bytes // INDEX_ENTRY_BYTES
            and self._log.end_of(following) - 1 - cleaned.base_offset <= _INT32_MAX
        )

    async def _compact(
        self,
        data: bytes,
        at: int,
        header: BatchHeader,
        is_last: bool,
        group: Sequence[Segment],
    ) -> BytesLike | None:
        """The remaining batch: None if it is unchanged, empty if nothing remains."""
        is_first = header.leader_epoch != self._epoch
        self._epoch = header.leader_epoch
        if header.base_offset >= self._end_offset:
            return None
        config = self._log.config
        retention_ms = config.delete_retention_ms
        if header.is_control:
            left = self._compact_marker(data, at, header, retention_ms)
        elif not header.record_count or header in self._aborted:
            left = b""
        else:
            steps = compact_batch(
                data,
                at,
                header,
                self._keys,
                self._end_offset,
                self._now_ms,
                retention_ms,
                config.unpacked_limit,
            )
            left = await self._in_turns(steps, group)
        if left is None or left:
            return left
        if is_last or is_first or self._log.producers.needs(header):
            return None if not header.record_count else empty_batch(header)
        return left

    def _compact_marker(
        self, data: bytes, at: int, header: BatchHeader, retention_ms: int
    ) -> BytesLike | None:
        """A transaction's marker is kept while batches of the transaction remain, and then for
        `delete.retention.ms`, like a record without a value."""
        if not header.record_count:
            return b""
        if header.producer_id in self._in_transaction:
            self._in_transaction.discard(header.producer_id)
            return None
        if not header.attributes & DELETE_HORIZON:
            return set_delete_horizon(data, at, header, self._now_ms + retention_ms)
        return None if self._now_ms < header.base_timestamp else b""

    async def _in_turns(self, steps: Generator[None, None, T], group: Sequence[Segment]) -> T:
        """Runs the steps, with pauses for other tasks; returns their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(T, end.value)
            await self._pause(group)

    async def _pause(self, group: Sequence[Segment]) -> None:
        await asyncio.sleep(0)
        self._check(group)

    def _check(self, group: Sequence[Segment]) -> None:
        log = self._log
        if not log.is_open or log.has_failed or log.truncations != self._truncations:
            raise _Cancelled
        if not log.has_segments(group):
            raise _Cancelled
