"""What one partition of a coordinator's topic holds, on the broker that leads it: groups, or
transactional ids.

    request ─▶ the shard decides ─▶ records appended ─▶ high watermark ─▶ responses, markers

The shard is loaded from the log when this broker begins to lead, and dropped when it ends. A
response is sent once all records that were appended before its decision are committed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from trimtab.cluster.broker.batch_rules import BatchRules
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.broker.refused import Refused
from trimtab.cluster.broker.verification import Verification
from trimtab.cluster.coordinator.effects import (
    BATCH_OVERHEAD,
    Caller,
    CoordinatorRecord,
    Effects,
    Ending,
    Now,
    RecordTooLarge,
)
from trimtab.cluster.coordinator.group_shard import GroupShard
from trimtab.cluster.coordinator.transaction import NOBODY
from trimtab.cluster.coordinator.transaction_shard import TransactionShard
from trimtab.cluster.storage.producer_state import ACCEPTED
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.batch_cy import BatchBuilder, BatchHeader
from trimtab.kafka.wire.end_markers import EndMarker, read_marker
from trimtab.kafka.wire.records_cy import read_records
from trimtab.kafka.wire.sentinels import NO_PRODUCER_ID

if TYPE_CHECKING:
    from trimtab.kafka.wire.framing import RequestHeader

_LOAD_BYTES = 1024 * 1024
"""Log bytes that are replayed before other requests are served."""
_BATCH_BYTES = 512 * 1024
"""Bytes of a batch with the records of several decisions; those of one may have more."""
_MAX_BATCH = 2**31 - 1
_RELOAD_S = 10.0
"""After a load that failed because the log is damaged."""
_AGAIN_S = 0.1
_OVER = object()

_REFUSALS = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}
"""What a client is told when the log refuses records; other codes: UNKNOWN_SERVER_ERROR."""

_log = logging.getLogger(__name__)


S = TypeVar("S", bound=GroupShard | TransactionShard)
"""Decides about the requests for what one partition holds."""
Decide: TypeAlias = Callable[[S, Now, Caller], None]
"""Decides about a request, and adds the response to the shard's effects, now or later."""


class _Request(NamedTuple):
    """A request that waits for its response."""

    answer: asyncio.Future[Any]
    refuse: Callable[[ErrorCode], Any]


