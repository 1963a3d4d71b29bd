# mypy: allow-untyped-decorators, no-warn-return-any
"""Reads record batches, version 2: as records for a consumer, or as columns for Spark.

The layout of a record is in `batch_cy.py`. Both use one cursor, which checks every number before it
uses it, as the bytes come from the network.

The same source runs compiled and interpreted: compiled, `octets` is a C pointer, and only this
module checks indexes; interpreted, it is a bytearray, bytes or memoryview.

Records and columns are in one module, although it has more than 600 lines: only within a module
does C call the cursor's methods directly, several for each record.
"""

import struct
from collections.abc import Iterator
from typing import Any

import cython

from trimtab.errors import UsageError
from trimtab.records import Record, TimestampType
from trimtab.wire.batch_header import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    CorruptBatch,
    check_crc,
    is_cut_short,
    read_whole_header,
)
from trimtab.wire.columns import BinaryColumn, Columns, HeadersColumn, SizeColumn
from trimtab.wire.compression import decompress

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        Py_buffer,
        PyBUF_SIMPLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

RECORDS_LIMIT = 256 * 1024 * 1024
"""The default limit for the decompressed records of one batch, in bytes."""
OPENED_LIMIT = 16 * 1024 * 1024
"""A broker's limit for the decompressed records of one batch, in bytes: it decompresses a batch at
once, and other tasks wait meanwhile. Sixteen times the default `max.message.bytes`."""
SCANNED_AT_ONCE = 2000

_NATIVE_INT32 = struct.Struct("=i")
_NATIVE_INT64 = struct.Struct("=q")
_MAX_INT64 = cython.declare(cython.longlong, 9223372036854775807)
_MAX_MILLISECONDS = cython.declare(cython.longlong, 9223372036854775)

# The named tuple's constructor without its Python frame.
_new_tuple: Any = tuple.__new__


@cython.cfunc
def _octets_of_bytes(data: bytes) -> cython.p_uchar:
    """A pointer to `data`; valid while the caller keeps it."""
    if cython.compiled:
        return cython.cast(cython.p_uchar, cython.cast(cython.p_char, data))
    else:  # noqa: RET505
        return data


@cython.cfunc
def _octets_of_view(view: memoryview) -> cython.p_uchar:
    """A pointer to the bytes of `view`; valid while the caller keeps the view."""
    if cython.compiled:
        lease = cython.declare(Py_buffer)
        PyObject_GetBuffer(view, cython.address(lease), PyBUF_SIMPLE)
        octets = cython.cast(cython.p_uchar, lease.buf)
        PyBuffer_Release(cython.address(lease))  # the view itself keeps the memory in place
        return octets
    else:  # noqa: RET505
        return view


