"""Members of the classic protocol in a consumer group, and the ways between the kinds of groups
while members stay (KIP-848, "online migration").

    classic group ──a member of the consumer protocol joins──▶ consumer group with both
    consumer group ──its last member of the consumer protocol leaves──▶ classic group

A member of the classic protocol is assigned its partitions by the coordinator like any other. Its
generation is its member epoch; JoinGroup says what it has, and SyncGroup gives it what it is to
have. There is no leader.

Source: Kafka's `GroupMetadataManager.classicGroupJoinToConsumerGroup`,
`ConsumerGroup.fromClassicGroup` and `ClassicGroup.fromConsumerGroup`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter

from trimtab.cluster.coordinator.classic_group import (
    IDS_SINCE,
    NOBODY,
    ClassicGroup,
    Phase,
    choose_protocol,
    refuse_join,
)
from trimtab.cluster.coordinator.classic_member import ClassicMember
from trimtab.cluster.coordinator.consumer_group import ConsumerGroup, ConsumerRules
from trimtab.cluster.coordinator.consumer_member import (
    ConsumerMember,
    MemberState,
    describe_nobody,
)
from trimtab.cluster.coordinator.effects import Caller, Now, RequestRefused
from trimtab.cluster.coordinator.topics import PartitionKey, Topics, by_topic
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
)
from trimtab.kafka.wire.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_embedded,
    encode_embedded,
)
from trimtab.kafka.wire.messages.group_records import GroupMetadataValue, MemberMetadata
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class MixedGroup:
    """What members of the classic protocol ask of a consumer group.

    Args:
        new_id: makes the part of a member's id that tells it from others.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        rules: ConsumerRules,
        topics: Topics,
        new_id: Callable[[], str],
    ) -> None:
        self._group = group
        self._rules = rules
        self._topics = topics
        self._new_id = new_id

    def join(self, now: Now, caller: Caller, request: JoinGroupRequest) -> JoinGroupResponse:
        """Take a member into the group, or have it catch up. It must synchronize next.

        Raises:
            RequestRefused: it may not join, or the log has no room for it.
        """
        if request.protocol_type != PROTOCOL_TYPE or not self._supports(request):
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "No common protocol.")
        try:
            subscription, _ = decode_embedded(
                ConsumerProtocolSubscription, request.protocols[0].metadata
            )
        except CorruptData as error:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
        member_id = request.member_id
        if member_id == NOBODY:
            prefix = caller.client_id
            if request.group_instance_id is not None:
                prefix = request.group_instance_id
            member_id = f"{prefix}-{self._new_id()}"
            if request.group_instance_id is None and caller.version >= IDS_SINCE:
                return refuse_join(caller.version, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        owns = any(each.partitions for each in subscription.owned_partitions)
        member = self._find_or_add(caller, request, member_id, owns)
        timeout_ms = request.rebalance_timeout_ms
        metadata = ConsumerGroupMemberMetadataValue(
            instance_id=request.group_instance_id,
            rack_id=subscription.rack_id,
            client_id=caller.client_id,
            client_host=caller.host,
            subscribed_topic_names=sorted(set(subscription.topics)),
            subscribed_topic_regex="",
            rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else request.session_timeout_ms,
            server_assignor=None,
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=request.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=protocol.name, metadata=protocol.metadata)
                    for protocol in request.protocols
                ],
            ),
        )
        owned = _to_keys(subscription.owned_partitions, self._topics)
        member = self._group.follow(now, self._rules, member, metadata, member.epoch, owned)
        self._group.give_time(member, now, self._rules)
        self._group.expect(member, now)
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=member.epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=_protocols_of(member)[0].name,
            leader=NOBODY,
            member_id=member.id,
            members=[],
        )

    def _supports(self, request: JoinGroupRequest) -> bool:
        """Whether the request names a protocol that all members of the classic protocol know."""
        known = [
            {each.name for each in _protocols_of(member)}
            for member in self._group.members.values()
            if member.is_classic
        ]
        return any(all(each.name in names for names in known) for each in request.protocols)

    def _find_or_add(
        self, caller: Caller, request: JoinGroupRequest, member_id: str, owns: bool
    ) -> ConsumerMember:
        """The member that joins.

        Args:
            owns: whether it says that it owns partitions. Kafka also takes back a member that the
                group has removed, with the same id. Such a member lets go of its partitions as of
                ones that nobody else has yet, and its commits take back those of the new owners.
        """
        instance_id = request.group_instance_id
        static = None if instance_id is None else self._group.find_instance(instance_id)
        if static is not None and static.id != member_id:
            if request.member_id != NOBODY:
                raise RequestRefused(ErrorCode.FENCED_INSTANCE_ID, "")
            return self._group.replace(static, member_id)
        member = self._group.members.get(member_id)
        if member is None:
            if request.member_id != NOBODY and (owns or instance_id is not None):
                raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, "")
            self._group.check_size(self._rules)
            member = ConsumerMember(member_id, describe_nobody(caller))
        return member

    def sync(self, now: Now, request: SyncGroupRequest) -> SyncGroupResponse:
        """Give a member what it may read now."""
        member = self._group.members.get(request.member_id)
        code = self._check(member, request.group_instance_id, request.generation_id)
        if code is ErrorCode.NONE and member is not None:
            name = _protocols_of(member)[0].name
            if request.protocol_type not in (None, PROTOCOL_TYPE) or (
                request.protocol_name not in (None, name)
            ):
                code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            elif self._is_behind(member, now):
                self._ask_to_join(member, now)
                code = ErrorCode.REBALANCE_IN_PROGRESS
        if code is not ErrorCode.NONE or member is None:
            return SyncGroupResponse(error_code=code, assignment=b"")
        member.act_by = float("inf")
        self._group.give_time(member, now, self._rules)
        return SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=_protocols_of(member)[0].name,
            assignment=_write_assignment(member, member.assigned, self._topics),
        )

    def heartbeat(self, now: Now, request: HeartbeatRequest) -> HeartbeatResponse:
        """Note that a member lives, and tell it whether it must join again: to catch up, to let go
        of partitions, or to get those that are free now."""
        member = self._group.members.get(request.member_id)
        code = self._check(member, request.group_instance_id, request.generation_id)
        if code is ErrorCode.NONE and member is not None:
            self._group.give_time(member, now, self._rules)
            if (
                member.epoch < self._group.next_epoch(now, self._rules)
                or member.state is MemberState.UNREVOKED_PARTITIONS
                or self._group.may_have_more(member)
            ):
                self._ask_to_join(member, now)
                code = ErrorCode.REBALANCE_IN_PROGRESS
        return HeartbeatResponse(throttle_time_ms=0, error_code=code)

    def _check(
        self, member: ConsumerMember | None, instance_id: str | None, generation: int
    ) -> ErrorCode:
        if instance_id is not None:
            static = self._group.find_instance(instance_id)
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if static is not member:
                return ErrorCode.FENCED_INSTANCE_ID
        if member is None or not member.is_classic:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == member.epoch else ErrorCode.ILLEGAL_GENERATION

    def _is_behind(self, member: ConsumerMember, now: Now) -> bool:
        """Whether it must join again before it may synchronize. One that must let go of partitions
        has joined, and learns from the assignment of which."""
        return (
            member.epoch < self._group.next_epoch(now, self._rules)
            and member.state is not MemberState.UNREVOKED_PARTITIONS
        )

    def _ask_to_join(self, member: ConsumerMember, now: Now) -> None:
        if member.act_by == float("inf"):
            self._group.expect(member, now)


