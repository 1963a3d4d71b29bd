"""How far groups lag in each partition, and when they will have caught up, from looks at offsets.

    committed offsets, ends of partitions ─▶ lag, in offsets
    two looks or more ─────────────────────▶ records/s written and read ─▶ seconds to clear the lag

Consumers commit every few seconds, so rates are means over all looks that are given. What a reset,
a topic created again or an answer left out makes unknown is None, until two later looks tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from trimtab.client.measure.sample import Timed
from trimtab.kafka.records import TopicPartition

_Offsets: TypeAlias = Timed[Mapping[TopicPartition, int]]
Trend: TypeAlias = Literal["growing", "shrinking", "steady"]

_STEADY: Final = 0.05
"""Rates that differ by no more than this part of the larger one may differ by commits' moments."""


class Look(NamedTuple):
    """What the brokers have answered at about one moment; times are the loop's.

    Attributes:
        committed: the offsets of each group that has been told, as `LoadSample.groups`.
        ends: of the partitions that a broker leads, by broker, as `LoadSample.ends`.
    """

    committed: Mapping[str, _Offsets]
    ends: Mapping[int, _Offsets]


class PartitionLag(NamedTuple):
    """One group in one partition.

    Attributes:
        committed: the offset of the next record to read.
        end: None if no broker has told it: the partition is deleted, or has no leader that answers.
        lag: in offsets, so markers of transactions and compacted records count; 0 for a group whose
            offset is beyond the end; None without an end.
        written_per_s, read_per_s: offsets per second; None if only one look tells.
        seconds_to_clear: at these rates; 0.0 without lag; None if the rates are not known, or the
            lag does not shrink.
    """

    group: str
    partition: TopicPartition
    committed: int
    end: int | None
    lag: int | None
    written_per_s: float | None
    read_per_s: float | None
    seconds_to_clear: float | None

    @property
    def is_beyond_end(self) -> bool:
        """Whether the topic has lost records, or is another one of the same name."""
        return self.end is not None and self.committed > self.end

    @property
    def trend(self) -> Trend | None:
        """What the lag does; None if the rates are not known, or the offset is beyond the end."""
        return None if self.is_beyond_end else _find_trend(self.written_per_s, self.read_per_s)


class GroupLag(NamedTuple):
    """The sums over a group's partitions.

    Attributes:
        partitions: in which it has an offset.
        lag: of the partitions whose lag is known.
        written_per_s, read_per_s: of the partitions where both are known; None if there are none.
        seconds_to_clear: until the last partition is cleared; None if one is not known, or does not
            shrink.
    """

    group: str
    partitions: int
    lag: int
    written_per_s: float | None
    read_per_s: float | None
    seconds_to_clear: float | None

    @property
    def trend(self) -> Trend | None:
        """What the lag does; None if the rates are not known."""
        return _find_trend(self.written_per_s, self.read_per_s)


def measure_lag(looks: Sequence[Look]) -> list[PartitionLag]:
    """The lag of each group in each partition at the last of these looks, groups in its order.

    Args:
        looks: in the order of time. Rates are means from the first look to the last; after an
            offset that went back, from that look on.
    """
    if not looks:
        return []
    backwards = looks[::-1]
    ends = _follow(look.ends.values() for look in backwards)
    lags: list[PartitionLag] = []
    for group in looks[-1].committed:
        told = (look.committed.get(group) for look in backwards)
        commits = _follow([answer] if answer is not None else [] for answer in told)
        for partition, commit in commits.items():
            end = ends.get(partition)
            lag = None if end is None else max(0, end.last - commit.last)
            written, read = None if end is None else end.rate, commit.rate
            lags.append(
                PartitionLag(
                    group,
                    partition,
                    commit.last,
                    None if end is None else end.last,
                    lag,
                    written,
                    read,
                    _find_time(lag, written, read),
                )
            )
    return lags


def sum_lag(lags: Iterable[PartitionLag]) -> dict[str, GroupLag]:
    """The sums by group, in the order of the groups' first partitions."""
    by_group: dict[str, list[PartitionLag]] = {}
    for each in lags:
        by_group.setdefault(each.group, []).append(each)
    return {group: _sum_group(group, of_group) for group, of_group in by_group.items()}


def _sum_group(group: str, lags: Sequence[PartitionLag]) -> GroupLag:
    rates = [
        (each.written_per_s, each.read_per_s)
        for each in lags
        if each.written_per_s is not None and each.read_per_s is not None
    ]
    times = [each.seconds_to_clear for each in lags if each.end is not None]
    known = [each for each in times if each is not None]
    return GroupLag(
        group,
        len(lags),
        sum(each.lag or 0 for each in lags),
        sum(written for written, _ in rates) if rates else None,
        sum(read for _, read in rates) if rates else None,
        max(known) if known and len(known) == len(times) else None,
    )


class _Run:
    """An offset through the looks in which it has only risen, from the last one backwards."""

    __slots__ = ("_first", "_first_at", "_has_fallen", "_last_at", "last")

    def __init__(self, at: float, offset: int) -> None:
        self.last = self._first = offset
        self._last_at = self._first_at = at
        self._has_fallen = False

    def add_earlier(self, at: float, offset: int) -> None:
        self._has_fallen = self._has_fallen or offset > self._first
        if not self._has_fallen:
            self._first, self._first_at = offset, at

    @property
    def rate(self) -> float | None:
        seconds = self._last_at - self._first_at
        return (self.last - self._first) / seconds if seconds > 0 else None


def _follow(looks: Iterable[Iterable[_Offsets]]) -> dict[TopicPartition, _Run]:
    """The partitions of the last look; `looks` begins with it, and goes backwards."""
    runs: dict[TopicPartition, _Run] = {}
    for number, answers in enumerate(looks):
        for at, offsets in answers:
            for partition, offset in offsets.items():
                if number == 0:
                    runs[partition] = _Run(at, offset)
                elif partition in runs:
                    runs[partition].add_earlier(at, offset)
    return runs


def _find_time(lag: int | None, written: float | None, read: float | None) -> float | None:
    if not lag:
        return None if lag is None else 0.0
    if written is None or read is None or read <= written:
        return None
    return lag / (read - written)


def _find_trend(written: float | None, read: float | None) -> Trend | None:
    if written is None or read is None:
        return None
    if abs(written - read) <= _STEADY * max(written, read):
        return "steady"
    return "growing" if written > read else "shrinking"
