"""What one partition of a coordinator's topic holds, on the broker that leads it: groups, or
transactional ids.

    request ─▶ the shard decides ─▶ records appended ─▶ high watermark ─▶ responses, markers

The shard is loaded from the log when this broker begins to lead, and dropped when it ends. A
response is sent once all records that were appended before its decision are committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from trimtab.broker.partition import Partition
from trimtab.broker.refused import Refused
from trimtab.broker.verification import Verification
from trimtab.coordinator.effects import (
    BATCH_OVERHEAD,
    Caller,
    Effects,
    Ending,
    Now,
    Record,
    RecordTooLarge,
)
from trimtab.coordinator.transaction import Identity
from trimtab.errors import CorruptData, ErrorCode
from trimtab.records import TopicPartition
from trimtab.storage.producer_state import ACCEPTED
from trimtab.storage.storage import StorageError
from trimtab.wire.batch_cy import BatchBuilder, BatchHeader, read_headers
from trimtab.wire.end_markers import EndMarker, read_marker
from trimtab.wire.records_cy import read_records
from trimtab.wire.sentinels import NO_PRODUCER_ID

if TYPE_CHECKING:
    from trimtab.wire.framing import RequestHeader

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


class Shard(Protocol):
    """Decides about the requests for what one partition holds."""

    @property
    def effects(self) -> Effects: ...

    @property
    def next_due(self) -> float | None:
        """When `look` is to be called next, monotonic; None: never."""

    def look(self, now: Now) -> None:
        """A time is over."""

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Take over a record of the log; with a producer id, one of a transaction."""

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """A producer's transaction has ended in this log."""

    def resume(self, now: Now) -> None:
        """The log is loaded: go on from there."""


S = TypeVar("S", bound=Shard)
Decide: TypeAlias = Callable[[S, Now, Caller], None]
"""Decides about a request, and adds the response to the shard's effects, now or later."""


class _Request:
    """A request that waits for its response."""

    __slots__ = ("answer", "refuse")

    def __init__(self, answer: asyncio.Future[Any], refuse: Callable[[ErrorCode], Any]) -> None:
        self.answer = answer
        self.refuse = refuse


