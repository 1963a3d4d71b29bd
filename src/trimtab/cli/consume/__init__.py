"""Print the records of topics to standard output, as kafka-console-consumer does.

With --group it shares the topics' partitions with the other members of the group, begins where the
group has read up to, and commits the offsets of what it has printed, also at Ctrl-C. Without
--group it reads all partitions that there are when it starts, and commits nothing; it begins at the
end of each, unless --from-beginning, --offset, --since or --last is given.

It runs until Ctrl-C, --max-messages or --timeout-ms. With --last, --since or --until it ends at the
ends that the partitions had when it began, unless --follow is given.

--where prints only some records: an expression of topic, partition, offset, timestamp, time, key,
value, headers, and fields of JSON such as value.country, with ==, <, in, and, or, not, and ~ for
regular expressions. --format has the same fields in braces.

Tests of reading: test_consume.py
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, Final

from trimtab.cli.consume.formats import FORMATTER_DEFAULTS, Template, TextFormat, write_json
from trimtab.cli.consume.reading import (
    OPTIONS,
    POLL_MS,
    Bounds,
    Source,
    choose_records,
    find_span,
    read_bounds,
    read_last,
    refuse_with_group,
)
from trimtab.cli.options import (
    add_client_options,
    add_options,
    is_given,
    read_client_options,
    read_tool_properties,
    refuse_both,
)
from trimtab.cli.reach import report_unreachable
from trimtab.cli.selection import choose_partitions, connect_admin, list_partitions
from trimtab.cli.stopping import Stop
from trimtab.cli.style import say_note, say_warning
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record, TopicPartition
from trimtab.threads.clock import wall_clock_ms

if TYPE_CHECKING:
    from trimtab.cli.consume.decoding import Registry
    from trimtab.client.blocking.consumer import Consumer
    from trimtab.client.blocking.merged_records import MergedRecords

EXAMPLES = """\
  trimtab consume --topic greetings --from-beginning --timeout-ms 1000
  trimtab consume --topic flights --group billing --from-beginning
  trimtab consume --include 'flights.*' --isolation-level read_committed
  trimtab consume --topic flights --partition 2 --offset 1000 --max-messages 5 --json
  trimtab consume --topic flights --last 10 --follow --formatter-property print.key=true
  trimtab consume --topic flights,fares --since 1h --where "value.country == 'CH'" \\
      --format '{topic}-{partition}@{offset} {time} {key} {value.price}'
