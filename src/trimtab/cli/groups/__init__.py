"""List, describe, watch, reset and delete consumer groups, with the options of
kafka-consumer-groups, which has no --watch.

--describe shows the offsets that a group has committed, the ends of the partitions, and the lag
between them. --watch shows the partitions with most lag again and again, until Ctrl-C: records/s
written and read, over the last half minute, and in how long the lag is cleared at these rates.
--reset-offsets sets the offsets of a group without members; it only shows the new ones unless
--execute is given. --validate-regex checks an expression with which consumers of
`group.protocol=consumer` may subscribe to topics; it needs no cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from trimtab.cli.options import (
    add_client_options,
    add_options,
    add_verbs,
    is_given,
    read_client_options,
    refuse_both,
    refuse_misplaced,
    spell,
)
from trimtab.cli.results import print_result
from trimtab.cli.selection import connect_admin
from trimtab.cli.style import say_note
from trimtab.kafka.errors import UsageError

EXAMPLES = """\
  trimtab groups --list --state
  trimtab groups --describe --group billing
  trimtab groups --describe --all-groups --json
  trimtab groups --describe --group billing --members --verbose
  trimtab groups --watch
  trimtab groups --watch 10 --group billing --top 5 --json
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

_WITHOUT_GROUP: Final = ("list", "watch", "validate_regex")
_DESCRIBES: Final = ("--describe",)
_RESETS: Final = ("--reset-offsets",)
_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "group": ("--describe", "--watch", "--reset-offsets", "--delete", "--delete-offsets"),
    "all_groups": ("--describe", "--watch", "--reset-offsets", "--delete"),
    "topic": ("--reset-offsets", "--delete-offsets"),
    "state": ("--list", "--describe"),
    "type": ("--list",),
    "offsets": _DESCRIBES,
    "members": _DESCRIBES,
    "verbose": _DESCRIBES,
    "top": ("--watch",),
    "count": ("--watch",),
    "all_topics": _RESETS,
    "dry_run": _RESETS,
    "execute": _RESETS,
    "export": _RESETS,
    **dict.fromkeys(WAYS, _RESETS),
}
"""The actions with which each option may be used; options not listed go with all of them."""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(
        parser,
        {
            "list": "print the ids of all consumer groups",
            "describe": "show groups: their offsets, members or state",
            "reset-offsets": "set the offsets of groups without members",
            "delete": "delete groups without members, with their offsets",
            "delete-offsets": "delete a group's offsets of topics that it does not read",
        },
    )
    others = {
        "--watch [SECONDS=5]": "show the partitions with most lag each so many seconds (default: "
        "5), of all groups or those of --group",
        "--validate-regex REGEX": "check that trimtab's brokers accept this RE2 expression of "
        "topic names",
    }
    add_options(verbs, others, types={"--watch": float})
    options = {
        "--group GROUP …": "these groups",
        "--all-groups": "all consumer groups",
        "--topic TOPIC[:N,…] …": "with --reset-offsets and --delete-offsets: these topics, or "
        "partitions of them",
        "--state [STATE,…]": "with --describe: show the groups' states and coordinators; with "
        "--list: show states, of groups in one of these states only if some are given",
        "--type [TYPE,…]": "with --list: show types, of groups of these types (classic, consumer) "
        "only if some are given",
        "--timeout MS>0": "how long to try to reach the cluster, in milliseconds (default: 15000)",
        "--json": "print a line with a JSON object for each group",
    }
    add_options(parser, options)
    _add_description(parser)
    _add_reset(parser)
    add_client_options(parser)


