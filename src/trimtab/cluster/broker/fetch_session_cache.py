"""The fetch sessions of all clients of a broker, and which of them it keeps (KIP-227).

Source: Kafka's `FetchSessionCacheShard`.
"""

from __future__ import annotations

from random import Random

from trimtab.cluster.broker.fetch_reader import FetchReader
from trimtab.cluster.broker.fetch_session import FetchSession
from trimtab.cluster.broker.refused import Refused
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.sentinels import NO_SESSION
from trimtab.kafka.wire.types import MAX_INT32

MAX_PARTITIONS = 500_000
"""Partitions of all sessions together at most: about 200 MB."""

EVICTABLE_AFTER_S = 120.0
"""A session idle for longer may be evicted for any other; one created longer ago, for a bigger one
(Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`)."""


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

    def resume(
        self, session_id: int, epoch: int, reader: FetchReader, now_s: float
    ) -> FetchSession:
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
        if session.uses_topic_ids != reader.uses_topic_ids:
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.resume(reader, 1 if epoch == MAX_INT32 else epoch + 1, now_s)
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def keep(self, session: FetchSession, now_s: float) -> bool:
        """Keep a new session under an id of its own; False if the cache is full."""
        while len(self._sessions) >= self._limit or not self._has_room(session):
            if not self._evict(session, now_s):
                return False
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.randrange(1, MAX_INT32 + 1)
        session.begin_session(session_id, now_s)
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
