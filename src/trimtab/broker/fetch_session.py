"""What a fetch asks for, and what the broker remembers of it until the next one (KIP-227).

    FetchSessionCache ──▶ FetchSession ──▶ FetchSlot: one partition ◀──watches── Partition
                               │
                               └──▶ DelayedFetch, while a fetch waits

A fetch that names all its partitions makes a `FetchSession`. Without a session on the wire it
lives as long as that one request; otherwise the cache keeps it, and the client's next requests
name only what is to be different.

An idle partition costs nothing: a slot that has something to say is in its session's `ready` set,
and a fetch looks at those alone, in the session's order. Every slot that is not ready watches its
partition. Once it is ready it need not be told again, so it stops watching when it is told and no
fetch waits: a client that is gone costs a partition one call, not one for each append.

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
"""Of a request that names all its partitions and wants no session."""
INITIAL_EPOCH = 0
"""Of a request that names all its partitions and wants a new session."""

UNCHECKED = -2

MAX_PARTITIONS = 500_000
"""Partitions of all sessions together: some 200 MB."""

EVICTABLE_AFTER_S = 120.0
"""How long a session is idle until any other may take its place, and how old until a bigger one
may (Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`)."""

_TOPIC_IDS_SINCE = 13
_REPLICA_STATE_SINCE = 15
_FOLLOWERS_SINCE = 11

PASSED_AT_ONCE = 150
"""Partitions that a fetch looks at between two steps."""

_by_rank = attrgetter("rank")


class Reader:
    """Who fetches, and what he may see (Kafka's `FetchParams`).

    Attributes:
        replica_id: the follower's broker id; negative for a consumer.
        broker_epoch: the follower's; -1 if it does not say.
        rack: the consumer's; empty if it has none.
        is_follower: reads up to the log's end, not only what is committed.
        needs_leader: is served by the leader alone. A consumer that knows preferred replicas
            (KIP-392) is served by any.
        find: the partition to read, by topic and index; raises `Refused` if this broker does not
            have it, or not for this reader.
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

    def is_like(self, other: Reader) -> bool:
        """Whether both may see the same."""
        return (
            self.replica_id == other.replica_id
            and self.broker_epoch == other.broker_epoch
            and self.needs_leader == other.needs_leader
            and self.rack == other.rack
        )

    def is_throttled(self, partition: Partition) -> bool:
        """Whether a follower gets nothing of it now: replication has used up its quota (KIP-73)."""
        return (
            self.is_follower
            and partition.throttles(self.replica_id)
            and self._broker.leads_too_fast()
        )

    def note_sent(self, partition: Partition, size: int) -> None:
        """So many bytes of it go out to whom it fetches for."""
        if self.is_follower and partition.throttles(self.replica_id):
            self._broker.note_sent_throttled(size)


class FetchSlot:
    """One partition of a fetch: what is asked of it, and what was last answered.

    Attributes:
        topic: the topic's name, or its id if the session goes by ids.
        wanted: as the client last gave it.
        rank: its place in the session's order, the smallest first.
        partition: what it watches, or did; None if there is none here.
        high_watermark, log_start_offset: as last answered; -1 if with an error, or never.
        checked_epoch: the leader epoch in which the offset was held against the log, and the
            follower's progress noted; `UNCHECKED` if it is new, or the partition has changed.
        stays_ready: whether the pass that read it last left something to say.
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

    # What its partition tells it

    def appended(self, partition: Partition) -> None:
        """A follower has something to read."""
        if self.session.reader.is_follower:
            self._wake(partition, partition.log.log_end_offset)

    def committed(self, partition: Partition) -> None:
        """A consumer has something to read; a follower is told of it when it is answered."""
        is_follower = self.session.reader.is_follower
        self._wake(partition, NO_OFFSET if is_follower else partition.high_watermark)

    def changed(self, partition: Partition) -> None:
        """Whatever has changed, the next answer says it."""
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
            if session.is_between_steps:  # of a pass, which may have been here already
                session.is_stirred = True
        elif self.wanted.fetch_offset < end_offset and not session.reader.is_throttled(partition):
            if waiting.min_bytes <= 1:
                waiting.complete()
            else:
                waiting.count(self, self.available(partition, end_offset))

    # What a fetch does with it

    def available(self, partition: Partition, end_offset: int) -> int:
        """How many bytes it adds to `min_bytes`: no more than it could be given at a time."""
        wanted = self.wanted
        available = partition.bytes_between(wanted.fetch_offset, end_offset)
        return min(available, wanted.partition_max_bytes)

    def leave(self) -> None:
        """Stop watching."""
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
            self.partition = None


class FetchSession:
    """The partitions of one client's fetches, in the order in which they are served.

    Attributes:
        id: `NO_SESSION` until the cache keeps it.
        epoch: of the request that is expected next.
        reader: who fetches.
        uses_topic_ids: whether its topics go by id, as from Fetch version 13 on.
        slots: by topic and partition.
        ready: the slots that have, or may have, something to say.
        waiting: the fetch that waits for these partitions.
        is_kept: whether it is in the cache. Then its slots watch their partitions all the time.
        is_watching: whether slots that are read watch their partitions.
        is_between_steps: while a pass over its slots gives others their turn.
        is_stirred: whether a slot has been told of something then.
        created_s, used_s: the loop's time when the cache took it, and when it was last used.
    """

    __slots__ = (
        "_last_rank",
        "_most_ready",
        "created_s",
        "epoch",
        "id",
        "is_between_steps",
        "is_kept",
        "is_stirred",
        "is_watching",
        "reader",
        "ready",
        "slots",
        "used_s",
        "uses_topic_ids",
        "waiting",
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
        self.is_between_steps = False
        self.is_stirred = False
        self.created_s = 0.0
        self.used_s = 0.0
        self._last_rank = 0
        self._most_ready = 0

    def name(self, topics: Iterable[FetchTopic], pace: Pace) -> Steps[None]:
        """Partitions that a request names: the new ones go to the tail, the others keep their
        place. One that is named twice is where it is first, with what is said last."""
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
        """Partitions that a request takes out."""
        for each in topics:
            topic = each.topic_id if self.uses_topic_ids else each.topic
            if pace.spend():
                yield
            for index in each.partitions:
                if pace.spend():
                    yield
                slot = self.slots.pop((topic, index), None)
                if slot is not None:
                    slot.leave()
                    self.ready.discard(slot)

    def read_for(self, reader: Reader) -> None:
        """Who sends the next request: one who sees something else has to be told of everything."""
        if not reader.is_like(self.reader):
            for slot in self.slots.values():
                slot.checked_epoch = UNCHECKED
            self.ready.update(self.slots.values())
            self._most_ready = len(self.ready)
        self.reader = reader

    def in_turn(self) -> Steps[Iterable[FetchSlot]]:
        """The ready slots, in the session's order."""
        ready = self.ready
        if len(ready) > self._most_ready:
            self._most_ready = len(ready)
        elif len(ready) < self._most_ready // 8:
            # A set keeps the room of those that have left, and is walked with it.
            self.ready = ready = set(ready)
            self._most_ready = len(ready)
        # The set itself may change between two steps.
        return in_order(list(ready) if len(ready) > PASSED_AT_ONCE else ready, _by_rank)

    def watch(self) -> None:
        """Have every slot that has a partition watch it."""
        self.is_watching = True
        for slot in self.slots.values():
            if slot.partition is not None:
                slot.partition.watchers[slot] = None

    def begin(self, session_id: int, now_s: float) -> None:
        """The cache keeps it, under this id. What is not ready begins to watch when the slot is
        answered."""
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.is_kept = self.is_watching = True
        self.created_s = self.used_s = now_s

    def answered(
        self, slot: FetchSlot, high_watermark: int, log_start_offset: int, has_records: bool
    ) -> None:
        """What the client is told of a slot. One that gave records goes to the tail, so that each
        gets its turn, whatever the limits (KAFKA-12330)."""
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
        """The end: stop watching. A fetch that waits is answered, with what is there."""
        self.is_kept = False
        if self.is_watching:
            self.is_watching = False
            for slot in self.slots.values():
                slot.leave()
        if self.waiting is not None:
            self.waiting.complete()
        else:
            # Slots and session refer to each other: left like that, only the collector frees them.
            self.slots.clear()
            self.ready.clear()


class FetchSessionCache:
    """The sessions of all clients of this broker.

    Args:
        slots: sessions at most (`max.incremental.fetch.session.cache.slots`).
        random: makes up their ids.
        partitions: that all of them may have together: what a session has is kept in memory,
            also partitions that nobody knows.
    """

    def __init__(self, slots: int, random: Random, partitions: int = MAX_PARTITIONS) -> None:
        self._limit = slots
        self._most_partitions = partitions
        self._random = random
        # The one that was used last is the last.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def resume(self, session_id: int, epoch: int, version: int, now_s: float) -> FetchSession:
        """The session that a request continues. It is expected to go on with the next epoch.

        Raises:
            Refused: there is no such session, the request is not the one that is expected, or it
                goes by ids where the session goes by names.
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
            # It came over another connection, and its client has given it up: an epoch too late.
            session.waiting.complete()
        return session

    def keep(self, session: FetchSession, now_s: float) -> bool:
        """Keep a new session under an id of its own, if there is a place for it."""
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
        return taken + len(session.slots) <= self._most_partitions

    def check_size(self, session: FetchSession) -> None:
        """A session has got more partitions. If all have too many now, this one is the one to go:
        its client begins again, and may have to do without."""
        if session.is_kept and sum([len(each.slots) for each in self._sessions.values()]) > (
            self._most_partitions
        ):
            self.remove(session.id)

    def remove(self, session_id: int) -> None:
        """Close a session, if there is such a one."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _evict(self, newcomer: FetchSession, now_s: float) -> bool:
        """Make room. What has been idle for long goes first; then the least valuable session does
        if the newcomer is worth more, by Kafka's rules: a follower's is worth more than a
        consumer's, and a bigger one more than one which has had its time."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_s - oldest.used_s > EVICTABLE_AFTER_S:
            self.remove(oldest.id)
            return True
        follows = newcomer.reader.is_follower
        # A look at every session, in the rare case that there are more than the cache may keep.
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
