"""List, describe, reset and delete consumer groups, with the options of kafka-consumer-groups.

--describe shows the offsets that a group has committed, the ends of the partitions, and the lag
between them. --reset-offsets sets the offsets of a group without members; it only shows the new
ones unless --execute is given. --validate-regex checks an expression with which consumers of
`group.protocol=consumer` may subscribe to topics; it needs no cluster.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Final

from trimtab.cli.options import (
    add_client_options,
    add_list_option,
    positive,
    read_client_options,
)
from trimtab.cli.selection import connect_admin
from trimtab.errors import UsageError

EXAMPLES = """\
  trimtab groups --list --state
  trimtab groups --describe --group billing
  trimtab groups --describe --all-groups --json
  trimtab groups --describe --group billing --members --verbose
  trimtab groups --reset-offsets --group billing --topic flights:0,1 --to-earliest --execute
  trimtab groups --reset-offsets --group billing --all-topics --to-datetime 2026-01-31T08:00:00.000
  trimtab groups --delete --group billing --group audit
  trimtab groups --validate-regex 'load-[0-9]+|flights'
"""

WAYS: Final = (
    "to_earliest",
    "to_latest",
    "to_current",
    "to_offset",
    "shift_by",
    "to_datetime",
    "by_duration",
    "from_file",
)
"""The options that say where offsets are reset to."""

_WITHOUT_GROUP: Final = ("list", "validate_regex")
_DESCRIBES: Final = ("describe",)
_RESETS: Final = ("reset_offsets",)
_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "group": ("describe", "reset_offsets", "delete", "delete_offsets"),
    "all_groups": ("describe", "reset_offsets", "delete"),
    "topic": ("reset_offsets", "delete_offsets"),
    "state": ("list", "describe"),
    "type": ("list",),
    "offsets": _DESCRIBES,
    "members": _DESCRIBES,
    "verbose": _DESCRIBES,
    "all_topics": _RESETS,
    "dry_run": _RESETS,
    "execute": _RESETS,
    "export": _RESETS,
    **dict.fromkeys(WAYS, _RESETS),
}
"""The actions with which each option may be used; options not listed go with all of them."""

ANY: Final = ""
"""The value of --state and --type without one."""


def configure(parser: argparse.ArgumentParser) -> None:
    verb = parser.add_mutually_exclusive_group(required=True)
    for name, text in (
        ("list", "print the ids of all consumer groups"),
        ("describe", "show groups: their offsets, members or state"),
        ("reset-offsets", "set the offsets of groups without members"),
        ("delete", "delete groups without members, with their offsets"),
        ("delete-offsets", "delete a group's offsets of topics that it does not read"),
    ):
        verb.add_argument(
            f"--{name}",
            dest="verb",
            action="store_const",
            const=name.replace("-", "_"),
            help=text,
        )
    verb.add_argument(
        "--validate-regex",
        metavar="REGEX",
        help="check that trimtab's brokers accept this RE2 expression of topic names",
    )
    add_list_option(parser, "--group", metavar="GROUP", help="these groups")
    parser.add_argument("--all-groups", action="store_true", help="all consumer groups")
    add_list_option(
        parser,
        "--topic",
        metavar="TOPIC[:N,…]",
        help="with --reset-offsets and --delete-offsets: these topics, or partitions of them",
    )
    parser.add_argument(
        "--state",
        nargs="?",
        const=ANY,
        metavar="STATE,…",
        help="with --describe: show the groups' states and coordinators; with --list: show states, "
        "of groups in one of these states only if some are given",
    )
    parser.add_argument(
        "--type",
        nargs="?",
        const=ANY,
        metavar="TYPE,…",
        help="with --list: show types, of groups of these types (classic, consumer) only if some "
        "are given",
    )
    _add_description(parser)
    _add_reset(parser)
    parser.add_argument(
        "--timeout",
        type=positive,
        metavar="MS",
        help="how long to try to reach the cluster, in milliseconds (default: 15000)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a line with a JSON object for each group"
    )
    add_client_options(parser)


def _add_description(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what --describe shows")
    what = group.add_mutually_exclusive_group()
    what.add_argument(
        "--offsets", action="store_true", help="offsets and lag of each partition (the default)"
    )
    what.add_argument("--members", action="store_true", help="the members")
    group.add_argument(
        "--verbose",
        action="store_true",
        help="also the leader epochs of offsets, the partitions of members, the epochs of groups",
    )


def _add_reset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which partitions --reset-offsets sets, and how")
    group.add_argument(
        "--all-topics", action="store_true", help="all partitions with an offset of the group"
    )
    act = group.add_mutually_exclusive_group()
    act.add_argument(
        "--dry-run", action="store_true", help="only show the new offsets (the default)"
    )
    act.add_argument("--execute", action="store_true", help="set the new offsets")
    group.add_argument(
        "--export", action="store_true", help="print the new offsets as CSV, for --from-file"
    )
    way = parser.add_argument_group("where --reset-offsets sets them to", "exactly one")
    one = way.add_mutually_exclusive_group()
    one.add_argument("--to-earliest", action="store_true", help="the first offset")
    one.add_argument("--to-latest", action="store_true", help="the end of the partition")
    one.add_argument(
        "--to-current",
        action="store_true",
        help="the present offset of the group; without one, the end of the partition",
    )
    one.add_argument(
        "--to-offset", type=int, metavar="OFFSET", help="this offset, or the nearest that there is"
    )
    one.add_argument(
        "--shift-by",
        type=int,
        metavar="N",
        help="N records later than the present offset; earlier, if N is negative",
    )
    one.add_argument(
        "--to-datetime",
        metavar="TIME",
        help="the first record at or after this time: YYYY-MM-DDThh:mm:ss.sss, in UTC unless an "
        "offset such as +02:00 follows",
    )
    one.add_argument(
        "--by-duration",
        metavar="DURATION",
        help="the first record at or after so long ago: PnDTnHnMnS, such as P1DT12H or PT30M",
    )
    one.add_argument(
        "--from-file",
        metavar="FILE",
        help="the offsets in a CSV file with lines TOPIC,PARTITION,OFFSET; for several groups "
        "GROUP,TOPIC,PARTITION,OFFSET",
    )


def run(arguments: argparse.Namespace) -> int:
    check_arguments(arguments)
    if arguments.validate_regex is not None:
        from trimtab.cli.groups.expression import validate_regex

        return validate_regex(arguments)
    from trimtab.cli.groups import deletions, description, listing, resets

    actions = {
        "list": listing.list_groups,
        "describe": description.describe_groups,
        "reset_offsets": resets.reset_offsets,
        "delete": deletions.delete_groups,
        "delete_offsets": deletions.delete_offsets,
    }
    options = read_client_options(arguments)
    if arguments.timeout is not None:
        options["default.api.timeout.ms"] = arguments.timeout
    if arguments.verb == "reset_offsets" and not (arguments.dry_run or arguments.execute):
        print("Nothing is changed without --execute.", file=sys.stderr)
    with connect_admin(options) as admin:
        return actions[arguments.verb](admin, arguments)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Check what can be checked before connecting to a cluster.

    Raises:
        UsageError: an option is missing, or does not go with another.
    """
    given = vars(arguments)
    verb = "validate_regex" if arguments.validate_regex is not None else arguments.verb
    for name, verbs in _VERBS.items():
        if _is_given(given[name]) and verb not in verbs:
            allowed = " and ".join(map(_flag, verbs))
            raise UsageError(f"{_flag(name)} goes with {allowed}, not with {_flag(verb)}")
    if arguments.group and arguments.all_groups:
        raise UsageError("--group and --all-groups are both given: give one")
    if verb not in _WITHOUT_GROUP and not arguments.group and not arguments.all_groups:
        other = "" if verb == "delete_offsets" else ", or --all-groups"
        raise UsageError(f"{_flag(verb)} needs a group: add --group NAME{other}")
    if verb == "delete_offsets" and len(arguments.group) > 1:
        raise UsageError("--delete-offsets takes one group: give one --group NAME")
    if verb == "delete_offsets" and not arguments.topic:
        raise UsageError("--delete-offsets needs a topic: add --topic NAME or --topic NAME:0,1")
    if verb == "describe":
        _check_description(arguments)
    if verb == "reset_offsets":
        _check_reset(arguments)


def _check_description(arguments: argparse.Namespace) -> None:
    if arguments.state:
        raise UsageError(f"--describe --state takes no value: leave out {arguments.state!r}")
    if arguments.state is not None and (arguments.members or arguments.offsets):
        other = "--members" if arguments.members else "--offsets"
        raise UsageError(f"--state and {other} are both given: describe one, then the other")


def _check_reset(arguments: argparse.Namespace) -> None:
    given = vars(arguments)
    if not any(_is_given(given[way]) for way in WAYS):
        raise UsageError(
            f"--reset-offsets needs to know where to: add one of {', '.join(map(_flag, WAYS))}"
        )
    if arguments.topic and arguments.all_topics:
        raise UsageError("--topic and --all-topics are both given: give one")
    has_scope = arguments.topic or arguments.all_topics
    if arguments.from_file is None and not has_scope:
        raise UsageError("--reset-offsets needs topics: add --topic NAME, or --all-topics")
    if arguments.from_file is not None and has_scope:
        raise UsageError(
            "--from-file names the partitions itself: leave out --topic and --all-topics"
        )


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != []


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
