"""Members of groups: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14); whole groups:
DescribeGroups (15), ListGroups (16), DeleteGroups (42); members of KIP-848's groups:
ConsumerGroupHeartbeat (68), and ConsumerGroupDescribe (69).

A broker answers for the groups whose partition of `__consumer_offsets` it leads, others with
NOT_COORDINATOR. `trimtab.cluster.coordinator` decides;
`trimtab.cluster.broker.coordinator_partition` makes it durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

from trimtab.cluster.broker.authorized_operations import ON_GROUP
from trimtab.cluster.broker.coordinator import answering
from trimtab.cluster.broker.groups import GroupCoordinator
from trimtab.cluster.coordinator.classic_group import refuse_join
from trimtab.cluster.coordinator.consumer_heartbeat import refuse_description, refuse_heartbeat
from trimtab.cluster.coordinator.effects import Caller, Now
from trimtab.cluster.coordinator.group_shard import GroupShard
from trimtab.cluster.coordinator.topics import PartitionKey
from trimtab.cluster.server.turns import Pace, Steps, answer_each, divide, results_of
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from trimtab.kafka.wire.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from trimtab.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from trimtab.kafka.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from trimtab.kafka.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from trimtab.kafka.wire.messages.join_group import JoinGroupRequest
from trimtab.kafka.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from trimtab.kafka.wire.messages.list_groups import (
    ListGroupsRequest,
    ListGroupsResponse,
)
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_ITEMS_PER_TURN: Final = 200
_SEVERAL_MEMBERS_SINCE: Final = 3
_OF_ALL: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.NOT_COORDINATOR,
)
"""Codes that concern a request for several members as a whole."""


def join_group(
    groups: GroupCoordinator, header: RequestHeader, request: JoinGroupRequest
) -> asyncio.Future[Any]:
    """Answer once the group's next generation begins."""
    return groups.ask_shard(
        header,
        request.group_id,
        lambda shard, now, caller: shard.join(now, caller, request),
        lambda code: refuse_join(header.api_version, code, request.member_id),
    )


def sync_group(
    groups: GroupCoordinator, header: RequestHeader, request: SyncGroupRequest
) -> Steps[Awaitable[SyncGroupResponse]]:
    """Answer once the leader has given the assignment."""
    given: dict[str, bytes] = {}
    return answer_each(
        request.assignments,
        lambda each: given.update({each.member_id: each.assignment}),
        lambda _: groups.ask_shard(
            header,
            request.group_id,
            lambda shard, now, caller: shard.sync(now, caller, request, given),
            lambda code: SyncGroupResponse(error_code=code, assignment=b""),
        ),
    )


def heartbeat(
    groups: GroupCoordinator, header: RequestHeader, request: HeartbeatRequest
) -> asyncio.Future[Any]:
    """Say whether the member must join again."""
    return groups.ask_shard(
        header,
        request.group_id,
        lambda shard, now, caller: shard.heartbeat(now, caller, request),
        lambda code: HeartbeatResponse(error_code=code),
    )


def leave_group(
    groups: GroupCoordinator, header: RequestHeader, request: LeaveGroupRequest
) -> Steps[Awaitable[LeaveGroupResponse]]:
    """Remove members. Before version 3 the request names one, whose code is the response's."""
    is_one = header.api_version < _SEVERAL_MEMBERS_SINCE
    members = (
        [MemberIdentity(member_id=request.member_id, group_instance_id=None)]
        if is_one
        else request.members
    )
    group_id = request.group_id

    def leave(some: Sequence[MemberIdentity]) -> asyncio.Future[Any]:
        identities = [(each.member_id, each.group_instance_id) for each in some]

        def tell(codes: Iterable[ErrorCode]) -> list[MemberResponse]:
            return [
                MemberResponse(member_id=member_id, group_instance_id=instance, error_code=code)
                for (member_id, instance), code in zip(identities, codes, strict=True)
            ]

        return groups.ask_shard(
            header,
            group_id,
            answering(lambda shard, now: tell(shard.leave(now, group_id, identities))),
            lambda code: tell([code] * len(identities)),
        )

    async def respond(asked: list[asyncio.Future[Any]]) -> LeaveGroupResponse:
        whole = ErrorCode.NONE
        told: list[MemberResponse] = []
        async for part in results_of(asked, 1):
            told += part
            for member in part:
                if is_one or member.error_code in _OF_ALL:
                    whole = ErrorCode(member.error_code)
        is_told = not is_one and whole is ErrorCode.NONE
        return LeaveGroupResponse(error_code=whole, members=told if is_told else [])

    return answer_each(divide(members), leave, respond, cost=lambda some, _: len(some))


