"""The producer: `send` records to topics, on any thread.

with Producer("127.0.0.1:9092", linger_ms=10) as producer:
    delivery = producer.send("flights", b"...", key=b"UA")
    producer.flush()
    print(delivery.result())

`send` appends on the caller's thread (`Intake`); where it has to wait, that thread waits here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from trimtab.client.accumulator.intake_cy import Intake
from trimtab.client.accumulator.memory_wait import MemoryWait
from trimtab.client.accumulator.outgoing_cy import bound
from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.client.accumulator.table import Column, TableDelivery, TableSend, columns_of
from trimtab.client.async_client import Close
from trimtab.client.blocking.face import Face, at_once, like, waits
from trimtab.client.network.option_types import ProducerOptions
from trimtab.client.options import producer_options
from trimtab.client.producer import AsyncProducer, ProducerCalls
from trimtab.client.producer_core import Core, grace_after, is_beyond_abort
from trimtab.kafka.arguments import checked_seconds, checked_topic
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
    Value,
)
from trimtab.threads.clock import monotonic_clock, wall_clock
from trimtab.threads.loop_thread import shared
from trimtab.threads.waiting import new_gate, wait_for

HAND_OVER_SECONDS = 0.005
"""The longest that a sending thread waits for the loop's sender to look at the queues."""


