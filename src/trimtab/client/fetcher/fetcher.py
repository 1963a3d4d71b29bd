"""Fetching ahead of the reader: what to ask of which broker, and what its answers mean.

    reader ──wishes──▶ FetchPlan ──asks──▶ Fetcher ──Fetch──▶ leader (or nearer replica)
       ▲                   ▲                  │
       └─drained─▶─────────┘◀─────ready◀──────┘

`FetchPlan` decides and does no I/O. Its rules (KIP-74 and Kafka's `AbstractFetch`):

- One fetch at a time for each broker, and none while the reader has yet to take what that broker
  sent: what waits in memory is bounded by one response for each broker.
- Partitions are asked for in the order in which they were assigned; one whose data was taken goes
  to the end. So the first one that got nothing leads the next request, and none starves when
  `fetch.max.bytes` is too small for all.
- A fetch goes on where the last one ended as soon as its data is taken, so that the next data is
  under way while the reader works.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from trimtab.client.fetcher.offsets import EARLIEST, LATEST, Isolation, Offsets
from trimtab.client.network.backoff import Backoff
from trimtab.client.network.connections import ApiKey, Connection, Connections
from trimtab.client.network.metadata import NO_LEADER, ZERO_UUID, Metadata
from trimtab.errors import BrokerError, CorruptData, ErrorCode, KafkaError, Unavailable, error_code
from trimtab.records import TopicPartition
from trimtab.wire.batch_header import BatchHeader, is_cut_short, read_whole_header, verify
from trimtab.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

logger = logging.getLogger("trimtab.client")

_CONSUMER: Final = -1
_NO_SESSION: Final = 0
_SESSIONLESS_EPOCH: Final = -1
_LAST_VERSION_WITH_NAMES: Final = 12
_NOWHERE: Final = -1
NO_END: Final = 2**63 - 1
"""An end that no offset reaches."""


class Batches(NamedTuple):
    """Whole record batches of one partition, verified, as the broker keeps them.

    Attributes:
        start: the position; records before it share a batch with it and are not wanted.
        next_offset: where reading goes on. It can lie beyond the last record (compaction,
            transaction markers), and `data` can be empty.
        high_watermark: the end of what readers may see, as of this answer.
        data: record batches back to back; stays valid for as long as it is held.
    """

    partition: TopicPartition
    start: int
    next_offset: int
    high_watermark: int
    data: memoryview


class Fetched(NamedTuple):
    """What is ready for the reader: batches of one partition, or why there are none."""

    partition: TopicPartition
    epoch: int
    result: Batches | KafkaError


class Wish(NamedTuple):
    """How the reader wants one partition.

    Attributes:
        epoch: another number whenever reading is to go on elsewhere; what was fetched under an
            older one is dropped.
        start: an offset, or `EARLIEST` or `LATEST`.
        is_paused: whether to leave the partition alone for now.
        end: where reading stops: nothing is fetched from this offset on.
    """

    epoch: int
    start: int
    is_paused: bool
    end: int = NO_END


class Ask(NamedTuple):
    """One partition of one fetch request."""

    partition: TopicPartition
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The consumer's options that fetching depends on. Times are in seconds."""

    max_bytes: int
    max_partition_bytes: int
    min_bytes: int
    max_wait: float
    check_crcs: bool
    isolation: Isolation
    rack: str
    reset: int | None
    """`EARLIEST`, `LATEST`, or None: a position outside the log is an error."""
    request_timeout: float
    lookup_timeout: float
    backoff: Backoff
    replica_max_age: float


@dataclass(slots=True)
class _Reading:
    """One partition as the plan sees it."""

    partition: TopicPartition
    epoch: int
    offset: int
    """What to fetch next; `EARLIEST` or `LATEST` while that has to be looked up."""
    is_paused: bool
    origin: int
    """Where this epoch began: the wish's offset, or the one that was looked up."""
    end: int
    is_ready: bool = False
    is_located: bool = True
    failures: int = 0
    not_before: float = 0.0
    search_after: float = 0.0
    replica: int = _NOWHERE
    replica_until: float = 0.0


