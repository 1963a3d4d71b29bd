"""A checkpoint file: offsets of partitions, in Kafka's format."""

import pytest

from trimtab.cluster.storage.offset_checkpoint import OffsetCheckpoint
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.records import TopicPartition
from trimtab.sim.disk import VirtualDisk

FLIGHTS = TopicPartition("flights", 3)
PARCELS = TopicPartition("parcels", 0)
DAMAGED = [
    b"",
    b"0\n",
    b"0\n2\nflights 3 10\n",
    b"0\n1\nflights 3 10",
    b"1\n1\nflights 3 10\n",
    b"0\n1\nx\n",
    b"\0\0\0",
]


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk()


def test_is_what_kafka_writes(disk: VirtualDisk) -> None:
    checkpoint = OffsetCheckpoint(disk, "x")
    checkpoint.set(FLIGHTS, 4711)
    checkpoint.set(PARCELS, 88)
    checkpoint.write()
    assert disk.read_file("x") == b"0\n2\nflights 3 4711\nparcels 0 88\n"


def test_comes_back(disk: VirtualDisk) -> None:
    disk.write_file("x", b"0\n2\nflights 3 4711\nparcels 0 88\n")
    again = OffsetCheckpoint(disk, "x")
    assert [again.get(key) for key in (FLIGHTS, PARCELS)] == [4711, 88]
    assert again.get(TopicPartition("flights", 4)) == 0


def test_an_offset_of_zero_is_not_written(disk: VirtualDisk) -> None:
    checkpoint = OffsetCheckpoint(disk, "x")
    checkpoint.set(FLIGHTS, 4711)
    checkpoint.set(PARCELS, 0)
    checkpoint.write()
    checkpoint.set(FLIGHTS, 0)
    checkpoint.write()
    assert disk.read_file("x") == b"0\n0\n"


def test_is_written_only_when_it_has_changed(disk: VirtualDisk) -> None:
    checkpoint = OffsetCheckpoint(disk, "x")
    checkpoint.write()
    assert not disk.exists("x")
    checkpoint.set(FLIGHTS, 4711)
    checkpoint.write()
    disk.delete("x")
    checkpoint.set(FLIGHTS, 4711)
    checkpoint.write()
    assert not disk.exists("x")


def test_is_written_later_when_the_disk_fails(disk: VirtualDisk) -> None:
    disk.capacity = 0
    checkpoint = OffsetCheckpoint(disk, "x")
    checkpoint.set(FLIGHTS, 4711)
    with pytest.raises(StorageError):
        checkpoint.write()
    disk.capacity = None
    checkpoint.write()
    assert disk.exists("x")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(
    "content", [*DAMAGED, b"0\n1\nflights 3 -1\n", b"0\n1\nflights 3 1%d\n" % 2**63]
)
def test_that_is_damaged_is_empty_and_says_so(
    disk: VirtualDisk, content: bytes, durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk.write_file("x", content)
    assert OffsetCheckpoint(disk, "x", durable).get(FLIGHTS) == 0
    assert "x is damaged, and counts as empty" in caplog.text
