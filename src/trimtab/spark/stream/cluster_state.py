"""The cluster's partitions for a stream: their first and last offsets, and lost data.

Unless a comment says otherwise, the rules are those of Spark's own Kafka source
(`KafkaMicroBatchStream`, `KafkaOffsetReaderAdmin`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from trimtab.client.fetcher.ranges import CONFIRM_SECONDS, CONFIRMATIONS, GONE_SECONDS
from trimtab.kafka.errors import BrokerError, DataLoss, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_OFFSET
from trimtab.spark.options.source import StreamOptions, is_selected
from trimtab.spark.read.ranges import LogBounds, report_data_loss, resolve_offsets
from trimtab.spark.stream.offsets import StreamOffset
from trimtab.spark.stream.topics import Known, StreamTopics

logger = logging.getLogger(__name__)

_APART_SECONDS: Final = 10.0
"""Looks at the cluster that are further apart do not show that a topic was absent in between."""


class ClusterState(NamedTuple):
    """The offsets between which the next batch may read.

    Attributes:
        begins: the offset at which the next batch begins in each partition, including new ones, and
            those that the cluster does not show now.
        latest: the end offset of each partition.
        ids: the id of each topic that has one.
        moved: of `begins`, those that are not the offset at which the last batch ended.
        is_elsewhere: whether the next batch begins elsewhere than the last one ended.
        missing: partitions that the cluster does not show now.
    """

    begins: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]
    ids: Mapping[str, str]
    moved: Mapping[TopicPartition, int]
    is_elsewhere: bool
    missing: Collection[TopicPartition] = ()


class ClusterObserver:
    """Observes the cluster for one stream.

    Args:
        options: the stream's options.
        topics: sends requests to the cluster.
        clock: seconds, monotonic.
        wait: waits for a number of seconds.
    """

    def __init__(
        self,
        options: StreamOptions,
        topics: StreamTopics,
        clock: Callable[[], float],
        wait: Callable[[float], object],
    ) -> None:
        self._options = options
        self._topics = topics
        self._clock = clock
        self._wait = wait
        self._frozen: dict[TopicPartition, int] | None = None
        self._looked_at = -inf
        self._absent_since: dict[str, float] = {}
        self._reported: Collection[str] = ()
        self._awaited: Sequence[TopicPartition] = ()

    @property
    def is_frozen(self) -> bool:
        """Whether `freeze` was called."""
        return self._frozen is not None

    def freeze(self) -> None:
        """Fix the partitions and their end offsets: later records are not read."""
        self._frozen = self._topics.latest(self._topics.known(refresh=True).partitions)

    def first(self) -> StreamOffset:
        """The offsets at which a new query begins.

        Raises:
            KafkaError: the cluster cannot be reached, or lacks a topic or partition of the options.
        """
        known = self._topics.known(refresh=True)
        self._check_named(known)
        offsets = self._starting_offsets(known)
        return StreamOffset(offsets, known.ids, offsets)

    def observe(self, begun: StreamOffset) -> ClusterState:
        """The current state; reports missing data first, as the option `failOnDataLoss` says.

        Raises:
            DataLoss: data are missing.
            KafkaError: the cluster cannot be reached, or does not show a partition for now.
        """
        known, latest = self._look(begun)
        losses = self._losses(begun, known, latest)
        for _ in range(CONFIRMATIONS):
            if not losses:
                break
            self._wait(CONFIRM_SECONDS)
            known, latest = self._look(begun, refresh=True)
            losses = self._losses(begun, known, latest)
        for loss in losses:
            report_data_loss(loss, self._options.fail_on_data_loss)
        missing = self._missing(begun, known, latest)
        again = _recreated(begun, known.ids)
        begins = {
            p: min(begun.offsets[p], end)
            for p, end in latest.items()
            if p in begun.offsets and p.topic not in again
        }
        begins |= (kept := {p: begun.offsets[p] for p in missing})
        latest |= kept
        new = [p for p in latest if p not in begins]
        begins |= self._earliest_of_new([p for p in new if p.topic not in again])
        begins |= self._topics.earliest([p for p in new if p.topic in again])
        for partition in new:
            latest[partition] = max(latest[partition], begins[partition])
        moved = {
            p: at
            for p, at in begins.items()
            if p.topic in again or begun.offsets.get(p, NO_OFFSET) != at
        }
        is_elsewhere = bool(moved) or begins.keys() != begun.offsets.keys()
        return ClusterState(
            begins, latest, {**begun.ids, **known.ids}, moved, is_elsewhere, missing
        )

    def _look(
        self, begun: StreamOffset, refresh: bool = False
    ) -> tuple[Known, dict[TopicPartition, int]]:
        """The topics as they are now, and the end offsets up to which the stream may read."""
        known = self._topics.known(refresh)
        if self._frozen is None:
            return known, self._topics.latest(known.partitions)
        again = _recreated(begun, known.ids)
        # What `freeze` cannot have seen: it was hidden, or a topic was created again since.
        unseen = [
            p
            for p in known.partitions
            if p in begun.offsets
            and (p.topic in again or self._frozen.get(p, NO_OFFSET) < begun.offsets[p])
        ]
        shown = set(known.partitions)
        self._frozen = {
            p: end for p, end in self._frozen.items() if p.topic not in again or p in shown
        } | self._topics.latest(unseen)
        return known, dict(self._frozen)

    def _losses(
        self, begun: StreamOffset, known: Known, latest: Mapping[TopicPartition, int]
    ) -> list[str]:
        again = _recreated(begun, known.ids)
        losses = [
            f"topic {topic} was deleted and created again: its id was {begun.ids[topic]} and is "
            f"{known.ids[topic]} now, so its offsets mean other records"
            for topic in again
        ]
        losses += [
            f"{p}: the stream is at offset {begun.offsets[p]}, and the log ends at {end}"
            for p, end in latest.items()
            if p.topic not in again and begun.offsets.get(p, 0) > end
        ]
        return losses

    def _missing(
        self, begun: StreamOffset, known: Known, latest: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """The stream's partitions that the cluster does not show now, and that keep their offsets.

        Raises:
            DataLoss: their topics were deleted, or the options no longer select them.
            BrokerError: the stream waits for them, because they may be shown again.
        """
        fails = self._options.fail_on_data_loss
        again = _recreated(begun, known.ids)
        unseen = sorted(p for p in begun.offsets.keys() - latest.keys() if p.topic not in again)
        missing = [each for each in unseen if is_selected(self._options, each)]
        if len(missing) < len(unseen):
            left = [each for each in unseen if each not in missing]
            report_data_loss(
                f"{_names(left)}: no longer subscribed, but the checkpoint has its offset",
                fails,
                "Select it again, or use a new checkpointLocation",
            )
        gone = self._gone({each.topic for each in missing} - known.leaders.keys())
        for topic in sorted(gone.difference(self._reported)):
            its_id = f", id {begun.ids[topic]}," if topic in begun.ids else ""
            report_data_loss(
                f"topic {topic}{its_id} was deleted: the cluster has not shown it for"
                f" {GONE_SECONDS:g} s",
                fails,
                "Its unread records are gone",
            )
        self._reported = gone
        awaited = [each for each in missing if each.topic not in gone]
        if awaited and (fails or self.is_frozen):
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "the cluster does not show it now",
                _names(awaited),
            )
        if awaited and awaited != self._awaited:
            logger.warning(
                "%s: the cluster does not show it now; it keeps its offset", _names(awaited)
            )
        self._awaited = awaited
        # Only an id tells a deleted topic from one of the same name that is created later.
        return [each for each in missing if each.topic not in gone or each.topic in begun.ids]

    def _gone(self, absent: Collection[str]) -> set[str]:
        """The topics among these, which the cluster does not show, that it has not shown for long.

        A broker that has just started may know only some topics.
        """
        now = self._clock()
        before = self._absent_since if now - self._looked_at < _APART_SECONDS else {}
        self._looked_at = now
        self._absent_since = {topic: before.get(topic, now) for topic in absent}
        return {t for t, since in self._absent_since.items() if now - since >= GONE_SECONDS}

    def _earliest_of_new(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where partitions begin that the stream has not read, which should be 0."""
        begins = self._topics.earliest(partitions)
        for partition, begin in begins.items():
            if begin:
                report_data_loss(
                    f"{partition} is new and begins at offset {begin}, not at 0",
                    self._options.fail_on_data_loss,
                )
        return begins

    def find_begins(self, begun: StreamOffset, ended: StreamOffset) -> dict[TopicPartition, int]:
        """The offsets at which a batch begins that was planned before a restart.

        Raises:
            DataLoss: Spark's own Kafka source planned the batch, and only it knows the offsets; or
                a new partition has lost records.
        """
        if (
            ended.begins is None
            and begun.is_first
            and any(at > ended.offsets.get(p, at) for p, at in begun.offsets.items())
        ):
            raise DataLoss(
                "the checkpoint was written by Spark's own Kafka source, and the query's first "
                "batch is unfinished; only that source knows where it began. Let it finish the "
                "batch, or use a new checkpointLocation and startingOffsets"
            )
        again = _recreated(begun, ended.ids)
        known = {p: at for p, at in begun.offsets.items() if p.topic not in again}
        known |= ended.begins or {}
        unknown = [p for p in ended.offsets if p not in known]
        return known | self._earliest_of_new(unknown)

    def _check_named(self, known: Known) -> None:
        there = {each.topic for each in known.partitions}
        for topic in self._options.topics:
            if topic not in there:
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "the topic does not exist: create it first",
                    f"topic {topic}",
                )
        missing = [each for each in self._options.partitions if each not in known.partitions]
        if missing:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "the option assign names it, but it does not exist",
                _names(missing),
            )

    def _starting_offsets(self, known: Known) -> dict[TopicPartition, int]:
        options, topics = self._options, self._topics
        earliest, latest = topics.earliest(known.partitions), topics.latest(known.partitions)
        bounds = {p: LogBounds(earliest[p], latest[p]) for p in known.partitions}
        starts = resolve_offsets("starting", options.starting, bounds, topics.at_times)
        for partition, start in starts.items():
            if not earliest[partition] <= start <= latest[partition]:
                report_data_loss(
                    f"{partition}: the stream was to start at offset {start}, and the partition "
                    f"holds {earliest[partition]} to {latest[partition]}",
                    options.fail_on_data_loss,
                )
                starts[partition] = max(earliest[partition], min(start, latest[partition]))
        return starts


def _recreated(begun: StreamOffset, ids: Mapping[str, str]) -> list[str]:
    """The topics that were deleted and created again since the stream read them."""
    return [topic for topic, each in begun.ids.items() if ids.get(topic, each) != each]


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
