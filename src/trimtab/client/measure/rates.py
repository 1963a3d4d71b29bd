"""Rates of partitions, from samples of sizes and offsets.

    sizes of the leader's log ─▶ growth, exact ─────────────────┐
    ends of the log ───────────▶ new records * bytes of one ────┴─▶ bytes in
    committed offsets ─────────▶ records read * bytes of one ─────▶ bytes out

Sizes are those of segments, as stored, so compressed. Growth is exact until segments are deleted:
then the bytes are imputed from the number of records that were written. So they are for compacted
topics, and when the leader has changed. Committed offsets move in steps, so rates are means over a
window of several commit intervals.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from trimtab.balance.cluster_load import BrokerState, ClusterLoad, PartitionLoad
from trimtab.client.measure.limits import count_replicas
from trimtab.client.measure.polls import BrokerLogs
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.client.measure.sample import LoadSample, Timed
from trimtab.client.topic_view import TopicView
from trimtab.kafka.arguments import checked_seconds
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_LEADER

_Logs: TypeAlias = Timed[BrokerLogs]
_Ends: TypeAlias = Timed[Mapping[TopicPartition, int]]

WINDOW_S: Final = 30.0
_NUMBERS: Final = 5
"""Of a mark."""
_MARKS: Final = 8
"""A window is divided into about so many parts, whatever the time between samples is."""
_FADING: Final = 0.5
"""The weight of earlier growth in the bytes of one record, with each sample."""


class MeteredLoad(NamedTuple):
    """What a meter has found.

    Attributes:
        records_in: records/s that producers send, markers of transactions included.
        left_out: the partitions that are not in `load`, and why.
        unknown: what else the last sample does not tell, in sentences: silent brokers, refused
            parts, missing rights.
    """

    load: ClusterLoad
    records_in: Mapping[TopicPartition, float]
    left_out: Mapping[TopicPartition, str]
    unknown: Sequence[str]

    @property
    def is_partial(self) -> bool:
        """Whether more than a tenth of the partitions is left out: too many to act on the rest."""
        return 9 * len(self.left_out) > len(self.load.partitions)


class LogFacts(NamedTuple):
    """What one sample tells of a partition's log, at its leader."""

    topic_id: bytes
    leader: int
    is_compacted: bool
    size: int
    size_at: float
    start: int
    end: int
    end_at: float

    @property
    def bytes_per_record(self) -> float | None:
        """The mean of the records in the log; None if it is empty."""
        records = self.end - self.start
        return self.size / records if records > 0 else None


class _Track:
    """One partition through the samples.

    Attributes:
        marks: what has been counted since it was first seen, five numbers for each mark: when its
            size and its end were told, bytes in, records in, records out. An array, as there are
            several marks of each of 40,000 partitions.
        records_read: since its last mark, by all groups, whose coordinators may answer when its
            leader does not.
    """

    __slots__ = ("facts", "grown_bytes", "grown_records", "marks", "partition", "records_read")

    def __init__(self, partition: TopicPartition, facts: LogFacts) -> None:
        self.partition = partition
        self.facts = facts
        self.marks = array("d", (facts.size_at, facts.end_at, 0.0, 0.0, 0.0))
        self.grown_bytes = self.grown_records = 0.0
        self.records_read = 0

    @property
    def bytes_per_record(self) -> float | None:
        """Of what was written last; of the whole log if that is not known."""
        if self.grown_records > 0:
            return self.grown_bytes / self.grown_records
        return self.facts.bytes_per_record

    def follow(self, facts: LogFacts, spacing: float) -> bool:
        """Count what has happened since the facts before. False if that cannot be told, and
        counting must begin again: the topic is another one, or its log has lost its end."""
        before = self.facts
        written = facts.end - before.end
        if facts.topic_id != before.topic_id or written < 0:
            return False
        growth = facts.size - before.size
        has_kept_log = facts.leader == before.leader and facts.start == before.start
        if has_kept_log and growth >= 0 and not facts.is_compacted:
            self.grown_bytes = self.grown_bytes * _FADING + growth
            self.grown_records = self.grown_records * _FADING + written
            bytes_in = float(growth)
        else:
            each = self._impute(before, facts)
            if each is None and written:
                return False
            seconds, of_ends = facts.size_at - before.size_at, facts.end_at - before.end_at
            bytes_in = written * (each or 0.0) * seconds / of_ends
            if facts.leader == before.leader:  # deleting and compacting only make it smaller
                bytes_in = max(bytes_in, growth)
        bytes_before, in_before, out_before = self.marks[-3:]
        counts = bytes_before + bytes_in, in_before + written, out_before + self.records_read
        mark = array("d", (facts.size_at, facts.end_at, *counts))
        if len(self.marks) > _NUMBERS and mark[0] - self.marks[-2 * _NUMBERS] < spacing:
            self.marks[-_NUMBERS:] = mark
        else:
            self.marks.extend(mark)
        self.facts = facts
        self.records_read = 0
        return True

    def _impute(self, before: LogFacts, facts: LogFacts) -> float | None:
        if self.grown_records > 0:
            return self.grown_bytes / self.grown_records
        # The lower mean, as DeleteRecords moves the start ahead of the segments that it leaves.
        known = [before.bytes_per_record, facts.bytes_per_record]
        return min((each for each in known if each is not None), default=None)

    def forget_before(self, time: float) -> None:
        """Keep one mark at or before this time, and the later ones."""
        marks = self.marks
        while len(marks) > _NUMBERS and marks[_NUMBERS] <= time:
            del marks[:_NUMBERS]

    def rates(self) -> tuple[float, float, float] | None:
        """Bytes in, records in and records out per second; None before the second sample."""
        if len(self.marks) == _NUMBERS:
            return None
        at, end_at, bytes_in, records_in, records_out = self.marks[:_NUMBERS]
        last = self.marks[-_NUMBERS:]
        return (
            (last[2] - bytes_in) / (last[0] - at),
            (last[3] - records_in) / (last[1] - end_at),
            (last[4] - records_out) / (last[0] - at),
        )


