"""Producers: `send` records to topics, on any thread or, with `AsyncProducer`, on an event loop.

with Producer("127.0.0.1:9092", linger_ms=10) as producer:
    delivery = producer.send("flights", b"...", key=b"UA")
    producer.flush()
    print(delivery.result())

`_Core` is what both faces share: the producer's parts, put together on its loop. A face adds how to
wait: on a thread, or awaiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from random import Random
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.intake_cy import AsyncIntake, Intake
from trimtab.client.accumulator.memory_cy import Place
from trimtab.client.accumulator.outgoing_cy import bound
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.accumulator.table import Column, TableDelivery, append_table
from trimtab.client.metrics_cy import ProducerMetrics, Snapshot
from trimtab.client.network.connections import Connections
from trimtab.client.network.metadata import Metadata, TopicView
from trimtab.client.options import Options, producer_options
from trimtab.client.partitioner.partitioner import make_partitioner
from trimtab.client.partitioner.partitioning import Partitioning
from trimtab.client.sender.identity import Anonymous, Identity
from trimtab.client.sender.sender import Sender, SenderOptions
from trimtab.client.sender.transactions import (
    ConsumerGroup,
    OffsetAndMetadata,
    TransactionOptions,
    Transactions,
)
from trimtab.errors import TransactionError, Unavailable, UsageError
from trimtab.records import Headers, TopicPartition
from trimtab.runtime.clock import monotonic_clock, wall_clock
from trimtab.runtime.loop_thread import LoopThread, call_in_forked_child, new_lock, shared, wait_for
from trimtab.wire.compression import Compression
from trimtab.wire.rows_cy import Rows

T = TypeVar("T")

logger = logging.getLogger("trimtab.client")

INTERRUPT_GRACE = 1.0
"""Seconds that closing gives to what waits when Ctrl-C or exit() ended the `with` block."""

HAND_OVER_SECONDS = 0.005
"""How long a thread that sends waits at most for the sender to look at what it has sent."""


class Lock(Protocol):
    def acquire(self) -> Any: ...

    def release(self) -> Any: ...


class _NoLock:
    """For a producer that lives on one event loop: nothing runs beside it."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...


