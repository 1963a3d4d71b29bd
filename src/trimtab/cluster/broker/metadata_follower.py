"""Fetches the controller's log and replays every record of `__cluster_metadata` in the broker.

    fetch from the offset after the last record replayed ─▶ records  ─▶ MetadataReplay
    the log no longer begins there                       ─▶ snapshot ─▶ MetadataReplay

The fetch offset tells the controller how much this broker has replayed.

The last batch that this broker replayed, before or after its start, must be in the controller's
log. It is compared at the start, and whenever the connection to the controller was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from trimtab.cluster.broker.link import Link
from trimtab.cluster.broker.metadata_replay import MetadataReplay
from trimtab.cluster.metadata.batches import TOPIC, TOPIC_ID, read_batches, read_snapshot
from trimtab.cluster.metadata.replayed import NOTHING, Replayed, refuse_other_history
from trimtab.cluster.server.peer import PeerLost
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.batch_cy import BatchHeader, verify
from trimtab.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from trimtab.kafka.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    PartitionSnapshot,
    SnapshotId,
    TopicSnapshot,
)
from trimtab.kafka.wire.sentinels import NO_EPOCH

T = TypeVar("T")

_MAX_WAIT_MS = 500
"""As in Kafka's `KafkaRaftClient`: DescribeQuorum shows so soon that a broker fetches no more."""
_ANSWER_TIMEOUT_S = 10.0
_MAX_BYTES = 1024 * 1024
_RECORDS_PER_STEP = 500
_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0

_log = logging.getLogger(__name__)


