"""Print the records of topics to standard output, as kafka-console-consumer does.

With --group it shares the topics' partitions with the other members of the group, begins where the
group has read up to, and commits the offsets of what it has printed, also at Ctrl-C. Without
--group it reads all partitions that there are when it starts, and commits nothing; it begins at the
end of each, unless --from-beginning or --offset is given.

It runs until Ctrl-C, --max-messages or --timeout-ms.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.options import (
    add_client_options,
    add_options,
    complete_properties,
    read_client_options,
    read_tool_properties,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.selection import choose_partitions, connect_admin, list_partitions
from trimtab.cli.stopping import Stop
from trimtab.cli.style import say_note
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record, TimestampType, TopicPartition

if TYPE_CHECKING:
    from trimtab.client.blocking.consumer import Consumer

EXAMPLES = """\
  trimtab consume --topic greetings --from-beginning --timeout-ms 1000
  trimtab consume --topic flights --group billing --from-beginning
  trimtab consume --include 'flights.*' --isolation-level read_committed
  trimtab consume --topic flights --partition 2 --offset 1000 --max-messages 5 --json
  trimtab consume --topic flights --from-beginning --max-messages 10 \\
      --formatter-property print.key=true print.partition=true print.offset=true
"""

CLIENT_ID: Final = "console-consumer"

POLL_MS = 200
"""Longest wait of one poll; --timeout-ms and Ctrl-C are checked after each poll."""

COMMIT_S: Final = 5.0
"""With --merge and --group what was printed is committed so often, as by enable.auto.commit."""

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


def add_topics(parser: argparse.ArgumentParser) -> None:
    """The topics that a consumer reads."""
    options = {
        "--topic TOPIC": "read this topic",
        "| --include REGEX": "read the topics whose whole name matches",
    }
    add_options(parser, options, required=("--topic",))


def configure(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    options = {
        "--partition PARTITION": "read only this partition of the topic (default: all)",
        "--group GROUP": "read as a member of this consumer group (default: none)",
        "--from-beginning": "begin with the earliest record; with --group only where the group "
        "has no offset",
        "| --offset OFFSET": "where to begin: a number (with --partition), earliest or latest "
        "(default: latest); not with --group",
        "--max-messages N": "end after N records (default: -1, no limit)",
        "--timeout-ms MS": "end when no record has arrived for this many milliseconds (default: "
        "never)",
        "--merge": "put the records of keys that producers split or moved (partitioner.hot.keys) "
        "in order; needs all partitions",
        "--isolation-level {read_committed,read_uncommitted}": "read_committed: leave out records "
        "of open and aborted transactions (default: read_uncommitted)",
        "--formatter-property --property NAME=VALUE …": "what to print of each record: "
        + ", ".join(FORMATTER_DEFAULTS),
        "--formatter-config FILE": "a file of such properties; those of --formatter-property "
        "override it",
        "--json": "print each record as a JSON object; keys and values that are not UTF-8 are "
        "base64",
    }
    add_options(parser, options)
    add_client_options(parser, properties=["--consumer-property"], files=["--consumer.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.blocking.consumer import Consumer
    from trimtab.client.blocking.merged_records import merge_split

    write_record = write_json if arguments.json else TextFormat(read_formatter(arguments)).write
    limit = read_limit(arguments.max_messages)
    options = read_options(arguments)
    pattern = None if arguments.include is None else read_pattern(arguments.include)
    partitions = [] if "group.id" in options else find_partitions(arguments, options, pattern)
    output = sys.stdout.buffer
    printed = 0
    with Stop() as stop, report_unreachable(options), Consumer(**options) as consumer:
        if "group.id" in options:
            consumer.subscribe([arguments.topic] if pattern is None else pattern)
        else:
            start = "earliest" if arguments.from_beginning else arguments.offset or "latest"
            consumer.assign(partitions)
            seek_partitions(consumer, partitions, start)
        merged = merge_split(consumer) if arguments.merge else None

        def commit_merged() -> None:
            if merged is not None and "group.id" in options:
                merged.commit()

        waiting_since = committed_at = time.monotonic()
        try:
            while not stop.code and (limit is None or printed < limit):
                records = (merged or consumer).poll(
                    timeout_ms=wait_ms(arguments.timeout_ms, waiting_since),
                    max_records=None if limit is None else limit - printed,
                )
                if records:
                    for record in records:
                        output.write(write_record(record))
                    printed += len(records)
                    output.flush()
                    waiting_since = time.monotonic()
                    if waiting_since - committed_at >= COMMIT_S:
                        commit_merged()
                        committed_at = waiting_since
                elif wait_ms(arguments.timeout_ms, waiting_since) == 0:
                    break
            commit_merged()
        finally:
            say_note(f"Processed a total of {printed} messages")
            if merged is not None and merged.held:
                say_note(f"{merged.held} more wait for earlier ones of their keys")
    return stop.code


def read_formatter(arguments: argparse.Namespace) -> dict[str, str]:
    """The properties of --formatter-config, overridden by those of --formatter-property."""
    return read_tool_properties(arguments.formatter_config, arguments.formatter_property)


def read_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The consumer's options, with those that have an option of their own.

    Raises:
        UsageError: two of them say different things.
    """
    options = {"client.id": CLIENT_ID, **read_client_options(arguments, "consumer")}
    if arguments.group is not None and options.get("group.id", arguments.group) != arguments.group:
        raise UsageError(f"--group {arguments.group}, but group.id={options['group.id']}: give one")
    if arguments.group is not None:
        options["group.id"] = arguments.group
    if arguments.isolation_level is not None:
        options["isolation.level"] = arguments.isolation_level
    if "group.id" in options:
        for name in ("partition", "offset"):
            if getattr(arguments, name) is not None:
                raise UsageError(
                    f"--{name} does not go with a group, which assigns partitions and keeps "
                    "offsets; change these with `trimtab groups --reset-offsets`"
                )
    if arguments.merge and arguments.partition is not None:
        raise UsageError(
            f"--partition {arguments.partition} does not go with --merge, which needs all "
            "partitions: leave out one of them"
        )
    if arguments.merge and "group.id" in options:
        options.setdefault("enable.auto.commit", "false")
    if arguments.partition is not None and arguments.topic is None:
        raise UsageError(f"--partition {arguments.partition} needs --topic, not --include")
    if arguments.from_beginning:
        reset = options.setdefault("auto.offset.reset", "earliest")
        if reset != "earliest":
            raise UsageError(f"--from-beginning, but auto.offset.reset={reset}: give one")
    return options


