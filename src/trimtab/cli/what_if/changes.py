"""The changes that `trimtab what-if` tries, as the command line has them.

They are made in one order, whatever that of the options is: growth, keys, producers, partitions,
topics, brokers lost, then the plan, which is for the cluster that the others leave.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trimtab.balance.level_plan import Goal, find_level_plan
from trimtab.balance.what_if import (
    LoadWindows,
    add_topic,
    assign,
    even_shares,
    grow,
    lose_brokers,
    spread_topic,
)
from trimtab.cli.what_if.measured import Measured
from trimtab.kafka.arguments import checked_topic
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

if TYPE_CHECKING:
    from trimtab.balance.what_if import Floats

LEVEL: Final = "level"
_TOPIC_FORM: Final = (
    "write NAME:PARTITIONS:FACTOR:like=TOPIC, or NAME:PARTITIONS:FACTOR:bytes=5e6,readers=2,"
    "kept=86400: bytes/s, how often each is read, and the seconds that it is kept"
)


class Change(NamedTuple):
    """One change.

    Attributes:
        text: for people.
        make: changes windows; what is left to chance is drawn from the random numbers.
        is_drawn: whether anything is.
    """

    text: str
    make: Callable[[LoadWindows, Random], LoadWindows]
    is_drawn: bool = False


Shares = Callable[[str, int, Random], "Floats"]
"""A topic and its partitions: the shares of its bytes that each gets."""


def read_changes(
    arguments: argparse.Namespace,
    measured: Measured,
    keys: Mapping[str, Shares],
    producers: Mapping[str, Shares],
) -> list[Change]:
    """The changes of a command line, in the order in which they are made.

    Args:
        keys: by topic, who gets what with another key.
        producers: by topic, who gets what with other options of producers.

    Raises:
        UsageError: one is written otherwise, or names what there is not.
    """
    limits = measured.limits
    changes = [_read_growth(text) for text in arguments.growth]
    partitions = dict(_read_partitions(text) for text in arguments.partitions)
    spread: dict[str, Shares] = {**keys, **producers}
    for topic in keys.keys() & producers.keys():
        raise UsageError(f"--key and --producer of {topic}: give one, as a key decides alone")
    for topic in [*spread, *(each for each in partitions if each not in spread)]:
        now = len(measured.windows.find_topic(topic))
        count = partitions.get(topic, now)
        shares = spread.get(topic)
        words = [f"{count} partitions instead of {now}"] if topic in partitions else []
        words += ["another key"] if topic in keys else []
        words += ["other producer options"] if topic in producers else []

        def spread_out(
            windows: LoadWindows,
            random: Random,
            topic: str = topic,
            count: int = count,
            shares: Shares | None = shares,
        ) -> LoadWindows:
            found = shares(topic, count, random) if shares else even_shares(windows, topic, count)
            return spread_topic(windows, topic, found, limits, random)

        changes.append(Change(f"{topic}: {', '.join(words)}", spread_out, is_drawn=True))
    changes += [_read_topic(text, limits) for text in arguments.topic]
    brokers = measured.windows.load.brokers
    lost = [*_read_ids("--without-broker", arguments.without_broker)]
    for rack in arguments.without_rack:
        found = [id for id, each in brokers.items() if each.rack == rack]
        if not found:
            racks = sorted({each.rack for each in brokers.values() if each.rack is not None})
            raise UsageError(f"--without-rack {rack}: there are {', '.join(racks) or 'no racks'}")
        lost += found
    if lost:
        names = ", ".join(map(str, sorted({*lost})))
        changes.append(Change(f"without broker {names}", lambda all, _: lose_brokers(all, lost)))
    if arguments.plan is not None or arguments.drain is not None:
        changes.append(_read_plan(arguments))
    if not changes:
        raise UsageError(
            "no change is given: try --growth 2, --partitions TOPIC:N, --topic …, --key …, "
            "--producer …, --without-broker ID, --without-rack NAME or --plan level"
        )
    return changes


def _read_growth(text: str) -> Change:
    topic, _, number = text.rpartition(":")
    try:
        factor = float(number)
    except ValueError:
        factor = -1.0
    if not 0 < factor < 1000:
        raise UsageError(f"--growth {text}: write FACTOR or TOPIC:FACTOR, such as 2 or flights:1.5")
    what = topic or "all topics"
    return Change(f"{what}: {factor:g} x", lambda all, _: grow(all, factor, topic or None))


def _read_partitions(text: str) -> tuple[str, int]:
    topic, _, number = text.rpartition(":")
    if not topic or not number.isdecimal() or not 1 <= int(number) <= 100_000:
        raise UsageError(f"--partitions {text}: write TOPIC:N, such as flights:48")
    return topic, int(number)


def _read_topic(text: str, limits: Any) -> Change:
    try:
        name, count, factor, rest = text.split(":", 3)
        pairs = dict(each.split("=", 1) for each in rest.split(","))
        partitions, replicas = int(count), int(factor)
        like = pairs.pop("like", None)
        numbers = {
            each: float(pairs.pop(each)) for each in ("bytes", "readers", "kept") if not like
        }
        if (
            pairs
            or partitions < 1
            or replicas < 1
            or any(not 0 <= e < 1e15 for e in numbers.values())
        ):
            raise ValueError
    except (ValueError, KeyError):
        raise UsageError(f"--topic {text}: {_TOPIC_FORM}") from None
    checked_topic(name)

    def add(windows: LoadWindows, random: Random) -> LoadWindows:
        rates: tuple[Any, Any, Any]
        if like:
            columns = windows.find_topic(like)
            rates = tuple(each[:, columns].sum(axis=1) for each in windows[1:])
        else:
            bytes_in = numbers["bytes"]
            rates = bytes_in, bytes_in * numbers["readers"], bytes_in * numbers["kept"]
        return add_topic(windows, name, partitions, replicas, rates, limits, random)

    return Change(f"topic {name} more: {partitions} x {replicas}, {rest}", add, is_drawn=True)


def _read_ids(option: str, texts: Sequence[str]) -> list[int]:
    words = [word for text in texts for word in text.split(",")]
    for word in words:
        if not word.isdecimal():
            raise UsageError(f"{option} {word!r}: write broker ids, such as 1,2")
    return [*map(int, words)]


def _read_plan(arguments: argparse.Namespace) -> Change:
    if arguments.plan not in (None, LEVEL):
        if arguments.drain is not None:
            raise UsageError("--plan FILE and --drain: give one of them")
        assignment = read_plan_file(arguments.plan)
        return Change(f"the plan of {arguments.plan}", lambda all, _: assign(all, assignment))
    drain = frozenset(_read_ids("--drain", [] if arguments.drain is None else [arguments.drain]))
    goal = Goal(drain=drain)
    text = f"drained: broker {', '.join(map(str, sorted(drain)))}" if drain else "level"
    return Change(text, partial(_level, goal=goal))


def _level(windows: LoadWindows, random: Random, goal: Goal) -> LoadWindows:
    led = [each for each in windows.load.partitions if each.leader >= 0]
    return assign(windows, find_level_plan(windows.load._replace(partitions=led), goal).assignment)


def read_plan_file(path: str) -> dict[TopicPartition, list[int]]:
    """The replicas by partition of a plan that `trimtab balance --json` or `trimtab reassign`
    writes.

    Raises:
        UsageError: the file is no plan, or plans nothing.
    """
    from trimtab.cli.reassign.documents import read_assignment

    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plan {path}: {error}; write {LEVEL}, or a file of a plan") from None
    if not isinstance(document, dict) or "changes" not in document:
        return read_assignment(path).replicas
    try:
        return {
            TopicPartition(each["topic"], each["partition"]): [*map(int, each["replicas"])]
            for each in document["changes"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--plan {path}: no plan of trimtab balance --json: {error!r}") from None
