"""The follower's side of replication: one fetch session per leader, for all partitions led there.

    Fetch (replica id, session) ─▶ leader ─▶ batches ─▶ Partition.append_replicated ─▶ next Fetch

- A fetch names only the partitions whose offset has changed since the last one (KIP-227), so idle
  partitions cost nothing. The leader rotates the order in which it serves partitions. Here, too,
  partitions that received records move to the end, so that a new session continues the rotation
  (KIP-74).
- If the logs diverge, the leader says where (`diverging_epoch`, KIP-595); the follower truncates.
- A partition that cannot be fetched is retried on its own after a backoff. If the leader cannot be
  reached, all its partitions wait.

Source: Kafka's `AbstractFetcherThread`, `ReplicaFetcherThread` and `FetchSessionHandler`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.link import link_to_broker
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.replication_quota import ReplicationQuota
from trimtab.cluster.server.peer import Peer, PeerLost
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.fetch_limits import FetchLimits
from trimtab.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from trimtab.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from trimtab.kafka.wire.schema import Request
from trimtab.kafka.wire.sentinels import (
    EARLIEST,
    INITIAL_EPOCH,
    LATEST,
    NO_LEADER,
    NO_OFFSET,
    NO_SESSION,
)

Response = TypeVar("Response")

_FIRST_BACKOFF_S = 0.02
_MAX_PARTITIONS_PER_REQUEST = 2000
"""Partitions that one request names at most: more would delay other requests at the leader."""
_MAX_SESSION_EPOCH = 2**31 - 1

_log = logging.getLogger(__name__)


class _FollowedPartition:
    """One followed partition, and its state in the fetcher.

    Attributes:
        requested_offset: the offset that was fetched from last.
        in_session: whether the leader's fetch session has the partition.
        delay: the timer that ends a backoff; None while there is none.
    """

    __slots__ = ("backoff_s", "delay", "in_session", "partition", "requested_offset")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.requested_offset = NO_OFFSET
        self.in_session = False
        self.delay: asyncio.TimerHandle | None = None
        self.backoff_s = _FIRST_BACKOFF_S


class ReplicationHost(Protocol):
    """What the fetchers need from the replicas that they fill."""

    def checkpoint_starts(self) -> bool:
        """Write the log start offsets to disk."""

    def disk_failed(self, error: StorageError) -> None:
        """A log could not be written."""


class Replication:
    """The partitions that this broker follows, and one fetcher for each leader.

    Args:
        broker_epoch: returns this broker's current epoch.

    Attributes:
        quota: what it received for throttled replicas.
    """

    def __init__(
        self, host: ReplicationHost, view: ClusterView, broker_epoch: Callable[[], int]
    ) -> None:
        self.host = host
        self.view = view
        self.broker_epoch = broker_epoch
        self.quota = ReplicationQuota()
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[Partition, int] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch the partition from the leader that its registration names."""
        leader = partition.registration.leader
        if self._leaders.get(partition) != leader:
            self.leave(partition)
        if leader == NO_LEADER or leader not in self.view.image.brokers:
            self.leave(partition)
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(self, leader)
        self._leaders[partition] = leader
        fetcher.add_partition(partition)

    def leave(self, partition: Partition) -> None:
        """Stop fetching the partition."""
        leader = self._leaders.pop(partition, None)
        if leader is not None:
            fetcher = self._fetchers[leader]
            fetcher.remove_partition(partition)
            if not fetcher.followed:
                del self._fetchers[leader]
                fetcher.stop()

    def reconnect(self, leader: int) -> None:
        """Reconnect to a leader that has another address or has restarted."""
        fetcher = self._fetchers.get(leader)
        if fetcher is not None:
            fetcher.reconnect()

    def abort(self) -> list[asyncio.Task[None]]:
        """Stop all fetchers at once; returns their tasks, which are about to end."""
        fetchers, self._fetchers = self._fetchers, {}
        self._leaders.clear()
        for fetcher in fetchers.values():
            fetcher.stop()
        return [fetcher.task for fetcher in fetchers.values()]


