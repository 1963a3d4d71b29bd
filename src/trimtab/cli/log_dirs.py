"""Show the replicas in brokers' log directories, with the options of kafka-log-dirs.

Without --describe the command prints a table for each broker and directory: the replicas, bytes and
lag of each topic. With --describe, which kafka-log-dirs requires, it prints the lines of that tool:
two of text and one of JSON. --json prints the line of JSON alone.

A replica's lag is the number of records that it is behind the high watermark. A future replica is a
copy that will replace a replica in another directory; its lag is how far it is behind that replica.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from trimtab.cli.options import add_client_options, add_options
from trimtab.cli.selection import connect
from trimtab.cli.style import ERROR, WARNING, paint
from trimtab.cli.table import align, show_count, show_size
from trimtab.kafka.errors import BrokerError, ErrorCode, UsageError

if TYPE_CHECKING:
    from trimtab.client.admin import LogDirectory, ReplicaLog
    from trimtab.kafka.records import TopicPartition

EXAMPLES = """\
  trimtab log-dirs
  trimtab log-dirs --broker-list 0,1 --topic-list flights,carriers
  trimtab log-dirs --describe --topic-list flights
  trimtab log-dirs --json | jq '.brokers[].logDirs[].partitions[].size'
"""

_JAVA_ERRORS: Final = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "UnknownServerException",
    ErrorCode.KAFKA_STORAGE_ERROR: "KafkaStorageException",
    ErrorCode.LOG_DIR_NOT_FOUND: "LogDirNotFoundException",
}
"""The names that Kafka's tool prints for errors of a directory."""

_HEADINGS: Final = ("topic", "replicas", "future", "size", "lag")


def configure(parser: argparse.ArgumentParser) -> None:
    options = {
        "--describe": "print the same lines as kafka-log-dirs",
        "--json": "print only the line of JSON",
        "--broker-list ID,…=": "show only these brokers (default: all)",
        "--topic-list NAME,…=": "show only these topics (default: all)",
    }
    add_options(parser, options)
    add_client_options(parser)


def run(arguments: argparse.Namespace) -> int:
    brokers = read_brokers(arguments.broker_list)
    topics = {each for each in arguments.topic_list.split(",") if each}
    with connect(arguments) as admin:
        found = {
            broker: [_keep(each, topics) for each in directories]
            for broker, directories in admin.describe_log_dirs(brokers or None).items()
        }
    if arguments.describe and not arguments.json:
        print("Querying brokers for log directories information")
        print(f"Received log directory information from brokers {','.join(map(str, found))}")
    write = write_json if arguments.json or arguments.describe else write_tables
    print(write(found))
    return 0


def read_brokers(text: str) -> list[int]:
    """`0,1,2` as numbers.

    Raises:
        UsageError: the text has another form.
    """
    words = [each for each in text.split(",") if each]
    if not all(each.isdecimal() for each in words):
        raise UsageError(f"--broker-list {text!r}: write broker numbers, such as 0,1,2")
    return [int(each) for each in words]


def _keep(directory: LogDirectory, topics: set[str]) -> LogDirectory:
    logs = directory.logs
    chosen = {each: logs[each] for each in sorted(logs) if not topics or each.topic in topics}
    return directory._replace(logs=chosen)


def write_json(found: Mapping[int, Iterable[LogDirectory]]) -> str:
    """The line of JSON that kafka-log-dirs prints, with its fields in the same order."""
    shown = {
        "brokers": [
            {
                "broker": broker,
                "logDirs": [
                    {
                        "partitions": [
                            {
                                "partition": f"{partition.topic}-{partition.partition}",
                                "size": log.size,
                                "offsetLag": log.offset_lag,
                                "isFuture": log.is_future,
                            }
                            for partition, log in directory.logs.items()
                        ],
                        "error": _name_error(directory.error),
                        "logDir": directory.path,
                    }
                    for directory in directories
                ],
            }
            for broker, directories in found.items()
        ],
        "version": 1,
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def _name_error(error: BrokerError | None) -> str | None:
    if error is None:
        return None
    name = _JAVA_ERRORS.get(error.code)
    return error.code.name if name is None else f"org.apache.kafka.common.errors.{name}"


def write_tables(found: Mapping[int, Iterable[LogDirectory]]) -> str:
    """A table for people for each directory, with a line for each topic."""
    tables = []
    for broker, directories in found.items():
        for directory in directories:
            tables.append(f"broker {broker}, {directory.path}: {_summarize(directory)}")
            if directory.logs:
                tables.append(_write_topics(directory.logs))
    return "\n".join(tables)


def _summarize(directory: LogDirectory) -> str:
    if directory.error is not None:
        return paint(str(directory.error), ERROR)
    size = sum(log.size for log in directory.logs.values())
    text = f"{show_count(len(directory.logs), 'replica')}, {show_size(size)}"
    if directory.total_bytes < 0:
        return text
    free, total = show_size(directory.usable_bytes), show_size(directory.total_bytes)
    return f"{text}; {free} of {total} free"


def _write_topics(logs: Mapping[TopicPartition, ReplicaLog]) -> str:
    topics: dict[str, list[ReplicaLog]] = {}
    for partition, log in logs.items():
        topics.setdefault(partition.topic, []).append(log)
    rows: list[tuple[str, ...]] = [_HEADINGS]
    colours: list[str | None] = [None]
    for topic, of_topic in topics.items():
        lag = max(log.offset_lag for log in of_topic)
        future = sum(log.is_future for log in of_topic)
        size = show_size(sum(log.size for log in of_topic))
        rows.append((topic, str(len(of_topic)), str(future), size, str(lag)))
        colours.append(WARNING if lag else None)
    lines = align(rows, right=range(1, len(_HEADINGS)))
    return "\n".join(f"  {line}" for line in map(paint, lines, colours))
