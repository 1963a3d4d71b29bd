# mypy: allow-untyped-decorators, no-warn-return-any
"""A producer's data: queues of batches by topic, the load of each broker, and deliveries.

    TopicQueues ─▶ PartitionQueue ─▶ Batch ◀─ Delivery
                        └─▶ NodeLoad (of its leader)

`queues_cy.pxd` has the C types of the fields. Only the accumulator changes these objects, under its
lock; partitioners and the sender read the public attributes.

Long because these classes hold each other as C types, which Cython can do only within one module.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future
from typing import Any, SupportsIndex

import cython

from trimtab.client.partitioner.key_watch_cy import KeyWatch
from trimtab.kafka.arguments import checked_callable, checked_seconds, refuse_copying
from trimtab.kafka.errors import BatchRefused, UsageError
from trimtab.kafka.records import NO_OFFSET, NO_TIMESTAMP, Record, RecordMetadata


@cython.final
@cython.cclass
class NodeLoad:
    """The load that this producer puts on one broker.

    Attributes:
        node_id: the broker's id.
        queued_batches: batches waiting in the queues of the partitions that it leads.
        queued_bytes: their bytes, uncompressed.
        requests: Produce requests that it has not answered.
        moved_at: loop time of its last answer, or of sending the first of these requests if that
            was later; -1 before the first.
        alone: seconds that its answer takes to a request sent while none was open; 0 while unknown.
        behind: seconds between two answers if requests were open at once; 0 while unknown.
        drain_rate: bytes per second that it acknowledges while busy; 0 while unknown.
        not_ready_since: loop time since which it accepts no batches; -1 while it accepts them.

    The sender measures `requests` to `drain_rate` only for partitioners that use them.
    """

    def __init__(self, node_id: cython.int) -> None:
        self.node_id = node_id
        self.queued_batches = 0
        self.queued_bytes = 0
        self.requests = 0
        self.moved_at = -1.0
        self.alone = 0.0
        self.behind = 0.0
        self.drain_rate = 0.0
        self.not_ready_since = -1.0


@cython.final
@cython.cclass
class Batch:
    """One batch of one partition, from its first record to its acknowledgement.

    Attributes:
        queue: the queue it belongs to.
        builder: its bytes; None once it is acknowledged, failed or split.
        held_for: the key that moves, if the batch waits for its earlier records, in no queue yet.
        created: loop time of the first record, seconds.
        serial: orders the batches of a queue; batches are sent in increasing order.
        attempts: how often it was sent.
        not_before: loop time before which it is not sent again.
        base_sequence: its first sequence number (KIP-98); -1 until it is first sent.
        size: bytes of its header and records, uncompressed.
        memory: bytes it holds of the buffer memory.
        count: records.
        is_done: whether it was acknowledged or has failed.
        error: why it failed; None if it did not.
        base_offset: the offset of its first record; -1 if that is not known.
        log_append_time: milliseconds since the Unix epoch if the topic uses LogAppendTime, else -1.
    """

    def __init__(
        self, queue: Any, builder: Any, created: float, serial: cython.longlong, first: cython.int
    ) -> None:
        self.queue = queue
        self.builder = builder
        self.held_for: Any = None
        self.created = created
        self.serial = serial
        self.attempts = 0
        self.not_before = 0.0
        self.base_sequence = -1
        self.size = builder.size
        self.memory = 0
        self.count = 0
        self.is_done = False
        self.error = None
        self._failed_records: Any = None  # the builder; decoded to a list on first use
        self.base_offset = NO_OFFSET
        self.log_append_time = NO_TIMESTAMP
        self._first = first  # its first record's index in the batch that it was split from
        self._parts: list[Any] | None = None
        self._future: Future[None] | None = None
        self._callbacks: list[Any] | None = None
        self._row_run: Any = None
        self._delivery_run: Any = None
        self._older: Any = None
        self._newer: Any = None

    @cython.cfunc
    def _settle(
        self, error: Any, base_offset: cython.longlong, log_append_time: cython.longlong
    ) -> list[Any]:
        """Mark it done. Returns functions and their arguments, alternating, to call without lock.

        The records of a failed batch stay readable as long as one of its deliveries exists.
        """
        if error is not None:
            self._failed_records, self.builder = self.builder, None
        self.error = error
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.is_done = True
        return self._drop_contents()

    @cython.cfunc
    def _replace(self, parts: list[Any]) -> list[Any]:
        """Mark it as split into `parts`. Returns as `_settle`, callbacks to move to the parts."""
        self._parts = parts
        return self._drop_contents()

    @cython.cfunc
    def _recount(self) -> Any:
        """Set its counters by its builder, after an interrupted change."""
        self.count = self.builder.count
        self.size = self.builder.size
        self.memory = self.builder.capacity
        return None

    @cython.cfunc
    @cython.locals(part="Batch")
    def _is_settled(self) -> cython.bint:
        """Whether all its records are acknowledged or have failed."""
        if self._parts is None:
            return self.is_done
        for part in self._parts:  # noqa: SIM110 - compiled, the methods of a cclass are in C
            if not part._is_settled():
                return False
        return True

    def _drop_contents(self) -> list[Any]:
        # Deliveries refer to the batch, and must not keep its bytes alive.
        if self.builder is not None:
            self.builder.release()
        self.builder = None
        self._row_run = None
        self._delivery_run = None
        future, self._future = self._future, None
        if future is not None:
            future.set_result(None)
        callbacks, self._callbacks = self._callbacks, None
        return callbacks if callbacks is not None else []

    @property
    def failed_count(self) -> int:
        """The number of its records that failed, those of its parts included."""
        if self._parts is not None:
            return sum(part.failed_count for part in self._parts)
        return self.count if self.error is not None else 0

    @property
    def first_error(self) -> Any:
        """Its error, or the first one of its parts; None if nothing failed."""
        if self._parts is not None:
            return next((part.first_error for part in self._parts if part.failed_count), None)
        return self.error

    def failed_record(self, index: cython.Py_ssize_t) -> Record:
        """One record of a failed batch, by its index."""
        failed = self._failed_records
        if not isinstance(failed, list):
            # Decode all: a caller that reads one record mostly reads the others too.
            failed = self._failed_records = failed.records()
        return failed[index]._replace(
            topic=self.queue.topic, partition=self.queue.partition, offset=NO_OFFSET
        )

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for its outcome."""
        return self._future is not None

    def future(self) -> Any:
        """A future that ends when the batch is acknowledged, failed or split. Under the lock."""
        if self._future is None:
            future: Future[None] = Future()
            if self.is_done or self._parts is not None:
                future.set_result(None)
                return future
            self._future = future
        return self._future

    @cython.cfunc
    def _call_back(self, function: Any, delivery: Any) -> Any:
        """Call `function(delivery)` when the batch is acknowledged or has failed."""
        if self._callbacks is None:
            self._callbacks = []
        if cython.compiled:
            self._callbacks.append(function)
            self._callbacks.append(delivery)
        else:
            self._callbacks.extend((function, delivery))  # both, even if Ctrl-C comes
        return None

    @cython.cfunc
    def _call_back_for_last(self, function: Any, timestamp: cython.longlong) -> Any:
        """Call `function` with the delivery of the batch's last record when it is known."""
        run = self._delivery_run
        if (
            run is not None
            and run._function is function
            and run._timestamp == timestamp
            and run._index + run._count == self.count - 1
        ):
            run._count += 1
        else:
            run = DeliveryRun(self, self.count - 1, 1, timestamp, function)
            self._delivery_run = run
            self._call_back(function, run)
        return None