class Producer(Intake, Face[ProducerCalls], Generic[Key, Value]):
    """Sends records from any thread: encodes them there, and sends them from a shared loop thread.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name. Or a
            dictionary of options, to which keyword arguments may add.
        options: Kafka's producer options, dotted or in snake case, such as `linger_ms=10`.
            `partitioner_class` takes "round_robin", "sticky", "uniform_sticky", a callable
            `(topic, key, value, partitions, available) -> partition`, a class with that as its
            method `partition`, or None for Kafka's logic.
            `key_serializer` and `value_serializer` make bytes of keys and values: a function of the
            object, or an object with `serialize(topic, headers, data)`, or one of
            confluent-kafka's, on the thread that sends. A None stays null. Type checkers see what
            `send` then takes if they are given as keyword arguments.

    Close it with `with` or `close()`, which sends the buffered records. An unclosed producer is
    closed when the interpreter exits, which waits up to 30 s for all producers together, or, with a
    ResourceWarning, when it is garbage-collected. Then the log says how many records were lost, and
    an open transaction is aborted.

    A delivery callback or a partitioner must not call a client's method that waits: that raises
    UsageError. In a process forked from the producer's own every method raises UsageError.

    Raises:
        UsageError: an unknown option, or a value that is out of range.
    """

    @overload
    def __init__(
        self: Producer[Any, Any],
        bootstrap_servers: Mapping[str, object],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[Bytes, Bytes],
        bootstrap_servers: Servers = None,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[Bytes, AnyValue],
        bootstrap_servers: Servers = None,
        *,
        key_serializer: None = None,
        value_serializer: Serializer[AnyValue],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[AnyKey, Bytes],
        bootstrap_servers: Servers = None,
        *,
        key_serializer: Serializer[AnyKey],
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[AnyKey, AnyValue],
        bootstrap_servers: Servers = None,
        *,
        key_serializer: Serializer[AnyKey],
        value_serializer: Serializer[AnyValue],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    def __init__(self, bootstrap_servers: Servers = None, **options: object) -> None:
        checked, custom, serializers = producer_options(bootstrap_servers, options)
        name = checked.name_of(self)

        async def start() -> tuple[Core, ProducerCalls, Close]:
            # Not the loop's time(): uvloop does not update it while the loop waits for events.
            core = Core(checked, custom, monotonic_clock, wall_clock, Random(), name)
            calls = ProducerCalls(core)
            return core, calls, calls._leave_closing()

        thread = shared()
        try:
            self._core, calls, close = thread.run(start)
            self._look_done = new_gate()
            self._after_look = partial(_open, self._look_done)
            Intake.__init__(self, self._core.accumulator, serializers)
            self._wrap(calls, close, thread)
        except BaseException:
            thread.release_soon()
            raise

    if TYPE_CHECKING:  # which cannot see through the compiled class's

        def send(
            self,
            topic: str,
            value: Value | None = None,
            key: Key | None = None,
            headers: Headers | None = None,
            partition: int | None = None,
            timestamp: int | None = None,
            on_delivery: Callable[[Delivery], object] | None = None,
        ) -> Delivery: ...

    @like(AsyncProducer.send_and_wait)
    def send_and_wait(
        self,
        topic: str,
        value: Value | None = None,
        key: Key | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> RecordMetadata:
        delivery = self.send(topic, value, key, headers, partition, timestamp, on_delivery)
        stored: RecordMetadata = delivery.result()
        return stored

    flush = waits(ProducerCalls.flush)
    partitions_for = waits(ProducerCalls.partitions_for)
    init_transactions = waits(ProducerCalls.init_transactions)
    resume_transactions = waits(ProducerCalls.resume_transactions)
    change_transactional_id = waits(ProducerCalls.change_transactional_id)
    begin_transaction = waits(ProducerCalls.begin_transaction)
    send_offsets_to_transaction = waits(ProducerCalls.send_offsets_to_transaction)
    prepare_transaction = waits(ProducerCalls.prepare_transaction)
    complete_transaction = waits(ProducerCalls.complete_transaction)
    commit_transaction = waits(ProducerCalls.commit_transaction)
    abort_transaction = waits(ProducerCalls.abort_transaction)
    partitioning = at_once(ProducerCalls.partitioning)
    prepared = at_once(ProducerCalls.prepared)
    metrics = at_once(ProducerCalls.metrics)

    def _hand_over(self) -> None:
        if not self._thread.is_current:
            self._let_sender_run()

    def _let_sender_run(self) -> None:
        """Let the loop's thread run until it has looked at the queues, or HAND_OVER_SECONDS."""
        if self._core.after_look is None:
            self._core.after_look = self._after_look
            self._core.wake()
            self._look_done.acquire(True, HAND_OVER_SECONDS)

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
        memory_wait = MemoryWait(accumulator)
        try:
            try:
                while True:
                    self._wait(memory_wait, topic, partition, bound(value, key, headers), deadline)
                    delivery = accumulator.append_granted(memory_wait.request, *record)
                    if delivery is not None:
                        return delivery
            finally:
                memory_wait.end_wait()
        except BaseException:
            memory_wait.end_wait()  # Ctrl-C may have interrupted the `finally`
            raise

    def _wait(
        self,
        memory_wait: MemoryWait,
        topic: str,
        partition: int | None,
        size: int,
        deadline: float,
        patience: float = math.inf,
    ) -> None:
        """Wait until topic and partition are known; if they are, wait for buffer memory."""
        core = self._core
        memory_wait.end_wait()
        if not core.accumulator.knows(topic, partition):
            self._thread.run(core.wait_for_topic, topic, deadline, partition, patience)
            return
        since = monotonic_clock()
        request = memory_wait.begin_wait(size)
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

    @like(AsyncProducer.send_table)
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
        columns = columns_of(value, key, headers, partition, timestamp)
        table = OpenTable(self, topic, columns)
        table.send(data)
        return table.end_table()

    @like(ProducerCalls.purge)
    def purge(self) -> int:
        core = self._core

        async def purge() -> int:
            return core.purge()

        return core.purge() if self._thread.is_current else self._run(purge)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A `with` block that is one transaction: committed at its end, aborted on an exception."""
        self.begin_transaction()
        try:
            yield
        except BaseException as error:
            if not is_beyond_abort(error):
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
        self._thread.close_client(self._core.close, checked_seconds("timeout", timeout))

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(grace_after(error))


def _open(gate: Lock) -> None:
    """Let through the thread that waits at a gate.

    It may have timed out, or not yet have begun to wait: then the gate is open already.
    """
    if gate.locked():
        gate.release()


class OpenTable:
    """`Producer.send_table` for a table that arrives in parts, with one delivery for all of them.

    A delivery costs work for each record batch that has rows of it. If each part has rows for all
    of 10,000 partitions, a delivery for each part would cost as much as one for each row.

    Args:
        columns: the arguments of `send_table` that name columns.
        patience: seconds to wait for a partition that the topic lacks; at most `max.block.ms`.
    """

    def __init__(
        self,
        producer: Producer[Any, Any],
        topic: str,
        columns: Mapping[str, Column],
        patience: float = math.inf,
    ) -> None:
        self._producer = producer
        self._patience = patience
        self._table = TableSend(producer._core.accumulator, checked_topic(topic), columns)

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
                    producer._wait(
                        table.memory_wait, topic, partition, size, deadline, self._patience
                    )
            finally:
                table.memory_wait.end_wait()
        except BaseException:
            table.memory_wait.end_wait()  # Ctrl-C may have interrupted the `finally`
            raise

    @property
    def stored(self) -> int:
        """How many rows of the parts so far are acknowledged."""
        return self._table.delivery.stored

    def raise_failed(self) -> None:
        """Raise TableError if rows of the parts so far were not delivered; does not wait."""
        self._table.delivery.raise_failed()

    def end_table(self) -> TableDelivery:
        """No more parts follow. Returns the delivery of all rows."""
        return self._table.end_table()
