"""Producers' sequences survive restarts, even if snapshots are damaged."""

import pytest

from tests.unit.cluster.storage.logs import (
    DIRECTORY,
    SMALL,
    Clock,
    append,
    header_of,
    producer_batch,
)
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.producer_state import ACCEPTED
from trimtab.sim.disk import VirtualDisk


class TestProducers:
    @pytest.mark.parametrize("closed", [True, False])
    def test_are_known_after_opening(self, disk: VirtualDisk, clock: Clock, closed: bool) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        for i in range(9):
            append(log, producer_batch(2 * i, records=2))
        if closed:
            log.close()
        again = Log(disk, DIRECTORY, SMALL, clock, clean=closed)
        for i in range(4, 9):
            duplicate = again.producers.check_batch(
                header_of(producer_batch(2 * i, records=2))
            ).duplicate
            assert duplicate is not None
            assert (duplicate.first_offset, duplicate.last_offset) == (2 * i, 2 * i + 1)
        assert again.producers.check_batch(header_of(producer_batch(18))) is ACCEPTED

    def test_a_damaged_snapshot_is_replaced_by_batches(
        self, disk: VirtualDisk, clock: Clock
    ) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        for i in range(10):
            append(log, producer_batch(i))
        log.close()
        snapshots = [name for name in disk.list(DIRECTORY) if name.endswith(".snapshot")]
        assert len(snapshots) == 2
        for name in snapshots:
            disk.write_file(f"{DIRECTORY}/{name}", b"")
        again = Log(disk, DIRECTORY, SMALL, clock, clean=True)
        for i in range(5, 10):
            assert again.producers.check_batch(header_of(producer_batch(i))).duplicate is not None

    def test_a_duplicate_at_the_end_of_a_rolled_log(self, disk: VirtualDisk, clock: Clock) -> None:
        log = Log(disk, DIRECTORY, SMALL, clock)
        for i in range(4):
            append(log, producer_batch(i))
        log.roll()
        again = Log(disk, DIRECTORY, SMALL, clock)
        for i in range(4):
            assert again.producers.check_batch(header_of(producer_batch(i))).duplicate is not None
