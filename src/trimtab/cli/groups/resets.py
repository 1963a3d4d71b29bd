"""`trimtab groups --reset-offsets`: where a group's members begin to read next."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from trimtab.cli.groups.listing import choose_groups, read_leaders, read_topics
from trimtab.cli.results import TableColumn, write_columns
from trimtab.cli.style import say_note
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.client.admin import Moment
    from trimtab.client.blocking.admin import Admin

_INACTIVE: Final = ("Empty", "Dead")
_DURATION: Final = re.compile(
    r"P(?=[\dT])(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_SECONDS: Final = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
_COLUMNS: Final = (
    TableColumn("GROUP", "group", 15, fits=True),
    TableColumn("TOPIC", "topic", 15, fits=True),
    TableColumn("PARTITION", "partition", 10),
    TableColumn("NEW-OFFSET", "newOffset"),
)

Offsets: TypeAlias = dict[TopicPartition, int]
Way: TypeAlias = Callable[["Admin", str, Sequence[TopicPartition]], Offsets]
"""Finds a group's new offsets of these partitions."""


def reset_offsets(admin: Admin, arguments: argparse.Namespace) -> int:
    way = choose_way(arguments)
    groups = choose_groups(admin, arguments)
    named = read_topics(admin, arguments.topic)
    found = admin.describe_groups(groups)  # a group that does not exist has no members
    active = {group: each.state for group, each in found.items() if each.state not in _INACTIVE}
    idle = [group for group in groups if group not in active]
    committed = admin.list_offsets_of_groups(idle) if arguments.all_topics else {}
    wanted = {group: sorted(committed.get(group, named)) for group in idle}
    check_partitions(admin, {each for partitions in wanted.values() for each in partitions})
    planned = {group: way(admin, group, partitions) for group, partitions in wanted.items()}
    if arguments.execute:
        for group, offsets in planned.items():
            admin.alter_group_offsets(group, dict(offsets.items()))
    for group, state in active.items():
        say_note(
            f"Offsets of group '{group}' can only be reset while it has no members; its state is "
            f"{state}."
        )
    rows = {
        group: [
            {**partition._asdict(), "newOffset": offset}
            for partition, offset in sorted(offsets.items())
        ]
        for group, offsets in planned.items()
    }
    if arguments.export:
        print(write_csv(planned, with_group=len(arguments.group) != 1))
    elif arguments.json:
        for group, listed in rows.items():
            shown = {"group": group, "executed": arguments.execute, "partitions": listed}
            print(json.dumps(shown))
    else:
        table = [{"group": group, **row} for group, listed in rows.items() for row in listed]
        print("\n".join(["", *write_columns(_COLUMNS, table)]))
    return 1 if active else 0


def check_partitions(admin: Admin, partitions: Iterable[TopicPartition]) -> None:
    """Raises:
    UsageError: some do not exist, or have no leader.
    """
    wanted = sorted(partitions)
    leaders = read_leaders(admin, wanted)
    unknown = [str(each) for each in wanted if each not in leaders]
    if unknown:
        raise UsageError(f"there is no partition {', '.join(unknown)}; see `trimtab topics --list`")
    leaderless = [str(each) for each, leader in leaders.items() if leader < 0]
    if leaderless:
        raise UsageError(
            f"{', '.join(sorted(leaderless))}: no leader; try again when its brokers are up"
        )


# where to


def choose_way(arguments: argparse.Namespace) -> Way:
    """The way that one of the options names.

    Raises:
        UsageError: its value has another form.
    """
    if arguments.to_earliest:
        return lambda admin, group, wanted: _find(admin, wanted, "earliest")
    if arguments.to_latest:
        return lambda admin, group, wanted: _find(admin, wanted, "latest")
    if arguments.to_current:
        return _keep
    if arguments.to_offset is not None:
        offset: int = arguments.to_offset
        return lambda admin, group, wanted: fit_offsets(admin, dict.fromkeys(wanted, offset))
    if arguments.shift_by is not None:
        count: int = arguments.shift_by
        return lambda admin, group, wanted: _shift(admin, group, wanted, count)
    if arguments.from_file is not None:
        plan = read_csv(arguments.from_file, arguments.group)
        return lambda admin, group, wanted: _follow(admin, group, plan)
    if arguments.to_datetime is not None:
        at_ms = read_time(arguments.to_datetime)
    else:
        at_ms = int(time.time() * 1000 - read_duration(arguments.by_duration) * 1000)
    return lambda admin, group, wanted: _find_at(admin, wanted, at_ms)


