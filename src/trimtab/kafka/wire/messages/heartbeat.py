"""Heartbeat (API 12): keep the membership in a classic group alive."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message
from trimtab.kafka.wire.types import int16, int32, string


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest(Request["HeartbeatResponse"]):
    """Tell the coordinator that the member lives. v3 adds static members (KIP-345)."""

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: string | None = field(versions="3+", nullable_versions="3+", default=None)


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS asks the member to join again."""

    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16
