"""The groups of one partition of `__consumer_offsets` that this broker leads.

    request ─▶ GroupShard decides ─▶ records appended ─▶ high watermark ─▶ responses

The shard is loaded from the log when this broker begins to lead, and dropped when it ends. A
response is sent once all records that were appended before its decision are committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from trimtab.broker.partition import Partition
from trimtab.broker.refused import Refused
from trimtab.coordinator.effects import BATCH_OVERHEAD, Caller, Effects, Now, Record, RecordTooLarge
from trimtab.coordinator.group_shard import GroupShard
from trimtab.errors import CorruptData, ErrorCode
from trimtab.storage.storage import StorageError
from trimtab.wire.batch_cy import BatchBuilder, read_headers
from trimtab.wire.messages.group_records import decode_record
from trimtab.wire.records_cy import read_records

if TYPE_CHECKING:
    from trimtab.wire.framing import RequestHeader

_LOAD_BYTES = 1024 * 1024
"""Log bytes that are replayed before other requests are served."""
_BATCH_BYTES = 512 * 1024
"""Bytes of a batch with the records of several decisions; those of one may have more."""
_MAX_BATCH = 2**31 - 1
_OVER = object()

_REFUSALS = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}
"""What a client is told when the log refuses records; other codes: UNKNOWN_SERVER_ERROR."""

_log = logging.getLogger(__name__)

Decide = Callable[[GroupShard, Now, Caller], None]
"""Decides about a request, and adds the response to the shard's effects, now or later."""


class _Request:
    """A request that waits for its response."""

    __slots__ = ("answer", "refuse")

    def __init__(self, answer: asyncio.Future[Any], refuse: Callable[[ErrorCode], Any]) -> None:
        self.answer = answer
        self.refuse = refuse


