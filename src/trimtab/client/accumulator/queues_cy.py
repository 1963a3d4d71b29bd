# mypy: allow-untyped-decorators, no-warn-return-any
"""What a producer holds: topics' queues of batches, brokers' loads, and what became of each record.

    TopicQueues ─▶ PartitionQueue ─▶ Batch ◀─ Delivery
                        └─▶ NodeLoad (of its leader)

`queues_cy.pxd` has the C types of the fields. Everything here is changed by the accumulator alone,
under its lock; what is public is read by partitioners and the sender.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future
from typing import Any, SupportsIndex

import cython

from trimtab.client.arguments import checked_callable, checked_seconds, refuse_copying
from trimtab.errors import BatchRefused, UsageError
from trimtab.records import NO_OFFSET, NO_TIMESTAMP, Record, RecordMetadata
from trimtab.runtime.waiting import wait_for

if cython.compiled:
    pass


@cython.final
@cython.cclass
class NodeLoad:
    """One broker, as this producer loads it.

    Attributes:
        node_id: the broker's.
        queued_batches: batches that wait for it, in the queues of the partitions it leads.
        queued_bytes: their bytes, uncompressed.
        in_flight_batches: batches sent to it that it has not answered.
        in_flight_bytes: their bytes, uncompressed.
        latency: seconds from sending to acknowledgement, a moving average; 0 while unknown.
        drain_rate: bytes a second that it takes, a moving average; 0 while unknown.
        not_ready_since: loop time since which it takes nothing; -1 while it does.
        last_acknowledged: loop time of its last acknowledgement; -1 before the first.
    """

    def __init__(self, node_id: cython.int) -> None:
        self.node_id = node_id
        self.queued_batches = 0
        self.queued_bytes = 0
        self.in_flight_batches = 0
        self.in_flight_bytes = 0
        self.latency = 0.0
        self.drain_rate = 0.0
        self.not_ready_since = -1.0
        self.last_acknowledged = -1.0


@cython.final
@cython.cclass
class Batch:
    """One batch of one partition, from its first record to its acknowledgement.

    Attributes:
        queue: the queue it belongs to.
        builder: its bytes; None once it is settled or split.
        created: loop time of the first record, seconds.
        serial: its place in the queue: greater than that of every batch that goes before it.
        attempts: how often it was sent.
        not_before: loop time before which it is not sent again.
        base_sequence: its place in the producer's sequence (KIP-98); -1 until it is first sent.
        size: bytes of its header and records, uncompressed.
        memory: bytes it holds of the buffer memory.
        count: records.
        is_done: whether it was acknowledged or given up.
        error: what it was given up for; None otherwise.
        base_offset: where the log has its first record; -1 if that is not known.
        log_append_time: milliseconds since the Unix epoch if the log stamps its records, else -1.
    """

    def __init__(
        self, queue: Any, builder: Any, created: float, serial: cython.longlong, first: cython.int
    ) -> None:
        self.queue = queue
        self.builder = builder
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
        self._lost: Any = None  # once it is given up: its builder, then the records read from it
        self.base_offset = NO_OFFSET
        self.log_append_time = NO_TIMESTAMP
        self._sent_to: Any = None
        self._first = first  # its first record's index in the batch that it was split from
        self._parts: list[Any] | None = None
        self._future: Future[None] | None = None
        self._callbacks: list[Any] | None = None
        self._share: Any = None
        self._deliveries: Any = None
        self._older: Any = None
        self._newer: Any = None

    @cython.cfunc
    def _settle(
        self, error: Any, base_offset: cython.longlong, log_append_time: cython.longlong
    ) -> list[Any]:
        """Mark it done; returns functions and their deliveries, in turn, to be called unlocked.

        The records of a batch that is given up stay readable as long as a delivery is held.
        """
        if error is not None:
            self._lost, self.builder = self.builder, None
        self.error = error
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.is_done = True
        return self._let_go()

    @cython.cfunc
    def _replace(self, parts: list[Any]) -> list[Any]:
        """Leave its records to these; returns as `_settle`, for the parts to call."""
        self._parts = parts
        return self._let_go()

    def _let_go(self) -> list[Any]:
        # Deliveries that are kept must not keep the bytes.
        if self.builder is not None:
            self.builder.release()
        self.builder = None
        self._share = None
        self._deliveries = None
        future, self._future = self._future, None
        if future is not None:
            future.set_result(None)
        callbacks, self._callbacks = self._callbacks, None
        return callbacks if callbacks is not None else []

    @property
    def lost(self) -> int:
        """How many of its records were given up, those of its parts included."""
        if self._parts is not None:
            return sum(part.lost for part in self._parts)
        return self.count if self.error is not None else 0

    @property
    def reason(self) -> Any:
        """The first error of those that were given up; None if there are none."""
        if self._parts is not None:
            return next((part.reason for part in self._parts if part.lost), None)
        return self.error

    def lost_record(self, index: cython.Py_ssize_t) -> Record:
        """One record of a batch that was given up, by its place among them."""
        lost = self._lost
        if not isinstance(lost, list):
            # All at once: a caller that reads one mostly reads the others too.
            lost = self._lost = lost.records()
        return lost[index]._replace(
            topic=self.queue.topic, partition=self.queue.partition, offset=NO_OFFSET
        )

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for it to be settled."""
        return self._future is not None

    def future(self) -> Any:
        """A future that ends when the batch is settled or split. Under the lock."""
        if self._future is None:
            future: Future[None] = Future()
            if self.is_done or self._parts is not None:
                future.set_result(None)
                return future
            self._future = future
        return self._future

    @cython.cfunc
    def _call_back(self, function: Any, delivery: Any) -> Any:
        """Have `function(delivery)` called when the batch is settled."""
        if self._callbacks is None:
            self._callbacks = []
        if cython.compiled:
            self._callbacks.append(function)
            self._callbacks.append(delivery)
        else:
            self._callbacks.extend((function, delivery))  # both, wherever Ctrl-C strikes
        return None

    @cython.cfunc
    def _call_back_for_last(self, function: Any, timestamp: cython.longlong) -> Any:
        """Have `function` called with the delivery of the record that it took last."""
        deliveries = self._deliveries
        if (
            deliveries is not None
            and deliveries._function is function
            and deliveries._timestamp == timestamp
            and deliveries._index + deliveries._count == self.count - 1
        ):
            deliveries._count += 1
        else:
            deliveries = Deliveries(self, self.count - 1, 1, timestamp, function)
            self._deliveries = deliveries
            self._call_back(function, deliveries)
        return None


