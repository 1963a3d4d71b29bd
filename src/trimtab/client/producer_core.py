"""The parts of one producer, on its event loop."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from trimtab.client.accumulator.accumulator_cy import Accumulator
from trimtab.client.accumulator.memory_cy import MemoryRequest
from trimtab.client.metrics_cy import ProducerMetrics, Snapshot
from trimtab.client.network.connections import Connections
from trimtab.client.network.options import Options
from trimtab.client.network.session import Session
from trimtab.client.partitioner.factory import make_partitioner
from trimtab.client.partitioner.partitioning import Partitioning
from trimtab.client.sender.hot_topics import check_treatable, read_treatments
from trimtab.client.sender.identity import Anonymous, Identity
from trimtab.client.sender.prepared import PreparedTransaction
from trimtab.client.sender.sender import Sender, SenderOptions
from trimtab.client.sender.transactions import TransactionManager, TransactionOptions
from trimtab.client.topic_view import TopicView
from trimtab.kafka.errors import TransactionError, Unavailable, UsageError
from trimtab.kafka.wire.compression import Compression
from trimtab.kafka.wire.sentinels import ALL_IN_SYNC_REPLICAS
from trimtab.threads.forks import call_in_forked_child
from trimtab.threads.unclosed import EXIT_SECONDS
from trimtab.threads.waiting import new_lock, wait_for

logger = logging.getLogger("trimtab.client")

INTERRUPT_GRACE = 1.0
"""Seconds that `close` waits for buffered records after Ctrl-C ended the `with` block."""


class Core:
    """The parts of one producer. Created on its loop; `accumulator` is usable on any thread.

    Args:
        custom: the value of `partitioner.class`, unless it is text.
        now: the loop's time, correct on every thread.
        name: the producer's name in the log.

    Attributes:
        after_look: called once on the loop, after the sender has next looked at the queues; None
            for nothing. Any thread may set it.
    """

    def __init__(
        self,
        options: Options,
        custom: object | None,
        now: Callable[[], float],
        wall: Callable[[], float],
        random: Random,
        name: str,
    ) -> None:
        self._name = name
        self.loop = asyncio.get_running_loop()
        self.now = now
        self.max_block = options.seconds("max.block.ms")
        self._buffer_memory = options.integer("buffer.memory")
        self._closing: asyncio.Future[Any] = self.loop.create_future()
        self._closed: asyncio.Future[Any] = self.loop.create_future()
        self._closing_end: float | None = None
        self._closing_limit: asyncio.Timeout | None = None
        self._grace: float | None = None
        self._looks = 0
        self._woken_at_look = -1
        self.after_look: Callable[[], object] | None = None
        self.session = session = Session(options, random, creates_topics=True)
        self.connections = session.connections
        self.metadata = session.metadata
        self.metrics = ProducerMetrics(
            now,
            options.seconds("metrics.sample.window.ms"),
            options.integer("metrics.num.samples"),
        )
        self.connections.on_event = self.metrics.connection_event
        maker = make_partitioner(options, custom, random)
        self._close_partitioner = maker.close
        kind: type[Accumulator] = Accumulator
        if maker.is_java:  # imported here, as `make_partitioner` imports its partitioner
            from trimtab.client.accumulator.java_accumulator_cy import JavaAccumulator

            kind = JavaAccumulator
        has_partitioner = custom is not None or options["partitioner.class"] is not None
        self._treatments = read_treatments(options, has_partitioner)
        codec = options.text("compression.type")
        self.accumulator = kind(
            batch_size=options.integer("batch.size"),
            buffer_memory=self._buffer_memory,
            max_request_size=options.integer("max.request.size"),
            compression=Compression[codec.upper()],
            compression_level=_level_of(options, codec),
            ignores_keys=maker.ignores_keys,
            rack=_rack_of(options),
            shows_keys=options.flag("partitioner.keys.shown"),
            make_partitioner=maker,
            untreated=self._treatments,
            now=now,
            wall_clock=wall,
            lock=new_lock(),
            wake=self.wake,
            on_callback_error=_log_callback_error,
            wait=partial(wait_for, loop=self.loop),
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
        if isinstance(self._identity, TransactionManager):
            self._identity.outbox = self.sender
            self._identity.on_refuse = self.accumulator.refuse
            self.accumulator.refuse(self._identity.refusal())
        call_in_forked_child(self, Core.abandon)

    # waking the sender

    def wake(self) -> None:
        """Have the sender look at the queues soon; on any thread."""
        # The loop is woken once per look at the queues, however many records come. Only the loop
        # counts looks, so Ctrl-C between these lines can at most wake it twice.
        looks = self._looks
        if self._woken_at_look != looks:
            self._call_on_loop(self._woken)
            self._woken_at_look = looks

    def _call_on_loop(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call this soon. Does nothing if producer and loop are closed."""
        loop = self.loop
        # `call_soon_threadsafe` also interrupts the loop's wait for events, by a system call.
        is_on_loop = asyncio._get_running_loop() is loop
        try:
            (loop.call_soon if is_on_loop else loop.call_soon_threadsafe)(function, *args)
        except RuntimeError:
            if not self._closing.done():
                raise

    def _woken(self) -> None:
        self._looks += 1
        self.sender.look()
        if self.after_look is not None:
            after, self.after_look = self.after_look, None
            after()

    # waits of send

    async def wait_for_topic(
        self,
        topic: str,
        deadline: float,
        partition: int | None = None,
        patience: float = math.inf,
    ) -> TopicView:
        """The topic's view, once it is known and contains `partition` (if given).

        Waits until `deadline`, or until the producer is closed.

        Args:
            patience: as for `Metadata.wait_for_topic`.

        Raises:
            UsageError: the topic's hot keys are to be treated, and cannot be.
        """
        view = self.metadata.topic(topic)
        if view is not None and self.accumulator.knows(topic, partition):
            return view
        waiting: asyncio.Future[TopicView] = self.loop.create_task(
            self._find_topic(topic, deadline, partition, patience)
        )
        try:
            with self.measured("metadata-wait"):
                await asyncio.wait([waiting, self._closing], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise _closed()
            return waiting.result()
        finally:
            waiting.cancel()

    async def _find_topic(
        self, topic: str, deadline: float, partition: int | None, patience: float
    ) -> TopicView:
        left = max(0.0, round(deadline - self.now(), 3))
        view = await self.metadata.wait_for_topic(topic, left, partition, patience)
        treatment = self._treatments.get(topic)
        if treatment is not None and not self.accumulator.knows(topic):
            left = max(0.0, round(deadline - self.now(), 3))
            session = self.session
            await check_treatable(self.connections, topic, session.backoff, session.random, left)
            self.accumulator.treat_keys(
                topic,
                treatment.mode,
                treatment.shards,
                session.random,
                isinstance(self._identity, TransactionManager),
            )
        return view

    def no_memory(self) -> Unavailable:
        self._call_on_loop(self.metrics.memory_exhausted)
        return Unavailable(
            f"the buffer memory is full (buffer.memory={self._buffer_memory}) and nothing was freed"
            f" for {self.max_block:g} s (max.block.ms): the brokers accept less than is sent"
        )

    def has_waited(self, since: float) -> None:
        """Record that a send has waited for buffer memory; on any thread."""
        self._call_on_loop(self.metrics.waited_for_memory, self.now() - since)

    # calls

    async def flush(self, timeout: float | None) -> None:
        self.check()
        try:
            with self.measured("flush"):
                async with asyncio.timeout(timeout):
                    await self.sender.flush()
        except TimeoutError:
            batches = self.accumulator.incomplete_batches()
            raise Unavailable(
                f"flush: {sum(batch.count for batch in batches)} records are not acknowledged after"
                f" {timeout:g} s; the producer keeps sending them for up to delivery.timeout.ms"
            ) from None

    def purge(self) -> int:
        self.check()
        return self.sender.drop(
            lambda batch: True,
            Unavailable("dropped by purge() before it was acknowledged"),
        )

    async def close(self, timeout: float | None) -> None:
        """Close as `Producer.close` says. A second close limits the first one, too."""
        self._limit_closing(timeout)
        if self._closing.done():
            await asyncio.wait([self._closed])
            return
        self._closing.set_result(None)
        try:
            async with asyncio.timeout_at(self._closing_end) as self._closing_limit:
                if isinstance(self._identity, TransactionManager):
                    await self._identity.finish()
                self.accumulator.close(_closed())
                await self.sender.flush()
        except TimeoutError:
            late = f"the producer was closed before this was acknowledged ({self._grace:g} s)"
            self.sender.fail_all(Unavailable(late))
        finally:
            self._closing_limit = None
            self.accumulator.close(_closed())
            self.sender.fail_all(Unavailable("the producer was closed before this was sent"))
            try:
                await self.sender.close()
                await self.session.close(self._closing_end)
                self._end_partitioner()
            finally:
                self._closed.set_result(None)

    def _limit_closing(self, timeout: float | None) -> None:
        end = None if timeout is None else self.now() + timeout
        if end is not None and (self._closing_end is None or end < self._closing_end):
            self._closing_end, self._grace = end, timeout
            if self._closing_limit is not None:
                self._closing_limit.reschedule(end)

    def _end_partitioner(self) -> None:
        try:
            self._close_partitioner()
        except BaseException as raised:  # any error: other clients run on this loop
            logger.error("the partitioner's close() raised", exc_info=raised)

    async def close_unattended(self, timeout: float | None) -> None:
        """Close a producer that its user never closed, and log how many records were lost."""
        self.accumulator.close(_closed())
        waiting = self.accumulator.incomplete_batches()
        is_open = isinstance(self._identity, TransactionManager) and self._identity.is_open
        try:
            await self.close(timeout)
        finally:
            lost = [batch for batch in waiting if batch.failed_count]
            count = sum(batch.failed_count for batch in lost)
            if is_open:
                logger.warning(
                    "%s was never closed: its open transaction was not committed, and %d unsent"
                    " records are lost",
                    self._name,
                    count,
                )
            elif lost:
                logger.warning(
                    "%s was never closed, and %d of its records could not be delivered: %s",
                    self._name,
                    count,
                    lost[0].first_error,
                )

    async def close_dropped(self) -> None:
        """Close a garbage-collected producer on a loop that its user runs."""
        try:
            await self.sender.flush()
        except asyncio.CancelledError:
            # asyncio.run ends: it has cancelled this task, and waits for it.
            logger.debug("%s is closed at the end of its loop", self._name)
        await self.close_unattended(EXIT_SECONDS)

    def unsent(self) -> int:
        """How many records are neither acknowledged nor failed."""
        return sum(batch.count for batch in self.accumulator.incomplete_batches())

    def abandon(self) -> None:
        """Make every call fail, in a process forked from the producer's: its loop is not here."""
        self.accumulator.abandon(
            UsageError(
                "this producer was created before the process was forked, and works only in the"
                " process that created it; create producers after the fork, or start processes with"
                " the 'spawn' method"
            )
        )

    def check(self) -> None:
        """Raise UsageError in a process forked from the producer's."""
        if self.accumulator.is_abandoned:
            self.accumulator.queue_for_memory(MemoryRequest(0))  # raises the same error as send

    # transactions

    @property
    def transactions(self) -> TransactionManager:
        """Raises UsageError if the producer has no transactional id."""
        self.check()
        if not isinstance(self._identity, TransactionManager):
            raise UsageError(
                "this producer has no transactions; set transactional.id to a name that is its own"
                " and stays the same over restarts"
            )
        return self._identity

    def end_transaction(self, is_committed: bool) -> None:
        """Tell the treatment of hot keys, if there is any, that a transaction has ended."""
        if self._treatments:
            self.accumulator.end_transaction(is_committed)

    @property
    def prepared(self) -> PreparedTransaction | None:
        """What this producer has prepared, or kept, and not ended."""
        return self._identity.prepared if isinstance(self._identity, TransactionManager) else None

    # metrics and views

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Add what a block takes to the metric of this name."""
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


def is_beyond_abort(error: BaseException) -> bool:
    """Whether the transaction cannot be aborted any more."""
    return isinstance(error, TransactionError) and error.is_fatal


def grace_after(error: BaseException | None) -> float | None:
    """The timeout of closing after a `with` block that ended with this error."""
    return INTERRUPT_GRACE if isinstance(error, KeyboardInterrupt) else None


def _make_identity(options: Options, connections: Connections, random: Random) -> Anonymous:
    """The producer's identity at the brokers: transactional, idempotent or none."""
    transactional_id = options.optional_text("transactional.id")
    if transactional_id is not None:
        return TransactionManager(
            connections,
            TransactionOptions(
                transactional_id=transactional_id,
                timeout=None
                if options.flag("transaction.two.phase.commit.enable")
                else options.seconds("transaction.timeout.ms"),
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
        acks={"0": 0, "1": 1}.get(options.text("acks"), ALL_IN_SYNC_REPLICAS),
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
        has_windows=options["partitioner.balance"] is not None
        and options["partitioner.class"] is None,
        is_idle_time_counted=options.text("partitioner.compat") == "java",
    )


def _level_of(options: Options, codec: str) -> int | None:
    """The codec's compression level; None for its default, and for a codec without levels."""
    if codec not in ("gzip", "lz4", "zstd"):
        return None
    level = options.integer(f"compression.{codec}.level")
    return None if codec == "gzip" and level < 0 else level


def _rack_of(options: Options) -> str | None:
    """The rack that partitioning prefers; None without rack awareness."""
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
        "hot-keys": len(partitioning.hot_keys),
        "hot-keys-treated": partitioning.treated_keys,
        "hot-key-share-max": max((key.share for key in partitioning.hot_keys), default=0.0),
    }
    stored = [load.stored_bytes for load in loads]
    if any(stored):
        metrics["partition-ratio-max"] = max(stored) * len(stored) / sum(stored)
    if partitioning.in_rack_share is not None:
        metrics["in-rack-share"] = partitioning.in_rack_share
    return metrics


def _closed() -> UsageError:
    return UsageError("the producer is closed; send before closing it, or make a new one")


def _log_callback_error(error: BaseException) -> None:
    logger.error("a delivery callback raised", exc_info=error)