def read_members(
    classic: ClassicGroup, topics: Topics
) -> dict[str, tuple[ConsumerGroupMemberMetadataValue, frozenset[PartitionKey]]]:
    """The members of a classic group as those of a consumer group, with what they have.

    Raises:
        RequestRefused: they are no consumers, or what they said cannot be read.
    """
    members = {}
    try:
        subscriptions = {
            member.id: _read_subscription(classic, member) for member in classic.members.values()
        }
        having = _find_holders(classic, subscriptions, topics)
        for member in classic.members.values():
            subscription = subscriptions[member.id]
            members[member.id] = (
                ConsumerGroupMemberMetadataValue(
                    instance_id=member.instance_id,
                    rack_id=subscription.rack_id,
                    client_id=member.client_id,
                    client_host=member.host,
                    subscribed_topic_names=sorted(set(subscription.topics)),
                    subscribed_topic_regex="",
                    rebalance_timeout_ms=round(member.rebalance_s * 1000),
                    server_assignor=None,
                    classic_member_metadata=ClassicMemberMetadata(
                        session_timeout_ms=round(member.session_s * 1000),
                        supported_protocols=[
                            ClassicProtocol(name=name, metadata=data)
                            for name, data in member.protocols.items()
                        ],
                    ),
                ),
                frozenset(key for key, holder in having.items() if holder == member.id),
            )
    except CorruptData as error:
        raise RequestRefused(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {classic.id} has members whose subscription cannot be read: {error}.",
        ) from None
    return members


