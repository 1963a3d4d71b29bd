"""A segment: whole batches in a file, found by offset and by timestamp through sparse indexes."""

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.steps import finish
from tests.unit.cluster.storage.logs import in_memory
from trimtab.cluster.storage.segment import Segment
from trimtab.cluster.storage.segment_recovery import RecoveredSegment
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import BatchBuilder, BatchHeader, read_headers, restamp
from trimtab.sim.disk import VirtualDisk

BASE = 4711


def batch(records: int = 1, timestamp: int = 1000, value: bytes = b"v" * 50) -> memoryview:
    """Records a millisecond apart; the batch's largest timestamp is `timestamp`."""
    builder = BatchBuilder(1 << 24)
    for i in range(records):
        builder.append(timestamp - records + 1 + i, None, value, [])
    return memoryview(bytearray(builder.build()))


class Filler:
    """Appends to a segment like a log, and records the position of every batch."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.next_offset = segment.base_offset
        self.placed: list[tuple[int, BatchHeader]] = []

    def append(self, data: memoryview) -> None:
        restamp(data, 0, self.next_offset, 0)
        headers = read_headers(data)
        self.placed.append((self.segment.size, headers[0]))
        self.segment.append(data, headers, self.next_offset)
        self.next_offset = headers[-1].next_offset


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk()


def open_segment(disk: VirtualDisk, interval: int = 256) -> Segment:
    return Segment(disk, "t-0", BASE, interval, created_ms=5)


@pytest.fixture
def filler(disk: VirtualDisk) -> Filler:
    """A hundred batches of one to five records; timestamps rise, with a step back every tenth."""
    filler = Filler(open_segment(disk))
    for i in range(100):
        filler.append(batch(1 + i % 5, 1000 + 10 * i - (500 if i % 10 == 9 else 0)))
    return filler


@pytest.fixture(params=["growing", "stored", "rebuilt"])
def segment(request: pytest.FixtureRequest, disk: VirtualDisk, filler: Filler) -> Iterator[Segment]:
    """The same segment with its indexes in memory, on disk, and on no disk."""
    if request.param == "growing":
        yield filler.segment
    else:
        if request.param == "stored":
            filler.segment.save_indexes()
        yield open_segment(disk)


class TestFiles:
    def test_names_are_kafkas(self, disk: VirtualDisk, filler: Filler) -> None:
        filler.segment.save_indexes()
        stem = "00000000000000004711"
        assert sorted(disk.list("t-0")) == [f"{stem}.index", f"{stem}.log", f"{stem}.timeindex"]

    def test_the_index_points_at_last_offsets(self, disk: VirtualDisk, filler: Filler) -> None:
        filler.segment.save_indexes()
        content = disk.read_file("t-0/00000000000000004711.index")
        assert content
        at = {position: header for position, header in filler.placed}
        before = 0
        for relative, position in struct.iter_unpack(">ii", content):
            assert at[position].last_offset == BASE + relative
            assert position - before > 256
            before = position

    def test_the_time_index_rises_to_the_maximum(self, disk: VirtualDisk, filler: Filler) -> None:
        filler.segment.save_indexes()
        content = disk.read_file("t-0/00000000000000004711.timeindex")
        assert content
        entries = list(struct.iter_unpack(">qi", content))
        assert entries == sorted(set(entries))
        for timestamp, relative in entries:
            upto = [h.max_timestamp for _, h in filler.placed if h.last_offset <= BASE + relative]
            assert timestamp == max(upto) == upto[-1]
        assert entries[-1][0] == max(header.max_timestamp for _, header in filler.placed)

    def test_a_reopened_segment_continues_its_indexes(
        self, disk: VirtualDisk, filler: Filler
    ) -> None:
        filler.segment.save_indexes()
        filler.segment.close()
        again = Filler(open_segment(disk))
        again.next_offset, again.placed = filler.next_offset, filler.placed
        for i in range(50):
            again.append(batch(2, 5000 + i))
        again.segment.save_indexes()
        grown = disk.read_file("t-0/00000000000000004711.index")
        assert grown
        for relative, position in struct.iter_unpack(">ii", grown):
            assert again.segment.locate(BASE + relative) == position
        assert len(grown) > 8 * 30
        assert again.segment.max_timestamp == 5049

    @pytest.mark.parametrize(
        ("suffix", "content"),
        [
            (".index", b"\0" * 80),
            (".index", b"\0" * 7),
            (".timeindex", b"\1" * 24),
            (".index", None),
        ],
    )
    def test_an_impossible_index_is_rebuilt(
        self, disk: VirtualDisk, filler: Filler, suffix: str, content: bytes | None
    ) -> None:
        filler.segment.save_indexes()
        path = filler.segment.path(suffix)
        right = disk.read_file(path)
        disk.delete(path)
        if content is not None:
            disk.write_file(path, content)
        segment = open_segment(disk)
        for position, header in filler.placed:
            assert segment.locate(header.base_offset) == position
        segment.save_indexes()
        assert disk.read_file(path) == right


class TestLookUp:
    def test_every_offset_is_found(self, segment: Segment, filler: Filler) -> None:
        for position, header in filler.placed:
            for offset in range(header.base_offset, header.next_offset):
                assert segment.locate(offset) == position
        assert segment.locate(filler.next_offset) is None

    def test_every_timestamp_is_found(self, segment: Segment, filler: Filler) -> None:
        records = [
            (header.base_timestamp + i, header.base_offset + i)
            for _, header in filler.placed
            for i in range(header.record_count)
        ]
        newest = max(timestamp for timestamp, _ in records)
        assert segment.max_timestamp == newest
        for target in range(990, newest + 1):
            found = finish(segment.find_timestamp(target, BASE))
            assert found is not None
            assert found[:2] == next(record for record in records if record[0] >= target)
        assert finish(segment.find_timestamp(newest + 1, BASE)) is None

    def test_timestamps_are_searched_from_an_offset_on(self, segment: Segment) -> None:
        found = finish(segment.find_timestamp(0, BASE + 7))
        assert found is not None
        assert found.offset == BASE + 7

    def test_end_and_first_timestamp(self, segment: Segment, filler: Filler) -> None:
        last = segment.last_header()
        assert last is not None
        assert last.next_offset == filler.next_offset
        assert segment.first_timestamp == 1000

    def test_headers_come_in_order(self, segment: Segment, filler: Filler) -> None:
        found = [(position, header.base_offset) for position, header in segment.headers()]
        assert found == [(position, header.base_offset) for position, header in filler.placed]

    def test_headers_of_large_batches(self, disk: VirtualDisk) -> None:
        filler = Filler(open_segment(disk))
        for size in (10, 200_000, 10, 3_000_000, 65_000, 65_000):
            filler.append(batch(value=b"x" * size))
        segment = open_segment(disk)
        assert [position for position, _ in segment.headers()] == [p for p, _ in filler.placed]
        for position, header in filler.placed:
            assert segment.locate(header.base_offset) == position

    def test_an_empty_segment_has_nothing(self, disk: VirtualDisk) -> None:
        segment = open_segment(disk)
        assert (segment.max_timestamp, segment.first_timestamp) == (-1, -1)
        assert segment.last_header() is None
        assert segment.locate(BASE) is None
        assert list(segment.headers()) == []


def ignore(header: BatchHeader, position: int) -> None:
    """A batch that the test does not look at."""


def recover(segment: Segment, seen: Callable[[BatchHeader, int], Any] = ignore) -> RecoveredSegment:
    return segment.recover(seen, allows_gaps=False, next_offset=None)


class TestRecover:
    def test_keeps_all_that_is_whole(self, disk: VirtualDisk, filler: Filler) -> None:
        segment = open_segment(disk)
        seen: list[tuple[int, BatchHeader]] = []
        found = recover(segment, lambda header, position: seen.append((position, header)))
        assert found.end_offset == filler.next_offset
        assert [(position, header.base_offset) for position, header in seen] == [
            (position, header.base_offset) for position, header in filler.placed
        ]
        assert segment.size == filler.segment.size
        segment.save_indexes()
        rebuilt = disk.read_file(segment.path(".index"))
        filler.segment.save_indexes()
        assert disk.read_file(segment.path(".index")) == rebuilt

    @pytest.mark.parametrize("cut", [1, 11, 30, 61, 80])
    def test_truncates_a_torn_tail(self, disk: VirtualDisk, filler: Filler, cut: int) -> None:
        position, last = filler.placed[-1]
        disk.open(filler.segment.path(".log")).truncate(position + cut)
        segment = open_segment(disk)
        assert recover(segment).end_offset == last.base_offset
        assert segment.size == position
        assert disk.open(segment.path(".log")).size == position

    @pytest.mark.parametrize("field", [0, 8, 11, 16, 17, 23, 70])
    def test_truncates_at_the_first_corrupt_batch(
        self, disk: VirtualDisk, filler: Filler, field: int
    ) -> None:
        position, header = filler.placed[60]
        path = filler.segment.path(".log")
        content = bytearray(disk.read_file(path) or b"")
        content[position + field] ^= 0x80
        disk.write_file(path, content)
        segment = open_segment(disk)
        assert recover(segment).end_offset == header.base_offset
        assert segment.size == position
        assert segment.locate(header.base_offset) is None

    def test_truncates_zeros(self, disk: VirtualDisk, filler: Filler) -> None:
        size = filler.segment.size
        disk.open(filler.segment.path(".log")).append(bytes(3_000_000))
        segment = open_segment(disk)
        assert recover(segment).end_offset == filler.next_offset
        assert segment.size == size

    def test_batches_larger_than_a_chunk(self, disk: VirtualDisk) -> None:
        filler = Filler(open_segment(disk))
        for size in (10, 3_000_000, 10, 1_048_000, 1_100_000):
            filler.append(batch(value=b"x" * size))
        assert recover(open_segment(disk)).end_offset == filler.next_offset

    def test_falling_offsets_are_corrupt(self, disk: VirtualDisk, filler: Filler) -> None:
        size = filler.segment.size
        again = batch()
        restamp(again, 0, BASE + 3, 0)
        disk.open(filler.segment.path(".log")).append(again)
        segment = open_segment(disk)
        assert recover(segment).end_offset == filler.next_offset
        assert segment.size == size


def test_damage_found_by_a_read_is_reported(disk: VirtualDisk, filler: Filler) -> None:
    filler.segment.save_indexes()
    path = filler.segment.path(".log")
    content = bytearray(disk.read_file(path) or b"")
    last, header = filler.placed[-1]
    segment = open_segment(disk)
    assert segment.index_entries
    content[last + 8 : last + 12] = b"\0\0\0\1"
    disk.write_file(path, content)
    with pytest.raises(CorruptData, match=r"4711\.log: no batch at position .* claims 13 bytes"):
        segment.locate(header.last_offset + 1)
    with pytest.raises(CorruptData, match="length 1"):
        segment.read(last, 1000, True, 10**9, 10**9)
    content[last + 8 : last + 12] = b"\0\1\0\0"
    disk.write_file(path, content)
    with pytest.raises(CorruptData, match="the file ends within a batch"):
        segment.read(last, 1000, True, 10**9, 10**9)
    with pytest.raises(CorruptData, match="the file ends within a batch"):
        segment.locate(header.last_offset + 1)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("at", range(1, 96, 6))
def test_a_damaged_index_is_rebuilt_when_used(
    disk: VirtualDisk, filler: Filler, suffix: str, at: int
) -> None:
    filler.segment.save_indexes()
    path = filler.segment.path(suffix)
    content = bytearray(disk.read_file(path) or b"")
    for byte in (0, content[at] ^ 1, content[at] ^ 0x10):
        disk.write_file(path, content[:at] + bytes([byte]) + content[at + 1 :])
        segment = open_segment(disk)
        assert segment.max_timestamp == filler.segment.max_timestamp
        for position, header in filler.placed[::8]:
            offset = header.base_offset
            assert segment.locate(offset) == position
            found = finish(filler.segment.find_timestamp(header.max_timestamp, BASE))
            assert finish(segment.find_timestamp(header.max_timestamp, BASE)) == found
            data, _ = segment.read(position, 700, True, filler.next_offset, filler.next_offset)
            expected, _ = filler.segment.read(
                position, 700, True, filler.next_offset, filler.next_offset
            )
            assert bytes(in_memory(data)) == bytes(in_memory(expected))


def test_a_large_length_allocates_nothing(disk: VirtualDisk, filler: Filler) -> None:
    path = filler.segment.path(".log")
    content = bytearray(disk.read_file(path) or b"")
    position, header = filler.placed[60]
    content[position + 8 : position + 12] = b"\x7f\xff\xff\xff"
    disk.write_file(path, content)
    asked: list[int] = []
    segment = open_segment(disk)
    segment._file = Asked(segment._file, asked)  # type: ignore[assignment]
    with pytest.raises(CorruptData):
        list(segment.headers())
    assert recover(segment).end_offset == header.base_offset
    assert max(asked) <= 1 << 20


class Asked:
    """A file that records the sizes of reads."""

    def __init__(self, file: Any, asked: list[int]) -> None:
        self._file = file
        self._asked = asked

    def read(self, position: int, size: int) -> bytes:
        self._asked.append(size)
        data: bytes = self._file.read(position, size)
        return data

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def flush(self) -> None:
        self._file.flush()


class TestOffsetsThatNoCrcCovers:
    """A batch after a gap is confirmed by the next batch or segment, or counts as damaged."""

    def place(self, disk: VirtualDisk, *offsets: int) -> Segment:
        data = bytearray()
        for offset in offsets:
            one = batch(2)
            restamp(one, 0, BASE + offset, 0)
            data += one
        disk.write_file(f"t-0/{BASE:020d}.log", data)
        return open_segment(disk)

    @pytest.mark.parametrize(
        ("offsets", "allows_gaps", "next_offset", "end"),
        [
            ((0, 2, 4), False, None, 6),
            ((0, 9, 11), False, None, 13),  # it may have been compacted once
            ((0, 2, 9), False, None, 4),
            ((0, 2, 9), True, None, 11),
            ((0, 9, 4, 6), True, None, 2),
            ((0, 2, 4, 1, 8), True, None, 6),
            ((0, 2, 9), True, 6, 4),
            ((0, 2, 9), True, 11, 11),
            ((0, 2, 2**31), True, None, 4),
            ((9,), False, None, 0),
        ],
    )
    def test_end_the_log_where_they_cannot_be(
        self,
        disk: VirtualDisk,
        offsets: tuple[int, ...],
        allows_gaps: bool,
        next_offset: int | None,
        end: int,
    ) -> None:
        segment = self.place(disk, *offsets)
        seen: list[int] = []
        following = None if next_offset is None else BASE + next_offset
        found = segment.recover(
            lambda header, _: seen.append(header.next_offset), allows_gaps, following
        )
        assert found.end_offset == BASE + end
        assert bool(found.problem) == (end < offsets[-1] + 2)
        assert not found.is_torn
        assert segment.size == len(seen) * len(batch(2))
        assert max(seen, default=BASE) == BASE + end


@pytest.mark.parametrize(
    ("tail", "is_torn"),
    [
        (lambda whole: whole[:30], True),
        (lambda whole: whole[:-1], True),
        (lambda whole: whole[:-1] + b"\xff", False),
        (lambda whole: whole[:8] + b"\x7f" + whole[9:] + whole, False),
    ],
)
def test_a_torn_append_is_distinguished_from_damage(
    disk: VirtualDisk, filler: Filler, tail: Callable[[bytes], bytes], is_torn: bool
) -> None:
    whole = batch(3)
    restamp(whole, 0, filler.next_offset, 0)
    disk.open(filler.segment.path(".log")).append(tail(bytes(whole)))
    found = recover(open_segment(disk))
    assert (found.end_offset, found.is_torn) == (filler.next_offset, is_torn)
    assert found.problem


def test_a_power_loss_does_not_bring_back_truncated_batches() -> None:
    for seed in range(20):
        disk = VirtualDisk(is_lazy=True)
        segment = open_segment(disk)
        segment.append(memoryview(batch()), read_headers(batch()))
        segment.flush()
        segment.truncate(0)
        disk.crash(Random(seed))
        assert not disk.read_file(segment.paths[0])
