"""The cluster's partitions for a stream: their first and last offsets, and lost data.

Unless a comment says otherwise, the rules are those of Spark's own Kafka source
(`KafkaMicroBatchStream`, `KafkaOffsetReaderAdmin`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from trimtab.errors import BrokerError, ErrorCode
from trimtab.records import TopicPartition
from trimtab.spark.options.source import StreamOptions
from trimtab.spark.read.ranges import DataLoss, LogBounds, report_data_loss, resolve_offsets
from trimtab.spark.stream.offsets import StreamOffset
from trimtab.spark.stream.topics import Known

_CONFIRMATIONS: Final = 3
_CONFIRM_SECONDS: Final = 0.3


class Topics(Protocol):
    """Requests to the cluster; `StreamTopics` implements them."""

    def known(self, refresh: bool = False) -> Known: ...

    def earliest(self, partitions: Any) -> dict[TopicPartition, int]: ...

    def latest(self, partitions: Any) -> dict[TopicPartition, int]: ...

    def at_times(self, times: Any) -> dict[TopicPartition, int | None]: ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...

    def close(self) -> None: ...


class ClusterState(NamedTuple):
    """The offsets between which the next batch may read.

    Attributes:
        begins: the offset at which the next batch begins in each partition, including new ones.
        latest: the end offset of each partition.
        ids: the id of each topic that has one.
        begins_elsewhere: whether the next batch begins at other offsets than the last one ended.
    """

    begins: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]
    ids: Mapping[str, str]
    begins_elsewhere: bool


class ClusterObserver:
    """Observes the cluster for one stream.

    Args:
        options: the stream's options.
        topics: sends requests to the cluster.
        wait: waits for a number of seconds.
    """

    def __init__(
        self, options: StreamOptions, topics: Topics, wait: Callable[[float], object]
    ) -> None:
        self._options = options
        self._topics = topics
        self._wait = wait
        self._frozen: tuple[Known, dict[TopicPartition, int]] | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether `freeze` was called."""
        return self._frozen is not None

    def freeze(self) -> None:
        """Fix the partitions and their end offsets: later records are not read."""
        known = self._topics.known(refresh=True)
        self._frozen = known, self._topics.latest(known.partitions)

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
            KafkaError: the cluster cannot be reached.
        """
        if self._frozen is not None:
            known, latest = self._frozen
        else:
            known = self._topics.known()
            latest = self._topics.latest(known.partitions)
        losses = self._losses(begun, known, latest)
        for _ in range(0 if self._frozen is not None else _CONFIRMATIONS):
            if not losses:
                break
            # A broker with old metadata or a low end offset must not cause a false alarm.
            self._wait(_CONFIRM_SECONDS)
            known = self._topics.known(refresh=True)
            latest = self._topics.latest(known.partitions)
            losses = self._losses(begun, known, latest)
        for loss in losses:
            report_data_loss(loss, self._options.fail_on_data_loss)
        again = _recreated(begun, known.ids)
        begins = {
            p: min(begun.offsets[p], latest[p])
            for p in known.partitions
            if p in begun.offsets and p.topic not in again
        }
        new = [p for p in known.partitions if p not in begins]
        begins |= self._topics.earliest(new)
        for partition in new:
            if begins[partition] and partition.topic not in again:
                report_data_loss(
                    f"{partition} is new and begins at offset {begins[partition]}, not at 0",
                    self._options.fail_on_data_loss,
                )
            latest[partition] = max(latest[partition], begins[partition])
        begins_elsewhere = bool(again) or begins != begun.offsets
        return ClusterState(begins, latest, known.ids, begins_elsewhere)

    def _losses(
        self, begun: StreamOffset, known: Known, latest: Mapping[TopicPartition, int]
    ) -> list[str]:
        again = _recreated(begun, known.ids)
        losses = [
            f"topic {topic} was deleted and created again: its id was {begun.ids[topic]} and is "
            f"{known.ids[topic]} now, so its offsets mean other records"
            for topic in again
        ]
        gone = sorted(begun.offsets.keys() - set(known.partitions))
        if gone:
            losses.append(f"{', '.join(map(str, gone))}: deleted")
        losses += [
            f"{p}: the stream is at offset {begun.offsets[p]}, and the log ends at {end}"
            for p, end in latest.items()
            if p.topic not in again and begun.offsets.get(p, 0) > end
        ]
        return losses

    def find_begins(self, begun: StreamOffset, ended: StreamOffset) -> dict[TopicPartition, int]:
        """The offsets at which a batch begins that was planned before a restart.

        Raises:
            DataLoss: Spark's own Kafka source planned the batch, and only it knows the offsets.
        """
        if ended.first is not None:
            begun = StreamOffset(ended.first, ended.ids)
        elif begun.first is not None and any(
            at > ended.offsets.get(p, at) for p, at in begun.offsets.items()
        ):
            raise DataLoss(
                "the checkpoint was written by Spark's own Kafka source, and the query's first "
                "batch is unfinished; only that source knows where it began. Let it finish the "
                "batch, or use a new checkpointLocation and startingOffsets"
            )
        again = _recreated(begun, ended.ids)
        begins = {p: at for p, at in begun.offsets.items() if p.topic not in again}
        return begins | self._topics.earliest([p for p in ended.offsets if p not in begins])

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
                ", ".join(map(str, missing)),
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
