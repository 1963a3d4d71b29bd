"""The consumer, on one thread.

    with Consumer("127.0.0.1:9092", group_id="billing") as consumer:
        consumer.subscribe(["flights"])
        for record in consumer:
            print(record.offset, record.value)

`poll` decodes the records on the thread that calls it, not on the loop that fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import chain
from random import Random
from threading import Thread, current_thread
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast
from weakref import ref

from trimtab.client.async_client import AsyncClient
from trimtab.client.blocking.face import Face, at_once, like, waits
from trimtab.client.consumer import STEP, AsyncConsumer
from trimtab.client.fetcher.plan import Batches
from trimtab.client.fetcher.reader import TABLE_BYTES, checked_table_bytes
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.option_types import ConsumerOptions
from trimtab.client.options import gather_options
from trimtab.client.subscriber import Steps, refuse_awaitable
from trimtab.kafka.arguments import AnyPartition, Partition, checked_wait_ms
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import Record
from trimtab.threads.clock import monotonic_clock
from trimtab.threads.loop_thread import shared

P = ParamSpec("P")
T = TypeVar("T")


class _Iteration:
    """A thread, and what it iterates over; no reference keeps that alive when the loop is left."""

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.runs: ref[Generator[Iterator[Record], None, None]] | None = None
        self.has_records = False
        """Set before the call that reads them ends, so that no other thread reads in between."""

    @property
    def is_left(self) -> bool:
        return self.runs is None or self.runs() is None

    def is_elsewhere(self, here: Thread) -> bool:
        """Whether another thread may go on with it."""
        if not self.has_records or self.thread is here or not self.thread.is_alive():
            return False
        runs = None if self.runs is None else self.runs()
        return runs is not None and getgeneratorstate(runs) != GEN_CLOSED


def alone(
    method: Callable[Concatenate[Consumer, P], T],
) -> Callable[Concatenate[Consumer, P], T]:
    """A method that is refused while another thread is in such a method, or in an iteration."""

    @wraps(method)
    def call(consumer: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        here = current_thread()
        user = consumer._user
        is_outer = user.get(None) is not here  # a callback may call its consumer
        try:
            if user.setdefault(None, here) is not here or consumer._is_in_use_elsewhere():
                raise UsageError(
                    "another thread is using this consumer, in a call or in an iteration that it"
                    " has not left; use a consumer on one thread at a time: give each thread its"
                    " own, in the same group, or read on one thread and pass the records on"
                )
            return method(consumer, *args, **kwargs)
        finally:
            if is_outer and user.get(None) is here:
                del user[None]

    return call


class Consumer(Face[AsyncConsumer]):
    """Reads the partitions that its group assigns, or those of `assign`.

    Use it on one thread at a time, like Kafka's own: while one thread is in a call that reads, or
    in an iteration, calls of other threads that read, or change what is read, raise UsageError. Any
    thread may ask, as with `lag` and `metrics`, and commit the offsets that it names. If another
    thread closes the consumer meanwhile, reading ends with an error; nothing is then committed
    automatically, and no callback is called.

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
        self._user: dict[None, Thread] = {}  # a dictionary, because its `setdefault` is atomic
        self._iterations: list[_Iteration] = []
        self._wrap(consumer, consumer._leave_closing(), thread)

    assign = alone(at_once(AsyncConsumer.assign))
    assignment = at_once(AsyncConsumer.assignment)
    seek = alone(at_once(AsyncConsumer.seek))
    seek_to_beginning = alone(at_once(AsyncConsumer.seek_to_beginning))
    seek_to_end = alone(at_once(AsyncConsumer.seek_to_end))
    pause = alone(at_once(AsyncConsumer.pause))
    resume = alone(at_once(AsyncConsumer.resume))
    paused = at_once(AsyncConsumer.paused)
    lag = at_once(AsyncConsumer.lag)
    metrics = at_once(AsyncConsumer.metrics)
    problem = at_once(AsyncConsumer.problem)
    subscribe = alone(at_once(AsyncConsumer.subscribe))
    subscription = at_once(AsyncConsumer.subscription)
    group_metadata = at_once(AsyncConsumer.group_metadata)
    committed = waits(AsyncConsumer.committed)
    beginning_offsets = waits(AsyncConsumer.beginning_offsets)
    end_offsets = waits(AsyncConsumer.end_offsets)
    offsets_for_times = waits(AsyncConsumer.offsets_for_times)

    @like(AsyncConsumer.commit)
    def commit(self, offsets: Mapping[AnyPartition, int | OffsetAndMetadata] | None = None) -> None:
        if offsets is None:
            self._commit_what_was_read()
        else:
            self._run(AsyncConsumer.commit, self._client, offsets)

    @alone
    def _commit_what_was_read(self) -> None:
        self._run(AsyncConsumer.commit, self._client)

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
        iteration = _Iteration(current_thread())
        runs = self._runs(iteration)
        iteration.runs = ref(runs)
        for earlier_iteration in list(self._iterations):
            if earlier_iteration.is_left:
                with suppress(ValueError):  # another thread has removed it
                    self._iterations.remove(earlier_iteration)
        self._iterations.append(iteration)
        return chain.from_iterable(runs)  # in C: no Python code runs for a record

    def _runs(self, iteration: _Iteration) -> Generator[Iterator[Record], None, None]:
        """Iterators over records that follow each other in one partition."""

        def read() -> Iterator[Record] | None:
            run = self._client._read_run()
            iteration.has_records = iteration.has_records or run is not None
            return run

        while True:
            run = self._next(read, STEP)
            if run is not None:
                yield run

    @alone
    @like(AsyncConsumer.unsubscribe)
    def unsubscribe(self) -> None:
        self._run_here(self._client._let_go())
        self._run(AsyncConsumer._leave_group, self._client)

    @like(AsyncConsumer.close)
    def close(self) -> None:
        self._close_after(has_failed=False)

    @like(AsyncConsumer.__aexit__)
    def __exit__(self, *error: object) -> None:
        self._close_after(has_failed=error[0] is not None)

    def _close_after(self, has_failed: bool) -> None:
        client = self._client
        is_alone = self._thread.is_usable and not self._is_in_use_elsewhere()

        async def commit_and_close() -> None:
            if is_alone:  # what Ctrl-C has left to commit
                await client._commit_before(frozenset(client._assignments), has_failed)
            await AsyncClient.close(client)

        try:
            if is_alone:
                self._run_here(client._let_go(has_failed))
        finally:
            self._thread.close_client(commit_and_close)

    def _is_in_use_elsewhere(self) -> bool:
        """Whether another thread is in a call or in an iteration."""
        here = current_thread()
        return self._user.get(None, here) is not here or any(
            each.is_elsewhere(here) for each in self._iterations
        )

    @alone
    @like(AsyncConsumer.position)
    def position(self, partition: Partition) -> int:
        consumer = self._client
        known = consumer._known_position(consumer._assigned(partition))
        return self._run(consumer.position, partition) if known is None else known

    def _next(self, read: Callable[[], T], timeout: float) -> T:
        """What `read` returns, as soon as that is something, or after `timeout` seconds."""
        begun: list[AsyncConsumer] = []
        try:
            return self._next_alone(read, timeout, begun)
        except Exception:
            raise
        except BaseException:
            for consumer in begun:
                consumer._start_over()
            raise

    @alone
    def _next_alone(self, read: Callable[[], T], timeout: float, begun: list[AsyncConsumer]) -> T:
        consumer = self._client
        consumer._begin_reading()
        begun.append(consumer)
        return self._run_here(consumer._poll(read, timeout, monotonic_clock))

    def _run_here(self, steps: Steps[T]) -> T:
        """Have the loop carry out each step, and wait for it; callbacks run on this thread."""
        try:
            step = next(steps)
            while True:
                try:
                    self._run(refuse_awaitable(step))
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        finally:
            steps.close()
