"""Where a stream stands, as Spark writes it to the checkpoint.

    {"flights": {"0": 23, "1": 17}, "trimtab:state": {"ids": {"flights": "p8bs…"}}}

That is the JSON of Spark's own Kafka source, and one key more, whose name no topic can have. A
checkpoint that Spark's source has written lacks the key and is continued. The other way round
Spark's source refuses the key. Spark compares offsets as strings: the order is always the same.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.records import TopicPartition

STATE: Final = "trimtab:state"


@dataclass(frozen=True)
class StreamOffset:
    """Where a stream stands.

    Attributes:
        offsets: the next offset of each partition.
        ids: each topic's id; one that was made again under the same name has another.
        first: where the first batch begins. Only that batch's end has it: Spark does not remember
            where a stream began until the first batch is done, and asks again after a crash.
    """

    offsets: Mapping[TopicPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    first: Mapping[TopicPartition, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """As Spark's source writes it, in its order."""
        state: dict[str, Any] = {}
        if self.first is not None:
            state["first"] = _by_topic(self.first)
        if self.ids:
            state["ids"] = dict(sorted(self.ids.items()))
        written: dict[str, Any] = _by_topic(self.offsets)
        return written | {STATE: state} if state else written


def read_offset(written: Mapping[str, Any]) -> StreamOffset:
    """What `StreamOffset.to_json` or Spark's Kafka source has written.

    Raises:
        UsageError: it is neither's.
    """
    try:
        state = written.get(STATE, {})
        first = state.get("first")
        return StreamOffset(
            _by_partition({name: by for name, by in written.items() if name != STATE}),
            dict(state.get("ids", {})),
            None if first is None else _by_partition(first),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"the checkpoint's offset {str(written)[:200]} is none of this source, nor of Spark's "
            'Kafka source, which looks like {"topic":{"0":23}}: give the query another '
            "checkpointLocation"
        ) from error


def show_id(topic_id: bytes) -> str:
    """A topic's id as Kafka's tools print it; empty if the cluster gives topics none."""
    if not any(topic_id):
        return ""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        written.setdefault(topic, {})[str(partition)] = offset
    return written


def _by_partition(written: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, by_partition in written.items()
        for partition, offset in by_partition.items()
    }
