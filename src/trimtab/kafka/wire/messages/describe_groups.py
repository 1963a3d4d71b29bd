"""DescribeGroups (API 15): the state and the members of classic groups."""

from __future__ import annotations

from trimtab.kafka.wire.schema import Request, field, message, struct
from trimtab.kafka.wire.sentinels import UNKNOWN_AUTHORIZED_OPERATIONS
from trimtab.kafka.wire.types import binary, int16, int32, string


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    """Ask the coordinator for groups. v3 adds the operations that the client may do (KIP-430)."""

    groups: list[string]
    include_authorized_operations: bool = field(versions="3+", default=False)


@struct()
class DescribedGroupMember:
    """One member. Metadata and assignment are empty unless the group is stable."""

    member_id: string
    group_instance_id: string | None = field(
        versions="4+", nullable_versions="4+", default=None, ignorable=True
    )
    client_id: string
    client_host: string
    member_metadata: binary
    member_assignment: binary


@struct()
class DescribedGroup:
    """One group. From v6 on one that does not exist has GROUP_ID_NOT_FOUND; before it is Dead."""

    error_code: int16
    error_message: string | None = field(versions="6+", nullable_versions="6+", default=None)
    group_id: string
    group_state: string
    protocol_type: string
    protocol_data: string
    members: list[DescribedGroupMember]
    authorized_operations: int32 = field(versions="3+", default=UNKNOWN_AUTHORIZED_OPERATIONS)


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """One result per group."""

    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    groups: list[DescribedGroup]
