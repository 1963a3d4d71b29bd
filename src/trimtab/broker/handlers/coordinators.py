"""FindCoordinator (10), versions 0-6: there is none yet.

Every key is answered with COORDINATOR_NOT_AVAILABLE, and a message that says why: consumer groups,
transactions and share groups are not served. Clients retry until their own time limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.errors import ErrorCode
from trimtab.wire.framing import RequestHeader
from trimtab.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from trimtab.broker.broker import Broker

_NOWHERE = -1
_BATCHED = 4
_TRANSACTION = 1

_NO_GROUPS = (
    "These brokers do not serve consumer groups yet: assign partitions to the consumer instead of "
    "subscribing."
)
_NO_TRANSACTIONS = (
    "These brokers do not serve transactions yet: use a producer without transactional.id."
)


def find_coordinator(
    broker: Broker, header: RequestHeader, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Nobody coordinates."""
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    message = _NO_TRANSACTIONS if request.key_type == _TRANSACTION else _NO_GROUPS
    if header.api_version < _BATCHED:
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=code,
            error_message=message,
            node_id=_NOWHERE,
            host="",
            port=_NOWHERE,
        )
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        coordinators=[
            Coordinator(
                key=key,
                node_id=_NOWHERE,
                host="",
                port=_NOWHERE,
                error_code=code,
                error_message=message,
            )
            for key in request.coordinator_keys
        ],
    )