def _add_description(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what --describe shows")
    options = {
        "--offsets": "offsets and lag of each partition (the default)",
        "| --members": "the members",
        "--verbose": "also the leader epochs of offsets, the partitions of members, the epochs of "
        "groups",
    }
    add_options(group, options)
    group = parser.add_argument_group("what --watch shows")
    options = {
        "--top N>0": "so many partitions; on a terminal as many of them as fit (default: 20)",
        "--count N>0": "end after so many looks (default: at Ctrl-C)",
    }
    add_options(group, options)


def _add_reset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which partitions --reset-offsets sets, and how")
    options = {
        "--all-topics": "all partitions with an offset of the group",
        "--dry-run": "only show the new offsets (the default)",
        "| --execute": "set the new offsets",
        "--export": "print the new offsets as CSV, for --from-file",
    }
    add_options(group, options)
    way = parser.add_argument_group("where --reset-offsets sets them to", "exactly one")
    options = {
        "--to-earliest": "the first offset",
        "| --to-latest": "the end of the partition",
        "| --to-current": "the present offset of the group; without one, the end of the partition",
        "| --to-offset OFFSET": "this offset, or the nearest that there is",
        "| --shift-by N": "N records later than the present offset; earlier, if N is negative",
        "| --to-datetime TIME": "the first record at or after this time: YYYY-MM-DDThh:mm:ss.sss, "
        "in UTC unless an offset such as +02:00 follows",
        "| --by-duration DURATION": "the first record at or after so long ago: PnDTnHnMnS, such "
        "as P1DT12H or PT30M",
        "| --from-file FILE": "the offsets in a CSV file with lines TOPIC,PARTITION,OFFSET; for "
        "several groups GROUP,TOPIC,PARTITION,OFFSET",
    }
    add_options(way, options, types={"--to-offset": int})


def run(arguments: argparse.Namespace) -> int:
    check_arguments(arguments)
    if arguments.validate_regex is not None:
        return validate_regex(arguments)
    from trimtab.cli.groups import deletions, description, listing, resets, watching

    if arguments.watch is not None:
        return watching.watch_groups(arguments)
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
        say_note("Nothing is changed without --execute.")
    with connect_admin(options) as admin:
        return actions[arguments.verb](admin, arguments)


def validate_regex(arguments: argparse.Namespace) -> int:
    """Check an expression by which a consumer group subscribes to topics.

    The exit code is 0 for an invalid expression too, as that of Kafka's tool.
    """
    from trimtab.cluster.coordinator.topic_pattern import (
        LibraryMissing,
        PatternRefused,
        TopicPattern,
    )

    regex, reason = arguments.validate_regex, None
    try:
        TopicPattern(regex)
    except LibraryMissing as missing:
        raise UsageError(f"--validate-regex: {missing}") from None
    except PatternRefused as refused:
        reason = str(refused)
    shown = {"regex": regex, "valid": reason is None, "reason": reason}
    verdict = "valid" if reason is None else f"invalid: {reason}"
    print_result(arguments, shown, f"The regular expression `{regex}` is {verdict}.")
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Check what can be checked before connecting to a cluster.

    Raises:
        UsageError: an option is missing, or does not go with another.
    """
    valued = [each for each in ("watch", "validate_regex") if is_given(getattr(arguments, each))]
    verb = valued[0] if valued else arguments.verb
    refuse_misplaced(arguments, _VERBS, spell(verb))
    refuse_both(arguments, "group", "all_groups")
    if verb not in _WITHOUT_GROUP and not arguments.group and not arguments.all_groups:
        other = "" if verb == "delete_offsets" else ", or --all-groups"
        raise UsageError(f"{spell(verb)} needs a group: add --group NAME{other}")
    if verb == "delete_offsets" and len(arguments.group) > 1:
        raise UsageError("--delete-offsets takes one group: give one --group NAME")
    if verb == "delete_offsets" and not arguments.topic:
        raise UsageError("--delete-offsets needs a topic: add --topic NAME or --topic NAME:0,1")
    if verb == "watch" and not 0.1 <= arguments.watch <= 86_400:
        raise UsageError(f"--watch {arguments.watch:g}: write seconds from 0.1 to 86400")
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
    if not any(is_given(given[way]) for way in WAYS):
        raise UsageError(
            f"--reset-offsets needs to know where to: add one of {', '.join(map(spell, WAYS))}"
        )
    refuse_both(arguments, "topic", "all_topics")
    has_scope = arguments.topic or arguments.all_topics
    if arguments.from_file is None and not has_scope:
        raise UsageError("--reset-offsets needs topics: add --topic NAME, or --all-topics")
    if arguments.from_file is not None and has_scope:
        raise UsageError(
            "--from-file names the partitions itself: leave out --topic and --all-topics"
        )
