"""A snapshot as the rows that views show: brokers, topics, groups, racks, findings.

They are made once for each snapshot, whatever the number of views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trimtab.balance.advice import Thresholds, most_by_chance
from trimtab.balance.cluster_load import DISK, IN, OUT, PartitionLoad
from trimtab.balance.limits import ClusterUsage, PartitionLimits
from trimtab.client.collector import Snapshot
from trimtab.client.measure.lag import GroupLag, PartitionLag, sum_lag
from trimtab.client.measure.limits import count_replicas
from trimtab.client.measure.probe import PROBE_TOPIC
from trimtab.client.measure.tails import Tail
from trimtab.kafka.options import LONG_MAX
from trimtab.kafka.records import TopicPartition

WINDOW_S: Final = 30.0
"""As `Watched`'s default."""
_LEAST_RATE: Final = 1000.0
"""Bytes/s of a topic below which its skew says nothing."""


class BrokerRow(NamedTuple):
    """One broker.

    Attributes:
        state: "up", "slow" or "down".
        why: why it is slow, or sends more than others; "" if neither.
        sent, written: bytes/s that its leaders send, and that its replicas get.
        level: sent divided by the mean of the live brokers; None without load.
        stored: bytes of its replicas.
        disk, disk_free: bytes of its volumes; None if it does not tell.
        answer_s, p99_s: how quickly it answers.
        free: replicas that its limit allows (KIP-578); None without a limit.
    """

    broker: int
    rack: str | None
    state: str
    why: str
    leaders: int
    replicas: int
    sent: float
    written: float
    level: float | None
    stored: int
    disk: int | None
    disk_free: int | None
    answer_s: float | None
    p99_s: float | None
    free: int | None


class TopicRow(NamedTuple):
    """One topic.

    Attributes:
        bytes_in, bytes_out: bytes/s that producers send, and consumers fetch.
        records_in: records/s.
        size: bytes of its leaders' logs.
        skew: bytes/s of its largest partition divided by the mean; None below 1 kB/s, or with one
            partition.
        largest: that partition.
        is_uneven: whether chance alone does not explain it.
        why: what the newest records of its largest partition show; "" if they were not read.
        without_leader, under_replicated: partitions.
    """

    topic: str
    partitions: int
    factor: int
    bytes_in: float
    bytes_out: float
    records_in: float
    size: int
    skew: float | None
    largest: int | None
    is_uneven: bool
    why: str
    without_leader: int
    under_replicated: int


class RackRow(NamedTuple):
    """Bytes between two racks.

    Attributes:
        kind: "replicate", which is known; "produce" and "consume" are what it would be if clients
            were spread over the racks evenly: no broker tells where they are.
        source, target: racks; "" for any.
        rate: bytes/s.
    """

    kind: str
    source: str
    target: str
    rate: float


class Totals(NamedTuple):
    """Sums over the cluster; bytes/s, and records/s."""

    topics: int
    partitions: int
    measured: int
    bytes_in: float
    bytes_out: float
    records_in: float
    stored: int
    without_leader: int
    under_replicated: int


class Summary(NamedTuple):
    """What views show of one snapshot; topics and groups with most load or lag first.

    Attributes:
        usage: replicas and limits, to see whether further topics fit.
        by_topic, by_leader: the measured partitions, by topic and by the broker that leads them; of
            a broker those first of which it sends most.
    """

    snapshot: Snapshot
    totals: Totals
    brokers: Sequence[BrokerRow]
    topics: Sequence[TopicRow]
    groups: Sequence[GroupLag]
    racks: Sequence[RackRow]
    usage: ClusterUsage
    by_topic: Mapping[str, Sequence[PartitionLoad]]
    by_leader: Mapping[int, Sequence[PartitionLoad]]


