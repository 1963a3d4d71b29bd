# mypy: allow-untyped-decorators, no-warn-return-any
"""Reads record batches, version 2, as columns: for `Consumer.arrow` and for Spark.

Uses the cursor of `records_cy.py`, and like that module runs compiled and interpreted.

Long because the scanner holds the builders of its columns as C types and calls them per record.
"""

import struct
from typing import Any

import cython

from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.batch_header import check_crc, is_cut_short, read_whole_header
from trimtab.kafka.wire.columns import BinaryColumn, Columns, HeadersColumn, SizeColumn
from trimtab.kafka.wire.records_cy import RECORDS_LIMIT, RecordReader, open_records

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.trimtab.kafka.wire.records_cy import (  # type: ignore[no-redef]
        RecordReader,
        open_records,
    )

_NATIVE_INT32 = struct.Struct("=i")
_NATIVE_INT64 = struct.Struct("=q")
_MAX_INT64 = cython.declare(cython.longlong, 9223372036854775807)
_MAX_MILLISECONDS = cython.declare(cython.longlong, 9223372036854775)


@cython.cfunc
def _octets_of_bytes(data: bytes) -> cython.p_uchar:
    """A pointer to `data`; valid while the caller keeps it."""
    if cython.compiled:
        return cython.cast(cython.p_uchar, cython.cast(cython.p_char, data))
    else:  # noqa: RET505
        return data


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
    def reserve(self, more: cython.Py_ssize_t) -> object:
        if more > self.capacity - self.size:
            self.grow(self.size + more)
        return None

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def put_octet(self, value: cython.uchar) -> cython.void:
        self.octets[self.size] = value
        self.size += 1

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def set_bit(self, row: cython.Py_ssize_t) -> cython.void:
        self.octets[row >> 3] |= 1 << (row & 7)

    @cython.cfunc
    @cython.inline
    @cython.nogil
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
    @cython.nogil
    @cython.exceptval(check=False)
    def put_int32(self, value: cython.int) -> cython.void:
        if cython.compiled:
            cython.cast(cython.p_int, self.octets + self.size)[0] = value
        else:
            _NATIVE_INT32.pack_into(self.data, self.size, value)
        self.size += 4

    @cython.cfunc
    @cython.inline
    @cython.nogil
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
    """A bit per row, lowest first; 1 is a value, 0 a null. None is kept before the first null."""

    bits: _Buffer
    rows: cython.Py_ssize_t
    nulls: cython.Py_ssize_t

    def __init__(self) -> None:
        self.bits = _Buffer()
        self.rows = 0
        self.nulls = 0

    @cython.cfunc
    def reserve(self, rows: cython.Py_ssize_t) -> object:
        return self.bits.reserve((self.rows + rows) // 8 + 1 - self.bits.size)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def put(self, valid: cython.bint) -> cython.void:
        if not valid or self.nulls > 0:
            if self.nulls == 0:
                self.put_ones()
            if self.rows & 7 == 0:
                self.bits.put_octet(0)
            if valid:
                self.bits.set_bit(self.rows)
            else:
                self.nulls += 1
        self.rows += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def put_ones(self) -> cython.void:
        """The bits of the rows before the first null."""
        row: cython.Py_ssize_t
        for row in range(0, self.rows, 8):
            self.bits.put_octet(0xFF if self.rows - row >= 8 else (1 << (self.rows & 7)) - 1)

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
    def reserve(self, rows: cython.Py_ssize_t, data: cython.Py_ssize_t) -> object:
        self.validity.reserve(rows)
        self.offsets.reserve(4 * rows)
        self.data.reserve(data)
        return None

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def put(
        self, octets: cython.p_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.void:
        """Add a row of the `size` bytes at `start`; a size below zero is a null."""
        self.validity.put(size >= 0)
        if size > 0:
            self.data.put(octets, start, size)
        self.offsets.put_int32(self.data.size)

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
    def reserve(self, rows: cython.Py_ssize_t) -> object:
        self.validity.reserve(rows)
        self.data.reserve(4 * rows)
        return None

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def put(self, size: cython.Py_ssize_t) -> cython.void:
        """Add a row; a size below zero is a null."""
        self.validity.put(size >= 0)
        self.data.put_int32(cython.cast(cython.int, size))

    @cython.cfunc
    def take(self) -> object:
        nulls = self.validity.nulls
        return SizeColumn(self.validity.take(), self.data.take(), nulls)


@cython.final
@cython.cclass
class ColumnScanner:
    """Reads batches into columns, without an object per record. Use it on one thread at a time.

    Args:
        key, value, offset, timestamp, timestamp_type, headers: whether to read these columns.
        microseconds: whether timestamps are in microseconds, as Spark's are, not in milliseconds.
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
    _wants_offset: cython.bint
    _wants_timestamp: cython.bint
    _wants_timestamp_type: cython.bint
    _wants_microseconds: cython.bint
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
    _is_scanning: cython.bint

    def __init__(
        self,
        key: bool = True,
        value: bool = True,
        headers: bool = False,
        offset: bool = True,
        timestamp: bool = True,
        timestamp_type: bool = True,
        microseconds: bool = True,
        batch_columns: bool = False,
        sizes: bool = False,
        full_bytes: cython.longlong = 8 * 1024 * 1024,
        check_crcs: bool = True,
        limit: cython.longlong = RECORDS_LIMIT,
    ) -> None:
        self.fill_to(full_bytes)
        if not 0 < limit <= RECORDS_LIMIT:
            raise UsageError(f"ColumnScanner(limit={limit}): must be from 1 to {RECORDS_LIMIT}")
        self._wants_key = key
        self._wants_value = value
        self._wants_headers = headers
        self._wants_offset = offset
        self._wants_timestamp = timestamp
        self._wants_timestamp_type = timestamp_type
        self._wants_microseconds = microseconds
        self._wants_batches = batch_columns
        self._wants_sizes = sizes
        self._limit = limit
        self._checks_crcs = check_crcs
        self._next_offset = 0
        self._is_scanning = False
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

    def fill_to(self, full_bytes: cython.longlong) -> None:
        """Change `full_bytes`."""
        # With both limits every offset into a column fits into int32.
        if not 0 < full_bytes <= RECORDS_LIMIT:
            raise UsageError(
                f"ColumnScanner(full_bytes={full_bytes}): must be from 1 to {RECORDS_LIMIT}"
            )
        self._full_bytes = full_bytes

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
        self._refuse_second_thread()
        before = self._rows
        self._is_scanning = True
        try:
            self._scan(memoryview(buffer).cast("B"), start_offset, end_offset)
        except BaseException:
            self._empty()
            raise
        finally:
            self._is_scanning = False
        return self._rows - before

    @cython.cfunc
    def _refuse_second_thread(self) -> object:
        """It would write into the buffers of the first, which scans without the GIL."""
        if self._is_scanning:
            raise UsageError("another thread uses this scanner or its consumer")
        return None

    @cython.cfunc
    def _scan(self, view: memoryview, start: cython.longlong, end: cython.longlong) -> object:
        position: cython.Py_ssize_t = 0
        self._next_offset = start
        while self._next_offset < end and not self.full and not is_cut_short(view, position):
            header = read_whole_header(view, position)
            if self._checks_crcs:
                check_crc(view, position, header)
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
        reader: RecordReader = open_records(view, position, header, self._limit)
        size: cython.int = header.size
        count: cython.int = header.record_count
        # A record takes at least seven bytes, whatever number of records the header claims.
        most: cython.Py_ssize_t = min(count, reader.end // 7 + 1)
        # What of it no record needs is never written, and so takes no memory.
        if self._wants_key:
            self._key.reserve(most, reader.end)
        if self._wants_value:
            self._value.reserve(most, reader.end)
        if self._wants_offset:
            self._offset.reserve(8 * most)
        if self._wants_timestamp:
            self._timestamp.reserve(8 * most)
        if self._wants_timestamp_type:
            self._timestamp_type.reserve(4 * most)
        if self._wants_headers:
            self._headers_validity.reserve(most)
            self._headers_offsets.reserve(4 * most)
        if self._wants_batches:
            self._batch_base_offset.reserve(8 * most)
            self._batch_bytes.reserve(4 * most)
            self._batch_index.reserve(4 * most)
        if self._wants_sizes:
            self._key_bytes.reserve(most)
            self._value_bytes.reserve(most)
        with cython.nogil:  # so that the next response can be received meanwhile
            self._scan_records(reader, count, size, start, end)
        reader.end_batch()
        return None

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _scan_records(
        self,
        reader: RecordReader,
        count: cython.int,
        size: cython.int,
        start: cython.longlong,
        end: cython.longlong,
    ) -> cython.int:
        timestamp_type: cython.int = 1 if reader.is_append_time else 0
        offset: cython.longlong
        index: cython.int
        for index in range(count):
            reader.read_placed_record()
            offset = reader.offset
            if offset < start or offset >= end:
                reader.pass_headers()
                reader.end_record()
                continue
            if self._wants_key:
                self._key.put(reader.octets, reader.key_start, reader.key_size)
            if self._wants_value:
                self._value.put(reader.octets, reader.value_start, reader.value_size)
            if self._wants_offset:
                self._offset.put_int64(offset)
            if self._wants_timestamp:
                self._put_timestamp(reader)
            if self._wants_timestamp_type:
                self._timestamp_type.put_int32(timestamp_type)
            if self._wants_headers:
                self._put_headers(reader)
            else:
                reader.pass_headers()
            if self._wants_batches:
                self._batch_base_offset.put_int64(reader.base_offset)
                self._batch_bytes.put_int32(size)
                self._batch_index.put_int32(index)
            if self._wants_sizes:
                self._key_bytes.put(reader.key_size)
                self._value_bytes.put(reader.value_size)
            reader.end_record()
            self._rows += 1
        return 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(-1)
    def _put_timestamp(self, reader: RecordReader) -> cython.int:
        milliseconds: cython.longlong = reader.timestamp
        if not self._wants_microseconds:
            self._timestamp.put_int64(milliseconds)
        elif -_MAX_MILLISECONDS <= milliseconds <= _MAX_MILLISECONDS:
            self._timestamp.put_int64(milliseconds * 1000)
        else:
            self._timestamp.put_int64(_MAX_INT64 if milliseconds > 0 else -_MAX_INT64 - 1)
            with cython.gil:
                if self._far_timestamp is None:
                    self._far_timestamp = (reader.offset, milliseconds)
        return 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(-1)
    def _put_headers(self, reader: RecordReader) -> cython.int:
        for _ in range(reader.header_count):
            reader.read_header()
            self._put_header(reader)
        self._headers_validity.put(reader.header_count > 0)
        self._headers_offsets.put_int32(self._header_key.validity.rows)
        return 0

    @cython.cfunc
    @cython.with_gil
    @cython.exceptval(-1)
    def _put_header(self, reader: RecordReader) -> cython.int:
        name: bytes = reader.header_name().encode()  # an Arrow string must be UTF-8
        self._header_key.reserve(1, len(name))
        self._header_key.put(_octets_of_bytes(name), 0, len(name))
        self._header_value.reserve(1, max(reader.header_value_size, 0))
        self._header_value.put(reader.octets, reader.header_value_start, reader.header_value_size)
        return 0

    def take(self) -> Columns:
        """The columns scanned since the last `take`; the scanner is empty again."""
        self._refuse_second_thread()
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
            self._offset.take() if self._wants_offset else None,
            self._timestamp.take() if self._wants_timestamp else None,
            self._timestamp_type.take() if self._wants_timestamp_type else None,
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