def _read_subscription(
    classic: ClassicGroup, member: ClassicMember
) -> ConsumerProtocolSubscription:
    metadata = member.protocols[classic.protocol or next(iter(member.protocols))]
    return decode_embedded(ConsumerProtocolSubscription, metadata)[0]


def _find_holders(
    classic: ClassicGroup, subscriptions: Mapping[str, ConsumerProtocolSubscription], topics: Topics
) -> dict[PartitionKey, str]:
    """The member that has each partition; no one must get it before that member lets go of it.

    A member has what it was assigned. But while the group rebalances, a member that has joined has
    what it kept; and if a rebalance ended another one, assignments are gone (Kafka then takes a
    member to have nothing). If two claim a partition, the claim of the higher generation counts.
    """
    claims: list[tuple[int, str, frozenset[PartitionKey]]] = []
    for member in classic.members.values():
        subscription = subscriptions[member.id]
        is_stable = classic.phase is Phase.STABLE
        has_joined = member.joining is not None or classic.phase is Phase.COMPLETING
        if is_stable or (member.assignment and not has_joined):
            since, partitions = classic.generation, _read_assignment(member.assignment)
        else:
            since, partitions = subscription.generation_id, subscription.owned_partitions
        claims.append((since, member.id, _to_keys(partitions, topics)))
    claims.sort(key=itemgetter(0))
    return {key: member_id for _, member_id, keys in claims for key in sorted(keys)}


def _read_assignment(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    return decode_embedded(ConsumerProtocolAssignment, data)[0].assigned_partitions


def describe_downgraded(group: ConsumerGroup, topics: Topics, now: Now) -> GroupMetadataValue:
    """A consumer group whose members, if any, all use the classic protocol, as a classic group.

    Its members have what they have, not yet what they are to have. So it has no leader, and
    rebalances also if another coordinator loads it.
    """
    known = [[each.name for each in _protocols_of(member)] for member in group.members.values()]
    protocol = choose_protocol(known) if known else None
    return GroupMetadataValue(
        protocol_type=PROTOCOL_TYPE,
        generation=group.epoch,
        protocol=protocol,
        leader=None,
        current_state_timestamp=now.ms,
        members=[
            MemberMetadata(
                member_id=member.id,
                group_instance_id=member.metadata.instance_id,
                client_id=member.metadata.client_id,
                client_host=member.metadata.client_host,
                rebalance_timeout=member.metadata.rebalance_timeout_ms,
                session_timeout=_classic(member).session_timeout_ms,
                subscription=next(
                    known.metadata for known in _protocols_of(member) if known.name == protocol
                ),
                assignment=_write_assignment(
                    member, {**member.assigned, **member.revoking}, topics
                ),
            )
            for member in group.members.values()
        ],
    )


def read_protocols(group: ConsumerGroup) -> Mapping[str, dict[str, bytes]]:
    """All that the members of the classic protocol support: by member the metadata by protocol."""
    return {
        member.id: {known.name: known.metadata for known in _protocols_of(member)}
        for member in group.members.values()
        if member.is_classic
    }


def _classic(member: ConsumerMember) -> ClassicMemberMetadata:
    classic = member.metadata.classic_member_metadata
    assert classic is not None
    return classic


def _protocols_of(member: ConsumerMember) -> list[ClassicProtocol]:
    return _classic(member).supported_protocols


def _write_assignment(
    member: ConsumerMember, keys: Iterable[PartitionKey], topics: Topics
) -> bytes:
    _, version = decode_embedded(ConsumerProtocolSubscription, _protocols_of(member)[0].metadata)
    partitions = []
    for topic_id, indexes in by_topic(keys):
        topic = topics.find_id(topic_id)
        if topic is not None:
            partitions.append(TopicPartition(topic=topic.name, partitions=indexes))
    return encode_embedded(ConsumerProtocolAssignment(assigned_partitions=partitions), version)


def _to_keys(partitions: Iterable[TopicPartition], topics: Topics) -> frozenset[PartitionKey]:
    found = ((topics.find(each.topic), each.partitions) for each in partitions)
    return frozenset(
        (topic.id, index) for topic, indexes in found if topic is not None for index in indexes
    )
