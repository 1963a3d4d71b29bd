"""The JSON documents of kafka-reassign-partitions: topics to move, and replicas of partitions.

{"version": 1, "topics": [{"topic": "flights"}]}
{"version": 1, "partitions": [{"topic": "flights", "partition": 0, "replicas": [1, 2],
                               "log_dirs": ["any", "any"]}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trimtab.cli.json_file import VERSION, read_entries, read_partition_entries
from trimtab.cli.table import show_count
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

_ANY = "any"
_TOPICS = '{"version": 1, "topics": [{"topic": "t"}, …]}'
_ASSIGNMENT = (
    '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}, …]}'
)


def read_topics(path: str) -> list[str]:
    """The topics of a --topics-to-move-json-file.

    Raises:
        UsageError: the file cannot be read, has another form, or names a topic twice.
    """
    topics = []
    for entry in read_entries(path, "topics", _TOPICS):
        match entry:
            case {"topic": str(topic)}:
                topics.append(topic)
            case _:
                raise UsageError(f"{path}: {entry} should be as in {_TOPICS}")
    twice = sorted({topic for topic in topics if topics.count(topic) > 1})
    if twice:
        raise UsageError(f"{path} names {', '.join(twice)} more than once")
    return topics


class Assignment(NamedTuple):
    """The contents of a --reassignment-json-file.

    Attributes:
        replicas: broker ids by partition, the preferred leader first.
        directories: log directories by partition and broker; without those given as "any".
    """

    replicas: dict[TopicPartition, list[int]]
    directories: dict[tuple[TopicPartition, int], str]


def read_assignment(path: str) -> Assignment:
    """Read a --reassignment-json-file.

    Raises:
        UsageError: the file cannot be read, has another form, names no partition, or names a
            partition or one of its brokers twice.
    """
    assignment = Assignment({}, {})
    for partition, entry in read_partition_entries(path, _ASSIGNMENT).items():
        match entry:
            case {"replicas": [*replicas]} if all(isinstance(broker, int) for broker in replicas):
                name = f"{path}: partition {partition}"
            case _:
                raise UsageError(f"{path}: {entry} should be as in {_ASSIGNMENT}")
        if not replicas or len(set(replicas)) < len(replicas):
            raise UsageError(f"{name} has replicas {replicas}: name each broker once")
        log_dirs = entry.get("log_dirs", [_ANY] * len(replicas))
        if len(log_dirs) != len(replicas):
            raise UsageError(
                f"{name} has {show_count(len(replicas), 'replica')}, but {len(log_dirs)} log_dirs"
            )
        assignment.replicas[partition] = replicas
        for broker, directory in zip(replicas, log_dirs, strict=True):
            if directory != _ANY:
                assignment.directories[partition, broker] = directory
    return assignment


def write_assignment(assignment: Mapping[TopicPartition, Sequence[int]]) -> str:
    """An assignment in one line, as kafka-reassign-partitions prints it."""
    return json.dumps(describe_assignment(assignment), separators=(",", ":"))


def describe_assignment(assignment: Mapping[TopicPartition, Iterable[int]]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": (listed := list(replicas)),
                "log_dirs": [_ANY] * len(listed),
            }
            for partition, replicas in sorted(assignment.items())
        ],
    }
