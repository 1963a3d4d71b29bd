"""`trimtab groups --describe`: offsets and lag, members, or states of groups."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.groups.listing import choose_groups, read_ends
from trimtab.cli.results import TableColumn, print_result, write_columns
from trimtab.cli.style import WARNING, paint, say_error, say_note, say_warning
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.admin import GroupDescription, GroupMember
    from trimtab.client.blocking.admin import Admin
    from trimtab.client.group_offsets import OffsetAndMetadata

_STEADY: Final = ("Stable", "Empty", "Dead")


def describe_groups(admin: Admin, arguments: argparse.Namespace) -> int:
    groups = choose_groups(admin, arguments)
    found = admin.describe_groups(groups)
    is_verbose = arguments.verbose
    offsets = {}
    if not arguments.members and arguments.state is None:
        offsets = _read_offsets(admin, found)
    for name, group in found.items():
        if arguments.members:
            shown, table = show_members(group), write_members(group, is_verbose)
        elif arguments.state is not None:
            shown, table = show_state(group), write_state(group, is_verbose)
        else:
            shown = {"group": name, "state": group.state, "partitions": offsets[name]}
            table = write_offsets(name, offsets[name], is_verbose) if offsets[name] else ""
        if not arguments.json:
            _explain_state(group)
        if arguments.json or table:
            print_result(arguments, shown, f"\n{table}")
    unknown = [each for each in groups if each not in found]
    for each in unknown:
        say_error(f"Consumer group '{each}' does not exist.")
    return 1 if unknown else 0


def _explain_state(group: GroupDescription) -> None:
    """Say on standard error why there is less to see than one may expect."""
    if group.state == "Empty":
        say_note(f"\nConsumer group '{group.group_id}' has no active members.")
    elif group.state not in _STEADY:
        say_warning(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.")


# offsets


def _read_offsets(
    admin: Admin, found: Mapping[str, GroupDescription]
) -> dict[str, list[dict[str, Any]]]:
    committed = admin.list_offsets_of_groups(found)
    partitions = {each for offsets in committed.values() for each in offsets}
    for group in found.values():
        partitions.update(each for member in group.members for each in member.partitions)
    ends = read_ends(admin, partitions)
    return {name: list_rows(group, committed[name], ends) for name, group in found.items()}


def list_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int],
) -> list[dict[str, Any]]:
    """The partitions of each member, those with most partitions first; then the partitions that no
    member reads. None where there is nothing to say."""

    def rows_of(
        partitions: Iterable[TopicPartition], member: GroupMember | None
    ) -> Iterable[dict[str, Any]]:
        for partition in sorted(partitions):
            at, end = committed.get(partition), ends.get(partition)
            yield {
                **partition._asdict(),
                "leaderEpoch": None if at is None or at.leader_epoch < 0 else at.leader_epoch,
                "offset": None if at is None else at.offset,
                "logEndOffset": end,
                "lag": None if at is None or end is None else end - at.offset,
                "memberId": None if member is None else member.member_id,
                "host": None if member is None else member.host,
                "clientId": None if member is None else member.client_id,
            }

    rows = [
        row
        for member in sorted(group.members, key=lambda each: -len(each.partitions))
        for row in rows_of(member.partitions, member)
    ]
    read = {each for member in group.members for each in member.partitions}
    return [*rows, *rows_of((each for each in committed if each not in read), None)]


def write_offsets(group: str, rows: Sequence[Mapping[str, Any]], is_verbose: bool) -> str:
    """The table of kafka-consumer-groups."""
    columns = [
        TableColumn("GROUP", "group", 15, fits=True),
        TableColumn("TOPIC", "topic", 15, fits=True),
        TableColumn("PARTITION", "partition", 10),
        *([TableColumn("LEADER-EPOCH", "leaderEpoch", 15)] if is_verbose else []),
        TableColumn("CURRENT-OFFSET", "offset", 15),
        TableColumn("LOG-END-OFFSET", "logEndOffset", 15),
        TableColumn("LAG", "lag", 15),
        TableColumn("CONSUMER-ID", "memberId", 15, fits=True),
        TableColumn("HOST", "host", 15, fits=True),
        TableColumn("CLIENT-ID", "clientId"),
    ]
    head, *lines = write_columns(columns, [{"group": group, **row} for row in rows])
    colours = [WARNING if row["lag"] else None for row in rows]
    return "\n".join([head, *map(paint, lines, colours)])


# members


def show_members(group: GroupDescription) -> dict[str, object]:
    """The members of a group, for JSON."""
    return {
        "group": group.group_id,
        "state": group.state,
        "targetEpoch": group.target_epoch,
        "members": [
            {
                "memberId": member.member_id,
                "instanceId": member.instance_id,
                "host": member.host,
                "clientId": member.client_id,
                "protocol": member.protocol,
                "epoch": member.epoch,
                "partitions": _show_partitions(member.partitions),
                "target": None if member.target is None else _show_partitions(member.target),
            }
            for member in group.members
        ],
    }


def _show_partitions(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [each._asdict() for each in sorted(partitions)]


def write_members(group: GroupDescription, is_verbose: bool) -> str:
    """The table of kafka-consumer-groups, whose lines end with a blank."""
    members = group.members
    columns = [
        TableColumn("GROUP", "group", 15, fits=True),
        TableColumn("CONSUMER-ID", "member_id", 15, fits=True),
        TableColumn(
            "GROUP-INSTANCE-ID", "instance_id", 17, fits=True, show=lambda name: name or ""
        ),
        TableColumn("HOST", "host", 15, fits=True),
        TableColumn("CLIENT-ID", "client_id", 15, fits=True),
        TableColumn("#PARTITIONS", "partitions", 15, show=len),
    ]
    if all(each.instance_id is None for each in members):
        del columns[2]
    if is_verbose:
        columns += [
            TableColumn("CURRENT-EPOCH", "epoch", 15),
            TableColumn("CURRENT-ASSIGNMENT", "partitions", 20, fits=True, show=write_assignment),
            TableColumn("TARGET-EPOCH", "target_epoch", 15),
            TableColumn("TARGET-ASSIGNMENT", "target", 20, fits=True, show=write_assignment),
        ]
        if {"classic", "consumer"} <= {each.protocol for each in members}:
            columns.append(TableColumn("UPGRADED", "protocol", show=_is_upgraded))
    both = {"group": group.group_id, "target_epoch": group.target_epoch}
    lines = write_columns(columns, [{**both, **each._asdict()} for each in members])
    return "\n".join(line + ("" if is_verbose else " ") for line in lines)


def write_assignment(partitions: Iterable[TopicPartition] | None) -> str:
    """Such as `t:0,1;u:0`."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions or ()):
        topics.setdefault(topic, []).append(number)
    texts = [f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items()]
    return ";".join(sorted(texts)) or "-"


