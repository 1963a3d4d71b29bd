"""Decides what to fetch next from which broker, and evaluates the responses. Does no I/O.

The rules (KIP-74 and Kafka's `AbstractFetch`):

- Each broker has at most one fetch in flight. A partition is fetched again when the reader begins
  with its batches, so that the next data arrives while the consumer works.
- What is fetched and what a fetch may bring never exceed `fetch.max.bytes` by broker, nor
  `max.partition.fetch.bytes` by partition, except by one batch that is larger than the limit. The
  batches that the reader has begun with count as handed out.
- One response brings at most a quarter of `fetch.max.bytes`: the memory of a response is freed when
  all of it is read. So half of the limit unread, a quarter under way and a quarter that is partly
  read are together no more than the limit.
- A broker with unread batches is asked for its other partitions only if one of these has more
  records, and at most half of the limit is unread. Such a fetch must not wait for records: it would
  hold up the partitions that are read meanwhile.
- A request lists partitions in the order in which they were assigned; a partition whose batches
  were taken moves to the end. So the first partition that got no data leads the next request, and
  none starves when `fetch.max.bytes` is too small for all.
- A position is the offset after the last record, with that record's leader epoch. When the leader
  epoch of the partition has changed, the leader is asked whether its log still has that record,
  before it is asked for more (KIP-320). From Fetch version 12 on it also says so by itself.
- A position that a broker has found or served belongs to a topic's id. If the topic is deleted and
  created again, the position is lost: `Fetcher` compares the ids before it asks (KIP-516).

Long because requests and responses change the same partitions, and the limits count both.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from trimtab.client.fetcher.aborted import without_aborted
from trimtab.client.fetcher.offsets import Isolation
from trimtab.client.network.backoff import Backoff
from trimtab.kafka.errors import (
    BrokerError,
    CorruptData,
    ErrorCode,
    KafkaError,
    LogTruncation,
    error_code,
)
from trimtab.kafka.records import NO_OFFSET, TopicPartition
from trimtab.kafka.wire.batch_header import BatchHeader, is_cut_short, read_whole_header, verify
from trimtab.kafka.wire.fetch_limits import FetchLimits
from trimtab.kafka.wire.messages.fetch import (
    EpochEndOffset,
    FetchResponse,
    PartitionData,
)
from trimtab.kafka.wire.sentinels import NO_BROKER, NO_EPOCH, NO_LEADER
from trimtab.kafka.wire.types import ZERO_UUID

logger = logging.getLogger("trimtab.client")

COMMITTED: Final = -5
"""Begin at the offset that the group has committed. No offset, nor a time of ListOffsets."""
NO_END: Final = 2**63 - 1
"""The `end` of a partition that is read for ever."""
_BARREN_RESPONSES: Final = 5
_BARREN_SECONDS: Final = 3.0
"""If so many responses, over so long, bring no record of an offset, it has none."""
_LEAST_PART: Final = 1024 * 1024
"""Of smaller limits a response may bring all: requests would cost more than their memory."""
_PATIENCE: Final = 5
"""How often metadata may be older than the position before it is taken as a new topic's, where
topics have no ids."""


class Batches(NamedTuple):
    """Whole record batches of one partition, checked, in the format of the broker's log.

    Attributes:
        start: the position; earlier records of the first batch are to be skipped.
        next_offset: the position after these batches. It can lie beyond the last record
            (compaction, transaction markers), and `data` can be empty.
        high_watermark: the partition's high watermark in this response.
        data: record batches back to back; stays valid for as long as it is held.
        leader_epochs: the leader epochs of its records, each with the offset from which on it
            counts; the first one may be that of the record before `start`.
    """

    partition: TopicPartition
    start: int
    next_offset: int
    high_watermark: int
    data: memoryview
    leader_epochs: tuple[tuple[int, int], ...] = ()

    @property
    def is_barren(self) -> bool:
        """Whether the log has no record batch at these offsets; `data` is also empty if all are of
        aborted transactions."""
        return not self.leader_epochs


class Fetched(NamedTuple):
    """A result for the consumer: batches of one partition, or the error instead of them."""

    partition: TopicPartition
    epoch: int
    result: Batches | KafkaError


class Assignment(NamedTuple):
    """One assigned partition, and the offsets to read.

    Attributes:
        epoch: changes with each seek; batches that were fetched under another epoch are dropped.
        start: an offset, or `EARLIEST`, `LATEST` or `COMMITTED`.
        is_paused: whether the partition is not fetched for now.
        end: where reading stops: nothing is fetched from this offset on.
        leader_epoch: of the record before `start`; -1 if it is not known.
        topic_id: of the topic to which `start` belongs; zero if it is not known.
    """

    epoch: int
    start: int
    is_paused: bool
    end: int = NO_END
    leader_epoch: int = NO_EPOCH
    topic_id: bytes = ZERO_UUID


class PartitionFetch(NamedTuple):
    """One partition of one fetch request.

    Attributes:
        last_epoch: the leader epoch of the record before `offset`; -1 if it is not known.
        leader_epoch: the partition's present leader epoch; -1 if it is not known.
        topic_id: of the topic to which `offset` belongs; zero if it is not known.
    """

    partition: TopicPartition
    epoch: int
    offset: int
    last_epoch: int = NO_EPOCH
    leader_epoch: int = NO_EPOCH
    topic_id: bytes = ZERO_UUID


class NodeFetch(NamedTuple):
    """One fetch request to one broker.

    Attributes:
        partitions: in the order of the request.
        max_bytes: what the response may bring.
        may_wait: whether the broker may wait for records.
        names_rack: whether the broker may name replicas that are nearer (KIP-392).
    """

    partitions: list[PartitionFetch]
    max_bytes: int
    may_wait: bool
    names_rack: bool


class EpochEnd(NamedTuple):
    """A leader's answer: the greatest epoch up to the one that was asked for, and the offset at
    which it ends; both -1 if the leader knows none."""

    code: ErrorCode
    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The consumer's options for fetching. Times are in seconds."""

    limits: FetchLimits
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
class _PartitionState:
    """The plan's state of one partition."""

    partition: TopicPartition
    epoch: int
    offset: int
    """The offset to fetch next; `EARLIEST` or `LATEST` until the offset is looked up."""
    is_paused: bool
    origin: int
    """The first offset of this epoch: the assignment's, or the one that was looked up."""
    end: int
    last_epoch: int
    """The leader epoch of the record before `offset`; -1 if it is not known."""
    origin_epoch: int
    """The leader epoch of the record before `origin`."""
    topic_id: bytes = ZERO_UUID
    """Of the topic to which `offset` belongs; zero until the consumer has named it, or a broker has
    looked `offset` up or served it."""
    valid_in: int = NO_EPOCH
    """The leader epoch in which the log was found to have that record."""
    is_validating: bool = False
    log_end: int = NO_OFFSET
    """The end of what may be read, by the last response."""
    is_ready: bool = False
    """Whether there is a result that the reader has not begun with."""
    unread: int = 0
    """The bytes of that result."""
    source: int = NO_BROKER
    """The broker that they came from."""
    has_more: bool = False
    """Whether the last response showed more records to fetch."""
    known_end: int = NO_OFFSET
    """As `log_end`, but of any epoch: a session leaves a partition out if nothing is new."""
    barren: int = 0
    """How many responses brought nothing, although there is more to fetch."""
    barren_since: float = 0.0
    is_located: bool = True
    failures: int = 0
    not_before: float = 0.0
    search_after: float = 0.0
    replica: int = NO_BROKER
    replica_until: float = 0.0


