"""Members of groups: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14); whole groups:
DescribeGroups (15), ListGroups (16), DeleteGroups (42); members of KIP-848's groups:
ConsumerGroupHeartbeat (68), and ConsumerGroupDescribe (69).

A broker answers for the groups whose partition of `__consumer_offsets` it leads, others with
NOT_COORDINATOR. `trimtab.coordinator` decides; `trimtab.broker.coordinator_partition` makes it
durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from trimtab.broker.authorized_operations import ON_GROUP
from trimtab.broker.coordinator import answering
from trimtab.broker.groups import Groups
from trimtab.coordinator.classic_group import refuse_join
from trimtab.coordinator.consumer_heartbeat import refuse_description, refuse_heartbeat
from trimtab.coordinator.effects import Caller, Now
from trimtab.coordinator.group_shard import GroupShard
from trimtab.coordinator.topics import PartitionKey
from trimtab.errors import ErrorCode
from trimtab.server.turns import Pace, Steps
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from trimtab.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from trimtab.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from trimtab.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from trimtab.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from trimtab.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from trimtab.wire.messages.join_group import JoinGroupRequest
from trimtab.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from trimtab.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from trimtab.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

T = TypeVar("T")

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
    groups: Groups, header: RequestHeader, request: JoinGroupRequest
) -> asyncio.Future[Any]:
    """Answer once the group's next generation begins."""
    return groups.ask(
        header,
        request.group_id,
        lambda shard, now, caller: shard.join(now, caller, request),
        lambda code: refuse_join(header.api_version, code, request.member_id),
    )


def sync_group(
    groups: Groups, header: RequestHeader, request: SyncGroupRequest
) -> Steps[Awaitable[SyncGroupResponse]]:
    """Answer once the leader has given the assignment."""
    given = {}
    pace = Pace(_ITEMS_PER_TURN)
    for each in request.assignments:
        given[each.member_id] = each.assignment
        if pace.spend():
            yield
    return groups.ask(
        header,
        request.group_id,
        lambda shard, now, caller: shard.sync(now, caller, request, given),
        lambda code: SyncGroupResponse(error_code=code, assignment=b""),
    )


def heartbeat(
    groups: Groups, header: RequestHeader, request: HeartbeatRequest
) -> asyncio.Future[Any]:
    """Say whether the member must join again."""
    return groups.ask(
        header,
        request.group_id,
        lambda shard, now, caller: shard.heartbeat(now, caller, request),
        lambda code: HeartbeatResponse(error_code=code),
    )


def leave_group(
    groups: Groups, header: RequestHeader, request: LeaveGroupRequest
) -> Steps[Awaitable[LeaveGroupResponse]]:
    """Remove members. Before version 3 the request names one, whose code is the response's."""
    is_one = header.api_version < _SEVERAL_MEMBERS_SINCE
    if is_one:
        members = [MemberResponse(member_id=request.member_id, group_instance_id=None)]
    else:
        members = [
            MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id)
            for each in request.members
        ]
    group_id = request.group_id

    def leave(some: list[MemberResponse]) -> asyncio.Future[Any]:
        identities = [(each.member_id, each.group_instance_id) for each in some]
        return groups.ask(
            header,
            group_id,
            answering(lambda shard, now: shard.leave(now, group_id, identities)),
            lambda code: [code] * len(identities),
        )

    parts = yield from in_parts(members, leave)

    async def respond() -> LeaveGroupResponse:
        whole = ErrorCode.NONE
        for some, asked in parts:
            for each, code in zip(some, await asked, strict=True):
                each.error_code = code
                if is_one or code in _OF_ALL:
                    whole = code
        is_told = not is_one and whole is ErrorCode.NONE
        return LeaveGroupResponse(error_code=whole, members=members if is_told else [])

    return respond()


