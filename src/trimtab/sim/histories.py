"""What is known of each partition: what its replicas hold, and what is committed.

    log of a replica ─▶ ReplicaView ─┐
                                     ├─▶ the same, as far as it is committed
    what leaders called committed ─▶ History ─┘

Offsets are what both go by: retention takes batches from the front of a log, compaction from
anywhere.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

from trimtab.broker.partition import Partition
from trimtab.errors import CorruptData
from trimtab.sim.topic_kinds import TopicKind
from trimtab.sim.virtual_cluster import VirtualBroker
from trimtab.storage.log import Log
from trimtab.wire.batch_cy import BatchHeader, verify

_CHUNK_BYTES = 64 * 1024

_base_offset = attrgetter("base_offset")


class StoredBatch(NamedTuple):
    """One batch in a log, by what makes it what it is."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    size: int
    max_timestamp: int

    def is_what(self, other: StoredBatch, kind: TopicKind) -> bool:
        """Whether it is that batch; one that was compacted holds the same offsets."""
        return self[:3] == other[:3] if kind.compacts else self == other


class Damaged(Exception):
    """A log holds bytes that nobody can have sent."""


class ReplicaView:
    """One replica in one life of its broker, as far as it was looked at.

    Attributes:
        batches: what its log holds, or held before its front was deleted.
        agreed: the offset up to which they are those that are known to be committed.
        start: the log start offset.
    """

    def __init__(self, broker: VirtualBroker, partition: Partition, kind: TopicKind) -> None:
        self.broker = broker
        self.life = broker.life
        self.partition = partition
        self.kind = kind
        self.name = f"{partition} on {broker.life}"
        self.batches: list[StoredBatch] = []
        self.agreed = self.start = partition.log.log_start_offset
        self.leadership: object = None
        self._cuts = partition.log.cuts

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start

    def index_of(self, offset: int) -> int:
        """Of the first batch that begins at `offset` or later."""
        return bisect_left(self.batches, offset, key=_base_offset)

    def look(self) -> StoredBatch | None:
        """Read what is new in the log.

        Returns:
            The first batch, of those that were agreed upon and not deleted from the front, that is
            gone; None if none is.

        Raises:
            Damaged: what is there cannot be right.
        """
        log = self.partition.log
        if log.cuts == self._cuts:
            self._read(log)
            return None
        self._cuts = log.cuts
        before, self.batches = self.batches, []
        self.start = log.log_start_offset
        self._read(log)
        now = {batch.base_offset: batch for batch in self.batches}
        for batch in before:
            if batch.next_offset > self.agreed:
                break
            if batch.next_offset <= self.start:
                continue
            found = now.get(batch.base_offset)
            if found is None and self.kind.compacts and batch.next_offset <= log.log_end_offset:
                continue
            if found is None or not found.is_what(batch, self.kind):
                self.agreed = batch.base_offset
                return batch
        self.agreed = min(self.agreed, max(log.log_end_offset, self.start))
        return None

    def _read(self, log: Log) -> None:
        """What follows the last batch known."""
        offset = max(self.end_offset, log.log_start_offset)
        if log.log_end_offset <= offset:
            return
        disk = self.broker.disk
        fault, disk.fault = disk.fault, None
        try:
            for segment in log._segments.since(offset):
                position = segment.locate(offset)
                while position is not None and position < segment.size:
                    data, headers = segment.batches(position, _CHUNK_BYTES)
                    self._note(data, headers)
                    position += sum(header.size for header in headers)
        except CorruptData as error:
            if not disk.rotten:
                raise Damaged(f"{self.name} cannot be read: {error}") from error
        finally:
            disk.fault = fault

    def _note(self, data: bytes, headers: list[BatchHeader]) -> None:
        at = 0
        for header in headers:
            try:
                verify(data, at)
            except CorruptData as error:
                if not self.broker.disk.rotten:
                    raise Damaged(f"{self.name} holds a damaged batch: {error}") from error
            if self.batches and header.base_offset < self.end_offset:
                raise Damaged(
                    f"{self.name} holds offset {header.base_offset} behind {self.end_offset}"
                )
            first = max(self.end_offset, self.partition.log.log_start_offset)
            if header.base_offset > first and not self.kind.compacts:
                raise Damaged(f"{self.name} has a gap from {first} to {header.base_offset}")
            at += header.size
            self.batches.append(
                StoredBatch(
                    header.base_offset,
                    header.next_offset,
                    header.leader_epoch,
                    header.crc,
                    header.size,
                    header.max_timestamp,
                )
            )


