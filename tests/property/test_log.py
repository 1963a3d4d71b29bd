"""Compares logs with plain lists, through rolls, restarts, crashes and truncation.

A leader's log is compared with a list of records, a follower's with a list of batches with gaps, a
compacted one with the last value of each key.
"""

import asyncio
from contextlib import suppress
from errno import EIO
from itertools import pairwise
from random import Random
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.steps import finish
from tests.unit.cluster.storage.logs import in_memory
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_changes import LogChanges
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.cluster.storage.producer_state import ACCEPTED
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.wire.batch_cy import BatchBuilder, read_headers, read_records, restamp, verify
from trimtab.sim.disk import VirtualDisk

DIRECTORY = "flights-0"
PRODUCER = 9


class LogAgainstList(RuleBasedStateMachine):
    """`records` has the appended records as (timestamp, value), by offset; the first `durable` of
    them have been flushed."""

    @initialize(
        segment_bytes=st.integers(200, 2000),
        interval=st.sampled_from([0, 100, 500]),
        start=st.sampled_from([0, 10**10]),
    )
    def begin(self, segment_bytes: int, interval: int, start: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=interval, segment_ms=50
        )
        self.disk = VirtualDisk()
        self.base = start
        self.records: list[tuple[int, bytes]] = []
        self.batches: list[int] = []  # base offset of each batch, then the end offset
        self.durable = 0
        self.recovery_point = 0
        self.open(clean=False)

    def open(self, clean: bool) -> None:
        self.log = Log(
            self.disk,
            DIRECTORY,
            self.config,
            lambda: 0,
            log_start_offset=self.base,
            recovery_point=self.recovery_point,
            clean=clean,
        )

    @property
    def end(self) -> int:
        return self.base + len(self.records)

    @rule(
        timestamps=st.lists(st.integers(0, 100), min_size=1, max_size=5), size=st.integers(0, 300)
    )
    def append(self, timestamps: list[int], size: int) -> None:
        builder = BatchBuilder(1 << 20)
        for timestamp in timestamps:
            value = b"%d" % len(self.records) + bytes(size)
            builder.append(timestamp, None, value, [])
            self.records.append((timestamp, value))
        first = self.end - len(timestamps)
        data = memoryview(
            bytearray(
                builder.build(
                    producer_id=PRODUCER, producer_epoch=0, base_sequence=first & 0x7FFFFFFF
                )
            )
        )
        headers = read_headers(data)
        assert self.log.producers.check_batch(headers[0]) is ACCEPTED
        info = self.log.append(data, 0, headers)
        assert (info.base_offset, info.next_offset) == (first, self.end)
        duplicate = self.log.producers.check_batch(headers[0]).duplicate
        assert duplicate is not None
        assert duplicate.first_offset == first
        self.batches.append(first)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable = len(self.records)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.durable = len(self.records)
        self.recovery_point = self.log.recovery_point
        self.open(clean=True)

    @rule(seed=st.none() | st.integers(0, 2**32), killed=st.booleans())
    def crash(self, seed: int | None, killed: bool) -> None:
        """The machine loses power; or only the process is killed, which loses nothing."""
        if not killed:
            self.disk.crash(None if seed is None else Random(seed))
        self.open(clean=False)
        kept = self.log.log_end_offset - self.base
        assert kept >= (len(self.records) if killed else self.durable)
        self.shorten(kept)
        if not killed:
            self.durable = min(self.durable, kept)
            self.log.flush()
            self.durable = kept

    @rule(portion=st.floats(0, 1))
    def truncate(self, portion: float) -> None:
        if self.batches:
            offset = self.batches[int(portion * (len(self.batches) - 1))]
            self.log.truncate(offset)
            assert self.log.log_end_offset == offset
            self.shorten(offset - self.base)
            self.durable = min(self.durable, len(self.records))
            self.recovery_point = min(self.recovery_point, offset)

    def shorten(self, kept: int) -> None:
        del self.records[kept:]
        self.batches = [first for first in self.batches if first < self.end]

    @rule(
        portion=st.floats(0, 1),
        max_bytes=st.integers(0, 3000),
        min_one=st.booleans(),
        bound=st.floats(0, 1),
    )
    def read(self, portion: float, max_bytes: int, min_one: bool, bound: float) -> None:
        offset = self.base + int(portion * len(self.records))
        end_offset = self.base + int(bound * len(self.records))
        data = in_memory(self.log.read(offset, max_bytes, min_one, end_offset))
        if not data:
            return
        headers = read_headers(data)
        assert headers[0].base_offset <= offset <= headers[0].last_offset
        assert headers[-1].last_offset < end_offset
        assert len(data) <= max_bytes or (min_one and len(headers) == 1)
        for record in read_records("flights", 0, data, 0):
            expected = self.records[record.offset - self.base]
            assert (record.timestamp, record.value) == expected

    @rule(timestamp=st.integers(-1, 101))
    def look_up(self, timestamp: int) -> None:
        found = finish(self.log.offset_for_timestamp(timestamp))
        matching = [self.base + i for i, (at, _) in enumerate(self.records) if at >= timestamp]
        assert (found.offset if found else None) == (matching[0] if matching else None)
        newest = finish(self.log.offset_of_max_timestamp())
        latest = max((at for at, _ in self.records), default=None)
        assert (newest.timestamp if newest else None) == latest

    @invariant()
    def everything_is_there_in_order(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end
        offset = self.base
        while data := self.log.read(offset, 1 << 30):
            for record in read_records("flights", 0, data, offset):
                assert record.offset == offset
                assert record.value == self.records[offset - self.base][1]
                offset += 1
        assert offset == self.end


class Stored(NamedTuple):
    base: int
    last: int
    epoch: int
    values: list[bytes]


class FollowerAgainstList(RuleBasedStateMachine):
    """`batches` has the batches stored from leaders; the first `durable` have been flushed."""

    @initialize(segment_bytes=st.integers(200, 2000), start=st.sampled_from([0, 10**10]))
    def begin(self, segment_bytes: int, start: int) -> None:
        # A compacted topic, as recovery takes a gap at the end of any other log for damage.
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=100, compacts=True
        )
        self.disk = VirtualDisk()
        self.start = start
        self.batches: list[Stored] = []
        self.durable = 0
        self.recovery_point = 0
        self.epoch = 0
        self.serial = 0
        self.open(clean=False)

    def open(self, clean: bool) -> None:
        self.log = Log(
            self.disk,
            DIRECTORY,
            self.config,
            lambda: 0,
            log_start_offset=self.start,
            recovery_point=self.recovery_point,
            clean=clean,
            changes=LogChanges(before_truncation=self.withdraw),
        )

    def withdraw(self, log: Log, offset: int) -> None:
        self.start = min(self.start, offset)
        self.recovery_point = min(self.recovery_point, offset)

    @rule(
        sizes=st.lists(
            st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 300)), min_size=1
        ),
        new_epoch=st.booleans(),
    )
    def replicate(self, sizes: list[tuple[int, int, int]], new_epoch: bool) -> None:
        data = bytearray()
        end = self.log.log_end_offset
        if new_epoch:
            self.epoch += 1
        for gap, records, size in sizes:
            base = end + gap
            builder = BatchBuilder(1 << 20)
            values = [b"%d" % (self.serial + i) + bytes(size) for i in range(records)]
            for value in values:
                builder.append(0, None, value, [])
            built = builder.build(
                producer_id=PRODUCER, producer_epoch=0, base_sequence=self.serial & 0x7FFFFFFF
            )
            restamp(built, 0, base, self.epoch)
            data += built
            self.serial += records
            end = base + records
            self.batches.append(Stored(base, end - 1, self.epoch, values))
        view = memoryview(data)
        self.log.append_replicated(view, read_headers(view))
        assert self.log.log_end_offset == end

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.begin_epoch(self.epoch)
        assert self.log.epochs.latest == self.epoch
        assert self.log.end_of_epoch(self.epoch) == (self.epoch, self.log.log_end_offset)

    @rule(portion=st.floats(0, 1))
    def truncate(self, portion: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + int(portion * (end - start + 1))
        self.log.truncate(offset)
        cut = next((batch for batch in self.batches if batch.last >= offset), None)
        if cut is None:
            assert self.log.log_end_offset == min(offset, end)
        else:
            del self.batches[self.batches.index(cut) :]
            assert self.log.log_end_offset == min(offset, cut.base)
        self.durable = min(self.durable, len(self.batches))

    @rule(ahead=st.integers(-20, 20))
    def restart_at(self, ahead: int) -> None:
        offset = max(0, self.log.log_end_offset + ahead)
        self.log.restart_at(offset)
        assert (self.log.log_start_offset, self.log.log_end_offset) == (offset, offset)
        assert self.log.high_watermark == offset
        self.start = offset  # the log directory's checkpoint will have it, too
        self.batches.clear()
        self.durable = 0

    @rule(portion=st.floats(0, 1))
    def commit(self, portion: float) -> None:
        self.log.high_watermark = int(portion * (self.log.log_end_offset + 1))

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable = len(self.batches)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def reopen(self) -> None:
        self.log.close()
        end = self.log.log_end_offset
        self.durable = len(self.batches)
        self.recovery_point = self.log.recovery_point
        self.open(clean=True)
        assert self.log.log_end_offset <= end

    @rule(seed=st.none() | st.integers(0, 2**32), killed=st.booleans())
    def crash(self, seed: int | None, killed: bool) -> None:
        if not killed:
            self.disk.crash(None if seed is None else Random(seed))
        self.open(clean=False)
        kept = sum(batch.last < self.log.log_end_offset for batch in self.batches)
        assert kept >= (len(self.batches) if killed else self.durable)
        del self.batches[kept:]
        if not killed:
            self.log.flush()
            self.durable = kept

    @rule(portion=st.floats(0, 1))
    def read(self, portion: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + int(portion * (end - start))
        data = in_memory(self.log.read(offset, 1))
        expected = next((batch for batch in self.batches if batch.last >= offset), None)
        found = [header.base_offset for header in read_headers(data)]
        assert found == ([] if expected is None else [expected.base])

    @invariant()
    def every_batch_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        found = [
            (header.base_offset, header.last_offset, header.leader_epoch)
            for header in self.log.headers(0)
        ]
        assert found == [batch[:3] for batch in self.batches]
        offset = self.log.log_start_offset
        values = []
        while data := in_memory(self.log.read(offset, 1000)):
            values += [record.value for record in read_records("flights", 0, data, offset)]
            offset = read_headers(data)[-1].next_offset
        assert values == [value for batch in self.batches for value in batch.values]

    @invariant()
    def epochs_part_the_batches(self) -> None:
        if not hasattr(self, "log"):
            return
        for before, after in pairwise(self.batches):
            if before.epoch != after.epoch:
                for epoch in range(before.epoch, after.epoch):
                    assert before.last < self.log.end_of_epoch(epoch).end_offset <= after.base
        if self.batches:
            assert self.log.epochs.latest >= self.batches[-1].epoch
        for older, newer in pairwise(self.log.epochs.entries):
            assert older.epoch < newer.epoch
            assert older.start_offset < newer.start_offset

    @invariant()
    def the_high_watermark_is_within_the_log(self) -> None:
        if hasattr(self, "log"):
            log = self.log
            assert log.log_start_offset <= log.high_watermark <= log.log_end_offset


class CompactedAgainstDict(RuleBasedStateMachine):
    """`records` has every record appended and not truncated, by offset. Each record in the log must
    be one of them, and the log must have the last one of each key, unless it is a tombstone."""

    @initialize(
        segment_bytes=st.integers(300, 1500),
        codec=st.sampled_from([0, 1, 4]),
        buffer=st.sampled_from([24 * 32, 1 << 20]),
    )
    def begin(self, segment_bytes: int, codec: int, buffer: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            compacts=True,
            deletes=False,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=100,
        )
        self.codec = codec
        self.buffer = buffer
        self.disk = VirtualDisk()
        self.now = 1000
        self.records: dict[int, tuple[bytes, bytes | None]] = {}
        self.sequence = 0
        self.durable = 0
        self.open()

    def open(self) -> None:
        self.directory = LogDirectory(
            self.disk, node_id=1, cluster_id="c", now_ms=lambda: self.now, random=Random(1)
        )
        self.directory.cleaner.dedupe_buffer_bytes = self.buffer
        self.log = self.directory.open_log("flights", 0, bytes(16), self.config)

    @rule(
        pairs=st.lists(
            st.tuples(st.integers(0, 9), st.none() | st.integers(0, 100)), min_size=1, max_size=6
        ),
        gap=st.integers(0, 3),
        idempotent=st.booleans(),
    )
    def append(self, pairs: list[tuple[int, int | None]], gap: int, idempotent: bool) -> None:
        builder = BatchBuilder(1 << 20, self.codec)
        first = offset = self.log.log_end_offset + gap
        for key, size in pairs:
            value = None if size is None else b"%d " % offset + bytes(size)
            builder.append(self.now, b"%d" % key, value, [])
            self.records[offset] = b"%d" % key, value
            offset += 1
        if idempotent:
            data = builder.build(producer_id=9, producer_epoch=0, base_sequence=self.sequence)
            self.sequence += len(pairs)
        else:
            data = builder.build()
        restamp(data, 0, first, 0)
        self.log.append_replicated(memoryview(data), read_headers(data))

    @rule()
    def commit(self) -> None:
        """Advance the high watermark, and flush. In a cluster committed records are also on another
        replica, so that this one's crash does not lose them; here they must be on this disk."""
        self.log.flush()
        self.durable = max(self.records, default=-1) + 1
        self.log.high_watermark = self.log.log_end_offset

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(by=st.integers(0, 200))
    def wait(self, by: int) -> None:
        self.now += by

    @rule()
    def compact(self) -> None:
        asyncio.run(self.directory.compact())

    @rule(portion=st.floats(0, 1))
    def truncate(self, portion: float) -> None:
        committed, end = self.log.high_watermark, self.log.log_end_offset
        self.log.truncate(committed + int(portion * (end - committed)))
        self.shorten()
        self.durable = min(self.durable, max(self.records, default=-1) + 1)

    @rule(step=st.integers(0, 30), seed=st.none() | st.integers(0, 2**32))
    def crash_while_compacting(self, step: int, seed: int | None) -> None:
        count = 0

        def fail(action: str, path: str) -> int:
            nonlocal count
            count += action != "read"
            return EIO if count > step else 0

        self.disk.fault = fail
        with suppress(StorageError):
            asyncio.run(self.directory.compact())
        self.disk.fault = None
        self.disk.crash(None if seed is None else Random(seed))
        committed = self.log.high_watermark
        self.open()
        assert self.log.log_end_offset >= self.durable
        self.shorten()
        self.log.flush()
        self.log.high_watermark = committed

    @rule()
    def restart(self) -> None:
        self.directory.close()
        self.open()
        self.durable = max(self.records, default=-1) + 1

    def shorten(self) -> None:
        end = self.log.log_end_offset
        self.records = {offset: pair for offset, pair in self.records.items() if offset < end}

    @invariant()
    def the_last_of_each_key_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        expected: dict[bytes, tuple[int, bytes | None]] = {}
        for offset, (key, value) in self.records.items():
            expected[key] = offset, value
        found: dict[bytes, tuple[int, bytes | None]] = {}
        offset = self.log.log_start_offset
        before = -1
        while data := in_memory(self.log.read(offset, 1000)):
            for header in read_headers(data):
                verify(data, 0)
                assert header.base_offset > before
                before = header.last_offset
            for record in read_records("flights", 0, data, offset):
                assert self.records[record.offset] == (record.key, record.value)
                assert record.key is not None
                found[record.key] = record.offset, record.value
            offset = before + 1
        for key, last in expected.items():
            assert found.get(key, last if last[1] is None else None) == last
        assert found.keys() <= expected.keys()

    @invariant()
    def the_producer_is_known(self) -> None:
        if hasattr(self, "log") and self.sequence and self.log.producers:
            held = [header for header in self.log.headers(0) if header.producer_id == 9]
            assert held


TestCompactedAgainstDict = CompactedAgainstDict.TestCase
TestCompactedAgainstDict.settings = settings(max_examples=60, stateful_step_count=30)
TestFollowerAgainstList = FollowerAgainstList.TestCase
TestFollowerAgainstList.settings = settings(max_examples=60, stateful_step_count=30)
TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(max_examples=60, stateful_step_count=30)
