"""The records of `__transaction_state`: one for each transactional id, by its latest state.

Keys and values are framed like those of `__consumer_offsets` (`group_records`).

Source: Kafka's `TransactionLog` and the definitions of its transaction coordinator.
"""

from __future__ import annotations

from enum import IntEnum

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.codec import decode, encode
from trimtab.kafka.wire.schema import field, message, schema, struct
from trimtab.kafka.wire.sentinels import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from trimtab.kafka.wire.types import BytesLike, int8, int16, int32, int64, string

_PREFIX = 2
"""Bytes of the type before a key, and of the version before a value."""
_TYPE = 0
_WRITTEN = 1
"""The version of values that is written."""


class TransactionStatus(IntEnum):
    """The states of a transactional id. `DEAD` and `PREPARE_EPOCH_FENCE` are in no record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@message(api_key=0, versions="0")
class TransactionLogKey:
    """A transactional id."""

    transactional_id: string = field(versions="0")


@struct()
class PartitionsSchema:
    """Partitions of one topic in which the transaction has records."""

    topic: string
    partition_ids: list[int32]


@message(api_key=0, versions="0-1", flexible="1+")
class TransactionLogValue:
    """What its coordinator knows of a transactional id. Times are wall clock, in ms.

    v1 adds the ids of KIP-890, and an epoch for KIP-939.
    """

    producer_id: int64
    # Of the last transaction that has ended.
    previous_producer_id: int64 = field(
        versions="1+", tag=0, tagged_versions="1+", default=NO_PRODUCER_ID
    )
    # Which the producer gets once this transaction has ended.
    next_producer_id: int64 = field(
        versions="1+", tag=1, tagged_versions="1+", default=NO_PRODUCER_ID
    )
    producer_epoch: int16
    next_producer_epoch: int16 = field(
        versions="1+", tag=3, tagged_versions="1+", default=NO_PRODUCER_EPOCH
    )
    transaction_timeout_ms: int32
    transaction_status: int8
    # Null in `EMPTY`.
    transaction_partitions: list[PartitionsSchema] | None = field(nullable_versions="0+")
    transaction_last_update_timestamp_ms: int64
    transaction_start_timestamp_ms: int64
    client_transaction_version: int16 = field(versions="1+", tag=2, tagged_versions="1+", default=0)


def encode_transaction(
    transactional_id: str, value: TransactionLogValue | None
) -> tuple[bytes, bytes | None]:
    """The key and the value of a record. None, a tombstone, deletes the transactional id."""
    key = TransactionLogKey(transactional_id=transactional_id)
    encoded = None if value is None else _prefixed(_WRITTEN, encode(value, _WRITTEN))
    return _prefixed(_TYPE, encode(key, 0)), encoded


def decode_transaction(
    key: BytesLike, value: BytesLike | None
) -> tuple[str, TransactionLogValue | None] | None:
    """The transactional id and the state of a record; None if its type is not known here: it was
    written by a newer cluster.

    Raises:
        CorruptData: malformed.
    """
    if _read_prefix(key, "key") != _TYPE:
        return None
    transactional_id = decode(TransactionLogKey, 0, key, _PREFIX).transactional_id
    if value is None:
        return transactional_id, None
    version = _read_prefix(value, "value")
    if not schema(TransactionLogValue).versions.includes(version):
        raise CorruptData(f"TransactionLogValue: version {version} is not known")
    return transactional_id, decode(TransactionLogValue, version, value, _PREFIX)


def _prefixed(prefix: int, body: bytes) -> bytes:
    return prefix.to_bytes(_PREFIX, "big") + body


def _read_prefix(data: BytesLike, part: str) -> int:
    if len(data) < _PREFIX:
        raise CorruptData(f"record of a transaction: a {part} of {len(data)} bytes is too short")
    return int.from_bytes(data[:_PREFIX], "big")
