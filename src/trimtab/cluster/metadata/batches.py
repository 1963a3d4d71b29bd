"""Encodes and decodes the batches of the metadata log and of its snapshots.

    log:       batch, batch, …                 each with the records of one or more whole decisions
    snapshot:  header, batch, …, footer        the records of an image, between two control batches

Source: KIP-595, KIP-630; Kafka's `RecordsSnapshotWriter` and `Snapshots`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import (
    BatchBuilder,
    read_records,
    restamp,
    verify,
)
from trimtab.kafka.wire.messages.control_records import (
    ControlRecord,
    ControlRecordType,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    decode_control_key,
    encode_control_record,
)
from trimtab.kafka.wire.messages.metadata_records import decode_record, encode_record
from trimtab.kafka.wire.types import BytesLike

TOPIC = "__cluster_metadata"
TOPIC_ID = bytes(15) + b"\1"
"""The id of the topic, the same in every cluster (Kafka's `Uuid.METADATA_TOPIC_ID`)."""

_LIMIT = 2**31 - 1
_SNAPSHOT_RECORDS = 500
"""Records in one batch of a snapshot."""

_FLAGS = 22
_CONTROL = 0x20
"""The position of a batch's attributes, and the bit that marks a control batch."""

_SUFFIX = ".checkpoint"
_NAME_CHARS = 20 + 1 + 10


class SnapshotId(NamedTuple):
    """The part of the log that a snapshot replaces: all records before `end_offset`; the last of
    them has leader epoch `epoch`."""

    end_offset: int
    epoch: int

    @property
    def name(self) -> str:
        """The snapshot's file name."""
        return f"{self.end_offset:020d}-{self.epoch:010d}{_SUFFIX}"


def find_snapshot_id(name: str) -> SnapshotId | None:
    """The snapshot id in a file name; None if it is not a snapshot's file name."""
    stem = name.removesuffix(_SUFFIX)
    end_offset, _, epoch = stem.partition("-")
    if stem == name or len(stem) != _NAME_CHARS or not (end_offset + epoch).isdecimal():
        return None
    return SnapshotId(int(end_offset), int(epoch))


def build_batch(values: Iterable[bytes], base_offset: int, epoch: int, now_ms: int) -> bytearray:
    """One batch of encoded records."""
    builder = BatchBuilder(_LIMIT)
    for value in values:
        builder.append(now_ms, None, value, ())
    batch = builder.build()
    restamp(batch, 0, base_offset, epoch)
    return batch


def read_batches(data: BytesLike, start_offset: int = 0) -> Iterator[tuple[int, Any]]:
    """The records from `start_offset` on with their offsets, from whole batches of the log.

    Control batches are skipped.

    Raises:
        CorruptData: a batch is damaged, or a record's type is unknown.
    """
    for record in read_records(TOPIC, 0, data, start_offset):
        if record.value is None:
            raise CorruptData(f"{TOPIC}: record {record.offset} has no value")
        yield record.offset, decode_record(record.value)


def write_snapshot(
    records: Iterable[Any], snapshot: SnapshotId, last_timestamp_ms: int, now_ms: int
) -> Iterator[bytearray]:
    """The batches of a snapshot, one after the other.

    Args:
        records: the records of the image.
        last_timestamp_ms: the timestamp of the last record that the snapshot replaces.
    """
    header = SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp_ms)
    yield _build_control_batch(header, 0, snapshot.epoch, now_ms)
    offset = 1
    rest = iter(records)
    while values := [encode_record(record) for record in islice(rest, _SNAPSHOT_RECORDS)]:
        yield build_batch(values, offset, snapshot.epoch, now_ms)
        offset += len(values)
    yield _build_control_batch(SnapshotFooterRecord(), offset, snapshot.epoch, now_ms)


def read_snapshot(data: BytesLike) -> Iterator[Any]:
    """The records of a snapshot's image.

    Raises:
        CorruptData: the snapshot is incomplete or damaged; raised only after its last good record.
    """
    view = memoryview(data)
    position = offset = 0
    epoch = kind = None
    while position < len(view):
        header = verify(view, position)
        batch = view[position : position + header.size]
        position += header.size
        if header.base_offset != offset or epoch not in (None, header.leader_epoch):
            raise CorruptData(f"snapshot: the batch at offset {offset} is not the next of its own")
        offset, epoch = header.next_offset, header.leader_epoch
        if kind == ControlRecordType.SNAPSHOT_FOOTER:
            raise CorruptData("snapshot: it goes on after its footer")
        if header.is_control:
            kind = _read_control_type(batch)
        elif kind is None:
            raise CorruptData("snapshot: it begins without a header")
        else:
            for _, record in read_batches(batch):
                yield record
    if kind != ControlRecordType.SNAPSHOT_FOOTER:
        raise CorruptData(f"snapshot: {len(view)} bytes, and no footer among them")


def _build_control_batch(record: ControlRecord, offset: int, epoch: int, now_ms: int) -> bytearray:
    builder = BatchBuilder(_LIMIT)
    key, value = encode_control_record(record)
    builder.append(now_ms, key, value, ())
    batch = builder.build(is_control=True)
    restamp(batch, 0, offset, epoch)
    return batch


def _read_control_type(batch: memoryview) -> int:
    # `read_records` skips control batches, so clear the control bit in a copy.
    ordinary = bytearray(batch)
    ordinary[_FLAGS] &= ~_CONTROL
    (record,) = read_records(TOPIC, 0, ordinary, 0, check_crcs=False)
    return decode_control_key(record.key)