def summarize(snapshot: Snapshot, window_s: float = WINDOW_S) -> Summary:
    """All rows; in time that grows with partitions.

    Args:
        window_s: seconds that its rates are means over: what may be chance depends on it.
    """
    by_topic: dict[str, list[PartitionLoad]] = {}
    by_leader: dict[int, list[PartitionLoad]] = {}
    for each in snapshot.metered.load.partitions:
        by_topic.setdefault(each.partition.topic, []).append(each)
        by_leader.setdefault(each.leader, []).append(each)
    for led in by_leader.values():
        led.sort(key=lambda each: -each.leader_out)
    topics = [
        _topic_row(snapshot, name, by_topic.get(name, ()), window_s)
        for name in snapshot.topics
        if name != PROBE_TOPIC
    ]
    topics.sort(key=lambda row: (-row.bytes_in, -row.size, row.topic))
    groups = sorted(sum_lag(snapshot.lags).values(), key=lambda each: (-each.lag, each.group))
    partitions = snapshot.metered.load.partitions
    totals = Totals(
        len(topics),
        sum(row.partitions for row in topics),
        len(partitions),
        sum(row.bytes_in for row in topics),
        sum(row.bytes_out for row in topics),
        sum(row.records_in for row in topics),
        sum(each.size * len(each.replicas) for each in partitions),
        sum(row.without_leader for row in topics),
        sum(row.under_replicated for row in topics),
    )
    return Summary(
        snapshot,
        totals,
        _broker_rows(snapshot, by_leader),
        topics,
        groups,
        _rack_rows(snapshot),
        _usage(snapshot),
        by_topic,
        by_leader,
    )


def list_lags(snapshot: Snapshot, topic: str = "", group: str = "") -> list[PartitionLag]:
    """The lags in a topic, or of a group; those that take longest to clear first."""
    found = [
        each
        for each in snapshot.lags
        if topic in ("", each.partition.topic) and group in ("", each.group)
    ]
    found.sort(key=lambda each: (-(each.lag or 0), each.group, each.partition))
    return found


def _usage(snapshot: Snapshot) -> ClusterUsage:
    brokers = snapshot.metered.load.brokers.values()
    return ClusterUsage(
        snapshot.limits or PartitionLimits(LONG_MAX, LONG_MAX),
        {each.id: each.rack for each in brokers if each.is_alive},
        count_replicas(snapshot.topics.values()),
    )


def explain_tail(partition: TopicPartition, tail: Tail) -> str:
    """Who has written the newest records of a partition, in a sentence."""
    largest = tail.keys[0]
    if largest.share < 0.5:
        keyed = "no key has half of it"
        what = f"key {largest.name!r} {largest.share:.0%}" if largest.name else "without a key"
        text = f"{keyed}; most has {what}" if largest.name else f"{largest.share:.0%} has no key"
    elif largest.name:
        text = f"key {largest.name!r} has {largest.share:.0%}"
    else:
        text = f"{largest.share:.0%} has no key, so the producers chose the partition"
    writers = len(tail.producers)
    producer = tail.producers[0]
    if producer.name and writers > 1 and producer.share >= 0.5:
        text += f"; producer {producer.name} wrote {producer.share:.0%}"
    return f"of the newest bytes of partition {partition.partition}, {text}"


def _topic_row(
    snapshot: Snapshot, name: str, loads: Sequence[PartitionLoad], window_s: float
) -> TopicRow:
    view = snapshot.topics[name]
    bytes_in = sum(each.bytes_in for each in loads)
    records = sum(snapshot.metered.records_in.get(each.partition, 0.0) for each in loads)
    skew = largest = None
    is_uneven, why = False, ""
    if loads:
        top = max(loads, key=lambda each: each.bytes_in)
        largest = top.partition.partition
        tail = snapshot.tails.get(top.partition)
        if tail is not None:
            why = explain_tail(top.partition, tail)
        count = view.partition_count
        if count > 1 and bytes_in >= _LEAST_RATE:
            skew = top.bytes_in * count / bytes_in
            is_keyed = tail is not None and tail.keys[0].name != ""
            by_chance = most_by_chance(count, records * window_s, bytes_in * window_s, is_keyed)
            is_uneven = skew > max(min(Thresholds().max_over_mean, (count + 1) / 2), by_chance)
    return TopicRow(
        name,
        view.partition_count,
        max((len(each.replicas) for each in view.partitions), default=0),
        bytes_in,
        sum(each.bytes_out for each in loads),
        records,
        sum(each.size for each in loads),
        skew,
        largest,
        is_uneven,
        why,
        view.partition_count - len(view.available),
        sum(len(each.in_sync_replicas) < len(each.replicas) for each in view.partitions),
    )


