"""A stream's offsets, as Spark writes them to the checkpoint.

    {"flights": {"0": 23, "1": 17}, "trimtab:state": {"ids": {"flights": "p8bs…"}}}

This is the JSON of Spark's own Kafka source with one additional key, whose name no topic can have.
A checkpoint that Spark's source has written lacks the key and can be continued; Spark's source
refuses one with the key. Spark compares offsets as strings, so the order of keys is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.cluster.storage.properties import decode_uuid, encode_uuid
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition

STATE: Final = "trimtab:state"


@dataclass(frozen=True)
class StreamOffset:
    """A stream's offsets at the beginning or end of a batch.

    Attributes:
        offsets: the next offset of each partition.
        ids: each topic's id; a topic that was deleted and created again has a new one.
        begins: the offsets at which the batch with this end begins, of those partitions where the
            batch before does not tell them; in the first batch, of all. Spark stores only ends:
            after a crash it asks for a stream's beginning again, when it may be another.
    """

    offsets: Mapping[TopicPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[TopicPartition, int] | None = None

    @property
    def is_first(self) -> bool:
        """Whether these are the offsets at which a new query begins."""
        return self.begins == self.offsets

    def to_json(self) -> dict[str, Any]:
        """The JSON that Spark's own source writes, in the same order, and the additional key."""
        state: dict[str, Any] = {}
        if self.begins is not None:
            state["begins"] = _by_topic(self.begins)
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
        begins = state.get("begins", state.get("first"))  # older checkpoints: first
        return StreamOffset(
            _by_partition({name: by for name, by in written.items() if name != STATE}),
            dict(state.get("ids", {})),
            None if begins is None else _by_partition(begins),
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
    return encode_uuid(topic_id)


def read_id(text: str) -> bytes:
    """A topic's id from `show_id`.

    Raises:
        UsageError: it is none.
    """
    topic_id = decode_uuid(text)
    if topic_id is None:
        raise UsageError(
            f"the checkpoint names a topic's id {text!r}, which is none: use another"
            " checkpointLocation"
        )
    return topic_id


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
