"""Latencies of records, as average, maximum and the percentiles that tables and plots show."""

from __future__ import annotations

from typing import TypedDict


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
