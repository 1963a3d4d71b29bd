"""What a consumer reads: its assignments and positions, and the batches that were fetched for it.

`assign`, `seek`, `pause` and `resume` only change the assignments and return at once. The next call
that reads passes them to the fetcher, which then fetches ahead by itself. Records are decoded on
the thread that reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trimtab.client.consumer_metrics import ConsumerMetrics
from trimtab.client.fetcher.offsets import RESETS
from trimtab.client.fetcher.plan import NO_END, Assignment, Batches, Fetched
from trimtab.client.fetcher.taken import Taken
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.session import Session
from trimtab.client.optional import import_pyarrow
from trimtab.kafka.arguments import (
    MAX_INT64,
    Partition,
    checked_each,
    checked_integer,
    checked_partition,
    checked_partitions,
)
from trimtab.kafka.errors import (
    CorruptData,
    KafkaError,
    NotDeserialized,
    TopicRecreated,
    UsageError,
)
from trimtab.kafka.records import Deserializers, Record, TopicPartition
from trimtab.kafka.wire.batch_cy import read_some_records
from trimtab.kafka.wire.batch_header import read_header
from trimtab.kafka.wire.sentinels import EARLIEST, LATEST, NO_EPOCH
from trimtab.kafka.wire.types import ZERO_UUID
from trimtab.threads.forks import call_in_forked_child

if TYPE_CHECKING:
    from trimtab.client.fetcher.arrow import Projection

TABLE_BYTES: Final = 16 * 1024 * 1024
"""About how large a table becomes by default."""


def checked_table_bytes(value: object) -> int:
    return checked_integer("max_bytes", value, 1)


class _Chunk:
    """The batches of one partition in one fetch response, decoded as they are read."""

    def __init__(self, fetched: Fetched, batches: Batches) -> None:
        self.fetched = fetched
        self.partition = fetched.partition
        self.epoch = fetched.epoch
        self.position = batches.start
        """The offset of the next record to return."""
        self.size = len(batches.data)
        self._batches = batches
        self._next_batch = 0
        self._records: list[Record] = []
        self._index = 0

    @property
    def is_exhausted(self) -> bool:
        return self.position >= self._batches.next_offset

    def take(self, limit: int, deserializers: Deserializers | None) -> list[Record]:
        """The next records, at most `limit`; fewer mean that the chunk is exhausted, or that the
        next record cannot be read.

        Raises:
            CorruptData, NotDeserialized: the first record cannot be read. The position stays there.
        """
        taken: list[Record] = []
        while True:
            part = self._records[self._index : self._index + limit - len(taken)]
            self._index += len(part)
            taken = taken + part if taken else part
            if self._index < len(self._records):
                self.position = self._records[self._index].offset
                return taken
            if taken:
                self.position = taken[-1].offset + 1
            if self._next_batch >= len(self._batches.data):
                self.position = self._batches.next_offset
                return taken
            if len(taken) == limit:
                return taken
            try:
                self._decode(limit - len(taken), deserializers)
            except (CorruptData, NotDeserialized):
                if not taken:
                    raise
                return taken

    def take_columns(self, projection: Projection, max_bytes: int) -> tuple[Any, int]:
        """The next records as an Arrow batch, None if there are none; and about their bytes."""
        batches = self._batches
        try:
            rows, position, size = projection.scan(
                self.partition, batches.data, self.position, batches.next_offset, max_bytes
            )
        except CorruptData as error:
            raise self._explained(error) from error
        self._go_to(position)
        return rows, size

    def put_back(self, records: list[Record]) -> None:
        """Return these records, which were the last to be taken, once more."""
        self._records = records + self._records[self._index :]
        self._index = 0
        self.position = records[0].offset

    def take_batches(self) -> Batches:
        """All batches from `position` on."""
        data, begin = self._batches.data, 0
        while begin < len(data):
            header = read_header(data, begin)
            if header.next_offset > self.position:
                break
            begin += header.size
        rest = self._batches._replace(start=self.position, data=data[begin:])
        self._go_to(rest.next_offset)
        return rest

    def _go_to(self, position: int) -> None:
        self.position = position
        self._records, self._index, self._next_batch = [], 0, 0

    def _decode(self, enough: int, deserializers: Deserializers | None) -> None:
        """Decode batches until there are `enough` records or the chunk ends."""
        try:
            self._records, self._next_batch = read_some_records(
                *self.partition,
                self._batches.data,
                self._next_batch,
                self.position,
                enough,
                deserializers,
            )
        except CorruptData as error:
            raise self._explained(error) from error
        except NotDeserialized as error:
            self.position = error.record.offset
            raise
        self._index = 0

    def _explained(self, error: CorruptData) -> CorruptData:
        return CorruptData(
            f"{self.partition} at offset {self.position}: {error}; seek past it to go on"
        )


class _Run(NamedTuple):
    """Records of one chunk that the application iterates over."""

    chunk: _Chunk
    records: list[Record]
    iterator: Iterator[Record]

    @property
    def left(self) -> int:
        """How many records the application has not reached."""
        return length_hint(self.iterator)


class Reader(ABC):
    """What a consumer reads: assignments, positions, and fetched but unread batches.

    Nothing here waits. One thread uses it at a time; its fetcher, on the event loop, gets the
    assignments and hands over what it has fetched.

    Args:
        deserializers: None if keys and values stay bytes.
        metrics: records what the application gets.
    """

    def __init__(
        self, session: Session, deserializers: Deserializers | None, metrics: ConsumerMetrics
    ) -> None:
        options = session.options
        self._metrics = metrics
        self._session = session
        self._deserializers = deserializers
        self._reset = RESETS[options.text("auto.offset.reset")]
        self._max_poll_records = options.integer("max.poll.records")
        self._assignments: dict[TopicPartition, Assignment] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._pending: deque[_Chunk | Fetched] = deque()
        self._taken = Taken()
        self._epoch = 0
        self._has_changed = False
        self._begin = _NO_POSITION if self._reset is None else self._reset
        """Where a partition begins to which nobody has sought."""
        self._may_be_empty = False
        self._before: dict[TopicPartition, int] = {}
        """Where partitions stood before the last call that read from them."""
        self._run: _Run | None = None
        """What the application iterates over now."""
        self._projection: Projection | None = None
        call_in_forked_child(self, Reader._abandon)

    def _abandon(self) -> None:
        """In a process forked from the consumer's, which also reads what was fetched: hand out
        nothing, and make every call that reads fail."""
        self._session.is_forked = self._session.is_closed = True
        self._pending.clear()
        if self._run is not None:
            self._run.records.clear()  # so that the iterator ends
            self._run = None

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions from now on; an empty list stops reading.

        A partition that was assigned before keeps its position; a new one begins at the offset
        given to `seek`, or else by `auto.offset.reset`.
        """
        self._replace(checked_partitions(partitions))

    def _replace(self, wanted: Iterable[TopicPartition]) -> None:
        self._leave_loop()
        self._has_changed = True
        # In this order: after Ctrl-C between the two, no partition has lost its position.
        self._assignments = {
            partition: self._assignments.get(partition) or self._new_assignment(self._begin)
            for partition in wanted
        }
        self._positions = {p: at for p, at in self._positions.items() if p in self._assignments}

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions, including paused ones."""
        return set(self._assignments)

    def seek(
        self,
        partition: Partition,
        offset: int | OffsetAndMetadata,
        end: int | None = None,
        topic_id: bytes = ZERO_UUID,
    ) -> None:
        """Read on from an offset, 0 or greater; only the next read checks that the log has it.

        Args:
            offset: the offset of the next record. If it is given with a leader epoch, as
                `committed` returns it, the next read also checks that the log has not lost the
                record before it (KIP-320).
            end: the offset at which fetching stops; None for never. The last batch may contain
                records at or after it.
            topic_id: the id of the topic to which the offset belongs: the next read fails, or
                resets, if the topic was deleted and created again since (KIP-516). Zero: the id
                that the topic has at the next read.

        Raises:
            UsageError: the partition is not assigned, an offset is negative, or the id has not 16
                bytes.
        """
        given = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        start = checked_integer("offset", given.offset, 0, MAX_INT64)
        epoch = checked_integer("leader epoch", given.leader_epoch, NO_EPOCH)
        stop = NO_END if end is None else checked_integer("end", end, 0, MAX_INT64)
        if not isinstance(topic_id, bytes) or len(topic_id) != len(ZERO_UUID):
            raise UsageError(f"topic_id={topic_id!r}: give the id's 16 bytes, as Admin returns it")
        self._seek_all([partition], start, stop, epoch, topic_id)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Read on from the log start offset; all assigned partitions if none is given."""
        given = checked_each("seek_to_beginning", partitions)
        self._seek_all(given or self._assignments, EARLIEST)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Read on from the end, looked up at the next poll; all assigned if none is given."""
        given = checked_each("seek_to_end", partitions)
        self._seek_all(given or self._assignments, LATEST)

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these partitions until `resume`; fetched records are kept."""
        self._set_paused(checked_each("pause", partitions), True)

    def resume(self, *partitions: Partition) -> None:
        """Undo `pause`."""
        self._set_paused(checked_each("resume", partitions), False)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {
            partition for partition, assignment in self._assignments.items() if assignment.is_paused
        }

    def _seek_all(
        self,
        partitions: Iterable[Partition],
        start: int,
        end: int = NO_END,
        leader_epoch: int = NO_EPOCH,
        topic_id: bytes = ZERO_UUID,
    ) -> None:
        self._leave_loop()
        for partition in [self._assigned(partition) for partition in partitions]:
            is_paused = self._assignments[partition].is_paused
            self._assignments[partition] = self._new_assignment(start)._replace(
                is_paused=is_paused, end=end, leader_epoch=leader_epoch, topic_id=topic_id
            )
            self._positions.pop(partition, None)
            self._before.pop(partition, None)
        self._has_changed = True

    def _set_paused(self, partitions: Iterable[Partition], is_paused: bool) -> None:
        self._leave_loop()
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
        if self._session.is_closed:
            self._session.check_open()
        if not self._assignments and not self._may_be_empty:
            raise UsageError("the consumer has no partitions; assign() some first")
        if not self._has_changed:
            return None
        for partition, assignment in self._assignments.items():
            if assignment.start == _NO_POSITION:
                raise UsageError(
                    f"{partition} has no position and auto.offset.reset=none; seek() to one, or set"
                    " auto.offset.reset=earliest or latest"
                )
        self._has_changed = False
        return dict(self._assignments)

    def _known_position(self, partition: TopicPartition) -> int | None:
        run = self._run
        if run is not None and run.chunk.partition == partition and (left := run.left):
            return run.records[-left].offset
        position = self._positions.get(partition)
        if position is None and self._assignments[partition].start >= 0:
            return self._assignments[partition].start
        return position

    def _take(self, ready: deque[Fetched]) -> bool:
        """Move fetched batches of current assignments from `ready` to the pending queue; whether
        there were any."""
        has_any = False
        while ready:
            fetched = ready.popleft()
            if self._is_assigned(fetched):
                has_any = True
                self._taken.add_result(fetched)
                batches = fetched.result
                self._pending.append(
                    fetched if isinstance(batches, KafkaError) else _Chunk(fetched, batches)
                )
        return has_any

    @abstractmethod
    def _refill(self) -> None:
        """Have the fetcher replace what the application has begun to read."""

    def _is_assigned(self, piece: _Chunk | Fetched) -> bool:
        assignment = self._assignments.get(piece.partition)
        return assignment is not None and assignment.epoch == piece.epoch

    def _begin_reading(self) -> None:
        """The application reads on: it has processed what it read before."""
        self._before = {}
        self._end_run()

    def _leave_loop(self) -> None:
        """The application changes what is read next, perhaps in a loop over the consumer."""
        self._before = self._unprocessed()
        self._end_run()

    def _unprocessed(self) -> dict[TopicPartition, int]:
        """The first record of each partition that the application is processing now: the present
        one of an iteration, or all that the last call returned."""
        run = self._run
        if run is None:
            return self._before
        present = len(run.records) - run.left - 1
        return {run.chunk.partition: run.records[present].offset} if present >= 0 else {}

    def _end_run(self) -> None:
        """End the iteration over a run; the records that it has not reached are read again.

        Ctrl-C may come between any two lines: then the next call does what is left to do.
        """
        run = self._run
        if run is None:
            return
        chunk, left = run.chunk, run.left
        if left and self._is_assigned(chunk):
            rest = run.records[-left:]
            if chunk.is_exhausted:
                self._pending.appendleft(chunk)
            if chunk.position > rest[0].offset:
                chunk.put_back(rest)
            self._positions[chunk.partition] = chunk.position
        self._run = None
        self._metrics.records_consumed(chunk.partition.topic, len(run.records) - left)
        if left:
            del run.records[-left:]  # so that the iterator ends

    def _read(self, limit: int) -> list[Record]:
        """The next records, at most `limit`."""
        records: list[Record] = []

        def take(chunk: _Chunk, left: int) -> int:
            taken = chunk.take(left, self._deserializers)
            records.extend(taken)
            self._metrics.records_consumed(chunk.partition.topic, len(taken))
            return len(taken)

        self._read_chunks(take, limit)
        return records

    def _read_run(self) -> Iterator[Record] | None:
        """The next records of one partition, to iterate over; None if there are none."""

        def take(chunk: _Chunk, left: int) -> int:
            records = chunk.take(self._max_poll_records, self._deserializers)
            if records:
                self._run = _Run(chunk, records, iter(records))
            return len(records)

        self._read_chunks(take, 1)
        self._before = {}  # what the application is processing, the run knows
        return None if self._run is None else self._run.iterator

    def _read_table(self, projection: Projection, max_bytes: int) -> Any:
        """The next records as an Arrow table of about `max_bytes`; it may be empty."""
        parts: list[Any] = []

        def take(chunk: _Chunk, left: int) -> int:
            rows, size = chunk.take_columns(projection, left)
            if rows is not None:
                parts.append(rows)
                self._metrics.records_consumed(chunk.partition.topic, rows.num_rows)
            return size

        self._read_chunks(take, max_bytes)
        return projection.table(parts)

    def _read_batches(self) -> Batches | None:
        found: list[Batches] = []

        def take(chunk: _Chunk, left: int) -> int:
            found.append(chunk.take_batches())
            return 1

        self._read_chunks(take, 1)
        return found[0] if found else None

    def _read_chunks(self, take: Callable[[_Chunk, int], int], wanted: int) -> None:
        """Read from one chunk after the other until there is enough, and move the positions on.

        An error behind what was read is left for the next call.

        Args:
            take: reads from a chunk what is still wanted, and returns how much it got.
        """
        left = wanted
        try:
            while left > 0:
                chunk = self._next_chunk(raises=left == wanted)
                if chunk is None:
                    return
                if self._taken.is_due():
                    self._refill()  # now, so that data arrives while this chunk is read
                self._before.setdefault(chunk.partition, chunk.position)
                try:
                    left -= take(chunk, left)
                finally:
                    self._positions[chunk.partition] = chunk.position
                    if chunk.is_exhausted:
                        self._pending.remove(chunk)
                        self._metrics.bytes_consumed(chunk.partition.topic, chunk.size)
        except KafkaError:
            if left == wanted:
                raise

    def _next_chunk(self, raises: bool) -> _Chunk | None:
        """The first pending chunk that is assigned and not paused.

        If an error is queued before it: raises that error once, or returns None unless `raises`.
        """
        index = 0
        while index < len(self._pending):
            piece = self._pending[index]
            if not self._is_assigned(piece):
                self._taken.begin_result(piece.fetched if isinstance(piece, _Chunk) else piece)
                del self._pending[index]
            elif self._assignments[piece.partition].is_paused:
                index += 1
            elif isinstance(piece, _Chunk):
                self._taken.begin_result(piece.fetched)
                return piece
            elif isinstance(piece.result, TopicRecreated) and self._reset is not None:
                end = self._assignments[piece.partition].end
                self._seek_all([piece.partition], self._reset, end)
            elif raises:
                self._taken.begin_result(piece)  # first: Ctrl-C between the two must not lose it
                del self._pending[index]
                assert isinstance(piece.result, KafkaError)
                raise piece.result
            else:
                return None
        return None

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self._max_poll_records
        return checked_integer("max_records", max_records, 1)

    def _project(self, columns: Iterable[str] | None) -> Projection:
        """The last projection, if it has the same columns: it keeps buffers of a fitting size."""
        import_pyarrow("arrow()")
        from trimtab.client.fetcher.arrow import Projection, checked_columns

        names = checked_columns(columns)
        if self._projection is None or self._projection.columns != names:
            self._projection = Projection(names)
        return self._projection


_NO_POSITION = -4
"""The partition has no position. No offset, and none of ListOffsets' special timestamps."""
