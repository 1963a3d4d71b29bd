# mypy: allow-untyped-decorators, no-warn-return-any
"""Reads record batches, version 2, as records. `columns_cy.py` reads them as columns.

The layout of a record is in `batch_cy.py`. Both use one cursor, which checks every number before it
uses it, as the bytes come from the network.

The same source runs compiled and interpreted: compiled, `octets` is a C pointer, and only this
module checks indexes; interpreted, it is a bytearray, bytes or memoryview.

Long because every loop over records holds the reader as a C type and inlines what it reads.
"""

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import cython

from trimtab.kafka.errors import CorruptData, NotDeserialized
from trimtab.kafka.records import NO_TIMESTAMP, Deserializers, InContext, Record
from trimtab.kafka.wire.batch_header import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    CorruptBatch,
    check_crc,
    is_cut_short,
    read_whole_header,
)
from trimtab.kafka.wire.compression import decompress

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        Py_buffer,
        PyBUF_SIMPLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.ref import Py_INCREF
    from cython.cimports.cpython.tuple import PyTuple_SET_ITEM

RECORDS_LIMIT = 256 * 1024 * 1024
"""The default limit for the decompressed records of one batch, in bytes."""
OPENED_LIMIT = 16 * 1024 * 1024
"""A broker's limit for the decompressed records of one batch, in bytes: it decompresses a batch at
once, and other tasks wait meanwhile. Sixteen times the default `max.message.bytes`."""
SCANNED_AT_ONCE = 2000
SURVEYED_AT_ONCE = 50_000

_MAX_INT64 = cython.declare(cython.longlong, 9223372036854775807)
_LONG = cython.declare(cython.longlong, -9223372036854775807)
_NO_TIME = cython.declare(cython.longlong, NO_TIMESTAMP)

# C variables: a module's names are looked up each time.
_NO_HEADERS = cython.declare(object, ())
_RECORD = cython.declare(object, Record)

