"""Leader epochs: start and end offsets, and epochs without a record."""

from errno import EIO

import pytest

from tests.unit.cluster.storage.logs import (
    DIRECTORY,
    SMALL,
    Clock,
    append,
    batch,
    fill,
    note_paths,
    replicate,
    sent,
)
from trimtab.cluster.storage.leader_epochs import EpochEnd, LeaderEpoch
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.sim.disk import VirtualDisk


class TestLeaderEpochs:
    def test_begin_with_their_first_record(self, disk: VirtualDisk, log: Log) -> None:
        for epoch in (3, 3, 5):
            append(log, batch(2), epoch)
        assert log.epochs.entries == [LeaderEpoch(3, 0), LeaderEpoch(5, 4)]
        assert disk.read_file(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n2\n3 0\n5 4\n"

    def test_only_those_above_an_epoch_are_forgotten(self, log: Log) -> None:
        for epoch in (3, 5, 7):
            append(log, batch(), epoch)
        log.epochs.forget_after(5)
        assert log.epochs.entries == [LeaderEpoch(3, 0), LeaderEpoch(5, 1)]

    def test_that_end_where_the_log_begins_are_forgotten(self, log: Log) -> None:
        for epoch in (3, 5, 7):
            append(log, batch(2), epoch)
        log.epochs.forget_before(2)
        assert log.epochs.entries == [LeaderEpoch(5, 2), LeaderEpoch(7, 4)]
        log.epochs.forget_before(3)
        assert log.epochs.entries == [LeaderEpoch(5, 3), LeaderEpoch(7, 4)]

    def test_begin_without_a_record(self, disk: VirtualDisk, log: Log) -> None:
        fill(log, 2)
        log.begin_epoch(4)
        assert log.epochs.entries == [LeaderEpoch(0, 0), LeaderEpoch(4, 2)]

    def test_are_written_with_their_first_record(self, disk: VirtualDisk, log: Log) -> None:
        fill(log, 2)
        log.begin_epoch(3)
        log.begin_epoch(4)
        assert disk.read_file(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n1\n0 0\n"
        append(log, batch(), 4)
        assert disk.read_file(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n2\n0 0\n4 2\n"

    def test_that_has_begun_is_not_written_again(self, disk: VirtualDisk, log: Log) -> None:
        append(log, batch(), 4)
        disk.fault = lambda action, path: EIO if action == "write" else 0
        log.begin_epoch(4)
        log.begin_epoch(3)
        append(log, batch(), 4)
        replicate(log, sent((2, 4), (3, 4)))
        assert log.epochs.entries == [LeaderEpoch(4, 0)]

    def test_without_a_record_is_replaced_by_the_next(self, log: Log) -> None:
        fill(log, 2)
        log.begin_epoch(4)
        log.begin_epoch(6)
        assert log.epochs.entries == [LeaderEpoch(0, 0), LeaderEpoch(6, 2)]

    def test_that_got_no_record_is_forgotten_by_opening(
        self, disk: VirtualDisk, clock: Clock, log: Log
    ) -> None:
        fill(log, 2)
        log.begin_epoch(4)
        log.close()
        read = note_paths(disk, "read")
        again = Log(disk, DIRECTORY, LogConfig(), clock, clean=True)
        assert again.epochs.entries == [LeaderEpoch(0, 0)]
        assert sum(path.endswith(".log") for path in read) == 1

    def test_begin_later_once_records_are_deleted(self, clock: Clock, rolled: Log) -> None:
        append(rolled, batch(), 1)
        clock.ms = 10**12
        rolled.enforce_retention(end_offset=9)
        assert rolled.epochs.entries == [LeaderEpoch(0, 8), LeaderEpoch(1, 10)]

    @pytest.mark.parametrize(
        "content",
        [b"", b"0\n1\nx 5\n", b"0\n", b"0\n1\n3 0\n", b"0\n2\n3 0\n5 1", b"0\n3\n3 0\n5 1\n"],
    )
    @pytest.mark.parametrize("clean", [True, False])
    def test_come_back_from_the_batches(
        self, disk: VirtualDisk, clock: Clock, content: bytes, clean: bool
    ) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        for epoch in (3, 5):
            append(log, batch(2), epoch)
        log.roll()
        log.close()
        disk.write_file(f"{DIRECTORY}/leader-epoch-checkpoint", content)
        again = Log(disk, DIRECTORY, SMALL, clock, clean=clean)
        assert again.epochs.entries == log.epochs.entries == [LeaderEpoch(3, 0), LeaderEpoch(5, 2)]


class TestEndOfEpoch:
    """`LeaderEpochFileCache.endOffsetFor`."""

    @pytest.fixture
    def led(self, log: Log) -> Log:
        """Epoch 2 from offset 4 to 6, epoch 5 to 9, epoch 6 to the end at 12."""
        replicate(log, sent((4, 2), (5, 2), (6, 5), (9, 6), (11, 6)))
        return log

    @pytest.mark.parametrize(
        ("epoch", "expected"),
        [
            (-1, (-1, -1)),
            (0, (0, 4)),
            (2, (2, 6)),
            (3, (2, 6)),
            (5, (5, 9)),
            (6, (6, 12)),
            (7, (-1, -1)),
        ],
    )
    def test_is_where_the_next_begins(
        self, led: Log, epoch: int, expected: tuple[int, int]
    ) -> None:
        assert led.end_of_epoch(epoch) == expected

    def test_without_any_epoch_is_unknown(self, log: Log) -> None:
        assert log.end_of_epoch(0) == EpochEnd(-1, -1)

    def test_of_one_that_has_begun_is_the_logs_end(self, led: Log) -> None:
        led.begin_epoch(9)
        assert (led.epochs.latest, led.end_of_epoch(9)) == (9, (9, 12))
        assert led.end_of_epoch(8) == (6, 12)
