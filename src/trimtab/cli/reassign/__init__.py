"""Move partitions to other brokers, with the options of kafka-reassign-partitions.

--generate prints a plan that puts the replicas on the brokers of --broker-list. No broker exceeds
its limit (max.broker.partitions, KIP-578), each partition is spread over the racks, and all brokers
lead the same number of partitions, give or take one. Of all such plans it copies the fewest bytes.
Standard error shows the reason for each move, and with --throttle the time that the moves take.
"""

from __future__ import annotations

import argparse

from trimtab.cli.options import add_client_options, read_client_options
from trimtab.cli.selection import connect_admin
from trimtab.errors import UsageError

EXAMPLES = """\
  trimtab reassign --generate --broker-list 1,2,3 --throttle 50000000 > plan.txt
  trimtab reassign --generate --topics-to-move-json-file topics.json --broker-list 1,2,3 --json
  trimtab reassign --execute --reassignment-json-file plan.json --throttle 50000000
  trimtab reassign --verify --reassignment-json-file plan.json
  trimtab reassign --cancel --reassignment-json-file plan.json
  trimtab reassign --list
"""

_NEEDS_PLAN = ("execute", "verify", "cancel")
_ONLY_FOR = {
    "topics_to_move_json_file": ("generate",),
    "broker_list": ("generate",),
    "disable_rack_aware": ("generate",),
    "reassignment_json_file": _NEEDS_PLAN,
    "throttle": ("generate", "execute"),
    "additional": ("execute",),
    "disallow_replication_factor_change": ("execute",),
    "preserve_throttles": ("verify", "cancel"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    action = parser.add_mutually_exclusive_group(required=True)
    for name, text in (
        ("generate", "print a plan; nothing is moved"),
        ("execute", "start the reassignments of a plan"),
        (
            "verify",
            "show the progress of the reassignments; remove throttles when all are complete",
        ),
        ("cancel", "cancel reassignments in progress: partitions keep their former replicas"),
        ("list", "show all reassignments in progress"),
    ):
        action.add_argument(f"--{name}", dest="action", action="store_const", const=name, help=text)
    parser.add_argument(
        "--topics-to-move-json-file",
        metavar="FILE",
        help='with --generate: the topics to plan for, as {"version": 1, "topics": [{"topic": '
        '"t"}]} (default: all topics)',
    )
    parser.add_argument(
        "--broker-list",
        metavar="ID,…",
        help="with --generate: put replicas on these brokers only (default: all that are alive)",
    )
    parser.add_argument(
        "--disable-rack-aware", action="store_true", help="with --generate: ignore racks"
    )
    parser.add_argument(
        "--reassignment-json-file",
        metavar="FILE",
        help="with --execute, --verify and --cancel: the plan, in the format of --generate",
    )
    parser.add_argument(
        "--throttle",
        metavar="BYTES",
        type=int,
        help="with --execute: limit what each broker sends, and what it receives, for "
        "reassignments to this many bytes per second (default: no limit); with --generate: show "
        "the time the plan takes at this limit",
    )
    parser.add_argument(
        "--additional",
        action="store_true",
        help="with --execute: start even if other reassignments are in progress; --throttle then "
        "applies to these, too",
    )
    parser.add_argument(
        "--disallow-replication-factor-change",
        action="store_true",
        help="with --execute: reject reassignments that change a partition's number of replicas "
        "(KIP-860)",
    )
    parser.add_argument(
        "--preserve-throttles",
        action="store_true",
        help="with --verify and --cancel: do not remove throttles",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    check_arguments(arguments)
    from trimtab.cli.reassign import actions

    with connect_admin(read_client_options(arguments)) as admin:
        return actions.ACTIONS[arguments.action](admin, arguments)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raises:
    UsageError: an option that the action needs is missing, or one does not go with it.
    """
    action = arguments.action
    for name, actions in _ONLY_FOR.items():
        if getattr(arguments, name) not in (None, False) and action not in actions:
            allowed = " and ".join(f"--{each}" for each in actions)
            raise UsageError(f"--{name.replace('_', '-')} goes with {allowed}, not with --{action}")
    if action in _NEEDS_PLAN and arguments.reassignment_json_file is None:
        raise UsageError(f"--{action} needs the plan: --reassignment-json-file FILE")
    if arguments.throttle is not None and arguments.throttle <= 0:
        raise UsageError(
            f"--throttle {arguments.throttle}: write bytes per second, such as 50000000 for 50 MB/s"
        )