# Without the garbage collector: it refers to its batch alone, and that refers to deliveries only
# until it is settled. Millions of them may live, and none is worth a visit.
@cython.final
@cython.no_gc
@cython.freelist(4096)
@cython.cclass
class Delivery:
    """What becomes of one sent record. Wait with `.result()` or `await`, or be called back."""

    _batch: Batch
    _index: cython.int
    _timestamp: cython.longlong

    def __init__(self) -> None:
        raise UsageError("a Delivery is what send returns; it cannot be made otherwise")

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return refuse_copying(self, protocol)

    def __eq__(self, other: object) -> bool:
        """Whether both are of the same record: a callback is handed a delivery of its own."""
        if not isinstance(other, Delivery):
            return False
        same = cython.cast(Delivery, other)
        return self._index == same._index and self._holder() is same._holder()

    def __hash__(self) -> int:
        return hash((id(self._batch.queue), self._index))

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._holder().is_done

    @cython.annotation_typing(False)
    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record was stored, waiting for it if need be.

        Args:
            timeout: seconds to wait at most; None waits as long as `delivery.timeout.ms` lets it.

        Raises:
            BrokerError: the broker refused the record, or its batch.
            KafkaError: it refused the batch because of other records.
            Unavailable: it was not acknowledged in time; it may be stored.
            UsageError: the producer belongs to the process that this one was forked from; or the
                outcome is not known, and the caller is what makes it known: a delivery callback, a
                partitioner, or a coroutine on the producer's loop, which is to `await` it.
            TimeoutError: no outcome within `timeout`.
        """
        return self._metadata(self._wait(checked_seconds("timeout", timeout)))

    @cython.annotation_typing(False)
    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error the record ended with, None if it is stored; waits like `result`."""
        batch = self._wait(checked_seconds("timeout", timeout))
        return None if batch.error is None else self._error(batch)

    @property
    def record(self) -> Record | None:
        """The record that failed, to be sent elsewhere, as to a dead-letter topic.

        Its offset is -1. None while the outcome is not known, and for a record that is stored: its
        bytes are not kept. Those of a failed one are, with the rest of its batch, as long as a
        delivery of that batch is held.
        """
        batch = self._holder()
        if not batch.is_done or batch.error is None:
            return None
        return batch.lost_record(self._index - batch._first)

    def add_done_callback(self, function: Callable[["Delivery"], object]) -> None:
        """Have `function(delivery)` called once, on the client's thread, when the outcome is known.

        If it is known already the call happens at once, on this thread. Keep it short: nothing is
        sent or received while it runs. An exception it raises is logged.
        """
        checked_callable("function", function)
        self._holder().queue.accumulator.call_back(self, function)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._holder()
        while not batch.is_done:
            from asyncio import shield, wrap_future

            # Shielded: whoever stops waiting must not end the wait of others.
            future = batch.queue.accumulator.future_of(batch)
            yield from shield(wrap_future(future)).__await__()
            batch = self._holder()
        return self._metadata(batch)

    @cython.cfunc
    @cython.locals(batch=Batch, part=Batch)
    def _holder(self) -> Batch:
        """The batch that has the record now: one that was too large was split."""
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
        batch = self._holder()
        if batch.is_done:
            return batch
        accumulator = batch.queue.accumulator
        deadline = None if timeout is None else accumulator.now() + timeout
        while not batch.is_done:
            wait_for(accumulator.future_of(batch), timeout, accumulator.loop)
            batch = self._holder()
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
class Deliveries:
    """Records of one batch, one after the other, of the same time and with the same callback.

    So many bytes less than a `Delivery` for each, which is made when it is called back with.
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
        """Call back for each record."""
        function = self._function
        for index in range(self._index, self._index + self._count):
            delivery = Delivery.__new__(Delivery)
            delivery._batch = self._batch
            delivery._index = index
            delivery._timestamp = self._timestamp
            try:
                function(delivery)
            except BaseException as raised:  # of whatever kind: others wait behind it
                on_error(raised)
        return None

    @cython.cfunc
    @cython.locals(part=Batch, begin=cython.int, end=cython.int)
    def _follow(self) -> Any:
        """Its batch was split: divide it among the parts."""
        for part in self._batch._parts or ():
            begin = max(self._index, part._first)
            end = min(self._index + self._count, part._first + part.count)
            if begin < end:
                part._call_back(
                    self._function,
                    Deliveries(part, begin, end - begin, self._timestamp, self._function),
                )
        return None


@cython.final
@cython.cclass
class Share:
    """What one batch took of the rows of a table, one after the other.

    Attributes:
        batch: which tells what became of them.
        count: rows.
        first, last: their places in the batch, from 0.
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
    def _follow(self) -> Any:
        """Its batch was split: divide it among the parts."""
        for part in self.batch._parts or ():
            begin = max(self._index, part._first)
            end = min(self._index + self.count, part._first + part.count)
            if begin < end:
                part._call_back(self._settle, Share(part, begin, end - begin, self._settle))
        return None


