"""The wall clock, as the broker and the client take it: a function that they are handed."""

from __future__ import annotations

from time import monotonic, time, time_ns

wall_clock = time
"""Seconds since the Unix epoch, UTC, as the client takes it: a built-in, as every record asks."""

monotonic_clock = monotonic
"""Seconds that only move forward: a real loop's `time()`, read anew at each call."""


def wall_clock_ms() -> int:
    """Milliseconds since the Unix epoch, UTC. It can jump: measure durations on the loop's."""
    return time_ns() // 1_000_000
