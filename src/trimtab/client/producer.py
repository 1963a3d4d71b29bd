"""Producers: `send` records to topics, on any thread or, with `AsyncProducer`, on an event loop.

with Producer("127.0.0.1:9092", linger_ms=10) as producer:
    delivery = producer.send("flights", b"...", key=b"UA")
    producer.flush()
    print(delivery.result())
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from trimtab.client.accumulator_cy import Accumulator, Delivery, bound
from trimtab.client.connections import Connections
from trimtab.client.metadata import Metadata, TopicView
from trimtab.client.options import PRODUCER, Options
from trimtab.client.partitioner import (
    BuiltInOptions,
    BuiltInPartitioner,
    CallablePartitioner,
    CustomPartitioner,
    RoundRobinPartitioner,
    StickyPartitioner,
    client_rack,
)
from trimtab.client.sender import Sender, SenderOptions
from trimtab.errors import Unavailable, UsageError
from trimtab.records import Headers
from trimtab.runtime.clock import monotonic_clock, wall_clock
from trimtab.runtime.loop_thread import LoopThread, new_lock, shared
from trimtab.wire.compression import Compression

logger = logging.getLogger("trimtab.client")


Append: TypeAlias = Callable[
    [str, bytes | None, bytes | None, Headers | None, int | None, int | None], Delivery | None
]


class Lock(Protocol):
    def acquire(self) -> Any: ...

    def release(self) -> Any: ...


class _NoLock:
    """For a producer that lives on one event loop: nothing runs beside it."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...