# The garbage collector does not track it, as a process may hold millions. A cycle cannot last: it
# refers only to its batch, which drops its references to deliveries once it is done.
@cython.final
@cython.no_gc
@cython.freelist(4096)
@cython.cclass
class Delivery:
    """The outcome of one sent record. Use `.result()`, `await`, or a callback."""

    _batch: Batch
    _index: cython.int
    _timestamp: cython.longlong

    def __init__(self) -> None:
        raise UsageError("a Delivery cannot be created directly: call send, which returns one")

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return refuse_copying(self, protocol)

    def __eq__(self, other: object) -> bool:
        """Whether both are for the same record: `send` and a callback get different objects."""
        if not isinstance(other, Delivery):
            return False
        same = cython.cast(Delivery, other)
        return self._index == same._index and self._current_batch() is same._current_batch()

    def __hash__(self) -> int:
        return hash((id(self._batch.queue), self._index))

    def __repr__(self) -> str:
        batch = self._current_batch()
        where = f"{batch.queue.topic}-{batch.queue.partition}"
        if not batch.is_done:
            return f"<Delivery to {where}, waiting>"
        if batch.error is not None:
            return f"<Delivery to {where}, failed: {self._error(batch)!r}>"
        return f"<Delivery to {where}, stored at offset {self._metadata(batch).offset}>"

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._current_batch().is_done

    @cython.annotation_typing(False)
    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record was stored; waits until that is known.

        Args:
            timeout: seconds to wait at most; with None `delivery.timeout.ms` limits the wait.

        Raises:
            BrokerError: the broker refused the record, or its batch.
            KafkaError: the broker refused the batch because of other records.
            Unavailable: it was not acknowledged in time; it may be stored.
            UsageError: the producer belongs to the process that this one was forked from; or the
                wait would block the producer's own loop: in a delivery callback, a partitioner, or
                a coroutine on that loop, which has to `await` the delivery instead.
            TimeoutError: no outcome within `timeout`.
        """
        return self._metadata(self._wait(checked_seconds("timeout", timeout)))

    @cython.annotation_typing(False)
    def exception(self, timeout: float | None = None) -> Exception | None:
        """The record's error, None if it is stored; waits like `result`."""
        batch = self._wait(checked_seconds("timeout", timeout))
        return None if batch.error is None else self._error(batch)

    @property
    def record(self) -> Record | None:
        """The failed record, so that it can be sent elsewhere, such as to a dead-letter topic.

        Its offset is -1. None while the outcome is not known, and for a stored record, whose bytes
        are not kept. The bytes of a failed batch are kept as long as one of its deliveries exists.
        """
        batch = self._current_batch()
        if not batch.is_done or batch.error is None:
            return None
        return batch.failed_record(self._index - batch._first)

    @property
    def partition(self) -> int:
        """The partition that was chosen for the record; does not wait."""
        return self._batch.queue.partition

    @property
    def offset(self) -> int | None:
        """Where the record is stored; does not wait, and raises nothing.

        None while the outcome is not known, after an error, and if the broker has told no offset,
        as with acks=0.
        """
        batch = self._current_batch()
        if not batch.is_done or batch.error is not None or batch.base_offset < 0:
            return None
        return self._metadata(batch).offset

    def add_done_callback(self, function: Callable[["Delivery"], object]) -> None:
        """Call `function(delivery)` once, on the client's thread, when the outcome is known.

        If it is known already, the call happens at once, on this thread. Keep it short: nothing is
        sent or received while it runs. An exception it raises is logged.
        """
        checked_callable("function", function)
        self._current_batch().queue.accumulator.call_back(self, function)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._current_batch()
        while not batch.is_done:
            from asyncio import shield, wrap_future

            # Shielded: a cancelled waiter must not cancel the future of the others.
            future = batch.queue.accumulator.future_of(batch)
            yield from shield(wrap_future(future)).__await__()
            batch = self._current_batch()
        return self._metadata(batch)

    @cython.cfunc
    @cython.locals(batch=Batch, part=Batch)
    def _current_batch(self) -> Batch:
        """The batch that has the record now: the first one, or a part of it after a split."""
        batch = self._batch
        while batch._parts is not None:
            for part in batch._parts:
                if part._first > self._index:
                    break
                batch = part
        return batch

    @cython.cfunc
    @cython.locals(batch=Batch)
    def _wait(self, timeout: Any) -> Batch:
        batch = self._current_batch()
        if batch.is_done:
            return batch
        accumulator = batch.queue.accumulator
        deadline = None if timeout is None else accumulator.now() + timeout
        while not batch.is_done:
            accumulator.wait(accumulator.future_of(batch), timeout)
            batch = self._current_batch()
            if deadline is not None:
                timeout = max(0.0, deadline - accumulator.now())
        return batch

    @cython.cfunc
    def _error(self, batch: Batch) -> Any:
        error = batch.error
        if isinstance(error, BatchRefused):
            return error.of(self._index - batch._first)
        return copy_of(error)

    @cython.cfunc
    def _metadata(self, batch: Batch) -> RecordMetadata:
        if batch.error is not None:
            raise self._error(batch)
        offset: cython.longlong = batch.base_offset
        if offset >= 0:
            offset += self._index - batch._first
        timestamp: cython.longlong = batch.log_append_time
        if timestamp < 0:
            timestamp = self._timestamp
        return RecordMetadata(batch.queue.topic, batch.queue.partition, offset, timestamp)


