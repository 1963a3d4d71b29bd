"""A consumer group as its records have it: reads the log's, writes changes, and takes them back.

Every change of a group is a record, and takes effect by `replay`, in a decision as after a load.
Only the members' deadlines and the version of the topics that was seen are kept beside.

Source: Kafka's `ConsumerGroup` and `GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from enum import StrEnum
from typing import Any, NamedTuple

from trimtab.cluster.coordinator.consumer_member import (
    ConsumerMember,
    MemberState,
    read_partitions,
    write_partitions,
)
from trimtab.cluster.coordinator.topics import PartitionKey, by_topic
from trimtab.kafka.wire.messages.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
)
from trimtab.kafka.wire.messages.group_records import Key, Value


class GroupState(StrEnum):
    """The state of a consumer group, as ConsumerGroupDescribe names it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class _Before(NamedTuple):
    """A group at the begin of a decision: all of it that has changed since then."""

    epochs: tuple[int, int, int, int]
    seen_topics: object
    members: dict[str, tuple[ConsumerMember | None, frozenset[PartitionKey] | None]]
    matched: dict[str, tuple[str, ...] | None]


class RecordedGroup:
    """One group.

    Args:
        append: appends a record to the log, and has it replayed here.

    Attributes:
        epoch: rises when members or topics change, so that the target is computed again.
        metadata_hash: of the topics that the members subscribe to.
        assignment_epoch: the group epoch for which the target was computed.
        assigned_ms: when it was computed, wall time; 0: unknown.
        targets: the partitions that each member is to have.
        owners: who has each partition, or must still let go of it.
    """

    def __init__(self, group_id: str, append: Callable[[Key, Value | None], None]) -> None:
        self.id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, frozenset[PartitionKey]] = {}
        self.owners: dict[PartitionKey, str] = {}
        self._append = append
        self._static: dict[str, str] = {}
        self._matched: dict[str, tuple[str, ...]] = {}
        """The topics that each regular expression matched."""
        self._subscribed: dict[str, int] = {}
        """How many members subscribe to each topic by its name. It is kept, as is `_patterns`,
        because a heartbeat of one member must not cost a look at all."""
        self._patterns: dict[str, int] = {}
        """How many members subscribe with each regular expression."""
        self._seen_topics: object = None
        """The version of the topics of which `metadata_hash` is."""
        self._before: _Before | None = None

    @property
    def state(self) -> GroupState:
        """Whether there are members, and whether each has what it is to have."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(self._is_reconciled(each) for each in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def _is_reconciled(self, member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.epoch == self.assignment_epoch

    @property
    def is_classic(self) -> bool:
        """Whether there are members, and all of them use the classic protocol."""
        return bool(self.members) and all(each.is_classic for each in self.members.values())

    def find_instance(self, instance_id: str) -> ConsumerMember | None:
        """The static member with this instance id."""
        return self.members.get(self._static.get(instance_id, ""))

    def may_have_more(self, member: ConsumerMember) -> bool:
        """Whether a member waits for partitions, and all of them are free now."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        wanted = self.targets.get(member.id, frozenset()) - member.assigned.keys()
        return all(self.owners.get(key, member.id) == member.id for key in wanted)

    def subscribed_topics(self) -> set[str]:
        """The topics of all members."""
        matched = (self._matched.get(each, ()) for each in self._patterns)
        return set(self._subscribed).union(*matched)

    def _topics_of(self, member: ConsumerMember) -> set[str]:
        matched = self._matched.get(member.metadata.subscribed_topic_regex or "", ())
        return {*member.metadata.subscribed_topic_names, *matched}

    # Writing

    def _write_assignment(
        self,
        member: ConsumerMember,
        epoch: int,
        previous_epoch: int,
        state: MemberState,
        assigned: Mapping[PartitionKey, int],
        revoking: Mapping[PartitionKey, int],
    ) -> None:
        old = (member.epoch, member.state, member.assigned, member.revoking)
        if old != (epoch, state, assigned, revoking):
            self._append(
                ConsumerGroupCurrentMemberAssignmentKey(group_id=self.id, member_id=member.id),
                ConsumerGroupCurrentMemberAssignmentValue(
                    member_epoch=epoch,
                    previous_member_epoch=previous_epoch,
                    state=state,
                    assigned_partitions=write_partitions(assigned),
                    partitions_pending_revocation=write_partitions(revoking),
                ),
            )

    def _write_target(self, member_id: str, target: Iterable[PartitionKey]) -> None:
        self._append(
            ConsumerGroupTargetAssignmentMemberKey(group_id=self.id, member_id=member_id),
            ConsumerGroupTargetAssignmentMemberValue(
                topic_partitions=[
                    TopicPartition(topic_id=topic_id, partitions=indexes)
                    for topic_id, indexes in by_topic(target)
                ]
            ),
        )

    def install(
        self,
        epoch: int,
        members: Mapping[str, tuple[ConsumerGroupMemberMetadataValue, frozenset[PartitionKey]]],
    ) -> None:
        """Write a group whose members have these partitions, for its first time. Its target is
        computed again by the next heartbeat, because no topics are known to it, nor a time at which
        it was computed."""
        for member_id, (metadata, keys) in members.items():
            self._append(
                ConsumerGroupMemberMetadataKey(group_id=self.id, member_id=member_id), metadata
            )
            self._write_target(member_id, keys)
        self._append(
            ConsumerGroupMetadataKey(group_id=self.id), ConsumerGroupMetadataValue(epoch=epoch)
        )
        self._append(
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self.id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
        )
        for member_id, (_, keys) in members.items():
            self._write_assignment(
                self.members[member_id],
                epoch,
                epoch,
                MemberState.STABLE,
                dict.fromkeys(sorted(keys), epoch),
                {},
            )

    def _remove(self, member: ConsumerMember) -> None:
        """Kafka's order: its partitions first, itself last."""
        names = {"group_id": self.id, "member_id": member.id}
        self._append(ConsumerGroupCurrentMemberAssignmentKey(**names), None)
        self._append(ConsumerGroupTargetAssignmentMemberKey(**names), None)
        self._append(ConsumerGroupMemberMetadataKey(**names), None)

    def delete(self) -> None:
        """Delete a group, with its members if it has any."""
        for member in list(self.members.values()):
            self._remove(member)
        for pattern in list(self._matched):
            self._append(
                ConsumerGroupRegularExpressionKey(group_id=self.id, regular_expression=pattern),
                None,
            )
        self._append(ConsumerGroupTargetAssignmentMetadataKey(group_id=self.id), None)
        self._append(ConsumerGroupMetadataKey(group_id=self.id), None)

    # Taking back

    def begin_decision(self) -> None:
        """Begin a decision, which `end_decision` ends and `take_back` undoes."""
        epochs = (self.epoch, self.metadata_hash, self.assignment_epoch, self.assigned_ms)
        self._before = _Before(epochs, self._seen_topics, {}, {})

    def end_decision(self) -> None:
        """The decision stands."""
        self._before = None

    def take_back(self) -> None:
        """Be as at `begin_decision`; it costs as much as the changes since then."""
        before = self._before
        assert before is not None
        self._before = None
        self.epoch, self.metadata_hash, self.assignment_epoch, self.assigned_ms = before.epochs
        self._seen_topics = before.seen_topics
        for member_id in before.members:
            self._replay_member(member_id, None)
            self.targets.pop(member_id, None)
        for member_id, (member, target) in before.members.items():
            if target is not None:
                self.targets[member_id] = target
            if member is not None:
                self._replay_member(member_id, member.metadata)
                self.members[member_id] = member
                self._claim(member)
        for pattern, matched in before.matched.items():
            self._matched.pop(pattern, None)
            if matched is not None:
                self._matched[pattern] = matched

    def _note(self, before: _Before, key: Key) -> None:
        """Note what a record of this key is about to change."""
        if isinstance(key, ConsumerGroupRegularExpressionKey):
            pattern = key.regular_expression
            before.matched.setdefault(pattern, self._matched.get(pattern))
        member_id = getattr(key, "member_id", None)
        if member_id is not None and member_id not in before.members:
            member = self.members.get(member_id)
            before.members[member_id] = (copy(member), self.targets.get(member_id))

    # Replay

    def replay(self, key: Key, value: Any) -> None:
        """Take over a record about this group; its own tombstone is for its owner."""
        if self._before is not None:
            self._note(self._before, key)
        if isinstance(key, ConsumerGroupMetadataKey):
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            self.assignment_epoch = 0 if value is None else value.assignment_epoch
            self.assigned_ms = 0 if value is None else value.assignment_timestamp
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            if value is None:
                self._matched.pop(key.regular_expression, None)
            else:
                self._matched[key.regular_expression] = tuple(value.topics)
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            self._replay_member(key.member_id, value)
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            if value is None:
                self.targets.pop(key.member_id, None)
            else:
                self.targets[key.member_id] = frozenset(
                    (topic.topic_id, index)
                    for topic in value.topic_partitions
                    for index in topic.partitions
                )
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            self._replay_assignment(key.member_id, value)

    def _replay_member(
        self, member_id: str, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        member = self.members.get(member_id)
        if member is not None:
            instance_id = member.metadata.instance_id
            if instance_id is not None and self._static.get(instance_id) == member_id:
                del self._static[instance_id]
            self._count(member.metadata, -1)
        if value is None:
            if member is not None:
                self._release(member)
                del self.members[member_id]
            return
        self._count(value, 1)
        if member is None:
            self.members[member_id] = ConsumerMember(member_id, value)
        else:
            member.metadata = value
        if value.instance_id is not None:
            self._static[value.instance_id] = member_id

    def _count(self, metadata: ConsumerGroupMemberMetadataValue, more: int) -> None:
        """Count what a member subscribes to, or, with -1, count it no more."""
        pattern = metadata.subscribed_topic_regex
        for counts, names in (
            (self._subscribed, metadata.subscribed_topic_names),
            (self._patterns, [pattern] if pattern else ()),
        ):
            for name in names:
                count = counts.pop(name, 0) + more
                if count:
                    counts[name] = count

    def _replay_assignment(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        member = self.members.get(member_id)
        if member is None:
            return  # the member's own record was compacted away: its tombstone follows
        self._release(member)
        if value is None:
            member.assigned, member.revoking = {}, {}
            return
        member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
        member.state = MemberState(value.state)
        member.assigned = read_partitions(value.assigned_partitions, value.member_epoch)
        member.revoking = read_partitions(value.partitions_pending_revocation, value.member_epoch)
        self._claim(member)

    def _claim(self, member: ConsumerMember) -> None:
        for key in (*member.assigned, *member.revoking):
            self.owners[key] = member.id

    def _release(self, member: ConsumerMember) -> None:
        for key in (*member.assigned, *member.revoking):
            if self.owners.get(key) == member.id:
                del self.owners[key]
