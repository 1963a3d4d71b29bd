"""The header of a record batch, version 2: mostly the only part that a broker reads.

A batch, big-endian (KIP-98; `org.apache.kafka.common.record.DefaultRecordBatch`):

     0  base offset           int64    stamped by the broker
     8  batch length          int32    of everything after this field
    12  partition leader epoch int32   stamped by the broker
    16  magic                 int8     2
    17  CRC                   uint32   CRC-32C of everything after this field
    21  attributes            int16    bits 0-2 codec, 3 log append time, 4 transactional, 5 control
    23  last offset delta     int32
    27  base timestamp        int64    milliseconds; of the first record
    35  max timestamp         int64    milliseconds
    43  producer id           int64    -1 without idempotence
    51  producer epoch        int16
    53  base sequence         int32
    57  record count          int32
    61  records, compressed together when there is a codec
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.records import TimestampType
from trimtab.kafka.wire.checksum import crc32c
from trimtab.kafka.wire.compression import Compression

BytesLike: TypeAlias = bytes | bytearray | memoryview

_LENGTH = 8
_LEADER_EPOCH = _LENGTH + 4
_MAGIC = _LEADER_EPOCH + 4
_CRC = _MAGIC + 1
_ATTRIBUTES = _CRC + 4
_LAST_OFFSET_DELTA = _ATTRIBUTES + 2
_BASE_TIMESTAMP = _LAST_OFFSET_DELTA + 4
_MAX_TIMESTAMP = _BASE_TIMESTAMP + 8
_PRODUCER_ID = _MAX_TIMESTAMP + 8
_PRODUCER_EPOCH = _PRODUCER_ID + 8
_BASE_SEQUENCE = _PRODUCER_EPOCH + 2
_RECORD_COUNT = _BASE_SEQUENCE + 4
HEADER_BYTES = _RECORD_COUNT + 4
"""Bytes of a batch before its records."""

MAGIC = 2
"""The version of the record batch, the only one that Kafka 4 stores."""


BATCH_HEADER = Struct(">qiibIhiqqqhii")
"""Every field, in the order of `BatchHeader`; the second is the length after the length field."""

_INT64 = Struct(">q")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT16 = Struct(">h")
_PRODUCER = Struct(">qhi")

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

# Offsets are computed as base + delta, with a delta of 32 bits.
_MAX_BASE_OFFSET = 2**63 - 2**31

# The named tuple's constructor without its Python frame.
_new_tuple: Any = tuple.__new__


class CorruptBatch(CorruptData):
    """A batch that is damaged or not allowed.

    Attributes:
        code: the broker's error for it: CORRUPT_MESSAGE for damage, INVALID_RECORD for a batch that
            is undamaged but not allowed.
        magic: the batch's version if this module cannot read it, else None.
    """

    def __init__(
        self, detail: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE, magic: int | None = None
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.magic = magic

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.code, self.magic)


class BatchHeader(NamedTuple):
    """The fixed part of a batch. `size` is the whole batch in bytes, this header included."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> Compression:
        """The codec of the records. Raises CorruptData if the number is unknown."""
        codec = self.attributes & CODEC_MASK
        if codec > Compression.ZSTD:
            raise CorruptBatch(f"batch at offset {self.base_offset} has the unknown codec {codec}")
        return Compression(codec)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whose clock stamped the records (KIP-32)."""
        if self.attributes & LOG_APPEND_TIME:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether it holds a transaction marker instead of records."""
        return self.attributes & CONTROL != 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch, also if compaction has removed its last records."""
        return self.base_offset + self.last_offset_delta + 1


def read_header(buffer: BytesLike, position: int = 0) -> BatchHeader:
    """The header of the batch that begins at `position`; `buffer` may end after the header.

    Raises CorruptBatch for less than a header, another magic than 2, and impossible numbers.
    `verify` also checks that the batch is complete, and its CRC.
    """
    available = len(buffer) - position
    if position < 0 or available <= _MAGIC:
        raise CorruptBatch(f"batch at byte {position}: {available} bytes are no batch")
    magic = buffer[position + _MAGIC]
    if magic != MAGIC:
        raise CorruptBatch(
            f"batch at byte {position} has magic {magic}, and only magic {MAGIC} is stored: "
            "send record batches of version 2 (Kafka 0.11 or later)",
            ErrorCode.INVALID_RECORD,
            magic,
        )
    if available < HEADER_BYTES:
        raise CorruptBatch(
            f"batch at byte {position}: {available} bytes, and its header has {HEADER_BYTES}"
        )
    fields = BATCH_HEADER.unpack_from(buffer, position)
    header: BatchHeader = _new_tuple(
        BatchHeader, (fields[0], fields[1] + _LEADER_EPOCH, *fields[2:])
    )
    if header.size < HEADER_BYTES:
        raise CorruptBatch(
            f"batch at byte {position} claims {header.size} bytes, less than its header has"
        )
    if not 0 <= header.base_offset <= _MAX_BASE_OFFSET:
        raise CorruptBatch(
            f"batch at byte {position} has base offset {header.base_offset}, "
            f"outside 0 to {_MAX_BASE_OFFSET}"
        )
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptBatch(
            f"batch at byte {position} has last offset delta {header.last_offset_delta} and "
            f"{header.record_count} records: neither can be negative"
        )
    return header


def read_whole_header(buffer: BytesLike, position: int = 0) -> BatchHeader:
    """The header of a batch that is complete in `buffer`; CorruptBatch if it is not."""
    header = read_header(buffer, position)
    if header.size > len(buffer) - position:
        raise CorruptBatch(
            f"batch at byte {position} claims {header.size} bytes, "
            f"and {len(buffer) - position} are there"
        )
    return header


def read_headers(buffer: BytesLike, allow_partial: bool = False) -> list[BatchHeader]:
    """The headers of the consecutive batches in `buffer`.

    With `allow_partial` an incomplete last batch is ignored, as a fetch response may end with one
    (KIP-74); otherwise it is an error. Raises CorruptBatch as `read_header` does.
    """
    headers: list[BatchHeader] = []
    position = 0
    while position < len(buffer):
        if allow_partial and is_cut_short(buffer, position):
            break
        header = read_whole_header(buffer, position)
        headers.append(header)
        position += header.size
    return headers


def is_transactional(buffer: BytesLike) -> bool:
    """Whether the batch at the start of the buffer says that it is part of a transaction."""
    return len(buffer) >= HEADER_BYTES and bool(buffer[_ATTRIBUTES + 1] & TRANSACTIONAL)


def is_cut_short(buffer: BytesLike, position: int) -> bool:
    """Whether `buffer` ends within the batch at `position`, or at `position`."""
    available = len(buffer) - position
    if available <= _MAGIC:
        return True
    length: int = _INT32.unpack_from(buffer, position + _LENGTH)[0]
    # An impossible length is damage, not a cut; `read_header` raises for it.
    return length >= HEADER_BYTES - _LEADER_EPOCH and length + _LEADER_EPOCH > available


def verify(
    buffer: BytesLike, position: int = 0, size: int = -1, is_client_batch: bool = False
) -> BatchHeader:
    """The header of the batch at `position`, after checking its magic, sizes, counts and CRC.

    Args:
        size: bytes from `position` that the batch may use; -1 for all.
        is_client_batch: also check the rules for clients, as `LogValidator` does: offsets without a
            gap, a known codec, no control records, a sequence if there is a producer id.

    Raises CorruptBatch, whose `code` is the broker's error for the batch.
    """
    header = read_whole_header(buffer, position)
    if 0 <= size < header.size:
        raise CorruptBatch(
            f"batch at byte {position} claims {header.size} bytes, and may use {size}"
        )
    check_crc(memoryview(buffer), position, header)
    if is_client_batch:
        _check_client_batch(header)
    return header


def check_crc(view: memoryview, position: int, header: BatchHeader) -> None:
    """Raise CorruptBatch unless the CRC of the batch at `position` is that of its bytes."""
    crc = crc32c(view[position + _ATTRIBUTES : position + header.size])
    if crc != header.crc:
        raise CorruptBatch(
            f"batch at byte {position} has CRC {header.crc:#010x}, "
            f"and its bytes have {crc:#010x}: they changed on the way or on disk"
        )


def stamp_crc(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Write the CRC of the batch of `size` bytes at `position`."""
    view = memoryview(buffer)
    crc = crc32c(view[position + _ATTRIBUTES : position + size])
    _UINT32.pack_into(view, position + _CRC, crc)


