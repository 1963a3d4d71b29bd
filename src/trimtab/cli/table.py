"""Tables of plain text: the same on a terminal, in a file and in a bug report."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their heads, the first to the left, the others to the right."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def join(cells: Sequence[str]) -> str:
        first, *others = (
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join(
        [title, join(heads), "  ".join("-" * width for width in widths), *map(join, rows)]
    )
