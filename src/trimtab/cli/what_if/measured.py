"""The load that a forecast begins with: of a live cluster, a recording, or a load table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from trimtab.balance.answer_fit import Answered
from trimtab.balance.cluster_load import IN, OUT, ClusterLoad
from trimtab.balance.limits import PartitionLimits
from trimtab.balance.what_if import LoadWindows, expect_rates, join_windows
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import LONG_MAX

if TYPE_CHECKING:
    from trimtab.client.collector import Snapshot
    from trimtab.client.topic_view import TopicView
    from trimtab.kafka.records import TopicPartition

_LEAST: Final = 4
_DAY_S: Final = 86_400


class Measured(NamedTuple):
    """What was measured.

    Attributes:
        source: what was read, for people.
        earlier, later, base: the windows that forecast others, those others, and the windows that a
            forecast begins with.
        answered: by window of the measurement, how long probes took; empty without probes.
        records_in: records/s by topic, their mean.
        limits: on replicas.
    """

    source: str
    windows: LoadWindows
    earlier: slice
    later: slice
    base: slice
    answered: list[list[Answered]]
    records_in: Mapping[str, float]
    topics: Mapping[str, TopicView]
    limits: PartitionLimits


class _Reading:
    """Passes the loads of snapshots on, and keeps the rest of what they tell."""

    def __init__(self, snapshots: Iterable[Snapshot], window_s: float) -> None:
        self._snapshots = snapshots
        self._window_s = window_s
        self.last: Snapshot | None = None
        self.answers: dict[int, dict[int, list[Answered]]] = defaultdict(lambda: defaultdict(list))
        self.records: dict[str, float] = defaultdict(float)
        self.count = 0
        self.began_s = 0.0

    def loads(self) -> Iterator[tuple[int, ClusterLoad]]:
        for snapshot in self._snapshots:
            if self.last is None:
                self.began_s = snapshot.taken_s
            window = int((snapshot.taken_s - self.began_s) // self._window_s)
            self.last = snapshot
            self.count += 1
            for partition, rate in snapshot.metered.records_in.items():
                self.records[partition.topic] += rate
            sums = (snapshot.levels[IN].loads, snapshot.levels[OUT].loads)
            for broker, answers in snapshot.answers.items():
                if answers.p99_s is not None:
                    load = sum(each.get(broker, 0.0) for each in sums)
                    one = Answered(broker, load, answers.median_s, answers.p99_s)
                    self.answers[window][broker].append(one)
            yield window, snapshot.metered.load

    def mean_answers(self) -> list[list[Answered]]:
        """Of each window and broker the means."""
        return [
            [
                Answered(broker, *numpy.mean([each[1:] for each in found], axis=0).tolist())
                for broker, found in sorted(self.answers[window].items())
            ]
            for window in sorted(self.answers)
        ]


def read_snapshots(source: str, snapshots: Iterable[Snapshot], window_s: float) -> Measured:
    """Measured load, by windows of so many seconds.

    Raises:
        UsageError: there are less than four windows.
    """
    reading = _Reading(snapshots, window_s)
    windows = join_windows(reading.loads())
    last, count = reading.last, len(windows.bytes_in)
    assert last is not None
    if count < _LEAST:
        raise UsageError(
            f"{source} has {count} windows of {window_s:g} s, and a back-test needs {_LEAST}: "
            "measure for longer, or give a shorter --window"
        )
    half = count // 2
    return Measured(
        source,
        windows,
        slice(0, half),
        slice(half, count),
        slice(0, count),
        reading.mean_answers(),
        {topic: rate / reading.count for topic, rate in reading.records.items()},
        last.topics,
        last.limits or PartitionLimits(LONG_MAX, LONG_MAX),
    )


def use_table(measured: Measured, table: str) -> Measured:
    """The rates of a load table instead of those measured; from two days on its last day, which the
    day before forecasts in the back-test.

    Raises:
        UsageError: as `balance_history.read_rates`; or the table has less than four windows, or
            none of the partitions.
    """
    from trimtab.cli.balance_history import read_rates

    partitions, rates, length = read_rates(table)
    rows: dict[TopicPartition, numpy.ndarray[Any, Any]] = dict(zip(partitions, rates, strict=True))
    if rows.keys().isdisjoint(each.partition for each in measured.windows.load.partitions):
        raise UsageError(f"{table}: the cluster has none of its partitions")
    count = rates.shape[1]
    if count < _LEAST:
        raise UsageError(
            f"{table}: has {count} windows, and a back-test needs {_LEAST}: give a longer table, "
            "or one with shorter windows"
        )
    day = _DAY_S // length
    part = day if day >= 2 and count >= 2 * day else count // 2
    return measured._replace(
        source=f"{table}, on the brokers of {measured.source}",
        windows=expect_rates(measured.windows, rows),
        earlier=slice(count - 2 * part, count - part),
        later=slice(count - part, count),
        base=slice(count - part, count) if part == day else slice(0, count),
    )


def read_file(path: str, window_s: float) -> Measured:
    """A recording.

    Raises:
        UsageError: as `read_recording` and `read_snapshots`.
    """
    from trimtab.cli.live.recording import read_recording

    return read_snapshots(path, read_recording(Path(path)), window_s)


def watch_cluster(options: dict[str, Any], seconds: float, window_s: float) -> Measured:
    """A live cluster, watched for so long, with probes.

    Raises:
        UsageError: as `read_snapshots`.
        KafkaError: the cluster does not answer, or refuses.
    """
    from trimtab.cli.live.source import Watched

    def snapshots() -> Iterator[Snapshot]:
        sample_s = max(2.0, window_s / 2)
        with Watched(options, window_s=sample_s, probes=True) as watched:
            first: float | None = None
            number, now_s = 0, 0.0
            while first is None or now_s < first + seconds:
                snapshot = watched.wait(number, 10 * sample_s + 30)
                number, now_s = snapshot.number, snapshot.taken_s
                if first is None:
                    first = now_s
                yield snapshot

    return read_snapshots(f"{options['bootstrap.servers']}", snapshots(), window_s)