@cython.final
@cython.cclass
class DeliveryRun:
    """A run of consecutive records in one batch with the same timestamp and callback.

    Saves the memory of one `Delivery` per record: each is created only when its callback runs.
    """

    def __init__(
        self,
        batch: Batch,
        index: cython.int,
        count: cython.int,
        timestamp: cython.longlong,
        function: Any,
    ) -> None:
        self._batch = batch
        self._index = index
        self._count = count
        self._timestamp = timestamp
        self._function = function

    @cython.cfunc
    @cython.locals(delivery=Delivery, index=cython.int)
    def _call(self, on_error: Any) -> Any:
        """Call the callback for each record."""
        function = self._function
        for index in range(self._index, self._index + self._count):
            delivery = Delivery.__new__(Delivery)
            delivery._batch = self._batch
            delivery._index = index
            delivery._timestamp = self._timestamp
            try:
                function(delivery)
            except BaseException as raised:  # any error: the other callbacks must still run
                on_error(raised)
        return None

    @cython.cfunc
    @cython.locals(part=Batch, begin=cython.int, end=cython.int)
    def _move_to_parts(self) -> Any:
        """After its batch was split: make a run for each part that has some of its records."""
        for part in self._batch._parts or ():
            begin = max(self._index, part._first)
            end = min(self._index + self._count, part._first + part.count)
            if begin < end:
                part._call_back(
                    self._function,
                    DeliveryRun(part, begin, end - begin, self._timestamp, self._function),
                )
        return None


