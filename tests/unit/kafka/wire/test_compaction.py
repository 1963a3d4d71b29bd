"""Batches after compaction.

Every test runs on the compiled and on the interpreted form.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.steps import count_steps, finish
from trimtab.kafka.records import Record, TimestampType
from trimtab.kafka.wire.batch_cy import (
    BatchBuilder,
    BatchHeader,
    read_header,
    read_records,
    restamp,
    stamp_append_time,
    verify,
)
from trimtab.kafka.wire.compression import Compression

SECRET = bytes(range(16))
BASE = 100
NOW = 5_000_000
RETENTION = 1000

Pair = tuple[bytes | None, bytes | None]


@pytest.fixture(scope="session")
def compaction(in_form: Callable[[str], ModuleType]) -> ModuleType:
    return in_form("trimtab.kafka.wire.compaction_cy")


def batch(*pairs: Pair, codec: int = 0, **identity: Any) -> bytearray:
    """At offset 100, a millisecond apart from 1000 on, each with a header."""
    builder = BatchBuilder(1 << 20, codec)
    for i, (key, value) in enumerate(pairs):
        builder.append(1000 + i, key, value, [("h", b"%d" % i)])
    built = bytearray(builder.build(**identity))
    restamp(built, 0, BASE, 7)
    return built


def compact(
    compaction: ModuleType,
    data: bytearray,
    latest: dict[bytes, int],
    end_offset: int = 10**6,
    now_ms: int = NOW,
) -> Any:
    keys = compaction.KeyOffsets(1 << 14, SECRET)
    for key, offset in latest.items():
        keys.put(key, offset)
    return finish(
        compaction.compact_batch(data, 0, read_header(data), keys, end_offset, now_ms, RETENTION)
    )


def records(data: Any) -> list[Record]:
    verify(data)
    return read_records("t", 0, data)


def header_of(data: Any) -> BatchHeader:
    return read_header(data)


class TestKeyOffsets:
    @pytest.mark.parametrize(
        ("size", "expected"),
        [
            (0, "a3817f04ba25a8e66df67214c7550293"),
            (1, "da87c1d86b99af44347659119b22fc45"),
        ],
    )
    def test_the_hash_is_siphash(self, compaction: ModuleType, size: int, expected: str) -> None:
        keys = compaction.KeyOffsets(1024, SECRET)
        assert keys.hash(bytes(range(size))).hex() == expected

    def test_the_hash_takes_in_every_octet_and_the_length(self, compaction: ModuleType) -> None:
        keys = compaction.KeyOffsets(1024, SECRET)
        texts = [bytes(size) for size in range(40)]
        texts += [bytes(i) + b"\1" + bytes(19 - i) for i in range(20)]
        assert len({keys.hash(text) for text in texts}) == len(texts)

    def test_another_secret_is_another_hash(self, compaction: ModuleType) -> None:
        hashes = {compaction.KeyOffsets(1024, secret).hash(b"k") for secret in (SECRET, bytes(16))}
        assert len(hashes) == 2

    def test_remembers_the_last_offset_of_each_key(self, compaction: ModuleType) -> None:
        keys = compaction.KeyOffsets(1 << 16, SECRET)
        for i in range(3000):
            assert keys.put(b"key %d" % (i % 1000), i)
        assert len(keys) == 1000
        assert [keys.get(b"key %d" % i) for i in range(1000)] == list(range(2000, 3000))
        assert keys.get(b"another") == -1

    def test_is_full_at_nine_tenths(self, compaction: ModuleType) -> None:
        keys = compaction.KeyOffsets(24 * 128, SECRET)
        taken = [keys.put(b"%d" % i, i) for i in range(200)]
        assert taken == [True] * 115 + [False] * 85
        assert keys.is_full
        assert keys.put(b"7", 4711)
        assert (keys.get(b"7"), keys.get(b"150")) == (4711, -1)


def test_others_have_their_turn_within_a_batch_of_very_many_records(
    compaction: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "RECORDS_AT_ONCE", 50)
    data = batch(*((b"%d" % (number % 7), b"v") for number in range(101)))
    header = read_header(data)
    keys = compaction.KeyOffsets(1024, SECRET)
    assert count_steps(compaction.note_keys(data, 0, header, keys, 0)) == (2, BASE + 101)
    steps = compaction.compact_batch(data, 0, header, keys, 10**6, NOW, RETENTION)
    turns, left = count_steps(steps)
    assert turns == 2
    assert read_header(left).record_count == 7


class TestNoteKeys:
    @pytest.mark.parametrize("codec", list(Compression))
    def test_the_last_offset_of_each_counts(self, compaction: ModuleType, codec: int) -> None:
        keys = compaction.KeyOffsets(1024, SECRET)
        data = batch((b"a", b"1"), (b"b", b"1"), (None, b"1"), (b"a", None), codec=codec)
        assert finish(compaction.note_keys(data, 0, read_header(data), keys, 0)) == BASE + 4
        assert [keys.get(key) for key in (b"a", b"b")] == [BASE + 3, BASE + 1]
        assert len(keys) == 2

    def test_from_an_offset_on(self, compaction: ModuleType) -> None:
        keys = compaction.KeyOffsets(1024, SECRET)
        data = batch((b"a", b"1"), (b"b", b"1"))
        assert finish(compaction.note_keys(data, 0, read_header(data), keys, BASE + 1)) == BASE + 2
        assert (keys.get(b"a"), keys.get(b"b")) == (-1, BASE + 1)

    def test_until_there_is_no_room(self, compaction: ModuleType) -> None:
        keys = compaction.KeyOffsets(1024, SECRET)
        data = batch(*((b"%d" % i, b"v") for i in range(40)))
        assert (
            finish(compaction.note_keys(data, 0, read_header(data), keys, 0)) == BASE + keys.limit
        )

    def test_not_of_control_records(self, compaction: ModuleType) -> None:
        keys = compaction.KeyOffsets(1024, SECRET)
        data = batch((b"a", b"1"), is_control=True)
        assert finish(compaction.note_keys(data, 0, read_header(data), keys, 0)) == BASE + 1
        assert len(keys) == 0


class TestCompactBatch:
    def test_in_which_every_record_is_the_last_stays_as_it_is(self, compaction: ModuleType) -> None:
        data = batch((b"a", b"1"), (b"b", b"2"))
        assert compact(compaction, data, {b"a": BASE, b"b": BASE + 1}) is None

    @pytest.mark.parametrize("codec", list(Compression))
    def test_keeps_the_last_of_each_key(self, compaction: ModuleType, codec: int) -> None:
        data = batch((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), codec=codec)
        kept = compact(compaction, data, {b"a": BASE + 2, b"b": BASE + 9, b"c": BASE + 3})
        assert records(kept) == [records(data)[2], records(data)[3]]
        assert header_of(kept).compression == codec

    def test_keeps_its_place_and_its_producer(self, compaction: ModuleType) -> None:
        data = batch(
            (b"a", b"1"),
            (b"b", b"1"),
            (b"a", b"2"),
            producer_id=9,
            producer_epoch=3,
            base_sequence=77,
            is_transactional=True,
        )
        before = header_of(data)
        after = header_of(compact(compaction, data, {b"a": BASE + 9, b"b": BASE + 1}))
        assert after == before._replace(
            size=after.size, crc=after.crc, record_count=1, max_timestamp=1001
        )

    def test_of_which_nothing_is_left_is_no_bytes(self, compaction: ModuleType) -> None:
        data = batch((b"a", b"1"), (b"a", b"2"))
        assert compact(compaction, data, {b"a": BASE + 9}) == b""

    def test_keeps_records_beyond_the_end(self, compaction: ModuleType) -> None:
        data = batch((b"a", b"1"), (b"b", b"1"), (b"b", b"2"))
        kept = compact(compaction, data, {b"a": BASE + 9}, end_offset=BASE + 1)
        assert [record.offset for record in records(kept)] == [BASE + 1, BASE + 2]

    def test_records_without_a_key_go(self, compaction: ModuleType) -> None:
        kept = compact(compaction, batch((None, b"1"), (b"", b"2")), {b"": BASE + 1})
        assert [record.key for record in records(kept)] == [b""]

    def test_records_with_the_brokers_time_keep_it(self, compaction: ModuleType) -> None:
        data = batch((b"a", b"1"), (b"b", None), (b"a", b"2"))
        stamp_append_time(data, 0, 777_777)
        kept = compact(compaction, data, {b"a": BASE + 9, b"b": BASE + 1})
        (record,) = records(kept)
        assert (record.timestamp, record.timestamp_type) == (
            777_777,
            TimestampType.LOG_APPEND_TIME,
        )


LATEST = {b"a": BASE, b"b": BASE + 1, b"c": BASE + 2}


@pytest.mark.kip(534)
class TestDeleteMarkers:
    @pytest.mark.parametrize("codec", list(Compression))
    def test_get_a_horizon_when_first_compacted(self, compaction: ModuleType, codec: int) -> None:
        data = batch((b"a", b"1"), (b"b", None), (b"c", b"2"), codec=codec)
        kept = compact(compaction, data, LATEST)
        assert header_of(kept).attributes == header_of(data).attributes | 0x40
        assert header_of(kept).base_timestamp == NOW + RETENTION
        assert header_of(kept).max_timestamp == 1002
        assert records(kept) == records(data)

    def test_get_no_second_one(self, compaction: ModuleType) -> None:
        once = compact(compaction, batch((b"a", b"1"), (b"b", None)), LATEST)
        assert compact(compaction, once, LATEST, now_ms=NOW + RETENTION - 1) is None

    def test_go_once_it_has_passed(self, compaction: ModuleType) -> None:
        once = compact(compaction, batch((b"a", b"1"), (b"b", None)), LATEST)
        later = compact(compaction, once, LATEST, now_ms=NOW + RETENTION)
        assert records(later) == records(once)[:1]

    def test_beyond_the_end_stay(self, compaction: ModuleType) -> None:
        once = compact(compaction, batch((b"a", b"1"), (b"b", None)), LATEST)
        later = compact(compaction, once, LATEST, now_ms=NOW + RETENTION, end_offset=BASE + 1)
        assert later is None

    @pytest.mark.parametrize("timestamp", [-1, 0, 10**15])
    def test_keep_whatever_time_they_have(self, compaction: ModuleType, timestamp: int) -> None:
        builder = BatchBuilder(1000)
        builder.append(timestamp, b"a", None, [])
        data = bytearray(builder.build())
        restamp(data, 0, BASE, 0)
        kept = compact(compaction, data, LATEST)
        assert [record.timestamp for record in records(kept)] == [timestamp]
        assert header_of(kept).max_timestamp == timestamp

    def test_a_control_record_can_have_one(self, compaction: ModuleType) -> None:
        data = batch((b"\0\0\0\1", b"\0\0\0\0\0\0"), is_control=True, producer_id=3)
        kept = compaction.set_delete_horizon(data, 0, read_header(data), NOW)
        verify(kept)
        after = header_of(kept)
        assert (after.attributes, after.base_timestamp) == (0x60, NOW)
        assert (after.max_timestamp, after.record_count, after.producer_id) == (1000, 1, 3)


def test_an_empty_batch_is_its_place_and_its_producer(compaction: ModuleType) -> None:
    data = batch(
        (b"a", b"1"),
        (b"b", b"1"),
        codec=Compression.ZSTD,
        producer_id=9,
        producer_epoch=3,
        base_sequence=77,
    )
    before = header_of(data)
    empty = compaction.empty_batch(before)
    assert verify(empty) == before._replace(
        size=61,
        crc=header_of(empty).crc,
        attributes=0,
        base_timestamp=-1,
        max_timestamp=1001,
        record_count=0,
    )
    assert records(empty) == []
