# mypy: allow-untyped-decorators, no-warn-return-any
"""Record batches, version 2, built: records written once, into the bytes that are sent.

A batch begins with its header (`batch_header.py`); then follow its records, compressed together
when there is a codec. Of a record, every number is a zigzag varint but for the attributes, and a
length of -1 stands for null (KIP-98; `org.apache.kafka.common.record.DefaultRecord`):

    length of the rest, attributes int8 (unused), timestamp delta, offset delta,
    key length, key, value length, value, header count,
    and for each header: name length, name in UTF-8, value length, value

One source, two speeds: compiled, `octets` is a C pointer and every index is checked by this module
alone; interpreted, it is a bytearray or bytes, and the same statements run.
"""

from collections.abc import Sequence
from typing import Any

import cython

from trimtab.errors import UsageError
from trimtab.wire.batch_header import (
    BATCH_HEADER,
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatch,
    read_header,
    read_headers,
    reset_producer,
    restamp,
    stamp_append_time,
    stamp_crc,
    verify,
)
from trimtab.wire.compression import compress
from trimtab.wire.records_cy import RECORDS_LIMIT, ColumnScanner, read_records

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcpy

# All that there is to do with batches is found here.
__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "RECORDS_LIMIT",
    "BatchBuilder",
    "BatchHeader",
    "ColumnScanner",
    "CorruptBatch",
    "read_header",
    "read_headers",
    "read_records",
    "record_size",
    "reset_producer",
    "restamp",
    "stamp_append_time",
    "verify",
]

_BEFORE_LENGTH_ENDS = 12
_MAX_INT32 = cython.declare(cython.longlong, 2147483647)
_MAX_INT64 = cython.declare(cython.longlong, 9223372036854775807)


@cython.final
@cython.cclass
class _Writer:
    """A bytearray written from the front, and grown by doubling. Call `reserve` before each put."""

    data: bytearray
    octets: cython.p_uchar
    size: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    ceiling: cython.Py_ssize_t

    def __init__(self, size: cython.Py_ssize_t, ceiling: cython.Py_ssize_t) -> None:
        self.data = bytearray()
        self.size = size  # left to be filled later
        self.capacity = 0
        self.ceiling = ceiling  # never grown past it while it suffices
        self.grow(size)

    @cython.cfunc
    def grow(self, needed: cython.Py_ssize_t) -> object:
        capacity: cython.Py_ssize_t = max(2 * self.capacity, 64)
        if 0 < self.ceiling < capacity:
            capacity = self.ceiling
        capacity = max(capacity, needed)
        if cython.compiled:
            PyByteArray_Resize(self.data, capacity)
            self.octets = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
        else:
            self.data += bytes(capacity - len(self.data))
            self.octets = self.data
        self.capacity = capacity
        return None

    @cython.cfunc
    def reserve(self, more: cython.Py_ssize_t) -> cython.int:
        if more > self.capacity - self.size:
            self.grow(self.size + more)
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def put_octet(self, value: cython.uchar) -> cython.void:
        self.octets[self.size] = value
        self.size += 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def put_varint(self, value: cython.longlong) -> cython.void:
        rest: cython.ulonglong = (value << 1) ^ (value >> 63)
        while rest >= 0x80:
            self.octets[self.size] = (rest & 0x7F) | 0x80
            self.size += 1
            rest >>= 7
        self.octets[self.size] = rest
        self.size += 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def put(self, data: bytes, size: cython.Py_ssize_t) -> cython.void:
        """Append `data`, which is `size` bytes long."""
        if cython.compiled:
            memcpy(self.octets + self.size, cython.cast(cython.p_char, data), size)
        else:
            self.octets[self.size : self.size + size] = data
        self.size += size


@cython.cfunc
@cython.exceptval(check=False)
def _varint_size(value: cython.longlong) -> cython.int:
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    size: cython.int = 1
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