def read_pattern(text: str) -> re.Pattern[str]:
    """Raises:
    UsageError: it is not a regular expression.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--include {text!r} is not a regular expression: {error}") from None


def find_partitions(
    arguments: argparse.Namespace, options: Mapping[str, Any], pattern: re.Pattern[str] | None
) -> list[TopicPartition]:
    """The partitions to read without a group.

    Raises:
        BrokerError: there is no such topic.
        UsageError: there is no such partition, or no topic matches.
    """
    from trimtab.client.options import ADMIN

    with connect_admin({name: options[name] for name in options if name in ADMIN}) as admin:
        if pattern is None:
            return choose_partitions(admin, arguments.topic, arguments.partition)
        names = [name for name in admin.topics() if pattern.fullmatch(name)]
        if not names:
            raise UsageError(
                f"--include {arguments.include!r}: no topic matches; see `trimtab topics --list`"
            )
        views = admin.describe_topics(names)
        return [each for name in names for each in list_partitions(views[name])]


def read_limit(count: int | None) -> int | None:
    """How many records to print; None, which -1 also means as in Kafka, for no limit.

    Raises:
        UsageError: any other negative number.
    """
    if count is not None and count < -1:
        raise UsageError(f"--max-messages {count}: write a number of records, or -1 for no limit")
    return None if count == -1 else count


def seek_partitions(consumer: Consumer, partitions: list[TopicPartition], offset: str) -> None:
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
        chosen = complete_properties(properties, FORMATTER_DEFAULTS, "formatter")
        unescaped = {
            name: value.replace("\\t", "\t").replace("\\n", "\n").encode()
            for name, value in chosen.items()
        }
        self._key_separator = unescaped["key.separator"]
        self._line_separator = unescaped["line.separator"]
        self._headers_separator = unescaped["headers.separator"]
        self._null = unescaped["null.literal"]

        fields: dict[str, Callable[[Record], bytes]] = {
            "timestamp": _write_timestamp,
            "partition": lambda record: b"Partition:%d" % record.partition,
            "offset": lambda record: b"Offset:%d" % record.offset,
            "headers": self._write_headers,
            "key": lambda record: self._or_null(record.key),
            "value": lambda record: self._or_null(record.value),
        }
        self._fields = [
            write for name, write in fields.items() if chosen[f"print.{name}"].lower() == "true"
        ]

    def write(self, record: Record) -> bytes:
        fields = [write(record) for write in self._fields]
        return self._key_separator.join(fields) + self._line_separator

    def _write_headers(self, record: Record) -> bytes:
        pairs = (name.encode() + b":" + self._or_null(value) for name, value in record.headers)
        return self._headers_separator.join(pairs) or b"NO_HEADERS"

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
