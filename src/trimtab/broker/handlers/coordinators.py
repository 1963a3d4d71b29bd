"""FindCoordinator (10), versions 0-6: the broker that coordinates a group.

It leads the group's partition of `__consumer_offsets`, which the first such request creates.

No broker coordinates transactions or share groups. For those the error code is
UNSUPPORTED_VERSION, which clients treat as final, so they do not retry. librdkafka, which sends
version 2, looks for a transaction's coordinator until its time-out, unless the code is
TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections.abc import Awaitable

from trimtab.broker.coordinator_topic import CoordinatorTopic
from trimtab.errors import ErrorCode
from trimtab.server.turns import Pace, Steps
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from trimtab.wire.sentinels import NO_BROKER

_NO_PORT = -1
_BATCHED = 4
_LIBRDKAFKA = 2
_GROUP = 0
_TRANSACTION = 1
_EXPLAINED = 1000
"""Keys whose answers contain the message; further keys get the code alone."""

_NOT_SERVED = {
    _TRANSACTION: "These brokers do not serve transactions (see SKIPPED.md): use a producer "
    "without transactional.id.",
    2: "These brokers do not serve share groups (see SKIPPED.md): use a consumer group.",
}


def find_coordinator(
    groups: CoordinatorTopic, header: RequestHeader, request: FindCoordinatorRequest
) -> Steps[FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]]:
    """Name the coordinator of each key, or say why there is none."""
    if request.key_type == _GROUP and not groups.exists:
        return _create_and_find(groups, header, request)
    pace = Pace()
    coordinators: list[Coordinator] = []
    keys = request.coordinator_keys if header.api_version >= _BATCHED else [request.key]
    for key in keys:
        found = (
            _find_group(groups, key)
            if request.key_type == _GROUP
            else _refuse(header.api_version, request.key_type, key)
        )
        if len(coordinators) >= _EXPLAINED:
            found.error_message = None
        coordinators.append(found)
        if pace.spend(1 + len(key) // 50):
            yield
    return _respond(header.api_version, coordinators)


def _respond(version: int, coordinators: list[Coordinator]) -> FindCoordinatorResponse:
    if version >= _BATCHED:
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)
    only = coordinators[0]
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _find_group(groups: CoordinatorTopic, group_id: str) -> Coordinator:
    if not group_id:
        return _name_nobody(group_id, ErrorCode.INVALID_GROUP_ID, "A group has a name.")
    leader = groups.find_leader(group_id)
    if leader is None:
        return _name_nobody(
            group_id,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "The topic of the groups has no leader for this one at the moment.",
        )
    return Coordinator(
        key=group_id, node_id=leader.id, host=leader.host, port=leader.port, error_message=None
    )


def _refuse(version: int, kind: int, key: str) -> Coordinator:
    message = _NOT_SERVED.get(kind)
    if message is None:
        message = f"Coordinator type {kind} is not known; there are 0 to {max(_NOT_SERVED)}."
        return _name_nobody(key, ErrorCode.INVALID_REQUEST, message)
    is_told_otherwise = kind == _TRANSACTION and version == _LIBRDKAFKA
    code = (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if is_told_otherwise
        else ErrorCode.UNSUPPORTED_VERSION
    )
    return _name_nobody(key, code, message)


def _name_nobody(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_BROKER, host="", port=_NO_PORT, error_code=code, error_message=message
    )


async def _create_and_find(
    groups: CoordinatorTopic, header: RequestHeader, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if header.api_version >= _BATCHED else [request.key]
    await groups.create(
        lambda: all(groups.find_leader(key) is not None for key in keys[:_EXPLAINED])
    )
    return _respond(header.api_version, [_find_group(groups, key) for key in keys])