@cython.final
@cython.cclass
class RecordReader:
    """A cursor over the uncompressed records of one batch. `records_cy.pxd` has its fields.

    It reads only between `position` and `limit`, whatever lengths the bytes contain.
    """

    def __init__(self, records: memoryview) -> None:
        self.view = records
        self.octets = _octets_of_view(records)
        self.position = 0
        self.end = len(records)
        self.limit = self.end

    def read_varint(self) -> cython.longlong:
        octet: cython.ulonglong
        value: cython.ulonglong = 0
        shift: cython.int = 0
        position: cython.Py_ssize_t = self.position
        while True:
            if position >= self.limit:
                raise CorruptBatch(f"record data ends within a number, at byte {position}")
            octet = self.octets[position]
            position += 1
            if shift == 63 and octet > 1:
                raise CorruptBatch(
                    f"record data has a number beyond 64 bits before byte {position}"
                )
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                break
            shift += 7
        self.position = position
        return (value >> 1) ^ -(value & 1)

    def read_size(self) -> cython.Py_ssize_t:
        """The length of the next field; below zero for a null."""
        size: cython.longlong = self.read_varint()
        if size > self.limit - self.position:
            raise CorruptBatch(
                f"record data claims {size} bytes at byte {self.position}, "
                f"and {self.limit - self.position} are left"
            )
        return size if size >= 0 else -1

    def read_record(self) -> cython.int:
        """Read the next record up to its headers, which `read_header` reads one by one."""
        self.limit = self.end
        size: cython.Py_ssize_t = self.read_size()
        if size < 1:
            raise CorruptBatch(f"record data claims a record of {size} bytes")
        self.limit = self.position + size
        self.position += 1  # attributes, which have no meaning yet
        self.timestamp_delta = self.read_varint()
        self.offset_delta = self.read_varint()
        self.key_size = self.read_size()
        self.key_start = self.position
        if self.key_size > 0:
            self.position += self.key_size
        self.value_size = self.read_size()
        self.value_start = self.position
        if self.value_size > 0:
            self.position += self.value_size
        # Every header takes two bytes at least, so their count is bounded like a size.
        self.header_count = self.read_size()
        if self.header_count < 0:
            raise CorruptBatch(
                f"record data claims a negative header count, at byte {self.position}"
            )
        return 0

    def read_header(self) -> cython.int:
        self.header_name_size = self.read_size()
        if self.header_name_size < 0:
            raise CorruptBatch(f"record data has a header without a name, at byte {self.position}")
        self.header_name_start = self.position
        self.position += self.header_name_size
        self.header_value_size = self.read_size()
        self.header_value_start = self.position
        if self.header_value_size > 0:
            self.position += self.header_value_size
        return 0

    def end_record(self) -> cython.int:
        if self.position != self.limit:
            raise CorruptBatch(
                f"record data has {self.limit - self.position} bytes too many in a record, "
                f"at byte {self.position}"
            )
        return 0

    def end_batch(self) -> object:
        if self.position != self.end:
            raise CorruptBatch(
                f"record data has {self.end - self.position} bytes after the last record"
            )
        return None

    def bytes_at(self, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> Any:
        if size < 0:
            return None
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.octets + start), size)
        else:  # noqa: RET505
            return bytes(self.octets[start : start + size])

    def header_name(self) -> str:
        # As in Java: a name that is not UTF-8 must not stop a consumer for ever.
        name: bytes = self.bytes_at(self.header_name_start, self.header_name_size)
        return name.decode("utf-8", "replace")

    def read_headers(self) -> Any:
        """The headers of the record at the cursor, as (name, value); an empty tuple if none."""
        if self.header_count == 0:
            return ()
        headers = []
        for _ in range(self.header_count):
            self.read_header()
            value = self.bytes_at(self.header_value_start, self.header_value_size)
            headers.append((self.header_name(), value))
        return headers


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _adds_up(base: cython.longlong, delta: cython.longlong) -> cython.bint:
    """Whether base + delta fits into 64 bits."""
    if delta >= 0:
        return base <= _MAX_INT64 - delta
    return base >= -_MAX_INT64 - 1 - delta


def open_records(
    view: memoryview, position: cython.Py_ssize_t, header: Any, check_crcs: bool, limit: Any
) -> RecordReader:
    """A reader of the batch's records; decompresses them first if they are compressed."""
    if check_crcs:
        check_crc(view, position, header)
    size: cython.Py_ssize_t = header.size
    records = view[position + HEADER_BYTES : position + size]
    attributes: cython.int = header.attributes
    if attributes & CODEC_MASK:
        records = memoryview(decompress(header.compression, records, limit))
    return RecordReader(records)


def read_records(
    topic: str,
    partition: int,
    buffer: Any,
    start_offset: cython.longlong = 0,
    check_crcs: bool = True,
    limit: int = RECORDS_LIMIT,
) -> list[Record]:
    """The records from `start_offset` on of the consecutive batches in `buffer`.

    Control batches and an incomplete last batch are skipped. Every record of a batch with log
    append time gets the batch's maximum timestamp.

    Args:
        check_crcs: compare each batch's CRC first (`check.crcs`).
        limit: bytes that one batch may take when decompressed.

    Raises CorruptData for bytes that are not complete batches of complete records.
    """
    view = memoryview(buffer).cast("B")
    found: list[Record] = []
    position: cython.Py_ssize_t = 0
    count: cython.int
    base_offset: cython.longlong
    last_delta: cython.longlong
    base_timestamp: cython.longlong
    reader: RecordReader
    while not is_cut_short(view, position):
        header = read_whole_header(view, position)
        if header.is_control or header.last_offset < start_offset:
            position += header.size
            continue
        reader = open_records(view, position, header, check_crcs, limit)
        position += header.size
        base_offset = header.base_offset
        last_delta = header.last_offset_delta
        base_timestamp = header.base_timestamp
        timestamp_type = header.timestamp_type
        append_time = (
            header.max_timestamp if timestamp_type is TimestampType.LOG_APPEND_TIME else None
        )
        count = header.record_count
        for _ in range(count):
            reader.read_record()
            if reader.offset_delta < 0 or reader.offset_delta > last_delta:
                raise _offset_outside(header, reader.offset_delta)
            if not _adds_up(base_timestamp, reader.timestamp_delta):
                raise CorruptBatch(f"record data has timestamp delta {reader.timestamp_delta}")
            key = reader.bytes_at(reader.key_start, reader.key_size)
            value = reader.bytes_at(reader.value_start, reader.value_size)
            headers = reader.read_headers()
            reader.end_record()
            if base_offset + reader.offset_delta >= start_offset:
                found.append(
                    _new_tuple(
                        Record,
                        (
                            topic,
                            partition,
                            base_offset + reader.offset_delta,
                            base_timestamp + reader.timestamp_delta
                            if append_time is None
                            else append_time,
                            timestamp_type,
                            key,
                            value,
                            headers,
                        ),
                    )
                )
        reader.end_batch()
    return found


