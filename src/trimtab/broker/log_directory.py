"""A broker's data directory: its logs, and what it remembers of them from one run to the next.

    meta.properties                      whose directory this is
    recovery-point-offset-checkpoint     up to where each log is on disk for certain
    log-start-offset-checkpoint          where each log begins, if records were deleted before that
    .kafka_cleanshutdown                 the last run closed every log: nothing needs recovery
    <topic>-<partition>/                 a log, and in `partition.metadata` its topic's id
    <topic>-<partition>.<id>-delete/     a log whose deletion a crash has interrupted

Names and formats are those of Kafka's `LogManager`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from random import Random

from trimtab.broker.log import Log, LogConfig
from trimtab.broker.storage import Storage, StorageError
from trimtab.errors import CorruptData, UsageError
from trimtab.records import TopicPartition

_META = "meta.properties"
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_LOG_START_OFFSETS = "log-start-offset-checkpoint"
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_PARTITION_METADATA = "partition.metadata"
_CONTROLLER_TOPIC = "__cluster_metadata"
_DELETE_SUFFIX = "-delete"
_MAX_NAME = 255


class LogDirectory:
    """A broker's logs. `LogDirectory.open` makes one.

    Attributes:
        directory_id: 16 bytes, this directory's identity (KIP-858).
    """

    def __init__(
        self,
        storage: Storage,
        directory_id: bytes,
        now_ms: Callable[[], int],
        random: Random,
        clean: bool,
    ) -> None:
        self.directory_id = directory_id
        self._storage = storage
        self._now_ms = now_ms
        self._random = random
        self._clean = clean
        self._logs: dict[TopicPartition, Log] = {}
        self._names = set(storage.list(""))
        self._recovery_points = _read_checkpoint(storage, _RECOVERY_POINTS)
        self._log_start_offsets = _read_checkpoint(storage, _LOG_START_OFFSETS)

    @classmethod
    def open(
        cls,
        storage: Storage,
        *,
        node_id: int,
        cluster_id: str,
        now_ms: Callable[[], int],
        random: Random,
    ) -> LogDirectory:
        """The data directory in a storage: a new one if it is empty. Opens no log yet.

        Args:
            now_ms: the wall clock, ms since the epoch.
            random: makes up ids.

        Raises:
            UsageError: it belongs to another broker or cluster, or is in use.
            CorruptData: a checkpoint cannot be read.
            StorageError: the disk failed.
        """
        storage.lock()
        try:
            directory_id = _identify(storage, node_id, cluster_id, random)
            clean = storage.exists(_CLEAN_SHUTDOWN)
            # A crash from now on leaves logs that need recovery.
            storage.delete(_CLEAN_SHUTDOWN)
            for name in storage.list(""):
                if name.endswith(_DELETE_SUFFIX):
                    storage.delete(name)
            return cls(storage, directory_id, now_ms, random, clean)
        except BaseException:
            storage.close()
            raise

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs that are open."""
        return self._logs

    def stored_partitions(self) -> Iterator[TopicPartition]:
        """Every partition that has a directory here, open or not, in no order; not the
        controller's, whose log may lie beside them."""
        for name in self._names:
            topic, _, partition = name.rpartition("-")
            if topic and topic != _CONTROLLER_TOPIC and partition.isdecimal():
                yield TopicPartition(topic, int(partition))

    def open_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> Log:
        """A partition's log: opened, recovered if need be, or created.

        A directory that an older topic of the same name has left is deleted first.

        Args:
            topic_id: 16 bytes.

        Raises:
            StorageError: the disk failed.
        """
        key = TopicPartition(topic, partition)
        if key in self._logs:
            raise UsageError(f"the log of {key} is open already; close or delete it first")
        name = str(key)
        if name in self._names:
            stored_id = self._stored_topic_id(name)
            if stored_id is not None and stored_id != topic_id:
                self._delete_directory(key)
        if name not in self._names:
            self._forget(key)
            stored_id = None
        if stored_id is None:
            self._write_topic_id(name, topic_id)
            self._names.add(name)
        log = self._logs[key] = Log.open(
            self._storage,
            name,
            config,
            self._now_ms,
            log_start_offset=self._log_start_offsets.get(key, 0),
            recovery_point=self._recovery_points.get(key, 0),
            clean=self._clean,
        )
        return log

    def delete_log(self, topic: str, partition: int) -> None:
        """Deletes a partition's log with its files, open or not. None there is no error."""
        key = TopicPartition(topic, partition)
        log = self._logs.pop(key, None)
        if log is not None:
            log.abandon()
        if str(key) in self._names:
            self._delete_directory(key)

    async def checkpoint(self) -> None:
        """Flushes what has been rolled since the last time, without holding up the loop, and
        writes the checkpoints. To be called once a minute or so
        (`log.flush.offset.checkpoint.interval.ms`).

        Raises:
            StorageError: the disk failed; the checkpoints are as they were.
        """
        for log in list(self._logs.values()):
            paths, recovery_point = log.sealed_unflushed()
            if paths:
                await self._storage.flush(paths)
                log.recovery_point = max(log.recovery_point, recovery_point)
        # Within a segment a recovery point only counts once the log is closed: the indexes on
        # disk end there too.
        self._write_checkpoints(lambda log: min(log.recovery_point, log.active_base_offset))

    def flush_due(self) -> None:
        """Flushes the logs for which `flush.ms` says so; `append` itself does for busy ones."""
        for log in self._logs.values():
            log.flush_if_due()

    def enforce_retention(self) -> int:
        """Deletes old segments of all logs, and forgets producers that have expired. Returns the
        number of segments deleted. To be called every `log.retention.check.interval.ms`."""
        now = self._now_ms()
        deleted = 0
        for log in self._logs.values():
            deleted += log.enforce_retention()
            log.producers.expire(now)
        return deleted

    def close(self) -> None:
        """Closes every log and the storage, and leaves the sign that all is well.

        Raises:
            StorageError: a log could not be flushed. The others are closed all the same, and the
                next run recovers.
        """
        failure: StorageError | None = None
        try:
            for log in self._logs.values():
                try:
                    log.close()
                except StorageError as error:
                    failure = failure or error
            self._write_checkpoints(lambda log: log.recovery_point)
            if failure is not None:
                raise failure
            if self._all_whole():
                self._storage.write_file(_CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}')
        finally:
            self._logs.clear()
            self._storage.close()

    def _all_whole(self) -> bool:
        """Whether every log is known to be on disk as it should be. After a crash, one that has
        not been opened since is not."""
        if any(log.has_failed for log in self._logs.values()):
            return False
        return self._clean or all(key in self._logs for key in self.stored_partitions())

    def _write_checkpoints(self, recovery_point_of: Callable[[Log], int]) -> None:
        recovery_points = dict(self._recovery_points)
        log_start_offsets = dict(self._log_start_offsets)
        for key, log in self._logs.items():
            recovery_points[key] = recovery_point_of(log)
            if log.log_start_offset > log.first_base_offset:
                log_start_offsets[key] = log.log_start_offset
            else:
                log_start_offsets.pop(key, None)
        if recovery_points != self._recovery_points:
            _write_checkpoint(self._storage, _RECOVERY_POINTS, recovery_points)
            self._recovery_points = recovery_points
        if log_start_offsets != self._log_start_offsets:
            _write_checkpoint(self._storage, _LOG_START_OFFSETS, log_start_offsets)
            self._log_start_offsets = log_start_offsets

    def _delete_directory(self, key: TopicPartition) -> None:
        """Renames first: a crash must not leave half a log under its name."""
        suffix = f".{self._random.randbytes(16).hex()}{_DELETE_SUFFIX}"
        doomed = str(key)[: _MAX_NAME - len(suffix)] + suffix
        self._storage.rename(str(key), doomed)
        self._names.discard(str(key))
        self._forget(key)
        self._storage.delete(doomed)

    def _forget(self, key: TopicPartition) -> None:
        self._recovery_points.pop(key, None)
        self._log_start_offsets.pop(key, None)

    def _stored_topic_id(self, name: str) -> bytes | None:
        """The topic id in a log's directory; None if a crash came before it was written."""
        content = self._storage.read_file(f"{name}/{_PARTITION_METADATA}")
        text = _read_properties(content or b"", ": ").get("topic_id")
        return None if text is None else _decode_uuid(text)

    def _write_topic_id(self, name: str, topic_id: bytes) -> None:
        content = f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode("ascii")
        path = f"{name}/{_PARTITION_METADATA}"
        # No fsync: a directory without it is as good as new, and ten thousand must stay cheap.
        self._storage.write_file(path, content, durable=False)


