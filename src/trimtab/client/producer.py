"""Producers: `send` records to topics, on any thread or, with `AsyncProducer`, on an event loop.

with Producer("127.0.0.1:9092", linger_ms=10) as producer:
    delivery = producer.send("flights", b"...", key=b"UA")
    producer.flush()
    print(delivery.result())

Both classes share the core in `producer_core.py`; each adds its own way to wait: by blocking the
thread, or by awaiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random
from types import TracebackType

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.intake_cy import AsyncIntake, Intake
from trimtab.client.accumulator.memory_cy import MemoryRequest
from trimtab.client.accumulator.outgoing_cy import bound
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.accumulator.table import Column, TableDelivery, append_table
from trimtab.client.arguments import checked_seconds, checked_topic, refuse_copying
from trimtab.client.metrics_cy import Snapshot
from trimtab.client.options import producer_options
from trimtab.client.partitioner.partitioning import Partitioning
from trimtab.client.producer_core import Core
from trimtab.client.sender.group_offsets import ConsumerGroup, OffsetAndMetadata
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.client.topic_view import TopicView
from trimtab.errors import TransactionError, UsageError
from trimtab.records import Headers, TopicPartition
from trimtab.runtime.clock import monotonic_clock, wall_clock
from trimtab.runtime.loop_thread import LoopThread, shared
from trimtab.runtime.unclosed import close_when_collected
from trimtab.runtime.waiting import wait_for
from trimtab.wire.rows_cy import Rows

INTERRUPT_GRACE = 1.0
"""Seconds that `close` waits for buffered records after Ctrl-C ended the `with` block."""


class Producer(Intake):
    """Sends records from any thread: encodes them there, and sends them from a shared loop thread.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name. Or a
            dictionary of options, to which keyword arguments may add.
        options: Kafka's producer options, dotted or in snake case, such as `linger_ms=10`.
            `partitioner_class` takes "round_robin", "sticky", "uniform_sticky", a callable
            `(topic, key, value, partitions, available) -> partition`, a class with that as its
            method `partition`, or None for Kafka's logic.

    Close it with `with` or `close()`, which sends the buffered records. An unclosed producer is
    closed when the interpreter exits, which waits up to 30 s for all producers together, or, with a
    ResourceWarning, when it is garbage-collected. Then the log says how many records were lost, and
    an open transaction is aborted.

    A delivery callback or a partitioner must not call a client's method that waits: that raises
    UsageError. In a process forked from the producer's own every method raises UsageError.

    Raises:
        UsageError: an unknown option, or a value that is out of range.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        **options: object,
    ) -> None:
        checked, custom = producer_options(bootstrap_servers, options)
        name = checked.name_of(self)
        self._thread: LoopThread = shared()

        async def start() -> Core:
            # Not the loop's time(): uvloop does not update it while the loop waits for events.
            return Core(checked, custom, monotonic_clock, wall_clock, Random(), name)

        try:
            self._core = self._thread.run(start)
            super().__init__(self._core.accumulator)
            self._thread.entrust(self, name, self._core.close_unattended)
        except BaseException:
            self._thread.release_soon()
            raise

    __reduce_ex__ = refuse_copying

    def _hand_over(self) -> None:
        if not self._thread.is_current:
            self._core.let_sender_run()

    def _send_when_possible(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: Callable[[Delivery], object] | None,
    ) -> Delivery:
        accumulator = self._core.accumulator
        record = (checked_topic(topic), value, key, headers, partition, timestamp, on_delivery)
        deadline = monotonic_clock() + self._core.max_block
        memory_wait = _MemoryWait(accumulator)
        try:
            try:
                while True:
                    self._wait(memory_wait, topic, partition, bound(value, key, headers), deadline)
                    delivery = accumulator.append_granted(memory_wait.request, *record)
                    if delivery is not None:
                        return delivery
            finally:
                memory_wait.end()
        except BaseException:
            memory_wait.end()  # Ctrl-C may have interrupted the `finally`
            raise

    def _wait(
        self,
        memory_wait: _MemoryWait,
        topic: str,
        partition: int | None,
        size: int,
        deadline: float,
    ) -> None:
        """Wait until topic and partition are known; if they are, wait for buffer memory."""
        core = self._core
        memory_wait.end()
        if not core.accumulator.knows(topic, partition):
            self._thread.run(core.wait_for_topic, topic, deadline, partition)
            return
        since = monotonic_clock()
        request = memory_wait.begin(size)
        try:
            if not request.granted.done() and self._thread.is_current:
                raise UsageError(
                    "the buffer memory is full, and a delivery callback cannot wait for it: nothing"
                    " is sent meanwhile; send from another thread, or raise buffer.memory"
                )
            wait_for(request.granted, max(0.0, deadline - since), core.loop)
        except TimeoutError:
            raise core.no_memory() from None
        finally:
            core.has_waited(since)

    def send_table(
        self,
        topic: str,
        data: object,
        *,
        value: Column = "value",
        key: Column = None,
        headers: Column = None,
        partition: Column = None,
        timestamp: Column = None,
    ) -> TableDelivery:
        """Send every row of an Arrow table as a record; waits like `send`, as often as needed.

        Rows are encoded straight from Arrow's buffers, without a Python object for each row.

        Args:
            data: a pyarrow Table, RecordBatch or RecordBatchReader; anything that streams Arrow
                (polars, DuckDB, pandas); or an iterable of those.
            value, key, headers, partition, timestamp: a column's name, or a pyarrow array of the
                table's length; None: records have no such field. `append_table` in
                `client.accumulator.table` lists the types.

        Returns: one delivery for all rows; its `.result()` says how many each partition stored.

        Raises:
            UsageError: the table cannot be sent as it is; says which column and what to do.
            BrokerError: the cluster refuses the topic.
            Unavailable: topic, partition or buffer memory was not available within `max.block.ms`.
        """
        columns = _columns(value, key, headers, partition, timestamp)
        table = OpenTable(self, topic, columns)
        table.send(data)
        return table.end()

    def flush(self, timeout: float | None = None) -> None:
        """Send all buffered records, and return when each is acknowledged or has failed.

        Raises:
            Unavailable: this took longer than `timeout` seconds.
        """
        self._thread.run(self._core.flush, checked_seconds("timeout", timeout))

    def purge(self) -> int:
        """Drop every record that is not in a request in flight; returns how many.

        Their deliveries fail with Unavailable, and so does an open transaction.
        """
        core = self._core
        return core.purge_now() if self._thread.is_current else self._thread.run(core.purge)

    def partitions_for(self, topic: str) -> TopicView:
        """The topic's partitions, leaders and racks; waits for metadata up to `max.block.ms`.

        Raises:
            BrokerError: the cluster refuses the topic.
            Unavailable: no answer in time.
        """
        core = self._core
        deadline = monotonic_clock() + core.max_block
        return self._thread.run(core.wait_for_topic, checked_topic(topic), deadline)

    def partitioning(self, topic: str) -> Partitioning:
        """How the topic's records are spread now: queues, weights, excluded partitions.

        Raises:
            UsageError: this producer does not know the topic yet.
        """
        return self._core.partitioning(checked_topic(topic))

    def metrics(self) -> Snapshot:
        """All metrics under Kafka's names: `producer-metrics`, and by broker and topic
        `producer-node-metrics`, `producer-topic-metrics`, `partitioner-metrics`."""
        return self._core.snapshot()

    def init_transactions(self, after: ProducerIdentity | None = None) -> ProducerIdentity:
        """Take over the `transactional.id`: fence its older producers, and abort a transaction
        that they left open or prepared. Call it once, before the first transaction.

        Args:
            after: take over only if this is the newest producer of the id; otherwise raise
                PRODUCER_FENCED (KIP-360).

        Returns: this producer's identity, which `resume_transactions` takes in another process.

        Raises:
            BrokerError: the coordinator refuses; may be repeated once the cause is corrected.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: there is no transactional id, or the producer is already initialized.
        """
        return self._thread.run(self._core.init_transactions, after)

    def resume_transactions(self, identity: ProducerIdentity) -> None:
        """Use an identity that another process got from `init_transactions`; do not call that here.

        This fences no producer, but a newer producer of the id fences this one. Each partition may
        be sent to by only one of the producers that share the identity. `close` leaves the
        transaction open, because the other producers may still use it.

        Raises:
            UsageError: the identity has another `transactional.id`, or this producer has one.
        """
        self._thread.run(self._core.resume_transactions, identity)

    def change_transactional_id(self, transactional_id: str) -> None:
        """Go on as a new producer with this `transactional.id`, or with the same one, would, over
        the same connections. `init_transactions` or `resume_transactions` comes next.

        Between transactions, or when one is prepared: that stays prepared, for others to end.

        Raises:
            UsageError: a transaction is open, or this producer has none.
            TransactionError: the producer has failed for good.
        """
        self._thread.run(self._core.change_transactional_id, transactional_id)

    def begin_transaction(self, two_phase: bool = False) -> None:
        """Begin a transaction, which all records sent from now on belong to.

        Args:
            two_phase: whether `prepare_transaction` may be called; always allowed with
                `transaction.two.phase.commit.enable`.

        Raises:
            UsageError: not initialized, or a transaction is open.
            TransactionError: the last transaction failed.
        """
        self._thread.run(self._core.begin_transaction, two_phase)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroup | str,
    ) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447).

        Args:
            offsets: the offset of the next record to read, by partition.
            group: the consumer's membership; a group id alone fences no former member.

        Raises:
            UsageError: no transaction is open, or an argument is not as above.
            TransactionError: the commit failed, and the transaction with it; abort it.
            Unavailable: not done within `max.block.ms`; may be repeated.
        """
        self._thread.run(self._core.send_offsets, offsets, group)

    def prepare_transaction(self) -> PreparedTransaction:
        """Send the buffered records, then leave the end to `complete_transaction` (KIP-939).

        This producer can then only commit or abort. Any producer in any process can end the
        transaction with `complete_transaction`: store `str()` of the returned value for it. Closing
        this producer leaves the transaction prepared. The coordinator aborts it after
        `transaction.timeout.ms`, or never with `transaction.two.phase.commit.enable`; until it
        ends, read_committed consumers read no further.

        Raises:
            TransactionError: it cannot be committed; says whether to abort it or close.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: no transaction is open, or it was not begun with `two_phase`.
        """
        return self._thread.run(self._core.prepare_transaction)

    def complete_transaction(self, prepared: PreparedTransaction, commit: bool) -> None:
        """Commit or abort a transaction that this or another producer has prepared (KIP-939).

        This producer needs no `transactional.id`, and no `init_transactions`, which would abort the
        transaction. Repeating the call is harmless until a producer takes over the transactional
        id.

        Raises:
            BrokerError: the transaction is no longer open. PRODUCER_FENCED and
                INVALID_PRODUCER_EPOCH: the coordinator aborted it, or it had ended before its id
                was taken over. INVALID_TXN_STATE: it was aborted but should be committed, or the
                other way round.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: `prepared` is no prepared transaction.
        """
        self._thread.run(self._core.complete_transaction, prepared, commit)

    def commit_transaction(self) -> None:
        """Send the buffered records, and commit once all of them are acknowledged.

        Raises:
            TransactionError: it cannot be committed; says whether to abort it or close.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: no transaction is open.
        """
        self._thread.run(self._core.commit_transaction)

    def abort_transaction(self) -> None:
        """Drop the unsent records, and abort the transaction.

        Raises:
            TransactionError: fatal; close the producer.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: no transaction is open.
        """
        self._thread.run(self._core.abort_transaction)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A `with` block that is one transaction: committed at its end, aborted on an exception."""
        self.begin_transaction()
        try:
            yield
        except BaseException as error:
            if not _is_beyond_abort(error):
                self.abort_transaction()
            raise
        try:
            self.commit_transaction()
        except TransactionError as error:  # a commit that timed out goes on: no abort is possible
            if not error.is_fatal:
                self.abort_transaction()
            raise

    def close(self, timeout: float | None = None) -> None:
        """Flush, then close. Records not acknowledged within `timeout` seconds fail.

        An open transaction is aborted, and a `send` that still waits raises UsageError. Closing
        again, or in a forked process, does nothing.
        """
        self._thread.end(self._core.close, checked_seconds("timeout", timeout))

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(_grace(error))


