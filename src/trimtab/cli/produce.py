"""Send each line of standard input as a record, as kafka-console-producer does.

A line is a value; with parse.key=true it is `key TAB value`, with parse.headers=true it begins with
`name:value,name:value TAB`. An empty line is an empty value.

Defaults are those of kafka-console-producer, which differ from a producer's: linger.ms is 1000
(--timeout), so lines typed within a second share a batch; a request times out after 1500 ms; a
batch is retried three times.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trimtab.cli.failures import Failures
from trimtab.cli.options import (
    add_client_options,
    add_list_option,
    read_client_options,
    read_pairs,
    read_properties_file,
)
from trimtab.cli.reach import report_unreachable
from trimtab.errors import UsageError

if TYPE_CHECKING:
    from trimtab.client.accumulator.queues_cy import Delivery

EXAMPLES = """\
  echo hello | trimtab produce --topic greetings
  trimtab produce --topic flights --reader-property parse.key=true key.separator=: < flights.txt
  trimtab produce --topic logs --compression-codec zstd --timeout 50 < big.log
"""

CLIENT_ID = "console-producer"

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
_FLAGS = ("parse.key", "parse.headers", "ignore.error")
_NULL_MARKER = "null.marker"

LINE_READER = "org.apache.kafka.tools.LineMessageReader"


class Setting(NamedTuple):
    """An option of the tool that sets a producer option.

    Attributes:
        default: the tool's default; None keeps the producer's.
    """

    flag: str
    option: str
    default: int | str | None
    metavar: str
    help: str


SETTINGS = (
    Setting("--batch-size", "batch.size", 16_384, "BYTES", "size at which a batch is sent"),
    Setting(
        "--max-partition-memory-bytes", "batch.size", None, "BYTES", "old name of --batch-size"
    ),
    Setting("--timeout", "linger.ms", 1000, "MS", "how long a batch waits for more records"),
    Setting(
        "--request-required-acks",
        "acks",
        "-1",
        "ACKS",
        "who must store a record before it counts as sent: 0 nobody, 1 the leader, all or -1 all "
        "in-sync replicas",
    ),
    Setting("--request-timeout-ms", "request.timeout.ms", 1500, "MS", "timeout of a request"),
    Setting(
        "--max-memory-bytes",
        "buffer.memory",
        33_554_432,
        "BYTES",
        "memory for records that are not acknowledged yet",
    ),
    Setting(
        "--max-block-ms",
        "max.block.ms",
        60_000,
        "MS",
        "how long sending a line may block when memory is full or metadata are missing",
    ),
    Setting("--message-send-max-retries", "retries", 3, "N", "how often a batch is sent again"),
    Setting("--retry-backoff-ms", "retry.backoff.ms", 100, "MS", "wait before a retry"),
    Setting(
        "--metadata-expiry-ms",
        "metadata.max.age.ms",
        300_000,
        "MS",
        "age at which metadata are fetched again",
    ),
    Setting(
        "--socket-buffer-size", "send.buffer.bytes", 102_400, "BYTES", "send buffer of the socket"
    ),
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="send to this topic")
    parser.add_argument(
        "--partition",
        type=int,
        help="send to this partition of the topic (default: the partitioner chooses)",
    )
    add_list_option(
        parser,
        "--reader-property",
        "--property",
        dest="reader",
        metavar="NAME=VALUE",
        help="how to read a line: "
        + ", ".join(READER_DEFAULTS)
        + "; these override --reader-config",
    )
    parser.add_argument(
        "--reader-config",
        metavar="FILE",
        help="a file of reader properties, one NAME=VALUE a line",
    )
    parser.add_argument(
        "--line-reader",
        default=LINE_READER,
        metavar="CLASS",
        help="accepted for compatibility; only Kafka's default class, since readers are Java",
    )
    parser.add_argument(
        "--sync",
        action="store_true",
        help="wait for each record's acknowledgement before reading the next line",
    )
    parser.add_argument(
        "--compression-codec",
        nargs="?",
        const="gzip",
        metavar="CODEC",
        help="compress batches: none, gzip, snappy, lz4 or zstd; without a name, gzip "
        "(compression.type; default: none)",
    )
    for setting in SETTINGS:
        default = "" if setting.default is None else f" (default: {setting.default})"
        parser.add_argument(
            setting.flag,
            metavar=setting.metavar,
            help=f"{setting.help}; sets {setting.option}{default}",
        )
    parser.add_argument(
        "--json", action="store_true", help="at the end print one JSON object: how many were sent"
    )
    add_client_options(parser, properties=["--producer-property"], files=["--producer.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.blocking.producer import Producer

    reader = choose_reader(arguments)
    failures = Failures()

    def acknowledged(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            failures.add(error)

    interactive = sys.stdin.isatty() and not arguments.json
    count = 0
    options = choose_options(arguments)
    with report_unreachable(options):
        producer = Producer(**options)
        try:
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
                    on_delivery=None if arguments.sync else acknowledged,
                )
                if arguments.sync:
                    delivery.result()
        finally:
            # Send all records read so far, also after an error or Ctrl-C, as Kafka's tool does.
            producer.close()
    if arguments.json:
        reason = None if failures.first is None else str(failures.first)
        print(json.dumps({"records": count, "failed": failures.count, "firstError": reason}))
    return failures.report(count)


def choose_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The producer's options. The tool's options override client options and their files, which
    override the tool's defaults."""
    options = read_client_options(arguments, "producer")
    options.setdefault("client.id", CLIENT_ID)
    if arguments.compression_codec is not None:
        options["compression.type"] = arguments.compression_codec
    given = vars(arguments)
    for setting in SETTINGS:
        value = given[setting.flag.removeprefix("--").replace("-", "_")]
        if value is not None:
            options[setting.option] = value
        elif setting.default is not None:
            options.setdefault(setting.option, setting.default)
    return options


