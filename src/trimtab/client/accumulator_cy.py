# mypy: allow-untyped-decorators, no-warn-return-any
"""The accumulator: records on their way into batches, and batches on their way out.

    send ─▶ Accumulator.append ─▶ partition ─▶ its queue's open batch   (caller's thread)
    sender ◀─ queue.take ◀────────────────────── oldest batch           (loop thread)

A record is encoded here, once, straight into the batch that will be sent. `append` is the hot path:
one call for each record. Everything that changes a queue happens under the accumulator's lock.

Source: KIP-480, KIP-794; `org.apache.kafka.clients.producer.internals.RecordAccumulator`.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

import cython

from trimtab.client.murmur2_cy import partition_for_key
from trimtab.errors import UsageError
from trimtab.records import NO_OFFSET, NO_TIMESTAMP, RecordMetadata
from trimtab.wire.batch_cy import HEADER_BYTES, BatchBuilder

_HEADER_BYTES = cython.declare(cython.longlong, HEADER_BYTES)
# What a record adds to its key and value at most, beyond its headers: attributes and five varints.
_RECORD_OVERHEAD = cython.declare(cython.longlong, 32)


@cython.cclass
class Batch:
    """One batch of one partition, from its first record to its acknowledgement.

    Attributes:
        created: loop time of the first record, seconds.
        serial: its number among all batches of the producer, in the order they were begun.
        attempts: how often it was sent.
        not_before: loop time before which it is not sent again.
        base_sequence: its place in the producer's sequence (KIP-98); -1 until it is first sent.
        size: bytes of its records and header, uncompressed: what it holds of the buffer memory.
    """

    queue = cython.declare(object, visibility="readonly")
    builder = cython.declare(object, visibility="readonly")
    created = cython.declare(cython.double, visibility="readonly")
    serial = cython.declare(cython.longlong, visibility="readonly")
    attempts = cython.declare(cython.int, visibility="public")
    not_before = cython.declare(cython.double, visibility="public")
    base_sequence = cython.declare(cython.int, visibility="public")
    size = cython.declare(cython.longlong, visibility="readonly")
    count = cython.declare(cython.int, visibility="readonly")
    is_done = cython.declare(cython.bint, visibility="readonly")
    error = cython.declare(object, visibility="readonly")
    base_offset = cython.declare(cython.longlong, visibility="readonly")
    log_append_time = cython.declare(cython.longlong, visibility="readonly")
    _future: Any
    _callbacks: list[Any] | None

    def __init__(self, queue: Any, builder: Any, created: float, serial: cython.longlong) -> None:
        self.queue = queue
        self.builder = builder
        self.created = created
        self.serial = serial
        self.attempts = 0
        self.not_before = 0.0
        self.base_sequence = -1
        self.size = 0
        self.count = 0
        self.is_done = False
        self.error = None
        self.base_offset = NO_OFFSET
        self.log_append_time = NO_TIMESTAMP
        self._future = None
        self._callbacks = None

    def complete(self, base_offset: cython.longlong, log_append_time: cython.longlong) -> Any:
        """The broker has it, from `base_offset` on; -1 where it did not say (acks=0)."""
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        return self._settle()

    def fail(self, error: Exception) -> Any:
        """It was given up for this error."""
        self.error = error
        return self._settle()

    def _settle(self) -> Any:
        """Mark it done; returns what the caller is to run once the lock is released."""
        self.is_done = True
        callbacks, self._callbacks = self._callbacks, None
        if self._future is not None:
            (callbacks := callbacks or []).append((self._future.set_result, None))
        return callbacks or ()

    def future(self) -> Any:
        """A future that ends with the batch; made only when somebody waits. Under the lock."""
        if self._future is None:
            self._future = Future()
            if self.is_done:
                self._future.set_result(None)
        return self._future

    def add_callback(self, function: Any, argument: Any) -> None:
        """Have `function(argument)` called when the batch is done. Under the lock."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append((function, argument))


