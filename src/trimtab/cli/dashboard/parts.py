"""What pages of the dashboard are made of: tables, plots, findings, and values as text.

Tests: test_pages.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from trimtab.balance.advice import SEVERITIES
from trimtab.cli.live.findings import Finding, explain_hottest
from trimtab.cli.live.rows import Summary, TopicRow, explain_tail
from trimtab.cli.live.source import Source
from trimtab.cli.live.tables import Column, Table, of_tails
from trimtab.cli.page import Html, in_both_widths, to_html, to_table
from trimtab.cli.plot import Line, draw_lines, draw_spark
from trimtab.cli.table import show_bytes, show_count

ROWS: Final = 50
"""Of a table on one page."""
HOUR: Final = 720
"""Frames of a curve: all that are kept."""
DAY_S: Final = 86_400
_DRAWN: Final = 40
"""Lines of a plot."""
GB: Final = 1e9


class Site(NamedTuple):
    """What pages are made of, besides their address.

    Attributes:
        cost_per_gb: between racks.
        allows_changes: whether plans may be carried out.
    """

    source: Source
    cost_per_gb: float
    allows_changes: bool


def show_measuring(source: Source) -> str:
    if source.trouble:
        return f'<h1>No load yet</h1><p class="bad">{escape(source.trouble)}</p>'
    return "<h1>Measuring …</h1><p>Rates need two samples: they are there in a few seconds.</p>"


def show_tiles(tiles: Iterable[tuple[str, str, str]]) -> str:
    items = "".join(
        f"<li><span>{escape(what)}</span><b>{to_html(value)}</b><span>{escape(note)}</span></li>"
        for what, value, note in tiles
    )
    return f'<ul class="tiles">{items}</ul>'


def show_findings(
    site: Site, summary: Summary, most: int, wanted: Callable[[Finding], bool] = lambda _: True
) -> str:
    """The hottest broker, then the findings; what to do about one is shown when it is opened."""
    found = [each for each in site.source.findings if wanted(each)]
    hottest = explain_hottest(summary) if most > 3 else ""
    lines = []
    if hottest:
        lines.append(f"<p><b>{escape(hottest)}</b></p>")
        found = [each for each in found if not hottest.startswith(f"Broker {each.name} ")]
    if most > 3:
        lines += [
            f"<p>Broker {broker} may be slow: {escape(why)}. Nothing else shows it yet.</p>"
            for broker, why in summary.snapshot.slow.suspected.items()
        ]
    lines += [_show_finding(each) for each in found[:most]]
    if len(found) > most:
        rest = "".join(_show_finding(each) for each in found[most:])
        more = f"{len(found) - most:,} more findings"
        lines.append(f'<details id="findings"><summary>{more}</summary>{rest}</details>')
    if not lines and most > 3:
        lines = ['<p class="none">No rule is broken.</p>']
    if not lines:
        return ""
    return f'<section class="findings" aria-label="Findings">{"".join(lines)}</section>'


def _show_finding(finding: Finding) -> str:
    advice = finding.advice
    subject = finding.subject or "more"
    shown = (
        f"{to_html(link_to(f'{finding.kind}s', finding.name, subject))}: " if finding.name else ""
    )
    return (
        f'<details id="{escape(f"{advice.rule} {subject}")}"><summary>'
        f"<b>{SEVERITIES[advice.severity]}: {escape(subject)}</b> "
        f"{escape(finding.evidence)}</summary><p>{shown}{escape(advice.action)}. "
        f"<code>{advice.rule}</code></p></details>"
    )


def tabulate(table: Table, kind: str = "", without: Collection[str] = (), rest: str = "") -> str:
    """The first rows of a table; the first cell of each leads to what the row is about.

    Args:
        kind: the class of the table, by which narrow screens leave columns out.
        without: heads of columns to leave out.
        rest: what to say of the rows that are left out.
    """
    rows = table.rows[:ROWS]
    if not rows:
        return f"<p>{escape(table.note)}</p>"
    columns = [each for each in table.columns if each.head not in without]
    texts = {0, *(at for at, each in enumerate(columns) if not each.is_number)}
    heads = [each.head[0].upper() + each.head[1:] for each in columns]
    cells = [[_show_cell(table, each, row, each is columns[0]) for each in columns] for row in rows]
    more = len(table.rows) - len(rows)
    shown = f'<div class="{kind}">{to_table(heads, cells, text_columns=texts)}</div>'
    return shown + (f"<p>{more:,} more {rest or 'have less'}.</p>" if more else "")


def _show_cell(table: Table, column: Column, row: Any, is_first: bool) -> str:
    value = column.value(row)
    if column.is_curve:
        return Html(draw_spark(value))
    shown = "-" if value is None else column.show(value)
    if is_first and column.is_number:
        shown = f"{column.head} {shown}"  # alone on its line on a narrow screen
    opened = table.opens(row) if is_first else None
    if opened is not None:
        return link_to(f"{opened[0]}s", opened[1], shown)
    return bad_if(column.alarms(row), shown)


def plot_brokers(site: Site, summary: Summary) -> str:
    """What leaders send; what is written, if they send nothing: without consumers and followers."""
    is_sent = any(row.sent for row in summary.brokers)
    ranked = sorted(summary.brokers, key=lambda row: -(row.sent if is_sent else row.written))
    first = 0 if ranked and ranked[0].why else 1  # the kind that stands out
    lines = [
        Line(
            f"broker {row.broker}",
            *site.source.history.of_broker(row.broker)[1 if is_sent else 0],
            min(3, first + at),
        )
        for at, row in enumerate(ranked[:_DRAWN])
    ]
    what = "that each broker's leaders send" if is_sent else "that are written to each broker"
    return draw_plot(lines, f"Bytes per second {what}")


def plot_partitions(site: Site, topic: str, partitions: Sequence[int]) -> str:
    if len(partitions) < 2:
        return ""
    lines = [
        Line(f"partition {each}", *site.source.history.of_partition(topic, each), min(3, at))
        for at, each in enumerate(partitions[:_DRAWN])
    ]
    return draw_plot(lines, f"Bytes per second of the partitions of {topic}")


def draw_plot(lines: Sequence[Line], description: str) -> str:
    known = [line for line in lines if len(line.times) > 1]
    if not any(rate > 0 for line in known for rate in line.values):
        return f'<p class="faint">{escape(description)}: none, or not measured twice yet.</p>'
    drawn = in_both_widths(
        lambda layout: draw_lines(
            known, lambda rate: f"{show_bytes(rate)}/s", show_clock, description, layout
        )
    )
    return f'<figure>{drawn}<figcaption class="faint">{escape(description)}</figcaption></figure>'


def show_writers(summary: Summary, row: TopicRow) -> str:
    tails = [
        (each, tail) for each, tail in summary.snapshot.tails.items() if each.topic == row.topic
    ]
    if not tails:
        return (
            '<p class="faint">Who writes it is read for the topics with most bytes; for others '
            "<code>trimtab skew TOPIC</code> tells.</p>"
        )
    partition, tail = tails[0]

    def table(kind: str) -> str:
        return tabulate(of_tails(summary, kind, row.topic))

    sentence = explain_tail(partition, tail)
    each = f"{show_bytes(tail.bytes / tail.batches)} and {tail.records / tail.batches:,.1f} records"
    return (
        f"<h2>Who writes it</h2><p>{escape(sentence[0].upper() + sentence[1:])}. A batch has "
        f"{each}.</p>"
        f'<details id="writers"><summary>Keys and producers of its newest '
        f"{show_count(tail.records, 'record')}</summary>"
        f"{table('keys')}{table('producers')}</details>"
    )


def show_unknown(summary: Summary) -> str:
    metered = summary.snapshot.metered
    if not metered.unknown and not metered.left_out:
        return ""
    lines = [
        *metered.unknown[:20],
        *(f"{each}: {why}" for each, why in [*metered.left_out.items()][:20]),
    ]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    head = f"Not measured: {len(metered.unknown) + len(metered.left_out):,}"
    return f'<details id="unknown"><summary>{head}</summary><ul>{items}</ul></details>'


def cost_of_racks(site: Site, summary: Summary) -> tuple[float, float]:
    """Bytes/s that replication sends between racks, and their cost a day."""
    rate = sum(row.rate for row in summary.racks if row.kind == "replicate")
    return rate, rate * DAY_S / GB * site.cost_per_gb


# Values


def link_to(kind: str, name: str, text: str) -> str:
    """A link to the page of a broker, topic or group; text where no address can have its name."""
    if name in (".", ".."):
        return text
    return Html(f'<a href="/{kind}/{quote(name, safe="")}">{escape(text)}</a>')


def to_link(path: str, **query: str) -> str:
    return escape(f"{path}?{urlencode({name: value for name, value in query.items() if value})}")


def bad_if(is_bad: bool, text: str) -> str:
    return Html(f'<span class="bad">{escape(text)}</span>') if is_bad else text


def show_disk(total: int | None, free: int | None) -> str:
    if total is None or free is None or not total:
        return ""
    return f"{show_bytes(free)} ({free / total:.0%})"


def show_clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def show_used(each: Mapping[str, Any]) -> tuple[str, str]:
    used = each["used_percent"]
    return "-" if used is None else f"{used} %", "-" if each[
        "free"
    ] is None else f"{each['free']:,}"


def read_whole(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else otherwise
