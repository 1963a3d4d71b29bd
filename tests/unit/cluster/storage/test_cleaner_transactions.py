"""Compaction of logs with transactions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from tests.unit.cluster.storage.logs import in_memory
from tests.unit.cluster.storage.test_cleaner import (
    DIRECTORY,
    Clock,
    append,
    clock,
    compact,
    directory,
    disk,
    fill,
    log,
    offsets,
    open_directory,
    open_log,
)
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import read_headers, read_records
from trimtab.kafka.wire.end_markers import EndMarker, build_marker
from trimtab.sim.disk import VirtualDisk

__all__ = ["clock", "directory", "disk", "log"]


def committed(log: Log) -> dict[bytes | None, bytes | None]:
    """The latest values that a reader of committed records sees."""
    found: dict[bytes | None, bytes | None] = {}
    aborted = log.aborted_between(log.log_start_offset, log.last_stable_offset)
    coming = sorted(aborted, key=lambda each: each.first_offset)
    aborting: set[int] = set()
    offset = log.log_start_offset
    while data := in_memory(log.read(offset, 10_000, end_offset=log.last_stable_offset)):
        at = 0
        for header in read_headers(data):
            while coming and coming[0].first_offset <= header.last_offset:
                aborting.add(coming.pop(0).producer_id)
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                records = read_records("flights", 0, data[at : at + header.size], offset)
                found |= {record.key: record.value for record in records}
            at += header.size
            offset = header.next_offset
    return found


class TestTransactions:
    """Producers whose transactions are committed or aborted."""

    def send(self, log: Log, producer_id: int, keys: str) -> None:
        value = b"%d" % log.log_end_offset
        known = {each.id: each.last_sequence for each in log.producers.describe()}
        append(
            log,
            *((key.encode(), value) for key in keys),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=known.get(producer_id, -1) + 1,
            is_transactional=True,
        )

    def end(self, log: Log, producer_id: int, commit: bool) -> None:
        data = memoryview(build_marker(producer_id, 0, EndMarker(commit, 0), 1000))
        log.append(data, 0, read_headers(data))
        log.high_watermark = log.log_end_offset

    def test_aborted_records_are_removed_and_take_no_value_away(
        self, directory: LogDirectory, log: Log
    ) -> None:
        fill(log, "ab")
        self.send(log, 1, "a")
        self.send(log, 2, "b")
        self.end(log, 1, commit=False)
        self.end(log, 2, commit=True)
        log.roll()
        expected = committed(log)
        compact(directory)
        assert offsets(log) == [0, 3]
        assert committed(log) == expected
        assert [each.first_offset for each in log.aborted_between(0, 6)] == [2]

    def test_an_open_transaction_is_not_compacted(self, directory: LogDirectory, log: Log) -> None:
        fill(log, "a" * 10)
        self.send(log, 1, "a")
        fill(log, "a" * 10)
        log.roll()
        compact(directory)
        left = offsets(log)
        assert 9 in left
        assert left[-12:] == list(range(9, 21))
        self.end(log, 1, commit=False)
        log.roll()
        compact(directory)
        assert offsets(log) == [20]

    def test_an_entry_leaves_the_index_with_its_marker(
        self, clock: Clock, directory: LogDirectory, log: Log
    ) -> None:
        """Otherwise the producer's next transaction would be taken for a part of it."""
        log.config = replace(log.config, delete_retention_ms=1000, min_cleanable_dirty_ratio=0.0)
        self.send(log, 1, "a")
        self.end(log, 1, commit=False)
        for _ in range(6):
            self.send(log, 1, "b")
            self.end(log, 1, commit=True)
        for _ in range(4):
            clock.ms += 1000
            fill(log, "c" * 8)
            log.roll()
            compact(directory)
        assert not [header for header in log.headers(0) if header.next_offset <= 2]
        assert log.aborted_between(0, log.last_stable_offset) == []
        assert committed(log)[b"b"] == b"12"

    @pytest.mark.parametrize("seed", range(25))
    def test_readers_see_the_same_as_before(
        self, seed: int, clock: Clock, disk: VirtualDisk, directory: LogDirectory, log: Log
    ) -> None:
        random = Random(seed)
        log.config = replace(log.config, delete_retention_ms=500, min_cleanable_dirty_ratio=0.0)
        for _ in range(random.randint(2, 6)):
            for _ in range(random.randint(5, 40)):
                producer_id = random.randrange(3)
                step = random.random()
                if step < 0.5:
                    self.send(log, producer_id, "".join(random.choices("abcdef", k=2)))
                elif step < 0.8:
                    self.end(log, producer_id, random.random() < 0.5)
                else:
                    fill(log, random.choice("abcdef"))
            if random.random() < 0.7:
                log.roll()
            expected, stable = committed(log), log.last_stable_offset
            clock.ms += random.choice((0, 600))
            compact(directory)
            assert committed(log) == expected
            assert log.last_stable_offset == stable
            if random.random() < 0.5:
                mark, config = log.high_watermark, log.config
                directory.close()
                for name in disk.list(DIRECTORY) if random.random() < 0.5 else ():
                    if name.endswith((".snapshot", ".txnindex")):
                        disk.delete(f"{DIRECTORY}/{name}")
                directory = open_directory(disk, clock)
                log = open_log(directory, config)
                log.high_watermark = mark
                assert committed(log) == expected
                assert log.last_stable_offset == stable

    def test_a_changed_bit_costs_no_other_record(
        self, directory: LogDirectory, log: Log, disk: VirtualDisk, clock: Clock
    ) -> None:
        """Compaction reads whose batch it is, whether it is a marker and how many records it has:
        it must not remove what it has misread, nor give it a right CRC."""
        fill(log, "ab")
        self.send(log, 1, "c")
        self.end(log, 1, commit=True)
        self.send(log, 1, "ad")
        self.end(log, 1, commit=False)
        fill(log, "b")
        log.roll()
        expected = committed(log)
        names = disk.list(DIRECTORY)
        directory.close()
        path = f"{DIRECTORY}/{0:020d}.log"
        size = len(disk.read_file(path) or b"")
        for bit in range(0, 8 * size, 5):
            changed = VirtualDisk()
            for name in names:
                changed.write_file(
                    f"{DIRECTORY}/{name}", disk.read_file(f"{DIRECTORY}/{name}") or b""
                )
            again = open_directory(changed, clock)
            opened = open_log(again)
            opened.high_watermark = log.log_end_offset
            changed.flip(path, *divmod(bit, 8), lasts=True)
            damaged = changed.read_file(path)
            with suppress(CorruptData):
                compact(again)
            if changed.read_file(path) != damaged:  # compacted
                assert committed(opened) == expected, f"bit {bit % 8} of byte {bit // 8}"
