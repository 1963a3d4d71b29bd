"""Durations and tables as text."""

from __future__ import annotations

import pytest

from lab.output import format_duration, format_table


def test_tables_align_first_left_and_others_right() -> None:
    assert format_table("T", ["way", "ms"], [["a", "1.5"], ["longer", "10"]]) == (
        "T\nway      ms\n------  ---\na       1.5\nlonger   10"
    )


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(5100, "5.1 s"), (999.5, "1.0 s"), (32, "32 ms"), (1.44, "1.4 ms")],
)
def test_durations_are_short(milliseconds: float, text: str) -> None:
    assert format_duration(milliseconds) == text