@dataclass(slots=True)
class _NodeState:
    """What `due_fetches` sees of one broker."""

    fetches: list[PartitionFetch] = field(default_factory=list)
    partitions: int = 0
    unread: int = 0
    is_unread: bool = False
    has_more: bool = False
    names_rack: bool = True


def _no_id(_: str) -> bytes:
    return ZERO_UUID


def _no_epoch(partition: TopicPartition) -> int:
    return NO_EPOCH


def _any_replica(partition: TopicPartition, node: int) -> bool:
    return True


class FetchPlan:
    """Decides which partitions to fetch from which broker, and evaluates the responses."""

    def __init__(self, options: FetchOptions, random: Random) -> None:
        self._options = options
        self._limits = options.limits
        self._random = random
        self._states: OrderedDict[TopicPartition, _PartitionState] = OrderedDict()

    def update(self, assignments: Mapping[TopicPartition, Assignment]) -> None:
        """Replace the assignments; partitions that are not among them are dropped."""
        for partition in [known for known in self._states if known not in assignments]:
            del self._states[partition]
        for partition, assignment in assignments.items():
            state = self._states.get(partition)
            if state is None or state.epoch != assignment.epoch:
                # A new value under an old key keeps its position in the order.
                self._states[partition] = _PartitionState(
                    partition,
                    assignment.epoch,
                    assignment.start,
                    assignment.is_paused,
                    max(assignment.start, NO_OFFSET),
                    assignment.end,
                    assignment.leader_epoch,
                    assignment.leader_epoch,
                    assignment.topic_id,
                    known_end=NO_OFFSET if state is None else state.known_end,
                )
            else:
                state.is_paused = assignment.is_paused

    def due_fetches(
        self,
        now: float,
        leader: Callable[[TopicPartition], int],
        busy: Container[int],
        leader_epoch: Callable[[TopicPartition], int] = _no_epoch,
        can_read: Callable[[TopicPartition, int], bool] = _any_replica,
    ) -> dict[int, NodeFetch]:
        """What to fetch now, by broker.

        A partition whose nearest replica cannot be read is fetched from its leader, which would
        name the same replica again, and so is not told the rack.

        Args:
            now: the loop's time.
            leader: the node that leads a partition, or -1.
            busy: nodes with a fetch in flight.
            leader_epoch: the leader epoch of a partition, or -1.
            can_read: whether a partition's replica on a node can be read, as far as is known.
        """
        nodes: dict[int, _NodeState] = {}
        for state in self._states.values():
            if state.is_ready:
                source = nodes.setdefault(state.source, _NodeState())
                source.partitions += 1
                source.unread += state.unread
                source.is_unread |= not state.is_paused
            elif _is_wanted(state, now):
                nearest = state.replica if now < state.replica_until else NO_BROKER
                is_near = nearest != NO_BROKER and can_read(state.partition, nearest)
                node = nearest if is_near else leader(state.partition)
                if node == NO_LEADER or node in busy:
                    continue
                epoch = leader_epoch(state.partition)
                if _is_doubtful(state, epoch):
                    continue
                due = nodes.setdefault(node, _NodeState())
                due.partitions += 1
                due.has_more |= state.has_more
                due.names_rack &= is_near or nearest == NO_BROKER
                due.fetches.append(_fetch_of(state, epoch))
        fetches = {}
        for node, due in nodes.items():
            if due.fetches and (room := self._room(due)) is not None:
                fetches[node] = NodeFetch(due.fetches, room, not due.is_unread, due.names_rack)
        return fetches

    def _room(self, node: _NodeState) -> int | None:
        """How many bytes to ask a broker for now; None for not yet."""
        limits = self._limits
        part = max(limits.max_bytes // 4, min(limits.max_bytes, _LEAST_PART))
        if not node.is_unread:
            # Of paused partitions any amount may be unread; it must not stop the others.
            return min(part, max(limits.max_bytes - node.unread, limits.max_bytes // 2))
        limit = min(limits.max_bytes, node.partitions * limits.partition_max_bytes)
        if not node.has_more or node.unread > limit // 2:
            return None
        return min(part, limit - node.unread)

    def begin_validations(
        self,
        now: float,
        leader_epoch: Callable[[TopicPartition], int],
        topic_id: Callable[[str], bytes] = _no_id,
    ) -> tuple[list[PartitionFetch], bool]:
        """Positions that the leader has to confirm now, and whether metadata is stale.

        Each is returned once, and not fetched until `validated` or `fail` is called for it. A
        leader whose epoch is older than the position cannot tell what is lost.

        Args:
            topic_id: the present id of a topic, or zero.
        """
        due: list[PartitionFetch] = []
        is_stale = False
        for state in self._states.values():
            if (
                state.last_epoch == NO_EPOCH
                or state.is_ready
                or state.is_validating
                or not _is_wanted(state, now)
            ):
                continue
            epoch = leader_epoch(state.partition)
            if not _is_doubtful(state, epoch):
                continue
            is_same = state.topic_id != ZERO_UUID and state.topic_id == topic_id(
                state.partition.topic
            )
            if epoch < state.last_epoch and (is_same or state.failures < _PATIENCE):
                self._back_off(state, now)
                is_stale = True
                continue
            state.is_validating = True
            due.append(_fetch_of(state, epoch))
        return due, is_stale

    def validated(
        self, fetch: PartitionFetch, end: EpochEnd | None, now: float
    ) -> tuple[list[Fetched], bool]:
        """Evaluate a leader's answer about a position; None: it cannot tell, and is trusted.

        Returns:
            Results for the consumer, and whether metadata is stale.
        """
        state = self._states.get(fetch.partition)
        if state is not None and state.epoch == fetch.epoch:
            state.is_validating = False
        state = self._current(fetch)
        if state is None:
            return [], False
        if end is not None and end.code is not ErrorCode.NONE:
            if end.code.retriable:
                self._back_off(state, now)
                return [], end.code.refreshes_metadata or end.code is ErrorCode.UNKNOWN_LEADER_EPOCH
            detail = "while looking for the end of a leader epoch"
            error = BrokerError(end.code, detail, str(fetch.partition))
            return [self._fail(state, error, now)], False
        state.failures = 0
        if end is None or (end.epoch >= fetch.last_epoch and end.end_offset >= fetch.offset):
            state.valid_in = fetch.leader_epoch
            return [], False
        return self._truncate(state, end.epoch, end.end_offset, now), False

    def begin_searches(
        self, now: float, leader: Callable[[TopicPartition], int]
    ) -> list[TopicPartition]:
        """Partitions without a known leader, for a metadata request; each once per back-off."""
        lost = [
            state
            for state in self._states.values()
            if now >= state.search_after and leader(state.partition) == NO_LEADER
        ]
        for state in lost:
            state.search_after = now + self._options.backoff.maximum
        return [state.partition for state in lost]

    def begin_lookups(self, now: float) -> dict[PartitionFetch, int]:
        """Partitions whose position has to be looked up now; each is returned once."""
        due: dict[PartitionFetch, int] = {}
        for state in self._states.values():
            if state.offset < 0 and state.is_located and now >= state.not_before:
                state.is_located = False
                due[PartitionFetch(state.partition, state.epoch, state.offset)] = state.offset
        return due

    def look_up_again(self, fetches: Iterable[PartitionFetch], now: float) -> None:
        """Nobody has answered: look these positions up again after a pause."""
        for fetch in fetches:
            if (state := self._current(fetch)) is not None:
                state.is_located = True
                self._back_off(state, now)

    def next_retry(self, now: float) -> float | None:
        """Loop time at which the first failed partition is due again; None if none failed."""
        times = (
            time
            for state in self._states.values()
            for time in (state.not_before, state.search_after)
            if time > now
        )
        return min(times, default=None)

    def locate(
        self,
        fetch: PartitionFetch,
        offset: int,
        last_epoch: int = NO_EPOCH,
        topic_id: bytes = ZERO_UUID,
    ) -> None:
        """Store a looked-up position, unless the consumer has sought elsewhere since."""
        state = self._current(fetch)
        if state is not None:
            state.offset = state.origin = offset
            state.last_epoch = state.origin_epoch = last_epoch
            state.topic_id = topic_id
            state.valid_in = NO_EPOCH
            state.is_located = True
            state.failures = 0

    def fail(self, partition: TopicPartition, error: KafkaError, now: float) -> list[Fetched]:
        """Queue an error for the consumer; the partition is retried after it was taken."""
        state = self._states.get(partition)
        if state is None:
            return []
        state.is_located = True
        state.is_validating = False
        return [] if state.is_ready else [self._fail(state, error, now)]

    def is_open(self, fetch: PartitionFetch) -> bool:
        """Whether the partition still has this epoch and offset, so that an answer counts."""
        return self._current(fetch) is not None

    def origin(self, partition: TopicPartition, epoch: int | None = None) -> int:
        """The first offset of a partition's epoch; -1 until it is looked up."""
        state = self._states.get(partition)
        if state is None or epoch not in (None, state.epoch):
            return NO_OFFSET
        return state.origin

    def origin_epoch(self, partition: TopicPartition, epoch: int, offset: int) -> int:
        """The leader epoch of the record before an epoch's first offset, if `offset` is that; -1 if
        it is not known."""
        state = self._states.get(partition)
        if state is None or (state.epoch, state.origin) != (epoch, offset):
            return NO_EPOCH
        return state.origin_epoch

    def log_end(self, partition: TopicPartition, epoch: int) -> int:
        """The end of what may be read of a partition; -1 until a response of this epoch tells."""
        state = self._states.get(partition)
        return NO_OFFSET if state is None or state.epoch != epoch else state.log_end

    def topic_id(self, partition: TopicPartition) -> bytes:
        """The id of the topic to which a partition's position belongs; zero if it is not known."""
        state = self._states.get(partition)
        return ZERO_UUID if state is None else state.topic_id

    def is_current(self, fetched: Fetched) -> bool:
        """Whether the partition is still assigned, under the same epoch."""
        state = self._states.get(fetched.partition)
        return state is not None and state.epoch == fetched.epoch

    def drain(self, fetched: Iterable[Fetched]) -> None:
        """The reader has begun with these; their partitions move to the end of the next request."""
        for taken in fetched:
            if self.is_current(taken):
                state = self._states[taken.partition]
                state.is_ready, state.unread = False, 0
                self._states.move_to_end(taken.partition)

    def receive(
        self,
        fetches: Iterable[PartitionFetch],
        response: FetchResponse,
        names: Mapping[bytes, str],
        now: float,
        node: int = NO_BROKER,
    ) -> tuple[list[Fetched], bool]:
        """The results in a response, in its order, and whether it shows that metadata is stale.

        Args:
            names: topics by id, for responses without names (version 13 and above).
            node: the broker that answers.
        """
        asked = {fetch.partition: fetch for fetch in fetches}
        ready: list[Fetched] = []
        is_stale = False
        if response.error_code != ErrorCode.NONE:
            for fetch in asked.values():
                code = error_code(response.error_code)
                is_stale |= self._refuse(fetch, code, now, ready, node)
            return ready, is_stale
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                answered = asked.get(TopicPartition(name, data.partition_index))
                if answered is None:
                    continue
                if data.error_code != ErrorCode.NONE:
                    code = error_code(data.error_code)
                    is_stale |= self._refuse(answered, code, now, ready, node)
                elif data.diverging_epoch.epoch >= 0:
                    is_stale |= self._diverge(answered, data.diverging_epoch, now, ready, node)
                else:
                    self._accept(answered, data, now, ready)
        for fetched in ready:
            self._states[fetched.partition].source = node
        if not response.throttle_time_ms and not any(
            data.records or data.error_code
            for topic in response.responses
            for data in topic.partitions
        ):
            ready += self._end_barren(asked.values(), now)
        if not ready:
            # A broker that brings nothing although it has more is not asked again without a wait.
            for partition in asked:
                if (state := self._states.get(partition)) is not None:
                    state.has_more = False
        return ready, is_stale

    def _end_barren(self, fetches: Iterable[PartitionFetch], now: float) -> list[Fetched]:
        """After a response without records: ends reads of one offset, a log's last, that has none.

        Kafka's brokers send the batch of any offset before the end of what may be read. Others
        count offsets to that end which they never send (Redpanda).
        """
        ended = []
        for fetch in fetches:
            state = self._current(fetch)
            if state is None or not state.offset + 1 == state.end == state.known_end:
                continue
            if not state.barren:
                state.barren_since = now
            state.barren += 1
            if state.barren >= _BARREN_RESPONSES and now - state.barren_since >= _BARREN_SECONDS:
                nothing = Batches(
                    *(state.partition, state.offset, state.end, state.end, memoryview(b""))
                )
                state.offset = state.end
                state.is_ready, state.unread = True, 0
                ended.append(Fetched(state.partition, state.epoch, nothing))
        return ended

    def _current(self, fetch: PartitionFetch) -> _PartitionState | None:
        state = self._states.get(fetch.partition)
        if state is None or state.epoch != fetch.epoch or state.offset != fetch.offset:
            return None
        return state

    def _accept(
        self, fetch: PartitionFetch, data: PartitionData, now: float, ready: list[Fetched]
    ) -> None:
        state = self._current(fetch)
        if state is None:
            return
        state.failures = 0
        state.topic_id = fetch.topic_id
        is_committed = self._options.isolation is Isolation.READ_COMMITTED
        state.log_end = data.last_stable_offset if is_committed else data.high_watermark
        state.known_end = state.log_end
        if data.preferred_read_replica >= 0:
            state.replica = data.preferred_read_replica
            state.replica_until = now + self._options.replica_max_age
        state.valid_in = max(state.valid_in, fetch.leader_epoch)
        end = data.high_watermark
        if self._options.isolation is Isolation.READ_COMMITTED and data.last_stable_offset >= 0:
            end = data.last_stable_offset
        state.has_more = end > state.offset
        if not data.records:
            return
        try:
            batches = self._check(fetch, data, memoryview(data.records))
        except CorruptData as error:
            ready.append(self._fail(state, error, now))
            return
        state.offset, state.last_epoch = batches.next_offset, batches.leader_epochs[-1][1]
        state.has_more = end > state.offset
        state.is_ready, state.unread = True, len(data.records)
        ready.append(Fetched(fetch.partition, fetch.epoch, batches))

    def _check(self, fetch: PartitionFetch, data: PartitionData, records: memoryview) -> Batches:
        headers, end = self._whole_batches(records, fetch)
        if not headers or headers[-1].next_offset <= fetch.offset:
            raise CorruptData(
                f"{fetch.partition} at offset {fetch.offset}: the broker sent {len(records)} bytes"
                " without one whole batch to read"
            )
        whole = records[:end]
        if self._options.isolation is Isolation.READ_COMMITTED and data.aborted_transactions:
            whole = without_aborted(whole, headers, data.aborted_transactions)
        epochs = _start_epochs(fetch.offset, fetch.last_epoch)
        for header in headers:
            if not epochs or header.leader_epoch != epochs[-1][1]:
                epochs.append((max(header.base_offset, fetch.offset), header.leader_epoch))
        next_offset = headers[-1].next_offset
        return Batches(
            *(fetch.partition, fetch.offset, next_offset, data.high_watermark, whole),
            leader_epochs=tuple(epochs),
        )

    def _whole_batches(
        self, records: memoryview, fetch: PartitionFetch
    ) -> tuple[list[BatchHeader], int]:
        """The batches before the first cut-short or damaged one, and the position of their end."""
        read = verify if self._options.check_crcs else read_whole_header
        headers: list[BatchHeader] = []
        end = 0
        while not is_cut_short(records, end):
            try:
                header = read(records, end)
            except CorruptData as error:
                if headers and headers[-1].next_offset > fetch.offset:
                    break  # return the sound batches; the next fetch begins with the damaged one
                raise CorruptData(
                    f"{fetch.partition} at offset {fetch.offset}: {error}; seek past it to go on"
                ) from error
            headers.append(header)
            end += header.size
        return headers, end

    def _refuse(
        self,
        fetch: PartitionFetch,
        code: ErrorCode,
        now: float,
        ready: list[Fetched],
        node: int,
    ) -> bool:
        state = self._current(fetch)
        if state is None:
            return False
        self._states.move_to_end(fetch.partition)
        if state.replica == node != NO_BROKER:
            # Only the leader's errors count: a follower may lag or have lost its role (KIP-392).
            state.replica = NO_BROKER
            return code.refreshes_metadata
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._options.reset is not None:
            logger.warning(
                "offset %d of %s is not in the log; reset", fetch.offset, fetch.partition
            )
            self._reset(state, self._options.reset)
            return False
        if code.retriable and code is not ErrorCode.CORRUPT_MESSAGE:
            logger.info("fetch of %s failed: %s; trying again", fetch.partition, code.name)
            self._back_off(state, now)
            return code.refreshes_metadata or code is ErrorCode.UNKNOWN_LEADER_EPOCH
        detail = f"while fetching at offset {fetch.offset}"
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            detail = (
                f"offset {fetch.offset} is not in the log; seek to another"
                " or set auto.offset.reset=earliest or latest"
            )
        ready.append(self._fail(state, BrokerError(code, detail, str(fetch.partition)), now))
        return False

    def _diverge(
        self,
        fetch: PartitionFetch,
        common: EpochEndOffset,
        now: float,
        ready: list[Fetched],
        node: int,
    ) -> bool:
        """The broker's log has no longer the record before the position. Returns whether metadata
        is stale."""
        state = self._current(fetch)
        if state is None:
            return False
        if state.replica == node != NO_BROKER:
            state.replica = NO_BROKER  # as in `_refuse`
            return True
        ready.extend(self._truncate(state, common.epoch, common.end_offset, now))
        return False

    def _truncate(
        self, state: _PartitionState, epoch: int, end_offset: int, now: float
    ) -> list[Fetched]:
        """Go back to where the log differs from what was read, as Kafka's consumer does."""
        partition, position = state.partition, state.offset
        divergence = min(end_offset, position) if epoch >= 0 else NO_OFFSET
        reset = self._options.reset
        if reset is None:
            return [self._fail(state, LogTruncation(str(partition), position, divergence), now)]
        logger.warning(
            "the log of %s has lost records before offset %d that were read: reading goes on %s",
            *(partition, position, f"at {divergence}" if divergence >= 0 else "after a reset"),
        )
        if divergence < 0:
            self._reset(state, reset)
            return []
        state.offset, state.last_epoch = divergence, epoch
        if divergence < state.origin:
            state.origin, state.origin_epoch = divergence, epoch
        state.is_ready, state.unread = True, 0
        epochs = tuple(_start_epochs(divergence, epoch))
        nothing = Batches(partition, divergence, divergence, NO_OFFSET, memoryview(b""), epochs)
        return [Fetched(partition, state.epoch, nothing)]

    def _reset(self, state: _PartitionState, reset: int) -> None:
        state.offset = reset
        state.origin = NO_OFFSET
        state.last_epoch = state.origin_epoch = NO_EPOCH

    def _fail(self, state: _PartitionState, error: KafkaError, now: float) -> Fetched:
        self._back_off(state, now)
        state.is_ready, state.unread = True, 0
        return Fetched(state.partition, state.epoch, error)

    def _back_off(self, state: _PartitionState, now: float) -> None:
        state.not_before = now + self._options.backoff.wait(state.failures, self._random)
        state.failures += 1


def _fetch_of(state: _PartitionState, leader_epoch: int) -> PartitionFetch:
    return PartitionFetch(
        *(state.partition, state.epoch, state.offset, state.last_epoch),
        leader_epoch,
        state.topic_id,
    )


def _start_epochs(offset: int, last_epoch: int) -> list[tuple[int, int]]:
    """The leader epoch of the record before an offset, if there is one and its epoch is known."""
    return [] if last_epoch == NO_EPOCH or offset <= 0 else [(offset - 1, last_epoch)]


def _is_wanted(state: _PartitionState, now: float) -> bool:
    """Whether to fetch the partition, if its last result is read."""
    return not state.is_paused and 0 <= state.offset < state.end and now >= state.not_before


def _is_doubtful(state: _PartitionState, leader_epoch: int) -> bool:
    """Whether the log may have lost the record before the position."""
    return state.last_epoch != NO_EPOCH and leader_epoch > state.valid_in
