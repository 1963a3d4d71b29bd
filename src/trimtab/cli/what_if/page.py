"""A forecast as an HTML page: each broker before and after, with the interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, Final

from trimtab.cli.page import in_both_widths, to_page, to_table
from trimtab.cli.plot import STYLE, Layout, fit, svg_with_legend, text_width
from trimtab.cli.what_if.report import WORDS, say_errors, show

_PARTITIONS: Final = 20
_BAR: Final = 11
_ABSENT: Final = {"before": "not measured", "after": "no longer there"}
_STYLE: Final = STYLE + "svg .span { stroke: var(--ink); stroke-width: 2; }\n"


def write_page(forecast: Mapping[str, Any]) -> str:
    """The page of a forecast: see docs/what-if.md."""
    brokers = forecast["brokers"]
    parts = [
        "<h1>What if</h1>",
        f'<p class="faint">From {escape(forecast["source"])}, {forecast["windows"]} windows</p>',
        '<div class="findings">',
        *(f"<p>{escape(each)}</p>" for each in forecast["changes"]),
        "</div>",
        f"<p>The back-test was off by: {say_errors(forecast['back_test'])}. Intervals reach from "
        "the least to the most of all windows, and at least so far.</p>",
        *(f"<p>{escape(each)}</p>" for each in forecast["notes"]),
    ]
    for word, title in WORDS.items():
        parts.append(f"<h2>{title[0].upper() + title[1:]}</h2>")
        if word == "p99_s" and forecast["no_p99"]:
            parts.append(f"<p>Not forecast: {escape(forecast['no_p99'])}.</p>")
            continue
        parts.append(f"<figure>{in_both_widths(partial(_draw, word, title, brokers))}</figure>")
    parts += ["<h2>Brokers</h2>", _table(brokers), *_largest(forecast["partitions"])]
    return to_page("trimtab what-if", "\n".join(parts) + "\n", _STYLE)


def _draw(word: str, title: str, brokers: Sequence[Mapping[str, Any]], layout: Layout) -> str:
    """For each broker a bar before, a bar after, and a line from the least to the most."""
    rows = [
        (each["broker"], each["before"][word], (each["after"] or {}).get(word)) for each in brokers
    ]
    top = max([before or 0.0 for _, before, _ in rows] + [after[2] for *_, after in rows if after])
    left = layout.labels and min(layout.labels, 110)
    room = max(text_width(show(word, each), 12) for each in (top, top * 0.87)) + 8
    scale = (layout.width - left - room) / (top or 1.0)
    drawn, y = [], 4.0
    for broker, before, after in rows:
        name = f"broker {broker}"
        y += layout.above
        at = (0.0, y - 6) if layout.above else (0.0, y + _BAR + 4)
        drawn.append(f'<text x="{at[0]:.0f}" y="{at[1]:.0f}">{fit(name, layout.width)}</text>')
        bars = (("b3", "before", before), ("b1", "after", after and after[1]))
        for line, (color, when, value) in enumerate(bars):
            below = y + line * (_BAR + 2)
            text = _ABSENT[when] if value is None else show(word, value)
            end = left + (value or 0.0) * scale
            drawn.append(
                f'<rect class="{color}" x="{left}" y="{below:.0f}" width="{end - left:.1f}" '
                f'height="{_BAR}"><title>{name}, {when}: {text}</title></rect>'
            )
            if when == "after" and after:
                low, high = (left + each * scale for each in (after[0], after[2]))
                middle = below + _BAR / 2
                drawn.append(
                    f'<line class="span" x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" '
                    f'y2="{middle:.1f}"/>'
                )
                end = max(end, high)
            drawn.append(
                f'<text class="faint" x="{end + 6:.1f}" y="{below + _BAR - 1:.0f}">{text}</text>'
            )
        y += layout.row - layout.above + 2
    legend = [("b3", "before"), ("b1", "after; the line is the interval")]
    described = f"{title} of {len(rows)} brokers, before and after"
    return svg_with_legend(y + 16, legend, described, drawn, layout._replace(labels=0))


def _table(brokers: Sequence[Mapping[str, Any]]) -> str:
    heads = [
        "Broker",
        *(f"{title}, {part}" for title in WORDS.values() for part in ("before", "after")),
    ]

    def cells(broker: Mapping[str, Any]) -> list[str]:
        found = [f"broker {broker['broker']}" + (f" in {broker['rack']}" if broker["rack"] else "")]
        for word in WORDS:
            before, after = broker["before"][word], (broker["after"] or {}).get(word)
            found.append("-" if before is None else show(word, before))
            found.append("-" if after is None else show(word, after[1]))
        return found

    return to_table(heads, map(cells, brokers), text_columns=range(1))


def _largest(partitions: Sequence[Mapping[str, Any]]) -> list[str]:
    largest = sorted(partitions, key=lambda each: -each["written"][1])[:_PARTITIONS]
    rows = [
        [
            f"{each['topic']}-{each['partition']}",
            " ".join(map(str, each["replicas"])),
            *(show("written", value) for value in each["written"]),
        ]
        for each in largest
    ]
    heads = ["Partition", "Replicas", "Written, at least", "Mean", "At most"]
    title = f"<h2>The {len(rows)} partitions with most bytes, afterwards</h2>"
    return [title, to_table(heads, rows, text_columns=range(2))]