class FetchPlan:
    """Decides which partitions are fetched from where, and what an answer changes."""

    def __init__(self, options: FetchOptions, random: Random) -> None:
        self._options = options
        self._random = random
        self._readings: OrderedDict[TopicPartition, _Reading] = OrderedDict()

    def update(self, wishes: Mapping[TopicPartition, Wish]) -> None:
        """Take over what the reader wants now; partitions that are not named are dropped."""
        for partition in [known for known in self._readings if known not in wishes]:
            del self._readings[partition]
        for partition, wish in wishes.items():
            reading = self._readings.get(partition)
            if reading is None or reading.epoch != wish.epoch:
                # A new value in an old key keeps its place in the order.
                self._readings[partition] = _Reading(
                    partition,
                    wish.epoch,
                    wish.start,
                    wish.is_paused,
                    max(wish.start, _NOWHERE),
                    wish.end,
                )
            else:
                reading.is_paused = wish.is_paused

    def asks(
        self, now: float, leader: Callable[[TopicPartition], int], busy: Container[int]
    ) -> dict[int, list[Ask]]:
        """What to ask of which broker now, in order.

        Args:
            now: the loop's time.
            leader: the node that leads a partition, or -1.
            busy: nodes that still owe an answer.
        """
        asks: dict[int, list[Ask]] = {}
        waiting: set[int] = set()
        for reading in self._readings.values():
            if reading.is_paused:
                continue
            node = reading.replica
            if node == _NOWHERE or now >= reading.replica_until:
                node = leader(reading.partition)
            if reading.is_ready:
                waiting.add(node)
            elif (
                0 <= reading.offset < reading.end
                and now >= reading.not_before
                and node != NO_LEADER
                and node not in busy
            ):
                asks.setdefault(node, []).append(
                    Ask(reading.partition, reading.epoch, reading.offset)
                )
        for node in waiting:
            asks.pop(node, None)
        return asks

    def begin_searches(
        self, now: float, leader: Callable[[TopicPartition], int]
    ) -> list[TopicPartition]:
        """Partitions whose leader has to be asked for now, each handed out once a back-off."""
        lost = [
            reading
            for reading in self._readings.values()
            if now >= reading.search_after and leader(reading.partition) == NO_LEADER
        ]
        for reading in lost:
            reading.search_after = now + self._options.backoff.maximum
        return [reading.partition for reading in lost]

    def begin_lookups(self, now: float) -> dict[Ask, int]:
        """Partitions whose position has to be looked up now, each handed out once."""
        due: dict[Ask, int] = {}
        for reading in self._readings.values():
            if reading.offset < 0 and reading.is_located and now >= reading.not_before:
                reading.is_located = False
                due[Ask(reading.partition, reading.epoch, reading.offset)] = reading.offset
        return due

    def next_retry(self, now: float) -> float | None:
        """When the first partition that failed is due again."""
        times = (
            time
            for reading in self._readings.values()
            for time in (reading.not_before, reading.search_after)
            if time > now
        )
        return min(times, default=None)

    def locate(self, ask: Ask, offset: int) -> None:
        """Take over a looked-up position, unless the reader has gone elsewhere since."""
        reading = self._current(ask)
        if reading is not None:
            reading.offset = reading.origin = offset
            reading.is_located = True
            reading.failures = 0

    def fail(self, partition: TopicPartition, error: KafkaError, now: float) -> list[Fetched]:
        """Have the reader told of an error; the partition is tried again once it knows."""
        reading = self._readings.get(partition)
        if reading is None or reading.is_ready:
            return []
        reading.is_located = True
        return [self._fail(reading, error, now)]

    def is_open(self, ask: Ask) -> bool:
        """Whether the reader still waits for the answer to this."""
        return self._current(ask) is not None

    def origin(self, partition: TopicPartition) -> int:
        """Where reading a partition began since the last wish; -1 while that is not known."""
        reading = self._readings.get(partition)
        return _NOWHERE if reading is None else reading.origin

    def is_current(self, fetched: Fetched) -> bool:
        """Whether the reader still wants this."""
        reading = self._readings.get(fetched.partition)
        return reading is not None and reading.epoch == fetched.epoch

    def drain(self, fetched: Iterable[Fetched]) -> None:
        """The reader took these; their partitions are fetched again, after all others."""
        for taken in fetched:
            if self.is_current(taken):
                self._readings[taken.partition].is_ready = False
                self._readings.move_to_end(taken.partition)

    def receive(
        self, asks: Iterable[Ask], response: FetchResponse, names: Mapping[bytes, str], now: float
    ) -> tuple[list[Fetched], bool]:
        """What a response brings, in its order, and whether it shows that metadata is stale.

        Args:
            names: topics by id, for answers that have no names (version 13 and above).
        """
        asked = {ask.partition: ask for ask in asks}
        ready: list[Fetched] = []
        is_stale = False
        if response.error_code != ErrorCode.NONE:
            for ask in asked.values():
                is_stale |= self._refuse(ask, error_code(response.error_code), now, ready)
            return ready, is_stale
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                answered = asked.get(TopicPartition(name, data.partition_index))
                if answered is None:
                    continue
                if data.error_code != ErrorCode.NONE:
                    is_stale |= self._refuse(answered, error_code(data.error_code), now, ready)
                else:
                    self._accept(answered, data, now, ready)
        return ready, is_stale

    def _current(self, ask: Ask) -> _Reading | None:
        reading = self._readings.get(ask.partition)
        if reading is None or reading.epoch != ask.epoch or reading.offset != ask.offset:
            return None
        return reading

    def _accept(self, ask: Ask, data: PartitionData, now: float, ready: list[Fetched]) -> None:
        reading = self._current(ask)
        if reading is None:
            return
        reading.failures = 0
        if data.preferred_read_replica >= 0:
            reading.replica = data.preferred_read_replica
            reading.replica_until = now + self._options.replica_max_age
        if not data.records:
            return
        try:
            batches = self._check(ask, data, memoryview(data.records))
        except CorruptData as error:
            ready.append(self._fail(reading, error, now))
            return
        reading.offset = batches.next_offset
        reading.is_ready = True
        ready.append(Fetched(ask.partition, ask.epoch, batches))

    def _check(self, ask: Ask, data: PartitionData, records: memoryview) -> Batches:
        headers, end = self._whole_batches(records, ask)
        if not headers or headers[-1].next_offset <= ask.offset:
            raise CorruptData(
                f"{ask.partition} at offset {ask.offset}: the broker sent {len(records)} bytes"
                " without one whole batch to read"
            )
        whole = records[:end]
        if self._options.isolation is Isolation.READ_COMMITTED and data.aborted_transactions:
            whole = without_aborted(whole, headers, data.aborted_transactions)
        return Batches(
            ask.partition, ask.offset, headers[-1].next_offset, data.high_watermark, whole
        )

    def _whole_batches(self, records: memoryview, ask: Ask) -> tuple[list[BatchHeader], int]:
        """The batches up to one that is cut short or damaged, and where they end."""
        read = verify if self._options.check_crcs else read_whole_header
        headers: list[BatchHeader] = []
        end = 0
        while not is_cut_short(records, end):
            try:
                header = read(records, end)
            except CorruptData as error:
                if headers and headers[-1].next_offset > ask.offset:
                    break  # what comes before the damage is good; it comes first the next time
                raise CorruptData(
                    f"{ask.partition} at offset {ask.offset}: {error}; seek past it to go on"
                ) from error
            headers.append(header)
            end += header.size
        return headers, end

    def _refuse(self, ask: Ask, code: ErrorCode, now: float, ready: list[Fetched]) -> bool:
        reading = self._current(ask)
        if reading is None:
            return False
        self._readings.move_to_end(ask.partition)
        if reading.replica != _NOWHERE:
            # Only the leader's word counts: a follower may lag or have lost its role (KIP-392).
            reading.replica = _NOWHERE
            return code.refreshes_metadata
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._options.reset is not None:
            logger.warning("offset %d of %s is not in the log; reset", ask.offset, ask.partition)
            reading.offset = self._options.reset
            reading.origin = _NOWHERE
            return False
        if code.retriable and code is not ErrorCode.CORRUPT_MESSAGE:
            logger.info("fetch of %s failed: %s; trying again", ask.partition, code.name)
            self._back_off(reading, now)
            return code.refreshes_metadata or code is ErrorCode.UNKNOWN_LEADER_EPOCH
        detail = f"while fetching at offset {ask.offset}"
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            detail = (
                f"offset {ask.offset} is not in the log; seek to another"
                " or set auto.offset.reset=earliest or latest"
            )
        ready.append(self._fail(reading, BrokerError(code, detail, str(ask.partition)), now))
        return False

    def _fail(self, reading: _Reading, error: KafkaError, now: float) -> Fetched:
        self._back_off(reading, now)
        reading.is_ready = True
        return Fetched(reading.partition, reading.epoch, error)

    def _back_off(self, reading: _Reading, now: float) -> None:
        reading.not_before = now + self._options.backoff.wait(reading.failures, self._random)
        reading.failures += 1


