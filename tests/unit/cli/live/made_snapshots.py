"""Snapshots as tests make them: a few brokers, and topics with the rates that a test gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trimtab.balance.cluster_load import BrokerState, ClusterLoad, PartitionLoad
from trimtab.balance.level_plan import find_levels
from trimtab.client.collector import Snapshot
from trimtab.client.measure.rates import MeteredLoad
from trimtab.client.measure.slow import SlowBrokers
from trimtab.client.measure.tails import Share, Tail
from trimtab.client.measure.watch import Answers
from trimtab.client.topic_view import PartitionView, TopicView
from trimtab.kafka.records import TopicPartition

NOBODY = SlowBrokers({}, {}, {})
TAKEN_S = 1_780_000_000.0


class Made(NamedTuple):
    """A partition.

    Attributes:
        rate: bytes/s in; None if it was not measured.
        in_sync: None for all replicas.
    """

    rate: float | None = 0.0
    replicas: tuple[int, ...] = (0, 1, 2)
    leader: int | None = None
    out: float = 0.0
    size: int = 10_000
    records: float | None = None
    in_sync: tuple[int, ...] | None = None


def spread(rates: Iterable[float | None], brokers: int = 3, factor: int = 2) -> list[Made]:
    """Partitions of which each broker leads the next one."""
    return [
        Made(rate, tuple((index + at) % brokers for at in range(factor)))
        for index, rate in enumerate(rates)
    ]


def make_snapshot(
    topics: Mapping[str, Sequence[Made]],
    *,
    number: int = 9,
    taken_s: float = TAKEN_S,
    brokers: Sequence[BrokerState] | int = 3,
    racks: Sequence[str | None] = (),
    slow: SlowBrokers = NOBODY,
    answers: Mapping[int, Answers] | None = None,
    ids: Mapping[str, int] | None = None,
    **parts: Any,
) -> Snapshot:
    """A snapshot.

    Args:
        brokers: or their number; one beyond the racks that are given has none.
        ids: of topics that are not the first of their name.
        parts: as `Snapshot`'s.
    """
    if isinstance(brokers, int):
        names = (*racks, *(None,) * brokers)
        brokers = [BrokerState(id, names[id], 1 << 62) for id in range(brokers)]
    views: dict[str, TopicView] = {}
    loads: list[PartitionLoad] = []
    records: dict[TopicPartition, float] = {}
    left_out: dict[TopicPartition, str] = {}
    for name in sorted(topics):
        shown = []
        for index, made in enumerate(topics[name]):
            partition = TopicPartition(name, index)
            leader = made.replicas[0] if made.leader is None else made.leader
            in_sync = made.replicas if made.in_sync is None else made.in_sync
            shown.append(PartitionView(leader, 1, made.replicas, in_sync, ()))
            if made.rate is None:
                left_out[partition] = "it is new, or its log is: only one sample has it"
                continue
            records[partition] = made.rate / 100 if made.records is None else made.records
            loads.append(
                PartitionLoad(
                    partition,
                    made.replicas,
                    leader,
                    frozenset(in_sync),
                    made.rate,
                    made.out,
                    made.size,
                )
            )
        leaders = tuple(view.leader for view in shown)
        rack = {broker.id: broker.rack for broker in brokers}
        views[name] = TopicView(
            name,
            bytes([(ids or {}).get(name, 1)]) * 16,
            name.startswith("__"),
            tuple(shown),
            leaders,
            tuple(rack.get(leader) for leader in leaders),
            tuple(index for index, leader in enumerate(leaders) if leader >= 0),
        )
    load = ClusterLoad({each.id: each for each in brokers}, loads, frozenset(), taken_s)
    given: dict[str, Any] = {"volumes": {}, "limits": None, **parts}
    return Snapshot(
        number=number,
        taken_s=taken_s,
        cluster_id="cluster-1",
        metered=MeteredLoad(load, records, left_out, []),
        levels=find_levels(load),
        topics=views,
        slow=slow,
        answers=answers or {},
        **given,
    )


def make_tail(
    keys: Mapping[str, float],
    producers: Mapping[str, float] | None = None,
    *,
    size: int = 200_000,
    batches: int = 10,
) -> Tail:
    """Keys and producers with their shares, the largest first."""
    named = [
        tuple(Share(*each) for each in sorted(shares.items(), key=lambda each: -each[1]))
        for shares in (keys, producers or {"7": 1.0})
    ]
    return Tail(1000, batches, size, named[0], named[1])
