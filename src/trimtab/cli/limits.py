"""Show how many partition replicas brokers have, and how many more they may get (KIP-578).

The limits are the brokers' options max.broker.partitions and max.partitions. For a cluster without
them, such as Apache Kafka's, give limits on the command line. Brokers that use 80, 90 or 100 % of a
limit get a warning, and so does the cluster. --what-if shows whether further topics would fit, one
after the other, without creating them; the exit code is 1 if one does not fit.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from trimtab.balance.limits import (
    PER_BROKER,
    PER_CLUSTER,
    Allowance,
    ClusterUsage,
    LimitExceeded,
)
from trimtab.balance.placement import GOAL, PlacementGoal
from trimtab.cli.options import add_client_options, add_options, spell
from trimtab.cli.results import print_result
from trimtab.cli.selection import connect
from trimtab.cli.style import ERROR, WARNING, paint
from trimtab.cli.table import align, show_count
from trimtab.client.measure.limits import count_replicas, read_limits
from trimtab.kafka.errors import UsageError
from trimtab.kafka.options import LONG_MAX

if TYPE_CHECKING:
    from trimtab.client.blocking.admin import Admin
    from trimtab.client.topic_view import TopicView

EXAMPLES = """\
  trimtab limits
  trimtab limits --what-if flights:30:2 --what-if carriers:3:3 --json
  trimtab limits --bootstrap-server kafka:9092 --max-broker-partitions 4000 --max-partitions 200000
"""

_LIMITS = {"max_broker_partitions": PER_BROKER, "max_partitions": PER_CLUSTER}
"""The limits that options give, by the options' attributes."""

_MARKS = (100, 90, 80)
"""Percentages of a limit from which on a warning is shown."""


class PlannedTopic(NamedTuple):
    """A topic to try out, as --what-if gives it."""

    topic: str
    partitions: int
    factor: int


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser,
        {
            "--what-if TOPIC:PARTITIONS:FACTOR *": "show whether a topic with this many "
            "partitions and this replication factor would fit; may be repeated, each topic is "
            "added to the ones before",
            **{
                f"{spell(name)} N": f"use this {limit}, in replicas, instead of the cluster's"
                for name, limit in _LIMITS.items()
            },
            "--json": "print one JSON object",
        },
        types=dict.fromkeys(map(spell, _LIMITS), str),
    )
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    planned = [read_planned_topic(text) for text in arguments.what_if]
    given = {
        limit: read_limit(spell(name), text)
        for name, limit in _LIMITS.items()
        if (text := getattr(arguments, name)) is not None
    }
    with connect(arguments) as admin:
        usage = read_usage(admin, admin.describe_topics().values(), given)
    shown = describe(usage)
    outcomes = try_out(usage, planned)
    print_result(arguments, {**shown, "what_if": outcomes}, write_table(shown, outcomes))
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


def describe(usage: ClusterUsage) -> dict[str, Any]:
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


def _describe_one(replicas: int, limit: int) -> dict[str, Any]:
    percent = 100 * replicas // limit if limit else 100
    return {
        "replicas": replicas,
        "free": None if limit == LONG_MAX else max(0, limit - replicas),
        "used_percent": None if limit == LONG_MAX else percent,
        "warning": next((f"{mark} % used" for mark in _MARKS if percent >= mark), None),
    }


def _or_none(limit: int) -> int | None:
    return None if limit == LONG_MAX else limit


