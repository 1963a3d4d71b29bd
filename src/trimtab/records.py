"""The value types that several rooms use: records, partitions, and where a record was stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

Header: TypeAlias = tuple[str, bytes | None]
"""One record header: a name and an opaque value (KIP-82)."""

Headers: TypeAlias = Sequence[Header]

NO_OFFSET = -1
NO_TIMESTAMP = -1


class TimestampType(IntEnum):
    """Whose clock stamped a record (KIP-32)."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class TopicPartition(NamedTuple):
    """A partition of a topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """One record as a consumer sees it.

    Times are milliseconds since the Unix epoch, UTC; -1 where the producer gave none. Key and value
    are bytes, or what the consumer's deserializers make of them; None if null.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: Any
    value: Any
    headers: Headers


Deserializer: TypeAlias = Callable[[bytes], Any]
"""Makes an object of a key's or value's bytes."""


class Deserializers(NamedTuple):
    """What a consumer makes of keys and values; None leaves them as bytes."""

    key: Deserializer | None
    value: Deserializer | None


class RecordMetadata(NamedTuple):
    """Where a sent record was stored.

    `offset` is -1 when the producer did not ask for an acknowledgement (acks=0).
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
