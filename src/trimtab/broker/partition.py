"""One replica of a partition: what may be appended to it and what may be read from it.

    leader:    append ─▶ log ─▶ followers fetch ─▶ high watermark ─▶ consumers, acks=all
    follower:  append_replicated ─▶ log; the high watermark is the leader's

A producer's batch is judged by its header alone, in the order and with the codes of Kafka's
`UnifiedLog` and `LogValidator`; no record is opened, except for a topic that is compacted, where
every record must have a key. So the timestamps that are checked are the batch's first and largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from trimtab.broker.leadership import ANY_EPOCH, Leadership
from trimtab.broker.replication_quota import lists_replica
from trimtab.config import Value
from trimtab.errors import CorruptData, ErrorCode
from trimtab.metadata.image import PartitionRegistration
from trimtab.records import NO_TIMESTAMP
from trimtab.storage.log import Log
from trimtab.storage.producer_state import ACCEPTED
from trimtab.storage.storage import BytesLike
from trimtab.wire.batch_cy import (
    BatchHeader,
    CorruptBatch,
    read_header,
    scan_records,
    stamp_append_time,
    verify,
)
from trimtab.wire.batch_header import is_cut_short
from trimtab.wire.compression import Compression, TooLarge
from trimtab.wire.types import StoredBytes

if TYPE_CHECKING:
    from trimtab.server.turns import Steps

_ALL = -1
_NO_EPOCH = -1

MAX_AT_FAULT = 10_000
"""Records of a refused batch that are named: a batch of few bytes may hold millions."""


class Refused(Exception):
    """A batch or a read that this partition refuses. Becomes a code in the response.

    Attributes:
        at_fault: the records because of which the batch is refused, by their places in it
            (KIP-467): the first `MAX_AT_FAULT` of them.
        is_wrong_time: where they are not known yet: whether a record's time makes it one of them.
            `Partition.find_times` looks for them.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        at_fault: Sequence[int] = (),
        is_wrong_time: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
        self.at_fault = at_fault
        self.is_wrong_time = is_wrong_time


class Appended(NamedTuple):
    """Where a batch is. `log_append_time` is -1 where the producer's own times count.

    It is committed once the high watermark has reached `next_offset`.
    """

    base_offset: int
    next_offset: int
    log_append_time: int


class Watcher(Protocol):
    """Who is told of what happens to a partition. It must not act within the call."""

    def appended(self, partition: Partition) -> None:
        """The log's end has moved."""

    def committed(self, partition: Partition) -> None:
        """The high watermark has moved."""

    def changed(self, partition: Partition) -> None:
        """The log's start has moved, or the replica has another role, or is gone."""