def restamp(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set base offset and leader epoch of the batch at `position` of a writable buffer. The CRC
    does not cover them."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + _LEADER_EPOCH, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Make `timestamp_ms` the timestamp of every record of a batch, and update its CRC.

    For topics with `message.timestamp.type=LogAppendTime` (KIP-32). Only the header is rewritten.
    """
    header = read_whole_header(buffer, position)
    correct(buffer, position, header, header.attributes | LOG_APPEND_TIME, timestamp_ms)


def correct(
    buffer: bytearray | memoryview,
    position: int,
    header: BatchHeader,
    attributes: int,
    max_timestamp: int,
) -> None:
    """Set attributes and largest timestamp of the batch at `position`, and its CRC."""
    _INT16.pack_into(buffer, position + _ATTRIBUTES, attributes)
    _INT64.pack_into(buffer, position + _MAX_TIMESTAMP, max_timestamp)
    stamp_crc(buffer, position, header.size)


def reset_producer(
    buffer: bytearray | memoryview,
    position: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    """Set the producer identity of the batch at `position` of a writable buffer, and its CRC."""
    header = read_whole_header(buffer, position)
    _PRODUCER.pack_into(buffer, position + _PRODUCER_ID, producer_id, producer_epoch, base_sequence)
    stamp_crc(buffer, position, header.size)


def _check_client_batch(header: BatchHeader) -> None:
    problem = ""
    if header.record_count < 1:
        problem = "it has no records"
    elif header.last_offset_delta != header.record_count - 1:
        problem = (
            f"its last offset delta is {header.last_offset_delta} "
            f"with {header.record_count} records"
        )
    elif header.attributes & CODEC_MASK > Compression.ZSTD:
        problem = f"its codec {header.attributes & CODEC_MASK} is unknown"
    elif header.is_control:
        problem = "only brokers write control batches"
    elif header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        problem = (
            f"producer {header.producer_id} comes with epoch {header.producer_epoch} and "
            f"sequence {header.base_sequence}"
        )
    if problem:
        raise CorruptBatch(f"a client's batch is refused: {problem}", ErrorCode.INVALID_RECORD)
