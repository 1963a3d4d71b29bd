"""Plans the offsets of each micro-batch of a stream, and the tasks that read them.

    first ─▶ next(start) ─▶ ranges(start, end) ─▶ next(start) …

Lives on the driver as long as the query runs. `cluster_state.py` finds the available offsets,
`admission.py` limits a batch to some of them; `outages.py` waits until temporary errors are over.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from trimtab.client.fetcher.ranges import OffsetRange
from trimtab.kafka.errors import KafkaError
from trimtab.kafka.records import TopicPartition
from trimtab.spark.options.source import StreamOptions
from trimtab.spark.read.packing import Task, TaskLimits, pack_ranges
from trimtab.spark.read.ranges import report_data_loss, split_ranges
from trimtab.spark.stream.admission import Piece, admit, admit_offsets, split_by_bytes
from trimtab.spark.stream.cluster_state import ClusterObserver, ClusterState
from trimtab.spark.stream.lag import measure_lag
from trimtab.spark.stream.offsets import STATE, StreamOffset, read_offset
from trimtab.spark.stream.outages import Outages, may_pass
from trimtab.spark.stream.size_sources.probe import Probe
from trimtab.spark.stream.size_sources.scan import Scan
from trimtab.spark.stream.sizes import Sizes
from trimtab.spark.stream.topics import StreamTopics

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 0.3
"""How long `next` waits for new records before it returns none. Spark would ask again every 10 ms;
it can stop the query meanwhile."""

_LOOK_SECONDS: Final = 0.02
_PAUSE_TO_LOOK: Final = 10
"""The pause before the next observation is at least this many times as long as the last took."""
_COMMIT_RETRY_SECONDS: Final = 60.0
_STALL_SECONDS: Final = 2.0
"""If no further size is found for this long, a batch is planned with the known sizes."""

_GRAINS: Final = 1024
_GRAINS_OF_PART: Final = 16
"""Small record batches are stored as one piece up to this fraction of the limit: 1/1024 of a
micro-batch's, 1/16 of a task's."""


class _Planned(NamedTuple):
    """The batch that `next` has planned last."""

    end: StreamOffset
    begins: Mapping[TopicPartition, int]


class StreamPlan:
    """Plans the batches of one stream. Not thread-safe.

    Args:
        options: the stream's options.
        topics: sends requests to the cluster.
        sizes: looks up sizes in bytes; None if no option needs them.
        clock: seconds, monotonic.
        wait: waits for a number of seconds.
    """

    def __init__(
        self,
        options: StreamOptions,
        topics: StreamTopics,
        sizes: Sizes | None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._options = options
        self._topics = topics
        self._sizes = sizes
        self._clock = clock
        self._wait = wait
        self._first: StreamOffset | None = None
        self._observer = ClusterObserver(options, topics, clock, wait)
        self._outages = Outages(clock, wait)
        self._planned: _Planned | None = None
        self._owed: dict[TopicPartition, int] = {}
        self._batch_at: float | None = None
        self._committed: Mapping[TopicPartition, int] | None = None
        self._processed: Mapping[TopicPartition, int] | None = None
        self._commit_after = -inf
        self._is_group_shared = False
        self._report: dict[str, Any] | None = None

    # -- where to begin and end

    def first(self) -> dict[str, Any]:
        """The offset at which a new query begins; the same one in each call.

        Raises:
            KafkaError: the cluster cannot be reached, or lacks a topic or partition of the options.
        """
        if self._first is None:
            self._first = self._observer.first()
            self._outages.note_answer()
        return self._first.to_json()

    def freeze(self) -> None:
        """Let the query end when it has read the records present now (Trigger.AvailableNow)."""
        self._outages.insist(self._observer.freeze)

    def next(self, start: Mapping[str, Any], takes_all: bool) -> Mapping[str, Any]:
        """The end offset of the batch that begins at `start`; `start` itself if there is none yet.

        Args:
            takes_all: whether to ignore all limits (`ReadAllAvailable`).

        Raises:
            DataLoss: data are missing, and the option `failOnDataLoss` is true.
            KafkaError: an error that is not temporary.
        """
        began = self._clock()
        begun = read_offset(start)
        self._commit(begun.offsets)
        while True:
            looked = self._clock()
            end = self._outages.attempt(lambda: self._choose(begun, takes_all))
            if end is not None:
                self._batch_at = self._clock()
                return end.to_json()
            now = self._clock()
            is_frozen = self._observer.is_frozen
            if (is_frozen and not self._outages.is_one) or (
                not is_frozen and now - began >= IDLE_SECONDS
            ):
                return start
            self._wait(min(max(_LOOK_SECONDS, _PAUSE_TO_LOOK * (now - looked)), IDLE_SECONDS))

    def close(self) -> None:
        if self._sizes is not None:
            self._sizes.close()
        self._topics.close()

    def report(self) -> dict[str, Any] | None:
        """The ends of the partitions, and the lag, as of the last `next`."""
        return self._report

    # -- choosing

    def _choose(self, begun: StreamOffset, takes_all: bool) -> StreamOffset | None:
        """The end offset of the next batch; None if there are no new records, or too few."""
        self._topics.known()
        self._outages.note_answer()
        state = self._observer.observe(begun)
        sizes = self._sizes
        if sizes is not None:
            ends = {p: end for p, end in state.latest.items() if p not in state.missing}
            sizes.follow(state.begins, ends)
        is_new = any(state.latest[p] > at for p, at in state.begins.items())
        ends = state.begins
        if is_new and takes_all:
            ends = state.latest
        elif is_new and not self._is_too_little(state):
            ends = self._limit(begun, state)
        self._note(state, ends)
        if ends == state.begins and not state.is_elsewhere:
            return None
        begins = {**(begun.begins or {}), **state.moved} if begun.is_first else state.moved
        ids = {t: state.ids[t] for t in {each.topic for each in ends} if t in state.ids}
        end = StreamOffset(ends, ids, begins or None)
        self._planned = _Planned(end, state.begins)
        return end

    def _is_too_little(self, state: ClusterState) -> bool:
        options = self._options
        if self._observer.is_frozen or self._batch_at is None:
            return False
        if self._clock() - self._batch_at >= options.max_trigger_delay_s:
            return False
        count = sum(state.latest[p] - at for p, at in state.begins.items())
        if count < options.min_offsets_per_trigger:
            return True
        if not options.min_bytes_per_trigger:
            return False
        assert self._sizes is not None
        self._await_sizes(options.min_bytes_per_trigger)
        known = self._sizes.pieces(state.latest)
        size = sum(piece.size for pieces in known.values() for piece in pieces)
        return size < options.min_bytes_per_trigger

    def _limit(self, begun: StreamOffset, state: ClusterState) -> dict[TopicPartition, int]:
        options = self._options
        ends = state.latest
        if options.max_offsets_per_trigger:
            ends = admit_offsets(state.begins, state.latest, options.max_offsets_per_trigger)
        if not options.max_bytes_per_trigger:
            return ends
        assert self._sizes is not None
        self._await_sizes(options.max_bytes_per_trigger)
        pieces = self._sizes.pieces(state.latest)
        turn = zlib.crc32(repr(sorted(begun.offsets.items())).encode())
        admitted = admit(pieces, options.max_bytes_per_trigger, turn, self._owed)
        self._owed = admitted.owed
        return {
            p: min(pieces[p][admitted.counts[p] - 1].next_offset, ends[p])
            if p in admitted.counts
            else at
            for p, at in state.begins.items()
        }

    def _await_sizes(self, limit: int) -> None:
        """Wait until `limit` bytes can be divided fairly, or no further size is found.

        Spark ends a frozen query that gets no batch, so for one at least one size is awaited.
        """
        sizes = self._sizes
        assert sizes is not None
        known = -1
        while not sizes.await_fair(limit, _STALL_SECONDS):
            before, known = known, sizes.known
            if known == before and (known > 0 or not self._observer.is_frozen):
                return

    # -- tasks

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Task]:
        """The offsets that each task of a batch reads, largest task first.

        Raises:
            DataLoss: data are missing, and the option `failOnDataLoss` is true.
        """
        options = self._options
        ranges = self.ranges(start, end)
        limits = TaskLimits(
            options.max_partitions,
            options.min_partitions,
            options.max_records_per_partition,
            options.max_bytes_per_partition,
        )
        tasks = pack_ranges(ranges, limits, lambda: self._known_bytes(ranges), self._find_leaders)
        if options.max_bytes_per_partition:
            return tasks
        return sorted(tasks, key=lambda task: -sum(each.size for each in task))

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[OffsetRange]:
        """The ranges of a batch, largest first, before small ones are combined into tasks.

        Raises:
            DataLoss: data are missing, and the option `failOnDataLoss` is true.
        """
        if start == end:
            return []
        ended = read_offset(end)
        planned = self._planned
        if planned is None or planned.end.offsets != ended.offsets:
            begun = read_offset(start)
            begins = self._outages.insist(lambda: self._observer.find_begins(begun, ended))
            planned = _Planned(ended, begins)
        whole = []
        for partition, at in sorted(ended.offsets.items()):
            begin = planned.begins[partition]
            if at < begin:
                report_data_loss(
                    f"{partition}: the batch begins at offset {begin} and ends at {at}",
                    self._options.fail_on_data_loss,
                )
            if begin < at:
                whole.append(OffsetRange(*partition, begin, at))
        cut = [each for each, _ in split_by_bytes(whole, *self._cuts(whole))]
        options = self._options
        parts = split_ranges(cut, options.min_partitions, options.max_records_per_partition)
        if options.max_bytes_per_partition:
            return parts  # the most bytes first
        return sorted(parts, key=lambda each: -each.size)

    def _cuts(
        self, ranges: Sequence[OffsetRange]
    ) -> tuple[Mapping[TopicPartition, Sequence[Piece]], int]:
        """The pieces between which ranges may be cut, and the parts' maximum size in bytes."""
        limit = self._options.max_bytes_per_partition
        if not limit or not ranges:
            return {}, 0
        sizes = self._sizes
        assert sizes is not None
        begins, ends = _spans(ranges)
        if not sizes.knows(begins, ends):
            sizes.follow(begins, ends)
            self._outages.insist(lambda: _await_known(sizes, ends))
        return sizes.pieces(ends), limit

    def _known_bytes(self, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, int]:
        """The bytes of each partition of a batch; empty unless all are known."""
        if self._sizes is None:
            return {}
        begins, ends = _spans(ranges)
        if not self._sizes.knows(begins, ends):
            return {}
        pieces = self._sizes.pieces(ends)
        return {each: sum(piece.size for piece in pieces[each]) for each in ends}

    def _find_leaders(self) -> Mapping[str, Sequence[int]]:
        return self._outages.insist(lambda: self._topics.known().leaders)

    # -- lag

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets before which all records are processed, if `commitGroup` is set.

        Raises:
            BrokerError: the cluster refused the first commit with an error that is not temporary.
        """
        group = self._options.commit_group
        if not group or offsets == self._processed or self._clock() < self._commit_after:
            return
        try:
            self._check_group(group)
            known = self._topics.known().partitions
            shown = {p: offsets[p] for p in known if p in offsets}
            self._topics.commit(group, shown)
        except KafkaError as error:
            if self._committed is None and not may_pass(error):
                raise
            # The stream continues: only tools that show lag use these offsets.
            logger.warning("option commitGroup: %s", error)
            self._commit_after = self._clock() + _COMMIT_RETRY_SECONDS
        else:
            self._committed, self._processed = shown, offsets

    def _check_group(self, group: str) -> None:
        """Warn once if the group's offsets are not those that this stream has committed."""
        if self._committed is None or self._is_group_shared:
            return
        found = self._topics.committed(group)
        for partition, at in self._committed.items():
            if found.get(partition, at) != at:
                self._is_group_shared = True
                logger.warning(
                    "option commitGroup=%s: another query or consumer commits to this group, too"
                    " (%s: %d, this stream had committed %d): what tools show as lag is that of"
                    " the one that committed last; give each query a group of its own",
                    *(group, partition, found[partition], at),
                )
                return

    def _note(self, state: ClusterState, ends: Mapping[TopicPartition, int]) -> None:
        lag = measure_lag(state.begins, ends, state.latest, self._sizes, time.time())
        self._report = StreamOffset(state.latest).to_json() | {STATE: lag}


