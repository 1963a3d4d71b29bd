"""One partition of a fetch, and the pass that reads it within the budget of the response.

    FetchSession.read ──FetchPass──▶ FetchSlot.read ──▶ Partition.read
                                          ▲──notifies──────┘

Source: Kafka's `CachedPartition` and `ReplicaManager.readFromLog`.
"""

from __future__ import annotations

import logging
from typing import Protocol, cast

from trimtab.cluster.broker.fetch_reader import FetchReader
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.purgatory import DelayedFetch
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.traffic import TopicTraffic
from trimtab.cluster.storage.storage import BytesLike, StorageError
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.records import NO_OFFSET
from trimtab.kafka.wire.fetch_limits import FetchBudget
from trimtab.kafka.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from trimtab.kafka.wire.sentinels import NO_BROKER
from trimtab.kafka.wire.types import StoredBytes

MAX_READ_BYTES = 512 * 1024
"""Record bytes that one response holds in memory at most, over all its partitions. Records beyond
that are read from disk while the response is sent, as fast as the client takes it."""

_UNCHECKED = -2

_STORAGE_ERROR_SINCE = 6
_ZSTD_SINCE = 10
_LEADERS_SINCE = 16

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_OF_NO_TOPIC = TopicTraffic()
"""Counts what belongs to no topic of this broker. Nobody reads it."""
_ABOUT_LEADERS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

# Default values of most partition responses, shared: creating them is half the cost of a response.
_NO_DIVERGENCE = EpochEndOffset()
_NO_LEADER = LeaderIdAndEpoch()
_NO_SNAPSHOT = SnapshotId()

_log = logging.getLogger(__name__)


def failed(
    partition: int, code: ErrorCode, aborted: list[AbortedTransaction] | None
) -> PartitionData:
    """The response for a partition that cannot be read."""
    return PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=NO_OFFSET,
        aborted_transactions=aborted,
        records=b"",
    )


class SlotSession(Protocol):
    """What a slot needs from its session: see
    `trimtab.cluster.broker.fetch_session.FetchSession`."""

    reader: FetchReader
    ready: set[FetchSlot]
    waiting: DelayedFetch | None
    interrupted: FetchPass | None
    is_watching: bool


class FetchPass:
    """One reading of a session's slots: the limits that bound it, and the responses so far.

    Args:
        reader: who fetches.
        budget: limits the record bytes.
        is_full: whether every slot is read and answered, not only those that have changed.

    Attributes:
        memory: record bytes that it may still read into memory.
        answers: the responses by slot, in the session's order.
        unknown: the responses for partitions that this broker does not know.
        leaders: the current leaders that the responses name, by broker id (KIP-951).
        ends_wait: whether the response must not wait for more bytes: it has an error, or redirects
            the reader, or a partition has changed since it was read.
    """

    __slots__ = (
        "answers",
        "budget",
        "ends_wait",
        "is_full",
        "leaders",
        "memory",
        "reader",
        "unknown",
    )

    def __init__(self, reader: FetchReader, budget: FetchBudget, is_full: bool) -> None:
        self.reader = reader
        self.budget = budget
        self.memory = MAX_READ_BYTES
        self.is_full = is_full
        self.answers: list[tuple[FetchSlot, PartitionData]] = []
        self.unknown: list[tuple[FetchSlot, PartitionData]] = []
        self.leaders: dict[int, NodeEndpoint] = {}
        self.ends_wait = False


