"""Plots as SVG: shares as bars, amounts as columns, latencies as dots on a line, rates over time.

The plots load nothing from elsewhere. Each function returns one `<svg>` for a page that includes
`STYLE`; `to_document` turns it into a separate SVG file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from trimtab.cli.latency import Latency, format_duration

_BAR = 20
_CHARACTER = 8
_AXIS = 34
_COLORS = 4
_TIMELINE = 220
_WIDEST_COLUMN = 60.0
_WIDE_ENOUGH_FOR_TEXT = 44

_LATENCY_MARKS: tuple[tuple[str, Callable[[Latency], float], str], ...] = (
    ("p50", lambda latency: latency["p50"], "dot-50"),
    ("p95", lambda latency: latency["p95"], "dot-95"),
    ("p99", lambda latency: latency["p99"], "dot-99"),
    ("p99.9", lambda latency: latency["p99_9"], "dot-999"),
)

STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfa; --ink: #1f2430; --faint: #687083;
  --line: #d9dce3; --slow: #d1495b; --b1: #3d7ea6; --b2: #4f9a94; --b3: #8a968d; --inside: #ffffff;
  --p50: #9db4c0; --p95: #5c94b8; --p99: #2a6496; --p999: #d1495b; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --ink: #e6e8ee; --faint: #98a1b3;
  --line: #333a47; --slow: #ef6f7f; --b1: #5aa2cf; --b2: #79b8b0; --b3: #8b978f; --inside: #14171d;
  --p50: #6d8291; --p95: #5aa2cf; --p99: #a9d6f5; --p999: #ef6f7f; --card: #1b1f27; } }
svg { display: block; width: 100%; height: auto; font-size: 13px; }
svg text { fill: var(--ink); } svg .faint { fill: var(--faint); font-size: 12px; }
svg .inside { fill: var(--inside); font-size: 12px; font-weight: 600; }
svg .grid { stroke: var(--line); } svg .even { stroke: var(--ink); stroke-dasharray: 4 3; }
svg .range { stroke: var(--line); stroke-width: 4; stroke-linecap: round; }
.slow { fill: var(--slow); } .b1 { fill: var(--b1); } .b2 { fill: var(--b2); }
.b3 { fill: var(--b3); } .dot-50 { fill: var(--p50); } .dot-95 { fill: var(--p95); }
.dot-99 { fill: var(--p99); } .dot-999 { fill: var(--p999); }
polyline.slow, polyline.b1, polyline.b2, polyline.b3 { fill: none; stroke-width: 2; }
polyline.slow { stroke: var(--slow); } polyline.b1 { stroke: var(--b1); }
polyline.b2 { stroke: var(--b2); } polyline.b3 { stroke: var(--b3); }
"""

_DOCUMENT_STYLE = """
svg { background: var(--paper); font-family: system-ui, "Segoe UI", Roboto, sans-serif; }
"""


class Layout(NamedTuple):
    """The sizes of a plot, in SVG units.

    Attributes:
        width: of the whole plot.
        labels: width of the column with the rows' names; 0 to write each name above its row.
        row: height of a row.
    """

    width: int
    labels: int
    row: int

    @property
    def above(self) -> int:
        """Height of the text above a row."""
        return 0 if self.labels else 18


WIDE = Layout(880, 220, 34)
NARROW = Layout(350, 0, 52)
"""For a phone in portrait orientation."""


class Bar(NamedTuple):
    """One row of shares: each part's share of the whole, 0 to 1, and its size in bytes."""

    title: str
    shares: Mapping[str, float]
    sizes: Mapping[str, float]


class Column(NamedTuple):
    """One column of a plot: the amount of each part, from the bottom."""

    title: str
    parts: Mapping[str, float]


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
        part: "slow" if part == highlighted else f"b{min(next(others), _COLORS - 1)}"
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
            if length > _WIDE_ENOUGH_FOR_TEXT:
                text = f"{share:.0%}"
                at = _beside(line, x + 6, len(text) * _CHARACTER)
                if at + len(text) * _CHARACTER <= x + length:
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
        drawn.append(f'<text class="faint" x="{line + 5:.1f}" y="14">even share {even:.0%}</text>')
    legend = [(colors[part], names[part]) for part in parts]
    drawn.append(_draw_legend(legend, bottom + 12, layout))
    return _svg(bottom + 26, description, drawn, layout)


