# mypy: allow-untyped-decorators, no-warn-return-any
"""The rows of one Arrow record batch, read from its buffers, for `BatchBuilder.append_row`.

Nothing here imports pyarrow: `client/accumulator/table.py` converts columns to the few layouts that
are read here, and passes their buffers. Reading a row creates no Python object.

The same source runs compiled and interpreted: compiled, `octets` and the columns of numbers are C
pointers; interpreted, they are memoryviews. C types are in `rows_cy.pxd`.
"""

from collections.abc import Callable
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        Py_buffer,
        PyBUF_SIMPLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )

__all__ = ["NO_TIME", "BytesColumn", "HeadersColumn", "Rows"]

NO_TIME = -(2**63)
"""In a column of timestamps: the record has none, and gets the time of sending."""

_NO_TIME = cython.declare(cython.longlong, NO_TIME)
# A batch's header, and a record's largest size beyond its key, value and headers.
_MOST_OVERHEAD = cython.declare(cython.Py_ssize_t, 61 + 32)
# A header's largest size beyond its name and value: two lengths.
_MOST_HEADER_OVERHEAD = cython.declare(cython.Py_ssize_t, 10)


@cython.cfunc
def _octets_of(view: memoryview) -> cython.p_const_uchar:
    """A pointer to the bytes of `view`; valid while the caller keeps the view."""
    if not cython.compiled:
        return view
    lease = cython.declare(Py_buffer)
    PyObject_GetBuffer(view, cython.address(lease), PyBUF_SIMPLE)
    octets = cython.cast(cython.p_const_uchar, lease.buf)
    PyBuffer_Release(cython.address(lease))  # the view itself keeps the memory in place
    return octets


def _view(buffer: Any, size: int, what: str) -> memoryview:
    """A buffer's first `size` bytes; raises ValueError if it has fewer."""
    view = memoryview(buffer if buffer is not None else b"").cast("B")
    if len(view) < size:
        raise ValueError(f"{what} of {len(view)} bytes where {size} are needed")
    return view[:size]