@cython.final
@cython.cclass
class RowRun:
    """A run of a table's rows that are consecutive in one batch.

    Attributes:
        batch: the batch, which has the rows' outcome.
        count: rows.
        first, last: the indexes of the first and the last row in the batch.
    """

    def __init__(
        self, batch: Batch, index: cython.int, count: cython.int, settle: Callable[[Any], object]
    ) -> None:
        self.batch = batch
        self.count = count
        self._index = index
        self._settle = settle

    @property
    def first(self) -> int:
        return self._index - self.batch._first

    @property
    def last(self) -> int:
        return self._index - self.batch._first + self.count - 1

    @cython.cfunc
    @cython.locals(part=Batch, begin=cython.int, end=cython.int)
    def _move_to_parts(self) -> Any:
        """After its batch was split: make a run for each part that has some of its rows."""
        for part in self.batch._parts or ():
            begin = max(self._index, part._first)
            end = min(self._index + self.count, part._first + part.count)
            if begin < end:
                part._call_back(self._settle, RowRun(part, begin, end - begin, self._settle))
        return None


def copy_of(error: Any) -> Any:
    """A copy to raise: many records share a batch's error, and raising an error changes it."""
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


@cython.final
@cython.cclass
class PartitionQueue:
    """One partition's batches that wait to be sent, oldest first; only the last can be open.

    Attributes:
        topic_queues: the queues of its topic.
        batches: the waiting batches.
        in_flight: the batches that are sent and not acknowledged, in the order they were sent.
        node: its leader's load; None while there is no leader.
        queued_bytes: bytes of `batches`, uncompressed.
        turns: how often the partitioner chose it.
        stored_bytes: bytes of batches that were acknowledged, uncompressed.
        given_bytes: bytes of all records that it was given, uncompressed.
        stored_end: the offset after its last acknowledged record; -1 if it is not known.
        state: for the sender.
    """

    def __init__(
        self, accumulator: Any, topic_queues: Any, topic: str, partition: cython.int
    ) -> None:
        self.accumulator = accumulator
        self.topic_queues = topic_queues
        self.topic = topic
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.node: NodeLoad | None = None
        self.queued_bytes = 0
        self.turns = 0
        self.stored_bytes = 0
        self.given_bytes = 0
        self.stored_end = -1
        self.state: Any = None
        self._chosen_bytes = 0
        self._given_before = 0  # the part of `given_bytes` that no longer counts (`HotKeys`)
        self._open: Any = None  # the last batch, while records can be appended to it
        self._is_reported = False

    @property
    def head_is_complete(self) -> bool:
        """Whether no more records are appended to the oldest batch."""
        return len(self.batches) > 1 or (len(self.batches) == 1 and self._open is None)

    @property
    def chosen_bytes(self) -> int:
        """Bytes that the partitioner assigned to it, in the expected compressed size."""
        topic_queues = self.topic_queues
        if topic_queues.current != self.partition:
            return self._chosen_bytes
        return self._chosen_bytes + topic_queues._turn_bytes - topic_queues._used_at_start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @cython.cfunc
    def _set_leader(self, node: NodeLoad | None) -> Any:
        """Set its leader, and count its queue in that broker's load."""
        batches: cython.Py_ssize_t = len(self.batches)
        if self.node is not None:
            self.node.queued_batches -= batches
            self.node.queued_bytes -= self.queued_bytes
        self.node = node
        if node is not None:
            node.queued_batches += batches
            node.queued_bytes += self.queued_bytes
        return None

    @cython.cfunc
    def _count(self, batch: Batch, sign: cython.int) -> Any:
        """A batch came into the queue (1) or left it (-1)."""
        self.queued_bytes += sign * batch.size
        if self.node is not None:
            self.node.queued_batches += sign
            self.node.queued_bytes += sign * batch.size
        self.topic_queues._resized.add(self.partition)
        if sign > 0:
            self.topic_queues._used[self.partition] = None
        return None

    @cython.cfunc
    @cython.locals(batch=Batch)
    def _repair(self) -> Any:
        """Recompute the counters from the waiting batches, after an interrupted change."""
        self.queued_bytes = 0
        last = None
        for batch in self.batches:
            last = batch
            batch._recount()
            self.queued_bytes += batch.size
        if last is not self._open:
            self._open = None
        if self.node is not None:
            self.node.queued_batches += len(self.batches)
            self.node.queued_bytes += self.queued_bytes
        return None


