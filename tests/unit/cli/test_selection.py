from __future__ import annotations

import pytest

from trimtab.cli.selection import match_names
from trimtab.kafka.errors import UsageError

NAMES = ["flights", "flights-2", "weather", "a.b"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("flights", ["flights"]),
        ("flights.*", ["flights", "flights-2"]),
        ("weather,flights", ["flights", "weather"]),
        ("'weather, flights'", ["flights", "weather"]),
        ("a.b", ["a.b"]),
        ("none", []),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matched: list[str]) -> None:
    assert match_names(pattern, NAMES) == matched


def test_a_broken_pattern_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a regular expression"):
        match_names("flights(", NAMES)
