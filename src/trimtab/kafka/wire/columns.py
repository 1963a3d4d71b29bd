"""Records as columns: buffers in Arrow's layout, from which arrays are made without a copy."""

from __future__ import annotations

from typing import NamedTuple


class BinaryColumn(NamedTuple):
    """Arrow's layout of a binary or string column: int32 offsets into data, and a bit per row.

    `validity` is None if no row is null.
    """

    validity: bytearray | None
    offsets: bytearray
    data: bytearray
    null_count: int


class SizeColumn(NamedTuple):
    """Arrow's layout of an int32 column: a number and a bit per row.

    `validity` is None if no row is null.
    """

    validity: bytearray | None
    data: bytearray
    null_count: int


class HeadersColumn(NamedTuple):
    """Arrow's layout of list<struct<key: string, value: binary>>: int32 offsets into both children.

    A record without headers is a null list, as in Spark's kafka source.
    """

    validity: bytearray | None
    offsets: bytearray
    key: BinaryColumn
    value: BinaryColumn
    header_count: int
    null_count: int


class Columns(NamedTuple):
    """Records as buffers in Arrow's layout, native byte order; an unrequested column is None."""

    rows: int
    key: BinaryColumn | None
    value: BinaryColumn | None
    offset: bytearray | None
    """int64"""
    timestamp: bytearray | None
    """int64, micro- or milliseconds since the Unix epoch; see `far_timestamp`"""
    timestamp_type: bytearray | None
    """int32: 0 create time, 1 log append time"""
    headers: HeadersColumn | None
    batch_base_offset: bytearray | None
    """int64: the base offset of the record's batch"""
    batch_bytes: bytearray | None
    """int32: bytes of the record's whole batch as stored"""
    far_timestamp: tuple[int, int] | None
    """Offset and timestamp (ms) of the first record whose timestamp does not fit into microseconds;
    its row has the nearest possible one."""
    batch_index: bytearray | None
    """int32: the record's index in its batch; 0 is the first that compaction has left"""
    key_bytes: SizeColumn | None
    """the key's size; null if the key is null"""
    value_bytes: SizeColumn | None
    """the value's size; null if the value is null"""
