"""The two sparse indexes: the same columns in memory and on disk."""

from __future__ import annotations

from bisect import bisect_right

from trimtab.cluster.storage.segment_indexes import GrowingIndexes, StoredIndexes
from trimtab.kafka.wire.batch_header import BatchHeader
from trimtab.sim.disk import VirtualDisk

BASE = 1000
BATCH_BYTES = 100


def grown(batches: int, interval_bytes: int = 250) -> GrowingIndexes:
    """Batches of ten records, timestamps 5, 10, 15, … but for every fourth, which is late."""
    indexes = GrowingIndexes(BASE, interval_bytes)
    for number in range(batches):
        timestamp = 5 * (number + 1) if number % 4 else 1
        header = BatchHeader(
            0, BATCH_BYTES, 0, 2, 0, 0, 9, timestamp, timestamp, -1, -1, -1, record_count=10
        )
        indexes.note(header, number * BATCH_BYTES, BASE + 10 * number + 9)
    return indexes


def stored(indexes: GrowingIndexes) -> StoredIndexes:
    disk = VirtualDisk()
    for path, content in zip(("x.index", "x.timeindex"), indexes.encode(), strict=True):
        disk.open(path).append(content)
    return StoredIndexes(disk.open("x.index"), disk.open("x.timeindex"))


def test_an_entry_is_added_per_interval_of_bytes() -> None:
    indexes = grown(12)
    assert list(indexes.positions) == [300, 600, 900]
    assert list(indexes.offsets) == [39, 69, 99]
    assert bisect_right(indexes.offsets, 70) == 2


def test_only_a_timestamp_larger_than_all_before_is_noted() -> None:
    indexes = grown(12)
    indexes.encode()
    assert list(indexes.timestamps) == sorted(set(indexes.timestamps))
    assert indexes.max_timestamp == indexes.timestamps[-1] == 60


def test_stored_indexes_equal_those_in_memory() -> None:
    indexes = grown(50)
    read = stored(indexes)
    for column, grown_column in (
        (read.offsets, indexes.offsets),
        (read.positions, indexes.positions),
        (read.timestamps, indexes.timestamps),
        (read.timestamp_offsets, indexes.timestamp_offsets),
    ):
        assert [column[entry] for entry in range(len(column))] == list(grown_column)
    assert read.max_timestamp == indexes.max_timestamp
    assert read.fit(50 * BATCH_BYTES)
    again = GrowingIndexes(BASE, 250)
    assert again.decode(*indexes.encode(), 50 * BATCH_BYTES)
    assert list(again.offsets) == list(indexes.offsets)


def test_indexes_of_another_log_do_not_fit() -> None:
    indexes = grown(50)
    assert not stored(indexes).fit(10 * BATCH_BYTES)
    index, time_index = indexes.encode()
    again = GrowingIndexes(BASE, 250)
    assert not again.decode(index[:-1], time_index, 50 * BATCH_BYTES)
    assert not again.decode(bytes(len(index)), time_index, 50 * BATCH_BYTES)


def test_the_timestamp_of_an_emptied_batch_is_not_indexed() -> None:
    indexes = grown(3)
    before = indexes.max_timestamp
    empty = BatchHeader(0, 61, 0, 2, 0, 0, 9, -1, 10**6, -1, -1, -1, record_count=0)
    indexes.note(empty, 300, BASE + 39)
    assert indexes.max_timestamp == before
