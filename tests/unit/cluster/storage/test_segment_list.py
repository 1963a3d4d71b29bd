"""Looking up offsets in a log's segments, and removing segments."""

from errno import EIO

import pytest

from tests.unit.cluster.storage.logs import DIRECTORY, ONE, batch
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.segment_list import SegmentList
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.wire.batch_cy import read_headers, restamp
from trimtab.sim.disk import VirtualDisk


@pytest.fixture
def segments(disk: VirtualDisk) -> SegmentList:
    """Three of two batches each: offsets 0 and 2, 4 and 6, 8 and 10; between them are gaps."""
    segments = SegmentList()
    for base_offset in (0, 4, 8):
        segment = Segment(disk, DIRECTORY, base_offset, 4096, 0)
        for offset in (base_offset, base_offset + 2):
            data = batch(timestamp=100 + offset)
            restamp(data, 0, offset, 0)
            segment.append(data, read_headers(data))
        segments.activate(segment)
    return segments


def base_offsets(segments: SegmentList) -> list[int]:
    return [segment.base_offset for segment in segments]


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, (0, 0)), (1, (0, ONE)), (3, (4, 0)), (8, (8, 0)), (11, None)]
)
def test_an_offset_in_a_gap_is_found_at_the_next_batch(
    segments: SegmentList, offset: int, expected: tuple[int, int] | None
) -> None:
    found = segments.locate(offset)
    assert (found and (found[0].base_offset, found[1])) == expected


@pytest.mark.parametrize(
    ("offset", "end_offset", "batches"), [(0, None, 6), (3, 8, 2), (2, 3, 1), (9, None, 1)]
)
def test_bytes_are_counted_between_batches(
    segments: SegmentList, offset: int, end_offset: int | None, batches: int
) -> None:
    assert segments.bytes_between(offset, end_offset) == batches * ONE


@pytest.mark.parametrize(
    ("offset", "end_offset", "expected"),
    [(0, 12, [0, 2, 4, 6, 8, 10]), (2, 10, [2, 4, 6, 8]), (4, 7, [4, 6]), (0, 4, [0, 2])],
)
def test_headers_are_those_before_the_end(
    segments: SegmentList, offset: int, end_offset: int, expected: list[int]
) -> None:
    assert [each.base_offset for each in segments.headers(offset, end_offset)] == expected


def test_a_segment_that_cannot_be_deleted_leaves_the_log_and_is_deleted_later(
    disk: VirtualDisk, segments: SegmentList
) -> None:
    disk.fault = lambda action, path: EIO if action == "delete" else 0
    segments.remove_first(2)
    with pytest.raises(StorageError):
        segments.delete_removed()
    assert (base_offsets(segments), segments.first_base_offset) == ([8], 8)
    assert len(disk.list(DIRECTORY)) == 3
    disk.fault = None
    segments.delete_removed()
    assert len(disk.list(DIRECTORY)) == 1


def test_the_one_before_the_last_becomes_the_active_one(segments: SegmentList) -> None:
    segments.drop_last()
    assert base_offsets(segments) == [0, 4]
    assert segments.active is segments[1]
