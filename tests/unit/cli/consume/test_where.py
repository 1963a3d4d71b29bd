from __future__ import annotations

import sys
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from trimtab.cli.consume.where import Expression, Seen, show_time
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record, TimestampType

VALUE = (
    b'{"country": "CH", "count": 5, "tags": ["x", "y"], "is": true, "nothing": null,'
    b' "a b": {"items": [{"price": 3}]}, "broken": "\\ud800"}'
)
RECORD = Record(
    topic="flights",
    partition=2,
    offset=7,
    timestamp=1769846400123,
    timestamp_type=TimestampType.CREATE_TIME,
    key=b"abc",
    value=VALUE,
    headers=[("h", b"1"), ("trace-id", b"t"), ("h", b"2"), ("null", None)],
)


def is_so(text: str, record: Record = RECORD) -> Any:
    return Expression(text, "--where").read(Seen(record))


@pytest.mark.parametrize(
    "text",
    [
        "value.country == 'CH' and partition in (1, 2)",
        "value.country == 'DE' or partition in [1, 2]",
        "not (value.country == 'DE' or partition == 1)",
        "topic == 'flights' and offset == 7 and timestamp == 1769846400123",
        "key ~ '^ab' and not key ~ 'b$'",
        "value['a b'].items[0].price < 4",
        "1 < partition <= 2",
        "offset in (-1, 7)",
        "partition in (2)",
        "offset > -1",
        "headers.h == '2' and headers['trace-id'] == 't'",
        "'h' in headers and 'i' not in headers",
        "'x' in value.tags and 'z' not in value.tags",
        "value.tags == ['x', 'y']",
        "partition in [value.count, offset, 2]",
        "'bc' in key",
        "time >= '2026-01-31T08' and time < '2026-01-31T08:00:00.124'",
        "value.count == 5.0",
        "value.is == true and value.is == True",
        "value.from is None and key ~ 'ü|a' and value.is",
        "value.nothing is None and value.nothing == null and value.missing is None",
        "value.country is not None",
        "value ~ 'CH' and value.tags ~ 'x'",
        "value.broken ~ '.'",
        "headers.null is None",
    ],
)
def test_what_holds(text: str) -> None:
    assert is_so(text)


@pytest.mark.parametrize(
    "text",
    [
        "value.country == 'DE' or partition in (1, 3)",
        "value.count > 'x' or value.count < 'x'",
        "value.missing > 1 or value.missing < 1",
        "value.missing ~ '.'",
        "'x' in value.missing",
        "value.tags[2] == 'z' or value.tags['x'] == 'x' or value.country[0] == 'C'",
        "value.tags in ('x', 'y')",
        "value.__class__ is not None",
        "1 < partition < 2",
        "partition in (1)",
        "'1' in headers.null",
    ],
)
def test_what_does_not_hold(text: str) -> None:
    assert not is_so(text)


def test_a_value_that_is_not_json_has_no_fields() -> None:
    for value in (b"plain", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, None):
        assert is_so("value.country is None", RECORD._replace(value=value))
    assert is_so("value is None", RECORD._replace(value=None))
    assert is_so("value ~ 'plain'", RECORD._replace(value=b"\xffplain"))
    assert is_so("key.id == 4", RECORD._replace(key=b'{"id": 4}'))


def test_a_value_that_was_decoded_has_its_fields() -> None:
    value = {"country": "CH", "raw": b"a", "price": Decimal("1.5"), "at": date(2026, 1, 31)}
    record = RECORD._replace(value=value, key=5)
    assert is_so("value.price > 1 and value.at >= '2026-01' and value.raw ~ 'a'", record)
    assert is_so("value.country == 'CH' and value ~ '\"country\": \"CH\"'", record)
    assert is_so("key == '5'", record)


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("", "column 1, at the end", "invalid syntax"),
        ("partion == 1", "column 1, at 'partion == 1'", "did you mean partition?"),
        ("key == 'a' and nope == 1", "column 16, at 'nope == 1'", "value.nope is one of the value"),
        ("'é' == key and é == 1", "column 16, at 'é == 1'", "there is no field é"),
        ("partition == '1'", "column 14", "this is a text, and compared with a number"),
        ("value == 5", "column 10", "this is a number, and compared with a text"),
        ("topic in ('a', 5)", "column 16", "this is a number, and compared with a text"),
        ("1 < topic", "column 5", "this is a text, and compared with a number"),
        ("partition = 1", "column 11, at '= 1'", "write == to compare"),
        ("key ~ value", "column 7", "write a regular expression in quotes"),
        ("key ~ '('", "column 1", "is no regular expression: missing )"),
        ("key @ 'a'", "column 5", "there is no operator @"),
        ("key is 1", "column 8", "only None comes after is"),
        ("partition.x == 1", "column 1", "partition has no fields"),
        ("value[1:2] == 1", "column 1", "this is no field"),
        ("(((", "column 4, at the end", "EOF"),
        ("'abc", "column 1", "unterminated string"),
        ("not " * 101 + "key", "column 401", "nested deeper than 100"),
        ("(" * 300 + "key" + ")" * 300, "column 201", "too many nested parentheses"),
        ("value" + ".a" * 100_000, "column 1", "recursion"),
        ("\0", "column 1", "null bytes"),
        ("\udcff == 1", "column 1", "surrogates"),
    ],
)
def test_an_error_names_the_place(text: str, place: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        Expression(text, "--where")
    shown = str(caught.value)
    assert shown.startswith(f"--where, {place}")
    assert why in shown
    assert len(shown) < 300


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "key.startswith('a')",
        "value.count + 1 == 6",
        "(lambda: 1)()",
        "[each for each in value]",
        "f'{key}' == 'a'",
        "(x := 1)",
        "key if key else value",
        "b'a' == key",
        "~key",
        "{'a': 1} == value",
        "9 ** 9 ** 9 == 1",
        "... == 1",
        "*key, value",
    ],
)
def test_nothing_else_of_python_is_taken(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--where, column "):
        Expression(text, "--where")


@pytest.mark.timeout(60)
def test_a_regular_expression_cannot_hang() -> None:
    pytest.importorskip("re2")
    record = RECORD._replace(key=b"a" * 50 + b"!")
    assert not is_so("key ~ '^(a+)+$'", record)


def test_without_re2_pythons_expressions_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert is_so("key ~ 'a(?=b)'")
    with pytest.raises(UsageError, match=r"'\(' is no regular expression: missing \)"):
        is_so("key ~ '('")


def test_a_time_is_in_utc_with_milliseconds() -> None:
    assert show_time(1769846400123) == "2026-01-31T08:00:00.123Z"
    assert show_time(0) == "1970-01-01T00:00:00.000Z"
    assert show_time(-1) is None
    assert show_time(2**62) is None