class _Core:
    """One producer's parts. Made on its loop; `accumulator` may be used on any thread.

    Args:
        custom: what `partitioner.class` was given as, if not as text.
        lock: between the threads that send and the loop's.
        now: the loop's time, right on every thread.
    """

    def __init__(
        self,
        options: Options,
        custom: object | None,
        lock: Lock,
        now: Callable[[], float],
        wall: Callable[[], float],
        random: Random,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = now
        self.max_block = options.seconds("max.block.ms")
        self._buffer_memory = options.integer("buffer.memory")
        self._closing: asyncio.Future[Any] = self.loop.create_future()
        self._is_waking = False
        self._is_awaited = False
        self._looked = new_lock()
        self._looked.acquire()
        self._call_soon = (
            self.loop.call_soon if isinstance(lock, _NoLock) else self.loop.call_soon_threadsafe
        )
        self.connections = Connections(options.bootstrap, options.connection_options(), random)
        self.metadata = Metadata(
            self.connections,
            max_age=options.seconds("metadata.max.age.ms"),
            backoff=options.backoff(),
            create_topics=True,
            random=random,
        )
        self.metrics = ProducerMetrics(
            now,
            options.seconds("metrics.sample.window.ms"),
            options.integer("metrics.num.samples"),
        )
        maker = make_partitioner(options, custom, random)
        self._close_partitioner = maker.close
        codec = options.text("compression.type")
        self.accumulator = Accumulator(
            batch_size=options.integer("batch.size"),
            buffer_memory=self._buffer_memory,
            max_request_size=options.integer("max.request.size"),
            compression=Compression[codec.upper()],
            compression_level=_level_of(options, codec),
            ignores_keys=maker.ignores_keys,
            rack=_rack_of(options),
            make_partitioner=maker,
            now=now,
            wall_clock=wall,
            lock=lock,
            wake=self._wake,
            on_callback_error=_log_callback_error,
        )
        self.metadata.forget_idle(
            options.seconds("metadata.max.idle.ms"),
            self.accumulator.last_used,
            self.accumulator.forget,
        )
        self._identity = _make_identity(options, self.connections, random)
        self.sender = Sender(
            self.accumulator,
            self.connections,
            self.metadata,
            self._identity,
            self.metrics,
            _sender_options(options),
            now,
            random,
        )
        if isinstance(self._identity, Transactions):
            self._identity.outbox = self.sender
            self._identity.on_refuse = self.accumulator.refuse
            self.accumulator.refuse(self._identity.refusal())
        call_in_forked_child(self.abandon)

    # waking the sender

    def _wake(self) -> None:
        # From any thread; many records share one look at the queues.
        if not self._is_waking:
            self._is_waking = True
            self._tell(self._woken)

    def _tell(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call this soon. Once the producer is closed it may be gone, unheard."""
        try:
            self._call_soon(function, *args)
        except RuntimeError:
            if not self._closing.done():
                raise

    def _woken(self) -> None:
        self._is_waking = False
        self.sender.look()
        if self._is_awaited:
            self._is_awaited = False
            # Who waited may have given up, or not have begun: then it is open already.
            if self._looked.locked():
                self._looked.release()

    def await_look(self) -> None:
        """Give the interpreter to the loop's thread until it has looked at the queues."""
        if not self._is_awaited:
            self._is_awaited = True
            self._wake()
            self._looked.acquire(True, HAND_OVER_SECONDS)

    # what send waits for

    async def wait_for_topic(self, topic: str, deadline: float) -> TopicView:
        """A topic's view; waits for it until `deadline`, or until the producer is closed."""
        view = self.metadata.topic(topic)
        if view is not None and self.accumulator.knows(topic):
            return view
        waiting: asyncio.Future[TopicView] = self.loop.create_task(
            self.metadata.wait_for_topic(topic, max(0.0, round(deadline - self.now(), 3)))
        )
        try:
            with self._measured("metadata-wait"):
                await asyncio.wait([waiting, self._closing], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise _closed()
            return waiting.result()
        finally:
            waiting.cancel()

    def no_memory(self) -> Unavailable:
        return Unavailable(
            f"the buffer memory is full (buffer.memory={self._buffer_memory}) and nothing was freed"
            f" for {self.max_block:g} s (max.block.ms): the brokers take less than is sent"
        )

    def has_waited(self, since: float) -> None:
        """A send has waited for buffer memory; on any thread."""
        self._tell(self.metrics.waited_for_memory, self.now() - since)

    # calls

    async def flush(self, timeout: float | None) -> None:
        self._check()
        try:
            with self._measured("flush"):
                async with asyncio.timeout(timeout):
                    await self.sender.flush()
        except TimeoutError:
            batches = self.accumulator.incomplete_batches()
            raise Unavailable(
                f"flush: {sum(batch.count for batch in batches)} records are not acknowledged after"
                f" {timeout:g} s; they go on being sent for up to delivery.timeout.ms"
            ) from None

    async def close(self, timeout: float | None) -> None:
        if not self._closing.done():
            self._closing.set_result(None)
        try:
            async with asyncio.timeout(timeout):
                if isinstance(self._identity, Transactions):
                    await self._identity.finish()
                self.accumulator.close(_closed())
                await self.sender.flush()
        except TimeoutError:
            self.sender.fail_all(
                Unavailable(f"the producer was closed before this was acknowledged ({timeout:g} s)")
            )
        finally:
            self.accumulator.close(_closed())
            self.sender.fail_all(Unavailable("the producer was closed before this was sent"))
            await self.sender.close()
            await self.metadata.close()
            await self.connections.close()
            self._close_partitioner()

    def abandon(self) -> None:
        """This is a process forked from the producer's: nobody sends here."""
        self.accumulator.abandon(
            UsageError(
                "this producer was made before the process was forked, and works in the process"
                " that made it alone; make producers after the fork, or start processes with the"
                " 'spawn' method"
            )
        )

    def _check(self) -> None:
        if self.accumulator.is_abandoned:
            self.accumulator.stand_in_line(0)  # raises what send would

    # transactions

    @property
    def transactions(self) -> Transactions:
        """Raises UsageError if the producer has no transactional id."""
        self._check()
        if not isinstance(self._identity, Transactions):
            raise UsageError(
                "this producer has no transactions; set transactional.id to a name that is its own"
                " and stays the same over restarts"
            )
        return self._identity

    async def init_transactions(self) -> None:
        with self._measured("txn-init"):
            await self.transactions.init()

    async def begin_transaction(self) -> None:
        with self._measured("txn-begin"):
            await self.transactions.begin()

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroup | str,
    ) -> None:
        with self._measured("txn-send-offsets"):
            await self.transactions.send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        with self._measured("txn-commit"):
            await self.transactions.commit()

    async def abort_transaction(self) -> None:
        with self._measured("txn-abort"):
            await self.transactions.abort()

    # what can be seen

    @contextmanager
    def _measured(self, what: str) -> Iterator[None]:
        began = self.now()
        try:
            yield
        finally:
            self.metrics.waited(what, self.now() - began)

    def partitioning(self, topic: str) -> Partitioning:
        try:
            return self.accumulator.partitioning(topic)
        except KeyError:
            raise UsageError(
                f"topic {topic!r} is not known to this producer yet; send to it, or call"
                " partitions_for first"
            ) from None

    def snapshot(self) -> Snapshot:
        accumulator = self.accumulator
        snapshot = self.metrics.snapshot(
            {
                "buffer-total-bytes": self._buffer_memory,
                "buffer-available-bytes": max(0, self._buffer_memory - accumulator.used),
                "waiting-threads": accumulator.memory.waiting,
                "connection-count": len(self.connections.connections),
                "requests-in-flight": sum(
                    connection.in_flight for connection in self.connections.connections
                ),
                "metadata-age": self.now() - self.metadata.updated_at,
            }
        )
        snapshot["partitioner-metrics"] = {
            topic: _partitioner_metrics(accumulator.partitioning(topic))
            for topic in accumulator.topics()
        }
        return snapshot


class Producer(Intake):
    """Sends records from any thread. Encodes on the caller's thread; a loop thread does the rest.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name.
        options: Kafka's producer options, dotted or in snake case, such as `linger_ms=10`.
            `partitioner_class` takes "round_robin", "sticky", a callable
            `(topic, key, value, partitions, available) -> partition`, a class with that as its
            method `partition`, or None for Kafka's logic.

    Every method raises UsageError in a process that was forked from the producer's own.

    Raises:
        UsageError: an unknown option, or a value that is out of range.
    """

    def __init__(
        self, bootstrap_servers: str | Iterable[str] | None = None, **options: object
    ) -> None:
        checked, custom = producer_options(bootstrap_servers, options)
        self._thread: LoopThread = shared()
        self._is_closed = False

        async def start() -> _Core:
            # Not the loop's time(): uvloop's stands still while the loop waits for something to do.
            return _Core(checked, custom, new_lock(), monotonic_clock, wall_clock, Random())

        try:
            self._core = self._thread.run(start())
        except BaseException:
            self._thread.stop()
            raise
        super().__init__(self._core.accumulator)

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
        record = (_checked_topic(topic), value, key, headers, partition, timestamp, on_delivery)
        deadline = monotonic_clock() + self._core.max_block
        while True:
            place = self._wait(topic, bound(value, key, headers), deadline)
            if place is None:
                delivery = accumulator.append(*record)
            else:
                try:
                    delivery = accumulator.append_from(place, *record)
                finally:
                    accumulator.leave_line(place)
            if delivery is not None:
                return delivery

    def _wait(self, topic: str, size: int, deadline: float) -> Place | None:
        """Wait for the topic to be known, or else in line for memory; then that place is served."""
        core = self._core
        if not core.accumulator.knows(topic):
            self._thread.run(core.wait_for_topic(topic, deadline))
            return None
        since = monotonic_clock()
        place = core.accumulator.stand_in_line(size)
        try:
            if not place.served.done() and self._thread.is_current:
                raise UsageError(
                    "the buffer memory is full, and a delivery callback cannot wait for it: nothing"
                    " is sent meanwhile; send from another thread, or raise buffer.memory"
                )
            wait_for(place.served, max(0.0, deadline - since))
        except TimeoutError:
            core.accumulator.leave_line(place)
            raise core.no_memory() from None
        except BaseException:
            core.accumulator.leave_line(place)
            raise
        finally:
            core.has_waited(since)
        return place

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
            Unavailable: topic or buffer memory were not to be had within `max.block.ms`.
        """
        table = _TableWay(self._core.accumulator, _checked_topic(topic))
        columns = _columns(value, key, headers, partition, timestamp)
        try:
            for size in append_table(table.append_rows, table.delivery, data, **columns):
                deadline = monotonic_clock() + self._core.max_block
                table.place = self._wait(topic, size, deadline)
        finally:
            table.leave()
        return table.delivery

    def flush(self, timeout: float | None = None) -> None:
        """Send what waits now, and return when all of it is acknowledged or given up.

        Raises:
            Unavailable: not within `timeout` seconds.
        """
        self._thread.run(self._core.flush(timeout))

    def partitions_for(self, topic: str) -> TopicView:
        """The topic's partitions, leaders and racks; waits for metadata up to `max.block.ms`.

        Raises:
            BrokerError: the cluster refuses the topic.
            Unavailable: no answer in time.
        """
        core = self._core
        deadline = monotonic_clock() + core.max_block
        return self._thread.run(core.wait_for_topic(_checked_topic(topic), deadline))

    def partitioning(self, topic: str) -> Partitioning:
        """How the topic's records are spread at this moment: queues, weights, who is left out.

        Raises:
            UsageError: this producer does not know the topic yet.
        """
        return self._core.partitioning(topic)

    def metrics(self) -> Snapshot:
        """All metrics under Kafka's names: `producer-metrics`, and by broker and topic
        `producer-node-metrics`, `producer-topic-metrics`, `partitioner-metrics`."""
        return self._core.snapshot()

    def init_transactions(self) -> None:
        """Take over the `transactional.id`: older producers of it are fenced. Once, at first.

        Raises:
            BrokerError: the coordinator refuses; may be repeated once the cause is corrected.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: there is no transactional id, or it is done already.
        """
        self._run(self._core.init_transactions())

    def begin_transaction(self) -> None:
        """Begin a transaction: what is sent from now on is part of it.

        Raises:
            UsageError: not initialized, or a transaction is open.
            TransactionError: the last one failed.
        """
        self._run(self._core.begin_transaction())

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
            UsageError: no transaction is open, or an offset is negative.
            TransactionError: the transaction failed with this; abort it.
            Unavailable: not done within `max.block.ms`; may be repeated.
        """
        self._run(self._core.send_offsets(offsets, group))

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
        if self._is_closed or self._core.accumulator.is_abandoned:
            return
        self._is_closed = True
        try:
            self._thread.run(self._core.close(timeout))
        finally:
            self._thread.stop()

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

    Arguments and errors are those of `Producer`'s methods.

    Args:
        bootstrap_servers, options: as for `Producer`.
        wall_clock: seconds since the Unix epoch; a simulation hands in its own.
        random: where the partitioner's choices come from; a simulation hands in its own.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        wall_clock: Callable[[], float] = wall_clock,
        random: Random | None = None,
        **options: object,
    ) -> None:
        checked, custom = producer_options(bootstrap_servers, options)
        time = asyncio.get_running_loop().time
        self._core = _Core(checked, custom, _NoLock(), time, wall_clock, random or Random())
        self._is_closed = False
        super().__init__(self._core.accumulator)

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
        accumulator = self._core.accumulator
        record = (_checked_topic(topic), value, key, headers, partition, timestamp, on_delivery)
        deadline = self._core.now() + self._core.max_block
        while True:
            place = await self._wait(topic, bound(value, key, headers), deadline)
            if place is None:
                delivery = accumulator.append(*record)
            else:
                try:
                    delivery = accumulator.append_from(place, *record)
                finally:
                    accumulator.leave_line(place)
            if delivery is not None:
                return delivery

    async def _wait(self, topic: str, size: int, deadline: float) -> Place | None:
        core = self._core
        if not core.accumulator.knows(topic):
            await core.wait_for_topic(topic, deadline)
            return None
        since = core.now()
        place = core.accumulator.stand_in_line(size)
        try:
            async with asyncio.timeout(max(0.0, deadline - since)):
                await asyncio.wrap_future(place.served)
        except TimeoutError:
            core.accumulator.leave_line(place)
            raise core.no_memory() from None
        except BaseException:
            core.accumulator.leave_line(place)
            raise
        finally:
            core.has_waited(since)
        return place

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
        table = _TableWay(self._core.accumulator, _checked_topic(topic))
        columns = _columns(value, key, headers, partition, timestamp)
        try:
            for size in append_table(table.append_rows, table.delivery, data, **columns):
                deadline = self._core.now() + self._core.max_block
                table.place = await self._wait(topic, size, deadline)
        finally:
            table.leave()
        return table.delivery

    async def flush(self, timeout: float | None = None) -> None:
        """Send what waits now, and return when all of it is acknowledged or given up."""
        await self._core.flush(timeout)

    async def partitions_for(self, topic: str) -> TopicView:
        """The topic's partitions, leaders and racks; waits for metadata up to `max.block.ms`."""
        core = self._core
        return await core.wait_for_topic(_checked_topic(topic), core.now() + core.max_block)

    def partitioning(self, topic: str) -> Partitioning:
        """How the topic's records are spread at this moment: queues, weights, who is left out."""
        return self._core.partitioning(topic)

    def metrics(self) -> Snapshot:
        """All metrics under Kafka's names."""
        return self._core.snapshot()

    async def init_transactions(self) -> None:
        """Take over the `transactional.id`: older producers of it are fenced. Once, at first."""
        await self._core.init_transactions()

    async def begin_transaction(self) -> None:
        """Begin a transaction: what is sent from now on is part of it."""
        await self._core.begin_transaction()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroup | str,
    ) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447)."""
        await self._core.send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        """Send what waits, and commit the transaction once all of it is acknowledged."""
        await self._core.commit_transaction()

    async def abort_transaction(self) -> None:
        """Drop what is not sent, and abort the transaction."""
        await self._core.abort_transaction()

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
        if not self._is_closed and not self._core.accumulator.is_abandoned:
            self._is_closed = True
            await self._core.close(timeout)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(_grace(error))


class _TableWay:
    """A table on its way into the accumulator, and the place it holds in the line for memory."""

    def __init__(self, accumulator: Accumulator, topic: str) -> None:
        self._accumulator = accumulator
        self.delivery = TableDelivery(topic)
        self.place: Place | None = None

    def append_rows(self, topic: str, rows: Rows, first: int) -> int:
        try:
            taken: int = self._accumulator.append_rows(topic, rows, first, self.place)
            return taken
        finally:
            self.leave()

    def leave(self) -> None:
        place, self.place = self.place, None
        if place is not None:
            self._accumulator.leave_line(place)


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


def _make_identity(options: Options, connections: Connections, random: Random) -> Anonymous:
    """Who the producer is to the brokers."""
    transactional_id = options["transactional.id"]
    if transactional_id is not None:
        return Transactions(
            connections,
            TransactionOptions(
                transactional_id=cast(str, transactional_id),
                timeout=options.seconds("transaction.timeout.ms"),
                max_block=options.seconds("max.block.ms"),
                backoff=options.backoff(),
            ),
            random,
        )
    if options.flag("enable.idempotence"):
        return Identity(connections, options.backoff(), random)
    return Anonymous()


def _sender_options(options: Options) -> SenderOptions:
    is_adaptive = options.flag("partitioner.adaptive.partitioning.enable")
    return SenderOptions(
        acks={"0": 0, "1": 1}.get(options.text("acks"), -1),
        linger=options.seconds("linger.ms"),
        delivery_timeout=options.seconds("delivery.timeout.ms"),
        request_timeout=options.seconds("request.timeout.ms"),
        retries=options.integer("retries"),
        backoff=options.backoff(),
        max_in_flight=options.integer("max.in.flight.requests.per.connection"),
        max_request_size=options.integer("max.request.size"),
        availability_timeout=options.seconds("partitioner.availability.timeout.ms")
        if is_adaptive
        else 0.0,
        is_idle_time_counted=options.text("partitioner.compat") == "java",
    )


def _level_of(options: Options, codec: str) -> int | None:
    """The level of the codec; None for its own default, and where it has none."""
    if codec not in ("gzip", "lz4", "zstd"):
        return None
    level = options.integer(f"compression.{codec}.level")
    return None if codec == "gzip" and level < 0 else level


def _rack_of(options: Options) -> str | None:
    """The rack that partitioning prefers."""
    is_aware = options.flag("partitioner.rack.aware")
    return options.text("client.rack").strip() or None if is_aware else None


def _partitioner_metrics(partitioning: Partitioning) -> dict[str, float]:
    loads = partitioning.partitions
    metrics: dict[str, float] = {
        "chosen-byte-total": sum(load.chosen_bytes for load in loads),
        "excluded-partitions": sum(load.excluded_because is not None for load in loads),
        "queued-batches-max": max((load.queued_batches for load in loads), default=0),
        "switch-total": partitioning.switches,
        "turn-total": sum(load.turns for load in loads),
    }
    if partitioning.in_rack_share is not None:
        metrics["in-rack-share"] = partitioning.in_rack_share
    return metrics


def _is_beyond_abort(error: BaseException) -> bool:
    """Whether the transaction cannot be aborted any more."""
    return isinstance(error, TransactionError) and error.is_fatal


def _grace(error: BaseException | None) -> float | None:
    """How long closing may take after a `with` block that ended with this."""
    return None if error is None or isinstance(error, Exception) else INTERRUPT_GRACE


def _closed() -> UsageError:
    return UsageError("the producer is closed; send before closing it, or make a new one")


def _checked_topic(topic: object) -> str:
    if not isinstance(topic, str) or not topic:
        raise UsageError(f"topic must be a name, got {topic!r}")
    return topic


def _log_callback_error(error: Exception) -> None:
    logger.error("a delivery callback raised", exc_info=error)