class AsyncProducer(AsyncIntake):
    """`Producer` for an event loop: the same methods, awaited. Create it while the loop is running.

    It belongs to that loop. On another loop, which another thread runs, UsageError comes from every
    method that awaits, except a `send` that need not wait for metadata or buffer memory.

    An unclosed producer is closed on its loop when it is garbage-collected, or when `asyncio.run`
    ends. On a closed loop it cannot be closed: the log says how many records were lost.

    Arguments and errors are those of `Producer`'s methods.

    Args:
        bootstrap_servers, options: as for `Producer`.
        wall_clock: seconds since the Unix epoch; a simulation passes its own.
        random: used by the partitioner and for jitter; a simulation passes its own.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        *,
        wall_clock: Callable[[], float] = wall_clock,
        random: Random | None = None,
        **options: object,
    ) -> None:
        checked, custom = producer_options(bootstrap_servers, options)
        now = partial(_loop_time, asyncio.get_running_loop())
        name = checked.name_of(self)
        self._core = core = Core(checked, custom, now, wall_clock, random or Random(), name)
        self._keep_open = close_when_collected(self, name, core.close_dropped, core.unsent)
        self._is_closed = False
        super().__init__(self._core.accumulator)

    __reduce_ex__ = refuse_copying

    async def _send_when_possible(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: Callable[[Delivery], object] | None,
    ) -> Delivery:
        accumulator = self._checked_core().accumulator
        record = (checked_topic(topic), value, key, headers, partition, timestamp, on_delivery)
        deadline = self._core.now() + self._core.max_block
        memory_wait = _MemoryWait(accumulator)
        try:
            while True:
                await self._wait(
                    memory_wait, topic, partition, bound(value, key, headers), deadline
                )
                delivery = accumulator.append_granted(memory_wait.request, *record)
                if delivery is not None:
                    return delivery
        finally:
            memory_wait.end()

    async def _wait(
        self,
        memory_wait: _MemoryWait,
        topic: str,
        partition: int | None,
        size: int,
        deadline: float,
    ) -> None:
        core = self._core
        memory_wait.end()
        if not core.accumulator.knows(topic, partition):
            await core.wait_for_topic(topic, deadline, partition)
            return
        since = core.now()
        request = memory_wait.begin(size)
        try:
            async with asyncio.timeout(max(0.0, deadline - since)):
                await asyncio.wrap_future(request.granted)
        except TimeoutError:
            raise core.no_memory() from None
        finally:
            core.has_waited(since)

    async def send_table(
        self,
        topic: str,
        data: object,
        *,
        value: Column = "value",
        key: Column = None,
        headers: Column = None,
        partition: Column = None,
        timestamp: Column = None,
    ) -> TableDelivery:
        """Send every row of an Arrow table; `await` the returned delivery for the outcome."""
        columns = _columns(value, key, headers, partition, timestamp)
        table = _TableSend(self._checked_core().accumulator, checked_topic(topic), columns)
        try:
            for size, row_partition in table.append(data):
                deadline = self._core.now() + self._core.max_block
                await self._wait(table.memory_wait, topic, row_partition, size, deadline)
        finally:
            table.memory_wait.end()
        return table.end()

    async def flush(self, timeout: float | None = None) -> None:
        """Send all buffered records, and return when each is acknowledged or has failed."""
        await self._checked_core().flush(checked_seconds("timeout", timeout))

    def purge(self) -> int:
        """Drop every record that is not in a request in flight; returns how many."""
        return self._checked_core().purge_now()

    async def partitions_for(self, topic: str) -> TopicView:
        """The topic's partitions, leaders and racks; waits for metadata up to `max.block.ms`."""
        core = self._checked_core()
        return await core.wait_for_topic(checked_topic(topic), core.now() + core.max_block)

    def partitioning(self, topic: str) -> Partitioning:
        """How the topic's records are spread now: queues, weights, excluded partitions."""
        return self._core.partitioning(checked_topic(topic))

    def metrics(self) -> Snapshot:
        """All metrics under Kafka's names."""
        return self._core.snapshot()

    async def init_transactions(self, after: ProducerIdentity | None = None) -> ProducerIdentity:
        """Take over the `transactional.id`, and fence its older producers. Call it once, first."""
        return await self._checked_core().init_transactions(after)

    async def resume_transactions(self, identity: ProducerIdentity) -> None:
        """Use an identity that another process got from `init_transactions`."""
        await self._checked_core().resume_transactions(identity)

    async def change_transactional_id(self, transactional_id: str) -> None:
        """Go on as a new producer with this `transactional.id` would."""
        await self._checked_core().change_transactional_id(transactional_id)

    async def begin_transaction(self, two_phase: bool = False) -> None:
        """Begin a transaction, which all records sent from now on belong to."""
        await self._checked_core().begin_transaction(two_phase)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroup | str,
    ) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447)."""
        await self._checked_core().send_offsets(offsets, group)

    async def prepare_transaction(self) -> PreparedTransaction:
        """Send the buffered records, then leave the end to `complete_transaction` (KIP-939)."""
        return await self._checked_core().prepare_transaction()

    async def complete_transaction(self, prepared: PreparedTransaction, commit: bool) -> None:
        """Commit or abort a transaction that this or another producer has prepared (KIP-939)."""
        await self._checked_core().complete_transaction(prepared, commit)

    async def commit_transaction(self) -> None:
        """Send the buffered records, and commit once all of them are acknowledged."""
        await self._checked_core().commit_transaction()

    async def abort_transaction(self) -> None:
        """Drop the unsent records, and abort the transaction."""
        await self._checked_core().abort_transaction()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """An `async with` block that is one transaction: committed, or aborted on an exception."""
        await self.begin_transaction()
        try:
            yield
        except BaseException as error:
            if not _is_beyond_abort(error):
                await self.abort_transaction()
            raise
        try:
            await self.commit_transaction()
        except TransactionError as error:  # a commit that timed out goes on: no abort is possible
            if not error.is_fatal:
                await self.abort_transaction()
            raise

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close. Records not acknowledged within `timeout` seconds fail."""
        timeout = checked_seconds("timeout", timeout)
        if not self._is_closed and not self._core.accumulator.is_abandoned:
            core = self._checked_core()
            self._is_closed = True
            self._keep_open()
            await core.close(timeout)

    def _checked_core(self) -> Core:
        """The core, after a check that this runs on its loop.

        `send` does not check, because that would make it half as long again.
        """
        loop = self._core.loop
        if asyncio.get_running_loop() is not loop:
            state = "closed" if loop.is_closed() else "another one"
            raise UsageError(
                f"an AsyncProducer belongs to the loop it was created on, and that is {state}: "
                "create one on each loop, or use a Producer, which every thread may use"
            )
        return self._core

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(_grace(error))


