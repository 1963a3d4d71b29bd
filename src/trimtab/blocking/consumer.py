"""The consumer, on one thread.

    with Consumer("127.0.0.1:9092", group_id="billing") as consumer:
        consumer.subscribe(["flights"])
        for record in consumer:
            print(record.offset, record.value)

`poll` decodes the records on the thread that calls it, not on the loop that fetches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from random import Random
from typing import Any, TypeVar, Unpack

from trimtab.blocking.face import Face, at_once, like, waits
from trimtab.client.arguments import Partition, checked_wait_ms
from trimtab.client.consumer import STEP, AsyncConsumer
from trimtab.client.fetcher.plan import Batches
from trimtab.client.fetcher.reader import TABLE_BYTES, checked_table_bytes
from trimtab.client.group.handover import Change, Kind
from trimtab.client.network.option_types import ConsumerOptions
from trimtab.client.options import gather_options
from trimtab.client.subscriber import refuse_awaitable
from trimtab.records import Record
from trimtab.runtime.loop_thread import shared

T = TypeVar("T")


class Consumer(Face[AsyncConsumer]):
    """Reads the partitions that its group assigns, or those of `assign`. Use it on one thread at a
    time, like Kafka's own.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name. Or a
            dictionary of options, to which keyword arguments may add.
        options: Kafka's consumer options, dotted or in snake case, such as
            `auto_offset_reset="earliest"`. `key_deserializer` and `value_deserializer` make
            objects of keys and values: a function of the bytes, or an object with
            `deserialize(topic, headers, data)`, or one of confluent-kafka's. A null stays None.

    Raises:
        UsageError: an unknown option, or a value that is out of range.
    """

    _closed_error = "the consumer is closed"

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        given = gather_options("consumer", bootstrap_servers, options)
        consumer = AsyncConsumer(given, random=Random())
        thread = shared()
        consumer._call_fetcher = thread.call_soon
        self._wrap(consumer, consumer._leave_closing(), thread)

    assign = at_once(AsyncConsumer.assign)
    assignment = at_once(AsyncConsumer.assignment)
    seek = at_once(AsyncConsumer.seek)
    seek_to_beginning = at_once(AsyncConsumer.seek_to_beginning)
    seek_to_end = at_once(AsyncConsumer.seek_to_end)
    pause = at_once(AsyncConsumer.pause)
    resume = at_once(AsyncConsumer.resume)
    paused = at_once(AsyncConsumer.paused)
    lag = at_once(AsyncConsumer.lag)
    metrics = at_once(AsyncConsumer.metrics)
    problem = at_once(AsyncConsumer.problem)
    subscribe = at_once(AsyncConsumer.subscribe)
    subscription = at_once(AsyncConsumer.subscription)
    group_metadata = at_once(AsyncConsumer.group_metadata)
    commit = waits(AsyncConsumer.commit)
    committed = waits(AsyncConsumer.committed)
    beginning_offsets = waits(AsyncConsumer.beginning_offsets)
    end_offsets = waits(AsyncConsumer.end_offsets)
    offsets_for_times = waits(AsyncConsumer.offsets_for_times)
    list_batch_sizes = waits(AsyncConsumer.list_batch_sizes)

    @like(AsyncConsumer.poll)
    def poll(self, timeout_ms: float = 500, max_records: int | None = None) -> list[Record]:
        consumer = self._client
        limit, timeout = consumer._limit(max_records), checked_wait_ms("timeout_ms", timeout_ms)
        return self._next(lambda: consumer._read(limit), timeout)

    @like(AsyncConsumer.arrow)
    def arrow(
        self,
        max_bytes: int = TABLE_BYTES,
        timeout_ms: float = 500,
        columns: Iterable[str] | None = None,
    ) -> Any:
        consumer = self._client
        limit, timeout = checked_table_bytes(max_bytes), checked_wait_ms("timeout_ms", timeout_ms)
        wanted = consumer._project(columns)
        return self._next(lambda: consumer._read_table(wanted, limit), timeout)

    @like(AsyncConsumer.fetch_batches)
    def fetch_batches(self, timeout_ms: float = 500) -> Batches | None:
        timeout = checked_wait_ms("timeout_ms", timeout_ms)
        return self._next(self._client._read_batches, timeout)

    @like(AsyncConsumer.__aiter__)
    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self._runs())  # in C: no Python code runs for a record

    def _runs(self) -> Iterator[Iterator[Record]]:
        """Iterators over records that follow each other in one partition."""
        while True:
            run = self._next(self._client._read_run, STEP)
            if run is not None:
                yield run

    @like(AsyncConsumer.unsubscribe)
    def unsubscribe(self) -> None:
        self._let_go()
        self._run(AsyncConsumer.unsubscribe, self._client)

    @like(AsyncConsumer.close)
    def close(self) -> None:
        self._close_after(has_failed=False)

    @like(AsyncConsumer.__aexit__)
    def __exit__(self, *error: object) -> None:
        self._close_after(has_failed=error[0] is not None)

    def _close_after(self, has_failed: bool) -> None:
        try:
            if self._thread.is_usable:
                self._let_go(has_failed)
        finally:
            self._thread.end(self._client._close_after, has_failed)

    @like(AsyncConsumer.position)
    def position(self, partition: Partition) -> int:
        consumer = self._client
        known = consumer._known_position(consumer._assigned(partition))
        return self._run(consumer.position, partition) if known is None else known

    def _next(self, read: Callable[[], T], timeout: float) -> T:
        """What `read` returns, as soon as that is something, or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        consumer = self._client
        consumer._begin_reading()
        try:
            with consumer._metrics.polling():
                while True:
                    self._settle()
                    self._submit()
                    found = read()
                    if not found and self._await_data(deadline - time.monotonic()):
                        found = read()
                    if found or not consumer._is_woken() or time.monotonic() >= deadline:
                        return found
        except Exception:
            raise
        except BaseException:
            consumer._start_over()
            raise

    def _settle(self) -> None:
        """Carry out what the group asks for, and commit if it is time."""
        consumer = self._client
        while (change := consumer._due_change()) is not None:
            self._carry_out(change)
        if (offsets := consumer._take_due_commit()) is not None and consumer._group is not None:
            self._thread.call_soon(consumer._group.commit_soon, offsets)

    def _carry_out(self, change: Change) -> None:
        """As the wrapped client's, but with the callbacks on this thread."""
        consumer = self._client
        try:
            if change.kind is Kind.ASSIGNED:
                consumer._apply(change)
            elif change.kind is Kind.REVOKED and change.partitions:
                self._run(AsyncConsumer._commit_before, consumer, change.partitions)
            with consumer._calling_back(change) as result:
                refuse_awaitable(result)
        except Exception:
            self._acknowledge(change)
            raise
        self._acknowledge(change)

    def _acknowledge(self, change: Change) -> None:
        if self._thread.is_usable:  # the callback has not closed the consumer
            self._thread.run(AsyncConsumer._acknowledge, self._client, change)

    def _let_go(self, has_failed: bool = False) -> None:
        consumer = self._client
        if consumer._subscription is None:
            return  # nothing to call back; the wrapped client commits
        change = Change(Kind.REVOKED, frozenset(consumer.assignment()))
        self._run(AsyncConsumer._commit_before, consumer, change.partitions, has_failed)
        with consumer._calling_back(change) as result:
            refuse_awaitable(result)

    def _submit(self) -> None:
        consumer = self._client
        subscription = consumer._take_subscription()
        assignments = consumer._take_changed_assignments()
        if subscription is not None or assignments is not None:
            self._thread.call_soon(consumer._pass_on, subscription, assignments)

    def _await_data(self, timeout: float) -> bool:
        consumer = self._client
        if consumer._taken.is_due(is_waiting=True):
            consumer._refill()
        if not consumer._take(consumer._fetcher.ready):
            self._thread.run(consumer._fetcher.wait, timeout, consumer._is_woken)
            return consumer._take(consumer._fetcher.ready)
        return True
