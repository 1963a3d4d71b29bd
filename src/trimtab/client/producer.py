"""Producers: `send` records to topics, on any thread or, with `AsyncProducer`, on an event loop.

with Producer("127.0.0.1:9092", linger_ms=10) as producer:
    delivery = producer.send("flights", b"...", key=b"UA")
    producer.flush()
    print(delivery.result())

What both faces share is in `producer_core.py`. A face adds how to wait: on a thread, or awaiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.intake_cy import AsyncIntake, Intake
from trimtab.client.accumulator.memory_cy import Place
from trimtab.client.accumulator.outgoing_cy import bound
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.accumulator.table import Column, TableDelivery, append_table
from trimtab.client.arguments import checked_seconds, checked_topic, refuse_copying
from trimtab.client.metrics_cy import Snapshot
from trimtab.client.network.metadata import TopicView
from trimtab.client.options import producer_options
from trimtab.client.partitioner.partitioning import Partitioning
from trimtab.client.producer_core import Core, NoLock
from trimtab.client.sender.group_offsets import ConsumerGroup, OffsetAndMetadata
from trimtab.client.sender.prepared import PreparedTransaction, ProducerIdentity
from trimtab.errors import TransactionError, UsageError
from trimtab.records import Headers, TopicPartition
from trimtab.runtime.clock import monotonic_clock, wall_clock
from trimtab.runtime.loop_thread import LoopThread, shared
from trimtab.runtime.unclosed import close_when_collected
from trimtab.runtime.waiting import new_lock, wait_for
from trimtab.wire.rows_cy import Rows

T = TypeVar("T")

INTERRUPT_GRACE = 1.0
"""Seconds that closing gives to what waits when Ctrl-C ended the `with` block."""


class Producer(Intake):
    """Sends records from any thread. Encodes on the caller's thread; a loop thread does the rest.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name. Or a
            dictionary of options, which keyword arguments may add to.
        options: Kafka's producer options, dotted or in snake case, such as `linger_ms=10`.
            `partitioner_class` takes "round_robin", "sticky", "uniform_sticky", a callable
            `(topic, key, value, partitions, available) -> partition`, a class with that as its
            method `partition`, or None for Kafka's logic.

    Close it, by `with` or `close()`: that sends what waits. One that is never closed is closed when
    the interpreter exits, which waits up to 30 s for all producers together, and one that is
    collected in the background, with a ResourceWarning. The log says how many records were lost.
    An open transaction is then aborted.

    A delivery callback or a partitioner must not wait for a client: what would is refused with a
    UsageError. Every method raises it in a process that was forked from the producer's own.

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
            # Not the loop's time(): uvloop's stands still while the loop waits for something to do.
            return Core(checked, custom, new_lock(), monotonic_clock, wall_clock, Random(), name)

        try:
            self._core = self._thread.run(start())
            self._thread.entrust(self, name, self._core.close_unattended)
        except BaseException:
            self._thread.give_up()
            raise
        super().__init__(self._core.accumulator)

    __reduce_ex__ = refuse_copying

    def _hand_over(self) -> None:
        if not self._thread.is_current:
            self._core.await_look()

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
        line = _Line(accumulator)
        try:
            try:
                while True:
                    self._wait(line, topic, partition, bound(value, key, headers), deadline)
                    delivery = accumulator.append_from(line.place, *record)
                    if delivery is not None:
                        return delivery
            finally:
                line.leave()
        except BaseException:
            line.leave()  # Ctrl-C may have come just before that
            raise

    def _wait(
        self, line: _Line, topic: str, partition: int | None, size: int, deadline: float
    ) -> None:
        """Wait for topic and partition to be known, or else in line for memory, and be served."""
        core = self._core
        line.leave()
        if not core.accumulator.knows(topic, partition):
            self._thread.run(core.wait_for_topic(topic, deadline, partition))
            return
        since = monotonic_clock()
        place = line.stand(size)
        try:
            if not place.served.done() and self._thread.is_current:
                raise UsageError(
                    "the buffer memory is full, and a delivery callback cannot wait for it: nothing"
                    " is sent meanwhile; send from another thread, or raise buffer.memory"
                )
            wait_for(place.served, max(0.0, deadline - since), core.loop)
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
        """Put every row of an Arrow table on its way; waits as `send` does, as often as needed.

        Rows are encoded from where they lie, without a Python object for each.

        Args:
            data: a pyarrow Table, RecordBatch or RecordBatchReader; anything that streams Arrow
                (polars, DuckDB, pandas); or an iterable of those.
            value, key, headers, partition, timestamp: a column's name, or a pyarrow array of the
                table's length; None: there is none. `client.table.append_table` says which types.

        Returns: what becomes of all rows: `.result()` tells how many each partition took.

        Raises:
            UsageError: the table cannot be sent as it is; says which column and what to do.
            BrokerError: the cluster refuses the topic.
            Unavailable: topic, partition or buffer memory: not to be had within `max.block.ms`.
        """
        table = _TableWay(self._core.accumulator, checked_topic(topic))
        columns = _columns(value, key, headers, partition, timestamp)
        try:
            try:
                for size, row_partition in append_table(
                    table.append_rows, table.delivery, data, **columns
                ):
                    deadline = monotonic_clock() + self._core.max_block
                    self._wait(table.line, topic, row_partition, size, deadline)
            finally:
                table.line.leave()
        except BaseException:
            table.line.leave()  # Ctrl-C may have come just before that
            raise
        return table.delivery

    def flush(self, timeout: float | None = None) -> None:
        """Send what waits now, and return when all of it is acknowledged or given up.

        Raises:
            Unavailable: not within `timeout` seconds.
        """
        self._thread.run(self._core.flush(checked_seconds("timeout", timeout)))

    def purge(self) -> int:
        """Drop every record that is not in a request under way; returns how many.

        Their deliveries fail with Unavailable. An open transaction fails with them.
        """
        core = self._core
        return core.purge_now() if self._thread.is_current else self._run(core.purge())

    def partitions_for(self, topic: str) -> TopicView:
        """The topic's partitions, leaders and racks; waits for metadata up to `max.block.ms`.

        Raises:
            BrokerError: the cluster refuses the topic.
            Unavailable: no answer in time.
        """
        core = self._core
        deadline = monotonic_clock() + core.max_block
        return self._thread.run(core.wait_for_topic(checked_topic(topic), deadline))

    def partitioning(self, topic: str) -> Partitioning:
        """How the topic's records are spread at this moment: queues, weights, who is left out.

        Raises:
            UsageError: this producer does not know the topic yet.
        """
        return self._core.partitioning(checked_topic(topic))

    def metrics(self) -> Snapshot:
        """All metrics under Kafka's names: `producer-metrics`, and by broker and topic
        `producer-node-metrics`, `producer-topic-metrics`, `partitioner-metrics`."""
        return self._core.snapshot()

    def init_transactions(self, after: ProducerIdentity | None = None) -> ProducerIdentity:
        """Take over the `transactional.id`: older producers of it are fenced, and a transaction
        that one has open, or prepared, is aborted. Once, at first.

        Args:
            after: take it over from this one alone: if there is a newer, PRODUCER_FENCED (KIP-360).

        Returns: who this producer is now; `resume_transactions` elsewhere goes on as that.

        Raises:
            BrokerError: the coordinator refuses; may be repeated once the cause is corrected.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: there is no transactional id, or it is done already.
        """
        return self._run(self._core.init_transactions(after))

    def resume_transactions(self, identity: ProducerIdentity) -> None:
        """Instead of `init_transactions`: go on as one who took the id over in another process.

        Nobody is fenced; this one is if there is a newer. Nothing may have been sent as that one to
        a partition that this sends to. Closing aborts nothing: the transaction may be theirs too.

        Raises:
            UsageError: it has another `transactional.id`, or this producer has an identity.
        """
        self._run(self._core.resume_transactions(identity))

    def begin_transaction(self, two_phase: bool = False) -> None:
        """Begin a transaction: what is sent from now on is part of it.

        Args:
            two_phase: whether it may be prepared; with `transaction.two.phase.commit.enable` every
                one may.

        Raises:
            UsageError: not initialized, or a transaction is open.
            TransactionError: the last one failed.
        """
        self._run(self._core.begin_transaction(two_phase))

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroup | str,
    ) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447).

        Args:
            offsets: of the next record to read, by partition.
            group: the consumer's place in its group; with its id alone nobody is fenced.

        Raises:
            UsageError: no transaction is open, or an argument is not as above.
            TransactionError: the transaction failed with this; abort it.
            Unavailable: not done within `max.block.ms`; may be repeated.
        """
        self._run(self._core.send_offsets(offsets, group))

    def prepare_transaction(self) -> PreparedTransaction:
        """Send what waits, and leave commit or abort to `complete_transaction` (KIP-939).

        Once it is prepared, this producer can only commit or abort it. Any producer can, in any
        process, with `complete_transaction`: write `str()` of what this returns down for it.
        Closing this producer leaves it prepared. It lasts `transaction.timeout.ms`, and for ever
        with `transaction.two.phase.commit.enable`; readers of committed records wait meanwhile.

        Raises:
            TransactionError: it cannot be committed; says whether to abort it or close.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: no transaction is open, or it was not begun with `two_phase`.
        """
        return self._run(self._core.prepare_transaction())

    def complete_transaction(self, prepared: PreparedTransaction, commit: bool) -> None:
        """Commit or abort a transaction that this or another producer has prepared (KIP-939).

        This producer needs no `transactional.id`, and no `init_transactions`, which would abort it.
        The same again does no harm, until somebody takes its transactional id over.

        Raises:
            BrokerError: it is not open any more. PRODUCER_FENCED and INVALID_PRODUCER_EPOCH: the
                coordinator aborted it, or it had ended before its id was taken over.
                INVALID_TXN_STATE: ended in the other way.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: that is no prepared transaction.
        """
        self._run(self._core.complete_transaction(prepared, commit))

    def commit_transaction(self) -> None:
        """Send what waits, and commit the transaction once all of it is acknowledged.

        Raises:
            TransactionError: it cannot be committed; says whether to abort it or close.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: no transaction is open.
        """
        self._run(self._core.commit_transaction())

    def abort_transaction(self) -> None:
        """Drop what is not sent, and abort the transaction.

        Raises:
            TransactionError: fatal; close the producer.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: no transaction is open.
        """
        self._run(self._core.abort_transaction())

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
        except TransactionError as error:  # one that timed out goes on, and cannot be aborted
            if not error.is_fatal:
                self.abort_transaction()
            raise

    def close(self, timeout: float | None = None) -> None:
        """Flush, then close. What is not acknowledged within `timeout` seconds fails.

        An open transaction is aborted. Who waits in `send` gets a UsageError. Closing again, or in
        a forked process, does nothing.
        """
        self._thread.end(self._core.close(checked_seconds("timeout", timeout)))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(call)

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
    """`Producer` for an event loop: the same names, awaited. Make it while the loop is running.

    It belongs to that loop. On another one UsageError comes of whatever waits, sends or closes.

    One that is never closed is closed on its loop when it is collected, or when `asyncio.run` ends;
    once the loop is closed it cannot be, and the log says how many records were lost.

    Arguments and errors are those of `Producer`'s methods.

    Args:
        bootstrap_servers, options: as for `Producer`.
        wall_clock: seconds since the Unix epoch; a simulation hands in its own.
        random: where the partitioner's choices come from; a simulation hands in its own.
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
        time = asyncio.get_running_loop().time
        name = checked.name_of(self)
        self._core = core = Core(
            checked, custom, NoLock(), time, wall_clock, random or Random(), name
        )
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
        accumulator = self._here().accumulator
        record = (checked_topic(topic), value, key, headers, partition, timestamp, on_delivery)
        deadline = self._core.now() + self._core.max_block
        line = _Line(accumulator)
        try:
            while True:
                await self._wait(line, topic, partition, bound(value, key, headers), deadline)
                delivery = accumulator.append_from(line.place, *record)
                if delivery is not None:
                    return delivery
        finally:
            line.leave()

    async def _wait(
        self, line: _Line, topic: str, partition: int | None, size: int, deadline: float
    ) -> None:
        core = self._core
        line.leave()
        if not core.accumulator.knows(topic, partition):
            await core.wait_for_topic(topic, deadline, partition)
            return
        since = core.now()
        place = line.stand(size)
        try:
            async with asyncio.timeout(max(0.0, deadline - since)):
                await asyncio.wrap_future(place.served)
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
        """Put every row of an Arrow table on its way; `await` the returned delivery for all."""
        table = _TableWay(self._here().accumulator, checked_topic(topic))
        columns = _columns(value, key, headers, partition, timestamp)
        try:
            for size, row_partition in append_table(
                table.append_rows, table.delivery, data, **columns
            ):
                deadline = self._core.now() + self._core.max_block
                await self._wait(table.line, topic, row_partition, size, deadline)
        finally:
            table.line.leave()
        return table.delivery

    async def flush(self, timeout: float | None = None) -> None:
        """Send what waits now, and return when all of it is acknowledged or given up."""
        await self._here().flush(checked_seconds("timeout", timeout))

    def purge(self) -> int:
        """Drop every record that is not in a request under way; returns how many."""
        return self._here().purge_now()

    async def partitions_for(self, topic: str) -> TopicView:
        """The topic's partitions, leaders and racks; waits for metadata up to `max.block.ms`."""
        core = self._here()
        return await core.wait_for_topic(checked_topic(topic), core.now() + core.max_block)

    def partitioning(self, topic: str) -> Partitioning:
        """How the topic's records are spread at this moment: queues, weights, who is left out."""
        return self._core.partitioning(checked_topic(topic))

    def metrics(self) -> Snapshot:
        """All metrics under Kafka's names."""
        return self._core.snapshot()

    async def init_transactions(self, after: ProducerIdentity | None = None) -> ProducerIdentity:
        """Take over the `transactional.id`: older producers of it are fenced. Once, at first."""
        return await self._here().init_transactions(after)

    async def resume_transactions(self, identity: ProducerIdentity) -> None:
        """Go on as one who took the id over in another process."""
        await self._here().resume_transactions(identity)

    async def begin_transaction(self, two_phase: bool = False) -> None:
        """Begin a transaction: what is sent from now on is part of it."""
        await self._here().begin_transaction(two_phase)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroup | str,
    ) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447)."""
        await self._here().send_offsets(offsets, group)

    async def prepare_transaction(self) -> PreparedTransaction:
        """Send what waits, and leave commit or abort to `complete_transaction` (KIP-939)."""
        return await self._here().prepare_transaction()

    async def complete_transaction(self, prepared: PreparedTransaction, commit: bool) -> None:
        """Commit or abort a transaction that this or another producer has prepared (KIP-939)."""
        await self._here().complete_transaction(prepared, commit)

    async def commit_transaction(self) -> None:
        """Send what waits, and commit the transaction once all of it is acknowledged."""
        await self._here().commit_transaction()

    async def abort_transaction(self) -> None:
        """Drop what is not sent, and abort the transaction."""
        await self._here().abort_transaction()

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
        except TransactionError as error:  # one that timed out goes on, and cannot be aborted
            if not error.is_fatal:
                await self.abort_transaction()
            raise

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close. What is not acknowledged within `timeout` seconds fails."""
        timeout = checked_seconds("timeout", timeout)
        if not self._is_closed and not self._core.accumulator.is_abandoned:
            core = self._here()
            self._is_closed = True
            self._keep_open()
            await core.close(timeout)

    def _here(self) -> Core:
        """The core, for what only its own loop may do.

        `send` itself does not ask: it would take half as long again.
        """
        loop = self._core.loop
        if asyncio.get_running_loop() is not loop:
            state = "closed" if loop.is_closed() else "another one"
            raise UsageError(
                f"an AsyncProducer belongs to the event loop it was made on, and that is {state}: "
                "make one on each loop, or use a Producer, which every thread may use"
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


class _Line:
    """One sender in the line for memory: it owns its place before it stands there, and leaves it.

    Attributes:
        place: where it stands, served or not; None while it does not.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self.place: Place | None = None

    def stand(self, size: int) -> Place:
        self.place = place = Place(size)
        self._accumulator.stand_in_line(place)
        return place

    def leave(self) -> None:
        if self.place is not None:
            self._accumulator.leave_line(self.place)
            self.place = None


class _TableWay:
    """A table on its way into the accumulator, and its place in the line for memory."""

    def __init__(self, accumulator: Accumulator, topic: str) -> None:
        self._accumulator = accumulator
        self.delivery = TableDelivery(topic, accumulator.loop)
        self.line = _Line(accumulator)

    def append_rows(self, topic: str, rows: Rows, first: int) -> int:
        taken: int = self._accumulator.append_rows(topic, rows, first, self.line.place)
        self.line.leave()
        return taken


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
    """How long closing may take after a `with` block that ended with this."""
    return INTERRUPT_GRACE if isinstance(error, KeyboardInterrupt) else None
