"""`AsyncConsumer`, on an event loop: reads the records of assigned partitions.

    async with AsyncConsumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.assign([("flights", 0), ("flights", 1)])
        async for record in consumer:
            print(record.offset, record.value)

`trimtab.blocking.consumer` has the consumer for threads, which makes the same calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from random import Random

from trimtab.client.arguments import (
    Partition,
    checked_mapping,
    checked_partition,
    checked_partitions,
    checked_time,
    checked_wait_ms,
    shown,
)
from trimtab.client.async_client import AsyncClient
from trimtab.client.fetcher.batch_sizes import Ahead, BatchSizes, list_batch_sizes
from trimtab.client.fetcher.fetcher import Fetcher
from trimtab.client.fetcher.offsets import (
    RESETS,
    OffsetAndTimestamp,
    Offsets,
    found_or_none,
    isolation_of,
)
from trimtab.client.fetcher.plan import Batches, FetchOptions
from trimtab.client.fetcher.reader import Reader
from trimtab.client.network.session import Session
from trimtab.client.options import CONSUMER, client_options
from trimtab.errors import KafkaError
from trimtab.records import Record, TopicPartition
from trimtab.wire.fetch_limits import FetchLimits
from trimtab.wire.sentinels import EARLIEST, LATEST


class AsyncConsumer(Reader, AsyncClient):
    """Reads records of assigned partitions, on an event loop. Use it in one task at a time.

    Records are decoded on the loop, by the task that polls.

    Args:
        bootstrap_servers, options: as for `Consumer`.
        random: for jitter; a simulation passes its own.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        *,
        random: Random | None = None,
        **options: object,
    ) -> None:
        checked = client_options(CONSUMER, bootstrap_servers, options)
        session = Session(checked, random or Random())
        self._isolation = isolation_of(checked)
        self._offsets = Offsets(session)
        self._fetcher = fetcher = _make_fetcher(session, self._offsets)
        Reader.__init__(self, session)
        AsyncClient.__init__(self, session, partial(_close, fetcher, session))

    async def poll(self, timeout_ms: float = 500, max_records: int | None = None) -> list[Record]:
        """The next records, in the order of their offsets within each partition.

        Returns at once if records were fetched already, otherwise when the next fetch brings some,
        or an empty list after `timeout_ms`. An empty list comes earlier if a fetch brought only
        transaction markers.

        Args:
            max_records: how many at most; `max.poll.records` if None.

        Raises:
            BrokerError: a broker refuses a partition with an error that is not retriable, or the
                position is not in the log and `auto.offset.reset` is none.
            CorruptData: a batch is damaged; the position stays before it.
            UsageError: no partition is assigned, or one has no position to begin at.
        """
        limit, timeout = self._limit(max_records), checked_wait_ms("timeout_ms", timeout_ms)
        self._submit()
        return self._read(limit) or self._read(limit if await self._await_data(timeout) else 0)

    async def fetch_batches(self, timeout_ms: float = 500) -> Batches | None:
        """The next record batches of one partition: checked, but not decoded.

        For callers that decode batches themselves, such as into Arrow columns. Waits and raises
        like `poll`; None after `timeout_ms` without data. The position moves to the `next_offset`
        of the returned batches, and later batches are fetched meanwhile. One call returns up to
        `max.partition.fetch.bytes`, or a single larger batch.
        """
        timeout = checked_wait_ms("timeout_ms", timeout_ms)
        self._submit()
        batches = self._read_batches()
        if batches is None and await self._await_data(timeout):
            batches = self._read_batches()
        return batches

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Polls for ever: the iterator waits for new records and does not end."""
        while True:
            for record in await self.poll():
                yield record

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
        self._submit()
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
        self, timestamps: Mapping[Partition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch); None if there is none."""
        found = await self._find(_checked_times(timestamps))
        return {partition: found_or_none(offset) for partition, offset in found.items()}

    async def list_batch_sizes(
        self, wanted: Mapping[TopicPartition, Ahead]
    ) -> dict[TopicPartition, BatchSizes]:
        """The sizes of the record batches in ranges of offsets, without fetching the batches.

        Lists as many batches of each partition as fit into the brokers' responses.

        Raises:
            BrokerError: UNSUPPORTED_VERSION if a broker is not one of trimtab's.
            Unavailable: a leader cannot be reached.
        """
        session = self._session
        session.check_open()
        return await list_batch_sizes(session.connections, session.metadata, wanted)

    def problem(self, partition: Partition) -> KafkaError | None:
        """Why no records can arrive from a partition now; None if its leader can be asked.

        `poll` retries after errors that may pass, such as a broker that is down, without raising
        them; this returns the current one.
        """
        return self._fetcher.problem(checked_partition(partition))

    def _submit(self) -> None:
        assignments = self._take_changed_assignments()
        if assignments is not None:
            self._fetcher.update(assignments)

    async def _await_data(self, timeout: float) -> bool:
        taken = self._take(self._fetcher.ready)
        if not taken:
            await self._fetcher.wait(timeout)
            taken = self._take(self._fetcher.ready)
        if taken:
            self._fetcher.drained(taken)
        return bool(taken)

    async def _find(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        session = self._session
        session.check_open()
        return await self._offsets.find(wanted, session.timeout, self._isolation)


def _make_fetcher(session: Session, offsets: Offsets) -> Fetcher:
    options = session.options
    return Fetcher(
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
    )


def _checked_times(timestamps: object) -> dict[TopicPartition, int]:
    given = checked_mapping("timestamps", timestamps, "{('t', 0): 1767225600000}")
    return {
        checked_partition(partition): checked_time(f"the time of {shown(partition)}", at)
        for partition, at in given.items()
    }


def _offsets(found: Mapping[TopicPartition, OffsetAndTimestamp]) -> dict[TopicPartition, int]:
    return {partition: offset.offset for partition, offset in found.items()}


async def _close(fetcher: Fetcher, session: Session) -> None:
    await fetcher.close()
    await session.close()