def encode_uuid(uuid: bytes) -> str:
    """Kafka's text for a UUID: 22 characters of URL-safe Base64."""
    return b64encode(uuid, b"-_").decode("ascii").rstrip("=")


def _decode_uuid(text: str) -> bytes | None:
    try:
        uuid = b64decode(text + "==", b"-_", validate=True)
    except ValueError:
        return None
    return uuid if len(uuid) == 16 else None


def _identify(storage: Storage, node_id: int, cluster_id: str, random: Random) -> bytes:
    """Checks that the directory is this broker's, or makes it so; returns the directory's id."""
    meta = _read_properties(storage.read_file(_META) or b"", "=")
    for name, ours in (("node.id", str(node_id)), ("cluster.id", cluster_id)):
        theirs = meta.get(name, ours)
        if theirs != ours:
            raise UsageError(
                f"{_META} says {name}={theirs}, but this broker has {name}={ours}; "
                "choose the data directory that belongs to it, or an empty one"
            )
    directory_id = _decode_uuid(meta.get("directory.id", ""))
    if directory_id is not None and {"node.id", "cluster.id"} <= meta.keys():
        return directory_id
    directory_id = random.randbytes(16)
    lines = (
        "#",
        f"node.id={node_id}",
        f"directory.id={encode_uuid(directory_id)}",
        "version=1",
        f"cluster.id={cluster_id}",
        "",
    )
    storage.write_file(_META, "\n".join(lines).encode("utf-8"))
    return directory_id


def _read_properties(content: bytes, separator: str) -> dict[str, str]:
    properties = {}
    for line in content.decode("utf-8", "replace").splitlines():
        name, found, value = line.partition(separator)
        if found and not name.startswith("#"):
            properties[name.strip()] = value.strip()
    return properties


def _read_checkpoint(storage: Storage, path: str) -> dict[TopicPartition, int]:
    """A checkpoint file: version 0, the number of entries, and an entry a line.

    Raises:
        CorruptData: it is something else. To go on without it would be to lose records.
    """
    content = storage.read_file(path)
    if content is None:
        return {}
    try:
        version, count, *lines = content.decode("utf-8").splitlines()
        entries = {}
        for line in lines:
            topic, partition, offset = line.split(" ")
            entries[TopicPartition(topic, int(partition))] = int(offset)
        if version != "0" or int(count) != len(entries):
            raise ValueError(f"version {version}, {count} entries announced, {len(entries)} found")
    except ValueError as error:
        raise CorruptData(
            f"{path}: {error}; delete the file to have every log checked from its start"
        ) from error
    return entries


def _write_checkpoint(storage: Storage, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    lines = ["0", str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    storage.write_file(path, "\n".join([*lines, ""]).encode("utf-8"))
