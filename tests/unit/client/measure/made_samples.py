"""Samples as tests make them, of one topic or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trimtab.balance.limits import PartitionLimits
from trimtab.client.measure.polls import BrokerLogs
from trimtab.client.measure.sample import LoadSample, Timed
from trimtab.client.network.connection import Node
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.records import TopicPartition

ROUND_S = 0.01
"""Seconds from the beginning of a sample to its answers."""


class Log(NamedTuple):
    """A partition's log at its leader; `topic_id` is a letter."""

    size: int
    end: int
    start: int = 0
    leader: int = 0
    topic_id: str = "a"
    replicas: tuple[int, ...] = (0, 1)


def make_sample(
    began: float,
    logs: Mapping[TopicPartition, Log],
    groups: Mapping[str, Mapping[TopicPartition, int]] | None = None,
    *,
    compacted: Iterable[str] = (),
    silent: Iterable[int] = (),
    moving: Iterable[TopicPartition] = (),
    brokers: Iterable[int] = (0, 1, 2),
    totals: Mapping[int, int] | None = None,
    limit: int | None = None,
    **parts: Any,
) -> LoadSample:
    """A sample in which every broker answers that is not silent."""
    at = began + ROUND_S
    by_topic: dict[str, list[Log]] = {}
    for partition in sorted(logs):
        by_topic.setdefault(partition.topic, []).append(logs[partition])
    topics = {
        name: TopicView(
            name,
            of_topic[0].topic_id.encode().ljust(16, b"\1"),
            name.startswith("__"),
            tuple(PartitionView(log.leader, 0, log.replicas, log.replicas, ()) for log in of_topic),
            tuple(log.leader for log in of_topic),
            (None,) * len(of_topic),
            tuple(index for index, log in enumerate(of_topic) if log.leader >= 0),
        )
        for name, of_topic in by_topic.items()
    }
    told = [broker for broker in brokers if broker not in set(silent)]
    led = {
        broker: {each: log for each, log in logs.items() if log.leader == broker} for broker in told
    }
    return LoadSample(
        began,
        at,
        1000.0 + at,
        Timed(at, topics),
        {broker: Node(broker, f"broker-{broker}", 9092, f"rack-{broker}") for broker in brokers},
        logs={
            broker: Timed(
                at,
                BrokerLogs(
                    {each: log.size for each, log in of_broker.items()},
                    (totals or {}).get(broker),
                    None,
                    True,
                ),
            )
            for broker, of_broker in led.items()
        },
        ends={
            broker: Timed(at, {each: log.end for each, log in of_broker.items()})
            for broker, of_broker in led.items()
        },
        starts={
            broker: Timed(at, {each: log.start for each, log in of_broker.items()})
            for broker, of_broker in led.items()
        },
        groups={group: Timed(at, committed) for group, committed in (groups or {}).items()},
        moving=Timed(at, frozenset(moving)),
        limits=None if limit is None else PartitionLimits(limit, 10 * limit),
        compacted={(name, view.topic_id): name in set(compacted) for name, view in topics.items()},
        silent={broker: "sizes of logs: no answer within 5 s" for broker in silent},
        **parts,
    )
