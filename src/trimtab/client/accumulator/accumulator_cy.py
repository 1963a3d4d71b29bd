# mypy: allow-untyped-decorators, no-warn-return-any
"""The accumulator: `send` appends records to batches here, and the sender takes the batches.

    send ─▶ Placement.append ─▶ partition ─▶ its queue's open batch  (caller's thread)
    sender ◀─ take_changed, take ◀──────────────── oldest batch      (loop thread)

Source: `org.apache.kafka.clients.producer.internals.RecordAccumulator`.
"""

from math import inf
from typing import Any

import cython

from trimtab.client.accumulator.hot_keys_cy import HotKeys
from trimtab.client.accumulator.memory_cy import MemoryRequest
from trimtab.client.accumulator.placement_cy import Placement
from trimtab.client.accumulator.queues_cy import (
    Batch,
    Delivery,
    DeliveryRun,
    NodeLoad,
    PartitionQueue,
    RowRun,
    TopicQueues,
    copy_of,
)
from trimtab.client.partitioner.partitioning import Partitioning, describe
from trimtab.kafka.records import NO_OFFSET, NO_TIMESTAMP
from trimtab.kafka.wire.batch_cy import BatchBuilder


@cython.cclass
class Accumulator(Placement):
    """All batches of a producer that are neither acknowledged nor failed.

    Args:
        batch_size: bytes at which a batch is complete (`batch.size`).
        buffer_memory: bytes that batches may hold; beyond them `append` accepts no records.
        max_request_size: bytes of the largest record and the largest uncompressed batch.
        compression: `wire.compression.Compression`.
        compression_level: the codec's level; None for its default (KIP-390).
        ignores_keys: whether records with keys are spread like those without.
        rack: the client's rack; None if rack awareness is off.
        make_partitioner: makes one topic's partitioner (`client.partitioner`).
        untreated: topics that accept no records until `treat_keys`.
        now: loop time in seconds, correct on every thread.
        wall_clock: seconds since the Unix epoch.
        lock: guards all state, held for microseconds.
        wake: called, from any thread, when the sender has something new to do.
        on_callback_error: called with an error that a delivery callback raised.
        wait: `wait(future, timeout)` waits on a thread for the future of a batch; raises UsageError
            where that would never end.

    Attributes:
        unavailable: a function, set by the sender, that returns the node ids of leaders that accept
            no batches now; callable on any thread. If it is None, `published` is used.
        published: the node ids that `publish_load` was last called with.
        memory: the used buffer memory, and the senders waiting for some.
        closed: whether it accepts no more records.
        is_abandoned: whether this is a process forked from the producer's.
        records: records appended so far.
        load_changes: how often `load_changed` was called.
    """

    # the caller's side, besides `append`

    @cython.locals(topic_queues=TopicQueues)
    def knows(self, topic: str, partition: int | None = None) -> bool:
        """Whether `append` can place records of this topic, and in this partition."""
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            return False
        return partition is None or partition < topic_queues._partition_count

    @cython.locals(delivery=Delivery, batch=Batch)
    def call_back(self, delivery: Delivery, function: Any) -> None:
        """Call `function(delivery)` when the outcome is known; at once if it is known already."""
        self._check()
        try:
            self._acquire()
            batch = delivery._current_batch()
            is_known = batch.is_done
            if not is_known:
                batch._call_back(function, delivery)
            self._release()
        except BaseException as raised:
            self._recover(raised)
            raise
        if is_known:
            try:
                function(delivery)
            except Exception as raised:
                self._on_callback_error(raised)

    def future_of(self, batch: Batch) -> Any:
        """A future that ends when a batch is acknowledged, failed or split.

        Raises UsageError in a process forked from the producer's, where that never happens.
        """
        self._check()
        try:
            self._acquire()
            future = batch.future()
            self._release()
        except BaseException as raised:
            self._recover(raised)
            raise
        return future

    # memory: first in, first out

    @property
    def used(self) -> int:
        """Bytes of memory that batches hold."""
        return self.memory.used

    @property
    def is_waited_for(self) -> bool:
        """Whether a sender waits for memory; then no batch lingers."""
        return self.memory.waiting > 0

    def queue_for_memory(self, request: MemoryRequest) -> None:
        """Queue a request for memory. The caller must call `cancel_memory_request` in every case.

        Raises UsageError if the producer is closed.
        """
        self._check()
        try:
            self._acquire()
            self._refuse()
            self.memory.enqueue(request)
            self._release()
        except BaseException as raised:
            self._recover(raised)
            raise
        self._wake()

    def cancel_memory_request(self, request: MemoryRequest) -> None:
        """Withdraw a request, granted or not; does nothing if it was withdrawn before."""
        if self.is_abandoned:
            return
        try:
            self._acquire()
            self.memory.remove(request)
            self._release()
        except BaseException as raised:
            self._recover(raised)
            raise

    # the end

    def refuse(self, error: Exception | None) -> None:
        """Have `send` raise this error from now on; None lets it accept records again.

        After an error was set and this has returned, no further record is appended.
        """
        self._acquire()
        try:
            if not self.closed:
                self._refusal = error
                self.memory.shut(error is not None)
        finally:
            self._release()

    def close(self, error: Exception) -> None:
        """Accept no more records: `send` raises this error, also if it is waiting."""
        self.refuse(error)
        self._acquire()
        try:
            self.closed = True
            self.memory.fail_waiting(copy_of(error))
        finally:
            self._release()

    def abandon(self, error: Exception) -> None:
        """Make every call fail, in a forked process: no sender runs here, and the lock may be held
        for ever."""
        self.is_abandoned = True
        self._refusal = error
        self.closed = True
        self.memory.shut(True)

    # the sender's side

    def node(self, node_id: int) -> NodeLoad:
        """One broker's load."""
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = NodeLoad(node_id)
        return node

    @cython.locals(topic_queues=TopicQueues, queue=PartitionQueue, partition=cython.Py_ssize_t)
    def update_topic(self, view: Any) -> None:
        """Apply a topic's newest view: a new topic, more partitions, or other leaders."""
        self._acquire()
        try:
            topic_queues = self._topics.get(view.name)
            if topic_queues is None:
                topic_queues = self._forgotten.pop(view.name, None)
                if topic_queues is not None:
                    topic_queues._last_used = self.now()
            if topic_queues is None:
                topic_queues = TopicQueues(
                    self,
                    None,
                    self._make_partitioner(),
                    self._batch_size,
                    self._ignores_keys,
                    self._rack,
                    self._shows_keys,
                )
                self._has_observers |= topic_queues._observes
            topic_queues._unquestioned = None
            is_other = topic_queues.view is not None and topic_queues.view.topic_id != view.topic_id
            if is_other and topic_queues.hot is not None:
                self._topics.pop(view.name, None)
                self._untreated.add(view.name)  # the new topic may be compacted
            is_resized = topic_queues._partition_count != view.partition_count
            topic_queues.view = view
            topic_queues._partition_count = view.partition_count
            for partition in range(len(topic_queues.queues), view.partition_count):
                queue = PartitionQueue(self, topic_queues, view.name, partition)
                topic_queues.queues.append(queue)
            for queue, leader in zip(topic_queues.queues, view.leaders, strict=False):
                node = self.node(leader) if leader >= 0 else None
                if queue.node is not node:
                    queue._set_leader(node)
            if (is_resized or is_other) and topic_queues.hot is not None:
                topic_queues.hot.reset()
            for queue in topic_queues.queues[view.partition_count :]:
                if queue.node is not None:
                    queue._set_leader(None)
            if topic_queues.current >= view.partition_count:
                topic_queues._end_turn()
                topic_queues.current = -1
            if view.name in self._untreated:
                self._forgotten[view.name] = topic_queues
            else:
                self._topics[view.name] = topic_queues
        finally:
            self._release()

    @cython.locals(topic_queues=TopicQueues)
    def treat_keys(
        self, topic: str, mode: str, shards: int, random: Any, in_transactions: bool = False
    ) -> None:
        """Treat a topic's hot keys (`HotKeys`), and accept its records from now on. Does nothing
        the second time, unless the topic was created again."""
        self._acquire()
        try:
            topic_queues = self._forgotten.get(topic)
            if topic_queues is not None and topic in self._untreated:
                if topic_queues.hot is None:
                    topic_queues.hot = HotKeys(
                        topic_queues, mode, shards, random, in_transactions, self.release_held
                    )
                self._untreated.discard(topic)
                self._topics[topic] = self._forgotten.pop(topic)
        finally:
            self._release()

    @cython.locals(topic_queues=TopicQueues)
    def end_transaction(self, is_committed: bool) -> None:
        """A transaction has ended: its records are visible now, or never will be."""
        self._acquire()
        try:
            for topic_queues in [*self._topics.values(), *self._forgotten.values()]:
                if topic_queues.hot is not None:
                    topic_queues.hot.end_transaction(is_committed)
        finally:
            self._release()

    @cython.locals(topic_queues=TopicQueues)
    def last_used(self, topic: str) -> float:
        """Loop time at which a topic's last batch began.

        Infinite while one of its batches is neither acknowledged nor failed, and while the topic is
        not known, as a `send` then waits for it.
        """
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            return inf
        return inf if topic_queues._unsettled else topic_queues._last_used

    @cython.locals(topic_queues=TopicQueues)
    def forget(self, topic: str) -> None:
        """Accept no records of a topic until `update_topic`, unless it has batches (KIP-526).

        Its queues are kept, because the brokers also keep the producer's sequences.
        """
        self._acquire()
        try:
            topic_queues = self._topics.get(topic)
            if topic_queues is not None and not topic_queues._unsettled:
                self._forgotten[topic] = self._topics.pop(topic)
        finally:
            self._release()

    @cython.locals(topic_queues=TopicQueues)
    def publish_load(self, unavailable: frozenset[int]) -> None:
        """Set the node ids of leaders that accept no batches now, for the partitioners.

        Also calls `observe` of partitioners that have it. Without such partitioners it costs
        nothing, unless the node ids changed.
        """
        if unavailable == self.published and not self._has_observers:
            return
        self._acquire()
        try:
            is_news = unavailable != self.published
            self.published = unavailable
            for topic_queues in self._topics.values():
                if is_news:
                    topic_queues._unquestioned = None
                if topic_queues._observes:
                    topic_queues.partitioner.observe(topic_queues.view, topic_queues)
        finally:
            self._release()

    def load_changed(self) -> None:
        """A request was sent or answered: partitioners that follow the load are asked again."""
        self.load_changes += 1

    def partitioning(self, topic: str) -> Partitioning:
        """How a topic's records are spread now. Raises KeyError if the topic is not known."""
        self._check()
        try:
            self._acquire()
            described = describe(self._topics[topic], self._rack)
            self._release()
        except BaseException as raised:
            self._recover(raised)
            raise
        return described

    def topic(self, name: str) -> Any:
        """One topic's queues; None if it is not known."""
        return self._topics.get(name) or self._forgotten.get(name)

    def topics(self) -> list[str]:
        """The topics that are known."""
        return list(self._topics)

    @cython.locals(queue=PartitionQueue)
    def take_changed(self) -> list[Any]:
        """The queues that got a first batch, or whose oldest became complete, since the last call.

        A queue may be empty again by now.
        """
        self._acquire()
        try:
            changed = self._changed_queues
            self._changed_queues = []
            self._unseen_bytes = 0
            for queue in changed:
                queue._is_reported = False
            return changed
        finally:
            self._release()

    def oldest(self) -> Batch | None:
        """The oldest batch that is neither acknowledged nor failed."""
        return self._chain.oldest

    @cython.locals(batch=Batch)
    def incomplete_batches(self) -> list[Any]:
        """Every batch that is neither acknowledged nor failed, oldest first."""
        self._acquire()
        try:
            return self._chain.all()
        finally:
            self._release()

    @cython.locals(batch=Batch)
    def take_batch(self, queue: PartitionQueue) -> Batch:
        """Remove a queue's oldest batch and return it: it is closed, and in flight from now on."""
        self._acquire()
        try:
            batch = queue.batches.popleft()
            if queue._open is batch:
                queue._open = None
            queue._count(batch, -1)
            queue.in_flight.append(batch)
            return batch
        finally:
            self._release()

    def put_back(self, batch: Batch) -> None:
        """Return a batch in flight to its queue, before all batches that were sent after it."""
        self._acquire()
        try:
            batch.queue.in_flight.remove(batch)
            self._insert(batch)
        finally:
            self._release()

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, waiting=Batch)
    def _insert(self, batch: Batch) -> Any:
        queue = batch.queue
        place = 0
        for waiting in queue.batches:
            if waiting.serial > batch.serial:
                break
            place += 1
        queue.batches.insert(place, batch)
        queue._count(batch, 1)
        return None

    @cython.locals(
        part=Batch,
        newer=Batch,
        delivery=Delivery,
        delivery_run=DeliveryRun,
        builder=BatchBuilder,
        row_run=RowRun,
    )
    def split(self, batch: Batch) -> None:
        """Replace a batch in flight by smaller ones at its position in the queue.

        Each has up to `batch.size` bytes uncompressed, or one record if the batch is no larger than
        that. The parts have the creation time of the batch, and get its deliveries and callbacks.
        """
        limit = self._batch_size if batch.size > self._batch_size else 0
        records = batch.builder.records()
        self._acquire()
        try:
            batch.queue.in_flight.remove(batch)
            parts: list[Batch] = []
            builder = None
            newer = batch
            for index, (*_, timestamp, _, key, value, headers) in enumerate(records):
                if (
                    limit == 0
                    or builder is None
                    or not builder.append(timestamp, key, value, headers)
                ):
                    builder = BatchBuilder(limit, self._compression, self._compression_level, 1.0)
                    builder.append(timestamp, key, value, headers)
                    first = batch._first + index
                    part = Batch(batch.queue, builder, batch.created, batch.serial + index, first)
                    self._chain.add_batch(part, newer)
                    newer = part
                    parts.append(part)
            for part in parts:
                part.count = part.builder.count
                part.size = part.builder.size
                self._count_memory(part)
                self._insert(part)
            self._chain.remove_batch(batch)
            batch.queue.topic_queues._unsettled += len(parts) - 1
            callbacks = batch._replace(parts)
            for place in range(0, len(callbacks), 2):
                if isinstance(callbacks[place + 1], Delivery):
                    delivery = callbacks[place + 1]
                    delivery._current_batch()._call_back(callbacks[place], delivery)
                elif isinstance(callbacks[place + 1], DeliveryRun):
                    delivery_run = callbacks[place + 1]
                    delivery_run._move_to_parts()
                elif isinstance(callbacks[place + 1], RowRun):
                    row_run = callbacks[place + 1]
                    row_run._move_to_parts()
                else:
                    for part in parts:
                        part._call_back(callbacks[place], callbacks[place + 1])
            self.memory.release(batch.memory)
            batch.memory = 0
        finally:
            self._release()

    def complete(
        self, batch: Batch, base_offset: cython.longlong, log_append_time: cython.longlong
    ) -> None:
        """A batch in flight was acknowledged."""
        self._finish(batch, None, base_offset, log_append_time)

    def fail(self, batch: Batch, error: Exception) -> None:
        """A batch, in flight or waiting, has failed."""
        self._finish(batch, error, NO_OFFSET, NO_TIMESTAMP)

    @cython.cfunc
    @cython.locals(queue=PartitionQueue)
    def _finish(
        self,
        batch: Batch,
        error: Any,
        base_offset: cython.longlong,
        log_append_time: cython.longlong,
    ) -> Any:
        queue = batch.queue
        self._acquire()
        try:
            if batch.held_for is not None:
                batch.held_for.held.remove(batch)
                batch.held_for = None
            elif batch in queue.in_flight:
                queue.in_flight.remove(batch)
            else:
                queue.batches.remove(batch)
                if queue._open is batch:
                    queue._open = None
                queue._count(batch, -1)
            self._chain.remove_batch(batch)
            queue.topic_queues._unsettled -= 1
            self._settled += batch.count
            if error is None:
                queue.stored_bytes += batch.size
                queue.stored_end = base_offset + batch.count if base_offset >= 0 else -1
            callbacks = batch._settle(error, base_offset, log_append_time)
            self.memory.release(batch.memory)
            batch.memory = 0
        finally:
            self._release()
        return self._call(callbacks)

    @cython.cfunc
    @cython.locals(place=cython.Py_ssize_t, delivery_run=DeliveryRun)
    def _call(self, callbacks: list[Any]) -> Any:
        for place in range(0, len(callbacks), 2):
            if isinstance(callbacks[place + 1], DeliveryRun):
                delivery_run = callbacks[place + 1]
                delivery_run._call(self._on_callback_error)
                continue
            try:
                callbacks[place](callbacks[place + 1])
            except BaseException as raised:  # any error: the other callbacks must still run
                self._on_callback_error(raised)
        return None
