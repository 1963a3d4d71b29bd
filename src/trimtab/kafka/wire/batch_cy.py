# mypy: allow-untyped-decorators, no-warn-return-any
"""Builds record batches, version 2: each record is written once, into the bytes that are sent.

A batch begins with its header (`batch_header.py`); its records follow, compressed together if there
is a codec. In a record all numbers except the attributes are zigzag varints, and a length of -1
means null (KIP-98; `org.apache.kafka.common.record.DefaultRecord`):

    length of the rest, attributes int8 (unused), timestamp delta, offset delta,
    key length, key, value length, value, header count,
    and for each header: name length, name in UTF-8, value length, value

The same source runs compiled and interpreted: compiled, `octets` is a C pointer, and only this
module checks indexes; interpreted, it is a bytearray or bytes.
"""

import struct
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import cython

from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.batch_header import (
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
from trimtab.kafka.wire.columns_cy import ColumnScanner
from trimtab.kafka.wire.compression import compress
from trimtab.kafka.wire.records_cy import (
    OPENED_LIMIT,
    RECORDS_LIMIT,
    read_records,
    read_some_records,
    scan_records,
    survey_records,
)
from trimtab.kafka.wire.rows_cy import HeadersColumn, Rows

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.object import PyObject  # noqa: F401
    from cython.cimports.libc.string import memcpy
    from cython.cimports.trimtab.kafka.wire.rows_cy import (  # type: ignore[no-redef]
        HeadersColumn,
        Rows,
    )

# Also exports the functions of the other modules for batches.
__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "OPENED_LIMIT",
    "RECORDS_LIMIT",
    "BatchBuilder",
    "BatchHeader",
    "BufferPool",
    "ColumnScanner",
    "CorruptBatch",
    "encode_headers",
    "read_header",
    "read_headers",
    "read_records",
    "read_some_records",
    "record_size",
    "reset_producer",
    "restamp",
    "scan_records",
    "stamp_append_time",
    "survey_records",
    "verify",
]