def copy_of(error: Any) -> Any:
    """One that can be raised: many records share a batch's error, and raising one changes it."""
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
        topic_queues: the topic's.
        batches: those that wait.
        in_flight: those that await their acknowledgement, in the order they were sent.
        node: its leader's load; None while there is no leader.
        queued_bytes: bytes of `batches`, uncompressed.
        turns: how often the partitioner chose it.
        state: the sender's own.
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
        self.state: Any = None
        self._chosen_bytes = 0
        self._open: Any = None  # the last batch, while it takes records
        self._is_noted = False

    @property
    def head_is_complete(self) -> bool:
        """Whether the oldest batch takes no more records."""
        return len(self.batches) > 1 or (len(self.batches) == 1 and self._open is None)

    @property
    def chosen_bytes(self) -> int:
        """Bytes that came by the partitioner's choice, as they are expected to be sent."""
        topic_queues = self.topic_queues
        if topic_queues.current != self.partition:
            return self._chosen_bytes
        return self._chosen_bytes + topic_queues._produced - topic_queues._brought

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @cython.cfunc
    def _lead(self, node: NodeLoad | None) -> Any:
        """Another broker leads it from now on: its queue is that broker's load."""
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
    def _mend(self) -> Any:
        """Derive what is counted from the batches that wait: a change was interrupted."""
        self.queued_bytes = 0
        last = None
        for batch in self.batches:
            last = batch
            batch.count = batch.builder.count
            batch.size = batch.builder.size
            batch.memory = batch.builder.capacity
            self.queued_bytes += batch.size
        if last is not self._open:
            self._open = None
        if self.node is not None:
            self.node.queued_batches += len(self.batches)
            self.node.queued_bytes += self.queued_bytes
        return None

    @cython.cfunc
    def _send(self, batch: Batch) -> Any:
        self.in_flight.append(batch)
        batch._sent_to = self.node
        if self.node is not None:
            self.node.in_flight_batches += 1
            self.node.in_flight_bytes += batch.size
        return None

    @cython.cfunc
    def _end_flight(self, batch: Batch) -> Any:
        self.in_flight.remove(batch)
        node = batch._sent_to
        if node is not None:
            node.in_flight_batches -= 1
            node.in_flight_bytes -= batch.size
            batch._sent_to = None
        return None


