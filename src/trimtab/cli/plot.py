"""Columns and lines as SVG, and what every picture has: style, axes, legends, measures of texts.

`draw_columns` draws amounts from zero, `draw_lines` amounts over time. A picture loads nothing from
elsewhere; it is one `<svg>` for a page that includes `STYLE`. `text_width` is an upper bound in the
usual fonts, so that no text meets another one or leaves the picture (ADR 0020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

COLORS = 4
"""Classes of `STYLE` from `b1` on, and one more: parts after them have the last one's color."""

AXIS = 34
"""Height of what is written below an axis."""

TALL = 220
"""Height of a plot of values over an axis, on a wide screen."""

TEXT, SMALL = 13, 12
"""Sizes of text in `STYLE`: usual, and of the class `faint`."""

_WIDEST_COLUMN = 120.0

STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfa; --ink: #1f2430; --faint: #687083;
  --line: #d9dce3; --slow: #d1495b; --b1: #3d7ea6; --b2: #4f9a94; --b3: #8a968d; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --ink: #e6e8ee; --faint: #98a1b3;
  --line: #333a47; --slow: #ef6f7f; --b1: #5aa2cf; --b2: #79b8b0; --b3: #8b978f; } }
svg { display: block; width: 100%; height: auto; font-size: 13px; }
svg text { fill: var(--ink); } svg .faint { fill: var(--faint); font-size: 12px; }
svg .grid { stroke: var(--line); } svg .even { stroke: var(--ink); stroke-dasharray: 4 3; }
.slow { fill: var(--slow); } .b1 { fill: var(--b1); } .b2 { fill: var(--b2); }
.b3 { fill: var(--b3); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .l0 { stroke: var(--slow); }
.l1 { stroke: var(--b1); } .l2 { stroke: var(--b2); stroke-dasharray: 6 3; }
.l3 { stroke: var(--b3); stroke-width: 1.25; }
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


class Column(NamedTuple):
    """One column of a plot: the amount of each part, from the bottom."""

    title: str
    parts: Mapping[str, float]


def draw_columns(
    columns: Sequence[Column],
    names: Mapping[str, str],
    show: Callable[[float], str],
    level: float | None,
    description: str,
    layout: Layout = WIDE,
) -> str:
    """Columns from zero, each of one or more parts, over the whole width.

    Each column has its title below it if all fit, else only the first and the last one have.

    Args:
        columns: at least one.
        names: the name of each part, from bottom to top; a single part gets no legend.
        show: formats a value.
        level: draw a dashed line at this value, that of an even distribution; None for no line.
    """
    top = 12
    bottom = top + (TALL if layout.labels else TALL * 2 // 3)
    height = bottom - top
    highest = max(sum(column.parts.values()) for column in columns)
    highest = max(highest, level or 0.0) or 1.0
    shown = [show(highest * step / 4) for step in range(5)]
    left = math.ceil(max(text_width(each, SMALL) for each in shown)) + 8
    width = layout.width - left - 10
    drawn = draw_grid(shown, left, width, bottom, height)
    colors = {part: f"b{min(at, COLORS - 1)}" for at, part in enumerate(names, 1)}
    stride = width / len(columns)
    wide = min(stride * 0.85, _WIDEST_COLUMN)
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
                f'<rect class="{colors[part]}" x="{left + (at + 0.5) * stride - wide / 2:.1f}" '
                f'y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
                f"<title>{escape(what)}: {show(value)}</title></rect>"
            )
    if level is not None:
        y = bottom - level / highest * height
        drawn.append(
            f'<line class="even" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
    titles = [each.title for each in columns]
    if all(text_width(each, SMALL) + 6 <= stride for each in titles):
        drawn += [
            f'<text class="faint" text-anchor="middle" x="{left + (at + 0.5) * stride:.1f}" '
            f'y="{bottom + 16}">{escape(title)}</text>'
            for at, title in enumerate(titles)
        ]
    else:
        first, last = (fit(each, width, SMALL) for each in (titles[0], titles[-1]))
        drawn.append(small_text(left, bottom + 16, first))
        if text_width(first, SMALL) + text_width(last, SMALL) + 12 > width:
            bottom += 16  # below it
        drawn.append(small_text(left + width, bottom + 16, last, "end"))
    if len(names) == 1:
        return to_svg(bottom + 24, description, drawn, layout)
    legend = [(colors[part], name) for part, name in names.items()]
    flush = layout._replace(labels=0)
    return svg_with_legend(bottom + AXIS + 6, legend, description, drawn, flush)


class Line(NamedTuple):
    """One line of a plot: values at times, NaN where there is none.

    Attributes:
        kind: 0 stands out, 1 and 2 are the next two, 3 is one of many.
    """

    name: str
    times: Sequence[float]
    values: Sequence[float]
    kind: int


def draw_lines(
    lines: Sequence[Line],
    show: Callable[[float], str],
    show_time: Callable[[float], str],
    description: str,
    layout: Layout = WIDE,
) -> str:
    """Lines over time, from zero, over the whole width; several of kind 3 share a legend's entry.

    Args:
        lines: with at least one time in all.
    """
    top = 12
    bottom = top + (TALL if layout.labels else TALL * 2 // 3)
    height = bottom - top
    highest = _round_up(
        max((each for line in lines for each in line.values if each == each), default=0.0)
    )
    first = min(line.times[0] for line in lines if line.times)
    last = max(line.times[-1] for line in lines if line.times)
    shown = [show(highest * step / 4) for step in range(5)]
    left = math.ceil(max(text_width(each, SMALL) for each in shown)) + 8
    width = layout.width - left - 10
    drawn = draw_grid(shown, left, width, bottom, height)
    for line in sorted(lines, key=lambda each: -each.kind):
        xs = [left + (at - first) / (last - first or 1.0) * width for at in line.times]
        ys = [bottom - each / highest * height for each in line.values]
        drawn.append(
            f'<path class="line l{line.kind}" d="{_to_path(xs, ys)}">'
            f"<title>{escape(line.name)}</title></path>"
        )
    drawn.append(small_text(left, bottom + 16, show_time(first)))
    if last > first:
        drawn.append(small_text(left + width, bottom + 16, show_time(last), "end"))
    names = {f"line-{line.kind}": line.name for line in lines if line.kind < 3}
    others = [line.name for line in lines if line.kind == 3]
    if others:
        names["line-3"] = others[0] if len(others) == 1 else f"{len(others)} others"
    legend = [(f"b{name[-1]}" if name[-1] != "0" else "slow", text) for name, text in names.items()]
    flush = layout._replace(labels=0)
    return svg_with_legend(bottom + AXIS + 6, legend, description, drawn, flush)


def draw_spark(values: Sequence[float], width: int = 96, height: int = 18) -> str:
    """A line as high as a word, beside numbers that say the same; nothing for fewer than two."""
    known = [each for each in values if each == each]
    if len(known) < 2:
        return ""
    highest = max(known) or 1.0
    xs = [1 + at / (len(values) - 1) * (width - 2) for at in range(len(values))]
    ys = [height - 1 - each / highest * (height - 2) for each in values]
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" aria-hidden="true" focusable="false">'
        f'<path class="line l1" d="{_to_path(xs, ys)}"/></svg>'
    )


def _round_up(value: float) -> float:
    """The next number of which a quarter is short to write."""
    if value <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(value))
    return next(
        each * step for each in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if each * step >= value
    )


def _to_path(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Straight lines from point to point, interrupted where there is no value."""
    parts, pen = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if y != y:
            pen = "M"
            continue
        parts.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return "".join(parts)


_NARROW_CHARACTERS = frozenset("ijlI.,:;'|![]()/- ")
_WIDE_CHARACTERS = frozenset("mwMW%@→…")


def text_width(text: str, size: float = TEXT) -> float:
    """The width of a text in SVG units, at most, in the fonts of `STYLE`."""
    ems = sum(
        0.42
        if character in _NARROW_CHARACTERS
        else 1.0
        if character in _WIDE_CHARACTERS
        else 0.78
        if character.isupper()
        else 0.66
        for character in text
    )
    return ems * size


def fit(text: str, width: float, size: float = TEXT) -> str:
    """The text, or as much of it as fits."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return f"{text.rstrip()}…" if text else ""


def small_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return (
        f'<text class="faint" text-anchor="{anchor}" x="{x:.1f}" y="{y:.0f}">{escape(text)}</text>'
    )


def draw_grid(
    shown: Sequence[str], left: float, width: float, bottom: float, height: float
) -> list[str]:
    """Horizontal lines at equal distances, with what they mean at the left."""
    drawn = []
    for step, text in enumerate(shown):
        y = bottom - step / (len(shown) - 1) * height
        drawn.append(
            f'<line class="grid" x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}"/>'
        )
        drawn.append(small_text(left - 6, y + 4, text, "end"))
    return drawn


def draw_legend(entries: Sequence[tuple[str, str]], y: float, layout: Layout) -> tuple[str, int]:
    """Names with their colors, and how many lines they take."""
    drawn, x, lines = [], float(layout.labels), 1
    for color, name in entries:
        name = fit(name, layout.width - layout.labels - 16, SMALL)
        wide = 16 + text_width(name, SMALL)
        if x + wide > layout.width and x > layout.labels:
            x, y, lines = float(layout.labels), y + 18, lines + 1
        drawn.append(f'<rect class="{color}" x="{x:.0f}" y="{y - 10:.0f}" width="11" height="11"/>')
        drawn.append(f'<text class="faint" x="{x + 16:.0f}" y="{y:.0f}">{escape(name)}</text>')
        x += wide + 14
    return "".join(drawn), lines


def svg_with_legend(
    y: float,
    entries: Sequence[tuple[str, str]],
    description: str,
    parts: Iterable[str],
    layout: Layout,
) -> str:
    legend, lines = draw_legend(entries, y, layout)
    return to_svg(y + 18 * lines - 4, description, [*parts, legend], layout)


def to_svg(height: float, description: str, parts: Iterable[str], layout: Layout) -> str:
    return (
        f'<svg viewBox="0 0 {layout.width} {height:.0f}" role="img" '
        f'aria-label="{escape(description)}">'
        f"{''.join(parts)}</svg>"
    )
