# mypy: allow-untyped-decorators, no-warn-return-any
"""The caller's side of the accumulator: which partition a record goes to.

    partition given ─────────────────────────────▶ its queue's open batch, or a new one
    else key hashed, or hot (`KeyedPlacement`) ──▶
    else the topic's partitioner: per record ────▶
                                  or by turns ───▶

A record is encoded here, once, straight into the batch that will be sent. This is the hot path: one
call for each record. The accumulator's lock guards every change of a queue, except in the compiled
common case, which runs no Python code and so holds the interpreter lock throughout.

Source: KIP-480, KIP-794; `RecordAccumulator.append`, `BuiltInPartitioner`.
"""

from typing import Any

import cython

from trimtab.client.accumulator.hot_keys_cy import TreatedKey
from trimtab.client.accumulator.keyed_placement_cy import KeyedPlacement
from trimtab.client.accumulator.memory_cy import MemoryRequest
from trimtab.client.accumulator.outgoing_cy import OutgoingRecord, bound
from trimtab.client.accumulator.queues_cy import (
    Batch,
    Delivery,
    PartitionQueue,
    RowRun,
    TopicQueues,
    copy_of,
)
from trimtab.kafka.arguments import (
    MAX_INT32,
    MAX_TIME,
    checked_callable,
    checked_integer,
    checked_time,
    checked_topic,
)
from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.batch_cy import BatchBuilder
from trimtab.kafka.wire.rows_cy import Rows

if cython.compiled:
    from cython.cimports.cpython.time import time as machine_clock
    from cython.cimports.trimtab.client.accumulator.keyed_placement_cy import (
        of_hash,
    )
    from cython.cimports.trimtab.client.accumulator.outgoing_cy import (  # type: ignore[no-redef]
        bound,
    )
    from cython.cimports.trimtab.client.partitioner.murmur2_cy import murmur2
else:
    from trimtab.client.accumulator.keyed_placement_cy import of_hash

# Rows taken from a table before other threads may run.
_ROWS_AT_ONCE = cython.declare(cython.Py_ssize_t, 4096)

_MAX_INT32 = cython.declare(cython.longlong, MAX_INT32)
_MAX_TIME = cython.declare(cython.longlong, MAX_TIME)


