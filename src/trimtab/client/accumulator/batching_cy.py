# mypy: allow-untyped-decorators, no-warn-return-any
"""Writes records into the batches of a queue, and counts records, bytes and memory.

The part of the accumulator that is the same however a record's partition was chosen. The
accumulator's lock guards every change, and an interrupted change is repaired here.

Source: `RecordAccumulator.tryAppend`, `RecordAccumulator.appendNewBatch`.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import BuiltinFunctionType
from typing import Any

import cython

from trimtab.client.accumulator.memory_cy import BufferMemory
from trimtab.client.accumulator.outgoing_cy import OutgoingRecord
from trimtab.client.accumulator.queues_cy import (
    Batch,
    BatchChain,
    NodeLoad,
    PartitionQueue,
    TopicQueues,
    copy_of,
)
from trimtab.kafka.wire.batch_cy import BatchBuilder, BufferPool

# Up to a fourth of the buffer memory is pooled for new batches when batches free it.
_POOLED_SHARE = cython.declare(cython.longlong, 4)


@cython.cclass
class Batching:
    """The queues of all topics, and their records. `Accumulator` has the arguments."""

    def __init__(
        self,
        *,
        batch_size: cython.longlong,
        buffer_memory: cython.longlong,
        max_request_size: cython.longlong,
        compression: cython.int,
        compression_level: int | None = None,
        ignores_keys: cython.bint,
        rack: str | None = None,
        shows_keys: cython.bint = False,
        make_partitioner: Callable[[], Any],
        untreated: Iterable[str] = (),
        now: Callable[[], float],
        wall_clock: Callable[[], float],
        lock: Any,
        wake: Callable[[], object],
        on_callback_error: Callable[[BaseException], object],
        wait: Callable[[Future[None], float | None], object] = Future.result,
    ) -> None:
        self.wait = wait
        self.unavailable: Callable[[], frozenset[int]] | None = None
        self.published: frozenset[int] = frozenset()
        self.now = now
        self.memory = BufferMemory(buffer_memory)
        self.pool = BufferPool(max(1, batch_size), buffer_memory // _POOLED_SHARE)
        self._chain = BatchChain()
        self.closed = False
        self.records = 0
        self.load_changes = 0
        self._settled = 0
        self._refusal: Exception | None = None
        self._error_before_change: BaseException | None = None  # it needs no repair
        self.is_abandoned = False
        self._changed_queues: list[PartitionQueue] = []
        self._unseen_bytes = 0
        self._nodes: dict[int, NodeLoad] = {}
        self._topics: dict[str, TopicQueues] = {}
        self._forgotten: dict[str, TopicQueues] = {}
        self._has_observers = False
        self._batch_size = max(1, batch_size)
        self._max_request_size = max_request_size
        self._compression = compression
        self._is_compressed = compression != 0
        self._compression_level = compression_level
        self._ignores_keys = ignores_keys
        self._rack = rack
        self._shows_keys = shows_keys
        self._make_partitioner = make_partitioner
        self._untreated = set(untreated)
        self._wall_clock = wall_clock
        # The built-in `time.time` is called in C, at a third of the cost.
        self._is_machine_clock = isinstance(wall_clock, BuiltinFunctionType) and (
            wall_clock.__module__,
            wall_clock.__name__,
        ) == ("time", "time")
        self._wake = wake
        self._on_callback_error = on_callback_error
        self._acquire = lock.acquire
        self._release = lock.release
        self._is_owned = lock._is_owned

    @property
    def unacknowledged(self) -> int:
        """Records that were appended and are neither acknowledged nor failed; on any thread."""
        settled: cython.longlong = self._settled  # read first, as `records` only grows
        return max(0, self.records - settled)

    @cython.cfunc
    def _check(self) -> Any:
        """In a forked process, raise its error before waiting for a lock."""
        if self.is_abandoned:
            raise copy_of(self._refusal)
        return None

    @cython.cfunc
    def _refuse(self) -> Any:
        """Raise the error that was passed to `refuse`, if any. Under the lock."""
        if self._refusal is not None:
            self._error_before_change = copy_of(self._refusal)
            raise self._error_before_change
        return None

    @cython.cfunc
    def _recover(self, raised: Any) -> Any:
        """Release the lock if this thread holds it, and repair an interrupted change.

        A signal handler (Ctrl-C's, or another that raises) may run before any line. So the
        interrupted method checks whether it holds the lock, and recomputes all counters from the
        batches.
        """
        if self._is_owned():
            expected, self._error_before_change = self._error_before_change, None
            try:
                if raised is not expected:
                    self._repair()
            finally:
                self._release()
        return None

    @cython.cfunc
    @cython.locals(node=NodeLoad, topic_queues=TopicQueues, queue=PartitionQueue, batch=Batch)
    def _repair(self) -> Any:
        """Recompute all counters from the batches."""
        for node in self._nodes.values():
            node.queued_batches = 0
            node.queued_bytes = 0
        batches: list[Any] = []
        self._changed_queues = []
        for topic_queues in [*self._topics.values(), *self._forgotten.values()]:
            batches.extend(topic_queues._repair())
            for queue in topic_queues.queues:
                queue._is_reported = bool(queue.batches)
                if queue._is_reported:
                    self._changed_queues.append(queue)
        self._chain.repair(batches)
        used: cython.longlong = 0
        self._settled = self.records
        for batch in batches:
            used += batch.memory
            self._settled -= batch.count
        self.memory.repair(used)
        self._wake()
        return None

    @cython.cfunc
    @cython.locals(batch=Batch)
    def _put_into(
        self, queue: PartitionQueue, record: OutgoingRecord, in_turn: cython.bint
    ) -> Batch:
        """Append a record to a queue's open batch, or to a new one."""
        batch = queue._open
        if batch is not None:
            if self._put(queue, record, in_turn):
                return batch
            self._complete_open(queue)
        return self._begin_batch(queue, record, in_turn)

    @cython.cfunc
    @cython.locals(batch=Batch, builder=BatchBuilder, before=cython.longlong, grown=cython.longlong)
    def _put(
        self, queue: PartitionQueue, record: OutgoingRecord, in_turn: cython.bint
    ) -> cython.bint:
        """Append a record to a queue's open batch; False if it does not fit."""
        batch = queue._open
        builder = batch.builder
        before = self._estimate(builder)
        grown = record.write(builder)
        if grown == 0:
            return False
        if in_turn:
            queue.topic_queues._turn_bytes += self._estimate(builder) - before
        self._count(batch, 1, grown)
        return True

    @cython.cfunc
    @cython.locals(batch=Batch)
    def _begin_batch(
        self, queue: PartitionQueue, record: OutgoingRecord, in_turn: cython.bint
    ) -> Batch:
        """Begin a queue's next batch with this record."""
        batch = self._new_batch(queue, record)
        if in_turn:
            queue.topic_queues._turn_bytes += self._estimate(batch.builder)
        queue.batches.append(batch)
        queue._open = batch
        queue._count(batch, 1)
        return batch

    @cython.cfunc
    @cython.locals(batch=Batch, builder=BatchBuilder, topic_queues=TopicQueues)
    def _new_batch(self, queue: PartitionQueue, record: OutgoingRecord) -> Batch:
        """A batch with this record, for a queue that it is not in yet."""
        topic_queues = queue.topic_queues
        builder = BatchBuilder(
            self._batch_size,
            self._compression,
            self._compression_level,
            topic_queues.compression_ratio,
            self.pool,
        )
        record.write(builder)
        batch = Batch(queue, builder, self.now(), self.records, 0)
        topic_queues._last_used = batch.created
        topic_queues._unsettled += 1
        batch.count = 1
        self.records += 1
        self._count_memory(batch)
        self._chain.add_batch(batch, self._chain.newest)
        queue.given_bytes += builder.size
        return batch

    @cython.cfunc
    @cython.exceptval(check=False)
    def _estimate(self, builder: BatchBuilder) -> cython.longlong:
        """The expected size of a batch when it is sent, compressed, in bytes."""
        return builder.estimate() if self._is_compressed else builder.size

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.locals(queue=PartitionQueue, node=NodeLoad)
    def _count(self, batch: Batch, records: cython.int, grown: cython.longlong) -> cython.void:
        """Count further records, of `grown` bytes together, in a waiting batch."""
        batch.count += records
        batch.size += grown
        self.records += records
        queue = batch.queue
        queue.queued_bytes += grown
        queue.given_bytes += grown
        node = queue.node
        if node is not None:
            node.queued_bytes += grown
        if batch.memory != batch.builder.capacity:
            self._count_memory(batch)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _count_memory(self, batch: Batch) -> cython.void:
        """Count the memory of a batch's builder as used buffer memory."""
        self.memory.used += batch.builder.capacity - batch.memory
        batch.memory = batch.builder.capacity

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_full(self, builder: BatchBuilder) -> cython.bint:
        # At most as large as a request may be, in case it does not compress at all.
        return self._estimate(builder) >= self._batch_size or builder.size >= self._max_request_size

    @cython.cfunc
    @cython.locals(batch=Batch)
    def _complete_open(self, queue: PartitionQueue) -> Any:
        batch = queue._open
        queue._open = None
        self._unseen_bytes += batch.size
        if len(queue.batches) == 1:
            self._notify_sender(queue)
        return None

    @cython.cfunc
    def _notify_sender(self, queue: PartitionQueue) -> Any:
        """Add a queue to the changed ones, and wake the sender."""
        if not queue._is_reported:
            queue._is_reported = True
            self._changed_queues.append(queue)
            self._wake()
        return None
