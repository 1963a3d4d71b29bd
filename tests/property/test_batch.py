"""Appended records are read back; any other bytes are read completely or raise CorruptData.

The compiled form has no bounds checks but its own: hostile bytes must raise CorruptData, and give
the same result as in the interpreted form.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trimtab.kafka.errors import CorruptData
from trimtab.kafka.records import Record
from trimtab.kafka.wire import batch_cy
from trimtab.kafka.wire.batch_header import HEADER_BYTES
from trimtab.kafka.wire.compression import Compression, compress, decompress

LIMIT = 1 << 20

nullable = st.none() | st.binary(max_size=200)
appended = st.lists(
    st.tuples(
        st.integers(-1, 2**63 - 2) | st.integers(1_700_000_000_000, 1_700_000_100_000),
        nullable,
        nullable,
        st.lists(st.tuples(st.text(max_size=9), nullable), max_size=3),
    ),
    min_size=1,
    max_size=20,
)
codecs = st.sampled_from(Compression)


@pytest.fixture(scope="session")
def building(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.batch_cy")


@pytest.fixture(scope="session")
def reading(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.batch_cy")


def build(building: ModuleType, records: list[Any], codec: int, base_offset: int = 0) -> bytearray:
    builder = building.BatchBuilder(1 << 30, codec)
    for record in records:
        assert builder.append(*record) == batch_cy.record_size(
            record[0] - records[0][0], builder.count - 1, *record[1:]
        )
    built: bytearray = builder.build()
    building.restamp(built, 0, base_offset, 0)
    return built


def rows(columns: Any) -> list[tuple[Any, ...]]:
    """The columns as rows of (offset, timestamp µs, key, value, headers)."""

    def binary(column: Any, row: int) -> bytes | None:
        if column.validity is not None and not column.validity[row // 8] >> row % 8 & 1:
            return None
        start, end = struct.unpack_from("=2i", column.offsets, 4 * row)
        return bytes(column.data[start:end])

    found = []
    for row in range(columns.rows):
        (offset,) = struct.unpack_from("=q", columns.offset, 8 * row)
        (timestamp,) = struct.unpack_from("=q", columns.timestamp, 8 * row)
        start, end = struct.unpack_from("=2i", columns.headers.offsets, 4 * row)
        headers = [
            (binary(columns.headers.key, n), binary(columns.headers.value, n))
            for n in range(start, end)
        ]
        found.append(
            (offset, timestamp, binary(columns.key, row), binary(columns.value, row), headers)
        )
    return found


def as_rows(records: list[Record]) -> list[tuple[Any, ...]]:
    return [
        (
            r.offset,
            r.timestamp * 1000 if r.timestamp <= (2**63 - 1) // 1000 else 2**63 - 1,
            r.key,
            r.value,
            [(name.encode(), value) for name, value in r.headers],
        )
        for r in records
    ]


@settings(max_examples=80)
@given(
    batches=st.lists(st.tuples(appended, codecs), min_size=1, max_size=3),
    gap=st.integers(0, 5),
    start=st.integers(0, 70),
    length=st.integers(0, 70),
    cut=st.integers(0, 70),
)
def test_what_was_appended_is_read(
    building: ModuleType,
    reading: ModuleType,
    batches: list[tuple[list[Any], int]],
    gap: int,
    start: int,
    length: int,
    cut: int,
) -> None:
    buffer = b""
    whole: list[tuple[Any, ...]] = []
    offset = gap
    for records, codec in batches:
        built = build(building, records, codec, offset)
        header = building.verify(built, is_client_batch=True)
        assert header.max_timestamp == max(record[0] for record in records)
        buffer += built
        whole += [
            (offset + n, time, key, value, list(headers))
            for n, (time, key, value, headers) in enumerate(records)
        ]
        offset += len(records) + gap
    last = len(batches[-1][0])
    if cut:
        buffer = buffer[:-cut]
        whole = whole[:-last]

    found = reading.read_records("t", 0, buffer, start)
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in found] == [
        record for record in whole if record[0] >= start
    ]
    scanner = reading.ColumnScanner(headers=True)
    end = start + length
    expected = [record for record in as_rows(found) if record[0] < end]
    assert scanner.scan(buffer, start, end) == len(expected)
    assert rows(scanner.take()) == expected
    assert start <= scanner.next_offset <= end


def read_both_ways(reading: ModuleType, data: bytes) -> object:
    """The records in the bytes, read in two ways, which must agree; or CorruptData's message."""
    try:
        records = reading.read_records("t", 0, data, 0, check_crcs=False, limit=LIMIT)
    except CorruptData as error:
        with pytest.raises(CorruptData):
            reading.ColumnScanner(headers=True, check_crcs=False, limit=LIMIT).scan(
                data, 0, 2**63 - 1
            )
        return str(error)
    scanner = reading.ColumnScanner(headers=True, check_crcs=False, limit=LIMIT)
    assert scanner.scan(data, 0, 2**63 - 1) == len(records)
    assert [row[0] for row in rows(scanner.take())] == [record.offset for record in records]
    return records


