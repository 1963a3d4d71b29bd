"""The control records of the metadata log and its snapshots, written by the quorum itself.

    encode_control_record(record) ──▶ key: version 0, type (both int16); value: the body
    decode_control_record(key, value) ──▶ record

They are in control batches, and their values have no frame. Kafka writes and reads every value in
version 0, and ignores the field `version`, which it sets to 0.

Source: Kafka's `common/message` definitions, its `ControlRecordType` and `ControlRecordUtils`.
"""

from __future__ import annotations

import struct as layouts
from enum import IntEnum

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import decode, encode
from trimtab.kafka.wire.schema import field, message, schema, struct
from trimtab.kafka.wire.types import ZERO_UUID, BytesLike, int16, int32, int64, string, uint16, uuid

_KEY = layouts.Struct(">hh")
_KEY_VERSION = 0
_VALUE_VERSION = 0


class ControlRecordType(IntEnum):
    """The types, in the key of every control record; the first two end transactions."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@struct()
class Voter:
    """One member of the quorum."""

    voter_id: int32
    voter_directory_id: uuid = field(versions="1+", default=ZERO_UUID)


@message(api_key=2, versions="0-1", flexible="0+")
class LeaderChangeMessage:
    """A leader was elected: the first record of its epoch. v1 adds directory ids (KIP-853)."""

    version: int16 = 0
    leader_id: int32
    voters: list[Voter]
    # The voters that voted for the leader.
    granting_voters: list[Voter]


@message(api_key=3, versions="0", flexible="0+")
class SnapshotHeaderRecord:
    """The first record of a snapshot."""

    version: int16 = 0
    # The append time of the last record that the snapshot covers.
    last_contained_log_timestamp: int64


@message(api_key=4, versions="0", flexible="0+")
class SnapshotFooterRecord:
    """The last record of a snapshot; a snapshot without it is incomplete."""

    version: int16 = 0


@message(api_key=5, versions="0", flexible="0+")
class KRaftVersionRecord:
    """The finalized level of the feature `kraft.version` (KIP-853)."""

    version: int16 = 0
    # 1: voters can be added and removed.
    k_raft_version: int16


@struct()
class Endpoint:
    """One listener of a voter."""

    name: string
    host: string
    port: uint16


@struct()
class KRaftVersionFeature:
    """The levels of `kraft.version` that a voter supports."""

    min_supported_version: int16
    max_supported_version: int16


# Kafka calls it Voter too.
@struct()
class ReachableVoter:
    """One member of the quorum, and where to reach it."""

    voter_id: int32
    voter_directory_id: uuid
    endpoints: list[Endpoint]
    k_raft_version_feature: KRaftVersionFeature


@message(api_key=6, versions="0", flexible="0+")
class VotersRecord:
    """The new set of voters of the quorum (KIP-853)."""

    version: int16 = 0
    voters: list[ReachableVoter]


ControlRecord = (
    LeaderChangeMessage
    | SnapshotHeaderRecord
    | SnapshotFooterRecord
    | KRaftVersionRecord
    | VotersRecord
)

CONTROL_RECORDS: dict[int, type[ControlRecord]] = {
    ControlRecordType.LEADER_CHANGE: LeaderChangeMessage,
    ControlRecordType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlRecordType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlRecordType.KRAFT_VERSION: KRaftVersionRecord,
    ControlRecordType.KRAFT_VOTERS: VotersRecord,
}
"""The quorum's control records by type."""


def encode_control_key(kind: int) -> bytes:
    """The key of a control record of this type."""
    return _KEY.pack(_KEY_VERSION, kind)


def decode_control_key(key: BytesLike | None) -> int:
    """The type in the key of a control record, also of an unknown type.

    Like Kafka, it reads keys of later versions as keys of version 0.

    Raises:
        CorruptData: `key` is too short, or has a negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise CorruptData(f"control record: a key of {len(key or b'')} bytes, not {_KEY.size}")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptData(f"control record: key version {version}")
    return int(kind)


def encode_control_record(record: ControlRecord) -> tuple[bytes, bytes]:
    """The key and the value of a record in a control batch.

    Raises:
        UsageError: a value does not fit its field.
    """
    kind = schema(type(record)).api_key
    assert kind is not None
    return encode_control_key(kind), encode(record, _VALUE_VERSION)


def decode_control_record(key: BytesLike | None, value: BytesLike | None) -> ControlRecord:
    """The quorum's control record with this key and value.

    Raises:
        CorruptData: malformed, or of a type that is not in `CONTROL_RECORDS`.
    """
    kind = decode_control_key(key)
    cls = CONTROL_RECORDS.get(kind)
    if cls is None:
        raise CorruptData(f"control record: type {kind} is none of the quorum's")
    if value is None:
        raise CorruptData(f"control record: {cls.__name__} without a value")
    return decode(cls, _VALUE_VERSION, value)