def choose_reader(arguments: argparse.Namespace) -> LineReader:
    """The reader of lines; --reader-property overrides --reader-config.

    Raises:
        UsageError: --line-reader is another class, a property is unknown, or separators are equal
            or empty.
    """
    if arguments.line_reader not in (LINE_READER, "kafka.tools.ConsoleProducer$LineMessageReader"):
        raise UsageError(
            f"--line-reader {arguments.line_reader}: trimtab cannot run Java classes; use "
            "--reader-property, or write a program with trimtab.Producer"
        )
    properties = {}
    if arguments.reader_config is not None:
        properties.update(read_properties_file(arguments.reader_config))
    properties.update(read_pairs(arguments.reader))
    return LineReader(properties)


class Line(NamedTuple):
    """The key, value and headers in one line of input."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LineReader:
    """Splits lines into headers, key and value, by Kafka's reader properties.

    Source: `org.apache.kafka.tools.LineMessageReader`; but separators are always text, never
    regular expressions, and must not be empty.

    Raises:
        UsageError: a property is unknown, or two separators, or a separator and the null marker,
            are equal.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        for name in properties:
            if name not in READER_DEFAULTS:
                known = ", ".join(READER_DEFAULTS)
                raise UsageError(f"unknown reader property {name!r}: known are {known}")
        chosen = {**READER_DEFAULTS, **properties}
        self._parse_key, self._parse_headers, self._ignore_error = (
            chosen[name].strip().lower() == "true" for name in _FLAGS
        )
        self._key_separator = _separator(chosen, "key.separator")
        self._headers_delimiter = _separator(chosen, "headers.delimiter")
        self._headers_separator = _separator(chosen, "headers.separator")
        self._header_key_separator = _separator(chosen, "headers.key.separator")
        self._null = chosen[_NULL_MARKER].encode() or None
        _refuse_equal(chosen)

    def read(self, line: bytes, number: int) -> Line:
        """The record in a line.

        Args:
            line: without its line end.
            number: the line's number, for errors.

        Raises:
            UsageError: a separator is missing, unless ignore.error=true; or a header's name is the
                null marker.
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
        if name is None:  # ignore.error=true: the whole text is the name
            return value.decode("utf-8", "replace"), None
        if name == self._null:
            raise UsageError(
                f"line {number}: a header's name is the null marker {name.decode()!r}; "
                "names cannot be null: choose another null.marker"
            )
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
            f"set another {what}, or accept such lines with ignore.error=true"
        )

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self._null else data


def _separator(chosen: Mapping[str, str], name: str) -> bytes:
    """The separator's bytes; the two characters `\\t`, as a shell passes them, mean a tab."""
    text = chosen[name].replace("\\t", "\t")
    if not text:
        raise UsageError(f"{name} is empty: name at least one character")
    return text.encode()


def _refuse_equal(chosen: Mapping[str, str]) -> None:
    """Raises:
    UsageError: two separators, or a separator and the null marker, are equal, as in Kafka.
    """
    of_headers = ("headers.delimiter", "headers.separator", "headers.key.separator")
    pairs = [
        *((one, other) for at, one in enumerate(of_headers) for other in of_headers[at + 1 :]),
        *((_NULL_MARKER, name) for name in ("key.separator", *of_headers)),
    ]
    for one, other in pairs:
        if chosen[one] == chosen[other]:
            raise UsageError(f"{one} and {other} are both {chosen[one]!r}: they must differ")
