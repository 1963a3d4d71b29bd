"""`AsyncProducer`, on an event loop: `send` records to topics.

async with AsyncProducer("127.0.0.1:9092", linger_ms=10) as producer:
    delivery = await producer.send("flights", b"...", key=b"UA")
    print(await delivery)

`trimtab.client.blocking.producer` has the producer for threads, which makes the same calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from trimtab.client.accumulator.intake_cy import AsyncIntake
from trimtab.client.accumulator.memory_wait import MemoryWait
from trimtab.client.accumulator.outgoing_cy import bound
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.accumulator.table import Column, TableDelivery, TableSend, columns_of
from trimtab.client.async_client import AsyncClient, Close
from trimtab.client.group_offsets import ConsumerGroup, OffsetAndMetadata
from trimtab.client.metrics_cy import Snapshot
from trimtab.client.network.coordinator import CoordinatorKind
from trimtab.client.network.option_types import ProducerOptions
from trimtab.client.options import producer_options
from trimtab.client.partitioner.partitioning import Partitioning
from trimtab.client.producer_core import Core, grace_after, is_beyond_abort
from trimtab.client.sender.prepared import (
    PreparedTransaction,
    ProducerIdentity,
    checked_prepared,
    checked_transactional_id,
    complete,
)
from trimtab.client.topic_view import TopicView
from trimtab.kafka.arguments import checked_flag, checked_seconds, checked_topic
from trimtab.kafka.errors import TransactionError, UsageError
from trimtab.kafka.records import (
    AnyKey,
    AnyValue,
    Bytes,
    Headers,
    Key,
    RecordMetadata,
    Serializer,
    Servers,
    TopicPartition,
    Value,
)
from trimtab.threads.clock import wall_clock
from trimtab.threads.waiting import loop_time


class ProducerCalls(AsyncClient):
    """The calls of a producer besides those that send, on the loop of its core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        super().__init__(core.session, core.close_dropped, core.unsent)

    def _leave_closing(self) -> Close:
        super()._leave_closing()
        return self._core.close_unattended

    async def flush(self, timeout: float | None = None) -> None:
        """Send all buffered records, and return when each is acknowledged or has failed.

        Raises:
            Unavailable: this took longer than `timeout` seconds.
        """
        await self._checked_core().flush(checked_seconds("timeout", timeout))

    def purge(self) -> int:
        """Drop every record that is not in a request in flight; returns how many.

        Their deliveries fail with Unavailable, and so does an open transaction.
        """
        return self._checked_core().purge()

    async def partitions_for(self, topic: str) -> TopicView:
        """The topic's partitions, leaders and racks; waits for metadata up to `max.block.ms`.

        Raises:
            BrokerError: the cluster refuses the topic.
            Unavailable: no answer in time.
        """
        core = self._checked_core()
        return await core.wait_for_topic(checked_topic(topic), core.now() + core.max_block)

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

    async def init_transactions(
        self, after: ProducerIdentity | None = None, keep_prepared: bool = False
    ) -> ProducerIdentity:
        """Take over the `transactional.id`: fence its older producers, and abort a transaction
        that they left open or prepared. Call it once, before the first transaction.

        Args:
            after: take over only if this is the newest producer of the id; otherwise raise
                PRODUCER_FENCED (KIP-360).
            keep_prepared: abort nothing: `prepared` then returns the transaction that the older
                producer has prepared, and this one has to commit or abort it (KIP-939). So nobody
                else can end it any more. A transaction that was open and not prepared is kept,
                too: abort it, as nothing was decided about it. Brokers need
                `transaction.two.phase.commit.enable`; Apache Kafka 4.3 refuses it.

        Returns: this producer's identity, which `resume_transactions` takes in another process.

        Raises:
            BrokerError: the coordinator refuses; may be repeated once the cause is corrected.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: there is no transactional id, or the producer is already initialized.
        """
        core = self._checked_core()
        with core.measured("txn-init"):
            return await core.transactions.init(after, checked_flag("keep_prepared", keep_prepared))

    async def resume_transactions(self, identity: ProducerIdentity) -> None:
        """Use an identity that another process got from `init_transactions`; do not call that here.

        This fences no producer, but a newer producer of the id fences this one. Each partition may
        be sent to by only one of the producers that share the identity. `close` leaves the
        transaction open, because the other producers may still use it.

        Raises:
            UsageError: the identity has another `transactional.id`, or this producer has one.
        """
        await self._checked_core().transactions.resume(identity)

    async def change_transactional_id(self, transactional_id: str) -> None:
        """Go on as a new producer with this `transactional.id`, or with the same one, would, over
        the same connections. `init_transactions` or `resume_transactions` comes next.

        Between transactions, or when one is prepared: that stays prepared, for others to end.

        Raises:
            UsageError: a transaction is open, or this producer has none.
            TransactionError: the producer has failed for good.
        """
        transactions = self._checked_core().transactions
        transactions.change_id(checked_transactional_id(transactional_id))

    async def begin_transaction(self, two_phase: bool = False) -> None:
        """Begin a transaction, which all records sent from now on belong to.

        Args:
            two_phase: whether `prepare_transaction` may be called; always allowed with
                `transaction.two.phase.commit.enable`.

        Raises:
            UsageError: not initialized, or a transaction is open.
            TransactionError: the last transaction failed.
            Unavailable: the last transaction was prepared, or its requests had no answer, and the
                coordinator gave no new epoch within `max.block.ms`; may be repeated.
        """
        core = self._checked_core()
        with core.measured("txn-begin"):
            await core.transactions.begin(checked_flag("two_phase", two_phase))

    async def send_offsets_to_transaction(
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
        core = self._checked_core()
        with core.measured("txn-send-offsets"):
            await core.transactions.send_offsets(offsets, group)

    async def prepare_transaction(self) -> PreparedTransaction:
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
        return await self._checked_core().transactions.prepare()

    def prepared(self) -> PreparedTransaction | None:
        """The transaction that this producer has prepared, or kept in `init_transactions`, and
        that it has to end; None if there is none."""
        return self._core.prepared

    async def complete_transaction(self, prepared: PreparedTransaction, commit: bool) -> None:
        """Commit or abort a transaction that this or another producer has prepared (KIP-939).

        This producer needs no `transactional.id`, and no `init_transactions`, which would abort the
        transaction unless it keeps it. Repeating the call is harmless until a producer takes over
        the transactional id.

        Raises:
            BrokerError: the transaction is no longer open. PRODUCER_FENCED and
                INVALID_PRODUCER_EPOCH: the coordinator aborted it, or it had ended before its id
                was taken over. INVALID_TXN_STATE: it was aborted but should be committed, or the
                other way round.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: `prepared` is no prepared transaction.
        """
        core = self._checked_core()
        core.check()
        checked_prepared(prepared)
        checked_flag("commit", commit)
        if core.prepared == prepared:
            await (self.commit_transaction() if commit else self.abort_transaction())
            return
        link = core.session.coordinator(CoordinatorKind.TRANSACTION, prepared.transactional_id)
        await complete(link, prepared, commit, core.max_block)

    async def commit_transaction(self) -> None:
        """Send the buffered records, and commit once all of them are acknowledged.

        Raises:
            TransactionError: it cannot be committed; says whether to abort it or close.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: no transaction is open.
        """
        core = self._checked_core()
        with core.measured("txn-commit"):
            await core.transactions.commit()
        core.end_transaction(is_committed=True)

    async def abort_transaction(self) -> None:
        """Drop the unsent records, and abort the transaction.

        Raises:
            TransactionError: fatal; close the producer.
            Unavailable: not done within `max.block.ms`; may be repeated.
            UsageError: no transaction is open.
        """
        core = self._checked_core()
        with core.measured("txn-abort"):
            await core.transactions.abort()
        core.end_transaction(is_committed=False)

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


class _Options(ProducerOptions, total=False):
    wall_clock: Callable[[], float]
    random: Random | None


class AsyncProducer(AsyncIntake, ProducerCalls, Generic[Key, Value]):
    """Sends records from an event loop. Create it while the loop is running.

    It belongs to that loop. On another loop, which another thread runs, UsageError comes from every
    method that awaits, except a `send` that need not wait for metadata or buffer memory.

    An unclosed producer is closed on its loop when it is garbage-collected, or when `asyncio.run`
    ends. On a closed loop it cannot be closed: the log says how many records were lost.

    Arguments and errors are those of `Producer`'s methods.

    Args:
        bootstrap_servers, options: as for `Producer`, serializers included.
        wall_clock: seconds since the Unix epoch; a simulation passes its own.
        random: used by the partitioner and for jitter; a simulation passes its own.
    """

    @overload
    def __init__(
        self: AsyncProducer[Any, Any],
        bootstrap_servers: Mapping[str, object],
        **options: Unpack[_Options],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[Bytes, Bytes],
        bootstrap_servers: Servers = None,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[_Options],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[Bytes, AnyValue],
        bootstrap_servers: Servers = None,
        *,
        key_serializer: None = None,
        value_serializer: Serializer[AnyValue],
        **options: Unpack[_Options],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[AnyKey, Bytes],
        bootstrap_servers: Servers = None,
        *,
        key_serializer: Serializer[AnyKey],
        value_serializer: None = None,
        **options: Unpack[_Options],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[AnyKey, AnyValue],
        bootstrap_servers: Servers = None,
        *,
        key_serializer: Serializer[AnyKey],
        value_serializer: Serializer[AnyValue],
        **options: Unpack[_Options],
    ) -> None: ...

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        wall_clock: Callable[[], float] = wall_clock,
        random: Random | None = None,
        **options: object,
    ) -> None:
        checked, custom, serializers = producer_options(bootstrap_servers, options)
        now = partial(loop_time, asyncio.get_running_loop())
        name = checked.name_of(self)
        core = Core(checked, custom, now, wall_clock, random or Random(), name)
        ProducerCalls.__init__(self, core)
        AsyncIntake.__init__(self, core.accumulator, serializers)

    if TYPE_CHECKING:  # which cannot see through the compiled class's

        async def send(
            self,
            topic: str,
            value: Value | None = None,
            key: Key | None = None,
            headers: Headers | None = None,
            partition: int | None = None,
            timestamp: int | None = None,
            on_delivery: Callable[[Delivery], object] | None = None,
        ) -> Delivery: ...

    async def send_and_wait(
        self,
        topic: str,
        value: Value | None = None,
        key: Key | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> RecordMetadata:
        """`send` one record, and return where it is stored once that is known.

        Arguments and errors are those of `send` and of its delivery. Each call waits up to
        `linger.ms` for others' records, and then for the broker: calls one after the other make
        batches of one record. If the wait is interrupted or cancelled, the record may be stored.
        """
        delivery = await self.send(topic, value, key, headers, partition, timestamp, on_delivery)
        return await delivery

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
        memory_wait = MemoryWait(accumulator)
        try:
            while True:
                await self._wait(
                    memory_wait, topic, partition, bound(value, key, headers), deadline
                )
                delivery = accumulator.append_granted(memory_wait.request, *record)
                if delivery is not None:
                    return delivery
        finally:
            memory_wait.end_wait()

    async def _wait(
        self,
        memory_wait: MemoryWait,
        topic: str,
        partition: int | None,
        size: int,
        deadline: float,
    ) -> None:
        core = self._core
        memory_wait.end_wait()
        if not core.accumulator.knows(topic, partition):
            await core.wait_for_topic(topic, deadline, partition)
            return
        since = core.now()
        request = memory_wait.begin_wait(size)
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
        """Send every row of an Arrow table as a record; waits like `send`, as often as needed.

        Rows are encoded straight from Arrow's buffers, without a Python object for each row, and
        without the serializers: keys and values are the bytes of their columns.

        Args:
            data: a pyarrow Table, RecordBatch or RecordBatchReader; anything that streams Arrow
                (polars, DuckDB, pandas); or an iterable of those.
            value, key, headers, partition, timestamp: a column's name, or a pyarrow array of the
                table's length; None: records have no such field. `append_table` in
                `client.accumulator.table` lists the types.

        Returns: one delivery for all rows; its `.result()`, or `await` on a loop, says how many
        each partition stored.

        Raises:
            UsageError: the table cannot be sent as it is; says which column and what to do.
            BrokerError: the cluster refuses the topic.
            Unavailable: topic, partition or buffer memory was not available within `max.block.ms`.
        """
        columns = columns_of(value, key, headers, partition, timestamp)
        table = TableSend(self._checked_core().accumulator, checked_topic(topic), columns)
        try:
            for size, row_partition in table.append(data):
                deadline = self._core.now() + self._core.max_block
                await self._wait(table.memory_wait, topic, row_partition, size, deadline)
        finally:
            table.memory_wait.end_wait()
        return table.end_table()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """An `async with` block that is one transaction: committed, or aborted on an exception."""
        await self.begin_transaction()
        try:
            yield
        except BaseException as error:
            if not is_beyond_abort(error):
                await self.abort_transaction()
            raise
        try:
            await self.commit_transaction()
        except TransactionError as error:  # a commit that timed out goes on: no abort is possible
            if not error.is_fatal:
                await self.abort_transaction()
            raise

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close. Records not acknowledged within `timeout` seconds fail.

        An open transaction is aborted, and a `send` that still waits raises UsageError. Closing
        again, or in a forked process, does nothing.
        """
        timeout = checked_seconds("timeout", timeout)
        if not self._session.is_closed and not self._core.accumulator.is_abandoned:
            core = self._checked_core()
            self._session.is_closed = True
            self._keep_open()
            await core.close(timeout)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self.close(grace_after(error))
