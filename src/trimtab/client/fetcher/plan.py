"""Decides what to fetch next from which broker, and evaluates the responses. Does no I/O.

The rules (KIP-74 and Kafka's `AbstractFetch`):

- Each broker has at most one fetch in flight, and none while the consumer has not taken the
  batches of its last response: memory holds at most one response per broker.
- A request lists partitions in the order in which they were assigned; a partition whose batches
  were taken moves to the end. So the first partition that got no data leads the next request, and
  none starves when `fetch.max.bytes` is too small for all.
- A partition is fetched again as soon as its batches are taken, so that the next data arrives while
  the consumer works.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from trimtab.client.fetcher.offsets import Isolation
from trimtab.client.network.backoff import Backoff
from trimtab.errors import BrokerError, CorruptData, ErrorCode, KafkaError, error_code
from trimtab.records import NO_OFFSET, TopicPartition
from trimtab.wire.batch_header import BatchHeader, is_cut_short, read_whole_header, verify
from trimtab.wire.fetch_limits import FetchLimits
from trimtab.wire.messages.fetch import AbortedTransaction, FetchResponse, PartitionData
from trimtab.wire.sentinels import NO_BROKER, NO_LEADER

logger = logging.getLogger("trimtab.client")

COMMITTED: Final = -5
"""Begin at the offset that the group has committed. No offset, nor a time of ListOffsets."""
NO_END: Final = 2**63 - 1
"""The `end` of a partition that is read for ever."""


class Batches(NamedTuple):
    """Whole record batches of one partition, checked, in the format of the broker's log.

    Attributes:
        start: the position; earlier records of the first batch are to be skipped.
        next_offset: the position after these batches. It can lie beyond the last record
            (compaction, transaction markers), and `data` can be empty.
        high_watermark: the partition's high watermark in this response.
        data: record batches back to back; stays valid for as long as it is held.
    """

    partition: TopicPartition
    start: int
    next_offset: int
    high_watermark: int
    data: memoryview


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
    """

    epoch: int
    start: int
    is_paused: bool
    end: int = NO_END


class PartitionFetch(NamedTuple):
    """One partition of one fetch request."""

    partition: TopicPartition
    epoch: int
    offset: int


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
    log_end: int = NO_OFFSET
    """The end of what may be read, by the last response."""
    is_ready: bool = False
    is_located: bool = True
    failures: int = 0
    not_before: float = 0.0
    search_after: float = 0.0
    replica: int = NO_BROKER
    replica_until: float = 0.0


