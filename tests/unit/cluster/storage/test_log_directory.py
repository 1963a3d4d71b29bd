"""A data directory: its identity, its state between runs, and creating and deleting logs.

Long because it has each file of the directory in each way that a run may end.
"""

import asyncio
import sys
from errno import EIO
from random import Random
from typing import Any

import pytest

from tests.steps import finish
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.cluster.storage.offset_checkpoint import OffsetCheckpoint
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import BatchBuilder, read_headers
from trimtab.sim.disk import VirtualDisk

TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))
CONFIG = LogConfig(segment_bytes=500)


def open_directory(disk: VirtualDisk, node_id: int = 2, cluster_id: str = "level") -> LogDirectory:
    return LogDirectory(
        disk, node_id=node_id, cluster_id=cluster_id, now_ms=lambda: 0, random=Random(1)
    )


def fill(log: Log, batches: int) -> None:
    for _ in range(batches):
        builder = BatchBuilder(1000)
        builder.append(5, None, b"v" * 60, [])
        data = memoryview(bytearray(builder.build()))
        log.append(data, 0, read_headers(data))


def count_lines(logs: int) -> int:
    """The lines of this room that run to open new logs and append a record to each."""
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    def watch(frame: Any, event: str, argument: Any) -> Any:
        return count if "/trimtab/cluster/storage/" in frame.f_code.co_filename else None

    directory = open_directory(VirtualDisk())
    before = sys.gettrace()
    sys.settrace(watch)
    try:
        for number in range(logs):
            fill(directory.open_log("flights", number, TOPIC_ID, CONFIG), 1)
    finally:
        sys.settrace(before)
    return lines


def test_a_log_costs_no_more_to_open_among_many() -> None:
    assert count_lines(1_000) / 1_000 < 1.2 * count_lines(10) / 10


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk()


@pytest.fixture
def directory(disk: VirtualDisk) -> LogDirectory:
    return open_directory(disk)


