"""The offsets that groups have committed, of one partition of `__consumer_offsets`.

Source: Kafka's `OffsetMetadataManager`; KIP-211 (expiry), KIP-320 (leader epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from trimtab.records import TopicPartition
from trimtab.wire.messages.group_records import OffsetCommitKey, OffsetCommitValue


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


class Offsets:
    """The committed offsets by group and partition. Changes by records alone (`replay`)."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, Committed]] = {}

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Store the offset of a record, or delete that of a tombstone."""
        partition = TopicPartition(key.topic, key.partition)
        if value is not None:
            self._by_group.setdefault(key.group, {})[partition] = Committed(
                value.offset,
                value.leader_epoch,
                value.metadata,
                value.commit_timestamp,
                value.expire_timestamp,
            )
            return
        stored = self._by_group.get(key.group, {})
        stored.pop(partition, None)
        if not stored:
            self._by_group.pop(key.group, None)

    def of(self, group: str) -> Mapping[TopicPartition, Committed]:
        """A group's offsets; none if it has committed none."""
        return self._by_group.get(group, {})

    def groups(self) -> Iterable[str]:
        """The groups that have committed offsets."""
        return self._by_group.keys()

    def expired(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        is_kept: Callable[[TopicPartition, Committed], bool],
    ) -> Iterator[OffsetCommitKey]:
        """The keys of those of a group's offsets whose time is over. They may be deleted meanwhile.

        Args:
            partitions: of which; some may have no offset.
            is_kept: whether an offset without a time of its own is kept.
        """
        for partition in partitions:
            each = self.of(group).get(partition)
            if each is None:
                continue
            ended = (
                each.expires_ms <= now_ms if each.expires_ms >= 0 else not is_kept(partition, each)
            )
            if ended:
                yield offset_key(group, partition)


def offset_key(group: str, partition: TopicPartition) -> OffsetCommitKey:
    """The key of the records of one offset."""
    return OffsetCommitKey(group=group, topic=partition.topic, partition=partition.partition)
