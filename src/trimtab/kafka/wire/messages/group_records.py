"""The records of `__consumer_offsets`: committed offsets, classic groups with their members, and
consumer groups (`consumer_group_records`).

    encode_key(key)       ──▶ type, body          the key of a record
    encode_value(value)   ──▶ version, body       its value; None, a tombstone, deletes

Source: Kafka's `GroupCoordinatorRecordSerde` and the definitions of its group coordinator.
"""

from __future__ import annotations

from typing import get_args

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import decode, encode
from trimtab.kafka.wire.messages.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from trimtab.kafka.wire.schema import field, message, schema, struct
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_TIMESTAMP
from trimtab.kafka.wire.types import ZERO_UUID, BytesLike, binary, int32, int64, string, uuid

_PREFIX = 2
"""Bytes of the type before a key, and of the version before a value."""


@message(api_key=1, versions="0")
class OffsetCommitKey:
    """A partition of which a group has committed an offset."""

    group: string = field(versions="0")
    topic: string = field(versions="0")
    partition: int32 = field(versions="0")


@message(api_key=1, versions="0-4", flexible="4+")
class OffsetCommitValue:
    """The committed offset: that of the next record to read. Times are wall clock, in ms.

    v3 drops the time at which it expires, v4 adds the topic's id.
    """

    offset: int64
    leader_epoch: int32 = field(versions="3+", default=NO_EPOCH, ignorable=True)
    metadata: string
    commit_timestamp: int64
    expire_timestamp: int64 = field(versions="1", default=NO_TIMESTAMP, ignorable=True)
    topic_id: uuid = field(
        versions="4+", tag=0, tagged_versions="4+", default=ZERO_UUID, ignorable=True
    )


@message(api_key=2, versions="0")
class GroupMetadataKey:
    """A classic group."""

    group: string = field(versions="0")


@struct()
class MemberMetadata:
    """A member in a generation: its subscription in the chosen protocol, and its assignment."""

    member_id: string
    group_instance_id: string | None = field(
        versions="3+", nullable_versions="3+", default=None, ignorable=True
    )
    client_id: string
    client_host: string
    rebalance_timeout: int32 = field(versions="1+", default=-1, ignorable=True)
    session_timeout: int32
    subscription: binary
    assignment: binary


@message(api_key=2, versions="0-4", flexible="4+")
class GroupMetadataValue:
    """A classic group's generation. `current_state_timestamp`: since when it is so, in ms."""

    protocol_type: string
    generation: int32
    protocol: string | None = field(nullable_versions="0+")
    leader: string | None = field(nullable_versions="0+")
    current_state_timestamp: int64 = field(versions="2+", default=NO_TIMESTAMP, ignorable=True)
    members: list[MemberMetadata]


Key = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

KEYS: tuple[type[Key], ...] = get_args(Key)
VALUES: tuple[type[Value], ...] = get_args(Value)

_KINDS = {schema(key).api_key: (key, value) for key, value in zip(KEYS, VALUES, strict=True)}
"""By the type that a key begins with."""
_KINDS[0] = _KINDS[1]
"""Type 0 is that of offsets before Kafka 0.9."""

_WRITTEN = 3
"""The newest version of values that is written, as by Kafka unless a topic id is known."""


def encode_key(key: Key) -> bytes:
    """The key of a record."""
    api_key = schema(type(key)).api_key
    assert api_key is not None
    return api_key.to_bytes(_PREFIX, "big") + encode(key, 0)


def encode_value(value: Value | None) -> bytes | None:
    """The value of a record."""
    if value is None:
        return None
    version = min(_WRITTEN, schema(type(value)).versions.high)
    return version.to_bytes(_PREFIX, "big") + encode(value, version)


def decode_record(key: BytesLike, value: BytesLike | None) -> tuple[Key, Value | None] | None:
    """The record with this key and value; None if its type is not known here.

    A type that is not known was written by a newer cluster, or belongs to other kinds of groups.

    Raises:
        CorruptData: malformed.
    """
    kind = _KINDS.get(_prefix(key, "key"))
    if kind is None:
        return None
    decoded = decode(kind[0], 0, key, _PREFIX)
    if value is None:
        return decoded, None
    version = _prefix(value, "value")
    if not schema(kind[1]).versions.includes(version):
        raise CorruptData(f"{kind[1].__name__}: version {version} is not known")
    return decoded, decode(kind[1], version, value, _PREFIX)


def _prefix(data: BytesLike, part: str) -> int:
    if len(data) < _PREFIX:
        raise CorruptData(f"record of a group: a {part} of {len(data)} bytes is too short")
    return int.from_bytes(data[:_PREFIX], "big")
