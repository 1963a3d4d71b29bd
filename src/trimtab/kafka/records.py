"""The value types that several rooms use: records, partitions, and where a record was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

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


Servers: TypeAlias = str | Iterable[str] | Mapping[str, object] | None
"""A client's first argument: `host:port`, several with commas or as a list; or its options."""


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


Bytes: TypeAlias = bytes | bytearray | memoryview
"""What a record's key or value is made of."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers have it; it knows defaults (PEP 696)

    Topic = TypeVar("Topic")
    T_contra = TypeVar("T_contra", contravariant=True)
    # What `send` of a producer takes: bytes without a serializer.
    Key = TypeVar("Key", default=Bytes, contravariant=True)
    Value = TypeVar("Value", default=Bytes, contravariant=True)
    # What a serializer takes: anything, if that has no type, such as a lambda.
    AnyKey = TypeVar("AnyKey", default=Any)
    AnyValue = TypeVar("AnyValue", default=Any)
else:
    from typing import TypeVar

    Topic, T_contra, Key, Value, AnyKey, AnyValue = (
        TypeVar(name) for name in ("Topic", "T_contra", "Key", "Value", "AnyKey", "AnyValue")
    )


def by_topic(partitions: Iterable[tuple[Topic, int]]) -> dict[Topic, list[int]]:
    """Partition numbers by the name, or the id, of their topic, as requests list them."""
    grouped: dict[Topic, list[int]] = {}
    for topic, index in partitions:
        grouped.setdefault(topic, []).append(index)
    return grouped


class ContextSerializer(Protocol[T_contra]):
    """A serializer that depends on the topic, or adds headers (KIP-336)."""

    def serialize(self, topic: str, headers: list[Header], data: T_contra, /) -> Bytes | None:
        """The bytes of `data`. Headers that it appends to `headers` are sent with the record."""


class ContextDeserializer(Protocol):
    """A deserializer that depends on the topic or the headers (KIP-336)."""

    def deserialize(self, topic: str, headers: Headers, data: bytes, /) -> Any:
        """The object that `data` stands for."""


Serializer: TypeAlias = Callable[[T_contra], Bytes | None] | ContextSerializer[T_contra]
"""Makes a key's or value's bytes of an object."""

Deserializer: TypeAlias = Callable[[bytes], Any] | ContextDeserializer
"""Makes an object of a key's or value's bytes."""


class InContext(NamedTuple):
    """A conversion of which topic, headers and data are the arguments."""

    convert: Callable[[str, Any, Any], Any]


class Serializers(NamedTuple):
    """What a producer makes of keys and values; None takes them as bytes."""

    key: Callable[[Any], Any] | InContext | None
    value: Callable[[Any], Any] | InContext | None


class Deserializers(NamedTuple):
    """What a consumer makes of keys and values; None leaves them as bytes."""

    key: Deserializer | InContext | None
    value: Deserializer | InContext | None


class RecordMetadata(NamedTuple):
    """Where a sent record was stored.

    `offset` is -1 when the producer did not ask for an acknowledgement (acks=0).
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
