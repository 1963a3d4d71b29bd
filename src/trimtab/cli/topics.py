"""List, create, describe, alter and delete topics, with the options of kafka-topics.

--topic takes a regular expression, or several separated by commas; with --create it takes a name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from trimtab.cli.options import (
    add_client_options,
    add_options,
    add_verbs,
    is_given,
    read_pairs,
    refuse_options,
    spell,
)
from trimtab.cli.results import print_result, unless_refused
from trimtab.cli.selection import connect, list_partitions, select_topics
from trimtab.cli.style import WARNING, paint
from trimtab.cli.table import show_count
from trimtab.cli.topic_description import (
    CHECKS,
    CHECKS_OF_CONFIGS,
    ZERO_ID,
    Description,
    choose_colour,
    choose_partitions,
    read_topic_id,
    show_partition,
    show_topic,
    write_partition,
    write_topic,
)
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.admin import EligibleLeaders, Reassignment
    from trimtab.client.blocking.admin import Admin
    from trimtab.client.topic_view import TopicView

T = TypeVar("T")

EXAMPLES = """\
  trimtab topics --list
  trimtab topics --create --topic flights --partitions 6 --config retention.ms=3600000
  trimtab topics --describe --topic 'flights.*' --json
  trimtab topics --describe --under-replicated-partitions
  trimtab topics --alter --topic flights --partitions 12
  trimtab topics --delete --topic flights --if-exists
"""

PAGE_SIZE: Final = 2000
MAX_REPLICAS: Final = 2**15 - 1
_CLUSTERS_DEFAULT: Final = -1

COLLISION: Final = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') "
    "could collide. To avoid issues it is best to use either, but not both."
)

_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic_id": ("describe",),
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    "config": ("create",),
    "if_not_exists": ("create",),
    "if_exists": ("describe", "alter", "delete"),
    "exclude_internal": ("list", "describe"),
    "topics_with_overrides": ("describe",),
    "partition_size_limit_per_response": ("describe",),
    **{name: ("describe",) for name in CHECKS},
}
"""The actions with which each option may be used; options not listed go with all of them."""

_INSTEAD: Final = {
    ("config", "alter"): "set a topic's options with "
    "trimtab configs --alter --topic NAME --add-config NAME=VALUE",
    ("replication_factor", "alter"): "to change the replicas of partitions, use trimtab reassign",
}


def configure(parser: argparse.ArgumentParser) -> None:
    summaries = {
        "list": "print the names of topics",
        "create": "create a topic",
        "describe": "show topics and their partitions",
        "alter": "increase the number of partitions of topics",
        "delete": "delete topics",
    }
    add_verbs(parser, summaries)
    options = {
        "--topic TOPIC": "a regular expression, with --create a name (default with --list and "
        "--describe: all topics)",
        "--topic-id ID": "with --describe: show the topic with this id; --topic is ignored",
        "--partitions N": "with --create: number of partitions (default: the brokers' "
        "num.partitions); with --alter: the new total. After that, records with the same key may "
        "go to another partition than before",
        "--replication-factor N": "with --create: replicas of each partition (default: the "
        "brokers' default.replication.factor)",
        "--replica-assignment BROKER,…": "the brokers of each partition, partitions separated by "
        "commas and replicas by colons: 0,1,2 or 0:1,1:2. With --create it replaces --partitions "
        "and --replication-factor; with --alter it lists all partitions, and existing ones are "
        "not changed",
        "--config NAME=VALUE …": "with --create: options of the new topic, such as "
        "retention.ms=3600000",
        "--if-not-exists": "with --create: do not fail if the topic exists",
        "--if-exists": "with --describe, --alter and --delete: do not fail if no topic matches",
        "--exclude-internal": "with --list and --describe: leave out internal topics",
    }
    add_options(parser, options)
    refused = {
        "--delete-config": "has no effect since Kafka 4: use trimtab configs --alter --topic NAME "
        "--delete-config NAME",
    }
    refuse_options(parser, refused)
    _add_filters(parser)
    add_options(parser, {"--json": "print a line with a JSON object for each topic"})
    add_client_options(parser)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "filters of --describe", "a partition is shown if at least one of the filters selects it"
    )
    options = {
        "--under-replicated-partitions": "show only partitions with fewer replicas in sync than "
        "the replication factor",
        "--unavailable-partitions": "show only partitions without a leader",
        "--under-min-isr-partitions": "show only partitions without a leader or with fewer "
        "replicas in sync than min.insync.replicas",
        "--at-min-isr-partitions": "show only partitions with exactly min.insync.replicas in sync",
        "--topics-with-overrides": "show only topics with options that are not defaults, without "
        "their partitions",
        "--partition-size-limit-per-response N": "most partitions in one response of a broker "
        f"that is asked for the columns Elr and LastKnownElr (default: {PAGE_SIZE}, also the "
        "brokers' default maximum); further responses bring the rest, so the output does not "
        "change",
    }
    add_options(group, options)


def run(arguments: argparse.Namespace) -> int:
    check_arguments(arguments)
    with connect(arguments) as admin:
        _RUN[arguments.verb](admin, arguments)
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Check what kafka-topics checks before it connects to a cluster.

    Raises:
        UsageError: an option is missing, does not go with another, or is out of range.
    """
    verb, given = arguments.verb, vars(arguments)
    for name, verbs in _VERBS.items():
        if is_given(given[name]) and verb not in verbs:
            fix = _INSTEAD.get((name, verb)) or "leave it out"
            allowed = " or ".join(map(spell, verbs))
            raise UsageError(f"{spell(name)} goes with {allowed}, not with --{verb}: {fix}")
    if verb in ("create", "alter", "delete") and not arguments.topic:
        raise UsageError(f"--{verb} needs a topic: add --topic NAME")
    if verb == "alter" and arguments.partitions is None:
        raise UsageError("--alter needs the number of partitions: add --partitions N")
    if verb == "create" and arguments.replica_assignment is not None:
        for name in ("partitions", "replication_factor"):
            if given[name] is not None:
                raise UsageError(
                    f"--replica-assignment already gives the number of partitions and replicas: "
                    f"leave out {spell(name)}"
                )
    if arguments.if_exists and verb == "describe" and not (arguments.topic or arguments.topic_id):
        raise UsageError("--if-exists needs a topic: add --topic NAME or --topic-id ID")
    if arguments.topics_with_overrides:
        for name in CHECKS:
            if given[name]:
                raise UsageError(
                    f"{spell(name)} shows partitions, --topics-with-overrides topics: give one"
                )
    for name, most in (
        ("partitions", 2**31 - 1),
        ("replication_factor", MAX_REPLICAS),
        ("partition_size_limit_per_response", 2**31 - 1),
    ):
        if given[name] is not None and not 1 <= given[name] <= most:
            raise UsageError(f"{spell(name)} {given[name]}: write a number from 1 to {most}")


