"""What must hold for a group of consumers, by what its members see.

    a member begins to read a partition   no record before was left out by all members
    a member reads on                     without gaps or repetitions
    a commit is acknowledged              it does not take a later commit of another member back,
                                          and no other member had the partition when it was sent
    two members                           never own a partition in the same generation
    at the end                            each partition has one owner, nothing is left to read or
                                          to commit

A member that was cut off may read what others read meanwhile; its commits must be refused.

A commit whose request was late may be applied after the same member's next one: requests to commit
have no order of their own in Kafka's protocol. Nothing is lost by that; records are read again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lab.reliability.checkers import Checkers
from lab.reliability.workload import ObservedRecords
from trimtab.kafka.records import Record, TopicPartition
from trimtab.kafka.wire.sentinels import NO_EPOCH


@dataclass(eq=False)
class Membership:
    """One life of a member: from its start until it leaves or is killed.

    Attributes:
        host: the host of the member, the same in all its lives.
        next: by partition that it owns, the offset that it must read next.
        began: by partition, the first offset that it read since it last got the partition.
        attempts: by partition, all offsets that it has asked to commit.
        committed: by partition, the last of these that was acknowledged.
    """

    host: str
    life: int
    next: dict[TopicPartition, int] = field(default_factory=dict)
    began: dict[TopicPartition, int] = field(default_factory=dict)
    attempts: dict[TopicPartition, set[int]] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.host}/{self.life}"

    def let_go(self, partitions: Collection[TopicPartition]) -> None:
        """It reads these partitions no more."""
        for partition in partitions:
            self.next.pop(partition, None)
            self.began.pop(partition, None)


class _Committed(NamedTuple):
    offset: int
    by: Membership


class _Known(NamedTuple):
    """What is known of a partition when a member asks to commit."""

    committed: _Committed | None
    new_owner: Membership | None


class GroupChecker:
    """Checks one group.

    Args:
        partitions: what its members subscribe to.
        keeps_generations: whether generations never start again. They do when a group without
            members changes from one protocol to the other.

    Attributes:
        processed: by partition, the end of what the members have read without a gap.
        commits: how many commits were acknowledged.
        refused: how many were not.
    """

    def __init__(
        self,
        name: str,
        partitions: Collection[TopicPartition],
        checkers: Checkers,
        keeps_generations: bool,
    ) -> None:
        self.name = name
        self.processed = dict.fromkeys(partitions, 0)
        self.commits = 0
        self.refused = 0
        self._checkers = checkers
        self._keeps_generations = keeps_generations
        self._committed: dict[TopicPartition, _Committed] = {}
        self._owners: dict[tuple[int, TopicPartition], Membership] = {}
        self._latest: dict[TopicPartition, tuple[int, Membership]] = {}
        """The last generation in which each partition is known to have an owner, and that."""
        self._observed = ObservedRecords()

    def own(
        self, member: Membership, generation: int, partitions: Collection[TopicPartition]
    ) -> None:
        """A member owns these partitions in this generation."""
        if generation < 0 or not self._keeps_generations:
            return
        for partition in partitions:
            owner = self._owners.setdefault((generation, partition), member)
            if owner.host != member.host:  # a static member keeps its partitions
                self._checkers.fail(
                    f"{partition} has two owners in generation {generation} of {self.name}: "
                    f"{owner} and {member}"
                )
            if generation > self._latest.get(partition, (NO_EPOCH, member))[0]:
                self._latest[partition] = generation, member

    def process(self, member: Membership, record: Record) -> None:
        """A member has read a record."""
        partition = TopicPartition(record.topic, record.partition)
        offset, expected = record.offset, member.next.get(partition)
        end = self.processed[partition]
        if expected is None:
            member.began[partition] = offset
            if offset > end:
                self._checkers.fail(
                    f"{member} begins at offset {offset} of {partition}, but nobody has read "
                    f"from {end} on"
                )
        elif offset != expected:
            self._checkers.fail(f"{member} reads offset {offset} of {partition}, not {expected}")
        member.next[partition] = offset + 1
        self.processed[partition] = max(end, offset + 1)
        self._observed.note(record, str(member))

    def ask(
        self, member: Membership, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, _Known]:
        """A member asks to commit. Returns what is known before, for `acknowledge`."""
        known = {}
        for partition, offset in offsets.items():
            member.attempts.setdefault(partition, set()).add(offset)
            _, owner = self._latest.get(partition, (NO_EPOCH, member))
            new_owner = None if owner.host == member.host else owner
            known[partition] = _Known(self._committed.get(partition), new_owner)
        return known

    def acknowledge(
        self,
        member: Membership,
        offsets: Mapping[TopicPartition, int],
        before: Mapping[TopicPartition, _Known],
    ) -> None:
        """The coordinator says that it has committed."""
        self.commits += 1
        member.committed.update(offsets)
        for partition, offset in offsets.items():
            known, new_owner = before[partition]
            if new_owner is not None:
                self._checkers.fail(
                    f"{member} commits offset {offset} of {partition}, which {new_owner} owns"
                )
            if (
                known is not None
                and offset < known.offset
                and member.began[partition] not in known.by.attempts[partition]
            ):
                self._checkers.fail(
                    f"{member} commits offset {offset} of {partition}, after {known.by} has "
                    f"committed {known.offset}"
                )
            self._committed[partition] = _Committed(offset, member)

    def find_unfinished(
        self,
        finished: Mapping[str, Collection[TopicPartition]],
        ends: Mapping[TopicPartition, int],
    ) -> str:
        """Describe what the members have yet to do; empty if nothing.

        Args:
            finished: the partitions that each member owns and has read to their ends.
            ends: the end of each partition's committed records.
        """
        owned = sorted(each for partitions in finished.values() for each in partitions)
        if owned == sorted(self.processed) and self.processed == ends:
            return ""
        told = {member: sorted(partitions) for member, partitions in finished.items()}
        return f"the members of {self.name} have read {told}, up to {self.processed} of {ends}"
