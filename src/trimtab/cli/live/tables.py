"""The tables that `trimtab dashboard`, `trimtab top` and `trimtab load` show of a summary.

A table has its rows as they are; cells are made of those that are shown, so 9,000 topics cost what
sorting them costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import nlargest, nsmallest
from statistics import median_low
from typing import Any, Final, NamedTuple

from trimtab.balance.advice import SEVERITIES
from trimtab.balance.cluster_load import PartitionLoad
from trimtab.cli.balance import describe_plan
from trimtab.cli.groups.watching import say_when, show_time
from trimtab.cli.limits import PlannedTopic, try_out
from trimtab.cli.live.findings import Finding
from trimtab.cli.live.rows import RackRow, Summary, list_lags
from trimtab.cli.style import ERROR, WARNING
from trimtab.cli.table import show_bytes
from trimtab.client.collector import Snapshot
from trimtab.client.measure.history import LoadHistory
from trimtab.client.measure.lag import GroupLag, PartitionLag
from trimtab.client.measure.tails import Share

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
RECENT: Final = 10
"""Frames of a sparkline: fifty seconds in a cluster of fewer than 5,000 partitions."""
_SLOW_S: Final = 0.02
"""A shorter answer is not marked, nor one that takes twice the median."""
_SIZES: Final = (10, 50, 100, 200, 500, 1_000)
"""Partitions of topics that are tried out."""
_DAY_S: Final = 86_400
_KINDS: Final = {"replicate": "replicas", "produce": "producers", "consume": "consumers"}


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        value: of a row; rows are sorted by it. None is shown as `-`, and is last.
        show: that value.
        is_number: whether it is aligned right, and the largest is first.
        is_curve: whether values are curves, which are drawn; rows are not sorted by it.
        alarms: whether a row's cell is marked.
    """

    head: str
    value: Callable[[Any], Any]
    show: Callable[[Any], str] = str
    is_number: bool = True
    is_curve: bool = False
    alarms: Callable[[Any], bool] = lambda _: False


class Table(NamedTuple):
    """Rows of one kind.

    Attributes:
        identify: a row's name, by which it is filtered, and found again in a later table.
        explain: what the cells of a row do not say.
        colour: of `trimtab.cli.style`.
        opens: the kind and the name of what a row is about.
        note: what to say if there are no rows.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    identify: Callable[[Any], str]
    explain: Callable[[Any], str] = lambda _: ""
    colour: Callable[[Any], str | None] = lambda _: None
    opens: Callable[[Any], tuple[str, str] | None] = lambda _: None
    note: str = ""

    def choose(self, words: str, column: int | None, is_last_first: bool, most: int) -> list[Any]:
        """The first rows.

        Args:
            words: those that the name must have; in any case.
            column: to sort by; None for the order of the table.
        """
        wanted = words.lower().split()
        found = self.rows
        if wanted:
            names = ((row, self.identify(row).lower()) for row in found)
            found = [row for row, name in names if all(word in name for word in wanted)]
        if column is None:
            return list(found[:most])
        of = self.columns[column].value
        if self.columns[column].is_number == is_last_first:
            return nsmallest(most, found, key=lambda row: _order(of(row), is_first=False))
        return nlargest(most, found, key=lambda row: _order(of(row), is_first=True))

    def write(self, row: Any) -> list[str]:
        """The cells of a row."""
        values = [(column.show, column.value(row)) for column in self.columns]
        return ["-" if value is None else show_text(show(value)) for show, value in values]


def _order(value: Any, is_first: bool) -> tuple[bool, Any]:
    return (value is None) != is_first, 0 if value is None else value


def show_text(text: str) -> str:
    """What others have named, such as a group, without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def draw(values: Iterable[float]) -> str:
    """A sparkline from 0 to the largest value; a blank where it is not known."""
    shown = list(values)
    most = max((value for value in shown if value == value), default=0.0) or 1.0
    steps = len(_BLOCKS) - 1
    return "".join(
        _BLOCKS[round(max(0.0, value) / most * steps)] if value == value else " " for value in shown
    )


# Tables of the cluster


def of_findings(findings: Sequence[Finding]) -> Table:
    return Table(
        [
            Column("severity", lambda each: each.advice.severity, _severity, False),
            Column("where", lambda each: each.subject, is_number=False),
            Column("what", lambda each: each.evidence, is_number=False),
        ],
        findings,
        lambda each: f"{each.subject} {each.advice.rule}",
        lambda each: f"{each.evidence}\n→ {each.advice.action}",
        lambda each: (ERROR, WARNING, None)[each.advice.severity - 1],
        lambda each: (each.kind, each.name) if each.name else None,
        "Nothing to do: no rule is broken.",
    )


