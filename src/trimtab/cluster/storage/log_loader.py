"""Opens a log: checks its files and truncates the log at damage.

    closed cleanly, or flushed to its end ─▶ check only the last batch
    otherwise ─▶ check every batch from the recovery point's segment on; truncate at the first that
                 is not whole
    two files contradict each other ─▶ the same, from the log's start

Every truncation is logged with its reason. If the log has lost more than an append that a crash
interrupted, it is damaged: its broker must not register as closed cleanly (KIP-966).

Source: Kafka's `LogLoader`, which trusts more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from trimtab.cluster.storage.leader_epochs import LeaderEpochs
from trimtab.cluster.storage.producer_snapshots import ProducerSnapshots
from trimtab.cluster.storage.producer_state import ProducerState
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.segment_list import SegmentList
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import BatchHeader

_INT32_MAX = 2**31 - 1

_log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """The state of a log that has been opened.

    Attributes:
        end_offset: the offset after its last whole batch.
        producers: its idempotent producers.
        is_whole: no batch had to be checked, as all are on disk.
        is_damaged: it has lost records.
    """

    end_offset: int
    producers: ProducerState
    is_whole: bool
    is_damaged: bool


def load_producers(
    snapshots: ProducerSnapshots,
    segments: SegmentList,
    new: Callable[[], ProducerState],
    end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> ProducerState:
    """The producers' state at `end_offset`, from the last snapshot before it and the batches after
    the snapshot. Builds the lists of aborted transactions after the snapshot anew, too: those of
    the active segment are written only when it is sealed or closed.

    A snapshot does not say which ended transactions are undecided. So one is used only if no marker
    lies between the high watermark and it.

    Raises:
        CorruptData: a batch is damaged.
        StorageError: the disk failed.
    """
    producers = new()
    start_offset = segments.first_base_offset
    for found, offset in snapshots.load(end_offset, producers.expiration_ms, now_ms):
        headers = segments.headers(high_watermark, offset) if found.has_markers else ()
        if not any(header.is_control for header in headers):
            producers, start_offset = found, offset
            break
    try:
        _replay(producers, segments, start_offset, end_offset, now_ms)
    except CorruptData as error:
        if start_offset == segments.first_base_offset:
            raise
        producers = find_all_aborted(segments, new, end_offset, now_ms, error)
    return producers


def find_all_aborted(
    segments: SegmentList,
    new: Callable[[], ProducerState],
    end_offset: int,
    now_ms: int,
    cause: CorruptData,
) -> ProducerState:
    """Build the lists of aborted transactions from all batches, because a file is damaged; returns
    the producers' state at `end_offset`.

    Raises:
        CorruptData: a batch is damaged.
        StorageError: the disk failed.
    """
    _log.warning("looks for aborted transactions in the whole log: %s", cause)
    producers = new()
    _replay(producers, segments, segments.first_base_offset, end_offset, now_ms)
    for segment in segments:
        segment.save_aborted()
    return producers


def _replay(
    producers: ProducerState, segments: SegmentList, offset: int, end_offset: int, now_ms: int
) -> None:
    """Bring the producers from `offset` to `end_offset`, and the lists of aborted transactions."""
    for segment in segments.since(offset):
        segment.forget_aborted_from(offset)
    places = segments.places(offset, end_offset) if offset < end_offset else ()
    for segment, position, header in places:
        if header.producer_id >= 0:
            note_batch(producers, segment, position, header, now_ms)


def note_batch(
    producers: ProducerState, segment: Segment, position: int, header: BatchHeader, now_ms: int
) -> None:
    """Record a stored batch of a producer, and the transaction that it aborts.

    Raises:
        CorruptData: a control batch does not hold a marker.
    """
    marker = segment.marker_at(position, header) if header.is_control else None
    ended = producers.note_stored(header, header.base_offset, now_ms, marker)
    if ended is not None and marker is not None and not marker.is_commit:
        segment.note_aborted(ended)


class Loader:
    """Opens one log.

    Args:
        directory: the log's directory, for log messages.
        segments: all its segments; damaged ones are deleted.
        epochs: the leader epochs from the file.
        producers_before: calls `load_producers` with an end offset.
        allows_gaps: whether compaction may have left gaps between offsets.
        now_ms: the wall clock.
    """

    def __init__(
        self,
        directory: str,
        segments: SegmentList,
        epochs: LeaderEpochs,
        producers_before: Callable[[int], ProducerState],
        allows_gaps: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._segments = segments
        self._epochs = epochs
        self._producers_before = producers_before
        self._allows_gaps = allows_gaps
        self._now_ms = now_ms
        self._is_damaged = False

    def load(self, recovery_point: int, clean: bool) -> Loaded:
        """Check the log as far as necessary, and return its state.

        Args:
            recovery_point: from the checkpoint.
            clean: the log was closed cleanly, so it should end at the recovery point.

        Raises:
            StorageError: the disk failed.
        """
        first = self._find_unchecked(recovery_point, clean)
        try:
            end_offset, producers = self._load(first)
        except CorruptData as error:
            _log.warning("checks the whole log %s: %s", self._directory, error)
            first = 0
            end_offset, producers = self._load(first)
        if end_offset < recovery_point:
            self._is_damaged = True
            if first:
                # What was flushed is not there. Instead a crash may have brought back segments
                # that retention had deleted, perhaps before they were flushed.
                end_offset, producers = self._load(0)
            _log.warning(
                "%s ends at offset %d, but its recovery point was %d",
                self._directory,
                end_offset,
                recovery_point,
            )
        return Loaded(end_offset, producers, first is None, self._is_damaged)

    def _find_unchecked(self, recovery_point: int, clean: bool) -> int | None:
        """The index of the first segment that must be checked; None if none must."""
        segments = self._segments
        first = segments.index_of(recovery_point)
        if first > 0 and self._reaches_into_next(segments[first - 1]):
            return 0 if clean else first - 1
        try:
            end_offset = self._end_of_active()
        except CorruptData:  # a torn tail; or, if clean, the files were changed from outside
            return 0 if clean else first
        for index, segment in enumerate(segments.sealed):
            if not segment.size:
                return min(index, first)
        if end_offset == recovery_point or (clean and not recovery_point):
            return None  # without a checkpoint, a cleanly closed log counts as whole
        return 0 if clean else first

    def _reaches_into_next(self, segment: Segment) -> bool:
        """Whether a sealed segment has offsets of the next one. Then a crash has brought back the
        segments after it, which a truncation had deleted before it was appended to again."""
        try:
            last = segment.last_header()
        except CorruptData:
            return True
        return last is not None and last.next_offset > self._segments.end_of_sealed(segment)

    def _end_of_active(self) -> int:
        active = self._segments.active
        last = active.last_header()
        return active.base_offset if last is None else last.next_offset

    def _load(self, first: int | None) -> tuple[int, ProducerState]:
        segments = self._segments
        now = self._now_ms()
        if first is None:
            end_offset = self._end_of_active()
            producers = self._producers_before(end_offset)
        else:
            producers = self._producers_before(segments[first].base_offset)
            end_offset = self._recover(first, producers, now)
        last = segments.active.last_header()
        if last is None and len(segments) > 1:
            last = segments[-2].last_header()
        self._epochs.forget_from(end_offset)
        self._epochs.check_last_batch(
            last, segments.headers(segments.first_base_offset, end_offset)
        )
        return end_offset, producers

    def _recover(self, first: int, producers: ProducerState, now: int) -> int:
        """Checks the segments from the index `first` on. They must be contiguous: the segments
        after a gap are deleted. Returns the log's end."""

        segments = self._segments
        end_offset = segments[first].base_offset
        for index in range(first, len(segments)):
            segment = segments[index]

            def seen(header: BatchHeader, position: int, of: Segment = segment) -> None:
                if header.producer_id >= 0:
                    note_batch(producers, of, position, header, now)

            is_last = segment is segments.active
            next_base_offset = None if is_last else segments[index + 1].base_offset
            found = segment.recover(seen, self._allows_gaps, next_base_offset)
            end_offset = found.end_offset
            if found.problem:
                self._is_damaged = self._is_damaged or not (is_last and found.is_torn)
                _log.warning(
                    "truncated %s to offset %d, %s: %s",
                    self._directory,
                    end_offset,
                    "as a crash interrupted an append" if found.is_torn else "as it is damaged",
                    found.problem,
                )
            if next_base_offset is None:
                break
            if (
                end_offset != next_base_offset
                and next_base_offset - segment.base_offset <= _INT32_MAX
            ):
                # Segments with offsets that the one before has, too, were truncated: not a loss.
                self._is_damaged = self._is_damaged or end_offset < next_base_offset
                _log.warning(
                    "deleted %d segments of %s, from offset %d on: the segment before ends at %d",
                    len(segments) - index - 1,
                    self._directory,
                    next_base_offset,
                    end_offset,
                )
                while segments.active is not segment:
                    segments.cut_off_last()
                break
            segment.save_indexes()
            segment.seal()
        return end_offset
