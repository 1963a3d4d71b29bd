"""A leader's view of its followers: the offset each has reached, the ISR, the high watermark.

    follower fetches from offset o: it has everything before o
        ─▶ high watermark = lowest offset in the ISR ─▶ answer acks=all, wake consumers

The leader proposes every change of the ISR to the controller. Until the metadata log has it, the
leader commits by the larger of the two sets: committed records are on every replica that may be
elected.

Source: Kafka's `Partition`, `Replica` and `CommittedPartitionState`; KIP-497, KIP-903, KIP-966.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from trimtab.cluster.metadata.image import PartitionRegistration
from trimtab.cluster.storage.log import Log
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_OFFSET


class Follower:
    """One follower, as known from its fetches.

    Attributes:
        end_offset: the follower's log end offset; `NO_OFFSET` until it has fetched.
        log_start_offset: the follower's log start offset; `NO_OFFSET` until it has fetched.
        caught_up_s: when it last had the leader's whole log, by the loop's clock.
        broker_epoch: the epoch of the broker that fetched; `NO_EPOCH` if the fetch had none.
        fetched_s: when it fetched last.
        leader_end_offset: the leader's log end offset at that fetch.
    """

    __slots__ = (
        "broker_epoch",
        "caught_up_s",
        "end_offset",
        "fetched_s",
        "leader_end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_s: float) -> None:
        self.end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.caught_up_s = caught_up_s
        self.broker_epoch = NO_EPOCH
        self.fetched_s = caught_up_s
        self.leader_end_offset = NO_OFFSET

    def fetched(self, offset: int, broker_epoch: int, leader_end_offset: int, now_s: float) -> None:
        """It fetched from `offset` while the leader's log ended at `leader_end_offset`."""
        if offset >= leader_end_offset:
            self.caught_up_s = now_s
        elif offset >= self.leader_end_offset:
            self.caught_up_s = max(self.caught_up_s, self.fetched_s)
        self.end_offset = offset
        self.broker_epoch = broker_epoch
        self.fetched_s = now_s
        self.leader_end_offset = leader_end_offset

    def lags(self, leader_end_offset: int, now_s: float, limit_s: float) -> bool:
        """Whether it has been behind for longer than the limit (`replica.lag.time.max.ms`)."""
        return self.end_offset != leader_end_offset and now_s - self.caught_up_s > limit_s


class Proposal(NamedTuple):
    """An ISR that the leader has asked for.

    Attributes:
        partition_epoch: of the ISR before.
        broker_epochs: of the followers, when the leader decided. One that has restarted since may
            have lost records, so the controller has to refuse this ISR, however often it is sent.
    """

    isr: tuple[int, ...]
    partition_epoch: int
    broker_epochs: Mapping[int, int]


class WaitingRequest(NamedTuple):
    """A request that waits until all records before `offset` are committed, or deleted.

    `done` is called with True then, or with False once this broker leads no more.
    """

    offset: int
    done: Callable[[bool], None]