@cython.cfunc
def _as_bytes(field: str, data: object) -> bytes:
    if isinstance(data, (bytearray, memoryview, bytes)):
        return bytes(data)
    raise UsageError(
        f"record {field} is of type {type(data).__name__}: "
        "give bytes, bytearray, memoryview or None (a str by its .encode())"
    )


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The header count and the headers as they stand at the end of a record."""
    encoded = _Writer(0, 0)
    encoded.reserve(10)
    encoded.put_varint(len(headers))
    for header in headers:
        try:
            name, value = header
        except (TypeError, ValueError):
            raise UsageError(f"record header {header!r} is no pair: give (name, value)") from None
        if not isinstance(name, str):
            raise UsageError(
                f"record header name {name!r} is of type {type(name).__name__}: give a str"
            )
        name_bytes: bytes = name.encode()
        encoded.reserve(20 + len(name_bytes))
        encoded.put_varint(len(name_bytes))
        encoded.put(name_bytes, len(name_bytes))
        if value is None:
            encoded.put_varint(-1)
        else:
            value_bytes: bytes = _as_bytes("header value", value)
            encoded.reserve(10 + len(value_bytes))
            encoded.put_varint(len(value_bytes))
            encoded.put(value_bytes, len(value_bytes))
    return bytes(encoded.data[: encoded.size])


_NO_HEADERS: bytes = b"\x00"


@cython.cfunc
@cython.exceptval(check=False)
def _body_size(
    timestamp_delta: cython.longlong,
    offset_delta: cython.longlong,
    key_size: cython.Py_ssize_t,
    value_size: cython.Py_ssize_t,
    headers_size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Bytes of a record after its length; a size of -1 is a null."""
    return (
        1
        + _varint_size(timestamp_delta)
        + _varint_size(offset_delta)
        + _varint_size(key_size)
        + (key_size if key_size > 0 else 0)
        + _varint_size(value_size)
        + (value_size if value_size > 0 else 0)
        + headers_size
    )


def record_size(
    timestamp_delta: cython.longlong,
    offset_delta: cython.longlong,
    key: Any,
    value: Any,
    headers: Any = None,
) -> int:
    """Bytes that a record takes in a batch, uncompressed. Types and errors as in `append`."""
    size: cython.Py_ssize_t = _body_size(
        timestamp_delta,
        offset_delta,
        -1 if key is None else len(_as_bytes("key", key)),
        -1 if value is None else len(_as_bytes("value", value)),
        len(_encode_headers(headers)) if headers else 1,
    )
    return _varint_size(size) + size


