"""The metadata log and its snapshots as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.cluster.metadata.batches import (
    SnapshotId,
    build_batch,
    find_snapshot_id,
    read_batches,
    read_snapshot,
    write_snapshot,
)
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import read_headers
from trimtab.kafka.wire.messages.metadata_records import (
    FeatureLevelRecord,
    NoOpRecord,
    TopicRecord,
    encode_record,
)

ID = SnapshotId(1234, 7)
TOPICS: list[Any] = [TopicRecord(name=f"t{n}", topic_id=n.to_bytes(16, "big")) for n in range(1200)]


def snapshot(records: list[Any]) -> bytes:
    return b"".join(write_snapshot(records, ID, 111, 222))


def test_records_come_out_of_batches_with_their_offsets() -> None:
    first = build_batch([encode_record(record) for record in TOPICS[:3]], 10, 2, 5)
    second = build_batch([encode_record(NoOpRecord())], 13, 3, 6)
    found = list(read_batches(first + second, 12))
    assert found == [(12, TOPICS[2]), (13, NoOpRecord())]
    assert [header.leader_epoch for header in read_headers(first + second)] == [2, 3]


@pytest.mark.parametrize("count", [0, 1, 500, 1200])
def test_a_snapshot_gives_its_records_back(count: int) -> None:
    content = snapshot(TOPICS[:count])
    assert list(read_snapshot(content)) == TOPICS[:count]
    headers = read_headers(content)
    assert (headers[0].is_control, headers[-1].is_control) == (True, True)
    assert {header.leader_epoch for header in headers} == {7}
    offsets = [header.base_offset for header in headers]
    assert offsets == [0, *(header.next_offset for header in headers[:-1])]


def test_a_snapshot_that_is_not_whole_is_corrupt() -> None:
    content = snapshot([FeatureLevelRecord(name="f", feature_level=1)])
    for size in range(len(content)):
        with pytest.raises(CorruptData):
            list(read_snapshot(content[:size]))
    with pytest.raises(CorruptData, match="not the next of its own"):
        list(read_snapshot(content + content))
    with pytest.raises(CorruptData, match="begins without a header"):
        list(read_snapshot(build_batch([encode_record(NoOpRecord())], 0, 1, 0)))


def test_a_flipped_bit_makes_a_snapshot_corrupt() -> None:
    content = snapshot(TOPICS[:2])
    for position in range(16, len(content)):  # what comes before may be the start of another
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptData):
            list(read_snapshot(damaged))


def test_snapshots_are_named_as_kafkas() -> None:
    assert ID.name == "00000000000000001234-0000000007.checkpoint"
    assert find_snapshot_id(ID.name) == ID
    for name in ("1234-7.checkpoint", ID.name + ".part", ID.name.replace("-", "_"), "0.log"):
        assert find_snapshot_id(name) is None
