"""Consumers: read the records of assigned partitions, on one thread or on an event loop.

    with Consumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.assign([("flights", 0), ("flights", 1)])
        for record in consumer:
            print(record.offset, record.value)

`assign`, `seek`, `pause` and `resume` only change the consumer's assignments and return at once.
The next call that reads passes them to the fetcher, which then fetches ahead by itself. `poll`
decodes the records on the thread that calls it, not on the loop that fetches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from random import Random
from types import TracebackType

from trimtab.client.arguments import (
    MAX_INT64,
    Partition,
    checked_integer,
    checked_mapping,
    checked_partition,
    checked_partitions,
    checked_time,
    checked_wait_ms,
    refuse_copying,
    shown,
)
from trimtab.client.fetcher.batch_sizes import Ahead, BatchSizes, list_batch_sizes
from trimtab.client.fetcher.fetcher import (
    NO_END,
    RESETS,
    Assignment,
    Batches,
    Fetched,
    Fetcher,
    FetchOptions,
)
from trimtab.client.fetcher.offsets import OffsetAndTimestamp, found_or_none
from trimtab.client.options import CONSUMER
from trimtab.client.session import Session, isolation
from trimtab.errors import CorruptData, KafkaError, UsageError
from trimtab.records import Record, TopicPartition
from trimtab.runtime.loop_thread import LoopThread, shared
from trimtab.runtime.unclosed import close_when_collected
from trimtab.wire.batch_cy import read_records
from trimtab.wire.batch_header import read_header
from trimtab.wire.fetch_limits import FetchLimits
from trimtab.wire.sentinels import EARLIEST, LATEST

__all__ = ["AsyncConsumer", "Batches", "Consumer", "OffsetAndTimestamp"]


class _Chunk:
    """The batches of one partition in one fetch response, decoded one by one as they are read."""

    def __init__(self, fetched: Fetched, batches: Batches) -> None:
        self.partition = fetched.partition
        self.epoch = fetched.epoch
        self.position = batches.start
        """The offset of the next record to return."""
        self._batches = batches
        self._batch = 0
        self._next_batch = 0
        self._records: list[Record] = []
        self._index = 0

    @property
    def is_exhausted(self) -> bool:
        return self.position >= self._batches.next_offset

    def take(self, limit: int) -> list[Record]:
        """The next records, at most `limit`; fewer means that the chunk is exhausted."""
        taken: list[Record] = []
        while True:
            part = self._records[self._index : self._index + limit - len(taken)]
            self._index += len(part)
            taken = taken + part if taken else part
            if self._index < len(self._records):
                self.position = self._records[self._index].offset
                return taken
            if self._next_batch >= len(self._batches.data):
                self.position = self._batches.next_offset
                return taken
            if len(taken) == limit:
                if part:
                    self.position = part[-1].offset + 1
                return taken
            self._decode_batch()

    def rest(self) -> Batches:
        """The batches from `position` on."""
        begin = self._batch if self._index < len(self._records) else self._next_batch
        return self._batches._replace(start=self.position, data=self._batches.data[begin:])

    def _decode_batch(self) -> None:
        data, begin = self._batches.data, self._next_batch
        try:
            end = begin + read_header(data, begin).size
            self._records = read_records(
                *self.partition, data[begin:end], self.position, check_crcs=False
            )
        except CorruptData as error:
            raise CorruptData(
                f"{self.partition} at offset {self.position}: {error}; seek past it to go on"
            ) from error
        self._batch, self._next_batch, self._index = begin, end, 0


class _Reader:
    """The state that both consumers share: assignments, positions, and fetched but unread batches.

    Nothing here waits. `_session` and `_fetcher` belong to the event loop.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None,
        given: Mapping[str, object],
        random: Random,
    ) -> None:
        self._session = session = Session(CONSUMER, bootstrap_servers, given, random)
        options = session.options
        self._isolation = isolation(options)
        self._reset = RESETS[options.text("auto.offset.reset")]
        self._max_poll_records = options.integer("max.poll.records")
        self._assignments: dict[TopicPartition, Assignment] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._pending: deque[_Chunk | Fetched] = deque()
        self._epoch = 0
        self._has_changed = False
        self._closed = False

    __reduce_ex__ = refuse_copying

    def _make_fetcher(self) -> Fetcher:
        session, options = self._session, self._session.options
        return Fetcher(
            session.connections,
            session.metadata,
            session.offsets,
            FetchOptions(
                limits=FetchLimits(
                    max_bytes=options.integer("fetch.max.bytes"),
                    partition_max_bytes=options.integer("max.partition.fetch.bytes"),
                    min_bytes=options.integer("fetch.min.bytes"),
                ),
                max_wait=options.seconds("fetch.max.wait.ms"),
                check_crcs=options.flag("check.crcs"),
                isolation=self._isolation,
                rack=options.text("client.rack"),
                reset=self._reset,
                request_timeout=options.seconds("request.timeout.ms"),
                lookup_timeout=session.timeout,
                backoff=session.backoff,
                replica_max_age=options.seconds("metadata.max.age.ms"),
            ),
            session.random,
        )

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions from now on; an empty list stops reading.

        A partition that was assigned before keeps its position; a new one begins at the offset
        given to `seek`, or else by `auto.offset.reset`.
        """
        wanted = checked_partitions(partitions)
        kept = {partition: self._assignments.get(partition) for partition in wanted}
        self._positions = {p: at for p, at in self._positions.items() if p in kept}
        self._assignments = {}
        for partition, assignment in kept.items():
            self._assignments[partition] = assignment or self._new_assignment(
                _NO_POSITION if self._reset is None else self._reset
            )
        self._has_changed = True

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions, including paused ones."""
        return set(self._assignments)

    def seek(self, partition: Partition, offset: int, end: int | None = None) -> None:
        """Read on from an offset, 0 or greater; only the next read checks that the log has it.

        Args:
            end: the offset at which fetching stops; None for never. The last batch may contain
                records at or after it.

        Raises:
            UsageError: the partition is not assigned, or an offset is negative.
        """
        start = checked_integer("offset", offset, 0, MAX_INT64)
        stop = NO_END if end is None else checked_integer("end", end, 0, MAX_INT64)
        self._seek_all([partition], start, stop)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Read on from the log start offset; all assigned partitions if none is given."""
        self._seek_all(partitions or self._assignments, EARLIEST)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Read on from the end, looked up at the next poll; all assigned if none is given."""
        self._seek_all(partitions or self._assignments, LATEST)

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these partitions until `resume`; fetched records are kept."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: Partition) -> None:
        """Undo `pause`."""
        self._set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {
            partition for partition, assignment in self._assignments.items() if assignment.is_paused
        }

    def _seek_all(self, partitions: Iterable[Partition], start: int, end: int = NO_END) -> None:
        for partition in [self._assigned(partition) for partition in partitions]:
            is_paused = self._assignments[partition].is_paused
            self._assignments[partition] = self._new_assignment(start)._replace(
                is_paused=is_paused, end=end
            )
            self._positions.pop(partition, None)
        self._has_changed = True

    def _set_paused(self, partitions: Iterable[Partition], is_paused: bool) -> None:
        for partition in [self._assigned(partition) for partition in partitions]:
            self._assignments[partition] = self._assignments[partition]._replace(
                is_paused=is_paused
            )
        self._has_changed = True

    def _new_assignment(self, start: int) -> Assignment:
        self._epoch += 1
        return Assignment(self._epoch, start, False)

    def _assigned(self, partition: Partition) -> TopicPartition:
        named = checked_partition(partition)
        if named not in self._assignments:
            raise UsageError(f"{named} is not assigned to this consumer; assign() it first")
        return named

    def _take_changed_assignments(self) -> dict[TopicPartition, Assignment] | None:
        """The assignments, if they changed since they were last passed to the fetcher."""
        if self._closed:
            raise UsageError("the consumer is closed")
        if not self._assignments:
            raise UsageError("the consumer has no partitions; assign() some first")
        if not self._has_changed:
            return None
        for partition, assignment in self._assignments.items():
            if assignment.start == _NO_POSITION:
                raise UsageError(
                    f"{partition} has no position and auto.offset.reset=none; seek() to one"
                )
        self._has_changed = False
        return dict(self._assignments)

    def _known_position(self, partition: TopicPartition) -> int | None:
        position = self._positions.get(partition)
        if position is None and self._assignments[partition].start >= 0:
            return self._assignments[partition].start
        return position

    def _take(self, ready: deque[Fetched]) -> list[Fetched]:
        """Move fetched batches of current assignments from `ready` to the pending queue."""
        taken: list[Fetched] = []
        while ready:
            fetched = ready.popleft()
            if self._is_assigned(fetched):
                taken.append(fetched)
                batches = fetched.result
                self._pending.append(
                    fetched if isinstance(batches, KafkaError) else _Chunk(fetched, batches)
                )
        return taken

    def _is_assigned(self, piece: _Chunk | Fetched) -> bool:
        assignment = self._assignments.get(piece.partition)
        return assignment is not None and assignment.epoch == piece.epoch

    def _read(self, limit: int) -> list[Record]:
        records: list[Record] = []
        while len(records) < limit:
            chunk = self._next_chunk(raises=not records)
            if chunk is None:
                break
            taken = chunk.take(limit - len(records))
            records = records + taken if records else taken
            self._positions[chunk.partition] = chunk.position
            if chunk.is_exhausted:
                self._pending.remove(chunk)
        return records

    def _read_batches(self) -> Batches | None:
        chunk = self._next_chunk(raises=True)
        if chunk is None:
            return None
        self._pending.remove(chunk)
        rest = chunk.rest()
        self._positions[chunk.partition] = rest.next_offset
        return rest

    def _next_chunk(self, raises: bool) -> _Chunk | None:
        """The first pending chunk that is assigned and not paused.

        If an error is queued before it: raises that error once, or returns None unless `raises`.
        """
        for piece in list(self._pending):
            if not self._is_assigned(piece):
                self._pending.remove(piece)
            elif self._assignments[piece.partition].is_paused:
                continue
            elif isinstance(piece, _Chunk):
                return piece
            elif raises:
                self._pending.remove(piece)
                assert isinstance(piece.result, KafkaError)
                raise piece.result
            else:
                return None
        return None

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self._max_poll_records
        return checked_integer("max_records", max_records, 1)


