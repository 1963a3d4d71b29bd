"""Which segments there are, who reads which, and what is read of them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.batch_header import restamp
from trimtab.spark.load.log_segments import (
    SegmentFile,
    divide_segments,
    find_segments,
    read_headers,
)


def make_batch(base_offset: int, size: int = 10) -> bytes:
    builder = BatchBuilder(1 << 22)
    assert builder.append(1000, None, b"v" * size, ())
    batch = bytearray(builder.build())
    restamp(batch, 0, base_offset, 0)
    return bytes(batch)


def write_segment(directory: Path, name: str, base_offset: int, content: bytes) -> None:
    (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / name / f"{base_offset:020d}.log").write_bytes(content)


def read_offsets(segment: SegmentFile) -> list[int]:
    found: list[int] = []
    for columns in read_headers(segment):
        found += struct.unpack(f"={columns.rows}q", columns.base_offset)
    return found


def test_segments_of_live_partitions_are_found_the_largest_first(tmp_path: Path) -> None:
    write_segment(tmp_path, "a-topic-0", 0, b"x" * 10)
    write_segment(tmp_path, "a-topic-0", 17, b"x" * 30)
    write_segment(tmp_path, "other-12", 0, b"x" * 20)
    write_segment(tmp_path, "a-topic-1.0123-delete", 0, b"x")
    write_segment(tmp_path, "a-topic-1.0123-stray", 0, b"x")
    write_segment(tmp_path, "__cluster_metadata-0", 0, b"x")
    (tmp_path / "a-topic-0" / "00000000000000000000.index").write_bytes(b"x")
    (tmp_path / "a-topic-0" / "00000000000000000003.log.deleted").write_bytes(b"x")
    (tmp_path / "meta.properties").write_bytes(b"x")
    (tmp_path / "file-0").write_bytes(b"no directory")
    root = str(tmp_path)
    first, second, third = find_segments([root])
    assert first == SegmentFile(root, "a-topic", 0, 17, 30)
    assert second == SegmentFile(root, "other", 12, 0, 20)
    assert third == SegmentFile(root, "a-topic", 0, 0, 10)
    assert Path(first.path).read_bytes() == b"x" * 30
    assert find_segments([root], topics=["other"]) == [second]
    assert find_segments([root], topics=[]) == []
    with pytest.raises(UsageError, match="nowhere"):
        find_segments([str(tmp_path / "nowhere")])


def test_large_segments_have_a_task_each_and_small_ones_share() -> None:
    def of(size: int) -> SegmentFile:
        return SegmentFile("d", "t", 0, 0, size)

    segments = [of(size) for size in (500, 100, 60, 40, 30, 0)]
    sizes = [[each.size for each in part] for part in divide_segments(segments, 100)]
    assert sizes == [[500], [100], [60, 40], [30, 0]]
    assert divide_segments([], 100) == []
    many = divide_segments([of(0)] * 2500, 100)
    assert [len(part) for part in many] == [1000, 1000, 500]


def test_headers_of_small_and_large_batches(tmp_path: Path) -> None:
    content = b"".join(
        make_batch(offset, size) for offset, size in enumerate([10, 100_000, 3, 16_300, 50, 1])
    )
    write_segment(tmp_path, "t-0", 0, content)
    (segment,) = find_segments([str(tmp_path)])
    assert read_offsets(segment) == [0, 1, 2, 3, 4, 5]


def test_many_batches_come_in_several_parts(tmp_path: Path) -> None:
    one = make_batch(0)
    write_segment(tmp_path, "t-0", 0, one * 70_000)
    (segment,) = find_segments([str(tmp_path)])
    assert [columns.rows for columns in read_headers(segment)] == [65_536, 70_000 - 65_536]


@pytest.mark.parametrize("kept", [1, 60, 61, 80])
def test_a_torn_batch_at_the_end_is_not_counted(tmp_path: Path, kept: int) -> None:
    write_segment(tmp_path, "t-0", 0, make_batch(0, 16_000) + make_batch(1, 100)[:kept])
    (segment,) = find_segments([str(tmp_path)])
    assert read_offsets(segment) == [0]


def test_a_preallocated_or_empty_segment_has_what_was_written(tmp_path: Path) -> None:
    write_segment(tmp_path, "t-0", 0, make_batch(0) + bytes(100_000))
    write_segment(tmp_path, "t-1", 0, b"")
    preallocated, empty = find_segments([str(tmp_path)])
    assert read_offsets(preallocated) == [0]
    assert read_offsets(empty) == []


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    second = bytearray(make_batch(1))
    second[16] = 1
    write_segment(tmp_path, "t-0", 0, make_batch(0) + second)
    (segment,) = find_segments([str(tmp_path)])
    with pytest.raises(CorruptData, match=r"t-0/0+\.log.* magic 1"):
        read_offsets(segment)


def test_a_segment_deleted_after_it_was_listed_is_empty(tmp_path: Path) -> None:
    write_segment(tmp_path, "t-0", 0, make_batch(0))
    (segment,) = find_segments([str(tmp_path)])
    Path(segment.path).unlink()
    assert read_offsets(segment) == []
