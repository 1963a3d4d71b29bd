"""A consumer group's offsets as part of a transaction: the arguments, checked (KIP-447)."""

from __future__ import annotations

from typing import NamedTuple

from trimtab.kafka.arguments import (
    MAX_INT64,
    checked_integer,
    checked_mapping,
    checked_partition,
    checked_text,
    shown,
)
from trimtab.kafka.errors import UsageError
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.sentinels import NO_EPOCH


class ConsumerGroup(NamedTuple):
    """A consumer's membership in the group for which a transaction commits offsets (KIP-447).

    With the group id alone, a consumer that the group has removed can still commit.
    """

    group_id: str
    generation_id: int = NO_EPOCH
    member_id: str = ""
    group_instance_id: str | None = None


class OffsetAndMetadata(NamedTuple):
    """The offset of the next record to read, a note, and the leader epoch of the record before."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


def checked_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    given = checked_mapping("offsets", offsets, "{TopicPartition('t', 0): 17}")
    return {
        checked_partition(partition): _with_metadata(partition, position)
        for partition, position in given.items()
    }


def _with_metadata(partition: object, given: object) -> OffsetAndMetadata:
    position = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)  # type: ignore[arg-type]
    return OffsetAndMetadata(
        checked_integer(
            f"the offset of {shown(partition)}",
            position.offset,
            0,
            MAX_INT64,
            "an int or an OffsetAndMetadata",
        ),
        checked_text("metadata of an offset", position.metadata),
        checked_integer("leader epoch", position.leader_epoch, NO_EPOCH),
    )


def checked_group(group: object) -> ConsumerGroup:
    member = ConsumerGroup(group) if isinstance(group, str) else group
    if not isinstance(member, ConsumerGroup) or not member.group_id:
        raise UsageError(f"group={shown(group)}: is neither a group's id nor a ConsumerGroup")
    instance = member.group_instance_id
    return ConsumerGroup(
        checked_text("group id", member.group_id),
        checked_integer("generation id", member.generation_id, NO_EPOCH),
        checked_text("member id", member.member_id),
        None if instance is None else checked_text("group instance id", instance),
    )
