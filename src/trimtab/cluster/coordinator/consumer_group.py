"""One consumer group (KIP-848): the coordinator assigns partitions, members follow by heartbeats.

    subscription, topics ─▶ group epoch ─▶ target assignment ─▶ each member's own assignment

A member has the partitions that it had and keeps, until it says that it has let go of the others;
only then a member that is to have those gets them. So no partition has two owners.

The target is computed at most once in an interval (KIP-1263), by the first request of a member that
comes when it may be. Until then it lags: who joins has nothing, and nobody keeps partitions of
topics to which it does not subscribe any more.

`recorded_group.py` has the state that these decisions change, record by record.

Source: Kafka's `ConsumerGroup`, `CurrentAssignmentBuilder` and `GroupMetadataManager`; KIP-1101
(hash of the topics), KIP-1251 (epochs of partitions).

Long because a heartbeat's decisions depend on one another: epoch, target, assignment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from trimtab.cluster.coordinator.assignors import ASSIGNORS, LOAD, Subscriber
from trimtab.cluster.coordinator.consumer_heartbeat import (
    JOIN,
    LEAVE_FOR_NOW,
    NOT_GIVEN,
)
from trimtab.cluster.coordinator.consumer_member import (
    ConsumerMember,
    MemberState,
    describe_nobody,
)
from trimtab.cluster.coordinator.effects import Caller, Now, RecordTooLarge, RequestRefused
from trimtab.cluster.coordinator.pattern_matches import PatternMatches
from trimtab.cluster.coordinator.recorded_group import RecordedGroup
from trimtab.cluster.coordinator.timers import Timers
from trimtab.cluster.coordinator.topic_pattern import PatternRefused
from trimtab.cluster.coordinator.topics import PartitionKey, Topic, Topics, by_topic
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition as PartitionName
from trimtab.kafka.wire.messages.consumer_group_describe import Assignment as DescribedAssignment
from trimtab.kafka.wire.messages.consumer_group_describe import DescribedGroup
from trimtab.kafka.wire.messages.consumer_group_describe import Member as DescribedMember
from trimtab.kafka.wire.messages.consumer_group_describe import (
    TopicPartitions as DescribedPartitions,
)
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    TopicPartitions as AssignedTopicPartitions,
)
from trimtab.kafka.wire.messages.consumer_group_records import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from trimtab.kafka.wire.messages.group_records import Key, Value

_FIRST_EPOCH: Final = 2
"""Of a new group: 0 joins, and 1 stands in Kafka for the time before the first assignment."""
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
_COMMITS_SINCE: Final = 9
"""The first version of OffsetCommit that members may use."""


class ConsumerRules(NamedTuple):
    """Options of one group.

    Attributes:
        session_s: a member that sends no heartbeat for so long is removed.
        heartbeat_ms: how often members are asked to send one.
        assignment_ms: least time between two computations of the target.
        max_size: of members.
        upgrades: whether a classic group becomes a consumer group while it has members.
        downgrades: whether a consumer group becomes a classic group while it has members.
        assignors: the names of those that may be asked for; the first is the default.
    """

    session_s: float
    heartbeat_ms: int
    assignment_ms: int
    max_size: int
    upgrades: bool
    downgrades: bool
    assignors: tuple[str, ...]


class ConsumerGroup(RecordedGroup):
    """One group, and what it decides.

    Args:
        append: appends a record to the log, and has it replayed here.
        timers: asks for `look` at a deadline, by group id and member id.
        topics: the topics of the cluster.
        matches: which of them match regular expressions.
    """

    def __init__(
        self,
        group_id: str,
        append: Callable[[Key, Value | None], None],
        timers: Timers[tuple[str, str]],
        topics: Topics,
        matches: PatternMatches,
    ) -> None:
        super().__init__(group_id, append)
        self._lacks_rates = False
        """Whether the target depends on rates, and was computed without any."""
        self._seen_rates: object = None
        """The version of the rates that were looked at last."""
        self._timers = timers
        self._topics = topics
        self._matches = matches

    @property
    def unmatched_patterns(self) -> Collection[str]:
        """Regular expressions of members that the next heartbeat matches with the topics again."""
        return () if self._seen_topics == self._topics.version else self._matched.keys()

    # Heartbeats

    def heartbeat(
        self,
        now: Now,
        caller: Caller,
        request: ConsumerGroupHeartbeatRequest,
        owned: frozenset[PartitionKey] | None,
        rules: ConsumerRules,
    ) -> ConsumerGroupHeartbeatResponse:
        """Take over what a member says, and tell it its assignment if that has changed.

        Args:
            owned: the partitions in the request; None: it says nothing of them.

        Raises:
            RequestRefused: it is not a member, or its epoch is not that of the group.
        """
        member = self._find_or_add(caller, request, rules, owned)
        metadata = self._read_metadata(caller, request, member.metadata)
        before = member.assigned.keys()
        member = self.follow(now, rules, member, metadata, request.member_epoch, owned)
        self.give_time(member, now, rules)
        is_full = request.member_epoch == JOIN or (
            request.rebalance_timeout_ms != NOT_GIVEN
            and (
                request.subscribed_topic_names is not None
                or request.subscribed_topic_regex is not None
            )
            and owned is not None
        )
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=rules.heartbeat_ms,
            assignment=Assignment(
                topic_partitions=[
                    AssignedTopicPartitions(topic_id=topic_id, partitions=indexes)
                    for topic_id, indexes in by_topic(member.assigned)
                ]
            )
            if is_full or before != member.assigned.keys()
            else None,
        )

    def follow(
        self,
        now: Now,
        rules: ConsumerRules,
        member: ConsumerMember,
        metadata: ConsumerGroupMemberMetadataValue,
        received: int,
        owned: frozenset[PartitionKey] | None,
    ) -> ConsumerMember:
        """Take over what a member says of itself, and move it towards its target; returns it.

        Args:
            member: known, or new.
            received: the epoch that it has sent.
            owned: the partitions that it says to have; None: as before.
        """
        has_changed = self._update_metadata(member, metadata) or self._knows_first_rates()
        member = self.members[member.id]
        self._update_epoch(now, has_changed)
        if self.next_epoch(now, rules) > self.assignment_epoch:
            self._assign(now, rules)
        self._reconcile(now, member, received, owned)
        return member

    def _find_or_add(
        self,
        caller: Caller,
        request: ConsumerGroupHeartbeatRequest,
        rules: ConsumerRules,
        owned: frozenset[PartitionKey] | None,
    ) -> ConsumerMember:
        member_id, instance_id = request.member_id, request.instance_id
        is_joining = request.member_epoch == JOIN
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None and not is_joining:
                raise RequestRefused(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"No member of the group has the instance id {instance_id}.",
                )
            if known is not None and known != member_id:
                if not is_joining:
                    raise RequestRefused(
                        ErrorCode.FENCED_INSTANCE_ID,
                        f"The instance id {instance_id} belongs to another member now.",
                    )
                old = self.members[known]
                if not old.is_classic and old.epoch != LEAVE_FOR_NOW:
                    raise RequestRefused(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Member {known} has the instance id {instance_id} and has not left.",
                    )
                return self.replace(old, member_id)
        member = self.members.get(member_id)
        if member is None:
            if not is_joining:
                raise RequestRefused(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in the group."
                )
            self.check_size(rules)
            return ConsumerMember(member_id, describe_nobody(caller))
        self._check_epoch(member, request.member_epoch, owned)
        return member

    def check_size(self, rules: ConsumerRules) -> None:
        """Refuse another member if there are as many as there may be.

        Raises:
            RequestRefused: there are.
        """
        if len(self.members) >= rules.max_size:
            raise RequestRefused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The group has its most members, {rules.max_size}.",
            )

    def _check_epoch(
        self, member: ConsumerMember, epoch: int, owned: frozenset[PartitionKey] | None
    ) -> None:
        """A member that joins again, or did not get the last response, is not fenced."""
        is_repeated = (
            epoch == member.previous_epoch and owned is not None and owned <= member.assigned.keys()
        )
        if epoch not in (JOIN, member.epoch) and not is_repeated:
            raise RequestRefused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The member has epoch {epoch}, the coordinator {member.epoch}: it must let go of "
                "its partitions and join again.",
            )

    def replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member comes back with another id, and takes over what was its own."""
        assigned, target = old.assigned, self.targets.get(old.id, frozenset())
        state = old.state
        self._remove(old)
        self._append(
            ConsumerGroupMemberMetadataKey(group_id=self.id, member_id=member_id), old.metadata
        )
        self._write_target(member_id, target)
        member = self.members[member_id]
        self._write_assignment(member, JOIN, JOIN, state, assigned, {})
        return member

    def _read_metadata(
        self,
        caller: Caller,
        request: ConsumerGroupHeartbeatRequest,
        old: ConsumerGroupMemberMetadataValue,
    ) -> ConsumerGroupMemberMetadataValue:
        """What a member says of itself. Fields that the request leaves out stay."""
        names = request.subscribed_topic_names
        timeout_ms = request.rebalance_timeout_ms
        return ConsumerGroupMemberMetadataValue(
            instance_id=_given(request.instance_id, old.instance_id),
            rack_id=_given(request.rack_id, old.rack_id),
            client_id=caller.client_id,
            client_host=caller.host,
            subscribed_topic_names=old.subscribed_topic_names
            if names is None
            else sorted(set(names)),
            subscribed_topic_regex=_given(
                request.subscribed_topic_regex, old.subscribed_topic_regex
            ),
            rebalance_timeout_ms=old.rebalance_timeout_ms
            if timeout_ms == NOT_GIVEN
            else timeout_ms,
            server_assignor=_given(request.server_assignor, old.server_assignor),
        )

    def _update_metadata(
        self, member: ConsumerMember, new: ConsumerGroupMemberMetadataValue
    ) -> bool:
        """Write what a member says of itself, if it is new; returns whether the target depends on
        it."""
        old = member.metadata
        is_new = member.id not in self.members
        if is_new or new != old:
            self._append(ConsumerGroupMemberMetadataKey(group_id=self.id, member_id=member.id), new)
        return (
            is_new
            or new.subscribed_topic_names != old.subscribed_topic_names
            or (new.subscribed_topic_regex or "") != (old.subscribed_topic_regex or "")
            or new.server_assignor != old.server_assignor
            or (new.rack_id or "") != (old.rack_id or "")
        )

    def _update_epoch(self, now: Now, has_changed: bool) -> None:
        """Begin another group epoch if members, or the topics that they subscribe to, changed."""
        if not has_changed and self._seen_topics == self._topics.version:
            return
        self._match_topics(now, is_anew=self._seen_topics != self._topics.version)
        self._seen_topics = self._topics.version
        digest = self._hash_topics()
        if has_changed or digest != self.metadata_hash:
            self._append(
                ConsumerGroupMetadataKey(group_id=self.id),
                ConsumerGroupMetadataValue(
                    epoch=max(self.epoch + 1, _FIRST_EPOCH), metadata_hash=digest
                ),
            )

    def _match_topics(self, now: Now, is_anew: bool) -> None:
        """Write which topics the members' regular expressions match.

        Args:
            is_anew: whether the topics may have changed since they were last matched.
        """
        for pattern in sorted(self._patterns.keys() | self._matched.keys()):
            key = ConsumerGroupRegularExpressionKey(group_id=self.id, regular_expression=pattern)
            if pattern not in self._patterns:
                self._append(key, None)
            elif is_anew or pattern not in self._matched:
                matched = self._match(pattern)
                if matched != self._matched.get(pattern):
                    self._write_match(now, key, matched)

    def _write_match(
        self, now: Now, key: ConsumerGroupRegularExpressionKey, matched: tuple[str, ...]
    ) -> None:
        try:
            self._append(
                key,
                ConsumerGroupRegularExpressionValue(
                    topics=list(matched), version=0, timestamp=now.ms
                ),
            )
        except RecordTooLarge:
            if key.regular_expression not in self._matched:
                raise
            # too many topics have come since it joined: it stays with those that it had

    def _match(self, pattern: str) -> tuple[str, ...]:
        try:
            return self._matches.find(pattern)
        except PatternRefused:  # it took too long, for topics that are new: the others stay
            return self._matched.get(pattern, ())

    def _hash_topics(self) -> int:
        digest = blake2b(digest_size=8)
        for name in sorted(self.subscribed_topics()):
            topic = self._topics.find(name)
            if topic is not None:
                digest.update(b"%s %s %d\n" % (name.encode(), topic.id, topic.partitions))
        return int.from_bytes(digest.digest(), "big", signed=True)

    # Assignments

    def next_epoch(self, now: Now, rules: ConsumerRules) -> int:
        """The epoch of the target that a member gets now: the group's, unless the last target was
        computed too short a time ago. A clock that is set back does not make it wait longer."""
        is_early = 0 <= now.ms - self.assigned_ms < rules.assignment_ms
        return self.assignment_epoch if self.assigned_ms and is_early else self.epoch

    def _assign(self, now: Now, rules: ConsumerRules) -> None:
        """Compute the target of this group epoch, and write what differs from the last."""
        ids: dict[str, bytes] = {}
        topics: dict[bytes, Topic] = {}
        for name in sorted(self.subscribed_topics()):
            topic = self._topics.find(name)
            if topic is not None:
                ids[name] = topic.id
                topics[topic.id] = topic
        assignor = self.choose_assignor(rules)
        targets = ASSIGNORS[assignor](
            {
                member.id: Subscriber(
                    member.metadata.instance_id,
                    frozenset(ids[name] for name in self._topics_of(member) if name in ids),
                    self.targets.get(member.id, frozenset()),
                    member.metadata.rack_id,
                )
                for member in self.members.values()
            },
            topics,
            self._topics,
        )
        self._lacks_rates = assignor == LOAD and not self._has_rates()
        self._seen_rates = self._topics.rates_version
        for member_id, target in targets.items():
            if target != self.targets.get(member_id):
                self._write_target(member_id, target)
        self._append(
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self.id),
            ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=self.epoch, assignment_timestamp=now.ms
            ),
        )

    def _knows_first_rates(self) -> bool:
        """Whether the target was computed without rates, and there are some now."""
        if not self._lacks_rates or self._seen_rates == self._topics.rates_version:
            return False
        self._seen_rates = self._topics.rates_version
        return self._has_rates()

    def _has_rates(self) -> bool:
        return any(rate > 0 for rate in self._topics.rates(self.subscribed_topics()).values())

    def choose_assignor(self, rules: ConsumerRules) -> str:
        """The assignor that most members ask for; the default if none does."""
        votes = Counter(
            member.metadata.server_assignor
            for member in self.members.values()
            if member.metadata.server_assignor in rules.assignors
        )
        return str(votes.most_common(1)[0][0]) if votes else rules.assignors[0]

    def _reconcile(
        self, now: Now, member: ConsumerMember, received: int, owned: frozenset[PartitionKey] | None
    ) -> None:
        """Move a member's own assignment towards its target, as far as it may.

        Args:
            received: the epoch that the member has sent.
            owned: what it says to have; None: as before.
        """
        if self._is_reconciled(member) and self.epoch == self.assignment_epoch:
            return
        epoch = member.epoch
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            if owned is None or not owned.isdisjoint(member.revoking):
                return
            epoch = min(epoch + 1, self.assignment_epoch)
        target = self._find_target(member)
        kept = {key: since for key, since in member.assigned.items() if key in target}
        leaving = {key: since for key, since in member.assigned.items() if key not in target}
        if leaving and (owned is None or not owned.isdisjoint(leaving)):
            state, assigned = MemberState.UNREVOKED_PARTITIONS, kept
        else:
            wanted = target - kept.keys()
            free = {key for key in wanted if self.owners.get(key, member.id) == member.id}
            state = (
                MemberState.STABLE
                if len(free) == len(wanted)
                else MemberState.UNRELEASED_PARTITIONS
            )
            epoch, leaving = self.assignment_epoch, {}
            assigned = kept | dict.fromkeys(sorted(free), epoch)
        self._write_assignment(member, epoch, received, state, assigned, leaving)
        if member.is_classic:
            return
        if state is MemberState.UNREVOKED_PARTITIONS:
            self.expect(member, now)
        else:
            member.act_by = float("inf")

    def _find_target(self, member: ConsumerMember) -> frozenset[PartitionKey]:
        """What a member is to have. A target that lags may have topics that the member left."""
        target = self.targets.get(member.id, frozenset())
        if self.epoch == self.assignment_epoch:
            return target
        topics = (self._topics.find(name) for name in self._topics_of(member))
        ids = {topic.id for topic in topics if topic is not None}
        return frozenset(key for key in target if key[0] in ids)

    # Leaving

    def leave(
        self, now: Now, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """Remove a member; a static one that is expected back keeps its partitions meanwhile.

        Raises:
            RequestRefused: it is not a member.
        """
        instance_id = request.instance_id
        member = self.members.get(request.member_id)
        if instance_id is not None and self._static.get(instance_id, request.member_id) != (
            request.member_id
        ):
            raise RequestRefused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"The instance id {instance_id} belongs to another member now.",
            )
        if member is None or (instance_id is not None and instance_id not in self._static):
            raise RequestRefused(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not in the group."
            )
        if instance_id is not None and request.member_epoch == LEAVE_FOR_NOW:
            self._write_assignment(
                member,
                LEAVE_FOR_NOW,
                LEAVE_FOR_NOW,
                MemberState.STABLE,
                member.assigned,
                {},
            )
            member.act_by = float("inf")
        else:
            self.remove(now, member)
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
        )

    def remove_member(self, now: Now, member_id: str, instance_id: str | None) -> ErrorCode:
        """Remove a member for an operator: by its id or, if it has one, its instance id."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is not None and member_id not in ("", known):
                return ErrorCode.FENCED_INSTANCE_ID
            member_id = known or ""
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self.remove(now, member)
        return ErrorCode.NONE

    def remove(self, now: Now, member: ConsumerMember) -> None:
        """Remove a member, and begin another epoch without it."""
        self._remove(member)
        self._update_epoch(now, has_changed=True)

    # Time

    def give_time(self, member: ConsumerMember, now: Now, rules: ConsumerRules) -> None:
        """Give a member a whole session."""
        classic = member.metadata.classic_member_metadata
        session_s = rules.session_s if classic is None else classic.session_timeout_ms / 1000
        member.deadline = now.s + session_s
        self._timers.set((self.id, member.id), member.deadline)

    def expect(self, member: ConsumerMember, now: Now) -> None:
        """Give a member its rebalance timeout for what it must do next."""
        member.act_by = now.s + member.rebalance_s
        self._timers.set((self.id, member.id), member.act_by)

    def look(self, now: Now, member_id: str) -> None:
        """Remove a member that has not been heard of, or does not let go of its partitions."""
        member = self.members.get(member_id)
        if member is None:
            return
        due = min(member.deadline, member.act_by)
        if due <= now.s:
            self.remove(now, member)
        else:
            self._timers.set((self.id, member_id), due)

    def resume(self, now: Now, rules: ConsumerRules) -> None:
        """After a load, give every member a whole session, and the whole time to let go. Begin to
        measure rates, if the next target will depend on them."""
        if self.members and self.choose_assignor(rules) == LOAD:
            self._topics.rates(self.subscribed_topics())
        for member in self.members.values():
            if member.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
                self.expect(member, now)
            self.give_time(member, now, rules)

    # Offsets

    def check_commit(
        self, version: int, member_id: str, epoch: int, partition: PartitionName
    ) -> ErrorCode:
        """Whether a member may commit the offset of a partition: with its own epoch, or with one
        since which it has had the partition (KIP-1251).

        A client that is no member may commit while the group has none.
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch and (member.is_classic or version >= _COMMITS_SINCE):
            return ErrorCode.NONE
        if member.is_classic:
            return ErrorCode.ILLEGAL_GENERATION
        if version < _COMMITS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        topic = self._topics.find(partition.topic)
        key = (b"" if topic is None else topic.id, partition.partition)
        since = member.assigned.get(key, member.revoking.get(key))
        has_it = since is not None and since <= epoch < member.epoch
        return ErrorCode.NONE if has_it else ErrorCode.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member may read offsets. A client that says nothing of itself may."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH

    # As ConsumerGroupDescribe shows it

    def describe(self, rules: ConsumerRules) -> DescribedGroup:
        """The group, its members, and what each has and is to have."""
        return DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=self.id,
            group_state=self.state,
            group_epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            assignor_name=self.choose_assignor(rules),
            members=[
                DescribedMember(
                    member_id=member.id,
                    instance_id=member.metadata.instance_id,
                    rack_id=member.metadata.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.metadata.client_id,
                    client_host=member.metadata.client_host,
                    subscribed_topic_names=member.metadata.subscribed_topic_names,
                    subscribed_topic_regex=member.metadata.subscribed_topic_regex or None,
                    assignment=self._describe_assignment(member.assigned),
                    target_assignment=self._describe_assignment(
                        self.targets.get(member.id, frozenset())
                    ),
                    member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
                )
                for member in self.members.values()
            ],
        )

    def _describe_assignment(self, keys: Iterable[PartitionKey]) -> DescribedAssignment:
        partitions = []
        for topic_id, indexes in by_topic(keys):
            topic = self._topics.find_id(topic_id)
            if topic is not None:
                partitions.append(
                    DescribedPartitions(
                        topic_id=topic_id, topic_name=topic.name, partitions=indexes
                    )
                )
        return DescribedAssignment(topic_partitions=partitions)


def _given(new: str | None, old: str | None) -> str | None:
    return old if new is None else new