class _Core:
    """One producer's parts, put together on its loop."""

    def __init__(
        self,
        options: Options,
        custom: CustomPartitioner | None,
        lock: Lock,
        now: Callable[[], float],
        wall: Callable[[], float],
        random: Random,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.max_block = options.seconds("max.block.ms")
        self.connections = Connections(options.bootstrap, options.connection_options(), random)
        self.metadata = Metadata(
            self.connections,
            max_age=options.seconds("metadata.max.age.ms"),
            backoff=options.seconds("retry.backoff.ms"),
            backoff_max=options.seconds("retry.backoff.max.ms"),
            create_topics=True,
            random=random,
        )
        make_partitioner = _partitioner_maker(options, custom, random)
        self._waking = False
        self.accumulator = Accumulator(
            batch_size=options.integer("batch.size"),
            buffer_memory=options.integer("buffer.memory"),
            max_request_size=options.integer("max.request.size"),
            compression=Compression[options.text("compression.type").upper()],
            ignores_keys=options.flag("partitioner.ignore.keys"),
            make_partitioner=make_partitioner,
            now=now,
            wall_clock=wall,
            lock=lock,
            wake=self._wake,
            on_callback_error=_log_callback_error,
        )
        acks = {"0": 0, "1": 1}.get(options.text("acks"), -1)
        self.sender = Sender(
            self.accumulator,
            self.connections,
            self.metadata,
            SenderOptions(
                acks=acks,
                linger=options.seconds("linger.ms"),
                delivery_timeout=options.seconds("delivery.timeout.ms"),
                request_timeout=options.seconds("request.timeout.ms"),
                retries=options.integer("retries"),
                retry_backoff=options.seconds("retry.backoff.ms"),
                retry_backoff_max=options.seconds("retry.backoff.max.ms"),
                max_in_flight=options.integer("max.in.flight.requests.per.connection"),
                max_request_size=options.integer("max.request.size"),
                is_idempotent=_is_idempotent(options, acks),
                availability_timeout=options.seconds("partitioner.availability.timeout.ms")
                if options.flag("partitioner.adaptive.partitioning.enable")
                else 0.0,
            ),
            now,
            random,
        )

    def _wake(self) -> None:
        # From any thread; many records share one look at the queues.
        if not self._waking:
            self._waking = True
            self.loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._waking = False
        self.sender.look()

    async def wait_until_sendable(self, topic: str, size: int, deadline: float) -> None:
        """Return when the topic is known and the buffer memory has room."""
        timeout = max(0.0, deadline - self.loop.time())
        if not self.accumulator.knows(topic):
            await self.metadata.wait_for_topic(topic, timeout)
            return
        try:
            async with asyncio.timeout(timeout):
                await self.sender.wait_for_room(size)
        except TimeoutError:
            raise Unavailable(
                f"the buffer memory is full (buffer.memory) and nothing was freed for"
                f" {self.max_block:g} s (max.block.ms): the brokers take less than is sent"
            ) from None

    async def close(self, timeout: float | None) -> None:
        self.accumulator.closed = True
        try:
            async with asyncio.timeout(timeout):
                await self.sender.flush()
        except TimeoutError:
            self.sender.fail_all(
                Unavailable(f"the producer was closed before this was acknowledged ({timeout:g} s)")
            )
        finally:
            await self.sender.close()
            await self.metadata.close()
            await self.connections.close()

    def metrics(self) -> dict[str, Any]:
        return {
            "record-send-total": self.accumulator.records,
            "record-retry-total": self.sender.retries,
            "record-error-total": self.sender.errors,
            "buffer-used-bytes": self.accumulator.used,
            "node": {
                node: {
                    "outgoing-byte-total": traffic.bytes,
                    "request-total": traffic.requests,
                    "batch-total": traffic.batches,
                    "record-total": traffic.records,
                }
                for node, traffic in sorted(self.sender.traffic.items())
            },
        }


class Producer:
    """Sends records from any thread. Encodes on the caller's thread; a loop thread does the rest.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name.
        options: Kafka's producer options, dotted or in snake case, such as `linger_ms=10`.
            `partitioner_class` takes "round_robin", "sticky", a callable
            `(topic, key, value, partitions, available) -> partition`, or None for Kafka's logic.

    Raises:
        UsageError: an unknown option, or a value that is out of range.
    """

    def __init__(
        self, bootstrap_servers: str | Iterable[str] | None = None, **options: object
    ) -> None:
        checked, custom = _read_options(bootstrap_servers, options)
        self._thread: LoopThread = shared()
        self._closed = False

        async def start() -> _Core:
            # Not the loop's time(): uvloop's stands still while the loop waits for something to do.
            return _Core(checked, custom, new_lock(), monotonic_clock, wall_clock, Random())

        try:
            self._core = self._thread.run(start())
        except BaseException:
            self._thread.stop()
            raise
        self._append: Append = self._core.accumulator.append

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Put one record on its way; waits only for the topic to be known and for buffer memory.

        Args:
            timestamp: milliseconds since the Unix epoch; now if None.

        Raises:
            UsageError: the record cannot be sent as it is; says why.
            BrokerError: the cluster refuses the topic.
            Unavailable: topic or buffer memory were not to be had within `max.block.ms`.
        """
        delivery = self._append(topic, value, key, headers, partition, timestamp)
        if delivery is None:
            return self._wait_and_append(topic, value, key, headers, partition, timestamp)
        return delivery

    def _wait_and_append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
    ) -> Delivery:
        core = self._core
        deadline = monotonic_clock() + core.max_block
        size = bound(value, key, headers)
        while True:
            self._thread.run(core.wait_until_sendable(_checked_topic(topic), size, deadline))
            delivery = self._append(topic, value, key, headers, partition, timestamp)
            if delivery is not None:
                return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Send what waits now, and return when all of it is acknowledged or given up.

        Raises:
            Unavailable: not within `timeout` seconds.
        """
        self._thread.run(self._core.sender.flush(), timeout)

    def partitions_for(self, topic: str) -> TopicView:
        """The topic's partitions, leaders and racks; waits for metadata up to `max.block.ms`."""
        core = self._core
        return self._thread.run(core.metadata.wait_for_topic(_checked_topic(topic), core.max_block))

    def metrics(self) -> dict[str, Any]:
        """What was sent, under Kafka's metric names; `node` holds those of each broker."""
        return self._core.metrics()

    def close(self, timeout: float | None = None) -> None:
        """Flush, then close. What is not acknowledged within `timeout` seconds fails."""
        if self._closed:
            return
        self._closed = True
        try:
            self._thread.run(self._core.close(timeout))
        finally:
            self._thread.stop()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncProducer:
    """`Producer` for an event loop: the same names, awaited. Make it while the loop is running.

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
        checked, custom = _read_options(bootstrap_servers, options)
        time = asyncio.get_running_loop().time
        self._core = _Core(checked, custom, _NoLock(), time, wall_clock, random or Random())
        self._closed = False

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Put one record on its way; `await` the returned delivery for the outcome."""
        core = self._core
        append: Append = core.accumulator.append
        delivery = append(topic, value, key, headers, partition, timestamp)
        if delivery is not None:
            return delivery
        deadline = core.loop.time() + core.max_block
        size = bound(value, key, headers)
        while True:
            await core.wait_until_sendable(_checked_topic(topic), size, deadline)
            delivery = append(topic, value, key, headers, partition, timestamp)
            if delivery is not None:
                return delivery

    async def flush(self) -> None:
        await self._core.sender.flush()

    async def partitions_for(self, topic: str) -> TopicView:
        return await self._core.metadata.wait_for_topic(_checked_topic(topic), self._core.max_block)

    def metrics(self) -> dict[str, Any]:
        return self._core.metrics()

    async def close(self, timeout: float | None = None) -> None:
        if not self._closed:
            self._closed = True
            await self._core.close(timeout)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _read_options(
    bootstrap_servers: str | Iterable[str] | None, given: Mapping[str, object]
) -> tuple[Options, CustomPartitioner | None]:
    options = dict(given)
    if bootstrap_servers is not None:
        options["bootstrap.servers"] = (
            bootstrap_servers if isinstance(bootstrap_servers, str) else tuple(bootstrap_servers)
        )
    custom: CustomPartitioner | None = None
    for name in ("partitioner_class", "partitioner.class"):
        if callable(options.get(name)):
            custom = options.pop(name)  # type: ignore[assignment]
    checked = Options(PRODUCER, options)
    in_flight = checked.integer("max.in.flight.requests.per.connection")
    acks = checked.text("acks")
    if _asked_for_idempotence(options):
        if acks not in ("all", "-1"):
            raise UsageError(
                f"enable.idempotence=true needs acks=all, acks is {acks}; set one of the two"
            )
        if in_flight > 5:
            raise UsageError(
                "enable.idempotence=true needs max.in.flight.requests.per.connection of at most 5,"
                f" it is {in_flight}; lower it or set enable.idempotence=false"
            )
    return checked, custom


def _asked_for_idempotence(given: Mapping[str, object]) -> bool:
    value = given.get("enable_idempotence", given.get("enable.idempotence"))
    return str(value).lower() == "true"


def _is_idempotent(options: Options, acks: int) -> bool:
    """As Kafka: on by default, and quietly off where acks or in-flight requests do not allow it."""
    return (
        options.flag("enable.idempotence")
        and acks == -1
        and options.integer("max.in.flight.requests.per.connection") <= 5
        and options.integer("retries") > 0
    )


def _partitioner_maker(
    options: Options, custom: CustomPartitioner | None, random: Random
) -> Callable[[], object]:
    """What makes the partitioner of one topic."""
    if custom is not None:
        return lambda: CallablePartitioner(custom)
    match options["partitioner.class"]:
        case None:
            built_in = BuiltInOptions(
                quantum=max(1, options.integer("batch.size")),
                is_adaptive=options.flag("partitioner.adaptive.partitioning.enable"),
                rack=client_rack(
                    options.flag("partitioner.rack.aware"), options.text("client.rack")
                ),
            )
            return lambda: BuiltInPartitioner(built_in, random)
        case "round_robin":
            return RoundRobinPartitioner
        case "sticky":
            return lambda: StickyPartitioner(random)
        case unknown:
            raise UsageError(
                f"partitioner.class={unknown!r} is not known; give round_robin, sticky, a callable,"
                " or nothing for the built-in logic"
            )


def _checked_topic(topic: object) -> str:
    if not isinstance(topic, str) or not topic:
        raise UsageError(f"topic must be a name, got {topic!r}")
    return topic


def _log_callback_error(error: Exception) -> None:
    logger.error("a delivery callback raised", exc_info=error)
