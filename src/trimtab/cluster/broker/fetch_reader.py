"""Who sends a Fetch request, and what it may read (Kafka's `FetchParams`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.metadata.image import BrokerRegistration
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.fetch import AbortedTransaction, FetchRequest

READ_COMMITTED = 1
"""The isolation level of a consumer that reads no records of open or aborted transactions."""

_NONE_ABORTED: list[AbortedTransaction] = []
"""Shared by all responses without aborted transactions."""

_REPLICA_STATE_SINCE = 15
_TOPIC_IDS_SINCE = 13
_FOLLOWERS_SINCE = 11


class FetchReader:
    """Who fetches, and which replicas and offsets it may read.

    Attributes:
        replicas: of the broker that it reads from.
        replica_id: the follower's broker id; negative for a consumer.
        broker_epoch: the follower's; -1 if it does not say.
        rack: the consumer's; empty if it has none.
        is_follower: reads up to the log end offset, not only up to the high watermark.
        reads_committed: reads up to the last stable offset, and is told of aborted transactions.
        needs_leader: is served by the leader only. A consumer that supports preferred replicas
            (KIP-392) is served by any replica.
        version: the version of the request.
        uses_topic_ids: whether the request names topics by id, as from version 13 on.
        none_aborted: an empty list if it is told of aborted transactions; else None.
        find: returns the partition to read, by topic and index; raises `Refused` if this broker
            has no replica of it, or must lead it for this reader and does not. The topic is its id
            from version 13 on, before that its name.
    """

    __slots__ = (
        "broker_epoch",
        "find",
        "is_follower",
        "needs_leader",
        "none_aborted",
        "rack",
        "reads_committed",
        "replica_id",
        "replicas",
        "uses_topic_ids",
        "version",
    )

    def __init__(self, replicas: Replicas, version: int, request: FetchRequest) -> None:
        self.replicas = replicas
        self.version = version
        self.uses_topic_ids = version >= _TOPIC_IDS_SINCE
        if version < _REPLICA_STATE_SINCE:
            self.replica_id = request.replica_id
            self.broker_epoch = -1
        else:
            self.replica_id = request.replica_state.replica_id
            self.broker_epoch = request.replica_state.replica_epoch
        self.is_follower = self.replica_id >= 0
        wants_committed = request.isolation_level == READ_COMMITTED
        self.reads_committed = wants_committed and not self.is_follower
        self.none_aborted = _NONE_ABORTED if wants_committed else None
        self.needs_leader = self.is_follower or version < _FOLLOWERS_SINCE
        self.rack = "" if self.needs_leader else request.rack_id
        self.find: Callable[[Any, int], Partition]
        if self.uses_topic_ids:
            self.find = self._find_by_id
        else:
            self.find = replicas.find_partition if self.needs_leader else replicas.find_replica

    def _find_by_id(self, topic_id: bytes, index: int) -> Partition:
        topic = self.replicas.view.image.topics_by_id.get(topic_id)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
        if self.needs_leader:
            return self.replicas.find_partition(topic.name, index)
        return self.replicas.find_replica(topic.name, index)

    def end_of(self, partition: Partition) -> int:
        """The offset up to which this reader may read a partition."""
        if self.is_follower:
            return partition.log.log_end_offset
        return (
            partition.log.last_stable_offset if self.reads_committed else partition.high_watermark
        )

    def aborted_in(
        self, partition: Partition, offset: int, has_records: bool
    ) -> list[AbortedTransaction] | None:
        """The aborted transactions in the records that were just read from `offset` on.

        Raises:
            CorruptData: their list is damaged, and so is the log.
            StorageError: the disk failed.
        """
        if not (has_records and self.reads_committed):
            return self.none_aborted
        log = partition.log
        return [
            AbortedTransaction(
                producer_id=transaction.producer_id, first_offset=transaction.first_offset
            )
            for transaction in log.aborted_between(offset, log.read_end)
        ] or self.none_aborted

    def reads_like(self, other: FetchReader) -> bool:
        """Whether both may read the same replicas and offsets."""
        return (
            self.replica_id == other.replica_id
            and self.broker_epoch == other.broker_epoch
            and self.needs_leader == other.needs_leader
            and self.rack == other.rack
            and self.none_aborted is other.none_aborted
        )

    def is_throttled(self, partition: Partition) -> bool:
        """Whether this follower gets no records of a throttled partition now, because the leader's
        replication quota is used up (KIP-73)."""
        return (
            self.is_follower
            and partition.throttles(self.replica_id)
            and self.replicas.is_leader_quota_exceeded()
        )

    def note_sent(self, partition: Partition, size: int) -> None:
        """Count `size` bytes sent to this follower against the replication quota."""
        if self.is_follower and partition.throttles(self.replica_id):
            self.replicas.record_throttled_sent(size)

    def find_leader(
        self, topic: str | bytes, index: int
    ) -> tuple[int, int, BrokerRegistration | None] | None:
        """A partition's leader id, leader epoch, and the leader's registration; None if the
        partition does not exist."""
        view = self.replicas.view
        if isinstance(topic, str):
            return view.find_leader(topic, index)
        image = view.image.topics_by_id.get(topic)
        return None if image is None else view.find_leader(image.name, index)
