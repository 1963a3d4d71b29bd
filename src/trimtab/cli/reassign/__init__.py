"""Move partitions to other brokers, with the options of kafka-reassign-partitions.

--generate prints a plan that puts the replicas on the brokers of --broker-list. No broker exceeds
its limit (max.broker.partitions, KIP-578), each partition is spread over the racks, and all brokers
lead the same number of partitions, give or take one. Of all such plans it copies the fewest bytes.
If the cluster's replica.placement.goal is brokers or weighted (KIP-1194), a rack gets replicas in
proportion to its brokers, so a broker that is alone in its rack does not get one of each partition.
Standard error shows the reason for each move, and with --throttle the time that the moves take.
"""

from __future__ import annotations

import argparse

from trimtab.cli.options import add_client_options, add_options, add_verbs, refuse_misplaced, spell
from trimtab.cli.selection import connect
from trimtab.kafka.errors import UsageError

EXAMPLES = """\
  trimtab reassign --generate --broker-list 1,2,3 --throttle 50000000 > plan.txt
  trimtab reassign --generate --topics-to-move-json-file topics.json --broker-list 1,2,3 --json
  trimtab reassign --execute --reassignment-json-file plan.json --throttle 50000000
  trimtab reassign --verify --reassignment-json-file plan.json
  trimtab reassign --cancel --reassignment-json-file plan.json
  trimtab reassign --list
"""

_NEEDS_PLAN = ("--execute", "--verify", "--cancel")
_VERBS = {
    "topics_to_move_json_file": ("--generate",),
    "broker_list": ("--generate",),
    "disable_rack_aware": ("--generate",),
    "reassignment_json_file": _NEEDS_PLAN,
    "throttle": ("--generate", "--execute"),
    "additional": ("--execute",),
    "disallow_replication_factor_change": ("--execute",),
    "preserve_throttles": ("--verify", "--cancel"),
}
"""The actions with which each option may be used."""


def configure(parser: argparse.ArgumentParser) -> None:
    summaries = {
        "generate": "print a plan; nothing is moved",
        "execute": "start the reassignments of a plan",
        "verify": "show the progress of the reassignments; remove throttles when all are complete",
        "cancel": "cancel reassignments in progress: partitions keep their former replicas",
        "list": "show all reassignments in progress",
    }
    add_verbs(parser, summaries)
    options = {
        "--topics-to-move-json-file FILE": "with --generate: the topics to plan for, as "
        '{"version": 1, "topics": [{"topic": "t"}]} (default: all topics)',
        "--broker-list ID,…": "with --generate: put replicas on these brokers only (default: all "
        "that are alive)",
        "--disable-rack-aware": "with --generate: ignore racks",
        "--reassignment-json-file FILE": "with --execute, --verify and --cancel: the plan, in the "
        "format of --generate",
        "--throttle BYTES": "with --execute: limit what each broker sends, and what it receives, "
        "for reassignments to this many bytes per second (default: no limit); with --generate: "
        "show the time the plan takes at this limit",
        "--additional": "with --execute: start even if other reassignments are in progress; "
        "--throttle then applies to these, too",
        "--disallow-replication-factor-change": "with --execute: reject reassignments that change "
        "a partition's number of replicas (KIP-860)",
        "--preserve-throttles": "with --verify and --cancel: do not remove throttles",
        "--json": "print one JSON object",
    }
    add_options(parser, options)
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    check_arguments(arguments)
    from trimtab.cli.reassign import actions

    with connect(arguments) as admin:
        return actions.ACTIONS[arguments.verb](admin, arguments)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raises:
    UsageError: an option that the action needs is missing, or one does not go with it.
    """
    verb = spell(arguments.verb)
    refuse_misplaced(arguments, _VERBS, verb)
    if verb in _NEEDS_PLAN and arguments.reassignment_json_file is None:
        raise UsageError(f"{verb} needs the plan: --reassignment-json-file FILE")
    if arguments.throttle is not None and arguments.throttle <= 0:
        raise UsageError(
            f"--throttle {arguments.throttle}: write bytes per second, such as 50000000 for 50 MB/s"
        )
