"""The limits on replicas that a cluster has, and the replicas that count for them (KIP-578)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Protocol

from trimtab.balance.limits import PER_BROKER, PER_CLUSTER, PartitionLimits
from trimtab.balance.replica_counts import ReplicaCounts
from trimtab.client.topic_view import TopicView
from trimtab.kafka.options import LONG_MAX


class NamedValue(Protocol):
    """An option as a broker describes it."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> str | None: ...


def read_limits(
    options: Iterable[NamedValue], given: Mapping[str, int] | None = None
) -> PartitionLimits:
    """The limits among a broker's options; one that it lacks, as Apache Kafka does, is the largest
    long.

    Args:
        given: limits to use instead, by option name.
    """
    limits = {
        PER_BROKER: LONG_MAX,
        PER_CLUSTER: LONG_MAX,
        **{
            option.name: int(option.value)
            for option in options
            if option.name in (PER_BROKER, PER_CLUSTER) and option.value is not None
        },
        **(given or {}),
    }
    return PartitionLimits(limits[PER_BROKER], limits[PER_CLUSTER])


def count_replicas(views: Iterable[TopicView]) -> ReplicaCounts:
    """The replicas of these topics, without those of internal ones, which are not limited."""
    replicas = [
        partition.replicas
        for view in views
        if not view.is_internal
        for partition in view.partitions
    ]
    counts = ReplicaCounts()
    counts.on.update(chain.from_iterable(replicas))
    counts.preferred.update(each[0] for each in replicas)
    counts.total = counts.on.total()
    return counts
