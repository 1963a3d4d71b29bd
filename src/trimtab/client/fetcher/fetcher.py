"""Fetches records ahead of the consumer: decides what to fetch from which broker, and does it.

    consumer ──assignments──▶ FetchPlan ──fetches──▶ Fetcher ──Fetch──▶ leader (or nearer replica)
       ▲                          ▲                     │
       └───drained─▶──────────────┘◀───────ready◀───────┘

`FetchPlan` decides (`plan.py`). `Fetcher` sends the requests, each in a session with its broker
(`sessions.py`), looks up the offsets to begin at, and has leaders confirm positions (`epochs.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from itertools import starmap
from random import Random
from typing import Any, Final, TypeAlias

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.fetcher.epochs import can_ask, find_epoch_ends
from trimtab.client.fetcher.offsets import OffsetLookup
from trimtab.client.fetcher.plan import (
    COMMITTED,
    Assignment,
    Batches,
    EpochEnd,
    Fetched,
    FetchOptions,
    FetchPlan,
    NodeFetch,
    PartitionFetch,
)
from trimtab.client.fetcher.rates import WriteRates
from trimtab.client.fetcher.sessions import FetchSessionHandler, Turn, Wanted
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.connection import Connection
from trimtab.client.network.connections import Connections
from trimtab.client.network.metadata import Metadata
from trimtab.kafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    TopicRecreated,
    Unavailable,
    UsageError,
)
from trimtab.kafka.records import NO_OFFSET, TopicPartition, by_topic
from trimtab.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from trimtab.kafka.wire.sentinels import (
    CONSUMER,
    FINAL_EPOCH,
    LATEST,
    NO_EPOCH,
    NO_LEADER,
    NO_SESSION,
)
from trimtab.kafka.wire.types import ZERO_UUID

logger = logging.getLogger("trimtab.client")

_LAST_VERSION_WITH_NAMES: Final = 12
_LAST_EPOCH_SINCE: Final = 12
_CLOSE: Final = 1.0
"""Seconds that closing waits for brokers to close their sessions."""
Committed: TypeAlias = Callable[
    [Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]
]
"""Returns the offsets that a group has committed; a partition without one is missing."""


class Fetcher:
    """Sends the plan's fetches. Belongs to one event loop.

    Attributes:
        ready: results for the consumer, oldest first. It may take them on another thread, and then
            passes them to `drained`.
        write_rates: of the partitions that were fetched.

    Args:
        metrics: records each fetch.
        committed: the offsets at which a consumer with a group begins.
    """

    def __init__(
        self,
        connections: Connections,
        metadata: Metadata,
        offsets: OffsetLookup,
        options: FetchOptions,
        random: Random,
        metrics: ConsumerMetrics,
        committed: Committed | None = None,
    ) -> None:
        self._connections = connections
        self._metrics = metrics
        self._metadata = metadata
        self._offsets = offsets
        self._options = options
        self._committed = committed
        self.write_rates = WriteRates()
        self._plan = FetchPlan(options, random)
        self.ready: deque[Fetched] = deque()
        self._busy: set[int] = set()
        self._sessions: defaultdict[int, FetchSessionHandler] = defaultdict(FetchSessionHandler)
        self._lookups: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Future[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        connections.on_change(self._act_soon)
        metadata.on_update(self._act_soon)

    def update(self, assignments: Mapping[TopicPartition, Assignment]) -> None:
        """Read these partitions from now on, and no others."""
        self._plan.update(assignments)
        self._metadata.watch(dict.fromkeys(partition.topic for partition in assignments))
        for (topic, _), assignment in assignments.items():
            if assignment.topic_id != ZERO_UUID:
                known = self._metadata.topic_id(topic)
                if known not in (assignment.topic_id, ZERO_UUID):
                    self._metadata.doubt_id(topic)
        self._act_soon()

    def drained(self, fetched: deque[Fetched]) -> None:
        """The reader has begun with these: fetch their partitions again. Empties the queue, to
        which the reader may be appending on its thread."""
        while fetched:
            self._plan.drain([fetched.popleft()])
        self._act_soon()

    async def wait(self, timeout: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Return when a result is ready, when `wake` is called and it is enough, or after
        `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not self._is_something_ready() and not is_enough():
                    await self._next_arrival()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Have a waiting consumer look whether it has waited enough."""
        self._arrive(())

    def origin(self, partition: TopicPartition, epoch: int) -> int:
        """The first offset of a partition's epoch; -1 while it is not looked up."""
        return self._plan.origin(partition, epoch)

    def origin_epoch(self, partition: TopicPartition, epoch: int, offset: int) -> int:
        """The leader epoch of the record before an epoch's first offset, if `offset` is that; -1 if
        it is not known."""
        return self._plan.origin_epoch(partition, epoch, offset)

    def log_end(self, partition: TopicPartition, epoch: int) -> int:
        """The end of what may be read, by the last response of this epoch; -1 without one."""
        return self._plan.log_end(partition, epoch)

    def topic_id(self, partition: TopicPartition) -> bytes:
        """The id of the topic to which a partition's position belongs; zero if none is known."""
        bound = self._plan.topic_id(partition)
        return self._metadata.topic_id(partition.topic) if bound == ZERO_UUID else bound

    def find_ends(
        self,
        partitions: Iterable[TopicPartition],
        timeout: float,
        receive: Callable[[Mapping[TopicPartition, int] | KafkaError], object],
    ) -> None:
        """Look up the ends of logs in the background, after a refresh of their topics' metadata.
        What isolation.level hides is before them, too: it may be read later. `receive` is called on
        the loop; not after `close`."""
        wanted = dict.fromkeys(partitions, LATEST)

        async def find() -> None:
            try:
                await self._metadata.fetch(list({partition.topic for partition in wanted}))
                found = await self._offsets.find(wanted, timeout)
            except KafkaError as error:
                receive(error)
            else:
                receive({partition: each.offset for partition, each in found.items()})

        if not self._closed:
            self._begin(find())

    async def locate(self, partition: TopicPartition, timeout: float) -> int:
        """The first offset of a partition's epoch; waits until it is looked up.

        Raises:
            KafkaError: the lookup failed, or did not succeed within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while (origin := self._plan.origin(partition)) < 0:
                    for fetched in tuple(self.ready):
                        if (
                            fetched.partition == partition
                            and isinstance(fetched.result, KafkaError)
                            and self._plan.is_current(fetched)
                        ):
                            raise fetched.result
                    await self._next_arrival()
        except TimeoutError:
            why = self.problem(partition) or "its leader did not answer"
            waited = f"within {timeout:g} s"
            if isinstance(why, BrokerError):
                raise BrokerError(why.code, f"{why.detail}; {waited}", why.subject) from None
            raise Unavailable(f"no position of {partition} {waited}: {why}") from None
        return origin

    def problem(self, partition: TopicPartition) -> KafkaError | None:
        """Why no records can arrive from a partition now; None if its leader can be asked."""
        leader = self._leader(partition)
        if leader == NO_LEADER:
            return self._offsets.why_no_leader(partition)
        if self._connections.ready(leader) is None:
            return self._connections.last_error(leader)
        return None

    async def close(self) -> None:
        self._closed = True
        for handle in (self._scheduled, self._retry):
            if handle is not None:
                handle.cancel()
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)
        self._arrive(())
        await self._close_sessions()

    async def _close_sessions(self) -> None:
        """Free the brokers' sessions. Behind a fetch that waits, the request is sent, but nobody
        waits for it: brokers also drop a session that is idle when they need its place."""
        answered: list[asyncio.Future[None]] = []
        for node, session in self._sessions.items():
            connection = self._connections.ready(node)
            if connection is None or session.id == NO_SESSION:
                continue
            answer = asyncio.get_running_loop().create_future()
            request = FetchRequest(
                replica_id=CONSUMER,
                max_wait_ms=0,
                min_bytes=0,
                session_id=session.id,
                session_epoch=FINAL_EPOCH,
                topics=[],
            )
            at_most = None if session.uses_topic_ids else _LAST_VERSION_WITH_NAMES
            version = connection.version_of(FetchRequest, at_most)
            connection.send(request, version, partial(_answered, answer))
            if node not in self._busy:
                answered.append(answer)
        if answered:
            await asyncio.wait(answered, timeout=_CLOSE)

    def _is_something_ready(self) -> bool:
        # A copy: the consumer may be taking results on its own thread.
        return self._closed or any(map(self._plan.is_current, tuple(self.ready)))

    async def _next_arrival(self) -> None:
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiting)

    def _arrive(self, fetched: Iterable[Fetched]) -> None:
        self.ready.extend(fetched)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _act_soon(self) -> None:
        if self._scheduled is None and not self._closed:
            self._scheduled = asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        self._scheduled = None
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = self._plan.begin_lookups(now)
        if due:
            self._begin(self._look_up(due))
        doubtful, is_stale = self._plan.begin_validations(
            now, self._leader_epoch, self._metadata.topic_id
        )
        if doubtful := self._drop_lost(doubtful):
            self._begin(self._validate(doubtful))
        searched = self._plan.begin_searches(now, self._leader)
        is_stale |= bool(searched)
        for partition in searched:
            error = self._metadata.error(partition.topic)
            if error is not None and not error.retriable:
                self._arrive(self._plan.fail(partition, error, now))
        due_fetches = self._plan.due_fetches(
            now, self._leader, self._busy, self._leader_epoch, self._can_read
        )
        for node, fetch in due_fetches.items():
            connection = self._connections.ready(node)
            if connection is not None:
                self._fetch(node, connection, fetch)
            else:
                self._connections.open_soon(node)
        if is_stale:
            self._metadata.request_update()
        retry = self._plan.next_retry(now)
        if self._retry is not None:
            self._retry.cancel()
        self._retry = None if retry is None else loop.call_at(retry, self._act_soon)

    def _begin(self, lookup: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(lookup)
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    def _drop_lost(self, fetches: list[PartitionFetch]) -> list[PartitionFetch]:
        """Those with positions of present topics; the consumer is told of the others. Their topics
        were deleted and created again, and so have other ids (KIP-516)."""
        now = {each: self._metadata.topic_id(each.partition.topic) for each in fetches}
        lost = {
            fetch
            for fetch in fetches
            if fetch.topic_id != ZERO_UUID and now[fetch] not in (fetch.topic_id, ZERO_UUID)
        }
        if not lost:
            return fetches
        for topic in sorted({each.partition.topic for each in lost}):
            logger.warning("topic %s was deleted and created again", topic)
        for fetch in lost:
            error = TopicRecreated(str(fetch.partition), fetch.offset, fetch.topic_id, now[fetch])
            self._report([fetch.partition], error)
        return [each for each in fetches if each not in lost]

    def _leader(self, partition: TopicPartition) -> int:
        return self._metadata.leader(*partition)

    def _leader_epoch(self, partition: TopicPartition) -> int:
        view = self._metadata.topic(partition.topic)
        if view is None or partition.partition >= view.partition_count:
            return NO_EPOCH
        return view.partitions[partition.partition].leader_epoch

    def _can_read(self, partition: TopicPartition, node: int) -> bool:
        """Whether a replica is online and its broker was not lost. A lost one is connected to, and
        read from again as soon as that succeeds."""
        if node not in self._metadata.nodes or self._metadata.is_offline(partition, node):
            return False
        if self._connections.last_error(node) is None:
            return True
        self._connections.open_soon(node)
        return False

    def _fetch(self, node: int, connection: Connection, fetch: NodeFetch) -> None:
        asked = self._drop_lost(fetch.partitions)
        if not asked:
            return
        topics = {each.partition.topic for each in asked}
        ids = {topic: self._metadata.topic_id(topic) for topic in topics}
        fetch = fetch._replace(
            partitions=[each._replace(topic_id=ids[each.partition.topic]) for each in asked]
        )
        at_most = _LAST_VERSION_WITH_NAMES if ZERO_UUID in ids.values() else None
        try:
            version = connection.version_of(FetchRequest, at_most)
        except BrokerError as error:
            self._report([each.partition for each in fetch.partitions], error)
            return
        knows_last_epoch = version >= _LAST_EPOCH_SINCE
        wanted = {
            partition_fetch.partition: Wanted(
                partition_fetch.topic_id,
                partition_fetch.offset,
                partition_fetch.leader_epoch,
                partition_fetch.last_epoch if knows_last_epoch else NO_EPOCH,
            )
            for partition_fetch in fetch.partitions
        }
        session = self._sessions[node]
        turn = session.next_turn(wanted, version)
        request = self._request(fetch, turn, wanted)
        names = {topic_id: name for name, topic_id in ids.items()}

        def receive(response: FetchResponse | None, error: KafkaError | None) -> None:
            self._busy.discard(node)
            if self._closed:
                return
            if response is None:
                logger.info("fetch failed, trying again: %s", error)
                session.restart()
                self._metadata.request_update()
            elif session.accept(response):
                latency = self._metrics.now() - sent_at
                throttle = response.throttle_time_ms / 1000
                self._metrics.fetched(node, connection.response_bytes, latency, throttle)
                self._receive(node, fetch, response, names)
            self._act_soon()

        self._busy.add(node)
        sent_at = self._metrics.now()
        timeout = self._options.request_timeout + request.max_wait_ms / 1000
        connection.send(request, version, receive, timeout)

    def _request(
        self, fetch: NodeFetch, turn: Turn, wanted: Mapping[TopicPartition, Wanted]
    ) -> FetchRequest:
        options = self._options
        topics: list[FetchTopic] = []
        last = None
        for partition in turn.named:
            at = wanted[partition]
            if partition.topic != last:  # the order of partitions counts: a topic may occur twice
                last = partition.topic
                topics.append(FetchTopic(topic=last, topic_id=at.topic_id, partitions=[]))
            topics[-1].partitions.append(
                FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=at.leader_epoch,
                    fetch_offset=at.offset,
                    last_fetched_epoch=at.last_epoch,
                    partition_max_bytes=options.limits.partition_max_bytes,
                )
            )
        forgotten = by_topic(((topic, id), index) for (topic, index), id in turn.forgotten)
        return FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=int(options.max_wait * 1000) if fetch.may_wait else 0,
            min_bytes=options.limits.min_bytes,
            max_bytes=fetch.max_bytes,
            isolation_level=options.isolation,
            session_id=turn.session_id,
            session_epoch=turn.epoch,
            topics=topics,
            forgotten_topics_data=[
                ForgottenTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in forgotten.items()
            ],
            rack_id=options.rack if fetch.names_rack else "",
        )

    def _receive(
        self, node: int, fetch: NodeFetch, response: FetchResponse, names: Mapping[bytes, str]
    ) -> None:
        now = asyncio.get_running_loop().time()
        fetched, is_stale = self._plan.receive(fetch.partitions, response, names, now, node)
        for fetched_partition in fetched:
            if isinstance(fetched_partition.result, Batches):
                self.write_rates.note(fetched_partition.result, now)
        if fetched:
            self._arrive(fetched)
        if is_stale:
            self._metadata.request_update()

    def _report(self, partitions: Iterable[TopicPartition], error: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        for partition in partitions:
            self._arrive(self._plan.fail(partition, error, now))

    async def _look_up(self, due: Mapping[PartitionFetch, int]) -> None:
        wanted = {fetch.partition: at for fetch, at in due.items()}
        try:
            begin = await self._begin_at_committed(wanted)
            ids = {fetch: self._metadata.topic_id(fetch.partition.topic) for fetch in due}
            found = await self._offsets.find(
                wanted, self._options.lookup_timeout, self._options.isolation
            )
        except KafkaError as error:
            if _may_pass(error):
                logger.info("positions are not found yet, trying again: %s", error)
                self._plan.look_up_again(due, asyncio.get_running_loop().time())
            else:
                self._report([fetch.partition for fetch in due if self._plan.is_open(fetch)], error)
        else:
            for fetch in due:
                if (committed := begin.get(fetch.partition)) is not None:
                    self._plan.locate(fetch, committed.offset, committed.leader_epoch, ids[fetch])
                elif (offset := found.get(fetch.partition)) is not None:
                    self._plan.locate(fetch, offset.offset, topic_id=ids[fetch])
            self._arrive(())
        self._act_soon()

    async def _validate(self, doubtful: Collection[PartitionFetch]) -> None:
        by_leader: dict[int, list[PartitionFetch]] = {}
        for fetch in doubtful:
            by_leader.setdefault(self._leader(fetch.partition), []).append(fetch)
        await asyncio.gather(*starmap(self._validate_at, by_leader.items()))

    async def _validate_at(self, leader: int, doubtful: Collection[PartitionFetch]) -> None:
        """Have a leader confirm positions; if it does not answer, they are tried again."""
        trouble = EpochEnd(ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_EPOCH, NO_OFFSET)
        ends: Mapping[TopicPartition, EpochEnd | None]
        try:
            if leader == NO_LEADER:
                raise Unavailable("a partition has no leader")
            connection = await self._connections.connect(leader)
            ends = (
                await find_epoch_ends(connection, doubtful)
                if can_ask(connection)
                else dict.fromkeys((fetch.partition for fetch in doubtful), None)
            )
        except KafkaError as error:
            logger.info("positions are not confirmed, trying again: %s", error)
            ends = {}
        now = asyncio.get_running_loop().time()
        for fetch in doubtful:
            fetched, is_stale = self._plan.validated(fetch, ends.get(fetch.partition, trouble), now)
            if fetched:
                self._arrive(fetched)
            if is_stale:
                self._metadata.request_update()
        self._act_soon()

    async def _begin_at_committed(
        self, wanted: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of those in `wanted` that begin there.

        They are taken out of `wanted`; those without one get the time of `auto.offset.reset`.
        """
        of_group = [partition for partition, at in wanted.items() if at == COMMITTED]
        if not of_group or self._committed is None:
            return {}
        begin = dict(await self._committed(of_group))
        for partition in of_group:
            if partition in begin or self._options.reset is None:
                del wanted[partition]
            else:
                wanted[partition] = self._options.reset
        if self._options.reset is None:
            missing = [partition for partition in of_group if partition not in begin]
            for partition in missing:
                self._report(
                    [partition],
                    UsageError(
                        f"the group has committed no offset of {partition}, and"
                        " auto.offset.reset=none; commit one, seek() to one, or set it"
                        " to earliest or latest"
                    ),
                )
        return begin


def _may_pass(error: KafkaError) -> bool:
    """Whether a lookup is repeated. That a topic does not exist is told: it may be misspelt."""
    return isinstance(error, Unavailable) or (
        isinstance(error, BrokerError)
        and error.retriable
        and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def _answered(
    answer: asyncio.Future[None], response: FetchResponse | None, error: KafkaError | None
) -> None:
    if not answer.done():
        answer.set_result(None)
