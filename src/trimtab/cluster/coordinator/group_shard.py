"""The groups of one partition of `__consumer_offsets`: what requests decide, as plain code.

    request ─▶ decide ─▶ records, state ─▶ committed ─▶ response
    records of the log ─▶ replay ─▶ state

The caller appends the records of the effects in their order, and sends each response once all
records before it are committed. If an append fails, the state is ahead of the log: the caller
drops the shard and loads another one from the log.

Source: Kafka's `GroupCoordinatorShard`, `GroupMetadataManager` and `OffsetMetadataManager`.

Long because groups of both protocols and their offsets share one order of records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

from trimtab.cluster.coordinator.classic_group import (
    NOBODY,
    ClassicGroup,
    Phase,
    Rules,
    refuse_join,
)
from trimtab.cluster.coordinator.consumer_group import ConsumerGroup, ConsumerRules
from trimtab.cluster.coordinator.consumer_heartbeat import (
    JOIN,
    check_heartbeat,
    refuse_description,
    refuse_heartbeat,
)
from trimtab.cluster.coordinator.effects import (
    BATCH_OVERHEAD,
    Caller,
    Effects,
    Now,
    RecordTooLarge,
    RequestRefused,
)
from trimtab.cluster.coordinator.mixed_group import (
    MixedGroup,
    describe_downgraded,
    read_members,
    read_protocols,
)
from trimtab.cluster.coordinator.offsets import Committed, GroupOffsets, offset_key
from trimtab.cluster.coordinator.pattern_matches import PatternMatches
from trimtab.cluster.coordinator.room import MEMBER_SIZE, Admit, Usage
from trimtab.cluster.coordinator.timers import Timers
from trimtab.cluster.coordinator.topics import PartitionKey, Topics
from trimtab.cluster.coordinator.transaction import NOBODY as NO_PRODUCER
from trimtab.cluster.coordinator.transaction import ProducerIdAndEpoch
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.records import TopicPartition
from trimtab.kafka.wire.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from trimtab.kafka.wire.messages.consumer_group_records import ConsumerGroupMetadataKey
from trimtab.kafka.wire.messages.consumer_protocol import PROTOCOL_TYPE
from trimtab.kafka.wire.messages.describe_groups import DescribedGroup
from trimtab.kafka.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    Key,
    OffsetCommitKey,
    OffsetCommitValue,
    Value,
    decode_record,
)
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest
from trimtab.kafka.wire.messages.list_groups import ListedGroup
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from trimtab.kafka.wire.sentinels import NO_PRODUCER_ID

T = TypeVar("T")

_EXPIRED_PER_TURN: Final = 200
_CLASSIC: Final = "Classic"
_CONSUMER_GROUP: Final = "Consumer"
_OWN_IDS_SINCE: Final = 1
"""The version of ConsumerGroupHeartbeat whose members make their own ids (KIP-1082)."""
_ABSENCE_SINCE: Final = 6
"""The version of DescribeGroups from which on an absent group has an error code (KIP-1043)."""
_EPOCHS_SINCE: Final = 9
"""The version of OffsetCommit from which on an absent group has a code of its own (KIP-848)."""


class OffsetRules(NamedTuple):
    """Options of the cluster for committed offsets.

    Attributes:
        max_metadata: characters of an offset's metadata, as Java counts them: of two bytes.
        retention_ms: how long the offsets of a group without members are kept.
    """

    max_metadata: int
    retention_ms: int


class Commit(NamedTuple):
    """A request to commit offsets, by topic names.

    Attributes:
        generation: -1 of a client that is no member.
        offsets: by partition: offset, leader epoch, metadata.
        keep_ms: how long they are kept, if the client says so (before version 5); else -1.
    """

    group: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Mapping[TopicPartition, tuple[int, int, str]]
    keep_ms: int = -1


class GroupShard:
    """Groups and their offsets.

    Args:
        consumer_rules: the options of a consumer group now, by its id.
        topics: the topics of the cluster.
        new_id: makes the part of a member's id that tells it from others.
        max_batch: bytes of the largest batch that the log takes now.
        admit: whether there is room for another group or member, or for more about one.

    Attributes:
        effects: of the decisions since they were last taken.
    """

    def __init__(
        self,
        rules: Rules,
        consumer_rules: Callable[[str], ConsumerRules],
        offset_rules: OffsetRules,
        topics: Topics,
        new_id: Callable[[], str],
        max_batch: Callable[[], int],
        admit: Admit,
    ) -> None:
        self._admit = admit
        self.effects = Effects(max_batch)
        self._rules = rules
        self._consumer_rules = consumer_rules
        self._offset_rules = offset_rules
        self._topics = topics
        self._matches = PatternMatches(topics)
        self._new_id = new_id
        self._groups: dict[str, ClassicGroup] = {}
        self._consumer_groups: dict[str, ConsumerGroup] = {}
        self._offsets = GroupOffsets()
        self._timers: Timers[tuple[str, str]] = Timers()

    # The protocol of classic groups

    def join(self, now: Now, caller: Caller, request: JoinGroupRequest) -> None:
        """Answer JoinGroup, now or when the group's next generation begins."""
        session_s = request.session_timeout_ms / 1000
        group = self._groups.get(request.group_id)
        code = ErrorCode.NONE
        if not request.group_id:
            code = ErrorCode.INVALID_GROUP_ID
        elif not self._rules.min_session_s <= session_s <= self._rules.max_session_s:
            code = ErrorCode.INVALID_SESSION_TIMEOUT
        elif (mixed := self._find_mixed(request.group_id)) is not None:
            self._join_consumers(now, caller, request, mixed)
            return
        elif group is None and request.member_id != NOBODY:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif self._admit(self._usage_of_join(group, request)) is not None:
            code = ErrorCode.POLICY_VIOLATION
        if code is not ErrorCode.NONE:
            self.effects.respond(caller, refuse_join(caller.version, code, request.member_id))
            return
        if (empty := self._consumer_groups.get(request.group_id)) is not None:
            group = self._make_classic(now, empty)
        if group is None:
            group = self._groups[request.group_id] = self._new_group(request.group_id)
        group.join(now, caller, request)
        self._drop_unused(group)

    def _usage_of_join(self, group: ClassicGroup | None, request: JoinGroupRequest) -> Usage:
        """What is remembered after a join, and was not before."""
        known = None if group is None else group.members.get(request.member_id)
        before = 0 if known is None else known.memory
        is_new = known is None and (group is None or request.member_id not in group.expected)
        size = sum(len(each.metadata) for each in request.protocols)
        return Usage(
            things=not self._exists(request.group_id),
            members=is_new,
            size=max(0, size + MEMBER_SIZE * is_new - before),
        )

    def _admit_consumer(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """Refuse a member, or a subscription, that there is no room for."""
        group = self._consumer_groups.get(request.group_id)
        is_new = group is None or request.member_id not in group.members
        names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
        size = sum(map(len, names or ())) + len(pattern or "")
        if not is_new and not size:
            return
        reason = self._admit(
            Usage(not self._exists(request.group_id), is_new, size + MEMBER_SIZE * is_new)
        )
        if reason is not None:
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, reason)

    def measure(self) -> Iterator[Usage]:
        """What is remembered, one thing after the other."""
        for group in list(self._groups.values()):
            expected = len(group.expected)
            yield Usage(members=expected, size=MEMBER_SIZE * (1 + expected))
            for each in list(group.members.values()):
                yield Usage(members=1, size=MEMBER_SIZE + each.memory)
        for consumers in list(self._consumer_groups.values()):
            for member in list(consumers.members.values()):
                yield Usage(members=1, size=MEMBER_SIZE + member.memory)
        groups = dict.fromkeys((*self._groups, *self._consumer_groups, *self._offsets.groups()))
        for group_id in groups:
            for committed in list(self._offsets.of(group_id).values()):
                yield Usage(size=MEMBER_SIZE + len(committed.metadata))
            undecided = len(self._offsets.undecided(group_id))
            yield Usage(things=1, size=len(group_id) + MEMBER_SIZE * undecided)

    def _join_consumers(
        self, now: Now, caller: Caller, request: JoinGroupRequest, mixed: MixedGroup
    ) -> None:
        try:
            with self._in_one_batch(request.group_id):
                response = mixed.join(now, caller, request)
        except RequestRefused as refused:
            response = refuse_join(caller.version, refused.code, request.member_id)
        self.effects.respond(caller, response)
        self._downgrade(now, request.group_id)

    def sync(
        self, now: Now, caller: Caller, request: SyncGroupRequest, given: Mapping[str, bytes]
    ) -> None:
        """Answer SyncGroup, now or when the leader has given the assignment.

        Args:
            given: the request's assignments by member id.
        """
        group = self._groups.get(request.group_id)
        if group is not None:
            group.sync(now, caller, request, given)
        elif (mixed := self._find_mixed(request.group_id)) is not None:
            self.effects.respond(caller, mixed.sync(now, request))
        else:
            code = _name_absence(request.group_id)
            self.effects.respond(caller, SyncGroupResponse(error_code=code, assignment=b""))

    def heartbeat(self, now: Now, caller: Caller, request: HeartbeatRequest) -> None:
        """Answer Heartbeat."""
        group = self._groups.get(request.group_id)
        if group is not None:
            group.heartbeat(now, caller, request)
        elif (mixed := self._find_mixed(request.group_id)) is not None:
            self.effects.respond(caller, mixed.heartbeat(now, request))
        else:
            self.effects.respond(
                caller, HeartbeatResponse(error_code=_name_absence(request.group_id))
            )

    def leave(
        self, now: Now, group_id: str, identities: Sequence[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        """Remove members, each by its id or its instance id; the result of each."""
        group = self._groups.get(group_id)
        consumers = self._consumer_groups.get(group_id)
        if consumers is not None:
            codes = [consumers.remove_member(now, *each) for each in identities]
            self._downgrade(now, group_id)
            return codes
        if group is None:
            return [_name_absence(group_id)] * len(identities)
        codes = group.leave(now, identities)
        self._drop_unused(group)
        return codes

    # The protocol of consumer groups

    def match_patterns(self, group_id: str, pattern: str | None) -> Steps[None]:
        """Match, in steps, the regular expressions that a heartbeat needs: its own, and those of
        the group if topics have changed."""
        group = self._consumer_groups.get(group_id)
        known = () if group is None else tuple(group.unmatched_patterns)
        for expression in (pattern, *known):
            if expression:
                yield from self._matches.prepare(expression)

    def consumer_heartbeat(
        self,
        now: Now,
        caller: Caller,
        request: ConsumerGroupHeartbeatRequest,
        owned: frozenset[PartitionKey] | None,
    ) -> ConsumerGroupHeartbeatResponse:
        """Take a member into a consumer group, keep it there, or let it leave.

        Args:
            owned: the partitions in the request; None: it says nothing of them.
        """
        rules = self._consumer_rules(request.group_id)
        is_joining = request.member_epoch == JOIN
        if is_joining and caller.version < _OWN_IDS_SINCE and not request.member_id:
            request.member_id = self._new_id()
        classic = self._groups.get(request.group_id)
        try:
            check_heartbeat(request, rules.assignors, self._matches)
            if request.member_epoch >= JOIN:
                self._admit_consumer(request)
            with self._in_one_batch(request.group_id):
                group = self._find_consumers(now, request.group_id, rules if is_joining else None)
                if request.member_epoch < JOIN:
                    response = group.leave(now, request)
                else:
                    response = group.heartbeat(now, caller, request, owned, rules)
        except RequestRefused as refused:
            return refuse_heartbeat(refused.code, refused.message)
        if classic is not None:  # it has become a consumer group
            classic.refuse_all_waiting(ErrorCode.REBALANCE_IN_PROGRESS)
        self._downgrade(now, request.group_id)
        return response

    @contextmanager
    def _in_one_batch(self, group_id: str) -> Iterator[None]:
        """Have a decision about one group write a single batch. If it is refused, or the batch
        would be too large, the group is as before."""
        effects, begin = self.effects, len(self.effects.records)
        classic, consumers = self._groups.get(group_id), self._consumer_groups.get(group_id)
        effects.cut()
        effects.whole = BATCH_OVERHEAD
        if consumers is not None:
            consumers.begin_decision()
        try:
            yield
        except RequestRefused as refused:
            del effects.records[begin:]
            if isinstance(refused, RecordTooLarge):
                effects.warnings.append(f"group={group_id!r} {refused.message}")
            if consumers is not None:
                consumers.take_back()
            _restore(self._groups, group_id, classic)
            _restore(self._consumer_groups, group_id, consumers)
            raise
        finally:
            effects.whole = None
            if consumers is not None:
                consumers.end_decision()

    def _find_consumers(
        self, now: Now, group_id: str, rules: ConsumerRules | None
    ) -> ConsumerGroup:
        """The consumer group.

        Args:
            rules: those of a member that joins, for which it is created or a classic group becomes
                one; None: it must be there.
        """
        found = self._consumer_groups.get(group_id)
        if found is not None:
            return found
        if rules is None:
            raise RequestRefused(
                ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id}."
            )
        classic = self._groups.get(group_id)
        if classic is not None:
            return self._upgrade(now, classic, rules)
        return self._add_consumers(group_id)

    def _upgrade(self, now: Now, classic: ClassicGroup, rules: ConsumerRules) -> ConsumerGroup:
        """Make a classic group a consumer group; its members stay."""
        if classic.members and (
            not rules.upgrades
            or classic.protocol_type != PROTOCOL_TYPE
            or len(classic.members) > rules.max_size
        ):
            raise RequestRefused(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {classic.id} has members of the classic protocol: set group.protocol to "
                "classic, or stop them first.",
            )
        members = read_members(classic, self._topics)
        self._append(GroupMetadataKey(group=classic.id), None)
        consumers = self._add_consumers(classic.id)
        if classic.generation or members:
            consumers.install(classic.generation, members)
            consumers.resume(now, rules)
        return consumers

    def _downgrade(self, now: Now, group_id: str) -> None:
        """Make a consumer group a classic group again if only members of that protocol are left,
        and one record has room for them."""
        consumers = self._consumer_groups.get(group_id)
        if (
            consumers is None
            or not consumers.is_classic
            or len(consumers.members) > self._rules.max_size
            or not self._consumer_rules(group_id).downgrades
        ):
            return
        protocols = read_protocols(consumers)
        try:
            with self._in_one_batch(group_id):
                classic = self._make_classic(now, consumers)
        except RecordTooLarge:
            return
        classic.rebalance(now, protocols)

    def _make_classic(self, now: Now, consumers: ConsumerGroup) -> ClassicGroup:
        """Write a consumer group without members of that protocol as a classic group."""
        value = describe_downgraded(consumers, self._topics, now)
        consumers.delete()
        self._append(GroupMetadataKey(group=consumers.id), value)
        return self._groups[consumers.id]

    def _find_mixed(self, group_id: str) -> MixedGroup | None:
        """A consumer group with members, as members of the classic protocol see it."""
        group = self._consumer_groups.get(group_id)
        if group is None or not group.members:
            return None
        return MixedGroup(group, self._consumer_rules(group_id), self._topics, self._new_id)

    def _add_consumers(self, group_id: str) -> ConsumerGroup:
        group = ConsumerGroup(group_id, self._append, self._timers, self._topics, self._matches)
        self._consumer_groups[group_id] = group
        return group

    def describe_consumers(self, group_id: str) -> DescribedConsumerGroup:
        """A consumer group with its members."""
        group = self._consumer_groups.get(group_id)
        if group is not None:
            return group.describe(self._consumer_rules(group_id))
        is_classic = self._exists(group_id)
        return refuse_description(
            group_id,
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {group_id} is not a consumer group."
            if is_classic
            else f"Group {group_id} not found.",
        )

    # Offsets

    def commit(
        self, now: Now, version: int, commit: Commit, producer: ProducerIdAndEpoch | None = None
    ) -> dict[TopicPartition, ErrorCode]:
        """Store offsets; the result of each partition.

        Args:
            version: of OffsetCommit; not used in a transaction.
            producer: whose transaction it is part of; None: of none.
        """
        check = (
            self._check_commit(now, version, commit)
            if producer is None
            else self._check_in_transaction(now, commit)
        )
        known = self._offsets.of(commit.group)
        more = [each for each in commit.offsets if each not in known]
        notes = sum(len(metadata) for *_, metadata in commit.offsets.values())
        usage = Usage(things=not self._exists(commit.group), size=MEMBER_SIZE * len(more) + notes)
        if usage != Usage() and self._admit(usage) is not None:
            return dict.fromkeys(commit.offsets, ErrorCode.POLICY_VIOLATION)
        self.effects.producer = producer
        codes = {}
        for partition, (offset, leader_epoch, metadata) in commit.offsets.items():
            codes[partition] = check(partition)
            if codes[partition] is not ErrorCode.NONE:
                continue
            if _java_length(metadata) > self._offset_rules.max_metadata:
                codes[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            expires_ms = now.ms + commit.keep_ms if commit.keep_ms >= 0 else -1
            committed = Committed(offset, leader_epoch, metadata, now.ms, expires_ms)
            key, value = offset_key(commit.group, partition), committed.to_record()
            try:
                self.effects.append_group_record(key, value)
            except RecordTooLarge:
                codes[partition] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            else:
                self._offsets.replay(key, value, (producer or NO_PRODUCER).producer_id)
        return codes

    def _check_commit(
        self, now: Now, version: int, commit: Commit
    ) -> Callable[[TopicPartition], ErrorCode]:
        """Whether the client may commit, by partition."""
        consumers = self._consumer_groups.get(commit.group)
        group = self._groups.get(commit.group)
        if consumers is not None:
            return lambda partition: consumers.check_commit(
                version, commit.member_id, commit.generation, partition
            )
        code = ErrorCode.NONE
        if group is not None:
            code = group.check_commit(now, commit.member_id, commit.instance_id, commit.generation)
        elif commit.generation >= 0:  # otherwise the client assigns partitions itself
            code = (
                ErrorCode.GROUP_ID_NOT_FOUND
                if version >= _EPOCHS_SINCE
                else ErrorCode.ILLEGAL_GENERATION
            )
        return lambda _: code

    def _check_in_transaction(
        self, now: Now, commit: Commit
    ) -> Callable[[TopicPartition], ErrorCode]:
        """The same in a transaction. A producer need not say which member it commits for."""
        is_nobody = commit.generation < 0 and not commit.member_id and commit.instance_id is None
        if is_nobody:
            return lambda _: ErrorCode.NONE
        consumers = self._consumer_groups.get(commit.group)
        group = self._groups.get(commit.group)
        if consumers is not None:

            def check(partition: TopicPartition) -> ErrorCode:
                code = consumers.check_commit(
                    _EPOCHS_SINCE, commit.member_id, commit.generation, partition
                )
                is_stale = code is ErrorCode.STALE_MEMBER_EPOCH
                return ErrorCode.ILLEGAL_GENERATION if is_stale else code

            return check
        code = ErrorCode.NONE if commit.generation < 0 else ErrorCode.ILLEGAL_GENERATION
        if group is not None:
            code = group.check_commit(
                now, commit.member_id, commit.instance_id, commit.generation, True
            )
        return lambda _: code

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a client may read a group's offsets; a member says who it is."""
        consumers = self._consumer_groups.get(group_id)
        return ErrorCode.NONE if consumers is None else consumers.check_fetch(member_id, epoch)

    def offsets(self, group: str) -> Mapping[TopicPartition, Committed]:
        """The offsets that a group has committed."""
        return self._offsets.of(group)

    def undecided(self, group: str) -> Collection[TopicPartition]:
        """The partitions whose offsets transactions will decide that have not ended."""
        return self._offsets.undecided(group)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Delete offsets of topics to which no member subscribes: a code of the group, and the
        result of each partition."""
        group = self._groups.get(group_id)
        subscribed: Collection[str] | None = ()
        if not self._exists(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        if group is not None and group.phase is not Phase.EMPTY:
            if group.protocol_type != PROTOCOL_TYPE:
                return ErrorCode.NON_EMPTY_GROUP, {}
            subscribed = group.subscribed_topics()
        elif (consumers := self._consumer_groups.get(group_id)) is not None:
            subscribed = consumers.subscribed_topics()
        codes = {}
        for partition in partitions:
            if subscribed is None or partition.topic in subscribed:
                codes[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            codes[partition] = ErrorCode.NONE
            if partition in self._offsets.partitions(group_id):
                self._append(offset_key(group_id, partition), None)
        return ErrorCode.NONE, codes

    def forget_topics(self, topics: Collection[str]) -> None:
        """Delete the offsets of topics that were deleted: a new topic with the name has others."""
        for group_id in list(self._offsets.groups()):
            gone = [each for each in self._offsets.partitions(group_id) if each.topic in topics]
            if gone:
                self.effects.cut()
            for partition in gone:
                self._append(offset_key(group_id, partition), None)

    def expire(self, now: Callable[[], Now]) -> Steps[None]:
        """Delete the offsets whose time is over, and the groups of which nothing is left. What a
        step has decided is for the caller to carry out before the next one.

        Offsets of a group with members stay while one of them subscribes to the topic. Without
        members they stay for the retention time, since the group lost its last member or, of
        clients that assign partitions themselves, since the commit.
        """
        pace = Pace(_EXPIRED_PER_TURN)
        known = (self._offsets.groups(), self._groups, self._consumer_groups)
        for group_id in list(dict.fromkeys(chain(*known))):
            partitions = iter(list(self._offsets.of(group_id)))
            while some := list(islice(partitions, _EXPIRED_PER_TURN)):
                self._expire_some(now().ms, group_id, some)
                if pace.spend(len(some)):
                    yield
            self._drop_empty(group_id)
            if pace.spend():
                yield

    def _expire_some(
        self, now_ms: int, group_id: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Delete those of a group's offsets whose time is over."""
        group = self._consumer_groups.get(group_id) or self._groups.get(group_id)
        is_kept = self._retention_of(group, now_ms)
        self.effects.cut()
        for key in self._offsets.expired(group_id, partitions, now_ms, is_kept):
            self._append(key, None)

    def _drop_empty(self, group_id: str) -> None:
        """Delete a group without members and offsets."""
        group = self._groups.get(group_id)
        consumers = self._consumer_groups.get(group_id)
        self.effects.cut()
        if self._offsets.partitions(group_id):
            return
        if group is not None and group.phase is Phase.EMPTY and group.generation > 0:
            self._append(GroupMetadataKey(group=group_id), None)
        if consumers is not None and not consumers.members:
            consumers.delete()

    def _retention_of(
        self, group: ClassicGroup | ConsumerGroup | None, now_ms: int
    ) -> Callable[[TopicPartition, Committed], bool]:
        begin_ms = now_ms - self._offset_rules.retention_ms
        if isinstance(group, ConsumerGroup):
            topics = group.subscribed_topics()
            return lambda partition, each: partition.topic in topics or each.committed_ms > begin_ms
        if group is None or group.protocol_type is None:
            return lambda _, each: each.committed_ms > begin_ms
        if group.phase is Phase.EMPTY:
            since_ms = group.since_ms
            return lambda _, each: max(since_ms, each.committed_ms) > begin_ms
        if group.protocol_type != PROTOCOL_TYPE or group.phase is not Phase.STABLE:
            return lambda *_: True
        subscribed = group.subscribed_topics()
        if subscribed is None:
            return lambda *_: True
        return lambda partition, each: partition.topic in subscribed or each.committed_ms > begin_ms

    # Groups as a whole

    def delete_group(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and its offsets."""
        group = self._groups.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not self._exists(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        consumers = self._consumer_groups.get(group_id)
        if (group is not None and group.phase is not Phase.EMPTY) or (
            consumers is not None and consumers.members
        ):
            return ErrorCode.NON_EMPTY_GROUP
        for partition in self._offsets.partitions(group_id):
            self._append(offset_key(group_id, partition), None)
        if group is not None:
            self._append(GroupMetadataKey(group=group_id), None)
        if consumers is not None:
            consumers.delete()
        return ErrorCode.NONE

    def describe(self, version: int, group_id: str) -> DescribedGroup:
        """A group with its members. One that does not exist is dead."""
        group = self._groups.get(group_id)
        if group is not None:
            return group.describe()
        is_other = group_id in self._consumer_groups
        exists = self._exists(group_id) and not is_other
        is_told = version >= _ABSENCE_SINCE and not exists
        why = "is not a classic group" if is_other else "not found"
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.NONE,
            error_message=f"Group {group_id} {why}." if is_told else None,
            group_id=group_id,
            group_state=Phase.EMPTY if exists else Phase.DEAD,
            protocol_type="",
            protocol_data="",
            members=[],
        )

    def list_groups(self, states: Sequence[str], types: Sequence[str]) -> Iterator[ListedGroup]:
        """The groups in one of the states and of one of the types; none given: all. Upper and lower
        case are the same."""
        wanted_states = {each.lower() for each in states}
        wanted_types = {each.lower() for each in types}
        known = (self._groups, self._consumer_groups, self._offsets.groups())
        for group_id in dict.fromkeys(chain(*known)):
            listed = self._list_group(group_id)
            if (not wanted_states or listed.group_state.lower() in wanted_states) and (
                not wanted_types or listed.group_type.lower() in wanted_types
            ):
                yield listed

    def _list_group(self, group_id: str) -> ListedGroup:
        group = self._groups.get(group_id)
        consumers = self._consumer_groups.get(group_id)
        if consumers is not None:
            return ListedGroup(
                group_id=group_id,
                protocol_type=PROTOCOL_TYPE,
                group_state=consumers.state,
                group_type=_CONSUMER_GROUP,
            )
        return ListedGroup(
            group_id=group_id,
            protocol_type=(group.protocol_type or "") if group is not None else "",
            group_state=Phase.EMPTY if group is None else group.phase,
            group_type=_CLASSIC,
        )

    def _exists(self, group_id: str) -> bool:
        return (
            group_id in self._groups
            or group_id in self._consumer_groups
            or self._offsets.has(group_id)
        )

    # Time

    @property
    def next_due(self) -> float | None:
        """When to call `look` next, monotonic in seconds; None: when something has happened."""
        return self._timers.next_due

    def look(self, now: Now) -> None:
        """End the sessions and the rebalances whose time is over."""
        for group_id, member_id in self._timers.pop_due(now.s):
            group = self._groups.get(group_id)
            consumers = self._consumer_groups.get(group_id)
            self.effects.cut()
            if group is not None:
                group.look(now, member_id)
                self._drop_unused(group)
            elif consumers is not None:
                consumers.look(now, member_id)
                self._downgrade(now, group_id)

    # State

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Take over a record of the log; with a producer id, one of a transaction.

        Raises:
            CorruptData: malformed.
        """
        decoded = decode_record(key, value)
        if decoded is None:
            return
        if producer_id == NO_PRODUCER_ID:
            self.replay(*decoded)
        elif isinstance(decoded[0], OffsetCommitKey):
            offset = decoded[1]
            assert offset is None or isinstance(offset, OffsetCommitValue)
            self._offsets.replay(decoded[0], offset, producer_id)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """A producer's transaction has ended: its offsets are decided."""
        self._offsets.end_transaction(producer_id, is_commit)

    def replay(self, key: Key, value: Value | None) -> None:
        """Take over a record that belongs to no transaction."""
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self._offsets.replay(key, value)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self._replay_classic(key.group, value)
        elif value is None and isinstance(key, ConsumerGroupMetadataKey):
            self._consumer_groups.pop(key.group_id, None)
        else:
            consumers = self._consumer_groups.get(key.group_id)
            if consumers is None and value is not None:
                consumers = self._add_consumers(key.group_id)
            if consumers is not None:
                consumers.replay(key, value)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        if value is None:
            self._groups.pop(group_id, None)
            return
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = self._new_group(group_id)
        group.replay(value)

    def resume(self, now: Now) -> None:
        """After the log was replayed, give every member a whole session."""
        for group in self._groups.values():
            group.resume(now)
        for consumers in self._consumer_groups.values():
            consumers.resume(now, self._consumer_rules(consumers.id))

    def _append(self, key: Key, value: Value | None) -> None:
        self.effects.append_group_record(key, value)
        self.replay(key, value)

    def _new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self._rules, self.effects, self._timers, self._new_id)

    def _drop_unused(self, group: ClassicGroup) -> None:
        if group.is_unused:
            self._groups.pop(group.id, None)


def _java_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _restore(groups: dict[str, T], group_id: str, group: T | None) -> None:
    if group is not None:
        groups[group_id] = group
    else:
        groups.pop(group_id, None)


def _name_absence(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
