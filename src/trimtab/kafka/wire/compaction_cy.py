# mypy: allow-untyped-decorators, no-warn-return-any
"""Compacts batches: collects the last offset of each key, then keeps only those records.

Offsets never change, so a batch keeps its base offset, its last offset and its producer's sequence,
however many of its records are removed. A record without a value (a tombstone) marks its key as
deleted, and has to stay for some time, for readers that know an older value. The time from which it
may be removed, the delete horizon, is written into its batch at the first compaction (KIP-534): in
place of the base timestamp, with bit 6 of the attributes set.

The same source runs compiled and interpreted: compiled, `octets` is a C pointer, and only this
module checks indexes; interpreted, it is a memoryview.
"""

from array import array
from collections.abc import Generator
from typing import Any

import cython

from trimtab.kafka.records import NO_TIMESTAMP
from trimtab.kafka.wire.batch_header import (
    BATCH_HEADER,
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    stamp_crc,
)
from trimtab.kafka.wire.compression import compress
from trimtab.kafka.wire.records_cy import OPENED_LIMIT, RecordReader, open_records

if cython.compiled:
    from cython.cimports.libc.stdlib import calloc, free
    from cython.cimports.trimtab.kafka.wire.records_cy import (  # type: ignore[no-redef]
        RecordReader,
        open_records,
    )

DELETE_HORIZON = 0x40
"""The attribute bit of a batch whose base timestamp is its delete horizon."""

RECORDS_AT_ONCE = 20_000
"""Records of a batch that are read between two yields: some milliseconds."""

_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_BEFORE_LENGTH_ENDS = 12
_SLOT_BYTES = 24
_LOAD_FACTOR = 0.9