def _severity(number: int) -> str:
    return SEVERITIES[number].lower()


def of_brokers(summary: Summary, history: LoadHistory | None = None, frames: int = RECENT) -> Table:
    """Those that do not answer first, then those with most load."""

    def explain(row: Any) -> str:
        answers = "" if row.answer_s is None else f"; answers in {show_milliseconds(row.answer_s)}"
        slowest = "" if row.p99_s is None else f", 99 % within {show_milliseconds(row.p99_s)}"
        free = "" if row.free is None else f"; has room for {row.free:,} replicas"
        return f"{row.why or 'no more load than others'}{answers}{slowest}{free}"

    answers = [row.answer_s for row in summary.brokers if row.answer_s is not None]
    slow_s = max(_SLOW_S, 2 * median_low(answers)) if answers else 0.0
    columns = [
        Column("broker", lambda row: row.broker),
        Column("rack", lambda row: row.rack, is_number=False),
        Column("state", lambda row: row.state, is_number=False, alarms=lambda r: r.state != "up"),
        Column("level", lambda row: row.level, show_level, alarms=lambda row: row.why != ""),
        Column("sent/s", lambda row: row.sent, show_bytes),
        Column(
            "answers",
            lambda row: row.p99_s or row.answer_s,
            show_milliseconds,
            alarms=lambda row: (row.answer_s or 0.0) > slow_s,
        ),
        Column("disk", lambda row: _used(row.disk, row.disk_free), _percent),
        Column("written/s", lambda row: row.written, show_bytes),
        Column("leaders", lambda row: row.leaders, _count),
        Column("replicas", lambda row: row.replicas, _count),
        Column("stored", lambda row: row.stored, show_bytes),
    ]
    if history is not None:
        columns.insert(5, _curve(lambda row: history.of_broker(row.broker, frames)[1].values))
    return Table(
        columns,
        sorted(
            summary.brokers, key=lambda row: (row.state == "up", -(row.level or 0.0), row.broker)
        ),
        lambda row: f"{row.broker} {row.rack or ''} {row.state}",
        explain,
        lambda row: ERROR if row.state == "down" else WARNING if row.why else None,
        lambda row: ("broker", str(row.broker)),
    )


def of_topics(summary: Summary, history: LoadHistory | None = None, frames: int = RECENT) -> Table:
    """Those with most bytes first."""

    def explain(row: Any) -> str:
        skew = "" if row.skew is None else f"partition {row.largest} gets {row.skew:.1f} x the mean"
        if skew and not row.is_uneven:
            skew += ", which may be chance"
        return "; ".join(filter(None, (skew, row.why))) or "too little load to judge its skew"

    columns = [
        Column("topic", lambda row: row.topic, is_number=False),
        Column("partitions", lambda row: row.partitions, _count),
        Column("copies", lambda row: row.factor),
        Column("in/s", lambda row: row.bytes_in, show_bytes),
        Column("out/s", lambda row: row.bytes_out, show_bytes),
        Column("records/s", lambda row: row.records_in, lambda rate: f"{rate:,.0f}"),
        Column("skew", lambda row: row.skew, show_level, alarms=lambda row: row.is_uneven),
        Column("size", lambda row: row.size, show_bytes),
    ]
    if history is not None:
        columns.insert(4, _curve(lambda row: history.of_topic(row.topic, frames).values))
    return Table(
        columns,
        summary.topics,
        lambda row: row.topic,
        explain,
        lambda row: (
            ERROR
            if row.without_leader
            else WARNING
            if row.is_uneven or row.under_replicated
            else None
        ),
        lambda row: ("topic", row.topic),
        "There are no topics.",
    )


_TREND: Final = Column(
    "trend", lambda row: row.trend, is_number=False, alarms=lambda row: row.trend == "growing"
)


def of_groups(summary: Summary) -> Table:
    """Those that are farthest behind first."""
    return Table(
        [
            Column("group", lambda row: row.group, is_number=False),
            Column("partitions", lambda row: row.partitions, _count),
            Column("lag", lambda row: row.lag, _count),
            Column("cleared in", _seconds_to_clear, _say_seconds),
            _TREND,
            Column("written/s", lambda row: row.written_per_s, _rate),
            Column("read/s", lambda row: row.read_per_s, _rate),
        ],
        summary.groups,
        lambda row: row.group,
        colour=_colour_of_trend,
        opens=lambda row: ("group", row.group),
        note="No group has committed offsets.",
    )


