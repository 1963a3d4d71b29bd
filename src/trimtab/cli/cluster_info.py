"""`trimtab cluster info`: a cluster at a glance."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.cli.features import METADATA, show_level
from trimtab.cli.options import read_client_options
from trimtab.cli.selection import connect_admin
from trimtab.cli.style import ERROR, WARNING, paint, say_warning
from trimtab.cli.table import align, show_count, show_size
from trimtab.cli.topic_description import Description, is_under_replicated
from trimtab.cli.topics import by_number, list_moves
from trimtab.client.network.connection import Node
from trimtab.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from trimtab.blocking.admin import Admin
    from trimtab.client.admin import ClusterDescription, Reassignment
    from trimtab.client.topic_view import TopicView
    from trimtab.records import TopicPartition

_HEADS: Final = ("BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS", "SIZE", "VERSION", "STATE")


class BrokerInfo(NamedTuple):
    """A broker.

    Attributes:
        leads: the number of partitions that it leads.
        replicas: the number of replicas assigned to it.
        size: bytes of its logs; None if it does not tell.
        newest: the newest `metadata.version` that it supports; None if it has no such level.
        is_fenced: whether the controller has fenced it.
    """

    node: Node
    leads: int
    replicas: int
    size: int | None
    newest: int | None
    is_fenced: bool


class ClusterInfo(NamedTuple):
    """A cluster.

    Attributes:
        controller: the broker that takes requests for the controller.
        features: the levels in force, by name.
        under_replicated: partitions with fewer replicas in sync than replicas.
        leaderless: partitions without a leader.
    """

    cluster_id: str | None
    controller: int
    features: Mapping[str, int]
    brokers: list[BrokerInfo]
    topics: int
    partitions: int
    under_replicated: int
    leaderless: int

    @property
    def size(self) -> int | None:
        """Bytes of all logs; None if a live broker does not tell those of its own."""
        sizes = [each.size for each in self.brokers if not each.is_fenced]
        return None if None in sizes else sum(each or 0 for each in sizes)


def print_info(arguments: argparse.Namespace) -> int:
    with connect_admin(read_client_options(arguments)) as admin:
        info = read_info(admin)
    print(json.dumps(show_info(info)) if arguments.json else write_info(info))
    return 0


def read_info(admin: Admin) -> ClusterInfo:
    """Ask the cluster, and each live broker for its logs and features."""
    cluster = _describe(admin)
    live = [node.id for node in cluster.nodes if node.id not in cluster.fenced]
    views = list(admin.describe_topics().values())
    sizes = _read_sizes(admin, live)
    newest = {
        broker: admin.describe_features(broker).supported.get(METADATA, (None, None))[1]
        for broker in live
    }
    moves = list_moves(admin)
    leads = Counter(leader for view in views for leader in view.leaders)
    replicas = Counter(
        broker for view in views for each in view.partitions for broker in each.replicas
    )
    return ClusterInfo(
        cluster.cluster_id,
        cluster.controller_id,
        admin.describe_features().finalized,
        [
            BrokerInfo(
                node,
                leads[node.id],
                replicas[node.id],
                sizes.get(node.id),
                newest.get(node.id),
                node.id in cluster.fenced,
            )
            for node in cluster.nodes
        ],
        len(views),
        sum(view.partition_count for view in views),
        sum(_count_under_replicated(view, moves) for view in views),
        sum(leader < 0 for view in views for leader in view.leaders),
    )


def _describe(admin: Admin) -> ClusterDescription:
    try:
        return admin.cluster(include_fenced=True)
    except BrokerError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return admin.cluster()  # Apache Kafka before 4.0


def _read_sizes(admin: Admin, brokers: Iterable[int]) -> dict[int, int]:
    """The bytes of each broker's logs; without those that do not tell."""
    try:
        found = admin.describe_log_dirs(brokers)
    except BrokerError as error:
        say_warning(f"sizes are unknown: {error}")
        return {}
    return {
        broker: sum(log.size for directory in directories for log in directory.logs.values())
        for broker, directories in found.items()
        if not any(directory.error for directory in directories)
    }


def _count_under_replicated(view: TopicView, moves: Mapping[TopicPartition, Reassignment]) -> int:
    topic = Description(view, None, by_number(view, moves), {})
    return sum(is_under_replicated(topic, number) for number in range(view.partition_count))


def show_info(info: ClusterInfo) -> dict[str, object]:
    """The information for JSON."""
    return {
        "clusterId": info.cluster_id,
        "controllerId": info.controller,
        "features": dict(info.features),
        "brokers": [
            {
                **each.node._asdict(),
                "state": "fenced" if each.is_fenced else "unfenced",
                "leads": each.leads,
                "replicas": each.replicas,
                "bytes": each.size,
                "newestMetadataVersion": each.newest,
            }
            for each in info.brokers
        ],
        "topics": info.topics,
        "partitions": info.partitions,
        "underReplicatedPartitions": info.under_replicated,
        "leaderlessPartitions": info.leaderless,
        "bytes": info.size,
    }


def write_info(info: ClusterInfo) -> str:
    """The information for people."""
    size = "an unknown size" if info.size is None else show_size(info.size)
    partitions = show_count(info.partitions, "partition")
    levels = [
        f"{name}={show_level(name, level)}"
        for name, level in sorted(info.features.items())
        if level
    ]
    lines = [
        f"Cluster ID: {info.cluster_id}",
        f"Controller: requests go to broker {info.controller}",
        f"Features: {', '.join(levels) or 'none'}",
        f"{show_count(len(info.brokers), 'broker')}, {show_count(info.topics, 'topic')}, "
        f"{partitions}, {size}",
    ]
    for count, what, colour in (
        (info.leaderless, "without a leader", ERROR),
        (info.under_replicated, "under-replicated", WARNING),
    ):
        if count:
            lines.append(paint(f"{show_count(count, 'partition')} {what}", colour))
    if not info.leaderless and not info.under_replicated:
        lines.append("all partitions have their replicas in sync")
    rows = [
        (
            str(each.node.id),
            f"{each.node.host}:{each.node.port}",
            each.node.rack or "-",
            str(each.leads),
            str(each.replicas),
            "-" if each.size is None else show_size(each.size),
            "-" if each.newest is None else show_level(METADATA, each.newest),
            "fenced" if each.is_fenced else "unfenced",
        )
        for each in info.brokers
    ]
    head, *table = align([_HEADS, *rows], right=(3, 4, 5))
    colours = [WARNING if each.is_fenced else None for each in info.brokers]
    lines += ["", head, *(paint(row, each) for row, each in zip(table, colours, strict=True))]
    return "\n".join(lines)
