"""Fetch (1), versions 4-18: whole record batches, within the limits of KIP-74.

- `max_bytes` bounds the record bytes of the response and is spent on the partitions in the order of
  the request, or of the session; `partition_max_bytes` bounds each. The first partition that has
  records is exempt: it gets at least its first batch, however big.
- Only whole batches are sent. (Kafka also sends the incomplete last batch, and clients drop it.)
  A batch may begin before the requested offset.
- If fewer than `min_bytes` are available, the response waits up to `max_wait_ms`; then all
  partitions are read again. An error at a partition that this broker hosts ends the wait.
- A request that continues a session (KIP-227) is answered with the changed partitions only. The
  cost depends only on how many have changed: see `trimtab.broker.fetch_session`.
- A follower may read up to the log end offset; its fetch offset tells the leader how much it has
  replicated.
- An unknown isolation level, or a negative limit where there is something to read, is
  answered with UNKNOWN_SERVER_ERROR, as by Kafka 4.3, which has no check of its own there.
- Transactions are not served, so both isolation levels read the same records.

Versions 0-3 are not served: they require converting batches to the formats before v2.
Source: Kafka's `KafkaApis.handleFetchRequest`, `ReplicaManager.readFromLog` and `DelayedFetch`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from trimtab.broker.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    PARTITIONS_PER_STEP,
    UNCHECKED,
    FetchSession,
    FetchSlot,
    Reader,
)
from trimtab.broker.partition import Partition, Refused
from trimtab.broker.purgatory import DelayedFetch
from trimtab.errors import CorruptData, ErrorCode
from trimtab.records import NO_OFFSET
from trimtab.server.turns import Pace
from trimtab.storage.storage import BytesLike, StorageError
from trimtab.wire.fetch_limits import FetchBudget
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from trimtab.wire.types import ZERO_UUID, StoredBytes

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trimtab.broker.broker import Broker
    from trimtab.broker.partition import Watcher
    from trimtab.server.turns import Steps

MAX_READ_BYTES = 512 * 1024
"""Record bytes that one response holds in memory at most, over all its partitions. Records beyond
that are read from disk while the response is sent, as fast as the client takes it."""

_STORAGE_ERROR_SINCE = 6
_ZSTD_SINCE = 10
_LEADERS_SINCE = 16

_ONE_CODE_SINCE = 13
"""Since this version a request that fails as a whole is answered with one code for all of it."""

_READ_COMMITTED = 1
_ISOLATIONS = (0, _READ_COMMITTED)
_NO_REPLICA = -1

# Default values of most partition responses, shared: creating them is half the cost of a response.
_NO_DIVERGENCE = EpochEndOffset()
_NO_LEADER = LeaderIdAndEpoch()
_NO_SNAPSHOT = SnapshotId()

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_ABOUT_LEADERS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

_log = logging.getLogger(__name__)


def fetch(
    broker: Broker, header: RequestHeader, request: FetchRequest
) -> Steps[FetchResponse | Awaitable[FetchResponse]]:
    """Answer at once, or wait until `min_bytes` are available or `max_wait_ms` is over."""
    if request.isolation_level not in _ISOLATIONS:
        return (yield from _refuse_all(header.api_version, request))
    try:
        fetching = _Fetch(broker, header.api_version, request)
    except Refused as refused:
        return FetchResponse(error_code=refused.code, session_id=NO_SESSION, responses=[])
    try:
        yield from fetching.update_session()
        yield from fetching.read()
        if fetching.is_enough:
            return (yield from fetching.respond())
    except GeneratorExit:  # its connection is lost
        fetching.give_up()
        raise
    return fetching.wait()


def _refuse_all(version: int, request: FetchRequest) -> Steps[FetchResponse]:
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    responses = []
    pace = Pace()
    for topic in request.topics if version < _ONE_CODE_SINCE else ():
        partitions = []
        for each in topic.partitions:
            partitions.append(_failed(each.partition, code, None))
            if pace.spend():
                yield
        responses.append(FetchableTopicResponse(topic=topic.topic, partitions=partitions))
    return FetchResponse(error_code=code, session_id=NO_SESSION, responses=responses)


def _failed(
    partition: int, code: ErrorCode, aborted: list[AbortedTransaction] | None
) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=NO_OFFSET,
        aborted_transactions=aborted,
        records=b"",
    )


class _Fetch:
    """One request: reads its partitions, once or several times, and builds the response.

    Raises:
        Refused: the request names a session that does not exist, or does not fit it.
    """

    __slots__ = (
        "_aborted",
        "_answers",
        "_broker",
        "_budget",
        "_byte_limit",
        "_delayed",
        "_epoch",
        "_is_full",
        "_leaders",
        "_memory_left",
        "_min_bytes",
        "_must_answer",
        "_opens_session",
        "_pace",
        "_readable",
        "_reader",
        "_request",
        "_session",
        "_unknown",
        "_version",
    )

    def __init__(self, broker: Broker, version: int, request: FetchRequest) -> None:
        self._broker = broker
        self._version = version
        self._request = request
        self._reader = Reader(broker, version, request)
        self._byte_limit = min(request.max_bytes, cast(int, broker.config["fetch.max.bytes"]))
        self._min_bytes = min(request.min_bytes, self._byte_limit)
        self._aborted: list[AbortedTransaction] | None = (
            [] if request.isolation_level == _READ_COMMITTED else None
        )
        self._delayed: DelayedFetch | None = None
        self._is_full = request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)
        self._opens_session = request.session_epoch == INITIAL_EPOCH
        self._session = self._begin() if self._is_full else self._resume()
        self._epoch = self._session.epoch
        self._pace = Pace(PARTITIONS_PER_STEP)

    def _begin(self) -> FetchSession:
        request = self._request
        if request.session_id != NO_SESSION:
            self._broker.fetch_sessions.remove(request.session_id)
        return FetchSession(self._reader, self._version)

    def _resume(self) -> FetchSession:
        request = self._request
        now_s = asyncio.get_running_loop().time()
        sessions = self._broker.fetch_sessions
        session = sessions.resume(request.session_id, request.session_epoch, self._version, now_s)
        session.set_reader(self._reader)
        return session

    def update_session(self) -> Steps[None]:
        """Update the session with the partitions that the request adds, changes or removes."""
        request, session, pace = self._request, self._session, self._pace
        yield from session.add(request.topics, pace)
        if not self._is_full:
            yield from session.forget(request.forgotten_topics_data, pace)
            self._broker.fetch_sessions.check_size(session)
            if not session.slots:
                # The session was evicted for its size, or has no partitions left: start another.
                self._is_full = True
                self._session = self._begin()
                self._epoch = self._session.epoch
                yield from self._session.add(request.topics, pace)
        elif len(session.slots) > PARTITIONS_PER_STEP:
            session.is_watching = True  # to notice changes while other requests are served

    # -- reading

    def read(self) -> Steps[None]:
        """Read the partitions once, in order: all of them, or those of the session that are ready.
        If a partition changes after this pass has read it, the session is marked `was_notified`."""
        session, pace = self._session, self._pace
        session.was_notified = False
        self._answers: list[tuple[FetchSlot, PartitionData]] = []
        self._unknown: list[tuple[FetchSlot, PartitionData]] = []
        self._leaders: dict[int, NodeEndpoint] = {}
        self._readable: list[tuple[FetchSlot, Partition, int]] = []
        self._must_answer = False
        self._budget = FetchBudget(self._byte_limit)
        self._memory_left = MAX_READ_BYTES  # into memory
        for slot in (
            list(session.slots.values()) if self._is_full else (yield from session.ready_in_order())
        ):
            if pace.spend():
                session.is_interrupted = True
                yield
                session.is_interrupted = False
            try:
                data = self._read(slot, self._find(slot))
            except Refused as refused:
                self._refuse(slot, refused.code)
            except StorageError as error:
                _log.error("cannot read partition=%s error=%s", slot.partition, error)
                self._broker.disk_failed(error)
                self._refuse(slot, ErrorCode.KAFKA_STORAGE_ERROR)
            except CorruptData as error:
                _log.error("cannot read partition=%s error=%s", slot.partition, error)
                self._refuse(slot, ErrorCode.CORRUPT_MESSAGE)
            else:
                if data is not None:
                    self._answers.append((slot, data))

    def _find(self, slot: FetchSlot) -> Partition:
        topic = slot.topic
        try:
            if not isinstance(topic, str):
                topic = self._name(topic)
            partition = self._reader.find(topic, slot.wanted.partition)
        except Refused:
            slot.unwatch()
            raise
        if slot.partition is not partition:
            slot.unwatch()
            slot.partition = partition
            slot.checked_epoch = UNCHECKED
        return partition

    def _name(self, topic_id: bytes) -> str:
        image = self._broker.image.topics_by_id.get(topic_id)
        if image is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
        return image.name

    def _read(self, slot: FetchSlot, partition: Partition) -> PartitionData | None:
        """The response for one partition; None if nothing has changed since the session's last."""
        session = self._session
        reader = self._reader
        wanted = slot.wanted
        offset = wanted.fetch_offset
        log = partition.log
        leader_epoch = partition.leader_epoch
        if wanted.current_leader_epoch != leader_epoch:
            partition.check_epoch(wanted.current_leader_epoch)
        if reader.rack and partition.is_leader:
            preferred = partition.preferred_replica(reader.rack, offset)
            if preferred != _NO_REPLICA:
                self._must_answer = slot.stays_ready = True
                high_watermark = partition.high_watermark
                return self._data(slot, partition, high_watermark, b"", preferred=preferred)
        if self._version < _ZSTD_SINCE and partition.compression_type == "zstd":
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        is_checked = slot.checked_epoch == leader_epoch
        if not is_checked and wanted.last_fetched_epoch >= 0:
            diverging = partition.diverging_epoch(wanted.last_fetched_epoch, offset)
            if diverging is not None:
                self._must_answer = slot.stays_ready = True
                epoch, end_offset = diverging
                diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                high_watermark = partition.high_watermark
                return self._data(slot, partition, high_watermark, b"", diverging_epoch)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if not is_checked:
            if reader.is_follower:
                self._report(partition, wanted)
            slot.checked_epoch = leader_epoch
        if session.is_watching:
            # Only after `_report`, which may raise the high watermark and notify this slot.
            partition.watchers[slot] = None

        high_watermark = partition.high_watermark
        end_offset = log.log_end_offset if reader.is_follower else high_watermark
        slot.stays_ready = offset < end_offset
        budget = self._budget
        records: BytesLike | StoredBytes = b""
        if slot.stays_ready and not (reader.is_follower and reader.is_throttled(partition)):
            room = budget.room(wanted.partition_max_bytes)
            if room < 0:
                raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
            if room or budget.must_give_one:
                records = partition.read(
                    offset, room, budget.must_give_one, end_offset, self._memory_left
                )
            self._readable.append((slot, partition, end_offset))
        if records:
            budget.spend(len(records))
            if isinstance(records, bytes | memoryview):
                self._memory_left -= len(records)
            reader.note_sent(partition, len(records))
        elif (
            not self._is_full
            and slot.high_watermark == high_watermark
            and slot.log_start_offset == log.log_start_offset
        ):
            if not slot.stays_ready:
                session.ready.discard(slot)
            return None
        return self._data(slot, partition, high_watermark, records)

    def _report(self, partition: Partition, wanted: FetchPartition) -> None:
        """Record the follower's progress: it has everything before its fetch offset."""
        reader = self._reader
        try:
            partition.follower_fetched(
                reader.replica_id,
                reader.broker_epoch,
                wanted.fetch_offset,
                wanted.log_start_offset,
            )
        except Refused as refused:
            if refused.code is ErrorCode.UNKNOWN_LEADER_EPOCH and wanted.current_leader_epoch < 0:
                # The broker is not a replica, according to our metadata, which may be late. The
                # request has no epoch, so UNKNOWN_LEADER_EPOCH would be wrong.
                raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER) from refused
            raise

    def _data(
        self,
        slot: FetchSlot,
        partition: Partition,
        high_watermark: int,
        records: BytesLike | StoredBytes,
        diverging: EpochEndOffset = _NO_DIVERGENCE,
        preferred: int = _NO_REPLICA,
    ) -> PartitionData:
        # Assigning the fields takes half the time of calling the class.
        data = PartitionData.__new__(PartitionData)
        data.partition_index = slot.wanted.partition
        data.error_code = 0
        data.high_watermark = data.last_stable_offset = high_watermark
        data.log_start_offset = partition.log.log_start_offset
        data.diverging_epoch = diverging
        data.current_leader = _NO_LEADER
        data.snapshot_id = _NO_SNAPSHOT
        data.aborted_transactions = self._aborted
        data.preferred_read_replica = preferred
        data.records = cast(BytesLike, records)  # StoredBytes is resolved when the response is sent
        return data

    def _refuse(self, slot: FetchSlot, code: ErrorCode) -> None:
        """Answer with an error code. The slot stays ready, so that every response repeats the error
        until it is gone."""
        slot.stays_ready = True
        if code is ErrorCode.KAFKA_STORAGE_ERROR and self._version < _STORAGE_ERROR_SINCE:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = _failed(slot.wanted.partition, code, self._aborted)
        if code in _UNKNOWN:
            self._unknown.append((slot, data))
            return
        self._answers.append((slot, data))
        self._must_answer = True
        if code in _ABOUT_LEADERS and self._version >= _LEADERS_SINCE:
            self._name_leader(slot, data)

    def _name_leader(self, slot: FetchSlot, data: PartitionData) -> None:
        """Add the current leader to the response (KIP-951), and its address for consumers;
        followers learn addresses from the controller."""
        topic = slot.topic
        name = topic if isinstance(topic, str) else self._name(topic)
        found = self._broker.find_leader(name, slot.wanted.partition)
        if found is None:
            return
        leader, epoch, registration = found
        data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
        if registration is not None and not self._reader.is_follower:
            self._leaders[leader] = NodeEndpoint(
                node_id=leader,
                host=registration.host,
                port=registration.port,
                rack=registration.rack,
            )

    # -- waiting

    @property
    def is_enough(self) -> bool:
        """Whether to answer now, without waiting for more bytes."""
        return (
            self._request.max_wait_ms <= 0
            or self._session.was_notified
            or self._min_bytes <= 0
            or self._must_answer
            or len(self._unknown) == len(self._session.slots)
            or self._budget.spent >= self._min_bytes
            or sum(self._available().values()) >= self._min_bytes
        )

    def _available(self) -> dict[Watcher, int]:
        """Bytes available to each slot, beyond the limit of the response: a response with no room
        for the next whole batch must not wait for more."""
        if self._budget.must_give_one:
            return {}
        return {
            slot: slot.available(partition, end_offset)
            for slot, partition, end_offset in self._readable
        }

    def wait(self) -> Awaitable[FetchResponse]:
        """The response, once `min_bytes` are available, an event ends the wait, or time is up."""
        session = self._session
        self._delayed = session.waiting = DelayedFetch(
            self._request.max_wait_ms / 1000,
            self._min_bytes,
            self._available(),
            self._read_again,
            self._run,
            self.give_up,
        )
        if not session.is_kept:
            session.watch()
        return self._delayed.response

    def _run(self, steps: Steps[FetchResponse]) -> asyncio.Future[FetchResponse]:
        return self._broker.listener.turns.run(steps)

    def _read_again(self) -> Steps[FetchResponse]:
        self._stop_waiting()
        if self._session.epoch != self._epoch:
            # The client gave up this request and sent the next one over another connection.
            return FetchResponse(
                error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                session_id=self._session.id,
                responses=[],
            )
        yield from self.read()
        return (yield from self.respond())

    def give_up(self) -> None:
        """Stop: the connection is lost, so nobody reads the response."""
        self._stop_waiting()
        if not self._session.is_kept:
            self._session.close()

    def _stop_waiting(self) -> None:
        if self._session.waiting is self._delayed:
            self._session.waiting = None
        self._delayed = None

    # -- answering

    def respond(self) -> Steps[FetchResponse]:
        """The response: first the partitions read by the last pass, then those that this broker
        does not know. Updates the session with the values sent."""
        session, pace = self._session, self._pace
        answers = self._answers + self._unknown
        if self._opens_session:
            self._broker.fetch_sessions.keep(session, asyncio.get_running_loop().time())
        if session.is_kept:
            for slot, data in answers:
                # A follower that must truncate ignores the high watermark of this response.
                diverges = data.diverging_epoch is not _NO_DIVERGENCE
                told = NO_OFFSET if diverges else data.high_watermark
                session.answered(slot, told, data.log_start_offset, bool(data.records))
                if pace.spend():
                    yield
        else:
            session.close()
        responses: list[FetchableTopicResponse] = []
        partitions: list[PartitionData] = []
        topic: str | bytes | None = None
        for slot, data in answers:
            if slot.topic != topic:
                topic = slot.topic
                partitions = []
                responses.append(
                    FetchableTopicResponse(
                        topic=topic if isinstance(topic, str) else "",
                        topic_id=topic if isinstance(topic, bytes) else ZERO_UUID,
                        partitions=partitions,
                    )
                )
            partitions.append(data)
            if pace.spend():
                yield
        return FetchResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            session_id=session.id,
            responses=responses,
            node_endpoints=list(self._leaders.values()),
        )