"""

CLIENT_ID: Final = "console-consumer"

COMMIT_S: Final = 5.0
"""With --merge and --group what was printed is committed so often, as by enable.auto.commit."""


def add_topics(parser: argparse.ArgumentParser) -> None:
    """The topics that a consumer reads."""
    options = {
        "--topic TOPIC,… *": "read these topics",
        "| --include REGEX": "read the topics whose whole name matches",
    }
    add_options(parser, options, required=("--topic",))


def read_topics(arguments: argparse.Namespace) -> list[str] | re.Pattern[str]:
    """The topics of `add_topics`.

    Raises:
        UsageError: it is not a regular expression.
    """
    if arguments.include is not None:
        return read_pattern(arguments.include)
    names = [name for words in arguments.topic for name in words.split(",")]
    return list(dict.fromkeys(names))


def configure(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    options = {
        "--partition PARTITION": "read only this partition of the topic (default: all)",
        "--group GROUP": "read as a member of this consumer group (default: none)",
        "--from-beginning": "begin with the earliest record; with --group only where the group "
        "has no offset",
        "| --offset OFFSET": "where to begin: a number (with --partition), earliest or latest "
        "(default: latest); not with --group",
        **OPTIONS,
        "--follow": "with --last or --since: go on with new records",
        "--where EXPRESSION": "only records for which this is true, such as \"key ~ '^ab' and "
        'value.price < 5"',
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
        "--format TEMPLATE": "what to print of each record, such as '{key}: {value.price}'",
        "--json": "print each record as a JSON object; keys and values that are not UTF-8 are "
        "base64",
        "--schema-registry URL": "decode keys and values that have the id of an Avro, JSON or "
        "Protobuf schema of this Schema Registry; prints them as JSON",
        "--schema-registry-property NAME=VALUE …": "settings of confluent-kafka's "
        "SchemaRegistryClient, such as basic.auth.user.info=USER:PASSWORD or ssl.ca.location=FILE",
        "--schema-registry-config FILE": "a file of such settings",
    }
    add_options(parser, options)
    add_client_options(parser, properties=["--consumer-property"], files=["--consumer.config"])


def run(arguments: argparse.Namespace) -> int:
    from trimtab.client.blocking.consumer import Consumer
    from trimtab.client.blocking.merged_records import merge_split

    bounds = read_bounds(arguments, wall_clock_ms())
    printer = Printer(arguments, bounds)
    options = read_options(arguments, bounds)
    topics = read_topics(arguments)
    registry = read_registry(arguments)
    partitions = [] if "group.id" in options else find_partitions(arguments, options, topics)
    decoding: dict[str, Any] = {} if registry is None else registry.options()
    with (
        Stop() as stop,
        nullcontext() if registry is None else closing(registry),
        report_unreachable(options),
        Consumer({**options, **decoding}) as consumer,
    ):
        merged = merge_split(consumer) if arguments.merge else None

        def commit_merged() -> None:
            if merged is not None and "group.id" in options:
                merged.commit()

        if "group.id" in options:
            consumer.subscribe(topics)
            source = Source(consumer, None, merged, waits=True)
        else:
            source = begin(consumer, partitions, arguments, bounds, merged, printer, stop)
        try:
            waiting_since = committed_at = time.monotonic()
            while not stop.code and not source.is_over and printer.left != 0:
                records = source.poll(
                    # A group must not have read what is not printed.
                    wait_ms(arguments.timeout_ms, waiting_since),
                    printer.left if "group.id" in options else None,
                )
                if records:
                    printer.print(records)
                    waiting_since = time.monotonic()
                    if waiting_since - committed_at >= COMMIT_S:
                        commit_merged()
                        committed_at = waiting_since
                elif wait_ms(arguments.timeout_ms, waiting_since) == 0:
                    break
            commit_merged()
        finally:
            say_note(f"Processed a total of {printer.printed} messages")
            if merged is not None and merged.held:
                say_note(f"{merged.held} more wait for earlier ones of their keys")
            if registry is not None and registry.failed:
                say_warning(f"not decoded: {registry.failed:,}; the first is {registry.first}")
    return stop.code


def begin(
    consumer: Consumer,
    partitions: list[TopicPartition],
    arguments: argparse.Namespace,
    bounds: Bounds,
    merged: MergedRecords | None,
    printer: Printer,
    stop: Stop,
) -> Source:
    """Assign the partitions, and seek to where reading begins; prints what --last asks for."""
    consumer.assign(partitions)
    if not bounds.is_given:
        start = "earliest" if arguments.from_beginning else arguments.offset or "latest"
        seek_partitions(consumer, partitions, start)
        return Source(consumer, None, merged, waits=True)
    span = find_span(consumer, partitions, bounds)
    if arguments.offset not in (None, "earliest"):
        first = read_offset(arguments.offset, partitions)
        span = {each: (min(first, end), end) for each, (_, end) in span.items()}
    if bounds.last is not None:
        printer.print(read_last(consumer, span, bounds.last, printer.is_wanted, stop))
        span = {each: (end, end) for each, (_, end) in span.items()}
        consumer.assign(partitions)
    source = Source(consumer, None if bounds.follows else span, merged, bounds.follows)
    for partition, (first, _) in span.items():
        source.seek(partition, first)
    return source


class Printer:
    """Prints the records that are asked for, up to --max-messages.

    Attributes:
        is_wanted: whether to print a record; None for all.
        printed: how many it has printed.
    """

    def __init__(self, arguments: argparse.Namespace, bounds: Bounds) -> None:
        self._write = choose_format(arguments)
        self.is_wanted = choose_records(bounds, arguments.where)
        self._limit = read_limit(arguments.max_messages)
        self.printed = 0

    @property
    def left(self) -> int | None:
        """How many more records to print; None if there is no limit."""
        return None if self._limit is None else self._limit - self.printed

    def print(self, records: Sequence[Record]) -> None:
        output = sys.stdout.buffer
        for record in records:
            if self.left == 0:
                break
            if self.is_wanted is None or self.is_wanted(record):
                output.write(self._write(record))
                self.printed += 1
        output.flush()


def choose_format(arguments: argparse.Namespace) -> Callable[[Record], bytes]:
    """Raises:
    UsageError: two of --json, --format and --formatter-property are given.
    """
    refuse_both(arguments, "json", "format")
    formatter = read_formatter(arguments)
    if arguments.json:
        return write_json
    if arguments.format is None:
        return TextFormat(formatter).write
    for name in ("formatter_property", "formatter_config"):
        refuse_both(arguments, "format", name)
    return Template(arguments.format).write


def read_registry(arguments: argparse.Namespace) -> Registry | None:
    """The Schema Registry that is asked.

    Raises:
        UsageError: packages are missing, or settings are wrong.
    """
    path, words = arguments.schema_registry_config, arguments.schema_registry_property
    if arguments.schema_registry is None:
        if path is not None or words:
            raise UsageError(
                "settings of a Schema Registry need its address: --schema-registry URL"
            )
        return None
    try:
        from trimtab.cli.consume.decoding import connect_registry
    except ImportError as error:
        raise UsageError(
            f"--schema-registry needs more packages ({error}): pip install "
            "'trimtab[schema-registry]'"
        ) from None
    return connect_registry(arguments.schema_registry, read_tool_properties(path, words))


def read_formatter(arguments: argparse.Namespace) -> dict[str, str]:
    """The properties of --formatter-config, overridden by those of --formatter-property."""
    return read_tool_properties(arguments.formatter_config, arguments.formatter_property)


def read_options(arguments: argparse.Namespace, bounds: Bounds) -> dict[str, Any]:
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
        names = ("partition", "offset", "last", "since", "until", "follow")
        refuse_with_group(arguments, names)
    if arguments.merge and arguments.partition is not None:
        raise UsageError(
            f"--partition {arguments.partition} does not go with --merge, which needs all "
            "partitions: leave out one of them"
        )
    if arguments.merge and "group.id" in options:
        options.setdefault("enable.auto.commit", "false")
    if arguments.partition is not None and arguments.include is not None:
        raise UsageError(f"--partition {arguments.partition} needs --topic, not --include")
    refuse_bounds(arguments, bounds)
    if bounds.is_given:
        options["auto.offset.reset"] = "earliest" if bounds.follows else "none"
    elif arguments.from_beginning:
        reset = options.setdefault("auto.offset.reset", "earliest")
        if reset != "earliest":
            raise UsageError(f"--from-beginning, but auto.offset.reset={reset}: give one")
    return options


def refuse_bounds(arguments: argparse.Namespace, bounds: Bounds) -> None:
    """Raises:
    UsageError: where to begin and to end contradict each other.
    """
    refuse_both(arguments, "merge", "last")  # each has an order
    for one in ("last", "since"):
        for other in ("from_beginning", "offset"):
            refuse_both(arguments, one, other)
    begins = is_given(arguments.from_beginning) or arguments.offset not in (None, "latest")
    if bounds.until is not None and not (begins or arguments.since or arguments.last):
        raise UsageError(
            f"--until {arguments.until} needs where to begin: give --since, --last, "
            "--from-beginning, or an --offset before the end"
        )
    if bounds.follows and not bounds.is_given:
        raise UsageError("--follow goes with --last or --since; without them all is followed")


def read_pattern(text: str) -> re.Pattern[str]:
    """Raises:
    UsageError: it is not a regular expression.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--include {text!r} is not a regular expression: {error}") from None


