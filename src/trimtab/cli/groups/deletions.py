"""`trimtab groups --delete` and `--delete-offsets`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trimtab.cli.groups.listing import choose_groups, read_topics
from trimtab.cli.results import TableColumn, name_error, take_refusals, write_columns
from trimtab.cli.style import say_note
from trimtab.kafka.errors import BrokerError

if TYPE_CHECKING:
    from trimtab.client.blocking.admin import Admin


def delete_groups(admin: Admin, arguments: argparse.Namespace) -> int:
    groups = choose_groups(admin, arguments)
    _, refusals = take_refusals(lambda: admin.delete_groups(groups))
    deleted = [each for each in groups if each not in refusals]
    for group, error in refusals.items():
        say_note(f"Group '{group}' could not be deleted: {_explain(error)}")
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
    (group,) = arguments.group
    partitions = read_topics(admin, arguments.topic)
    _, refusals = take_refusals(lambda: admin.delete_group_offsets(group, partitions))
    code = 1 if refusals else 0
    rows = [{**each._asdict(), "error": refusals.get(each)} for each in partitions]
    if arguments.json:
        shown = [{**row, "error": name_error(row["error"])} for row in rows]
        print(json.dumps({"group": group, "partitions": shown}))
        return code
    if refusals:
        say_note(f"Some offsets of group {group} could not be deleted; the table has the reasons.")
    else:
        print(f"Request succeeded for deleting offsets from group {group}.")
    columns = (
        TableColumn("TOPIC", "topic", 15, fits=True),
        TableColumn("PARTITION", "partition", 10),
        TableColumn(
            "STATUS",
            "error",
            15,
            show=lambda error: f"Error: {_explain(error)}" if error else "Successful",
        ),
    )
    print("\n".join(["", *write_columns(columns, rows)]))
    return code
