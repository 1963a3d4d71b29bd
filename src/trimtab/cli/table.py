"""Tables of plain text for terminals and files, and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def align(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """One line for each row; the cells of a column have the same width.

    Args:
        right: the columns that are aligned right; the others are aligned left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def show_bytes(count: float) -> str:
    """A rate or a volume in bytes with a unit, in steps of 1,000, as in reports."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def show_size(size: int) -> str:
    """The size of files in the largest unit in which it is at least 1, in steps of 1,024."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_BINARY_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_BINARY_UNITS[unit]}" if unit else f"{size} B"


def show_count(count: int, noun: str, nouns: str = "") -> str:
    """Such as `1 topic`, `2,000 topics`.

    Args:
        nouns: the plural, if it is not the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"