def describe_groups(
    groups: GroupCoordinator, header: RequestHeader, request: DescribeGroupsRequest
) -> Steps[Awaitable[DescribeGroupsResponse]]:
    """The state and the members of each group."""

    def describe(group_id: str) -> asyncio.Future[Any]:
        return groups.ask_shard(
            header,
            group_id,
            answering(lambda shard, _: shard.describe(header.api_version, group_id)),
            lambda code: DescribedGroup(
                error_code=code,
                group_id=group_id,
                group_state="",
                protocol_type="",
                protocol_data="",
                members=[],
            ),
        )

    async def respond(asked: list[asyncio.Future[Any]]) -> DescribeGroupsResponse:
        described = DescribeGroupsResponse(groups=[each async for each in results_of(asked)])
        if request.include_authorized_operations:
            _authorize(described.groups)
        return described

    return answer_each(request.groups, describe, respond)


def list_groups(
    groups: GroupCoordinator, header: RequestHeader, request: ListGroupsRequest
) -> ListGroupsResponse | Steps[ListGroupsResponse]:
    """The groups that this broker coordinates, without those whose log is damaged."""
    if any(each.is_loading for each in groups):
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ListGroupsResponse(error_code=code, groups=[])
    shards = [each.shard for each in groups if each.shard is not None]
    return answer_each(
        chain.from_iterable(
            shard.list_groups(request.states_filter, request.types_filter) for shard in shards
        ),
        lambda group: group,
        lambda listed: ListGroupsResponse(error_code=ErrorCode.NONE, groups=listed),
    )


def delete_groups(
    groups: GroupCoordinator, header: RequestHeader, request: DeleteGroupsRequest
) -> Steps[Awaitable[DeleteGroupsResponse]]:
    """Delete each group that has no members."""

    def delete(group_id: str) -> asyncio.Future[Any]:
        def tell(code: ErrorCode) -> DeletableGroupResult:
            return DeletableGroupResult(group_id=group_id, error_code=code)

        return groups.ask_shard(
            header,
            group_id,
            answering(lambda shard, _: tell(shard.delete_group(group_id))),
            tell,
        )

    async def respond(asked: list[asyncio.Future[Any]]) -> DeleteGroupsResponse:
        results = [each async for each in results_of(asked)]
        return DeleteGroupsResponse(throttle_time_ms=0, results=results)

    return answer_each(request.groups_names, delete, respond)


def consumer_group_heartbeat(
    groups: GroupCoordinator, header: RequestHeader, request: ConsumerGroupHeartbeatRequest
) -> Steps[Awaitable[ConsumerGroupHeartbeatResponse]]:
    """Tell a member of a consumer group its epoch and, if it has changed, its assignment.

    Nobody has partitions that do not exist, so there are at most as many as in the cluster.
    """
    keys: set[PartitionKey] = set()
    pace = Pace(_ITEMS_PER_TURN)
    topics = groups.view.image.topics_by_id
    for topic in request.topic_partitions or ():
        known = topics.get(topic.topic_id)
        count = 0 if known is None else len(known.partitions)
        if pace.spend():
            yield
        for begin in range(0, len(topic.partitions), _ITEMS_PER_TURN):
            some = topic.partitions[begin : begin + _ITEMS_PER_TURN]
            keys.update((topic.topic_id, index) for index in some if 0 <= index < count)
            if pace.spend(len(some)):
                yield
    owned = None if request.topic_partitions is None else frozenset(keys)

    found = groups.find(request.group_id)
    if found is not None and found.shard is not None:
        yield from found.shard.match_patterns(request.group_id, request.subscribed_topic_regex)

    def decide(shard: GroupShard, now: Now, caller: Caller) -> None:
        response = shard.consumer_heartbeat(now, caller, request, owned)
        shard.effects.responses.append((caller.request, response))

    return groups.ask_shard(header, request.group_id, decide, refuse_heartbeat)


def describe_consumer_groups(
    groups: GroupCoordinator, header: RequestHeader, request: ConsumerGroupDescribeRequest
) -> Steps[Awaitable[ConsumerGroupDescribeResponse]]:
    """The state, the members and the assignments of each consumer group."""

    def describe(group_id: str) -> asyncio.Future[Any]:
        return groups.ask_shard(
            header,
            group_id,
            answering(lambda shard, _: shard.describe_consumers(group_id)),
            lambda code: refuse_description(group_id, code),
        )

    async def respond(asked: list[asyncio.Future[Any]]) -> ConsumerGroupDescribeResponse:
        described = ConsumerGroupDescribeResponse(groups=[each async for each in results_of(asked)])
        if request.include_authorized_operations:
            _authorize(described.groups)
        return described

    return answer_each(request.group_ids, describe, respond)


def _authorize(described: Iterable[DescribedGroup | DescribedConsumerGroup]) -> None:
    for group in described:
        if group.error_code == ErrorCode.NONE:
            group.authorized_operations = ON_GROUP
