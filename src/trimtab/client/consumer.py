"""`AsyncConsumer`, on an event loop: reads the partitions that its group, or the user, assigns.

    async with AsyncConsumer("127.0.0.1:9092", group_id="billing") as consumer:
        consumer.subscribe(["flights"])
        async for record in consumer:
            print(record.offset, record.value)

`trimtab.client.blocking.consumer` has the consumer for threads, which makes the same calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from inspect import isawaitable
from random import Random
from typing import Any, Final, TypeVar, Unpack, cast

from trimtab.client.async_client import AsyncClient
from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.fetcher.fetcher import Fetcher
from trimtab.client.fetcher.offsets import (
    RESETS,
    OffsetAndTimestamp,
    OffsetLookup,
    found_or_none,
    isolation_of,
)
from trimtab.client.fetcher.plan import Batches, FetchOptions
from trimtab.client.fetcher.reader import TABLE_BYTES, checked_table_bytes
from trimtab.client.group.assignors.factory import make_assignors
from trimtab.client.group.assignors.protocol import Assignor
from trimtab.client.group.group import Group
from trimtab.client.group.membership import MemberOptions
from trimtab.client.group.subscription import Topics
from trimtab.client.group_offsets import OffsetAndMetadata, checked_offsets
from trimtab.client.metrics_cy import Snapshot
from trimtab.client.network.option_types import ConsumerOptions
from trimtab.client.network.options import Options
from trimtab.client.network.session import Session
from trimtab.client.options import consumer_options
from trimtab.client.subscriber import Steps, Subscriber, call_at_once
from trimtab.kafka.arguments import (
    AnyPartition,
    Partition,
    checked_mapping,
    checked_partition,
    checked_partitions,
    checked_time,
    checked_wait_ms,
    shown,
)
from trimtab.kafka.errors import KafkaError
from trimtab.kafka.records import Record, TopicPartition
from trimtab.kafka.wire.fetch_limits import FetchLimits
from trimtab.kafka.wire.sentinels import EARLIEST, LATEST
from trimtab.threads.clock import monotonic_clock

T = TypeVar("T")

STEP: Final = 0.5
"""Seconds after which an iteration that waits for records looks after the group and the commits."""
_SHOWN: Final = 5
"""Partitions that a consumer's repr names."""


