from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from trimtab.cli.produce import (
    LINE_READER,
    Line,
    LineReader,
    choose_options,
    choose_reader,
    configure,
)
from trimtab.kafka.errors import UsageError


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


def test_a_header_cannot_have_a_null_name() -> None:
    reader = LineReader({"parse.headers": "true", "null.marker": "NULL"})
    with pytest.raises(UsageError, match=r"line 3: a header's name is the null marker 'NULL'"):
        reader.read(b"NULL:1\tv", 3)


@pytest.mark.parametrize(
    "properties",
    [
        {"parse.keys": "true"},
        {"key.separator": ""},
        {"headers.delimiter": ","},
        {"headers.delimiter": ":"},
        {"headers.separator": ":"},
        {"null.marker": "\t"},
        {"null.marker": ","},
        {"null.marker": ":"},
    ],
)
def test_a_wrong_property_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        LineReader(properties)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(["--topic", "t", *words])


def test_the_defaults_are_those_of_kafkas_tool() -> None:
    assert choose_options(parse()) == {
        "bootstrap.servers": "127.0.0.1:9092",
        "client.id": "console-producer",
        "batch.size": 16384,
        "linger.ms": 1000,
        "acks": "-1",
        "request.timeout.ms": 1500,
        "buffer.memory": 33554432,
        "max.block.ms": 60000,
        "retries": 3,
        "retry.backoff.ms": 100,
        "metadata.max.age.ms": 300000,
        "send.buffer.bytes": 102400,
    }


@pytest.mark.parametrize(
    ("flag", "value", "option"),
    [
        ("--batch-size", "9", "batch.size"),
        ("--max-partition-memory-bytes", "9", "batch.size"),
        ("--timeout", "9", "linger.ms"),
        ("--request-required-acks", "all", "acks"),
        ("--request-timeout-ms", "9", "request.timeout.ms"),
        ("--max-memory-bytes", "9", "buffer.memory"),
        ("--max-block-ms", "9", "max.block.ms"),
        ("--message-send-max-retries", "9", "retries"),
        ("--retry-backoff-ms", "9", "retry.backoff.ms"),
        ("--metadata-expiry-ms", "9", "metadata.max.age.ms"),
        ("--socket-buffer-size", "9", "send.buffer.bytes"),
        ("--compression-codec", "lz4", "compression.type"),
    ],
)
def test_a_flag_is_stronger_than_a_property_and_that_than_the_default(
    flag: str, value: str, option: str
) -> None:
    assert choose_options(parse(flag, value, "-X", f"{option}=5"))[option] == value
    assert choose_options(parse("--producer-property", f"{option}=5"))[option] == "5"


def test_the_old_name_of_the_batch_size_is_the_stronger_one() -> None:
    words = ("--batch-size", "1", "--max-partition-memory-bytes", "2")
    assert choose_options(parse(*words))["batch.size"] == "2"


def test_a_codec_without_a_name_is_gzip() -> None:
    assert choose_options(parse("--compression-codec"))["compression.type"] == "gzip"


def test_reader_properties_are_stronger_than_their_file(tmp_path: Path) -> None:
    file = tmp_path / "reader.properties"
    file.write_text("parse.key=true\nkey.separator=|\n")
    reader = choose_reader(parse("--reader-config", str(file), "--property", "key.separator=;"))
    assert reader.read(b"k;v", 1) == Line(b"k", b"v", [])


def test_another_line_reader_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="cannot run Java classes"):
        choose_reader(parse("--line-reader", "com.example.MyReader"))
    own = choose_reader(parse("--line-reader", LINE_READER))
    assert own.read(b"v", 1) == Line(None, b"v", [])
