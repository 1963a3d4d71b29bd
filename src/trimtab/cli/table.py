"""Tables of plain text for terminals and files, and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A title, the heads and the rows; the first column is aligned left, the others right."""
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


def show_bytes(count: float) -> str:
    """A number of bytes with a unit, in steps of 1,000."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def show_count(count: int, noun: str) -> str:
    """Such as `1 topic`, `2,000 topics`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
