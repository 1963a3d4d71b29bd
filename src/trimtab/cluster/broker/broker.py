"""One broker: its parts, and the order in which they start and end.

controller's log ─▶ MetadataFollower ─▶ MetadataReplay ─▶ ClusterView, Replicas
clients ─▶ Listener ─▶ handlers ─▶ Services
Lifecycle: registration, heartbeats            Upkeep: checkpoints, retention, compaction
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from random import Random

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.coordinator_topic import (
    GROUPS_TOPIC,
    TRANSACTIONS_TOPIC,
    CoordinatorTopic,
)
from trimtab.cluster.broker.groups import GroupCoordinator
from trimtab.cluster.broker.handlers import Services, handlers_of
from trimtab.cluster.broker.isr_proposals import IsrProposals
from trimtab.cluster.broker.lifecycle import Lifecycle
from trimtab.cluster.broker.link import link_to_controller
from trimtab.cluster.broker.metadata_follower import MetadataFollower
from trimtab.cluster.broker.metadata_replay import MetadataReplay
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.producer_ids import ProducerIds
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.broker.transactions import TransactionCoordinator
from trimtab.cluster.broker.upkeep import Upkeep
from trimtab.cluster.metadata.features import SUPPORTED
from trimtab.cluster.metadata.image import ClusterImage
from trimtab.cluster.metadata.replayed import read_replayed, refuse_other_history
from trimtab.cluster.server.api_versions import FeatureLevels
from trimtab.cluster.server.cluster_secret import ClusterSecret, name_broker
from trimtab.cluster.server.faults import BrokerFaults
from trimtab.cluster.server.listener import Listener
from trimtab.cluster.storage.log_directory import LogDirectory
from trimtab.cluster.storage.storage import Storage, StorageError
from trimtab.kafka.wire.messages.init_producer_id import InitProducerIdRequest

_SHUTDOWN_TIMEOUT_S = 5.0
_TWO_PHASE = {InitProducerIdRequest.api_key: 6}
"""The version with which a producer asks for transactions without a time limit (KIP-939)."""

_log = logging.getLogger(__name__)


class Broker:
    """Leads and follows the partitions that the cluster's metadata assigns to it.

    Call `bind`, then `start`.

    Args:
        broker_id: the same at every start.
        cluster_id: the id of its cluster.
        storage: the directory of its logs.
        controller: host and port of the controller.
        secret: that of the cluster.
        options: broker options (`trimtab.cluster.config.BROKER`), dotted or in snake case.
        now_ms: wall time in milliseconds.
        random: draws the ids of a new log directory, of this incarnation and of fetch sessions.
        faults: those that tests inject.

    Attributes:
        view: what it knows of the cluster, and its options.
        replicas: the partitions that it leads and follows.
        groups: the groups that it coordinates.
        transactions: the transactional ids that it coordinates.
        services: what its handlers use.
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
        secret: ClusterSecret,
        options: Mapping[str, object],
        now_ms: Callable[[], int],
        random: Random,
        faults: BrokerFaults | None = None,
    ) -> None:
        self.id = broker_id
        self.view = ClusterView(broker_id, cluster_id, options, faults, secret)
        config = self.view.config
        self._storage = storage
        logs = LogDirectory(
            storage, node_id=broker_id, cluster_id=cluster_id, now_ms=now_ms, random=random
        )
        self._links = link, lifecycle_link, metadata_link, isr_link = [
            link_to_controller(*controller, f"broker-{broker_id}{use}", self.view.faults, secret)
            for use in ("", "-lifecycle", "-metadata", "-isr")
        ]
        self.lifecycle = Lifecycle(
            broker_id,
            cluster_id,
            lifecycle_link,
            lambda: self.metadata.next_offset - 1,
            [logs.directory_id],
            config.seconds("broker.heartbeat.interval.ms"),
            random,
        )
        self.replicas = Replicas(
            self.view,
            logs,
            IsrProposals(broker_id, lambda: self.epoch, isr_link),
            lambda: self.epoch,
            now_ms,
            self._stop_later,
            self._replica_changed,
        )
        self.groups = GroupCoordinator(
            self.view,
            now_ms,
            lambda: str(uuid.UUID(int=random.getrandbits(128), version=4)),
            self.replicas.disk_failed,
        )
        ids = ProducerIds(broker_id, lambda: self.epoch, link)
        self.transactions = TransactionCoordinator(
            self.view, now_ms, ids.take_producer_id, self.replicas.disk_failed
        )
        self.replay = MetadataReplay(self.view, self.replicas, self.groups.forget_topics)
        self._replayed_before = read_replayed(storage)
        self.metadata = MetadataFollower(self.replay, metadata_link, self._replayed_before)
        self.upkeep = Upkeep(
            self.replicas, storage, self._replayed_before, lambda: self.metadata.last
        )
        self.services = Services(
            self.replicas,
            self.groups,
            CoordinatorTopic(GROUPS_TOPIC, self.view, link, self.metadata.advance),
            self.transactions,
            CoordinatorTopic(TRANSACTIONS_TOPIC, self.view, link, self.metadata.advance),
            ids,
            link,
            random,
        )
        self.listener = Listener(
            broker_id,
            handlers_of(self.services),
            config,
            self.services.turns,
            lambda: FeatureLevels(SUPPORTED, self.image.features, self.metadata.next_offset - 1),
            _TWO_PHASE if config["transaction.two.phase.commit.enable"] else None,
            self.view.faults,
            secret,
            name_broker(broker_id),
        )
        self.failed = asyncio.Event()
        self._ending: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The broker epoch; -1 before the controller has registered this broker."""
        return self.lifecycle.epoch

    @property
    def image(self) -> ClusterImage:
        """The cluster's metadata, as far as this broker has replayed them."""
        return self.view.image

    @property
    def partitions(self) -> Mapping[tuple[str, int], Partition]:
        """This broker's replicas, by topic and index."""
        return self.replicas.partitions

    async def bind(self, host: str, port: int) -> int:
        """Bind the address, without serving yet; returns the port, as `port` may be 0.

        Raises:
            OSError: the address is taken.
        """
        bound = await self.listener.bind(host, port)
        self.view.set_default_address("listeners", host, bound)
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
        self.view.set_default_address("advertised.listeners", host, port)
        following = self.metadata.start()
        joining = asyncio.ensure_future(self._join(host, port))
        failing = asyncio.ensure_future(self.failed.wait())
        try:
            await asyncio.wait((following, joining, failing), return_when=asyncio.FIRST_COMPLETED)
            if self.replicas.failure is not None:
                raise self.replicas.failure
            if following.done():
                following.result()
        finally:
            failing.cancel()
            if not joining.done():
                joining.cancel()
            await asyncio.gather(failing, joining, return_exceptions=True)
        joining.result()
        following.add_done_callback(self._metadata_ended)

    async def _join(self, host: str, port: int) -> None:
        replicas, logs = self.replicas, self.replicas.logs
        rack = self.view.config.optional_text("broker.rack")
        self.lifecycle.incarnation_id = logs.begin_life(self.lifecycle.incarnation_id)
        await self.lifecycle.register(host, port, rack, logs.previous_epoch)
        if self.epoch <= self._replayed_before.base_offset:
            raise refuse_other_history(
                self.id,
                f"this one ends at offset {self.epoch}, and the broker has replayed up to "
                f"{self._replayed_before.base_offset}",
            )
        logs.write_epoch(self.epoch)
        await self.metadata.reach(self.epoch + 1)
        await self.replay.open_replicas()
        if logs.has_lost or replicas.offline:
            if logs.previous_epoch >= 0:
                # This broker must not be elected for records that it has lost (KIP-966).
                _log.error("a log has lost records or cannot be opened broker=%d", self.id)
                await self.lifecycle.register_with_loss()
                await self.metadata.reach(self.epoch + 1)
            logs.write_epoch(self.epoch)  # with which the controller knows of the loss
        await self.services.producer_ids.fill()
        self.lifecycle.start()
        self.upkeep.start()
        self.groups.start()
        self.transactions.start()
        await self.lifecycle.unfenced.wait()
        # So that Metadata responses include this broker. An operator may unregister it any time.
        await self.take_part(self.metadata.next_offset)
        # Not before, as in Kafka: clients take a Metadata response without brokers for the cluster.
        await self.listener.start()

    async def take_part(self, offset: int) -> None:
        """Wait until it has replayed the controller's records before `offset`, and is not fenced
        by them."""
        await self.metadata.reach(offset)
        while (own := self.image.brokers.get(self.id)) is None or own.fenced:
            await self.metadata.advance()

    def _replica_changed(self, partition: Partition) -> None:
        self.groups.changed(partition)
        self.transactions.changed(partition)

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
            await asyncio.gather(self._stopping, return_exceptions=True)
            self._abort_parts()  # what has begun meanwhile
            await asyncio.gather(*self._ending, return_exceptions=True)
            self._storage.close()  # not the logs: they must not be marked as closed cleanly
            return
        hand_over &= self.replicas.follows_metadata
        if hand_over and self.view.config["controlled.shutdown.enable"]:
            await self.lifecycle.shut_down(_SHUTDOWN_TIMEOUT_S)
        await self.lifecycle.stop()
        self._abort_parts()
        await asyncio.gather(*self._ending, return_exceptions=True)
        self.replicas.retire()
        await self.listener.close()
        self._close_links()
        if self.replicas.follows_metadata:
            self.upkeep.write_replayed(durable=True)
            self.replicas.logs.close(self.epoch)
        else:
            # The logs may not have been opened, so they must not be marked as closed cleanly.
            self._storage.close()

    def abort(self) -> None:
        """Stop at once, like a killed process: write no file and send nothing."""
        self.lifecycle.abort()
        if self._stopping is not None:
            self._stopping.cancel()
        self._abort_parts()
        self.listener.abort()
        self._close_links()

    def _abort_parts(self) -> None:
        for part in (self.metadata, self.upkeep, self.replicas):
            self._ending += part.abort()
        self.groups.close()
        self.transactions.close()
        self.services.close()

    def _close_links(self) -> None:
        for link in self._links:
            link.close()

    def _stop_later(self, error: StorageError) -> None:
        """The log directory has failed."""
        self._stopping = asyncio.ensure_future(self._stop_after_failure(error))

    async def _stop_after_failure(self, error: StorageError) -> None:
        """Stop serving, report to the controller, so that other brokers become leaders, and set
        `failed`."""
        self.listener.abort()
        self._abort_parts()
        is_lost = not error.is_disk_full
        if is_lost:
            self.replicas.logs.note_loss()
        try:
            await self.lifecycle.report_failure(is_lost)
        finally:
            self._close_links()
            self.failed.set()
