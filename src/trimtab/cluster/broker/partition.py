"""One replica of a partition: its role, and the rules for appends and reads.

    leader:    append ─▶ log ─▶ followers fetch ─▶ high watermark ─▶ consumers, acks=all
               begin_verification ─▶ the coordinator is asked ─▶ append     (transactional batches)
    follower:  append_replicated ─▶ log; the high watermark is the leader's

`batch_rules.py` says what a producer's batch must comply with.

Long because a replica's two roles change the same log, epochs and waiting requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trimtab.cluster.broker.batch_rules import BatchRules
from trimtab.cluster.broker.leadership import Leadership
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replication_quota import lists_replica
from trimtab.cluster.broker.traffic import TopicTraffic
from trimtab.cluster.broker.verification import Verification, Verifications
from trimtab.cluster.metadata.image import PartitionRegistration
from trimtab.cluster.server.turns import Steps
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_appending import Appended
from trimtab.cluster.storage.producer_state import ACCEPTED
from trimtab.cluster.storage.storage import BytesLike
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.options import Config
from trimtab.kafka.records import NO_TIMESTAMP
from trimtab.kafka.wire.batch_cy import BatchHeader, read_header, stamp_append_time, verify
from trimtab.kafka.wire.end_markers import EndMarker, build_marker
from trimtab.kafka.wire.sentinels import ALL_IN_SYNC_REPLICAS, HIGH_WATERMARK, NO_EPOCH
from trimtab.kafka.wire.types import StoredBytes


class Watcher(Protocol):
    """Notified of changes to a partition. A callback may only note the change and act later."""

    def appended(self, partition: Partition) -> None:
        """The log end offset has moved."""

    def committed(self, partition: Partition) -> None:
        """The high watermark has moved."""

    def changed(self, partition: Partition) -> None:
        """The log start offset has moved, or the replica has another role or was removed."""


class PartitionHost(Protocol):
    """What a partition needs from its broker."""

    @property
    def id(self) -> int: ...

    @property
    def lag_limit_s(self) -> float:
        """`replica.lag.time.max.ms`, in seconds."""

    def time(self) -> float:
        """The loop's clock, in seconds."""

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that broker, with that broker epoch, may be in an ISR."""

    def propose_isr(self, partition: Partition) -> None:
        """Ask the controller for the ISR in `partition.leadership.proposal`."""

    def choose_replica(self, partition: Partition, rack: str, offset: int) -> int:
        """The id of the replica that a consumer in this rack should read; -1 for the leader."""


class Partition:
    """One replica.

    Args:
        config: the topic's options (`trimtab.cluster.config.TOPIC`), all of them.
        now_ms: wall time in milliseconds.
        traffic: the counts of its topic on this broker; also an attribute.

    Attributes:
        registration: the partition's leader, epochs, replicas and ISR, as the controller last
            decided.
        rules: what producers' batches must comply with.
        leadership: the leader's state; None on a follower.
        is_throttled: whether `follower.replication.throttled.rate` limits this replica while it
            follows and is not in sync.
        verifications: of producers about whose transactions the coordinator is asked.
        watchers: notified of changes, in the order in which they registered.
    """

    __slots__ = (
        "_host",
        "_min_isr",
        "_now_ms",
        "_throttles_leader",
        "compression_type",
        "index",
        "is_throttled",
        "leadership",
        "log",
        "registration",
        "rules",
        "topic",
        "topic_id",
        "traffic",
        "verifications",
        "watchers",
    )

    def __init__(
        self,
        host: PartitionHost,
        topic: str,
        topic_id: bytes,
        registration: PartitionRegistration,
        log: Log,
        config: Config,
        now_ms: Callable[[], int],
        traffic: TopicTraffic,
    ) -> None:
        self._host = host
        self.topic = topic
        self.topic_id = topic_id
        self.index = registration.id
        self.registration = registration
        self.log = log
        self.leadership: Leadership | None = None
        self.verifications = Verifications()
        self.watchers: dict[Watcher, None] = {}
        self._now_ms = now_ms
        self.traffic = traffic
        self.configure(config)

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def configure(self, config: Config) -> None:
        """Apply the topic's options, except those that the log reads itself."""
        self.rules = BatchRules(str(self), self.log, config, self._now_ms)
        self._min_isr = config.integer("min.insync.replicas")
        self._throttles_leader = lists_replica(
            config.words("leader.replication.throttled.replicas"),
            self.index,
            self._host.id,
        )
        self.is_throttled = lists_replica(
            config.words("follower.replication.throttled.replicas"),
            self.index,
            self._host.id,
        )
        self.compression_type = config.text("compression.type")
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
        """Records before this offset are committed."""
        return self.log.high_watermark

    # -- roles

    def lead(self, registration: PartitionRegistration) -> None:
        """Lead, as the controller decided, with this leader epoch and ISR."""
        before = self.registration
        leadership = self.leadership
        stays = leadership is not None and before.leader_epoch == registration.leader_epoch
        if stays and registration.partition_epoch <= before.partition_epoch:
            return  # nothing new; a pending ISR proposal stays
        self.registration = registration
        now_s = self._host.time()
        if stays:
            assert leadership is not None
            leadership.update(self._host.id, registration, now_s)
            self.traffic.count_isr(len(before.isr), len(registration.isr))
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
                # This broker led before too, so nothing is truncated: requests keep waiting.
                self.leadership.commit_waits = leadership.commit_waits
                self.leadership.deletion_waits = leadership.deletion_waits
            self.notify_changed()
        self.raise_high_watermark()

    def follow(self, registration: PartitionRegistration) -> None:
        """Follow: the controller decided that another broker leads, or none."""
        before, self.registration = self.registration, registration
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            leadership.resign()
            self.verifications.clear()
        if leadership is not None or before.leader_epoch != registration.leader_epoch:
            self.notify_changed()

    def retire(self) -> None:
        """This broker does not host the partition any more."""
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            leadership.resign()
        self.notify_changed()

    def notify_changed(self) -> None:
        """Have every fetch that watches this partition check it again."""
        for watcher in tuple(self.watchers):
            watcher.changed(self)

    # -- the leader appends, and tracks its followers

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, bumps_epochs: bool
    ) -> Verification | None:
        """What `append` needs for a transactional batch, if the coordinator accepts it; None if the
        batch's transaction is open here, so that nobody is to be asked.

        Args:
            sequence: the batch's first.
            bumps_epochs: whether the producer has another epoch in each transaction.
        """
        if self.log.producers.has_begun(producer_id, epoch):
            return None
        return self.verifications.begin_verification(producer_id, epoch, sequence, bumps_epochs)

    def append(
        self,
        records: memoryview,
        allows_zstd: bool,
        acks: int = 1,
        verification: Verification | None = None,
    ) -> Steps[Appended]:
        """Append the one batch of a client's produce request. Yields where other requests may be
        served.

        Base offset and leader epoch, and what `BatchRules.admit` corrects, are written into
        `records`. A duplicate from an idempotent producer is not stored again; the result has the
        offsets of the stored batch.

        Raises:
            Refused: the batch breaks a rule, fewer than `min.insync.replicas` are in sync and acks
                is all (-1), or this broker does not lead.
            StorageError: the disk failed.
        """
        self._lead_now(acks)
        records, header = yield from self.rules.admit(records, allows_zstd)
        leadership = self._lead_now(acks)
        if header.producer_id >= 0:
            verdict = self.log.producers.check_batch(header)
            if verdict.duplicate is not None:
                stored = verdict.duplicate
                return Appended(
                    stored.first_offset,
                    stored.last_offset + 1,
                    stored.timestamp if self.rules.stamps else NO_TIMESTAMP,
                )
            if header.is_transactional:
                self._check_verified(header, verification)
            if verdict is not ACCEPTED:
                raise Refused(verdict.error, f"{self}: {verdict.detail}")
            self._check_room(header.producer_id)
        return self._store(leadership, records, header)

    def _check_room(self, producer_id: int) -> None:
        """Refuse a producer that is new, if there are as many as may be remembered: to forget one
        of them would let its batches be stored twice."""
        producers, most = self.log.producers, self.log.config.producer_ids_max
        if len(producers) >= most and not producers.knows(producer_id):
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{self}: it remembers {len(producers)} producers, and producer.ids.max of the "
                f"broker is {most}; reuse producers, lower producer.id.expiration.ms, or raise it",
            )

    def _check_verified(self, batch: BatchHeader, verification: Verification | None) -> None:
        """Refuse a batch that is not part of a transaction which will be ended."""
        producers, producer_id = self.log.producers, batch.producer_id
        if producers.has_begun(producer_id, batch.producer_epoch):
            return
        if verification is None or not self.verifications.holds(producer_id, verification):
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"{self}: the batch of producer {producer_id} is not part of a transaction that "
                "its coordinator knows; begin a transaction, and send with transactional.id.",
            )
        has_gap = verification.bumps_epochs and not producers.knows(producer_id)
        lowest = 0 if has_gap else verification.sequence
        if batch.base_sequence > lowest:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{self}: producer {producer_id} sent sequence {batch.base_sequence} first in a "
                f"transaction, but {lowest} is to come before it",
            )

    def append_own(self, records: memoryview) -> Appended:
        """Append a batch that this broker's coordinator has built, which has no sequences.

        Raises:
            Refused: fewer than `min.insync.replicas` are in sync, a later epoch of the producer has
                written here, or this broker does not lead.
            StorageError: the disk failed.
        """
        leadership = self._lead_now(ALL_IN_SYNC_REPLICAS)
        header = read_header(records)
        if header.producer_id >= 0:
            verdict = self.log.producers.check_epoch(header.producer_id, header.producer_epoch)
            if verdict is not ACCEPTED:
                raise Refused(verdict.error, f"{self}: {verdict.detail}")
        return self._store(leadership, records, header)

    def append_marker(
        self, producer_id: int, epoch: int, marker: EndMarker, version: int
    ) -> Appended:
        """End a producer's transaction here, whether or not one is open.

        Args:
            version: of transactions (`ProducerState.check_marker`).

        Raises:
            Refused: a later epoch of the producer or its coordinator has written here, fewer than
                `min.insync.replicas` are in sync, or this broker does not lead.
            StorageError: the disk failed.
        """
        leadership = self._lead_now(ALL_IN_SYNC_REPLICAS)
        verdict = self.log.producers.check_marker(
            producer_id, epoch, marker.coordinator_epoch, version
        )
        if verdict is not ACCEPTED:
            raise Refused(verdict.error, f"{self}: {verdict.detail}")
        records = memoryview(build_marker(producer_id, epoch, marker, self._now_ms()))
        return self._store(leadership, records, read_header(records))

    def _lead_now(self, acks: int) -> Leadership:
        """The leader's state, if enough replicas are in sync for `acks`."""
        leadership = self.leadership
        if leadership is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == ALL_IN_SYNC_REPLICAS and leadership.is_under_min_isr:
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self}: {len(leadership.isr)} replicas are in sync, {list(leadership.isr)}, "
                f"but min.insync.replicas={self._min_isr} and acks=all.",
            )
        return leadership

    def _store(self, leadership: Leadership, records: memoryview, header: BatchHeader) -> Appended:
        if self.rules.stamps:
            stamp_append_time(records, 0, self._now_ms())
            header = read_header(records)
        log = self.log
        end = log.log_end_offset
        appended = log.append(records, self.registration.leader_epoch, [header])
        if header.is_control:
            self.verifications.end_marked(header.producer_id, header.producer_epoch)
        elif header.is_transactional:
            self.verifications.forget(header.producer_id)
        followers = leadership.followers
        isr = leadership.maximal_isr
        if followers:
            now_s = self._host.time()
            for broker_id, follower in followers.items():
                # It had caught up until now. Of a follower that is out of sync that is not known.
                if follower.end_offset == end and broker_id in isr:
                    follower.caught_up_s = now_s
        for watcher in tuple(self.watchers):
            watcher.appended(self)
        if len(isr) == 1:
            self.raise_high_watermark()
        return appended

    def follower_fetched(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int
    ) -> None:
        """A follower fetched from `offset`, so it has everything before it.

        Raises:
            Refused: the broker is not a replica of this partition or fetched with an old broker
                epoch, or this broker does not lead.
        """
        leadership = self.leadership
        if leadership is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        follower = leadership.followers.get(replica_id)
        if follower is None:
            # The metadata of one of the two brokers is behind. With this code the follower tries
            # again, as in Kafka.
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if NO_EPOCH != broker_epoch < follower.broker_epoch:
            # Sent before that broker restarted; it may have lost records since.
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
        """Raise the high watermark as far as every in-sync replica has the log."""
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
        """Propose an ISR without the followers that lag, or else with those that may join. Called
        periodically, and when brokers come or go."""
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
            replica
            for replica, follower in leadership.followers.items()
            # A follower that lags would be removed again by the next review.
            if leadership.can_join(replica) and not follower.lags(end, now_s, host.lag_limit_s)
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
        """Drop the proposal: the controller did not apply it."""
        if self.leadership is not None:
            self.leadership.proposal = None
            self.raise_high_watermark()

    # -- the follower appends the leader's batches

    def append_replicated(
        self, records: memoryview, high_watermark: int, log_start_offset: int
    ) -> int:
        """Append batches as the leader sent them; returns the log end offset afterwards.

        Args:
            records: whole batches, or empty.
            high_watermark: the leader's.
            log_start_offset: the leader's.

        Raises:
            CorruptData: a batch is damaged, or does not continue the log.
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
                # This log is empty, and the leader's begins within a batch, as DeleteRecords may
                # leave it: store the whole batch, and keep the log start offset.
                log.restart_at(first.base_offset)
            log.append_replicated(records, headers)
            self.traffic.replication_bytes_in += size
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
            self.notify_changed()
        return end

    def truncate_to_leader(self, leader_epoch: int, leader_end_offset: int) -> int:
        """Truncate what the leader does not have; returns the log end offset afterwards.

        Args:
            leader_epoch: the leader's latest epoch that is not above this log's last one; -1 if
                the leader has none.
            leader_end_offset: the offset where that epoch ends in the leader's log.

        Source: Kafka's `AbstractFetcherThread.getOffsetTruncationState`.
        """
        log = self.log
        if leader_epoch == NO_EPOCH:
            offset = min(leader_end_offset, log.high_watermark)
        else:
            epoch, end_offset = log.end_of_epoch(leader_epoch)
            if epoch == NO_EPOCH:
                offset = leader_end_offset
            else:
                offset = min(leader_end_offset, end_offset, log.log_end_offset)
        if offset < log.log_start_offset:
            # All that this log has is the leader's not, or only an epoch that a crash has brought
            # back. Its start stays: records before it were deleted.
            log.restart_at(log.log_start_offset)
        else:
            log.truncate(offset)
        self.notify_changed()
        return log.log_end_offset

    # -- reading

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Compare the client's leader epoch with this one's; -1 matches any (KIP-320).

        Raises:
            Refused: the client's epoch is older or newer.
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
        if None). A read that may exceed `max_read_bytes` stays on disk until it is sent.

        Raises:
            Refused: OFFSET_OUT_OF_RANGE, `offset` is before the log's start or beyond its end.
            CorruptData: a stored batch is damaged.
            StorageError: the disk failed.
        """
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        end = log.high_watermark if end_offset is None else end_offset
        if offset >= end:
            return b""
        return log.read(offset, max_bytes, min_one, end, max_read_bytes)

    def diverging_epoch(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """The latest epoch that the reader's log and this one may share, and its end offset here;
        None if the logs do not diverge before `offset`.

        Raises:
            Refused: OFFSET_OUT_OF_RANGE, this log does not know the epoch.
        """
        log = self.log
        if last_fetched_epoch == log.epochs.latest and offset <= log.log_end_offset:
            return None
        epoch, end_offset = log.end_of_epoch(last_fetched_epoch)
        if epoch == NO_EPOCH or end_offset < 0:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < last_fetched_epoch or end_offset < offset:
            return epoch, end_offset
        return None

    def preferred_replica(self, rack: str, offset: int) -> int:
        """The id of the replica that a consumer in this rack should read; -1 for this one
        (KIP-392)."""
        if self.leadership is None or not rack:
            return -1
        return self._host.choose_replica(self, rack, offset)

    def throttles(self, replica_id: int) -> bool:
        """Whether `leader.replication.throttled.rate` limits what this follower gets. Followers in
        sync are never throttled, as acks=all waits for them."""
        leadership = self.leadership
        return (
            self._throttles_leader and leadership is not None and replica_id not in leadership.isr
        )

    def delete_records_before(self, offset: int) -> int:
        """Delete records before an offset (-1: the high watermark); returns the log start offset.

        Raises:
            Refused: the offset is beyond the high watermark, the topic is only compacted, or this
                broker does not lead.
        """
        if self.leadership is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.log.config.compacts and not self.log.config.deletes:
            raise Refused(ErrorCode.POLICY_VIOLATION)
        if offset == HIGH_WATERMARK:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > self.log.log_start_offset:
            self.log.delete_records_before(offset)
            self.notify_changed()
        return self.log.log_start_offset
