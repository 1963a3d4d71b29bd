"""What `trimtab cluster` tells of a running cluster: a glance at it, and kafka-cluster's verbs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.features import METADATA, show_level
from trimtab.cli.results import TableColumn, print_result, print_rows
from trimtab.cli.selection import connect, describe_brokers
from trimtab.cli.style import ERROR, WARNING, paint, say_warning
from trimtab.cli.table import align, show_count, show_size
from trimtab.cli.topic_description import Description, is_under_replicated
from trimtab.cli.topics import by_number, list_moves
from trimtab.kafka.errors import BrokerError

if TYPE_CHECKING:
    from trimtab.client.admin import ClusterDescription, Reassignment
    from trimtab.client.blocking.admin import Admin
    from trimtab.client.topic_view import TopicView
    from trimtab.kafka.records import TopicPartition

_HEADS: Final = ("BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS", "SIZE", "VERSION", "STATE")


def print_info(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        info = read_info(admin)
    print_result(arguments, info, write_info(info))
    return 0


def read_info(admin: Admin) -> dict[str, Any]:
    """What the cluster tells, and each live broker of its logs and features, as JSON has it.

    `bytes` is None if a live broker does not tell those of its own, `newestMetadataVersion` if a
    broker has no such level.
    """
    cluster = describe_brokers(admin)
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
    return {
        "clusterId": cluster.cluster_id,
        "controllerId": cluster.controller_id,
        "features": dict(admin.describe_features().finalized),
        "brokers": [
            {
                **node._asdict(),
                "state": _name_state(cluster, node.id),
                "leads": leads[node.id],
                "replicas": replicas[node.id],
                "bytes": sizes.get(node.id),
                "newestMetadataVersion": newest.get(node.id),
            }
            for node in cluster.nodes
        ],
        "topics": len(views),
        "partitions": sum(view.partition_count for view in views),
        "underReplicatedPartitions": sum(_count_under_replicated(view, moves) for view in views),
        "leaderlessPartitions": sum(leader < 0 for view in views for leader in view.leaders),
        "bytes": sum(sizes[broker] for broker in live) if sizes.keys() >= {*live} else None,
    }


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


def write_info(info: Mapping[str, Any]) -> str:
    """The information for people."""
    size = "an unknown size" if info["bytes"] is None else show_size(info["bytes"])
    brokers, leaderless = info["brokers"], info["leaderlessPartitions"]
    under_replicated = info["underReplicatedPartitions"]
    levels = [
        f"{name}={show_level(name, level)}"
        for name, level in sorted(info["features"].items())
        if level
    ]
    lines = [
        f"Cluster ID: {info['clusterId']}",
        f"Controller: requests go to broker {info['controllerId']}",
        f"Features: {', '.join(levels) or 'none'}",
        f"{show_count(len(brokers), 'broker')}, {show_count(info['topics'], 'topic')}, "
        f"{show_count(info['partitions'], 'partition')}, {size}",
    ]
    for count, what, colour in (
        (leaderless, "without a leader", ERROR),
        (under_replicated, "under-replicated", WARNING),
    ):
        if count:
            lines.append(paint(f"{show_count(count, 'partition')} {what}", colour))
    if not leaderless and not under_replicated:
        lines.append("all partitions have their replicas in sync")
    rows = [
        (
            str(broker["id"]),
            f"{broker['host']}:{broker['port']}",
            broker["rack"] or "-",
            str(broker["leads"]),
            str(broker["replicas"]),
            "-" if broker["bytes"] is None else show_size(broker["bytes"]),
            "-"
            if (level := broker["newestMetadataVersion"]) is None
            else show_level(METADATA, level),
            broker["state"],
        )
        for broker in brokers
    ]
    head, *table = align([_HEADS, *rows], right=(3, 4, 5))
    colours = [WARNING if each["state"] == "fenced" else None for each in brokers]
    return "\n".join([*lines, "", head, *map(paint, table, colours)])


def print_id(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        cluster_id = admin.cluster().cluster_id
    text = f"Cluster ID: {cluster_id}"
    if cluster_id is None:
        text = "No cluster ID found. The Kafka version is probably too old."
    print_result(arguments, {"clusterId": cluster_id}, text)
    return 0


def list_endpoints(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        found = admin.cluster(include_fenced=arguments.include_fenced_brokers)
    brokers = [
        {**node._asdict(), "state": _name_state(found, node.id), "endpoint_type": "broker"}
        for node in found.nodes
    ]
    width = max((len(node.rack) for node in found.nodes if node.rack), default=10)
    columns = (
        TableColumn("ID", "id", 10),
        TableColumn("HOST", "host", 0 if brokers else 100, fits=True),
        TableColumn("PORT", "port", 10),
        TableColumn("RACK", "rack", width, show=lambda rack: rack or "null"),
        TableColumn("STATE", "state", 10),
        TableColumn("ENDPOINT_TYPE", "endpoint_type", 15),
    )
    print_rows(arguments, columns, brokers)
    return 0


def unregister(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        admin.unregister_broker(arguments.id)
    shown = {"broker": arguments.id, "result": "unregistered"}
    print_result(arguments, shown, f"Broker {arguments.id} is no longer registered.")
    return 0


def _name_state(cluster: ClusterDescription, broker: int) -> str:
    return "fenced" if broker in cluster.fenced else "unfenced"