class CoordinatorPartition(Generic[S]):
    """One partition, for as long as this broker leads it without a break.

    Args:
        make_shard: makes an empty shard, to be filled from the log; it is given what says how many
            bytes a batch may have.
        now_ms: wall time.
        disk_failed: told when the log cannot be written or read.
        end: called with each transaction whose outcome is certain.

    Attributes:
        partition: its replica here.
        shard: what the partition holds; None until it is loaded.
    """

    def __init__(
        self,
        partition: Partition,
        make_shard: Callable[[Callable[[], int]], S],
        now_ms: Callable[[], int],
        disk_failed: Callable[[StorageError], None],
        end: Callable[[CoordinatorPartition[S], Ending], None],
    ) -> None:
        self.partition = partition
        self._make_shard = make_shard
        self._now_ms = now_ms
        self._disk_failed = disk_failed
        self._end = end
        self._loop = asyncio.get_running_loop()
        self.shard: S | None = None
        self._end_offset = 0
        """The offset after the last record that was appended."""
        self._waiting: dict[_Request, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._loading = self._begin_load()

    # Requests

    def ask_shard(
        self, header: RequestHeader, decide: Decide[S], refuse: Callable[[ErrorCode], Any]
    ) -> asyncio.Future[Any]:
        """Have the shard decide; returns a future of the response.

        Args:
            refuse: makes a response of the error code, for a request that cannot be decided.
        """
        shard = self.shard
        request = _Request(self._loop.create_future(), refuse)
        if shard is None:
            request.answer.set_result(
                refuse(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                    if self.is_loading
                    else ErrorCode.NOT_COORDINATOR
                )
            )
            return request.answer
        self._waiting[request] = None
        caller = Caller(request, header.api_version, header.client_id or "", f"/{header.peer_host}")
        self._decide(shard, lambda: decide(shard, self._now(), caller))
        return request.answer

    def act(self, decide: Callable[[S, Now], None]) -> None:
        """Have the shard decide something that is no request, as soon as it is loaded."""
        shard = self.shard
        if shard is not None:
            self._decide(shard, lambda: decide(shard, self._now()))
        elif not self._loading.done():
            self._loading.add_done_callback(lambda _: self.act(decide))

    async def work(self, begin: Callable[[S, Callable[[], Now]], Iterator[None]]) -> None:
        """Have the shard do long work in turns."""
        shard = self.shard
        if shard is None:
            return
        steps = begin(shard, self._now)
        is_over = False

        def take_step() -> None:
            nonlocal is_over
            is_over = next(steps, _OVER) is _OVER

        while self.shard is shard and not is_over:
            self._decide(shard, take_step)
            await asyncio.sleep(0)

    @property
    def is_loading(self) -> bool:
        """Whether it will be loaded soon; a log that is damaged never is."""
        return self.shard is None and not self._loading.done()

    @property
    def leader_epoch(self) -> int:
        """That of the partition: the coordinator's epoch."""
        return self.partition.leader_epoch

    # Transactions that have records in this log

    @property
    def partition_key(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self.partition.topic, self.partition.index)

    def check_producer(
        self, producer_id: int, epoch: int, verification: Verification | None
    ) -> ErrorCode:
        """Whether records of the producer's transaction may be written now.

        Args:
            verification: from `Partition.begin_verification`.
        """
        partition = self.partition
        verdict = partition.log.producers.check_epoch(producer_id, epoch)
        if verdict is not ACCEPTED:
            return verdict.error
        if not partition.log.producers.has_begun(
            producer_id, epoch
        ) and not partition.verifications.holds(producer_id, verification):
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def append_marker(self, producer_id: int, epoch: int, marker: EndMarker, version: int) -> int:
        """End a transaction in this log; returns the offset after the marker.

        Raises:
            Refused: as `Partition.append_marker`, or the log is not loaded.
            StorageError: the disk failed.
        """
        shard = self.shard
        if shard is None:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        appended = self.partition.append_marker(producer_id, epoch, marker, version)
        self._end_offset = appended.next_offset
        shard.end_transaction(producer_id, marker.is_commit)
        return self._end_offset

    # Decisions

    def _decide(self, shard: S, decide: Callable[[], None]) -> None:
        try:
            decide()
        except RecordTooLarge as error:  # not by what clients may do: the option is tiny
            _log.warning("a change was refused partition=%s %s", self.partition, error)
            self._start_again(error.code)
            return
        self._carry_out(shard)

    def _carry_out(self, shard: S) -> None:
        """Append the records of the decisions, and send the responses once they are committed."""
        effects = shard.effects.take()
        for warning in effects.warnings:
            _log.warning("partition=%s %s", self.partition, warning)
        try:
            for batch in _build_batches(effects, self.partition.rules, self._now_ms()):
                self._end_offset = self.partition.append_own(memoryview(batch)).next_offset
        except Refused as refused:
            _log.warning(
                "records were refused partition=%s error=%s %s",
                self.partition,
                refused.code.name,
                refused.message,
            )
            self._start_again(_REFUSALS.get(refused.code, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        except StorageError as error:
            _log.error("cannot append partition=%s error=%s", self.partition, error)
            self.resign(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._disk_failed(error)
            return
        if effects.responses or effects.endings:
            if self.partition.high_watermark >= self._end_offset:
                self._send(effects)
            else:
                leadership = self.partition.leadership
                assert leadership is not None
                leadership.wait(
                    self._end_offset,
                    lambda is_committed: self._send(effects) if is_committed else None,
                )
        self._set_timer(shard)

    def _send(self, effects: Effects) -> None:
        for request, response in effects.responses:
            self._waiting.pop(request, None)
            if not request.answer.done():  # its connection may be lost
                request.answer.set_result(response)
        for ending in effects.endings:
            if self.shard is not None:
                self._end(self, ending)

    # Time

    def _now(self) -> Now:
        return Now(self._loop.time(), self._now_ms())

    def _set_timer(self, shard: S) -> None:
        due = shard.next_due
        if self._timer is not None:
            if due is not None and self._timer_due <= due:
                return  # the look sets the next
            self._timer.cancel()
        self._timer = None
        if due is not None:
            self._timer_due = due
            self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        shard = self.shard
        if shard is not None:
            self._decide(shard, lambda: shard.look(self._now()))

    # Life

    def resign(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """This broker does not lead any more, or cannot go on: refuse what waits."""
        self._loading.cancel()
        self._drop(code)

    def _drop(self, code: ErrorCode) -> None:
        self.shard = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for request in waiting:
            if not request.answer.done():
                request.answer.set_result(request.refuse(code))

    def _start_again(self, code: ErrorCode) -> None:
        """The log has not what the shard decided: load another one from it, after a while, as the
        log may refuse what follows from loading, too."""
        self._drop(code)
        self._loading = self._begin_load(_AGAIN_S)

    def _reload(self) -> None:
        """The log could not be loaded; it may have been repaired since."""
        self._timer = None
        self._loading = self._begin_load()

    def _begin_load(self, after_s: float = 0) -> asyncio.Task[None]:
        loading = self._loop.create_task(self._load(after_s))
        loading.add_done_callback(self._tell_failure)
        return loading

    def _tell_failure(self, loading: asyncio.Task[None]) -> None:
        if not loading.cancelled() and (error := loading.exception()) is not None:
            _log.error("the log cannot be loaded partition=%s", self.partition, exc_info=error)

    async def _load(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        partition = self.partition
        shard = self._make_shard(lambda: partition.rules.max_message_bytes)
        log = partition.log
        records = left = 0
        try:
            for header, batch in log.batches(_LOAD_BYTES):
                records += self._load_batch(shard, header, batch)
                left += header.size
                if left >= _LOAD_BYTES:
                    left = 0
                    await asyncio.sleep(0)
        except CorruptData as error:
            _log.error(
                "its log is damaged, and clients are told NOT_COORDINATOR until it is repaired: "
                "see docs/recovery.md partition=%s error=%s",
                partition,
                error,
            )
            self._timer = self._loop.call_later(_RELOAD_S, self._reload)
            return
        except StorageError as error:
            _log.error("the log cannot be loaded partition=%s error=%s", partition, error)
            self._disk_failed(error)
            return
        self._end_offset = log.log_end_offset
        self.shard = shard
        self._decide(shard, lambda: shard.resume(self._now()))
        _log.info("loaded partition=%s records=%d", partition, records)

    def _load_batch(self, shard: S, header: BatchHeader, batch: bytes) -> int:
        """Load one batch; returns the number of its records."""
        if header.is_control:
            marker = read_marker(batch, 0, header)
            if marker is not None:
                shard.end_transaction(header.producer_id, marker.is_commit)
            return 0
        partition = self.partition
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        found = read_records(partition.topic, partition.index, batch, check_crcs=False)
        for record in found:
            shard.load(cast(bytes, record.key), record.value, producer_id)
        return len(found)


def _build_batches(effects: Effects, rules: BatchRules, now_ms: int) -> Iterator[bytearray]:
    """The records of the decisions, as batches for the log."""
    is_transactional = effects.producer is not None
    producer = effects.producer or NOBODY
    builder, size = BatchBuilder(_MAX_BATCH), BATCH_OVERHEAD
    for records in _group_records(effects, rules.max_message_bytes):
        added = sum(each.size for each in records)
        if size > BATCH_OVERHEAD and size + added > min(_BATCH_BYTES, rules.max_message_bytes):
            yield builder.build(*producer, is_transactional=is_transactional)
            builder, size = BatchBuilder(_MAX_BATCH), BATCH_OVERHEAD
        size += added
        for record in records:
            builder.append(now_ms, record.encoded_key, record.encoded_value, ())
    if size > BATCH_OVERHEAD:
        yield builder.build(*producer, is_transactional=is_transactional)


def _group_records(effects: Effects, most: int) -> Iterator[Sequence[CoordinatorRecord]]:
    """The records that belong into one batch each, of up to `most` bytes."""
    for begin, end in pairwise(sorted({0, *effects.cuts, len(effects.records)})):
        records = effects.records[begin:end]
        if BATCH_OVERHEAD + sum(each.size for each in records) <= most:
            yield records
        else:
            yield from ([each] for each in records)
