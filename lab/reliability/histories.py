"""The batches that each replica holds, and those that are committed, for comparison.

    log of a replica ──────────────▶ ReplicaView ─┐
                                                  ├─▶ must agree on all committed batches
    high watermarks of leaders ────▶ History ─────┘

Batches are compared by offset, since retention removes batches from the front of a log, and
compaction from anywhere.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

from lab.reliability.topic_kinds import TopicKind
from trimtab.cluster.broker.partition import Partition
from trimtab.cluster.metadata.image import RECOVERING, PartitionRegistration
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.segment import Segment
from trimtab.kafka.errors import CorruptData
from trimtab.kafka.wire.batch_cy import BatchHeader, read_headers, verify
from trimtab.kafka.wire.sentinels import NO_LEADER
from trimtab.sim.virtual_cluster import VirtualBroker

_CHUNK_BYTES = 64 * 1024

_base_offset = attrgetter("base_offset")


class StoredBatch(NamedTuple):
    """The fields of a stored batch that identify it."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    size: int
    max_timestamp: int

    def is_same_batch(self, other: StoredBatch, kind: TopicKind) -> bool:
        """Whether both are the same batch; a compacted one keeps its offsets and epoch only."""
        return self[:3] == other[:3] if kind.compacts else self == other


class Damaged(Exception):
    """A log holds a damaged batch, a gap, or a batch out of order."""


class ReplicaView:
    """One replica during one life of its broker, as last read.

    Attributes:
        batches: the batches in its log, and those deleted from its front.
        agreed: the batches before this offset agree with the committed ones.
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
        self._cuts = partition.log.truncations

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start

    def index_of(self, offset: int) -> int:
        """The index of the first batch that begins at `offset` or later."""
        return bisect_left(self.batches, offset, key=_base_offset)

    def read_new(self) -> StoredBatch | None:
        """Read the new part of the log; all of it after a truncation.

        Returns:
            The first batch before `agreed` that is missing or different, though it was not deleted
            from the front; None if there is none.

        Raises:
            Damaged: the log has a damaged batch, a gap, or a batch out of order.
        """
        log = self.partition.log
        if log.truncations == self._cuts:
            self._read(log)
            return None
        self._cuts = log.truncations
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
            if found is None or not found.is_same_batch(batch, self.kind):
                self.agreed = batch.base_offset
                return batch
        self.agreed = min(self.agreed, max(log.log_end_offset, self.start))
        return None

    def _read(self, log: Log) -> None:
        """Read the batches after the last known one."""
        offset = max(self.end_offset, log.log_start_offset)
        if log.log_end_offset <= offset:
            return
        disk = self.broker.disk
        fault, disk.fault = disk.fault, None
        try:
            for segment in log._segments.since(offset):
                if segment.paths[0] in disk.rotten:  # its headers may be damaged: what was written
                    self._note_from(offset, disk.read_undamaged(segment.paths[0])[: segment.size])
                    continue
                position = segment.locate(offset)
                while position is not None and position < segment.size:
                    data, headers = _read_batches(segment, position)
                    self._note(data, headers)
                    position += sum(header.size for header in headers)
        except CorruptData as error:
            if not disk.rotten:
                raise Damaged(f"{self.name} cannot be read: {error}") from error
        finally:
            disk.fault = fault

    def _note_from(self, offset: int, data: bytes) -> None:
        at = 0
        headers = read_headers(data, allow_partial=True)
        while headers and headers[0].next_offset <= offset:
            at += headers.pop(0).size
        self._note(data[at:], headers)

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


def _read_batches(segment: Segment, position: int) -> tuple[bytes, list[BatchHeader]]:
    """Some batches from `position` on, also damaged ones, and their headers."""
    size = _CHUNK_BYTES
    while True:
        data = segment.read_bytes(position, size)
        headers = read_headers(data, allow_partial=True)
        if headers:
            return data, headers
        if len(data) < size:
            raise CorruptData(f"the file ends within the batch at position {position}")
        size *= 2


class History:
    """The committed batches of one partition, up to the highest high watermark seen.

    Attributes:
        epochs: for each batch, the leader epoch in which it was committed.
        leaders: the leader in each epoch.
        unclean_epoch: the last epoch whose leader was elected uncleanly; -1 if there is none.
        is_unclean_election_over: whether the leader of that epoch has begun to lead.
        lost_from: the first offset that an unclean election may have lost; None if none did.
        deleted_before: by broker, the offset before which it had deleted records when a
            DeleteRecords request was answered.
        delete_requested_before: the highest offset of all DeleteRecords requests.
        start: the largest log start offset of any leader.
    """

    def __init__(self, name: str, kind: TopicKind) -> None:
        self.name = name
        self.kind = kind
        self.batches: list[StoredBatch] = []
        self.epochs: list[int] = []
        self.leaders: dict[int, Partition] = {}
        self.unclean_epoch = -1
        self.is_unclean_election_over = True
        self.lost_from: int | None = None
        self._diverges_from: int | None = None
        self._late_end = 0
        self.deleted_before: dict[int, int] = {}
        self.delete_requested_before = 0
        self.start = 0

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def find(self, base_offset: int) -> StoredBatch | None:
        """The committed batch with this base offset; None if there is none."""
        index = bisect_left(self.batches, base_offset, key=_base_offset)
        if index < len(self.batches) and self.batches[index].base_offset == base_offset:
            return self.batches[index]
        return None

    def commit(self, batch: StoredBatch, epoch: int) -> None:
        """Add the next batch: it is before the high watermark of a replica with this epoch."""
        self.batches.append(batch)
        self.epochs.append(max(epoch, self.epochs[-1]) if self.epochs else epoch)

    def end_before(self, epoch: int) -> int:
        """The end offset of the batches that were committed in earlier epochs."""
        earlier = bisect_left(self.epochs, epoch)
        return self.batches[earlier - 1].next_offset if earlier else 0

    def elect_uncleanly(self, epoch: int) -> None:
        """Note an unclean election; its leader's log then replaces the history."""
        self.unclean_epoch = epoch
        self.is_unclean_election_over = False

    def cut_to(self, view: ReplicaView) -> int:
        """Remove the batches that the leader of an unclean election lacks.

        Returns:
            The offset at which its log diverges from the committed batches.
        """
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
        self.is_unclean_election_over = True
        end_offset = self.end_offset
        self._diverges_from = (
            end_offset if self._diverges_from is None else min(end_offset, self._diverges_from)
        )
        self.commit_late(0)
        return end_offset

    def commit_late(self, high_watermark: int) -> None:
        """Note the high watermark of a former leader that does not know of an unclean election
        yet: records from where the new leader's log diverges are lost."""
        self._late_end = max(high_watermark, self._late_end)
        diverges_from = self._diverges_from
        if diverges_from is not None and diverges_from < self._late_end:
            self.lost_from = (
                diverges_from if self.lost_from is None else min(diverges_from, self.lost_from)
            )


def find_unclean_epoch(before: PartitionRegistration, now: PartitionRegistration) -> int | None:
    """The first epoch whose leader may have been elected uncleanly, from neither the ISR nor the
    ELR; None if none was.

    Of several decisions in one moment only the last is seen. A leader that had already gone again
    is found in the ISR or the ELR that it left behind.
    """
    first = before.leader_epoch + 1
    members = {*before.isr, *before.elr}
    if now.leader_epoch < first:
        return None
    if now.leader_epoch > first and not members.issuperset((*now.isr, *now.elr)):
        return first
    if now.leader == NO_LEADER:
        return None
    if now.leader not in members or now.leader_recovery_state == RECOVERING:
        return now.leader_epoch
    return None