class FetchPlan:
    """Decides which partitions to fetch from which broker, and evaluates the responses."""

    def __init__(self, options: FetchOptions, random: Random) -> None:
        self._options = options
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
                )
            else:
                state.is_paused = assignment.is_paused

    def due_fetches(
        self, now: float, leader: Callable[[TopicPartition], int], busy: Container[int]
    ) -> dict[int, list[PartitionFetch]]:
        """The partitions to fetch now, by broker, in the order of the request.

        Args:
            now: the loop's time.
            leader: the node that leads a partition, or -1.
            busy: nodes with a fetch in flight.
        """
        fetches: dict[int, list[PartitionFetch]] = {}
        waiting: set[int] = set()
        for state in self._states.values():
            if state.is_paused:
                continue
            node = state.replica
            if node == NO_BROKER or now >= state.replica_until:
                node = leader(state.partition)
            if state.is_ready:
                waiting.add(node)
            elif (
                0 <= state.offset < state.end
                and now >= state.not_before
                and node != NO_LEADER
                and node not in busy
            ):
                fetches.setdefault(node, []).append(
                    PartitionFetch(state.partition, state.epoch, state.offset)
                )
        for node in waiting:
            fetches.pop(node, None)
        return fetches

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

    def next_retry(self, now: float) -> float | None:
        """Loop time at which the first failed partition is due again; None if none failed."""
        times = (
            time
            for state in self._states.values()
            for time in (state.not_before, state.search_after)
            if time > now
        )
        return min(times, default=None)

    def locate(self, fetch: PartitionFetch, offset: int) -> None:
        """Store a looked-up position, unless the consumer has sought elsewhere since."""
        state = self._current(fetch)
        if state is not None:
            state.offset = state.origin = offset
            state.is_located = True
            state.failures = 0

    def fail(self, partition: TopicPartition, error: KafkaError, now: float) -> list[Fetched]:
        """Queue an error for the consumer; the partition is retried after it was taken."""
        state = self._states.get(partition)
        if state is None or state.is_ready:
            return []
        state.is_located = True
        return [self._fail(state, error, now)]

    def is_open(self, fetch: PartitionFetch) -> bool:
        """Whether the partition still has this epoch and offset, so that an answer counts."""
        return self._current(fetch) is not None

    def origin(self, partition: TopicPartition, epoch: int | None = None) -> int:
        """The first offset of a partition's epoch; -1 until it is looked up."""
        state = self._states.get(partition)
        if state is None or epoch not in (None, state.epoch):
            return NO_OFFSET
        return state.origin

    def log_end(self, partition: TopicPartition, epoch: int) -> int:
        """The end of what may be read of a partition; -1 until a response of this epoch tells."""
        state = self._states.get(partition)
        return NO_OFFSET if state is None or state.epoch != epoch else state.log_end

    def is_current(self, fetched: Fetched) -> bool:
        """Whether the partition is still assigned, under the same epoch."""
        state = self._states.get(fetched.partition)
        return state is not None and state.epoch == fetched.epoch

    def drain(self, fetched: Iterable[Fetched]) -> None:
        """The consumer took these; their partitions move to the end of the next request."""
        for taken in fetched:
            if self.is_current(taken):
                self._states[taken.partition].is_ready = False
                self._states.move_to_end(taken.partition)

    def receive(
        self,
        fetches: Iterable[PartitionFetch],
        response: FetchResponse,
        names: Mapping[bytes, str],
        now: float,
    ) -> tuple[list[Fetched], bool]:
        """The results in a response, in its order, and whether it shows that metadata is stale.

        Args:
            names: topics by id, for responses without names (version 13 and above).
        """
        asked = {fetch.partition: fetch for fetch in fetches}
        ready: list[Fetched] = []
        is_stale = False
        if response.error_code != ErrorCode.NONE:
            for fetch in asked.values():
                is_stale |= self._refuse(fetch, error_code(response.error_code), now, ready)
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
        is_committed = self._options.isolation is Isolation.READ_COMMITTED
        state.log_end = data.last_stable_offset if is_committed else data.high_watermark
        if data.preferred_read_replica >= 0:
            state.replica = data.preferred_read_replica
            state.replica_until = now + self._options.replica_max_age
        if not data.records:
            return
        try:
            batches = self._check(fetch, data, memoryview(data.records))
        except CorruptData as error:
            ready.append(self._fail(state, error, now))
            return
        state.offset = batches.next_offset
        state.is_ready = True
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
        return Batches(
            fetch.partition, fetch.offset, headers[-1].next_offset, data.high_watermark, whole
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
        self, fetch: PartitionFetch, code: ErrorCode, now: float, ready: list[Fetched]
    ) -> bool:
        state = self._current(fetch)
        if state is None:
            return False
        self._states.move_to_end(fetch.partition)
        if state.replica != NO_BROKER:
            # Only the leader's errors count: a follower may lag or have lost its role (KIP-392).
            state.replica = NO_BROKER
            return code.refreshes_metadata
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._options.reset is not None:
            logger.warning(
                "offset %d of %s is not in the log; reset", fetch.offset, fetch.partition
            )
            state.offset = self._options.reset
            state.origin = NO_OFFSET
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

    def _fail(self, state: _PartitionState, error: KafkaError, now: float) -> Fetched:
        self._back_off(state, now)
        state.is_ready = True
        return Fetched(state.partition, state.epoch, error)

    def _back_off(self, state: _PartitionState, now: float) -> None:
        state.not_before = now + self._options.backoff.wait(state.failures, self._random)
        state.failures += 1


def without_aborted(
    records: memoryview, headers: Iterable[BatchHeader], aborted: Iterable[AbortedTransaction]
) -> memoryview:
    """Copies the batches without those of aborted transactions (KIP-98).

    The broker lists aborted transactions only. So all batches of a listed producer are aborted from
    the transaction's first offset to the producer's next marker.
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