@cython.final
@cython.cclass
class KeyOffsets:
    """The last offset of each key, in bounded memory.

    A key is identified by 128 bits of SipHash: among five million keys two have the same hash with
    a probability of 4e-26, and finding such keys on purpose needs the secret.

    Args:
        size: bytes of memory, 24 per slot, of which nine tenths are used; at least 1024.
        secret: 16 bytes.

    Attributes:
        count: keys in it.
        limit: keys that fit.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    limit = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _slots: cython.p_ulonglong
    _mask: cython.ulonglong
    _secret0: cython.ulonglong
    _secret1: cython.ulonglong
    # The hash of the last key.
    _low: cython.ulonglong
    _high: cython.ulonglong
    # SipHash's state.
    _v0: cython.ulonglong
    _v1: cython.ulonglong
    _v2: cython.ulonglong
    _v3: cython.ulonglong

    def __init__(self, size: int, secret: bytes) -> None:
        slots = 1 << (max(size // _SLOT_BYTES, 32).bit_length() - 1)
        # A slot: the hash in two numbers, and the offset plus 1; 0 in a free slot.
        if cython.compiled:
            # calloc gets zero pages from the system: filling 128 MiB would block the loop.
            self._slots = cython.cast(cython.p_ulonglong, calloc(slots, _SLOT_BYTES))
            if self._slots == cython.NULL:
                raise MemoryError(f"{_SLOT_BYTES * slots} bytes for the keys of a log")
        else:
            self._slots = array("Q", bytes(_SLOT_BYTES * slots))
        self._mask = slots - 1
        self.count = 0
        self.limit = int(slots * _LOAD_FACTOR)
        self._secret0 = int.from_bytes(secret[:8], "little")
        self._secret1 = int.from_bytes(secret[8:16], "little")

    def __dealloc__(self) -> None:
        if cython.compiled:
            free(self._slots)

    def __len__(self) -> int:
        return self.count

    @property
    def is_full(self) -> bool:
        return self.count >= self.limit

    def put(self, key: bytes, offset: cython.longlong) -> bool:
        """Store a key's offset, not less than the stored one; False if the table is full."""
        view = memoryview(key)
        reader = RecordReader(view)
        return self._put(reader.octets, 0, len(view), offset)

    def get(self, key: bytes) -> int:
        """The key's stored offset, -1 if none."""
        view = memoryview(key)
        reader = RecordReader(view)
        return self._get(reader.octets, 0, len(view))

    def hash(self, key: bytes) -> bytes:
        """SipHash-2-4 of 128 bits."""
        view = memoryview(key)
        reader = RecordReader(view)
        self._hash(reader.octets, 0, len(view))
        low: int = self._low
        high: int = self._high
        return low.to_bytes(8, "little") + high.to_bytes(8, "little")

    @cython.cfunc
    @cython.exceptval(check=False)
    def _put(
        self,
        octets: cython.p_uchar,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        offset: cython.longlong,
    ) -> cython.bint:
        slot: cython.Py_ssize_t = self._find(octets, start, size)
        if self._slots[slot + 2] == 0:
            if self.count >= self.limit:
                return False
            self.count += 1
            self._slots[slot] = self._low
            self._slots[slot + 1] = self._high
        self._slots[slot + 2] = offset + 1
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _get(
        self, octets: cython.p_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.longlong:
        slot: cython.Py_ssize_t = self._find(octets, start, size)
        return self._slots[slot + 2] - 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _find(
        self, octets: cython.p_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """The start of a key's slot, or of the free slot for it; one slot is always free."""
        self._hash(octets, start, size)
        # The number of slots is a power of two, so an odd step visits each of them.
        step: cython.ulonglong = self._high | 1
        at: cython.ulonglong = self._low & self._mask
        slot: cython.Py_ssize_t = 3 * at
        while self._slots[slot + 2] != 0 and (
            self._slots[slot] != self._low or self._slots[slot + 1] != self._high
        ):
            at = (at + step) & self._mask
            slot = 3 * at
        return slot

    @cython.cfunc
    @cython.exceptval(check=False)
    def _hash(
        self, octets: cython.p_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.void:
        word: cython.ulonglong
        i: cython.Py_ssize_t
        position: cython.Py_ssize_t = start
        end: cython.Py_ssize_t = start + (size & ~7)
        self._v0 = self._secret0 ^ 0x736F6D6570736575
        self._v1 = self._secret1 ^ 0x646F72616E646F6D ^ 0xEE
        self._v2 = self._secret0 ^ 0x6C7967656E657261
        self._v3 = self._secret1 ^ 0x7465646279746573
        while position < end:
            word = 0
            for i in range(8):
                word |= cython.cast(cython.ulonglong, octets[position + i]) << (8 * i)
            position += 8
            self._v3 ^= word
            self._rounds(2)
            self._v0 ^= word
        word = cython.cast(cython.ulonglong, size & 0xFF) << 56
        for i in range(size & 7):
            word |= cython.cast(cython.ulonglong, octets[position + i]) << (8 * i)
        self._v3 ^= word
        self._rounds(2)
        self._v0 ^= word
        self._v2 ^= 0xEE
        self._rounds(4)
        self._low = self._v0 ^ self._v1 ^ self._v2 ^ self._v3
        self._v1 ^= 0xDD
        self._rounds(4)
        self._high = self._v0 ^ self._v1 ^ self._v2 ^ self._v3

    @cython.cfunc
    @cython.exceptval(check=False)
    def _rounds(self, count: cython.int) -> cython.void:
        v0: cython.ulonglong = self._v0
        v1: cython.ulonglong = self._v1
        v2: cython.ulonglong = self._v2
        v3: cython.ulonglong = self._v3
        for _ in range(count):
            v0 = (v0 + v1) & _MASK
            v1 = ((v1 << 13) & _MASK) | (v1 >> 51)
            v1 ^= v0
            v0 = ((v0 << 32) & _MASK) | (v0 >> 32)
            v2 = (v2 + v3) & _MASK
            v3 = ((v3 << 16) & _MASK) | (v3 >> 48)
            v3 ^= v2
            v0 = (v0 + v3) & _MASK
            v3 = ((v3 << 21) & _MASK) | (v3 >> 43)
            v3 ^= v0
            v2 = (v2 + v1) & _MASK
            v1 = ((v1 << 17) & _MASK) | (v1 >> 47)
            v1 ^= v2
            v2 = ((v2 << 32) & _MASK) | (v2 >> 32)
        self._v0 = v0
        self._v1 = v1
        self._v2 = v2
        self._v3 = v3


def note_keys(
    buffer: Any,
    position: cython.Py_ssize_t,
    header: BatchHeader,
    keys: KeyOffsets,
    start_offset: cython.longlong,
    limit: int = OPENED_LIMIT,
) -> Generator[None, None, int]:
    """Store in `keys` the offsets, from `start_offset` on, of the keys in the batch at `position`.
    Yields after every `RECORDS_AT_ONCE` records, so that other tasks can run.

    Returns:
        The offset up to which that is done: the end of the batch, unless `keys` is full.

    Raises CorruptData for a malformed batch, or one that decompresses to more than `limit` bytes.
    """
    if header.is_control or header.record_count == 0 or header.last_offset < start_offset:
        return header.next_offset
    reader: RecordReader = open_records(memoryview(buffer), position, header, limit)
    base_offset: cython.longlong = header.base_offset
    count: cython.int = header.record_count
    offset: cython.longlong
    number: cython.int
    turn: cython.int = RECORDS_AT_ONCE
    for number in range(count):
        if number and number % turn == 0:
            yield
        reader.read_record()
        reader.position = reader.limit
        offset = base_offset + reader.offset_delta
        if (
            reader.key_size >= 0
            and offset >= start_offset
            and not keys._put(reader.octets, reader.key_start, reader.key_size, offset)
        ):
            return offset
    reader.end_batch()
    return header.next_offset


def compact_batch(
    buffer: Any,
    position: cython.Py_ssize_t,
    header: BatchHeader,
    keys: KeyOffsets,
    end_offset: cython.longlong,
    now_ms: cython.longlong,
    delete_retention_ms: cython.longlong,
    limit: int = OPENED_LIMIT,
) -> Generator[None, None, Any]:
    """The batch at `position` after compaction. Yields as `note_keys` does.

    It keeps every record at `end_offset` or later, and before that the last record of each key. A
    tombstone before `end_offset` is removed once the batch's delete horizon has passed; a batch
    with tombstones and no horizon gets one, `delete_retention_ms` from now. A record before
    `end_offset` without a key is removed.

    Returns:
        None if the batch does not change, otherwise the new one: empty bytes if no record is left.

    Raises CorruptData for a malformed batch, or one that decompresses to more than `limit` bytes.
    """
    view = memoryview(buffer)
    reader: RecordReader = open_records(view, position, header, limit)
    base_offset: cython.longlong = header.base_offset
    base_timestamp: cython.longlong = header.base_timestamp
    attributes: cython.int = header.attributes
    count: cython.int = header.record_count
    has_horizon: cython.bint = attributes & DELETE_HORIZON != 0
    keeps_tombstones: cython.bint = not has_horizon or now_ms < base_timestamp
    start: cython.Py_ssize_t
    offset: cython.longlong
    kept: cython.int = 0
    tombstones: cython.int = 0
    max_timestamp: cython.longlong = NO_TIMESTAMP
    parts: list[Any] = []
    run_start: cython.Py_ssize_t = -1  # of the current run of adjacent kept records
    number: cython.int
    turn: cython.int = RECORDS_AT_ONCE
    for number in range(count):
        if number and number % turn == 0:
            yield
        start = reader.position
        reader.read_record()
        reader.position = reader.limit
        offset = base_offset + reader.offset_delta
        if offset < end_offset and (
            reader.key_size < 0
            or offset < keys._get(reader.octets, reader.key_start, reader.key_size)
            or (reader.value_size < 0 and not keeps_tombstones)
        ):
            if run_start >= 0:
                parts.append(reader.view[run_start:start])
                run_start = -1
            continue
        if run_start < 0:
            run_start = start
        kept += 1
        if reader.value_size < 0:
            tombstones += 1
        max_timestamp = max(max_timestamp, base_timestamp + reader.timestamp_delta)
    reader.end_batch()
    sets_horizon: cython.bint = tombstones > 0 and not has_horizon
    if kept == 0:
        return b""
    if kept == count and not sets_horizon:
        return None
    if run_start >= 0:
        parts.append(reader.view[run_start : reader.end])
    records: Any = parts[0] if len(parts) == 1 else b"".join(parts)
    if sets_horizon:
        horizon: cython.longlong = now_ms + delete_retention_ms
        records = _shift_timestamps(records, kept, base_timestamp - horizon)
        base_timestamp = horizon
        attributes |= DELETE_HORIZON
    if attributes & LOG_APPEND_TIME:
        max_timestamp = header.max_timestamp
    return build_like(header, attributes, base_timestamp, max_timestamp, kept, records)


def empty_batch(header: BatchHeader) -> bytearray:
    """A batch without records, which keeps its offsets and its producer's sequence.

    It also keeps its largest timestamp, as in `DefaultRecordBatch.writeEmptyHeader`.
    """
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return build_like(header, attributes, NO_TIMESTAMP, header.max_timestamp, 0, b"")


def set_delete_horizon(
    buffer: Any, position: cython.Py_ssize_t, header: BatchHeader, horizon_ms: cython.longlong
) -> bytearray:
    """The batch at `position` with a delete horizon; records and their timestamps stay."""
    reader: RecordReader = open_records(memoryview(buffer), position, header, OPENED_LIMIT)
    records = _shift_timestamps(
        reader.view, header.record_count, header.base_timestamp - horizon_ms
    )
    return build_like(
        header,
        header.attributes | DELETE_HORIZON,
        horizon_ms,
        header.max_timestamp,
        header.record_count,
        records,
    )


def build_like(
    header: BatchHeader,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    records: Any,
    level: int | None = None,
) -> bytearray:
    """A batch with the header's offsets and producer and other records, which are compressed here
    if the attributes name a codec; `level` is the codec's."""
    if attributes & CODEC_MASK:
        records = compress(attributes & CODEC_MASK, records, level)
    batch = bytearray(HEADER_BYTES)
    batch += records
    BATCH_HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        len(batch) - _BEFORE_LENGTH_ENDS,
        header.leader_epoch,
        MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    stamp_crc(batch, 0, len(batch))
    return batch


@cython.cfunc
def _shift_timestamps(records: Any, count: cython.int, by: cython.longlong) -> bytearray:
    """The records with `by` added to their timestamp deltas."""
    reader: RecordReader = RecordReader(memoryview(records))
    shifted = bytearray()
    size: cython.Py_ssize_t
    delta: cython.longlong
    attributes: cython.int
    end: cython.Py_ssize_t
    for _ in range(count):
        size = reader.read_size()
        end = reader.position + size
        if size < 1:
            raise CorruptBatch(f"record data claims a record of {size} bytes")
        attributes = reader.octets[reader.position]
        reader.position += 1
        delta = reader.read_varint() + by
        if reader.position > end:
            raise CorruptBatch(f"record data ends within a number, at byte {reader.position}")
        timestamp = _varint(delta)
        shifted += _varint(1 + len(timestamp) + end - reader.position)
        shifted.append(attributes)
        shifted += timestamp
        shifted += reader.view[reader.position : end]
        reader.position = end
    return shifted


@cython.cfunc
def _varint(value: cython.longlong) -> bytes:
    rest: cython.ulonglong = ((value << 1) ^ (value >> 63)) & _MASK
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append((rest & 0x7F) | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
