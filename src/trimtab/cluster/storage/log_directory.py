"""A broker's data directory: its logs, and the files with their state between two runs.

    meta.properties                      node id, cluster id and directory id
    recovery-point-offset-checkpoint     the offset up to which each log has been fsynced
    log-start-offset-checkpoint          the log start offset of each log with deleted records
    replication-offset-checkpoint        the high watermark of each log
    cleaner-offset-checkpoint            the offset up to which each log has been compacted
    .kafka_cleanshutdown                 exists if the last run closed all logs cleanly
    .trimtab_life                        the broker epoch, and the machine's boot id at that time;
                                         while the broker registers, its incarnation id, too
    .trimtab_probe                       written and deleted at each start, to check for free space
    <topic>-<partition>/                 a log, with its topic id in `partition.metadata`
    <topic>-<partition>.<id>-delete/     a log whose deletion a crash has interrupted
    <topic>-<partition>.<id>-stray/      a log that is not the cluster's, kept for an operator

Names and formats are those of Kafka's `LogManager`.

Long because the files of state must be written in one order with what happens to the logs.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from trimtab.cluster.storage.cleaner import Cleaner, DirtyPart, find_dirty_part
from trimtab.cluster.storage.identity import identify_broker
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_changes import LogChanges
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.offset_checkpoint import OffsetCheckpoint
from trimtab.cluster.storage.properties import decode_uuid, encode_uuid, read_properties
from trimtab.cluster.storage.storage import Space, Storage, StorageError
from trimtab.kafka.errors import CorruptData, UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_EPOCH

_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_LOG_START_OFFSETS = "log-start-offset-checkpoint"
_HIGH_WATERMARKS = "replication-offset-checkpoint"
_CLEAN_OFFSETS = "cleaner-offset-checkpoint"
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_LIFE = ".trimtab_life"
_PROBE = ".trimtab_probe"
_PROBE_BYTES = 1 << 20
"""Room for one batch: about the default of `message.max.bytes`."""
_PARTITION_METADATA = "partition.metadata"
_CONTROLLER_TOPIC = "__cluster_metadata"
_DELETE_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_MAX_NAME = 255
_LOGS_PER_STEP = 1000
"""Logs that are examined before other tasks run."""

_log = logging.getLogger(__name__)


class LogDirectory:
    """A broker's logs: opens a data directory, or initializes an empty one. Opens no log yet.

    Args:
        now_ms: the wall clock, ms since the epoch.
        random: draws ids.

    Attributes:
        directory_id: 16 bytes, this directory's id (KIP-858).
        cleaner: used by `compact`; its `dedupe_buffer_bytes` may be changed at any time.
        previous_epoch: the broker epoch of the last run, if that run lost no data: it closed the
            directory cleanly (KIP-966), or was killed and the machine has not rebooted. Else -1.
        has_lost: a log has failed, or has lost records.

    Raises:
        UsageError: the directory belongs to another broker or cluster, or is in use.
        StorageError: the disk failed, or has less than 1 MiB of free space: a broker that cannot
            write must not be elected.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        node_id: int,
        cluster_id: str,
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        self._storage = storage
        self._now_ms = now_ms
        self._random = random
        self._logs: dict[TopicPartition, Log] = {}
        self._changes = LogChanges[Log](self._begin, self._lower_checkpoints, self.note_loss)
        self._new: dict[Log, bytes] = {}
        self._keys: dict[Log, TopicPartition] = {}
        self._is_compacting = False
        self._must_delete_life = False
        self.has_lost = False
        self._uncleanable: dict[Log, None] = {}
        self._renamed: list[str] = []
        storage.lock()
        try:
            storage.write_file(_PROBE, bytes(_PROBE_BYTES))
            storage.delete(_PROBE)
            self.directory_id = identify_broker(storage, node_id, cluster_id, random)
            self.cleaner = Cleaner(storage, now_ms, random)
            sign = storage.read_file(_CLEAN_SHUTDOWN)
            self._clean = sign is not None
            # A crash from now on leaves logs that need recovery.
            storage.delete(_CLEAN_SHUTDOWN)
            for name in storage.list(""):
                if name.endswith(_DELETE_SUFFIX):
                    storage.delete(name)
            life = _read_json(sign)
            if sign is None:
                life = _read_json(storage.read_file(_LIFE))
                if life.get("bootId") != storage.boot_id() or not life["bootId"]:
                    life = {}
            previous_epoch = life.get("brokerEpoch", NO_EPOCH)
            self.previous_epoch = previous_epoch if isinstance(previous_epoch, int) else NO_EPOCH
            self._incarnation_id = decode_uuid(str(life.get("incarnationId", "")))
            self._names = set(storage.list(""))
            self._recovery_points = OffsetCheckpoint(storage, _RECOVERY_POINTS)
            self._log_start_offsets = OffsetCheckpoint(storage, _LOG_START_OFFSETS)
            self._high_watermarks = OffsetCheckpoint(storage, _HIGH_WATERMARKS, durable=False)
            self._clean_offsets = OffsetCheckpoint(storage, _CLEAN_OFFSETS, durable=False)
        except BaseException:
            storage.close()
            raise
        self._checkpoints = (
            self._recovery_points,
            self._log_start_offsets,
            self._high_watermarks,
            self._clean_offsets,
        )

    def begin_life(self, incarnation_id: bytes) -> bytes:
        """Call it before the broker registers with a new incarnation id; returns the one to use.

        It is that of the last run if that run lost no data and ended before it knew its broker
        epoch: the controller may have registered it.

        Raises:
            StorageError: the disk failed.
        """
        incarnation_id = self._incarnation_id or incarnation_id
        if self.previous_epoch != NO_EPOCH:
            self._write_life(self.previous_epoch, incarnationId=encode_uuid(incarnation_id))
        return incarnation_id

    def write_epoch(self, broker_epoch: int) -> None:
        """Writes the broker's epoch and the boot id to disk. After a kill of the process they prove
        that no written data was lost, unless the machine rebooted or the disk failed.

        Raises:
            StorageError: the disk failed.
        """
        self._write_life(broker_epoch)
        self._must_delete_life = False

    def _write_life(self, broker_epoch: int, **fields: str) -> None:
        life = {"version": 0, "brokerEpoch": broker_epoch, "bootId": self._storage.boot_id()}
        # No fsync needed: after a reboot of the machine the file is invalid anyway.
        self._storage.write_file(_LIFE, json.dumps(life | fields).encode("ascii"), durable=False)

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs that are open."""
        return self._logs

    def space(self) -> Space:
        """The size and free space of the directory's volume.

        Raises:
            StorageError: the disk failed.
        """
        return self._storage.space()

    def stored_partitions(self) -> Iterator[TopicPartition]:
        """Every partition that has a directory here, open or not, in no order. The controller's
        log, which may be in the same directory, is left out."""
        for name in self._names:
            topic, _, partition = name.rpartition("-")
            if topic and topic != _CONTROLLER_TOPIC and partition.isdecimal():
                yield TopicPartition(topic, int(partition))

    def open_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> Log:
        """Opens a partition's log, recovers it if necessary, or creates one. A new log gets its
        directory with its first record.

        A directory with another topic's id, or a log that ends before its checkpointed log start
        offset, is renamed to `-stray` and replaced by a new log, with a warning in the log.

        Args:
            topic_id: 16 bytes.

        Raises:
            StorageError: the disk failed, or something else is in the place of the directory.
        """
        key = TopicPartition(topic, partition)
        if key in self._logs:
            raise UsageError(f"the log of {key} is open already; close or delete it first")
        name = str(key)
        if name in self._names:
            stored_id = self._stored_topic_id(name)
            if stored_id is None:
                self._write_topic_id(name, topic_id)
            elif stored_id != topic_id:
                # The log of an older topic with that name, or the file with the id is damaged.
                self._set_aside(key, f"its topic id is {encode_uuid(stored_id)}")
        elif any(checkpoint.get(key) for checkpoint in self._checkpoints):
            self.note_loss()
            _log.warning("the log of %s is missing", name)
            self._forget(key)
        log = self._open(key, topic_id, config)
        if self._log_start_offsets.get(key) > log.log_end_offset:
            log.abandon()
            start_offset = self._log_start_offsets.get(key)
            self._set_aside(
                key, f"it ends at {log.log_end_offset}, before its log start offset {start_offset}"
            )
            log = self._open(key, topic_id, config, start_offset)
        self._logs[key] = log
        return log

    def _open(
        self, key: TopicPartition, topic_id: bytes, config: LogConfig, start_offset: int = 0
    ) -> Log:
        name = str(key)
        is_new = name not in self._names
        log = Log(
            self._storage,
            name,
            config,
            self._now_ms,
            log_start_offset=self._log_start_offsets.get(key),
            recovery_point=self._recovery_points.get(key),
            high_watermark=self._high_watermarks.get(key),
            clean=self._clean,
            changes=self._changes,
            is_new=is_new,  # then no checkpoint has an offset of it
        )
        self._keys[log] = key
        if is_new:
            self._new[log] = topic_id
            if start_offset:
                log.restart_at(start_offset)
        return log

    def _set_aside(self, key: TopicPartition, why: str) -> None:
        self.note_loss()
        directory = self._move_away(key, _STRAY_SUFFIX)
        _log.warning("set aside %s as %s: %s", key, directory, why)

    def delete_log(self, topic: str, partition: int) -> None:
        """Deletes a partition's log, open or not. A missing log is no error. Its directory is
        renamed to `-delete`, and deleted by the next `checkpoint`."""
        key = TopicPartition(topic, partition)
        log = self._logs.pop(key, None)
        if log is not None:
            self._changes.forget(log)
            self._new.pop(log, None)
            self._keys.pop(log, None)
            self._uncleanable.pop(log, None)
            log.abandon()
        if str(key) in self._names:
            self._renamed.append(self._move_away(key, _DELETE_SUFFIX))

    def set_aside_strays(self, kept: Container[tuple[str, int]]) -> list[str]:
        """Renames the logs that are not open to `-stray`. Their topics were deleted, or their
        replicas moved to other brokers, while this broker was down. Nothing is deleted, as in
        Kafka's `LogManager`. Call it after all of this broker's logs have been opened.

        Args:
            kept: this broker's partitions whose logs could not be opened; they are not renamed.

        Returns:
            The new names of the directories.

        Raises:
            StorageError: the disk failed.
        """
        strays = [
            key for key in self.stored_partitions() if key not in self._logs and key not in kept
        ]
        return [self._move_away(key, _STRAY_SUFFIX) for key in strays]

    async def checkpoint(self) -> None:
        """Fsyncs the segments rolled since the last call, without blocking the loop, writes the
        checkpoints, and deletes the files of deleted logs. Call it every
        `log.flush.offset.checkpoint.interval.ms`.

        Raises:
            StorageError: the disk failed; the recovery point of a failed log is unchanged.
        """
        failure: StorageError | None = None
        changed = list(self._changes.checkpoints)
        self._changes.checkpoints.clear()
        for log in changed:
            try:
                await log.flush_sealed()
            except StorageError as error:
                failure = failure or error
        if self._must_delete_life:
            self.note_loss()
        self._note_checkpoints(changed)
        self._write_checkpoints()
        await self._delete_renamed()
        if failure is not None:
            raise failure

    def checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks if any has moved. Call it every
        `replica.high.watermark.checkpoint.interval.ms`.

        Raises:
            StorageError: the disk failed; the next call tries again.
        """
        moved = self._changes.high_watermarks
        for log in moved:
            self._high_watermarks.set(self._keys[log], log.high_watermark)
        moved.clear()
        self._high_watermarks.write()

    def checkpoint_starts(self) -> None:
        """Writes the log start offsets that have moved, so that deleted records do not appear again
        after a crash. Call it before a deletion is acknowledged.

        Raises:
            StorageError: the disk failed; the next call tries again.
        """
        self._note_starts(self._changes.checkpoints)
        self._log_start_offsets.write()

    def flush_due(self) -> None:
        """Flushes the idle logs whose `flush.ms` is over; `append` flushes the busy ones.

        Raises:
            StorageError: a log could not be flushed, and refuses appends; the others were flushed.
        """
        self._for_each(list(self._changes.unflushed), Log.flush_if_due)

    async def retain(self) -> int:
        """Deletes old committed segments of all logs, and removes expired producers. Call it every
        `log.retention.check.interval.ms`.

        Lets other tasks run after every 50 logs, and more often while segments are deleted.

        Returns:
            The number of segments deleted.

        Raises:
            CorruptData: a log cannot be read; the others were processed.
            StorageError: a log failed; likewise.
        """
        failure: StorageError | CorruptData | None = None
        deleted = since_pause = 0
        for log in list(self._logs.values()):
            if log not in self._keys:
                continue  # deleted meanwhile
            try:
                segments = log.enforce_retention(log.high_watermark)
                log.producers.expire(self._now_ms())
            except (CorruptData, StorageError) as error:
                if failure is None or isinstance(error, StorageError):
                    failure = error
                segments = 1
            deleted += segments
            since_pause += 1 + 10 * segments
            if since_pause >= 50:
                since_pause = 0
                await asyncio.sleep(0)
        if failure is not None:
            raise failure
        return deleted

    async def compact(self) -> int:
        """Compacts the logs that are due by `min.cleanable.dirty.ratio` or `max.compaction.lag.ms`,
        the dirtiest first, each once. Lets other tasks run every few milliseconds. Call it every
        `log.cleaner.backoff.ms`; a call during another one does nothing.

        Returns:
            The number of logs compacted.

        Raises:
            CorruptData: a log cannot be read; it is skipped until the next start. The others were
                compacted.
            StorageError: the disk failed; the next call tries again.
        """
        if self._is_compacting:
            return 0
        self._is_compacting = True
        failure: CorruptData | StorageError | None = None
        done = 0
        tried = dict(self._uncleanable)
        try:
            while (found := await self._find_dirtiest(tried)) is not None:
                log, dirt = found
                tried[log] = None
                try:
                    clean_offset = await self.cleaner.clean(log, dirt)
                    if clean_offset is not None and log in self._keys:
                        self._clean_offsets.set(self._keys[log], clean_offset)
                        self._clean_offsets.write()
                        done += 1
                except CorruptData as error:
                    self._uncleanable[log] = None
                    failure = failure or error
                except StorageError as error:
                    failure = failure or error
        finally:
            self._is_compacting = False
        if failure is not None:
            raise failure
        return done

    async def _find_dirtiest(self, tried: Mapping[Log, None]) -> tuple[Log, DirtyPart] | None:
        """The dirtiest log that is due; lets other tasks run between slices of logs."""
        now = self._now_ms()
        dirtiest = None
        for number, log in enumerate(list(self._logs.values()), 1):
            if not number % _LOGS_PER_STEP:
                await asyncio.sleep(0)
            if log not in self._keys:
                continue  # deleted meanwhile
            if log.segment_count == 1 or not log.config.compacts or log.has_failed or log in tried:
                continue
            dirt = find_dirty_part(log, self._clean_offsets.get(self._keys[log]), now)
            if (
                dirt is not None
                and dirt.is_due(log.config)
                and (dirtiest is None or dirt.ratio > dirtiest[1].ratio)
            ):
                dirtiest = log, dirt
        return dirtiest

    def close(self, broker_epoch: int = NO_EPOCH) -> None:
        """Closes every log and the storage, and marks the directory as cleanly closed.

        Args:
            broker_epoch: the current broker epoch.

        Raises:
            StorageError: a log could not be flushed. The others are closed all the same, and the
                next run recovers the logs.
        """
        try:
            try:
                self._for_each(self._logs.values(), Log.close)
            finally:
                self._note_checkpoints(self._logs.values())
                for key, log in self._logs.items():
                    if not log.has_failed:
                        self._recovery_points.set(key, log.recovery_point)
                self._write_checkpoints()
                self.checkpoint_high_watermarks()
            if self._is_clean():
                sign = json.dumps({"version": 0, "brokerEpoch": broker_epoch})
                self._storage.write_file(_CLEAN_SHUTDOWN, sign.encode("ascii"))
        finally:
            self._logs.clear()
            self._keys.clear()
            self._storage.close()

    def _is_clean(self) -> bool:
        """Whether every log is known to be complete on disk. After a crash, a log that has not been
        opened since may need recovery."""
        if any(log.has_failed for log in self._logs.values()):
            return False
        return self._clean or all(key in self._logs for key in self.stored_partitions())

    def _note_checkpoints(self, logs: Iterable[Log]) -> None:
        for log in logs:
            key = self._keys.get(log)
            if key is not None:  # not deleted meanwhile
                # Not within the active segment: its indexes are on disk only after `close`.
                self._recovery_points.set(key, min(log.recovery_point, log.active_base_offset))
        self._note_starts(logs)

    def _note_starts(self, logs: Iterable[Log]) -> None:
        for log in logs:
            key = self._keys.get(log)
            if key is not None:
                begins_within = log.log_start_offset > log.first_base_offset
                self._log_start_offsets.set(key, log.log_start_offset if begins_within else 0)

    def _write_checkpoints(self) -> None:
        self._recovery_points.write()
        self._log_start_offsets.write()

    def _begin(self, log: Log) -> None:
        """Before a new log's first file is written: create its directory with the topic id."""
        if log in self._new:
            # Checkpoints of an earlier log of that name must not apply to this one.
            for checkpoint in self._checkpoints:
                checkpoint.make_forgotten()
            self._write_topic_id(log.directory, self._new[log])
            self._names.add(log.directory)
            del self._new[log]

    def _lower_checkpoints(self, log: Log, offset: int) -> None:
        """Before a log is truncated: lower its checkpoints on disk to `offset`."""
        key = self._keys[log]
        for checkpoint in (self._recovery_points, self._log_start_offsets, self._clean_offsets):
            if offset < checkpoint.get(key):
                checkpoint.set(key, offset)
                checkpoint.write()

    def note_loss(self) -> None:
        """A log has failed or lost records: delete the file that would prove the opposite."""
        self.has_lost = self._must_delete_life = True
        with suppress(StorageError):  # the next checkpoint tries again
            self._storage.delete(_LIFE)
            self._must_delete_life = False

    def _for_each(self, logs: Iterable[Log], act: Callable[[Log], None]) -> None:
        """Calls `act` with every log, even if one fails; then raises the first failure."""
        failure: StorageError | None = None
        for log in logs:
            try:
                act(log)
            except StorageError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _delete_renamed(self) -> None:
        """Deletes the directories of deleted logs, once their new names survive a loss of power.
        Otherwise one could bring back half of a log under its old name."""
        if not self._renamed:
            return
        self._flush_names()
        while self._renamed:
            self._storage.delete(self._renamed[-1])
            self._renamed.pop()
            await asyncio.sleep(0)

    def _flush_names(self) -> None:
        """Makes the names in this directory survive a loss of power."""
        self._storage.write_file(_PROBE, b"")
        self._storage.delete(_PROBE)

    def _move_away(self, key: TopicPartition, suffix: str) -> str:
        suffix = f".{self._random.randbytes(16).hex()}{suffix}"
        directory = str(key)[: _MAX_NAME - len(suffix)] + suffix
        self._storage.rename(str(key), directory)
        self._names.discard(str(key))
        self._forget(key)
        return directory

    def _forget(self, key: TopicPartition) -> None:
        for checkpoint in self._checkpoints:
            checkpoint.set(key, 0)

    def _stored_topic_id(self, name: str) -> bytes | None:
        """The topic id in a log's directory; None if a crash happened before it was written."""
        content = self._storage.read_file(f"{name}/{_PARTITION_METADATA}")
        text = read_properties(content or b"", ": ").get("topic_id")
        return None if text is None else decode_uuid(text)

    def _write_topic_id(self, name: str, topic_id: bytes) -> None:
        content = f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode("ascii")
        path = f"{name}/{_PARTITION_METADATA}"
        # No fsync, so that ten thousand stay cheap; `open_log` writes a missing file again.
        self._storage.write_file(path, content, durable=False)


def _read_json(content: bytes | None) -> dict[str, Any]:
    """The JSON object in `.kafka_cleanshutdown` (Kafka's `CleanShutdownFileHandler`) or
    `.trimtab_life`; empty if it is damaged."""
    try:
        found = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