def without_aborted(
    records: memoryview, headers: Iterable[BatchHeader], aborted: Iterable[AbortedTransaction]
) -> memoryview:
    """The batches without those of aborted transactions (KIP-98).

    A producer's batches are aborted from the transaction's first offset to its next marker: the
    broker lists aborted transactions only, so that marker is the abort.
    """
    beginning = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
    aborting: set[int] = set()
    kept: list[memoryview] = []
    position = 0
    for header in headers:
        end = position + header.size
        while beginning and beginning[0].first_offset <= header.last_offset:
            aborting.add(beginning.popleft().producer_id)
        if header.is_control:
            aborting.discard(header.producer_id)
        if not (header.is_transactional and header.producer_id in aborting):
            kept.append(records[position:end])
        position = end
    return memoryview(b"".join(kept))


class Fetcher:
    """Carries out the plan over the connections. Lives on one event loop.

    Attributes:
        ready: what the reader may take, oldest first, also from another thread; what it took it
            hands to `drained`.
    """

    def __init__(
        self,
        connections: Connections,
        metadata: Metadata,
        offsets: Offsets,
        options: FetchOptions,
        random: Random,
    ) -> None:
        self._connections = connections
        self._metadata = metadata
        self._offsets = offsets
        self._options = options
        self._plan = FetchPlan(options, random)
        self.ready: deque[Fetched] = deque()
        self._busy: set[int] = set()
        self._lookups: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Future[None] | None = None
        self._turn: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        connections.on_change(self._act_soon)
        metadata.on_update(self._act_soon)

    def update(self, wishes: Mapping[TopicPartition, Wish]) -> None:
        """Read these partitions from now on, and no others."""
        self._plan.update(wishes)
        self._metadata.add(dict.fromkeys(partition.topic for partition in wishes))
        self._act_soon()

    def drained(self, fetched: Iterable[Fetched]) -> None:
        """The reader took these from `ready`: fetch on."""
        self._plan.drain(fetched)
        self._act_soon()

    async def wait(self, timeout: float) -> None:
        """Return when something is ready, or after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not self._is_something_ready():
                    await self._next_arrival()
        except TimeoutError:
            return

    async def locate(self, partition: TopicPartition, timeout: float) -> int:
        """Where reading a partition begins, looked up if it has no position yet.

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
        """Why nothing can arrive from a partition now; None if its leader is being asked."""
        leader = self._leader(partition)
        if leader == NO_LEADER:
            return self._offsets.why_no_leader(partition)
        if self._connections.ready(leader) is None:
            return self._connections.last_error(leader)
        return None

    async def close(self) -> None:
        self._closed = True
        for handle in (self._turn, self._retry):
            if handle is not None:
                handle.cancel()
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)
        self._arrive(())

    def _is_something_ready(self) -> bool:
        # A copy: the reader may be taking from it on its own thread.
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
        if self._turn is None and not self._closed:
            self._turn = asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        self._turn = None
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = self._plan.begin_lookups(now)
        if due:
            lookup = loop.create_task(self._look_up(due))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)
        searched = self._plan.begin_searches(now, self._leader)
        is_stale = bool(searched)
        for partition in searched:
            error = self._metadata.error(partition.topic)
            if error is not None and not error.retriable:
                self._arrive(self._plan.fail(partition, error, now))
        for node, asks in self._plan.asks(now, self._leader, self._busy).items():
            connection = self._connections.ready(node)
            if connection is not None:
                self._fetch(node, connection, asks)
            else:
                self._connections.open_soon(node)
        if is_stale:
            self._metadata.request_update()
        retry = self._plan.next_retry(now)
        if self._retry is not None:
            self._retry.cancel()
        self._retry = None if retry is None else loop.call_at(retry, self._act_soon)

    def _leader(self, partition: TopicPartition) -> int:
        return self._metadata.leader(*partition)

    def _fetch(self, node: int, connection: Connection, asks: list[Ask]) -> None:
        options = self._options
        ids: dict[str, bytes] = {}
        epochs: dict[TopicPartition, int] = {}
        for ask in asks:
            view = self._metadata.topic(ask.partition.topic)
            if view is not None:
                ids[view.name] = view.topic_id
                epochs[ask.partition] = view.partitions[ask.partition.partition].leader_epoch
        has_ids = all(ids.get(ask.partition.topic, ZERO_UUID) != ZERO_UUID for ask in asks)
        try:
            version = connection.version_of(
                ApiKey.FETCH, None if has_ids else _LAST_VERSION_WITH_NAMES
            )
        except BrokerError as error:
            self._tell([ask.partition for ask in asks], error)
            return
        topics: list[FetchTopic] = []
        last = None
        for ask in asks:
            topic, index = ask.partition
            if topic != last:  # the order of partitions counts, so a topic may come again
                last = topic
                topics.append(
                    FetchTopic(topic=topic, topic_id=ids.get(topic, ZERO_UUID), partitions=[])
                )
            topics[-1].partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=epochs.get(ask.partition, -1),
                    fetch_offset=ask.offset,
                    partition_max_bytes=options.max_partition_bytes,
                )
            )
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=int(options.max_wait * 1000),
            min_bytes=options.min_bytes,
            max_bytes=options.max_bytes,
            isolation_level=options.isolation,
            session_id=_NO_SESSION,
            session_epoch=_SESSIONLESS_EPOCH,
            topics=topics,
            rack_id=options.rack,
        )
        names = {topic_id: name for name, topic_id in ids.items()}

        def receive(response: FetchResponse | None, error: KafkaError | None) -> None:
            self._busy.discard(node)
            if self._closed:
                return
            if response is None:
                logger.info("fetch failed, trying again: %s", error)
                self._metadata.request_update()
            else:
                now = asyncio.get_running_loop().time()
                fetched, is_stale = self._plan.receive(asks, response, names, now)
                if fetched:
                    self._arrive(fetched)
                if is_stale:
                    self._metadata.request_update()
            self._act_soon()

        self._busy.add(node)
        connection.send(
            request,
            ApiKey.FETCH,
            version,
            receive,
            options.request_timeout + options.max_wait,
        )

    def _tell(self, partitions: Iterable[TopicPartition], error: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        for partition in partitions:
            self._arrive(self._plan.fail(partition, error, now))

    async def _look_up(self, due: Mapping[Ask, int]) -> None:
        wanted = {ask.partition: at for ask, at in due.items()}
        try:
            found = await self._offsets.find(
                wanted, self._options.lookup_timeout, self._options.isolation
            )
        except KafkaError as error:
            self._tell([ask.partition for ask in due if self._plan.is_open(ask)], error)
        else:
            for ask in due:
                self._plan.locate(ask, found[ask.partition].offset)
            self._arrive(())
        self._act_soon()


RESETS: Final[Mapping[str, int | None]] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
"""What `auto.offset.reset` means for a partition without a position."""