def list_topics(admin: Admin, arguments: argparse.Namespace) -> None:
    for name in select_topics(admin, arguments.topic, not arguments.exclude_internal):
        print_result(arguments, {"topic": name}, name)


def create_topic(admin: Admin, arguments: argparse.Namespace) -> None:
    topic = arguments.topic
    assignment = read_assignment(arguments.replica_assignment)
    if "." in topic or "_" in topic:
        stream = sys.stderr if arguments.json else sys.stdout
        print(paint(COLLISION, WARNING, stream), file=stream)
    is_new = True
    try:
        admin.create_topic(
            topic,
            arguments.partitions or _CLUSTERS_DEFAULT,
            arguments.replication_factor or _CLUSTERS_DEFAULT,
            None if assignment is None else dict(enumerate(assignment)),
            read_pairs(arguments.config),
        )
    except BrokerError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or not arguments.if_not_exists:
            raise
        is_new = False
    if is_new or arguments.json:
        print_result(arguments, {"topic": topic, "created": is_new}, f"Created topic {topic}.")


def alter_topics(admin: Admin, arguments: argparse.Namespace) -> None:
    names = _select_existing(admin, arguments)
    assignment = read_assignment(arguments.replica_assignment)
    present = admin.describe_topics(names) if names and assignment is not None else {}
    for name in names:
        admin.create_partitions(
            name,
            arguments.partitions,
            None if assignment is None else assignment[present[name].partition_count :],
        )
        count = show_count(arguments.partitions, "partition")
        shown = {"topic": name, "partitions": arguments.partitions}
        print_result(arguments, shown, f"Altered topic {name}: it has {count}.")


