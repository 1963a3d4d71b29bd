"""What a consumer reads: its assignments and positions, and the batches that were fetched for it.

`assign`, `seek`, `pause` and `resume` only change the assignments and return at once. The next call
that reads passes them to the fetcher, which then fetches ahead by itself. Records are decoded on
the thread that reads them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from trimtab.client.arguments import (
    MAX_INT64,
    Partition,
    checked_integer,
    checked_partition,
    checked_partitions,
)
from trimtab.client.fetcher.offsets import RESETS
from trimtab.client.fetcher.plan import NO_END, Assignment, Batches, Fetched
from trimtab.client.fetcher.taken import Taken
from trimtab.client.group_offsets import OffsetAndMetadata
from trimtab.client.network.session import Session
from trimtab.errors import CorruptData, KafkaError, UsageError
from trimtab.records import Record, TopicPartition
from trimtab.wire.batch_cy import read_records
from trimtab.wire.batch_header import read_header
from trimtab.wire.sentinels import EARLIEST, LATEST, NO_EPOCH


class _Chunk:
    """The batches of one partition in one fetch response, decoded one by one as they are read."""

    def __init__(self, fetched: Fetched, batches: Batches) -> None:
        self.fetched = fetched
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


class Reader:
    """What a consumer reads: assignments, positions, and fetched but unread batches.

    Nothing here waits. One thread uses it at a time; its fetcher, on the event loop, gets the
    assignments and hands over what it has fetched.
    """

    def __init__(self, session: Session) -> None:
        options = session.options
        self._session = session
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

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions from now on; an empty list stops reading.

        A partition that was assigned before keeps its position; a new one begins at the offset
        given to `seek`, or else by `auto.offset.reset`.
        """
        self._replace(checked_partitions(partitions))

    def _replace(self, wanted: Iterable[TopicPartition]) -> None:
        kept = {partition: self._assignments.get(partition) for partition in wanted}
        self._positions = {p: at for p, at in self._positions.items() if p in kept}
        self._assignments = {}
        for partition, assignment in kept.items():
            self._assignments[partition] = assignment or self._new_assignment(self._begin)
        self._has_changed = True

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions, including paused ones."""
        return set(self._assignments)

    def seek(
        self, partition: Partition, offset: int | OffsetAndMetadata, end: int | None = None
    ) -> None:
        """Read on from an offset, 0 or greater; only the next read checks that the log has it.

        Args:
            offset: the offset of the next record. If it is given with a leader epoch, as
                `committed` returns it, the next read also checks that the log has not lost the
                record before it (KIP-320).
            end: the offset at which fetching stops; None for never. The last batch may contain
                records at or after it.

        Raises:
            UsageError: the partition is not assigned, or an offset is negative.
        """
        given = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        start = checked_integer("offset", given.offset, 0, MAX_INT64)
        epoch = checked_integer("leader epoch", given.leader_epoch, NO_EPOCH)
        stop = NO_END if end is None else checked_integer("end", end, 0, MAX_INT64)
        self._seek_all([partition], start, stop, epoch)

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

    def _seek_all(
        self,
        partitions: Iterable[Partition],
        start: int,
        end: int = NO_END,
        leader_epoch: int = NO_EPOCH,
    ) -> None:
        for partition in [self._assigned(partition) for partition in partitions]:
            is_paused = self._assignments[partition].is_paused
            self._assignments[partition] = self._new_assignment(start)._replace(
                is_paused=is_paused, end=end, leader_epoch=leader_epoch
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
        if self._session.is_closed:
            self._session.check_open()
        if not self._assignments and not self._may_be_empty:
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

    def _take(self, ready: deque[Fetched]) -> bool:
        """Move fetched batches of current assignments from `ready` to the pending queue; whether
        there were any."""
        has_any = False
        while ready:
            fetched = ready.popleft()
            if self._is_assigned(fetched):
                has_any = True
                self._taken.add(fetched)
                batches = fetched.result
                self._pending.append(
                    fetched if isinstance(batches, KafkaError) else _Chunk(fetched, batches)
                )
        return has_any

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
                self._taken.begin(piece.fetched if isinstance(piece, _Chunk) else piece)
                self._pending.remove(piece)
            elif self._assignments[piece.partition].is_paused:
                continue
            elif isinstance(piece, _Chunk):
                self._taken.begin(piece.fetched)
                return piece
            elif raises:
                self._taken.begin(piece)  # first: Ctrl-C between the two must not lose it
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


_NO_POSITION = -4
"""The partition has no position. No offset, and none of ListOffsets' special timestamps."""
