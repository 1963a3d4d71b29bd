"""The JSON documents of kafka-reassign-partitions: topics to move, and where partitions are to be.

{"version": 1, "topics": [{"topic": "flights"}]}
{"version": 1, "partitions": [{"topic": "flights", "partition": 0, "replicas": [1, 2],
                               "log_dirs": ["any", "any"]}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trimtab.errors import UsageError
from trimtab.records import TopicPartition

_VERSION = 1
_ANY = "any"
_TOPICS = '{"version": 1, "topics": [{"topic": "t"}, …]}'
_ASSIGNMENT = (
    '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}, …]}'
)


def read_topics(path: str) -> list[str]:
    """The topics of a --topics-to-move-json-file.

    Raises:
        UsageError: it cannot be read, is something else, or names a topic twice.
    """
    topics = []
    for entry in _list(path, _read(path).get("topics"), _TOPICS):
        match entry:
            case {"topic": str(topic)}:
                topics.append(topic)
            case _:
                raise UsageError(f"{path}: {entry} should be as in {_TOPICS}")
    twice = sorted({topic for topic in topics if topics.count(topic) > 1})
    if twice:
        raise UsageError(f"{path} names {', '.join(twice)} more than once")
    return topics


def read_assignment(path: str) -> dict[TopicPartition, list[int]]:
    """Where a --reassignment-json-file puts partitions.

    Raises:
        UsageError: it cannot be read, is something else, is empty, names a partition or one of its
            brokers twice, or a directory.
    """
    document = _read(path)
    assignment: dict[TopicPartition, list[int]] = {}
    for entry in _list(path, document.get("partitions"), _ASSIGNMENT):
        match entry:
            case {"topic": str(topic), "partition": int(index), "replicas": [*replicas]} if all(
                isinstance(broker, int) for broker in replicas
            ):
                name = f"{path}: partition {topic}-{index}"
            case _:
                raise UsageError(f"{path}: {entry} should be as in {_ASSIGNMENT}")
        if TopicPartition(topic, index) in assignment:
            raise UsageError(f"{name} is there more than once")
        if not replicas or len(set(replicas)) < len(replicas):
            raise UsageError(f"{name} has replicas {replicas}: name each broker once")
        log_dirs = entry.get("log_dirs", [_ANY] * len(replicas))
        if len(log_dirs) != len(replicas):
            raise UsageError(f"{name} has {len(replicas)} replicas, but {len(log_dirs)} log_dirs")
        if any(directory != _ANY for directory in log_dirs):
            raise UsageError(
                f"{name} has log_dirs {log_dirs}: only {_ANY!r} can be done, the broker chooses"
            )
        assignment[TopicPartition(topic, index)] = replicas
    if not assignment:
        raise UsageError(f"{path} names no partition: there is nothing to do")
    return assignment


def write_assignment(assignment: Mapping[TopicPartition, Sequence[int]]) -> str:
    """As kafka-reassign-partitions writes it, in one line."""
    return json.dumps(describe_assignment(assignment), separators=(",", ":"))


def describe_assignment(assignment: Mapping[TopicPartition, Iterable[int]]) -> dict[str, Any]:
    return {
        "version": _VERSION,
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


def _list(path: str, entries: object, form: str) -> list[Any]:
    if isinstance(entries, list):
        return entries
    raise UsageError(f"{path} should be as in {form}")


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("version", _VERSION) != _VERSION:
        raise UsageError(f'{path}: a JSON object with "version": {_VERSION} is needed')
    return document