def _loop_time(loop: asyncio.AbstractEventLoop) -> float:
    """A loop's time in seconds, for every loop's thread.

    uvloop's `time()` stands still while it waits for events: to another thread it may be minutes
    old. Loops that run beside others are real ones, whose time is the monotonic clock's.
    """
    running = asyncio._get_running_loop()
    return loop.time() if running is loop or running is None else monotonic_clock()


class _MemoryWait:
    """One `send` call's wait for buffer memory.

    `request` is stored before it is queued, so that an interrupted call can still withdraw it.

    Attributes:
        request: the request for memory, granted or not; None while the call does not wait.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self.request: MemoryRequest | None = None

    def begin(self, size: int) -> MemoryRequest:
        self.request = request = MemoryRequest(size)
        self._accumulator.queue_for_memory(request)
        return request

    def end(self) -> None:
        if self.request is not None:
            self._accumulator.cancel_memory_request(self.request)
            self.request = None


class _TableSend:
    """One table on its way: appends rows to the accumulator, and waits for buffer memory."""

    def __init__(self, accumulator: Accumulator, topic: str, columns: Mapping[str, Column]) -> None:
        self._accumulator = accumulator
        self._columns = columns
        self._sent = 0
        self._is_whole = True
        self.delivery = TableDelivery(topic, accumulator.loop)
        self._settle = self.delivery.settle  # one object, however many parts: see `append_table`
        self.memory_wait = _MemoryWait(accumulator)

    def append(self, data: object) -> Iterator[tuple[int, int | None]]:
        """Append every row of a part; yields as `append_table`."""
        self._check()
        self._is_whole = False
        self._sent += yield from append_table(
            self._append_rows, self.delivery.topic, self._settle, data, **self._columns
        )
        self._is_whole = True

    def end(self) -> TableDelivery:
        """No more rows follow."""
        self._check()
        self._is_whole = False
        self.delivery.end(self._sent)
        return self.delivery

    def _check(self) -> None:
        if not self._is_whole:
            raise UsageError(
                f"a table for topic {self.delivery.topic} has ended, or an error has interrupted"
                " it: open a new one for further rows"
            )

    def _append_rows(self, topic: str, rows: Rows, first: int) -> int:
        taken: int = self._accumulator.append_rows(topic, rows, first, self.memory_wait.request)
        self.memory_wait.end()
        return taken


class OpenTable:
    """`Producer.send_table` for a table that arrives in parts, with one delivery for all of them.

    A delivery costs work for each record batch that has rows of it. If each part has rows for all
    of 10,000 partitions, a delivery for each part would cost as much as one for each row.

    Args:
        columns: the arguments of `send_table` that name columns.
    """

    def __init__(self, producer: Producer, topic: str, columns: Mapping[str, Column]) -> None:
        self._producer = producer
        self._table = _TableSend(producer._core.accumulator, checked_topic(topic), columns)

    def send(self, data: object) -> None:
        """Send every row of a part.

        Raises UsageError, BrokerError and Unavailable as `Producer.send_table`. After an error, no
        further part can be sent, and the outcome of the parts before stays unknown.
        """
        producer, table = self._producer, self._table
        try:
            try:
                for size, partition in table.append(data):
                    deadline = monotonic_clock() + producer._core.max_block
                    topic = table.delivery.topic
                    producer._wait(table.memory_wait, topic, partition, size, deadline)
            finally:
                table.memory_wait.end()
        except BaseException:
            table.memory_wait.end()  # Ctrl-C may have interrupted the `finally`
            raise

    def raise_failed(self) -> None:
        """Raise TableError if rows of the parts so far were not delivered; does not wait."""
        self._table.delivery.raise_failed()

    def end(self) -> TableDelivery:
        """No more parts follow. Returns the delivery of all rows."""
        return self._table.end()


def _columns(
    value: Column, key: Column, headers: Column, partition: Column, timestamp: Column
) -> dict[str, Column]:
    return {
        "value": value,
        "key": key,
        "headers": headers,
        "partition": partition,
        "timestamp": timestamp,
    }


def _is_beyond_abort(error: BaseException) -> bool:
    """Whether the transaction cannot be aborted any more."""
    return isinstance(error, TransactionError) and error.is_fatal


def _grace(error: BaseException | None) -> float | None:
    """The timeout of closing after a `with` block that ended with this error."""
    return INTERRUPT_GRACE if isinstance(error, KeyboardInterrupt) else None
