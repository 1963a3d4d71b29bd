# mypy: allow-untyped-decorators, no-warn-return-any
"""One record before it is written to a batch: the arguments of `send`, or a row of a table."""

from typing import Any

import cython

from trimtab.client.partitioner.murmur2_cy import murmur2
from trimtab.kafka.arguments import checked_header_name, checked_headers, shown
from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.batch_cy import HEADER_BYTES, BatchBuilder
from trimtab.kafka.wire.rows_cy import BytesColumn, HeadersColumn, Rows

if cython.compiled:
    from cython.cimports.trimtab.client.partitioner.murmur2_cy import murmur2_of_octets
    from cython.cimports.trimtab.kafka.wire.batch_cy import BatchBuilder  # type: ignore[no-redef]
    from cython.cimports.trimtab.kafka.wire.rows_cy import (  # type: ignore[no-redef]
        BytesColumn,
        HeadersColumn,
        Rows,
    )

_HEADER_BYTES = cython.declare(cython.longlong, HEADER_BYTES)
# A record's largest size beyond key, value and headers: attributes and five varints.
_MOST_OVERHEAD = cython.declare(cython.longlong, 32)


@cython.final
@cython.cclass
class OutgoingRecord:
    """A record's fields, or the row under the cursor of `rows`.

    Attributes:
        mark: a header that the producer adds, (name, value); None for none.
    """

    def __init__(
        self, key: Any, value: Any, headers: Any, timestamp: cython.longlong, rows: Rows | None
    ) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp = timestamp
        self.rows = rows
        self.mark: Any = None
        self.may_have_key = key is not None if rows is None else rows.has_keys

    @cython.cfunc
    def write(self, builder: BatchBuilder) -> cython.longlong:
        """Append it to a batch; returns by how many bytes the batch grew, 0 if it does not fit."""
        if self.mark is not None:
            return self._write_marked(builder)
        if self.rows is not None:
            return builder.append_row(self.rows)
        return builder.append(self.timestamp, self.key, self.value, self.headers)

    @cython.cfunc
    def _write_marked(self, builder: BatchBuilder) -> cython.longlong:
        headers = self.headers if self.rows is None else _headers_at(self.rows.headers)
        marked = [*headers, self.mark] if headers else [self.mark]
        timestamp = self.timestamp if self.rows is None else self.rows.timestamp
        return builder.append(timestamp, self.key_bytes(), self.value_bytes(), marked)

    @cython.cfunc
    def key_bytes(self) -> Any:
        """Its key, for partitioners that look at it."""
        return self.key if self.rows is None else _bytes_at(self.rows.key)

    @cython.cfunc
    def value_bytes(self) -> Any:
        return self.value if self.rows is None else _bytes_at(self.rows.value)

    @cython.cfunc
    def key_hash(self) -> cython.longlong:
        """The hash of its key; -1 without a key."""
        if self.rows is None:
            if self.key is None:
                return -1
            return murmur2(bytes(self.key))
        key = self.rows.key
        if key.size < 0:
            return -1
        if cython.compiled:
            return murmur2_of_octets(key.octets, key.start, key.size)
        return murmur2(_bytes_at(key))

    @cython.cfunc
    def bound(self) -> cython.longlong:
        """An upper bound for the bytes of a batch with only this record."""
        if self.rows is None:
            return bound(self.value, self.key, self.headers)
        return self.rows.bound

    @cython.cfunc
    def size(self) -> cython.longlong:
        """The bytes of its key and value."""
        if self.rows is None:
            return _size_of(self.key) + _size_of(self.value)
        return max(0, self.rows.key.size) + max(0, self.rows.value.size)


@cython.cfunc
def _size_of(data: Any) -> cython.longlong:
    if data is None:
        return 0
    return data.nbytes if isinstance(data, memoryview) else len(data)


@cython.cfunc
def _bytes_at(column: BytesColumn) -> Any:
    if column.size < 0:
        return None
    return bytes(column.octets[column.start : column.start + column.size])


@cython.cfunc
def _headers_at(column: HeadersColumn | None) -> Any:
    headers: list[Any] = []
    if column is not None:
        for header in range(column.start, column.start + column.size):
            column.names.seek(header)
            column.values.seek(header)
            headers.append((_bytes_at(column.names).decode(), _bytes_at(column.values)))
    return headers


@cython.ccall
def bound(value: Any, key: Any, headers: Any) -> cython.longlong:
    """An upper bound, in bytes, for a batch with only this record.

    Raises UsageError if key, value or a header's value are not bytes, or a header is no pair.
    """
    size: cython.longlong = _MOST_OVERHEAD + _HEADER_BYTES
    if value is not None:
        size += len(value) if type(value) is bytes else _length("value", value)
    if key is not None:
        size += len(key) if type(key) is bytes else _length("key", key)
    if headers is not None:
        size += _bound_headers(headers)
    return size


@cython.cfunc
def _bound_headers(headers: Any) -> cython.longlong:
    """An upper bound for the headers' bytes; checks each header."""
    size: cython.longlong = 0
    if type(headers) is not list and type(headers) is not tuple:
        headers = checked_headers(headers)
    for header in headers:
        if not isinstance(header, (tuple, list)) or len(header) != 2:
            raise UsageError(f"record header {shown(header)} is no pair: give (name, value)")
        name, content = header
        if type(name) is not str or not name.isascii():
            checked_header_name(name)
        size += 4 * len(name) + 10  # UTF-8 takes at most four bytes per character
        if content is not None:
            size += len(content) if type(content) is bytes else _length("header value", content)
    return size


def _length(field: str, data: Any) -> int:
    if isinstance(data, memoryview):
        return data.nbytes
    if isinstance(data, (bytes, bytearray)):
        return len(data)
    raise UsageError(
        f"record {field} is of type {type(data).__name__}: "
        "give bytes, bytearray, memoryview or None (a str by its .encode())"
    )