class ReplicaFetcher:
    """Fetches from one leader, in one session, one request at a time.

    Attributes:
        followed: the partitions, in the order in which a new session will name them.
        task: runs until `stop`.
    """

    def __init__(self, replication: Replication, leader: int) -> None:
        self._replication = replication
        self._host = replication.host
        self._view = replication.view
        self._leader = leader
        self._link = link_to_broker(self._view, leader, f"fetcher-{leader}")
        self._peer: Peer | None = None  # the connection on which the session began
        self._session_id = 0
        self._session_epoch = 0
        self._changed: dict[_FollowedPartition, None] = {}
        self._forgotten: dict[tuple[bytes, int], None] = {}
        self._has_work = asyncio.Event()
        self._backoff_s = _FIRST_BACKOFF_S
        self._has_new_log_starts = False
        self.followed: dict[tuple[bytes, int], _FollowedPartition] = {}
        self.task = asyncio.ensure_future(self._run())

    def add_partition(self, partition: Partition) -> None:
        """Fetch this partition too, or fetch it with its new leader epoch."""
        key = (partition.topic_id, partition.index)
        followed = self.followed.get(key)
        if followed is None:
            followed = self.followed[key] = _FollowedPartition(partition)
            # The session still has it if the next fetch was about to forget it.
            followed.in_session = self._forgotten.pop(key, _ABSENT) is None
        self._cancel_backoff(followed)
        self._schedule(followed)

    def remove_partition(self, partition: Partition) -> None:
        """Stop fetching the partition."""
        key = (partition.topic_id, partition.index)
        followed = self.followed.pop(key, None)
        if followed is None:
            return
        self._cancel_backoff(followed)
        self._changed.pop(followed, None)
        if followed.in_session:
            self._forgotten[key] = None

    def reconnect(self) -> None:
        """Close the connection; the next fetch opens another one, with a new session."""
        self._backoff_s = _FIRST_BACKOFF_S
        self._link.close()

    def stop(self) -> None:
        """Stop fetching at once."""
        self.task.cancel()
        for followed in self.followed.values():
            self._cancel_backoff(followed)
        self._link.close()

    async def _run(self) -> None:
        while True:
            try:
                peer = await self._link.connect()
                if peer is not self._peer:
                    self._peer = peer
                    self._forget_session()
                await self._fetch()
                self._backoff_s = _FIRST_BACKOFF_S
                continue
            except PeerLost as error:
                _log.debug(
                    "cannot fetch broker=%d leader=%d error=%s",
                    self._view.id,
                    self._leader,
                    error,
                )
            except Exception:  # a bug must not stop replication silently
                _log.exception("cannot fetch broker=%d leader=%d", self._view.id, self._leader)
            self._link.close()
            await asyncio.sleep(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, self._max_backoff_s)

    @property
    def _max_backoff_s(self) -> float:
        return self._view.config.seconds("replica.fetch.backoff.ms")

    @property
    def _limits(self) -> FetchLimits:
        config = self._view.config
        return FetchLimits(
            max_bytes=config.integer("replica.fetch.response.max.bytes"),
            partition_max_bytes=config.integer("replica.fetch.max.bytes"),
            min_bytes=config.integer("replica.fetch.min.bytes"),
        )

    def _forget_session(self) -> None:
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        self._forgotten.clear()
        for followed in self.followed.values():
            followed.in_session = False
            if followed.delay is None:
                self._changed[followed] = None

    async def _fetch(self) -> None:
        if not self._session_id and not self._changed:
            self._has_work.clear()
            await self._has_work.wait()
        response = await self._ask(self._request())
        if response.error_code:
            # The leader has dropped or refuses the session: begin a new one.
            known = response.error_code in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            )
            self._forget_session()
            if not known:
                raise PeerLost(f"broker {self._leader} answers with error {response.error_code}")
            return
        self._session_id = response.session_id
        if self._session_id:
            self._session_epoch = (
                1 if self._session_epoch == _MAX_SESSION_EPOCH else self._session_epoch + 1
            )
        else:
            self._forget_session()
        self._has_new_log_starts = False
        for topic in response.responses:
            for data in topic.partitions:
                followed = self.followed.get((topic.topic_id, data.partition_index))
                if followed is not None:
                    await self._apply(followed, data)
                    if data.diverging_epoch.end_offset >= 0:
                        await asyncio.sleep(0)  # truncating blocks on the disk: let others run
        if self._has_new_log_starts:
            self._host.checkpoint_starts()  # the next fetch tells the leader

    async def _ask(self, request: Request[Response]) -> Response:
        timeout_s = self._view.config.seconds("replica.socket.timeout.ms")
        return await self._link.ask(request, timeout_s)

    def _request(self) -> FetchRequest:
        view, replication = self._view, self._replication
        limits = self._limits
        topics: dict[bytes, FetchTopic] = {}
        changed = list(islice(self._changed, _MAX_PARTITIONS_PER_REQUEST))
        for followed in changed:
            del self._changed[followed]
        rate = view.config.integer("follower.replication.throttled.rate")
        is_too_fast = replication.quota.is_exceeded(rate, asyncio.get_running_loop().time())
        for followed in changed:
            partition = followed.partition
            if is_too_fast and self._is_throttled(partition):
                self._back_off(followed)
                continue
            followed.in_session = True
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = FetchTopic(
                    topic_id=partition.topic_id, partitions=[]
                )
            log = partition.log
            followed.requested_offset = log.log_end_offset
            topic.partitions.append(
                FetchPartition(
                    partition=partition.index,
                    current_leader_epoch=partition.registration.leader_epoch,
                    fetch_offset=followed.requested_offset,
                    last_fetched_epoch=log.epochs.latest,
                    log_start_offset=log.log_start_offset,
                    partition_max_bytes=limits.partition_max_bytes,
                )
            )
        forgotten: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in self._forgotten:
            forgotten.setdefault(
                topic_id, ForgottenTopic(topic_id=topic_id, partitions=[])
            ).partitions.append(index)
        self._forgotten.clear()
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=view.id, replica_epoch=replication.broker_epoch()
            ),
            # No wait while further partitions are to be named.
            max_wait_ms=0 if self._changed else view.config.integer("replica.fetch.wait.max.ms"),
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    async def _apply(self, followed: _FollowedPartition, data: PartitionData) -> None:
        """Apply the leader's response for one partition."""
        partition = followed.partition
        if followed.requested_offset != partition.log.log_end_offset:
            # The log changed during the fetch, for example because the partition was removed and
            # added again: the response does not fit it.
            self._schedule(followed)
            return
        code = data.error_code
        try:
            if code == ErrorCode.NONE:
                if data.diverging_epoch.end_offset >= 0:
                    diverging = data.diverging_epoch
                    before = end, _ = partition.log.log_end_offset, partition.log.epochs.latest
                    now = partition.truncate_to_leader(diverging.epoch, diverging.end_offset)
                    _log.info(
                        "truncated the log to the leader's broker=%d partition=%s from=%d to=%d",
                        self._view.id,
                        partition,
                        end,
                        now,
                    )
                    if (now, partition.log.epochs.latest) == before:
                        self._back_off(followed)  # the leader would give the same response again
                    else:
                        self._schedule(followed)
                    return
                records = data.records
                before = partition.log.log_start_offset, partition.log.truncations
                partition.append_replicated(
                    cast(memoryview, records) if records else _NOTHING,
                    data.high_watermark,
                    data.log_start_offset,
                )
                if (partition.log.log_start_offset, partition.log.truncations) != before:
                    self._has_new_log_starts = True
                    self._schedule(followed)  # the leader's DeleteRecords waits for this log start
                if records:
                    if self._is_throttled(partition):
                        now_s = asyncio.get_running_loop().time()
                        self._replication.quota.record(len(records), now_s)
                    self._schedule(followed)
                    key = (partition.topic_id, partition.index)
                    self.followed[key] = self.followed.pop(key)
                followed.backoff_s = _FIRST_BACKOFF_S
                return
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._recover_out_of_range(followed)
                return
        except CorruptData as error:
            _log.error(
                "cannot append the leader's records broker=%d partition=%s error=%s",
                self._view.id,
                partition,
                error,
            )
        except StorageError as error:
            _log.error(
                "cannot follow broker=%d partition=%s error=%s", self._view.id, partition, error
            )
            self._host.disk_failed(error)
        self._back_off(followed)

    def _is_throttled(self, partition: Partition) -> bool:
        return partition.is_throttled and self._view.id not in partition.registration.isr

    async def _recover_out_of_range(self, followed: _FollowedPartition) -> None:
        """This log's end is outside the leader's log. Truncate to the leader's end if it is
        beyond it; otherwise delete the log and restart at the leader's start."""
        partition = followed.partition
        log = partition.log
        epoch = partition.leader_epoch
        leader_end = await self._ask_offset(partition, epoch, LATEST)
        leader_start = await self._ask_offset(partition, epoch, EARLIEST)
        is_followed = self.followed.get((partition.topic_id, partition.index)) is followed
        if leader_end is None or leader_start is None or not is_followed:
            self._back_off(followed)
            return
        end = log.log_end_offset
        if partition.leader_epoch != epoch or leader_start <= end <= leader_end:
            self._back_off(followed)
            return
        if leader_end < end:
            log.truncate(leader_end)
        else:
            log.restart_at(leader_start)
        _log.info(
            "moved the log's end into the leader's log broker=%d partition=%s from=%d to=%d",
            self._view.id,
            partition,
            end,
            log.log_end_offset,
        )
        partition.notify_changed()
        self._schedule(followed)

    async def _ask_offset(self, partition: Partition, epoch: int, timestamp: int) -> int | None:
        """The leader's start or end offset (ListOffsets); None if it answers with an error."""
        wanted = ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=epoch, timestamp=timestamp
        )
        response = await self._ask(
            ListOffsetsRequest(
                replica_id=self._view.id,
                isolation_level=0,
                topics=[ListOffsetsTopic(name=partition.topic, partitions=[wanted])],
            )
        )
        (answer,) = response.topics[0].partitions
        return None if answer.error_code else answer.offset

    def _schedule(self, followed: _FollowedPartition) -> None:
        """Name the partition in the next fetch."""
        self._changed[followed] = None
        self._has_work.set()

    def _back_off(self, followed: _FollowedPartition) -> None:
        """Take the partition out of the session for a backoff, so that its errors do not end every
        fetch at once."""
        key = (followed.partition.topic_id, followed.partition.index)
        if self.followed.get(key) is not followed or followed.delay is not None:
            return
        self._changed.pop(followed, None)
        if followed.in_session:
            followed.in_session = False
            self._forgotten[key] = None
        followed.delay = asyncio.get_running_loop().call_later(
            followed.backoff_s, self._end_backoff, followed
        )
        followed.backoff_s = min(2 * followed.backoff_s, self._max_backoff_s)

    def _end_backoff(self, followed: _FollowedPartition) -> None:
        followed.delay = None
        key = (followed.partition.topic_id, followed.partition.index)
        self._forgotten.pop(key, None)
        self._schedule(followed)

    def _cancel_backoff(self, followed: _FollowedPartition) -> None:
        if followed.delay is not None:
            followed.delay.cancel()
            followed.delay = None


_NOTHING = memoryview(b"")
_ABSENT: Any = object()