def _broker_rows(
    snapshot: Snapshot, by_leader: Mapping[int, Sequence[PartitionLoad]]
) -> list[BrokerRow]:
    load, levels = snapshot.metered.load, snapshot.levels
    leaders = dict.fromkeys(load.brokers, 0)
    replicas = dict.fromkeys(load.brokers, 0)
    for view in snapshot.topics.values():
        for each in view.partitions:
            if each.leader in leaders:
                leaders[each.leader] += 1
            for replica in each.replicas:
                replicas[replica] = replicas.get(replica, 0) + 1
    mean = levels[OUT].mean
    mean_leaders = sum(leaders.values()) / max(1, len(leaders))
    slow = {**snapshot.slow.slow, **snapshot.slow.alarm}
    rows = []
    for id, broker in load.brokers.items():
        sent = levels[OUT].loads.get(id, 0.0)
        level = sent / mean if mean else None
        state = "down" if not broker.is_alive else "slow" if id in slow else "up"
        answers = snapshot.answers.get(id)
        disk, disk_free = snapshot.volumes.get(id, (broker.disk, None))
        rows.append(
            BrokerRow(
                id,
                broker.rack,
                state,
                slow.get(id, "")
                or _explain_level(level, by_leader.get(id, ()), leaders[id], mean_leaders),
                leaders[id],
                replicas[id],
                sent,
                levels[IN].loads.get(id, 0.0),
                level,
                round(levels[DISK].loads.get(id, 0.0)),
                disk,
                disk_free,
                answers and answers.median_s,
                answers and answers.p99_s,
                broker.free if broker.free < LONG_MAX // 2 else None,
            )
        )
    return rows


def _explain_level(
    level: float | None, led: Sequence[PartitionLoad], leaders: int, mean_leaders: float
) -> str:
    """Why a broker sends more than others: one partition, or the number of its leaders."""
    if level is None or level <= Thresholds().leader_over_mean:
        return ""
    total = sum(each.leader_out for each in led) or 1.0
    top = led[0]
    text = f"sends {level:.1f} times the mean: "
    if top.leader_out >= total / 2:
        return text + f"{top.partition} alone is {top.leader_out / total:.0%} of it"
    if leaders > 1.25 * mean_leaders:
        return text + f"it leads {leaders:,} partitions, the mean is {mean_leaders:,.0f}"
    share = top.leader_out / total
    return text + f"the largest of its {len(led):,} leaders, {top.partition}, is {share:.0%}"


def _rack_rows(snapshot: Snapshot) -> list[RackRow]:
    racks = {id: broker.rack or "" for id, broker in snapshot.metered.load.brokers.items()}
    names = {name for name in racks.values() if name}
    if len(names) < 2:
        return []
    sums: dict[tuple[str, str], float] = {}
    sent = read = 0.0
    for each in snapshot.metered.load.partitions:
        sent += each.bytes_in
        read += each.bytes_out
        source = racks.get(each.leader, "")
        for replica in each.replicas:
            pair = source, racks.get(replica, "")
            if all(pair) and pair[0] != pair[1]:
                sums[pair] = sums.get(pair, 0.0) + each.bytes_in
    away = 1 - 1 / len(names)
    rows = [RackRow("replicate", *pair, rate) for pair, rate in sums.items()]
    rows.sort(key=lambda row: -row.rate)
    return [*rows, RackRow("produce", "", "", sent * away), RackRow("consume", "", "", read * away)]
