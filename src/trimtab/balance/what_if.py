"""What a cluster's brokers would carry after a change: arithmetic on its measured load.

    windows of measured load ─▶ grow, spread_topic, add_topic, lose_brokers, assign ─▶ windows

Rates are kept for each window, so a forecast has their whole range. A topic keeps its bytes when
they are spread otherwise, and consumers read them as often. What is stored is what it will be once
retention has passed; a change that copies or empties logs has its effect on it at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy

from trimtab.balance.cluster_load import DISK, IN, OUT, ClusterLoad, PartitionLoad
from trimtab.balance.limits import Allowance, PartitionLimits
from trimtab.balance.replica_counts import INTERNAL_TOPICS, ReplicaCounts
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_LEADER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[numpy.float64]

_EVEN: Final = 0.15
"""Partitions of a topic that differ less from their mean are even: their records have no keys, or
many."""


class LoadWindows(NamedTuple):
    """The load of a cluster in some windows of time.

    Attributes:
        load: its brokers and partitions, with their mean rates.
        bytes_in, bytes_out, sizes: as those of `PartitionLoad`, by window and partition.
    """

    load: ClusterLoad
    bytes_in: Floats
    bytes_out: Floats
    sizes: Floats

    def select(self, windows: slice) -> LoadWindows:
        """Some of the windows."""
        rates = (self.bytes_in[windows], self.bytes_out[windows], self.sizes[windows])
        return _make(self.load, self.load.partitions, *rates)

    def find_topic(self, topic: str) -> list[int]:
        """The columns of a topic's partitions, in order.

        Raises:
            UsageError: it is not measured.
        """
        found = [
            at for at, each in enumerate(self.load.partitions) if each.partition.topic == topic
        ]
        if not found:
            raise UsageError(f"topic {topic!r} is not measured: see trimtab topics --list")
        return found

    def sum_by_broker(self) -> dict[str, dict[int, Floats]]:
        """What each living broker has in each window, by resource: OUT, IN and DISK."""
        rows = {broker: row for row, broker in enumerate(self.load.brokers)}
        shape = (len(rows), len(self.bytes_in))
        sums = {name: numpy.zeros(shape) for name in (OUT, IN, DISK)}
        partitions = self.load.partitions
        led = [at for at, each in enumerate(partitions) if each.leader in rows]
        followers = numpy.array([len(partitions[at].replicas) - 1 for at in led], float)
        sent = self.bytes_out[:, led] + self.bytes_in[:, led] * followers
        numpy.add.at(sums[OUT], [rows[partitions[at].leader] for at in led], sent.T)
        held = [
            (at, rows[id])
            for at, each in enumerate(partitions)
            for id in each.replicas
            if id in rows
        ]
        columns, on = [at for at, _ in held], [row for _, row in held]
        numpy.add.at(sums[IN], on, self.bytes_in[:, columns].T)
        numpy.add.at(sums[DISK], on, self.sizes[:, columns].T)
        return {
            name: {id: found[row] for id, row in rows.items() if self.load.brokers[id].is_alive}
            for name, found in sums.items()
        }


def join_windows(loads: Iterable[tuple[int, ClusterLoad]]) -> LoadWindows:
    """Windows with the brokers and the placement of the last load. Where a partition was not
    measured, its mean is taken.

    Args:
        loads: each with the number of its window, increasing; those of one window are averaged.

    Raises:
        UsageError: there is none.
    """
    rows: dict[TopicPartition, int] = {}
    numbers: list[int] = []
    measured: list[Floats] = []
    last: ClusterLoad | None = None
    for number, load in loads:
        columns = [rows.setdefault(each.partition, len(rows)) for each in load.partitions]
        rates = numpy.full((3, len(rows)), numpy.nan)
        rates[:, columns] = (
            numpy.array(
                [(each.bytes_in, each.bytes_out, each.size) for each in load.partitions], float
            )
            .reshape(-1, 3)
            .T
        )
        numbers.append(number)
        measured.append(rates)
        last = load
    if last is None:
        raise UsageError("nothing was measured")
    kept = [rows[each.partition] for each in last.partitions]
    _, starts = numpy.unique(numbers, return_index=True)
    parts: list[Floats] = []
    for group in numpy.split(numpy.arange(len(numbers)), starts[1:]):
        padded = numpy.full((len(group), 3, len(rows)), numpy.nan)
        for at, number in enumerate(group):
            padded[at, :, : measured[number].shape[1]] = measured[number]
        parts.append(_mean_of_known(padded[:, :, kept]))
    rates = numpy.stack(parts, axis=1)
    means = numpy.stack([_mean_of_known(each) for each in rates])[:, None, :]
    return _make(last, last.partitions, *numpy.where(numpy.isnan(rates), means, rates))


def _mean_of_known(values: Floats) -> Floats:
    """The means over the first axis, without what is NaN; NaN if all is."""
    known = ~numpy.isnan(values)
    sums: Floats = numpy.where(known, values, 0.0).sum(axis=0)
    counts = known.sum(axis=0)
    return numpy.where(counts > 0, sums / numpy.maximum(counts, 1), numpy.nan)


def expect_rates(windows: LoadWindows, rates: Mapping[TopicPartition, Floats]) -> LoadWindows:
    """Windows with other bytes written, such as those of a table. Consumers read them as often as
    they do now.

    Args:
        rates: bytes/s, as many for each partition; a partition without any keeps its mean.
    """
    count = len(next(iter(rates.values())))
    partitions = windows.load.partitions
    bytes_in = numpy.stack(
        [rates.get(each.partition, numpy.full(count, each.bytes_in)) for each in partitions], 1
    )
    times = numpy.array(
        [each.bytes_out / each.bytes_in if each.bytes_in else 0.0 for each in partitions]
    )
    sizes = numpy.tile(windows.sizes.mean(axis=0), (count, 1))
    return _make(windows.load, partitions, bytes_in, bytes_in * times, sizes)


def grow(windows: LoadWindows, factor: float, topic: str | None = None) -> LoadWindows:
    """So many times the bytes, of all topics or of one.

    Raises:
        UsageError: the topic is not measured.
    """
    columns = slice(None) if topic is None else windows.find_topic(topic)
    rates = [each.copy() for each in windows[1:]]
    for each in rates:
        each[:, columns] *= factor
    return _make(windows.load, windows.load.partitions, *rates)


def spread_topic(
    windows: LoadWindows,
    topic: str,
    shares: Floats,
    limits: PartitionLimits,
    random: Random,
) -> LoadWindows:
    """Spread a topic's bytes in these shares, one for each partition. Partitions that are new are
    placed as the controller does.

    Raises:
        UsageError: the topic is not measured, or has more partitions.
        LimitExceeded: there is no room for new ones.
    """
    columns = windows.find_topic(topic)
    partitions = [*windows.load.partitions]
    more = len(shares) - len(columns)
    if more < 0:
        raise UsageError(
            f"{topic} has {len(columns)} partitions, and Kafka takes none away: give "
            f"{len(columns)} or more, or add another topic that is like it"
        )
    rates = []
    for each in windows[1:]:
        spread = each[:, columns].sum(axis=1, keepdims=True) * shares
        changed = numpy.concatenate([each, spread[:, len(columns) :]], axis=1)
        changed[:, columns] = spread[:, : len(columns)]
        rates.append(changed)
    if more:
        factor = len(partitions[columns[0]].replicas)
        placed = _place(windows.load, topic, more, factor, limits, random)
        partitions += _create(topic, len(columns), placed)
    return _make(windows.load, partitions, *rates)


def even_shares(windows: LoadWindows, topic: str, count: int) -> Floats:
    """Equal shares for another number of partitions.

    Raises:
        UsageError: the topic is not measured, or its partitions are not even now, so that keys
            decide.
    """
    means = windows.bytes_in[:, windows.find_topic(topic)].mean(axis=0)
    worst = abs(means / means.mean() - 1).max() if means.any() else 0.0
    if worst > _EVEN:
        raise UsageError(
            f"a partition of {topic} differs from the mean by {worst:.0%}, so keys decide who gets "
            f"what: name the key, such as --key {topic}:key"
        )
    return numpy.full(count, 1 / count)


def add_topic(
    windows: LoadWindows,
    topic: str,
    partitions: int,
    factor: int,
    rates: tuple[Floats | float, Floats | float, Floats | float],
    limits: PartitionLimits,
    random: Random,
) -> LoadWindows:
    """One topic more, whose partitions are even.

    Args:
        rates: bytes in and out per second, and bytes of one replica of all partitions; in each
            window, or always the same.

    Raises:
        UsageError: there is such a topic.
        LimitExceeded: there is no room for it.
    """
    if any(each.partition.topic == topic for each in windows.load.partitions):
        raise UsageError(f"topic {topic!r} exists: name another one")
    count = len(windows.bytes_in)
    changed = []
    for each, total in zip(windows[1:], rates, strict=True):
        whole = numpy.broadcast_to(numpy.asarray(total, float), (count,))
        changed.append(
            numpy.concatenate([each, numpy.tile(whole[:, None] / partitions, partitions)], axis=1)
        )
    placed = _place(windows.load, topic, partitions, factor, limits, random)
    return _make(windows.load, [*windows.load.partitions, *_create(topic, 0, placed)], *changed)


def lose_brokers(windows: LoadWindows, lost: Collection[int]) -> LoadWindows:
    """Brokers fail: the first replica that is alive and in the ISR leads (Kafka's election), and
    nothing is moved. A partition that nobody leads is not written.

    Raises:
        UsageError: there is no such broker, or it is the last one.
    """
    known = windows.load.brokers
    alive = {id for id, each in known.items() if each.is_alive} - {*lost}
    for broker in sorted({*lost} - known.keys()):
        raise UsageError(f"there is no broker {broker}; there are {', '.join(map(str, known))}")
    if not alive:
        raise UsageError("no broker would be left: leave one out")
    partitions = []
    for each in windows.load.partitions:
        kept = tuple(id for id in each.replicas if id not in lost)
        heirs = (id for id in kept if id in alive and id in each.in_sync)
        leader = each.leader if each.leader in alive else next(heirs, NO_LEADER)
        partitions.append(
            each._replace(replicas=kept, leader=leader, in_sync=each.in_sync - {*lost})
        )
    led = numpy.array([each.leader != NO_LEADER for each in partitions])
    brokers = {id: each for id, each in known.items() if id not in lost}
    load = windows.load._replace(brokers=brokers)
    rates = (windows.bytes_in * led, windows.bytes_out * led, windows.sizes)
    return _make(load, partitions, *rates)


def assign(windows: LoadWindows, assignment: Mapping[TopicPartition, Sequence[int]]) -> LoadWindows:
    """Carry out a plan: other replicas, of which the first leads.

    Raises:
        UsageError: it names a partition or a broker that there is not.
    """
    known = windows.load.brokers
    for partition in sorted(assignment.keys() - {e.partition for e in windows.load.partitions}):
        raise UsageError(f"the plan has partition {partition}, which is not measured")
    for partition, brokers in assignment.items():
        for broker in {*brokers} - known.keys():
            raise UsageError(f"the plan puts {partition} on broker {broker}: there is none")
    partitions = [
        each
        if (replicas := assignment.get(each.partition)) is None
        else each._replace(
            replicas=tuple(replicas), leader=replicas[0], in_sync=frozenset(replicas)
        )
        for each in windows.load.partitions
    ]
    return windows._replace(load=windows.load._replace(partitions=partitions))


def _place(
    load: ClusterLoad,
    topic: str,
    partitions: int,
    factor: int,
    limits: PartitionLimits,
    random: Random,
) -> list[list[int]]:
    counts = ReplicaCounts()
    for each in load.partitions:
        if each.partition.topic not in INTERNAL_TOPICS and each.replicas:
            counts.add_replicas(each.replicas)
    racks = {id: each.rack for id, each in load.brokers.items() if each.takes_replicas}
    if factor > len(racks):
        raise UsageError(
            f"{topic}: {factor} replicas need as many brokers, and {len(racks)} take replicas"
        )
    return Allowance(counts, limits, Counter()).place(topic, racks, partitions, factor, random)


def _create(topic: str, first: int, placed: Sequence[Sequence[int]]) -> list[PartitionLoad]:
    return [
        PartitionLoad(
            TopicPartition(topic, at), (*replicas,), replicas[0], frozenset(replicas), 0.0, 0.0, 0
        )
        for at, replicas in enumerate(placed, first)
    ]


def _make(
    load: ClusterLoad,
    partitions: Sequence[PartitionLoad],
    bytes_in: Floats,
    bytes_out: Floats,
    sizes: Floats,
) -> LoadWindows:
    means = zip(*(each.mean(axis=0).tolist() for each in (bytes_in, bytes_out, sizes)), strict=True)
    measured = [
        each._replace(bytes_in=read, bytes_out=sent, size=round(size))
        for each, (read, sent, size) in zip(partitions, means, strict=True)
    ]
    return LoadWindows(load._replace(partitions=measured), bytes_in, bytes_out, sizes)
