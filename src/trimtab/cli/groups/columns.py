"""Columns as kafka-consumer-groups prints them: left-justified, with one blank between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MISSING: Final = "-"
"""A cell without a value."""


def write_rows(rows: Iterable[Sequence[object]], widths: Sequence[int]) -> list[str]:
    """One line for each row; a width of 0 leaves a cell as it is. None is `MISSING`."""
    return [
        " ".join(show(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def show(cell: object) -> str:
    return MISSING if cell is None else str(cell)


def fit(least: int, cells: Iterable[object]) -> int:
    """The width of a column: that of its widest cell, but at least `least`."""
    return max([least, *(len(show(cell)) for cell in cells)])
