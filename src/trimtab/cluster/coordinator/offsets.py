"""The offsets that groups have committed, of one partition of `__consumer_offsets`.

Source: Kafka's `OffsetMetadataManager`; KIP-98 (transactions), KIP-211 (expiry), KIP-320 (leader
epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.group_records import OffsetCommitKey, OffsetCommitValue
from trimtab.kafka.wire.sentinels import NO_PRODUCER_ID


class Committed(NamedTuple):
    """One committed offset.

    Attributes:
        offset: of the next record to read.
        leader_epoch: of the last record that was read, -1 if unknown.
        metadata: the client's own note.
        committed_ms: when, wall clock.
        expires_ms: when it is deleted, if the client said so (OffsetCommit before v5); else -1.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int = -1

    def to_record(self) -> OffsetCommitValue:
        return OffsetCommitValue(
            offset=self.offset,
            leader_epoch=self.leader_epoch,
            metadata=self.metadata,
            commit_timestamp=self.committed_ms,
            expire_timestamp=self.expires_ms,
        )


class GroupOffsets:
    """The committed offsets by group and partition. Changes by the log alone: by `replay` and
    `end_transaction`.

    An offset that was committed in a transaction is undecided until the transaction ends. Then it
    counts as if it had been committed where its record is: not if a later record has replaced it.
    """

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, Committed]] = {}
        self._undecided: dict[str, dict[TopicPartition, dict[int, Committed | None]]] = {}
        """By group, partition and producer id, in the order of their records; None: replaced."""
        self._producers: dict[int, dict[tuple[str, TopicPartition], None]] = {}
        """Whose transactions have undecided offsets, and which."""

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Store the offset of a record, or delete that of a tombstone.

        Args:
            producer_id: of the transaction that the record belongs to; -1: of none.
        """
        group, partition = key.group, TopicPartition(key.topic, key.partition)
        committed = None
        if value is not None:
            committed = Committed(
                value.offset,
                value.leader_epoch,
                value.metadata,
                value.commit_timestamp,
                value.expire_timestamp,
            )
        if producer_id != NO_PRODUCER_ID:
            waiting = self._undecided.setdefault(group, {}).setdefault(partition, {})
            waiting.pop(producer_id, None)
            waiting[producer_id] = committed
            self._producers.setdefault(producer_id, {})[group, partition] = None
            return
        self._replace(group, partition)
        self._store(group, partition, committed)

    def _store(self, group: str, partition: TopicPartition, committed: Committed | None) -> None:
        if committed is not None:
            self._by_group.setdefault(group, {})[partition] = committed
            return
        stored = self._by_group.get(group, {})
        stored.pop(partition, None)
        if not stored:
            self._by_group.pop(group, None)

    def _replace(self, group: str, partition: TopicPartition, before: int = NO_PRODUCER_ID) -> None:
        """What is undecided has a later record now: all, or that before a producer's."""
        waiting = self._undecided.get(group, {}).get(partition, {})
        for producer_id in waiting:
            if producer_id == before:
                break
            waiting[producer_id] = None

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """A producer's transaction has ended: store its offsets, or forget them."""
        for group, partition in self._producers.pop(producer_id, ()):
            waiting = self._undecided[group][partition]
            committed = waiting[producer_id]
            if is_commit and committed is not None:
                self._replace(group, partition, before=producer_id)
                self._store(group, partition, committed)
            del waiting[producer_id]
            if not waiting:
                del self._undecided[group][partition]
            if not self._undecided[group]:
                del self._undecided[group]

    def of(self, group: str) -> Mapping[TopicPartition, Committed]:
        """A group's offsets; none if it has committed none."""
        return self._by_group.get(group, {})

    def undecided(self, group: str) -> Collection[TopicPartition]:
        """The partitions of which a group has undecided offsets."""
        return self._undecided.get(group, {}).keys()

    def partitions(self, group: str) -> list[TopicPartition]:
        """The partitions of which a group has offsets, undecided or not."""
        return list(dict.fromkeys((*self.of(group), *self.undecided(group))))

    def has(self, group: str) -> bool:
        """Whether a group has committed offsets, undecided or not."""
        return group in self._by_group or group in self._undecided

    def groups(self) -> Iterable[str]:
        """The groups that have committed offsets, undecided or not."""
        return dict.fromkeys((*self._by_group, *self._undecided))

    def expired(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        is_kept: Callable[[TopicPartition, Committed], bool],
    ) -> Iterator[OffsetCommitKey]:
        """The keys of those of a group's offsets whose time is over, unless another is undecided.
        They may be deleted meanwhile.

        Args:
            partitions: of which; some may have no offset.
            is_kept: whether an offset without a time of its own is kept.
        """
        for partition in partitions:
            each = self.of(group).get(partition)
            if each is None or partition in self.undecided(group):
                continue
            ended = (
                each.expires_ms <= now_ms if each.expires_ms >= 0 else not is_kept(partition, each)
            )
            if ended:
                yield offset_key(group, partition)


def offset_key(group: str, partition: TopicPartition) -> OffsetCommitKey:
    """The key of the records of one offset."""
    return OffsetCommitKey(group=group, topic=partition.topic, partition=partition.partition)
