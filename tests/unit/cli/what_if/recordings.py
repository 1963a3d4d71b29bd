"""Recordings whose load is known, for tests of `trimtab what-if`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from trimtab.balance.cluster_load import BrokerState, ClusterLoad, PartitionLoad
from trimtab.balance.level_plan import find_levels
from trimtab.cli.live.recording import Recorder
from trimtab.client.collector import Snapshot
from trimtab.client.measure.rates import MeteredLoad
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.watch import Answers
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.records import TopicPartition

BEGIN_S = 1_790_000_000.0
WINDOW_S = 60.0

Rate = Callable[[str, int, int], float]
"""Bytes/s of a partition in a window: topic, partition, window."""


def steady(topic: str, partition: int, window: int) -> float:
    return 1_000_000.0


def snapshots(
    *,
    brokers: int = 6,
    topics: dict[str, int] | None = None,
    windows: int = 8,
    factor: int = 2,
    rate: Rate = steady,
    readers: float = 1.0,
    answers: Callable[[float, int], Answers] | None = None,
    moved: dict[TopicPartition, tuple[int, ...]] | None = None,
) -> Iterator[Snapshot]:
    """A snapshot for each window. Partition p is on brokers p, p + 1, … and racks are a, b, c.

    Args:
        answers: by bytes/s of a broker, and window; None without probes.
        moved: other replicas of partitions.
    """
    topics = topics or {"flights": 12, "trips": 6}
    states = {each: BrokerState(each, "abc"[each % 3], 10_000) for each in range(brokers)}
    placed = {
        TopicPartition(topic, at): tuple((at + step) % brokers for step in range(factor))
        for topic, count in topics.items()
        for at in range(count)
    } | (moved or {})
    views = {topic: _view(topic, count, placed) for topic, count in topics.items()}
    for window in range(windows):
        taken_s = BEGIN_S + window * WINDOW_S
        partitions = [
            PartitionLoad(
                *(each, replicas, replicas[0], frozenset(replicas)),
                bytes_in := rate(*each, window),
                readers * bytes_in,
                round(3600 * bytes_in),
            )
            for each, replicas in sorted(placed.items())
        ]
        load = ClusterLoad(states, partitions, measured_s=taken_s)
        levels = find_levels(load)
        told = {}
        if answers is not None:
            told = {
                each: answers(levels["in"].loads[each] + levels["out"].loads[each], window)
                for each in states
            }
        records = {each.partition: each.bytes_in / 1000 for each in partitions}
        yield Snapshot(
            *(window + 1, taken_s, "cluster", MeteredLoad(load, records, {}, ()), levels, views),
            *({each: (None, None) for each in states}, None, SlowBrokers({}, {}, {}), told),
        )


def _view(topic: str, count: int, placed: dict[TopicPartition, tuple[int, ...]]) -> TopicView:
    all_replicas = [placed[topic, at] for at in range(count)]  # type: ignore[index]
    views = tuple(PartitionView(each[0], 0, each, each, ()) for each in all_replicas)
    leaders = tuple(each.leader for each in views)
    racks = tuple("abc"[each % 3] for each in leaders)
    return TopicView(topic, b"1" * 16, False, views, leaders, racks, tuple(range(count)))


def record(path: Path, found: Iterator[Snapshot]) -> str:
    recorder = Recorder(path)
    for each in found:
        recorder.write(each)
    recorder.close()
    return str(path)
