"""Times in the forms that Java's SimpleDateFormat writes; the expected texts are Java's."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trimtab.cli.date_format import parse_date_format

AT = 1767945785.007


@contextmanager
def in_zone(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd HH:mm:ss:SSS", "2026-01-09 09:03:05:007"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2026-01-09T09:03:05.007+01:00"),
        ("yy y yyy yyyyy", "26 2026 2026 02026"),
        ("M MM MMM MMMM", "1 01 Jan January"),
        ("d dd D DDD", "9 09 9 009"),
        ("E EEE EEEE", "Fri Fri Friday"),
        ("a h hh H", "AM 9 09 9"),
        ("S SS SSS SSSS", "7 07 007 0007"),
        ("Z X XX XXX", "+0100 +01 +0100 +01:00"),
        ("'o''clock' '' é-#", "o'clock ' é-#"),
    ],
)
def test_a_time_is_written_as_java_writes_it(pattern: str, text: str) -> None:
    with in_zone("Europe/Berlin"):
        assert parse_date_format(pattern)(AT) == text


def test_halves_of_the_day_and_greenwich() -> None:
    write = parse_date_format("h a X")
    with in_zone("UTC"):
        assert [write(hour * 3600) for hour in (0, 12, 23)] == ["12 AM Z", "12 PM Z", "11 PM Z"]


@pytest.mark.parametrize(
    ("pattern", "why"), [("HH 'open", "has no second one"), ("yyyy b", "b is not supported")]
)
def test_another_pattern_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        parse_date_format(pattern)
