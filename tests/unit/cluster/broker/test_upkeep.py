"""What a broker does from time to time (`trimtab.cluster.broker.upkeep`), on replicas that are
counters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from errno import EIO
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trimtab.cluster.broker.upkeep import Upkeep
from trimtab.cluster.config import BROKER
from trimtab.cluster.metadata.replayed import NOTHING, Replayed, read_replayed
from trimtab.cluster.storage.storage import BytesLike, StorageError
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.options import read
from trimtab.sim.disk import VirtualDisk
from trimtab.sim.world import World

NEVER = dict.fromkeys(
    (
        "log.flush.offset.checkpoint.interval.ms",
        "replica.high.watermark.checkpoint.interval.ms",
        "log.flush.scheduler.interval.ms",
        "log.retention.check.interval.ms",
        "log.cleaner.backoff.ms",
    ),
    2**31 - 1,
)


class Partition:
    def __init__(self, *starts: int) -> None:
        self._starts = list(starts)

    @property
    def log(self) -> Any:
        """The log; its start is another one each time it is looked up."""
        return SimpleNamespace(log_start_offset=self._starts.pop(0))


class Replicas:
    """Counts what it is called for. It is its own log directory, and view."""

    id = 1
    lag_limit_s = 30.0

    def __init__(self, **options: int) -> None:
        given = {name.replace("_", "."): value for name, value in options.items()}
        self.config = read(BROKER, {**NEVER, **given})
        self.view = self.logs = self.cleaner = self
        self.dedupe_buffer_bytes = 0
        self.partitions: dict[str, Partition] = {}
        self.moved: list[Partition] = []
        self.disk_failures: list[StorageError] = []
        self.disk_failed = self.disk_failures.append
        self.calls: list[str] = []
        self.fault: Exception | None = None

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if self.fault is not None:
            raise self.fault

    def flush_due(self) -> None:
        self._note("flush")

    def checkpoint_high_watermarks(self) -> None:
        self._note("high watermarks")

    async def checkpoint(self) -> None:
        self._note("checkpoint")

    async def retain(self) -> int:
        self._note("retain")
        return 1

    async def compact(self) -> None:
        self._note("compact")

    async def review_isrs(self) -> None:
        self._note("review")

    def log_start_moved(self, partition: Partition) -> None:
        self.moved.append(partition)


class Stand:
    def __init__(self, **options: int) -> None:
        self.disk = VirtualDisk()
        self.last = Replayed(3, 33)
        self.replicas = Replicas(**options)
        self.upkeep = Upkeep(cast(Any, self.replicas), self.disk, NOTHING, lambda: self.last)

    def run(self, seconds: float) -> list[str]:
        """What was called for in this time."""

        async def act() -> None:
            self.upkeep.start()
            await asyncio.sleep(seconds)
            await asyncio.gather(*self.upkeep.abort(), return_exceptions=True)
            called = list(self.replicas.calls)
            await asyncio.sleep(100)
            assert self.replicas.calls == called, "it has ended"

        run_virtual(act)
        return self.replicas.calls


def run_virtual(act: Callable[[], Awaitable[None]]) -> None:
    async def scenario() -> None:
        await act()

    with World(seed=1) as world:
        world.run(scenario())


def test_each_kind_has_its_interval() -> None:
    stand = Stand(log_flush_scheduler_interval_ms=4000, log_cleaner_backoff_ms=10_000)
    called = stand.run(31)
    assert sorted(called) == ["compact"] * 3 + ["flush"] * 7 + ["review"] * 2
    assert stand.replicas.dedupe_buffer_bytes == 128 * 1024 * 1024


def test_nothing_is_compacted_without_the_cleaner() -> None:
    stand = Stand(log_cleaner_backoff_ms=1000)
    stand.replicas.config["log.cleaner.enable"] = False
    assert "compact" not in stand.run(5)


@pytest.mark.parametrize(
    "fault",
    [CorruptData("a log is damaged"), StorageError("t-0", "read", EIO), RuntimeError("a bug")],
)
def test_upkeep_goes_on_after_an_error_and_reports_those_of_the_disk(fault: Exception) -> None:
    stand = Stand(log_retention_check_interval_ms=1000)
    stand.replicas.fault = fault
    assert stand.run(3.5).count("retain") == 3
    assert stand.replicas.disk_failures == [fault] * 3 * isinstance(fault, StorageError)


def test_only_partitions_whose_log_start_has_moved_are_reported() -> None:
    stand = Stand(log_retention_check_interval_ms=1000)
    moved, same = Partition(0, 7), Partition(5, 5)
    stand.replicas.partitions = {"t": moved, "u": same}
    stand.run(1.5)
    assert stand.replicas.moved == [moved]


@pytest.mark.parametrize("is_durable", [True, False])
def test_the_last_replayed_batch_is_written_when_it_has_changed(is_durable: bool) -> None:
    kind = "log_flush_offset_checkpoint" if is_durable else "replica_high_watermark_checkpoint"
    stand = Stand(**{f"{kind}_interval_ms": 1000})
    stand.run(2.5)
    assert read_replayed(stand.disk) == stand.last
    writes = count_writes(stand.disk)
    stand.upkeep.write_replayed(durable=False)
    assert writes == []
    stand.upkeep.write_replayed(durable=True)
    assert writes == [] if is_durable else [True]
    stand.last = Replayed(4, 44)
    stand.upkeep.write_replayed(durable=False)
    assert writes[-1:] == [False]
    assert read_replayed(stand.disk) == stand.last


def count_writes(disk: VirtualDisk) -> list[bool]:
    """Whether each file written from now on is durable."""
    writes: list[bool] = []
    write = disk.write_file

    def noted(path: str, content: BytesLike, durable: bool = False) -> None:
        writes.append(durable)
        write(path, content, durable=durable)

    disk.write_file = noted  # type: ignore[method-assign]
    return writes
