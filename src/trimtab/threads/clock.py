"""The clocks that are passed to brokers and clients."""

from __future__ import annotations

from time import monotonic, time, time_ns

wall_clock = time
"""Seconds since the Unix epoch, UTC, for clients: a built-in, as it is called for every record."""

monotonic_clock = monotonic
"""Seconds that never go back: a real loop's `time()`, but read from the system at each call."""


def wall_clock_ms() -> int:
    """Milliseconds since the Unix epoch, UTC. It can jump: measure durations by the loop's time."""
    return time_ns() // 1_000_000