def open_plan(options: StreamOptions) -> StreamPlan:
    """The plan of a query that starts or restarts now.

    Raises:
        UsageError: an invalid option of the clients.
    """
    limit = max(options.max_bytes_per_trigger, options.min_bytes_per_trigger)
    part = options.max_bytes_per_partition
    sizes = None
    if limit or part:
        source = Probe if options.size_source == "probe" else Scan
        grains = [limit // _GRAINS] * bool(limit) + [part // _GRAINS_OF_PART] * bool(part)
        sizes = Sizes(
            lambda: source(options.client),
            limit or _GRAINS_OF_PART * part,
            max(min(grains), 1),
        )
    return StreamPlan(options, StreamTopics(options), sizes)


def _await_known(sizes: Sizes, ends: Mapping[TopicPartition, int]) -> None:
    while not sizes.await_known(ends, _STALL_SECONDS):
        pass


def _spans(
    ranges: Sequence[OffsetRange],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """By partition, where its first range begins and its last one ends."""
    begins: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for offset_range in ranges:
        partition = TopicPartition(offset_range.topic, offset_range.partition)
        begins[partition] = min(offset_range.start, begins.get(partition, offset_range.start))
        ends[partition] = max(offset_range.end, ends.get(partition, offset_range.end))
    return begins, ends