def scan_records(
    buffer: Any,
    position: cython.Py_ssize_t,
    header: BatchHeader,
    check_crcs: bool = True,
    limit: int = OPENED_LIMIT,
) -> Iterator[list[tuple[int, int, bool]]]:
    """Of each record in the batch at `position`: its offset delta, its timestamp delta, and whether
    it has a key; in lists of up to `SCANNED_AT_ONCE` records. For brokers.

    Raises CorruptData for a malformed batch.
    """
    reader: RecordReader = open_records(memoryview(buffer), position, header, check_crcs, limit)
    count: cython.int = header.record_count
    found: list[tuple[int, int, bool]] = []
    for _ in range(count):
        reader.read_record()
        for _ in range(reader.header_count):
            reader.read_header()
        reader.end_record()
        found.append((reader.offset_delta, reader.timestamp_delta, reader.key_size >= 0))
        if len(found) == SCANNED_AT_ONCE:
            yield found
            found = []
    reader.end_batch()
    yield found


def _offset_outside(header: BatchHeader, delta: int) -> CorruptBatch:
    return CorruptBatch(
        f"record data has offset delta {delta} in a batch of base offset {header.base_offset} "
        f"that ends at {header.last_offset}"
    )


# --- Columns -------------------------------------------------------------------------------------


