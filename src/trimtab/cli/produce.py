"""Send each line of standard input as a record, as kafka-console-producer does.

A line is a value; with parse.key=true it is `key TAB value`, with parse.headers=true it begins with
`name:value,name:value TAB`. An empty line is an empty value.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from trimtab.cli.failures import Failures
from trimtab.cli.options import add_client_options, read_client_options, read_pairs
from trimtab.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.accumulator_cy import Delivery

EXAMPLES = """\
  echo hello | trimtab produce --topic greetings
  trimtab produce --topic flights --reader-property parse.key=true key.separator=: < flights.txt
  trimtab produce --topic logs -X compression.type=zstd linger.ms=50 acks=all < big.log
"""

READER_DEFAULTS = {
    "parse.key": "false",
    "parse.headers": "false",
    "key.separator": "\t",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "null.marker": "",
    "ignore.error": "false",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="send to this topic")
    parser.add_argument("--partition", type=int, help="send to this partition of it")
    parser.add_argument(
        "--reader-property",
        "--property",
        dest="reader",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="how to read a line: " + ", ".join(READER_DEFAULTS),
    )
    parser.add_argument(
        "--sync", action="store_true", help="wait for each record's acknowledgement"
    )
    add_client_options(parser, properties=["--producer-property"], files=["--producer.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.producer import Producer

    reader = LineReader(read_pairs(arguments.reader))
    failures = Failures()

    def acknowledged(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            failures.add(error)

    interactive = sys.stdin.isatty()
    count = 0
    with Producer(**read_client_options(arguments)) as producer:
        while True:
            if interactive:
                print(">", end="", flush=True)
            line = sys.stdin.buffer.readline()
            if not line:
                break
            count += 1
            record = reader.read(line.removesuffix(b"\n").removesuffix(b"\r"), count)
            delivery = producer.send(
                arguments.topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=arguments.partition,
            )
            delivery.add_done_callback(acknowledged)
            if arguments.sync:
                delivery.result()
        producer.flush()
    return failures.report(count)


class Line(NamedTuple):
    """What one line of input says."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LineReader:
    """Splits lines into headers, key and value, by Kafka's reader properties.

    Raises:
        UsageError: an unknown property.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        for name in properties:
            if name not in READER_DEFAULTS:
                known = ", ".join(READER_DEFAULTS)
                raise UsageError(f"unknown reader property {name!r}: known are {known}")
        chosen = {**READER_DEFAULTS, **properties}
        self._parse_key = chosen["parse.key"].lower() == "true"
        self._parse_headers = chosen["parse.headers"].lower() == "true"
        self._ignore_error = chosen["ignore.error"].lower() == "true"
        self._key_separator = _separator(chosen, "key.separator")
        self._headers_delimiter = _separator(chosen, "headers.delimiter")
        self._headers_separator = _separator(chosen, "headers.separator")
        self._header_key_separator = _separator(chosen, "headers.key.separator")
        self._null = chosen["null.marker"].encode() or None

    def read(self, line: bytes, number: int) -> Line:
        """The record of one line, without its line end.

        Raises:
            UsageError: a separator is missing, unless ignore.error=true.
        """
        headers: list[tuple[str, bytes | None]] = []
        if self._parse_headers:
            text, line = self._split(line, self._headers_delimiter, "headers.delimiter", number)
            if text is not None and text != self._null:
                headers = [
                    self._read_header(part, number) for part in text.split(self._headers_separator)
                ]
        key = None
        if self._parse_key:
            key, line = self._split(line, self._key_separator, "key.separator", number)
        return Line(self._or_null(key), self._or_null(line), headers)

    def _read_header(self, part: bytes, number: int) -> tuple[str, bytes | None]:
        name, value = self._split(part, self._header_key_separator, "headers.key.separator", number)
        if name is None:  # ignore.error=true: what could not be split counts as the name
            return value.decode("utf-8", "replace"), None
        return name.decode("utf-8", "replace"), self._or_null(value)

    def _split(
        self, line: bytes, separator: bytes, what: str, number: int
    ) -> tuple[bytes | None, bytes]:
        before, found, after = line.partition(separator)
        if found:
            return before, after
        if self._ignore_error:
            return None, line
        raise UsageError(
            f"line {number}: no {what} {separator.decode()!r} in {line[:60]!r}; "
            "name another one, or let such lines pass with ignore.error=true"
        )

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self._null else data


def _separator(chosen: Mapping[str, str], name: str) -> bytes:
    """The separator's bytes; the two characters `\\t` mean a tab, as shells hand them over."""
    text = chosen[name].replace("\\t", "\t")
    if not text:
        raise UsageError(f"{name} is empty: name at least one character")
    return text.encode()
