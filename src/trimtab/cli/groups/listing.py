"""`trimtab groups --list`, and which groups the other actions are about."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trimtab.cli.groups.columns import fit, write_rows
from trimtab.cli.parser import suggest
from trimtab.errors import UsageError
from trimtab.wire.messages.consumer_protocol import PROTOCOL_TYPE

if TYPE_CHECKING:
    from trimtab.blocking.admin import Admin
    from trimtab.client.admin import GroupListing

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
    found = find_consumer_groups(admin, states, types)
    if arguments.json:
        for each in found:
            print(json.dumps({"group": each.group_id, "type": each.type, "state": each.state}))
        return 0
    if not has_state and not has_type:
        for each in found:
            print(each.group_id)
        return 0
    rows = [
        [
            each.group_id,
            *([each.type.capitalize() or _UNKNOWN] if has_type else []),
            *([each.state or _UNKNOWN] if has_state else []),
        ]
        for each in found
    ]
    head = ["GROUP", *(["TYPE"] if has_type else []), *(["STATE"] if has_state else [])]
    widths = [fit(15, (each.group_id for each in found)) + 10, 20, 20][: len(head)]
    print("\n".join(write_rows([head, *rows], widths)))
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
