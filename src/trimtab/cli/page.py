"""HTML pages with tables and plots: one file that loads nothing, for wide and narrow screens."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from html import escape

from trimtab.cli.plot import NARROW, STYLE, WIDE, Layout

_LONG = 24
"""Length in characters above which a cell fills a whole line on a narrow screen."""

_HUMP = re.compile("(?<=[a-z])(?=[A-Z])")
"""Where a head such as TotalBytes may be broken."""

PAGE_STYLE = """
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
figure { margin: 12px 0 0; }
.narrow { display: none; }
.scroll { overflow-x: auto; margin-top: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--faint); padding: 6px 6px;
  border-bottom: 1px solid var(--line); vertical-align: bottom; }
td { text-align: right; padding: 5px 6px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th.text, td.text { text-align: left; }
tr.group td { border-top: 2px solid var(--line); }
td.long { white-space: normal; }
code { font: 13px ui-monospace, Menlo, Consolas, monospace; }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--faint); }
@media (max-width: 700px) {
  main { padding: 24px 16px 48px; } h1 { font-size: 25px; } h2 { margin-top: 36px; }
  .findings { padding-left: 14px; } .findings p { font-size: 16px; }
  .wide { display: none; } .narrow { display: block; }
  table, tbody { display: block; } thead { display: none; }
  tr { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 2px 8px;
    padding: 8px 0; border-bottom: 1px solid var(--line); }
  tr.group { border-top: 2px solid var(--line); }
  td, tr.group td { display: block; padding: 0; border: 0; text-align: left; white-space: normal;
    font-size: 13px; overflow-wrap: anywhere; }
  td::before { content: attr(data-head); display: block; color: var(--faint); font-size: 11px; }
  td:first-child, td.long { grid-column: 1 / -1; } td:first-child { font-weight: 600; }
  td:first-child::before { display: none; } td:empty { display: none; }
}
"""


class Html(str):
    """Text that is HTML already: nothing in it is escaped any more."""

    __slots__ = ()


def to_html(text: object) -> str:
    """Anything as HTML: `Html` as it is, all else escaped."""
    return text if isinstance(text, Html) else escape(str(text))


def to_page(title: str, body: str, style: str = STYLE) -> str:
    """A complete HTML document.

    Args:
        body: the page's content, as HTML: headings, paragraphs, figures and `to_table`.
        style: what the body's pictures need, with `plot.STYLE`.
    """
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}{PAGE_STYLE}</style>
<main>
{body}</main>
</html>
"""


def in_both_widths(draw: Callable[[Layout], str]) -> str:
    """A plot for wide screens and one for narrow screens; the style sheet shows one of them."""
    wide, narrow = draw(WIDE), draw(NARROW)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def to_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    text_columns: Collection[int],
    group_by_first: bool = False,
) -> str:
    """An HTML table; on a narrow screen each cell is shown with its column's head.

    Args:
        text_columns: which columns are text, from 0; the others are numbers.
        group_by_first: whether a row whose first cell is not empty begins a group.
    """

    def cells(tag: str, texts: Sequence[str]) -> str:
        made = []
        for at, (head, text) in enumerate(zip(heads, texts, strict=True)):
            is_long = not isinstance(text, Html) and len(text) > _LONG
            kinds = ["text"] * (at in text_columns) + ["long"] * is_long
            kind = f' class="{" ".join(kinds)}"' if kinds else ""
            # On a narrow screen the style sheet shows the head in each cell.
            names = f' data-head="{escape(head)}"' if tag == "td" else ""
            shown = to_html(text) if tag == "td" else _HUMP.sub("<wbr>", escape(text))
            scope = ' scope="col"' if tag == "th" else ""
            made.append(f"<{tag}{scope}{kind}{names}>{shown}</{tag}>")
        return "".join(made)

    lines = []
    for row in rows:
        starts_group = group_by_first and row[0]
        lines.append('<tr class="group">' if starts_group else "<tr>")
        lines.append(f"{cells('td', row)}</tr>")
    head = f"<tr>{cells('th', heads)}</tr>"
    return f'<div class="scroll"><table><thead>{head}</thead>{"".join(lines)}</table></div>'
