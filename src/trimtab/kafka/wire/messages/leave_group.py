"""LeaveGroup (API 13): end the membership of members in a classic group."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.types import int16, int32, string


@struct(versions="3+")
class MemberIdentity:
    """A member that leaves: by its instance id if it has one, else by its member id."""

    member_id: string = ""
    group_instance_id: string | None = field(nullable_versions="3+", default=None)
    reason: string | None = field(
        versions="5+", nullable_versions="5+", default=None, ignorable=True
    )


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    """Remove members. From v3 on several, so that a tool can remove static ones (KIP-345)."""

    group_id: string
    member_id: string = field(versions="0-2", default="")
    members: list[MemberIdentity] = field(versions="3+", default_factory=list)


@struct(versions="3+")
class MemberResponse:
    """Whether one member was removed."""

    member_id: string = ""
    group_instance_id: string | None = field(nullable_versions="3+")
    error_code: int16 = 0


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """From v3 on a result for each member."""

    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16
    members: list[MemberResponse] = field(versions="3+", default_factory=list)
