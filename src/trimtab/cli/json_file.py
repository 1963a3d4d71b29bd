"""The JSON files of Kafka's tools, which list partitions or topics.

{"version": 1, "partitions": [{"topic": "flights", "partition": 0, …}, …]}
"""

from __future__ import annotations

import json
from typing import Any, Final

from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

VERSION: Final = 1


def read_entries(path: str, name: str, form: str) -> list[Any]:
    """The list with this name in the file's object.

    Args:
        form: what the file should look like, for the error.

    Raises:
        UsageError: the file cannot be read, is not JSON, or has another version or form.
    """
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("version", VERSION) != VERSION:
        raise UsageError(f'{path}: a JSON object with "version": {VERSION} is needed')
    entries = document.get(name)
    if not isinstance(entries, list):
        raise UsageError(f"{path} should be as in {form}")
    return entries


def read_partition_entries(path: str, form: str) -> dict[TopicPartition, dict[str, Any]]:
    """The entries of "partitions", by partition.

    Raises:
        UsageError: as `read_entries`; or the file names no partition, or one twice.
    """
    found: dict[TopicPartition, dict[str, Any]] = {}
    for entry in read_entries(path, "partitions", form):
        match entry:
            case {"topic": str(topic), "partition": int(index)} if (
                topic and index >= 0 and not isinstance(index, bool)
            ):
                partition = TopicPartition(topic, index)
            case _:
                raise UsageError(f"{path}: {entry} should be as in {form}")
        if partition in found:
            raise UsageError(f"{path}: partition {partition} is listed more than once")
        found[partition] = entry
    if not found:
        raise UsageError(f"{path} names no partition: there is nothing to do")
    return found