def find_partitions(
    arguments: argparse.Namespace,
    options: Mapping[str, Any],
    topics: list[str] | re.Pattern[str],
) -> list[TopicPartition]:
    """The partitions to read without a group.

    Raises:
        BrokerError: there is no such topic.
        UsageError: there is no such partition, or no topic matches.
    """
    from trimtab.client.options import ADMIN

    partition = arguments.partition
    with connect_admin({name: options[name] for name in options if name in ADMIN}) as admin:
        if isinstance(topics, list) and partition is not None:
            if len(topics) > 1:
                raise UsageError(f"--partition {partition} is of one topic: name only one")
            return choose_partitions(admin, topics[0], partition)
        names = (
            topics if isinstance(topics, list) else list(filter(topics.fullmatch, admin.topics()))
        )
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
    else:
        consumer.seek(partitions[0], read_offset(offset, partitions))


def read_offset(offset: str, partitions: list[TopicPartition]) -> int:
    """Raises:
    UsageError: it is no number, or there is more than one partition.
    """
    if not offset.isdecimal():
        raise UsageError(f"--offset {offset!r}: write a number, earliest or latest")
    if len(partitions) > 1:
        raise UsageError(f"--offset {offset} needs --partition: each partition has its own offsets")
    return int(offset)


def wait_ms(timeout_ms: int | None, since_s: float) -> int:
    """How long the next poll may wait, in milliseconds; 0 when the timeout has passed."""
    if timeout_ms is None:
        return POLL_MS
    left_ms = timeout_ms - (time.monotonic() - since_s) * 1000
    return max(0, min(POLL_MS, int(left_ms)))
