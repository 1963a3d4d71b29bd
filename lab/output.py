"""Latencies of records, with the percentiles that tables and plots show; durations and tables as
text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from trimtab.cli.table import align


class Latency(TypedDict):
    """Time from `send` to the acknowledgement, milliseconds."""

    average: float
    p50: float
    p95: float
    p99: float
    p99_9: float
    max: float


def format_duration(milliseconds: float) -> str:
    """A duration as text, such as `5.1 s`, `32 ms`, `1.4 ms`."""
    if milliseconds >= 999.5:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


def format_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A title, the heads and the rows; the first column is aligned left, the others right."""
    lines = [heads, *rows]
    rule = ["-" * max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *others = align([heads, rule, *rows], right=range(1, len(heads)))
    return "\n".join([title, head, *others])