def describe_topics(admin: Admin, arguments: argparse.Namespace) -> None:
    names = _select_described(admin, arguments)
    if not names:
        return
    checks = [name for name in CHECKS if getattr(arguments, name)]
    needs_configs = not checks or any(name in checks for name in CHECKS_OF_CONFIGS)
    shows_partitions = not arguments.topics_with_overrides
    moves = list_moves(admin)
    eligible: dict[TopicPartition, EligibleLeaders] = {}
    if shows_partitions:
        limit = arguments.partition_size_limit_per_response or PAGE_SIZE
        eligible = unless_refused(
            lambda: admin.eligible_leaders(names, limit), dict, ErrorCode.UNSUPPORTED_VERSION
        )
    configs = admin.describe_topic_configs(names) if needs_configs else {}
    for name, view in sorted(admin.describe_topics(names).items()):
        topic = Description(
            view,
            {each.name: each for each in configs[name]} if needs_configs else None,
            by_number(view, moves),
            by_number(view, eligible),
        )
        if arguments.topics_with_overrides and not topic.overrides:
            continue
        numbers = choose_partitions(topic, checks) if shows_partitions else []
        if checks and not numbers:
            continue
        shown = show_topic(topic)
        if shows_partitions:
            shown["partitions"] = [show_partition(topic, number) for number in numbers]
        lines = [] if checks else [write_topic(topic)]
        lines += [
            paint(write_partition(topic, number), choose_colour(topic, number))
            for number in numbers
        ]
        print_result(arguments, shown, "\n".join(lines))


def delete_topics(admin: Admin, arguments: argparse.Namespace) -> None:
    for name in _select_existing(admin, arguments):
        admin.delete_topic(name)
        print_result(arguments, {"topic": name, "deleted": True}, f"Deleted topic {name}.")


_RUN: Final[Mapping[str, Callable[[Admin, argparse.Namespace], None]]] = {
    "list": list_topics,
    "create": create_topic,
    "describe": describe_topics,
    "alter": alter_topics,
    "delete": delete_topics,
}


def _select_existing(admin: Admin, arguments: argparse.Namespace) -> list[str]:
    names = select_topics(admin, arguments.topic, not arguments.exclude_internal)
    if not names and arguments.topic is not None and not arguments.if_exists:
        raise UsageError(
            f"no topic matches {arguments.topic!r}; see `trimtab topics --list`, or add --if-exists"
        )
    return names


def _select_described(admin: Admin, arguments: argparse.Namespace) -> list[str]:
    topic_id = ZERO_ID if arguments.topic_id is None else read_topic_id(arguments.topic_id)
    if topic_id == ZERO_ID:
        return _select_existing(admin, arguments)
    names = [
        view.name
        for view in admin.describe_topics().values()
        if view.topic_id == topic_id and not (arguments.exclude_internal and view.is_internal)
    ]
    if not names and not arguments.if_exists:
        raise UsageError(
            f"no topic has the id {arguments.topic_id!r}; see `trimtab topics --describe`, or add "
            "--if-exists"
        )
    return names


def list_moves(admin: Admin) -> dict[TopicPartition, Reassignment]:
    """All reassignments in progress; none if the broker does not support or allow the request, as
    in kafka-topics."""
    codes = ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return unless_refused(admin.list_reassignments, dict, *codes)


def by_number(view: TopicView, found: Mapping[TopicPartition, T]) -> dict[int, T]:
    """The values for the partitions of one topic, by partition number."""
    return {each.partition: found[each] for each in list_partitions(view) if each in found}


def read_assignment(text: str | None) -> list[list[int]] | None:
    """`0:1,1:2` as the brokers of partitions 0, 1, ….

    Raises:
        UsageError: the text has another form, a partition names a broker twice, or partitions have
            different numbers of replicas.
    """
    if text is None:
        return None
    try:
        assignment = [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--replica-assignment {text!r}: write broker numbers, such as 0,1,2 or 0:1,1:2"
        ) from None
    for partition, brokers in enumerate(assignment):
        if len(set(brokers)) < len(brokers):
            raise UsageError(
                f"--replica-assignment {text!r}: partition {partition} names a broker twice; "
                "a broker has at most one replica of a partition"
            )
        if len(brokers) != len(assignment[0]):
            raise UsageError(
                f"--replica-assignment {text!r}: partition {partition} has "
                f"{show_count(len(brokers), 'replica')} and partition 0 has {len(assignment[0])}; "
                "give all the same number"
            )
    return assignment