def try_out(usage: ClusterUsage, planned: Sequence[PlannedTopic]) -> list[dict[str, Any]]:
    """Place each topic after the ones before it: whether it fits, how many of its partitions would
    fit and why no more, and how many replicas each broker would get."""
    allowance = Allowance(usage.counts, usage.limits, Counter(), exempt=(), goal=usage.goal)
    outcomes: list[dict[str, Any]] = []
    random = Random(0)
    held = usage.counts.on.copy()
    for topic, partitions, factor in planned:
        most, why = partitions, None
        assignment: list[list[int]] = []
        try:
            assignment = allowance.place(topic, usage.racks, partitions, factor, random)
        except LimitExceeded as refusal:
            most, why = refusal.most, _find_reason(usage, held, factor, refusal)
        added = Counter(broker for replicas in assignment for broker in replicas)
        held += added
        outcomes.append(
            {
                "topic": topic,
                "partitions": partitions,
                "replication_factor": factor,
                "fits": most == partitions,
                "most_partitions": most,
                "why": why,
                "added": {str(broker): added[broker] for broker in sorted(added)},
            }
        )
    return outcomes


def _find_reason(
    usage: ClusterUsage, held: Counter[int], factor: int, refusal: LimitExceeded
) -> str:
    """Why no more partitions fit.

    Args:
        held: the replicas by broker, with those of topics that were tried before.
    """
    if factor > len(usage.racks):
        return f"only {len(usage.racks)} of the {factor} brokers that it needs are alive"
    if refusal.limit == PER_CLUSTER:
        free = usage.limits.per_cluster - held.total()
        return f"{PER_CLUSTER}={usage.limits.per_cluster} leaves {show_count(free, 'replica')}"
    rooms = ", ".join(
        f"{max(0, usage.limits.per_broker - held[broker])} on broker {broker}"
        for broker in sorted(usage.racks)
    )
    return f"{PER_BROKER}={usage.limits.per_broker} leaves {rooms}"


def write_table(shown: Mapping[str, Any], outcomes: Sequence[Mapping[str, Any]]) -> str:
    """A table for people: the cluster, each broker, then each topic tried out."""
    cluster, brokers = shown["cluster"], shown["brokers"]
    rows: list[tuple[str, ...]] = [("", "rack", "replicas", "limit", "free", "used", "")]
    rows.append(_row("cluster", "", cluster, shown[PER_CLUSTER]))
    for broker in brokers:
        name = f"broker {broker['broker']}" + ("" if broker["alive"] else " (down)")
        rows.append(_row(name, broker["rack"] or "", broker, shown[PER_BROKER]))
    colours = [None, _colour(cluster), *map(_colour, brokers)]
    aligned = align(rows, right=range(2, 6))
    lines = [*map(paint, aligned, colours)]
    for outcome in outcomes:
        what = (
            f"{outcome['topic']}: {show_count(outcome['partitions'], 'partition')} of "
            f"{show_count(outcome['replication_factor'], 'replica')}"
        )
        is_one = outcome["partitions"] == 1
        where = ", ".join(f"broker {broker} +{count}" for broker, count in outcome["added"].items())
        lines.append(
            f"{what} {'fits' if is_one else 'fit'}: {where}"
            if outcome["fits"]
            else paint(
                f"{what} {'does' if is_one else 'do'} not fit: at most "
                f"{outcome['most_partitions']} can be placed: {outcome['why']}",
                ERROR,
            )
        )
    return "\n".join(lines)


def _colour(each: Mapping[str, Any]) -> str | None:
    if each["used_percent"] is None or not each["warning"]:
        return None
    return ERROR if each["free"] == 0 else WARNING


def _row(name: str, rack: str, each: Mapping[str, Any], limit: object) -> tuple[str, ...]:
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


def read_usage(
    admin: Admin, views: Iterable[TopicView], given: Mapping[str, int] | None = None
) -> ClusterUsage:
    """Read the limits and replicas of a cluster, and what its placement makes even first.

    A limit that it lacks is the largest long.

    Args:
        views: all topics of the cluster.
        given: limits to use instead of the cluster's, by option name.
    """
    nodes = admin.cluster().nodes
    options = {entry.name: entry for entry in admin.describe_configs("broker", nodes[0].id)}
    goal = options.get(GOAL)
    return ClusterUsage(
        read_limits(options.values(), given),
        {node.id: node.rack for node in nodes},
        count_replicas(views),
        PlacementGoal.RACKS if goal is None or goal.value is None else PlacementGoal(goal.value),
    )
