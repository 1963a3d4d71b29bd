"""`trimtab groups --list`, and the groups and partitions that the other actions are about."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from trimtab.cli.options import read_partition_ids
from trimtab.cli.parser import suggest
from trimtab.cli.results import TableColumn, print_result, print_rows
from trimtab.cli.selection import list_partitions
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_protocol import PROTOCOL_TYPE

if TYPE_CHECKING:
    from trimtab.client.admin import GroupListing
    from trimtab.client.blocking.admin import Admin

TYPES: Final = ("Classic", "Consumer")
STATES: Final = (
    "Assigning",
    "CompletingRebalance",
    "Dead",
    "Empty",
    "PreparingRebalance",
    "Reconciling",
    "Stable",
)
_UNKNOWN: Final = "Unknown"


def list_groups(admin: Admin, arguments: argparse.Namespace) -> int:
    states = read_words("--state", arguments.state, STATES)
    types = read_words("--type", arguments.type, TYPES)
    has_state, has_type = arguments.state is not None, arguments.type is not None
    found = [
        {"group": group.group_id, "type": group.type, "state": group.state}
        for group in find_consumer_groups(admin, states, types)
    ]
    if not (has_state or has_type):
        for row in found:
            print_result(arguments, row, row["group"])
        return 0
    width = max([15, *(len(row["group"]) for row in found)]) + 10
    columns = [TableColumn("GROUP", "group", width)]
    if has_type:
        columns.append(
            TableColumn("TYPE", "type", 20, show=lambda kind: kind.capitalize() or _UNKNOWN)
        )
    if has_state:
        columns.append(TableColumn("STATE", "state", 20, show=lambda state: state or _UNKNOWN))
    print_rows(arguments, columns, found)
    return 0


def find_consumer_groups(
    admin: Admin, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[GroupListing]:
    """The groups of consumers in one of these states and of one of these types; none given: any."""
    found = admin.list_groups(list(states) or None, list(types) or None)
    return [each for each in found if each.protocol_type in ("", PROTOCOL_TYPE)]


def choose_groups(admin: Admin, arguments: argparse.Namespace) -> list[str]:
    """The groups of --group, or of --all-groups, sorted."""
    if arguments.all_groups:
        return [each.group_id for each in find_consumer_groups(admin)]
    return sorted(set(arguments.group))


def read_words(option: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """`stable,empty` as Kafka writes these words; upper and lower case are the same.

    Raises:
        UsageError: an unknown word.
    """
    words = {each.lower(): each for each in known}
    found = []
    for given in (text or "").split(","):
        word = given.strip().lower()
        if word and word not in words:
            hint = suggest(given.strip(), known)
            raise UsageError(f"{option} {given.strip()}: must be one of {', '.join(known)}{hint}")
        if word:
            found.append(words[word])
    return found


def read_topics(admin: Admin, words: Sequence[str]) -> list[TopicPartition]:
    """`t:0,1` as these partitions, `t` as all partitions of the topic.

    Raises:
        UsageError: a word has another form.
        BrokerError: a topic named without partitions does not exist.
    """
    named: list[TopicPartition] = []
    whole: list[str] = []
    for word in words:
        topic, colon, numbers = word.partition(":")
        if not colon:
            whole.append(topic)
            continue
        ids = read_partition_ids(numbers)
        if not topic or not ids or min(ids) < 0:
            raise UsageError(f"--topic {word!r}: write a topic, or TOPIC:0,1 for partitions of it")
        named += [TopicPartition(topic, number) for number in ids]
    views = admin.describe_topics(sorted(set(whole))) if whole else {}
    named += [each for view in views.values() for each in list_partitions(view)]
    return sorted(set(named))


def read_leaders(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The leaders of these partitions, -1 for none; those that do not exist are left out."""
    wanted = set(partitions)
    names = sorted({each.topic for each in wanted} & set(admin.topics(include_internal=True)))
    views = admin.describe_topics(names) if names else {}
    return {
        partition: views[partition.topic].leaders[partition.partition]
        for partition in wanted
        if partition.topic in views and partition.partition < views[partition.topic].partition_count
    }


def read_ends(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The end of each partition; those without a leader, and those that do not exist, are left
    out."""
    led = [each for each, leader in read_leaders(admin, partitions).items() if leader >= 0]
    found = admin.list_offsets(led) if led else {}
    return {partition: end.offset for partition, end in found.items()}