def of_racks(summary: Summary, cost_per_gb: float) -> Table:
    def explain(row: RackRow) -> str:
        if row.kind == "replicate":
            return "measured: what followers fetch from leaders in the other rack"
        if row.kind in _KINDS:
            return (
                f"an estimate: no broker tells where {_KINDS[row.kind]} are, so as if they were "
                "spread evenly over the racks, and none used the nearest broker"
            )
        return "replicas as measured, and clients as if they were spread evenly over the racks"

    total = sum(row.rate for row in summary.racks)
    return Table(
        [
            Column("by", lambda row: _KINDS.get(row.kind, row.kind), is_number=False),
            Column("from", lambda row: row.source or "any", is_number=False),
            Column("to", lambda row: row.target or "another", is_number=False),
            Column("bytes/s", lambda row: row.rate, show_bytes),
            Column("a day", lambda row: row.rate * _DAY_S, show_bytes),
            *(
                Column(head, partial(_cost, cost_per_gb, days), lambda cost: f"{cost:,.2f}")
                for head, days in (("cost a day", 1), ("cost in 30 days", 30))
            ),
        ],
        [RackRow("all", "", "", total), *summary.racks] if summary.racks else [],
        lambda row: f"{row.kind} {row.source} {row.target}",
        explain,
        note="No traffic between racks: brokers have no broker.rack, or all the same one.",
    )


def _cost(cost_per_gb: float, days: int, row: RackRow) -> float:
    return row.rate * _DAY_S * days / 1e9 * cost_per_gb


def of_room(summary: Summary, asked: Sequence[PlannedTopic] = ()) -> Table:
    """Whether one further topic would fit, by its size.

    Args:
        asked: topics to try out beside the usual ones.
    """
    usage = summary.usage
    factors = Counter(row.factor for row in summary.topics if not row.topic.startswith("__"))
    factor = factors.most_common(1)[0][0] if factors else min(3, max(1, len(usage.racks)))
    outcomes = [
        try_out(usage, [each])[0]
        for each in (*asked, *(PlannedTopic("a topic", count, factor) for count in _SIZES))
    ]

    def explain(row: dict[str, Any]) -> str:
        if not row["fits"]:
            return f"at most {row['most_partitions']:,} partitions fit: {row['why']}"
        added = row["added"].items()
        return "new replicas: " + ", ".join(f"{count} on broker {id}" for id, count in added)

    return Table(
        [
            Column("partitions", lambda row: row["partitions"], _count),
            Column("copies", lambda row: row["replication_factor"]),
            Column("fits", lambda row: "yes" if row["fits"] else "no", is_number=False),
            Column("why not", lambda row: row["why"], is_number=False),
        ],
        outcomes,
        lambda row: f"{row['partitions']}x{row['replication_factor']}",
        explain,
        lambda row: None if row["fits"] else WARNING,
    )


def of_plan(snapshot: Snapshot) -> Table:
    lines: list[str] = []
    progress = snapshot.progress
    if progress is not None:
        left = f"{progress.unfinished:,} of {progress.changes:,} partitions to go"
        lines += [": ".join(filter(None, (progress.stage.value, progress.error or left))), ""]
    if snapshot.plan is not None:
        lines += describe_plan(snapshot.plan.plan).splitlines()
    return Table(
        [Column("what `trimtab balance` would do", lambda line: line[1], is_number=False)],
        list(enumerate(lines)),
        lambda line: line[1],
        lambda line: line[1],
        note="The first plan is being made …",
    )


# Tables of one broker, topic or group


def of_partitions(
    summary: Summary,
    history: LoadHistory,
    topic: str = "",
    broker: int | None = None,
    frames: int = RECENT,
) -> Table:
    """The measured partitions of a topic, or those that a broker leads; with most bytes first."""
    snapshot = summary.snapshot
    rows: Sequence[PartitionLoad]
    if broker is None:
        rows = sorted(
            summary.by_topic.get(topic, ()), key=lambda each: (-each.bytes_in, each.partition)
        )
        total = sum(each.bytes_in for each in rows)
    else:
        rows = summary.by_leader.get(broker, ())
        total = next((row.sent for row in summary.brokers if row.broker == broker), 0.0)
    columns = [
        Column("partition", lambda row: row.partition.partition),
        Column("leader", lambda row: row.leader if row.leader >= 0 else None),
        Column("in/s", lambda row: row.bytes_in, show_bytes),
        _curve(lambda row: history.of_partition(row[0].topic, row[0].partition, frames).values),
        Column("share", lambda row: row.bytes_in / (total or 1.0), _percent),
        Column("out/s", lambda row: row.bytes_out, show_bytes),
        Column("records/s", lambda row: snapshot.metered.records_in.get(row.partition), _rate),
        Column("size", lambda row: row.size, show_bytes),
        Column("replicas", lambda row: row.replicas, _write_brokers, False),
        Column(
            "out of sync",
            _out_of_sync,
            _write_brokers,
            False,
            alarms=lambda r: bool(_out_of_sync(r)),
        ),
    ]
    if broker is not None:
        columns[0] = Column("partition", lambda row: row.partition, str, False)
        columns[1] = Column("sent/s", lambda row: row.leader_out, show_bytes)
        columns[4] = columns[4]._replace(
            value=lambda row: row.leader_out / total if total else None
        )
    left_out = [
        f"{each}: {why}"
        for each, why in snapshot.metered.left_out.items()
        if each.topic == topic and broker is None
    ]
    return Table(
        columns,
        rows,
        lambda row: str(row.partition),
        _replicas,
        _colour_of_replicas,
        lambda row: ("topic", row.partition.topic) if broker is not None else None,
        "; ".join(left_out[:3]) or "No partition is measured yet.",
    )


