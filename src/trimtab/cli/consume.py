"""Print the records of a topic to standard output, as kafka-console-consumer does.

It assigns itself the partitions, without a consumer group: it commits no offsets, and two of these
commands do not share a topic's partitions. It begins at the end of each partition, unless
--from-beginning or --offset is given, and runs until Ctrl-C, --max-messages or --timeout-ms.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trimtab.cli.options import add_client_options, add_list_option, read_client_options, read_pairs
from trimtab.cli.selection import choose_partitions, connect_admin
from trimtab.errors import UsageError
from trimtab.records import Record, TimestampType, TopicPartition

if TYPE_CHECKING:
    from trimtab.blocking.consumer import Consumer

EXAMPLES = """\
  trimtab consume --topic greetings --from-beginning --timeout-ms 1000
  trimtab consume --topic flights --partition 2 --offset 1000 --max-messages 5 --json
  trimtab consume --topic flights --from-beginning --max-messages 10 \\
      --formatter-property print.key=true print.partition=true print.offset=true
"""

POLL_MS = 500
"""Longest wait of one poll; --timeout-ms is checked after each poll."""

FORMATTER_DEFAULTS = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="read this topic")
    parser.add_argument(
        "--partition", type=int, help="read only this partition of the topic (default: all)"
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from-beginning", action="store_true", help="begin with the earliest record"
    )
    start.add_argument(
        "--offset",
        default="latest",
        help="where to begin: a number (with --partition), earliest or latest (default: latest)",
    )
    parser.add_argument(
        "--max-messages", type=int, metavar="N", help="end after N records (default: -1, no limit)"
    )
    parser.add_argument(
        "--timeout-ms",
        type=int,
        metavar="MS",
        help="end when no record has arrived for this many milliseconds (default: never)",
    )
    add_list_option(
        parser,
        "--formatter-property",
        "--property",
        dest="formatter",
        metavar="NAME=VALUE",
        help="what to print of each record: " + ", ".join(FORMATTER_DEFAULTS),
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print each record as a JSON object; keys and values that are not UTF-8 are base64",
    )
    add_client_options(parser, properties=["--consumer-property"], files=["--consumer.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.blocking.consumer import Consumer

    write_record = (
        write_json if arguments.json else TextFormat(read_pairs(arguments.formatter)).write
    )
    limit = read_limit(arguments.max_messages)
    options = read_client_options(arguments)
    with connect_admin({"bootstrap.servers": options["bootstrap.servers"]}) as admin:
        partitions = choose_partitions(admin, arguments.topic, arguments.partition)
    output = sys.stdout.buffer
    printed = 0
    with Consumer(**options) as consumer:
        consumer.assign(partitions)
        begin(consumer, partitions, "earliest" if arguments.from_beginning else arguments.offset)
        waiting_since = time.monotonic()
        try:
            while limit is None or printed < limit:
                records = consumer.poll(timeout_ms=wait_ms(arguments.timeout_ms, waiting_since))
                if records:
                    for record in records if limit is None else records[: limit - printed]:
                        output.write(write_record(record))
                        printed += 1
                    output.flush()
                    waiting_since = time.monotonic()
                elif wait_ms(arguments.timeout_ms, waiting_since) == 0:
                    break
        finally:
            print(f"Processed a total of {printed} messages", file=sys.stderr)
    return 0


def read_limit(count: int | None) -> int | None:
    """How many records to print; None, which -1 also means as in Kafka, for no limit.

    Raises:
        UsageError: any other negative number.
    """
    if count is not None and count < -1:
        raise UsageError(f"--max-messages {count}: write a number of records, or -1 for no limit")
    return None if count == -1 else count


def begin(consumer: Consumer, partitions: list[TopicPartition], offset: str) -> None:
    """Seek every partition to `earliest`, `latest` or a number.

    Raises:
        UsageError: another word, or a number for more than one partition.
    """
    if offset == "earliest":
        consumer.seek_to_beginning(*partitions)
    elif offset == "latest":
        consumer.seek_to_end(*partitions)
    elif offset.isdecimal():
        if len(partitions) > 1:
            raise UsageError(
                f"--offset {offset} needs --partition: each partition has its own offsets"
            )
        consumer.seek(partitions[0], int(offset))
    else:
        raise UsageError(f"--offset {offset!r}: write a number, earliest or latest")


def wait_ms(timeout_ms: int | None, since_s: float) -> int:
    """How long the next poll may wait, in milliseconds; 0 when the timeout has passed."""
    if timeout_ms is None:
        return POLL_MS
    left_ms = timeout_ms - (time.monotonic() - since_s) * 1000
    return max(0, min(POLL_MS, int(left_ms)))


class TextFormat:
    """One record as text, by the properties of Kafka's DefaultMessageFormatter.

    Raises:
        UsageError: an unknown property.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        for name in properties:
            if name not in FORMATTER_DEFAULTS:
                known = ", ".join(FORMATTER_DEFAULTS)
                raise UsageError(f"unknown formatter property {name!r}: known are {known}")
        chosen = {**FORMATTER_DEFAULTS, **properties}
        self._shown = {
            name.removeprefix("print.")
            for name, value in chosen.items()
            if name.startswith("print.") and value.lower() == "true"
        }
        unescaped = {
            name: value.replace("\\t", "\t").replace("\\n", "\n").encode()
            for name, value in chosen.items()
        }
        self._key_separator = unescaped["key.separator"]
        self._line_separator = unescaped["line.separator"]
        self._headers_separator = unescaped["headers.separator"]
        self._null = unescaped["null.literal"]

    def write(self, record: Record) -> bytes:
        fields = []
        if "timestamp" in self._shown:
            fields.append(_write_timestamp(record))
        if "partition" in self._shown:
            fields.append(b"Partition:%d" % record.partition)
        if "offset" in self._shown:
            fields.append(b"Offset:%d" % record.offset)
        if "headers" in self._shown:
            fields.append(
                self._headers_separator.join(
                    name.encode() + b":" + self._or_null(value) for name, value in record.headers
                )
                or b"NO_HEADERS"
            )
        if "key" in self._shown:
            fields.append(self._or_null(record.key))
        if "value" in self._shown:
            fields.append(self._or_null(record.value))
        return self._key_separator.join(fields) + self._line_separator

    def _or_null(self, data: bytes | None) -> bytes:
        return self._null if data is None else data


def _write_timestamp(record: Record) -> bytes:
    kind = {
        TimestampType.CREATE_TIME: b"CreateTime",
        TimestampType.LOG_APPEND_TIME: b"LogAppendTime",
    }.get(record.timestamp_type)
    return b"NO_TIMESTAMP" if kind is None else kind + b":%d" % record.timestamp


def write_json(record: Record) -> bytes:
    """One record as a JSON object on a line of its own."""
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type.name,
        **_write_bytes("key", record.key),
        **_write_bytes("value", record.value),
        "headers": [
            {"name": name, **_write_bytes("value", value)} for name, value in record.headers
        ],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _write_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """The field as text, or as `nameBase64` where the bytes are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode("ascii")}