class LoadMeter:
    """Turns samples into the load of the cluster over a window that slides.

    Its memory grows with partitions: about a kilobyte for each.

    Args:
        window_s: seconds that rates are means over, once so many have passed; several times the
            commit interval of consumers, 5 s by default.
        without: topics to leave out, whose partitions no plan may move.
    """

    def __init__(
        self, window_s: float = WINDOW_S, without: Collection[str] = (PROBE_TOPIC,)
    ) -> None:
        window = checked_seconds("window_s", window_s)
        if not window:
            raise UsageError(f"window_s={window_s}: give seconds above 0")
        self._window = window
        self._without = frozenset(without)
        self._tracks: dict[TopicPartition, _Track] = {}
        self._committed: dict[str, Mapping[TopicPartition, int]] = {}
        self._moving: frozenset[TopicPartition] = frozenset()
        self._sample: LoadSample | None = None
        self._samples = 0

    @property
    def is_ready(self) -> bool:
        """Whether there are two samples, which rates need."""
        return self._samples >= 2

    def add(self, sample: LoadSample) -> None:
        """Take note of a sample.

        Raises:
            UsageError: it began before the last one had ended.
        """
        if self._sample is not None and sample.began < self._sample.ended:
            raise UsageError(
                f"a sample begun at {sample.began:g} s, but the one before ended at "
                f"{self._sample.ended:g} s: take one after the other, and add them in this order"
            )
        self._sample = sample
        self._samples += 1
        if sample.moving is not None:
            self._moving = sample.moving.value
        self._count_reads(sample)
        spacing = self._window / _MARKS
        tracks: dict[TopicPartition, _Track] = {}
        for partition, view, facts in self._read_facts(sample):
            track = self._tracks.get(partition)
            if facts is None:  # unknown for now, unless the topic is another one
                if track is not None and track.facts.topic_id == view.topic_id:
                    tracks[track.partition] = track
                continue
            if track is None or not track.follow(facts, spacing):
                track = _Track(partition, facts)
            track.forget_before(facts.size_at - self._window)
            tracks[track.partition] = track
        self._tracks = tracks

    def _read_facts(
        self, sample: LoadSample
    ) -> Iterator[tuple[TopicPartition, TopicView, LogFacts | None]]:
        for view in sample.topics.value.values():
            if view.name in self._without:
                continue
            is_compacted = sample.compacted.get((view.name, view.topic_id), False)
            for index, leader in enumerate(view.leaders):
                partition = TopicPartition(view.name, index)
                yield partition, view, _find_facts(sample, partition, view, leader, is_compacted)

    def _count_reads(self, sample: LoadSample) -> None:
        """Count how far groups have moved since a sample last told; a group that goes back has not
        read, nor has one that goes over records that are deleted."""
        for group, answer in sample.groups.items():
            before = self._committed.get(group, {})
            for partition, offset in answer.value.items():
                earlier = before.get(partition)
                track = self._tracks.get(partition)
                if earlier is not None and track is not None:
                    track.records_read += max(0, offset - max(earlier, track.facts.start))
        # Groups whose coordinator is silent, or has just become another one, are told later.
        untold = self._committed if sample.silent else sample.refused_groups.keys()
        self._committed = {
            **{group: self._committed[group] for group in untold if group in self._committed},
            **{group: answer.value for group, answer in sample.groups.items()},
        }

    def tail_start(self, partition: TopicPartition, most_bytes: int) -> int | None:
        """The offset from which on the newest records have about so many bytes; None for an empty
        or unknown partition."""
        track = self._tracks.get(partition)
        each = None if track is None else track.bytes_per_record
        if track is None or not each or track.facts.end <= track.facts.start:
            return None
        return max(track.facts.start, track.facts.end - max(1, int(most_bytes / each)))

    def measure(self) -> MeteredLoad:
        """The load by the samples so far.

        Raises:
            UsageError: there are no two samples yet.
        """
        sample = self._sample
        if sample is None or self._samples < 2:
            raise UsageError(
                f"{self._samples} of the 2 samples that rates need: add another one, some seconds "
                "later"
            )
        partitions: list[PartitionLoad] = []
        records_in: dict[TopicPartition, float] = {}
        left_out: dict[TopicPartition, str] = {}
        in_sync: dict[tuple[int, ...], frozenset[int]] = {}  # few kinds for many partitions
        for name in sorted(sample.topics.value.keys() - self._without):
            for index, view in enumerate(sample.topics.value[name].partitions):
                partition = TopicPartition(name, index)
                track = self._tracks.get(partition)
                rates = None if track is None else track.rates()
                if (
                    track is None
                    or rates is None
                    or track.facts.size_at < sample.began - self._window
                ):
                    left_out[partition] = self._explain(sample, partition, view.leader)
                    continue
                bytes_in, records_in[track.partition], records_out = rates
                kept = in_sync.get(view.in_sync_replicas)
                if kept is None:
                    kept = in_sync[view.in_sync_replicas] = frozenset(view.in_sync_replicas)
                partitions.append(
                    PartitionLoad(
                        track.partition,
                        view.replicas,
                        view.leader,
                        kept,
                        bytes_in,
                        records_out * (track.bytes_per_record or 0.0),
                        track.facts.size,
                    )
                )
        load = ClusterLoad(
            _describe_brokers(sample),
            partitions,
            self._moving,
            sample.measured_s,
        )
        return MeteredLoad(load, records_in, left_out, sample.unknown)

    def _explain(self, sample: LoadSample, partition: TopicPartition, leader: int) -> str:
        if leader == NO_LEADER:
            return "it has no leader"
        if leader in sample.silent:
            return f"its leader, broker {leader}, has not answered: {sample.silent[leader]}"
        logs, ends, starts = _answers_of(sample, leader)
        told = {
            "size": logs is not None and partition in logs.value.sizes,
            "end": ends is not None and partition in ends.value,
            "start": starts is not None and partition in starts.value,
        }
        missing = [part for part, is_told in told.items() if not is_told]
        if missing:
            return f"its leader, broker {leader}, has not told its {' and '.join(missing)}"
        return "it is new, or its log is: only one sample has it"