class TestIdentity:
    def test_is_written_as_kafka_does(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        lines = (disk.read_file("meta.properties") or b"").decode().splitlines()
        assert {"version=1", "node.id=2", "cluster.id=level"} < set(lines)
        assert len(next(line for line in lines if line.startswith("directory.id="))) == 13 + 22

    def test_stays(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        directory.close()
        again = LogDirectory(
            disk, node_id=2, cluster_id="level", now_ms=lambda: 0, random=Random(99)
        )
        assert again.directory_id == directory.directory_id

    @pytest.mark.parametrize(
        ("node_id", "cluster_id", "message"),
        [
            (3, "level", r"node\.id=2, but this broker has node\.id=3"),
            (2, "other", r"cluster\.id=level, but this broker has cluster\.id=other"),
        ],
    )
    def test_is_checked(
        self,
        disk: VirtualDisk,
        directory: LogDirectory,
        node_id: int,
        cluster_id: str,
        message: str,
    ) -> None:
        directory.close()
        with pytest.raises(UsageError, match=message):
            open_directory(disk, node_id, cluster_id)
        open_directory(disk)

    def test_one_broker_at_a_time(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        with pytest.raises(UsageError, match="in use"):
            open_directory(disk)


class TestLogs:
    def test_a_new_partition_is_a_directory_with_its_topics_id(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        log = directory.open_log("flights", 3, TOPIC_ID, CONFIG)
        assert directory.logs == {TopicPartition("flights", 3): log}
        assert disk.list("flights-3") == []
        fill(log, 1)
        assert "partition.metadata" in disk.list("flights-3")
        assert disk.read_file("flights-3/partition.metadata") == (
            b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
        )

    def test_come_back_with_their_records(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        fill(directory.open_log("flights", 3, TOPIC_ID, CONFIG), 10)
        directory.close()
        again = open_directory(disk)
        assert list(again.stored_partitions()) == [TopicPartition("flights", 3)]
        assert again.open_log("flights", 3, TOPIC_ID, CONFIG).log_end_offset == 10

    def test_of_an_older_topic_of_that_name_are_set_aside(
        self, disk: VirtualDisk, directory: LogDirectory, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Or the id is damaged, so nothing is deleted."""
        fill(directory.open_log("flights", 3, TOPIC_ID, CONFIG), 10)
        directory.close()
        again = open_directory(disk)
        log = again.open_log("flights", 3, OTHER_ID, CONFIG)
        assert log.log_end_offset == 0
        assert disk.list("flights-3") == []
        assert again.has_lost
        (stray,) = (name for name in disk.list("") if name.endswith("-stray"))
        assert FIRST.rpartition("/")[2] in disk.list(stray)
        assert f"set aside flights-3 as {stray}" in caplog.text

    def test_that_are_gone_are_missed(
        self, disk: VirtualDisk, directory: LogDirectory, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(directory.open_log("flights", 3, TOPIC_ID, CONFIG), 10)
        directory.close()
        disk.delete("flights-3")
        again = open_directory(disk)
        log = again.open_log("flights", 3, TOPIC_ID, CONFIG)
        assert log.log_end_offset == 0
        assert again.has_lost
        assert "the log of flights-3 is missing" in caplog.text
        fill(log, 1)  # before the offsets of the lost log could apply to this one
        assert b"flights" not in (disk.read_file("recovery-point-offset-checkpoint") or b"")

    def test_that_end_before_their_start_are_set_aside_and_begin_there(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        fill(directory.open_log("flights", 3, TOPIC_ID, CONFIG), 10)
        directory.close()
        disk.write_file("log-start-offset-checkpoint", b"0\n1\nflights 3 15\n")
        again = open_directory(disk)
        log = again.open_log("flights", 3, TOPIC_ID, CONFIG)
        assert (log.log_start_offset, log.log_end_offset, log.size) == (15, 15, 0)
        assert any(name.endswith("-stray") for name in disk.list(""))
        fill(log, 1)
        again.close()
        log = open_directory(disk).open_log("flights", 3, TOPIC_ID, CONFIG)
        assert (log.log_start_offset, log.log_end_offset) == (15, 16)

    def test_that_never_got_a_record_are_new_again(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        directory.open_log("flights", 3, TOPIC_ID, CONFIG)
        directory.close()
        again = open_directory(disk)
        assert list(again.stored_partitions()) == []
        log = again.open_log("flights", 3, OTHER_ID, CONFIG)
        fill(log, 1)
        assert (disk.read_file("flights-3/partition.metadata") or b"").endswith(b"DQ4PEA")

    def test_that_cannot_be_begun_can_be_later(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        log = directory.open_log("flights", 3, TOPIC_ID, CONFIG)
        disk.fault = lambda action, path: EIO if path.endswith("metadata") else 0
        with pytest.raises(StorageError):
            fill(log, 1)
        disk.fault = None
        fill(log, 1)
        assert log.log_end_offset == 1
        assert disk.exists("flights-3/partition.metadata")

    @pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_id: AAE"])
    def test_without_a_whole_topic_id_are_kept(
        self, disk: VirtualDisk, directory: LogDirectory, content: bytes | None
    ) -> None:
        fill(directory.open_log("flights", 3, TOPIC_ID, CONFIG), 10)
        directory.close()
        disk.delete("flights-3/partition.metadata")
        if content is not None:
            disk.write_file("flights-3/partition.metadata", content)
        again = open_directory(disk)
        assert again.open_log("flights", 3, TOPIC_ID, CONFIG).log_end_offset == 10
        assert (disk.read_file("flights-3/partition.metadata") or b"").endswith(b"DA0ODw")

    def test_are_opened_once(self, directory: LogDirectory) -> None:
        directory.open_log("flights", 3, TOPIC_ID, CONFIG)
        with pytest.raises(UsageError, match="flights-3 is open already"):
            directory.open_log("flights", 3, TOPIC_ID, CONFIG)

    def test_deletion_leaves_nothing(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        for partition in range(2):
            fill(directory.open_log("flights", partition, TOPIC_ID, CONFIG), 10)
        directory.delete_log("flights", 0)
        directory.delete_log("flights", 7)
        assert "flights-0" not in disk.list("")
        directory.close()
        again = open_directory(disk)
        again.delete_log("flights", 1)
        asyncio.run(again.checkpoint())
        assert not [name for name in disk.list("") if name.startswith("flights")]
        assert again.open_log("flights", 0, OTHER_ID, CONFIG).log_end_offset == 0
        assert again.open_log("flights", 1, OTHER_ID, CONFIG).log_end_offset == 0

    @pytest.mark.parametrize("is_open", [True, False])
    def test_checkpoints_of_an_earlier_log_do_not_apply(
        self, disk: VirtualDisk, directory: LogDirectory, is_open: bool
    ) -> None:
        """Otherwise an old recovery point would cover records lost in a power failure."""
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 10)
        log.high_watermark = 10
        log.delete_records_before(7)
        directory.close()
        key = TopicPartition("flights", 0)
        checkpoints = ("recovery-point", "log-start", "replication")
        for name in checkpoints:
            assert OffsetCheckpoint(disk, f"{name}-offset-checkpoint").get(key) > 0
        again = open_directory(disk)
        if is_open:
            again.open_log("flights", 0, TOPIC_ID, CONFIG)
        again.delete_log("flights", 0)
        again.checkpoint_high_watermarks()  # written without fsync, deletions included
        fill(again.open_log("flights", 0, TOPIC_ID, CONFIG), 1)
        disk.crash()
        for name in checkpoints:
            path = f"{name}-offset-checkpoint"
            assert disk.read_file(path), path
            assert OffsetCheckpoint(disk, path).get(key) == 0

    @pytest.mark.kip(966)
    @pytest.mark.parametrize(
        ("end", "epoch"),
        [("close", 7), ("kill", 7), ("power loss", -1), ("kill after a log has failed", -1)],
    )
    def test_whether_all_written_data_is_known_to_be_there(
        self, disk: VirtualDisk, directory: LogDirectory, end: str, epoch: int
    ) -> None:
        assert directory.previous_epoch == -1
        directory.write_epoch(7)
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 10)
        if end == "close":
            directory.close(7)
        elif end == "power loss":
            disk.crash()
        else:
            if end != "kill":
                disk.fault = lambda action, path: EIO if action == "flush" else 0
                with pytest.raises(StorageError):
                    log.flush()
                disk.fault = None
            disk.end_mount()
        again = open_directory(disk)
        assert again.previous_epoch == epoch
        disk.end_mount()
        assert open_directory(disk).previous_epoch == (-1 if epoch < 0 else 7)

    @pytest.mark.kip(966)
    @pytest.mark.parametrize(
        ("before", "end", "epoch", "is_same"),
        [
            ("close", "kill", 7, True),
            ("kill", "kill", 7, True),
            ("kill", "power loss", -1, False),
            ("power loss", "kill", -1, False),
        ],
    )
    def test_a_run_that_ended_before_it_knew_its_epoch(
        self,
        disk: VirtualDisk,
        directory: LogDirectory,
        before: str,
        end: str,
        epoch: int,
        is_same: bool,
    ) -> None:
        def end_now(directory: LogDirectory, how: str) -> None:
            if how == "close":
                directory.close(7)
            elif how == "kill":
                disk.end_mount()
            else:
                disk.crash()

        assert directory.begin_life(b"1" * 16) == b"1" * 16
        directory.write_epoch(7)
        end_now(directory, before)
        for process in (b"2" * 16, b"3" * 16):
            ended = open_directory(disk)
            assert ended.begin_life(process) == (
                b"2" * 16 if is_same or process[:1] == b"2" else process
            )
            end_now(ended, end)
        last = open_directory(disk)
        assert last.previous_epoch == epoch
        assert last.begin_life(b"4" * 16) == (b"2" if is_same else b"4") * 16
        last.write_epoch(8)
        disk.end_mount()
        assert open_directory(disk).begin_life(b"5" * 16) == b"5" * 16

    @pytest.mark.parametrize("damage", ["none", "torn", "flipped", "gone"])
    def test_whether_a_log_has_lost_something_is_known_when_it_is_open(
        self, disk: VirtualDisk, directory: LogDirectory, damage: str
    ) -> None:
        fill(directory.open_log("flights", 0, TOPIC_ID, CONFIG), 12)
        asyncio.run(directory.checkpoint())
        directory.write_epoch(7)
        disk.end_mount()
        *_, last = sorted(name for name in disk.list("flights-0") if name.endswith(".log"))
        file = disk.open(f"flights-0/{last}")
        if damage == "torn":
            file.truncate(file.size - 1)
        elif damage == "flipped":
            disk.flip(f"flights-0/{last}", file.size - 1, 0, lasts=True)
        elif damage == "gone":
            for name in disk.list("flights-0"):
                if name.endswith(".log"):
                    disk.delete(f"flights-0/{name}")
        again = open_directory(disk)
        again.open_log("flights", 0, TOPIC_ID, CONFIG)
        assert again.has_lost == (damage in ("flipped", "gone"))
        disk.end_mount()
        assert open_directory(disk).previous_epoch == (-1 if again.has_lost else 7)

    def test_a_distrust_that_fails_is_retried(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        directory.write_epoch(7)
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 10)
        disk.fault = lambda action, path: EIO
        with pytest.raises(StorageError):
            log.flush()
        disk.fault = None
        asyncio.run(directory.checkpoint())
        disk.end_mount()
        assert open_directory(disk).previous_epoch == -1

    @pytest.mark.parametrize("seed", range(40))
    def test_a_loss_of_power_leaves_all_of_a_deleted_log_or_nothing(self, seed: int) -> None:
        disk = VirtualDisk(is_lazy=True)
        directory = open_directory(disk)
        log = directory.open_log("flights", 0, TOPIC_ID, LogConfig(segment_bytes=300))
        fill(log, 10)
        asyncio.run(directory.checkpoint())
        files = [name for name in disk.list("flights-0") if name.endswith(".log")]
        assert len(files) > 3
        directory.delete_log("flights", 0)
        if seed % 2:
            asyncio.run(directory.checkpoint())
        disk.crash(Random(seed))
        left = [name for name in disk.list("flights-0") if name.endswith(".log")]
        assert sorted(left) in ([], sorted(files))

    def test_an_interrupted_deletion_is_finished(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        topic = "t" * 249
        fill(directory.open_log(topic, 0, TOPIC_ID, CONFIG), 10)
        doomed = []

        def fail(action: str, path: str) -> int:
            if action == "delete" and path.endswith("-delete"):
                doomed.append(path)
                return EIO
            return 0

        disk.fault = fail
        directory.delete_log(topic, 0)
        with pytest.raises(StorageError):
            asyncio.run(directory.checkpoint())
        disk.fault = None
        disk.crash()
        assert doomed[0] in disk.list("")
        assert len(doomed[0]) <= 255
        again = open_directory(disk)
        assert doomed[0] not in disk.list("")
        assert list(again.stored_partitions()) == []

    def test_strays_are_set_aside(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        for partition in range(3):
            fill(directory.open_log("flights", partition, TOPIC_ID, CONFIG), 10)
        disk.crash()
        again = open_directory(disk)
        again.open_log("flights", 0, TOPIC_ID, CONFIG)
        offline = TopicPartition("flights", 1)
        (stray,) = again.set_aside_strays({offline})
        assert stray.startswith("flights-2.")
        assert stray.endswith("-stray")
        assert "00000000000000000000.log" in disk.list(stray)
        assert set(again.stored_partitions()) == {TopicPartition("flights", 0), offline}
        assert again.open_log("flights", 2, TOPIC_ID, CONFIG).log_end_offset == 0
        again.delete_log("flights", 1)
        again.close(broker_epoch=7)
        last = open_directory(disk)
        assert last.previous_epoch == 7
        assert stray in disk.list("")

    def test_the_controllers_log_is_not_a_partition(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        directory.close()
        disk.write_file("__cluster_metadata-0/00000000000000000000.log", b"")
        disk.write_file("lost+found/x", b"")
        disk.write_file("a-b-12/x", b"")
        assert list(open_directory(disk).stored_partitions()) == [TopicPartition("a-b", 12)]


def corrupt(disk: VirtualDisk, path: str) -> None:
    content = bytearray(disk.read_file(path) or b"")
    content[65] ^= 1
    disk.write_file(path, content)


FIRST = "flights-0/00000000000000000000.log"


class TestCleanShutdown:
    def test_is_marked_and_the_mark_is_removed_at_opening(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        assert not disk.exists(".kafka_cleanshutdown")
        directory.close()
        assert disk.exists(".kafka_cleanshutdown")
        open_directory(disk)
        assert not disk.exists(".kafka_cleanshutdown")

    def test_spares_recovery(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        fill(directory.open_log("flights", 0, TOPIC_ID, CONFIG), 3)
        directory.close()
        corrupt(disk, FIRST)
        disk.delete("recovery-point-offset-checkpoint")
        assert open_directory(disk).open_log("flights", 0, TOPIC_ID, CONFIG).log_end_offset == 3

    def test_a_crash_is_recovered_from(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        fill(directory.open_log("flights", 0, TOPIC_ID, CONFIG), 3)
        directory.logs[TopicPartition("flights", 0)].flush()
        corrupt(disk, FIRST)
        disk.crash()
        assert open_directory(disk).open_log("flights", 0, TOPIC_ID, CONFIG).log_end_offset == 0

    def test_is_not_claimed_for_a_log_not_opened_since_a_crash(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        for partition in range(2):
            fill(directory.open_log("flights", partition, TOPIC_ID, CONFIG), 3)
        disk.crash()
        second = open_directory(disk)
        second.open_log("flights", 0, TOPIC_ID, CONFIG)
        second.close()
        assert not disk.exists(".kafka_cleanshutdown")
        third = open_directory(disk)
        for partition in range(2):
            third.open_log("flights", partition, TOPIC_ID, CONFIG)
        third.close()
        assert disk.exists(".kafka_cleanshutdown")

    def test_is_not_claimed_when_a_log_cannot_be_flushed(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        for partition in range(2):
            fill(directory.open_log("flights", partition, TOPIC_ID, CONFIG), 3)
        disk.fault = lambda action, path: EIO if action == "flush" and path == FIRST else 0
        with pytest.raises(StorageError):
            directory.close()
        disk.fault = None
        assert not disk.exists(".kafka_cleanshutdown")
        disk.crash()
        again = open_directory(disk)
        assert again.open_log("flights", 0, TOPIC_ID, CONFIG).log_end_offset == 0
        assert again.open_log("flights", 1, TOPIC_ID, CONFIG).log_end_offset == 3

    def test_is_not_claimed_for_a_log_that_has_failed(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        disk.fault = lambda action, path: EIO if action in ("append", "truncate") else 0
        with pytest.raises(StorageError):
            fill(log, 1)
        disk.fault = None
        directory.close()
        assert not disk.exists(".kafka_cleanshutdown")


class TestCheckpoint:
    def test_is_kafkas_file(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 10)
        directory.open_log("flights", 1, TOPIC_ID, CONFIG)
        log.delete_records_before(2)
        directory.close()
        assert disk.read_file("recovery-point-offset-checkpoint") == (b"0\n1\nflights 0 10\n")
        assert disk.read_file("log-start-offset-checkpoint") == b"0\n1\nflights 0 2\n"
        again = open_directory(disk)
        assert again.open_log("flights", 0, TOPIC_ID, CONFIG).log_start_offset == 2

    def test_covers_what_was_rolled(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 10)
        rolled = log.active_base_offset
        assert rolled >= 3
        asyncio.run(directory.checkpoint())
        assert disk.read_file("recovery-point-offset-checkpoint") == (
            f"0\n1\nflights 0 {rolled}\n".encode()
        )
        disk.crash()
        again = open_directory(disk).open_log("flights", 0, TOPIC_ID, CONFIG)
        assert again.log_end_offset == rolled
        assert finish(again.offset_for_timestamp(5)) == (5, 0, 0)

    def test_is_written_only_when_something_has_changed(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        fill(directory.open_log("flights", 0, TOPIC_ID, CONFIG), 10)
        asyncio.run(directory.checkpoint())
        disk.fault = lambda action, path: EIO if action in ("write", "flush") else 0
        asyncio.run(directory.checkpoint())

    def test_a_log_deleted_meanwhile_is_forgotten(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        fill(directory.open_log("flights", 0, TOPIC_ID, CONFIG), 10)
        asyncio.run(directory.checkpoint())
        directory.delete_log("flights", 0)
        asyncio.run(directory.checkpoint())
        assert disk.read_file("recovery-point-offset-checkpoint") == b"0\n0\n"

    @pytest.mark.parametrize(
        "content", [b"", b"0\n", b"0\n2\nflights 0 10\n", b"1\n1\nflights 0 10\n", b"0\n1\nx\n"]
    )
    def test_that_is_damaged_has_every_log_checked_from_its_start(
        self, disk: VirtualDisk, directory: LogDirectory, content: bytes, caplog: Any
    ) -> None:
        fill(directory.open_log("flights", 0, TOPIC_ID, CONFIG), 10)
        asyncio.run(directory.checkpoint())
        disk.crash()
        disk.write_file("recovery-point-offset-checkpoint", content)
        corrupt(disk, FIRST)
        again = open_directory(disk)
        assert "recovery-point-offset-checkpoint is damaged" in caplog.text
        assert again.open_log("flights", 0, TOPIC_ID, CONFIG).log_end_offset == 0
        assert again.has_lost


HIGH_WATERMARKS = "replication-offset-checkpoint"


class TestHighWatermarks:
    def test_are_kafkas_file(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        for partition in range(3):
            log = directory.open_log("flights", partition, TOPIC_ID, CONFIG)
            fill(log, 5)
            log.high_watermark = 2 * partition
        directory.checkpoint_high_watermarks()
        assert disk.read_file(HIGH_WATERMARKS) == b"0\n2\nflights 1 2\nflights 2 4\n"

    @pytest.mark.parametrize("crashed", [True, False])
    def test_come_back(self, disk: VirtualDisk, directory: LogDirectory, crashed: bool) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 5)
        log.flush()
        log.high_watermark = 3
        if crashed:
            directory.checkpoint_high_watermarks()
            disk.open(HIGH_WATERMARKS).flush()
            disk.crash()
        else:
            directory.close()
        again = open_directory(disk).open_log("flights", 0, TOPIC_ID, CONFIG)
        assert again.high_watermark == 3

    def test_are_written_only_when_one_has_moved(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 5)
        log.high_watermark = 3
        directory.checkpoint_high_watermarks()
        disk.fault = lambda action, path: EIO
        log.high_watermark = 3
        directory.checkpoint_high_watermarks()

    def test_are_written_later_when_the_disk_fails(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 5)
        log.high_watermark = 3
        disk.fault = lambda action, path: EIO
        with pytest.raises(StorageError):
            directory.checkpoint_high_watermarks()
        disk.fault = None
        directory.checkpoint_high_watermarks()
        assert disk.read_file(HIGH_WATERMARKS) == b"0\n1\nflights 0 3\n"

    @pytest.mark.parametrize("content", [b"", b"0\n1\nx\n", b"\0\0\0"])
    def test_that_a_crash_has_damaged_are_ignored(
        self, disk: VirtualDisk, directory: LogDirectory, content: bytes
    ) -> None:
        fill(directory.open_log("flights", 0, TOPIC_ID, CONFIG), 5)
        directory.close()
        disk.write_file(HIGH_WATERMARKS, content)
        again = open_directory(disk).open_log("flights", 0, TOPIC_ID, CONFIG)
        assert again.high_watermark == 0

    def test_bound_retention(self, disk: VirtualDisk, directory: LogDirectory) -> None:
        config = LogConfig(segment_bytes=500, retention_bytes=0, retention_ms=-1)
        log = directory.open_log("flights", 0, TOPIC_ID, config)
        fill(log, 10)
        assert asyncio.run(directory.retain()) == 0
        log.high_watermark = 7
        assert asyncio.run(directory.retain()) == 2
        assert log.log_start_offset == 6


class TestTruncation:
    def test_lowers_the_recovery_point_at_once(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 10)
        asyncio.run(directory.checkpoint())
        log.truncate(2)
        fill(log, 10)
        disk.crash()
        again = open_directory(disk).open_log("flights", 0, TOPIC_ID, CONFIG)
        assert [header.base_offset for header in again.headers(0)] == [0, 1]

    def test_to_before_the_start_moves_it_at_once(
        self, disk: VirtualDisk, directory: LogDirectory
    ) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 10)
        log.delete_records_before(8)
        asyncio.run(directory.checkpoint())
        log.restart_at(2)
        fill(log, 1)
        log.flush()
        disk.crash()
        again = open_directory(disk).open_log("flights", 0, TOPIC_ID, CONFIG)
        assert (again.log_start_offset, again.log_end_offset) == (2, 3)

    def test_while_a_checkpoint_waits_for_the_disk_is_not_overlooked(
        self, disk: VirtualDisk, directory: LogDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = directory.open_log("flights", 0, TOPIC_ID, CONFIG)
        fill(log, 10)

        async def truncate_meanwhile(paths: object) -> None:
            log.truncate(2)

        monkeypatch.setattr(disk, "flush", truncate_meanwhile)
        asyncio.run(directory.checkpoint())
        assert log.recovery_point == 0
        assert disk.read_file("recovery-point-offset-checkpoint") is None


def test_one_logs_failure_does_not_stop_maintenance_of_the_others(
    disk: VirtualDisk, directory: LogDirectory
) -> None:
    config = LogConfig(segment_bytes=500, retention_bytes=0, retention_ms=-1)
    logs = [directory.open_log("flights", partition, TOPIC_ID, config) for partition in range(2)]
    for log in logs:
        fill(log, 10)
        log.high_watermark = 10
    disk.fault = lambda action, path: (
        EIO if action == "flush" and path.startswith("flights-0/") else 0
    )
    with pytest.raises(StorageError):
        asyncio.run(directory.checkpoint())
    assert disk.read_file("recovery-point-offset-checkpoint") == b"0\n1\nflights 1 9\n"
    assert [log.has_failed for log in logs] == [True, False]
    assert asyncio.run(directory.retain()) > 0
    assert [log.log_start_offset for log in logs] == [0, 10]


def test_retention_goes_on_after_a_failure(disk: VirtualDisk, directory: LogDirectory) -> None:
    config = LogConfig(segment_bytes=500, retention_bytes=0, retention_ms=-1)
    logs = [directory.open_log("flights", partition, TOPIC_ID, config) for partition in range(2)]
    for log in logs:
        fill(log, 10)
        log.high_watermark = 10
    disk.fault = lambda action, path: (
        EIO if action == "delete" and path.startswith("flights-0/") and path.endswith(".log") else 0
    )
    with pytest.raises(StorageError):
        asyncio.run(directory.retain())
    assert [log.log_start_offset for log in logs] == [10, 10]
    assert len(disk.list("flights-1")) < len(disk.list("flights-0"))


def test_retention_and_expiry_for_all_logs(directory: LogDirectory) -> None:
    config = LogConfig(segment_bytes=500, retention_bytes=0, retention_ms=-1)
    for partition in range(2):
        log = directory.open_log("flights", partition, TOPIC_ID, config)
        fill(log, 10)
        log.high_watermark = 10
    assert asyncio.run(directory.retain()) >= 6
    assert [log.log_start_offset for log in directory.logs.values()] == [10, 10]


def test_logs_may_be_deleted_during_retention(disk: VirtualDisk, directory: LogDirectory) -> None:
    config = LogConfig(segment_bytes=500, retention_bytes=0, retention_ms=-1)
    for partition in range(20):
        log = directory.open_log("flights", partition, TOPIC_ID, config)
        fill(log, 10)
        log.high_watermark = 10

    async def both() -> int:
        retaining = asyncio.create_task(directory.retain())
        await asyncio.sleep(0)
        for partition in range(20):
            directory.delete_log("flights", partition)
        await directory.checkpoint()
        return await retaining

    assert 0 < asyncio.run(both()) < 80
    assert not [name for name in disk.list("") if name.startswith("flights")]


def test_flush_by_time_for_idle_logs(disk: VirtualDisk) -> None:
    now = [0]
    directory = LogDirectory(
        disk, node_id=1, cluster_id="level", now_ms=lambda: now[0], random=Random(1)
    )
    log = directory.open_log("flights", 0, TOPIC_ID, LogConfig(flush_ms=100))
    fill(log, 1)
    directory.flush_due()
    assert log.recovery_point == 0
    now[0] = 100
    directory.flush_due()
    assert log.recovery_point == 1


def test_the_space_is_the_storages() -> None:
    directory = open_directory(VirtualDisk(capacity=2 << 20))
    assert directory.space().total_bytes == 2 << 20