@cython.final
@cython.cclass
class TopicQueues:
    """One topic's queues, and its partitioner's current turn.

    A turn is a run of records for which the partitioner has chosen one partition. Partitioners get
    this object as the topic's load (`TopicLoad`); each of its methods costs O(1).

    Attributes:
        view: the topic in the latest metadata.
        queues: by partition.
        partitioner: the topic's partitioner.
        compression_ratio: recent ratio of compressed to uncompressed bytes.
        current: the partition of the current turn, -1 before the first.
        switches: how often a turn began in another partition than the last one.
        keys: the keys that decided partitions.
        hot: the treatment of hot keys (`HotKeys`); None without.
    """

    def __init__(
        self,
        accumulator: Any,
        view: Any,
        partitioner: Any,
        quantum: cython.longlong,
        ignores_keys: cython.bint,
        rack: str | None,
        shows_keys: cython.bint,
    ) -> None:
        self.view = view
        self.queues: list[PartitionQueue] = []
        self.partitioner = partitioner
        self.compression_ratio = 1.0
        self.switches = 0
        self.current = -1
        self.keys = KeyWatch(shows_keys, accumulator.now)
        self.hot: Any = None
        self._rack_bytes = 0
        self._accumulator = accumulator
        self._rack = rack
        self._resized: set[int] = set()
        self._used: dict[int, None] = {}
        # The queue of the current turn while the partitioner need not be asked, else None.
        self._unquestioned: PartitionQueue | None = None
        self._unsettled = 0  # batches neither acknowledged nor failed
        self._last_used = accumulator.now()
        self._partition_count = 0
        self._is_per_record = hasattr(partitioner, "partition")
        self._is_notified_of_new_batches = hasattr(partitioner, "on_new_batch")
        self._turns_by_batch = getattr(partitioner, "turns_by_batch", False)
        self._follows_load = getattr(partitioner, "follows_load", False)
        self._asked_at = 0  # `load_changes` when the partitioner was last asked
        self._observes = hasattr(partitioner, "observe")
        self._ignores_keys = ignores_keys
        self._quantum = quantum
        self._turn_bytes = 0  # bytes counted in the current turn
        self._used_at_start = 0  # `_turn_bytes` when the turn began

    @property
    def chosen_rack_bytes(self) -> int:
        """Bytes that the partitioner assigned to partitions led in the client's rack at that time.

        In the expected compressed size; 0 without rack awareness.
        """
        if self.current < 0 or not self._is_in_rack(self.current):
            return self._rack_bytes
        return self._rack_bytes + self._turn_bytes - self._used_at_start

    @cython.cfunc
    @cython.locals(queue=PartitionQueue)
    def _repair(self) -> list[Any]:
        """Recompute the counters after an interrupted change; returns the topic's batches."""
        found: list[Any] = []
        for queue in self.queues:
            queue._repair()
            found.extend(queue.batches)
            found.extend(queue.in_flight)
            self._resized.add(queue.partition)
            if queue.batches:
                self._used[queue.partition] = None
        if self.hot is not None:
            found.extend(self.hot.repair())
        self._unsettled = len(found)
        self._unquestioned = None
        return found

    # the load, for partitioners

    def queued_batches(self, partition: cython.int) -> int:
        """Batches that wait in a partition's queue."""
        return len(self.queues[partition].batches)

    @cython.locals(queue=PartitionQueue)
    def queued_bytes(self, partition: cython.int) -> int:
        """Bytes that wait in a partition's queue, uncompressed."""
        queue = self.queues[partition]
        return queue.queued_bytes

    @cython.locals(queue=PartitionQueue)
    def chosen_bytes(self, partition: cython.int) -> int:
        """Bytes that the partitioner assigned to a partition, in the expected compressed size."""
        queue = self.queues[partition]
        return queue.chosen_bytes

    def take_resized(self) -> Collection[int]:
        """The partitions whose `queued_batches` may have changed since this was last called."""
        resized, self._resized = self._resized, set()
        return resized

    def used(self) -> Collection[int]:
        """The partitions that have had a batch."""
        return self._used.keys()

    @cython.locals(queue=PartitionQueue)
    def node(self, partition: cython.int) -> NodeLoad | None:
        """The load of a partition's leader; None while there is no leader."""
        queue = self.queues[partition]
        return queue.node

    def unavailable(self) -> frozenset[int]:
        """Node ids of leaders that accept no batches now (KIP-794)."""
        ask = self._accumulator.unavailable
        return self._accumulator.published if ask is None else ask()

    def now(self) -> float:
        """The loop's time, seconds."""
        return self._accumulator.now()

    # turns

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_over(self, queue: PartitionQueue) -> cython.bint:
        """A turn counted in bytes ends after a quantum once its batch is full (KAFKA-14156), and
        after two quanta in any case."""
        if self._turns_by_batch or self._turn_bytes < self._quantum:
            return False
        return queue._open is None or self._turn_bytes >= 2 * self._quantum

    @cython.cfunc
    def _may_stay(self) -> cython.bint:
        """Ask the partitioner whether the turn may go on."""
        self._asked_at = self._accumulator.load_changes
        stays: cython.bint = self.partitioner.may_stay(self.view, self.current, self)
        self._unquestioned = self.queues[self.current] if stays else None
        return stays

    @cython.cfunc
    @cython.locals(queue=PartitionQueue)
    def _turn(self) -> PartitionQueue:
        """End the turn, and ask the partitioner for the next partition."""
        self._asked_at = self._accumulator.load_changes
        overshoot = max(0, self._turn_bytes - self._quantum)
        chosen, used = self.partitioner.next_turn(self.view, self.current, overshoot, self)
        self._end_turn()
        if chosen != self.current:
            self.switches += 1
        self.current = chosen
        self._turn_bytes = used
        self._used_at_start = used
        queue = self._unquestioned = self.queues[chosen]
        queue.turns += 1
        return queue

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, produced=cython.longlong)
    def _end_turn(self) -> Any:
        if self.current >= 0:
            produced = self._turn_bytes - self._used_at_start
            queue = self.queues[self.current]
            queue._chosen_bytes += produced
            if self._is_in_rack(self.current):
                self._rack_bytes += produced
        return None

    @cython.cfunc
    def _is_in_rack(self, partition: cython.Py_ssize_t) -> cython.bint:
        racks = self.view.racks
        return self._rack is not None and partition < len(racks) and racks[partition] == self._rack


