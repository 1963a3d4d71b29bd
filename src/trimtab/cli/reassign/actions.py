"""The actions of `trimtab reassign`, one function each; most texts are those of Kafka's tool."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trimtab.balance.limits import ClusterUsage
from trimtab.balance.moves import PlacedPartition, TargetBroker
from trimtab.balance.plan import find_moves
from trimtab.cli.reassign.documents import (
    describe_assignment,
    read_assignment,
    read_topics,
    write_assignment,
)
from trimtab.cli.reassign.preview import describe_moves, show_moves
from trimtab.cli.reassign.throttles import clear_throttles, set_throttles
from trimtab.cli.usage import read_usage
from trimtab.client.admin import PartlyRefused, Reassignment
from trimtab.errors import BrokerError, UsageError
from trimtab.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.blocking.admin import Admin
    from trimtab.client.topic_view import TopicView

_PARTITIONS_A_REQUEST = 5000
"""Kafka and trimtab reject more than 10,000 changes in one request."""


def generate(admin: Admin, arguments: argparse.Namespace) -> int:
    """Print a plan."""
    views = admin.describe_topics()
    topics = _choose_topics(views, arguments.topics_to_move_json_file)
    usage = read_usage(admin, views.values())
    targets = choose_targets(usage, arguments.broker_list, arguments.disable_rack_aware)
    placed = _look_at_replicas(admin, [views[topic] for topic in topics])
    moves = find_moves(placed, targets) if placed else []
    current = {move.placed.partition: move.placed.replicas for move in moves}
    proposed = {move.placed.partition: move.replicas for move in moves}
    if arguments.json:
        print(
            json.dumps(
                {
                    "current": describe_assignment(current),
                    "proposed": describe_assignment(proposed),
                    **describe_moves(moves, arguments.throttle),
                }
            )
        )
        return 0
    print(f"Current partition replica assignment\n{write_assignment(current)}\n")
    print(f"Proposed partition reassignment configuration\n{write_assignment(proposed)}")
    print(show_moves(moves, len(placed), arguments.throttle), file=sys.stderr)
    return 0


def _choose_topics(views: Mapping[str, TopicView], path: str | None) -> list[str]:
    if path is None:
        return sorted(name for name, view in views.items() if not view.is_internal)
    topics = read_topics(path)
    for topic in topics:
        if topic not in views:
            raise UsageError(
                f"{path} names {topic}, which does not exist; see `trimtab topics --list`"
            )
    return topics


def choose_targets(
    usage: ClusterUsage, text: str | None, ignores_racks: bool
) -> list[TargetBroker]:
    """The brokers for replicas, each with the number of replicas that its limit still allows.

    Raises:
        UsageError: the list is not numbers, names a broker twice, or one that is not alive.
    """
    if text is None:
        ids = sorted(usage.racks)
    else:
        try:
            ids = [int(word) for word in text.split(",")]
        except ValueError:
            raise UsageError(f"--broker-list {text!r}: write numbers, such as 1,2,3") from None
        for broker, count in Counter(ids).items():
            if count > 1:
                raise UsageError(f"--broker-list {text} names broker {broker} more than once")
            if broker not in usage.racks:
                alive = ", ".join(map(str, sorted(usage.racks)))
                raise UsageError(f"--broker-list: broker {broker} is not alive; alive are {alive}")
    return [
        TargetBroker(
            broker,
            None if ignores_racks else usage.racks[broker],
            usage.limits.per_broker - usage.counts.on[broker],
        )
        for broker in ids
    ]


def _look_at_replicas(admin: Admin, views: Sequence[TopicView]) -> list[PlacedPartition]:
    moving = admin.list_reassignments()
    sizes: Counter[TopicPartition] = Counter()
    for directories in admin.describe_log_dirs().values():
        for directory in directories:
            for partition, log in directory.logs.items():
                sizes[partition] = max(sizes[partition], log.size)
    placed = []
    for view in views:
        for index, each in enumerate(view.partitions):
            partition = TopicPartition(view.name, index)
            if partition in moving:
                raise UsageError(
                    f"partition {view.name}-{index} is already being reassigned; see `trimtab "
                    "reassign --list`, and wait for it or --cancel it"
                )
            placed.append(PlacedPartition(partition, each.replicas, sizes[partition]))
    return placed


def execute(admin: Admin, arguments: argparse.Namespace) -> int:
    """Start the reassignments of a plan."""
    wanted, directories = read_assignment(arguments.reassignment_json_file)
    moving = admin.list_reassignments()
    if moving and not arguments.additional:
        raise UsageError(
            "there is an existing partition assignment: use --additional to start further "
            "reassignments, or to change the throttle of those in progress"
        )
    alive = {node.id for node in admin.cluster().nodes}
    unknown = sorted({broker for replicas in wanted.values() for broker in replicas} - alive)
    if unknown:
        raise UsageError(
            f"broker {unknown[0]} is not alive; alive are {', '.join(map(str, sorted(alive)))}"
        )
    current = _find_replicas(admin, wanted)
    missing = sorted(set(wanted) - set(current))
    if missing:
        raise UsageError(f"there is no partition {_name(missing[0])}")
    _check_directories(admin, directories)
    if not arguments.json:
        print(
            f"Current partition replica assignment\n\n{write_assignment(current)}\n\n"
            "Save this to use as the --reassignment-json-file option during rollback"
        )
    if arguments.throttle is not None:
        if not arguments.json:
            print(
                "Warning: You must run --verify periodically, until the reassignment completes, "
                "to ensure the throttle is removed."
            )
        set_throttles(admin, wanted, current, moving, arguments.throttle)
        if not arguments.json:
            print(f"The inter-broker throttle limit was set to {arguments.throttle} B/s")
    refusals = _alter(admin, wanted, not arguments.disallow_replication_factor_change)
    begun = sorted(partition for partition in wanted if partition not in refusals)
    if arguments.json:
        print(
            json.dumps(
                {
                    "current": describe_assignment(current),
                    "begun": [_name(partition) for partition in begun],
                    "refused": {_name(each): str(error) for each, error in refusals.items()},
                }
            )
        )
        return 1 if refusals else 0
    if refusals:
        print("Error reassigning partition(s):")
        for partition in sorted(refusals):
            print(f"{_name(partition)}: {refusals[partition].detail}")
    if begun:
        print(
            f"Successfully started partition {_plural('reassignment', begun)} for {_names(begun)}"
        )
    return 1 if refusals else 0


def _check_directories(admin: Admin, named: Mapping[tuple[TopicPartition, int], str]) -> None:
    """Raises:
    UsageError: the plan names a directory for a replica, but its broker may choose another one.
    """
    if not named:
        return
    found = admin.describe_log_dirs({broker for _, broker in named})
    for (partition, broker), path in named.items():
        there = {each.path: each for each in found[broker]}
        if path not in there or (len(there) > 1 and partition not in there[path].logs):
            raise UsageError(
                f"partition {_name(partition)}: broker {broker} has the log directories "
                f"{', '.join(there)}, and chooses one itself: write 'any' instead of {path}"
            )


def verify(admin: Admin, arguments: argparse.Namespace) -> int:
    """Show the progress of a plan; remove throttles when no reassignment is in progress."""
    wanted = read_assignment(arguments.reassignment_json_file).replicas
    moving = admin.list_reassignments()
    current = _find_replicas(admin, wanted)
    states: dict[str, str] = {}
    lines = ["Status of partition reassignment:"]
    for partition, replicas in sorted(wanted.items()):
        name = _name(partition)
        if partition in moving:
            states[name] = "in progress"
            lines.append(f"Reassignment of partition {name} is still in progress.")
        elif current.get(partition) == replicas:
            states[name] = "completed"
            lines.append(f"Reassignment of partition {name} is completed.")
        else:
            found = ",".join(map(str, current.get(partition, ())))
            states[name] = f"elsewhere: {found}"
            lines.append(
                f"There is no active reassignment of partition {name}, but replica set is {found} "
                f"rather than {','.join(map(str, replicas))}."
            )
    if not arguments.json:
        print("\n".join(lines))
    clears = not moving and not arguments.preserve_throttles
    if clears:
        _clear(admin, wanted, arguments.json)
    if arguments.json:
        print(json.dumps({"partitions": states, "throttles_cleared": clears}))
    return 0


def cancel(admin: Admin, arguments: argparse.Namespace) -> int:
    """Cancel the reassignments of a plan that are in progress."""
    wanted = read_assignment(arguments.reassignment_json_file).replicas
    moving = admin.list_reassignments()
    active = sorted(partition for partition in wanted if partition in moving)
    refusals = _alter(admin, dict.fromkeys(active))
    cancelled = [partition for partition in active if partition not in refusals]
    if arguments.json:
        print(
            json.dumps(
                {
                    "cancelled": [_name(partition) for partition in cancelled],
                    "refused": {_name(each): str(error) for each, error in refusals.items()},
                }
            )
        )
    elif refusals:
        print(f"Error cancelling partition {_plural('reassignment', refusals)} for:")
        for partition in sorted(refusals):
            print(f"{_name(partition)}: {refusals[partition].detail}")
    elif cancelled:
        what = _plural("reassignment", cancelled)
        print(f"Successfully cancelled partition {what} for: {_names(cancelled)}")
    else:
        print("None of the specified partition reassignments are active.")
    if not refusals and not arguments.preserve_throttles:
        _clear(admin, wanted, arguments.json)
    return 1 if refusals else 0


def list_moves(admin: Admin, arguments: argparse.Namespace) -> int:
    """Show all reassignments in progress."""
    moving = admin.list_reassignments()
    if arguments.json:
        print(
            json.dumps(
                {_name(partition): each._asdict() for partition, each in sorted(moving.items())}
            )
        )
    elif not moving:
        print("No partition reassignments found.")
    else:
        print("Current partition reassignments:")
        for partition, each in sorted(moving.items()):
            print(f"{_name(partition)}: {_describe(each)}")
    return 0


ACTIONS = {
    "generate": generate,
    "execute": execute,
    "verify": verify,
    "cancel": cancel,
    "list": list_moves,
}


def _describe(reassignment: Reassignment) -> str:
    text = f"replicas: {','.join(map(str, reassignment.replicas))}."
    for word, brokers in (("adding", reassignment.adding), ("removing", reassignment.removing)):
        if brokers:
            text += f" {word}: {','.join(map(str, brokers))}."
    return text


def _find_replicas(
    admin: Admin, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Sequence[int]]:
    """The replicas of each of these partitions that exists."""
    wanted = set(partitions)
    views = admin.describe_topics()
    return {
        partition: [*views[partition.topic].partitions[partition.partition].replicas]
        for partition in wanted
        if partition.topic in views
        and 0 <= partition.partition < views[partition.topic].partition_count
    }


def _alter(
    admin: Admin,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    allows_other_factor: bool = True,
) -> dict[TopicPartition, BrokerError]:
    """Change or, for None, cancel reassignments; returns the errors by partition."""
    refusals: dict[TopicPartition, BrokerError] = {}
    partitions = sorted(targets)
    for begin in range(0, len(partitions), _PARTITIONS_A_REQUEST):
        some = partitions[begin : begin + _PARTITIONS_A_REQUEST]
        try:
            admin.alter_reassignments(
                {partition: targets[partition] for partition in some},
                allow_replication_factor_change=allows_other_factor,
            )
        except PartlyRefused as error:
            refusals.update(error.refusals)
    return refusals


def _clear(admin: Admin, wanted: Mapping[TopicPartition, Sequence[int]], quiet: bool) -> None:
    brokers = {node.id for node in admin.cluster().nodes}
    topics = {partition.topic for partition in wanted}
    if not quiet:
        print(
            f"\nClearing broker-level throttles on {_plural('broker', brokers)} "
            f"{','.join(map(str, sorted(brokers)))}"
        )
        print(
            f"Clearing topic-level throttles on {_plural('topic', topics)} "
            f"{','.join(sorted(topics))}"
        )
    clear_throttles(admin, brokers, topics)


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ",".join(map(_name, partitions))


def _plural(word: str, things: Any) -> str:
    return word if len(things) == 1 else f"{word}s"
