"""Send each line of standard input as a record, as kafka-console-producer does.

A line is a value; with parse.key=true it is `key TAB value`, with parse.headers=true it begins with
`name:value,name:value TAB`. An empty line is an empty value.

Defaults are those of kafka-console-producer, which differ from a producer's own: records wait up to
1000 ms for company (--timeout is linger.ms), so lines typed within a second share a batch; a
request may take 1500 ms; three retries.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trimtab.cli.failures import Failures
from trimtab.cli.options import (
    add_client_options,
    read_client_options,
    read_pairs,
    read_properties_file,
)
from trimtab.cli.reach import unreachable_is_said
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
    """An option of the tool that stands for one of the producer's.

    Attributes:
        default: the tool's own; None leaves the producer's.
    """

    flag: str
    option: str
    default: int | str | None
    metavar: str
    help: str


SETTINGS = (
    Setting("--batch-size", "batch.size", 16_384, "BYTES", "the size at which a batch is sent"),
    Setting(
        "--max-partition-memory-bytes", "batch.size", None, "BYTES", "old name of --batch-size"
    ),
    Setting("--timeout", "linger.ms", 1000, "MS", "how long a record may wait for others"),
    Setting("--request-required-acks", "acks", "-1", "ACKS", "whose acknowledgement counts"),
    Setting(
        "--request-timeout-ms", "request.timeout.ms", 1500, "MS", "how long a request may take"
    ),
    Setting("--max-memory-bytes", "buffer.memory", 33_554_432, "BYTES", "what may wait to be sent"),
    Setting("--max-block-ms", "max.block.ms", 60_000, "MS", "how long reading may be held up"),
    Setting("--message-send-max-retries", "retries", 3, "N", "how often a batch is sent again"),
    Setting("--retry-backoff-ms", "retry.backoff.ms", 100, "MS", "the wait before that"),
    Setting(
        "--metadata-expiry-ms", "metadata.max.age.ms", 300_000, "MS", "how long metadata are used"
    ),
    Setting("--socket-buffer-size", "send.buffer.bytes", 102_400, "BYTES", "the socket's buffer"),
)


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
        help="how to read a line: " + ", ".join(READER_DEFAULTS) + "; stronger than the file's",
    )
    parser.add_argument(
        "--reader-config", metavar="FILE", help="a file of those, one NAME=VALUE a line"
    )
    parser.add_argument(
        "--line-reader",
        default=LINE_READER,
        metavar="CLASS",
        help="only Kafka's own, which is the default: readers are Java classes",
    )
    parser.add_argument(
        "--sync", action="store_true", help="wait for each record's acknowledgement"
    )
    parser.add_argument(
        "--compression-codec",
        nargs="?",
        const="gzip",
        metavar="CODEC",
        help="none, gzip, snappy, lz4 or zstd; without a name: gzip (default: none)",
    )
    for setting in SETTINGS:
        default = "" if setting.default is None else f" (default: {setting.default})"
        parser.add_argument(
            setting.flag,
            metavar=setting.metavar,
            help=f"{setting.help}: {setting.option}{default}",
        )
    add_client_options(parser, properties=["--producer-property"], files=["--producer.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.producer import Producer

    reader = choose_reader(arguments)
    failures = Failures()

    def acknowledged(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            failures.add(error)

    interactive = sys.stdin.isatty()
    count = 0
    options = choose_options(arguments)
    with unreachable_is_said(options):
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
            # What was read is sent, whatever ended the reading: Kafka's tool closes on its way
            # out too.
            producer.close()
    return failures.report(count)


def choose_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The producer's options: the tool's own over the general ones over the tool's defaults."""
    options = read_client_options(arguments)
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
    """The reader of lines: --reader-property over --reader-config over its defaults.

    Raises:
        UsageError: another --line-reader, an unknown property, or separators that do not fit.
    """
    if arguments.line_reader not in (LINE_READER, "kafka.tools.ConsoleProducer$LineMessageReader"):
        raise UsageError(
            f"--line-reader {arguments.line_reader}: a line reader is a Java class, and no Java "
            "runs here; use the reader properties, or a program of yours with trimtab.Producer"
        )
    properties = {}
    if arguments.reader_config is not None:
        properties.update(read_properties_file(arguments.reader_config))
    properties.update(read_pairs(arguments.reader))
    return LineReader(properties)


class Line(NamedTuple):
    """What one line of input says."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LineReader:
    """Splits lines into headers, key and value, by Kafka's reader properties.

    Source: `org.apache.kafka.tools.LineMessageReader`; but separators are always text, never
    regular expressions, and one may not be empty.

    Raises:
        UsageError: an unknown property, or two separators, or one and the null marker, are equal.
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
        """The record of one line, without its line end.

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
        if name is None:  # ignore.error=true: what could not be split counts as the name
            return value.decode("utf-8", "replace"), None
        if name == self._null:
            raise UsageError(
                f"line {number}: a header's name is the null marker {name.decode()!r}; "
                "names cannot be null, choose another null.marker"
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


def _refuse_equal(chosen: Mapping[str, str]) -> None:
    """What could not be told apart is refused, pair by pair as in Kafka."""
    of_headers = ("headers.delimiter", "headers.separator", "headers.key.separator")
    pairs = [
        *((one, other) for at, one in enumerate(of_headers) for other in of_headers[at + 1 :]),
        *((_NULL_MARKER, name) for name in ("key.separator", *of_headers)),
    ]
    for one, other in pairs:
        if chosen[one] == chosen[other]:
            raise UsageError(f"{one} and {other} are both {chosen[one]!r}: they must differ")
