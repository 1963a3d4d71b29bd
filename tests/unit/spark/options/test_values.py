"""Values of options, as text."""

from __future__ import annotations

import pytest

from trimtab.errors import UsageError
from trimtab.spark.options.values import GivenOptions

NAME = "anOption"


def given(text: str) -> GivenOptions:
    return GivenOptions({"ANoption": text})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("8m", 8 << 20), ("1 KB", 1024), ("2g", 2 << 30), ("65536b", 65_536)],
)
def test_sizes(text: str, size: int) -> None:
    assert given(text).size(NAME) == size


@pytest.mark.parametrize("text", ["", "0", "m", "1.5m", "-1", "1mm", "8 parsecs", "9000p", "٣"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"option anOption=.* such as 8m or 1g"):
        given(text).size(NAME)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("90", 0.09), ("250ms", 0.25), ("2 h", 7200), ("1D", 86400)]
)
def test_durations_are_written_as_sparks(text: str, seconds: float) -> None:
    assert given(text).seconds(NAME, 1.0) == seconds


def test_what_is_not_given_is_at_its_default() -> None:
    options = GivenOptions({})
    assert NAME not in options
    assert (options.text(NAME), options.time(NAME), options.pattern(NAME)) == (None, None, "")
    assert (options.size(NAME), options.seconds(NAME, 2.0), options.number(NAME, 3)) == (0, 2.0, 3)
    assert (options.topics(NAME), options.partitions(NAME)) == ((), ())
    assert (options.flag(NAME, True), options.word(NAME, ("a", "b"))) == (True, "a")


def test_white_space_around_a_value_does_not_count() -> None:
    assert given(" true\n").flag(NAME, False)
    assert given(" 12 ").number(NAME, 0) == 12
    assert given(" .* ").pattern(NAME) == ".*"
