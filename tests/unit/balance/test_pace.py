from __future__ import annotations

import pytest

from trimtab.balance.pace import (
    adjust_windows,
    first_window,
    is_strained,
    rate_within,
)

MIB = 1 << 20
FIRST = 64 * MIB
WELL, LATE = (0.010, 0.012), (0.010, 0.050)


def test_the_first_window_is_what_two_seconds_copy() -> None:
    assert first_window(50 * MIB) == 100 * MIB
    assert first_window(1) == MIB
    assert first_window(None) == 64 * MIB


@pytest.mark.parametrize(
    ("before", "now", "strained"),
    [
        (0.010, 0.016, True),
        (0.010, 0.0151, True),
        (0.010, 0.015, False),
        (0.001, 0.005, False),
        (0.1, 0.2, True),
    ],
)
def test_a_broker_is_strained_above_1_5_times_its_former_p99(
    before: float, now: float, strained: bool
) -> None:
    assert is_strained((before, now)) is strained
    assert not is_strained(None)


def test_a_strained_broker_halves_its_window_and_no_others() -> None:
    windows = adjust_windows({}, FIRST, {1: FIRST, 2: FIRST}, {1: LATE, 2: WELL})
    assert windows == {1: FIRST // 2, 2: FIRST + FIRST // 4}


def test_a_window_that_is_not_used_stays_and_a_used_one_grows_to_a_limit() -> None:
    assert adjust_windows({1: FIRST}, FIRST, {1: FIRST // 2 - 1}, {}) == {1: FIRST}
    windows = {1: FIRST}
    for _ in range(200):
        windows = adjust_windows(windows, FIRST, {1: 1 << 40}, {})
    assert windows == {1: 16 * FIRST}


def test_a_window_never_closes() -> None:
    windows = {1: FIRST}
    for _ in range(100):
        windows = adjust_windows(windows, FIRST, {}, {1: LATE})
    assert windows == {1: MIB}


@pytest.mark.parametrize(
    ("window", "share"), [(200, 1), (100, 1), (99, 2), (50, 2), (25, 4), (12.5, 8), (1, 8)]
)
def test_a_halved_window_halves_the_rate_down_to_an_eighth(window: float, share: int) -> None:
    rate = 50 * MIB
    assert rate_within(rate, int(window * MIB)) == rate // share
    assert rate_within(3, 1) == 2