@cython.final
@cython.cclass
class BatchChain:
    """All batches that are neither acknowledged nor failed, from the oldest to the newest.

    A linked list: removing any batch, and finding the oldest, costs O(1).
    """

    def __init__(self) -> None:
        self.oldest: Batch | None = None
        self.newest: Batch | None = None

    @cython.cfunc
    @cython.locals(newer=Batch)
    def add_batch(self, batch: Batch, older: Batch | None) -> Any:
        """Add a batch after `older`; at the beginning if that is None."""
        batch._older = older
        if older is None:
            newer, self.oldest = self.oldest, batch
        else:
            newer, older._newer = older._newer, batch
        batch._newer = newer
        if newer is None:
            self.newest = batch
        else:
            newer._older = batch
        return None

    @cython.cfunc
    @cython.locals(older=Batch, newer=Batch)
    def remove_batch(self, batch: Batch) -> Any:
        older, newer = batch._older, batch._newer
        batch._older = batch._newer = None
        if older is None:
            self.oldest = newer
        else:
            older._newer = newer
        if newer is None:
            self.newest = older
        else:
            newer._older = older
        return None

    @cython.cfunc
    @cython.locals(batch=Batch)
    def repair(self, batches: list[Any]) -> Any:
        """Rebuild the chain from these batches, by age, after an interrupted change."""
        self.oldest = self.newest = None
        for batch in sorted(batches, key=_age):
            self.add_batch(batch, self.newest)
        return None

    @cython.locals(batch=Batch)
    def all(self) -> list[Batch]:
        found: list[Batch] = []
        batch = self.oldest
        while batch is not None:
            found.append(batch)
            batch = batch._newer
        return found


def _age(batch: Batch) -> tuple[float, int]:
    return batch.created, batch.serial
