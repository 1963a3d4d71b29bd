"""Batch headers into columns, in both forms of the scanner."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType

import pytest

from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.batch_header import CONTROL, CorruptBatch, restamp
from trimtab.kafka.wire.compression import Compression


@pytest.fixture
def headers(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.headers_cy")


def make_batch(
    base_offset: int, times: list[int], codec: Compression = Compression.NONE, size: int = 10
) -> bytearray:
    builder = BatchBuilder(1 << 22, codec)
    for time in times:
        assert builder.append(time, b"k", b"v" * size, ())
    batch = bytearray(builder.build(producer_id=7, producer_epoch=1, base_sequence=0))
    restamp(batch, 0, base_offset, 5)
    return batch


def numbers(kind: str, octets: bytearray) -> list[int]:
    return list(struct.unpack(f"={len(octets) // struct.calcsize(kind)}{kind}", octets))


def test_every_field_of_every_header(headers: ModuleType) -> None:
    first = make_batch(2**40, [1000, 990])
    second = make_batch(2**40 + 9, [-1], Compression.LZ4)
    second[22] |= CONTROL
    log = first + second
    scanner = headers.HeaderScanner()
    assert scanner.scan(log, len(log), len(log)) == len(log)
    assert (scanner.rows, scanner.full) == (2, False)
    columns = scanner.take()
    assert columns.rows == 2
    assert numbers("q", columns.base_offset) == [2**40, 2**40 + 9]
    assert numbers("q", columns.last_offset) == [2**40 + 1, 2**40 + 9]
    assert numbers("q", columns.base_timestamp) == [1000, -1]
    assert numbers("q", columns.max_timestamp) == [1000, -1]
    assert numbers("q", columns.producer_id) == [7, 7]
    assert numbers("i", columns.size) == [len(first), len(second)]
    assert numbers("i", columns.leader_epoch) == [5, 5]
    assert numbers("i", columns.attributes) == [0, CONTROL | Compression.LZ4]
    assert numbers("i", columns.record_count) == [2, 1]
    assert scanner.take().rows == 0


def test_a_piece_may_end_inside_a_batch_or_its_header(headers: ModuleType) -> None:
    log = make_batch(0, [0], size=500) + make_batch(1, [0])
    scanner = headers.HeaderScanner()
    large = len(make_batch(0, [0], size=500))
    assert scanner.scan(log, 61, len(log)) == large  # beyond the piece: the next one begins there
    assert scanner.scan(bytearray(log[large : large + 60]), 60, len(log) - large) == 0
    assert scanner.rows == 1
    assert scanner.scan(bytearray(log[large:]), len(log) - large, len(log) - large) > 0
    assert numbers("q", scanner.take().base_offset) == [0, 1]


def test_a_batch_cut_short_by_the_end_of_the_log_is_not_counted(headers: ModuleType) -> None:
    log = make_batch(0, [0]) + make_batch(1, [0])
    scanner = headers.HeaderScanner()
    whole = len(log) // 2
    assert scanner.scan(log, len(log), len(log) - 1) == whole
    assert scanner.rows == 1
    assert scanner.scan(log, len(log), whole - 1) == 0


def test_zeros_after_the_last_batch_end_the_log(headers: ModuleType) -> None:
    batch = make_batch(3, [0])
    log = batch + bytearray(1000)
    scanner = headers.HeaderScanner()
    assert scanner.scan(log, len(log), len(log)) == len(batch)
    assert scanner.scan(bytearray(1000), 1000, 1000) == 0
    assert scanner.rows == 1


@pytest.mark.parametrize(
    ("at", "octets"),
    [
        (16, b"\x01"),  # magic 1
        (8, b"\x00\x00\x00\x01"),  # a length of 1
        (8, b"\x80\x00\x00\x00"),
        (0, b"\x80"),  # a base offset below zero
        (23, b"\xff"),
        (57, b"\xff"),
    ],
)
def test_a_header_that_cannot_be_right_is_an_error(
    headers: ModuleType, at: int, octets: bytes
) -> None:
    log = make_batch(0, [0]) + make_batch(1, [0])
    start = len(log) // 2 + at
    log[start : start + len(octets)] = octets
    scanner = headers.HeaderScanner()
    with pytest.raises(CorruptBatch, match=f"batch at byte {len(log) // 2} "):
        scanner.scan(log, len(log), len(log))


def test_a_full_scanner_continues_after_take(headers: ModuleType) -> None:
    one = make_batch(0, [0])
    log = bytearray(one * (headers.ROWS + 2))
    scanner = headers.HeaderScanner()
    passed = scanner.scan(log, len(log), len(log))
    assert passed == headers.ROWS * len(one)
    assert scanner.full
    assert scanner.scan(log, len(log), len(log)) == 0
    assert scanner.take().rows == headers.ROWS
    rest = bytearray(log[passed:])
    assert scanner.scan(rest, len(rest), len(rest)) == len(rest)
    assert scanner.rows == 2
