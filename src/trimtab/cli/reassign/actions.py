"""The actions of `trimtab reassign`, one function each; most texts are those of Kafka's tool."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab.balance.limits import ClusterUsage
from trimtab.balance.moves import PlacedPartition, TargetBroker
from trimtab.balance.plan import find_lone_brokers, find_moves
from trimtab.cli.limits import read_usage
from trimtab.cli.reassign.documents import (
    describe_assignment,
    read_assignment,
    read_topics,
    write_assignment,
)
from trimtab.cli.reassign.preview import describe_moves, show_moves, warn_of_lone_brokers
from trimtab.cli.reassign.throttles import Release, release_throttles, set_throttles
from trimtab.cli.results import print_result, say, take_refusals
from trimtab.cli.style import say_note, say_warning
from trimtab.client.admin import Reassignment
from trimtab.kafka.errors import BrokerError, KafkaError, UsageError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.blocking.admin import Admin
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
    moves = find_moves(placed, targets, usage.goal) if placed else []
    lone = find_lone_brokers(placed, targets, usage.goal)
    warnings = warn_of_lone_brokers(lone, len(placed))
    current = {move.placed.partition: move.placed.replicas for move in moves}
    proposed = {move.placed.partition: move.replicas for move in moves}
    shown = {
        "current": describe_assignment(current),
        "proposed": describe_assignment(proposed),
        **describe_moves(moves, arguments.throttle),
        "warnings": warnings,
    }
    text = (
        f"Current partition replica assignment\n{write_assignment(current)}\n\n"
        f"Proposed partition reassignment configuration\n{write_assignment(proposed)}"
    )
    print_result(arguments, shown, text)
    if not arguments.json:
        say_note(show_moves(moves, len(placed), arguments.throttle))
        for warning in warnings:
            say_warning(warning)
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
        for index, partition_view in enumerate(view.partitions):
            partition = TopicPartition(view.name, index)
            if partition in moving:
                raise UsageError(
                    f"partition {view.name}-{index} is already being reassigned; see `trimtab "
                    "reassign --list`, and wait for it or --cancel it"
                )
            placed.append(PlacedPartition(partition, partition_view.replicas, sizes[partition]))
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
        raise UsageError(f"there is no partition {missing[0]}")
    _check_directories(admin, directories)
    say(
        arguments,
        f"Current partition replica assignment\n\n{write_assignment(current)}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback",
    )
    left_out: list[int] = []
    refusals: dict[TopicPartition, BrokerError] | None = None
    try:
        if arguments.throttle is not None:
            left_out = _throttle(admin, arguments, wanted, current, moving)
        refusals = _alter(admin, wanted, not arguments.disallow_replication_factor_change)
    finally:
        if arguments.throttle is not None and refusals != {}:
            _take_back(admin, wanted)
    begun = sorted(partition for partition in wanted if partition not in refusals)
    lines = _list_refusals("Error reassigning partition(s):", refusals)
    if begun:
        what = _plural("reassignment", begun)
        lines.append(f"Successfully started partition {what} for {_join(begun)}")
    shown = {
        "current": describe_assignment(current),
        "begun": [*map(str, begun)],
        "refused": {str(each): str(error) for each, error in refusals.items()},
        "not_throttled": left_out,
    }
    print_result(arguments, shown, "\n".join(lines))
    return 1 if refusals else 0


def _throttle(
    admin: Admin,
    arguments: argparse.Namespace,
    wanted: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    moving: Mapping[TopicPartition, Reassignment],
) -> list[int]:
    """Set throttles before reassignments start; returns the brokers without one."""
    say(
        arguments,
        "Warning: You must run --verify periodically, until the reassignment completes, "
        "to ensure the throttle is removed.",
    )
    left_out = set_throttles(admin, wanted, current, moving, arguments.throttle)
    say(arguments, f"The inter-broker throttle limit was set to {arguments.throttle} B/s")
    if left_out:
        say(
            arguments,
            f"Warning: {_not_alive(left_out)}, and without a limit: if back before the "
            "reassignment completes, limit with --execute --additional --throttle",
        )
    return left_out


def _take_back(admin: Admin, wanted: Mapping[TopicPartition, Sequence[int]]) -> None:
    """Remove the throttles of reassignments that did not start."""
    try:
        release_throttles(admin, {partition.topic for partition in wanted})
    except KafkaError as error:
        say_warning(f"throttles may be left: {error}; --cancel with this plan removes them")


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
                f"partition {partition}: broker {broker} has the log directories "
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
        name = str(partition)
        if partition in moving:
            states[name] = "in progress"
            lines.append(f"Reassignment of partition {name} is still in progress.")
        elif current.get(partition) == replicas:
            states[name] = "completed"
            lines.append(f"Reassignment of partition {name} is completed.")
        else:
            found = _join(current.get(partition, ()))
            states[name] = f"elsewhere: {found}"
            lines.append(
                f"There is no active reassignment of partition {name}, but replica set is {found} "
                f"rather than {_join(replicas)}."
            )
    say(arguments, "\n".join(lines))
    release = None
    if not arguments.preserve_throttles and moving.keys().isdisjoint(wanted):
        release = _release(admin, wanted, arguments)
    if arguments.json:
        print(json.dumps({"partitions": states, **_describe_release(release)}))
    return 0


def cancel(admin: Admin, arguments: argparse.Namespace) -> int:
    """Cancel the reassignments of a plan that are in progress."""
    wanted = read_assignment(arguments.reassignment_json_file).replicas
    moving = admin.list_reassignments()
    active = sorted(partition for partition in wanted if partition in moving)
    refusals = _alter(admin, dict.fromkeys(active))
    cancelled = [partition for partition in active if partition not in refusals]
    what = f"partition {_plural('reassignment', refusals or cancelled)} for:"
    text = "None of the specified partition reassignments are active."
    if cancelled:
        text = f"Successfully cancelled {what} {_join(cancelled)}"
    if refusals:
        text = "\n".join(_list_refusals(f"Error cancelling {what}", refusals))
    say(arguments, text)
    release = None if arguments.preserve_throttles else _release(admin, wanted, arguments)
    if arguments.json:
        shown = {
            "cancelled": [*map(str, cancelled)],
            "refused": {str(each): str(error) for each, error in refusals.items()},
            **_describe_release(release),
        }
        print(json.dumps(shown))
    return 1 if refusals else 0


def list_moves(admin: Admin, arguments: argparse.Namespace) -> int:
    """Show all reassignments in progress."""
    moving = admin.list_reassignments()
    lines = [f"{partition}: {_describe(move)}" for partition, move in sorted(moving.items())]
    text = "\n".join(["Current partition reassignments:", *lines])
    shown = {str(partition): move._asdict() for partition, move in sorted(moving.items())}
    print_result(arguments, shown, text if lines else "No partition reassignments found.")
    return 0


ACTIONS = {
    "generate": generate,
    "execute": execute,
    "verify": verify,
    "cancel": cancel,
    "list": list_moves,
}


def _describe(reassignment: Reassignment) -> str:
    text = f"replicas: {_join(reassignment.replicas)}."
    for word, brokers in (("adding", reassignment.adding), ("removing", reassignment.removing)):
        if brokers:
            text += f" {word}: {_join(brokers)}."
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
        request = partial(
            admin.alter_reassignments,
            {partition: targets[partition] for partition in some},
            allow_replication_factor_change=allows_other_factor,
        )
        refusals.update(take_refusals(request)[1])
    return refusals


def _list_refusals(what: str, refusals: Mapping[TopicPartition, BrokerError]) -> list[str]:
    """Lines for people; none if nothing was refused."""
    lines = [f"{partition}: {error.detail}" for partition, error in sorted(refusals.items())]
    return [what, *lines] if lines else []


def _release(
    admin: Admin, wanted: Mapping[TopicPartition, Sequence[int]], arguments: argparse.Namespace
) -> Release:
    topics = {partition.topic for partition in wanted}
    release = release_throttles(admin, topics)
    lines = [""]
    if release.cleared:
        lines.append(f"Clearing broker-level throttles on {_name_brokers(release.cleared)}")
    names = f"{_plural('topic', topics)} {_join(sorted(topics))}"
    lines.append(f"Clearing topic-level throttles on {names}")
    if release.moving:
        lines.append(
            f"Other reassignments are in progress: throttles stay on "
            f"{_name_brokers(release.moving)}, until --verify finds these reassignments complete"
        )
    if release.stopped:
        lines.append(
            f"Warning: {_not_alive(release.stopped)}: throttles there stay, without effect, until "
            "--verify removes them when back"
        )
    say(arguments, "\n".join(lines))
    return release


def _describe_release(release: Release | None) -> dict[str, Any]:
    """For JSON: whether all throttles are removed, and the brokers that may still have a rate."""
    left = None if release is None else [*release.moving, *release.stopped]
    return {"throttles_cleared": left == [], "throttles_left_on": left}


def _not_alive(brokers: Sequence[int]) -> str:
    verb = "is" if len(brokers) == 1 else "are"
    return f"{_name_brokers(brokers)} {verb} not alive"


def _name_brokers(brokers: Sequence[int]) -> str:
    return f"{_plural('broker', brokers)} {_join(brokers)}"


def _join(things: Iterable[object]) -> str:
    return ",".join(map(str, things))


def _plural(word: str, things: Any) -> str:
    return word if len(things) == 1 else f"{word}s"
