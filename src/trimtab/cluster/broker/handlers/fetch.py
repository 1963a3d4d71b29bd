"""Fetch (1), versions 4-18: whole record batches, within the limits of KIP-74.

- `max_bytes` bounds the record bytes of the response and is spent on the partitions in the order of
  the request, or of the session; `partition_max_bytes` bounds each. The first partition that has
  records is exempt: it gets at least its first batch, however big.
- Only whole batches are sent. (Kafka also sends the incomplete last batch, and clients drop it.)
  A batch may begin before the requested offset.
- If fewer than `min_bytes` are available, the response waits up to `max_wait_ms`; then all
  partitions are read again. An error at a partition that this broker hosts ends the wait.
- A request that continues a session (KIP-227) is answered with the changed partitions only. The
  cost depends only on how many have changed: see `trimtab.cluster.broker.fetch_session`.
- A follower may read up to the log end offset; its fetch offset tells the leader how much it has
  replicated. Only nodes may be followers: others get TOPIC_AUTHORIZATION_FAILED, as from Kafka.
- An unknown isolation level, or a negative limit where there is something to read, is
  answered with UNKNOWN_SERVER_ERROR, as by Kafka 4.3, which has no check of its own there.
- A consumer of committed records reads up to the last stable offset, and gets the aborted
  transactions in what it reads, whose records it leaves out (KIP-98).

Versions 0-3 are not served: they require converting batches to the formats before v2.
Source: Kafka's `KafkaApis.handleFetchRequest`, `ReplicaManager.readFromLog` and `DelayedFetch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from trimtab.cluster.broker.fetch_reader import READ_COMMITTED, FetchReader
from trimtab.cluster.broker.fetch_session import PARTITIONS_PER_STEP, FetchSession
from trimtab.cluster.broker.fetch_session_cache import FetchSessionCache
from trimtab.cluster.broker.fetch_slot import FetchPass, failed
from trimtab.cluster.broker.partition import Watcher
from trimtab.cluster.broker.purgatory import DelayedFetch
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.replicas import Replicas
from trimtab.cluster.server.turns import Pace, Steps, Turns, answer_partitions
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.fetch_limits import FetchBudget
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from trimtab.kafka.wire.sentinels import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from trimtab.kafka.wire.types import ZERO_UUID

_ONE_CODE_SINCE = 13
"""Since this version a request that fails as a whole is answered with one code for all of it."""

_UNEXPECTED = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
)
"""Errors that count as failures; the others are part of ordinary operation, as in Kafka's
`ReplicaManager.readFromLog`."""

_ISOLATIONS = (0, READ_COMMITTED)


def fetch(
    replicas: Replicas,
    sessions: FetchSessionCache,
    turns: Turns,
    header: RequestHeader,
    request: FetchRequest,
) -> Steps[FetchResponse | Awaitable[FetchResponse]]:
    """Answer at once, or wait until `min_bytes` are available or `max_wait_ms` is over."""
    if request.isolation_level not in _ISOLATIONS:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        if header.api_version >= _ONE_CODE_SINCE:
            return FetchResponse(error_code=code, session_id=NO_SESSION, responses=[])
        return (yield from _refuse_each(request, code, code))
    reader = FetchReader(replicas, header.api_version, request)
    if reader.is_follower and not header.is_node:
        # It would have records acknowledged that no replica has.
        return (yield from _refuse_each(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    try:
        fetching = _Fetch(reader, sessions, request)
    except Refused as refused:
        return FetchResponse(error_code=refused.code, session_id=NO_SESSION, responses=[])
    try:
        yield from fetching.update_session()
        reading = yield from fetching.read()
        if fetching.is_enough(reading):
            return (yield from fetching.respond(reading))
    except GeneratorExit:  # its connection is lost
        fetching.give_up()
        raise
    return fetching.wait(reading, turns)


def _refuse_each(
    request: FetchRequest, of_each: ErrorCode, of_all: ErrorCode = ErrorCode.NONE
) -> Steps[FetchResponse]:
    return answer_partitions(
        request.topics,
        lambda topic: topic.partitions,
        lambda _, wanted: failed(wanted.partition, of_each, None),
        lambda topic, refused: FetchableTopicResponse(
            topic=topic.topic, topic_id=topic.topic_id, partitions=refused
        ),
        lambda topics: FetchResponse(error_code=of_all, session_id=NO_SESSION, responses=topics),
    )


class _Fetch:
    """One request: has its session read, once or again after a wait, and builds the response.

    Raises:
        Refused: the request names a session that does not exist, or does not fit it.
    """

    __slots__ = (
        "_byte_limit",
        "_delayed",
        "_epoch",
        "_is_full",
        "_min_bytes",
        "_pace",
        "_reader",
        "_request",
        "_session",
        "_sessions",
    )

    def __init__(
        self, reader: FetchReader, sessions: FetchSessionCache, request: FetchRequest
    ) -> None:
        self._sessions = sessions
        self._request = request
        self._reader = reader
        max_bytes = reader.replicas.view.config.integer("fetch.max.bytes")
        self._byte_limit = min(request.max_bytes, max_bytes)
        self._min_bytes = min(request.min_bytes, self._byte_limit)
        self._delayed: DelayedFetch | None = None
        self._is_full = request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)
        self._session = self._begin() if self._is_full else self._resume()
        self._epoch = self._session.epoch
        self._pace = Pace(PARTITIONS_PER_STEP)

    def _begin(self) -> FetchSession:
        if self._request.session_id != NO_SESSION:
            self._sessions.remove(self._request.session_id)
        return FetchSession(self._reader)

    def _resume(self) -> FetchSession:
        request, reader = self._request, self._reader
        now_s = asyncio.get_running_loop().time()
        return self._sessions.resume(request.session_id, request.session_epoch, reader, now_s)

    def update_session(self) -> Steps[None]:
        """Update the session with the partitions that the request adds, changes or removes."""
        request, session, pace = self._request, self._session, self._pace
        yield from session.update(request.topics, pace)
        if self._is_full:
            return
        yield from session.forget(request.forgotten_topics_data, pace)
        self._sessions.check_size(session)
        if not session.slots:
            # The session was evicted for its size, or has no partitions left: start another.
            self._is_full = True
            self._session = self._begin()
            self._epoch = self._session.epoch
            yield from self._session.update(request.topics, pace)

    def read(self) -> Steps[FetchPass]:
        """Read the session's partitions once, within the limits of the request."""
        return self._session.read(FetchBudget(self._byte_limit), self._is_full, self._pace)

    # -- waiting

    def is_enough(self, reading: FetchPass) -> bool:
        """Whether to answer now, without waiting for more bytes."""
        return (
            self._request.max_wait_ms <= 0
            or reading.ends_wait
            or self._min_bytes <= 0
            or len(reading.unknown) == len(self._session.slots)
            or reading.budget.spent >= self._min_bytes
            or sum(self._available(reading).values()) >= self._min_bytes
        )

    def _available(self, reading: FetchPass) -> dict[Watcher, int]:
        # While the budget must give a batch, no partition has any that it may give.
        return {} if reading.budget.must_give_one else self._session.available()

    def wait(self, reading: FetchPass, turns: Turns) -> Awaitable[FetchResponse]:
        """The response, once `min_bytes` are available, an event ends the wait, or time is up."""
        self._delayed = DelayedFetch(
            self._request.max_wait_ms / 1000,
            self._min_bytes,
            self._available(reading),
            self._read_again,
            turns.run,
            self.give_up,
        )
        self._session.wait(self._delayed)
        return self._delayed.response

    def _read_again(self) -> Steps[FetchResponse]:
        self._stop_waiting()
        if self._session.epoch != self._epoch:
            # The client gave up this request and sent the next one over another connection.
            return FetchResponse(
                error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                session_id=self._session.id,
                responses=[],
            )
        return (yield from self.respond((yield from self.read())))

    def give_up(self) -> None:
        """Stop: the connection is lost, so nobody reads the response."""
        self._stop_waiting()
        if not self._session.is_kept:
            self._session.close()

    def _stop_waiting(self) -> None:
        self._session.stop_waiting(self._delayed)
        self._delayed = None

    # -- answering

    def respond(self, reading: FetchPass) -> Steps[FetchResponse]:
        """The response: first the partitions that this broker knows, in the order of the reading,
        then the others. Updates the session with the values sent."""
        session, pace, is_follower = self._session, self._pace, self._reader.is_follower
        if self._request.session_epoch == INITIAL_EPOCH:
            self._sessions.keep(session, asyncio.get_running_loop().time())
        responses: list[FetchableTopicResponse] = []
        partitions: list[PartitionData] = []
        topic: str | bytes | None = None
        for slot, data in reading.answers + reading.unknown:
            traffic = slot.traffic
            traffic.fetches += 1
            if data.records:
                if is_follower:
                    traffic.replication_bytes_out += len(data.records)
                else:
                    traffic.bytes_out += len(data.records)
            elif data.error_code in _UNEXPECTED:
                traffic.failed_fetches += 1
            if session.is_kept:
                session.answered(slot, data)
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
        if not session.is_kept:
            session.close()
        return FetchResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            session_id=session.id,
            responses=responses,
            node_endpoints=list(reading.leaders.values()),
        )