# The named tuple's constructor without its Python frame.
_new_tuple: Any = tuple.__new__


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
        self.base_offset = 0
        self.last_delta = 0
        self.base_timestamp = 0
        self.is_append_time = False

    def read_varint(self) -> cython.longlong:
        number: cython.longlong = _read_short_varint(self)
        return self.read_long_varint() if number == _LONG else number

    def read_long_varint(self) -> cython.longlong:
        octet: cython.ulonglong
        value: cython.ulonglong = 0
        shift: cython.int = 0
        position: cython.Py_ssize_t = self.position
        while True:
            if position >= self.limit:
                with cython.gil:
                    raise CorruptBatch(f"record data ends within a number, at byte {position}")
            octet = self.octets[position]
            position += 1
            if shift == 63 and octet > 1:
                with cython.gil:
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
        return _read_size(self)

    def refuse_size(self, size: cython.longlong) -> cython.int:
        raise CorruptBatch(
            f"record data claims {size} bytes at byte {self.position}, "
            f"and {self.limit - self.position} are left"
        )

    def read_record(self) -> cython.int:
        """Read the next record up to its headers, which `read_header` reads one by one."""
        self.limit = self.end
        size: cython.Py_ssize_t = _read_size(self)
        if size < 1:
            with cython.gil:
                raise CorruptBatch(f"record data claims a record of {size} bytes")
        self.limit = self.position + size
        self.position += 1  # attributes, which have no meaning yet
        # `read_varint` would cost more, as C has to ask whether it has raised an error.
        self.timestamp_delta = _read_short_varint(self)
        if self.timestamp_delta == _LONG:
            self.timestamp_delta = self.read_long_varint()
        self.offset_delta = _read_short_varint(self)
        if self.offset_delta == _LONG:
            self.offset_delta = self.read_long_varint()
        self.key_size = _read_size(self)
        self.key_start = self.position
        if self.key_size > 0:
            self.position += self.key_size
        self.value_size = _read_size(self)
        self.value_start = self.position
        if self.value_size > 0:
            self.position += self.value_size
        # Every header takes two bytes at least, so their count is bounded like a size.
        self.header_count = _read_size(self)
        if self.header_count < 0:
            with cython.gil:
                raise CorruptBatch(
                    f"record data claims a negative header count, at byte {self.position}"
                )
        return 0

    def read_placed_record(self) -> cython.int:
        """Read the next record up to its headers; check and compute its offset and timestamp."""
        self.read_record()
        if self.offset_delta < 0 or self.offset_delta > self.last_delta:
            with cython.gil:
                raise CorruptBatch(
                    f"record data has offset delta {self.offset_delta} in a batch of base offset "
                    f"{self.base_offset} that ends at {self.base_offset + self.last_delta}"
                )
        if not _adds_up(self.base_timestamp, self.timestamp_delta):
            with cython.gil:
                raise CorruptBatch(f"record data has timestamp delta {self.timestamp_delta}")
        self.offset = self.base_offset + self.offset_delta
        if not self.is_append_time:
            self.timestamp = self.base_timestamp + self.timestamp_delta
        return 0

    def read_header(self) -> cython.int:
        self.header_name_size = _read_size(self)
        if self.header_name_size < 0:
            with cython.gil:
                raise CorruptBatch(
                    f"record data has a header without a name, at byte {self.position}"
                )
        self.header_name_start = self.position
        self.position += self.header_name_size
        self.header_value_size = _read_size(self)
        self.header_value_start = self.position
        if self.header_value_size > 0:
            self.position += self.header_value_size
        return 0

    def pass_headers(self) -> cython.int:
        for _ in range(self.header_count):
            self.read_header()
        return 0

    def end_record(self) -> cython.int:
        if self.position != self.limit:
            with cython.gil:
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
            return _NO_HEADERS
        headers = []
        for _ in range(self.header_count):
            self.read_header()
            value = self.bytes_at(self.header_value_start, self.header_value_size)
            headers.append((self.header_name(), value))
        return headers


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_short_varint(reader: RecordReader) -> cython.longlong:
    """A number of one or two bytes, as most are; `_LONG`, and nothing is read, for others."""
    octet: cython.ulonglong
    more: cython.ulonglong
    position: cython.Py_ssize_t = reader.position
    if position < reader.limit:
        octet = reader.octets[position]
        if octet < 0x80:
            reader.position = position + 1
            return (octet >> 1) ^ -(octet & 1)
        if position < reader.limit - 1:
            more = reader.octets[position + 1]
            if more < 0x80:
                reader.position = position + 2
                octet = (octet & 0x7F) | (more << 7)
                return (octet >> 1) ^ -(octet & 1)
    return _LONG


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2, check=True)
def _read_size(reader: RecordReader) -> cython.Py_ssize_t:
    size: cython.longlong = _read_short_varint(reader)
    if size == _LONG:
        size = reader.read_long_varint()
    if size > reader.limit - reader.position:
        reader.refuse_size(size)
    return size if size >= 0 else -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _adds_up(base: cython.longlong, delta: cython.longlong) -> cython.bint:
    """Whether base + delta fits into 64 bits."""
    if delta >= 0:
        return base <= _MAX_INT64 - delta
    return base >= -_MAX_INT64 - 1 - delta


def open_records(
    view: memoryview, position: cython.Py_ssize_t, header: Any, limit: Any
) -> RecordReader:
    """A reader of the batch's records; decompresses them first if they are compressed. The CRC has
    been checked, where it is to be."""
    size: cython.Py_ssize_t = header.size
    records = view[position + HEADER_BYTES : position + size]
    attributes: cython.int = header.attributes
    if attributes & CODEC_MASK:
        records = memoryview(decompress(header.compression, records, limit))
    reader = RecordReader(records)
    reader.base_offset = header.base_offset
    reader.last_delta = header.last_offset_delta
    reader.base_timestamp = header.base_timestamp
    reader.is_append_time = attributes & LOG_APPEND_TIME != 0
    if reader.is_append_time:
        reader.timestamp = header.max_timestamp
    return reader


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
    while not is_cut_short(view, position):
        header = read_whole_header(view, position)
        _read_batch(
            found, topic, partition, view, position, header, start_offset, check_crcs, limit, None
        )
        position += header.size
    return found


