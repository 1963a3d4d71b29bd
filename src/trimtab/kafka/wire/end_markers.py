"""The marker that ends a transaction in a partition: a control batch with one record (KIP-98).

    key    version 0, type (int16 each): 0 abort, 1 commit
    value  version 0 (int16), epoch of the transaction coordinator (int32)

Source: Kafka's `EndTransactionMarker`.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.batch_header import CODEC_MASK, HEADER_BYTES, BatchHeader, check_crc
from trimtab.kafka.wire.messages.control_records import (
    ControlRecordType,
    decode_control_key,
    encode_control_key,
)
from trimtab.kafka.wire.types import BytesLike
from trimtab.kafka.wire.varint import read_unsigned_varint

_VALUE = Struct(">hi")
_VALUE_VERSION = 0
_MARKER_BYTES = 128
"""Room for the batch, which has 78."""


class EndMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that decided it."""

    is_commit: bool
    coordinator_epoch: int


def build_marker(
    producer_id: int, producer_epoch: int, marker: EndMarker, timestamp_ms: int
) -> bytearray:
    """The control batch of a marker, at base offset 0."""
    builder = BatchBuilder(_MARKER_BYTES)
    kind = ControlRecordType.COMMIT if marker.is_commit else ControlRecordType.ABORT
    value = _VALUE.pack(_VALUE_VERSION, marker.coordinator_epoch)
    builder.append(timestamp_ms, encode_control_key(kind), value, [])
    return builder.build(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(buffer: BytesLike, position: int, header: BatchHeader) -> EndMarker | None:
    """The marker in the control batch at `position`; None if compaction has emptied the batch.

    Raises:
        CorruptData: the batch's CRC is wrong, or it does not hold an uncompressed marker.
    """
    check_crc(memoryview(buffer), position, header)
    if not header.record_count:
        return None
    at, end = position + HEADER_BYTES, position + header.size
    try:
        if header.attributes & CODEC_MASK:
            raise CorruptData("it is compressed")
        _, at = read_unsigned_varint(buffer, at)
        at += 1  # attributes
        while buffer[at] & 0x80:  # the timestamp, up to 64 bits
            at += 1
        _, at = read_unsigned_varint(buffer, at + 1)
        key, at = _read_bytes(buffer, at, end)
        value, at = _read_bytes(buffer, at, end)
        return decode_marker(key, value)
    except (CorruptData, IndexError) as error:
        raise CorruptData(
            f"control batch at offset {header.base_offset}: no end of a transaction: {error}"
        ) from error


def decode_marker(key: bytes | None, value: bytes | None) -> EndMarker:
    """The marker in a control record.

    Raises:
        CorruptData: it is none.
    """
    kind = decode_control_key(key)
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise CorruptData(f"its type is {kind}")
    if value is None or len(value) < _VALUE.size:
        raise CorruptData(f"its value has {0 if value is None else len(value)} bytes")
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return EndMarker(kind == ControlRecordType.COMMIT, coordinator_epoch)


def _read_bytes(buffer: BytesLike, at: int, end: int) -> tuple[bytes, int]:
    """A key or value, and the position after it; a missing one is empty."""
    zigzag, at = read_unsigned_varint(buffer, at)
    size = max(0, (zigzag >> 1) ^ -(zigzag & 1))
    if at + size > end:
        raise CorruptData("it ends within its record")
    return bytes(buffer[at : at + size]), at + size