def _out_of_sync(row: PartitionLoad) -> Sequence[int]:
    return [each for each in row.replicas if each not in row.in_sync]


def _replicas(row: PartitionLoad) -> str:
    missing = _out_of_sync(row)
    behind = f"; not in sync: {_write_brokers(missing)}" if missing else ""
    return f"{row.partition}: replicas on brokers {_write_brokers(row.replicas)}{behind}"


def _write_brokers(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))


def _colour_of_replicas(row: PartitionLoad) -> str | None:
    return ERROR if row.leader < 0 else WARNING if len(row.in_sync) < len(row.replicas) else None


def of_consumers(summary: Summary, topic: str = "", group: str = "") -> Table:
    """The lag of groups in a topic, or of one group in its partitions; the largest first."""
    return Table(
        [
            Column("group", lambda row: row.group, is_number=False),
            Column("partition", lambda row: row.partition, str, False),
            Column("lag", lambda row: row.lag, _count),
            Column("cleared in", _seconds_to_clear, _say_seconds),
            _TREND,
            Column("written/s", lambda row: row.written_per_s, _rate),
            Column("read/s", lambda row: row.read_per_s, _rate),
            Column("committed", lambda row: row.committed, _count),
        ],
        list_lags(summary.snapshot, topic, group),
        lambda row: f"{row.group} {row.partition}",
        lambda row: f"{row.group} in {row.partition}: {say_when(row)}",
        _colour_of_trend,
        lambda row: ("topic", row.partition.topic) if group else ("group", row.group),
        "No group has committed offsets here.",
    )


class KeyShare(NamedTuple):
    """What one key, or one producer, has of the newest bytes of a partition."""

    partition: Any
    share: Share


def of_tails(summary: Summary, kind: str, topic: str = "") -> Table:
    """Who has written the newest records.

    Args:
        kind: "keys" or "producers".
        topic: "" for all that were read.
    """
    rows = [
        KeyShare(partition, share)
        for partition, tail in summary.snapshot.tails.items()
        if topic in ("", partition.topic)
        for share in getattr(tail, kind)
    ]
    nameless = "without a key" if kind == "keys" else "without an id"
    return Table(
        [
            Column("partition", lambda row: row.partition, str, False),
            Column("share", lambda row: row.share.share, _percent),
            Column(
                kind.removesuffix("s"),
                lambda row: row.share.name,
                lambda name: name or f"({nameless})",
                False,
            ),
        ],
        rows,
        lambda row: f"{row.partition} {row.share.name}",
        lambda row: f"{row.share.share:.1%} of the newest 256 KiB of {row.partition}",
        note="Not read: of each of the eight busiest topics the largest partition is, unless keys "
        "are not to be shown.",
    )


def _curve(values: Callable[[Any], Sequence[float]]) -> Column:
    return Column("lately", values, draw, is_number=False, is_curve=True)


def _colour_of_trend(row: GroupLag | PartitionLag) -> str | None:
    return WARNING if row.trend == "growing" else None


def _seconds_to_clear(row: GroupLag | PartitionLag) -> float | None:
    if row.seconds_to_clear is None and row.trend is not None:
        return float("inf")
    return row.seconds_to_clear


def _say_seconds(seconds: float) -> str:
    if seconds == float("inf"):
        return "never at this rate"
    return show_time(seconds) if seconds else "no lag"


def _used(disk: int | None, free: int | None) -> float | None:
    return None if not disk or free is None else 1 - free / disk


def show_level(level: float) -> str:
    return f"{level:.2f} x"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def show_milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"


def _count(number: int) -> str:
    return f"{number:,}"


def _rate(rate: float) -> str:
    return f"{rate:,.1f}"
