"""The files of a log's directory, after completing or undoing interrupted operations."""

from tests.unit.cluster.storage.logs import DIRECTORY, ONE, batch
from trimtab.cluster.storage.log_files import SWAP, LogFiles, list_files
from trimtab.cluster.storage.segment import Segment
from trimtab.kafka.wire.batch_cy import read_headers, restamp
from trimtab.sim.disk import VirtualDisk


def listed(disk: VirtualDisk) -> LogFiles:
    return list_files(
        disk, DIRECTORY, lambda offset, suffix: Segment(disk, DIRECTORY, offset, 4096, 0, suffix)
    )


def write(disk: VirtualDisk, base_offset: int, offset: int, suffix: str = "") -> None:
    """A segment of one batch."""
    data = batch()
    restamp(data, 0, offset, 0)
    Segment(disk, DIRECTORY, base_offset, 4096, 0, suffix).append(data, read_headers(data))


def test_nothing_of_a_directory_that_is_not_there(disk: VirtualDisk) -> None:
    assert listed(disk) == ([], [], False)


def test_each_kind_in_order(disk: VirtualDisk) -> None:
    for base_offset in (10, 2, 9):
        write(disk, base_offset, base_offset)
        disk.write_file(f"{DIRECTORY}/{base_offset:020d}.snapshot", b"")
    for name in ("leader-epoch-checkpoint", "partition.metadata"):
        disk.write_file(f"{DIRECTORY}/{name}", b"")
    assert listed(disk) == ([2, 9, 10], [2, 9, 10], True)
    assert "partition.metadata" in disk.list(DIRECTORY)


def test_a_swap_segment_replaces_the_segments_it_was_made_of(
    disk: VirtualDisk,
) -> None:
    for base_offset in (0, 4, 8):
        write(disk, base_offset, base_offset)
    write(disk, 0, 7, SWAP)
    assert listed(disk).base_offsets == [0, 8]
    assert Segment(disk, DIRECTORY, 0, 4096, 0).locate(7) == 0
    assert Segment(disk, DIRECTORY, 0, 4096, 0).size == ONE
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(SWAP)]
