"""How many bytes may be copied at a time from and to each broker: AIMD, as TCP's window.

A broker's window is halved while the 99th percentile of its probe exceeds 1.5 times the one before
the moves, and raised step by step while its copies use it. So a slow broker slows its own copies
only. The window begins at what the allowed bytes/s copy in 2 s; it grows beyond, since small
partitions spend most of their time on other things than copying.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ADJUST_S: Final = 2.0
"""Seconds between two changes of the windows."""
_TOO_SLOW = 1.5
_NOISE_S = 0.005
"""A 99th percentile that has risen by less is none to react to."""
_UNKNOWN_WINDOW = 64 << 20
_HALVINGS = 3
_SMALLEST = 1 << 20
_LARGEST = 16
_LEAST_RATE = 2
"""A smaller one cannot be marked as ours."""


def first_window(rate: int | None) -> int:
    """The bytes at a time that a broker begins with.

    Args:
        rate: the allowed bytes/s; None for no limit.
    """
    return _UNKNOWN_WINDOW if rate is None else max(_SMALLEST, round(rate * ADJUST_S))


def is_strained(p99: tuple[float, float] | None) -> bool:
    """Whether a broker answers much later than before the moves.

    Args:
        p99: in seconds, before and now; None if unknown.
    """
    if p99 is None:
        return False
    before, now = p99
    return now > _TOO_SLOW * before and now - before > _NOISE_S


def adjust_windows(
    windows: Mapping[int, int],
    first: int,
    in_flight: Mapping[int, int],
    p99: Mapping[int, tuple[float, float]],
) -> dict[int, int]:
    """The next windows of the brokers that have bytes in flight, or had.

    Args:
        windows: bytes by broker; those missing have `first`.
        in_flight: bytes by broker.
    """
    changed = {}
    for broker in windows.keys() | in_flight.keys():
        window = windows.get(broker, first)
        if is_strained(p99.get(broker)):
            window = max(_SMALLEST, window // 2)
        elif 2 * in_flight.get(broker, 0) >= window:
            window = min(window + first // 4, _LARGEST * first)
        changed[broker] = window
    return changed


def rate_within(rate: int, window: int) -> int:
    """The bytes/s of a broker whose window may be smaller than at first: less, so that copies in
    flight slow down, too; but never less than an eighth, as copies must outrun what is produced."""
    first = first_window(rate)
    fits = (halvings for halvings in range(_HALVINGS) if window >= first >> halvings)
    return max(_LEAST_RATE, rate >> next(fits, _HALVINGS))
