from __future__ import annotations

import pytest

from trimtab.cli.produce import Line, LineReader
from trimtab.errors import UsageError


def test_a_line_is_a_value() -> None:
    assert LineReader({}).read(b"a\tb", 1) == Line(None, b"a\tb", [])
    assert LineReader({}).read(b"", 1) == Line(None, b"", [])


def test_a_key_comes_before_the_first_separator() -> None:
    reader = LineReader({"parse.key": "true"})
    assert reader.read(b"k\tv\tw", 1) == Line(b"k", b"v\tw", [])
    colon = LineReader({"parse.key": "true", "key.separator": ":"})
    assert colon.read(b"k:v", 1) == Line(b"k", b"v", [])


def test_headers_come_first() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true"})
    assert reader.read(b"a:1,b:2\tk\tv", 1) == Line(b"k", b"v", [("a", b"1"), ("b", b"2")])


def test_the_null_marker_stands_for_null() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true", "null.marker": "NULL"})
    assert reader.read(b"NULL\tNULL\tNULL", 1) == Line(None, None, [])
    assert reader.read(b"a:NULL\tk\tv", 1).headers == [("a", None)]


def test_a_missing_separator_is_refused_with_the_line_number() -> None:
    with pytest.raises(UsageError, match=r"line 7: no key.separator '\\t' in b'kv'"):
        LineReader({"parse.key": "true"}).read(b"kv", 7)


def test_ignore_error_takes_the_line_as_the_value() -> None:
    reader = LineReader({"parse.key": "true", "ignore.error": "true"})
    assert reader.read(b"kv", 1) == Line(None, b"kv", [])


@pytest.mark.parametrize("properties", [{"parse.keys": "true"}, {"key.separator": ""}])
def test_a_wrong_property_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        LineReader(properties)