def _find_facts(
    sample: LoadSample, partition: TopicPartition, view: TopicView, leader: int, is_compacted: bool
) -> LogFacts | None:
    logs, ends, starts = _answers_of(sample, leader)
    if logs is None or ends is None or starts is None:
        return None
    size = logs.value.sizes.get(partition)
    end, start = ends.value.get(partition), starts.value.get(partition)
    if size is None or end is None or start is None:
        return None
    return LogFacts(view.topic_id, leader, is_compacted, size, logs.at, start, end, ends.at)


def _answers_of(sample: LoadSample, broker: int) -> tuple[_Logs | None, _Ends | None, _Ends | None]:
    return sample.logs.get(broker), sample.ends.get(broker), sample.starts.get(broker)


def _describe_brokers(sample: LoadSample) -> dict[int, BrokerState]:
    """The brokers that are alive, fenced, or named as replicas."""
    views = sample.topics.value.values()
    counts = count_replicas(views)
    known = {**(sample.fenced or {}), **sample.nodes}
    named = {broker for view in views for each in view.partitions for broker in each.replicas}
    limit = LONG_MAX if sample.limits is None else sample.limits.per_broker
    brokers: dict[int, BrokerState] = {}
    for broker in sorted(known.keys() | named):
        logs = sample.logs.get(broker)
        # One that refuses to tell its logs still answers. One that is silent may hang: what it does
        # is not known, so it is not taken for idle.
        is_alive = broker in sample.nodes and broker not in sample.silent
        takes_replicas = logs is None or logs.value.takes_replicas
        brokers[broker] = BrokerState(
            broker,
            known[broker].rack if broker in known else None,
            limit - counts.on[broker],
            None if logs is None else logs.value.total,
            is_alive,
            is_alive and takes_replicas,
        )
    return brokers
