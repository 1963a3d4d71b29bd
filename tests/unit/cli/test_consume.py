from __future__ import annotations

import json
import time

import pytest

from trimtab.cli.consume import TextFormat, read_limit, wait_ms, write_json
from trimtab.errors import UsageError
from trimtab.records import Record, TimestampType

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


def test_a_poll_waits_no_longer_than_the_timeout_leaves() -> None:
    now = time.monotonic()
    assert wait_ms(None, now) == 200
    assert wait_ms(10_000, now) == 200
    assert 0 < wait_ms(100, now) <= 100
    assert wait_ms(200, now - 1) == 0


def test_minus_one_message_is_all_of_them_as_in_kafka() -> None:
    assert [read_limit(count) for count in (None, -1, 0, 5)] == [None, None, 0, 5]
    with pytest.raises(UsageError, match="--max-messages -2: write a number"):
        read_limit(-2)
