"""Which columns a scanner makes, and how it stops. `test_batch.py` has their bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from threading import Thread
from types import ModuleType

import pytest

from trimtab.kafka.errors import CorruptData, UsageError


@pytest.fixture(scope="session")
def batch(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.batch_cy")


@pytest.fixture(scope="session")
def reading(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.columns_cy")


def build(batch: ModuleType, *times: int) -> bytearray:
    builder = batch.BatchBuilder(1 << 20)
    for time in times:
        assert builder.append(time, b"k", b"v" * 100, ())
    built: bytearray = builder.build()
    return built


@pytest.mark.parametrize("name", ["key", "value", "offset", "timestamp", "timestamp_type"])
def test_each_column_is_made_only_if_it_is_wanted(
    batch: ModuleType, reading: ModuleType, name: str
) -> None:
    wanted = dict.fromkeys(("key", "value", "offset", "timestamp", "timestamp_type"), False)
    for is_wanted in (True, False):
        scanner = reading.ColumnScanner(**{**wanted, name: is_wanted})
        assert scanner.scan(build(batch, 1, 2), 0, 10) == 2
        columns = scanner.take()._asdict()
        made = {each for each, column in columns.items() if column is not None} - {"rows"}
        assert made == ({name} if is_wanted else set())
        assert columns["rows"] == 2


def test_milliseconds_have_room_for_every_timestamp(batch: ModuleType, reading: ModuleType) -> None:
    times = (-1, 0, 2**63 - 2)
    scanner = reading.ColumnScanner(microseconds=False)
    scanner.scan(build(batch, *times), 0, 10)
    columns = scanner.take()
    assert columns.timestamp == struct.pack("=3q", *times)
    assert columns.far_timestamp is None


def test_a_scanner_is_filled_as_far_as_was_said_last(
    batch: ModuleType, reading: ModuleType
) -> None:
    data = build(batch, 1) * 10
    for number in range(10):
        struct.pack_into(">q", data, number * len(data) // 10, number)
    scanner = reading.ColumnScanner(check_crcs=False)
    for most, rows in ((1, 1), (200, 2), (1 << 20, 7)):
        scanner.fill_to(most)
        assert scanner.scan(data, scanner.next_offset, 100) == rows
        scanner.take()
    with pytest.raises(UsageError, match="full_bytes=0"):
        scanner.fill_to(0)


def test_a_second_thread_is_refused_while_one_scans(batch: ModuleType, reading: ModuleType) -> None:
    data = build(batch, *range(5_000))
    scanner = reading.ColumnScanner(check_crcs=False)
    is_refused = False
    while not is_refused:
        scanner.take()
        scanning = Thread(target=scanner.scan, args=(data, 0, 5_000))
        scanning.start()
        while scanning.is_alive() and not is_refused:
            try:
                scanner.take()
            except UsageError:
                is_refused = True
        scanning.join()
    assert scanner.take().rows == 5_000


def test_a_header_that_claims_too_many_records_costs_no_memory(
    batch: ModuleType, reading: ModuleType
) -> None:
    data = build(batch, 1)
    struct.pack_into(">i", data, 57, 2**31 - 1)  # the number of records
    struct.pack_into(">i", data, 23, 2**31 - 2)  # the last offset
    scanner = reading.ColumnScanner(check_crcs=False)
    with pytest.raises(CorruptData, match="record data"):
        scanner.scan(data, 0, 100)


@pytest.mark.parametrize("first", range(18))
def test_the_bits_of_a_column_say_which_rows_are_null(
    batch: ModuleType, reading: ModuleType, first: int
) -> None:
    """Also if many rows come before the first null."""
    are_valid = [(row != first and row % 5 != 4) or row < first for row in range(20)]
    builder = batch.BatchBuilder(1 << 20)
    for is_valid in are_valid:
        builder.append(0, b"k" if is_valid else None, b"v", ())
    scanner = reading.ColumnScanner()
    scanner.scan(builder.build(), 0, 20)
    columns = scanner.take()
    bits = [bool(columns.key.validity[row // 8] >> row % 8 & 1) for row in range(20)]
    assert bits == are_valid
    assert columns.key.null_count == are_valid.count(False)
    assert columns.value.validity is None
