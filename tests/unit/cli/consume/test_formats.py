from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from trimtab.cli.consume.formats import Template, TextFormat, write_json
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record, TimestampType

RECORD = Record(
    topic="t",
    partition=2,
    offset=7,
    timestamp=1700000000000,
    timestamp_type=TimestampType.CREATE_TIME,
    key=b"k",
    value="ü".encode(),
    headers=[("a", b"1"), ("b", None)],
)
DECODED = RECORD._replace(
    key=5,
    value={
        "price": Decimal("1.50"),
        "raw": b"\xff",
        "name": "\ud800",
        "at": datetime(2026, 1, 31, tzinfo=UTC),
    },
)
EVERYTHING = {
    f"print.{name}": "true" for name in ("timestamp", "partition", "offset", "headers", "key")
}


def test_only_the_value_is_printed_unless_more_is_asked_for() -> None:
    assert TextFormat({}).write(RECORD) == "ü\n".encode()


def test_everything_is_printed_in_the_order_of_kafkas_formatter() -> None:
    assert TextFormat(EVERYTHING).write(RECORD) == (
        "CreateTime:1700000000000\tPartition:2\tOffset:7\ta:1,b:null\tk\tü\n".encode()
    )


def test_nothing_is_shown_as_nothing() -> None:
    bare = RECORD._replace(key=None, value=None, headers=[], timestamp_type=TimestampType.NONE)
    assert TextFormat(EVERYTHING | {"null.literal": "-"}).write(bare) == (
        b"NO_TIMESTAMP\tPartition:2\tOffset:7\tNO_HEADERS\t-\t-\n"
    )


def test_separators_can_be_chosen() -> None:
    chosen = TextFormat({"print.key": "true", "key.separator": "=", "line.separator": "\\n\\n"})
    assert chosen.write(RECORD) == "k=ü\n\n".encode()


def test_an_unknown_property_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown formatter property 'print.keys'"):
        TextFormat({"print.keys": "true"})


def test_json_holds_everything_and_bytes_as_base64() -> None:
    assert json.loads(write_json(RECORD._replace(key=b"\xff"))) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1700000000000,
        "timestampType": "CREATE_TIME",
        "keyBase64": "/w==",
        "value": "ü",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": None}],
    }


def test_what_was_decoded_is_json() -> None:
    shown = json.loads(write_json(DECODED))
    assert shown["key"] == 5
    wanted = {"price": "1.50", "raw": "�", "name": "?", "at": "2026-01-31T00:00:00+00:00"}
    assert shown["value"] == wanted
    assert json.loads(TextFormat({}).write(DECODED)) == wanted
    assert Template("{key} {value.price}").write(DECODED) == b"5 1.50\n"


def test_a_template_shows_the_fields_of_where() -> None:
    record = RECORD._replace(value=b'{"country": "CH", "n": 1, "is": false, "tags": ["x"]}')
    template = Template("{topic}-{partition}@{offset} {time} {timestamp} {headers.a} {headers.z}")
    assert template.write(record) == (b"t-2@7 2023-11-14T22:13:20.000Z 1700000000000 1 null\n")
    template = Template("{value.country} {value.n} {value.is} {value.tags} {value['tags'][0]}")
    assert template.write(record) == b'CH 1 false ["x"] x\n'


def test_a_template_shows_keys_and_values_as_they_are() -> None:
    record = RECORD._replace(key=b"\xff", value=None)
    assert Template("{key}|{value}").write(record) == b"\xff|null\n"
    assert Template("{value}").write(RECORD._replace(value=b"\xfe")) == b"\xfe\n"
    assert Template("{value}").write(RECORD._replace(value=b"")) == b"\n"


def test_a_template_ends_its_line_itself_or_has_it_ended() -> None:
    assert Template("{{{key}}}\\t{key}\\n").write(RECORD) == b"{k}\tk\n"
    assert Template("").write(RECORD) == b"\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{nope}", "--format, column 1, at 'nope': there is no field nope"),
        ("{key == 'a'}", "--format, column 1, at \"key == 'a'\": this is no field"),
        ("{key", r"--format '\{key': expected '}' before end of string; write {{ for a brace"),
        ("{key!r}", r"--format '\{key!r\}': \{key\} has no further form"),
        ("{offset:>10}", r"--format '\{offset:>10\}': \{offset\} has no further form"),
        ("{}", "--format, column 1, at the end"),
    ],
)
def test_a_template_of_another_form_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Template(text)
