"""A stream's offsets, as Spark writes them to the checkpoint.

    {"flights": {"0": 23, "1": 17}, "trimtab:state": {"ids": {"flights": "p8bs…"}}}

This is the JSON of Spark's own Kafka source with one additional key, whose name no topic can have.
A checkpoint that Spark's source has written lacks the key and can be continued; Spark's source
refuses one with the key. Spark compares offsets as strings, so the order of keys is fixed.
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
    """A stream's offsets at the beginning or end of a batch.

    Attributes:
        offsets: the next offset of each partition.
        ids: each topic's id; a topic that was deleted and created again has a new one.
        first: the offsets at which the first batch begins; only the end of the first batch has
            them. Spark stores a stream's beginning only after the first batch is complete, and
            asks for it again after a crash.
    """

    offsets: Mapping[TopicPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    first: Mapping[TopicPartition, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON that Spark's own source writes, in the same order, and the additional key."""
        state: dict[str, Any] = {}
        if self.first is not None:
            state["first"] = _by_topic(self.first)
        if self.ids:
            state["ids"] = dict(sorted(self.ids.items()))
        written: dict[str, Any] = _by_topic(self.offsets)
        return written | {STATE: state} if state else written


def read_offset(written: Mapping[str, Any]) -> StreamOffset:
    """Parse what `StreamOffset.to_json` or Spark's Kafka source has written.

    Raises:
        UsageError: neither has written it.
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
            f"the checkpoint's offset {str(written)[:200]} is neither this source's nor that of "
            'Spark\'s Kafka source, which has the form {"topic":{"0":23}}: use another '
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
