"""The lab's pictures, as SVG: of the demo's report, of experiments, and of the documentation.

    draw_shares      each row's parts, as sections of a bar
    draw_latencies   percentiles as dots on a line
    draw_timeline    rates over time
    draw_groups      groups of bars on a logarithmic scale
    draw_points      named points on two logarithmic scales
    draw_batches     batches of a few brokers over time

They share axes, legends and measures of texts with `trimtab.cli.plot`. Each function returns one
`<svg>` for a page that includes `STYLE`; `to_document` turns it into a separate SVG file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from lab.output import Latency, format_duration
from trimtab.cli import plot
from trimtab.cli.plot import (
    AXIS,
    COLORS,
    SMALL,
    TALL,
    TEXT,
    WIDE,
    Layout,
    draw_grid,
    draw_legend,
    fit,
    small_text,
    svg_with_legend,
    text_width,
    to_svg,
)

_BAR = 20
_MARGIN = 10

_LATENCY_MARKS: tuple[tuple[str, Callable[[Latency], float], str], ...] = (
    ("p50", lambda latency: latency["p50"], "dot-50"),
    ("p95", lambda latency: latency["p95"], "dot-95"),
    ("p99", lambda latency: latency["p99"], "dot-99"),
    ("p99.9", lambda latency: latency["p99_9"], "dot-999"),
)

STYLE = (
    plot.STYLE
    + """\
