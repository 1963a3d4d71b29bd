"""FindCoordinator (10), versions 0-6: the broker that coordinates a group, or a transactional id.

It leads the partition of `__consumer_offsets` or `__transaction_state` that holds it; the first
such request creates the topic.

No broker coordinates share groups. For those the error code is UNSUPPORTED_VERSION, which clients
treat as final, so they do not retry.
"""

from __future__ import annotations

from collections.abc import Awaitable

from trimtab.cluster.broker.coordinator_topic import GROUPS_TOPIC, CoordinatorTopic
from trimtab.cluster.server.turns import Pace, Steps
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.framing import RequestHeader
from trimtab.kafka.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from trimtab.kafka.wire.sentinels import NO_BROKER

_NO_PORT = -1
_BATCHED = 4
_GROUP = 0
_TRANSACTION = 1
_EXPLAINED = 1000
"""Keys whose answers contain the message; further keys get the code alone."""

_NOT_SERVED = {
    2: "These brokers do not serve share groups (see SKIPPED.md): use a consumer group.",
}


def find_coordinator(
    groups: CoordinatorTopic,
    transactions: CoordinatorTopic,
    header: RequestHeader,
    request: FindCoordinatorRequest,
) -> Steps[FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]]:
    """Name the coordinator of each key, or say why there is none."""
    topic = {_GROUP: groups, _TRANSACTION: transactions}.get(request.key_type)
    if topic is not None and not topic.exists:
        return _create_and_find(topic, header, request)
    pace = Pace()
    coordinators: list[Coordinator] = []
    keys = request.coordinator_keys if header.api_version >= _BATCHED else [request.key]
    for key in keys:
        found = _refuse(request.key_type, key) if topic is None else _find(topic, key)
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


def _find(topic: CoordinatorTopic, key: str) -> Coordinator:
    if not key:
        of_groups = topic.name == GROUPS_TOPIC
        code = ErrorCode.INVALID_GROUP_ID if of_groups else ErrorCode.INVALID_REQUEST
        kind = "group" if of_groups else "transactional id"
        return _name_nobody(key, code, f"A {kind} has a name.")
    leader = topic.find_leader(key)
    if leader is None:
        return _name_nobody(
            key,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{topic.name} has no leader for this one at the moment.",
        )
    return Coordinator(
        key=key, node_id=leader.id, host=leader.host, port=leader.port, error_message=None
    )


def _refuse(kind: int, key: str) -> Coordinator:
    message = _NOT_SERVED.get(kind)
    if message is None:
        message = f"Coordinator type {kind} is not known; there are 0 to {max(_NOT_SERVED)}."
        return _name_nobody(key, ErrorCode.INVALID_REQUEST, message)
    return _name_nobody(key, ErrorCode.UNSUPPORTED_VERSION, message)


def _name_nobody(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_BROKER, host="", port=_NO_PORT, error_code=code, error_message=message
    )


async def _create_and_find(
    topic: CoordinatorTopic, header: RequestHeader, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if header.api_version >= _BATCHED else [request.key]
    await topic.create(lambda: all(topic.find_leader(key) is not None for key in keys[:_EXPLAINED]))
    return _respond(header.api_version, [_find(topic, key) for key in keys])