def draw_columns(
    columns: Sequence[Column],
    names: Mapping[str, str],
    show: Callable[[float], str],
    level: float | None,
    description: str,
    layout: Layout = WIDE,
) -> str:
    """Columns from zero, each of one or more parts; only the first and the last have labels.

    Args:
        columns: at least one.
        names: the name of each part, from bottom to top; a single part gets no legend.
        show: formats a value.
        level: draw a dashed line at this value, that of an even distribution; None for no line.
    """
    left, top = (70, 12) if layout.labels else (58, 12)
    width = layout.width - left - 10
    bottom = top + (_TIMELINE if layout.labels else _TIMELINE * 2 // 3)
    height = bottom - top
    highest = max(sum(column.parts.values()) for column in columns)
    highest = max(highest, level or 0.0) or 1.0
    drawn = []
    for step in range(5):
        y = bottom - step / 4 * height
        drawn.append(
            f'<line class="grid" x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}"/>'
        )
        drawn.append(
            f'<text class="faint" text-anchor="end" x="{left - 6}" y="{y + 4:.0f}">'
            f"{show(highest * step / 4)}</text>"
        )
    colors = {part: f"b{min(at, _COLORS - 1)}" for at, part in enumerate(names, 1)}
    stride = min(width / len(columns), _WIDEST_COLUMN)
    for at, column in enumerate(columns):
        y = float(bottom)
        for part, name in names.items():
            value = column.parts.get(part, 0.0)
            if not value:
                continue
            tall = value / highest * height
            y -= tall
            what = f"{column.title}, {name}" if len(names) > 1 else column.title
            drawn.append(
                f'<rect class="{colors[part]}" x="{left + at * stride:.1f}" y="{y:.1f}" '
                f'width="{stride * 0.85:.1f}" height="{tall:.1f}">'
                f"<title>{escape(what)}: {show(value)}</title></rect>"
            )
    if level is not None:
        y = bottom - level / highest * height
        drawn.append(
            f'<line class="even" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
    ends = [(left, "start", columns[0].title)]
    if len(columns) > 1:
        ends.append((left + width, "end", columns[-1].title))
    drawn += [
        f'<text class="faint" text-anchor="{anchor}" x="{x}" y="{bottom + 16}">'
        f"{escape(title)}</text>"
        for x, anchor, title in ends
    ]
    if len(names) == 1:
        return _svg(bottom + 24, description, drawn, layout)
    rows = [list(names)] if layout.labels else [[part] for part in names]
    for row, parts in enumerate(rows):
        legend = [(colors[part], names[part]) for part in parts]
        drawn.append(_draw_legend(legend, bottom + _AXIS + 6 + 18 * row, layout._replace(labels=0)))
    return _svg(bottom + _AXIS + 16 + 18 * len(rows), description, drawn, layout)


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
    drawn = []
    for power in range(low, high + 1):
        x = place(10**power)
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
        drawn.append(
            f'<text class="faint" text-anchor="middle" x="{x:.1f}" y="{bottom + 16}">'
            f"{_format_power(power)}</text>"
        )
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
    drawn.append(_draw_legend(legend, bottom + _AXIS, layout))
    return _svg(bottom + _AXIS + 14, description, drawn, layout)


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
    left, top, width = 70, 26, WIDE.width - 90
    bottom = top + _TIMELINE
    highest = max((max(values) for values in lines.values()), default=0.0) or 1.0
    start, end = seconds[0], seconds[-1]

    def across(second: float) -> float:
        return left + (second - start) / (end - start) * width

    drawn = []
    for step in range(5):
        y = bottom - step / 4 * _TIMELINE
        drawn.append(
            f'<line class="grid" x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}"/>'
        )
        drawn.append(
            f'<text class="faint" text-anchor="end" x="{left - 8}" y="{y + 4:.0f}">'
            f"{highest * step / 4:,.0f}</text>"
        )
    for span in spans:
        x = across(max(span.begins, start))
        drawn.append(f'<line class="even" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        drawn.append(
            f'<text class="faint" x="{x + 5:.1f}" y="{top - 8}">{escape(span.title)}</text>'
        )
    colors = ["b1", "slow", "b2", "b3"]
    legend = [(color, f"{name}, {unit}") for color, name in zip(colors, lines, strict=False)]
    for (color, _), values in zip(legend, lines.values(), strict=True):
        points = " ".join(
            f"{across(second):.1f},{bottom - value / highest * _TIMELINE:.1f}"
            for second, value in zip(seconds, values, strict=True)
        )
        drawn.append(f'<polyline class="{color}" points="{points}"/>')
    drawn.append(
        f'<text class="faint" text-anchor="end" x="{left + width}" y="{bottom + 16}">'
        f"{end - start:.0f} s</text>"
    )
    drawn.append(_draw_legend(legend, bottom + _AXIS, WIDE))
    return _svg(bottom + _AXIS + 14, description, drawn, WIDE)


def to_document(svg: str) -> str:
    """A plot as a separate SVG file."""
    head, _, rest = svg.partition(">")
    return (
        f'{head} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}{_DOCUMENT_STYLE}</style>{rest}\n'
    )


def _beside(line: float | None, x: float, length: float) -> float:
    """Where to write a text so that it begins at `x`, or right of the line if that crosses it."""
    if line is None or not x - 3 < line < x + length + 3:
        return x
    return line + 5


def _draw_legend(entries: Sequence[tuple[str, str]], y: float, layout: Layout) -> str:
    drawn = []
    x = float(layout.labels)
    for color, name in entries:
        drawn.append(f'<rect class="{color}" x="{x:.0f}" y="{y - 10:.0f}" width="11" height="11"/>')
        drawn.append(f'<text class="faint" x="{x + 16:.0f}" y="{y:.0f}">{escape(name)}</text>')
        x += (44 if layout.labels else 28) + 7 * len(name)
    return "".join(drawn)


def _label(title: str, y: float, layout: Layout) -> str:
    title = escape(title[:1].upper() + title[1:])
    if not layout.labels:
        return f'<text class="name" x="0" y="{y + 12}">{title}</text>'
    return f'<text text-anchor="end" x="{layout.labels - 12}" y="{y + 15}">{title}</text>'


def _svg(height: float, description: str, parts: Iterable[str], layout: Layout) -> str:
    return (
        f'<svg viewBox="0 0 {layout.width} {height:.0f}" role="img" '
        f'aria-label="{escape(description)}">'
        f"{''.join(parts)}</svg>"
    )


def _format_power(power: int) -> str:
    return f"{10 ** (power - 3)} s" if power >= 3 else f"{10**power:g} ms"