def read_some_records(
    topic: str,
    partition: int,
    view: memoryview,
    position: cython.Py_ssize_t,
    start_offset: cython.longlong,
    enough: cython.Py_ssize_t,
    deserializers: Deserializers | None = None,
) -> tuple[list[Record], int]:
    """Like `read_records` of the batch at `position` and those after it, until there are `enough`
    records; CRCs are not checked. Also returns the position of the next batch to read.

    Records before the first one that cannot be read are returned; the next call raises its error.

    Raises:
        CorruptData: the first batch is malformed.
        NotDeserialized: a deserializer refuses the first record.
    """
    found: list[Record] = []
    before: cython.Py_ssize_t
    while len(found) < enough and not is_cut_short(view, position):
        before = len(found)
        try:
            header = read_whole_header(view, position)
            _read_batch(
                found,
                topic,
                partition,
                view,
                position,
                header,
                start_offset,
                False,
                RECORDS_LIMIT,
                deserializers,
            )
        except CorruptData:
            if before == 0:
                raise
            del found[before:]
            break
        except NotDeserialized:
            if not found:
                raise
            break
        position += header.size
    return found, position


@cython.cfunc
def _read_batch(
    found: list[Record],
    topic: str,
    partition: object,
    view: memoryview,
    position: cython.Py_ssize_t,
    header: Any,
    start_offset: cython.longlong,
    check_crcs: bool,
    limit: Any,
    deserializers: Any,
) -> object:
    """Append one batch's records from `start_offset` on."""
    if check_crcs:
        check_crc(view, position, header)
    if header.is_control or header.last_offset < start_offset:
        return None
    reader: RecordReader = open_records(view, position, header, limit)
    timestamp_type: object = header.timestamp_type
    # Records of a batch mostly have the same few timestamps, so the last number is kept.
    last_timestamp: cython.longlong = header.base_timestamp
    timestamp: object = last_timestamp
    count: cython.int = header.record_count
    for _ in range(count):
        reader.read_placed_record()
        if reader.offset < start_offset:
            reader.pass_headers()
            reader.end_record()
            continue
        if reader.timestamp != last_timestamp:
            last_timestamp = reader.timestamp
            timestamp = last_timestamp
        offset: object = reader.offset
        key = reader.bytes_at(reader.key_start, reader.key_size)
        value = reader.bytes_at(reader.value_start, reader.value_size)
        headers = reader.read_headers()
        reader.end_record()
        record = _make_record(
            topic, partition, offset, timestamp, timestamp_type, key, value, headers
        )
        found.append(record if deserializers is None else _deserialize(record, deserializers))
    reader.end_batch()
    return None


@cython.cfunc
@cython.inline
def _make_record(
    topic: object,
    partition: object,
    offset: object,
    timestamp: object,
    timestamp_type: object,
    key: object,
    value: object,
    headers: object,
) -> Any:
    """`Record(topic, …)`, whose fields are written directly into the new tuple."""
    if cython.compiled:
        kind = cython.cast(cython.p_void, _RECORD)
        record: object = PyType_GenericAlloc(kind, 8)  # type: ignore[name-defined]  # noqa: F821
        # Each item takes over a reference.
        Py_INCREF(topic)
        PyTuple_SET_ITEM(record, 0, topic)
        Py_INCREF(partition)
        PyTuple_SET_ITEM(record, 1, partition)
        Py_INCREF(offset)
        PyTuple_SET_ITEM(record, 2, offset)
        Py_INCREF(timestamp)
        PyTuple_SET_ITEM(record, 3, timestamp)
        Py_INCREF(timestamp_type)
        PyTuple_SET_ITEM(record, 4, timestamp_type)
        Py_INCREF(key)
        PyTuple_SET_ITEM(record, 5, key)
        Py_INCREF(value)
        PyTuple_SET_ITEM(record, 6, value)
        Py_INCREF(headers)
        PyTuple_SET_ITEM(record, 7, headers)
        if headers is _NO_HEADERS:
            # Numbers and bytes form no cycle: the garbage collector need not look at the record, as
            # at an ordinary tuple of them.
            PyObject_GC_UnTrack(record)  # type: ignore[name-defined]  # noqa: F821
        return record
    else:  # noqa: RET505
        fields = (topic, partition, offset, timestamp, timestamp_type, key, value, headers)
        return _new_tuple(Record, fields)


