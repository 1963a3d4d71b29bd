"""What notebooks show of an object, by its `_repr_html_`: tables, escaped and of bounded size."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from itertools import islice
from typing import Final

_ROWS: Final = 20
_NOTES: Final = 10
_LENGTH: Final = 200
"""The longest text of a cell, in characters."""


def to_table(
    title: str,
    heads: Sequence[str],
    rows: Collection[Sequence[object]],
    notes: Iterable[str] = (),
) -> str:
    """A table in HTML, with sentences below it.

    Args:
        rows: the first ones are shown, and the others counted. A cell that is None is empty.
    """
    lines = [f"<table><caption>{_cut(title)}</caption>", _row("th", heads)]
    lines += [_row("td", row) for row in islice(rows, _ROWS)]
    if len(rows) > _ROWS:
        lines.append(f'<tr><td colspan="{len(heads)}">… and {len(rows) - _ROWS:,} more</td></tr>')
    lines.append("</table>")
    lines += [f"<p>{_cut(note)}</p>" for note in islice(notes, _NOTES)]
    return "\n".join(lines)


def _row(tag: str, cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_cut(cell)}</{tag}>' for cell in cells)}</tr>"


def _cut(cell: object) -> str:
    text = "" if cell is None else str(cell)
    return escape(text if len(text) <= _LENGTH else text[:_LENGTH] + "…")
