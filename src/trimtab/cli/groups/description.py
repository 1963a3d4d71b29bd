"""`trimtab groups --describe`: offsets and lag, members, or states of groups."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.cli.groups.columns import MISSING, fit, write_rows
from trimtab.cli.groups.listing import choose_groups
from trimtab.cli.groups.partitions import read_ends
from trimtab.cli.style import WARNING, paint, say_error, say_warning
from trimtab.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.blocking.admin import Admin
    from trimtab.client.admin import GroupDescription, GroupMember
    from trimtab.client.group_offsets import OffsetAndMetadata

_STEADY: Final = ("Stable", "Empty", "Dead")
_PARTITION: Final = 10
_NUMBER: Final = 15
_WIDE: Final = 20


class Row(NamedTuple):
    """A partition of a group; None where there is nothing to say."""

    group: str
    topic: str
    partition: int
    leader_epoch: int | None
    offset: int | None
    end: int | None
    member_id: str | None = None
    host: str | None = None
    client_id: str | None = None

    @property
    def lag(self) -> int | None:
        return None if self.offset is None or self.end is None else self.end - self.offset


def describe_groups(admin: Admin, arguments: argparse.Namespace) -> int:
    groups = choose_groups(admin, arguments)
    found = admin.describe_groups(groups)
    if arguments.members:
        for group in found.values():
            _print_members(group, arguments.verbose, arguments.json)
    elif arguments.state is not None:
        for group in found.values():
            _print_state(group, arguments.verbose, arguments.json)
    else:
        _print_offsets(admin, found, arguments.verbose, arguments.json)
    unknown = [each for each in groups if each not in found]
    for each in unknown:
        say_error(f"Consumer group '{each}' does not exist.")
    return 1 if unknown else 0


def _explain_state(group: GroupDescription) -> None:
    """Say on standard error why there is less to see than one may expect."""
    if group.state == "Empty":
        print(f"\nConsumer group '{group.group_id}' has no active members.", file=sys.stderr)
    elif group.state not in _STEADY:
        say_warning(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.")


# offsets


def _print_offsets(
    admin: Admin, found: Mapping[str, GroupDescription], is_verbose: bool, is_json: bool
) -> None:
    committed = admin.list_offsets_of_groups(found)
    partitions = {each for offsets in committed.values() for each in offsets}
    for group in found.values():
        partitions.update(each for member in group.members for each in member.partitions)
    ends = read_ends(admin, partitions)
    for group in found.values():
        rows = list_rows(group, committed[group.group_id], ends)
        if is_json:
            print(json.dumps(show_offsets(group, rows)))
            continue
        _explain_state(group)
        if rows:
            print(f"\n{write_offsets(rows, is_verbose)}")


def list_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int],
) -> list[Row]:
    """The partitions of each member, those with most partitions first; then the partitions that no
    member reads."""

    def rows_of(partitions: Iterable[TopicPartition], member: GroupMember | None) -> list[Row]:
        rows = []
        for partition in sorted(partitions):
            at = committed.get(partition)
            rows.append(
                Row(
                    group.group_id,
                    *partition,
                    None if at is None or at.leader_epoch < 0 else at.leader_epoch,
                    None if at is None else at.offset,
                    ends.get(partition),
                    *(() if member is None else (member.member_id, member.host, member.client_id)),
                )
            )
        return rows

    rows = [
        row
        for member in sorted(group.members, key=lambda each: -len(each.partitions))
        for row in rows_of(member.partitions, member)
    ]
    read = {each for member in group.members for each in member.partitions}
    return rows + rows_of((each for each in committed if each not in read), None)


def write_offsets(rows: Sequence[Row], is_verbose: bool) -> str:
    """The table of kafka-consumer-groups."""
    head = [
        *("GROUP", "TOPIC", "PARTITION"),
        *(["LEADER-EPOCH"] if is_verbose else []),
        *("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"),
    ]
    cells = [
        [
            *(row.group, row.topic, row.partition),
            *([row.leader_epoch] if is_verbose else []),
            *(row.offset, row.end, row.lag, row.member_id, row.host, row.client_id),
        ]
        for row in rows
    ]
    widths = [
        fit(_NUMBER, (row.group for row in rows)),
        fit(_NUMBER, (row.topic for row in rows)),
        _PARTITION,
        *([_NUMBER] if is_verbose else []),
        *(_NUMBER, _NUMBER, _NUMBER),
        fit(_NUMBER, (row.member_id for row in rows)),
        fit(_NUMBER, (row.host for row in rows)),
        0,
    ]
    first, *lines = write_rows([head, *cells], widths)
    colours = [WARNING if row.lag else None for row in rows]
    return "\n".join([first, *map(paint, lines, colours)])


def show_offsets(group: GroupDescription, rows: Iterable[Row]) -> dict[str, object]:
    """The same for JSON."""
    return {
        "group": group.group_id,
        "state": group.state,
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "leaderEpoch": row.leader_epoch,
                "offset": row.offset,
                "logEndOffset": row.end,
                "lag": row.lag,
                "memberId": row.member_id,
                "host": row.host,
                "clientId": row.client_id,
            }
            for row in rows
        ],
    }


# members


def _print_members(group: GroupDescription, is_verbose: bool, is_json: bool) -> None:
    if is_json:
        print(json.dumps(show_members(group)))
        return
    _explain_state(group)
    print(f"\n{write_members(group, is_verbose)}")


def write_members(group: GroupDescription, is_verbose: bool) -> str:
    """The table of kafka-consumer-groups, whose lines end with a blank."""
    members = group.members
    has_static = any(each.instance_id is not None for each in members)
    protocols = {each.protocol for each in members}
    is_migrating = is_verbose and {"classic", "consumer"} <= protocols
    head = [
        *("GROUP", "CONSUMER-ID"),
        *(["GROUP-INSTANCE-ID"] if has_static else []),
        *("HOST", "CLIENT-ID", "#PARTITIONS"),
    ]
    rows = [
        [
            *(group.group_id, each.member_id),
            *([each.instance_id or ""] if has_static else []),
            *(each.host, each.client_id, len(each.partitions)),
        ]
        for each in members
    ]
    least = [_NUMBER, _NUMBER, *([17] if has_static else []), _NUMBER, _NUMBER]
    widths = [fit(low, cells) for low, cells in zip(least, zip(*rows, strict=True), strict=False)]
    widths = [*(widths or least), _NUMBER]
    if is_verbose:
        head += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        now = [write_assignment(each.partitions) for each in members]
        then = [write_assignment(each.target or ()) for each in members]
        for row, each, current, target in zip(rows, members, now, then, strict=True):
            row += [each.epoch, current, group.target_epoch, target]
        widths += [_NUMBER, fit(_WIDE, now), _NUMBER, fit(_WIDE, then)]
    if is_migrating:
        head.append("UPGRADED")
        for row, each in zip(rows, members, strict=True):
            row.append(None if each.protocol is None else str(each.protocol == "consumer").lower())
        widths.append(0)
    end = "" if is_verbose else " "
    return "\n".join(line + end for line in write_rows([head, *rows], widths))


def write_assignment(partitions: Iterable[TopicPartition]) -> str:
    """Such as `t:0,1;u:0`."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    texts = [f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items()]
    return ";".join(sorted(texts)) or MISSING


