"""One broker: its address, its partitions, and what it knows of the cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Any, Protocol, cast

from trimtab import config
from trimtab.broker.faults import Faults
from trimtab.broker.log import LogConfig
from trimtab.broker.log_directory import LogDirectory
from trimtab.broker.partition import Partition, Refused
from trimtab.broker.server import Connection, ServerCounts
from trimtab.broker.storage import Storage, StorageError
from trimtab.config import BROKER, TOPIC
from trimtab.errors import CorruptData, ErrorCode
from trimtab.metadata.image import CONFIG_TOPIC, BrokerRegistration, ClusterImage, TopicImage
from trimtab.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from trimtab.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from trimtab.wire.messages.metadata_records import PartitionRecord, RemoveTopicRecord

_CLOSE_GRACE_S = 1.0
"""How long a client may take to read its last responses when the broker closes."""

_log = logging.getLogger(__name__)


class IdBlock(Protocol):
    """Producer ids from `first` up to and without `end`."""

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...


class ControllerChannel(Protocol):
    """How a broker asks the controller."""

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse: ...

    async def delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse: ...

    async def allocate_producer_ids(self, broker_id: int) -> IdBlock: ...


class Broker:
    """Serves the partitions that the cluster's metadata says it leads.

    `listen` first, then `replay` what the controller says of the cluster, then `serve`.

    Args:
        broker_id: its number, which it keeps.
        cluster_id: what Metadata answers.
        storage: the directory of its logs.
        controller: whom to ask for topics and producer ids.
        options: broker options (`trimtab.config.BROKER`), dotted or in snake case.
        now_ms: wall time in milliseconds.
        random: makes up the identity of a new directory.

    Raises:
        StorageError: the directory of its logs cannot be read.
        UsageError: an option that is unknown or does not fit; the directory is in use, or belongs
            to another broker or cluster.
    """

    def __init__(
        self,
        broker_id: int,
        cluster_id: str,
        storage: Storage,
        controller: ControllerChannel,
        options: Mapping[str, object],
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        self.id = broker_id
        self.cluster_id = cluster_id
        self.controller = controller
        self.given = config.read_given(BROKER, options)
        self.config = config.read(BROKER, options)
        self.image = ClusterImage()
        self.faults = Faults()
        self.counts = ServerCounts()
        self.connections: dict[Connection, None] = {}
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._now_ms = now_ms
        self._topic_defaults = config.inherit(self.config)
        self._storage = storage
        self._logs = LogDirectory.open(
            storage, node_id=broker_id, cluster_id=cluster_id, now_ms=now_ms, random=random
        )
        self._offline: set[tuple[str, int]] = set()
        self._producer_ids = iter(range(0))
        self._server: asyncio.AbstractServer | None = None
        self._serving = False
        self._upkeep: list[asyncio.Task[None]] = []
        self._closed: asyncio.Future[None] | None = None

    @property
    def controller_id(self) -> int:
        """Whom Metadata names as the controller: this broker, which passes requests on."""
        return self.id

    # Life

    async def listen(self, host: str, port: int) -> int:
        """Bind the address, without serving yet; the port that was bound (for `port` 0).

        Raises:
            OSError: the address is taken.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self),
            host,
            port,
            backlog=cast(int, self.config["socket.listen.backlog.size"]),
            start_serving=False,
        )
        return cast(int, self._server.sockets[0].getsockname()[1])

    async def serve(self) -> None:
        """Accept connections, and look after the logs, from now on."""
        assert self._server is not None
        await self._server.start_serving()
        self._serving = True
        for option, look_after in (
            ("log.flush.offset.checkpoint.interval.ms", self._checkpoint),
            ("log.flush.scheduler.interval.ms", self._flush_due),
            ("log.retention.check.interval.ms", self._enforce_retention),
        ):
            interval_ms = cast(int, self.config[option])
            if 0 < interval_ms < config.INT_MAX:
                self._upkeep.append(
                    asyncio.create_task(self._repeat(interval_ms / 1000, look_after))
                )

    async def close(self) -> None:
        """Close the connections, after what is written to them, and, cleanly, the logs.

        Raises:
            StorageError: the disk failed; the next run recovers the logs.
        """
        if self._server is not None:
            self._server.close()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        if self.connections:
            self._closed = asyncio.get_running_loop().create_future()
            for connection in tuple(self.connections):
                connection.close()
            await asyncio.wait([self._closed], timeout=_CLOSE_GRACE_S)
            for connection in tuple(self.connections):
                connection.abort()
            await self._closed
        if self._serving:
            self._logs.close()
        else:
            # The logs may not have been looked at, so nothing may say that they are in order.
            self._storage.close()

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.pop(connection, None)
        if self._closed is not None and not self.connections and not self._closed.done():
            self._closed.set_result(None)

    # The cluster's metadata

    def replay(self, records: Iterable[Any]) -> None:
        """Learn what the controller decided; partitions to lead are there when this returns."""
        for record in records:
            if type(record) is RemoveTopicRecord:
                self._drop_topic(self.image.topics_by_id[record.topic_id])
            self.image.replay(record)
            if type(record) is PartitionRecord and record.leader == self.id:
                self._lead(self.image.topics_by_id[record.topic_id], record.partition_id)

    def find_partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads.

        Raises:
            Refused: nobody has it, another broker leads it, or its disk has failed.
        """
        partition = self.partitions.get((topic, index))
        if partition is not None:
            return partition
        if (topic, index) in self._offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR)
        image = self.image.topics.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def find_leader(self, topic: str, index: int) -> tuple[int, int, BrokerRegistration | None]:
        """Who leads a partition that exists, its leader epoch, and where that broker is."""
        partition = self.image.topics[topic].partitions[index]
        return partition.leader, partition.leader_epoch, self.image.brokers.get(partition.leader)

    async def next_producer_id(self) -> int:
        """A producer id that was never given out before."""
        while (producer_id := next(self._producer_ids, None)) is None:
            block = await self.controller.allocate_producer_ids(self.id)
            self._producer_ids = iter(range(block.first, block.end))
        return producer_id

    def _lead(self, topic: TopicImage, index: int) -> None:
        key = (topic.name, index)
        values = dict(self._topic_defaults)
        values.update(config.read_given(TOPIC, self.image.configs(CONFIG_TOPIC, topic.name)))
        expiration_ms = cast(int, self.config["producer.id.expiration.ms"])
        try:
            log = self._logs.open_log(
                topic.name, index, topic.id, LogConfig.read(values, expiration_ms)
            )
        except (StorageError, CorruptData) as error:
            _log.error(
                "partition is offline broker=%d partition=%s-%d error=%s", self.id, *key, error
            )
            self._offline.add(key)
            return
        self.partitions[key] = Partition(
            topic.name,
            topic.id,
            index,
            topic.partitions[index].leader_epoch,
            log,
            values,
            self._now_ms,
        )

    def _drop_topic(self, topic: TopicImage) -> None:
        for registration in topic.partitions:
            key = (topic.name, registration.id)
            self._offline.discard(key)
            partition = self.partitions.pop(key, None)
            if partition is not None:
                partition.wake()
            try:
                self._logs.delete_log(*key)
            except StorageError as error:
                # The metadata no longer knows it: a topic of the same name gets rid of it.
                _log.error(
                    "cannot delete a log broker=%d partition=%s-%d error=%s", self.id, *key, error
                )

    async def _repeat(self, interval_s: float, look_after: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await look_after()
            except StorageError as error:
                _log.error("cannot look after the logs broker=%d error=%s", self.id, error)

    async def _checkpoint(self) -> None:
        await self._logs.checkpoint()

    async def _flush_due(self) -> None:
        self._logs.flush_due()

    async def _enforce_retention(self) -> None:
        deleted = self._logs.enforce_retention()
        if deleted:
            _log.info("deleted old segments broker=%d segments=%d", self.id, deleted)
