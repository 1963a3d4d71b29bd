"""What consumers of the classic group protocol put into JoinGroup and SyncGroup: a member's
subscription, and its assignment.

    encode_embedded(message, version) ──▶ version, body
    decode_embedded(cls, data)        ──▶ message, version

A later version than those known here is read as the latest that is, as in Kafka.

Source: Kafka's `ConsumerProtocol` and its definitions.
"""

from __future__ import annotations

from typing import TypeVar

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import decode, encode
from trimtab.kafka.wire.schema import field, message, schema, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH
from trimtab.kafka.wire.types import BytesLike, binary, int32, string

M = TypeVar("M")

_VERSION_BYTES = 2
_NO_API = -1

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members embed these messages."""


@struct()
class TopicPartition:
    """Partitions of one topic."""

    topic: string
    partitions: list[int32]


@message(api_key=_NO_API, versions="0-3")
class ConsumerProtocolSubscription:
    """What a member subscribes to, and what it has (v1), since which generation (v2), in which rack
    (v3)."""

    topics: list[string]
    user_data: binary | None = field(nullable_versions="0+", default=None)
    owned_partitions: list[TopicPartition] = field(
        versions="1+", default_factory=list, ignorable=True
    )
    generation_id: int32 = field(versions="2+", default=NO_EPOCH, ignorable=True)
    rack_id: string | None = field(
        versions="3+", nullable_versions="3+", default=None, ignorable=True
    )


@message(api_key=_NO_API, versions="0-3")
class ConsumerProtocolAssignment:
    """The partitions that a member is to read."""

    assigned_partitions: list[TopicPartition]
    user_data: binary | None = field(nullable_versions="0+", default=None)


def encode_embedded(message: object, version: int) -> bytes:
    """The message in this version, or the latest that is known."""
    version = min(version, schema(type(message)).versions.high)
    return version.to_bytes(_VERSION_BYTES, "big") + encode(message, version)


def decode_embedded(cls: type[M], data: BytesLike, newest: int | None = None) -> tuple[M, int]:
    """The message, and the version that its sender gave.

    Args:
        newest: only fields up to this version are read; None: all that are known.

    Raises:
        CorruptData: malformed.
    """
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if len(data) < _VERSION_BYTES or version < 0:
        raise CorruptData(f"{cls.__name__} in {len(data)} bytes has no version")
    known = min(version, schema(cls).versions.high if newest is None else newest)
    return decode(cls, known, data, _VERSION_BYTES, allow_rest=True), version
