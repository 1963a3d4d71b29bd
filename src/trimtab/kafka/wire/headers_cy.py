# mypy: allow-untyped-decorators, no-warn-return-any
"""Reads the batch headers of a log into columns, without reading records."""

import struct
from typing import NamedTuple

import cython

from trimtab.kafka.wire.batch_header import BATCH_HEADER, HEADER_BYTES, read_header

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING

ROWS = 65536
"""Headers that a scanner holds at most."""

_ROWS = cython.declare(cython.int, ROWS)
_HEADER_BYTES = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
_INT64 = struct.Struct("=q")
_INT32 = struct.Struct("=i")


class HeaderColumns(NamedTuple):
    """Headers as buffers in Arrow's layout, native byte order; see `batch_header`."""

    rows: int
    base_offset: bytearray
    """int64"""
    last_offset: bytearray
    """int64"""
    base_timestamp: bytearray
    """int64, milliseconds"""
    max_timestamp: bytearray
    """int64, milliseconds"""
    producer_id: bytearray
    """int64"""
    size: bytearray
    """int32: bytes of the whole batch, this header included"""
    leader_epoch: bytearray
    """int32"""
    attributes: bytearray
    """int32"""
    record_count: bytearray
    """int32"""


@cython.final
@cython.cclass
class HeaderScanner:
    """Reads batch headers from pieces of a log, up to `ROWS` of them."""

    _rows: cython.int
    _longs: list[bytearray]
    _ints: list[bytearray]

    def __init__(self) -> None:
        self._empty()

    @cython.cfunc
    def _empty(self) -> object:
        self._rows = 0
        self._longs = [bytearray(8 * _ROWS) for _ in range(5)]
        self._ints = [bytearray(4 * _ROWS) for _ in range(4)]
        return None

    @property
    def rows(self) -> int:
        """Headers scanned and not yet taken."""
        return self._rows

    @property
    def full(self) -> bool:
        """Whether it holds `ROWS` headers, so that `take` must be called."""
        return self._rows == _ROWS

    def scan(
        self, piece: bytearray, size: cython.Py_ssize_t, end: cython.longlong
    ) -> cython.longlong:
        """Add the headers that are complete in the first `size` bytes of `piece`.

        Args:
            piece: begins with a batch.
            end: the end of the log, in bytes from the start of `piece`; a batch that extends beyond
                it is not added.

        Returns:
            The start of the next batch, in bytes from the start of `piece`; it may be beyond the
            end of `piece`. 0 if no header was added: the batch is cut short, or only zeros follow,
            as in a preallocated file.

        Raises:
            CorruptBatch: a header with impossible numbers, or of another magic than 2.
        """
        position: cython.longlong = 0
        length: cython.longlong
        while self._rows < _ROWS and position + _HEADER_BYTES <= size:
            length = self._read(piece, position, end - position)
            if length == 0:
                break
            position += length
        return position

    @cython.cfunc
    def _read(
        self, piece: bytearray, position: cython.longlong, left: cython.longlong
    ) -> cython.longlong:
        """Add the header at `position`; returns its batch's size, 0 if it is cut short."""
        size: cython.longlong
        if cython.compiled:
            at = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(piece)) + position
            size = cython.cast(cython.int, _int32(at + 8))
            if size == 0:
                return 0
            size += 12
            if (
                size < _HEADER_BYTES
                or at[16] != 2
                or (at[0] | at[23] | at[57]) & 0x80  # base offset, last delta, record count
            ):
                read_header(piece, position)
            if size > left:
                return 0
            base: cython.longlong = _int64(at)
            self._put_long(0, base)
            self._put_long(1, base + _int32(at + 23))
            self._put_long(2, _int64(at + 27))
            self._put_long(3, _int64(at + 35))
            self._put_long(4, _int64(at + 43))
            self._put_int(0, cython.cast(cython.int, size))
            self._put_int(1, _int32(at + 12))
            self._put_int(2, at[21] << 8 | at[22])
            self._put_int(3, _int32(at + 57))
        else:
            if _is_zero(piece, position):
                return 0
            header = read_header(piece, position)
            size = header.size
            if size > left:
                return 0
            self._put_long(0, header.base_offset)
            self._put_long(1, header.last_offset)
            self._put_long(2, header.base_timestamp)
            self._put_long(3, header.max_timestamp)
            self._put_long(4, header.producer_id)
            self._put_int(0, size)
            self._put_int(1, header.leader_epoch)
            self._put_int(2, header.attributes & 0xFFFF)
            self._put_int(3, header.record_count)
        self._rows += 1
        return size

    @cython.cfunc
    @cython.inline
    def _put_long(self, column: cython.int, value: cython.longlong) -> object:
        octets: bytearray = self._longs[column]
        if cython.compiled:
            cython.cast(cython.p_longlong, PyByteArray_AS_STRING(octets))[self._rows] = value
        else:
            _INT64.pack_into(octets, 8 * self._rows, value)
        return None

    @cython.cfunc
    @cython.inline
    def _put_int(self, column: cython.int, value: cython.int) -> object:
        octets: bytearray = self._ints[column]
        if cython.compiled:
            cython.cast(cython.p_int, PyByteArray_AS_STRING(octets))[self._rows] = value
        else:
            _INT32.pack_into(octets, 4 * self._rows, value)
        return None

    def take(self) -> HeaderColumns:
        """The headers scanned since the last `take`; the scanner is empty again."""
        for octets in self._longs:
            del octets[8 * self._rows :]
        for octets in self._ints:
            del octets[4 * self._rows :]
        columns = HeaderColumns(self._rows, *self._longs, *self._ints)
        self._empty()
        return columns


def _is_zero(piece: bytearray, position: int) -> bool:
    return BATCH_HEADER.unpack_from(piece, position)[1] == 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _int32(at: cython.p_uchar) -> cython.int:
    return cython.cast(
        cython.int, cython.cast(cython.uint, at[0]) << 24 | at[1] << 16 | at[2] << 8 | at[3]
    )


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _int64(at: cython.p_uchar) -> cython.longlong:
    high = cython.declare(cython.ulonglong, cython.cast(cython.uint, _int32(at)))
    low = cython.declare(cython.ulonglong, cython.cast(cython.uint, _int32(at + 4)))
    return cython.cast(cython.longlong, high << 32 | low)
