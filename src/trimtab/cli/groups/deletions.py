"""`trimtab groups --delete` and `--delete-offsets`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trimtab.cli.groups.columns import fit, write_rows
from trimtab.cli.groups.listing import choose_groups
from trimtab.cli.groups.partitions import read_topics
from trimtab.errors import BrokerError

if TYPE_CHECKING:
    from trimtab.blocking.admin import Admin
    from trimtab.records import TopicPartition


def delete_groups(admin: Admin, arguments: argparse.Namespace) -> int:
    from trimtab.client.admin import PartlyRefused

    groups = choose_groups(admin, arguments)
    refusals: Mapping[str, BrokerError] = {}
    try:
        admin.delete_groups(groups)
    except PartlyRefused as partly:
        refusals = partly.refusals
    deleted = [each for each in groups if each not in refusals]
    for group, error in refusals.items():
        print(f"Group '{group}' could not be deleted: {_explain(error)}", file=sys.stderr)
    if arguments.json:
        for group in groups:
            print(json.dumps({"group": group, "deleted": group not in refusals}))
    elif refusals and deleted:
        print(f"These consumer groups were deleted successfully: {_quote(deleted)}")
    elif not refusals:
        print(f"Deletion of requested consumer groups ({_quote(deleted)}) was successful.")
    return 1 if refusals else 0


def _explain(error: BrokerError) -> str:
    """The error without its subject, which the line has already named."""
    return str(BrokerError(error.code, error.detail))


def _quote(groups: Iterable[str]) -> str:
    return ", ".join(f"'{each}'" for each in groups)


def delete_offsets(admin: Admin, arguments: argparse.Namespace) -> int:
    from trimtab.client.admin import PartlyRefused

    (group,) = arguments.group
    partitions = read_topics(admin, arguments.topic)
    refusals: Mapping[TopicPartition, BrokerError] = {}
    try:
        admin.delete_group_offsets(group, partitions)
    except PartlyRefused as partly:
        refusals = partly.refusals
    if arguments.json:
        print(
            json.dumps(
                {
                    "group": group,
                    "partitions": [
                        {
                            **each._asdict(),
                            "error": refusals[each].code.name if each in refusals else None,
                        }
                        for each in partitions
                    ],
                }
            )
        )
        return 1 if refusals else 0
    if refusals:
        print(
            f"Some offsets of group {group} could not be deleted; the table has the reasons.",
            file=sys.stderr,
        )
    else:
        print(f"Request succeeded for deleting offsets from group {group}.")
    print(f"\n{write_results(partitions, refusals)}")
    return 1 if refusals else 0


def write_results(
    partitions: Iterable[TopicPartition], refusals: Mapping[TopicPartition, BrokerError]
) -> str:
    """The table of kafka-consumer-groups."""
    rows = [
        (*each, f"Error: {_explain(refusals[each])}" if each in refusals else "Successful")
        for each in partitions
    ]
    widths = [fit(15, (row[0] for row in rows)), 10, 15]
    return "\n".join(write_rows([("TOPIC", "PARTITION", "STATUS"), *rows], widths))
