"""Reads the replicas that brokers have, their racks, and the limits on replicas (KIP-578)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trimtab.balance.limits import PER_BROKER, PER_CLUSTER, ClusterUsage, PartitionLimits
from trimtab.balance.replica_counts import ReplicaCounts
from trimtab.config import LONG_MAX

if TYPE_CHECKING:
    from trimtab.blocking.admin import Admin
    from trimtab.client.topic_view import TopicView


def read_usage(
    admin: Admin, views: Iterable[TopicView], given: Mapping[str, int] | None = None
) -> ClusterUsage:
    """Read the limits and replicas of a cluster; a limit that it lacks is the largest long.

    Args:
        views: all topics of the cluster.
        given: limits to use instead of the cluster's, by option name.
    """
    nodes = admin.cluster().nodes
    options = {
        each.name: int(each.value)
        for each in admin.describe_configs("broker", nodes[0].id)
        if each.name in (PER_BROKER, PER_CLUSTER) and each.value is not None
    }
    limits = {PER_BROKER: LONG_MAX, PER_CLUSTER: LONG_MAX, **options, **(given or {})}
    counts = ReplicaCounts()
    for view in views:
        if not view.is_internal:
            for partition in view.partitions:
                counts.add(partition.replicas)
    return ClusterUsage(
        PartitionLimits(limits[PER_BROKER], limits[PER_CLUSTER]),
        {node.id: node.rack for node in nodes},
        counts,
    )