def _is_upgraded(protocol: str | None) -> str | None:
    return None if protocol is None else str(protocol == "consumer").lower()


# states


def show_state(group: GroupDescription) -> dict[str, object]:
    """The state of a group, for JSON."""
    node = group.coordinator
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "coordinator": {"id": node.id, "host": node.host, "port": node.port},
        "assignor": group.assignor,
        "epoch": group.epoch,
        "targetEpoch": group.target_epoch,
        "members": len(group.members),
    }


def write_state(group: GroupDescription, is_verbose: bool) -> str:
    """The table of kafka-consumer-groups."""
    epochs = [
        TableColumn("GROUP-EPOCH", "epoch", 15),
        TableColumn("TARGET-ASSIGNMENT-EPOCH", "targetEpoch", 25),
    ]
    columns = [
        TableColumn("GROUP", "group", 15, fits=True),
        TableColumn(
            *("COORDINATOR (ID)", "coordinator", 25),
            fits=True,
            show=lambda node: f"{node['host']}:{node['port']}  ({node['id']})",
        ),
        TableColumn("ASSIGNMENT-STRATEGY", "assignor", 20, show=lambda name: name or None),
        TableColumn("STATE", "state", 20),
        *(epochs if is_verbose else []),
        TableColumn("#MEMBERS", "members"),
    ]
    return "\n".join(write_columns(columns, [show_state(group)]))
