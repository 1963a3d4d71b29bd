"""Fetch sessions: the partitions of a client's fetches, kept between requests (KIP-227).

    FetchSessionCache ──▶ FetchSession ──▶ FetchSlot: one partition ◀──watches── Partition
                               │
                               └──▶ DelayedFetch, while a fetch waits

A full fetch (one that names all its partitions) creates a `FetchSession`. If the client wants no
session, the object lives as long as that request. Otherwise the cache keeps it, and the client's
next requests name only the partitions to add, change or remove.

An idle partition costs nothing. A slot whose partition may have changed is in the session's `ready`
set, and a fetch reads only the ready slots, in the session's order. Every slot that is not ready
watches its partition. When the partition notifies it and no fetch waits, the slot becomes ready and
stops watching: a client that is gone costs a partition one call, not one for each append.

Kafka's `FetchSession`, `FetchContext` and `FetchSessionCacheShard` are the specification.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from trimtab.broker.partition import Refused
from trimtab.errors import ErrorCode
from trimtab.records import NO_OFFSET
from trimtab.server.turns import in_order
from trimtab.wire.types import MAX_INT32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from trimtab.broker.broker import Broker
    from trimtab.broker.partition import Partition
    from trimtab.broker.purgatory import DelayedFetch
    from trimtab.server.turns import Pace, Steps
    from trimtab.wire.messages.fetch import (
        FetchPartition,
        FetchRequest,
        FetchTopic,
        ForgottenTopic,
    )

NO_SESSION = 0
FINAL_EPOCH = -1
"""Epoch of a full fetch that wants no session."""
INITIAL_EPOCH = 0
"""Epoch of a full fetch that wants a new session."""

UNCHECKED = -2

MAX_PARTITIONS = 500_000
"""Partitions of all sessions together at most: about 200 MB."""

EVICTABLE_AFTER_S = 120.0
"""A session idle for longer may be evicted for any other; one created longer ago, for a bigger one
(Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`)."""

_TOPIC_IDS_SINCE = 13
_REPLICA_STATE_SINCE = 15
_FOLLOWERS_SINCE = 11

PARTITIONS_PER_STEP = 150
"""Partitions that a fetch reads before other requests are served."""

_by_rank = attrgetter("rank")


class Reader:
    """Who fetches, and which replicas and offsets it may read (Kafka's `FetchParams`).

    Attributes:
        replica_id: the follower's broker id; negative for a consumer.
        broker_epoch: the follower's; -1 if it does not say.
        rack: the consumer's; empty if it has none.
        is_follower: reads up to the log end offset, not only up to the high watermark.
        needs_leader: is served by the leader only. A consumer that supports preferred replicas
            (KIP-392) is served by any replica.
        find: returns the partition to read, by topic and index; raises `Refused` if this broker
            has no replica of it, or must lead it for this reader and does not.
    """

    __slots__ = (
        "_broker",
        "broker_epoch",
        "find",
        "is_follower",
        "needs_leader",
        "rack",
        "replica_id",
    )

    def __init__(self, broker: Broker, version: int, request: FetchRequest) -> None:
        self._broker = broker
        if version < _REPLICA_STATE_SINCE:
            self.replica_id = request.replica_id
            self.broker_epoch = -1
        else:
            self.replica_id = request.replica_state.replica_id
            self.broker_epoch = request.replica_state.replica_epoch
        self.is_follower = self.replica_id >= 0
        self.needs_leader = self.is_follower or version < _FOLLOWERS_SINCE
        self.rack = "" if self.needs_leader else request.rack_id
        self.find: Callable[[str, int], Partition] = (
            broker.find_partition if self.needs_leader else broker.find_replica
        )

    def reads_like(self, other: Reader) -> bool:
        """Whether both may read the same replicas and offsets."""
        return (
            self.replica_id == other.replica_id
            and self.broker_epoch == other.broker_epoch
            and self.needs_leader == other.needs_leader
            and self.rack == other.rack
        )

    def is_throttled(self, partition: Partition) -> bool:
        """Whether this follower gets no records of a throttled partition now, because the leader's
        replication quota is used up (KIP-73)."""
        return (
            self.is_follower
            and partition.throttles(self.replica_id)
            and self._broker.is_leader_quota_exceeded()
        )

    def note_sent(self, partition: Partition, size: int) -> None:
        """Count `size` bytes sent to this follower against the replication quota."""
        if self.is_follower and partition.throttles(self.replica_id):
            self._broker.record_throttled_sent(size)


class FetchSlot:
    """One partition of a fetch: the client's latest request for it, and the latest response.

    Attributes:
        topic: the topic's name, or its id if the session uses topic ids.
        wanted: the fetch offset and limits that the client sent last.
        rank: its place in the session's order; the smallest rank is served first.
        partition: the replica that was found last; None if there is none on this broker.
        high_watermark, log_start_offset: as last answered; -1 if never, or with an error.
        checked_epoch: the leader epoch in which the fetch offset was checked against the log and
            the follower's progress recorded; `UNCHECKED` if it must be checked again.
        stays_ready: whether the next response has something to say about it even if the partition
            does not change: more records, or an error.
    """

    __slots__ = (
        "checked_epoch",
        "high_watermark",
        "log_start_offset",
        "partition",
        "rank",
        "session",
        "stays_ready",
        "topic",
        "wanted",
    )

    def __init__(
        self, session: FetchSession, topic: str | bytes, wanted: FetchPartition, rank: int
    ) -> None:
        self.session = session
        self.topic = topic
        self.wanted = wanted
        self.rank = rank
        self.partition: Partition | None = None
        self.high_watermark = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.checked_epoch = UNCHECKED
        self.stays_ready = False

    # Called by its partition

    def appended(self, partition: Partition) -> None:
        """The log end offset has moved: a follower has something to read."""
        if self.session.reader.is_follower:
            self._wake(partition, partition.log.log_end_offset)

    def committed(self, partition: Partition) -> None:
        """The high watermark has moved: a consumer has something to read. A follower does not stop
        waiting for it; its next response has the new value."""
        is_follower = self.session.reader.is_follower
        self._wake(partition, NO_OFFSET if is_follower else partition.high_watermark)

    def changed(self, partition: Partition) -> None:
        """The log start offset or the replica's role has changed: end the wait and check again."""
        self.checked_epoch = UNCHECKED
        waiting = self.session.waiting
        if waiting is not None:
            waiting.complete()
        self._wake(partition, NO_OFFSET)

    def _wake(self, partition: Partition, end_offset: int) -> None:
        session = self.session
        session.ready.add(self)
        waiting = session.waiting
        if waiting is None:
            partition.watchers.pop(self, None)
            self.stays_ready = True
            if session.is_interrupted:  # the pass may have read this slot already
                session.was_notified = True
        elif self.wanted.fetch_offset < end_offset and not session.reader.is_throttled(partition):
            if waiting.min_bytes <= 1:
                waiting.complete()
            else:
                waiting.count(self, self.available(partition, end_offset))

    # Called by a fetch

    def available(self, partition: Partition, end_offset: int) -> int:
        """Bytes that count towards `min_bytes`: those up to `end_offset`, but no more than
        `partition_max_bytes`."""
        wanted = self.wanted
        available = partition.bytes_between(wanted.fetch_offset, end_offset)
        return min(available, wanted.partition_max_bytes)

    def unwatch(self) -> None:
        """Stop watching."""
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
            self.partition = None


class FetchSession:
    """The partitions of one client's fetches, in the order in which they are served.

    Attributes:
        id: `NO_SESSION` until the cache keeps it.
        epoch: the session epoch that the next request must have.
        reader: who fetches.
        uses_topic_ids: whether requests name topics by id, as from Fetch version 13 on.
        slots: by topic and partition.
        ready: the slots whose partitions have changed, or may have, since the last response.
        waiting: the fetch that waits for these partitions; None while there is none.
        is_kept: whether it is in the cache; then its slots also watch between requests.
        is_watching: whether slots that are read watch their partitions.
        is_interrupted: while a pass over its slots is interrupted by other requests.
        was_notified: whether a partition notified a slot during such an interruption.
        created_s, used_s: the loop's time when the cache took it, and when it was last used.
    """

    __slots__ = (
        "_last_rank",
        "_most_ready",
        "created_s",
        "epoch",
        "id",
        "is_interrupted",
        "is_kept",
        "is_watching",
        "reader",
        "ready",
        "slots",
        "used_s",
        "uses_topic_ids",
        "waiting",
        "was_notified",
    )

    def __init__(self, reader: Reader, version: int) -> None:
        self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self.reader = reader
        self.uses_topic_ids = version >= _TOPIC_IDS_SINCE
        self.slots: dict[tuple[str | bytes, int], FetchSlot] = {}
        self.ready: set[FetchSlot] = set()
        self.waiting: DelayedFetch | None = None
        self.is_kept = False
        self.is_watching = False
        self.is_interrupted = False
        self.was_notified = False
        self.created_s = 0.0
        self.used_s = 0.0
        self._last_rank = 0
        self._most_ready = 0

    def add(self, topics: Iterable[FetchTopic], pace: Pace) -> Steps[None]:
        """Add or update the partitions that a request names. New ones go to the tail, the others
        keep their place. A partition named twice has the first place and the last values."""
        slots = self.slots
        ready = self.ready
        for each in topics:
            topic = each.topic_id if self.uses_topic_ids else each.topic
            if pace.spend():
                yield
            for wanted in each.partitions:
                if pace.spend():
                    yield
                key = (topic, wanted.partition)
                slot = slots.get(key)
                if slot is None:
                    self._last_rank += 1
                    slot = slots[key] = FetchSlot(self, topic, wanted, self._last_rank)
                else:
                    slot.wanted = wanted
                    slot.checked_epoch = UNCHECKED
                ready.add(slot)
        self._most_ready = max(self._most_ready, len(ready))

    def forget(self, topics: Iterable[ForgottenTopic], pace: Pace) -> Steps[None]:
        """Remove the partitions that a request names as forgotten."""
        for each in topics:
            topic = each.topic_id if self.uses_topic_ids else each.topic
            if pace.spend():
                yield
            for index in each.partitions:
                if pace.spend():
                    yield
                slot = self.slots.pop((topic, index), None)
                if slot is not None:
                    slot.unwatch()
                    self.ready.discard(slot)

    def set_reader(self, reader: Reader) -> None:
        """Set who sends the next request. If it may read other replicas or offsets than the
        previous reader, all partitions become ready."""
        if not reader.reads_like(self.reader):
            for slot in self.slots.values():
                slot.checked_epoch = UNCHECKED
            self.ready.update(self.slots.values())
            self._most_ready = len(self.ready)
        self.reader = reader

    def ready_in_order(self) -> Steps[Iterable[FetchSlot]]:
        """The ready slots, in the session's order."""
        ready = self.ready
        if len(ready) > self._most_ready:
            self._most_ready = len(ready)
        elif len(ready) < self._most_ready // 8:
            # A set does not shrink when elements leave, and iteration visits the empty places.
            self.ready = ready = set(ready)
            self._most_ready = len(ready)
        # The set itself may change between two steps.
        return in_order(list(ready) if len(ready) > PARTITIONS_PER_STEP else ready, _by_rank)

    def watch(self) -> None:
        """Have every slot that has a partition watch it."""
        self.is_watching = True
        for slot in self.slots.values():
            if slot.partition is not None:
                slot.partition.watchers[slot] = None

    def begin(self, session_id: int, now_s: float) -> None:
        """The cache keeps the session under this id. Slots that are not ready begin to watch their
        partitions in `answered`."""
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.is_kept = self.is_watching = True
        self.created_s = self.used_s = now_s

    def answered(
        self, slot: FetchSlot, high_watermark: int, log_start_offset: int, has_records: bool
    ) -> None:
        """Note the values sent for a slot. A slot that sent records goes to the tail, so that no
        partition starves when responses are limited in size (KAFKA-12330)."""
        slot.high_watermark = high_watermark
        slot.log_start_offset = log_start_offset
        if has_records:
            self._last_rank += 1
            slot.rank = self._last_rank
        if not slot.stays_ready:
            self.ready.discard(slot)
            if slot.partition is not None:
                slot.partition.watchers[slot] = None

    def close(self) -> None:
        """Stop watching. A waiting fetch is answered with the records available now."""
        self.is_kept = False
        if self.is_watching:
            self.is_watching = False
            for slot in self.slots.values():
                slot.unwatch()
        if self.waiting is not None:
            self.waiting.complete()
        else:
            # Break the cycle between slots and session; otherwise only the collector frees them.
            self.slots.clear()
            self.ready.clear()


class FetchSessionCache:
    """The sessions of all clients of this broker.

    Args:
        slots: sessions at most (`max.incremental.fetch.session.cache.slots`).
        random: draws their ids.
        partitions: partitions of all sessions together at most. Unknown partitions count too, as
            they also take memory.
    """

    def __init__(self, slots: int, random: Random, partitions: int = MAX_PARTITIONS) -> None:
        self._limit = slots
        self._max_partitions = partitions
        self._random = random
        # Ordered by last use; the most recently used session is last.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def resume(self, session_id: int, epoch: int, version: int, now_s: float) -> FetchSession:
        """The session that a request continues; its next request must have the next epoch.

        Raises:
            Refused: there is no such session, the epoch is not the expected one, or only one of
                request and session uses topic ids.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (version >= _TOPIC_IDS_SINCE):
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == MAX_INT32 else epoch + 1
        session.used_s = now_s
        self._sessions[session_id] = self._sessions.pop(session_id)
        if session.waiting is not None:
            # This request came over another connection: the client has given up the waiting one,
            # which will be answered with INVALID_FETCH_SESSION_EPOCH.
            session.waiting.complete()
        return session

    def keep(self, session: FetchSession, now_s: float) -> bool:
        """Keep a new session under an id of its own; False if the cache is full."""
        while len(self._sessions) >= self._limit or not self._has_room(session):
            if not self._evict(session, now_s):
                return False
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.randrange(1, MAX_INT32 + 1)
        session.begin(session_id, now_s)
        self._sessions[session_id] = session
        return True

    def _has_room(self, session: FetchSession) -> bool:
        taken = sum([len(each.slots) for each in self._sessions.values()])
        return taken + len(session.slots) <= self._max_partitions

    def check_size(self, session: FetchSession) -> None:
        """Remove this session, which has grown, if all sessions have too many partitions together.
        Its client starts a new session, which may not be kept."""
        if session.is_kept and sum([len(each.slots) for each in self._sessions.values()]) > (
            self._max_partitions
        ):
            self.remove(session.id)

    def remove(self, session_id: int) -> None:
        """Close a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _evict(self, newcomer: FetchSession, now_s: float) -> bool:
        """Evict one session for a new one; False if none may be evicted (Kafka's rules).

        The least recently used session goes if it is idle for `EVICTABLE_AFTER_S`. Otherwise the
        smallest candidate goes if the new session is at least as big; followers' sessions rank
        above consumers'. Candidates are sessions older than `EVICTABLE_AFTER_S` and, if the new
        session is a follower's, all consumers' sessions.
        """
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_s - oldest.used_s > EVICTABLE_AFTER_S:
            self.remove(oldest.id)
            return True
        follows = newcomer.reader.is_follower
        # Scans all sessions, which is rare: only when the cache is full.
        candidates = (
            (session.reader.is_follower, len(session.slots), session.id)
            for session in self._sessions.values()
            if now_s - session.created_s > EVICTABLE_AFTER_S
            or (follows and not session.reader.is_follower)
        )
        least = min(candidates, default=None)
        if least is None or (follows, len(newcomer.slots), NO_SESSION) < least:
            return False
        self.remove(least[2])
        return True