@cython.cclass
class Placement(KeyedPlacement):
    """Chooses each record's partition. `Accumulator` has the arguments and adds the sender's side;
    `JavaAccumulator` has the other strategy for turns."""

    def append(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp: Any,
        on_delivery: Any = None,
    ) -> Delivery | None:
        """Add one record to its partition's open batch.

        Args:
            timestamp: milliseconds since the Unix epoch; None for now.
            on_delivery: called with the `Delivery` when the outcome is known.

        Returns: its `Delivery`; None if topic or partition is not known yet or the buffer memory is
            used up: the caller waits for that and tries again.

        Raises:
            UsageError: the producer is closed, the record is too large, the partition is negative,
                or key, value or headers are not bytes.
        """
        return self.append_record(
            topic, value, key, headers, partition, timestamp, on_delivery, None
        )

    def append_granted(
        self,
        memory_request: MemoryRequest | None,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp: Any,
        on_delivery: Any = None,
    ) -> Delivery | None:
        """`append` for a sender that waited until `memory_request` was granted.

        With a request, None is returned only if the topic or partition is no longer known.
        """
        return self.append_record(
            topic, value, key, headers, partition, timestamp, on_delivery, memory_request
        )

    @cython.cfunc
    @cython.locals(
        topic_queues=TopicQueues,
        record=OutgoingRecord,
        batch=Batch,
        delivery=Delivery,
        size=cython.longlong,
        time=cython.longlong,
    )
    def append_record(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp: Any,
        on_delivery: Any,
        memory_request: MemoryRequest | None,
    ) -> Any:
        """`append` and `append_granted`, for compiled callers."""
        if type(topic) is not str:
            topic = checked_topic(topic)
        size = bound(value, key, headers)
        if size > self._max_request_size:
            raise self._too_large(topic, size, "")
        time = self._wall_ms() if timestamp is None else _time_of(timestamp)
        if partition is not None:
            partition = _partition_of(partition)
        if on_delivery is not None and not callable(on_delivery):
            checked_callable("on_delivery", on_delivery)
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            return None
        if partition is not None and partition >= topic_queues._partition_count:
            return None
        if (
            cython.compiled
            and self.memory.used + size <= self.memory.room
            and not headers
            and (value is None or type(value) is bytes)
            and (key is None or type(key) is bytes)
        ):
            # This changes the queue without running Python code, so no other thread can run
            # meanwhile: the interpreter lock suffices.
            found = self._add_to_open(topic_queues, time, key, value, partition, on_delivery)
            if found is not None:
                return found
        if self.is_abandoned:
            raise copy_of(self._refusal)
        delivery = None
        try:
            self._acquire()
            self._refuse()
            if memory_request is not None:
                self.memory.remove(memory_request)
            if memory_request is not None or self.memory.has_room(size):
                record = OutgoingRecord(key, value, headers, time, None)
                batch = self._place(topic_queues, self._choose(topic_queues, partition), record)
                delivery = self._deliver(batch, time, on_delivery)
                self._after_append(batch, batch.count == 1)
            self._release()
        except BaseException as raised:
            self._recover(raised)
            raise
        return delivery

    @cython.cfunc
    @cython.locals(seconds=cython.double)
    def _wall_ms(self) -> cython.longlong:
        """Milliseconds since the Unix epoch, by `wall_clock`."""
        if cython.compiled and self._is_machine_clock:
            seconds = machine_clock()
        else:
            seconds = self._wall_clock()
        return cython.cast(cython.longlong, seconds * 1000.0)

    @cython.cfunc
    @cython.locals(
        batch=Batch,
        builder=BatchBuilder,
        queue=PartitionQueue,
        delivery=Delivery,
        before=cython.longlong,
        grown=cython.longlong,
        in_turn=cython.bint,
        key_hash=cython.longlong,
        hot_key=TreatedKey,
    )
    def _add_to_open(
        self,
        topic_queues: TopicQueues,
        time: cython.longlong,
        key: Any,
        value: Any,
        partition: Any,
        on_delivery: Any,
    ) -> Any:
        """The common case: the record fits into an open batch, and the partitioner is not asked.
        Otherwise returns None."""
        in_turn = False
        key_hash = -1
        hot_key = None
        headers: Any = None
        if partition is not None:
            queue = self._choose(topic_queues, partition)
        elif topic_queues._is_per_record:
            return None
        elif key is not None and not topic_queues._ignores_keys:
            key_hash = murmur2(key)
            if topic_queues.hot is not None:
                hot_key = self._hot_key(topic_queues, key_hash)
            if hot_key is None:
                queue = topic_queues.queues[of_hash(key_hash, topic_queues._partition_count)]
            else:
                queue = hot_key.turn()
                if queue is None:
                    return None
                headers = hot_key.encoded_mark()
        else:
            queue = topic_queues._unquestioned
            if queue is None or self._must_ask(topic_queues) or topic_queues._is_over(queue):
                return None
            in_turn = True
        batch = queue._open
        if batch is None:
            return None
        builder = batch.builder
        before = self._estimate(builder)
        grown = builder.append(time, key, value, headers)
        if grown == 0:
            return None
        if hot_key is not None:
            hot_key.go_on(grown)
        if in_turn:
            topic_queues._turn_bytes += self._estimate(builder) - before
        self._count(batch, 1, grown)
        delivery = self._deliver(batch, time, on_delivery)
        if self._is_full(builder):
            self._complete_open(queue)
        if key_hash >= 0 and topic_queues.keys.is_due():
            self._count_key(topic_queues, key_hash, key, value)
        return delivery

    @cython.cfunc
    def _choose(self, topic_queues: TopicQueues, partition: Any) -> PartitionQueue | None:
        """The queue of the given partition; None without a given partition."""
        if partition is None:
            return None
        chosen: cython.Py_ssize_t = partition
        if chosen < 0 or chosen >= topic_queues._partition_count:
            raise _no_partition(topic_queues, chosen, "")
        return topic_queues.queues[chosen]

    @cython.cfunc
    @cython.locals(key_hash=cython.longlong)
    def _place(
        self, topic_queues: TopicQueues, queue: PartitionQueue | None, record: OutgoingRecord
    ) -> Batch:
        """Append a record to `queue` if given, else by its key's hash, else by the partitioner."""
        if queue is not None:
            return self._put_outside_turn(queue, record)
        if topic_queues._is_per_record:
            return self._place_by_partitioner(topic_queues, record)
        if record.may_have_key and not topic_queues._ignores_keys:
            key_hash = record.key_hash()
            if key_hash >= 0:
                return self._place_by_key(topic_queues, key_hash, record)
        return self._place_in_turn(topic_queues, record)

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, batch=Batch, goes_on=cython.bint)
    def _place_in_turn(self, topic_queues: TopicQueues, record: OutgoingRecord) -> Batch:
        """Append it to the partition of the current turn, or begin a turn first."""
        goes_on = topic_queues.current >= 0
        if goes_on:
            queue = topic_queues.queues[topic_queues.current]
            goes_on = not topic_queues._is_over(queue)
        if goes_on and (topic_queues._unquestioned is None or self._must_ask(topic_queues)):
            goes_on = topic_queues._may_stay()
        if not goes_on:
            queue = topic_queues._turn()
        batch = queue._open
        if batch is not None:
            if self._put(queue, record, True):
                return batch
            self._complete_open(queue)
        # A new batch is needed. That ends a turn that is counted in batches (KIP-480), or is over,
        # or whose partition the partitioner no longer allows.
        if (
            topic_queues._turns_by_batch
            or topic_queues._is_over(queue)
            or (goes_on and not topic_queues._may_stay())
        ):
            queue = topic_queues._turn()
        return self._put_into(queue, record, True)

    @cython.cfunc
    @cython.locals(queue=PartitionQueue, batch=Batch)
    def _place_by_partitioner(self, topic_queues: TopicQueues, record: OutgoingRecord) -> Batch:
        """Append it to the partition that the topic's per-record partitioner returns."""
        queue = self._ask_partitioner(topic_queues, record)
        if topic_queues._is_notified_of_new_batches:
            batch = queue._open
            if batch is not None:
                if self._put(queue, record, False):
                    return batch
                self._complete_open(queue)
            # KIP-480: when a new batch is needed, the partitioner is asked a second time.
            topic_queues.partitioner.on_new_batch(topic_queues.view, queue.partition)
            queue = self._ask_partitioner(topic_queues, record)
        return self._put_into(queue, record, False)

    @cython.cfunc
    @cython.locals(chosen=cython.Py_ssize_t)
    def _ask_partitioner(self, topic_queues: TopicQueues, record: OutgoingRecord) -> PartitionQueue:
        try:
            chosen = topic_queues.partitioner.partition(
                topic_queues.view, record.key_bytes(), record.value_bytes()
            )
        except Exception as raised:
            self._error_before_change = raised
            raise
        if chosen < 0 or chosen >= topic_queues._partition_count:
            raise _no_partition(topic_queues, chosen, "")
        return topic_queues.queues[chosen]

    @cython.cfunc
    @cython.locals(delivery=Delivery)
    def _deliver(self, batch: Batch, time: cython.longlong, on_delivery: Any) -> Delivery:
        """The delivery of a batch's last record."""
        delivery = Delivery.__new__(Delivery)
        delivery._batch = batch
        delivery._index = batch.count - 1
        delivery._timestamp = time
        if on_delivery is not None:
            batch._call_back_for_last(on_delivery, time)
        return delivery

    @cython.cfunc
    @cython.locals(queue=PartitionQueue)
    def _after_append(self, batch: Batch, is_new: cython.bint) -> Any:
        """After records were appended to a batch: close it if full, and wake the sender.

        Called last, because waking the sender lets other threads run.
        """
        queue = batch.queue
        if queue._open is batch and self._is_full(batch.builder):
            self._complete_open(queue)
        elif is_new and len(queue.batches) == 1:
            self._notify_sender(queue)
        return None

    @cython.locals(topic_queues=TopicQueues, record=OutgoingRecord, end=cython.Py_ssize_t)
    def append_rows(
        self,
        topic: Any,
        rows: Rows,
        first: cython.Py_ssize_t,
        memory_request: MemoryRequest | None = None,
    ) -> int:
        """Append the rows of a table from `first` on, each as `append` would, in one loop.

        For each batch that received rows, `rows.settle` is called with their `RowRun` when the
        outcome is known. Other threads may run after every 4096 rows.

        Args:
            memory_request: the granted request for memory of a sender that waited.

        Returns: the first row that was not appended, because topic or partition is not known yet or
            memory is used up; the number of rows if all were appended.

        Raises:
            UsageError: the producer is closed, or a row is too large; earlier rows were appended.
        """
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            return first
        row: cython.Py_ssize_t = first
        record = OutgoingRecord(None, None, None, 0, rows)
        while row < rows.length:
            end = min(row + _ROWS_AT_ONCE, rows.length)
            rows.now = self._wall_ms()
            try:
                self._acquire()
                self._refuse()
                if memory_request is not None:
                    self.memory.remove(memory_request)
                row = self._append_some(topic_queues, record, row, end, memory_request is not None)
                memory_request = None
                self._release()
            except BaseException as raised:
                self._recover(raised)
                raise
            if row < end:
                break
            if cython.compiled:
                with cython.nogil:
                    pass
        return row

    @cython.cfunc
    @cython.locals(
        rows=Rows,
        batch=Batch,
        queue=PartitionQueue,
        row_run=RowRun,
        row=cython.Py_ssize_t,
        is_new=cython.bint,
    )
    def _append_some(
        self,
        topic_queues: TopicQueues,
        record: OutgoingRecord,
        first: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        is_granted: cython.bint,
    ) -> cython.Py_ssize_t:
        rows = cython.cast(Rows, record.rows)
        row = first
        while row < end:
            rows.seek(row)
            if rows.bound > self._max_request_size:
                raise self._too_large(topic_queues.view.name, rows.bound, f"row {row}: ")
            if rows.partition >= topic_queues._partition_count:
                return row
            if not is_granted and not self.memory.has_room(rows.bound):
                return row
            is_granted = False
            queue = None if rows.partition < 0 else topic_queues.queues[rows.partition]
            batch = self._place(topic_queues, queue, record)
            row_run = batch._row_run
            if (
                row_run is None
                or row_run._settle is not rows.settle
                or row_run._index + row_run.count != batch.count - 1
            ):
                row_run = RowRun(batch, batch.count - 1, 0, rows.settle)
                batch._row_run = row_run
                batch._call_back(rows.settle, row_run)
            row_run.count += 1
            row += 1
            is_new = batch.count == 1
            if batch.queue._open is batch and self._are_all_in_turn(topic_queues, record):
                row = self._append_run(topic_queues, rows, batch, row, end)
            self._after_append(batch, is_new)
        return end

    @cython.cfunc
    @cython.exceptval(check=False)
    def _are_all_in_turn(self, topic_queues: TopicQueues, record: OutgoingRecord) -> cython.bint:
        """Whether all rows go to the current turn's partition without asking the partitioner."""
        return not (
            cython.cast(Rows, record.rows).has_partitions
            or (record.may_have_key and not topic_queues._ignores_keys)
            or topic_queues._unquestioned is None
            or self._must_ask(topic_queues)
        )

    @cython.cfunc
    @cython.exceptval(check=False)
    def _must_ask(self, topic_queues: TopicQueues) -> cython.bint:
        """Whether the load has changed for a partitioner that follows it."""
        return topic_queues._follows_load and topic_queues._asked_at != self.load_changes

    @cython.cfunc
    @cython.locals(
        batch=Batch,
        builder=BatchBuilder,
        row=cython.Py_ssize_t,
        grown=cython.longlong,
        before=cython.longlong,
        size=cython.longlong,
        most=cython.longlong,
    )
    def _append_run(
        self,
        topic_queues: TopicQueues,
        rows: Rows,
        batch: Batch,
        first: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """The common case: append further rows that fit into the turn's open batch, and count them
        together."""
        builder = batch.builder
        size = builder.size
        before = self._estimate(builder)
        most = before + 2 * topic_queues._quantum - topic_queues._turn_bytes
        row = first
        while row < end and self._estimate(builder) < most:
            rows.seek(row)
            if (
                rows.bound > self._max_request_size
                or self.memory.used + rows.bound > self.memory.room
            ):
                break
            grown = builder.append_row(rows)
            if grown == 0:
                break
            if batch.memory != builder.capacity:
                self._count_memory(batch)
            row += 1
        size = builder.size - size
        topic_queues._turn_bytes += self._estimate(builder) - before
        batch._row_run.count += cython.cast(cython.int, row - first)
        self._count(batch, cython.cast(cython.int, row - first), size)
        return row


@cython.cfunc
@cython.locals(time=cython.longlong)
def _time_of(timestamp: Any) -> cython.longlong:
    """A record's time in milliseconds, -1 for none, checked."""
    if type(timestamp) is int:
        try:
            time = timestamp
        except OverflowError:  # compiled: more than 64 bits
            time = -2
        if -1 <= time <= _MAX_TIME:
            return time
    return checked_time("timestamp", timestamp, -1)


@cython.cfunc
@cython.locals(number=cython.int)
def _partition_of(partition: Any) -> Any:
    """A given partition number, checked; whether the partition exists is checked later."""
    if type(partition) is int:
        try:
            number = partition
        except OverflowError:
            number = -1
        if 0 <= number <= _MAX_INT32:
            return partition
    return checked_integer("partition", partition)


def _no_partition(topic_queues: TopicQueues, partition: int, which: str) -> UsageError:
    return UsageError(
        f"{which}partition {partition} of topic {topic_queues.view.name} does not exist; it"
        f" has partitions 0 to {topic_queues._partition_count - 1}"
    )