def _deserialize(record: Record, deserializers: Deserializers) -> Record:
    """The record with its key and value as objects; nulls stay None."""
    topic, partition, offset, timestamp, timestamp_type, key, value, headers = record
    what, function = "key", deserializers.key
    try:
        if function is not None and key is not None:
            key = _converted(function, topic, headers, key)
        what, function = "value", deserializers.value
        if function is not None and value is not None:
            value = _converted(function, topic, headers, value)
    except Exception as error:
        raise NotDeserialized(record, what, error) from error
    return _new_tuple(
        Record, (topic, partition, offset, timestamp, timestamp_type, key, value, headers)
    )


@cython.cfunc
@cython.inline
def _converted(function: Any, topic: str, headers: object, data: object) -> Any:
    if type(function) is InContext:
        return function.convert(topic, headers, data)
    return function(data)


def scan_records(
    buffer: Any,
    position: cython.Py_ssize_t,
    header: BatchHeader,
    limit: int = OPENED_LIMIT,
) -> Iterator[list[tuple[int, int, bool]]]:
    """Of each record in the batch at `position`: its offset delta, its timestamp delta, and whether
    it has a key; in lists of up to `SCANNED_AT_ONCE` records. For brokers.

    Raises CorruptData for a malformed batch; its CRC is not checked.
    """
    reader: RecordReader = open_records(memoryview(buffer), position, header, limit)
    count: cython.int = header.record_count
    found: list[tuple[int, int, bool]] = []
    for _ in range(count):
        reader.read_record()
        reader.pass_headers()
        reader.end_record()
        found.append((reader.offset_delta, reader.timestamp_delta, reader.key_size >= 0))
        if len(found) == SCANNED_AT_ONCE:
            yield found
            found = []
    reader.end_batch()
    yield found


class Survey(NamedTuple):
    """What the records of a batch have in common.

    Attributes:
        records: their bytes, decompressed.
        max_timestamp: the largest timestamp, in ms; NO_TIMESTAMP if no record has one.
        min_timestamp: likewise the smallest.
        keyless: how many have no key.
    """

    records: memoryview
    max_timestamp: int
    min_timestamp: int
    keyless: int


@cython.final
@cython.cclass
class _Surveyor:
    largest = cython.declare(cython.longlong)
    smallest = cython.declare(cython.longlong)
    keyless = cython.declare(cython.Py_ssize_t)

    def __init__(self) -> None:
        self.largest = _NO_TIME
        self.smallest = _MAX_INT64
        self.keyless = 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def pass_records(
        self, reader: RecordReader, first: cython.longlong, end: cython.longlong
    ) -> cython.int:
        number: cython.longlong
        timestamp: cython.longlong
        for number in range(first, end):
            reader.read_placed_record()
            if reader.offset_delta != number:
                with cython.gil:
                    raise CorruptBatch(f"record {number} has offset delta {reader.offset_delta}")
            reader.pass_headers()
            reader.end_record()
            if reader.key_size < 0:
                self.keyless += 1
            timestamp = reader.timestamp
            if timestamp > self.largest:
                self.largest = timestamp
            if timestamp < self.smallest and timestamp != _NO_TIME:
                self.smallest = timestamp
        return 0


def survey_records(
    buffer: Any, position: cython.Py_ssize_t, header: BatchHeader, limit: int = OPENED_LIMIT
) -> Generator[None, None, Survey]:
    """Read every record of a producer's batch, at `position`, whose CRC was checked. Yields after
    every `SURVEYED_AT_ONCE` records, so that other tasks can run.

    The timestamps are those of the records, also if the attributes say that a broker set them.

    Raises CorruptData for a malformed batch, for offsets that do not rise by one, and for records
    that decompress to more than `limit` bytes (`TooLarge`).
    """
    reader: RecordReader = open_records(memoryview(buffer), position, header, limit)
    reader.is_append_time = False
    surveyor: _Surveyor = _Surveyor()
    count: cython.longlong = header.record_count
    end: cython.longlong = 0
    first: cython.longlong
    while True:
        first, end = end, min(count, end + SURVEYED_AT_ONCE)
        surveyor.pass_records(reader, first, end)
        if end == count:
            break
        yield
    reader.end_batch()
    return Survey(
        reader.view,
        surveyor.largest,
        surveyor.largest if surveyor.smallest == _MAX_INT64 else surveyor.smallest,
        surveyor.keyless,
    )