@cython.final
@cython.cclass
class BatchBuilder:
    """A batch that a producer fills and then builds.

    Args:
        limit: bytes that the batch may reach before compression, its header included
            (`batch.size`). The first record always fits.
        compression: the codec that `build` applies (`compression.type`).
        level: the codec's level; None takes the codec's default (KIP-390).

    The memory it holds grows with what was appended, and is not `limit` from the start.
    """

    _writer: _Writer
    _limit: cython.longlong
    _codec: cython.int
    _level: Any
    _count: cython.int
    _base_timestamp: cython.longlong
    _max_timestamp: cython.longlong
    _built: Any

    def __init__(
        self, limit: cython.longlong, compression: cython.int = 0, level: int | None = None
    ) -> None:
        self._writer = _Writer(HEADER_BYTES, min(limit, _MAX_INT32))
        self._limit = min(limit, _MAX_INT32)
        self._codec = compression
        self._level = level
        self._count = 0
        self._base_timestamp = -1
        self._max_timestamp = -1
        self._built = None

    @property
    def count(self) -> int:
        """Records appended."""
        return self._count

    @property
    def size(self) -> int:
        """Bytes of the batch before compression, its header included."""
        return self._writer.size

    @property
    def base_timestamp(self) -> int:
        """The first record's timestamp, -1 while there is none."""
        return self._base_timestamp

    @property
    def max_timestamp(self) -> int:
        """The highest timestamp of the records, -1 while there is none."""
        return self._max_timestamp

    def append(self, timestamp: cython.longlong, key: object, value: object, headers: Any) -> int:
        """Append a record; return the bytes by which the batch grew, or 0 if it does not fit.

        Args:
            timestamp: milliseconds since the Unix epoch, or -1 for none; may go backwards.
            key: bytes, bytearray, memoryview or None.
            value: likewise; None is a tombstone where the topic is compacted.
            headers: a sequence of (name, value), the value being bytes or None; or None.

        Raises UsageError for other types, a negative timestamp, or a batch already built.
        """
        key_bytes: bytes = b""
        key_size: cython.Py_ssize_t = -1
        if key is not None:
            key_bytes = key if type(key) is bytes else _as_bytes("key", key)
            key_size = len(key_bytes)
        value_bytes: bytes = b""
        value_size: cython.Py_ssize_t = -1
        if value is not None:
            value_bytes = value if type(value) is bytes else _as_bytes("value", value)
            value_size = len(value_bytes)
        headers_bytes: bytes = _NO_HEADERS
        if headers is not None and headers:
            headers_bytes = _encode_headers(headers)
        headers_size: cython.Py_ssize_t = len(headers_bytes)
        if timestamp < -1 or timestamp == _MAX_INT64:
            raise UsageError(
                f"record timestamp {timestamp} is out of range: "
                "give milliseconds since the Unix epoch, or -1 for none"
            )
        if self._built is not None:
            raise UsageError("a batch that is built takes no more records: begin another")

        timestamp_delta: cython.longlong = 0
        if self._count > 0:
            timestamp_delta = timestamp - self._base_timestamp
        body: cython.Py_ssize_t = _body_size(
            timestamp_delta, self._count, key_size, value_size, headers_size
        )
        grown: cython.Py_ssize_t = _varint_size(body) + body
        writer = self._writer
        if writer.size + grown > self._limit:
            if self._count > 0:
                return 0
            if writer.size + grown > _MAX_INT32:
                raise UsageError(
                    f"a record of {grown} bytes is beyond the {_MAX_INT32} of a batch: send less"
                )

        writer.reserve(grown)
        writer.put_varint(body)
        writer.put_octet(0)
        writer.put_varint(timestamp_delta)
        writer.put_varint(self._count)
        writer.put_varint(key_size)
        if key_size > 0:
            writer.put(key_bytes, key_size)
        writer.put_varint(value_size)
        if value_size > 0:
            writer.put(value_bytes, value_size)
        if headers_size == 1:
            writer.put_octet(0)
        else:
            writer.put(headers_bytes, headers_size)

        if self._count == 0:
            self._base_timestamp = timestamp
            self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self._count += 1
        return grown

    def build(
        self,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        leader_epoch: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> bytearray:
        """The finished batch, at base offset 0; it takes no more records.

        Built again, for a retry under another producer identity, it is the same bytearray with its
        header and CRC stamped anew; nothing is compressed twice. Raises UsageError without records.
        """
        batch: bytearray
        if self._built is None:
            if self._count == 0:
                raise UsageError("a batch without records cannot be built: append one first")
            batch = self._writer.data
            del batch[self._writer.size :]
            if self._codec != 0:
                records = compress(self._codec, memoryview(batch)[HEADER_BYTES:], self._level)
                batch = bytearray(HEADER_BYTES) + records
                self._writer.data = batch
            self._built = batch
        batch = self._built
        attributes: cython.int = self._codec
        if is_transactional:
            attributes |= TRANSACTIONAL
        if is_control:
            attributes |= CONTROL
        BATCH_HEADER.pack_into(
            batch,
            0,
            0,
            len(batch) - _BEFORE_LENGTH_ENDS,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            self._count - 1,
            self._base_timestamp,
            self._max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self._count,
        )
        stamp_crc(batch, 0, len(batch))
        return batch
