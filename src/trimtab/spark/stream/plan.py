"""What each batch of a stream reads: from which offsets to which, and by which tasks.

    first ─▶ next(start) ─▶ ranges(start, end) ─▶ next(start) …

Lives on the driver for as long as the query runs. `looking.py` says what the cluster has,
`admission.py` how much of it a batch gets; errors that may pass are ridden out (`outages.py`).
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from trimtab.errors import KafkaError
from trimtab.records import TopicPartition
from trimtab.spark.options.source import StreamOptions
from trimtab.spark.read.packing import Task, TaskLimits, look_up_leaders, pack_ranges
from trimtab.spark.read.ranges import OffsetRange, report_data_loss, split_ranges
from trimtab.spark.stream.admission import Piece, admit, admit_offsets, split_by_bytes
from trimtab.spark.stream.lag import measure_lag
from trimtab.spark.stream.looking import Look, Lookout, Topics
from trimtab.spark.stream.offsets import STATE, StreamOffset, read_offset
from trimtab.spark.stream.outages import Outages, may_pass
from trimtab.spark.stream.size_sources.choice import make_source
from trimtab.spark.stream.sizes import Sizes
from trimtab.spark.stream.topics import StreamTopics

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 0.3
"""How long `next` waits for something new before it says that there is nothing. Spark would ask
again every 10 ms; it can stop the query meanwhile."""

_LOOK_SECONDS: Final = 0.02
_PAUSE_TO_LOOK: Final = 10
"""Looking for something new takes up this part of the time at most, one to so many."""
_COMMIT_RETRY_SECONDS: Final = 60.0
_STALL_SECONDS: Final = 2.0
"""If nothing is learned for so long, a batch is planned with the sizes that are known."""

_GRAINS: Final = 1024
_GRAINS_OF_PART: Final = 16
"""Record batches are remembered as one up to this part of a batch's limit, and of a task's."""


class _Planned(NamedTuple):
    """The batch that `next` has announced."""

    end: StreamOffset
    begins: Mapping[TopicPartition, int]


class StreamPlan:
    """Plans the batches of one stream. For one thread.

    Args:
        options: the stream's.
        topics: asks the cluster.
        sizes: learns bytes; None if no option counts them.
        clock: seconds, monotonic.
        wait: waits for a number of seconds.
    """

    def __init__(
        self,
        options: StreamOptions,
        topics: Topics,
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
        self._lookout = Lookout(options, topics, wait)
        self._outages = Outages(clock, wait)
        self._planned: _Planned | None = None
        self._owed: dict[TopicPartition, int] = {}
        self._batch_at: float | None = None
        self._committed: Mapping[TopicPartition, int] | None = None
        self._commit_after = -inf
        self._report: dict[str, Any] | None = None

    # -- where to begin and end

    def first(self) -> dict[str, Any]:
        """Where a new query begins; always the same answer.

        Raises:
            KafkaError: the cluster cannot be asked, or what is asked for is not there.
        """
        if self._first is None:
            self._first = self._lookout.first()
            self._outages.note_answer()
        return self._first.to_json()

    def freeze(self) -> None:
        """The query ends when it has read what is there now (Trigger.AvailableNow)."""
        self._outages.insist(self._lookout.freeze)

    def next(self, start: Mapping[str, Any], takes_all: bool) -> Mapping[str, Any]:
        """Where the batch that begins at `start` ends; `start` itself if there is none yet.

        Args:
            takes_all: whether no limit counts (`ReadAllAvailable`).

        Raises:
            DataLoss: if the option `failOnDataLoss` says so.
            KafkaError: an error that does not pass.
        """
        began = self._clock()
        begun = read_offset(start)
        self._commit(begun.offsets)
        is_first = begun.first is not None and begun.first == begun.offsets
        while True:
            looked = self._clock()
            end = self._outages.attempt(lambda: self._choose(begun, takes_all))
            if end is not None:
                if is_first:
                    end = StreamOffset(end.offsets, end.ids, begun.first)
                self._batch_at = self._clock()
                return end.to_json()
            now = self._clock()
            is_frozen = self._lookout.is_frozen
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
        """Where the next batch ends; None if there is nothing new, or not enough."""
        look = self._lookout.look(begun)
        sizes = self._sizes
        if sizes is not None:
            sizes.follow(look.begins, look.latest)
        is_new = any(look.latest[p] > at for p, at in look.begins.items())
        ends: dict[TopicPartition, int] | None = look.begins
        if is_new and takes_all:
            ends = look.latest
        elif is_new and not self._is_too_little(look):
            ends = self._limit(begun, look)
        if ends == look.begins and not look.is_news:
            ends = None
        self._note(look, ends)
        if ends is None:
            return None
        end = StreamOffset(ends, {t: look.ids[t] for t in _topics_of(ends) if t in look.ids})
        self._planned = _Planned(end, look.begins)
        return end

    def _is_too_little(self, look: Look) -> bool:
        options = self._options
        if self._lookout.is_frozen or self._batch_at is None:
            return False
        if self._clock() - self._batch_at >= options.max_trigger_delay_s:
            return False
        count = sum(look.latest[p] - at for p, at in look.begins.items())
        if count < options.min_offsets_per_trigger:
            return True
        if not options.min_bytes_per_trigger:
            return False
        assert self._sizes is not None
        self._await_sizes(options.min_bytes_per_trigger)
        known = self._sizes.pieces(look.latest)
        size = sum(piece.size for pieces in known.values() for piece in pieces)
        return size < options.min_bytes_per_trigger

    def _limit(self, begun: StreamOffset, look: Look) -> dict[TopicPartition, int]:
        options = self._options
        ends = look.latest
        if options.max_offsets_per_trigger:
            ends = admit_offsets(look.begins, look.latest, options.max_offsets_per_trigger)
        if not options.max_bytes_per_trigger:
            return ends
        assert self._sizes is not None
        self._await_sizes(options.max_bytes_per_trigger)
        pieces = self._sizes.pieces(look.latest)
        turn = zlib.crc32(repr(sorted(begun.offsets.items())).encode())
        admitted = admit(pieces, options.max_bytes_per_trigger, turn, self._owed)
        self._owed = admitted.owed
        return {
            p: min(pieces[p][admitted.counts[p] - 1].next_offset, ends[p])
            if p in admitted.counts
            else at
            for p, at in look.begins.items()
        }

    def _await_sizes(self, limit: int) -> None:
        """Wait until `limit` bytes can be shared out fairly, or nothing more is learned."""
        sizes = self._sizes
        assert sizes is not None
        known = -1
        while not sizes.await_fair(limit, _STALL_SECONDS) and sizes.known != known:
            known = sizes.known

    # -- tasks

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Task]:
        """What each task of a batch reads, largest first.

        Raises:
            DataLoss: if the option `failOnDataLoss` says so.
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
        """What the tasks of a batch read, before small ranges are put together; largest first.

        Raises:
            DataLoss: if the option `failOnDataLoss` says so.
        """
        if start == end:
            return []
        ended = read_offset(end)
        planned = self._planned
        if planned is None or planned.end.offsets != ended.offsets:
            begun = read_offset(start)
            begins = self._outages.insist(lambda: self._lookout.find_begins(begun, ended))
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
        return parts if options.max_bytes_per_partition else _largest_first(parts)

    def _cuts(
        self, ranges: Sequence[OffsetRange]
    ) -> tuple[Mapping[TopicPartition, Sequence[Piece]], int]:
        """Where ranges may be cut, and how large the parts may be."""
        limit = self._options.max_bytes_per_partition
        if not limit or not ranges:
            return {}, 0
        sizes = self._sizes
        assert sizes is not None
        begins = {TopicPartition(each.topic, each.partition): each.start for each in ranges}
        ends = {TopicPartition(each.topic, each.partition): each.end for each in ranges}
        if not sizes.knows(begins, ends):
            sizes.follow(begins, ends)
            self._outages.insist(lambda: _await_known(sizes, ends))
        return sizes.pieces(ends), limit

    def _known_bytes(self, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, int]:
        """The bytes of each partition of a batch; none if they are not all known."""
        if self._sizes is None:
            return {}
        begins: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        for each in ranges:
            partition = TopicPartition(each.topic, each.partition)
            begins[partition] = min(each.start, begins.get(partition, each.start))
            ends[partition] = max(each.end, ends.get(partition, each.end))
        if not self._sizes.knows(begins, ends):
            return {}
        pieces = self._sizes.pieces(ends)
        return {each: sum(piece.size for piece in pieces[each]) for each in ends}

    def _find_leaders(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        leaders = self._outages.insist(lambda: self._topics.known().leaders)
        return look_up_leaders(partitions, leaders)

    # -- lag

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """What is done with all its records is committed to the group, if one is named.

        Raises:
            BrokerError: at the first time, if the cluster refuses it for good.
        """
        group = self._options.commit_group
        if not group or offsets == self._committed or self._clock() < self._commit_after:
            return
        try:
            self._topics.commit(group, offsets)
        except KafkaError as error:
            if self._committed is None and not may_pass(error):
                raise
            # Only what is shown goes by it: the stream goes on.
            logger.warning("option commitGroup: %s", error)
            self._commit_after = self._clock() + _COMMIT_RETRY_SECONDS
        else:
            self._committed = offsets

    def _note(self, look: Look, ends: Mapping[TopicPartition, int] | None) -> None:
        end = look.begins if ends is None else ends
        lag = measure_lag(look.begins, end, look.latest, self._sizes, time.time())
        self._report = StreamOffset(look.latest).to_json() | {STATE: lag.to_json()}


def open_plan(options: StreamOptions) -> StreamPlan:
    """The plan of a query that begins or goes on now.

    Raises:
        UsageError: an option of the clients that cannot be.
    """
    limit = max(options.max_bytes_per_trigger, options.min_bytes_per_trigger)
    part = options.max_bytes_per_partition
    sizes = None
    if limit or part:
        grains = [limit // _GRAINS] * bool(limit) + [part // _GRAINS_OF_PART] * bool(part)
        sizes = Sizes(
            lambda: make_source(options.size_source, options.client),
            limit or _GRAINS_OF_PART * part,
            max(min(grains), 1),
        )
    return StreamPlan(options, StreamTopics(options), sizes)


def _await_known(sizes: Sizes, ends: Mapping[TopicPartition, int]) -> None:
    while not sizes.await_known(ends, _STALL_SECONDS):
        pass


def _topics_of(offsets: Mapping[TopicPartition, int]) -> list[str]:
    return sorted({each.topic for each in offsets})


def _largest_first(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    return sorted(ranges, key=lambda each: -each.size)