@cython.final
@cython.freelist(4096)
@cython.cclass
class Delivery:
    """What becomes of one sent record. Wait with `.result()` or `await`, or be called back."""

    _batch: Batch
    _index: cython.int
    _timestamp: cython.longlong

    def __init__(self, batch: Batch, index: cython.int, timestamp: cython.longlong) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record was stored, waiting for it if need be.

        Args:
            timeout: seconds to wait at most; None waits as long as `delivery.timeout.ms` lets it.

        Raises:
            BrokerError: the broker refused the batch.
            Unavailable: it was not acknowledged in time; it may be stored.
            TimeoutError: no outcome within `timeout`.
        """
        if not self._batch.is_done:
            self._batch.queue.accumulator.future_of(self._batch).result(timeout)
        if self._batch.error is not None:
            raise self._batch.error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error the record ended with, None if it is stored; waits like `result`."""
        if not self._batch.is_done:
            self._batch.queue.accumulator.future_of(self._batch).result(timeout)
        return self._batch.error

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Have `function(delivery)` called once, on the client's thread, when the outcome is known.

        If it is known already the call happens at once, on this thread. Keep it short: nothing is
        sent or received while it runs. An exception it raises is logged.
        """
        self._batch.queue.accumulator.call_back(self._batch, function, self)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.is_done:
            from asyncio import shield, wrap_future

            # Shielded: whoever stops waiting must not end the wait of others.
            future = self._batch.queue.accumulator.future_of(self._batch)
            yield from shield(wrap_future(future)).__await__()
        if self._batch.error is not None:
            raise self._batch.error
        return self._metadata()

    def _metadata(self) -> RecordMetadata:
        batch = self._batch
        offset = NO_OFFSET if batch.base_offset < 0 else batch.base_offset + self._index
        timestamp = self._timestamp if batch.log_append_time < 0 else batch.log_append_time
        return RecordMetadata(batch.queue.topic, batch.queue.partition, offset, timestamp)


@cython.cclass
class PartitionQueue:
    """One partition's batches that wait to be sent, oldest first; only the last can be open.

    Attributes:
        in_flight: batches that await their acknowledgement, oldest first.
        next_sequence: the sequence number of the next record (KIP-98).
    """

    accumulator = cython.declare(object, visibility="readonly")
    topic_queues = cython.declare(object, visibility="readonly")
    topic = cython.declare(str, visibility="readonly")
    partition = cython.declare(cython.int, visibility="readonly")
    batches = cython.declare(object, visibility="readonly")
    in_flight = cython.declare(list, visibility="readonly")
    next_sequence = cython.declare(cython.int, visibility="public")
    _open: Batch | None

    def __init__(
        self, accumulator: Any, topic_queues: Any, topic: str, partition: cython.int
    ) -> None:
        self.accumulator = accumulator
        self.topic_queues = topic_queues
        self.topic = topic
        self.partition = partition
        self.batches = deque()
        self.in_flight = []
        self.next_sequence = 0
        self._open = None

    @property
    def head_is_complete(self) -> bool:
        """Whether the oldest batch takes no more records."""
        return len(self.batches) > 1 or (len(self.batches) == 1 and self._open is None)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@cython.cclass
class TopicQueues:
    """One topic's queues, and the turn that its partitioner has given.

    Attributes:
        view: the topic as metadata last described it.
        active: the queues that hold batches.
        compression_ratio: compressed to uncompressed bytes, as lately seen.
    """

    view = cython.declare(object, visibility="readonly")
    queues = cython.declare(list, visibility="readonly")
    active = cython.declare(dict, visibility="readonly")
    compression_ratio = cython.declare(cython.double, visibility="public")
    _is_per_record: cython.bint
    _turns_by_batch: cython.bint
    _ignores_keys: cython.bint
    _partitioner: Any
    _quantum: cython.longlong
    _current: cython.int
    _produced: cython.longlong

    def __init__(
        self,
        view: Any,
        ignores_keys: cython.bint,
        partitioner: Any,
        quantum: cython.longlong,
    ) -> None:
        self.view = view
        self.queues = []
        self.active = {}
        self.compression_ratio = 1.0
        self._is_per_record = hasattr(partitioner, "partition")
        self._turns_by_batch = getattr(partitioner, "turns_by_batch", False)
        self._ignores_keys = ignores_keys
        self._partitioner = partitioner
        self._quantum = quantum
        self._current = -1
        self._produced = 0


@cython.cclass
class Accumulator:
    """All records that were sent and not yet acknowledged.

    Args:
        batch_size: bytes at which a batch is complete (`batch.size`).
        buffer_memory: bytes that may wait; beyond them `append` takes nothing more.
        max_request_size: bytes of the largest record and the largest uncompressed batch.
        compression: `wire.compression.Compression`.
        ignores_keys: whether records with keys are spread like those without.
        make_partitioner: makes one topic's partitioner (`client.partitioner`).
        now: loop time in seconds.
        wall_clock: seconds since the Unix epoch.
        lock: guards everything, held for microseconds.
        wake: called, from any thread, when the sender has something new to do.
    """

    unavailable = cython.declare(object, visibility="public")
    used = cython.declare(cython.longlong, visibility="readonly")
    closed = cython.declare(cython.bint, visibility="public")
    records = cython.declare(cython.longlong, visibility="readonly")
    _incomplete: dict[Any, None]
    _batches: cython.longlong
    _topics: dict[str, Any]
    _batch_size: cython.longlong
    _buffer_memory: cython.longlong
    _max_request_size: cython.longlong
    _compression: Any
    _is_compressed: cython.bint
    _ignores_keys: cython.bint
    _make_partitioner: Any
    _now: Any
    _wall_clock: Any
    _wake: Any
    _on_callback_error: Any
    _acquire: Any
    _release: Any

    def __init__(
        self,
        *,
        batch_size: cython.longlong,
        buffer_memory: cython.longlong,
        max_request_size: cython.longlong,
        compression: Any,
        ignores_keys: cython.bint,
        make_partitioner: Callable[[], Any],
        now: Callable[[], float],
        wall_clock: Callable[[], float],
        lock: Any,
        wake: Callable[[], object],
        on_callback_error: Callable[[Exception], object],
    ) -> None:
        self.unavailable = frozenset
        self.used = 0
        self.closed = False
        self.records = 0
        self._incomplete = {}
        self._batches = 0
        self._topics = {}
        self._batch_size = max(1, batch_size)
        self._buffer_memory = buffer_memory
        self._max_request_size = max_request_size
        self._compression = compression
        self._is_compressed = compression != 0
        self._ignores_keys = ignores_keys
        self._make_partitioner = make_partitioner
        self._now = now
        self._wall_clock = wall_clock
        self._wake = wake
        self._on_callback_error = on_callback_error
        self._acquire = lock.acquire
        self._release = lock.release

    # the caller's side

    @cython.locals(
        topic_queues=TopicQueues,
        queue=PartitionQueue,
        size=cython.longlong,
        time=cython.longlong,
    )
    def append(
        self, topic: Any, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any
    ) -> Delivery | None:
        """Add one record to its partition's open batch.

        Args:
            timestamp: milliseconds since the Unix epoch; None takes the clock's.

        Returns: its `Delivery`; None if the topic is not known yet or the buffer memory is used up,
            and the caller is to wait for that and try again.

        Raises:
            UsageError: the producer is closed, the record is too large, the partition does not
                exist, or key, value or headers are not bytes.
        """
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            return None
        size = _bound(value, key, headers)
        if size > self._max_request_size:
            raise self._too_large(topic, size)
        if timestamp is None:
            time = cython.cast(cython.longlong, self._wall_clock() * 1000.0)
        else:
            time = timestamp
        if cython.compiled:
            # No other thread runs until this has returned: it calls no Python code before its last
            # change, so that the interpreter lock is lock enough.
            delivery = self._append_to_open(
                topic_queues, size, time, key, value, headers, partition
            )
            if delivery is not None:
                return delivery
        self._acquire()
        try:
            if self.closed:
                raise UsageError(
                    "the producer is closed; send before closing it, or make a new one"
                )
            if self.used + size > self._buffer_memory and self.used > 0:
                return None
            if partition is None and topic_queues._is_per_record:
                partition = topic_queues._partitioner.partition(topic_queues.view, key, value)
            queue = self._choose(topic_queues, key, partition)
            if queue is not None:
                return self._append_to(topic_queues, queue, time, key, value, headers)
            return self._append_to_turn(topic_queues, time, key, value, headers)
        finally:
            self._release()

    @cython.cfunc
    @cython.locals(batch=Batch, queue=PartitionQueue, grown=cython.longlong)
    def _append_to_open(
        self,
        topic_queues: TopicQueues,
        size: cython.longlong,
        time: cython.longlong,
        key: Any,
        value: Any,
        headers: Any,
        partition: Any,
    ) -> Any:
        """The common case: the record fits an open batch, and no decision is due. Else None."""
        if self.closed or self.used + size > self._buffer_memory:
            return None
        if partition is None and topic_queues._is_per_record:
            return None
        queue = self._choose(topic_queues, key, partition)
        in_turn: cython.bint = queue is None
        if in_turn:
            if topic_queues._current < 0:
                return None
            queue = topic_queues.queues[topic_queues._current]
            if self._turn_is_over(topic_queues, queue):
                return None
        batch = queue._open
        if batch is None:
            return None
        grown = batch.builder.append(time, key, value, headers)
        if grown == 0:
            return None
        if in_turn:
            self._count(topic_queues, grown)
        return self._added(queue, batch, grown, time)

    @cython.cfunc
    @cython.inline
    def _choose(self, topic_queues: TopicQueues, key: Any, partition: Any) -> PartitionQueue | None:
        """The queue that was asked for or that the key says; None to ask the partitioner."""
        chosen: cython.Py_ssize_t
        if partition is not None:
            chosen = partition
            if chosen < 0 or chosen >= len(topic_queues.queues):
                raise UsageError(
                    f"partition {partition} of topic {topic_queues.view.name} does not exist; it"
                    f" has partitions 0 to {len(topic_queues.queues) - 1}"
                )
        elif key is None or topic_queues._ignores_keys:
            return None
        else:
            chosen = partition_for_key(bytes(key), len(topic_queues.queues))
        return topic_queues.queues[chosen]

    @cython.cfunc
    @cython.inline
    def _turn_is_over(self, topic_queues: TopicQueues, queue: PartitionQueue) -> cython.bint:
        """A turn by bytes ends with a full batch (KAFKA-14156), or after two quanta."""
        if topic_queues._turns_by_batch or topic_queues._produced < topic_queues._quantum:
            return False
        return queue._open is None or topic_queues._produced >= 2 * topic_queues._quantum

    @cython.cfunc
    @cython.locals(batch=Batch, grown=cython.longlong)
    def _append_to(
        self,
        topic_queues: TopicQueues,
        queue: PartitionQueue,
        time: cython.longlong,
        key: Any,
        value: Any,
        headers: Any,
    ) -> Any:
        batch = queue._open
        if batch is not None:
            grown = batch.builder.append(time, key, value, headers)
            if grown > 0:
                return self._added(queue, batch, grown, time)
            self._complete_open(queue)
        return self._append_to_new(topic_queues, queue, time, key, value, headers)

    @cython.cfunc
    @cython.locals(batch=Batch, queue=PartitionQueue, grown=cython.longlong, used=cython.longlong)
    def _append_to_turn(
        self,
        topic_queues: TopicQueues,
        time: cython.longlong,
        key: Any,
        value: Any,
        headers: Any,
    ) -> Any:
        """Append to the partition whose turn it is, or whose turn begins."""
        queue = None
        if topic_queues._current >= 0:
            queue = topic_queues.queues[topic_queues._current]
        if queue is None or self._turn_is_over(topic_queues, queue):
            queue = self._turn(topic_queues)
        batch = queue._open
        if batch is not None:
            grown = batch.builder.append(time, key, value, headers)
            if grown > 0:
                self._count(topic_queues, grown)
                return self._added(queue, batch, grown, time)
            self._complete_open(queue)
        # A new batch is needed: that ends a turn by batches (KIP-480), or one that was over.
        if topic_queues._turns_by_batch or topic_queues._produced >= topic_queues._quantum:
            queue = self._turn(topic_queues)
        used = self.used
        delivery = self._append_to(topic_queues, queue, time, key, value, headers)
        self._count(topic_queues, self.used - used)
        return delivery

    @cython.cfunc
    @cython.inline
    def _count(self, topic_queues: TopicQueues, grown: cython.longlong) -> cython.void:
        if self._is_compressed:
            grown = cython.cast(cython.longlong, grown * topic_queues.compression_ratio * 1.05)
        topic_queues._produced += grown

    @cython.cfunc
    def _turn(self, topic_queues: TopicQueues) -> PartitionQueue:
        previous = topic_queues._current
        queued = {waiting.partition: len(waiting.batches) for waiting in topic_queues.active}
        overshoot = max(0, topic_queues._produced - topic_queues._quantum)
        chosen, used_up = topic_queues._partitioner.next_turn(
            topic_queues.view, previous, overshoot, queued, self.unavailable()
        )
        topic_queues._current = chosen
        topic_queues._produced = used_up
        return topic_queues.queues[chosen]

    @cython.cfunc
    @cython.locals(batch=Batch, grown=cython.longlong, limit=cython.longlong)
    def _append_to_new(
        self,
        topic_queues: TopicQueues,
        queue: PartitionQueue,
        time: cython.longlong,
        key: Any,
        value: Any,
        headers: Any,
    ) -> Any:
        limit = self._batch_size
        if self._is_compressed:
            # Fill it until it is expected to compress to batch.size, but never beyond what one
            # request may carry if it does not compress at all.
            limit = cython.cast(
                cython.longlong, limit / max(topic_queues.compression_ratio * 1.05, 0.01)
            )
            limit = max(self._batch_size, min(limit, self._max_request_size))
        self._batches += 1
        batch = Batch(queue, BatchBuilder(limit, self._compression), self._now(), self._batches)
        grown = batch.builder.append(time, key, value, headers)
        batch.size = _HEADER_BYTES
        self.used += _HEADER_BYTES
        self._incomplete[batch] = None
        queue.batches.append(batch)
        queue._open = batch
        delivery = self._added(queue, batch, grown, time)
        if len(queue.batches) == 1:
            cython.cast(TopicQueues, queue.topic_queues).active[queue] = None
            self._wake()
        return delivery

    @cython.cfunc
    @cython.inline
    def _added(
        self,
        queue: PartitionQueue,
        batch: Batch,
        grown: cython.longlong,
        time: cython.longlong,
    ) -> Any:
        index: cython.int = batch.count
        batch.count += 1
        batch.size += grown
        self.used += grown
        self.records += 1
        if batch.size >= self._batch_size and not self._is_compressed:
            self._complete_open(queue)
        return Delivery(batch, index, time)

    @cython.cfunc
    def _complete_open(self, queue: PartitionQueue) -> cython.void:
        queue._open = None
        self._wake()

    def _too_large(self, topic: str, size: cython.longlong) -> UsageError:
        return UsageError(
            f"a record for topic {topic} needs up to {size} bytes, max.request.size is"
            f" {self._max_request_size}; raise it together with the topic's max.message.bytes"
        )

    def knows(self, topic: str) -> bool:
        """Whether `append` can place records of this topic."""
        return topic in self._topics

    def has_room(self, size: cython.longlong) -> bool:
        """Whether the buffer memory takes this many bytes more."""
        return self.used == 0 or self.used + size <= self._buffer_memory

    def future_of(self, batch: Batch) -> Any:
        self._acquire()
        try:
            return batch.future()
        finally:
            self._release()

    def call_back(self, batch: Batch, function: Any, delivery: Delivery) -> None:
        self._acquire()
        try:
            if not batch.is_done:
                batch.add_callback(function, delivery)
                return
        finally:
            self._release()
        function(delivery)

    # the sender's side

    @cython.locals(topic_queues=TopicQueues)
    def update_topic(self, view: Any) -> None:
        """Take over a topic's newest view; it may have gained partitions."""
        self._acquire()
        try:
            topic_queues = self._topics.get(view.name)
            if topic_queues is None:
                topic_queues = TopicQueues(
                    view,
                    self._ignores_keys,
                    self._make_partitioner(),
                    self._batch_size,
                )
                self._grow(topic_queues, view)
                self._topics[view.name] = topic_queues
            else:
                topic_queues.view = view
                self._grow(topic_queues, view)
        finally:
            self._release()

    @cython.cfunc
    def _grow(self, topic_queues: TopicQueues, view: Any) -> cython.void:
        for partition in range(len(topic_queues.queues), view.partition_count):
            topic_queues.queues.append(PartitionQueue(self, topic_queues, view.name, partition))

    def topic(self, name: str) -> Any:
        """One topic's queues; None if it is not known."""
        return self._topics.get(name)

    def active_queues(self) -> list[Any]:
        """The queues that hold batches."""
        self._acquire()
        try:
            return [queue for topic in self._topics.values() for queue in topic.active]
        finally:
            self._release()

    def all_queues(self) -> list[Any]:
        """Every queue there is."""
        return [queue for topic in self._topics.values() for queue in topic.queues]

    def incomplete_batches(self) -> list[Any]:
        """Every batch that is neither acknowledged nor given up, oldest first."""
        self._acquire()
        try:
            return list(self._incomplete)
        finally:
            self._release()

    @cython.locals(batch=Batch)
    def take(self, queue: PartitionQueue) -> Batch:
        """The oldest batch of a queue, which takes no more records from now on and is in flight."""
        self._acquire()
        try:
            batch = queue.batches.popleft()
            if queue._open is batch:
                queue._open = None
            if not queue.batches:
                del cython.cast(TopicQueues, queue.topic_queues).active[queue]
            queue.in_flight.append(batch)
            return batch
        finally:
            self._release()

    @cython.locals(queue=PartitionQueue)
    def put_back(self, batch: Batch) -> None:
        """Queue a batch that was in flight again, before everything that was sent after it."""
        queue = batch.queue
        self._acquire()
        try:
            queue.in_flight.remove(batch)
            place = 0
            for waiting in queue.batches:
                if waiting.serial > batch.serial:
                    break
                place += 1
            queue.batches.insert(place, batch)
            cython.cast(TopicQueues, queue.topic_queues).active[queue] = None
        finally:
            self._release()

    def complete(
        self, batch: Batch, base_offset: cython.longlong, log_append_time: cython.longlong
    ) -> None:
        """A batch in flight was acknowledged."""
        self._finish(batch, None, base_offset, log_append_time)

    def fail(self, batch: Batch, error: Exception) -> None:
        """A batch, in flight or waiting, was given up."""
        self._finish(batch, error, NO_OFFSET, NO_TIMESTAMP)

    @cython.cfunc
    @cython.locals(queue=PartitionQueue)
    def _finish(
        self,
        batch: Batch,
        error: Any,
        base_offset: cython.longlong,
        log_append_time: cython.longlong,
    ) -> cython.void:
        queue = batch.queue
        self._acquire()
        try:
            if batch in queue.in_flight:
                queue.in_flight.remove(batch)
            elif batch in queue.batches:
                queue.batches.remove(batch)
                if queue._open is batch:
                    queue._open = None
                if not queue.batches:
                    del cython.cast(TopicQueues, queue.topic_queues).active[queue]
            del self._incomplete[batch]
            self.used -= batch.size
            if error is None:
                calls = batch.complete(base_offset, log_append_time)
            else:
                calls = batch.fail(error)
        finally:
            self._release()
        for function, argument in calls:
            try:
                function(argument)
            except Exception as raised:
                self._on_callback_error(raised)


@cython.ccall
def bound(value: Any, key: Any, headers: Any) -> cython.longlong:
    """The bytes that `append` wants to have room for: a batch of this record alone, at most."""
    return _bound(value, key, headers)


@cython.cfunc
@cython.inline
def _bound(value: Any, key: Any, headers: Any) -> cython.longlong:
    size: cython.longlong = _RECORD_OVERHEAD + _HEADER_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        for name, content in headers:
            size += 4 * len(name) + 10  # a character takes four bytes at most
            if content is not None:
                size += len(content)
    return size
