"""One broker: its listener, its replicas, and its image of the cluster's metadata.

controller's log ─▶ MetadataFollower ─▶ replay ─▶ image ─▶ partitions to lead and to follow
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any, cast

from trimtab import config
from trimtab.broker.controller_link import ControllerLink
from trimtab.broker.fetch_session_cache import FetchSessionCache
from trimtab.broker.handlers import HANDLERS
from trimtab.broker.handlers.auto_creation import RefusedCreations
from trimtab.broker.isr_proposals import IsrProposals
from trimtab.broker.lifecycle import Lifecycle
from trimtab.broker.metadata_follower import MetadataFollower
from trimtab.broker.partition import Partition
from trimtab.broker.refused import Refused
from trimtab.broker.replication import Replication
from trimtab.broker.replication_quota import ReplicationQuota
from trimtab.config import BROKER
from trimtab.config.node import format_address
from trimtab.errors import CorruptData, ErrorCode
from trimtab.metadata.image import (
    CONFIG_BROKER,
    CONFIG_TOPIC,
    BrokerRegistration,
    ClusterImage,
    PartitionRegistration,
    TopicImage,
)
from trimtab.metadata.replayed import read_replayed, refuse_other_history, write_replayed
from trimtab.server.listener import Listener
from trimtab.server.peer import PeerLost
from trimtab.storage.log_config import LogConfig
from trimtab.storage.log_directory import LogDirectory
from trimtab.storage.storage import Storage, StorageError
from trimtab.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from trimtab.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from trimtab.wire.sentinels import NO_BROKER, NO_EPOCH

_PARTITIONS_PER_STEP = 100
"""Partitions that are opened or dropped before other tasks run."""

_RECORDS_PER_STEP = 1000
_SHUTDOWN_TIMEOUT_S = 5.0
_PRODUCER_IDS_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class Broker:
    """Leads and follows the partitions that the cluster's metadata assigns to it.

    Call `bind`, then `start`.

    Args:
        broker_id: the same at every start.
        cluster_id: the id of its cluster.
        storage: the directory of its logs.
        controller: host and port of the controller.
        options: broker options (`trimtab.config.BROKER`), dotted or in snake case.
        now_ms: wall time in milliseconds.
        random: draws the ids of a new log directory, of this incarnation and of fetch sessions.

    Attributes:
        failed: set once it cannot continue and has been aborted.

    Raises:
        StorageError: the log directory cannot be read.
        UsageError: an option is unknown or has a bad value; the directory is in use, or belongs to
            another broker or cluster.
    """

    def __init__(
        self,
        broker_id: int,
        cluster_id: str,
        storage: Storage,
        controller: tuple[str, int],
        options: Mapping[str, object],
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        self.id = broker_id
        self.cluster_id = cluster_id
        self.given = config.read_given(BROKER, options)
        self.config = config.read(BROKER, options)
        self.image = ClusterImage()
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._storage = storage
        self.logs = LogDirectory.open(
            storage, node_id=broker_id, cluster_id=cluster_id, now_ms=now_ms, random=random
        )
        self._offline: dict[tuple[str, int], None] = {}
        self._last_topic_config: tuple[str, dict[str, config.Value], LogConfig] | None = None
        self._producer_ids = iter(range(0))
        self.listener = Listener(
            broker_id,
            {key: partial(handler, self) for key, handler in HANDLERS.items()},
            self.config,
        )
        self.fetch_sessions = FetchSessionCache(
            cast(int, self.config["max.incremental.fetch.session.cache.slots"]), random
        )
        self.refused_creations = RefusedCreations()
        name = f"broker-{broker_id}"
        self.controller = ControllerLink(*controller, name)
        self._links = [
            self.controller,
            lifecycle_link := ControllerLink(*controller, f"{name}-lifecycle"),
            metadata_link := ControllerLink(*controller, f"{name}-metadata"),
            proposals_link := ControllerLink(*controller, f"{name}-isr"),
        ]
        self._written_replayed = read_replayed(storage), True
        self.metadata = MetadataFollower(self, metadata_link, self._written_replayed[0])
        self.lifecycle = Lifecycle(
            broker_id,
            cluster_id,
            lifecycle_link,
            lambda: self.metadata.next_offset - 1,
            [self.logs.directory_id],
            cast(int, self.config["broker.heartbeat.interval.ms"]) / 1000,
            random,
        )
        self._proposals = IsrProposals(broker_id, lambda: self.epoch, proposals_link)
        self._replication = Replication(self)
        self.failed = asyncio.Event()
        self._failure: StorageError | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._leader_quota = ReplicationQuota()
        self._follower_quota = ReplicationQuota()
        self._applies_metadata = False
        self._replaying = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def epoch(self) -> int:
        """The broker epoch; -1 before the controller has registered this broker."""
        return self.lifecycle.epoch

    @property
    def controller_id(self) -> int:
        """The controller id in Metadata responses: this broker, which forwards requests."""
        return self.id

    # -- life

    async def bind(self, host: str, port: int) -> int:
        """Bind the address, without serving yet; returns the port, as `port` may be 0.

        Raises:
            OSError: the address is taken.
        """
        bound = await self.listener.bind(host, port)
        self._set_default_address("listeners", host, bound)
        return bound

    async def start(self, host: str, port: int) -> None:
        """Join the cluster with this address; clients are served when this returns.

        Waits without limit for the controller.

        Raises:
            CorruptData: the controller's log cannot be replayed, or is not the one that this broker
                has followed before; no file of the broker was changed.
            StorageError: the disk failed.
            UsageError: the controller refuses this broker.
        """
        self._set_default_address("advertised.listeners", host, port)
        following = asyncio.ensure_future(self.metadata.run())
        self._tasks.append(following)
        joining = asyncio.ensure_future(self._join(host, port))
        failing = asyncio.ensure_future(self.failed.wait())
        try:
            await asyncio.wait((following, joining, failing), return_when=asyncio.FIRST_COMPLETED)
            if self._failure is not None:
                raise self._failure
            if following.done():
                following.result()
        finally:
            failing.cancel()
            if not joining.done():
                joining.cancel()
            await asyncio.gather(failing, joining, return_exceptions=True)
        joining.result()
        following.add_done_callback(self._metadata_ended)

    def _set_default_address(self, name: str, host: str, port: int) -> None:
        """Set an address option to this broker's address, unless it was given."""
        if not self.given.get(name):
            self.given[name] = (f"PLAINTEXT://{format_address(host, port)}",)

    async def _join(self, host: str, port: int) -> None:
        rack = cast("str | None", self.config["broker.rack"])
        await self.lifecycle.register(host, port, rack, self.logs.previous_epoch)
        if self.epoch <= self._written_replayed[0].base_offset:
            raise refuse_other_history(
                self.id,
                f"this one ends at offset {self.epoch}, and the broker has replayed up to "
                f"{self._written_replayed[0].base_offset}",
            )
        self.logs.write_epoch(self.epoch)
        await self.metadata.reach(self.epoch + 1)
        async with self._replaying:
            await self._apply_all()
            if self._failure is None:  # otherwise logs that were not opened would count as strays
                self._set_aside_strays()
        if self._failure is not None:
            raise self._failure
        if self.logs.previous_epoch >= 0 and (self.logs.has_lost or self._offline):
            # This broker must not be elected for records that it has lost (KIP-966).
            _log.error("a log has lost records or cannot be opened broker=%d", self.id)
            await self.lifecycle.register_with_loss()
            self.logs.write_epoch(self.epoch)
            await self.metadata.reach(self.epoch + 1)
        await self.listener.start()
        self.lifecycle.start()
        for interval_s, upkeep in (
            (self._interval_s("log.flush.offset.checkpoint.interval.ms"), self._checkpoint),
            (
                self._interval_s("replica.high.watermark.checkpoint.interval.ms"),
                self._checkpoint_high_watermarks,
            ),
            (self._interval_s("log.flush.scheduler.interval.ms"), self._flush_due),
            (self._interval_s("log.retention.check.interval.ms"), self._enforce_retention),
            (self._interval_s("log.cleaner.backoff.ms"), self._compact),
            (self.lag_limit_s / 2, self._review_isrs),
        ):
            if interval_s:
                self._tasks.append(asyncio.create_task(self._repeat(interval_s, upkeep)))
        await self.lifecycle.unfenced.wait()
        # So that Metadata responses include this broker. An operator may unregister it any time.
        while (own := self.image.brokers.get(self.id)) is None or own.fenced:
            await self.metadata.advance()

    def _set_aside_strays(self) -> None:
        try:
            for directory in self.logs.set_aside_strays(self._offline):
                _log.warning(
                    "set aside the log of a partition that the cluster does not have here; delete "
                    "it if nobody needs it broker=%d directory=%s",
                    self.id,
                    directory,
                )
        except StorageError as error:
            _log.error("cannot set aside logs broker=%d error=%s", self.id, error)
            self.disk_failed(error)

    def _interval_s(self, option: str) -> float:
        """The interval in seconds; 0 for never."""
        interval_ms = cast(int, self.config[option])
        return interval_ms / 1000 if 0 < interval_ms < config.INT_MAX else 0

    def _metadata_ended(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.critical(
                "cannot replay the controller's log any more broker=%d",
                self.id,
                exc_info=task.exception(),
            )
            self.abort()
            self.failed.set()

    async def close(self, hand_over: bool = True) -> None:
        """Leave the cluster, send the pending responses, close the connections and the logs.

        Args:
            hand_over: first have the controller move the leaders to other brokers (controlled
                shutdown).

        Raises:
            StorageError: the disk failed; the next run recovers the logs.
        """
        if self._stopping is not None:
            await asyncio.gather(self._stopping, *self._tasks, return_exceptions=True)
            await self._proposals.close()
            await self._replication.close()
            self._storage.close()  # not the logs: they must not be marked as closed cleanly
            return
        if hand_over and self._applies_metadata and self.config["controlled.shutdown.enable"]:
            await self.lifecycle.shut_down(_SHUTDOWN_TIMEOUT_S)
        await self.lifecycle.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._proposals.close()
        await self._replication.close()
        for partition in self.partitions.values():
            partition.retire()
        await self.listener.close()
        for link in self._links:
            link.close()
        if self._applies_metadata:
            self._write_replayed(durable=True)
            self.logs.close(self.epoch)
        else:
            # The logs may not have been opened, so they must not be marked as closed cleanly.
            self._storage.close()

    def abort(self) -> None:
        """Stop at once, like a killed process: write no file and send nothing."""
        self.lifecycle.abort()
        if self._stopping is not None:
            self._stopping.cancel()
        for task in self._tasks:
            task.cancel()
        self._proposals.abort()
        self._replication.abort()
        self.listener.abort()
        for link in self._links:
            link.close()

    def disk_failed(self, error: StorageError) -> None:
        """A file could not be read or written. If `error.fails_directory`, the log directory has
        failed, and so has this broker, which has no other directory: it acknowledges nothing more,
        reports to the controller, so that other brokers become leaders, and sets `failed` (Kafka's
        `ReplicaManager.handleLogDirFailure`)."""
        if self._failure is not None or not error.fails_directory:
            return
        self._failure = error
        _log.critical(
            "the log directory has failed; this broker stops broker=%d directory=%s error=%s",
            self.id,
            cast("tuple[str, ...] | None", self.config["log.dirs"]) or "",
            error,
        )
        # Later, as the caller may still have to answer a request.
        self._stopping = asyncio.ensure_future(self._stop_after_failure(error))

    async def _stop_after_failure(self, error: StorageError) -> None:
        self.listener.abort()
        for task in self._tasks:
            task.cancel()
        self._proposals.abort()
        self._replication.abort()
        is_lost = not error.is_disk_full
        if is_lost:
            self.logs.note_loss()
        try:
            if self.epoch >= 0:
                await self.lifecycle.report_failure(is_lost)
        except PeerLost as lost:  # it notices when this broker's address refuses connections
            _log.warning(
                "cannot report the failure to the controller broker=%d error=%s", self.id, lost
            )
        finally:
            for link in self._links:
                link.close()
            self.failed.set()

    # -- the cluster's metadata

    async def replay(self, records: list[Any]) -> None:
        """Replay the controller's records; their partitions are open when this returns."""
        async with self._replaying:
            await self._replay(records)

    async def _replay(self, records: list[Any]) -> None:
        if not self._applies_metadata:
            for number, record in enumerate(records, 1):
                self.image.replay(record)
                if not number % _RECORDS_PER_STEP:
                    await asyncio.sleep(0)
            return
        partitions: dict[tuple[bytes, int], None] = {}
        topics: dict[str, None] = {}
        brokers: dict[int, None] = {}
        try:
            await self._replay_and_collect(records, partitions, topics, brokers)
        finally:
            self.image.show_topics()
        for broker_id in brokers:
            self._replication.reconnect(broker_id)
        for name in topics:
            self._configure_topic(name)
        await self._apply(partitions)
        if brokers:
            await self._review_isrs()

    async def _replay_and_collect(
        self,
        records: list[Any],
        partitions: dict[tuple[bytes, int], None],
        topics: dict[str, None],
        brokers: dict[int, None],
    ) -> None:
        """Replay the records of one decision into the image, and collect the partitions, topics and
        brokers that they change. Other tasks run in between only while a new topic's partitions are
        replayed; the image hides the topic until all of them are there."""
        is_new = False
        for number, record in enumerate(records, 1):
            kind = type(record)
            if is_new and not number % _RECORDS_PER_STEP:
                await asyncio.sleep(0)
            if kind is RemoveTopicRecord:
                self.image.show_topics()
                topic = self.image.topics_by_id[record.topic_id]
                for partition in topic.partitions:
                    partitions.pop((topic.id, partition.id), None)
                await self._drop_topic(topic)
            self.image.replay(record)
            if kind is TopicRecord:
                self.image.hide_topic(record.topic_id)
                is_new = True
            if kind is PartitionRecord or kind is PartitionChangeRecord:
                partitions[record.topic_id, record.partition_id] = None
            elif kind is ClearElrRecord:
                partitions.update(
                    dict.fromkeys(
                        (topic.id, partition.id)
                        for topic in self.image.topics.values()
                        if record.topic_name in ("", None, topic.name)
                        for partition in topic.partitions
                        if self.id in partition.replicas
                    )
                )
            elif kind is ConfigRecord:
                if record.resource_type == CONFIG_TOPIC:
                    topics[record.resource_name] = None
                elif record.resource_type == CONFIG_BROKER:
                    topics.update(dict.fromkeys(self.image.topics))
                    self._configure()
            elif kind is RegisterBrokerRecord or kind is BrokerRegistrationChangeRecord:
                brokers[record.broker_id] = None

    async def replay_snapshot(self, records: list[Any]) -> None:
        """Replace the image by a snapshot, and apply the differences to the partitions."""
        async with self._replaying:
            await self._replay_snapshot(records)

    async def _replay_snapshot(self, records: list[Any]) -> None:
        image = ClusterImage()
        for record in records:
            image.replay(record)
        before, self.image = self.image, image
        if not self._applies_metadata:
            return
        for topic in before.topics.values():
            if topic.id not in image.topics_by_id:
                await self._drop_topic(topic)
        self._configure()
        await self._apply_all()

    async def _apply_all(self) -> None:
        self._applies_metadata = True
        self._configure()
        for name in self.image.topics:
            self._configure_topic(name)
        await self._apply(
            [
                (topic.id, partition.id)
                for topic in self.image.topics.values()
                for partition in topic.partitions
                if self.id in partition.replicas or (topic.name, partition.id) in self.partitions
            ]
        )

    async def _apply(self, changed: Iterable[tuple[bytes, int]]) -> None:
        for number, (topic_id, index) in enumerate(changed, 1):
            if self._failure is not None:
                return
            topic = self.image.topics_by_id[topic_id]
            self._apply_partition(topic, topic.partitions[index])
            if not number % _PARTITIONS_PER_STEP:
                await asyncio.sleep(0)

    def _apply_partition(self, topic: TopicImage, registration: PartitionRegistration) -> None:
        """Lead, follow or drop one partition, as the controller decided."""
        key = (topic.name, registration.id)
        partition = self.partitions.get(key)
        if self.id not in registration.replicas:
            if partition is not None:
                self._drop(topic.name, registration.id)
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

    def _open(self, topic: TopicImage, registration: PartitionRegistration) -> Partition | None:
        key = (topic.name, registration.id)
        values, log_config = self._topic_config(topic.name)
        try:
            log = self.logs.open_log(topic.name, registration.id, topic.id, log_config)
        except (StorageError, CorruptData) as error:
            _log.error(
                "partition is offline broker=%d partition=%s-%d error=%s", self.id, *key, error
            )
            self._offline[key] = None
            if isinstance(error, StorageError):
                self.disk_failed(error)
            return None
        if log.latest_epoch > registration.leader_epoch and not log.has_confirmed_epoch:
            _log.error(
                "the last batch is damaged: its leader epoch is above the controller's broker=%d "
                "partition=%s-%d epoch=%d",
                self.id,
                *key,
                log.latest_epoch,
            )
            log.forget_epochs_after(registration.leader_epoch)
        if log.latest_epoch > registration.leader_epoch:
            self._applies_metadata = False  # so that `close` writes nothing to the logs
            raise refuse_other_history(
                self.id,
                f"the log of {topic.name}-{registration.id} has leader epoch {log.latest_epoch}, "
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
        )
        return partition

    async def _drop_topic(self, topic: TopicImage) -> None:
        for number, registration in enumerate(topic.partitions, 1):
            self._drop(topic.name, registration.id)
            if not number % _PARTITIONS_PER_STEP:
                await asyncio.sleep(0)

    def _drop(self, topic: str, index: int) -> None:
        key = (topic, index)
        self._offline.pop(key, None)
        self._last_topic_config = None
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self._replication.leave(partition)
            partition.retire()
        try:
            self.logs.delete_log(*key)
        except StorageError as error:
            # The metadata does not have it any more; a new topic of the same name will remove it.
            _log.error(
                "cannot delete a log broker=%d partition=%s-%d error=%s", self.id, *key, error
            )
            self.disk_failed(error)

    # -- options

    def _topic_config(self, topic: str) -> tuple[dict[str, config.Value], LogConfig]:
        """The effective options of a topic on this broker, and of its logs."""
        last = self._last_topic_config
        if last is None or last[0] != topic:  # partitions come topic by topic
            values = config.resolve_topic(self.config, self.image.configs(CONFIG_TOPIC, topic))
            expiration_ms = cast(int, self.config["producer.id.expiration.ms"])
            last = self._last_topic_config = topic, values, LogConfig.read(values, expiration_ms)
        return last[1], last[2]

    def _configure(self) -> None:
        """Apply the options that were set for all brokers, or for this one."""
        self._last_topic_config = None
        self.config = config.resolve(
            self.given,
            self.image.configs(CONFIG_BROKER, ""),
            self.image.configs(CONFIG_BROKER, str(self.id)),
        )
        self.listener.config = self.config

    def _configure_topic(self, name: str) -> None:
        self._last_topic_config = None
        topic = self.image.topics.get(name)
        if topic is None:
            return
        for registration in topic.partitions:
            partition = self.partitions.get((name, registration.id))
            if partition is not None:
                values, log_config = self._topic_config(name)
                partition.log.config = log_config
                partition.configure(values)

    # -- called by handlers

    def find_replica(self, topic: str, index: int) -> Partition:
        """This broker's replica of a partition, whichever broker leads it.

        Raises:
            Refused: the partition does not exist, this broker has no replica of it, or the log or
                its directory has failed.
        """
        partition = self.partitions.get((topic, index))
        if partition is not None and self._failure is None:
            return partition
        if self._failure is not None or (topic, index) in self._offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR)
        image = self.image.topics.get(topic)
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

    def find_leader(
        self, topic: str, index: int
    ) -> tuple[int, int, BrokerRegistration | None] | None:
        """A partition's leader id, leader epoch, and the leader's registration; None if the
        partition does not exist."""
        image = self.image.topics.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return None
        partition = image.partitions[index]
        return partition.leader, partition.leader_epoch, self.image.brokers.get(partition.leader)

    async def next_producer_id(self) -> int:
        """A producer id that no producer has been given before.

        Raises:
            PeerLost: the controller cannot be reached, or refuses.
        """
        while (producer_id := next(self._producer_ids, None)) is None:
            block = await self.controller.ask_until_answered(
                AllocateProducerIdsRequest(broker_id=self.id, broker_epoch=self.epoch),
                _PRODUCER_IDS_TIMEOUT_S,
            )
            if block.error_code:
                raise PeerLost(f"the controller gives no producer ids: error {block.error_code}")
            first = block.producer_id_start
            self._producer_ids = iter(range(first, first + block.producer_id_len))
        return producer_id

    def is_leader_quota_exceeded(self) -> bool:
        """Whether throttled followers got more than `leader.replication.throttled.rate` from this
        broker."""
        rate = cast(int, self.config["leader.replication.throttled.rate"])
        return self._leader_quota.is_exceeded(rate, self.time())

    def record_throttled_sent(self, size: int) -> None:
        """Count `size` bytes sent to a throttled follower."""
        self._leader_quota.record(size, self.time())

    def record_throttled_received(self, size: int) -> None:
        """Count `size` bytes received as a throttled follower."""
        self._follower_quota.record(size, self.time())

    def is_follower_quota_exceeded(self) -> bool:
        """Whether this broker received more than `follower.replication.throttled.rate`."""
        rate = cast(int, self.config["follower.replication.throttled.rate"])
        return self._follower_quota.is_exceeded(rate, self.time())

    # -- called by partitions (`Host`)

    @property
    def lag_limit_s(self) -> float:
        return cast(int, self.config["replica.lag.time.max.ms"]) / 1000

    def time(self) -> float:
        return self._loop.time()

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that broker, with that broker epoch, may be in an ISR."""
        registration = self.image.brokers.get(broker_id)
        return (
            registration is not None
            and registration.is_active
            and broker_epoch in (NO_EPOCH, registration.epoch)
        )

    def propose_isr(self, partition: Partition) -> None:
        self._proposals.submit(partition)

    def choose_replica(self, partition: Partition, rack: str, offset: int) -> int:
        """The id of the in-sync replica in the consumer's rack that has `offset` and the highest
        log end offset; -1 for the leader, if it is in that rack or there is no such replica
        (Kafka's `RackAwareReplicaSelector`, KIP-392)."""
        selector = cast("str | None", self.config["replica.selector.class"])
        if not selector or not selector.endswith("RackAwareReplicaSelector"):
            return -1
        brokers = self.image.brokers
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

    # -- upkeep

    async def _repeat(self, interval_s: float, upkeep: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await upkeep()
            except (StorageError, CorruptData) as error:
                _log.error("log maintenance failed broker=%d error=%s", self.id, error)
                if isinstance(error, StorageError):
                    self.disk_failed(error)

    async def _checkpoint(self) -> None:
        await self.logs.checkpoint()
        self._write_replayed(durable=True)

    async def _checkpoint_high_watermarks(self) -> None:
        self.logs.checkpoint_high_watermarks()
        self._write_replayed(durable=False)

    def _write_replayed(self, durable: bool) -> None:
        """Write the last replayed metadata batch to disk, unless that is there already."""
        noted = self.metadata.last, durable
        if noted not in (self._written_replayed, (self._written_replayed[0], False)):
            write_replayed(self._storage, *noted)
            self._written_replayed = noted

    async def _flush_due(self) -> None:
        self.logs.flush_due()

    async def _enforce_retention(self) -> None:
        starts = {each: each.log.log_start_offset for each in self.partitions.values()}
        deleted = await self.logs.retain()
        if deleted:
            _log.info("deleted old segments broker=%d segments=%d", self.id, deleted)
            for partition, start in starts.items():
                if partition.log.log_start_offset != start:
                    partition.notify_changed()
                    if not partition.is_leader:
                        self._replication.follow(partition)  # to report its log start offset

    async def _compact(self) -> None:
        if self.config["log.cleaner.enable"]:
            buffer_bytes = cast(int, self.config["log.cleaner.dedupe.buffer.size"])
            self.logs.cleaner.dedupe_buffer_bytes = buffer_bytes
            await self.logs.compact()

    async def _review_isrs(self) -> None:
        for number, partition in enumerate(tuple(self.partitions.values()), 1):
            partition.review_isr()
            if not number % _PARTITIONS_PER_STEP:
                await asyncio.sleep(0)