@cython.cclass
class _Column:
    """A column of variable-size values with a cursor: a value has `size` units from `start`."""

    def __init__(
        self,
        length: cython.Py_ssize_t,
        first: cython.Py_ssize_t,
        validity: Any,
        offsets: Any,
        width: cython.Py_ssize_t,
    ) -> None:
        end: cython.Py_ssize_t = first + length
        self.length = length
        self.start = 0
        self.size = -1
        self._first = first
        self._width = width
        self._has_nulls = validity is not None
        self._has_offsets = offsets is not None
        self._end = end * width
        self._validity_view = _view(validity, (end + 7) // 8 if self._has_nulls else 0, "validity")
        self._offsets_view = _view(
            offsets, (end + 1) * width if self._has_offsets and length > 0 else 0, "offsets"
        )
        numbers = self._offsets_view.cast("i" if width == 4 else "q")
        if self._has_offsets:
            self._end = numbers[end] if length > 0 else 0
        self._validity = _octets_of(self._validity_view)
        if cython.compiled:
            self._offsets4 = cython.cast("const int *", _octets_of(self._offsets_view))
            self._offsets8 = cython.cast("const long long *", _octets_of(self._offsets_view))
        else:
            self._offsets4 = numbers
            self._offsets8 = numbers

    @cython.final
    def seek(self, row: cython.Py_ssize_t) -> None:
        """Move the cursor to a row; sets `start` and `size`, which is -1 for a null."""
        row += self._first
        if self._has_nulls and not self._validity[row >> 3] >> (row & 7) & 1:
            self.start = 0
            self.size = -1
        elif not self._has_offsets:
            self.start = row * self._width
            self.size = self._width
        elif self._width == 4:
            self.start = self._offsets4[row]
            self.size = self._offsets4[row + 1] - self.start
        else:
            self.start = self._offsets8[row]
            self.size = self._offsets8[row + 1] - self.start


@cython.final
@cython.cclass
class BytesColumn(_Column):
    """Byte strings in one of Arrow's layouts: binary, large binary, fixed-size binary.

    Args:
        length: rows.
        first: the row of the buffers at which the column begins (a slice's offset).
        validity: a bit per row, clear for a null; or None if no row is null.
        offsets: int32 or int64, one more than rows: the start of each value in `data`; or None.
        width: bytes of an offset, 4 or 8; without offsets, bytes of each value.
        data: the values, one after the other.

    Raises ValueError if a buffer is too short for its rows; that offsets only grow is not checked.
    """

    def __init__(
        self,
        length: cython.Py_ssize_t,
        first: cython.Py_ssize_t,
        validity: Any,
        offsets: Any,
        width: cython.Py_ssize_t,
        data: Any,
    ) -> None:
        _Column.__init__(self, length, first, validity, offsets, width)
        self._data_view = _view(data, self._end, "values")
        self.octets = _octets_of(self._data_view)


@cython.final
@cython.cclass
class HeadersColumn(_Column):
    """Record headers: Arrow's list<struct<key, value>> or map, in its parts.

    Args:
        length, first, validity: as in `BytesColumn`; a null has no headers.
        offsets: int32, one more than rows: the start of each row's headers in `names` and `values`.
        names: without nulls.
        values: a null is a header without a value.

    Raises ValueError if there are too few names or values for the rows.
    """

    def __init__(
        self,
        length: cython.Py_ssize_t,
        first: cython.Py_ssize_t,
        validity: Any,
        offsets: Any,
        names: BytesColumn,
        values: BytesColumn,
    ) -> None:
        _Column.__init__(self, length, first, validity, offsets, 4)
        if self._end > min(names.length, values.length):
            raise ValueError(f"{self._end} headers, {names.length} names, {values.length} values")
        self.names = names
        self.values = values

    def bound(self) -> int:
        """An upper bound for the bytes of the headers at the cursor."""
        most: cython.Py_ssize_t = 0
        header: cython.Py_ssize_t
        for header in range(self.start, self.start + self.size):
            self.names.seek(header)
            self.values.seek(header)
            most += _MOST_HEADER_OVERHEAD + self.names.size + max(self.values.size, 0)
        return most


@cython.final
@cython.cclass
class Rows:
    """The rows of one Arrow record batch, and a cursor: `seek`, then `BatchBuilder.append_row`.

    Args:
        length: rows; the same in every column.
        key: None if all keys are null.
        value: likewise.
        headers: None if no row has any.
        partitions: int32 for each row, -1 for none; None if no row has a given partition.
        timestamps: int64, milliseconds since the Unix epoch or NO_TIME, for each row; or None.
        settle: called by the accumulator with the `RowRun` of each batch that is acknowledged or
            has failed.

    Attributes:
        now: the timestamp of rows without one. Set it before the first `seek`.
        has_keys, has_partitions: whether any row may have one.
        partition: the given partition of the row at the cursor; -1 for none.
        timestamp: its timestamp.
        bound: an upper bound for the bytes of a batch with only this row.

    Compiled modules read its key, value and headers at the cursors of `key`, `value`, `headers`.
    Raises ValueError if a buffer is too short for its rows.
    """

    def __init__(
        self,
        length: cython.Py_ssize_t,
        key: BytesColumn | None,
        value: BytesColumn | None,
        headers: HeadersColumn | None,
        partitions: Any,
        timestamps: Any,
        settle: Callable[[Any], object],
    ) -> None:
        nothing = BytesColumn(0, 0, None, None, 0, None)
        self.length = length
        self.now = -1
        self.has_keys = key is not None
        self.has_partitions = partitions is not None
        self.partition = -1
        self.timestamp = -1
        self.bound = 0
        self.key = nothing if key is None else key
        self.value = nothing if value is None else value
        self.headers = headers
        self.settle = settle
        self._has_values = value is not None
        self._has_timestamps = timestamps is not None
        self._partitions_view = _view(
            partitions, 4 * length if partitions is not None else 0, "partitions"
        )
        self._timestamps_view = _view(
            timestamps, 8 * length if timestamps is not None else 0, "timestamps"
        )
        if cython.compiled:
            self._partitions = cython.cast("const int *", _octets_of(self._partitions_view))
            self._timestamps = cython.cast("const long long *", _octets_of(self._timestamps_view))
        else:
            self._partitions = self._partitions_view.cast("i")
            self._timestamps = self._timestamps_view.cast("q")

    def seek(self, row: cython.Py_ssize_t) -> None:
        """Move the cursor to a row, from 0 to `length` - 1; not checked."""
        bound: cython.Py_ssize_t = _MOST_OVERHEAD
        if self.has_keys:
            self.key.seek(row)
            bound += max(self.key.size, 0)
        if self._has_values:
            self.value.seek(row)
            bound += max(self.value.size, 0)
        if self.headers is not None:
            self.headers.seek(row)
            bound += self.headers.bound()
        self.bound = bound
        if self.has_partitions:
            self.partition = self._partitions[row]
        self.timestamp = self.now
        if self._has_timestamps and self._timestamps[row] != _NO_TIME:
            self.timestamp = self._timestamps[row]
