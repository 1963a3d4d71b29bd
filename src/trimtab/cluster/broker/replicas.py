"""The replicas that a broker holds: each leads or follows as the metadata say.

    metadata ─▶ Replicas ─┬▶ Partition ─▶ log
                          ├▶ IsrProposals: what leaders ask the controller for
                          └▶ Replication: what followers fetch

Source: Kafka's `ReplicaManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.isr_proposals import IsrProposals
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replication import Replication
from trimtab.cluster.broker.replication_quota import ReplicationQuota
from trimtab.cluster.broker.traffic import Traffic
from trimtab.cluster.metadata.image import PartitionRegistration, TopicImage
from trimtab.cluster.metadata.replayed import refuse_other_history
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.options import Config
from trimtab.kafka.wire.sentinels import NO_BROKER, NO_EPOCH

_PARTITIONS_PER_STEP = 100
"""Partitions that are opened, dropped or reviewed before other tasks run."""

_log = logging.getLogger(__name__)


class Replicas:
    """This broker's replicas and its log directory.

    Args:
        broker_epoch: returns this broker's current epoch.
        now_ms: wall time in milliseconds.
        stop: called once the log directory has failed. It may only note that and act later, as the
            caller of `disk_failed` may still have to answer a request.
        changed: called with a partition that leads or follows as new metadata say, or was dropped.

    Attributes:
        partitions: by topic and index.
        offline: the partitions whose logs could not be opened.
        traffic: what was counted of records.
        follows_metadata: set when the partitions are opened; from then on they follow the metadata.
        failure: why the log directory has failed; None while it works.
    """

    def __init__(
        self,
        view: ClusterView,
        logs: LogDirectory,
        proposals: IsrProposals,
        broker_epoch: Callable[[], int],
        now_ms: Callable[[], int],
        stop: Callable[[StorageError], None],
        changed: Callable[[Partition], None],
    ) -> None:
        self.id = view.id
        self.view = view
        self.logs = logs
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.offline: dict[tuple[str, int], None] = {}
        self.traffic = Traffic()
        self.follows_metadata = False
        self.failure: StorageError | None = None
        self.time = asyncio.get_running_loop().time
        self.propose_isr = proposals.submit
        self._proposals = proposals
        self._replication = Replication(self, view, broker_epoch)
        self._leader_quota = ReplicationQuota()
        self._now_ms = now_ms
        self._stop = stop
        self._changed = changed
        self._last_config: tuple[str, Config, LogConfig] | None = None

    # -- called by handlers

    def find_replica(self, topic: str, index: int) -> Partition:
        """This broker's replica of a partition, whichever broker leads it.

        Raises:
            Refused: the partition does not exist, this broker has no replica of it, or the log or
                its directory has failed.
        """
        partition = self.partitions.get((topic, index))
        if partition is not None and self.failure is None:
            return partition
        if self.failure is not None or (topic, index) in self.offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR)
        image = self.view.image.topics.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def find_partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads.

        Raises:
            Refused: as `find_replica`, or another broker leads it.
        """
        partition = self.find_replica(topic, index)
        if partition.leadership is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def is_leader_quota_exceeded(self) -> bool:
        """Whether throttled followers got more than `leader.replication.throttled.rate` from this
        broker."""
        rate = self.view.config.integer("leader.replication.throttled.rate")
        return self._leader_quota.is_exceeded(rate, self.time())

    def record_throttled_sent(self, size: int) -> None:
        """Count `size` bytes sent to a throttled follower."""
        self._leader_quota.record(size, self.time())

    def checkpoint_starts(self) -> bool:
        """Write the log start offsets to disk; False if the disk failed."""
        try:
            self.logs.checkpoint_starts()
        except StorageError as error:
            _log.error("cannot checkpoint log start offsets broker=%d error=%s", self.id, error)
            self.disk_failed(error)
            return False
        return True

    def disk_failed(self, error: StorageError) -> None:
        """A file could not be read or written. If `error.fails_directory`, the log directory has
        failed, and so has this broker, which has no other directory: it acknowledges nothing more
        and stops (Kafka's `ReplicaManager.handleLogDirFailure`)."""
        if self.failure is not None or not error.fails_directory:
            return
        self.failure = error
        _log.critical(
            "the log directory has failed; this broker stops broker=%d directory=%s error=%s",
            self.id,
            self.view.config.words("log.dirs") or "",
            error,
        )
        self._stop(error)

    # -- called by partitions (`Host`)

    @property
    def lag_limit_s(self) -> float:
        return self.view.config.seconds("replica.lag.time.max.ms")

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that broker, with that broker epoch, may be in an ISR."""
        registration = self.view.image.brokers.get(broker_id)
        return (
            registration is not None
            and registration.is_active
            and broker_epoch in (NO_EPOCH, registration.epoch)
        )

    def choose_replica(self, partition: Partition, rack: str, offset: int) -> int:
        """The id of the in-sync replica in the consumer's rack that has `offset` and the highest
        log end offset; -1 for the leader, if it is in that rack or there is no such replica
        (Kafka's `RackAwareReplicaSelector`, KIP-392)."""
        selector = self.view.config.optional_text("replica.selector.class")
        if not selector or not selector.endswith("RackAwareReplicaSelector"):
            return -1
        brokers = self.view.image.brokers
        own = brokers.get(self.id)
        if own is None or own.rack == rack:
            return -1
        assert partition.leadership is not None
        near = [
            (follower.end_offset, -broker_id)
            for broker_id, follower in partition.leadership.followers.items()
            if (registration := brokers.get(broker_id)) is not None
            and registration.rack == rack
            and registration.is_active
            and broker_id in partition.leadership.isr
            and follower.log_start_offset <= offset <= follower.end_offset
        ]
        return -max(near)[1] if near else NO_BROKER

    # -- following the metadata

    async def open_all(self) -> None:
        """Open the partitions that the metadata have here, and set other logs aside.

        Raises:
            CorruptData: a log is ahead of the controller's metadata.
            StorageError: the log directory has failed.
        """
        await self.apply_all()
        if self.failure is None:  # otherwise logs that were not opened would count as strays
            self._set_aside_strays()
        if self.failure is not None:
            raise self.failure

    async def apply_all(self) -> None:
        """Configure all partitions; lead, follow or drop each as the metadata say."""
        self.follows_metadata = True
        topics = self.view.image.topics
        for name in topics:
            self.configure(name)
        await self.apply(
            [
                (topic.id, partition.id)
                for topic in topics.values()
                for partition in topic.partitions
                if self.id in partition.replicas or (topic.name, partition.id) in self.partitions
            ]
        )

    async def apply(self, changed: Iterable[tuple[bytes, int]]) -> None:
        """Lead, follow or drop these partitions, by topic id and index, as the metadata say. The
        options must not change before this returns."""
        self._last_config = None
        for number, (topic_id, index) in enumerate(changed, 1):
            if self.failure is not None:
                return
            topic = self.view.image.topics_by_id[topic_id]
            self._apply(topic, topic.partitions[index])
            if not number % _PARTITIONS_PER_STEP:
                await asyncio.sleep(0)

    def configure(self, topic: str) -> None:
        """Apply a topic's options to its partitions."""
        self._last_config = None
        image = self.view.image.topics.get(topic)
        for registration in image.partitions if image is not None else ():
            partition = self.partitions.get((topic, registration.id))
            if partition is not None:
                values, partition.log.config = self._topic_config(topic)
                partition.configure(values)

    async def drop_topic(self, topic: TopicImage) -> None:
        """The topic was deleted: delete its logs here."""
        for number, registration in enumerate(topic.partitions, 1):
            self._drop(topic.name, registration.id)
            if not number % _PARTITIONS_PER_STEP:
                await asyncio.sleep(0)

    def reconnect(self, broker_id: int) -> None:
        """That broker may have another address, or has restarted: fetch over a new connection."""
        self._replication.reconnect(broker_id)

    def _apply(self, topic: TopicImage, registration: PartitionRegistration) -> None:
        """Lead, follow or drop one partition."""
        key = (topic.name, registration.id)
        partition = self.partitions.get(key)
        if self.id not in registration.replicas:
            if partition is not None:
                self._drop(*key)
            return
        if partition is None:
            partition = self._open(topic, registration)
            if partition is None:
                return
        if registration.leader == self.id:
            self._replication.leave(partition)
            partition.lead(registration)
        else:
            partition.follow(registration)
            self._replication.follow(partition)
        self._changed(partition)

    def _open(self, topic: TopicImage, registration: PartitionRegistration) -> Partition | None:
        key = (topic.name, registration.id)
        values, log_config = self._topic_config(topic.name)
        try:
            log = self.logs.open_log(topic.name, registration.id, topic.id, log_config)
        except (StorageError, CorruptData) as error:
            _log.error(
                "partition is offline broker=%d partition=%s-%d error=%s", self.id, *key, error
            )
            self.offline[key] = None
            if isinstance(error, StorageError):
                self.disk_failed(error)
            return None
        if log.epochs.latest > registration.leader_epoch and not log.epochs.is_confirmed:
            _log.error(
                "the last batch is damaged: its leader epoch is above the controller's broker=%d "
                "partition=%s-%d epoch=%d",
                self.id,
                *key,
                log.epochs.latest,
            )
            log.epochs.forget_after(registration.leader_epoch)
        if log.epochs.latest > registration.leader_epoch:
            self.follows_metadata = False  # so that nothing is written to the logs
            raise refuse_other_history(
                self.id,
                f"the log of {topic.name}-{registration.id} has leader epoch {log.epochs.latest}, "
                f"and the controller knows {registration.leader_epoch}",
            )
        partition = self.partitions[key] = Partition(
            self,
            topic.name,
            topic.id,
            registration._replace(leader_epoch=NO_EPOCH),
            log,
            values,
            self._now_ms,
            self.traffic.add_replica(topic.name),
        )
        return partition

    def _topic_config(self, topic: str) -> tuple[Config, LogConfig]:
        """The options of a topic on this broker, and of its logs."""
        last = self._last_config
        if last is None or last[0] != topic:  # partitions come topic by topic
            values = self.view.topic_config(topic)
            expiration_ms = self.view.config.integer("producer.id.expiration.ms")
            most = self.view.config.integer("producer.ids.max")
            config = LogConfig.read(values, expiration_ms, most)
            last = self._last_config = topic, values, config
        return last[1], last[2]

    def _drop(self, topic: str, index: int) -> None:
        key = (topic, index)
        self.offline.pop(key, None)
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self._replication.leave(partition)
            partition.retire()
            self._changed(partition)
            self.traffic.drop_replica(topic)
        try:
            self.logs.delete_log(*key)
        except StorageError as error:
            # The metadata does not have it any more; a new topic of the same name will remove it.
            _log.error(
                "cannot delete a log broker=%d partition=%s-%d error=%s", self.id, *key, error
            )
            self.disk_failed(error)

    def _set_aside_strays(self) -> None:
        try:
            for directory in self.logs.set_aside_strays(self.offline):
                _log.warning(
                    "set aside the log of a partition that the cluster does not have here; delete "
                    "it if nobody needs it broker=%d directory=%s",
                    self.id,
                    directory,
                )
        except StorageError as error:
            _log.error("cannot set aside logs broker=%d error=%s", self.id, error)
            self.disk_failed(error)

    # -- upkeep and end

    async def review_isrs(self) -> None:
        """Propose other ISRs where followers lag, or may join."""
        for number, partition in enumerate(tuple(self.partitions.values()), 1):
            partition.review_isr()
            if not number % _PARTITIONS_PER_STEP:
                await asyncio.sleep(0)

    def log_start_moved(self, partition: Partition) -> None:
        """Upkeep has deleted the oldest records of a partition."""
        partition.notify_changed()
        if not partition.is_leader:
            self._replication.follow(partition)  # to report its log start offset

    def abort(self) -> list[asyncio.Task[None]]:
        """Fetch and propose nothing more; returns the tasks that are about to end."""
        return [*self._proposals.abort(), *self._replication.abort()]

    def retire(self) -> None:
        """Lead no more: fail the requests that wait."""
        for partition in self.partitions.values():
            partition.retire()