@cython.final
@cython.cclass
class _Buffer:
    """A bytearray that grows by doubling. Call `reserve` before each put."""

    data: bytearray
    octets: cython.p_uchar
    size: cython.Py_ssize_t
    capacity: cython.Py_ssize_t

    def __init__(self) -> None:
        self.clear(0)

    @cython.cfunc
    def clear(self, capacity: cython.Py_ssize_t) -> object:
        self.data = bytearray()
        self.size = 0
        self.capacity = 0
        if capacity > 0:
            self.grow(capacity)
        return None

    @cython.cfunc
    def grow(self, needed: cython.Py_ssize_t) -> object:
        capacity: cython.Py_ssize_t = max(2 * self.capacity, needed, 64)
        if cython.compiled:
            PyByteArray_Resize(self.data, capacity)
            self.octets = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
        else:
            self.data += bytes(capacity - len(self.data))
            self.octets = self.data
        self.capacity = capacity
        return None

    @cython.cfunc
    @cython.inline
    def reserve(self, more: cython.Py_ssize_t) -> cython.int:
        if more > self.capacity - self.size:
            self.grow(self.size + more)
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put_octet(self, value: cython.uchar) -> cython.void:
        self.octets[self.size] = value
        self.size += 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put(
        self, octets: cython.p_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.void:
        if cython.compiled:
            memcpy(self.octets + self.size, octets + start, size)
        else:
            self.octets[self.size : self.size + size] = octets[start : start + size]
        self.size += size

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put_int32(self, value: cython.int) -> cython.void:
        if cython.compiled:
            cython.cast(cython.p_int, self.octets + self.size)[0] = value
        else:
            _NATIVE_INT32.pack_into(self.data, self.size, value)
        self.size += 4

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put_int64(self, value: cython.longlong) -> cython.void:
        if cython.compiled:
            cython.cast(cython.p_longlong, self.octets + self.size)[0] = value
        else:
            _NATIVE_INT64.pack_into(self.data, self.size, value)
        self.size += 8

    @cython.cfunc
    def take(self) -> bytearray:
        """The bytes that were put. The buffer is empty afterwards, with the same capacity."""
        taken = self.data
        size = self.size
        if cython.compiled:
            PyByteArray_Resize(taken, size)
        else:
            del taken[size:]
        self.clear(size)
        return taken


@cython.final
@cython.cclass
class _Validity:
    """A bit per row, lowest first; 1 is a value, 0 a null."""

    bits: _Buffer
    rows: cython.Py_ssize_t
    nulls: cython.Py_ssize_t

    def __init__(self) -> None:
        self.bits = _Buffer()
        self.rows = 0
        self.nulls = 0

    @cython.cfunc
    @cython.inline
    def put(self, valid: cython.bint) -> cython.int:
        if self.rows & 7 == 0:
            self.bits.reserve(1)
            self.bits.put_octet(0)
        if valid:
            self.bits.octets[self.rows >> 3] |= 1 << (self.rows & 7)
        else:
            self.nulls += 1
        self.rows += 1
        return 0

    @cython.cfunc
    def take(self) -> object:
        bits = self.bits.take()
        nulls = self.nulls
        self.rows = 0
        self.nulls = 0
        return bits if nulls > 0 else None


@cython.final
@cython.cclass
class _BinaryRows:
    validity: _Validity
    offsets: _Buffer
    data: _Buffer

    def __init__(self) -> None:
        self.validity = _Validity()
        self.offsets = _Buffer()
        self.data = _Buffer()
        self.begin()

    @cython.cfunc
    def begin(self) -> object:
        self.offsets.reserve(4)
        self.offsets.put_int32(0)
        return None

    @cython.cfunc
    @cython.inline
    def put(
        self, octets: cython.p_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.int:
        """Add a row of the `size` bytes at `start`; a size below zero is a null."""
        self.validity.put(size >= 0)
        if size > 0:
            self.data.reserve(size)
            self.data.put(octets, start, size)
        self.offsets.reserve(4)
        self.offsets.put_int32(self.data.size)
        return 0

    @cython.cfunc
    def take(self) -> object:
        nulls = self.validity.nulls
        column = BinaryColumn(
            self.validity.take(),
            self.offsets.take(),
            self.data.take(),
            nulls,
        )
        self.begin()
        return column


@cython.final
@cython.cclass
class _SizeRows:
    validity: _Validity
    data: _Buffer

    def __init__(self) -> None:
        self.validity = _Validity()
        self.data = _Buffer()

    @cython.cfunc
    @cython.inline
    def put(self, size: cython.Py_ssize_t) -> cython.int:
        """Add a row; a size below zero is a null."""
        self.validity.put(size >= 0)
        self.data.reserve(4)
        self.data.put_int32(cython.cast(cython.int, size))
        return 0

    @cython.cfunc
    def take(self) -> object:
        nulls = self.validity.nulls
        return SizeColumn(self.validity.take(), self.data.take(), nulls)


@cython.final
@cython.cclass
class ColumnScanner:
    """Reads batches into columns for Spark's partition readers, without an object per record.

    Args:
        key, value, headers: whether to read these columns. Offset, timestamp and its type are
            always read.
        batch_columns: whether to add columns with the batch's base offset and stored size, and the
            record's index in the batch.
        sizes: whether to add columns with the sizes of key and value, even if these are not read.
        full_bytes: `scan` stops after the batch with which `data_bytes` reaches this; at most
            256 MiB.
        check_crcs: compare each batch's CRC first (`check.crcs`).
        limit: bytes that one batch may take when decompressed; at most 256 MiB.
    """

    _key: _BinaryRows
    _value: _BinaryRows
    _wants_key: cython.bint
    _wants_value: cython.bint
    _wants_headers: cython.bint
    _wants_batches: cython.bint
    _wants_sizes: cython.bint
    _offset: _Buffer
    _timestamp: _Buffer
    _timestamp_type: _Buffer
    _batch_base_offset: _Buffer
    _batch_bytes: _Buffer
    _far_timestamp: Any
    _batch_index: _Buffer
    _key_bytes: _SizeRows
    _value_bytes: _SizeRows
    _headers_validity: _Validity
    _headers_offsets: _Buffer
    _header_key: _BinaryRows
    _header_value: _BinaryRows
    _rows: cython.Py_ssize_t
    _next_offset: cython.longlong
    _full_bytes: cython.longlong
    _limit: cython.longlong
    _checks_crcs: cython.bint

    def __init__(
        self,
        key: bool = True,
        value: bool = True,
        headers: bool = False,
        batch_columns: bool = False,
        sizes: bool = False,
        full_bytes: cython.longlong = 8 * 1024 * 1024,
        check_crcs: bool = True,
        limit: cython.longlong = RECORDS_LIMIT,
    ) -> None:
        # With these limits every offset into a column fits into int32.
        if not 0 < full_bytes <= RECORDS_LIMIT or not 0 < limit <= RECORDS_LIMIT:
            raise UsageError(
                f"ColumnScanner(full_bytes={full_bytes}, limit={limit}): "
                f"both must be from 1 to {RECORDS_LIMIT}"
            )
        self._wants_key = key
        self._wants_value = value
        self._wants_headers = headers
        self._wants_batches = batch_columns
        self._wants_sizes = sizes
        self._full_bytes = full_bytes
        self._limit = limit
        self._checks_crcs = check_crcs
        self._next_offset = 0
        self._empty()

    @cython.cfunc
    def _empty(self) -> object:
        self._rows = 0
        self._key = _BinaryRows()
        self._value = _BinaryRows()
        self._offset = _Buffer()
        self._timestamp = _Buffer()
        self._timestamp_type = _Buffer()
        self._batch_base_offset = _Buffer()
        self._batch_bytes = _Buffer()
        self._far_timestamp = None
        self._batch_index = _Buffer()
        self._key_bytes = _SizeRows()
        self._value_bytes = _SizeRows()
        self._headers_validity = _Validity()
        self._headers_offsets = _Buffer()
        self._headers_offsets.reserve(4)
        self._headers_offsets.put_int32(0)
        self._header_key = _BinaryRows()
        self._header_value = _BinaryRows()
        return None

    @property
    def rows(self) -> int:
        """Rows scanned and not yet taken."""
        return self._rows

    @property
    def next_offset(self) -> int:
        """The offset after all scanned batches, control batches included."""
        return self._next_offset

    @property
    def data_bytes(self) -> int:
        """Approximate bytes in the columns not yet taken."""
        return (
            self._key.data.size
            + self._value.data.size
            + self._header_key.data.size
            + self._header_value.data.size
            # Offset, timestamp, its type, and the offsets of key and value.
            + 28 * self._rows
        )

    @property
    def full(self) -> bool:
        """Whether `take` must be called before `scan` reads on from `next_offset`."""
        return self.data_bytes >= self._full_bytes

    def scan(self, buffer: Any, start_offset: cython.longlong, end_offset: cython.longlong) -> int:
        """Add the records of [start_offset, end_offset) in `buffer`; returns their number.

        Adds whole batches until it is full; then call `take`, and scan the same buffer from
        `next_offset`. Control batches and an incomplete last batch are skipped. If it raises
        CorruptData, all rows that were not taken are lost.
        """
        before = self._rows
        try:
            self._scan(memoryview(buffer).cast("B"), start_offset, end_offset)
        except BaseException:
            self._empty()
            raise
        return self._rows - before

    @cython.cfunc
    def _scan(self, view: memoryview, start: cython.longlong, end: cython.longlong) -> object:
        position: cython.Py_ssize_t = 0
        self._next_offset = start
        while self._next_offset < end and not self.full and not is_cut_short(view, position):
            header = read_whole_header(view, position)
            if header.next_offset > start:
                if header.base_offset < end and not header.is_control:
                    self._scan_batch(view, position, header, start, end)
                self._next_offset = min(header.next_offset, end)
            position += header.size
        return None

    @cython.cfunc
    def _scan_batch(
        self,
        view: memoryview,
        position: cython.Py_ssize_t,
        header: Any,
        start: cython.longlong,
        end: cython.longlong,
    ) -> object:
        reader: RecordReader = open_records(view, position, header, self._checks_crcs, self._limit)
        size: cython.int = header.size
        count: cython.int = header.record_count
        base_offset: cython.longlong = header.base_offset
        last_delta: cython.longlong = header.last_offset_delta
        base_timestamp: cython.longlong = header.base_timestamp
        append_time: cython.longlong = header.max_timestamp
        attributes: cython.int = header.attributes
        timestamp_type: cython.int = 1 if attributes & LOG_APPEND_TIME else 0
        offset: cython.longlong
        milliseconds: cython.longlong
        index: cython.int
        for index in range(count):
            reader.read_record()
            if reader.offset_delta < 0 or reader.offset_delta > last_delta:
                raise _offset_outside(header, reader.offset_delta)
            if not _adds_up(base_timestamp, reader.timestamp_delta):
                raise CorruptBatch(f"record data has timestamp delta {reader.timestamp_delta}")
            offset = base_offset + reader.offset_delta
            if offset < start or offset >= end:
                self._pass_headers(reader)
                reader.end_record()
                continue
            milliseconds = (
                append_time if timestamp_type == 1 else base_timestamp + reader.timestamp_delta
            )
            if self._wants_key:
                self._key.put(reader.octets, reader.key_start, reader.key_size)
            if self._wants_value:
                self._value.put(reader.octets, reader.value_start, reader.value_size)
            self._offset.reserve(8)
            self._offset.put_int64(offset)
            self._timestamp.reserve(8)
            if -_MAX_MILLISECONDS <= milliseconds <= _MAX_MILLISECONDS:
                self._timestamp.put_int64(milliseconds * 1000)
            else:
                self._timestamp.put_int64(_MAX_INT64 if milliseconds > 0 else -_MAX_INT64 - 1)
                if self._far_timestamp is None:
                    self._far_timestamp = (offset, milliseconds)
            self._timestamp_type.reserve(4)
            self._timestamp_type.put_int32(timestamp_type)
            if self._wants_headers:
                self._put_headers(reader)
            else:
                self._pass_headers(reader)
            if self._wants_batches:
                self._batch_base_offset.reserve(8)
                self._batch_base_offset.put_int64(base_offset)
                self._batch_bytes.reserve(4)
                self._batch_bytes.put_int32(size)
                self._batch_index.reserve(4)
                self._batch_index.put_int32(index)
            if self._wants_sizes:
                self._key_bytes.put(reader.key_size)
                self._value_bytes.put(reader.value_size)
            reader.end_record()
            self._rows += 1
        reader.end_batch()
        return None

    @cython.cfunc
    def _pass_headers(self, reader: RecordReader) -> cython.int:
        for _ in range(reader.header_count):
            reader.read_header()
        return 0

    @cython.cfunc
    def _put_headers(self, reader: RecordReader) -> cython.int:
        name: bytes
        for _ in range(reader.header_count):
            reader.read_header()
            name = reader.header_name().encode()  # an Arrow string must be UTF-8
            self._header_key.put(_octets_of_bytes(name), 0, len(name))
            self._header_value.put(
                reader.octets, reader.header_value_start, reader.header_value_size
            )
        self._headers_validity.put(reader.header_count > 0)
        self._headers_offsets.reserve(4)
        self._headers_offsets.put_int32(self._header_key.validity.rows)
        return 0

    def take(self) -> Columns:
        """The columns scanned since the last `take`; the scanner is empty again."""
        header_count = self._header_key.validity.rows
        headers = None
        if self._wants_headers:
            nulls = self._headers_validity.nulls
            headers = HeadersColumn(
                self._headers_validity.take(),
                self._headers_offsets.take(),
                self._header_key.take(),
                self._header_value.take(),
                header_count,
                nulls,
            )
            self._headers_offsets.reserve(4)
            self._headers_offsets.put_int32(0)
        columns = Columns(
            self._rows,
            self._key.take() if self._wants_key else None,
            self._value.take() if self._wants_value else None,
            self._offset.take(),
            self._timestamp.take(),
            self._timestamp_type.take(),
            headers,
            self._batch_base_offset.take() if self._wants_batches else None,
            self._batch_bytes.take() if self._wants_batches else None,
            self._far_timestamp,
            self._batch_index.take() if self._wants_batches else None,
            self._key_bytes.take() if self._wants_sizes else None,
            self._value_bytes.take() if self._wants_sizes else None,
        )
        self._far_timestamp = None
        self._rows = 0
        return columns