def describe_groups(
    groups: Groups, header: RequestHeader, request: DescribeGroupsRequest
) -> Steps[Awaitable[DescribeGroupsResponse]]:
    """The state and the members of each group."""

    def describe(group_ids: list[str]) -> asyncio.Future[Any]:
        (group_id,) = group_ids
        return groups.ask(
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

    parts = yield from in_parts(request.groups, describe, 1)

    async def respond() -> DescribeGroupsResponse:
        described = DescribeGroupsResponse(groups=[await asked for _, asked in parts])
        if request.include_authorized_operations:
            _authorize(described.groups)
        return described

    return respond()


def list_groups(
    groups: Groups, header: RequestHeader, request: ListGroupsRequest
) -> Steps[ListGroupsResponse]:
    """The groups that this broker coordinates, without those whose log is damaged."""
    if any(each.is_loading for each in groups):
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ListGroupsResponse(error_code=code, groups=[])
    shards = [each.shard for each in groups if each.shard is not None]
    listed: list[ListedGroup] = []
    pace = Pace(_ITEMS_PER_TURN)
    for shard in shards:
        for group in shard.list_groups(request.states_filter, request.types_filter):
            listed.append(group)
            if pace.spend():
                yield
    return ListGroupsResponse(error_code=ErrorCode.NONE, groups=listed)


def delete_groups(
    groups: Groups, header: RequestHeader, request: DeleteGroupsRequest
) -> Steps[Awaitable[DeleteGroupsResponse]]:
    """Delete each group that has no members."""

    def delete(group_ids: list[str]) -> asyncio.Future[Any]:
        (group_id,) = group_ids
        return groups.ask(
            header,
            group_id,
            answering(lambda shard, _: shard.delete_group(group_id)),
            lambda code: code,
        )

    parts = yield from in_parts(request.groups_names, delete, 1)

    async def respond() -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            throttle_time_ms=0,
            results=[
                DeletableGroupResult(group_id=group_id, error_code=await asked)
                for (group_id,), asked in parts
            ],
        )

    return respond()


def consumer_group_heartbeat(
    groups: Groups, header: RequestHeader, request: ConsumerGroupHeartbeatRequest
) -> Steps[Awaitable[ConsumerGroupHeartbeatResponse]]:
    """Tell a member of a consumer group its epoch and, if it has changed, its assignment."""
    keys: set[PartitionKey] = set()
    pace = Pace(_ITEMS_PER_TURN)
    for topic in request.topic_partitions or ():
        for begin in range(0, len(topic.partitions), _ITEMS_PER_TURN):
            some = topic.partitions[begin : begin + _ITEMS_PER_TURN]
            keys.update((topic.topic_id, index) for index in some)
            if pace.spend(len(some)):
                yield
    owned = None if request.topic_partitions is None else frozenset(keys)

    def decide(shard: GroupShard, now: Now, caller: Caller) -> None:
        response = shard.consumer_heartbeat(now, caller, request, owned)
        shard.effects.responses.append((caller.request, response))

    return groups.ask(header, request.group_id, decide, refuse_heartbeat)


def describe_consumer_groups(
    groups: Groups, header: RequestHeader, request: ConsumerGroupDescribeRequest
) -> Steps[Awaitable[ConsumerGroupDescribeResponse]]:
    """The state, the members and the assignments of each consumer group."""

    def describe(group_ids: list[str]) -> asyncio.Future[Any]:
        (group_id,) = group_ids
        return groups.ask(
            header,
            group_id,
            answering(lambda shard, _: shard.describe_consumers(group_id)),
            lambda code: refuse_description(group_id, code),
        )

    parts = yield from in_parts(request.group_ids, describe, 1)

    async def respond() -> ConsumerGroupDescribeResponse:
        described = ConsumerGroupDescribeResponse(groups=[await asked for _, asked in parts])
        if request.include_authorized_operations:
            _authorize(described.groups)
        return described

    return respond()


def _authorize(described: Iterable[DescribedGroup | DescribedConsumerGroup]) -> None:
    for each in described:
        if each.error_code == ErrorCode.NONE:
            each.authorized_operations = ON_GROUP


def in_parts(
    items: Sequence[T],
    ask: Callable[[list[T]], asyncio.Future[Any]],
    size: int = _ITEMS_PER_TURN,
) -> Steps[list[tuple[list[T], asyncio.Future[Any]]]]:
    """Ask about so many items at a time; returns the parts, each with a future of its result."""
    parts = []
    pace = Pace(_ITEMS_PER_TURN)
    for begin in range(0, len(items), size):
        some = list(items[begin : begin + size])
        parts.append((some, ask(some)))
        if pace.spend(len(some)):
            yield
    return parts
