"""The journal on a virtual disk: a crash keeps all records that were on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from errno import EIO, ENOSPC
from random import Random
from typing import Any, TypeVar

import pytest

from tests.unit.cluster.controller.conftest import content_of
from trimtab.cluster.controller.journal import DIRECTORY, Journal
from trimtab.cluster.metadata.batches import SnapshotId, read_batches, read_snapshot
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.wire.batch_cy import read_headers
from trimtab.kafka.wire.messages.metadata_records import TopicRecord
from trimtab.sim.disk import VirtualDisk
from trimtab.sim.world import World

T = TypeVar("T")
FIRST = f"{DIRECTORY}/00000000000000000000.log"
STATE = f"{DIRECTORY}/quorum-state"
SMALL = 1000
"""Bytes between two snapshots."""


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as world:
        yield world


@pytest.fixture
def disk(world: World) -> VirtualDisk:
    return world.disk("controller")


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big"))


class Lab:
    """Journals on one disk, each opened after the one before has ended."""

    def __init__(self, world: World, disk: VirtualDisk) -> None:
        self.world = world
        self.disk = disk

    def open(self, snapshot_bytes: int = 1 << 20) -> Journal:
        return Journal(self.disk, 3000, self.world.now_ms, snapshot_bytes)

    def run(self, scenario: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await scenario()

        return self.world.run(run())

    def write(self, journal: Journal, *numbers: int, close: bool = True) -> None:
        """Append topics, each on disk before the next."""

        async def write() -> None:
            for number in numbers:
                await journal.reach(journal.append([topic(number)]))
                await asyncio.sleep(1)  # time for snapshots
            if close:
                await journal.close()

        self.world.run(write())


@pytest.fixture
def lab(world: World, disk: VirtualDisk) -> Lab:
    return Lab(world, disk)


def names(image: ClusterImage) -> list[str]:
    return list(image.topics)


def test_appended_records_are_replayed_in_a_new_epoch(lab: Lab) -> None:
    journal = lab.open()
    lab.write(journal, 1, 2)
    assert (journal.next_offset, journal.end_offset, journal.epoch) == (2, 2, 1)
    again = lab.open()
    assert names(again.image) == ["t1", "t2"]
    assert (again.next_offset, again.end_offset, again.epoch) == (2, 2, 2)
    lab.write(again, 3)
    headers = read_headers(lab.disk.open(FIRST).read(0, 1 << 20))
    assert [(each.base_offset, each.leader_epoch) for each in headers] == [(0, 1), (1, 1), (2, 2)]
    state = json.loads(lab.disk.read_file(STATE) or b"")
    assert (state["leaderEpoch"], state["leaderId"], state["data_version"]) == (2, 3000, 0)


def test_each_start_is_a_new_epoch_even_if_nothing_is_written(lab: Lab) -> None:
    assert [lab.open().epoch for _ in range(3)] == [1, 2, 3]


def test_records_appended_at_the_same_time_are_one_batch(lab: Lab) -> None:
    journal = lab.open()
    order: list[str] = []

    async def scenario() -> None:
        ends = [journal.append([topic(1)]), journal.append([topic(2), topic(3)])]
        assert (ends, journal.end_offset, names(journal.image)) == ([1, 3], 0, ["t1", "t2", "t3"])

        async def note(offset: int) -> None:
            await journal.reach(offset)
            order.append(f"{offset} at {journal.end_offset}")

        await asyncio.gather(*(note(offset) for offset in ends))
        await journal.close()

    lab.world.run(scenario())
    assert order == ["1 at 3", "3 at 3"]
    assert len(read_headers(lab.disk.open(FIRST).read(0, 1 << 20))) == 1


def test_reach_waits_for_the_disk(lab: Lab) -> None:
    flushed: list[int] = []

    def watch(action: str, path: str) -> int:
        if action == "flush":
            flushed.append(journal.end_offset)
        return 0

    journal = lab.open()
    lab.disk.fault = watch
    lab.write(journal, 1, 2)
    assert flushed == [0, 1]


def test_a_crash_loses_no_reached_record(lab: Lab) -> None:
    for seed in range(40):
        lab.disk.delete(DIRECTORY)
        journal = lab.open()
        lab.write(journal, 1, 2, close=False)

        async def crash() -> None:
            for number in range(3, 9):
                journal.append([topic(number)])  # noqa: B023
            lab.disk.fault = lambda action, _: EIO if action == "flush" else 0
            with pytest.raises(StorageError):
                await journal.reach(8)  # noqa: B023

        lab.world.run(crash())
        lab.disk.fault = None
        lab.disk.crash(Random(seed))
        again = lab.open()
        found = names(again.image)
        assert found in (["t1", "t2"], [f"t{number}" for number in range(1, 9)])
        lab.write(again, 9)
        assert names(lab.open().image) == [*found, "t9"]


def test_a_torn_tail_is_truncated(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.write(lab.open(), 1, 2)
    content = lab.disk.open(FIRST).read(0, 1 << 20)
    whole = read_headers(content)[0].size
    for size in range(whole, len(content)):
        for tail in (b"", bytes(len(content) - size)):
            if content[:size] + tail == content:
                continue
            lab.disk.write_file(FIRST, content[:size] + tail)
            journal = lab.open()
            assert (names(journal.image), journal.next_offset) == (["t1"], 1)
            assert lab.disk.open(FIRST).size == whole
    assert "torn tail" in caplog.text


def test_damage_before_the_end_is_an_error(lab: Lab) -> None:
    lab.write(lab.open(), 1, 2, 3)
    content = lab.disk.open(FIRST).read(0, 1 << 20)
    sizes = [header.size for header in read_headers(content)]
    for position in (8, 10, 18, 40, sizes[0] - 1):
        damaged = bytearray(content)
        damaged[position] ^= 0x41
        lab.disk.write_file(FIRST, damaged)
        with pytest.raises(
            CorruptData, match=r"at position 0: .*from a copy, or .*`trimtab recover`"
        ):
            lab.open()
    last = bytearray(content)
    last[-sizes[-1] + 7] = 1  # its CRC, which does not cover the base offset, shows it as whole
    lab.disk.write_file(FIRST, last)
    with pytest.raises(CorruptData, match=r"offset 1 is wrong.*`trimtab recover`"):
        lab.open()
    lab.disk.write_file(FIRST, content[sizes[0] :])
    with pytest.raises(CorruptData, match=r"offset 1 where 0 should be.*`trimtab recover`"):
        lab.open()
    lab.disk.write_file(FIRST, content)
    lab.disk.write_file(STATE, b"{}")
    with pytest.raises(CorruptData, match=r"quorum-state.*`trimtab recover`"):
        lab.open()


@pytest.mark.parametrize("action", ["append", "flush"])
def test_a_journal_whose_disk_failed_reaches_nothing(lab: Lab, action: str) -> None:
    journal = lab.open()
    failures: list[BaseException] = []
    journal.on_failure = failures.append

    async def scenario() -> None:
        waiter = asyncio.ensure_future(journal.reach(1))
        await asyncio.sleep(0)
        lab.disk.fault = lambda asked, path: ENOSPC if asked == action else 0
        end = journal.append([topic(1)])
        for reach in (waiter, journal.reach(end), journal.reach(0)):
            with pytest.raises(StorageError):
                await reach
        with pytest.raises(StorageError):
            journal.append([topic(2)])
        assert journal.read(0, 100) == b""

    lab.world.run(scenario())
    assert len(failures) == 1


def test_a_record_that_cannot_be_encoded_is_not_appended(lab: Lab) -> None:
    journal = lab.open()
    with pytest.raises(UsageError):
        journal.append([topic(1), TopicRecord(name="x" * 40_000, topic_id=bytes(16))])
    assert (journal.next_offset, names(journal.image)) == (0, [])
    lab.write(journal, 1)
    assert names(lab.open().image) == ["t1"]


def test_batches_are_read_as_they_are_on_disk(lab: Lab) -> None:
    journal = lab.open()
    lab.write(journal, *range(200), close=False)
    content = lab.disk.open(FIRST).read(0, 1 << 20)
    headers = read_headers(content)
    assert journal.read(0, 1 << 20) == content
    assert (journal.read(200, 1 << 20), journal.read(0, 0)) == (b"", content[: headers[0].size])
    for offset in range(0, 200, 13):
        found = journal.read(offset, 3 * headers[0].size + 40)
        assert isinstance(found, bytes | memoryview)
        assert [n for n, _ in read_batches(found)][:3] == [*range(offset, offset + 3)][
            : 200 - offset
        ]
    assert lab.open().read(150, 1 << 20) == journal.read(150, 1 << 20)


# Snapshots


def files(disk: VirtualDisk) -> list[str]:
    return sorted(name for name in disk.list(DIRECTORY) if name != "quorum-state")


def test_a_log_that_has_grown_becomes_a_snapshot(lab: Lab) -> None:
    journal = lab.open(SMALL)
    assert journal.snapshot is None
    lab.write(journal, *range(40))
    snapshot = journal.snapshot
    assert snapshot is not None
    assert [len(files(lab.disk)), snapshot.epoch] == [4, 1]
    assert 0 < journal.start_offset < snapshot.end_offset <= 40
    taken = lab.disk.read_file(f"{DIRECTORY}/{snapshot.name}") or b""
    replayed = ClusterImage()
    for record in read_snapshot(taken):
        replayed.replay(record)
    assert names(replayed) == [f"t{n}" for n in range(snapshot.end_offset)]
    again = lab.open(SMALL)
    assert content_of(again.image) == content_of(journal.image)
    assert (again.snapshot, again.start_offset, again.next_offset, again.epoch) == (
        snapshot,
        journal.start_offset,
        40,
        2,
    )


def test_snapshots_have_all_records_including_those_appended_meanwhile(lab: Lab) -> None:
    journal = lab.open(SMALL)

    async def scenario() -> None:
        for number in range(0, 90, 3):
            journal.append([topic(number)])
            journal.append([topic(number + 1)])
            await asyncio.sleep(0)
            journal.append([topic(number + 2)])
            await journal.reach(journal.next_offset)
        await asyncio.sleep(1)
        await journal.close()

    lab.world.run(scenario())
    again = lab.open(SMALL)
    assert again.snapshot is not None
    assert names(again.image) == [f"t{n}" for n in range(90)]


def test_a_damaged_snapshot_is_replaced_by_the_one_before_and_the_log(lab: Lab) -> None:
    journal = lab.open(SMALL)
    lab.write(journal, *range(40))
    assert journal.snapshot is not None
    path = f"{DIRECTORY}/{journal.snapshot.name}"
    lab.disk.write_file(path, (lab.disk.read_file(path) or b"")[:-1])
    again = lab.open(SMALL)
    assert again.snapshot is not None
    assert again.snapshot < journal.snapshot
    assert content_of(again.image) == content_of(journal.image)
    assert lab.disk.exists(path + ".damaged")
    lab.write(again, *range(40, 60))
    assert names(lab.open(SMALL).image) == [f"t{n}" for n in range(60)]


def test_a_missing_part_of_the_log_is_an_error(lab: Lab) -> None:
    journal = lab.open(SMALL)
    lab.write(journal, *range(40))
    assert journal.snapshot is not None
    first, last = (f"{DIRECTORY}/{name}" for name in files(lab.disk) if name.endswith(".log"))
    lab.disk.rename(last, f"{DIRECTORY}/{50:020d}.log")
    with pytest.raises(CorruptData, match=r"begins where offset \d+ should be"):
        lab.open(SMALL)
    lab.disk.rename(f"{DIRECTORY}/{50:020d}.log", last)
    lab.disk.delete(first)  # before the newest snapshot, which will do
    assert content_of(lab.open(SMALL).image) == content_of(journal.image)
    lab.disk.delete(f"{DIRECTORY}/{journal.snapshot.name}")
    with pytest.raises(CorruptData, match="no whole snapshot"):
        lab.open(SMALL)


def test_a_snapshot_alone_is_enough(lab: Lab) -> None:
    journal = lab.open(SMALL)
    lab.write(journal, *range(40))
    snapshot = journal.snapshot
    assert snapshot is not None
    for name in files(lab.disk):
        if name != snapshot.name:
            lab.disk.delete(f"{DIRECTORY}/{name}")
    again = lab.open(SMALL)
    assert (again.start_offset, again.next_offset) == (snapshot.end_offset, snapshot.end_offset)
    lab.write(again, 90)
    assert names(lab.open().image)[-1] == "t90"


def test_a_crash_while_a_snapshot_is_written_leaves_the_log(lab: Lab) -> None:
    for action in ("rename", "delete", "append"):
        lab.disk.delete(DIRECTORY)
        journal = lab.open(SMALL)

        def fault(asked: str, path: str) -> int:
            return EIO if asked == action and ".checkpoint" in path else 0  # noqa: B023

        lab.disk.fault = fault
        lab.write(journal, *range(40), close=False)
        assert journal.snapshot is None or action == "delete"
        lab.disk.fault = None
        lab.disk.crash(Random(4))
        again = lab.open(SMALL)
        assert names(again.image) == [f"t{n}" for n in range(40)]
        assert not any(name.endswith(".part") for name in files(lab.disk))
        lab.write(again, *range(40, 80))
        assert lab.open(SMALL).snapshot is not None


def test_a_file_that_cannot_be_deleted_leaves_no_gap(lab: Lab) -> None:
    journal = lab.open(SMALL)
    times = 0

    def fault(action: str, path: str) -> int:
        nonlocal times
        if action != "delete" or path != FIRST or times == 2:
            return 0
        times += 1
        return EIO

    lab.disk.fault = fault
    lab.write(journal, *range(40), close=False)
    assert times == 2
    lab.disk.crash(Random(4))
    assert names(lab.open(SMALL).image) == [f"t{n}" for n in range(40)]


def test_a_snapshot_is_read_in_pieces(lab: Lab) -> None:
    journal = lab.open(SMALL)
    lab.write(journal, *range(40))
    snapshot = journal.snapshot
    assert snapshot is not None
    content = lab.disk.read_file(f"{DIRECTORY}/{snapshot.name}") or b""
    pieces: list[Any] = []
    while True:
        read = journal.read_snapshot(snapshot, sum(map(len, pieces)), 100)
        assert read is not None
        assert read[1] == len(content)
        if not read[0]:
            break
        pieces.append(read[0])
    assert b"".join(pieces) == content
    assert journal.read_snapshot(SnapshotId(1, 1), 0, 100) is None
