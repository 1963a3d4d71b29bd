"""What a broker does for its logs from time to time: checkpoints, flushes, retention, compaction;
and the review of its leaders' ISRs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.metadata.replayed import Replayed, write_replayed
from trimtab.cluster.server.repeat import repeat
from trimtab.cluster.storage.storage import Storage, StorageError
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.options import INT_MAX

_log = logging.getLogger(__name__)


class Upkeep:
    """One task for each kind of upkeep, at its own interval.

    Args:
        storage: where the last replayed batch of metadata is stored.
        replayed: the batch that is stored there.
        last_replayed: returns the batch that was replayed last.
    """

    def __init__(
        self,
        replicas: Replicas,
        storage: Storage,
        replayed: Replayed,
        last_replayed: Callable[[], Replayed],
    ) -> None:
        self._replicas = replicas
        self._logs = replicas.logs
        self._config = replicas.view.config
        self._storage = storage
        self._written_replayed = replayed, True
        self._last_replayed = last_replayed
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin. Intervals are read now; other options each time."""
        for interval_s, work in (
            (self._interval_s("log.flush.offset.checkpoint.interval.ms"), self._checkpoint),
            (
                self._interval_s("replica.high.watermark.checkpoint.interval.ms"),
                self._checkpoint_high_watermarks,
            ),
            (self._interval_s("log.flush.scheduler.interval.ms"), self._logs.flush_due),
            (self._interval_s("log.retention.check.interval.ms"), self._enforce_retention),
            (self._interval_s("log.cleaner.backoff.ms"), self._compact),
            (self._replicas.lag_limit_s / 2, self._replicas.review_isrs),
        ):
            if interval_s:
                self._tasks.append(
                    asyncio.create_task(
                        repeat(
                            interval_s,
                            partial(self._do, work),
                            f"broker={self._replicas.id} {work.__name__.strip('_')}",
                        )
                    )
                )

    def abort(self) -> list[asyncio.Task[None]]:
        """Stop; returns the tasks that are about to end, perhaps with the work under way."""
        for task in self._tasks:
            task.cancel()
        return self._tasks

    def write_replayed(self, durable: bool) -> None:
        """Write the last replayed metadata batch to disk, unless that is there already.

        Raises:
            StorageError: the disk failed.
        """
        noted = self._last_replayed(), durable
        if noted not in (self._written_replayed, (self._written_replayed[0], False)):
            write_replayed(self._storage, *noted)
            self._written_replayed = noted

    def _interval_s(self, option: str) -> float:
        """The interval in seconds; 0 for never."""
        interval_ms = self._config.integer(option)
        return interval_ms / 1000 if 0 < interval_ms < INT_MAX else 0

    async def _do(self, work: Callable[[], Awaitable[None] | None]) -> None:
        try:
            if (working := work()) is not None:
                await working
        except (StorageError, CorruptData) as error:
            _log.error("log maintenance failed broker=%d error=%s", self._replicas.id, error)
            if isinstance(error, StorageError):
                self._replicas.disk_failed(error)

    async def _checkpoint(self) -> None:
        await self._logs.checkpoint()
        self.write_replayed(durable=True)

    def _checkpoint_high_watermarks(self) -> None:
        self._logs.checkpoint_high_watermarks()
        self.write_replayed(durable=False)

    async def _enforce_retention(self) -> None:
        starts = {each: each.log.log_start_offset for each in self._replicas.partitions.values()}
        deleted = await self._logs.retain()
        if deleted:
            _log.info("deleted old segments broker=%d segments=%d", self._replicas.id, deleted)
            for partition, start in starts.items():
                if partition.log.log_start_offset != start:
                    self._replicas.log_start_moved(partition)

    async def _compact(self) -> None:
        if self._config["log.cleaner.enable"]:
            buffer_bytes = self._config.integer("log.cleaner.dedupe.buffer.size")
            self._logs.cleaner.dedupe_buffer_bytes = buffer_bytes
            await self._logs.compact()