class GroupPartition:
    """The groups of one partition, for as long as this broker leads it without a break.

    Args:
        make_shard: makes an empty shard, to be filled from the log; it is given what says how many
            bytes a batch may have.
        now_ms: wall time.
        disk_failed: told when the log cannot be written or read.
    """

    def __init__(
        self,
        partition: Partition,
        make_shard: Callable[[Callable[[], int]], GroupShard],
        now_ms: Callable[[], int],
        disk_failed: Callable[[StorageError], None],
    ) -> None:
        self._partition = partition
        self._make_shard = make_shard
        self._now_ms = now_ms
        self._disk_failed = disk_failed
        self._loop = asyncio.get_running_loop()
        self._shard: GroupShard | None = None
        self._end = 0
        """The offset after the last record that was appended."""
        self._waiting: dict[_Request, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loading = self._begin_load()

    # Requests

    def ask(
        self, header: RequestHeader, decide: Decide, refuse: Callable[[ErrorCode], Any]
    ) -> asyncio.Future[Any]:
        """Have the shard decide; returns a future of the response.

        Args:
            refuse: makes a response of the error code, for a request that cannot be decided.
        """
        shard = self._shard
        request = _Request(self._loop.create_future(), refuse)
        if shard is None:
            has_failed = self._loading.done()
            request.answer.set_result(
                refuse(
                    ErrorCode.NOT_COORDINATOR
                    if has_failed
                    else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                )
            )
            return request.answer
        self._waiting[request] = None
        caller = Caller(request, header.api_version, header.client_id or "", f"/{header.peer_host}")
        self._decide(shard, lambda: decide(shard, self._now(), caller))
        return request.answer

    async def expire_offsets(self) -> None:
        """Delete offsets whose retention time is over, in turns."""
        shard = self._shard
        if shard is None:
            return
        steps = shard.expire_offsets(self._now)
        is_over = False

        def take_step() -> None:
            nonlocal is_over
            is_over = next(steps, _OVER) is _OVER

        while self._shard is shard and not is_over:
            self._decide(shard, take_step)
            await asyncio.sleep(0)

    def forget_topics(self, topics: Collection[str]) -> None:
        """Delete the offsets of topics that were deleted, as soon as the groups are loaded."""
        shard = self._shard
        if shard is not None:
            self._decide(shard, lambda: shard.forget_topics(topics))
        elif not self._loading.done():
            self._loading.add_done_callback(lambda _: self.forget_topics(topics))

    @property
    def shard(self) -> GroupShard | None:
        """The groups; None until they are loaded."""
        return self._shard

    def _decide(self, shard: GroupShard, decide: Callable[[], None]) -> None:
        try:
            decide()
        except RecordTooLarge as error:  # not by what clients may do: the option is tiny
            _log.warning("a change of a group was refused partition=%s %s", self._partition, error)
            self._start_again(error.code)
            return
        self._carry_out(shard)

    def _carry_out(self, shard: GroupShard) -> None:
        """Append the records of the decisions, and send the responses once they are committed."""
        effects = shard.effects.take()
        for warning in effects.warnings:
            _log.warning("partition=%s %s", self._partition, warning)
        try:
            self._append(effects)
        except Refused as refused:
            _log.warning(
                "records of groups were refused partition=%s error=%s %s",
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
        if effects.responses:
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
        builder, size = BatchBuilder(_MAX_BATCH), BATCH_OVERHEAD
        for records in _group_records(effects, self._partition.rules.max_message_bytes):
            added = sum(each.size for each in records)
            if size > BATCH_OVERHEAD and size + added > most:
                self._append_batch(builder)
                builder, size = BatchBuilder(_MAX_BATCH), BATCH_OVERHEAD
            size += added
            for record in records:
                builder.append(now_ms, record.encoded_key, record.encoded_value, ())
        if size > BATCH_OVERHEAD:
            self._append_batch(builder)

    def _append_batch(self, builder: BatchBuilder) -> None:
        batch = memoryview(builder.build())
        self._end = self._partition.append(batch, allows_zstd=True, acks=-1).next_offset

    def _send(self, effects: Effects) -> None:
        for request, response in effects.responses:
            self._waiting.pop(request, None)
            if not request.answer.done():  # its connection may be lost
                request.answer.set_result(response)

    # Time

    def _now(self) -> Now:
        return Now(self._loop.time(), self._now_ms())

    def _set_timer(self, shard: GroupShard) -> None:
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
        """The log has not what the shard decided: load another one from it."""
        self._drop(code)
        self._loading = self._begin_load()

    def _begin_load(self) -> asyncio.Task[None]:
        loading = self._loop.create_task(self._load())
        loading.add_done_callback(self._tell_failure)
        return loading

    def _tell_failure(self, loading: asyncio.Task[None]) -> None:
        if not loading.cancelled() and (error := loading.exception()) is not None:
            _log.error("groups cannot be loaded partition=%s", self._partition, exc_info=error)

    async def _load(self) -> None:
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
                found = read_records(partition.topic, partition.index, data, offset)
                for record in found:
                    decoded = decode_record(cast(bytes, record.key), record.value)
                    if decoded is not None:
                        shard.replay(*decoded)
                records += len(found)
                offset = headers[-1].next_offset
                await asyncio.sleep(0)
        except (CorruptData, Refused) as error:
            _log.error("groups cannot be loaded partition=%s error=%s", partition, error)
            return
        except StorageError as error:
            _log.error("groups cannot be loaded partition=%s error=%s", partition, error)
            self._disk_failed(error)
            return
        self._end = log.log_end_offset
        self._shard = shard
        shard.resume(self._now())
        self._set_timer(shard)
        _log.info("loaded groups partition=%s records=%d", partition, records)


def _group_records(effects: Effects, most: int) -> Iterator[Sequence[Record]]:
    """The records that belong into one batch each, of up to `most` bytes."""
    for begin, end in pairwise(sorted({0, *effects.cuts, len(effects.records)})):
        records = effects.records[begin:end]
        if BATCH_OVERHEAD + sum(each.size for each in records) <= most:
            yield records
        else:
            yield from ([each] for each in records)