_SINGLE = struct.Struct("=f")
_BEFORE_LENGTH_ENDS = 12
_MAX_INT32 = cython.declare(cython.longlong, 2147483647)
_MAX_INT64 = cython.declare(cython.longlong, 9223372036854775807)
_HEADER_BYTES = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
# What a record may take beyond its key, value and headers, as `DefaultRecord.MAX_RECORD_OVERHEAD`.
_MOST_OVERHEAD = cython.declare(cython.Py_ssize_t, 21)
# A compressed batch may come out larger than expected: Java's COMPRESSION_RATE_ESTIMATION_FACTOR.
_ESTIMATION_FACTOR = cython.declare(cython.float, 1.05)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_size(value: cython.longlong) -> cython.Py_ssize_t:
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    size: cython.Py_ssize_t = 1
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(
    octets: cython.p_uchar, position: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    """Write a number; returns the position after it."""
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    while rest >= 0x80:
        octets[position] = (rest & 0x7F) | 0x80
        position += 1
        rest >>= 7
    octets[position] = rest
    return position + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(
    octets: cython.p_uchar,
    position: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write `size` bytes of `data` from `start` on; returns the position after them."""
    if cython.compiled:
        memcpy(octets + position, data + start, size)
    else:
        octets[position : position + size] = data[start : start + size]
    return position + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_nullable(
    octets: cython.p_uchar,
    position: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write length and bytes; a size of -1 is a null."""
    position = _put_varint(octets, position, size)
    if size > 0:
        position = _put(octets, position, data, start, size)
    return position


@cython.cfunc
def _as_bytes(field: str, data: object) -> bytes:
    if isinstance(data, (bytearray, memoryview, bytes)):
        return bytes(data)
    raise UsageError(
        f"record {field} is of type {type(data).__name__}: "
        "give bytes, bytearray, memoryview or None (a str by its .encode())"
    )


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The header count and headers as they end a record."""
    encoded = bytearray()
    _extend_varint(encoded, len(headers))
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
        _extend_varint(encoded, len(name_bytes))
        encoded += name_bytes
        if value is None:
            _extend_varint(encoded, -1)
        else:
            value_bytes: bytes = _as_bytes("header value", value)
            _extend_varint(encoded, len(value_bytes))
            encoded += value_bytes
    return bytes(encoded)


@cython.cfunc
def _extend_varint(encoded: bytearray, value: cython.longlong) -> object:
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    while rest >= 0x80:
        encoded.append((rest & 0x7F) | 0x80)
        rest >>= 7
    encoded.append(rest)
    return None


_NO_HEADERS: bytes = b"\x00"


@cython.cfunc
@cython.exceptval(check=False)
def _headers_size(headers: HeadersColumn) -> cython.Py_ssize_t:
    """Encoded size of the headers at the cursor, with their count."""
    size: cython.Py_ssize_t = _varint_size(max(headers.size, 0))
    header: cython.Py_ssize_t
    for header in range(headers.start, headers.start + headers.size):
        headers.names.seek(header)
        headers.values.seek(header)
        size += _varint_size(headers.names.size) + headers.names.size
        size += _varint_size(headers.values.size) + max(headers.values.size, 0)
    return size


@cython.cfunc
@cython.exceptval(check=False)
def _put_headers(
    octets: cython.p_uchar, position: cython.Py_ssize_t, headers: HeadersColumn
) -> cython.Py_ssize_t:
    """Write the headers at the cursor; returns the position after them."""
    header: cython.Py_ssize_t
    position = _put_varint(octets, position, max(headers.size, 0))
    for header in range(headers.start, headers.start + headers.size):
        name = headers.names
        name.seek(header)
        position = _put_nullable(octets, position, name.octets, name.start, name.size)
        value = headers.values
        value.seek(header)
        position = _put_nullable(octets, position, value.octets, value.start, value.size)
    return position


@cython.cfunc
@cython.inline
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
    """Bytes of a record in a batch, uncompressed. Types and errors as in `append`."""
    size: cython.Py_ssize_t = _body_size(
        timestamp_delta,
        offset_delta,
        -1 if key is None else len(_as_bytes("key", key)),
        -1 if value is None else len(_as_bytes("value", value)),
        len(encode_headers(headers)) if headers else 1,
    )
    return _varint_size(size) + size


@cython.cfunc
@cython.exceptval(check=False)
def _scaled(size: cython.Py_ssize_t, ratio: cython.float) -> cython.Py_ssize_t:
    """The expected compressed size of `size` bytes: in Java's single precision, cut to an int."""
    if not cython.compiled:
        return int(_single(_single(_single(size) * _single(ratio)) * _single(_ESTIMATION_FACTOR)))
    return cython.cast(
        cython.Py_ssize_t, cython.cast(cython.float, size) * ratio * _ESTIMATION_FACTOR
    )


def _single(value: float) -> float:
    """Rounded to single precision."""
    rounded: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    return rounded


@cython.final
@cython.cclass
class BufferPool:
    """Memory of finished batches, kept for new ones.

    New memory costs a page fault per 4 KiB, which together cost as much as encoding the records
    (measured: 50 of 100 ns for a record of 100 bytes).

    Args:
        size: bytes of each buffer (`batch.size`).
        limit: bytes kept at most.

    Attributes:
        kept: bytes kept now.

    Source: the idea is from `org.apache.kafka.clients.producer.internals.BufferPool`.
    """

    def __init__(self, size: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> None:
        self.size = size
        self.kept = 0
        self._limit = limit
        self._buffers: list[bytearray] = []

    def _take(self) -> bytearray | None:
        if not self._buffers:
            return None
        self.kept -= self.size
        return self._buffers.pop()

    def _keep(self, buffer: bytearray) -> None:
        if self.kept + self.size <= self._limit:
            self.kept += self.size
            self._buffers.append(buffer)


@cython.final
@cython.cclass
class BatchBuilder:
    """A batch that a producer fills and then builds. `batch_cy.pxd` has its fields' C types.

    Args:
        limit: the size to fill the batch to, its header included (`batch.size`). The first record
            always fits; it raises the limit to the size that Java would have allocated for it.
        compression: the codec that `build` applies (`compression.type`).
        level: the codec's level; None for the codec's default (KIP-390).
        ratio: the expected ratio of compressed to uncompressed bytes; without a codec it has no
            effect. A compressed batch is filled until its expected size reaches `limit`, with the
            next record counted uncompressed (`MemoryRecordsBuilder.hasRoomFor`).
        pool: large batches take memory from it, and `release` returns it.

    Attributes:
        count: records appended.
        size: bytes of the batch before compression, its header included.
        capacity: bytes of memory held. It grows with the records, up to `limit`; after `build` it
            is the size of the finished batch.
        base_timestamp: the first record's timestamp, -1 while there is none.
        max_timestamp: the highest timestamp of the records, -1 while there is none.
    """

    def __init__(
        self,
        limit: cython.longlong,
        compression: cython.int = 0,
        level: int | None = None,
        ratio: cython.float = 1.0,
        pool: BufferPool | None = None,
    ) -> None:
        self.count = 0
        self.size = HEADER_BYTES  # `build` fills the header in
        self.capacity = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self._limit = min(limit, _MAX_INT32)
        self._codec = compression
        self._level = level
        self._ratio = ratio
        self._is_built = False
        self._pool = pool
        self._data = bytearray()
        self._grow(HEADER_BYTES)

    def _grow(self, needed: cython.Py_ssize_t) -> object:
        """Get more memory: twice as much, or all of `limit` once a fourth of it is exceeded."""
        capacity: cython.Py_ssize_t = max(2 * self.capacity, 64)
        if capacity > self._limit // 4:
            capacity = self._limit
        capacity = max(capacity, needed)
        pooled: bytearray | None = None
        if self._pool is not None and capacity == self._pool.size:
            pooled = self._pool._take()
        if pooled is not None:
            written = memoryview(self._data)[: self.size]  # empty the first time
            pooled[: len(written)] = written
            self._data = pooled
        elif cython.compiled:
            PyByteArray_Resize(self._data, capacity)
        else:
            self._data += bytes(capacity - len(self._data))
        if cython.compiled:
            self._octets = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self._data))
        else:
            self._octets = self._data
        self.capacity = capacity
        return None

    def estimate(self) -> int:
        """The expected size of the built batch in bytes; exact without a codec.

        Source: `MemoryRecordsBuilder.estimatedBytesWritten`.
        """
        if self._codec == 0:
            return self.size
        return _HEADER_BYTES + _scaled(self.size - _HEADER_BYTES, self._ratio)

    def append(self, timestamp: cython.longlong, key: object, value: object, headers: Any) -> int:
        """Append a record; return the bytes by which the batch grew, or 0 if it does not fit.

        Args:
            timestamp: milliseconds since the Unix epoch, or -1 for none; may go backwards.
            key, value: bytes, bytearray, memoryview or None.
            headers: pairs (name, value), whose value is bytes or None; or `encode_headers` of them.

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
            headers_bytes = headers if type(headers) is bytes else encode_headers(headers)
        position: cython.Py_ssize_t = self._begin(
            timestamp, key_size, value_size, len(headers_bytes)
        )
        if position == 0:
            return 0
        position = _put_nullable(self._octets, position, key_bytes, 0, key_size)
        position = _put_nullable(self._octets, position, value_bytes, 0, value_size)
        position = _put(self._octets, position, headers_bytes, 0, len(headers_bytes))
        return self._end(position)

    def append_row(self, rows: Rows) -> int:
        """`append` the row at the cursor of `rows`, straight from its buffers."""
        key = rows.key
        value = rows.value
        headers = rows.headers
        headers_size: cython.Py_ssize_t = 1 if headers is None else _headers_size(headers)
        position: cython.Py_ssize_t = self._begin(
            rows.timestamp, key.size, value.size, headers_size
        )
        if position == 0:
            return 0
        octets = self._octets
        position = _put_nullable(octets, position, key.octets, key.start, key.size)
        position = _put_nullable(octets, position, value.octets, value.start, value.size)
        if headers is None:
            octets[position] = 0
            position += 1
        else:
            position = _put_headers(octets, position, headers)
        return self._end(position)

    def _begin(
        self,
        timestamp: cython.longlong,
        key_size: cython.Py_ssize_t,
        value_size: cython.Py_ssize_t,
        headers_size: cython.Py_ssize_t,
    ) -> int:
        """Write a record up to its key; returns the key's position, or 0 if it does not fit."""
        if timestamp < -1 or timestamp == _MAX_INT64:
            raise UsageError(
                f"record timestamp {timestamp} is out of range: "
                "give milliseconds since the Unix epoch, or -1 for none"
            )
        if self._is_built:
            raise UsageError("a batch that is built takes no more records: begin another")
        count: cython.int = self.count
        timestamp_delta: cython.longlong = 0
        if count > 0:
            timestamp_delta = timestamp - self.base_timestamp
        body: cython.Py_ssize_t = _body_size(
            timestamp_delta, count, key_size, value_size, headers_size
        )
        grown: cython.Py_ssize_t = _varint_size(body) + body
        if count == 0:
            if self.size + grown > _MAX_INT32:
                raise UsageError(
                    f"a record of {grown} bytes is beyond the {_MAX_INT32} of a batch: send less"
                )
            # Java's overhead includes attributes and deltas, which take three bytes here.
            bound: cython.longlong = _HEADER_BYTES + _MOST_OVERHEAD + body - 3
            self._limit = min(max(self._limit, bound), _MAX_INT32)
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        else:
            if (self.size if self._codec == 0 else self.estimate()) + grown > self._limit:
                return 0
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
        if self.size + grown > self.capacity:
            self._grow(self.size + grown)

        position: cython.Py_ssize_t = _put_varint(self._octets, self.size, body)
        self._octets[position] = 0
        position = _put_varint(self._octets, position + 1, timestamp_delta)
        return _put_varint(self._octets, position, count)

    def _end(self, position: cython.Py_ssize_t) -> int:
        """Count a record whose end is `position`; returns its size."""
        grown: cython.Py_ssize_t = position - self.size
        self.count, self.size = self.count + 1, position  # both, even if Ctrl-C comes
        return grown

    def records(self) -> list[Any]:
        """The records, decoded from the built batch, to split a batch that is too large.

        They are `trimtab.kafka.records.Record` with offsets from 0 and an empty topic. Builds the
        batch.
        """
        batch = self._data if self._is_built else self.build()
        return read_records("", 0, batch, 0, check_crcs=False)

    def build(
        self,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        leader_epoch: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> bytearray:
        """The finished batch, at base offset 0; no more records can be appended.

        Another call, for a retry under another producer identity, returns the same bytearray with a
        new header and CRC; nothing is compressed twice. Raises UsageError without records.
        """
        if not self._is_built:
            if self.count == 0:
                raise UsageError("a batch without records cannot be built: append one first")
            del self._data[self.size :]
            if self._codec != 0:
                records = compress(self._codec, memoryview(self._data)[HEADER_BYTES:], self._level)
                compressed = bytearray(HEADER_BYTES) + records
                self.release()
                self._data = compressed
                self.capacity = len(compressed)
            self._is_built = True
        batch = self._data
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
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.count,
        )
        stamp_crc(batch, 0, len(batch))
        return batch

    def release(self) -> None:
        """Return the memory to the pool; the batch cannot be used any more.

        Memory that another object refers to, such as a connection that has not sent all of it, is
        not returned.
        """
        pool = self._pool
        if pool is not None and self.capacity == pool.size and self._is_sole_owner():
            if cython.compiled:
                PyByteArray_Resize(self._data, pool.size)
            else:
                self._data += bytes(pool.size - len(self._data))
            pool._keep(self._data)
        self._data = bytearray()
        self.capacity = 0

    def _is_sole_owner(self) -> bool:
        """Whether only the builder refers to its memory."""
        if not cython.compiled:
            return getrefcount(self._data) == 3  # with `_octets` and the argument
        # Through a pointer, because passing the object to Py_REFCNT would add a reference.
        return cython.cast("PyObject *", self._data).ob_refcnt == 1
