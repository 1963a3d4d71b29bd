"""Serves the metadata log and its snapshots to brokers, and tracks how far each has replayed it.

A broker fetches from the offset after the last record that it has replayed, so its fetch offset
tells how far it is. The fetch waits until there are more records.

Source: KIP-595, KIP-630; the leader's side of Kafka's `KafkaRaftClient`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, cast

from trimtab.cluster.controller.journal import Journal
from trimtab.cluster.metadata.batches import TOPIC, TOPIC_ID, SnapshotId
from trimtab.cluster.storage.storage import BytesLike, StorageError
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.messages import fetch, fetch_snapshot
from trimtab.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from trimtab.kafka.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PartitionSnapshot,
    PartitionSnapshotResponse,
    TopicSnapshotResponse,
)
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_TIMESTAMP

_log = logging.getLogger(__name__)


class Position(NamedTuple):
    """How far a broker has replayed the log.

    Attributes:
        offset: the broker has replayed every record before this.
        fetched_ms: when it last fetched, wall time.
        caught_up_ms: when it last had the whole log; -1 for never.
        end_offset: of the log, when it last fetched.
    """

    offset: int
    fetched_ms: int
    caught_up_ms: int
    end_offset: int


class MetadataFeed:
    """Serves a journal to brokers.

    Attributes:
        positions: by broker id, of every broker that has fetched.
    """

    def __init__(
        self, journal: Journal, node_id: int, cluster_id: str, now_ms: Callable[[], int]
    ) -> None:
        self._journal = journal
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._now_ms = now_ms
        self._moved = asyncio.Event()
        self.positions: dict[int, Position] = {}

    def position(self, broker_id: int) -> int:
        """The broker has replayed every record before this; 0 if it has not fetched yet."""
        position = self.positions.get(broker_id)
        return 0 if position is None else position.offset

    def note(self, broker_id: int, offset: int) -> None:
        """A broker has replayed every record before `offset`."""
        now, end_offset = self._now_ms(), self._journal.end_offset
        before = self.positions.get(broker_id)
        caught_up_ms = NO_TIMESTAMP if before is None else before.caught_up_ms
        if offset >= end_offset:
            caught_up_ms = now
        elif before is not None and offset >= before.end_offset:
            # It has what there was at its last fetch; a log that always grows has no other end.
            caught_up_ms = max(caught_up_ms, before.fetched_ms)
        self.positions[broker_id] = Position(offset, now, caught_up_ms, end_offset)
        self.recheck_positions()

    def forget(self, broker_id: int) -> None:
        """Remove the position of a broker that has restarted or gone."""
        self.positions.pop(broker_id, None)
        self.recheck_positions()

    def recheck_positions(self) -> None:
        """Have every `reach` check its brokers' positions again."""
        self._moved.set()
        self._moved.clear()

    async def reach(
        self, offset: int, brokers: Callable[[], Iterable[int]], limit_s: float
    ) -> None:
        """Return once all these brokers have replayed every record before `offset`, or after
        `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                while any(self.position(broker) < offset for broker in brokers()):
                    await self._moved.wait()
        except TimeoutError:
            return

    # Fetch

    def fetch(self, request: FetchRequest) -> FetchResponse | Awaitable[FetchResponse]:
        """Answer at once if there are records or an error; else wait for records, `max_wait_ms` at
        most."""
        if request.cluster_id not in (None, self._cluster_id):
            return FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[])
        if not _names_one(request.topics):
            return FetchResponse(error_code=ErrorCode.INVALID_REQUEST, responses=[])
        follower = max(request.replica_id, request.replica_state.replica_id)
        asked = request.topics[0].partitions[0]
        response = self._fetch(request)
        data = response.responses[0].partitions[0]
        if data.error_code or data.snapshot_id.end_offset >= 0:
            return response
        if follower >= 0:
            self.note(follower, asked.fetch_offset)
        if data.records or request.max_wait_ms <= 0:
            return response
        return self._fetch_later(request, asked.fetch_offset)

    async def _fetch_later(self, request: FetchRequest, offset: int) -> FetchResponse:
        try:
            async with asyncio.timeout(request.max_wait_ms / 1000):
                await self._journal.reach(offset + 1)
        except TimeoutError:
            pass
        return self._fetch(request)

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        topic = request.topics[0]
        asked = topic.partitions[0]
        data = self._read(
            asked,
            is_known=topic.topic == TOPIC or topic.topic_id == TOPIC_ID,
            max_bytes=min(request.max_bytes, asked.partition_max_bytes),
        )
        answered = FetchableTopicResponse(
            topic=topic.topic, topic_id=topic.topic_id, partitions=[data]
        )
        return FetchResponse(responses=[answered])

    def _read(self, asked: FetchPartition, is_known: bool, max_bytes: int) -> PartitionData:
        journal = self._journal
        data = PartitionData(
            partition_index=asked.partition,
            high_watermark=journal.end_offset,
            last_stable_offset=journal.end_offset,
            log_start_offset=journal.start_offset,
            current_leader=fetch.LeaderIdAndEpoch(
                leader_id=self._node_id, leader_epoch=journal.epoch
            ),
            records=b"",
        )
        data.error_code = self._check(is_known, asked.partition, asked.current_leader_epoch)
        if not data.error_code and asked.fetch_offset < 0:
            data.error_code = ErrorCode.INVALID_REQUEST
        if data.error_code:
            return data
        if asked.fetch_offset > journal.end_offset:
            # The broker has replayed records that this controller has lost.
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif asked.fetch_offset < journal.start_offset:
            snapshot = journal.snapshot
            assert snapshot is not None, "the log begins later only where a snapshot ends"
            data.snapshot_id = fetch.SnapshotId(
                end_offset=snapshot.end_offset, epoch=snapshot.epoch
            )
        else:
            try:
                # Stored records are read when the response is sent.
                data.records = cast(BytesLike, journal.read(asked.fetch_offset, max_bytes))
            except (StorageError, CorruptData) as error:
                _log.error("cannot read the journal offset=%d error=%s", asked.fetch_offset, error)
                data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return data

    def _check(self, is_known: bool, partition: int, leader_epoch: int) -> ErrorCode:
        if not is_known or partition != 0:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if leader_epoch not in (NO_EPOCH, self._journal.epoch):
            if leader_epoch > self._journal.epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    # FetchSnapshot

    def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        """A piece of a snapshot."""
        if request.cluster_id not in (None, self._cluster_id):
            return FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        if not _names_one(request.topics):
            return FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST)
        topic = request.topics[0]
        data = self._read_snapshot(topic.partitions[0], topic.name == TOPIC, request.max_bytes)
        return FetchSnapshotResponse(
            topics=[TopicSnapshotResponse(name=topic.name, partitions=[data])]
        )

    def _read_snapshot(
        self, asked: PartitionSnapshot, is_known: bool, max_bytes: int
    ) -> PartitionSnapshotResponse:
        data = PartitionSnapshotResponse(
            index=asked.partition,
            snapshot_id=asked.snapshot_id,
            current_leader=fetch_snapshot.LeaderIdAndEpoch(
                leader_id=self._node_id, leader_epoch=self._journal.epoch
            ),
            position=asked.position,
            unaligned_records=b"",
        )
        data.error_code = self._check(is_known, asked.partition, asked.current_leader_epoch)
        if data.error_code:
            return data
        snapshot = SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        if asked.position < 0:
            data.error_code = ErrorCode.POSITION_OUT_OF_RANGE
            return data
        try:
            read = self._journal.read_snapshot(snapshot, asked.position, max(max_bytes, 1))
        except StorageError as error:
            _log.error("cannot read the snapshot %s error=%s", snapshot.name, error)
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return data
        if read is None:
            data.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
            return data
        piece, data.size = read
        if asked.position >= data.size:
            data.error_code = ErrorCode.POSITION_OUT_OF_RANGE
        data.unaligned_records = memoryview(piece)
        return data


def _names_one(topics: list[Any]) -> bool:
    """Whether a request names exactly one partition, as brokers' requests do."""
    return len(topics) == 1 and len(topics[0].partitions) == 1