class History:
    """What is known to be committed of one partition: the longest that any leader ever said.

    Attributes:
        epochs: the leader epoch in which each batch was called committed.
        leaders: who led in each epoch.
        lossy_epoch: the last one whose leader was elected uncleanly; -1 if none was.
        lossy_leader: the one with whose log the history goes on, once it has begun to lead.
        lost_from: the first offset that such an election may have cost; None if none.
        deleted_before: up to where operators had records deleted, by the brokers that had done it
            when they were told.
        asked_to_delete_before: up to where they asked for it.
        start: the largest log start offset that a leader had.
    """

    def __init__(self, name: str, kind: TopicKind) -> None:
        self.name = name
        self.kind = kind
        self.batches: list[StoredBatch] = []
        self.epochs: list[int] = []
        self.leaders: dict[int, Partition] = {}
        self.lossy_epoch = -1
        self.is_lossy_election_over = True
        self.lost_from: int | None = None
        self._parts_from: int | None = None
        self._late_end = 0
        self.deleted_before: dict[int, int] = {}
        self.asked_to_delete_before = 0
        self.start = 0

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def find(self, base_offset: int) -> StoredBatch | None:
        """The committed batch that begins there."""
        index = bisect_left(self.batches, base_offset, key=_base_offset)
        if index < len(self.batches) and self.batches[index].base_offset == base_offset:
            return self.batches[index]
        return None

    def commit(self, batch: StoredBatch, epoch: int) -> None:
        """The next batch, which a leader of that epoch, or a follower of it, calls committed."""
        self.batches.append(batch)
        self.epochs.append(max(epoch, self.epochs[-1]) if self.epochs else epoch)

    def end_before(self, epoch: int) -> int:
        """Up to where was committed in earlier epochs."""
        earlier = bisect_left(self.epochs, epoch)
        return self.batches[earlier - 1].next_offset if earlier else 0

    def elect_uncleanly(self, epoch: int) -> None:
        """An election in which records may be lost: what its winner has is what there is."""
        self.lossy_epoch = epoch
        self.is_lossy_election_over = False

    def cut_to(self, view: ReplicaView) -> int:
        """Goes on with what the winner of an unclean election has. Returns where that parts from
        what was committed before."""
        held = {batch.base_offset: batch for batch in view.batches}
        kept = 0
        while (
            kept < len(self.batches)
            and held.get(self.batches[kept].base_offset) == self.batches[kept]
        ):
            kept += 1
        if kept < len(self.batches):
            first = self.batches[kept].base_offset
            self.lost_from = first if self.lost_from is None else min(first, self.lost_from)
            del self.batches[kept:], self.epochs[kept:]
        self.is_lossy_election_over = True
        end_offset = self.end_offset
        self._parts_from = (
            end_offset if self._parts_from is None else min(end_offset, self._parts_from)
        )
        self.commit_late(0)
        return end_offset

    def commit_late(self, high_watermark: int) -> None:
        """What a leader commits that has not heard yet of an unclean election: what the winner
        does not have is lost."""
        self._late_end = max(high_watermark, self._late_end)
        parts_from = self._parts_from
        if parts_from is not None and parts_from < self._late_end:
            self.lost_from = (
                parts_from if self.lost_from is None else min(parts_from, self.lost_from)
            )