def check_both_forms(in_form: Callable[[str], ModuleType], data: bytes) -> None:
    assert read_both_ways(in_form("trimtab.kafka.wire.batch_cy"), data) == read_both_ways(
        batch_cy, data
    )


@settings(max_examples=150)
@given(data=st.data(), records=appended, codec=codecs)
def test_mutated_batches_are_read_or_corrupt(
    in_form: Callable[[str], ModuleType], data: st.DataObject, records: list[Any], codec: int
) -> None:
    mutated = build(batch_cy, records, codec)
    positions = st.integers(0, len(mutated) - 1) | st.integers(HEADER_BYTES, len(mutated) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(positions)] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del mutated[data.draw(positions) :]
    check_both_forms(in_form, bytes(mutated))


@settings(max_examples=150)
@given(
    section=st.binary(max_size=120)
    | st.lists(st.sampled_from([0, 1, 2, 12, 14, 127, 128, 254, 255]), max_size=60).map(bytes),
    count=st.integers(0, 5) | st.just(2**31 - 1),
    attributes=st.integers(0, 15),
    base_timestamp=st.sampled_from([0, -(2**63), 2**63 - 1]),
)
@example(section=b"\xff" * 9 + b"\x01", count=1, attributes=0, base_timestamp=0)
@example(section=b"\xff" * 4 + b"\x0f" + b"\0" * 9, count=1, attributes=0, base_timestamp=0)
def test_arbitrary_records_are_read_or_corrupt(
    in_form: Callable[[str], ModuleType],
    section: bytes,
    count: int,
    attributes: int,
    base_timestamp: int,
) -> None:
    rest = struct.pack(">hiqqqhii", attributes, 5, base_timestamp, 0, -1, -1, -1, count) + section
    head = struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, crc32c(rest))
    check_both_forms(in_form, head + rest)


@settings(max_examples=150)
@given(data=st.binary(max_size=200), position=st.integers(-1, 200))
def test_arbitrary_bytes_are_no_batches(
    in_form: Callable[[str], ModuleType], data: bytes, position: int
) -> None:
    check_both_forms(in_form, data)
    with pytest.raises(CorruptData):
        batch_cy.verify(data, position)
    if data:
        with pytest.raises(CorruptData):
            batch_cy.read_headers(data)


@settings(max_examples=150)
@given(codec=codecs, payload=st.binary(max_size=500), data=st.data())
def test_mutated_compressed_data_is_read_or_corrupt(
    codec: Compression, payload: bytes, data: st.DataObject
) -> None:
    mutated = bytearray(compress(codec, payload * 10))
    for _ in range(data.draw(st.integers(0, 4))):
        if mutated:
            mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptData):
        assert len(decompress(codec, mutated, LIMIT)) <= LIMIT