class Leadership:
    """One leader epoch of one partition, on the broker that leads it.

    Args:
        is_eligible: whether a broker with this id and broker epoch may be in an ISR: it is alive
            and not shutting down.

    Attributes:
        followers: by broker id.
        isr: the ISR according to the metadata log.
        proposal: the ISR that the controller has been asked for; None if there is none.
        start_offset: the log end offset when this epoch began.
        commit_waits: requests that wait for a commit, by ascending offset.
        deletion_waits: requests that wait for a deletion.
    """

    __slots__ = (
        "_is_eligible",
        "_log",
        "_min_isr",
        "commit_waits",
        "deletion_waits",
        "followers",
        "isr",
        "proposal",
        "replicas",
        "start_offset",
    )

    def __init__(
        self,
        broker_id: int,
        registration: PartitionRegistration,
        log: Log,
        min_isr: int,
        is_eligible: Callable[[int, int], bool],
        now_s: float,
    ) -> None:
        self._log = log
        self._min_isr = min_isr
        self._is_eligible = is_eligible
        self.followers: dict[int, Follower] = {}
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.proposal: Proposal | None = None
        self.start_offset = log.log_end_offset
        self.commit_waits: deque[WaitingRequest] = deque()
        self.deletion_waits: list[WaitingRequest] = []
        self.update(broker_id, registration, now_s)

    def update(self, broker_id: int, registration: PartitionRegistration, now_s: float) -> None:
        """Apply replicas and ISR that the controller has changed within this epoch."""
        self.isr = registration.isr
        self.proposal = None
        if registration.replicas != self.replicas:
            self.replicas = registration.replicas
            followers = self.followers
            self.followers = {
                # A member of the ISR has until the lag limit to fetch; the others count as behind.
                replica: followers.get(replica)
                or Follower(now_s if replica in self.isr else float("-inf"))
                for replica in registration.replicas
                if replica != broker_id
            }

    def configure(self, min_isr: int) -> None:
        """`min.insync.replicas` has changed."""
        self._min_isr = min_isr

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The larger of the current and the proposed ISR: either may be the controller's."""
        if self.proposal is None or len(self.proposal.isr) < len(self.isr):
            return self.isr
        return self.proposal.isr

    @property
    def effective_min_isr(self) -> int:
        """Replicas that must be in sync for acks=all: `min.insync.replicas`, or all there are."""
        return min(self._min_isr, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self.effective_min_isr

    def committed_offset(self, now_s: float, lag_limit_s: float) -> int:
        """The offset up to which records are committed: every replica that is in the ISR, or has
        caught up enough to join it, has them. Stays at the high watermark while fewer than
        `min.insync.replicas` are in sync (KIP-966)."""
        log = self._log
        if self.is_under_min_isr:
            return log.high_watermark
        end = log.log_end_offset
        isr = self.maximal_isr
        offset = end
        for broker_id, follower in self.followers.items():
            if follower.end_offset < offset and (
                broker_id in isr
                or (
                    follower.end_offset >= self.start_offset
                    and not follower.lags(end, now_s, lag_limit_s)
                    and self._is_eligible(broker_id, follower.broker_epoch)
                )
            ):
                offset = follower.end_offset
        return max(offset, log.high_watermark)

    def can_join(self, broker_id: int) -> bool:
        """Whether a follower may join the ISR: it has all committed records and has reached this
        epoch, its broker is eligible, and no proposal is pending."""
        follower = self.followers[broker_id]
        return (
            self.proposal is None
            and broker_id not in self.isr
            and follower.end_offset >= self._log.high_watermark
            and follower.end_offset >= self.start_offset
            and self._is_eligible(broker_id, follower.broker_epoch)
        )

    def propose(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Note a proposed ISR; `maximal_isr` counts it at once if it is larger."""
        epochs = {each: known.broker_epoch for each, known in self.followers.items() if each in isr}
        self.proposal = Proposal(isr, partition_epoch, epochs)

    def lagging(self, now_s: float, lag_limit_s: float) -> Iterable[int]:
        """The members of the ISR that have been behind for longer than the limit."""
        end = self._log.log_end_offset
        return [
            broker_id
            for broker_id in self.isr
            if (follower := self.followers.get(broker_id)) is not None
            and follower.lags(end, now_s, lag_limit_s)
        ]

    def wait(self, offset: int, done: Callable[[bool], None]) -> None:
        """Call `done` once everything before `offset` is committed."""
        waits = self.commit_waits
        if waits and offset < waits[-1].offset:
            # A duplicate of a batch: requests may already wait for batches appended after it.
            insort(waits, WaitingRequest(offset, done), key=attrgetter("offset"))
        else:
            waits.append(WaitingRequest(offset, done))

    def release(self, high_watermark: int) -> None:
        """Answer the requests whose records are committed now."""
        waits = self.commit_waits
        while waits and waits[0].offset <= high_watermark:
            waits.popleft().done(True)

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the live replicas."""
        offset = self._log.log_start_offset
        for broker_id, follower in self.followers.items():
            if self._is_eligible(broker_id, NO_EPOCH):
                offset = min(offset, follower.log_start_offset)
        return offset

    def wait_for_deletion(self, offset: int, done: Callable[[bool], None]) -> None:
        """Call `done` once no live replica has a record before `offset`."""
        self.deletion_waits.append(WaitingRequest(offset, done))

    def release_deletions(self) -> None:
        """Answer the requests whose records are deleted now. Called when a follower's log start
        offset has moved, or a broker has gone."""
        if not self.deletion_waits:
            return
        low_watermark = self.low_watermark
        released = [wait for wait in self.deletion_waits if wait.offset <= low_watermark]
        self.deletion_waits = [wait for wait in self.deletion_waits if wait.offset > low_watermark]
        for wait in released:
            wait.done(True)

    def resign(self) -> None:
        """Fail all waiting requests: this broker leads no more."""
        waits = [*self.commit_waits, *self.deletion_waits]
        self.commit_waits.clear()
        self.deletion_waits.clear()
        for wait in waits:
            wait.done(False)