def show_members(group: GroupDescription) -> dict[str, object]:
    """The same for JSON."""
    return {
        "group": group.group_id,
        "state": group.state,
        "targetEpoch": group.target_epoch,
        "members": [
            {
                "memberId": each.member_id,
                "instanceId": each.instance_id,
                "host": each.host,
                "clientId": each.client_id,
                "protocol": each.protocol,
                "epoch": each.epoch,
                "partitions": _show_partitions(each.partitions),
                "target": None if each.target is None else _show_partitions(each.target),
            }
            for each in group.members
        ],
    }


def _show_partitions(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [each._asdict() for each in sorted(partitions)]


# states


def _print_state(group: GroupDescription, is_verbose: bool, is_json: bool) -> None:
    if is_json:
        print(json.dumps(show_state(group)))
        return
    _explain_state(group)
    print(f"\n{write_state(group, is_verbose)}")


def write_state(group: GroupDescription, is_verbose: bool) -> str:
    """The table of kafka-consumer-groups."""
    node = group.coordinator
    coordinator = f"{node.host}:{node.port}  ({node.id})"
    head = [
        *("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"),
        *(["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"] if is_verbose else []),
        "#MEMBERS",
    ]
    row = [
        *(group.group_id, coordinator, group.assignor or None, group.state),
        *([group.epoch, group.target_epoch] if is_verbose else []),
        len(group.members),
    ]
    widths = [
        *(fit(_NUMBER, [group.group_id]), fit(25, [coordinator]), _WIDE, _WIDE),
        *([_NUMBER, 25] if is_verbose else []),
        0,
    ]
    return "\n".join(write_rows([head, row], widths))


def show_state(group: GroupDescription) -> dict[str, object]:
    """The same for JSON."""
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
