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
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trimtab.cli.options import (
    add_client_options,
    add_options,
    complete_properties,
    read_client_options,
    read_tool_properties,
    refuse_broker_list,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.results import Failures
from trimtab.kafka.errors import UsageError

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
_OF_HEADERS = ("headers.delimiter", "headers.separator", "headers.key.separator")
_SEPARATORS = ("key.separator", *_OF_HEADERS)

LINE_READER = "org.apache.kafka.tools.LineMessageReader"


SETTINGS: Final[Mapping[str, tuple[str, int | str | None, str]]] = {
    "--batch-size BYTES": ("batch.size", 16_384, "size at which a batch is sent"),
    "--max-partition-memory-bytes BYTES": ("batch.size", None, "old name of --batch-size"),
    "--timeout MS": ("linger.ms", 1000, "how long a batch waits for more records"),
    "--request-required-acks ACKS": (
        *("acks", "-1"),
        "who must store a record before it counts as sent: 0 nobody, 1 the leader, all or -1 all "
        "in-sync replicas",
    ),
    "--request-timeout-ms MS": ("request.timeout.ms", 1500, "timeout of a request"),
    "--max-memory-bytes BYTES": (
        "buffer.memory",
        33_554_432,
        "memory for records that are not acknowledged yet",
    ),
    "--max-block-ms MS": (
        *("max.block.ms", 60_000),
        "how long sending a line may block when memory is full or metadata are missing",
    ),
    "--message-send-max-retries N": ("retries", 3, "how often a batch is sent again"),
    "--retry-backoff-ms MS": ("retry.backoff.ms", 100, "wait before a retry"),
    "--metadata-expiry-ms MS": (
        *("metadata.max.age.ms", 300_000),
        "age at which metadata are fetched again",
    ),
    "--socket-buffer-size BYTES": ("send.buffer.bytes", 102_400, "send buffer of the socket"),
}
"""The tool's options that set a producer option: which, the tool's default (None keeps the
producer's), and what it is."""


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--topic TOPIC": "send to this topic",
        "--partition PARTITION": "send to this partition of the topic (default: the partitioner "
        "chooses)",
        "--reader-property --property NAME=VALUE …": "how to read a line: "
        f"{', '.join(READER_DEFAULTS)}; these override --reader-config",
        "--reader-config FILE": "a file of reader properties, one NAME=VALUE a line",
        f"--line-reader CLASS={LINE_READER}": "accepted for compatibility; only Kafka's default "
        "class, since readers are Java",
        "--sync": "wait for each record's acknowledgement before reading the next line",
        "--compression-codec [CODEC=gzip]": "compress batches: none, gzip, snappy, lz4 or zstd; "
        "without a name, gzip (compression.type; default: none)",
    }
    add_options(parser, options, required=("--topic",))
    settings = {
        usage: f"{text}; sets {option}{'' if default is None else f' (default: {default})'}"
        for usage, (option, default, text) in SETTINGS.items()
    }
    add_options(parser, settings, types={usage.split()[0]: str for usage in settings})
    add_options(parser, {"--json": "at the end print one JSON object: how many were sent"})
    add_client_options(parser, properties=["--producer-property"], files=["--producer.config"])
    refuse_broker_list(parser)


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.blocking.producer import Producer

    reader = choose_reader(arguments)
    failures = Failures()

    def acknowledged(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            failures.count_failure(error)

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
    for usage, (option, default, _) in SETTINGS.items():
        value = getattr(arguments, usage.split()[0][2:].replace("-", "_"))
        if value is not None:
            options[option] = value
        elif default is not None:
            options.setdefault(option, default)
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
    return LineReader(read_tool_properties(arguments.reader_config, arguments.reader_property))


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
        chosen = complete_properties(properties, READER_DEFAULTS, "reader")
        self._parse_key, self._parse_headers, self._ignore_error = (
            chosen[name].strip().lower() == "true" for name in _FLAGS
        )
        self._separators = {name: _separator(chosen, name) for name in _SEPARATORS}
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
            text, line = self._split(line, "headers.delimiter", number)
            if text is not None and text != self._null:
                parts = text.split(self._separators["headers.separator"])
                headers = [self._read_header(part, number) for part in parts]
        key = None
        if self._parse_key:
            key, line = self._split(line, "key.separator", number)
        return Line(self._or_null(key), self._or_null(line), headers)

    def _read_header(self, part: bytes, number: int) -> tuple[str, bytes | None]:
        name, value = self._split(part, "headers.key.separator", number)
        if name is None:  # ignore.error=true: the whole text is the name
            return value.decode("utf-8", "replace"), None
        if name == self._null:
            raise UsageError(
                f"line {number}: a header's name is the null marker {name.decode()!r}; "
                "names cannot be null: choose another null.marker"
            )
        return name.decode("utf-8", "replace"), self._or_null(value)

    def _split(self, line: bytes, what: str, number: int) -> tuple[bytes | None, bytes]:
        separator = self._separators[what]
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
    pairs = [*combinations(_OF_HEADERS, 2), *((_NULL_MARKER, name) for name in _SEPARATORS)]
    for one, other in pairs:
        if chosen[one] == chosen[other]:
            raise UsageError(f"{one} and {other} are both {chosen[one]!r}: they must differ")