class CoordinatorPartition(Generic[S]):
    """One partition, for as long as this broker leads it without a break.

    Args:
        make_shard: makes an empty shard, to be filled from the log; it is given what says how many
            bytes a batch may have.
        now_ms: wall time.
        disk_failed: told when the log cannot be written or read.
        end_transactions: called with transactions whose outcome is certain.
    """

    def __init__(
        self,
        partition: Partition,
        make_shard: Callable[[Callable[[], int]], S],
        now_ms: Callable[[], int],
        disk_failed: Callable[[StorageError], None],
        end_transactions: Callable[[CoordinatorPartition[S], Sequence[Ending]], None],
    ) -> None:
        self._partition = partition
        self._make_shard = make_shard
        self._now_ms = now_ms
        self._disk_failed = disk_failed
        self._end_transactions = end_transactions
        self._loop = asyncio.get_running_loop()
        self._shard: S | None = None
        self._end = 0
        """The offset after the last record that was appended."""
        self._waiting: dict[_Request, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loading = self._begin_load()

    # Requests

    def ask(
        self, header: RequestHeader, decide: Decide[S], refuse: Callable[[ErrorCode], Any]
    ) -> asyncio.Future[Any]:
        """Have the shard decide; returns a future of the response.

        Args:
            refuse: makes a response of the error code, for a request that cannot be decided.
        """
        shard = self._shard
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
        shard = self._shard
        if shard is not None:
            self._decide(shard, lambda: decide(shard, self._now()))
        elif not self._loading.done():
            self._loading.add_done_callback(lambda _: self.act(decide))

    async def work(self, begin: Callable[[S, Callable[[], Now]], Iterator[None]]) -> None:
        """Have the shard do long work in turns."""
        shard = self._shard
        if shard is None:
            return
        steps = begin(shard, self._now)
        is_over = False

        def take_step() -> None:
            nonlocal is_over
            is_over = next(steps, _OVER) is _OVER

        while self._shard is shard and not is_over:
            self._decide(shard, take_step)
            await asyncio.sleep(0)

    @property
    def shard(self) -> S | None:
        """What the partition holds; None until it is loaded."""
        return self._shard

    @property
    def is_loading(self) -> bool:
        """Whether it will be loaded soon; a log that is damaged never is."""
        return self._shard is None and not self._loading.done()

    @property
    def leader_epoch(self) -> int:
        """That of the partition: the coordinator's epoch."""
        return self._partition.leader_epoch

    # Transactions that have records in this log

    @property
    def partition_key(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self._partition.topic, self._partition.index)

    def begin_verification(
        self, producer_id: int, epoch: int, bumps_epochs: bool
    ) -> Verification | None:
        """What `check_producer` needs, if the transaction's coordinator accepts this partition;
        None if the transaction is open here."""
        if self._partition.log.producers.has_begun(producer_id, epoch):
            return None
        return self._partition.verifications.begin(producer_id, epoch, 0, bumps_epochs)

    def refuse_verification(self, producer_id: int, verification: Verification) -> None:
        """The coordinator does not know the transaction."""
        self._partition.verifications.refuse(producer_id, verification)

    def check_producer(
        self, producer_id: int, epoch: int, verification: Verification | None
    ) -> ErrorCode:
        """Whether records of the producer's transaction may be written now."""
        partition = self._partition
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
        shard = self._shard
        if shard is None:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self._end = self._partition.append_marker(producer_id, epoch, marker, version).next_offset
        shard.end_transaction(producer_id, marker.is_commit)
        return self._end

    # Decisions

    def _decide(self, shard: S, decide: Callable[[], None]) -> None:
        try:
            decide()
        except RecordTooLarge as error:  # not by what clients may do: the option is tiny
            _log.warning("a change was refused partition=%s %s", self._partition, error)
            self._start_again(error.code)
            return
        self._carry_out(shard)

    def _carry_out(self, shard: S) -> None:
        """Append the records of the decisions, and send the responses once they are committed."""
        effects = shard.effects.take()
        for warning in effects.warnings:
            _log.warning("partition=%s %s", self._partition, warning)
        try:
            self._append(effects)
        except Refused as refused:
            _log.warning(
                "records were refused partition=%s error=%s %s",
                self._partition,
                refused.code.name,
                refused.message,
            )
            self._start_again(_REFUSALS.get(refused.code, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        except StorageError as error:
            _log.error("cannot append partition=%s error=%s", self._partition, error)
            self.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._disk_failed(error)
            return
        if effects.responses or effects.endings:
            if self._partition.high_watermark >= self._end:
                self._send(effects)
            else:
                leadership = self._partition.leadership
                assert leadership is not None
                leadership.wait(
                    self._end, lambda is_committed: self._send(effects) if is_committed else None
                )
        self._set_timer(shard)

    def _append(self, effects: Effects) -> None:
        now_ms = self._now_ms()
        most = min(_BATCH_BYTES, self._partition.rules.max_message_bytes)
        producer = effects.producer
        builder, size = BatchBuilder(_MAX_BATCH), BATCH_OVERHEAD
        for records in _group_records(effects, self._partition.rules.max_message_bytes):
            added = sum(each.size for each in records)
            if size > BATCH_OVERHEAD and size + added > most:
                self._append_batch(builder, producer)
                builder, size = BatchBuilder(_MAX_BATCH), BATCH_OVERHEAD
            size += added
            for record in records:
                builder.append(now_ms, record.encoded_key, record.encoded_value, ())
        if size > BATCH_OVERHEAD:
            self._append_batch(builder, producer)

    def _append_batch(self, builder: BatchBuilder, producer: Identity | None) -> None:
        batch = (
            builder.build()
            if producer is None
            else builder.build(producer.producer_id, producer.epoch, is_transactional=True)
        )
        self._end = self._partition.append_own(memoryview(batch)).next_offset

    def _send(self, effects: Effects) -> None:
        for request, response in effects.responses:
            self._waiting.pop(request, None)
            if not request.answer.done():  # its connection may be lost
                request.answer.set_result(response)
        if effects.endings and self._shard is not None:
            self._end_transactions(self, effects.endings)

    # Time

    def _now(self) -> Now:
        return Now(self._loop.time(), self._now_ms())

    def _set_timer(self, shard: S) -> None:
        due = shard.next_due
        if self._timer is not None:
            if due is not None and self._timer.when() <= due and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        shard = self._shard
        if shard is not None:
            self._decide(shard, lambda: shard.look(self._now()))

    # Life

    def end(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """This broker does not lead any more, or cannot go on: refuse what waits."""
        self._loading.cancel()
        self._drop(code)

    def _drop(self, code: ErrorCode) -> None:
        self._shard = None
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
            _log.error("the log cannot be loaded partition=%s", self._partition, exc_info=error)

    async def _load(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        partition = self._partition
        shard = self._make_shard(lambda: partition.rules.max_message_bytes)
        log = partition.log
        offset = log.log_start_offset
        records = 0
        try:
            while offset < (end := log.log_end_offset):
                stored = partition.read(offset, _LOAD_BYTES, min_one=True, end_offset=end)
                if isinstance(stored, (bytes, bytearray, memoryview)):
                    data = bytes(stored)
                else:  # a large read stays on disk
                    data = stored.read(0, len(stored))
                headers = read_headers(data)
                if not headers:
                    break
                position = 0
                for header in headers:
                    records += self._load_batch(shard, data, position, header)
                    position += header.size
                offset = headers[-1].next_offset
                await asyncio.sleep(0)
        except (CorruptData, Refused) as error:
            _log.error("the log cannot be loaded partition=%s error=%s", partition, error)
            self._timer = self._loop.call_later(_RELOAD_S, self._reload)
            return
        except StorageError as error:
            _log.error("the log cannot be loaded partition=%s error=%s", partition, error)
            self._disk_failed(error)
            return
        self._end = log.log_end_offset
        self._shard = shard
        self._decide(shard, lambda: shard.resume(self._now()))
        _log.info("loaded partition=%s records=%d", partition, records)

    def _load_batch(self, shard: S, data: bytes, position: int, header: BatchHeader) -> int:
        """Load one batch; returns the number of its records."""
        if header.is_control:
            marker = read_marker(data, position, header)
            if marker is not None:
                shard.end_transaction(header.producer_id, marker.is_commit)
            return 0
        partition = self._partition
        batch = data[position : position + header.size]
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        found = read_records(partition.topic, partition.index, batch, header.base_offset)
        for record in found:
            shard.load(cast(bytes, record.key), record.value, producer_id)
        return len(found)


def _group_records(effects: Effects, most: int) -> Iterator[Sequence[Record]]:
    """The records that belong into one batch each, of up to `most` bytes."""
    for begin, end in pairwise(sorted({0, *effects.cuts, len(effects.records)})):
        records = effects.records[begin:end]
        if BATCH_OVERHEAD + sum(each.size for each in records) <= most:
            yield records
        else:
            yield from ([each] for each in records)
