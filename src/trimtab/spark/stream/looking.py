"""What the cluster has for a stream: where its partitions begin and end, and what is gone.

Rules, where nothing else is said, are those of Spark's own Kafka source
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
    """What is asked of the cluster: `StreamTopics`."""

    def known(self, refresh: bool = False) -> Known: ...

    def earliest(self, partitions: Any) -> dict[TopicPartition, int]: ...

    def latest(self, partitions: Any) -> dict[TopicPartition, int]: ...

    def at_times(self, times: Any) -> dict[TopicPartition, int | None]: ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...

    def close(self) -> None: ...


class Look(NamedTuple):
    """What a look at the cluster has found.

    Attributes:
        begins: where the next batch begins; also for partitions and topics that are new.
        latest: where each partition ends.
        is_news: whether the next batch begins elsewhere than the last one ended.
    """

    begins: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]
    ids: Mapping[str, str]
    is_news: bool


class Lookout:
    """Looks at the cluster for one stream.

    Args:
        options: the stream's.
        topics: asks the cluster.
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
        """Whether what was there at a moment is all that is looked at."""
        return self._frozen is not None

    def freeze(self) -> None:
        """Look at what is there now, and at nothing that comes later."""
        known = self._topics.known(refresh=True)
        self._frozen = known, self._topics.latest(known.partitions)

    def first(self) -> StreamOffset:
        """Where a new query begins.

        Raises:
            KafkaError: the cluster cannot be asked, or what is asked for is not there.
        """
        known = self._topics.known(refresh=True)
        self._check_named(known)
        offsets = self._starting_offsets(known)
        return StreamOffset(offsets, known.ids, offsets)

    def look(self, begun: StreamOffset) -> Look:
        """What there is now, once data that are missing have been reported."""
        if self._frozen is not None:
            known, latest = self._frozen
        else:
            known = self._topics.known()
            latest = self._topics.latest(known.partitions)
        losses = self._losses(begun, known, latest)
        for _ in range(0 if self._frozen is not None else _CONFIRMATIONS):
            if not losses:
                break
            # A broker that is late must not raise the alarm.
            self._wait(_CONFIRM_SECONDS)
            known = self._topics.known(refresh=True)
            latest = self._topics.latest(known.partitions)
            losses = self._losses(begun, known, latest)
        for loss in losses:
            report_data_loss(loss, self._options.fail_on_data_loss)
        again = _made_again(begun, known.ids)
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
        is_news = bool(again) or begins != begun.offsets
        return Look(begins, latest, known.ids, is_news)

    def _losses(
        self, begun: StreamOffset, known: Known, latest: Mapping[TopicPartition, int]
    ) -> list[str]:
        again = _made_again(begun, known.ids)
        losses = [
            f"topic {topic} was deleted and made again: its id was {begun.ids[topic]} and is "
            f"{known.ids[topic]}; its offsets mean other records now"
            for topic in again
        ]
        gone = sorted(begun.offsets.keys() - set(known.partitions))
        if gone:
            losses.append(f"{', '.join(map(str, gone))}: no longer there")
        losses += [
            f"{p}: the stream stands at offset {begun.offsets[p]}, and the log ends at {end}"
            for p, end in latest.items()
            if p.topic not in again and begun.offsets.get(p, 0) > end
        ]
        return losses

    def find_begins(self, begun: StreamOffset, ended: StreamOffset) -> dict[TopicPartition, int]:
        """Where a batch begins that was planned before a restart.

        Raises:
            DataLoss: only Spark's own Kafka source knows.
        """
        if ended.first is not None:
            begun = StreamOffset(ended.first, ended.ids)
        elif begun.first is not None and any(
            at > ended.offsets.get(p, at) for p, at in begun.offsets.items()
        ):
            raise DataLoss(
                "the checkpoint is that of a query of Spark's own Kafka source whose first batch "
                "was never finished; only that source knows where it began. Let it finish the "
                "batch, or begin with a new checkpointLocation and startingOffsets"
            )
        again = _made_again(begun, ended.ids)
        begins = {p: at for p, at in begun.offsets.items() if p.topic not in again}
        return begins | self._topics.earliest([p for p in ended.offsets if p not in begins])

    def _check_named(self, known: Known) -> None:
        there = {each.topic for each in known.partitions}
        for topic in self._options.topics:
            if topic not in there:
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "there is no such topic; create it first",
                    f"topic {topic}",
                )
        missing = [each for each in self._options.partitions if each not in known.partitions]
        if missing:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "the option assign names it, and it is not there",
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


def _made_again(begun: StreamOffset, ids: Mapping[str, str]) -> list[str]:
    """The topics that were deleted and made again since."""
    return [topic for topic, each in begun.ids.items() if ids.get(topic, each) != each]
