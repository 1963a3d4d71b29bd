"""The load report: one HTML file with its plots inside, made from `summary.json` alone.

However many topics, partitions and windows there are, what is drawn stays of one size: the largest
alone, the rest in groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from trimtab.balance.advice import SEVERITIES
from trimtab.cli.load.survey import Summary
from trimtab.cli.page import in_both_widths, to_page, to_table
from trimtab.cli.plot import Column, draw_columns
from trimtab.cli.results import TableColumn
from trimtab.cli.table import show_bytes, show_count

_MOST_COLUMNS: Final = 60
_ALONE: Final = 24
"""Columns that stand for one each where there are too many."""


def render_report(summary: Summary) -> str:
    """The report as one HTML document that loads nothing from anywhere."""
    read = summary["read"]
    body = f"""<h1>How load lies on this cluster</h1>
<p class="faint">Cluster {escape(summary["cluster"])}, {escape(_show_time(summary["taken_at"]))}:
{show_bytes(read["bytes"])} and {show_count(read["records"], "record")} in
{show_count(read["topics"], "topic")} and {show_count(read["partitions"], "partition")}.
Made by <code>trimtab load report</code> {escape(summary["trimtab"])}.</p>
{_list_findings(summary)}
{_show_topics(summary)}
{_show_times(summary)}
{_show_keys(summary)}
{_show_brokers(summary)}
{_show_racks(summary)}
{_show_groups(summary)}
<h2>How it was measured</h2>
<p>{_describe_reading(read)}</p>
"""
    return to_page("trimtab: how this cluster's load is distributed", body)


def group_by_rank(sizes: Mapping[str, float], noun: str) -> list[Column]:
    """A column for each, the largest first; where there are too many, the smaller ones in groups of
    neighbours, a column with the mean of each."""
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    if len(ranked) <= _MOST_COLUMNS:
        return [Column(f"{noun} {name}", {"": size}) for name, size in ranked]
    columns = [Column(f"{noun} {name}", {"": size}) for name, size in ranked[:_ALONE]]
    rest, groups = ranked[_ALONE:], _MOST_COLUMNS - _ALONE
    for group in range(groups):
        start, end = (len(rest) * at // groups for at in (group, group + 1))
        mean = sum(size for _, size in rest[start:end]) / (end - start)
        place = f"places {_ALONE + start + 1:,} to {_ALONE + end:,}, mean"
        columns.append(Column(place if end - start > 1 else f"{noun} {rest[start][0]}", {"": mean}))
    return columns


def _list_findings(summary: Summary) -> str:
    found = summary["findings"]
    if not found:
        return '<section class="findings"><p>Nothing to do: no rule is broken.</p></section>'
    lines = [
        f"<p><b>{SEVERITIES[finding['severity']]}: {escape(finding['subject'])}.</b> "
        f"{escape(_sentence(finding['evidence']))}</p>"
        f'<p class="faint">{escape(_sentence(finding["action"]))} '
        f"<code>{escape(finding['rule'])}</code></p>"
        for finding in found
    ]
    return f'<section class="findings">{"".join(lines)}</section>'


def _show_topics(summary: Summary) -> str:
    topics, read = summary["topics"], summary["read"]
    if not topics:
        return "<h2>Topics</h2><p>There are no records to read.</p>"
    columns = [
        TableColumn("Topic", "topic"),
        TableColumn("Partitions", "Partitions", show="{:,}".format),
        TableColumn("Bytes", "TotalBytes", show=show_bytes),
        TableColumn("Records", "TotalRecords", show="{:,}".format),
        TableColumn("Max/mean", "MaxOverMean", show=_optional("{:.2f}".format)),
        TableColumn("Gini", "Gini", show=_optional("{:.2f}".format)),
        TableColumn("Fullest", "TopShare", show=_optional("{:.1%}".format)),
        TableColumn("No key", "NullKeyShare", show=_optional("{:.0%}".format)),
    ]
    empty, shown = read["empty_topics"], len(topics)
    more = read["topics"] - empty - shown
    notes = [f"{show_count(more, 'smaller topic')} more: see topic_skew.parquet."] if more else []
    notes += (
        [f"{show_count(empty, 'topic')} {'has' if empty == 1 else 'have'} no records."]
        if empty
        else []
    )
    plots = []
    for topic, sizes in summary["partitions"].items():
        if len(sizes) < 2:
            continue
        numbered = {str(number): float(size) for number, size in enumerate(sizes)}
        mean = sum(sizes) / len(sizes)
        plots.append(
            f"<h3>{escape(topic)}</h3>"
            + _draw(
                group_by_rank(numbered, "partition"), mean, f"Bytes of each partition of {topic}"
            )
        )
    drawn = (
        '<h2>Bytes by partition</h2><p class="faint">Of the largest topics, the fullest partition '
        f"first; the dashed line is the mean. Beyond {_MOST_COLUMNS} partitions the smaller ones "
        f"stand in groups.</p>{''.join(plots)}"
        if plots
        else ""
    )
    return (
        '<h2>Topics</h2><p class="faint">Max/mean is 1, and Gini 0, where all partitions have the '
        "same bytes. Fullest is the share of the fullest partition, no key the share of records "
        f"that a partitioner may place freely. {' '.join(notes)}</p>"
        f"{_tabulate(columns, topics, text_columns=1)}{drawn}"
    )


def _show_times(summary: Summary) -> str:
    times = summary["times"]
    if len(times) < 2:
        return ""
    names = {topic: topic for topic in summary["partitions"]}
    if any("" in each["bytes"] for each in times):
        names[""] = "other topics"
    columns = [Column(_show_time(each["start"]), each["bytes"]) for each in times]
    return (
        f'<h2>Bytes over time</h2><p class="faint">By the records\' own times, in windows of '
        f"{escape(summary['read']['window'])}; windows without records are left out.</p>"
        + _draw(columns, None, "Bytes of each window of time", names)
    )


def _show_keys(summary: Summary) -> str:
    keys = summary["hot_keys"]
    if not keys:
        return ""
    columns = [
        TableColumn("Topic", "topic"),
        TableColumn("Key", "key"),
        TableColumn("Partition", "Partition"),
        TableColumn("Records", "Records", show="{:,}".format),
        TableColumn("Share", "ShareOfRecords", show="{:.1%}".format),
        TableColumn("Bytes", "Bytes", show=show_bytes),
    ]
    return (
        '<h2>Hot keys</h2><p class="faint">The keys with the largest shares of their topics; '
        "records and bytes are at least that many. More are in hot_keys.parquet.</p>"
        f"{_tabulate(columns, keys, text_columns=2)}"
    )


def _show_brokers(summary: Summary) -> str:
    brokers = summary["brokers"]
    columns = [
        TableColumn("Broker", "broker", show="broker {}".format),
        TableColumn("Rack", "rack", show=_optional(str)),
        TableColumn("Replicas", "Replicas", show="{:,}".format),
        TableColumn("At most", "MaxReplicas", show=_optional("{:,}".format)),
        TableColumn("Leads", "Leaders", show="{:,}".format),
        TableColumn("Bytes led", "LedBytes", show=show_bytes),
        TableColumn("Logs", "LogBytes", show=show_bytes),
        TableColumn("Disk free", "DiskUsableBytes", show=_optional(show_bytes)),
        TableColumn("Disk", "DiskTotalBytes", show=_optional(show_bytes)),
        TableColumn("Growth a day", "BytesPerDay", show=_optional(show_bytes)),
        TableColumn("Days to full", "DaysToFull", show=_optional("{:,.1f}".format)),
    ]
    led = {str(row["broker"]): float(row["LedBytes"]) for row in brokers}
    plot = (
        _draw(group_by_rank(led, "broker"), sum(led.values()) / len(led), "Bytes that brokers lead")
        if len(led) > 1 and any(led.values())
        else ""
    )
    shown = brokers[:_MOST_COLUMNS]
    rest = len(brokers) - len(shown)
    note = f" {rest:,} more are in broker_capacity.parquet." if rest else ""
    return (
        '<h2>Brokers</h2><p class="faint">Bytes led are those that were read here, by the broker '
        "that leads them now; logs and disks are what brokers say. Growth needs a second report."
        f"{note}</p>{plot}{_tabulate(columns, shown, text_columns=2)}"
    )


def _show_racks(summary: Summary) -> str:
    racks = [row for row in summary["racks"] if row["fromRack"] or row["toRack"]]
    if not racks:
        return ""
    columns = [
        TableColumn("Kind", "kind"),
        TableColumn("From", "fromRack", show=lambda rack: rack or "not known"),
        TableColumn("To", "toRack", show=lambda rack: rack or "not known"),
        TableColumn("GB", "GB", show="{:,.3f}".format),
        TableColumn("Cost", "Cost", show="{:,.2f}".format),
        TableColumn("Savable", "SavableCost", show="{:,.2f}".format),
    ]
    read = summary["read"]
    known = (
        ""
        if read["clients"]
        else " Where producers and consumers are is not in a log: --clients says it."
    )
    return (
        '<h2>Between racks</h2><p class="faint">What was read here cost so much on its way, at '
        f"{read['cost_per_gb']:g} for a GB (10^9 bytes) that leaves its rack.{known}</p>"
        + _tabulate(columns, racks, text_columns=3)
    )


def _show_groups(summary: Summary) -> str:
    groups = summary["groups"]
    if not groups:
        return ""
    columns = [
        TableColumn("Group", "group"),
        TableColumn("Topic", "topic"),
        TableColumn("Partition", "partition"),
        TableColumn("Status", "Status"),
        TableColumn("Records behind", "LagRecords", show="{:,}".format),
        TableColumn("Bytes", "LagBytes", show=_optional(show_bytes)),
        TableColumn("Seconds", "LagSeconds", show=_optional("{:,.0f}".format)),
    ]
    return (
        '<h2>Consumer groups</h2><p class="faint">The partitions furthest behind first. Whether a '
        "group falls behind or catches up needs a second report.</p>"
        f"{_tabulate(columns, groups, text_columns=2)}"
    )


def _describe_reading(read: Mapping[str, Any]) -> str:
    part = (
        "Everything that was asked for was read"
        if read["share"] >= 1
        else f"There was more than --max-bytes: of each partition the newest {read['share']:.1%} "
        "was read"
    )
    keys = {
        "text": "keys were counted, the largest are shown",
        "hash": "keys were counted by their hashes, and left no reader",
        "none": "keys were not read",
    }[read["keys"]]
    leaders = (
        f" Without a leader, and left out: {show_count(read['without_leader'], 'partition')}."
        if read["without_leader"]
        else ""
    )
    denied = (
        f" Not authorized, and left out: {escape('; '.join(read['denied']))}."
        if read["denied"]
        else ""
    )
    return (
        f"{part}: sizes and times of records, no values; {keys}. Bytes are those of the record "
        f"batches in the log, headers included.{leaders}{denied} Rules and thresholds are those of "
        "trimtab.spark.load.findings."
    )


def _draw(
    columns: Sequence[Column],
    level: float | None,
    description: str,
    names: Mapping[str, str] | None = None,
) -> str:
    parts = names or {"": ""}
    return (
        "<figure>"
        + in_both_widths(
            lambda layout: draw_columns(columns, parts, show_bytes, level, description, layout)
        )
        + "</figure>"
    )


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "`", ">")) else f"{text}."


def _show_time(text: str) -> str:
    """An ISO time as people read it, to the minute."""
    return f"{text[:10]} {text[11:16]} UTC"


def _tabulate(
    columns: Sequence[TableColumn], rows: Iterable[Mapping[str, Any]], text_columns: int
) -> str:
    cells = [[str(each.show(row[each.name])) for each in columns] for row in rows]
    return to_table([each.head for each in columns], cells, text_columns=range(text_columns))


def _optional(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """The same for a value that may be missing."""
    return lambda value: "" if value is None else show(value)
