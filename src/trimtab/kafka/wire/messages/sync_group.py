"""SyncGroup (API 14): bring a classic group's assignment to its members."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import binary, int16, int32, string


@struct()
class SyncGroupRequestAssignment:
    """What the leader assigns to one member."""

    member_id: string
    assignment: binary


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """Ask for the member's assignment; the leader gives those of all members.

    v3 adds static members (KIP-345), v5 the protocol, which must be the chosen one (KIP-559).
    """

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: string | None = field(versions="3+", nullable_versions="3+", default=None)
    protocol_type: string | None = field(
        versions="5+", nullable_versions="5+", default=None, ignorable=True
    )
    protocol_name: string | None = field(
        versions="5+", nullable_versions="5+", default=None, ignorable=True
    )
    assignments: list[SyncGroupRequestAssignment]


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The member's assignment, sent once the leader has given it."""

    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16
    protocol_type: string | None = field(
        versions="5+", nullable_versions="5+", default=None, ignorable=True
    )
    protocol_name: string | None = field(
        versions="5+", nullable_versions="5+", default=None, ignorable=True
    )
    assignment: binary
