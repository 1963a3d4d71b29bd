"""FindCoordinator (10), versions 0-6: no broker coordinates groups or transactions.

The error code is UNSUPPORTED_VERSION, which clients treat as final, so they do not retry. The
message says which feature is not served and what to use instead.

librdkafka sends version 2, which is answered differently in two cases:

- It looks for its group's coordinator even if partitions are assigned by hand, which works here. It
  would report an error to such a consumer, so the response names this broker as coordinator. Group
  requests are refused later: JoinGroup and OffsetCommit are not advertised, and
  `trimtab.broker.handlers.groups` refuses the others.
- It looks for a transaction's coordinator until its time-out, unless the code is
  TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from trimtab.broker.cluster_view import ClusterView
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

NO_GROUPS = (
    "These brokers do not serve consumer groups (see SKIPPED.md): assign partitions to the "
    "consumer instead of subscribing, and keep its offsets elsewhere."
)
_NOT_SERVED = {
    _GROUP: NO_GROUPS,
    _TRANSACTION: "These brokers do not serve transactions (see SKIPPED.md): use a producer "
    "without transactional.id.",
    2: "These brokers do not serve share groups (see SKIPPED.md): use a consumer with assigned "
    "partitions.",
}


def find_coordinator(
    view: ClusterView, header: RequestHeader, request: FindCoordinatorRequest
) -> Steps[FindCoordinatorResponse]:
    """Refuse each key; librdkafka's groups get this broker as coordinator."""
    version, kind = header.api_version, request.key_type
    if version == _LIBRDKAFKA and kind == _GROUP:
        own = view.image.brokers.get(view.id)
        if own is None:  # unregistered by an operator, until its next heartbeat
            return FindCoordinatorResponse(
                throttle_time_ms=0,
                error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
                error_message=f"Broker {view.id} is not registered at the moment.",
                node_id=NO_BROKER,
                host="",
                port=_NO_PORT,
            )
        return FindCoordinatorResponse(
            throttle_time_ms=0, error_message=None, node_id=own.id, host=own.host, port=own.port
        )
    message = _NOT_SERVED.get(kind)
    code = ErrorCode.UNSUPPORTED_VERSION
    if message is None:
        code = ErrorCode.INVALID_REQUEST
        message = f"Coordinator type {kind} is not known; there are 0 to {max(_NOT_SERVED)}."
    elif kind == _TRANSACTION and version == _LIBRDKAFKA:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if version < _BATCHED:
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=code,
            error_message=message,
            node_id=NO_BROKER,
            host="",
            port=_NO_PORT,
        )
    pace = Pace()
    coordinators: list[Coordinator] = []
    for key in request.coordinator_keys:
        coordinators.append(
            Coordinator(
                key=key,
                node_id=NO_BROKER,
                host="",
                port=_NO_PORT,
                error_code=code,
                error_message=message if len(coordinators) < _EXPLAINED else None,
            )
        )
        if pace.spend():
            yield
    return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)