:root { --inside: #ffffff; --p50: #9db4c0; --p95: #5c94b8; --p99: #2a6496; --p999: #d1495b; }
@media (prefers-color-scheme: dark) {
  :root { --inside: #14171d; --p50: #6d8291; --p95: #5aa2cf; --p99: #a9d6f5; --p999: #ef6f7f; } }
svg .inside { fill: var(--inside); font-size: 12px; font-weight: 600; }
svg .range { stroke: var(--line); stroke-width: 4; stroke-linecap: round; }
.c0 { fill: #b0b0b0; } .c1 { fill: #e0a458; } .c2 { fill: #7aa6c2; } .c3 { fill: #3d77ad; }
.c4 { fill: #9bd0b5; } .c5 { fill: #55b88c; } .c6 { fill: #1f8a5f; } .c7 { fill: #c05f26; }
svg .bold { font-weight: 600; } svg .leader { stroke: var(--faint); }
svg .paper { fill: var(--paper); } svg .tight { font-size: 11px; }
svg .way { fill: none; stroke: #1f8a5f; stroke-width: 1.5; } svg .ghost { opacity: 0.5; }
.dot-50 { fill: var(--p50); } .dot-95 { fill: var(--p95); }
.dot-99 { fill: var(--p99); } .dot-999 { fill: var(--p999); }
polyline.slow, polyline.b1, polyline.b2, polyline.b3 { fill: none; stroke-width: 2; }
polyline.slow { stroke: var(--slow); } polyline.b1 { stroke: var(--b1); }
polyline.b2 { stroke: var(--b2); } polyline.b3 { stroke: var(--b3); }
"""
)

_DOCUMENT_STYLE = """
svg { width: auto; background: var(--paper);
  font-family: system-ui, "Segoe UI", Roboto, sans-serif; }
"""

DOCUMENT = Layout(480, 0, 0)
"""For a picture of the documentation, on any screen."""


class Bar(NamedTuple):
    """One row of shares: each part's share of the whole, 0 to 1, and its size in bytes."""

    title: str
    shares: Mapping[str, float]
    sizes: Mapping[str, float]


class Span(NamedTuple):
    """A named section of a timeline, in seconds."""

    title: str
    begins: float
    ends: float


def draw_shares(
    bars: Sequence[Bar],
    names: Mapping[str, str],
    highlighted: str | None,
    even: float | None,
    description: str,
    layout: Layout = WIDE,
) -> str:
    """One bar per row, with a section for each part.

    Args:
        names: the name of each part; parts are drawn in this order, the highlighted one first.
        even: draw a dashed line at this share of the bar, 0 to 1; None for no line.
    """
    width = layout.width - layout.labels - (20 if layout.labels else 4)
    line = None if even is None else layout.labels + even * width
    top = 24
    drawn = []
    parts = sorted(names, key=lambda part: part != highlighted)
    others = iter(range(1, len(parts) + 1))
    colors = {
        part: "slow" if part == highlighted else f"b{min(next(others), COLORS - 1)}"
        for part in parts
    }
    for row, bar in enumerate(bars):
        drawn.append(_label(bar.title, top + row * layout.row, layout))
        y = top + row * layout.row + layout.above
        x = float(layout.labels)
        for part in parts:
            share = bar.shares.get(part, 0.0)
            length = share * width
            size = f"{bar.sizes.get(part, 0) / 1e6:.1f} MB"
            drawn.append(
                f'<rect class="{colors[part]}" x="{x:.1f}" y="{y}" width="{length:.1f}" '
                f'height="{_BAR}"><title>{escape(bar.title)}, {escape(names[part])}: '
                f"{share:.1%}, {size}</title></rect>"
            )
            text = f"{share:.0%}"
            wide = text_width(text, SMALL)
            at = _beside(line, x + 6, wide)
            if at + wide + 2 <= x + length:
                drawn.append(f'<text class="inside" x="{at:.1f}" y="{y + 14}">{text}</text>')
            x += length
    bottom = top + len(bars) * layout.row
    if line is not None:
        # If the names are above the rows, the line is drawn over the bars only.
        tops = [top + row * layout.row + layout.above for row in range(len(bars))]
        over = [(y - 3, y + _BAR + 3) for y in tops] if layout.above else [(14, bottom - 8)]
        drawn += [
            f'<line class="even" x1="{line:.1f}" x2="{line:.1f}" y1="{y1}" y2="{y2}"/>'
            for y1, y2 in over
        ]
        said = f"even share {even:.0%}"
        fits = line + 5 + text_width(said, SMALL) <= layout.width
        where = f'x="{line + 5:.1f}"' if fits else f'text-anchor="end" x="{line - 5:.1f}"'
        drawn.append(f'<text class="faint" {where} y="14">{said}</text>')
    legend = [(colors[part], names[part]) for part in parts]
    return svg_with_legend(bottom + 12, legend, description, drawn, layout)


def draw_latencies(
    rows: Sequence[tuple[str, Latency]],
    description: str,
    least: float = 0.01,
    layout: Layout = WIDE,
) -> str:
    """One line per row from its median to its 99.9th percentile, with a dot for each percentile.

    Args:
        least: the left end of the logarithmic scale, in milliseconds: shorter latencies are drawn
            there.
    """
    values = [max(mark(latency), least) for _, latency in rows for _, mark, _ in _LATENCY_MARKS]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    left = layout.labels or 16
    width = layout.width - left - (40 if layout.labels else 18)

    def place(milliseconds: float) -> float:
        return left + (math.log10(max(milliseconds, least)) - low) / (high - low) * width

    bottom = 8 + len(rows) * layout.row
    drawn = _draw_powers(low, high, place, (0, bottom), bottom + 16, layout.width)
    for row, (title, latency) in enumerate(rows):
        y = 8 + row * layout.row
        middle = y + layout.above + _BAR // 2
        drawn.append(_label(title, y, layout))
        drawn.append(
            f'<line class="range" x1="{place(latency["p50"]):.1f}" '
            f'x2="{place(latency["p99_9"]):.1f}" y1="{middle}" y2="{middle}"/>'
        )
        drawn += [
            f'<circle class="{color}" cx="{place(mark(latency)):.1f}" cy="{middle}" r="6">'
            f"<title>{escape(title)}, {name}: {format_duration(mark(latency))}</title></circle>"
            for name, mark, color in _LATENCY_MARKS
        ]
    legend = [(color, name) for name, _, color in _LATENCY_MARKS]
    return svg_with_legend(bottom + AXIS, legend, description, drawn, layout)


def draw_timeline(
    seconds: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    spans: Sequence[Span],
    unit: str,
    description: str,
) -> str:
    """One curve for each of `lines` over the same moments, on a scale from zero.

    Args:
        spans: sections of the time; each begins with a dashed line and its title.

    Raises:
        ValueError: there are fewer than two moments, so no line can be drawn.
    """
    if len(seconds) < 2:
        raise ValueError(f"a timeline of {len(seconds)} moments has no lines")
    highest = max((max(values) for values in lines.values()), default=0.0) or 1.0
    shown = [f"{highest * step / 4:,.0f}" for step in range(5)]
    left = math.ceil(max(text_width(each, SMALL) for each in shown)) + 10
    top, width = 26, WIDE.width - left - 20
    bottom = top + TALL
    start, end = seconds[0], seconds[-1]

    def across(second: float) -> float:
        return left + (second - start) / (end - start) * width

    drawn = draw_grid(shown, left, width, bottom, TALL)
    begins = [across(max(span.begins, start)) for span in spans]
    for span, x, after in zip(spans, begins, [*begins[1:], left + width], strict=True):
        drawn.append(f'<line class="even" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        drawn.append(small_text(x + 5, top - 8, fit(span.title, after - x - 8, SMALL)))
    colors = ["b1", "slow", "b2", "b3"]
    legend = [(color, f"{name}, {unit}") for color, name in zip(colors, lines, strict=False)]
    for (color, _), values in zip(legend, lines.values(), strict=True):
        points = " ".join(
            f"{across(second):.1f},{bottom - value / highest * TALL:.1f}"
            for second, value in zip(seconds, values, strict=True)
        )
        drawn.append(f'<polyline class="{color}" points="{points}"/>')
    drawn.append(small_text(left + width, bottom + 16, f"{end - start:.0f} s", "end"))
    return svg_with_legend(bottom + AXIS, legend, description, drawn, WIDE)


class Group(NamedTuple):
    """A row of bars: a value of each name, in milliseconds."""

    title: str
    values: Sequence[float]


def draw_groups(groups: Sequence[Group], names: Sequence[str], description: str) -> str:
    """Groups of horizontal bars on a logarithmic scale of milliseconds, each with its value."""
    bar, layout = 12, DOCUMENT
    values = [value for group in groups for value in group.values]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    shown = [[format_duration(value) for value in group.values] for group in groups]
    room = max(text_width(each, SMALL) for group in shown for each in group) + 6
    legend, lines = draw_legend([(f"c{at}", name) for at, name in enumerate(names)], 16, layout)
    top = 20 + 18 * lines

    def place(milliseconds: float) -> float:
        return (math.log10(milliseconds) - low) / (high - low) * (layout.width - room)

    height = top + len(groups) * (24 + bar * len(names)) + 8
    drawn = [legend, *_draw_powers(low, high, place, (top + 4, height), top, layout.width)]
    y = top + 4
    for group, texts in zip(groups, shown, strict=True):
        # The scale's lines end at the group's title.
        drawn.append(f'<rect class="paper" x="0" y="{y + 3}" width="{layout.width}" height="18"/>')
        drawn.append(f'<text class="bold" x="0" y="{y + 17}">{escape(group.title)}</text>')
        y += 24
        for at, (value, text) in enumerate(zip(group.values, texts, strict=True)):
            end = place(value)
            drawn.append(
                f'<rect class="c{at}" x="0" y="{y}" width="{end:.1f}" height="{bar - 1}">'
                f"<title>{escape(group.title)}, {escape(names[at])}: {text}</title></rect>"
                f'<text class="faint tight" x="{end + 4:.1f}" y="{y + bar - 2}">{text}</text>'
            )
            y += bar
    return to_svg(height, description, drawn, layout)


class Point(NamedTuple):
    """A point of a panel.

    Attributes:
        name: its label; empty for none.
        x, y: above 0; smaller ones than the scale's least are drawn there.
        color: a class of `STYLE`.
    """

    name: str
    x: float
    y: float
    color: str


class Panel(NamedTuple):
    """Points, of which those of `way` are joined in this order."""

    title: str
    points: Sequence[Point]
    way: Sequence[int]


def draw_points(
    panels: Sequence[Panel], least: float, most: float, below: str, description: str
) -> str:
    """Panels one below the other: named points, upwards in milliseconds, on logarithmic scales.

    Args:
        least, most: ends of the horizontal scale, which is of parts of 1.
        below: what it says.
    """
    layout, tall, left = DOCUMENT, 200, 62
    right, drawn, top = layout.width - 14, [], 0
    for panel in panels:
        low = math.log10(min(point.y for point in panel.points)) - 0.35
        high = math.log10(max(point.y for point in panel.points)) + 0.25
        ceiling, floor = top + 30, top + 30 + tall

        def across(share: float) -> float:
            place = math.log(max(share, least) / least) / math.log(most / least)
            return left + place * (right - left)

        def up(
            milliseconds: float, floor: int = floor, low: float = low, high: float = high
        ) -> float:
            return floor - (math.log10(milliseconds) - low) / (high - low) * tall

        drawn.append(f'<text class="bold" x="0" y="{top + 16}">{escape(panel.title)}</text>')
        taken = [Box(0, top, right, top + 24)]
        for power in range(math.ceil(low), math.floor(high) + 1):
            y = up(10**power)
            drawn.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            drawn.append(small_text(left - 6, y + 4, _format_power(power), "end"))
        for power in range(round(math.log10(least)), math.floor(math.log10(most)) + 1):
            x = across(10**power)
            drawn.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{ceiling}" y2="{floor}"/>'
            )
            drawn.append(
                small_text(x, floor + 16, f"{10.0**power:.0%}" if power > -3 else "0.1%", "middle")
            )
        drawn.append(small_text(right, floor + 32, below, "end"))
        places = [(across(point.x), up(point.y)) for point in panel.points]
        taken += [Box(x - 5, y - 5, x + 5, y + 5) for x, y in places]
        way = " ".join("{:.1f},{:.1f}".format(*places[at]) for at in panel.way)
        for (x1, y1), (x2, y2) in pairwise(places[at] for at in panel.way):
            steps = 1 + int(math.hypot(x2 - x1, y2 - y1) / 5)
            for step in range(steps):
                x, y = x1 + (x2 - x1) * step / steps, y1 + (y2 - y1) * step / steps
                taken.append(Box(x - 2, y - 2, x + 2, y + 2))
        drawn.append(f'<polyline class="way" points="{way}"/>')
        labels = []
        # From the right, so that of two points as good as in one place the right one's is there.
        for point, (x, y) in sorted(
            zip(panel.points, places, strict=True), key=lambda each: -each[1][0]
        ):
            said = f"{point.name}: {format_duration(point.y)}, {point.x:.1%}"
            drawn.append(
                f'<circle class="{point.color}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
                f"<title>{escape(said)}</title></circle>"
            )
            if point.name:
                box = _place_label(point.name, x, y, Box(left, ceiling, layout.width, floor), taken)
                taken.append(box)
                labels.append(_draw_label(point.name, x, y, box))
        drawn += labels
        top = floor + 44
    return to_svg(top, description, drawn, layout)


class Batch(NamedTuple):
    """Records that came one a tick, into one row's batch; it is acknowledged at `acknowledged`."""

    row: int
    first: int
    records: int
    acknowledged: int


def draw_batches(
    rows: Sequence[str], batches: Sequence[Batch], ticks: int, note: str, description: str
) -> str:
    """A row for each broker: a box for each batch, and a line until it is acknowledged; at the
    right the number of its records."""
    left, top, tick, high = 92, 30, 8, 30
    end = left + ticks * tick
    layout = Layout(end + 56, 0, high)
    drawn = [f'<text class="faint" x="{layout.width - 4}" y="18" text-anchor="end">records</text>']
    for row, records in enumerate(_sum_by_row(batches, len(rows))):
        middle, bottom = top + row * high + high // 2 + 5, top + (row + 1) * high
        drawn += [
            f'<text x="{left - 8}" y="{middle}" text-anchor="end">{escape(rows[row])}</text>',
            f'<text x="{layout.width - 4}" y="{middle}" text-anchor="end">{records}</text>',
            f'<line class="grid" x1="{left}" x2="{end}" y1="{bottom}" y2="{bottom}"/>',
        ]
    for batch in batches:
        y, complete = top + batch.row * high, batch.first + batch.records
        color = ("c7", "c6", "c3")[batch.row % 3]
        waits = max(0, min(batch.acknowledged, ticks) - complete)
        drawn += [
            f'<rect class="{color}" x="{left + batch.first * tick + 1}" y="{y + 3}" rx="2" '
            f'width="{batch.records * tick - 2}" height="{high - 10}"/>',
            f'<rect class="{color} ghost" x="{left + complete * tick}" y="{y + high - 5}" '
            f'width="{waits * tick}" height="3"/>',
        ]
    height = top + len(rows) * high + 28
    drawn.append(small_text(left, height - 8, note))
    return to_svg(height, description, drawn, layout)


def _sum_by_row(batches: Sequence[Batch], rows: int) -> list[int]:
    return [sum(each.records for each in batches if each.row == row) for row in range(rows)]


def to_document(svg: str) -> str:
    """A picture as a separate SVG file, with a margin, and no wider than it was drawn."""
    head, _, rest = svg.partition(">")
    size = head.partition('viewBox="0 0 ')[2].partition('"')[0]
    width, height = (int(each) + 2 * _MARGIN for each in size.split())
    head = head.replace(
        f'viewBox="0 0 {size}"',
        f'xmlns="http://www.w3.org/2000/svg" viewBox="-{_MARGIN} -{_MARGIN} {width} {height}" '
        f'width="{width}" height="{height}"',
    )
    return f"{head}><style>{STYLE}{_DOCUMENT_STYLE}</style>{rest}\n"


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def _place_label(text: str, x: float, y: float, room: Box, taken: Sequence[Box]) -> Box:
    """A free place for a point's label: beside, above or below it, else the nearest in the room."""
    wide, high = text_width(text), TEXT + 2
    near = [(x + 8, y - high / 2)]
    near += [
        (x + shift, y + rise) for rise in (-8 - high, 8) for shift in (-wide / 2, 2, -wide - 2)
    ]
    near.append((x - 8 - wide, y - high / 2))
    grid = [
        (left, top)
        for left in range(int(room.left) + 1, int(room.right - wide), 6)
        for top in range(int(room.top) + 1, int(room.bottom - high), 4)
    ]
    grid.sort(key=lambda each: math.hypot(each[0] + wide / 2 - x, each[1] + high / 2 - y))
    for left, top in (*near, *grid):
        box = Box(left, top, left + wide, top + high)
        is_inside = (
            box.left >= room.left
            and box.right <= room.right
            and box.top >= room.top
            and box.bottom <= room.bottom
        )
        if is_inside and not any(box.meets(each) for each in taken):
            return box
    raise ValueError(f"no room for the label {text!r}")


def _draw_label(text: str, x: float, y: float, box: Box) -> str:
    near_x, near_y = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
    leader = ""
    if math.hypot(near_x - x, near_y - y) > 12:
        leader = f'<path class="leader" d="M{x:.1f} {y:.1f}L{near_x:.1f} {near_y:.1f}"/>'
    return f'{leader}<text x="{box.left:.1f}" y="{box.bottom - 4:.1f}">{escape(text)}</text>'


def _beside(line: float | None, x: float, length: float) -> float:
    """Where to write a text so that it begins at `x`, or right of the line if that crosses it."""
    if line is None or not x - 3 < line < x + length + 3:
        return x
    return line + 5


def _draw_powers(
    low: int,
    high: int,
    place: Callable[[float], float],
    lines: tuple[float, float],
    y: float,
    width: float,
) -> list[str]:
    """A vertical line at each power of ten milliseconds, with its name at `y`, where it fits."""
    drawn = []
    free = -math.inf
    for power in range(low, high + 1):
        x, name = place(10**power), _format_power(power)
        half = text_width(name, SMALL) / 2
        at = min(max(x, half), width - half)
        drawn.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{lines[0]}" y2="{lines[1]}"/>'
        )
        if at - half >= free:
            drawn.append(small_text(at, y, name, "middle"))
            free = at + half + 4
    return drawn


def _label(title: str, y: float, layout: Layout) -> str:
    title = title[:1].upper() + title[1:]
    if not layout.labels:
        said = escape(fit(title, layout.width))
        return f'<text class="name" x="0" y="{y + 12}">{said}</text>'
    said = escape(fit(title, layout.labels - 12))
    return f'<text text-anchor="end" x="{layout.labels - 12}" y="{y + 15}">{said}</text>'


def _format_power(power: int) -> str:
    return f"{10 ** (power - 3)} s" if power >= 3 else f"{10**power:g} ms"