class FetchSlot:
    """One partition of a fetch: the client's latest request for it, and the latest response.

    Attributes:
        topic: the topic's name, or its id if the session uses topic ids.
        rank: its place in the session's order; the smallest rank is served first.
        traffic: the counts of its topic, once its partition was found.
    """

    # _wanted: the fetch offset and limits that the client sent last.
    # _partition: the replica that was found last; None if there is none on this broker.
    # _high_watermark, _log_start_offset: as last answered; -1 if never, or with an error.
    # _checked_epoch: the leader epoch in which the fetch offset was checked against the log and the
    #     follower's progress recorded; `_UNCHECKED` if it must be checked again.
    # _stays_ready: whether the next response has something to say about it even if the partition
    #     does not change: more records, or an error.
    __slots__ = (
        "_checked_epoch",
        "_high_watermark",
        "_log_start_offset",
        "_partition",
        "_session",
        "_stays_ready",
        "_wanted",
        "rank",
        "topic",
        "traffic",
    )

    def __init__(
        self, session: SlotSession, topic: str | bytes, wanted: FetchPartition, rank: int
    ) -> None:
        self._session = session
        self.topic = topic
        self._wanted = wanted
        self.rank = rank
        self._partition: Partition | None = None
        self.traffic = _OF_NO_TOPIC
        self._high_watermark = NO_OFFSET
        self._log_start_offset = NO_OFFSET
        self._checked_epoch = _UNCHECKED
        self._stays_ready = False

    # Called by its partition

    def appended(self, partition: Partition) -> None:
        """The log end offset has moved: a follower has something to read."""
        if self._session.reader.is_follower:
            self._wake(partition, partition.log.log_end_offset)

    def committed(self, partition: Partition) -> None:
        """The high watermark has moved, and perhaps the last stable offset with it: a consumer has
        something to read. A follower does not stop waiting for it; its next response has the new
        value."""
        reader = self._session.reader
        self._wake(partition, NO_OFFSET if reader.is_follower else reader.end_of(partition))

    def changed(self, partition: Partition) -> None:
        """The log start offset or the replica's role has changed: end the wait and check again."""
        self._checked_epoch = _UNCHECKED
        waiting = self._session.waiting
        if waiting is not None:
            waiting.complete()
        self._wake(partition, NO_OFFSET)

    def _wake(self, partition: Partition, end_offset: int) -> None:
        session = self._session
        session.ready.add(self)
        waiting = session.waiting
        if waiting is None:
            partition.watchers.pop(self, None)
            self._stays_ready = True
            if session.interrupted is not None:  # the pass may have read this slot already
                session.interrupted.ends_wait = True
        elif self._wanted.fetch_offset < end_offset and not session.reader.is_throttled(partition):
            if waiting.min_bytes <= 1:
                waiting.complete()
            else:
                waiting.count(self, self._available(partition, end_offset))

    def _available(self, partition: Partition, end_offset: int) -> int:
        wanted = self._wanted
        available = partition.log.bytes_between(wanted.fetch_offset, end_offset)
        return min(available, wanted.partition_max_bytes)

    # Called by its session

    def available(self) -> int:
        """Bytes that count towards `min_bytes`: those up to the offset where the reader may read,
        but no more than `partition_max_bytes`."""
        partition, reader = self._partition, self._session.reader
        if partition is None or reader.is_throttled(partition):
            return 0
        return self._available(partition, reader.end_of(partition))

    def request(self, wanted: FetchPartition) -> None:
        """The client has sent another fetch offset or limit."""
        self._wanted = wanted
        self._checked_epoch = _UNCHECKED

    def recheck(self) -> None:
        """Check the fetch offset again at the next reading."""
        self._checked_epoch = _UNCHECKED

    def watch(self) -> None:
        """Watch the partition, if there is one."""
        if self._partition is not None:
            self._partition.watchers[self] = None

    def unwatch(self) -> None:
        """Stop watching."""
        if self._partition is not None:
            self._partition.watchers.pop(self, None)
            self._partition = None

    def read(self, reading: FetchPass) -> PartitionData | None:
        """Read the partition within the budget of this pass.

        Returns:
            The partition's response, or None: it goes to `unknown`, or nothing has changed since
            the session's last response.
        """
        try:
            return self._read(reading)
        except Refused as refused:
            self.unwatch()  # it stays ready, so the next fetch looks for the partition again
            return self._refuse(reading, refused.code)
        except StorageError as error:
            _log.error("cannot read partition=%s error=%s", self._partition, error)
            reading.reader.replicas.disk_failed(error)
            return self._refuse(reading, ErrorCode.KAFKA_STORAGE_ERROR)
        except CorruptData as error:
            _log.error("cannot read partition=%s error=%s", self._partition, error)
            return self._refuse(reading, ErrorCode.CORRUPT_MESSAGE)

    def _read(self, reading: FetchPass) -> PartitionData | None:
        reader = reading.reader
        wanted = self._wanted
        partition = reader.find(self.topic, wanted.partition)
        if self._partition is not partition:
            self.unwatch()
            self._partition = partition
            self.traffic = partition.traffic
            self._checked_epoch = _UNCHECKED
        offset = wanted.fetch_offset
        log = partition.log
        leader_epoch = partition.leader_epoch
        if wanted.current_leader_epoch != leader_epoch:
            partition.check_epoch(wanted.current_leader_epoch)
        if reader.rack and partition.is_leader:
            preferred = partition.preferred_replica(reader.rack, offset)
            if preferred != NO_BROKER:
                return self._redirect(reading, partition, _NO_DIVERGENCE, preferred)
        if reader.version < _ZSTD_SINCE and partition.compression_type == "zstd":
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        is_checked = self._checked_epoch == leader_epoch
        if not is_checked and wanted.last_fetched_epoch >= 0:
            diverging = partition.diverging_epoch(wanted.last_fetched_epoch, offset)
            if diverging is not None:
                epoch, end_offset = diverging
                divergence = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                return self._redirect(reading, partition, divergence, NO_BROKER)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if not is_checked:
            if reader.is_follower:
                self._report(reader, partition)
            self._checked_epoch = leader_epoch
        if self._session.is_watching:
            # Only after `_report`, which may raise the high watermark and notify this slot.
            partition.watchers[self] = None

        high_watermark = partition.high_watermark
        end = reader.end_of(partition)
        self._stays_ready = offset < end
        records: BytesLike | StoredBytes = b""
        if self._stays_ready and not (reader.is_follower and reader.is_throttled(partition)):
            budget = reading.budget
            room = budget.room(wanted.partition_max_bytes)
            if room < 0:
                raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
            if room or budget.must_give_one:
                records = partition.read(offset, room, budget.must_give_one, end, reading.memory)
        if records:
            budget.spend(len(records))
            if isinstance(records, bytes | memoryview):
                reading.memory -= len(records)
            reader.note_sent(partition, len(records))
        elif (
            not reading.is_full
            and self._high_watermark == high_watermark
            and self._log_start_offset == log.log_start_offset
        ):
            if not self._stays_ready:
                self._session.ready.discard(self)
            return None
        return self._data(reader, partition, high_watermark, records)

    def _report(self, reader: FetchReader, partition: Partition) -> None:
        """Record the follower's progress: it has everything before its fetch offset."""
        wanted = self._wanted
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
        reader: FetchReader,
        partition: Partition,
        high_watermark: int,
        records: BytesLike | StoredBytes,
        diverging: EpochEndOffset = _NO_DIVERGENCE,
        preferred: int = NO_BROKER,
    ) -> PartitionData:
        # Assigning the fields takes half the time of calling the class.
        data = PartitionData.__new__(PartitionData)
        data.partition_index = self._wanted.partition
        data.error_code = 0
        data.high_watermark = high_watermark
        data.last_stable_offset = partition.log.last_stable_offset
        data.log_start_offset = partition.log.log_start_offset
        data.diverging_epoch = diverging
        data.current_leader = _NO_LEADER
        data.snapshot_id = _NO_SNAPSHOT
        data.aborted_transactions = reader.aborted_in(
            partition, self._wanted.fetch_offset, len(records) > 0
        )
        data.preferred_read_replica = preferred
        data.records = cast(BytesLike, records)  # StoredBytes is resolved when the response is sent
        return data

    def _redirect(
        self, reading: FetchPass, partition: Partition, diverging: EpochEndOffset, preferred: int
    ) -> PartitionData:
        """Answer without records: the follower must truncate first, or the consumer read elsewhere.
        The slot stays ready until the reader has done so."""
        self._stays_ready = reading.ends_wait = True
        high_watermark = partition.high_watermark
        return self._data(reading.reader, partition, high_watermark, b"", diverging, preferred)

    def _refuse(self, reading: FetchPass, code: ErrorCode) -> PartitionData | None:
        """Answer with an error code. The slot stays ready, so that every response repeats the error
        until it is gone. An unknown partition may appear, so it does not end the wait."""
        self._stays_ready = True
        reader = reading.reader
        if code is ErrorCode.KAFKA_STORAGE_ERROR and reader.version < _STORAGE_ERROR_SINCE:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = failed(self._wanted.partition, code, reader.none_aborted)
        if code in _UNKNOWN:
            reading.unknown.append((self, data))
            return None
        reading.ends_wait = True
        if code in _ABOUT_LEADERS and reader.version >= _LEADERS_SINCE:
            self._name_leader(reading, data)
        return data

    def _name_leader(self, reading: FetchPass, data: PartitionData) -> None:
        """Add the current leader to the response (KIP-951), and its address for consumers;
        followers learn addresses from the controller."""
        reader = reading.reader
        found = reader.find_leader(self.topic, self._wanted.partition)
        if found is None:
            return
        leader, epoch, registration = found
        data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
        if registration is not None and not reader.is_follower:
            reading.leaders[leader] = NodeEndpoint(
                node_id=leader,
                host=registration.host,
                port=registration.port,
                rack=registration.rack,
            )

    def answered(self, data: PartitionData) -> bool:
        """Keep the values of a response that is about to be sent.

        Returns:
            Whether the next response has something to say about the slot in any case.
        """
        # A follower that must truncate ignores the high watermark of this response.
        diverges = data.diverging_epoch is not _NO_DIVERGENCE
        self._high_watermark = NO_OFFSET if diverges else data.high_watermark
        self._log_start_offset = data.log_start_offset
        return self._stays_ready
