"""The replicas that brokers have, their racks, and the limits on replicas (KIP-578)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from trimtab.config import LONG_MAX
from trimtab.controller.partition_limits import PER_BROKER, PER_CLUSTER

if TYPE_CHECKING:
    from trimtab.client.admin import Admin
    from trimtab.client.network.metadata import TopicView


class Usage(NamedTuple):
    """The limits, and each broker's rack, replicas and preferred leaders.

    `racks` has only brokers that are alive. Internal topics do not count.
    """

    per_broker: int
    per_cluster: int
    racks: Mapping[int, str | None]
    replicas: Counter[int]
    leaders: Counter[int]

    def room(self, broker: int) -> int:
        """How many more replicas a broker may get."""
        return max(0, self.per_broker - self.replicas[broker])


def read_usage(
    admin: Admin, views: Iterable[TopicView], given: Mapping[str, int] | None = None
) -> Usage:
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
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for view in views:
        if not view.is_internal:
            for partition in view.partitions:
                replicas.update(partition.replicas)
                leaders[partition.replicas[0]] += 1
    racks = {node.id: node.rack for node in nodes}
    return Usage(limits[PER_BROKER], limits[PER_CLUSTER], racks, replicas, leaders)