class Consumer(_Reader):
    """Reads records of assigned partitions. Use it on one thread at a time, like Kafka's own.

    Args:
        bootstrap_servers: `host:port, …` of the cluster; also as the option of that name. Or a
            dictionary of options, to which keyword arguments may add.
        options: Kafka's consumer options, dotted or in snake case, such as
            `auto_offset_reset="earliest"`.

    Raises:
        UsageError: an unknown option, or a value that is out of range.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | None = None,
        **options: object,
    ) -> None:
        super().__init__(bootstrap_servers, options, Random())
        self._fetcher = fetcher = self._make_fetcher()
        session = self._session
        self._thread: LoopThread = shared()
        self._thread.entrust(
            self, session.options.name_of(self), lambda timeout: _close(fetcher, session)
        )

    def poll(self, timeout_ms: float = 500, max_records: int | None = None) -> list[Record]:
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
        return self._read(limit) or self._read(limit if self._await_data(timeout) else 0)

    def fetch_batches(self, timeout_ms: float = 500) -> Batches | None:
        """The next record batches of one partition: checked, but not decoded.

        For callers that decode batches themselves, such as into Arrow columns. Waits and raises
        like `poll`; None after `timeout_ms` without data. The position moves to the `next_offset`
        of the returned batches, and later batches are fetched meanwhile. One call returns up to
        `max.partition.fetch.bytes`, or a single larger batch.
        """
        timeout = checked_wait_ms("timeout_ms", timeout_ms)
        self._submit()
        batches = self._read_batches()
        if batches is None and self._await_data(timeout):
            batches = self._read_batches()
        return batches

    def __iter__(self) -> Iterator[Record]:
        """Polls for ever: the iterator waits for new records and does not end."""
        while True:
            yield from self.poll()

    def position(self, partition: Partition) -> int:
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
        return self._thread.run(self._fetcher.locate, named, self._session.timeout)

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        return _offsets(self._find(dict.fromkeys(checked_partitions(partitions), EARLIEST)))

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The offset after the last record that a consumer may read, for each partition.

        With `isolation.level=read_committed` this is the first offset of the first open
        transaction, if there is one.
        """
        return _offsets(self._find(dict.fromkeys(checked_partitions(partitions), LATEST)))

    def offsets_for_times(
        self, timestamps: Mapping[Partition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch); None if there is none."""
        found = self._find(_checked_times(timestamps))
        return {partition: found_or_none(offset) for partition, offset in found.items()}

    def list_batch_sizes(
        self, wanted: Mapping[TopicPartition, Ahead]
    ) -> dict[TopicPartition, BatchSizes]:
        """The sizes of the record batches in ranges of offsets, without fetching the batches.

        Lists as many batches of each partition as fit into the brokers' responses.

        Raises:
            BrokerError: UNSUPPORTED_VERSION if a broker is not one of trimtab's.
            Unavailable: a leader cannot be reached.
        """
        if self._closed:
            raise UsageError("the consumer is closed")
        session = self._session
        return self._thread.run(list_batch_sizes, session.connections, session.metadata, wanted)

    def problem(self, partition: Partition) -> KafkaError | None:
        """Why no records can arrive from a partition now; None if its leader can be asked.

        `poll` retries after errors that may pass, such as a broker that is down, without raising
        them; this returns the current one.
        """
        return self._fetcher.problem(checked_partition(partition))

    def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        self._thread.end(_close, self._fetcher, self._session)
        self._closed = True

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _submit(self) -> None:
        assignments = self._take_changed_assignments()
        if assignments is not None:
            self._thread.call_soon(self._fetcher.update, assignments)

    def _await_data(self, timeout: float) -> bool:
        taken = self._take(self._fetcher.ready)
        if not taken:
            self._thread.run(self._fetcher.wait, timeout)
            taken = self._take(self._fetcher.ready)
        if taken:
            self._thread.call_soon(self._fetcher.drained, taken)
        return bool(taken)

    def _find(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        if self._closed:
            raise UsageError("the consumer is closed")
        session = self._session
        return self._thread.run(session.offsets.find, wanted, session.timeout, self._isolation)


class AsyncConsumer(_Reader):
    """`Consumer` for an event loop: the same methods; those that wait are awaited.

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
        super().__init__(bootstrap_servers, options, random or Random())
        self._fetcher = fetcher = self._make_fetcher()
        session = self._session
        self._keep_open = close_when_collected(
            self, session.options.name_of(self), lambda: _close(fetcher, session)
        )

    async def poll(self, timeout_ms: float = 500, max_records: int | None = None) -> list[Record]:
        """As `Consumer.poll`."""
        limit, timeout = self._limit(max_records), checked_wait_ms("timeout_ms", timeout_ms)
        self._submit()
        return self._read(limit) or self._read(limit if await self._await_data(timeout) else 0)

    async def fetch_batches(self, timeout_ms: float = 500) -> Batches | None:
        """As `Consumer.fetch_batches`."""
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
        """As `Consumer.position`."""
        named = self._assigned(partition)
        known = self._known_position(named)
        if known is not None:
            return known
        self._submit()
        return await self._fetcher.locate(named, self._session.timeout)

    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """As `Consumer.beginning_offsets`."""
        return _offsets(await self._find(dict.fromkeys(checked_partitions(partitions), EARLIEST)))

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """As `Consumer.end_offsets`."""
        return _offsets(await self._find(dict.fromkeys(checked_partitions(partitions), LATEST)))

    async def offsets_for_times(
        self, timestamps: Mapping[Partition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """As `Consumer.offsets_for_times`."""
        found = await self._find(_checked_times(timestamps))
        return {partition: found_or_none(offset) for partition, offset in found.items()}

    async def list_batch_sizes(
        self, wanted: Mapping[TopicPartition, Ahead]
    ) -> dict[TopicPartition, BatchSizes]:
        """As `Consumer.list_batch_sizes`."""
        if self._closed:
            raise UsageError("the consumer is closed")
        session = self._session
        return await list_batch_sizes(session.connections, session.metadata, wanted)

    def problem(self, partition: Partition) -> KafkaError | None:
        """As `Consumer.problem`."""
        return self._fetcher.problem(checked_partition(partition))

    async def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._keep_open()
            await _close(self._fetcher, self._session)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

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
        if self._closed:
            raise UsageError("the consumer is closed")
        session = self._session
        return await session.offsets.find(wanted, session.timeout, self._isolation)


_NO_POSITION = -4
"""The partition has no position. No offset, and none of ListOffsets' special timestamps."""


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
