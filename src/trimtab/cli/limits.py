"""Show how many partition replicas brokers have, and how many more they may get (KIP-578).

The limits are the brokers' options max.broker.partitions and max.partitions. For a cluster without
them, such as Apache Kafka's, give limits on the command line. Brokers that use 80, 90 or 100 % of a
limit get a warning, and so does the cluster. --what-if shows whether further topics would fit, one
after the other, without creating them; the exit code is 1 if one does not fit.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from trimtab.balance.limits import PER_BROKER, PER_CLUSTER, Allowance, ClusterUsage, LimitExceeded
from trimtab.cli.options import add_client_options, read_client_options
from trimtab.cli.selection import connect_admin
from trimtab.cli.style import ERROR, WARNING, paint
from trimtab.cli.table import align, show_count
from trimtab.cli.usage import read_usage
from trimtab.config import LONG_MAX
from trimtab.errors import UsageError

EXAMPLES = """\
  trimtab limits
  trimtab limits --what-if flights:30:2 --what-if carriers:3:3 --json
  trimtab limits --bootstrap-server kafka:9092 --max-broker-partitions 4000 --max-partitions 200000
"""

_MARKS = (100, 90, 80)
"""Percentages of a limit from which on a warning is shown."""


class PlannedTopic(NamedTuple):
    """A topic to try out, as --what-if gives it."""

    topic: str
    partitions: int
    factor: int


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--what-if",
        metavar="TOPIC:PARTITIONS:FACTOR",
        action="append",
        default=[],
        help="show whether a topic with this many partitions and this replication factor would "
        "fit; may be repeated, each topic is added to the ones before",
    )
    for option, name in (
        ("--max-broker-partitions", PER_BROKER),
        ("--max-partitions", PER_CLUSTER),
    ):
        parser.add_argument(
            option,
            metavar="N",
            help=f"use this {name}, in replicas, instead of the cluster's",
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    planned = [read_planned_topic(text) for text in arguments.what_if]
    given = {
        name: read_limit(option, text)
        for name, option, text in (
            (PER_BROKER, "--max-broker-partitions", arguments.max_broker_partitions),
            (PER_CLUSTER, "--max-partitions", arguments.max_partitions),
        )
        if text is not None
    }
    with connect_admin(read_client_options(arguments)) as admin:
        usage = read_usage(admin, admin.describe_topics().values(), given)
    shown = describe(usage)
    outcomes = try_out(usage, planned)
    if arguments.json:
        print(json.dumps({**shown, "what_if": outcomes}))
    else:
        print(write_table(shown, outcomes))
    return 0 if all(outcome["fits"] for outcome in outcomes) else 1


def read_planned_topic(text: str) -> PlannedTopic:
    """Read `topic:partitions:factor`.

    Raises:
        UsageError: the text has another form.
    """
    topic, *numbers = text.split(":")
    if topic and len(numbers) == 2 and all(each.isdecimal() and int(each) for each in numbers):
        return PlannedTopic(topic, int(numbers[0]), int(numbers[1]))
    raise UsageError(f"--what-if {text!r}: write topic:partitions:factor, such as flights:30:2")


def read_limit(option: str, text: str) -> int:
    """A limit, as a number of replicas.

    Raises:
        UsageError: it is not a whole number from 0 to 2^63 - 1.
    """
    if text.isdecimal() and int(text) <= LONG_MAX:
        return int(text)
    raise UsageError(f"{option} {text!r}: write a number from 0 to {LONG_MAX}")


def describe(usage: ClusterUsage) -> dict[str, object]:
    """Replicas used, replicas free and percent used, for the cluster and for each broker.

    A limit that is not set is None, and so are the free replicas and the percentage.
    """
    limits, counts = usage.limits, usage.counts
    brokers = sorted({*usage.racks, *(broker for broker, count in counts.on.items() if count)})
    return {
        PER_BROKER: _or_none(limits.per_broker),
        PER_CLUSTER: _or_none(limits.per_cluster),
        "cluster": _describe_one(counts.total, limits.per_cluster),
        "brokers": [
            {
                "broker": broker,
                "rack": usage.racks.get(broker),
                "alive": broker in usage.racks,
                **_describe_one(counts.on[broker], limits.per_broker),
            }
            for broker in brokers
        ],
    }


def _describe_one(replicas: int, limit: int) -> dict[str, object]:
    percent = 100 * replicas // limit if limit else 100
    return {
        "replicas": replicas,
        "free": None if limit == LONG_MAX else max(0, limit - replicas),
        "used_percent": None if limit == LONG_MAX else percent,
        "warning": next((f"{mark} % used" for mark in _MARKS if percent >= mark), None),
    }


def _or_none(limit: int) -> int | None:
    return None if limit == LONG_MAX else limit


def try_out(usage: ClusterUsage, planned: Sequence[PlannedTopic]) -> list[dict[str, object]]:
    """Place each topic after the ones before it: whether it fits, how many of its partitions would
    fit, and how many replicas each broker would get."""
    allowance = Allowance(usage.counts, usage.limits, Counter(), exempt=())
    outcomes: list[dict[str, object]] = []
    random = Random(0)
    for topic, partitions, factor in planned:
        most = partitions
        assignment: list[list[int]] = []
        try:
            assignment = allowance.place(topic, usage.racks, partitions, factor, random)
        except LimitExceeded as refusal:
            most = refusal.most
        added = Counter(broker for replicas in assignment for broker in replicas)
        outcomes.append(
            {
                "topic": topic,
                "partitions": partitions,
                "replication_factor": factor,
                "fits": most == partitions,
                "most_partitions": most,
                "added": {str(broker): added[broker] for broker in sorted(added)},
            }
        )
    return outcomes


def write_table(shown: Mapping[str, object], outcomes: Sequence[Mapping[str, object]]) -> str:
    """A table for people: the cluster, each broker, then each topic tried out."""
    cluster, brokers = shown["cluster"], shown["brokers"]
    assert isinstance(cluster, dict)
    assert isinstance(brokers, list)
    rows = [("", "rack", "replicas", "limit", "free", "used", "")]
    rows.append(_row("cluster", "", cluster, shown[PER_CLUSTER]))
    for each in brokers:
        name = f"broker {each['broker']}" + ("" if each["alive"] else " (down)")
        rows.append(_row(name, each["rack"] or "", each, shown[PER_BROKER]))
    colours = [None, _colour(cluster), *map(_colour, brokers)]
    aligned = align(rows, right=range(2, 6))
    lines = [paint(line, colour) for line, colour in zip(aligned, colours, strict=True)]
    for outcome in outcomes:
        partitions, factor = outcome["partitions"], outcome["replication_factor"]
        assert isinstance(partitions, int)
        assert isinstance(factor, int)
        what = (
            f"{outcome['topic']}: {show_count(partitions, 'partition')} of "
            f"{show_count(factor, 'replica')}"
        )
        is_one = partitions == 1
        added = outcome["added"]
        assert isinstance(added, dict)
        where = ", ".join(f"broker {broker} +{count}" for broker, count in added.items())
        lines.append(
            f"{what} {'fits' if is_one else 'fit'}: {where}"
            if outcome["fits"]
            else paint(
                f"{what} {'does' if is_one else 'do'} not fit: at most "
                f"{outcome['most_partitions']} can be placed",
                ERROR,
            )
        )
    return "\n".join(lines)


def _colour(each: Mapping[str, object]) -> str | None:
    if each["used_percent"] is None or not each["warning"]:
        return None
    return ERROR if each["free"] == 0 else WARNING


def _row(
    name: str, rack: str, each: Mapping[str, object], limit: object
) -> tuple[str, str, str, str, str, str, str]:
    def show(value: object, unit: str = "") -> str:
        return "-" if value is None else f"{value}{unit}"

    return (
        name,
        rack,
        show(each["replicas"]),
        show(limit),
        show(each["free"]),
        show(each["used_percent"], " %"),
        f"warning: {each['warning']}" if each["warning"] else "",
    )