class Host(Protocol):
    """What a partition asks of the broker it is on."""

    @property
    def id(self) -> int: ...

    @property
    def lag_limit_s(self) -> float:
        """`replica.lag.time.max.ms`, in seconds."""

    def time(self) -> float:
        """The loop's clock, in seconds."""

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that broker, in that life, may be in an ISR."""

    def propose_isr(self, partition: Partition) -> None:
        """Ask the controller for the ISR that `partition.leadership.proposal` has."""

    def choose_replica(self, partition: Partition, rack: str, offset: int) -> int:
        """Whom a consumer in this rack had better read from; -1 for the leader."""


class Partition:
    """One replica.

    Args:
        config: the topic's options (`trimtab.config.TOPIC`), all of them.
        now_ms: wall time in milliseconds.

    Attributes:
        registration: what the controller says of the partition.
        is_compacted: whether every record must have a key.
        leadership: what only a leader knows; None on a follower.
        is_throttled: whether, as a follower that is not in sync, it takes no more than
            `follower.replication.throttled.rate` allows.
        watchers: told of what happens here, in the order in which they came.
    """

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_host",
        "_max_message_bytes",
        "_min_isr",
        "_now_ms",
        "_stamps",
        "_throttles_leader",
        "compression_type",
        "index",
        "is_compacted",
        "is_throttled",
        "leadership",
        "log",
        "registration",
        "topic",
        "topic_id",
        "watchers",
    )

    def __init__(
        self,
        host: Host,
        topic: str,
        topic_id: bytes,
        registration: PartitionRegistration,
        log: Log,
        config: Mapping[str, Value],
        now_ms: Callable[[], int],
    ) -> None:
        self._host = host
        self.topic = topic
        self.topic_id = topic_id
        self.index = registration.id
        self.registration = registration
        self.log = log
        self.leadership: Leadership | None = None
        self.watchers: dict[Watcher, None] = {}
        self._now_ms = now_ms
        self.configure(config)

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def configure(self, config: Mapping[str, Value]) -> None:
        """The topic's options have changed; those of the log are the log's."""
        self._max_message_bytes = cast(int, config["max.message.bytes"])
        self._after_ms = cast(int, config["message.timestamp.after.max.ms"])
        self._before_ms = cast(int, config["message.timestamp.before.max.ms"])
        self._stamps = config["message.timestamp.type"] == "LogAppendTime"
        self.is_compacted = "compact" in cast("tuple[str, ...]", config["cleanup.policy"])
        self._min_isr = cast(int, config["min.insync.replicas"])
        self._throttles_leader = lists_replica(
            cast("tuple[str, ...]", config["leader.replication.throttled.replicas"]),
            self.index,
            self._host.id,
        )
        self.is_throttled = lists_replica(
            cast("tuple[str, ...]", config["follower.replication.throttled.replicas"]),
            self.index,
            self._host.id,
        )
        self.compression_type = cast(str, config["compression.type"])
        if self.leadership is not None:
            self.leadership.configure(self._min_isr)
            self.raise_high_watermark()

    @property
    def is_leader(self) -> bool:
        return self.leadership is not None

    @property
    def leader_epoch(self) -> int:
        return self.registration.leader_epoch

    @property
    def high_watermark(self) -> int:
        """Everything before it is committed."""
        return self.log.high_watermark

    # -- roles

    def lead(self, registration: PartitionRegistration) -> None:
        """The controller says that this broker leads, in this epoch and with this ISR."""
        before = self.registration
        leadership = self.leadership
        stays = leadership is not None and before.leader_epoch == registration.leader_epoch
        if stays and registration.partition_epoch <= before.partition_epoch:
            return  # nothing new; what is proposed still is
        self.registration = registration
        now_s = self._host.time()
        if stays:
            assert leadership is not None
            leadership.update(self._host.id, registration, now_s)
        else:
            self.log.begin_epoch(registration.leader_epoch)
            self.leadership = Leadership(
                self._host.id,
                registration,
                self.log,
                self._min_isr,
                self._host.is_eligible,
                now_s,
            )
            if leadership is not None:
                # It leads on, so nothing is cut off: who waits, waits on.
                self.leadership.waits = leadership.waits
                self.leadership.deletions = leadership.deletions
            self.tell_changed()
        self.raise_high_watermark()

    def follow(self, registration: PartitionRegistration) -> None:
        """The controller says that another broker leads, or none."""
        before, self.registration = self.registration, registration
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            leadership.resign()
        if leadership is not None or before.leader_epoch != registration.leader_epoch:
            self.tell_changed()

    def retire(self) -> None:
        """This broker has the partition no more."""
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            leadership.resign()
        self.tell_changed()

    def tell_changed(self) -> None:
        """Have every fetch that waits here look again."""
        for watcher in tuple(self.watchers):
            watcher.changed(self)

    # -- the leader appends, and learns how far its followers are

    def append(self, records: memoryview, allows_zstd: bool, acks: int = 1) -> Appended:
        """Append the one batch of a client's produce request.

        Its offset and leader epoch are stamped in place. If the topic is compacted, `check_keys`
        has been there before. A batch that an idempotent producer sent
        before is not stored again; the answer says where it is.

        Raises:
            Refused: the batch breaks a rule, too few replicas are in sync for acks=all (-1), or
                this broker does not lead.
            StorageError: the disk failed.
        """
        leadership = self.leadership
        if leadership is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == _ALL and leadership.is_under_min_isr:
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self}: {len(leadership.isr)} replicas are in sync, {list(leadership.isr)}, "
                f"but min.insync.replicas={self._min_isr} and acks=all.",
            )
        header = self._check_batch(records, allows_zstd)
        log = self.log
        if header.producer_id >= 0:
            verdict = log.producers.check(header)
            if verdict is not ACCEPTED:
                if verdict.duplicate is None:
                    raise Refused(verdict.error, f"{self}: {verdict.detail}")
                stored = verdict.duplicate
                return Appended(
                    stored.first_offset,
                    stored.last_offset + 1,
                    stored.timestamp if self._stamps else NO_TIMESTAMP,
                )
        if self._stamps:
            stamp_append_time(records, 0, self._now_ms())
            header = read_header(records)
        end = log.log_end_offset
        info = log.append(records, self.registration.leader_epoch, [header])
        followers = leadership.followers
        isr = leadership.maximal_isr
        if followers:
            now_s = self._host.time()
            for broker_id, follower in followers.items():
                # It was up to date until now. Of one that is out of sync that is not known.
                if follower.end_offset == end and broker_id in isr:
                    follower.caught_up_s = now_s
        for watcher in tuple(self.watchers):
            watcher.appended(self)
        if len(isr) == 1:
            self.raise_high_watermark()
        return Appended(info.first_offset, info.last_offset + 1, info.log_append_time)

    def follower_fetched(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int
    ) -> None:
        """A follower asks for what comes after `offset`: it has everything before.

        Raises:
            Refused: it has no replica of this partition, or this broker does not lead.
        """
        leadership = self.leadership
        if leadership is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        follower = leadership.followers.get(replica_id)
        if follower is None:
            # The metadata of one of us is behind; Kafka has the follower ask again, too.
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if ANY_EPOCH != broker_epoch < follower.broker_epoch:
            # Of an earlier life of that broker, which may have lost since what it had then.
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        host = self._host
        log = self.log
        before = follower.end_offset
        follower.fetched(offset, broker_epoch, log.log_end_offset, host.time())
        if log_start_offset != follower.log_start_offset:
            follower.log_start_offset = log_start_offset
            leadership.release_deletions()
        if replica_id not in leadership.isr and leadership.can_join(replica_id):
            self._propose((*leadership.isr, replica_id))
        if offset != before:
            self.raise_high_watermark()

    def raise_high_watermark(self) -> None:
        """Commit what every replica in sync has."""
        leadership = self.leadership
        if leadership is None:
            return
        log = self.log
        host = self._host
        if leadership.followers:
            committed = leadership.committed_offset(host.time(), host.lag_limit_s)
        else:
            committed = log.log_end_offset
        if committed > log.high_watermark:
            log.high_watermark = committed
            leadership.release(committed)
            for watcher in tuple(self.watchers):
                watcher.committed(self)

    def review_isr(self) -> None:
        """Propose an ISR without those that have been behind for too long, or with those that may
        join; to be called every now and then, and when brokers come or go."""
        leadership = self.leadership
        if leadership is None:
            return
        leadership.release_deletions()
        if leadership.proposal is not None:
            return
        host = self._host
        now_s = host.time()
        lagging = leadership.lagging(now_s, host.lag_limit_s)
        if lagging:
            self._propose(tuple(each for each in leadership.isr if each not in lagging))
            return
        end = self.log.log_end_offset
        joining = [
            each
            for each, follower in leadership.followers.items()
            # Without a fetch, one that lags would be taken out again.
            if leadership.can_join(each) and not follower.lags(end, now_s, host.lag_limit_s)
        ]
        if joining:
            self._propose((*leadership.isr, *joining))
        else:
            self.raise_high_watermark()

    def _propose(self, isr: tuple[int, ...]) -> None:
        assert self.leadership is not None
        self.leadership.propose(isr, self.registration.partition_epoch)
        self._host.propose_isr(self)

    def isr_refused(self) -> None:
        """The controller has not carried out the proposal."""
        if self.leadership is not None:
            self.leadership.proposal = None
            self.raise_high_watermark()

    # -- the follower appends what the leader has

    def append_replicated(
        self, records: memoryview, high_watermark: int, log_start_offset: int
    ) -> int:
        """Append batches as the leader sent them; the log's end after it.

        Args:
            records: whole batches, or nothing.
            high_watermark: the leader's.
            log_start_offset: the leader's.

        Raises:
            CorruptData: a batch is damaged, or does not follow what is there.
            StorageError: the disk failed.
        """
        log = self.log
        position, size = 0, len(records)
        start = log.log_start_offset
        if size:
            headers = []
            while position < size:
                header = verify(records, position)
                headers.append(header)
                position += header.size
            first = headers[0]
            if first.base_offset < log.log_end_offset == log.log_start_offset < first.next_offset:
                # The leader's log begins within a batch, as DeleteRecords may have it, and this
                # one is empty: it takes the batch whole, and still begins where it did.
                log.restart_at(first.base_offset)
            log.append_replicated(records, headers)
        end = log.log_end_offset
        has_deleted = log_start_offset > start
        log.delete_records_before(min(max(log_start_offset, start), end))
        if size:
            for watcher in tuple(self.watchers):
                watcher.appended(self)
        committed = min(high_watermark, end)
        if committed > log.high_watermark:
            log.high_watermark = committed
            for watcher in tuple(self.watchers):
                watcher.committed(self)
        if has_deleted:
            self.tell_changed()
        return end

    def truncate_to_leader(self, leader_epoch: int, leader_end_offset: int) -> int:
        """Cut off what the leader does not have; the log's end after it.

        Args:
            leader_epoch: the leader's latest epoch up to the one this log ends with; -1 if the
                leader has none.
            leader_end_offset: where that epoch ends in the leader's log.

        Source: Kafka's `AbstractFetcherThread.getOffsetTruncationState`.
        """
        log = self.log
        if leader_epoch == _NO_EPOCH:
            offset = min(leader_end_offset, log.high_watermark)
        else:
            epoch, end_offset = log.end_of_epoch(leader_epoch)
            if epoch == _NO_EPOCH:
                offset = leader_end_offset
            else:
                offset = min(leader_end_offset, end_offset, log.log_end_offset)
        log.truncate(max(0, offset))
        self.tell_changed()
        return log.log_end_offset

    # -- reading

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Whether the client means this leader: an epoch of -1 means any (KIP-320).

        Raises:
            Refused: the client knows an older or a newer one.
        """
        leader_epoch = self.registration.leader_epoch
        if current_leader_epoch < 0 or current_leader_epoch == leader_epoch:
            return
        if current_leader_epoch < leader_epoch:
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def read(
        self,
        offset: int,
        max_bytes: int,
        min_one: bool,
        end_offset: int | None = None,
        max_read_bytes: int | None = None,
    ) -> BytesLike | StoredBytes:
        """Whole batches from the one that holds `offset`, up to `end_offset` (the high watermark
        if None). What may be more than `max_read_bytes` is left on disk until it is sent.

        Raises:
            Refused: OFFSET_OUT_OF_RANGE, it lies before the log's start or beyond its end.
            CorruptData: what is stored is damaged.
            StorageError: the disk failed.
        """
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        end = log.high_watermark if end_offset is None else end_offset
        if offset >= end:
            return b""
        return log.read(offset, max_bytes, min_one, end, max_read_bytes)

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Bytes of log between two offsets; an upper bound."""
        if offset >= end_offset:
            return 0
        return self.log.bytes_between(offset, end_offset)

    def diverging_epoch(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """The latest epoch that a replica's log and this one may have in common, and where it
        ends here; None if this log goes on where that one ends.

        Raises:
            Refused: OFFSET_OUT_OF_RANGE, this log knows nothing of that epoch.
        """
        log = self.log
        if last_fetched_epoch == log.latest_epoch and offset <= log.log_end_offset:
            return None
        epoch, end_offset = log.end_of_epoch(last_fetched_epoch)
        if epoch == _NO_EPOCH or end_offset < 0:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < last_fetched_epoch or end_offset < offset:
            return epoch, end_offset
        return None

    def preferred_replica(self, rack: str, offset: int) -> int:
        """Whom a consumer in this rack had better read from; -1 to read here (KIP-392)."""
        if self.leadership is None or not rack:
            return -1
        return self._host.choose_replica(self, rack, offset)

    def throttles(self, replica_id: int) -> bool:
        """Whether a follower is sent no more than `leader.replication.throttled.rate` allows: one
        that is not in sync, so that nothing waits for it."""
        leadership = self.leadership
        return (
            self._throttles_leader and leadership is not None and replica_id not in leadership.isr
        )

    def delete_records_before(self, offset: int) -> int:
        """Drop what lies before an offset, or before the high watermark for -1; the new start.

        Raises:
            Refused: beyond the high watermark, compaction alone deletes here, or this broker does
                not lead.
        """
        if self.leadership is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.log.config.compacts and not self.log.config.deletes:
            raise Refused(ErrorCode.POLICY_VIOLATION)
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > self.log.log_start_offset:
            self.log.delete_records_before(offset)
            self.tell_changed()
        return self.log.log_start_offset

    def _check_batch(self, records: memoryview, allows_zstd: bool) -> BatchHeader:
        try:
            header = verify(records, is_client_batch=True)
        except CorruptBatch as error:
            # Sending it again would mend damage, but makes nothing whole.
            code = ErrorCode.INVALID_RECORD if is_cut_short(records, 0) else error.code
            raise Refused(code, f"{self}: {error}") from error
        if header.size != len(records):
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self}: {len(records) - header.size} bytes follow the batch; Produce from "
                "version 3 on takes exactly one batch per partition.",
            )
        if header.size > self._max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{self}: the batch has {header.size} bytes, which exceeds "
                f"max.message.bytes={self._max_message_bytes}.",
            )
        if header.base_offset:
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self}: the base offset of a producer's batch is 0, not {header.base_offset}.",
            )
        if not allows_zstd and header.compression is Compression.ZSTD:
            raise Refused(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"{self}: zstd needs Produce version 7 or later.",
            )
        if header.is_transactional:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"{self}: the batch is transactional, but these brokers do not serve transactions "
                "yet; use a producer without transactional.id.",
            )
        if not self._stamps:
            self._check_timestamps(header)
        return header

    def _check_timestamps(self, header: BatchHeader) -> None:
        """By the header alone: the first record's time, and the largest of all."""
        now = self._now_ms()
        if header.max_timestamp - now > self._after_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self}: timestamp {header.max_timestamp} is more than "
                f"message.timestamp.after.max.ms={self._after_ms} ahead of the broker's {now}.",
                is_wrong_time=lambda time: time - now > self._after_ms,
            )
        if header.base_timestamp != NO_TIMESTAMP and now - header.base_timestamp > self._before_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self}: timestamp {header.base_timestamp} is more than "
                f"message.timestamp.before.max.ms={self._before_ms} behind the broker's {now}.",
                is_wrong_time=lambda time: now - time > self._before_ms,
            )

    def find_times(self, records: memoryview, is_wrong: Callable[[int], bool]) -> Steps[list[int]]:
        """The records of a refused batch with such times, as far as it can be read. Yields where
        others should have their turn."""
        header = read_header(records, 0)
        base = header.base_timestamp
        found: list[int] = []
        place = 0
        try:
            limit = self.log.config.unpacked_limit
            for number, read in enumerate(scan_records(records, 0, header, False, limit)):
                if number:
                    yield
                found += [
                    each for each, (_, time, _) in enumerate(read, place) if is_wrong(base + time)
                ]
                place += len(read)
                if len(found) >= MAX_AT_FAULT:
                    break
        except CorruptData:
            pass  # the batch is refused anyway, and none of its records is blamed for it
        return found[:MAX_AT_FAULT]

    def check_keys(self, records: memoryview, allows_zstd: bool) -> Steps[None]:
        """That every record of a batch for a compacted topic has a key: what `append` leaves to
        its caller, as it may take long. Yields where others should have their turn.

        Raises:
            Refused: one has none; the batch breaks another rule, or unpacks to too much. Producers
                split a batch that is refused as MESSAGE_TOO_LARGE (KIP-126).
        """
        header = self._check_batch(records, allows_zstd)
        keyless: list[int] = []
        place = 0
        limit = self.log.config.unpacked_limit
        try:
            for number, found in enumerate(scan_records(records, 0, header, False, limit)):
                if number:
                    yield
                keyless += [each for each, (*_, keyed) in enumerate(found, place) if not keyed]
                place += len(found)
                if len(keyless) >= MAX_AT_FAULT:
                    break
        except TooLarge as error:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{self}: {error} of a compacted topic; send smaller ones.",
            ) from error
        except CorruptData as error:
            raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{self}: {error}") from error
        if keyless:
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"{self}: Compacted topic cannot accept message without key.",
                keyless[:MAX_AT_FAULT],
            )