class MetadataFollower:
    """Keeps a broker's image of the cluster up to date.

    Args:
        broker: replays the records.
        last: the last batch that was replayed before the broker started.

    Attributes:
        next_offset: the offset of the next record to replay.
        last: the last batch that was replayed.
    """

    def __init__(self, broker: MetadataReplay, link: Link, last: Replayed = NOTHING) -> None:
        self.last = last
        self._broker = broker
        self._link = link
        self._is_compared = True  # the first fetch starts at offset 0, so the batch comes anyway
        self._changed: list[tuple[int, asyncio.Future[None]]] = []
        self.next_offset = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Follow until `abort`; returns the task, which ends by itself only as `run` does."""
        self._task = asyncio.create_task(self.run())
        return self._task

    def abort(self) -> list[asyncio.Task[None]]:
        """Stop; returns the tasks that are about to end, perhaps with the replay under way."""
        if self._task is None:
            return []
        self._task.cancel()
        return [self._task]

    async def run(self) -> None:
        """Fetch and replay until cancelled.

        Raises:
            CorruptData: the controller's records cannot be replayed, or its log lacks the last
                batch that this broker replayed: the broker must stop.
        """
        backoff_s = _BACKOFF_S
        while True:
            try:
                await self._fetch()
                backoff_s = _BACKOFF_S
            except PeerLost as error:
                # Brokers continue to serve with the metadata they have.
                _log.debug("controller is lost broker=%d error=%s", self._broker.id, error)
                self._is_compared = not self.next_offset or self.last == NOTHING
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def reach(self, offset: int) -> None:
        """Return once everything before `offset` has been replayed."""
        if self.next_offset < offset:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.append((offset, reached))
            await reached

    async def advance(self) -> None:
        """Return once at least one more record has been replayed."""
        await self.reach(self.next_offset + 1)

    async def _fetch(self) -> None:
        offset = self.next_offset
        if not self._is_compared:
            offset = min(offset, self.last.base_offset)
        response = await self._link.ask(
            FetchRequest(
                replica_state=ReplicaState(replica_id=self._broker.id),
                max_wait_ms=_MAX_WAIT_MS,
                min_bytes=1,
                max_bytes=_MAX_BYTES,
                topics=[
                    FetchTopic(
                        topic_id=TOPIC_ID,
                        partitions=[
                            FetchPartition(
                                partition=0,
                                fetch_offset=offset,
                                partition_max_bytes=_MAX_BYTES,
                            )
                        ],
                    )
                ],
            ),
            _ANSWER_TIMEOUT_S,
        )
        if response.error_code or not response.responses:
            raise PeerLost(f"the controller answers with error {response.error_code}")
        (data,) = response.responses[0].partitions
        if data.snapshot_id.end_offset >= 0 and not self._is_compared:
            self._is_compared = True  # a snapshot has replaced the batch, so it cannot be compared
        elif data.snapshot_id.end_offset >= 0:
            await self._fetch_snapshot(data.snapshot_id.end_offset, data.snapshot_id.epoch)
        elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or (
            not data.records and not data.error_code and offset < self.next_offset
        ):
            raise refuse_other_history(
                self._broker.id,
                f"this one does not have offset {offset}, and the broker has replayed it",
            )
        elif data.error_code:
            raise PeerLost(f"the controller answers with error {data.error_code}")
        elif data.records:
            await self._replay(memoryview(data.records))

    async def _fetch_snapshot(self, end_offset: int, epoch: int) -> None:
        content = bytearray()
        while True:
            response = await self._link.ask(
                FetchSnapshotRequest(
                    replica_id=self._broker.id,
                    max_bytes=_MAX_BYTES,
                    topics=[
                        TopicSnapshot(
                            name=TOPIC,
                            partitions=[
                                PartitionSnapshot(
                                    partition=0,
                                    current_leader_epoch=NO_EPOCH,
                                    snapshot_id=SnapshotId(end_offset=end_offset, epoch=epoch),
                                    position=len(content),
                                )
                            ],
                        )
                    ],
                ),
                _ANSWER_TIMEOUT_S,
            )
            if response.error_code or not response.topics:
                raise PeerLost(f"the controller answers with error {response.error_code}")
            (piece,) = response.topics[0].partitions
            if piece.error_code:  # a newer snapshot has replaced it
                raise PeerLost(f"the controller answers with error {piece.error_code}")
            content += piece.unaligned_records
            if len(content) >= piece.size:
                break
            if not piece.unaligned_records:
                raise PeerLost("the controller does not send the whole snapshot")
        await self._broker.replay_snapshot(await _collect(read_snapshot(content)))
        self._advance(end_offset)

    async def _replay(self, data: memoryview) -> None:
        position = 0
        while position < len(data):
            header = verify(data, position)
            self._compare(header)
            if header.base_offset > self.next_offset:
                raise CorruptData(
                    f"broker {self._broker.id}: the controller's log continues at offset "
                    f"{header.base_offset}, and the broker has replayed only what is before "
                    f"{self.next_offset}; restore the controller's missing file from a copy"
                )
            # A fetch that only compares begins with batches that are replayed already.
            if not header.is_control and header.next_offset > self.next_offset:
                batch = data[position : position + header.size]
                decided = await _collect(record for _, record in read_batches(batch))
                await self._broker.replay(decided[max(0, self.next_offset - header.base_offset) :])
            if header.base_offset > self.last.base_offset:
                self.last = Replayed(header.base_offset, header.crc)
            self._advance(max(self.next_offset, header.next_offset))
            position += header.size

    def _compare(self, header: BatchHeader) -> None:
        """Compare a batch with the last one replayed, if they are at the same offset.

        Raises:
            CorruptData: this broker has replayed another batch there.
        """
        last = self.last
        if header.base_offset <= last.base_offset < header.next_offset:
            if last != (header.base_offset, header.crc):
                raise refuse_other_history(
                    self._broker.id,
                    f"where this one has a batch of offsets {header.base_offset} to "
                    f"{header.next_offset - 1}, the broker has replayed another at "
                    f"{last.base_offset}",
                )
            self._is_compared = True

    def _advance(self, next_offset: int) -> None:
        self.next_offset = next_offset
        waiting, self._changed = self._changed, []
        for offset, reached in waiting:
            if offset > next_offset:
                self._changed.append((offset, reached))
            elif not reached.done():
                reached.set_result(None)


async def _collect(records: Iterable[T]) -> list[T]:
    """All records as a list; lets other tasks run, as there may be tens of thousands."""
    collected: list[T] = []
    rest = iter(records)
    while part := list(islice(rest, _RECORDS_PER_STEP)):
        collected += part
        await asyncio.sleep(0)
    return collected