class AsyncConsumer(Subscriber, AsyncClient):
    """Reads records, on an event loop. Use it in one task at a time.

    Records are decoded on the loop, by the task that polls.

    Args:
        bootstrap_servers, options: as for `Consumer`, deserializers included.
        random: for jitter; a simulation passes its own.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        *,
        random: Random | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        checked, deserializers = consumer_options(bootstrap_servers, options)
        assignors = _assignors(checked)
        session = Session(checked, random or Random())
        self._isolation = isolation_of(checked)
        self._offsets = OffsetLookup(session)
        metrics = ConsumerMetrics(
            monotonic_clock,
            checked.seconds("metrics.sample.window.ms"),
            checked.integer("metrics.num.samples"),
        )
        session.connections.on_event = metrics.connection_event
        group = _make_group(session, assignors, metrics)
        fetcher = _make_fetcher(session, self._offsets, group, metrics)
        Subscriber.__init__(self, session, deserializers, fetcher, group, metrics)
        AsyncClient.__init__(self, session, partial(_close, fetcher, group, session))

    async def poll(self, timeout_ms: float = 500, max_records: int | None = None) -> list[Record]:
        """The next records, in the order of their offsets within each partition.

        Returns at once if records were fetched already, otherwise when the next fetch brings some,
        or an empty list after `timeout_ms`. An empty list comes earlier if a fetch brought only
        transaction markers.

        After `subscribe`, it also joins the group and calls the callbacks. With
        `enable.auto.commit` it commits the offsets of the records that earlier polls returned.

        Args:
            max_records: how many at most; `max.poll.records` if None.

        Raises:
            BrokerError: a broker refuses a partition, or the group's coordinator the member, with
                an error that is not retriable; or the position is not in the log and
                `auto.offset.reset` is none.
            CorruptData: a batch is damaged; the position stays before it.
            NotDeserialized: a deserializer raised an error; the position stays at the record.
            UsageError: no partition is assigned, or one has no position to begin at.
        """
        limit, timeout = self._limit(max_records), checked_wait_ms("timeout_ms", timeout_ms)
        return await self._next(lambda: self._read(limit), timeout)

    async def arrow(
        self,
        max_bytes: int = TABLE_BYTES,
        timeout_ms: float = 500,
        columns: Iterable[str] | None = None,
    ) -> Any:
        """The next records as a `pyarrow.Table`; it costs no Python object per record.

        Waits, commits and raises like `poll`; after `timeout_ms` without data the table is empty.
        The rows of a partition are in the order of their offsets. Keys and values are bytes: the
        deserializers are not used.

        Args:
            max_bytes: about how large the table becomes at most; one record batch may exceed it.
            columns: names, in the table's order; only what they need is decoded. All if None: key
                and value (binary), topic (string), partition (int32), offset (int64), timestamp
                (milliseconds, UTC), timestamp_type (int32: 0 create time, 1 log append time),
                headers (list of key and value; null if there are none).

        Raises:
            UsageError: also if pyarrow is not installed (`pip install 'trimtab[arrow]'`), or if a
                column is not one of these.
        """
        limit, timeout = checked_table_bytes(max_bytes), checked_wait_ms("timeout_ms", timeout_ms)
        wanted = self._project(columns)
        return await self._next(lambda: self._read_table(wanted, limit), timeout)

    async def fetch_batches(self, timeout_ms: float = 500) -> Batches | None:
        """The next record batches of one partition: checked, but not decoded.

        For callers that decode batches themselves, such as into Arrow columns. Waits and raises
        like `poll`; None after `timeout_ms` without data. The position moves to the `next_offset`
        of the returned batches, and later batches are fetched meanwhile. One call returns up to
        `max.partition.fetch.bytes`, or a single larger batch.
        """
        timeout = checked_wait_ms("timeout_ms", timeout_ms)
        return await self._next(self._read_batches, timeout)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Reads for ever: waits for new records, and does not end.

        The position is behind the record that came last. So after the loop was left, the next call
        goes on there; and what is changed in the loop, such as by `seek` or `pause`, counts for the
        next record. Raises like `poll`.
        """
        while True:
            for record in await self._next(self._read_run, STEP) or ():
                yield record

    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing. Commits first, with `enable.auto.commit`."""
        await self._await(self._let_go())
        await self._leave_group()

    async def _leave_group(self) -> None:
        if self._group is not None:
            await self._group.leave("the consumer has unsubscribed")
        self._forget_subscription()

    async def commit(
        self, offsets: Mapping[AnyPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Store offsets as the group's, from which its members go on reading.

        Args:
            offsets: the offset of the next record to read, by partition. None: those of all records
                that polls have returned; in an iteration, up to the present record.

        Raises:
            BrokerError: the group has given the partitions to other members: what was read since
                the last commit will be read again.
            Unavailable: no answer within `default.api.timeout.ms`.
        """
        group = self._needed_group("commit")
        await group.commit(
            self._processed() if offsets is None else self._with_epochs(checked_offsets(offsets))
        )

    async def committed(
        self, partitions: Iterable[Partition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offsets that the group has committed; None where it has committed none."""
        wanted = checked_partitions(partitions)
        found = await self._needed_group("committed").committed(wanted)
        return {partition: found.get(partition) for partition in wanted}

    def _state(self) -> list[str]:
        group = self.options["group.id"]
        assigned = sorted(self.assignment())
        names = [f"{topic}-{partition}" for topic, partition in assigned[:_SHOWN]]
        if len(assigned) > _SHOWN:
            names.append(f"and {len(assigned) - _SHOWN} more")
        return [
            *([f"group {group!r}"] if group else []),
            *([f"subscribed to {_describe(self._subscription)}"] if self._subscription else []),
            f"reads {' '.join(names) or 'no partitions'}",
        ]

    async def close(self) -> None:
        """Commit, with `enable.auto.commit`; leave the group; close the connections.

        Closing again does nothing.
        """
        await self._close_after(has_failed=False)

    async def __aexit__(self, *error: object) -> None:
        """Close. After an error the records of the last poll are not committed: the application
        may not have processed them."""
        await self._close_after(has_failed=error[0] is not None)

    async def _close_after(self, has_failed: bool) -> None:
        if not self._session.is_closed:
            try:
                await self._await(self._let_go(has_failed))
            finally:
                await AsyncClient.close(self)

    async def position(self, partition: Partition) -> int:
        """The offset of the next record that `poll` will return from a partition.

        Raises:
            UsageError: the partition is not assigned.
            KafkaError: it has no position yet, and looking one up failed or took longer than
                `default.api.timeout.ms`.
        """
        named = self._assigned(partition)
        known = self._known_position(named)
        if known is not None:
            return known
        self._submit(call_at_once)
        return await self._fetcher.locate(named, self._session.timeout)

    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        return _offsets(await self._find(dict.fromkeys(checked_partitions(partitions), EARLIEST)))

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The offset after the last record that a consumer may read, for each partition.

        With `isolation.level=read_committed` this is the first offset of the first open
        transaction, if there is one.
        """
        return _offsets(await self._find(dict.fromkeys(checked_partitions(partitions), LATEST)))

    async def offsets_for_times(
        self, timestamps: Mapping[AnyPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch); None if there is none."""
        found = await self._find(_checked_times(timestamps))
        return {partition: found_or_none(offset) for partition, offset in found.items()}

    def metrics(self) -> Snapshot:
        """All metrics under Kafka's names: `consumer-metrics`; `consumer-fetch-manager-metrics`, by
        topic `consumer-fetch-manager-topic-metrics`, by partition
        `consumer-fetch-manager-partition-metrics`; of the fetches from each broker
        `consumer-node-metrics`; and with a group `consumer-coordinator-metrics`.

        What `fetch_batches` returns counts as bytes, not as records. Any thread may call it.
        """
        connections = self._session.connections.connections
        return self._metrics.snapshot(
            self._lags(),
            {
                "connection-count": len(connections),
                "requests-in-flight": sum(each.in_flight for each in connections),
            },
            is_member=self._group is not None,
        )

    def problem(self, partition: Partition | None = None) -> KafkaError | None:
        """Why no records can arrive from a partition now; None if its leader can be asked.

        `poll` retries after errors that may pass, such as a broker that is down, without raising
        them; this returns the current one. The log names it too, from its third second on as a
        warning.

        Args:
            partition: None for the consumer as a whole: the first reason why it does not reach the
                cluster, or its group, or a topic or partition that it should read.
        """
        if partition is not None:
            return self._fetcher.problem(checked_partition(partition))
        if (failure := self._session.metadata.failure) is not None:
            return failure
        if self._group is not None and (trouble := self._group.problem()) is not None:
            return trouble
        problems = map(self._fetcher.problem, list(self._assignments))
        return next((problem for problem in problems if problem is not None), None)

    async def _next(self, read: Callable[[], T], timeout: float) -> T:
        """What `read` returns, as soon as that is something, or after `timeout` seconds."""
        self._begin_reading()
        try:
            return await self._await(self._poll(read, timeout, asyncio.get_running_loop().time))
        except (Exception, asyncio.CancelledError):  # which come where nothing is half done
            raise
        except BaseException:
            self._start_over()
            raise

    async def _await(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    await (step if isawaitable(step) else step())
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        finally:
            steps.close()

    async def _find(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        session = self._session
        session.check_open()
        return await self._offsets.find(wanted, session.timeout, self._isolation)


def _assignors(options: Options) -> list[Assignor] | None:
    """What a classic member offers; None if the coordinator assigns."""
    if options.text("group.protocol") == "consumer":
        return None
    return make_assignors(options.words("partition.assignment.strategy"))


def _make_group(
    session: Session, assignors: list[Assignor] | None, metrics: ConsumerMetrics
) -> Group | None:
    options = session.options
    if options["group.id"] is None:
        return None
    return Group(
        session,
        MemberOptions(
            group_id=options.text("group.id"),
            instance_id=options.optional_text("group.instance.id"),
            session=options.seconds("session.timeout.ms"),
            heartbeat=options.seconds("heartbeat.interval.ms"),
            poll_interval=options.seconds("max.poll.interval.ms"),
            rack=options.text("client.rack") or None,
            server_assignor=options.optional_text("group.remote.assignor"),
        ),
        assignors,
        metrics,
    )


def _make_fetcher(
    session: Session, offsets: OffsetLookup, group: Group | None, metrics: ConsumerMetrics
) -> Fetcher:
    options = session.options
    fetcher = Fetcher(
        session.connections,
        session.metadata,
        offsets,
        FetchOptions(
            limits=FetchLimits(
                max_bytes=options.integer("fetch.max.bytes"),
                partition_max_bytes=options.integer("max.partition.fetch.bytes"),
                min_bytes=options.integer("fetch.min.bytes"),
            ),
            max_wait=options.seconds("fetch.max.wait.ms"),
            check_crcs=options.flag("check.crcs"),
            isolation=isolation_of(options),
            rack=options.text("client.rack"),
            reset=RESETS[options.text("auto.offset.reset")],
            request_timeout=options.seconds("request.timeout.ms"),
            lookup_timeout=session.timeout,
            backoff=session.backoff,
            replica_max_age=options.seconds("metadata.max.age.ms"),
        ),
        session.random,
        metrics,
        None if group is None else group.committed,
    )
    if group is not None:
        group.topic_id = fetcher.topic_id
        group.handover.on_due = fetcher.wake
        group.handover.write_rates = fetcher.write_rates.rates
    return fetcher


def _checked_times(timestamps: object) -> dict[TopicPartition, int]:
    given = checked_mapping("timestamps", timestamps, "{('t', 0): 1767225600000}")
    return {
        checked_partition(partition): checked_time(f"the time of {shown(partition)}", at)
        for partition, at in given.items()
    }


def _offsets(found: Mapping[TopicPartition, OffsetAndTimestamp]) -> dict[TopicPartition, int]:
    return {partition: offset.offset for partition, offset in found.items()}


async def _close(fetcher: Fetcher, group: Group | None, session: Session) -> None:
    await fetcher.close()
    if group is not None:
        await group.close()
    await session.close()


def _describe(topics: Topics) -> str:
    return " ".join(sorted(topics)) if isinstance(topics, frozenset) else str(topics)
