"""List, create, describe and delete topics, with the options of kafka-topics.

--topic takes a regular expression, but for --create.
"""

from __future__ import annotations

import argparse
import base64
import json
from typing import TYPE_CHECKING

from trimtab.cli.options import add_client_options, read_client_options, read_pairs
from trimtab.cli.selection import connect_admin, select_topics
from trimtab.errors import BrokerError, ErrorCode, UsageError

if TYPE_CHECKING:
    from trimtab.client.admin import Admin
    from trimtab.client.network.metadata import TopicView

EXAMPLES = """\
  trimtab topics --list
  trimtab topics --create --topic flights --partitions 6 --config retention.ms=3600000
  trimtab topics --describe --topic 'flights.*' --json
  trimtab topics --delete --topic flights --if-exists
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verb = parser.add_mutually_exclusive_group(required=True)
    verb.add_argument("--list", dest="run", action="store_const", const=list_topics)
    verb.add_argument("--create", dest="run", action="store_const", const=create_topic)
    verb.add_argument("--describe", dest="run", action="store_const", const=describe_topics)
    verb.add_argument("--delete", dest="run", action="store_const", const=delete_topics)
    parser.add_argument("--topic", help="the topic, or a regular expression")
    parser.add_argument(
        "--partitions", type=int, metavar="N", help="of the new topic (default: the cluster's)"
    )
    parser.add_argument(
        "--replication-factor", type=int, metavar="N", help="likewise (default: the cluster's)"
    )
    parser.add_argument(
        "--replica-assignment",
        metavar="BROKER,…",
        help="instead of both: a broker for each partition, replicas with colons: 0,1,2 or 0:1,1:2",
    )
    parser.add_argument(
        "--config",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="options of the new topic, such as retention.ms=3600000",
    )
    parser.add_argument("--if-not-exists", action="store_true", help="with --create")
    parser.add_argument("--if-exists", action="store_true", help="with --describe and --delete")
    parser.add_argument("--exclude-internal", action="store_true", help="leave out internal topics")
    parser.add_argument(
        "--json", action="store_true", help="with --list and --describe: one JSON object a line"
    )
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.topic is None and arguments.run in (create_topic, delete_topics):
        raise UsageError("name a topic: --topic NAME")
    with connect_admin(read_client_options(arguments)) as admin:
        arguments.run(admin, arguments)
    return 0


def list_topics(admin: Admin, arguments: argparse.Namespace) -> None:
    for name in select_topics(admin, arguments.topic, not arguments.exclude_internal):
        print(json.dumps({"topic": name}) if arguments.json else name)


def create_topic(admin: Admin, arguments: argparse.Namespace) -> None:
    topic = arguments.topic
    given = {
        "partitions": arguments.partitions,
        "replication_factor": arguments.replication_factor,
        "assignment": read_assignment(arguments.replica_assignment),
    }
    try:
        admin.create_topic(
            topic,
            config=read_pairs(arguments.config),
            **{name: value for name, value in given.items() if value is not None},
        )
    except BrokerError as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and arguments.if_not_exists:
            return
        raise
    print(f"Created topic {topic}.")


def describe_topics(admin: Admin, arguments: argparse.Namespace) -> None:
    names = _select_existing(admin, arguments)
    if not names:
        return
    for name, view in sorted(admin.describe_topics(names).items()):
        chosen = {
            entry.name: entry.value
            for entry in admin.describe_configs("topic", name)
            if not entry.is_default
        }
        print(json.dumps(show_json(view, chosen)) if arguments.json else show_text(view, chosen))


def delete_topics(admin: Admin, arguments: argparse.Namespace) -> None:
    for name in _select_existing(admin, arguments):
        admin.delete_topic(name)
        print(f"Deleted topic {name}.")


def _select_existing(admin: Admin, arguments: argparse.Namespace) -> list[str]:
    names = select_topics(admin, arguments.topic, not arguments.exclude_internal)
    if not names and arguments.topic is not None and not arguments.if_exists:
        raise UsageError(
            f"no topic matches {arguments.topic!r}; see `trimtab topics --list`, or add --if-exists"
        )
    return names


def read_assignment(text: str | None) -> dict[int, list[int]] | None:
    """`0:1,1:2` as the brokers of partitions 0, 1, ….

    Raises:
        UsageError: something else.
    """
    if text is None:
        return None
    try:
        return {
            partition: [int(broker) for broker in part.split(":")]
            for partition, part in enumerate(text.split(","))
        }
    except ValueError:
        raise UsageError(
            f"--replica-assignment {text!r}: write broker numbers, such as 0,1,2 or 0:1,1:2"
        ) from None


def show_text(view: TopicView, chosen: dict[str, str | None]) -> str:
    """A topic as kafka-topics shows it: a line of its own, and one per partition."""
    factor = max((len(partition.replicas) for partition in view.partitions), default=0)
    configs = ",".join(f"{name}={value}" for name, value in chosen.items())
    lines = [
        f"Topic: {view.name}\tTopicId: {write_topic_id(view.topic_id)}\t"
        f"PartitionCount: {view.partition_count}\tReplicationFactor: {factor}\tConfigs: {configs}"
    ]
    for number, partition in enumerate(view.partitions):
        leader = "none" if partition.leader < 0 else str(partition.leader)
        lines.append(
            f"\tTopic: {view.name}\tPartition: {number}\tLeader: {leader}\t"
            f"Replicas: {','.join(map(str, partition.replicas))}\t"
            f"Isr: {','.join(map(str, partition.in_sync_replicas))}"
        )
    return "\n".join(lines)


def show_json(view: TopicView, chosen: dict[str, str | None]) -> dict[str, object]:
    return {
        "topic": view.name,
        "topicId": write_topic_id(view.topic_id),
        "configs": chosen,
        "partitions": [
            {
                "partition": number,
                "leader": partition.leader,
                "leaderEpoch": partition.leader_epoch,
                "rack": view.racks[number],
                "replicas": list(partition.replicas),
                "isr": list(partition.in_sync_replicas),
            }
            for number, partition in enumerate(view.partitions)
        ],
    }


def write_topic_id(topic_id: bytes) -> str:
    """A topic's id as Kafka writes it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")
