"""Compaction: of all records with the same key, a log keeps the last (`cleanup.policy=compact`).

    clean ─────────────────────┐ first dirty offset
    [0 ·· ·  ·· ][211 · ·· ·· ][305 ·········][411 ·········][520 (active) ····
    └───────────── rewritten ─────────────────┘ dirty: its keys are noted

A round notes the last offset of every key in the dirty part, as far as memory goes, and then writes
every segment up to there anew, without the records that a later one of the same key has made
useless; small segments become one. Offsets stay as they are, so gaps appear. A record without a
value goes as well, `delete.retention.ms` after it was first compacted (KIP-534).

What is kept without need: the last batch of each producer, for its sequence, and the last batch of
each segment, so that the segments still follow one another without a gap and recovery can tell
compaction from loss. Both are kept without their records.

The new segment is written beside the old ones as `.log.cleaned`. Once it is on disk it becomes
`.log.swap`, the old ones are deleted, and the suffix goes. So a crash leaves one or the other.

The rules are those of Kafka's `LogCleaner`, `LogCleanerManager` and `Cleaner`. Records of aborted
transactions count as any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import zip_longest
from random import Random
from typing import NamedTuple, TypeVar, cast

from trimtab.storage.log import Log
from trimtab.storage.log_config import LogConfig
from trimtab.storage.segment import Segment
from trimtab.storage.segment_indexes import INDEX_ENTRY_BYTES
from trimtab.storage.storage import BytesLike, Storage, StorageError
from trimtab.wire.batch_cy import BatchHeader, read_header
from trimtab.wire.compaction_cy import (
    DELETE_HORIZON,
    KeyOffsets,
    compact_batch,
    empty_batch,
    note_keys,
    set_delete_horizon,
)

# What is done between two turns of the loop: milliseconds of work, however small the batches.
_SLICE_BYTES = 128 * 1024
_INT32_MAX = 2**31 - 1

T = TypeVar("T")


class Dirt(NamedTuple):
    """What may be compacted in a log: the segments that hold `first_offset` to `end_offset`."""

    first_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty share of what a round would read."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    def is_due(self, config: LogConfig) -> bool:
        return self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio


def find_dirt(log: Log, first_dirty_offset: int, now_ms: int) -> Dirt | None:
    """What may be compacted: committed, sealed, and older than `min.compaction.lag.ms`; None if
    there is nothing.

    Args:
        first_dirty_offset: up to where the log has been compacted, as checkpointed.
    """
    config = log.config
    first_offset = max(first_dirty_offset, log.log_start_offset)
    if first_offset > log.log_end_offset:  # not this log's checkpoint
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
        if segment_end > log.high_watermark or (lag_ms and segment.max_timestamp > now_ms - lag_ms):
            break
        dirty_bytes += segment.size
        end_offset = segment_end
        if segment.first_timestamp > 0:
            oldest_ms = min(oldest_ms, segment.first_timestamp)
    if not dirty_bytes:
        return None
    is_overdue = oldest_ms < now_ms - config.max_compaction_lag_ms
    return Dirt(first_offset, end_offset, clean_bytes, dirty_bytes, is_overdue)


class Cleaner:
    """Compacts logs, one at a time.

    Args:
        storage: where the logs are.
        now_ms: the wall clock, ms since the epoch.
        random: makes up the secret by which keys are hashed.
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

    async def clean(self, log: Log, dirt: Dirt) -> int | None:
        """Compacts a log: one round. Gives other tasks a turn every few milliseconds; the log may
        be written to, truncated, closed and deleted meanwhile.

        Returns:
            Up to which offset the log is clean now; None if it was truncated, closed or cut short
            by retention before the end: nothing is wrong, and nothing is finished.

        Raises:
            CorruptData: a batch cannot be right; the log is as it was, but for what has been
                compacted before.
            StorageError: the disk failed, likewise; see `Log.replace_segments`.
        """
        # Enough for records of a hundred bytes; a table larger than it must be is a slow one.
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
    """The log is no longer what it was when the round began."""