@cython.final
@cython.cclass
class TopicQueues:
    """One topic's queues, and the turn that its partitioner has given.

    To partitioners it is the load they decide with: every answer costs O(1).

    Attributes:
        view: the topic as metadata last described it.
        queues: by partition.
        partitioner: what was made for this topic.
        compression_ratio: compressed to uncompressed bytes, as lately seen.
        current: the partition whose turn it is, -1 before the first.
        switches: turns that began in another partition than the last one.
    """

    def __init__(
        self,
        accumulator: Any,
        view: Any,
        partitioner: Any,
        quantum: cython.longlong,
        ignores_keys: cython.bint,
        rack: str | None,
    ) -> None:
        self.view = view
        self.queues: list[PartitionQueue] = []
        self.partitioner = partitioner
        self.compression_ratio = 1.0
        self.switches = 0
        self.current = -1
        self._rack_bytes = 0
        self._accumulator = accumulator
        self._rack = rack
        self._resized: set[int] = set()
        self._used: dict[int, None] = {}
        self._is_in_doubt = False
        self._is_due = False  # whether an eager partitioner is to be asked
        self._unsettled = 0  # batches
        self._last_used = accumulator.now()
        self._partition_count = 0
        self._is_per_record = hasattr(partitioner, "partition")
        self._is_told_of_new_batches = hasattr(partitioner, "on_new_batch")
        self._turns_by_batch = getattr(partitioner, "turns_by_batch", False)
        self._observes = hasattr(partitioner, "observe")
        self._is_eager = getattr(partitioner, "is_eager", False)
        self._ignores_keys = ignores_keys
        self._quantum = quantum
        self._produced = 0  # of the current turn
        self._brought = 0  # with which it began

    @property
    def chosen_rack_bytes(self) -> int:
        """Bytes that came by the partitioner's choice while their leader was in the client's rack.

        As they are expected to be sent; 0 without rack awareness.
        """
        if self.current < 0 or not self._is_in_rack(self.current):
            return self._rack_bytes
        return self._rack_bytes + self._produced - self._brought

    @cython.cfunc
    @cython.locals(queue=PartitionQueue)
    def _mend(self) -> list[Any]:
        """Derive all that is counted from the batches: a change was interrupted. Returns those."""
        found: list[Any] = []
        for queue in self.queues:
            queue._mend()
            found.extend(queue.batches)
            found.extend(queue.in_flight)
            self._resized.add(queue.partition)
            if queue.batches:
                self._used[queue.partition] = None
        self._unsettled = len(found)
        self._is_in_doubt = True
        return found

    # what partitioners ask

    def queued_batches(self, partition: cython.int) -> int:
        """Batches that wait in a partition's queue."""
        return len(self.queues[partition].batches)

    @cython.locals(queue=PartitionQueue)
    def queued_bytes(self, partition: cython.int) -> int:
        """Bytes that wait in a partition's queue, uncompressed."""
        queue = self.queues[partition]
        return queue.queued_bytes

    def take_resized(self) -> Collection[int]:
        """The partitions whose `queued_batches` may have changed since this was last called."""
        resized, self._resized = self._resized, set()
        return resized

    def used(self) -> Collection[int]:
        """The partitions that ever had a batch."""
        return self._used.keys()

    @cython.locals(queue=PartitionQueue)
    def node(self, partition: cython.int) -> NodeLoad | None:
        """The load of a partition's leader; None while there is no leader."""
        queue = self.queues[partition]
        return queue.node

    def unavailable(self) -> frozenset[int]:
        """Node ids of leaders that take nothing at the moment (KIP-794)."""
        ask = self._accumulator.unavailable
        return self._accumulator.published if ask is None else ask()

    def now(self) -> float:
        """The loop's time, seconds."""
        return self._accumulator.now()

    # turns

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_over(self, queue: PartitionQueue) -> cython.bint:
        """A turn by bytes ends with a full batch (KAFKA-14156), or after two quanta."""
        if self._turns_by_batch or self._produced < self._quantum:
            return False
        return queue._open is None or self._produced >= 2 * self._quantum

    @cython.cfunc
    def _may_stay(self) -> cython.bint:
        """Ask the partitioner whether the turn may go on."""
        self._is_in_doubt = False
        return self.partitioner.may_stay(self.view, self.current, self)

    @cython.cfunc
    @cython.locals(queue=PartitionQueue)
    def _turn(self) -> PartitionQueue:
        """Ask the partitioner whose turn it is now."""
        overshoot = max(0, self._produced - self._quantum)
        self._is_in_doubt = False
        chosen, brought = self.partitioner.next_turn(self.view, self.current, overshoot, self)
        self._end_turn()
        if chosen != self.current:
            self.switches += 1
        self.current = chosen
        self._produced = brought
        self._brought = brought
        queue = self.queues[chosen]
        queue.turns += 1
        return queue

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, produced=cython.longlong)
    def _end_turn(self) -> Any:
        if self.current >= 0:
            produced = self._produced - self._brought
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
    """All batches that are neither acknowledged nor given up, from the oldest to the newest.

    Any of them leaves it in O(1), and the oldest is known without a search.
    """

    def __init__(self) -> None:
        self.oldest: Batch | None = None
        self.newest: Batch | None = None

    @cython.cfunc
    @cython.locals(newer=Batch)
    def add(self, batch: Batch, older: Batch | None) -> Any:
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
    def remove(self, batch: Batch) -> Any:
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
    def mend(self, batches: list[Any]) -> Any:
        """Chain exactly these, by their age: a change was interrupted."""
        self.oldest = self.newest = None
        for batch in sorted(batches, key=_age):
            self.add(batch, self.newest)
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