def _find(admin: Admin, partitions: Sequence[TopicPartition], at: Moment) -> Offsets:
    found = admin.list_offsets(partitions, at) if partitions else {}
    return {partition: each.offset for partition, each in found.items()}


def _find_at(admin: Admin, partitions: Sequence[TopicPartition], at_ms: int) -> Offsets:
    found = _find(admin, partitions, max(0, at_ms))
    late = [partition for partition, offset in found.items() if offset < 0]
    for partition in late:
        say_note(
            f"{partition}: there is no record at this time or later; the new offset is its end"
        )
    return {**found, **_find(admin, late, "latest")}


def _keep(admin: Admin, group: str, partitions: Sequence[TopicPartition]) -> Offsets:
    committed = admin.list_group_offsets(group)
    new = [each for each in partitions if each not in committed]
    kept = {each: committed[each].offset for each in partitions if each in committed}
    return {**kept, **_find(admin, new, "latest")}


def _shift(admin: Admin, group: str, partitions: Sequence[TopicPartition], count: int) -> Offsets:
    committed = admin.list_group_offsets(group)
    unknown = [str(each) for each in partitions if each not in committed]
    if unknown:
        raise UsageError(
            f"--shift-by {count}: group {group} has no offset of {', '.join(unknown)} to start "
            "from; use --to-offset or --to-earliest"
        )
    return fit_offsets(admin, {each: committed[each].offset + count for each in partitions})


def _follow(admin: Admin, group: str, plan: Mapping[str, Offsets]) -> Offsets:
    if group not in plan:
        raise UsageError(f"--from-file: the file has no line for group {group}")
    check_partitions(admin, plan[group])
    return fit_offsets(admin, plan[group])


def fit_offsets(admin: Admin, wanted: Offsets) -> Offsets:
    """These offsets, or the nearest between a partition's first offset and its end."""
    starts = _find(admin, list(wanted), "earliest")
    ends = _find(admin, list(wanted), "latest")
    fitted = {}
    for partition, offset in wanted.items():
        fitted[partition] = min(max(offset, starts[partition]), ends[partition])
        if fitted[partition] != offset:
            say_note(
                f"{partition}: offset {offset} is not from {starts[partition]} to "
                f"{ends[partition]}; the new offset is {fitted[partition]}"
            )
    return fitted


def read_time(text: str) -> int:
    """Such as `2026-01-31T08:00:00.000`, in UTC without an offset, as milliseconds since 1970.

    Raises:
        UsageError: the text has another form.
    """
    try:
        if "T" not in text:
            raise ValueError
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--to-datetime {text!r}: write YYYY-MM-DDThh:mm:ss.sss, such as "
            "2026-01-31T08:00:00.000 or 2026-01-31T08:00:00+02:00"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


def read_duration(text: str) -> float:
    """`P1DT2H3M4.5S` in seconds.

    Raises:
        UsageError: the text has another form.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--by-duration {text!r}: write PnDTnHnMnS, such as P1DT12H, PT30M or PT0S"
        )
    return sum(
        float(found[unit]) * seconds
        for unit, seconds in _SECONDS.items()
        if found[unit] is not None
    )


# plans in files


def read_csv(path: str, groups: Sequence[str]) -> dict[str, Offsets]:
    """The new offsets by group. Lines without a group are about the only one of `groups`.

    Raises:
        UsageError: the file cannot be read, or a line has another form.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    except OSError as error:
        raise UsageError(f"--from-file: cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--from-file: {path} is not CSV in UTF-8: {error}") from error
    only = groups[0] if len(groups) == 1 else None
    plan: dict[str, Offsets] = {}
    for number, line in lines:
        words = [only, *line] if only is not None and len(line) == 3 else line
        if len(words) != 4 or not all(each.isascii() and each.isdigit() for each in words[2:]):
            form = "" if only is None else "TOPIC,PARTITION,OFFSET or "
            raise UsageError(
                f"--from-file: line {number} of {path} is {','.join(line)!r}; write "
                f"{form}GROUP,TOPIC,PARTITION,OFFSET"
            )
        group, topic, partition, offset = words
        plan.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(offset)
    return plan


def write_csv(planned: Mapping[str, Offsets], with_group: bool) -> str:
    """The lines that `read_csv` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group, offsets in planned.items():
        for partition, offset in sorted(offsets.items()):
            writer.writerow([*([group] if with_group else []), *partition, offset])
    return text.getvalue()
