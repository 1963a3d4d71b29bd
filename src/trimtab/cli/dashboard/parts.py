"""What pages of the dashboard are made of: tables, plots, findings, and values as text.

Tests: test_pages.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import median_low
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from trimtab.balance.advice import SEVERITIES
from trimtab.cli.live.findings import Finding, explain_hottest
from trimtab.cli.live.rows import (
    Summary,
    TopicRow,
    explain_tail,
)
from trimtab.cli.live.source import Source
from trimtab.cli.page import Html, in_both_widths, to_html, to_table
from trimtab.cli.plot import Line, draw_lines, draw_spark
from trimtab.cli.table import show_bytes, show_count
from trimtab.client.measure.lag import PartitionLag
from trimtab.client.measure.tails import Share

ROWS: Final = 50
"""Of a table on one page."""
DAY_S: Final = 86_400
_SLOW_S: Final = 0.02
"""A shorter answer is not marked, nor one that takes twice the median."""
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


def tabulate_brokers(site: Site, summary: Summary) -> str:
    heads = [
        "Broker",
        "Rack",
        "State",
        "Sent",
        "x mean",
        "Written",
        "Leaders",
        "Replicas",
        "Stored",
        "Disk free",
        "Answers in",
        "Last hour",
    ]
    ranked = sorted(
        summary.brokers, key=lambda row: (row.state == "up", -(row.level or 0.0), row.broker)
    )
    answers = [row.answer_s for row in summary.brokers if row.answer_s is not None]
    slow_s = max(_SLOW_S, 2 * median_low(answers)) if answers else 0.0
    rows = []
    for row in ranked[:ROWS]:
        state = row.state if row.state == "up" else Html(f'<span class="bad">{row.state}</span>')
        rows.append(
            [
                link_to("brokers", str(row.broker), f"broker {row.broker}"),
                row.rack or "",
                state,
                f"{show_bytes(row.sent)}/s",
                bad_if(row.why != "", show_level(row.level)),
                f"{show_bytes(row.written)}/s",
                f"{row.leaders:,}",
                f"{row.replicas:,}",
                show_bytes(row.stored),
                show_disk(row.disk, row.disk_free),
                bad_if((row.answer_s or 0.0) > slow_s, show_ms(row.answer_s)),
                Html(draw_spark(site.source.history.of_broker(row.broker)[1].values)),
            ]
        )
    more = len(ranked) - ROWS
    rest = f"<p>{more:,} more have less load.</p>" if more > 0 else ""
    return f'<div class="brokers">{to_table(heads, rows, text_columns=3)}</div>{rest}'


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


def tabulate_topics(site: Site, topics: Sequence[TopicRow]) -> str:
    heads = [
        "Topic",
        "Partitions",
        "In",
        "Records/s",
        "Out",
        "Size",
        "Max/mean",
        "Last hour",
    ]
    rows = [
        [
            link_to("topics", row.topic, row.topic),
            f"{row.partitions:,}",
            f"{show_bytes(row.bytes_in)}/s",
            f"{row.records_in:,.0f}",
            f"{show_bytes(row.bytes_out)}/s",
            show_bytes(row.size),
            bad_if(row.is_uneven, show_skew(row.skew)),
            Html(draw_spark(site.source.history.of_topic(row.topic).values)),
        ]
        for row in topics
    ]
    return f'<div class="topics">{to_table(heads, rows, text_columns=1)}</div>'


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

    def table(head: str, shares: Sequence[Share], none: str) -> str:
        rows = [[each.name or none, f"{each.share:.1%}"] for each in shares]
        return to_table([head, "Share of bytes"], rows, text_columns=1)

    sentence = explain_tail(partition, tail)
    each = f"{show_bytes(tail.bytes / tail.batches)} and {tail.records / tail.batches:,.1f} records"
    return (
        f"<h2>Who writes it</h2><p>{escape(sentence[0].upper() + sentence[1:])}. A batch has "
        f"{each}.</p>"
        f'<details id="writers"><summary>Keys and producers of its newest '
        f"{show_count(tail.records, 'record')}</summary>"
        f"{table('Key', tail.keys, 'no key')}"
        f"{table('Producer id', tail.producers, 'not idempotent')}</details>"
    )


def tabulate_lags(lags: Sequence[PartitionLag], of_group: bool) -> str:
    """The lag of one group in its partitions, or of the groups of one topic."""
    if not lags:
        return "<p>No group commits offsets in it.</p>"
    heads = ["Partition" if of_group else "Group", "Records behind", "Written/s", "Read/s"]
    heads = [*heads[:1], *([] if of_group else ["Partition"]), *heads[1:], "Clear in"]
    rows = [
        [
            link_to("topics", each.partition.topic, str(each.partition))
            if of_group
            else link_to("groups", each.group, each.group),
            *([] if of_group else [str(each.partition.partition)]),
            "not known" if each.lag is None else f"{each.lag:,}",
            show_rate(each.written_per_s),
            show_rate(each.read_per_s),
            show_clear(each.lag, each.seconds_to_clear, each.read_per_s),
        ]
        for each in lags[:ROWS]
    ]
    more = len(lags) - ROWS
    rest = f"<p>{more:,} more are less behind.</p>" if more > 0 else ""
    return to_table(heads, rows, text_columns=1) + rest


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


def show_replicas(replicas: Sequence[int], in_sync: Iterable[int]) -> str:
    known = {*in_sync}
    parts = [
        str(each) if each in known else f'<span class="bad" title="out of sync">{each}</span>'
        for each in replicas
    ]
    return Html(", ".join(parts))


def show_level(level: float | None) -> str:
    return "" if level is None else f"{level:.2f} x"


def show_skew(skew: float | None) -> str:
    return "-" if skew is None else f"{skew:.2f}"


def show_ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.1f} ms"


def show_rate(rate: float | None) -> str:
    return "measuring …" if rate is None else f"{rate:,.0f}"


def show_disk(total: int | None, free: int | None) -> str:
    if total is None or free is None or not total:
        return ""
    return f"{show_bytes(free)} ({free / total:.0%})"


def show_clear(lag: int | None, seconds: float | None, read: float | None) -> str:
    if lag == 0:
        return "now"
    if seconds is not None:
        return show_age(seconds)
    return "measuring …" if read is None else "never, at this rate"


def show_age(seconds: float) -> str:
    for size, unit in ((DAY_S, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def show_clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def show_used(each: Mapping[str, Any]) -> tuple[str, str]:
    used = each["used_percent"]
    return "-" if used is None else f"{used} %", "-" if each[
        "free"
    ] is None else f"{each['free']:,}"


def read_whole(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else otherwise
