"""Records a few at a time, as a consumer reads them: how far it comes, and what stops it.

Every test runs on the compiled and on the interpreted form; `test_batch.py` has the records.
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from trimtab.kafka.errors import CorruptData, NotDeserialized
from trimtab.kafka.records import Deserializers, Record, TimestampType
from trimtab.kafka.wire.batch_header import restamp


@pytest.fixture(scope="session")
def reading(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.batch_cy")


def build(reading: ModuleType, base_offset: int, *records: tuple[Any, ...]) -> bytes:
    builder = reading.BatchBuilder(1 << 20)
    for timestamp, key, value, headers in records:
        assert builder.append(timestamp, key, value, headers)
    built = bytearray(builder.build())
    restamp(built, 0, base_offset, 0)
    return bytes(built)


def numbered(reading: ModuleType, base_offset: int, count: int = 3) -> bytes:
    return build(
        reading,
        base_offset,
        *((0, None, b"%d" % n, ()) for n in range(base_offset, base_offset + count)),
    )


def read(reading: ModuleType, data: bytes, **arguments: Any) -> tuple[list[Record], int]:
    given = {"position": 0, "start_offset": 0, "enough": 100, **arguments}
    found: tuple[list[Record], int] = reading.read_some_records("t", 1, memoryview(data), **given)
    return found


@pytest.mark.parametrize(("enough", "batches"), [(1, 1), (3, 1), (4, 2), (6, 2), (100, 3)])
def test_whole_batches_are_read_until_there_is_enough(
    reading: ModuleType, enough: int, batches: int
) -> None:
    parts = [numbered(reading, offset) for offset in (0, 3, 6)]
    records, position = read(reading, b"".join(parts), enough=enough)
    assert [record.offset for record in records] == list(range(3 * batches))
    assert position == sum(map(len, parts[:batches]))
    following, end = read(reading, b"".join(parts), position=position)
    assert [record.offset for record in records + following] == list(range(9))
    assert end == sum(map(len, parts))


def test_batches_before_the_offset_are_passed_over(reading: ModuleType) -> None:
    data = numbered(reading, 0) + numbered(reading, 10)
    records, position = read(reading, data, start_offset=11, enough=1)
    assert [record.offset for record in records] == [11, 12]
    assert position == len(data)


def test_a_malformed_batch_ends_what_is_read_and_is_an_error_when_it_is_the_first(
    reading: ModuleType,
) -> None:
    good, bad = numbered(reading, 0), bytearray(numbered(reading, 3))
    bad[-1] = 0x7F  # the last record's number of headers: those before it do not come either
    records, position = read(reading, good + bad)
    assert [record.offset for record in records] == [0, 1, 2]
    assert position == len(good)
    with pytest.raises(CorruptData):
        read(reading, good + bytes(bad), position=position, start_offset=3)


def test_a_record_that_is_refused_ends_what_is_read_and_is_an_error_when_it_is_the_first(
    reading: ModuleType,
) -> None:
    def refuse(value: bytes) -> int:
        if value == b"4":
            raise ZeroDivisionError
        return int(value)

    data = numbered(reading, 0) + numbered(reading, 3)
    given = {"deserializers": Deserializers(None, refuse)}
    records, position = read(reading, data, **given)
    assert [record.value for record in records] == [0, 1, 2, 3]
    with pytest.raises(NotDeserialized) as caught:
        read(reading, data, position=position, start_offset=4, **given)
    assert caught.value.record.offset == 4
    records, _ = read(reading, data, position=position, start_offset=5, **given)
    assert [record.value for record in records] == [5]


def test_a_record_is_an_ordinary_named_tuple(reading: ModuleType) -> None:
    fields = (b"key", b"value", [("h", b"v")])
    ((record, plain), _) = read(
        reading, build(reading, 7, (1_000, *fields), (2_000, None, None, ()))
    )
    expected = Record("t", 1, 7, 1_000, TimestampType.CREATE_TIME, *fields)
    assert record == expected
    assert type(record) is Record
    assert hash(plain) == hash(Record("t", 1, 8, 2_000, TimestampType.CREATE_TIME, None, None, ()))
    assert plain._replace(value=b"x").value == b"x"
    assert pickle.loads(pickle.dumps(record)) == expected
    assert copy.deepcopy(plain) == plain
    assert str(record) == str(expected)


def test_records_that_may_be_in_a_cycle_are_collected(reading: ModuleType) -> None:
    """Those of numbers and bytes are none of the collector's business."""

    class Node:
        count = 0

        def __init__(self) -> None:
            self.record: object = None
            Node.count += 1

        def __del__(self) -> None:
            Node.count -= 1

    def make(value: bytes) -> Node:
        return Node()

    (records, _) = read(reading, numbered(reading, 0, 10), deserializers=Deserializers(None, make))
    for record in records:
        record.value.record = record
    assert Node.count == 10
    del record, records
    gc.collect()
    assert Node.count == 0


def test_a_hundred_thousand_records_keep_their_references(reading: ModuleType) -> None:
    data = numbered(reading, 0, 1_000)
    gc.collect()
    for _ in range(100):
        records, _ = read(reading, data, enough=1_000)
        assert len(records) == 1_000
    record = records[-1]
    del records
    gc.collect()
    assert (record.topic, record.offset, record.value) == ("t", 999, b"999")


def test_timestamps_that_change_within_a_batch(reading: ModuleType) -> None:
    times = [5, 5, 4, -1, 2**62, 5]
    records, _ = read(reading, build(reading, 0, *((at, b"k", None, ()) for at in times)))
    assert [record.timestamp for record in records] == times