class _Round:
    """One round over one log."""

    def __init__(
        self, storage: Storage, log: Log, dirt: Dirt, now_ms: int, keys: KeyOffsets
    ) -> None:
        self._storage = storage
        self._log = log
        self._dirt = dirt
        self._now_ms = now_ms
        self._keys = keys
        self._cuts = log.cuts
        self._end_offset = dirt.first_offset
        self._in_transaction: set[int] = set()

    async def note_keys(self) -> bool:
        """Notes the keys of the dirty part; False if there is no room for all of them."""
        for segment in self._segments_before(self._dirt.end_offset):
            if self._log.end_of(segment) > self._dirt.first_offset:
                await self._note_keys(segment)
                if self._end_offset < self._log.end_of(segment):
                    return False
        return True

    async def rewrite(self) -> int:
        """Writes the segments anew as far as keys have been noted. Returns up to where that is."""
        segments = self._segments_before(self._end_offset)
        while segments:
            done = await self._rewrite(segments)
            del segments[:done]
        return self._end_offset

    def _segments_before(self, offset: int) -> list[Segment]:
        return [each for each in self._log.sealed_segments if each.base_offset < offset]

    async def _note_keys(self, segment: Segment) -> None:
        """Notes a dirty segment's keys, up to `_end_offset`."""
        first_offset, limit = self._dirt.first_offset, self._log.config.unpacked_limit
        self._check([segment])
        position = segment.locate(first_offset)
        while position is not None and position < segment.size:
            data, headers = segment.batches(position, _SLICE_BYTES)
            at = 0
            for header in headers:
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
        self._end_offset = self._log.end_of(segment)

    async def _rewrite(self, segments: Sequence[Segment]) -> int:
        """Puts one segment in the place of the first of them: of as many as fit into it.

        Returns:
            How many that are.
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
                joins = False
                position = 0
                while position < segment.size:
                    data, headers = segment.batches(position, _SLICE_BYTES)
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
                    await self._pause(group)
                if not joins:
                    break
            if is_changed or len(group) > 1:
                cleaned.created_ms = max(segment.created_ms for segment in group)
                cleaned.save_indexes()
                await self._storage.flush(cleaned.paths)
                self._check(group)
                log.replace_segments(group, cleaned)
            else:
                cleaned.delete()
        except Exception:  # a task that is cancelled leaves it to whoever opens the log
            if log.is_open and not log.has_failed:
                with suppress(StorageError):
                    cleaned.delete()
            raise
        return len(group)

    def _fits(self, cleaned: Segment, pending_bytes: int, following: Segment) -> bool:
        """Whether the next segment can be taken in too, whatever remains of it."""
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
        """What is left of the batch: None if it stays as it is, empty if nothing."""
        if header.base_offset >= self._end_offset:
            return None
        config = self._log.config
        retention_ms = config.delete_retention_ms
        if header.is_control:
            left = self._compact_marker(data, at, header, retention_ms)
        elif not header.record_count:
            left = b""
        else:
            if header.is_transactional:
                self._in_transaction.add(header.producer_id)
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
        if is_last or self._log.producers.needs(header):
            return None if not header.record_count else empty_batch(header)
        return left

    def _compact_marker(
        self, data: bytes, at: int, header: BatchHeader, retention_ms: int
    ) -> BytesLike | None:
        """A transaction's marker stays as long as a record before it does, and then as long as a
        record without a value."""
        if not header.record_count:
            return b""
        if header.producer_id in self._in_transaction:
            self._in_transaction.discard(header.producer_id)
            return None
        if not header.attributes & DELETE_HORIZON:
            return set_delete_horizon(data, at, header, self._now_ms + retention_ms)
        return None if self._now_ms < header.base_timestamp else b""

    async def _in_turns(self, steps: Generator[None, None, T], group: Sequence[Segment]) -> T:
        """What is made of a batch of these segments."""
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
        if not log.is_open or log.has_failed or log.cuts != self._cuts:
            raise _Cancelled
        if not log.has_segments(group):
            raise _Cancelled
